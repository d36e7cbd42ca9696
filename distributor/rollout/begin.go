package rollout

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/muster-config/muster/distributor/manifest"
)

// rest begins the next rollout, if there is a newer release and nothing holds it back.
func (s *step) rest() {
	r := &s.prev.Rollout
	if s.part.Epoch <= r.Target {
		if r.Phase == manifest.PhasePaused {
			s.unpause() // what did not begin is gone
		}
		s.idle()
		return
	}
	target := s.part.Epoch
	switch {
	case s.personPaused(), s.adoptBase(), s.brokenBefore(), s.heldBySibling(), s.neverHeardBefore():
		return
	case r.Phase == manifest.PhasePaused:
		s.unpause() // what held it back is gone
		return
	}
	if why := s.before(target); why != "" {
		s.stop("epoch %d waits: %s", target, why)
		return
	}
	if s.frozen() != nil {
		s.wait = stopped(*r, s.in.Cohort, s.now)
		return
	}
	if !s.open(target, 1) || !s.asked(target) || s.settling() {
		return
	}
	if len(s.seen.Hosts) == 0 && s.seen.Unseen == "" {
		s.noHosts()
		return
	}
	if len(s.count.hosts) == 0 {
		s.stop("epoch %d waits: no host of the cohort reports%s", target, orNothing(": ", s.seen.Unseen))
		return
	}
	if s.waitsForHosts() {
		return
	}
	s.begin(target)
}

// begin begins a rollout. Nothing of the one before it counts for it.
func (s *step) begin(target uint64) {
	was := s.prev.Rollout
	now := s.now.UTC()
	baseline, _ := assignedTo(*s.prev)
	s.m.Rollout = manifest.Rollout{
		PolicyName: was.PolicyName, PolicyEpoch: was.PolicyEpoch, Policy: was.Policy, Target: target, Baseline: baseline, Wave: 1,
		Started: &now, Skipped: was.Skipped, Ignored: was.Ignored, Freezes: living(was.Freezes, s.now), Holds: holdsOf(&s.m, s.now), Endings: was.Endings,
	}
	s.count.along(strconv.FormatUint(target, 10))
	s.beginWave(1, nil)
}

// beginWave begins a wave, or asks for its approval first.
func (s *step) beginWave(wave int, list []manifest.GateVerdict) {
	r := &s.m.Rollout
	r.Wave, r.Extended = wave, 0
	if wave > 1 {
		r.Skipped = slices.DeleteFunc(slices.Clone(r.Skipped), func(gate string) bool { return gate != neverHeard })
	}
	if list != nil {
		s.resting(list)
	}
	if s.wantsApproval(wave) {
		s.to(manifest.PhaseAwaitingApproval, "epoch %d: %s waits for approval", r.Target, s.wave(wave))
		s.statements()
		return
	}
	s.to(manifest.PhaseAdvancing, "epoch %d: %s begins", r.Target, s.wave(wave))
	s.tell(wave)
	s.statements()
}

// advance tells more hosts of the wave, or ends it.
func (s *step) advance() {
	r := &s.prev.Rollout
	wave := s.current()
	if s.settling() {
		return // what is known may be a few of many
	}
	if why := s.tooFew(wave); why != "" {
		s.hold(s.tooFewOf(nil, why), why)
		return
	}
	if why := s.neverHeard(); why != "" {
		if s.overdue() {
			s.hold([]manifest.GateVerdict{s.neverHeardOf(why)}, why)
			return
		}
		s.waitsForHosts()
		return
	}
	c := &s.count
	told := s.toldAll(wave) && s.covers(wave)
	enough := c.able > 0 && c.confirmed >= s.needed(c.able)
	switch {
	case told && c.told == 0 && s.passedOver():
		s.passed(nil)
	case told && (enough || s.passedOver()) && bakeOf(&s.policy, wave) > 0:
		s.m.Rollout.Verdicts = nil
		s.to(manifest.PhaseBaking, "epoch %d, %s: %d of %d hosts confirm it", r.Target, s.wave(wave), c.confirmed, c.able)
	case told && (enough || s.passedOver()):
		s.passed(nil) // without a bake nothing is judged; the last wave is watched
	case s.overdue(): // and not failed: nobody is heard
		why := s.unconfirmed()
		s.hold(s.tooFewOf(s.heard(wave), why), why)
	case told:
	case s.frozen() != nil:
		s.wait = stopped(*r, s.in.Cohort, s.now)
	default:
		s.tell(wave)
	}
}

// minReported is told and passed over by a person's resume like a gate: too few hosts, or too few that confirm.
const minReported = "min_reported"

// tooFew says that a wave by label chooses fewer hosts than it must.
func (s *step) tooFew(wave int) string {
	w := s.policy.Waves[wave-1]
	if len(w.Match) == 0 || s.last(wave) || s.passedOver() {
		return ""
	}
	n := 0
	for i := range s.count.hosts {
		if has(s.count.hosts[i].Labels, w.Match) {
			n++
		}
	}
	if n >= max(1, w.Min) {
		return ""
	}
	return fmt.Sprintf("%d hosts have its labels, at least %d have to", n, max(1, w.Min))
}

// tooFewOf adds that too few hosts confirm to what the gates say.
func (s *step) tooFewOf(list []manifest.GateVerdict, why string) []manifest.GateVerdict {
	r := &s.prev.Rollout
	v := manifest.GateVerdict{Gate: minReported, Wave: r.Wave, Outcome: manifest.OutcomeInconclusive, Why: why, From: r.Since, To: s.now.UTC()}
	return append([]manifest.GateVerdict{v}, list...)
}

func (s *step) passedOver() bool { return slices.Contains(s.prev.Rollout.Skipped, minReported) }

// passed goes from a wave that passed to the next one, or ends the rollout.
func (s *step) passed(list []manifest.GateVerdict) {
	r := &s.prev.Rollout
	if s.last(s.current()) {
		s.done(list)
		return
	}
	next := s.current() + 1
	if s.frozen() != nil {
		s.wait = stopped(*r, s.in.Cohort, s.now)
		return
	}
	if s.wantsApproval(next) || s.open(r.Target, next) {
		s.beginWave(next, list)
	}
}

// done ends a rollout: everybody has it. For a while it is still watched.
func (s *step) done(list []manifest.GateVerdict) {
	r := &s.m.Rollout
	s.resting(list)
	before := r.Baseline
	r.Baseline, r.Extended, r.Skipped, r.Wave, r.Told = r.Target, 0, nil, 0, len(s.count.hosts)
	if watch := duration(s.policy.Watch); watch > 0 && before != 0 && before != r.Target {
		r.Fallback, r.Wave = before, len(s.policy.Waves)+1
	} else {
		r.Started = nil
	}
	s.to(manifest.PhaseDone, "epoch %d is confirmed by %d of %d hosts", r.Target, s.count.confirmed, s.count.able)
	s.statements()
	if r.Fallback == 0 && s.part.Epoch == r.Target {
		s.idle()
	}
}

// noHosts ends a rollout of a cohort without hosts before it begins.
func (s *step) noHosts() {
	s.m.Rollout.Target, s.m.Rollout.Baseline, s.m.Rollout.Wave, s.m.Rollout.Told = s.part.Epoch, s.part.Epoch, 0, 0
	s.m.Assign = append(s.holds(), manifest.Assignment{Epoch: s.part.Epoch, Why: "no hosts"})
	s.to(manifest.PhaseDone, "epoch %d: no hosts; whoever joins the cohort gets it", s.part.Epoch)
	s.statements()
	s.idle()
}

// awaitApproval begins the wave that a person approved.
func (s *step) awaitApproval() {
	r := &s.prev.Rollout
	switch {
	case s.wantsApproval(r.Wave), s.settling(), s.waitsForHosts():
	case s.frozen() != nil:
		s.wait = stopped(*r, s.in.Cohort, s.now)
	case s.open(r.Target, r.Wave):
		s.beginWave(r.Wave, nil)
	}
}

func (s *step) wantsApproval(wave int) bool {
	return slices.Contains(s.policy.ApproveBefore, wave) && !slices.Contains(s.m.Rollout.Approved, wave)
}

// frozen is the freeze in force.
func (s *step) frozen() *manifest.Stop { return frozen(&s.prev.Rollout, s.now) }

func frozen(r *manifest.Rollout, now time.Time) *manifest.Stop {
	for i := range r.Freezes {
		if !past(r.Freezes[i].Until, now) {
			return &r.Freezes[i]
		}
	}
	return nil
}

// open says whether a wave may begin at this time of the day.
func (s *step) open(epoch uint64, wave int) bool {
	if len(s.policy.Windows) == 0 {
		return true
	}
	for _, text := range s.policy.Windows {
		if w, err := manifest.ParseWindow(text); err == nil && w.Contains(s.now) {
			return true
		}
	}
	next := manifest.NextWindow(s.policy.Windows, s.now)
	if next.IsZero() {
		s.stop("epoch %d waits: none of its windows (%s) ever comes", epoch, strings.Join(s.policy.Windows, ", "))
		return false
	}
	s.stop("epoch %d waits: %s begins in the next window, at %s", epoch, s.wave(wave), next.Format(time.RFC3339))
	return false
}

// before says which cohort of a lower order has to be done first.
func (s *step) before(target uint64) string {
	order := s.in.Release.Policy.Cohorts[s.in.Cohort].Order
	for _, other := range s.seen.Siblings {
		r := &other.Rollout
		if other.Order >= order || other.Epoch == 0 || r.Baseline >= min(other.Epoch, target) && r.Phase != manifest.PhaseRollingBack {
			continue
		}
		if n := len(r.Halts); n > 0 && !slices.ContainsFunc(r.Halts, func(h manifest.Stop) bool { return !s.ignored(other.Cohort, h) }) {
			continue // a person knows
		}
		return fmt.Sprintf("cohort %s goes first (order %d), and is not done with epoch %d", other.Cohort, other.Order, other.Epoch)
	}
	return ""
}

// adoptBase puts the policy of the baseline release in force, where the one before it still is.
func (s *step) adoptBase() bool {
	r := &s.prev.Rollout
	base := s.in.Base
	if base == nil || base.Epoch != r.Target || base.Epoch <= r.PolicyEpoch {
		return false
	}
	name := base.Policy.Cohorts[s.in.Cohort].Rollout
	p, ok := base.Policy.Rollouts[name]
	return ok && s.adopt(name, base.Epoch, p)
}

// settling says that who looks at the hosts does not know all of them yet.
func (s *step) settling() bool {
	if s.seen.Settling != "" {
		s.stop("nothing goes forward yet: %s", s.seen.Settling)
	}
	return s.seen.Settling != ""
}

// notBegun pauses a cohort before a rollout begins.
func (s *step) notBegun(why, halt string) {
	r := &s.m.Rollout
	r.Phase, r.Was, r.By, r.Why = manifest.PhasePaused, manifest.PhaseDone, s.in.By, why
	r.Pause = &manifest.Stop{By: Muster, Why: why, Since: s.now.UTC(), Halt: halt}
	s.moved = true
}

func orNothing(before, text string) string {
	if text == "" {
		return ""
	}
	return before + text
}
