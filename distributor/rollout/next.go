package rollout

import (
	"bytes"
	"fmt"
	"slices"
	"time"

	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/wire"
)

// RefreshEvery is how often an order is signed anew though nothing moves, so that nobody takes it for stale.
const RefreshEvery = time.Hour

// Muster is who stops a rollout when no person does.
const Muster = "muster"

// Next is the next step of a cohort under a policy: what the head is to be now. Not changed means: wait; an error that is ErrStopped says for what. Whoever calls it, and how often, the
// same head and the same observations give the same answer.
//
// A rollout takes its waves one after the other: hosts are told a few at a time (advancing), the wave is confirmed, its gates are judged (baking), and the next one begins when nothing
// holds that back. A failure sends the hosts that were told back to the baseline, and halts the cohort. The cohort's first release goes to all hosts at once: there is nothing else that
// they could run.
func Next(policy manifest.RolloutPolicy, in Input, seen Observed, now time.Time) (m manifest.Manifest, changed bool, err error) {
	in.Now = now
	part, ok := in.Release.Cohorts[in.Cohort]
	if !ok || part.Epoch == 0 {
		return m, false, fmt.Errorf("cohort %s in release %d: %w", in.Cohort, in.Release.Epoch, ErrNothing)
	}
	if in.Prev == nil {
		return Now(in)
	}
	prev := &in.Prev.Manifest
	if highest, _ := assignedTo(*prev); highest > part.Epoch {
		return m, false, fmt.Errorf("cohort %s: %w: it assigns epoch %d, and epoch %d stands in release %d; check the store with muster fsck", in.Cohort, ErrBehind, highest, part.Epoch, in.Release.Epoch)
	}
	for _, st := range in.Prev.Statements {
		if st.Epoch == part.Epoch && st.Override == "" && st.Digest != in.Statement.Digest() {
			return m, false, fmt.Errorf("cohort %s: %w: its head carries another statement of epoch %d than release %d; check the store with muster fsck", in.Cohort, manifest.ErrEquivocation, part.Epoch, in.Release.Epoch)
		}
	}
	s := newStep(policy, in, part, seen, now)
	if s.atRest() || seen.Mark == in.Prev.Mark() {
		s.decide()
	} else {
		s.wait = fmt.Errorf("cohort %s: %w", in.Cohort, ErrUnjudged)
	}
	s.letGo()
	s.endings()
	if !s.moved && !s.due() {
		return manifest.Manifest{}, false, s.wait
	}
	stamp(&s.m, now)
	return s.m, true, nil
}

// step is one call of Next.
type step struct {
	in     Input
	policy manifest.RolloutPolicy // in force
	part   manifest.ReleaseCohort // of the newest release
	prev   *manifest.Manifest
	seen   Observed
	now    time.Time

	m     manifest.Manifest // what is to be; like prev until something moves
	moved bool
	wait  error // why nothing moves, if that is worth saying
	count tally // of the hosts under prev
}

func newStep(policy manifest.RolloutPolicy, in Input, part manifest.ReleaseCohort, seen Observed, now time.Time) *step {
	if len(policy.Waves) == 0 {
		policy.Waves = []manifest.Wave{{Percent: 100, Bake: "0s"}}
	}
	return &step{in: in, policy: policy, part: part, prev: &in.Prev.Manifest, seen: seen, now: now, m: successor(in)}
}

// successor is the head's manifest with the next serial. What a rollout that is over rested on stays with the order that ended it, which the history keeps.
func successor(in Input) manifest.Manifest {
	prev := &in.Prev.Manifest
	m := *prev
	m.V, m.Store, m.Repo, m.Era, m.Serial, m.Ext = manifest.Version, in.Store, in.Repo, max(in.Era, prev.Era), prev.Serial+1, nil
	if r := &m.Rollout; r.Phase == manifest.PhaseDone && r.Fallback == 0 {
		r.Verdicts = withoutSamples(r.Verdicts)
	}
	return m
}

// atRest says that nothing is under way and nothing waits to be, so that no host need be looked at.
func (s *step) atRest() bool {
	r := &s.prev.Rollout
	_, everywhere := assignedTo(*s.prev)
	return (r.Phase == manifest.PhaseDone || r.Phase == manifest.PhaseIdle) && r.Fallback == 0 && everywhere && s.part.Epoch <= r.Target
}

// decide finds the rule for where the rollout stands.
func (s *step) decide() {
	r := &s.prev.Rollout
	s.count = s.tally()
	switch phase := r.Phase; {
	case phase == manifest.PhaseRollingBack:
		s.goOnBack()
	case phase == manifest.PhaseHalted:
		s.halted()
		s.unrestored()
	case s.underWay():
		s.goOn()
	case phase == manifest.PhaseDone && r.Fallback != 0:
		s.watch()
	default:
		s.rest()
	}
}

// underWay says that a release is being rolled out: some hosts were told to take it, or the first wave waits for its approval.
func (s *step) underWay() bool { return underWay(s.prev) }

func underWay(m *manifest.Manifest) bool {
	switch r := &m.Rollout; r.Phase {
	case manifest.PhaseAdvancing, manifest.PhaseBaking, manifest.PhaseAwaitingApproval:
		return true
	case manifest.PhasePaused:
		return r.Was != manifest.PhaseDone
	case manifest.PhaseDone, manifest.PhaseIdle:
		_, everywhere := assignedTo(*m)
		return !everywhere
	}
	return false
}

// due says whether the order is to be signed anew for its age or its keyring.
func (s *step) due() bool {
	return !s.now.Before(s.prev.Issued.Add(RefreshEvery)) || s.prev.Era < s.in.Era
}

// goOn takes a rollout that is under way on. What ends it comes first, whatever it waits for.
func (s *step) goOn() {
	r := &s.prev.Rollout
	switch {
	case s.failed(), s.superseded(), s.heldByBroken(), s.heldBySibling(), s.paused():
		return
	}
	switch r.Phase {
	case manifest.PhaseBaking:
		s.bake()
	case manifest.PhaseAwaitingApproval:
		s.awaitApproval()
	default:
		s.advance()
	}
}

// to moves the rollout into a phase.
func (s *step) to(phase manifest.Phase, why string, args ...any) *manifest.Rollout {
	r := &s.m.Rollout
	r.Phase, r.Since, r.By, r.Why = phase, s.now.UTC(), s.in.By, text(why, args...)
	s.moved = true
	return r
}

// text keeps a sentence short enough for a manifest.
func text(format string, args ...any) string {
	s := format
	if len(args) > 0 {
		s = fmt.Sprintf(format, args...)
	}
	const most = 1000
	if len(s) > most {
		s = string(bytes.ToValidUTF8([]byte(s[:most]), nil)) + " …"
	}
	return s
}

// stop is why a cohort does not go forward.
func (s *step) stop(format string, args ...any) {
	s.wait = fmt.Errorf("cohort %s: %w: %s", s.in.Cohort, ErrStopped, fmt.Sprintf(format, args...))
}

// idle keeps what a done cohort's order says beside the release: the policy for the next one.
func (s *step) idle() {
	name := s.in.Release.Policy.Cohorts[s.in.Cohort].Rollout
	if next, ok := s.in.Release.Policy.Rollouts[name]; ok {
		s.adopt(name, s.in.Release.Epoch, next)
	}
}

// adopt makes another policy the one in force, if it differs.
func (s *step) adopt(name string, epoch uint64, p manifest.RolloutPolicy) bool {
	r := &s.m.Rollout
	if name == r.PolicyName && samePolicy(p, r.Policy) {
		return false
	}
	r.PolicyName, r.PolicyEpoch, r.Policy = name, epoch, p
	s.moved = true
	return true
}

func samePolicy(a, b manifest.RolloutPolicy) bool {
	x, errX := wire.Encode(a)
	y, errY := wire.Encode(b)
	return errX == nil && errY == nil && bytes.Equal(x, y)
}

// statements gives the manifest the plain and overridden ones that its assignments can lead to, now or when a failure sends hosts back.
func (s *step) statements() {
	r := &s.m.Rollout
	keep := map[uint64]bool{r.Baseline: true, r.Fallback: true}
	if underWay(&s.m) {
		keep[r.Target] = true // also before anybody is told
	}
	for _, a := range s.m.Assign {
		keep[a.Epoch] = true
	}
	var list []manifest.Envelope
	if keep[s.part.Epoch] {
		list = append(append(list, s.in.Statement), s.part.Overridden...)
	}
	for i, st := range s.in.Prev.Statements {
		if keep[st.Epoch] && (st.Epoch != s.part.Epoch || st.Override != "" && !slices.ContainsFunc(list, func(e manifest.Envelope) bool { return e.Digest() == st.Digest })) {
			list = append(list, s.prev.Statements[i])
		}
	}
	s.m.Statements = list
}

func living(stops []manifest.Stop, now time.Time) []manifest.Stop {
	return slices.DeleteFunc(slices.Clone(stops), func(s manifest.Stop) bool { return past(s.Until, now) })
}
