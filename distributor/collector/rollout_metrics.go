package collector

import (
	"maps"
	"slices"
	"time"

	"github.com/muster-config/muster/distributor/api"
	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/rollout/standing"
)

var outcomes = []manifest.Outcome{manifest.OutcomePass, manifest.OutcomeFail, manifest.OutcomeInconclusive, manifest.OutcomeBroken}

// rolloutMetrics tells where rollouts stand, of the cohorts that the caller may see. Gates are named by the policy, which a person wrote and evaluation checked as a name.
func (c *Collector) rolloutMetrics(e *exposition, who caller) {
	now := c.now()
	all := map[string]*api.Rollout{}
	active := map[string][]api.Active{}
	c.mu.RLock()
	for _, name := range c.cohortNames(who) {
		if co := c.cohorts[name]; co != nil && co.view != nil {
			active[name] = standing.Active(co.view, now, c.made)
		}
		if r := c.rolloutOf(name, nil, now, false); r != nil {
			all[name] = r
		}
	}
	c.mu.RUnlock()
	names := slices.Sorted(maps.Keys(all))
	each := func(metric, help string, value func(r *api.Rollout) float64) {
		e.family(metric, "gauge", help)
		for _, name := range names {
			e.sample(metric, value(all[name]), "cohort", name)
		}
	}
	e.family("muster_rollout_phase", "gauge", "1 for the phase of the cohort's rollout, else 0.")
	for _, name := range names {
		for _, p := range phases {
			e.sample("muster_rollout_phase", one(all[name].Phase == p), "cohort", name, "phase", string(p))
		}
	}
	each("muster_rollout_wave", "Wave at which a rollout stands, 1 the first; one above the last while a finished one is watched.", func(r *api.Rollout) float64 { return float64(r.Wave) })
	each("muster_rollout_waves", "Waves that the policy in force has.", func(r *api.Rollout) float64 { return float64(len(r.Waves)) })
	each("muster_rollout_phase_seconds", "Time since the phase began.", func(r *api.Rollout) float64 { return now.Sub(r.Since).Seconds() })
	each("muster_rollout_halted", "1 while a failure, or a person, halts the cohort.", func(r *api.Rollout) float64 { return one(halted(r)) })
	each("muster_rollout_paused", "1 while the rollout is paused by a person, or because a gate could not say anything.", func(r *api.Rollout) float64 { return one(paused(r)) })
	each("muster_rollout_frozen", "1 while a person freezes the cohort.", func(r *api.Rollout) float64 { return one(len(r.Freezes) > 0) })
	each("muster_rollout_queue", "Releases that wait behind the rollout's target.", func(r *api.Rollout) float64 { return float64(len(r.Queue)) })
	each("muster_rollout_overdue", "1 while the rollout has waited for a person for more than an hour.", func(r *api.Rollout) float64 { return one(r.Overdue) })
	e.family("muster_rollout_stopped_seconds", "gauge", "Time since the stop began, by its kind; absent while there is none.")
	for _, name := range names {
		r := all[name]
		if halted(r) {
			since := r.Since
			if len(r.Halts) > 0 {
				since = r.Halts[0].Since
			}
			e.sample("muster_rollout_stopped_seconds", now.Sub(since).Seconds(), "cohort", name, "stop", "halt")
		}
		if paused(r) {
			since := r.Since
			if r.Pause != nil {
				since = r.Pause.Since
			}
			e.sample("muster_rollout_stopped_seconds", now.Sub(since).Seconds(), "cohort", name, "stop", "pause")
		}
		if r.Phase == manifest.PhaseAwaitingApproval {
			e.sample("muster_rollout_stopped_seconds", now.Sub(r.Since).Seconds(), "cohort", name, "stop", "approval")
		}
		if len(r.Freezes) > 0 {
			e.sample("muster_rollout_stopped_seconds", now.Sub(r.Freezes[0].Since).Seconds(), "cohort", name, "stop", "freeze")
		}
	}
	byHand(e, names, active, now)
	e.family("muster_rollout_gate", "gauge", "1 for what a gate of the rollout says, else 0; all 0 before it says anything.")
	for _, name := range names {
		for _, g := range all[name].Gates {
			for _, o := range outcomes {
				e.sample("muster_rollout_gate", one(g.Verdict != nil && g.Verdict.Outcome == o), "cohort", name, "gate", g.Gate, "outcome", string(o))
			}
		}
	}
	if len(c.cfg.Notify) > 0 {
		o := c.outbox
		e.family("muster_notices_total", "counter", "Tries to send a notice to a receiver, by what became of them.")
		e.sample("muster_notices_total", float64(o.sent.Load()), "result", "sent")
		e.sample("muster_notices_total", float64(o.failed.Load()), "result", "failed")
		e.sample("muster_notices_total", float64(o.dropped.Load()), "result", "given_up")
		e.family("muster_notices_waiting", "gauge", "Notices that not every receiver has got.")
		e.sample("muster_notices_waiting", float64(o.waiting()))
	}
}

func halted(r *api.Rollout) bool { return len(r.Halts) > 0 || r.Phase == manifest.PhaseHalted }

func paused(r *api.Rollout) bool { return r.Pause != nil || r.Phase == manifest.PhasePaused }

func one(is bool) float64 {
	if is {
		return 1
	}
	return 0
}

// byHand tells how much of what was decided by hand acts on each cohort, and how old the oldest of it is.
func byHand(e *exposition, names []string, active map[string][]api.Active, now time.Time) {
	of := func(name, kind string) (n int, oldest, end float64) {
		for _, a := range active[name] {
			if a.Kind != kind {
				continue
			}
			if a.Until != nil {
				if left := a.Until.Sub(now).Seconds(); n == 0 || left < end {
					end = left
				}
			}
			n, oldest = n+1, max(oldest, now.Sub(a.Since).Seconds())
		}
		return n, oldest, end
	}
	tell := func(metric, kind, what string) {
		e.family(metric+"s", "gauge", what+" that act on the cohort.")
		for _, name := range names {
			n, _, _ := of(name, kind)
			e.sample(metric+"s", float64(n), "cohort", name)
		}
		e.family(metric+"_age_seconds", "gauge", "Age of the oldest of them; absent while there is none.")
		for _, name := range names {
			if n, oldest, _ := of(name, kind); n > 0 {
				e.sample(metric+"_age_seconds", oldest, "cohort", name)
			}
		}
	}
	tell("muster_override", api.ActiveOverride, "Emergency overrides")
	tell("muster_hold", api.ActiveHold, "Holds of named hosts")
	tell("muster_freeze", api.ActiveFreeze, "Freezes")
	tell("muster_halt", api.ActiveHalt, "Halts")
	e.family("muster_override_left_seconds", "gauge", "Time until the first emergency override of the cohort ends by itself; absent while there is none.")
	for _, name := range names {
		if n, _, end := of(name, api.ActiveOverride); n > 0 {
			e.sample("muster_override_left_seconds", end, "cohort", name)
		}
	}
}
