package rollout

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/rollout/gate"
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
	if !s.overdue() || s.unheard() || s.seen.Settling != "" || s.neverHeard() != "" {
		return ""
	}
	return fmt.Sprintf("%s is not confirmed within %s: %s", s.wave(r.Wave), s.patience(), s.unconfirmed())
}

// overdue says that the time of a wave is over. A freeze, during which nobody is told, does not count.
func (s *step) overdue() bool {
	r := &s.prev.Rollout
	limit := s.patience()
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

// patience is how long the wave under way may take.
func (s *step) patience() time.Duration {
	hosts := make([]map[string]string, len(s.count.hosts))
	for i := range hosts {
		hosts[i] = s.count.hosts[i].Labels
	}
	return Patience(&s.policy, s.current(), hosts)
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
	s.m.Rollout.Halts = halts(from.Halts, manifest.Stop{By: by, Why: text("epoch %d: %s", from.Target, why), Since: s.now.UTC(), Epoch: from.Target})
	if s.policy.OnFailure == "halt" && by == Muster {
		returnsTo(&s.m.Rollout)
		s.to(manifest.PhaseHalted, "epoch %d failed at %s and stays where it is: %s", from.Target, s.wave(s.judgedWave()), why)
		s.statements()
		return
	}
	s.goBack("epoch %d failed at %s, back to epoch %d: %s", from.Target, s.wave(s.judgedWave()), baselineOf(&from), why)
}

// halts is a list of halts with one more: the newest of a release, and of all so many as an order may have.
func halts(list []manifest.Stop, one manifest.Stop) []manifest.Stop {
	list = slices.Clone(list)
	if len(list) >= manifest.MaxStops {
		list = slices.DeleteFunc(list, func(h manifest.Stop) bool { return h.Epoch == one.Epoch })
	}
	list = append(list, one)
	return list[max(0, len(list)-manifest.MaxStops):]
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
	r.Pause, r.Was, r.Extended, r.Skipped, r.Trial = nil, "", 0, nil, false
}

// goBack begins the way back to the baseline.
func (s *step) goBack(why string, args ...any) {
	returnsTo(&s.m.Rollout)
	s.to(manifest.PhaseRollingBack, "%s%s", fmt.Sprintf(why, args...), without(s.in.Prev, s.m.Rollout.Baseline, s.now))
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
		s.m.Rollout.Trial = false
		s.statements()
		return
	}
	s.atBaseline("epoch %d again: %s", r.Baseline, r.Why)
}

// atBaseline ends a rollout at its baseline: nothing of it is left.
func (s *step) atBaseline(why string, args ...any) {
	r := &s.m.Rollout
	r.Target, r.Wave, r.Told, r.Halts, r.Started, r.Approved, r.Trial = r.Baseline, 0, 0, nil, nil, nil, false
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

// NotRestored is in what a halted cohort waits for while there is a newer release that does not end the halt.
const NotRestored = "waits: it does not restore"

// unrestored says of a halt that goes on which services a newer release leaves as the failed one has them.
func (s *step) unrestored() {
	r := &s.prev.Rollout
	var left []string
	for _, h := range r.Halts {
		if s.part.Epoch > h.Epoch {
			_, more := s.changed(h.Epoch, r.Baseline)
			left = append(left, more...)
		}
	}
	if left = slices.Compact(slices.Sorted(slices.Values(left))); len(left) > 0 {
		s.wait = fmt.Errorf("%w; epoch %d %s %s as epoch %d had it", stopped(*r, s.in.Cohort, s.now), s.part.Epoch, NotRestored, strings.Join(left, ", "), r.Baseline)
	}
}

// restored are the services that a release changed against a baseline, if the newest release has all of them as the baseline has them; else nil. Services of host variants count as well.
func (s *step) restored(epoch, baseline uint64) []string {
	list, left := s.changed(epoch, baseline)
	if len(left) > 0 {
		return nil
	}
	return list
}

// changed are those that a release changed, apart those that the newest release has otherwise than the baseline.
func (s *step) changed(epoch, baseline uint64) (list, left []string) {
	was, bad, is := s.seen.Services[baseline], s.seen.Services[epoch], s.seen.Services[s.part.Epoch]
	if was == nil || bad == nil || is == nil {
		return nil, nil // not known
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
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		if of(was, key) == of(bad, key) {
			continue
		}
		if of(is, key) != of(was, key) {
			left = append(left, key)
			continue
		}
		list = append(list, key)
	}
	return list, left
}

// watch ends the time after the last wave: a failure until then still goes back. While a gate says nothing it takes longer, as a bake does; what is not known then is called so.
func (s *step) watch() {
	if s.failed() || s.superseded() {
		return
	}
	r := &s.prev.Rollout
	watch := duration(s.policy.Watch)
	end := r.Since.Add(watch * time.Duration(1+r.Extended))
	wait := func() {
		if s.part.Epoch > r.Target {
			s.stop("epoch %d waits until epoch %d was watched, at %s; `muster rollout supersede %s --reason …` begins it now", s.part.Epoch, r.Target, end.UTC().Format(time.RFC3339), s.in.Cohort)
		}
	}
	if s.now.Before(r.Since.Add(watch)) {
		wait()
		return
	}
	if s.settling() {
		return
	}
	list := s.heard(s.judgedWave())
	open := append(s.saying(list, manifest.OutcomeInconclusive), s.saying(list, manifest.OutcomeBroken)...)
	if !s.now.Before(end) && s.leaves(unasked(open), end) {
		return
	}
	switch {
	case len(open) > 0 && s.now.Before(end):
		wait()
		return
	case len(open) > 0 && r.Extended < extensions:
		s.resting(list)
		s.m.Rollout.Extended++
		s.m.Rollout.By = s.in.By
		s.m.Rollout.Why = text("epoch %d to all hosts: watched %s longer: %s", r.Target, watch, sayings(open))
		s.moved = true
		return
	}
	well := fmt.Sprintf("and well for %s after that", watch)
	if len(open) > 0 {
		well = fmt.Sprintf("and no failure was seen for %s after that, but nothing certain was known in that time: %s", end.Sub(r.Since), sayings(open))
	}
	if alone := alone(list); len(alone) > 0 {
		well += "; not judged in that time, since no control group is left: gate " + strings.Join(alone, ", ")
	}
	s.resting(s.heard(s.judgedWave()))
	s.m.Rollout.Fallback, s.m.Rollout.Wave, s.m.Rollout.Started, s.m.Rollout.Extended = 0, 0, nil, 0
	s.to(manifest.PhaseDone, "epoch %d to all hosts, %s", r.Target, well)
	s.statements()
	if s.part.Epoch == r.Target {
		s.idle()
	}
}

// alone are the gates that pass for want of anything to compare with.
func alone(list []manifest.GateVerdict) (names []string) {
	for _, v := range list {
		if v.Outcome == manifest.OutcomePass && v.Why == gate.NoControlLeft {
			names = append(names, v.Gate)
		}
	}
	return names
}
