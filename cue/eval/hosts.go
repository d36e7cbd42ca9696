package eval

import (
	"bytes"
	"encoding/csv"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"cuelang.org/go/cue"

	"github.com/muster-config/muster/distributor/inventory"
	"github.com/muster-config/muster/distributor/manifest"
)

// roster is who is known by name: cohort → host → labels, from `hosts: list` and from the inventory file. A cohort that is not in it has
// no list: any host may belong to it.
type roster map[string]map[string]map[string]string

func (r roster) add(cohort, host string, labels map[string]string) {
	if r[cohort] == nil {
		r[cohort] = map[string]map[string]string{}
	}
	r[cohort][host] = labels
}

// roster of a policy that was checked. It is needed for host overlays only.
func (t *tree) roster(p *manifest.Policy) roster {
	out := roster{}
	for name, c := range p.Cohorts {
		for _, h := range c.Hosts.List {
			out.add(name, h, map[string]string{})
		}
	}
	if p.Inventory != nil && p.Inventory.File != "" {
		hosts, err := inventory.ParseCSV(t.files[path.Clean(p.Inventory.File)])
		if err != nil {
			return out // said when the fleet was checked
		}
		for _, h := range hosts {
			out.add(h.Cohort, h.Name, h.Labels)
		}
	}
	return out
}

// holders are the cohorts that carry the service and can have the host: those that name it; if none does, those without a list.
func (e *evaluation) holders(service, host string) []string {
	var named, open []string
	for _, name := range sorted(e.policy.Cohorts) {
		if !slices.Contains(e.policy.Cohorts[name].Services, service) {
			continue
		}
		switch known := e.hosts[name]; {
		case known == nil:
			open = append(open, name)
		case known[host] != nil:
			named = append(named, name)
		}
	}
	if len(named) > 0 {
		return named
	}
	return open
}

// misplacedHost says what is wrong with an overlay for a host.
func (e *evaluation) misplacedHost(service, host string) (string, Severity) {
	if !manifest.ValidHost(host) {
		return fmt.Sprintf("%q is no host name: letters, digits, dots, - and _", host), SeverityError
	}
	if len(e.holders(service, host)) > 0 {
		return "", ""
	}
	msg := fmt.Sprintf("no cohort that carries this service has the host %q, so this overlay has no effect", host)
	var known []string
	for name, c := range e.policy.Cohorts {
		if slices.Contains(c.Services, service) {
			known = append(known, sorted(e.hosts[name])...)
		}
	}
	slices.Sort(known)
	if near := nearest(host, known); near != "" {
		msg += fmt.Sprintf(" (did you mean %q?)", near)
	}
	return msg, SeverityWarning
}

// targets are the cohorts, each followed by its hosts that have an overlay of their own.
func (r *serviceRun) targets(cohorts []string) []target {
	of := map[string][]string{} // cohort → hosts
	for _, h := range r.hostOverlays() {
		for _, cohort := range r.holders(r.name, h) {
			of[cohort] = append(of[cohort], h)
		}
	}
	var out []target
	for _, name := range cohorts {
		t := target{cohort: name, labels: r.policy.Cohorts[name].Labels}
		out = append(out, t)
		for _, h := range r.overriddenHosts(name, of[name]) {
			t.host, t.hostLabels, t.bare = h, r.hosts[name][h], !slices.Contains(of[name], h)
			if t.hostLabels == nil {
				t.hostLabels = map[string]string{}
			}
			out = append(out, t)
		}
	}
	return out
}

// hostOverlays are the hosts that have an overlay, as a file or in CUE, sorted.
func (r *serviceRun) hostOverlays() []string {
	if !slices.Contains(r.policy.Precedence, "host") {
		return nil
	}
	out := sorted(r.overlays["host"])
	if r.inst != nil {
		it, err := r.pkg.LookupPath(cue.MakePath(cue.Str("overlay"), cue.Str("host"))).Fields()
		for err == nil && it.Next() {
			out = append(out, it.Selector().Unquoted())
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// hostless says of the problems of a cohort which are there because `host` has no value outside a variant.
func (r *serviceRun) hostless(t target, problems []Problem) {
	if t.host != "" || !failed(problems) || !r.pkg.LookupPath(hostPath).Exists() || !refersTo(r.inst, "host") {
		return
	}
	t.host, t.hostLabels = "host", map[string]string{}
	_, _, rest := r.unit(t, 0)
	for i, p := range problems {
		if !slices.ContainsFunc(rest, func(q Problem) bool { return q.Path == p.Path && q.Message == p.Message }) {
			msg, _, _ := strings.Cut(p.Message, nextStep)
			problems[i].Message = msg + " (`host` has values only in a host's variant: for the cohort itself declare a default, `host: name: *\"\" | string`)"
		}
	}
}

// csvError is the line that an error of the list begins with, and the rest.
var csvError = regexp.MustCompile(`^line ([0-9]+): (?:column ([0-9]+): )?(.*)$`)

// inventory checks the list of hosts in the tree, and gives it.
func (r *fleetRules) inventory(p *manifest.Policy) []inventory.Host {
	if p.Inventory == nil || p.Inventory.File == "" {
		return nil
	}
	name := path.Clean(p.Inventory.File)
	data, ok := r.tree.files[name]
	if !ok {
		r.errorf(at("inventory", "file"), "no file %q in the tree: a list of hosts lies below fleet, lib or services, such as fleet/hosts.csv", p.Inventory.File)
		return nil
	}
	fail := func(line int, col int, msg string) {
		r.problems = append(r.problems, Problem{Severity: SeverityError, Path: "inventory.file", Message: msg, SetAt: []Pos{{File: name, Line: line, Col: col}}})
	}
	hosts, err := inventory.ParseCSV(data)
	if err != nil {
		line, col, msg := 0, 0, err.Error()
		if m := csvError.FindStringSubmatch(msg); m != nil {
			line, _ = strconv.Atoi(m[1])
			col, _ = strconv.Atoi(m[2])
			msg = m[3]
		}
		fail(line, col, msg)
		return nil
	}
	told := map[string]bool{}
	for _, h := range hosts {
		if _, ok := p.Cohorts[h.Cohort]; ok || told[h.Cohort] {
			continue
		}
		told[h.Cohort] = true
		msg := fmt.Sprintf("host %q is in cohort %q, which the fleet does not have", h.Name, h.Cohort)
		if near := nearest(h.Cohort, sorted(p.Cohorts)); near != "" {
			msg += fmt.Sprintf(" (did you mean %q?)", near)
		}
		fail(csvLine(data, h.Name, h.Cohort), 0, msg)
	}
	return hosts
}

// csvLine is where a list that was read names a host in a cohort.
func csvLine(data []byte, host, cohort string) int {
	r := csv.NewReader(bytes.NewReader(bytes.TrimPrefix(data, []byte("\ufeff"))))
	header, err := r.Read()
	if err != nil {
		return 0
	}
	h, c := slices.Index(header, "host"), slices.Index(header, "cohort")
	for h >= 0 && c >= 0 {
		record, err := r.Read()
		if err != nil {
			break
		}
		if record[h] == host && record[c] == cohort {
			line, _ := r.FieldPos(0)
			return line
		}
	}
	return 0
}

// twice finds hosts of two cohorts that carry one service.
func (r *fleetRules) twice(p manifest.Policy, listed []inventory.Host) {
	type place struct {
		cohort string
		index  int // in hosts.list; -1 for the inventory file
	}
	where := func(host string, pl place) []Pos {
		if pl.index >= 0 {
			return r.pos(at("cohorts", pl.cohort, "hosts", "list", pl.index))
		}
		file := path.Clean(p.Inventory.File)
		return []Pos{{File: file, Line: csvLine(r.tree.files[file], host, pl.cohort)}}
	}
	first := map[string][]place{}
	check := func(host string, pl place) {
		if slices.ContainsFunc(first[host], func(other place) bool { return other.cohort == pl.cohort }) {
			return // in its own cohort's list and in the file: one statement
		}
		for _, other := range first[host] {
			for _, s := range p.Cohorts[pl.cohort].Services {
				if !slices.Contains(p.Cohorts[other.cohort].Services, s) {
					continue
				}
				prob := Problem{
					Severity: SeverityError, SetAt: distinct(slices.Concat(where(host, pl), where(host, other))),
					Message: fmt.Sprintf("host %q is also in cohort %q, and both carry %q", host, other.cohort, s),
				}
				if pl.index >= 0 {
					prob.Path = pathText("cohorts", pl.cohort, "hosts", "list", pl.index)
				}
				r.problems = append(r.problems, prob)
				break
			}
		}
		first[host] = append(first[host], pl)
	}
	for _, name := range sorted(p.Cohorts) {
		for i, h := range p.Cohorts[name].Hosts.List {
			check(h, place{name, i})
		}
	}
	for _, h := range listed {
		check(h.Name, place{h.Cohort, -1})
	}
}
