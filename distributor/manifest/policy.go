package manifest

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// Policy is the fleet section of a config repo (docs/formats.md) as a release carries it. Defaults are filled in.
type Policy struct {
	Muster     string                   `json:"muster,omitempty"` // evaluator line, "0.1"
	Precedence []string                 `json:"precedence"`
	Cohorts    map[string]CohortPolicy  `json:"cohorts"`
	Inventory  *Inventory               `json:"inventory,omitempty"`
	Rollouts   map[string]RolloutPolicy `json:"rollouts"` // always has "standard"
	Ext        Ext                      `json:"ext,omitempty"`
}

// CohortPolicy is one cohort as the fleet declares it.
type CohortPolicy struct {
	Description string            `json:"description,omitempty"`
	Labels      map[string]string `json:"labels"`
	Services    []string          `json:"services"` // the services it carries, expanded from globs, sorted
	Hosts       HostsPolicy       `json:"hosts"`
	Rollout     string            `json:"rollout"`
	Order       int               `json:"order"`
	Ephemeral   bool              `json:"ephemeral"`
	RetireAfter string            `json:"retire_after,omitempty"` // Go duration

	RequireApprovals int      `json:"require_approvals,omitempty"` // of the merged head, for a commit that changes the cohort
	Owners           []string `json:"owners,omitempty"`            // one of the approvals is one of theirs: logins, and teams as org/team
}

// HostsPolicy says who is expected in a cohort; at least one is set.
type HostsPolicy struct {
	List   []string            `json:"list,omitempty"`
	Match  map[string][]string `json:"match,omitempty"` // label of the inventory → accepted values
	Expect *Expect             `json:"expect,omitempty"`
}

// Expect is an expected number of hosts; a plain number n in CUE is {Min: n, Max: n}.
type Expect struct {
	Min int `json:"min"`
	Max int `json:"max"`
}

// Inventory is where host names come from.
type Inventory struct {
	File string `json:"file,omitempty"`
	HTTP string `json:"http,omitempty"`
}

// RolloutPolicy is how a cohort takes a new release (docs/formats.md).
type RolloutPolicy struct {
	Waves         []Wave          `json:"waves"`
	Gates         map[string]Gate `json:"gates"`
	MinReported   float64         `json:"min_reported"`
	MaxFailed     int             `json:"max_failed"`
	MaxInFlight   string          `json:"max_in_flight"` // "10%" or a count
	Spread        string          `json:"spread"`
	Timeout       string          `json:"timeout"`
	OnFailure     string          `json:"on_failure"` // rollback | halt
	Watch         string          `json:"watch"`
	ApproveBefore []int           `json:"approve_before"`
	Windows       []string        `json:"windows"`
	Independent   bool            `json:"independent"`
}

// Wave is one step of a rollout: percent, count or match, then a bake.
type Wave struct {
	Percent float64           `json:"percent,omitempty"`
	Count   int               `json:"count,omitempty"`
	Match   map[string]string `json:"match,omitempty"`
	Min     int               `json:"min,omitempty"`
	Bake    string            `json:"bake"`
}

// Gate is a health condition that must hold for a whole bake.
type Gate struct {
	Prometheus string       `json:"prometheus,omitempty"`
	Of         string       `json:"of,omitempty"` // prometheus: the query of all events, of which Prometheus counts the bad ones
	HTTP       string       `json:"http,omitempty"`
	Reported   string       `json:"reported,omitempty"` // what agents report: one of ReportedGates
	Min        *float64     `json:"min,omitempty"`
	Max        *float64     `json:"max,omitempty"`
	Compare    *GateCompare `json:"compare,omitempty"`
	Every      string       `json:"every"`
	Fails      int          `json:"fails"`
	NoData     string       `json:"no_data"` // wait | fail
}

// ReportedGates are the built-in gates: shares of hosts or probes, and a latency in milliseconds, from what agents report.
var ReportedGates = []string{"refused", "rolled_back", "drift", "restarts", "probe_failures", "probe_latency"}

// GateCompare compares the canary with the concurrent control group.
type GateCompare struct {
	Ratio float64 `json:"ratio"`
}

// Validate checks the shape of a policy; what a person may write is checked where it is evaluated, with a place.
func (p *Policy) Validate() error {
	var c check
	c.that(len(p.Precedence) <= 100, "precedence: more than 100 labels")
	for _, l := range p.Precedence {
		for _, part := range strings.Split(l, "+") {
			c.name("precedence", part)
		}
	}
	for name, co := range p.Cohorts {
		c.name("cohorts", name)
		c.in("cohorts."+name+".labels", validLabels(co.Labels))
		for _, s := range co.Services {
			c.name("services", s)
		}
		for _, h := range co.Hosts.List {
			c.that(ValidHost(h), "cohorts.%s.hosts.list: %.80q is not a host name", name, h)
		}
		if e := co.Hosts.Expect; e != nil {
			c.that(e.Min >= 0 && e.Max >= e.Min, "cohorts.%s.hosts.expect: out of range", name)
		}
		_, ok := p.Rollouts[co.Rollout]
		c.that(ok, "cohorts.%s.rollout: %.80q is not defined", name, co.Rollout)
		c.text("description", co.Description)
		c.that(co.RequireApprovals >= 0 && co.RequireApprovals <= 1000, "cohorts.%s.require_approvals: out of range", name)
		c.that(len(co.Owners) <= 1000, "cohorts.%s.owners: too many", name)
		for _, o := range co.Owners {
			c.text("owners", o)
		}
		if co.RetireAfter != "" {
			c.duration("retire_after", co.RetireAfter)
		}
	}
	for name, r := range p.Rollouts {
		c.name("rollouts", name)
		c.in("rollouts."+name, r.Validate())
	}
	return c.err
}

// Validate checks the shape of a rollout policy.
func (r *RolloutPolicy) Validate() error {
	var c check
	c.that(len(r.Waves) >= 1 && len(r.Waves) <= 100, "waves: not 1 to 100")
	for i, w := range r.Waves {
		n := 0
		for _, set := range []bool{w.Percent != 0, w.Count != 0, len(w.Match) > 0} {
			if set {
				n++
			}
		}
		c.that(n == 1, "waves.%d: needs exactly one of percent, count, match", i)
		c.that(w.Percent >= 0 && w.Percent <= 100 && w.Count >= 0 && w.Min >= 0, "waves.%d: out of range", i)
		c.in(fmt.Sprintf("waves.%d.match", i), validLabels(w.Match))
		c.duration(fmt.Sprintf("waves.%d.bake", i), w.Bake)
	}
	for name, g := range r.Gates {
		c.name("gates", name)
		kinds := 0
		for _, set := range []bool{g.Prometheus != "", g.HTTP != "", g.Reported != ""} {
			if set {
				kinds++
			}
		}
		c.that(kinds == 1, "gates.%s: needs exactly one of prometheus, http, reported", name)
		c.that(g.Reported == "" || slices.Contains(ReportedGates, g.Reported), "gates.%s.reported: %.80q is not one of %s", name, g.Reported, strings.Join(ReportedGates, ", "))
		c.that(g.Of == "" || g.Prometheus != "", "gates.%s.of: goes with prometheus", name)
		c.that(g.Min != nil || g.Max != nil || g.Compare != nil, "gates.%s: needs a bound or a comparison", name)
		c.duration("gates."+name+".every", g.Every)
		c.that(g.Compare == nil || g.Compare.Ratio > 0, "gates.%s.compare.ratio: not above 0", name)
		c.text("gates."+name, g.Prometheus+g.HTTP+g.Of)
		c.that(g.Fails >= 1, "gates.%s.fails: less than 1", name)
		c.that(g.NoData == "wait" || g.NoData == "fail", "gates.%s.no_data: not wait or fail", name)
	}
	c.that(r.MinReported >= 0 && r.MinReported <= 1 && !math.IsNaN(r.MinReported), "min_reported: not 0 to 1")
	c.that(r.MaxFailed >= 0, "max_failed: negative")
	c.that(validShare(r.MaxInFlight), "max_in_flight: not a share of 1%% to 100%%, nor a count")
	for _, n := range r.ApproveBefore {
		c.that(n >= 1, "approve_before: not a wave")
	}
	c.that(len(r.Windows) <= 100, "windows: more than 100")
	for _, w := range r.Windows {
		c.text("windows", w)
	}
	c.duration("spread", r.Spread)
	c.duration("timeout", r.Timeout)
	c.that(r.OnFailure == "rollback" || r.OnFailure == "halt", "on_failure: not rollback or halt")
	c.duration("watch", r.Watch)
	return c.err
}

// validShare reports whether s is "10%" or a count of at least 1.
func validShare(s string) bool {
	digits, share := strings.CutSuffix(s, "%")
	n, err := strconv.ParseFloat(digits, 64)
	if share {
		return err == nil && n > 0 && n <= 100
	}
	k, err := strconv.Atoi(s)
	return err == nil && k >= 1
}
