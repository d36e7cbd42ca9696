package collector

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/muster-config/muster/distributor/api"
	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/report"
	"github.com/muster-config/muster/distributor/rollout/standing"
	"github.com/muster-config/muster/distributor/verdict"
	"github.com/muster-config/muster/distributor/wire"
)

// cohortNames are all cohorts that there is something to say of, sorted. Under c.mu.
func (c *Collector) cohortNames(who caller) []string {
	names := map[string]bool{}
	if c.fleet != nil {
		for name := range c.fleet.Cohorts {
			names[name] = true
		}
	}
	for name, co := range c.cohorts {
		if co.view != nil || len(co.hosts) > 0 {
			names[name] = true
		}
	}
	var list []string
	for name := range names {
		if who.may(name) {
			list = append(list, name)
		}
	}
	slices.Sort(list)
	return list
}

// Status says for each cohort what it is to run and how many hosts are where.
func (c *Collector) Status(context.Context) (*api.Status, error) { return c.status(local), nil }

func (c *Collector) status(who caller) *api.Status {
	now := c.now()
	c.mu.RLock()
	defer c.mu.RUnlock()
	s := &api.Status{Cohorts: map[string]api.Cohort{}, Controller: c.steering != nil}
	for _, name := range c.cohortNames(who) {
		hosts := c.judge(name, now)
		out := api.Cohort{Verdicts: map[verdict.Code]int{}, Phase: manifest.PhaseIdle}
		for _, h := range hosts {
			out.Verdicts[h.Verdict.Code]++
			if h.Input.Expected && !h.Input.Retired {
				out.Expected++
			}
		}
		var why []string
		switch short, over := c.counted(name, hosts); {
		case short > 0:
			out.Expected += short
			why = append(why, fmt.Sprintf("%d more of the hosts that it expects by number have never reported", short))
		case over > 0:
			why = append(why, fmt.Sprintf("%d hosts more than hosts.expect allows are there: raise it, or `muster hosts retire` those that are gone", over))
		}
		why = append(why, c.listProblems(name)...)
		co := c.cohorts[name]
		switch {
		case co != nil && co.problem != "":
			why = append(why, co.problem)
		case c.readErr != "":
			why = append(why, c.readErr)
		}
		if !c.inFleet(name) {
			why = append(why, "the newest release has no such cohort")
		}
		switch {
		case co != nil && co.view == nil && co.problem != "":
			why = append(why, "its order is not taken, so that nothing is known of what hosts are to run; they keep what they run: `muster fsck` looks at the store")
		case co == nil || co.view == nil:
			why = append(why, "nothing is assigned yet: a rollout controller does it (`rollout_key` in collector.yaml, or `muster rollout run`), or `muster publish --rollout=now`")
		default:
			m := &co.view.Manifest
			out.Target, out.Baseline, out.Phase, out.Mark = m.Rollout.Target, m.Rollout.Baseline, m.Rollout.Phase, co.view.Mark().String()
			if out.Stale = now.After(m.FreshUntil); out.Stale {
				why = append(why, fmt.Sprintf("order %s should have been renewed by %s: renew it with `muster rollout refresh %s`", out.Mark, m.FreshUntil.UTC().Format("2006-01-02T15:04:05Z"), name))
			}
			for _, st := range co.view.Statements {
				if st.Epoch == out.Target && st.Override == "" {
					out.Commit = st.Commit
				}
			}
			if r := c.rolloutOf(name, hosts, now, false); !atRest(r) {
				out.Rollout = r
			}
			out.Overrides = overridesOf(co.view, now)
			out.Active = standing.Active(co.view, now, c.made)
			if waiting := c.waiting(name, out.Target); waiting > 0 && (out.Rollout == nil || out.Rollout.Waits == "") {
				why = append(why, fmt.Sprintf("epoch %d is released and not assigned", waiting))
			}
			switch {
			case out.Rollout != nil && out.Rollout.Waits != "":
				why = append(why, out.Rollout.Waits)
			case m.Rollout.Why != "":
				why = append(why, m.Rollout.Why)
			}
		}
		if i, ok := slices.BinarySearchFunc(c.releases, out.Target, func(r release, e uint64) int { return int(r.Epoch) - int(e) }); ok {
			out.Commit, out.Subject = c.releases[i].Commit, c.releases[i].Subject
		}
		out.Why = strings.Join(why, "; ")
		s.Cohorts[name] = out
	}
	return s
}

// waiting is the epoch that the newest release says stands for a cohort, if the head's target is below it; else 0. Under c.mu.
func (c *Collector) waiting(name string, target uint64) uint64 {
	if n := len(c.releases); n > 0 {
		if rc, ok := c.releases[n-1].Cohorts[name]; ok && rc.Epoch > target {
			return rc.Epoch
		}
	}
	return 0
}

// Hosts lists hosts, sorted by cohort and name; "" is all.
func (c *Collector) Hosts(_ context.Context, cohort, code string) ([]api.Host, error) {
	return c.listHosts(local, cohort, code)
}

func (c *Collector) listHosts(who caller, cohort, code string) ([]api.Host, error) {
	if code != "" && !slices.Contains(verdict.Codes, verdict.Code(code)) {
		return nil, refuse(http.StatusBadRequest, fmt.Sprintf("there are %s", codeList()), "verdict %.60q is not known", code)
	}
	now := c.now()
	c.mu.RLock()
	defer c.mu.RUnlock()
	names := c.cohortNames(who)
	if cohort != "" {
		if !slices.Contains(names, cohort) {
			return nil, refuse(http.StatusNotFound, "", "no cohort %.80q", cohort)
		}
		names = []string{cohort}
	}
	list := []api.Host{}
	for _, name := range names {
		from := len(list)
		for _, h := range c.judge(name, now) {
			if code == "" || h.Verdict.Code == verdict.Code(code) {
				list = append(list, tell(h))
			}
		}
		slices.SortFunc(list[from:], func(a, b api.Host) int { return strings.Compare(a.Host, b.Host) })
	}
	return list, nil
}

func codeList() string {
	var list []string
	for _, code := range verdict.Codes {
		list = append(list, string(code))
	}
	return strings.Join(list, ", ")
}

func tell(h judged) api.Host {
	out := api.Host{Host: h.Input.Host, Cohort: h.Input.Cohort, Verdict: h.Verdict.Code, Why: h.Verdict.Why, Desired: h.Verdict.Desired, Running: h.Verdict.Running, Grade: h.Verdict.Grade, Runs: verdict.Runs(h.Input)}
	if h.host != nil && !h.host.received.IsZero() {
		at := h.host.received.UTC()
		out.SeenAt, out.SkewS = &at, h.host.skew.Seconds()
	}
	return out
}

// Host is one host, with its last report. One that speaks in several cohorts is told where it is expected, or else where it spoke last.
func (c *Collector) Host(ctx context.Context, name string) (*api.Host, error) {
	return c.oneHost(ctx, local, name, false)
}

func (c *Collector) oneHost(ctx context.Context, who caller, name string, signed bool) (*api.Host, error) {
	out, k, said, err := c.findHost(who, name)
	if err != nil || said == nil {
		return out, err
	}
	if e := c.envelope(ctx, k); e != nil && signed {
		out.Signed = e // its payload is the report
		return out, nil
	}
	out.Report, err = c.said(ctx, k, said)
	return out, err
}

// said is the payload of a host's last signed report: as it waits to be written, or as it is stored; without a database, what is kept of it.
func (c *Collector) said(ctx context.Context, k hostKey, kept *report.Report) (json.RawMessage, error) {
	if e := c.envelope(ctx, k); e != nil {
		return json.RawMessage(e.Payload), nil
	}
	data, err := wire.Encode(kept)
	return json.RawMessage(data), err
}

// envelope is a host's last signed report as the host signed it; nil where it cannot be had at the moment.
func (c *Collector) envelope(ctx context.Context, k hostKey) *manifest.Envelope {
	c.mu.RLock()
	waiting, trouble := c.dirty.hosts[k], c.dbErr
	c.mu.RUnlock()
	if waiting != nil {
		return waiting
	}
	if c.db == nil || trouble != "" { // who looks must not wait in line for a database that is away
		return nil
	}
	data, err := c.db.signed(ctx, k)
	if err != nil || data == nil {
		return nil
	}
	e, err := manifest.ParseEnvelope(data)
	if err != nil || sum(e.Digest()) != c.digestOf(k) {
		return nil
	}
	return e
}

func (c *Collector) digestOf(k hostKey) (d [32]byte) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if co := c.cohorts[k.cohort]; co != nil && co.hosts[k.host] != nil {
		d = co.hosts[k.host].digest
	}
	return d
}

// findHost is one host, and what is kept of its last report, with what is its own put back.
func (c *Collector) findHost(who caller, name string) (*api.Host, hostKey, *report.Report, error) {
	now := c.now()
	c.mu.RLock()
	defer c.mu.RUnlock()
	var best *judged
	for _, cohortName := range c.cohortNames(who) {
		co := c.cohorts[cohortName]
		var h *host
		if co != nil {
			h = co.hosts[name]
		}
		if h == nil && !c.roster.has(cohortName, name) {
			continue
		}
		in := c.input(cohortName, name, co, h, now)
		j := &judged{verdict.HostInput{Input: in, Verdict: verdict.Of(in)}, h}
		if best == nil || in.Expected && !best.Input.Expected || in.Expected == best.Input.Expected && in.Received.After(best.Input.Received) {
			best = j
		}
	}
	if best == nil {
		return nil, hostKey{}, nil, refuse(http.StatusNotFound, "`muster hosts` lists them", "no host %.80q", name)
	}
	out := tell(*best)
	k := hostKey{best.Input.Cohort, name}
	h := best.host
	if h == nil || h.report == nil {
		return &out, k, nil, nil
	}
	r := *h.report
	r.Host, r.Key, r.Boot, r.Counter, r.At = name, h.key, h.boots[h.current].ID, h.boots[h.current].Counter, h.received.Add(h.skew).UTC()
	return &out, k, &r, nil
}

// Releases lists the releases that are remembered, newest first.
func (c *Collector) Releases(context.Context) ([]api.Release, error) {
	return c.listReleases(local), nil
}

func (c *Collector) listReleases(who caller) []api.Release {
	c.mu.RLock()
	defer c.mu.RUnlock()
	list := []api.Release{}
	for i := len(c.releases) - 1; i >= 0; i-- {
		if r, ok := visible(c.releases[i].Release, who); ok {
			list = append(list, r)
		}
	}
	return list
}

// visible leaves out the cohorts that the caller may not see. A release that has none that it may is not for it; one that only leaves its cohorts as they are is told by its numbers,
// so that `muster wait COMMIT` finds it, and not by what somebody wrote for others.
func visible(r api.Release, who caller) (api.Release, bool) {
	touched := who.all()
	cohorts := map[string]api.ReleaseCohort{}
	for name, rc := range r.Cohorts {
		if who.may(name) {
			cohorts[name] = rc
			touched = touched || rc.State != manifest.StateHolds
		}
	}
	r.Cohorts = cohorts
	if !touched {
		r.Subject, r.Author = "", manifest.Person{}
	}
	return r, len(cohorts) > 0 || who.all()
}

// Release is one release; an old one is read from the store.
func (c *Collector) Release(ctx context.Context, epoch uint64) (*api.Release, error) {
	return c.oneRelease(ctx, local, epoch)
}

func (c *Collector) oneRelease(ctx context.Context, who caller, epoch uint64) (*api.Release, error) {
	c.mu.RLock()
	i, ok := slices.BinarySearchFunc(c.releases, epoch, func(r release, e uint64) int { return int(r.Epoch) - int(e) })
	var r api.Release
	older := len(c.releases) > 0 && epoch < c.releases[0].Epoch && epoch > 0
	if ok {
		r = c.releases[i].Release
	}
	keys, err := c.trust.Keys()
	c.mu.RUnlock()
	switch {
	case err != nil:
		return nil, err
	case ok:
	case older:
		rel, err := c.readRelease(ctx, keys, epoch, "")
		if errors.Is(err, errJunk) {
			return nil, noRelease(epoch)
		}
		if err != nil {
			return nil, err
		}
		r = summary(rel.Release)
	default:
		return nil, noRelease(epoch)
	}
	r, ok = visible(r, who)
	if !ok {
		return nil, noRelease(epoch)
	}
	return &r, nil
}

func noRelease(epoch uint64) error {
	return refuse(http.StatusNotFound, "`muster status` shows what is released", "no release %d is known", epoch)
}
