package sim

import (
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/rollout"
)

// stops: no forward move under a halt, a pause, a freeze, without an approval, or of what failed before; and no stop ends by itself.
func (c *check) stops() {
	r, p := &c.view.Manifest.Rollout, &c.prev.Manifest.Rollout
	if len(c.forward) > 0 {
		first := c.forward[0].name
		if len(r.Halts) > 0 {
			c.broken("no wave under a halt", "%s goes to %d, and release %d halted the cohort", first, r.Target, r.Halts[0].Epoch)
		}
		if t, ok := c.f.fallen[r.Target]; ok && !c.did("resume") {
			c.broken("no wave after an abort or a failure until resumed", "%s goes to %d, which fell %s ago", first, r.Target, c.now.Sub(t))
		}
		if p.Pause != nil && !past(p.Pause.Until, c.now) && r.Target == p.Target && !c.did("resume", "supersede") {
			c.broken("no wave under a pause", "%s goes to %d, paused by %s", first, r.Target, p.Pause.By)
		}
		for _, s := range p.Freezes {
			if s.Until != nil && c.now.Before(s.Until.Add(-clocks)) && !c.did("unfreeze") {
				c.broken("no wave under a freeze", "%s goes to %d, frozen by %s until %s", first, r.Target, s.By, s.Until)
			}
		}
		if slices.Contains(r.Policy.ApproveBefore, r.Wave) && !slices.Contains(r.Approved, r.Wave) {
			c.broken("no wave without its approval", "%s goes to %d in wave %d", first, r.Target, r.Wave)
		}
		c.siblings(first)
	}
	backing := r.Phase == manifest.PhaseRollingBack || r.Phase == manifest.PhaseHalted
	if p.Pause != nil && r.Pause == nil && !past(p.Pause.Until, c.now.Add(clocks)) && !backing && !c.did("resume", "abort", "supersede") && !c.restored(p.Target, p.Baseline) && !c.over(p.Pause) {
		c.broken("a pause does not end by itself", "by %s: %s", p.Pause.By, p.Pause.Why)
	}
	for _, s := range p.Freezes {
		if s.Until != nil && c.now.Before(s.Until.Add(-clocks)) && !slices.ContainsFunc(r.Freezes, same(s)) && !c.did("unfreeze", "freeze") {
			c.broken("a freeze does not end by itself", "by %s until %s", s.By, s.Until)
		}
	}
	for _, s := range p.Halts {
		if !slices.ContainsFunc(r.Halts, func(o manifest.Stop) bool { return o.Epoch == s.Epoch }) && !c.did("resume") && !c.restored(s.Epoch, p.Baseline) {
			c.broken("a halt does not clear by itself", "of release %d: nobody resumed, and nothing restores baseline %d", s.Epoch, p.Baseline)
		}
	}
	for _, n := range r.Approved {
		if (p.Target != r.Target || !slices.Contains(p.Approved, n)) && !c.did("approve") {
			c.broken("only persons approve", "wave %d", n)
		}
	}
	for _, g := range r.Skipped {
		if (p.Target != r.Target || p.Wave != r.Wave || !slices.Contains(p.Skipped, g)) && !c.did("resume") {
			c.broken("only persons pass over a gate", "gate %s in wave %d", g, r.Wave)
		}
	}
}

// over says whether a pause was for a halt of another cohort, which stands no more.
func (c *check) over(pause *manifest.Stop) bool {
	cohort, _, ok := strings.Cut(pause.Halt, "@")
	o := c.w.fleet(cohort)
	if pause.By != rollout.Muster || !ok || o == nil || o.head == nil {
		return false
	}
	// Who ended the pause may not have seen a halt of this minute.
	return !slices.ContainsFunc(o.head.Manifest.Rollout.Halts, func(h manifest.Stop) bool { return c.now.Sub(h.Since) > hearing })
}

func same(s manifest.Stop) func(manifest.Stop) bool {
	return func(o manifest.Stop) bool { return o.By == s.By && o.Since.Equal(s.Since) && o.Why == s.Why }
}

func past(until *time.Time, now time.Time) bool { return until != nil && !now.Before(*until) }

// restored says whether a later commit gave every service that a release changed its files of the baseline again.
func (c *check) restored(failed, baseline uint64) bool {
	f, b := c.w.released(failed), c.w.released(baseline)
	if f == nil || b == nil {
		return false
	}
	for i := range c.w.commits {
		n := &c.w.commits[i]
		if n.n <= f.n {
			continue
		}
		all := true
		for _, s := range services {
			if f.texts[s] != b.texts[s] && n.texts[s] != b.texts[s] {
				all = false
			}
		}
		if all {
			return true
		}
	}
	return false
}

// siblings: a halt in one cohort pauses the same release in the others, and cohorts of a higher order wait for those before them.
func (c *check) siblings(first string) {
	r, p := &c.view.Manifest.Rollout, &c.prev.Manifest.Rollout
	for _, o := range c.w.cohorts {
		if o == c.f || o.head == nil {
			continue
		}
		ro := &o.head.Manifest.Rollout
		for _, h := range ro.Halts {
			ignored := slices.ContainsFunc(r.Ignored, func(s string) bool { return strings.HasPrefix(s, o.name+"@") })
			if h.Epoch == r.Target && c.now.Sub(h.Since) > hearing && !r.Policy.Independent && !ignored && !c.did("resume") {
				c.broken("a halt stops the same release elsewhere", "%s goes to %d, which halted %s %s ago", first, r.Target, o.name, c.now.Sub(h.Since).Round(time.Second))
			}
		}
		// Who begins may still see a halt there that a person passed over here, and ended there a moment ago.
		resumed := c.now.Sub(c.w.acts[o.name+"/resume"].at) < hearing
		if p.Target != r.Target && !resumed && c.earlier(o) && !c.w.blockedIn(r.Target, o.name) && ro.Target < r.Target && !c.hasIt(ro.Target, r.Target) && len(ro.Halts) == 0 && c.changedIn(r.Target) {
			c.broken("cohorts go in their order", "%s goes to %d before %s, which stands at %d (%s)", first, r.Target, o.name, ro.Target, ro.Phase)
		}
	}
}

// earlier says whether a cohort comes before this one.
func (c *check) earlier(o *fleet) bool {
	n := c.w.released(c.view.Manifest.Rollout.Target)
	return n != nil && n.policy.Cohorts[o.name].Order < n.policy.Cohorts[c.f.name].Order
}

// hasIt says whether an older release has the commit of a newer one: it was published again when nothing blocked it any more, and goes to those cohorts only that it was kept from.
func (c *check) hasIt(older, newer uint64) bool {
	a, b := c.w.released(older), c.w.released(newer)
	return a != nil && b != nil && a.n >= b.n
}

// changedIn says whether a release changed anything: all cohorts have the same files here, so that it did so in all of them.
func (c *check) changedIn(epoch uint64) bool {
	n := c.w.released(epoch)
	if n == nil || n.n == 1 {
		return false
	}
	return !reflect.DeepEqual(n.texts, c.w.commits[n.n-2].texts)
}

// wave: they come one after the other, each after the bake of the one before, under one salt and one policy.
func (c *check) wave() {
	r, p := &c.view.Manifest.Rollout, &c.prev.Manifest.Rollout
	if len(c.forward) == 0 {
		return
	}
	if p.Target != r.Target && r.Wave > 1 && r.Phase != manifest.PhaseDone {
		c.broken("waves come one after the other", "release %d begins with wave %d", r.Target, r.Wave)
	}
	if p.Target == r.Target && r.Wave > p.Wave+1 {
		c.broken("waves come one after the other", "wave %d after %d", r.Wave, p.Wave)
	}
	salt := ""
	for _, a := range c.view.Manifest.Assign {
		if a.Salt != "" && salt != "" && a.Salt != salt {
			c.broken("one salt a rollout", "%s", outline(c.view))
		}
		if a.Salt != "" {
			salt = a.Salt
		}
	}
	// It may differ from the epoch only by what the head before it had.
	if salt != "" && salt != strconv.FormatUint(r.Target, 10) && !slices.ContainsFunc(c.prev.Manifest.Assign, func(a manifest.Assignment) bool { return a.Salt == salt }) {
		c.broken("one salt a rollout", "%s and not %d", salt, r.Target)
	}
	if p.Target == r.Target && p.Phase != manifest.PhaseDone && p.Phase != manifest.PhaseHalted && !samePolicy(p.Policy, r.Policy) {
		c.broken("a rollout keeps its policy", "%s", outline(c.view))
	}
	for n := 1; n < r.Wave && r.Phase == manifest.PhaseAdvancing && n <= len(r.Policy.Waves); n++ {
		bake, _ := time.ParseDuration(r.Policy.Waves[n-1].Bake)
		t := c.f.wave(r.Target, n)
		if bake > 0 && (t.baked.IsZero() || c.now.Sub(t.baked) < bake-clocks) {
			c.broken("no wave before the bake of the one before", "wave %d begins, and wave %d baked since %s of %s", r.Wave, n, t.baked.Sub(c.w.start), bake)
		}
	}
}

func samePolicy(a, b manifest.RolloutPolicy) bool { return reflect.DeepEqual(a, b) }
