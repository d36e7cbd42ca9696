package gate

import (
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/muster-config/muster/distributor/manifest"
)

// Names are what a query may use after a `$`.
var Names = []string{"cohort", "epoch", "canary", "control", "every"}

// name is a `$name` or `${name}`, or `$$` for a dollar sign. Any other `$`, such as the end of a regular expression, stands for itself.
var name = regexp.MustCompile(`\$(\$|[A-Za-z_][A-Za-z0-9_]*|\{[A-Za-z_][A-Za-z0-9_]*\})`)

// group is whose numbers are asked for: the canary's, or those of the control group.
type group int

const (
	canary group = iota
	control
)

// uses are the names in a query, sorted.
func uses(query string) []string {
	var found []string
	for _, m := range name.FindAllStringSubmatch(query, -1) {
		if n := strings.Trim(m[1], "{}"); n != "$" && !slices.Contains(found, n) {
			found = append(found, n)
		}
	}
	slices.Sort(found)
	return found
}

// replace puts values in the place of names; unknown ones stay.
func replace(query string, values map[string]string, quote func(string) string) string {
	return name.ReplaceAllStringFunc(query, func(m string) string {
		n := strings.Trim(m[1:], "{}")
		if n == "$" {
			return "$"
		}
		v, ok := values[n]
		if !ok {
			return m
		}
		if n == "cohort" || n == "epoch" {
			return quote(v)
		}
		return v
	})
}

// promQL is a query with its names replaced: $cohort, $epoch and $every are text, $canary and $control the fragment to multiply with that keeps only hosts of that group. For the
// control group, $canary and $epoch are the control's.
func (q Question) promQL(gate manifest.Gate, query string, g group) string {
	canaries, controls := joined(q.Cohort, q.Epoch), joined(q.Cohort, q.Baseline)
	epoch := q.Epoch
	if g == control {
		canaries, epoch = controls, q.Baseline
	}
	return replace(query, map[string]string{
		"cohort": q.Cohort, "epoch": strconv.FormatUint(epoch, 10), "canary": canaries, "control": controls, "every": duration(every(gate)),
	}, label)
}

// address is a gate's URL with its names replaced; there, there is nothing to join with.
func (q Question) address(raw string, g group) string {
	epoch := q.Epoch
	if g == control {
		epoch = q.Baseline
	}
	return replace(raw, map[string]string{"cohort": q.Cohort, "epoch": strconv.FormatUint(epoch, 10)}, url.QueryEscape)
}

// joined is the fragment of a query that keeps only the hosts of a cohort that run an epoch, by the metric that their agents export; the metrics it is multiplied with carry a host label.
func joined(cohort string, epoch uint64) string {
	return fmt.Sprintf(`on (host) group_left () (max by (host) (muster_host_info{cohort="%s",epoch="%d"}))`, label(cohort), epoch)
}

// label escapes a label's value for a quoted string of PromQL.
func label(s string) string {
	return strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`).Replace(s)
}

// duration writes a duration as PromQL reads it: whole milliseconds, no fractions.
func duration(d time.Duration) string {
	ms := max(1, d.Milliseconds())
	if ms%1000 == 0 {
		return strconv.FormatInt(ms/1000, 10) + "s"
	}
	return strconv.FormatInt(ms, 10) + "ms"
}
