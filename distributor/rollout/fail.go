package rollout

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/muster-config/muster/distributor/manifest"
)

// failed sends a rollout back that failed, whatever it waits for.
func (s *step) failed() bool {
	list := s.heard(s.judgedWave())
	why := s.failure(list)
	if why == "" {
		return false
	}
	s.resting(list)
	s.fail(Muster, why)
	return true
}

// failure says why the release is a bad one, "" if nothing says so.
func (s *step) failure(list []manifest.GateVerdict) string {
	c := &s.count
	if bad := s.saying(list, manifest.OutcomeFail); len(bad) > 0 {
		return sayings(bad)
	}
	if len(c.ill) > s.policy.MaxFailed {
		return fmt.Sprintf("%s, at most %d may", some(c.ill), s.policy.MaxFailed)
	}
	if why := s.silenced(); why != "" {
		return why
	}
	return s.late()
}

// silenced: so many hosts fell silent with the release that not enough are left to confirm it.
func (s *step) silenced() string {
	c := &s.count
	if n := len(c.gone); n == 0 || n <= c.able-s.needed(c.able) || !c.silencedBy() {
		return ""
	}
	return fmt.Sprintf("%d of %d hosts fell silent with it: %s", len(c.gone), c.told, some(c.gone))
}

// silencedBy says whether silence is the release's doing. If those that keep the baseline fall silent as well, or there are none, it may be that nobody is heard.
func (c *tally) silencedBy() bool {
	return c.others > 0 && float64(c.mute)/float64(c.others) < float64(len(c.gone))/float64(c.told)
}

// late: a wave was not confirmed in its time.
func (s *step) late() string {
	r := &s.prev.Rollout
	if !s.overdue() || s.unheard() || s.seen.Settling != "" {
		return ""
	}
	limit := duration(s.policy.Timeout)
	return fmt.Sprintf("%s is not confirmed within %s: %s", s.wave(r.Wave), limit, s.unconfirmed())
}

// overdue says that the time of a wave is over. A freeze, during which nobody is told, does not count.
func (s *step) overdue() bool {
	r := &s.prev.Rollout
	limit := duration(s.policy.Timeout)
	if r.Phase != manifest.PhaseAdvancing || limit == 0 || s.frozen() != nil {
		return false
	}
	since := r.Since
	for _, f := range r.Freezes {
		if f.Until != nil && f.Until.After(since) {
			since = *f.Until
		}
	}
	return s.now.Sub(since) >= limit
}

// unheard says that a wave cannot be confirmed for want of hosts that are heard, and that this is not the release's doing: then a person is asked.
func (s *step) unheard() bool {
	c := &s.count
	heard := c.able
	if !c.silencedBy() {
		heard -= len(c.gone)
	}
	return heard == 0 || heard < c.able && c.confirmed >= s.needed(heard)
}

// fail halts the cohort, and sends the hosts that were told back to the baseline, if the policy has it so.
func (s *step) fail(by, why string) {
	from := s.prev.Rollout
	s.m.Rollout.Halts = append(slices.Clone(from.Halts), manifest.Stop{By: by, Why: text("epoch %d: %s", from.Target, why), Since: s.now.UTC(), Epoch: from.Target})
	if s.policy.OnFailure == "halt" && by == Muster {
		returnsTo(&s.m.Rollout)
		s.to(manifest.PhaseHalted, "epoch %d failed at %s and stays where it is: %s", from.Target, s.wave(s.judgedWave()), why)
		s.statements()
		return
	}
	s.goBack("epoch %d failed at %s, back to epoch %d: %s", from.Target, s.wave(s.judgedWave()), baselineOf(&from), why)
}

// baselineOf is where a failure of the rollout returns to.
func baselineOf(r *manifest.Rollout) uint64 {
	if r.Fallback != 0 {
		return r.Fallback
	}
	return r.Baseline
}

// returnsTo makes the baseline what a failure returns to, and ends what goes with going forward.
func returnsTo(r *manifest.Rollout) {
	r.Baseline, r.Fallback = baselineOf(r), 0
	r.Pause, r.Was, r.Extended, r.Skipped = nil, "", 0, nil
}

// goBack begins the way back to the baseline.
func (s *step) goBack(why string, args ...any) {
	returnsTo(&s.m.Rollout)
	s.to(manifest.PhaseRollingBack, why, args...)
	s.goBackSteps()
	s.statements()
}

// goOnBack takes the way back on. It ends when everybody was sent back and nobody is known to be on the way any more.
func (s *step) goOnBack() {
	r := &s.prev.Rollout
	if s.goBackSteps() || !everywhere(s.prev, r.Baseline) || s.count.busy > 0 {
		return
	}
	if len(r.Halts) > 0 {
		s.to(manifest.PhaseHalted, "%s", r.Why).Told = 0
		s.statements()
		return
	}
	s.atBaseline("epoch %d again: %s", r.Baseline, r.Why)
}

// atBaseline ends a rollout at its baseline: nothing of it is left.
func (s *step) atBaseline(why string, args ...any) {
	r := &s.m.Rollout
	r.Target, r.Wave, r.Told, r.Halts, r.Started, r.Approved = r.Baseline, 0, 0, nil, nil, nil
	s.to(manifest.PhaseDone, why, args...)
	s.statements()
}

// superseded goes back at once if the newest release has the baseline's content again for all that this one changed: it is a revert.
func (s *step) superseded() bool {
	r := &s.prev.Rollout
	services := s.restored(r.Target, baselineOf(r))
	if s.part.Epoch <= r.Target || services == nil {
		return false
	}
	s.goBack("epoch %d takes %s of epoch %d back, and takes its place", s.part.Epoch, strings.Join(services, ", "), r.Target)
	return true
}

// halted waits until the newest release has the baseline's content again for all that the failed ones changed.
func (s *step) halted() {
	r := &s.prev.Rollout
	var services []string
	for _, h := range r.Halts {
		list := s.restored(h.Epoch, r.Baseline)
		if s.part.Epoch <= h.Epoch || list == nil {
			s.wait = stopped(*r, s.in.Cohort, s.now)
			return
		}
		services = append(services, list...)
	}
	if len(r.Halts) == 0 {
		s.wait = stopped(*r, s.in.Cohort, s.now)
		return
	}
	services = slices.Compact(slices.Sorted(slices.Values(services)))
	why := fmt.Sprintf("the halt of epoch %d is over: epoch %d takes %s back", r.Target, s.part.Epoch, strings.Join(services, ", "))
	s.m.Rollout.Halts = nil
	if everywhere(s.prev, r.Baseline) {
		s.atBaseline("%s", why)
	} else {
		s.goBack("%s", why)
	}
}

// restored are the services that a release changed against a baseline, if the newest release has all of them as the baseline has them; else nil. Services of host variants count as well.
func (s *step) restored(epoch, baseline uint64) []string {
	was, bad, is := s.seen.Services[baseline], s.seen.Services[epoch], s.seen.Services[s.part.Epoch]
	if was == nil || bad == nil || is == nil {
		return nil // not known
	}
	// A host without a variant of its own runs the cohort's.
	of := func(m map[string]string, key string) string {
		if d, ok := m[key]; ok {
			return d
		}
		service, _, variant := strings.Cut(key, "@")
		if variant {
			return m[service]
		}
		return ""
	}
	keys := maps.Clone(was)
	maps.Copy(keys, bad)
	maps.Copy(keys, is)
	var list []string
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		if of(was, key) == of(bad, key) {
			continue
		}
		if of(is, key) != of(was, key) {
			return nil
		}
		list = append(list, key)
	}
	return list
}

// watch ends the time after the last wave: a failure until then still goes back.
func (s *step) watch() {
	if s.failed() || s.superseded() {
		return
	}
	r := &s.prev.Rollout
	watch := duration(s.policy.Watch)
	if s.now.Before(r.Since.Add(watch)) {
		if s.part.Epoch > r.Target {
			s.stop("epoch %d waits until epoch %d was watched, at %s; `muster rollout supersede %s` begins it now", s.part.Epoch, r.Target, r.Since.Add(watch).UTC().Format(time.RFC3339), s.in.Cohort)
		}
		return
	}
	if s.settling() {
		return
	}
	s.resting(s.heard(s.judgedWave()))
	s.m.Rollout.Fallback, s.m.Rollout.Wave, s.m.Rollout.Started = 0, 0, nil
	s.to(manifest.PhaseDone, "epoch %d to all hosts, and well for %s after that", r.Target, watch)
	s.statements()
	if s.part.Epoch == r.Target {
		s.idle()
	}
}
