package collector

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/report"
	"github.com/muster-config/muster/distributor/rollout"
	"github.com/muster-config/muster/distributor/rollout/gate"
	"github.com/muster-config/muster/distributor/verdict"
)

var (
	_ rollout.Observations = (*Collector)(nil)
	_ rollout.Policies     = (*Collector)(nil)
)

// settleFor is how long after its start a collector does not take hosts that it has not heard of for hosts that are not there.
const settleFor = 5 * time.Minute

// Newest is the newest release for a rollout controller; an error while nobody can say which it is.
func (c *Collector) Newest(context.Context) (rollout.Newest, error) { return c.newestRead(false) }

// newestRead is Newest, for who has just read the keyrings and releases too.
func (c *Collector) newestRead(just bool) (rollout.Newest, error) {
	now := c.now()
	c.mu.RLock()
	defer c.mu.RUnlock()
	n := len(c.releases)
	switch {
	case n == 0 && c.lastRead.IsZero():
		return rollout.Newest{}, errors.New("the store was not read yet")
	case n == 0:
		return rollout.Newest{}, errors.New("nothing is released yet")
	case c.replaced[c.releases[n-1].Epoch]:
		return rollout.Newest{}, anotherRelease(c.releases[n-1].Epoch)
	case !just && now.Sub(c.lastRead) > 2*c.cfg.Poll && c.readErr != "":
		return rollout.Newest{}, fmt.Errorf("the store cannot be read in whole: %s", c.readErr)
	}
	return rollout.Newest{Trust: c.trust, Release: c.newest}, nil
}

func anotherRelease(epoch uint64) error {
	return fmt.Errorf("the store holds another release %d than it did before; check the store with muster fsck", epoch)
}

// Released is a whole release, verified and read from the store.
func (c *Collector) Released(ctx context.Context, epoch uint64) (*manifest.Release, error) {
	c.mu.RLock()
	keys, err := c.trust.Keys()
	known, seen := c.digests[epoch]
	newest := c.newest
	c.mu.RUnlock()
	switch {
	case err != nil:
		return nil, err
	case newest != nil && newest.Epoch == epoch:
		return newest, nil
	}
	rel, err := c.readRelease(ctx, keys, epoch, "")
	if err != nil {
		return nil, err
	}
	if seen && known != rel.digest {
		return nil, anotherRelease(epoch)
	}
	return rel.Release, nil
}

// Statement is the plain statement that a release made for a cohort, read from the store once.
func (c *Collector) Statement(ctx context.Context, cohort string, epoch uint64) (*manifest.Envelope, error) {
	of := c.stated(cohort, epoch)
	if e := c.known.statement(of); e != nil {
		return e, nil
	}
	rel, err := c.Released(ctx, epoch)
	if err != nil {
		return nil, err
	}
	st := rel.Cohorts[cohort].Statement
	if st == nil {
		return nil, fmt.Errorf("release %d made no statement for cohort %s; check the store with muster fsck", epoch, cohort)
	}
	c.known.put(of, known{statement: st})
	return st, nil
}

// Cohort is what a rollout controller looks at.
func (c *Collector) Cohort(_ context.Context, name string) (*manifest.View, rollout.Observed, error) {
	now := c.now()
	c.mu.RLock()
	defer c.mu.RUnlock()
	co := c.cohorts[name]
	if co == nil || co.view == nil {
		if co == nil || co.lastRead.IsZero() {
			return nil, rollout.Observed{}, errors.New("its head was not read yet")
		}
		return nil, rollout.Observed{}, nil
	}
	seen := rollout.Observed{Mark: co.view.Mark(), Siblings: c.siblings(name)}
	r := &co.view.Manifest.Rollout
	quiet := len(co.view.Overrides) == 0 && !slices.ContainsFunc(co.view.Manifest.Assign, func(a manifest.Assignment) bool { return len(a.Hosts) > 0 })
	if quiet && r.Phase == manifest.PhaseDone && r.Fallback == 0 && c.newest != nil && c.newest.Cohorts[name].Epoch == r.Target {
		return co.view, seen, nil // nothing moves: no host need be looked at
	}
	hosts := c.judge(name, now)
	for i := range hosts {
		if h := &hosts[i]; h.Input.Expected && !h.Input.Retired {
			seen.Hosts = append(seen.Hosts, c.observed(co, h))
		}
	}
	seen.Unseen, seen.Settling = c.unseen(name, hosts), c.settling(name, hosts, now)
	return co.view, seen, nil
}

// observed is one host for a controller. Under c.mu.
func (c *Collector) observed(co *cohort, h *judged) rollout.Host {
	o := rollout.Host{Name: h.Input.Host, Verdict: h.Verdict.Code, Running: h.Verdict.Running}
	rep := h.Input.Report
	if rep == nil {
		return o
	}
	o.Labels, o.Attempted = rep.Labels, rep.Attempted
	if rep.WaitsUntil != nil {
		o.Waits = *rep.WaitsUntil
	}
	told := func() time.Time {
		host := manifest.Host{Name: o.Name, Labels: o.Labels}
		res, err := manifest.Resolve(co.view, host, h.Input.Now)
		if err != nil {
			return time.Time{}
		}
		return co.toldAt(res.Epoch(), host)
	}
	switch {
	case o.Verdict == verdict.Silent:
		o.Silent, o.Left, o.Told = verdict.SilentSince(h.Input), rep.Phase == report.PhaseLeaving, told()
	case o.Verdict == verdict.Overridden && !rep.Confirmed:
		if o.Told = told(); o.Told.IsZero() {
			o.Told = c.started // before anybody listened here
		}
	}
	o.Reported = reported(o.Name, rep, h.Input.Received)
	if h.host != nil {
		p := h.host.probed
		o.Reported.Probes, o.Reported.Failures, o.Reported.LatencyMS = int(p.count), int(p.failures), float64(p.ms)
	}
	return o
}

// reported is what the built-in gates look at, but for the probes, which the host's own entry holds.
func reported(name string, rep *report.Report, at time.Time) gate.Host {
	g := gate.Host{
		Name: name, At: at, Refused: rep.Phase == report.PhaseRefused, RolledBack: rep.Phase == report.PhaseRolledBack || rep.Phase == report.PhaseFailed,
		Drifted: max(rep.Drifted, len(rep.Drift)) > 0,
	}
	for _, s := range rep.Services {
		g.Restarts += s.Restarts
	}
	return g
}

// siblings are the other cohorts of the newest release. Under c.mu.
func (c *Collector) siblings(name string) (list []rollout.Sibling) {
	if c.newest == nil {
		return nil
	}
	for _, other := range slices.Sorted(maps.Keys(c.newest.Cohorts)) {
		if other == name {
			continue
		}
		s := rollout.Sibling{Cohort: other, Order: c.newest.Policy.Cohorts[other].Order, Epoch: c.newest.Cohorts[other].Epoch}
		if co := c.cohorts[other]; co != nil && co.view != nil {
			s.Rollout = co.view.Manifest.Rollout
		}
		list = append(list, s)
	}
	return list
}

// unseen says why there may be hosts that nobody has heard of and no list names, or "". Under c.mu.
func (c *Collector) unseen(name string, hosts []judged) string {
	if why, _ := c.uncounted(name); why != "" {
		return why
	}
	if short, _ := c.counted(name, hosts); short > 0 {
		return fmt.Sprintf("%d more are expected that nobody has heard of", short)
	}
	return ""
}

// settling says why hosts may not be known yet that do report, or "". Under c.mu.
func (c *Collector) settling(name string, hosts []judged, now time.Time) string {
	if now.Sub(c.started) >= settleFor {
		return ""
	}
	missing := 0
	for i := range hosts {
		if h := &hosts[i]; h.Input.Expected && h.Verdict.Code == verdict.Missing {
			missing++
		}
	}
	switch {
	case missing > 0:
		return fmt.Sprintf("the collector was started at %s, and has not heard of %d hosts yet", c.started.UTC().Format(time.RFC3339), missing)
	case !c.roster.listed[name]:
		if short, _ := c.counted(name, hosts); short > 0 || len(hosts) == 0 {
			return fmt.Sprintf("the collector was started at %s, and nobody lists the hosts of the cohort", c.started.UTC().Format(time.RFC3339))
		}
	}
	return ""
}

// Changed is closed when a verdict, a head or the releases may have changed.
func (c *Collector) Changed() <-chan struct{} { return c.onChange() }

// Wrote has the store read at once.
func (c *Collector) Wrote(string) { wake(c.reread) }
