package rollout

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/rollout/gate"
	"github.com/muster-config/muster/distributor/verdict"
)

// extensions is how often a bake is extended because a gate says nothing, before the rollout is held.
const extensions = 2

// firstLook is how long after its release a rollout waits for the first word of its gates: a broken one is found before anything moves.
const firstLook = 30 * time.Second

// Question is what the gates of a cohort's rollout are to be asked now; not ok: nothing. Observed needs only its hosts.
func Question(in Input, seen Observed, now time.Time) (q gate.Question, ok bool) {
	part := in.Release.Cohorts[in.Cohort]
	if in.Prev == nil || part.Epoch == 0 {
		return q, false
	}
	m := &in.Prev.Manifest
	r := &m.Rollout
	if len(r.Policy.Gates) == 0 {
		return q, false
	}
	q = gate.Question{Cohort: in.Cohort, Wave: r.Wave, Epoch: r.Target, Baseline: r.Baseline, Gates: r.Policy.Gates, From: r.Since, Now: now}
	switch {
	case r.Phase == manifest.PhaseRollingBack || r.Phase == manifest.PhaseHalted:
		return q, false
	case underWay(m):
		q.Bake, q.Last = bakeFor(&r.Policy, r.Wave), r.Wave >= len(r.Policy.Waves)
	case r.Phase == manifest.PhaseDone && r.Fallback != 0:
		q.Baseline, q.Wave, q.Bake, q.Last = r.Fallback, len(r.Policy.Waves)+1, duration(r.Policy.Watch), true
	case part.Epoch > r.Target:
		q.Wave, q.Epoch, q.Baseline, q.From = 0, part.Epoch, r.Target, now
		return q, true
	default:
		return q, false
	}
	held := heldHosts(m, now)
	for i := range seen.Hosts {
		h := &seen.Hosts[i]
		if h.Verdict == verdict.Missing || h.Verdict == verdict.Duplicate || h.Verdict == verdict.Held || held[h.Name] {
			continue // neither canary nor control
		}
		reported := h.Reported
		reported.Name = h.Name
		if tells(m.Assign, h, now) == q.Epoch {
			q.Canary = append(q.Canary, reported)
		} else {
			q.Control = append(q.Control, reported)
		}
	}
	return q, true
}

// Bake is how long a wave bakes: what its policy says, and where that is something, at least so long that each gate had one full look.
func Bake(p *manifest.RolloutPolicy, wave int) time.Duration { return bakeFor(p, wave) }

func bakeFor(p *manifest.RolloutPolicy, wave int) time.Duration {
	bake := bakeOf(p, wave)
	if bake <= 0 {
		return bake
	}
	for _, g := range p.Gates {
		bake = max(bake, duration(g.Every))
	}
	return bake
}

// bakeOf is how long a policy has a wave bake.
func bakeOf(p *manifest.RolloutPolicy, wave int) time.Duration {
	if wave < 1 || wave > len(p.Waves) {
		return 0
	}
	return duration(p.Waves[wave-1].Bake)
}

// duration reads what Validate has checked.
func duration(s string) time.Duration {
	d, _ := time.ParseDuration(s)
	return d
}

// heard are the verdicts on a wave: one for each gate of the policy, sorted. What was not heard is inconclusive.
func (s *step) heard(wave int) []manifest.GateVerdict {
	var list []manifest.GateVerdict
	for _, name := range slices.Sorted(maps.Keys(s.policy.Gates)) {
		v := manifest.GateVerdict{Gate: name, Wave: wave, Outcome: manifest.OutcomeInconclusive, Why: "nothing was heard of it", From: s.prev.Rollout.Since, To: s.now.UTC()}
		for _, h := range s.seen.Gates {
			if h.Gate == name && h.Wave == wave {
				v = h
			}
		}
		list = append(list, v)
	}
	return list
}

// wave now is the one that gates are judged for.
func (s *step) judgedWave() int {
	r := &s.prev.Rollout
	if r.Phase == manifest.PhaseDone && r.Fallback != 0 {
		return len(s.policy.Waves) + 1
	}
	return r.Wave
}

// saying are those with an outcome that a person's resume does not pass over.
func (s *step) saying(list []manifest.GateVerdict, what manifest.Outcome) (found []manifest.GateVerdict) {
	for _, v := range list {
		if v.Outcome == what && (what == manifest.OutcomeFail || !slices.Contains(s.prev.Rollout.Skipped, v.Gate)) {
			found = append(found, v)
		}
	}
	return found
}

// sayings puts them into words: "gate errors: 3% of requests fail, at most 1% may".
func sayings(list []manifest.GateVerdict) string {
	var parts []string
	for _, v := range list {
		parts = append(parts, fmt.Sprintf("gate %s: %s", v.Gate, v.Why))
	}
	return strings.Join(parts, "; ")
}

// resting keeps the verdicts that a decision rests on.
func (s *step) resting(list []manifest.GateVerdict) {
	s.m.Rollout.Verdicts = slices.Clone(list[:min(len(list), manifest.MaxGateVerdicts)])
}

// withoutSamples are verdicts in words only: an order that stands for long is read by every host, again and again.
func withoutSamples(list []manifest.GateVerdict) []manifest.GateVerdict {
	list = slices.Clone(list)
	for i := range list {
		list[i].Samples = nil
	}
	return list
}

// bake waits for the time of a wave, and then for every gate to pass and enough hosts to be confirmed. What is inconclusive then has two more times that long; then a person is asked.
func (s *step) bake() {
	r := &s.prev.Rollout
	bake := bakeFor(&s.policy, r.Wave)
	if s.now.Before(r.Since.Add(bake)) || s.settling() {
		return
	}
	list := s.heard(r.Wave)
	open := s.saying(list, manifest.OutcomeInconclusive)
	blind := unasked(open)
	if s.leaves(blind, r.Since.Add(bake*time.Duration(1+r.Extended))) {
		return
	}
	enough := s.count.confirmed >= s.needed(s.count.able) || s.passedOver()
	never := s.neverHeard()
	if len(open) == 0 && enough && never == "" {
		s.passed(list)
		return
	}
	if s.now.Before(r.Since.Add(bake*time.Duration(1+r.Extended))) && len(blind) == 0 {
		s.waitsForHosts()
		return
	}
	why := sayings(open)
	if !enough {
		why = join(why, s.unconfirmed())
		list = s.tooFewOf(list, s.unconfirmed())
	}
	if never != "" {
		why = join(why, never)
		list = append(list, s.neverHeardOf(never))
	}
	if r.Extended < extensions && len(blind) == 0 {
		s.resting(list)
		s.m.Rollout.Extended++
		s.m.Rollout.By = s.in.By
		s.m.Rollout.Why = text("epoch %d, %s: bakes %s longer: %s", r.Target, s.wave(r.Wave), bake, why)
		s.moved = true
		return
	}
	s.hold(list, why)
}

// underOverrides names the overrides that act on the cohort, whose hosts confirm nothing of a release, as the end of a sentence.
func (s *step) underOverrides() string {
	var names []string
	for _, o := range s.in.Prev.Living(s.now) {
		names = append(names, o.ID)
	}
	if len(names) == 0 {
		return ""
	}
	return ", or an override acts on them: " + some(names) + "; `muster override end` ends it"
}

// unconfirmed says how many hosts did not confirm, and which.
func (s *step) unconfirmed() string {
	c := &s.count
	switch {
	case c.told == 0:
		return "none of the hosts that were told is heard"
	case c.able == 0:
		return fmt.Sprintf("none of the %d hosts that were told can confirm: they only observe, or what is to run is stopped%s", c.told, s.underOverrides())
	}
	said := fmt.Sprintf("%d of %d hosts confirm, and %d have to", c.confirmed, c.able, s.needed(c.able))
	if len(c.open) > 0 {
		said += ": " + some(c.open)
	}
	return said
}

// hold pauses a rollout until a person looks at it.
func (s *step) hold(list []manifest.GateVerdict, why string) {
	s.resting(list)
	r := &s.m.Rollout
	r.Was, r.Phase = s.prev.Rollout.Phase, manifest.PhasePaused
	r.Pause = &manifest.Stop{By: Muster, Why: text("%s of epoch %d: %s", s.wave(r.Wave), r.Target, why), Since: s.now.UTC()}
	r.By, r.Why = s.in.By, text("epoch %d, %s: held: %s", r.Target, s.wave(r.Wave), why)
	s.moved = true
}

// heldByBroken holds a rollout whose gate turns out to be one that can never say anything.
func (s *step) heldByBroken() bool {
	if s.prev.Rollout.Phase == manifest.PhasePaused {
		return false
	}
	list := s.heard(s.judgedWave())
	broken := s.saying(list, manifest.OutcomeBroken)
	if len(broken) == 0 {
		return false
	}
	s.hold(list, sayings(broken))
	return true
}

// asked says whether every gate was asked once. One of which nothing is heard holds up nothing for long: it is judged again while the first wave bakes.
func (s *step) asked(target uint64) bool {
	if len(s.policy.Gates) == 0 || len(s.seen.Gates) == 0 || !s.now.Before(s.in.Release.Created.Add(firstLook)) {
		return true
	}
	for _, v := range s.seen.Gates {
		if v.Outcome == manifest.OutcomeInconclusive && v.Wave == 0 {
			s.stop("epoch %d waits: its gates are asked for the first time", target)
			return false
		}
	}
	return true
}

// brokenBefore keeps a rollout from beginning that could never pass: a gate of its policy is broken. What the newest release makes of that gate counts instead, if it is something else.
func (s *step) brokenBefore() bool {
	list := s.heard(0)
	broken := s.saying(list, manifest.OutcomeBroken)
	if blind := unasked(s.saying(list, manifest.OutcomeInconclusive)); len(broken) == 0 && len(blind) > 0 {
		if s.prev.Rollout.Phase != manifest.PhasePaused && s.leaves(blind, s.in.Release.Created) {
			return true
		}
		broken = blind
	}
	if len(broken) == 0 {
		return false
	}
	if s.repair(broken) {
		return true
	}
	r := &s.prev.Rollout
	why := text("epoch %d does not begin: %s", s.part.Epoch, sayings(broken))
	if r.Phase == manifest.PhasePaused && r.Pause != nil && r.Pause.Why == why {
		s.wait = stopped(*r, s.in.Cohort, s.now)
		return true
	}
	s.resting(list)
	s.notBegun(why, "")
	return true
}

// repair puts what the newest release makes of broken gates in force.
func (s *step) repair(broken []manifest.GateVerdict) bool {
	name := s.in.Release.Policy.Cohorts[s.in.Cohort].Rollout
	newest, ok := s.in.Release.Policy.Rollouts[name]
	if !ok {
		return false
	}
	p := s.policy
	p.Gates = map[string]manifest.Gate{}
	for n, g := range s.policy.Gates {
		p.Gates[n] = g
	}
	for _, v := range broken {
		if g, ok := newest.Gates[v.Gate]; ok {
			p.Gates[v.Gate] = g
		} else {
			delete(p.Gates, v.Gate)
		}
	}
	r := &s.prev.Rollout
	return s.adopt(r.PolicyName, r.PolicyEpoch, p)
}

func join(a, b string) string {
	if a == "" || b == "" {
		return a + b
	}
	return a + "; " + b
}
