package collector

import (
	"cmp"
	"fmt"
	"time"

	"github.com/muster-config/muster/distributor/inventory"
	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/report"
	"github.com/muster-config/muster/distributor/verdict"
)

// input is what the host's verdict is made of. h is nil for a host of the inventory that nobody has heard of. Under c.mu.
func (c *Collector) input(cohortName, name string, co *cohort, h *host, now time.Time) verdict.Input {
	in := verdict.Input{Host: name, Cohort: cohortName, Poll: c.cfg.Poll, Now: now}
	var labels map[string]string
	if h != nil && h.report != nil {
		labels = h.report.Labels
	}
	in.Expected, in.ExpectedIn, in.Mismatch = c.expected(cohortName, name, labels)
	if in.Expected {
		in.AlsoIn = c.roster.homes(name, cohortName)
	}
	last := c.lastRead
	if co != nil {
		in.View, in.ViewProblem = co.view, cmp.Or(co.problem, c.readErr)
		if c.inFleet(cohortName) || co.view != nil {
			last = co.lastRead
		}
	}
	if last.IsZero() {
		last = c.started.Add(-3 * c.cfg.Poll) // it has read nothing yet, so it knows nothing
	}
	in.ViewAge = now.Sub(last)
	if r, ok := c.retired[hostKey{cohortName, name}]; ok {
		in.Retired, in.RetiredWhy = true, fmt.Sprintf("retired by %s since %s%s", r.By, r.At.UTC().Format(time.RFC3339), orNothing(": ", r.Why))
	}
	if h == nil {
		return in
	}
	if !in.Expected && in.ExpectedIn == "" && h.listed {
		in.Retired = true
	}
	in.Report, in.Received, in.SilentFrom, in.Skew = h.report, h.received, c.silentFrom(h, now), h.skew
	if why := c.vanished(cohortName, h, now); why != "" && !in.Retired {
		in.Retired, in.RetiredWhy = true, why
	}
	in.Accepted = h.quiet(h.foreign, now)
	if in.Duplicate = !h.quiet(h.conflict, now); in.Duplicate {
		for _, b := range h.boots {
			if now.Sub(b.Heard) <= quietReports*max(h.promised(), time.Second) {
				in.Speakers = append(in.Speakers, verdict.Speaker{Boot: b.ID, Running: b.Running, Received: b.Heard})
			}
		}
	}
	if in.View != nil && h.report != nil {
		host := manifest.Host{Name: name, Labels: h.report.Labels}
		if res, err := manifest.Resolve(in.View, host, now); err == nil {
			if !h.report.Confirmed || h.report.Running != res.Epoch() { // else nobody asks, and it costs something
				in.Released = co.toldAt(res.Epoch(), host)
			}
			if res.Variants != nil {
				in.Variants = co.variants[res.Variants.Object]
			}
		}
	}
	return in
}

func orNothing(before, text string) string {
	if text == "" {
		return ""
	}
	return before + text
}

// vanished says why a host of an ephemeral cohort is taken for gone, or "". Silence retires no other host. It is back as soon as it reports.
func (c *Collector) vanished(cohort string, h *host, now time.Time) string {
	if !c.inFleet(cohort) || h.report == nil || !c.fleet.Cohorts[cohort].Ephemeral {
		return ""
	}
	p := c.fleet.Cohorts[cohort]
	after, err := time.ParseDuration(p.RetireAfter)
	if err != nil {
		return ""
	}
	if h.report.Phase == report.PhaseLeaving {
		return fmt.Sprintf("its agent said at %s that it stops; hosts of this cohort may vanish (ephemeral)", h.received.UTC().Format(time.RFC3339))
	}
	from := h.received
	if since := c.silentFrom(h, now); since.After(from) {
		from = since
	}
	if quiet := now.Sub(from); quiet <= max(after, verdict.MissedReports*h.promised()) {
		return ""
	}
	return fmt.Sprintf("not heard since %s; hosts of this cohort may vanish (ephemeral, retire_after %s)", h.received.UTC().Format(time.RFC3339), p.RetireAfter)
}

// inFleet says whether the newest release has the cohort. Under c.mu.
func (c *Collector) inFleet(cohort string) bool {
	if c.fleet == nil {
		return false
	}
	_, ok := c.fleet.Cohorts[cohort]
	return ok
}

// expected says whether the inventory has a host in a cohort, or in which other one, or why it does not choose it. labels are those of its report. A cohort without a
// list and a match expects everybody who reports. Under c.mu.
func (c *Collector) expected(cohort, host string, labels map[string]string) (yes bool, elsewhere, mismatch string) {
	if c.fleet == nil {
		return true, "", "" // nothing was released yet, or read: nobody is out of place
	}
	if c.roster.has(cohort, host) {
		return true, "", ""
	}
	if homes := c.roster.homes(host, cohort); homes != "" {
		return false, homes, ""
	}
	p, ok := c.fleet.Cohorts[cohort]
	switch {
	case !ok:
		return false, "", ""
	case len(p.Hosts.Match) > 0:
		if inventory.Matches(p.Hosts.Match, labels) {
			return true, "", ""
		}
		return false, "", "its labels are not those of hosts.match"
	case c.roster.listed[cohort]:
		return false, "", ""
	}
	return true, "", ""
}

// judged is one host with its verdict.
type judged struct {
	verdict.HostInput
	host *host // nil: nobody has heard of it
}

// judge gives every host of a cohort that the inventory has or that has reported, with its verdict. Under c.mu.
func (c *Collector) judge(name string, now time.Time) []judged {
	co := c.cohorts[name]
	n := len(c.roster.hosts[name])
	if co != nil {
		n = max(n, len(co.hosts))
	}
	list := make([]judged, 0, n)
	add := func(hostName string, h *host) {
		in := c.input(name, hostName, co, h, now)
		list = append(list, judged{verdict.HostInput{Input: in, Verdict: verdict.Of(in)}, h})
	}
	if co != nil {
		for hostName, h := range co.hosts {
			add(hostName, h)
		}
	}
	for hostName := range c.roster.hosts[name] {
		if co == nil || co.hosts[hostName] == nil {
			add(hostName, nil)
		}
	}
	return list
}

// counted compares the hosts that are there with the number that the cohort expects: how many are missing, how many are too many. Under c.mu.
func (c *Collector) counted(name string, hosts []judged) (short, over int) {
	if !c.inFleet(name) || c.fleet.Cohorts[name].Hosts.Expect == nil {
		return 0, 0
	}
	n := 0
	for _, h := range hosts {
		if h.Input.Expected && !h.Input.Retired {
			n++
		}
	}
	e := c.fleet.Cohorts[name].Hosts.Expect
	return max(0, e.Min-n), max(0, n-e.Max)
}

// uncounted says why nobody knows how many hosts a cohort has, or "": then it is never green. passing says that this may end by itself. Under c.mu.
func (c *Collector) uncounted(name string) (why string, passing bool) {
	if !c.inFleet(name) {
		return "", false
	}
	h := c.fleet.Cohorts[name].Hosts
	if why := c.unlisted(name); why != "" {
		return why, true
	}
	if len(h.Match) > 0 && len(h.List) == 0 && h.Expect == nil && !c.roster.listed[name] {
		return fmt.Sprintf("cohort %s has its hosts chosen by match, and no list to choose from: nobody can know of a host that never reported; add hosts.expect, or an inventory (`inventory` in the fleet or in collector.yaml)", name), false
	}
	return "", false
}
