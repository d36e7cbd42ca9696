package collector

import (
	"maps"
	"slices"

	"github.com/muster-config/muster/distributor/api"
	"github.com/muster-config/muster/distributor/manifest"
)

var outcomes = []manifest.Outcome{manifest.OutcomePass, manifest.OutcomeFail, manifest.OutcomeInconclusive, manifest.OutcomeBroken}

// rolloutMetrics tells where rollouts stand, of the cohorts that the caller may see. Gates are named by the policy, which a person wrote and evaluation checked as a name.
func (c *Collector) rolloutMetrics(e *exposition, who caller) {
	now := c.now()
	all := map[string]*api.Rollout{}
	overrides := map[string][]api.Override{}
	c.mu.RLock()
	for _, name := range c.cohortNames(who) {
		if co := c.cohorts[name]; co != nil && co.view != nil {
			overrides[name] = overridesOf(co.view, now)
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
	e.family("muster_overrides", "gauge", "Emergency overrides that act on the cohort.")
	for _, name := range names {
		e.sample("muster_overrides", float64(len(overrides[name])), "cohort", name)
	}
	e.family("muster_override_age_seconds", "gauge", "Age of the oldest emergency override that acts on the cohort; absent while there is none.")
	for _, name := range names {
		if list := overrides[name]; len(list) > 0 {
			e.sample("muster_override_age_seconds", now.Sub(list[0].Created).Seconds(), "cohort", name)
		}
	}
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
