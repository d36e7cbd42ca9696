package main

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/muster-config/muster/cmd/internal/cli"
	"github.com/muster-config/muster/distributor/api"
	"github.com/muster-config/muster/distributor/verdict"
)

const (
	alike     = 4 // so many hosts of one reason are told in one line
	alikeName = 3 // of which so many are named
)

// owedHost is what stands in place of a verdict for a host that was silent before the release.
const owedHost = "owed"

// hostRows name the hosts that are not confirmed, and why: the owed ones too, if asked for. Many of one reason are one row, which names the first of them; `muster hosts` names all.
func hostRows(g *api.Wait, andOwed bool) (rows [][]string) {
	for _, name := range slices.Sorted(maps.Keys(g.Cohorts)) {
		c := g.Cohorts[name]
		rows = append(rows, grouped(name, "", c.Waiting)...)
		if andOwed {
			rows = append(rows, grouped(name, owedHost, c.OwedHosts)...)
		}
	}
	return rows
}

func grouped(cohort, verdictOf string, list []verdict.Waiting) (rows [][]string) {
	groups := map[string][]verdict.Waiting{}
	var order []string
	for _, h := range list {
		key := string(h.Verdict) + "\x00" + reasonKey(h)
		if groups[key] == nil {
			order = append(order, key)
		}
		groups[key] = append(groups[key], h)
	}
	for _, key := range order {
		of := groups[key]
		word := verdictOf
		if word == "" {
			word = string(of[0].Verdict)
		}
		if len(of) < alike {
			for _, h := range of {
				rows = append(rows, []string{"  " + h.Host, cohort, word, h.Why})
			}
			continue
		}
		var names []string
		for _, h := range of[:alikeName] {
			names = append(names, h.Host)
		}
		rows = append(rows, []string{"  " + cli.Count(len(of), "host"), cohort, word, fmt.Sprintf("%s (%s, …)", of[0].Why, strings.Join(names, ", "))})
	}
	return rows
}

// spans are ages and times: they differ between hosts of one reason.
var spans = regexp.MustCompile(`\b\d{4}-\d\d-\d\dT[0-9:.]+Z|\b(\d+(\.\d+)?(ns|µs|ms|h|m|s))+\b|\b\d+ (seconds|minutes|hours|days)\b`)

// reasonKey is a reason without what is the host's own in it.
func reasonKey(h verdict.Waiting) string {
	words := strings.Fields(h.Why)
	for i, w := range words {
		if strings.Trim(w, ",;:()") == h.Host {
			words[i] = "…"
		}
	}
	return spans.ReplaceAllString(strings.Join(words, " "), "…")
}
