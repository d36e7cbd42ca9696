package rollout

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/rollout/gate"
	"github.com/muster-config/muster/distributor/verdict"
	"github.com/muster-config/muster/distributor/wire"
)

// RefreshEvery is how often an order is signed anew though nothing moves, so that nobody takes it for stale.
const RefreshEvery = time.Hour

// Host is one expected host as an observer sees it.
type Host struct {
	Name      string
	Labels    map[string]string
	Verdict   verdict.Code // under the head of Observed.Mark
	Running   uint64
	Attempted uint64
	Silent    time.Time // since when, if Verdict is silent
	Reported  gate.Host // for the built-in gates
}

// Observed is what an observer knows of a cohort's hosts. Verdicts rest on the head of that mark: under another head they say nothing.
type Observed struct {
	Mark  manifest.Mark
	Hosts []Host // expected and not retired
	// Gates is what the gates of the rollout under way say of its wave, or of the time after its last one; before a rollout: whether they are broken.
	Gates []manifest.GateVerdict
	// Siblings are the other cohorts of the newest release.
	Siblings []Sibling
	// Services gives for each epoch that matters (target, baseline, fallback, halted ones, the newest) the digest of each service's files as rendered with epoch 0, host variants
	// included under "service@host". An epoch that could not be read is absent: then nothing is known to be restored.
	Services map[uint64]map[string]string
}

// Sibling is another cohort, as its newest verified head and the newest release say.
type Sibling struct {
	Cohort  string
	Order   int
	Epoch   uint64           // the one that stands for it after the newest release
	Rollout manifest.Rollout // zero if it has no head yet
}

// ErrUnjudged says that nothing can be decided yet, since hosts were seen under another head than the one that stands.
var ErrUnjudged = errors.New("hosts are not judged under the newest head yet")

// Next is the next step of a cohort under a policy: what the head is to be now. Not changed means: wait. Whoever calls it, and how often, the same head and the same observations
// give the same answer.
//
// Today there is one wave of 100%. Hosts get the release a few at a time, so that no more than max_in_flight of them have been told to take it and are not known to have done so; those
// that failed, or fell silent since, keep their place, and over max_failed of them nobody else is told. A newer release waits until this one is done, or until it stands still for that.
// The cohort's first release goes to all hosts at once: there is nothing else that they could run.
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
	highest, everywhere := assignedTo(*prev)
	if highest > part.Epoch {
		return m, false, fmt.Errorf("cohort %s: %w: it assigns epoch %d, and epoch %d stands in release %d; check the store with muster fsck", in.Cohort, ErrBehind, highest, part.Epoch, in.Release.Epoch)
	}
	for _, st := range in.Prev.Statements {
		if st.Epoch == part.Epoch && st.Override == "" && st.Digest != in.Statement.Digest() {
			return m, false, fmt.Errorf("cohort %s: %w: its head carries another statement of epoch %d than release %d; check the store with muster fsck", in.Cohort, manifest.ErrEquivocation, part.Epoch, in.Release.Epoch)
		}
	}
	s := &step{in: in, policy: policy, part: part, prev: prev, now: now}
	s.m = *prev
	s.m.V, s.m.Store, s.m.Repo, s.m.Era, s.m.Serial, s.m.Ext = manifest.Version, in.Store, in.Repo, max(in.Era, prev.Era), prev.Serial+1, nil
	running := prev.Rollout.Phase != manifest.PhaseDone && prev.Rollout.Phase != manifest.PhaseIdle || !everywhere
	if running || part.Epoch > prev.Rollout.Target {
		stop := stopped(prev.Rollout, in.Cohort, now)
		switch {
		case stop == nil && seen.Mark == in.Prev.Mark():
			s.move(seen, running)
		case s.due():
			s.moved = true // kept fresh, whatever holds it
		case stop != nil:
			return m, false, stop
		default:
			return m, false, fmt.Errorf("cohort %s: %w", in.Cohort, ErrUnjudged)
		}
	} else {
		s.idle()
	}
	if !s.moved && !s.due() {
		return m, false, nil
	}
	stamp(&s.m, now)
	return s.m, true, nil
}

// step is one call of Next.
type step struct {
	in     Input
	policy manifest.RolloutPolicy
	part   manifest.ReleaseCohort
	prev   *manifest.Manifest
	now    time.Time
	m      manifest.Manifest
	moved  bool
}

// due says whether the order is to be signed anew for its age or its keyring.
func (s *step) due() bool {
	return !s.now.Before(s.prev.Issued.Add(RefreshEvery)) || s.prev.Era < s.in.Era
}

// idle keeps what a done cohort's order says beside the release: the policy for the next one.
func (s *step) idle() {
	name := s.in.Release.Policy.Cohorts[s.in.Cohort].Rollout
	if next, ok := s.in.Release.Policy.Rollouts[name]; ok && (name != s.prev.Rollout.PolicyName || !samePolicy(next, s.prev.Rollout.Policy)) {
		s.m.Rollout.PolicyName, s.m.Rollout.PolicyEpoch, s.m.Rollout.Policy = name, s.in.Release.Epoch, next
		s.moved = true
	}
}

func samePolicy(a, b manifest.RolloutPolicy) bool {
	x, errX := wire.Encode(a)
	y, errY := wire.Encode(b)
	return errX == nil && errY == nil && bytes.Equal(x, y)
}

// wave is who was told to take which epoch by the ring, in the order in which it counts: the newest first.
type wave struct {
	below string
	salt  string
	epoch uint64
}

// waves are those of the head, and what everybody else is to run.
func (s *step) waves() (list []wave, rest uint64) {
	for _, a := range s.prev.Assign {
		switch {
		case len(a.Hosts) > 0 || len(a.Match) > 0:
		case a.Below != "":
			list = append(list, wave{a.Below, a.Salt, a.Epoch})
		default:
			rest = a.Epoch
		}
	}
	return list, rest
}

func (w wave) has(host string) bool {
	below, err := strconv.ParseUint(w.below, 16, 64)
	return err == nil && manifest.Point(w.salt, host) < below
}

// counted is what the hosts of a cohort are in the step.
type counted struct {
	eligible  []string // that can be told: expected, reporting, nothing holds them
	told      int      // of those, told to take the target
	open      int      // of those, not known to have done with what they were told
	confirmed int      // of the eligible
	observing int      // of the eligible: they never apply
	trouble   []string // told, and failed, or silent since
}

// count sorts the hosts. told says which epoch a host was told to take by a wave or, when everybody was, by the last assignment; 0 for none.
func (s *step) count(seen Observed, told func(host string) uint64, target uint64, since time.Time) counted {
	var c counted
	for _, h := range seen.Hosts {
		epoch := told(h.Name)
		switch h.Verdict {
		case verdict.Retired, verdict.Unexpected, verdict.Duplicate, verdict.Missing, verdict.Held:
			continue
		case verdict.Silent:
			if epoch == 0 || !h.Silent.After(since) {
				continue // it was silent before: it takes the release when it comes back
			}
		}
		c.eligible = append(c.eligible, h.Name)
		if h.Verdict == verdict.Observing {
			c.observing++
		}
		if h.Verdict == verdict.Confirmed && h.Running == target {
			c.confirmed++
		}
		if epoch == 0 {
			continue
		}
		if epoch == target {
			c.told++
		}
		switch h.Verdict {
		case verdict.Confirmed, verdict.NotRunning, verdict.Stale, verdict.Drifted, verdict.Overridden:
			if h.Running != epoch && (epoch == target || h.Verdict != verdict.Overridden) {
				c.open++
			}
		case verdict.Observing:
		case verdict.Failed, verdict.RolledBack, verdict.Refused, verdict.Silent, verdict.Lagging:
			if epoch != target {
				break // what is replaced now failed there: it waits for nothing but its turn
			}
			c.open++
			if went := h.Verdict == verdict.Silent || h.Verdict == verdict.Lagging; went || h.Attempted == epoch {
				c.trouble = append(c.trouble, h.Name+" "+string(h.Verdict))
			}
		default: // applying, unknown
			c.open++
		}
	}
	slices.Sort(c.trouble)
	return c
}

// move starts a rollout, takes it on, or ends it.
func (s *step) move(seen Observed, running bool) {
	r := &s.m.Rollout
	waves, rest := s.waves()
	before := r.Target
	told := func(host string) uint64 {
		for _, w := range waves {
			if w.has(host) {
				return w.epoch
			}
		}
		if len(waves) == 0 && rest == before {
			return rest // everybody was told; once enough have confirmed, that is over for the release, and not for those that are still at it
		}
		return 0
	}
	if running {
		c := s.count(seen, told, before, r.Since)
		stuck := len(c.trouble) > s.policy.MaxFailed
		if !stuck || s.part.Epoch <= before {
			s.advance(c, waves, rest, stuck)
			return
		}
	}
	// A new one. Hosts that took the one that stands still keep it until their turn comes, in the same order.
	target := s.part.Epoch
	salt := strconv.FormatUint(target, 10)
	if len(waves) > 0 {
		salt = waves[0].salt
	}
	c := s.count(seen, told, target, s.now)
	free := s.limit(len(c.eligible)) - c.open
	if free <= 0 || len(c.eligible) == 0 {
		return
	}
	name := s.prev.Rollout.PolicyName
	why := fmt.Sprintf("epoch %d, %s", target, share(min(free, len(c.eligible)), len(c.eligible)))
	*r = manifest.Rollout{
		PolicyName: name, PolicyEpoch: r.PolicyEpoch, Policy: r.Policy, Target: target, Baseline: r.Baseline, Wave: 1, Phase: manifest.PhaseAdvancing,
		Since: s.now.UTC(), Why: why, By: s.in.By, Halts: r.Halts, Freezes: living(r.Freezes, s.now), Holds: living(r.Holds, s.now),
	}
	s.tell(c, free, append([]wave{{salt: salt, epoch: target}}, waves...), rest)
}

// advance tells more hosts, or ends the rollout.
func (s *step) advance(c counted, waves []wave, rest uint64, stuck bool) {
	r := &s.m.Rollout
	everybody := len(waves) == 0 && rest == r.Target
	switch n := len(c.eligible) - c.observing; {
	case stuck:
		s.say(waits(r.Target), fmt.Sprintf("%s, %s: %s; it goes on when they are well, and a newer release replaces it", waits(r.Target), share(c.told, len(c.eligible)), some(c.trouble)))
	case everybody && n > 0 && c.confirmed >= needed(s.policy.MinReported, n):
		r.Phase, r.Baseline, r.Since, r.Wave = manifest.PhaseDone, r.Target, s.now.UTC(), 1
		r.Why = fmt.Sprintf("epoch %d is confirmed by %d of %d hosts", r.Target, c.confirmed, n)
		if s.part.Epoch == r.Target {
			s.idle()
		}
		s.moved = true
	case everybody:
		s.say(fmt.Sprintf("epoch %d, all", r.Target), fmt.Sprintf("epoch %d, all hosts are told", r.Target))
	default:
		// An order wakes the whole fleet: a few hosts together get one.
		limit := s.limit(len(c.eligible))
		if free := limit - c.open; len(c.eligible) > 0 && (free >= max(1, limit/4) || free > 0 && c.told+free >= len(c.eligible)) {
			s.tell(c, free, waves, rest)
			r.Why = fmt.Sprintf("epoch %d, %s", r.Target, share(min(c.told+free, len(c.eligible)), len(c.eligible)))
		}
	}
}

// waits begins the sentence of a rollout that stands still.
func waits(target uint64) string { return fmt.Sprintf("epoch %d waits", target) }

// say puts a sentence into the order, unless one that begins alike is there: other names and counts are no new order, which would wake the whole fleet.
func (s *step) say(begin, why string) {
	if !strings.HasPrefix(s.m.Rollout.Why, begin) {
		s.m.Rollout.Why, s.moved = why, true
	}
}

// tell makes the assignments for free more hosts than were told: the first wave rises, and swallows those behind it.
func (s *step) tell(c counted, free int, waves []wave, rest uint64) {
	first := &waves[0]
	below, all := manifest.Threshold(first.salt, c.eligible, c.told+free)
	var next []manifest.Assignment
	keep := map[uint64]bool{first.epoch: true}
	for _, a := range s.prev.Assign {
		if len(a.Hosts) > 0 && !past(a.Until, s.now) {
			next = append(next, a)
			keep[a.Epoch] = true
		}
	}
	if all {
		next = append(next, manifest.Assignment{Epoch: first.epoch, Why: "all hosts are told"})
	} else {
		first.below = max(below, first.below)
		for i, w := range waves {
			if i > 0 && w.salt == first.salt && w.below <= first.below {
				continue
			}
			next = append(next, manifest.Assignment{Below: w.below, Salt: w.salt, Epoch: w.epoch, Why: fmt.Sprintf("wave 1 of 1 (%s)", share(c.told+free, len(c.eligible)))})
			keep[w.epoch] = true
		}
		next = append(next, manifest.Assignment{Epoch: rest, Why: "baseline"})
		keep[rest] = true
	}
	s.m.Assign, s.m.Statements, s.moved = next, s.statements(keep), true
}

// statements are the plain and overridden ones that the assignments can lead to.
func (s *step) statements(keep map[uint64]bool) []manifest.Envelope {
	var list []manifest.Envelope
	if keep[s.part.Epoch] {
		list = append(append(list, s.in.Statement), s.part.Overridden...)
	}
	for i, st := range s.in.Prev.Statements {
		if keep[st.Epoch] && (st.Epoch != s.part.Epoch || st.Override != "" && !slices.ContainsFunc(list, func(e manifest.Envelope) bool { return e.Digest() == st.Digest })) {
			list = append(list, s.prev.Statements[i])
		}
	}
	return list
}

// limit is how many of n hosts may be on their way at once: never more than the share says, but always one.
func (s *step) limit(n int) int {
	digits, isShare := strings.CutSuffix(s.policy.MaxInFlight, "%")
	v, err := strconv.ParseFloat(digits, 64)
	switch {
	case err != nil:
		return 1
	case isShare:
		return max(1, int(math.Floor(v/100*float64(n)+1e-9)))
	}
	return max(1, int(v))
}

// needed is how many of n hosts must confirm.
func needed(minReported float64, n int) int {
	return max(1, int(math.Ceil(minReported*float64(n)-1e-9)))
}

func living(stops []manifest.Stop, now time.Time) []manifest.Stop {
	return slices.DeleteFunc(slices.Clone(stops), func(s manifest.Stop) bool { return past(s.Until, now) })
}

func share(k, n int) string { return fmt.Sprintf("%d of %d hosts are told", k, n) }

// some names the first of a list.
func some(list []string) string {
	if len(list) > 3 {
		return fmt.Sprintf("%s and %d more", strings.Join(list[:3], ", "), len(list)-3)
	}
	return strings.Join(list, ", ")
}
