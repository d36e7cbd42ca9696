package rollout

import (
	"fmt"
	"slices"
	"time"

	"github.com/muster-config/muster/distributor/manifest"
)

// paused says whether a rollout under way stands still, or ends a pause whose time is over.
func (s *step) paused() bool {
	r := &s.prev.Rollout
	if r.Phase != manifest.PhasePaused {
		return false
	}
	if r.Pause == nil || past(r.Pause.Until, s.now) {
		s.unpause()
		return true
	}
	s.wait = stopped(*r, s.in.Cohort, s.now)
	return true
}

// personPaused is the same before a rollout begins.
func (s *step) personPaused() bool {
	r := &s.prev.Rollout
	if r.Pause == nil || r.Pause.By == Muster || past(r.Pause.Until, s.now) {
		return false
	}
	s.wait = stopped(*r, s.in.Cohort, s.now)
	return true
}

// unpause goes on where a pause stopped.
func (s *step) unpause() {
	goOn(&s.m.Rollout, s.now)
	s.m.Rollout.By, s.m.Rollout.Why = s.in.By, text("epoch %d goes on: what held it back is over", s.m.Rollout.Target)
	s.moved = true
}

// goOn ends a pause. A wave that is being told has its time anew; a bake goes on, since the hosts went on running.
func goOn(r *manifest.Rollout, now time.Time) {
	r.Phase, r.Was, r.Pause = r.Was, "", nil
	switch r.Phase {
	case "":
		r.Phase = manifest.PhaseAdvancing
		r.Since = now.UTC()
	case manifest.PhaseAdvancing:
		r.Since = now.UTC()
	}
}

// heldBySibling pauses a rollout because its release failed in another cohort, and goes on when that is over.
func (s *step) heldBySibling() bool {
	r := &s.prev.Rollout
	cohort, halt := s.siblingHalt()
	follows := r.Phase == manifest.PhasePaused && r.Pause != nil && r.Pause.Halt != ""
	switch {
	case halt == nil && follows:
		s.unpause()
		return true
	case halt == nil || r.Phase == manifest.PhasePaused && !follows:
		return false
	case follows && r.Pause.Halt == haltName(cohort, *halt):
		s.wait = stopped(*r, s.in.Cohort, s.now)
		return true
	}
	name := haltName(cohort, *halt)
	if !s.underWay() {
		s.notBegun(text("epoch %d does not begin: release %d is halted in cohort %s: %s", s.part.Epoch, halt.Epoch, cohort, halt.Why), name)
		return true
	}
	m := &s.m.Rollout
	if !follows {
		m.Was = r.Phase
	}
	m.Phase = manifest.PhasePaused
	m.Pause = &manifest.Stop{By: Muster, Why: text("release %d is halted in cohort %s: %s", halt.Epoch, cohort, halt.Why), Since: s.now.UTC(), Halt: name}
	m.By, m.Why = s.in.By, text("epoch %d, %s: paused, since release %d is halted in cohort %s", r.Target, s.wave(r.Wave), halt.Epoch, cohort)
	s.moved = true
	return true
}

// siblingHalt is a halt of another cohort for what this one is about to take: its release, or one that it carries beside the baseline.
func (s *step) siblingHalt() (cohort string, halt *manifest.Stop) {
	if s.policy.Independent {
		return "", nil
	}
	r := &s.prev.Rollout
	from, to := r.Baseline, r.Target
	if !s.underWay() {
		from, to = r.Target, s.part.Epoch
	}
	for _, other := range s.seen.Siblings {
		for i, h := range other.Rollout.Halts {
			if h.Epoch > from && h.Epoch <= to && !s.ignored(other.Cohort, h) {
				return other.Cohort, &other.Rollout.Halts[i]
			}
		}
	}
	return "", nil
}

func (s *step) ignored(cohort string, halt manifest.Stop) bool {
	return slices.Contains(s.prev.Rollout.Ignored, haltName(cohort, halt))
}

// haltName names a halt of a cohort.
func haltName(cohort string, halt manifest.Stop) string {
	return fmt.Sprintf("%s@%s", cohort, halt.Since.UTC().Format(time.RFC3339Nano))
}
