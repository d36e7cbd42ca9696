// Package rehearse takes an imaginary cohort to a new release under a rollout policy: with the real rules, imaginary hosts and an imaginary clock. It says how long each wave takes, how
// many hosts it has, and what becomes of a release with which hosts fail. Gates pass in it: what they can and cannot see is asked of them by themselves (gate.Detectable).
package rehearse

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/rollout"
	"github.com/muster-config/muster/distributor/rollout/gate"
	"github.com/muster-config/muster/distributor/rollout/standing"
	"github.com/muster-config/muster/distributor/verdict"
)

// Host is one host of the cohort.
type Host struct {
	Name   string
	Labels map[string]string
}

// Input is what is rehearsed.
type Input struct {
	Cohort string
	Policy manifest.RolloutPolicy
	Hosts  []Host
	Begin  time.Time     // when the release is published: windows go by it
	Apply  time.Duration // that a host takes from being told until it confirms, half of it more or less
	// The chance of each host that the release does that to it.
	Refuse   float64 // it refuses the release
	RollBack float64 // it takes it and goes back
	Silence  float64 // it falls silent with it
	Seed     uint64
}

// Ends of a rehearsal.
const (
	Done       = "done"
	RolledBack = "rolled back"
	Halted     = "halted"
	Held       = "held" // it waits for a person
	Stuck      = "does not finish within 30 days"
)

// Result is what became of it. Times are from the begin.
type Result struct {
	Waves   []Wave
	End     string
	Wave    int           // at which it ended, unless it is done
	Why     string        // of the last order
	Took    time.Duration // until it was done, or failed
	Back    time.Duration // rolled back: until every host was back, from the failure on
	Touched int           // hosts that were told to take the release at any time
	Orders  int           // that were written
}

// Wave is how a wave went.
type Wave struct {
	Wave   int
	Takes  string
	Hosts  int // told when it was over
	Begins time.Duration
	Told   time.Duration // when its last host was told
	Over   time.Duration // when its bake was over
}

const (
	baseline = 1
	target   = 2
	most     = 30 * 24 * time.Hour
	// looks bounds what a rehearsal costs: each step looks at every host.
	looks  = 50_000_000
	fewest = 20_000 // steps at least
)

// host is one host and what it does.
type host struct {
	Host
	running   uint64
	attempted uint64
	desired   uint64
	told      time.Time
	ready     time.Time // when it has done what it was told
	fails     verdict.Code
	failed    bool
	since     time.Time // of its failure
}

// Run rehearses once. The same input gives the same result.
func Run(in Input) (*Result, error) {
	s, err := newStage(in)
	if err != nil {
		return nil, err
	}
	steps := max(fewest, looks/max(1, len(in.Hosts)))
	for range steps {
		if over := s.over(); over != "" {
			s.result.End = over
			return s.result, nil
		}
		if s.now.Sub(in.Begin) >= most {
			s.result.End, s.result.Took = Stuck, s.now.Sub(in.Begin)
			return s.result, nil
		}
		m, changed, err := rollout.Next(in.Policy, s.in(), s.seen(), s.now)
		if err != nil && !waits(err) {
			return nil, fmt.Errorf("rehearse cohort %s: %w", in.Cohort, err)
		}
		if changed {
			s.take(m)
			continue
		}
		s.now = s.next()
	}
	return nil, fmt.Errorf("rehearse cohort %s: does not finish within %d steps, which are %s: make its waves and its bakes shorter", in.Cohort, steps, s.now.Sub(in.Begin))
}

// stage is one rehearsal.
type stage struct {
	Input
	now     time.Time
	random  *rand.Rand
	hosts   []*host
	release *manifest.Release
	made    map[uint64]manifest.Envelope
	stands  map[string]manifest.VerifiedStatement // by digest
	view    *manifest.View
	result  *Result
	failed  time.Time
	touched map[string]bool
}

func newStage(in Input) (*stage, error) {
	s := &stage{Input: in, now: in.Begin, random: rand.New(rand.NewPCG(in.Seed, 1)), made: map[uint64]manifest.Envelope{}, stands: map[string]manifest.VerifiedStatement{}, result: &Result{}, touched: map[string]bool{}}
	for _, epoch := range []uint64{baseline, target} {
		st := manifest.Statement{V: manifest.Version, Cohort: in.Cohort, Epoch: epoch}
		e := manifest.Envelope{Payload: fmt.Appendf(nil, "statement of epoch %d", epoch)}
		s.made[epoch], s.stands[e.Digest()] = e, manifest.VerifiedStatement{Statement: st, Digest: e.Digest()}
	}
	for _, h := range in.Hosts {
		x := &host{Host: h, running: baseline, attempted: baseline, desired: baseline}
		switch p := s.random.Float64(); {
		case p < in.Refuse:
			x.fails = verdict.Refused
		case p < in.Refuse+in.RollBack:
			x.fails = verdict.RolledBack
		case p < in.Refuse+in.RollBack+in.Silence:
			x.fails = verdict.Silent
		}
		s.hosts = append(s.hosts, x)
	}
	st := s.made[target]
	s.release = &manifest.Release{
		V: manifest.Version, Epoch: target, Created: in.Begin,
		Policy:  manifest.Policy{Cohorts: map[string]manifest.CohortPolicy{in.Cohort: {Rollout: "rehearsed"}}, Rollouts: map[string]manifest.RolloutPolicy{"rehearsed": in.Policy}},
		Cohorts: map[string]manifest.ReleaseCohort{in.Cohort: {State: manifest.StateBuilt, Epoch: target, Statement: &st}},
	}
	m := manifest.Manifest{
		V: manifest.Version, Cohort: in.Cohort, Era: 1, Serial: 1, Issued: in.Begin, FreshUntil: in.Begin.Add(manifest.MaxFreshFor), Statements: []manifest.Envelope{s.made[baseline]},
		Rollout: manifest.Rollout{PolicyName: "rehearsed", PolicyEpoch: baseline, Policy: in.Policy, Target: baseline, Baseline: baseline, Phase: manifest.PhaseDone, Since: in.Begin.Add(-24 * time.Hour)},
		Assign:  []manifest.Assignment{{Epoch: baseline, Why: "baseline"}},
	}
	s.show(m)
	return s, nil
}

// show makes an order the one that stands.
func (s *stage) show(m manifest.Manifest) {
	v := &manifest.View{Manifest: m}
	for _, e := range m.Statements {
		v.Statements = append(v.Statements, s.stands[e.Digest()])
	}
	s.view = v
}

func (s *stage) in() rollout.Input {
	return rollout.Input{Cohort: s.Cohort, Era: 1, Prev: s.view, Release: s.release, Statement: s.made[target], By: "a rehearsal", Now: s.now}
}

// seen is what an observer sees of the hosts, and gates that pass as soon as their bake is covered.
func (s *stage) seen() rollout.Observed {
	seen := rollout.Observed{Mark: s.view.Mark()}
	for _, h := range s.hosts {
		s.settle(h)
		o := rollout.Host{Name: h.Name, Labels: h.Labels, Running: h.running, Attempted: h.attempted, Told: h.told, Verdict: verdict.Applying, Reported: gate.Host{Name: h.Name, At: s.now}}
		switch {
		case h.failed && h.desired == target:
			o.Verdict = h.fails
			if h.fails == verdict.Silent {
				o.Silent = h.since
			}
		case h.running == h.desired && !s.now.Before(h.ready):
			o.Verdict = verdict.Confirmed
		}
		seen.Hosts = append(seen.Hosts, o)
	}
	if q, ok := rollout.Question(s.in(), seen, s.now); ok {
		for name := range q.Gates {
			v := manifest.GateVerdict{Gate: name, Wave: q.Wave, Outcome: manifest.OutcomeInconclusive, Why: "the bake is not over", From: q.From, To: s.now}
			if q.Wave == 0 || s.now.Sub(q.From) >= q.Bake {
				v.Outcome, v.Why = manifest.OutcomePass, "rehearsed"
			}
			seen.Gates = append(seen.Gates, v)
		}
	}
	return seen
}

// settle lets a host have done what its time is over for.
func (s *stage) settle(h *host) {
	if h.running == h.desired || s.now.Before(h.ready) || h.failed && h.desired == target {
		return
	}
	h.attempted = h.desired
	if h.desired == target && h.fails != "" {
		h.failed, h.since = true, h.ready
		return
	}
	h.running = h.desired
}

// take makes an order the one that stands, and tells the hosts.
func (s *stage) take(m manifest.Manifest) {
	before := s.view.Manifest.Rollout
	s.show(m)
	r := m.Rollout
	s.result.Orders++
	s.result.Why = r.Why
	for _, h := range s.hosts {
		res, err := manifest.Resolve(s.view, manifest.Host{Name: h.Name, Labels: h.Labels}, s.now)
		if err != nil || res.Epoch() == h.desired {
			continue
		}
		h.desired, h.told = res.Epoch(), s.now
		pause := s.Apply/2 + time.Duration(s.random.Int64N(int64(s.Apply)+1))
		if h.desired == target {
			s.touched[h.Name] = true
			pause += s.turn(h, r.Policy.Spread)
		} else if h.running == h.desired {
			pause = 0 // it never left
		}
		h.ready = s.now.Add(pause)
	}
	s.result.Touched = len(s.touched)
	at := s.now.Sub(s.Begin)
	if r.Phase == manifest.PhaseAdvancing && (r.Wave != before.Wave || before.Phase == manifest.PhaseDone || before.Phase == manifest.PhaseAwaitingApproval) {
		s.endWave(at)
		s.result.Waves = append(s.result.Waves, Wave{Wave: r.Wave, Takes: standing.Takes(r.Policy.Waves[r.Wave-1]), Begins: at, Told: at, Over: at})
	}
	if n := len(s.result.Waves); n > 0 && r.Phase == manifest.PhaseAdvancing && s.result.Touched > s.result.Waves[n-1].Hosts {
		s.result.Waves[n-1].Hosts, s.result.Waves[n-1].Told = s.result.Touched, at
	}
	switch r.Phase {
	case manifest.PhaseDone:
		s.endWave(at)
	case manifest.PhaseAwaitingApproval:
		s.endWave(at)
		if next, _, changed, err := rollout.Act(s.in(), rollout.Action{Kind: rollout.Approve, By: "a rehearsal", Why: "at once"}, s.now); err == nil && changed {
			s.show(next)
		}
	case manifest.PhaseRollingBack, manifest.PhaseHalted:
		if s.failed.IsZero() {
			s.failed, s.result.Wave, s.result.Took = s.now, before.Wave, at
		}
	}
}

// turn is how long a host waits before it takes the target.
func (s *stage) turn(h *host, spread string) time.Duration {
	d, err := time.ParseDuration(spread)
	if err != nil {
		return 0
	}
	return time.Duration(manifest.Turn(h.Name, target) * float64(d))
}

func (s *stage) endWave(at time.Duration) {
	if n := len(s.result.Waves); n > 0 && s.result.Waves[n-1].Over <= s.result.Waves[n-1].Told {
		s.result.Waves[n-1].Over = max(at, s.result.Waves[n-1].Told)
	}
}

// over says how it ended, "" as long as it goes on. What comes after a done rollout, while it is watched, is not rehearsed.
func (s *stage) over() string {
	r := &s.view.Manifest.Rollout
	switch {
	case r.Phase == manifest.PhaseDone && r.Target == target:
		s.result.Took = s.now.Sub(s.Begin)
		return Done
	case r.Phase == manifest.PhasePaused:
		s.result.Wave, s.result.Took = r.Wave, s.now.Sub(s.Begin)
		return Held
	case r.Phase == manifest.PhaseHalted:
		for _, h := range s.hosts {
			if h.desired == target {
				return Halted
			}
		}
		s.result.Back = s.now.Sub(s.failed)
		return RolledBack
	}
	return ""
}

// next is when something changes by itself: a host has done what it was told, or the time of the phase is over. Rules that go by other times are looked at every half minute.
func (s *stage) next() time.Time {
	at := s.now.Add(30 * time.Second)
	if until := standing.Of(standing.Input{Cohort: s.Cohort, View: s.view, Now: s.now}).Until; until != nil && until.After(s.now) {
		if s.view.Manifest.Rollout.Phase == manifest.PhaseBaking {
			at = *until // nothing else happens before
		} else if until.Before(at) {
			at = *until
		}
	}
	// Nothing begins while no window is open.
	if p := s.view.Manifest.Rollout.Phase; len(s.Policy.Windows) > 0 && (p == manifest.PhaseDone || p == manifest.PhaseBaking) {
		end := s.Begin.Add(most)
		open := manifest.NextWindow(s.Policy.Windows, s.now)
		if open.IsZero() || open.After(end) {
			open = end
		}
		if open.After(at) {
			at = open
		}
	}
	for _, h := range s.hosts {
		if h.ready.After(s.now) && h.ready.Before(at) {
			at = h.ready
		}
	}
	// Hosts that are ready at about the same time are seen together, as a collector sees them: each look costs as much as there are hosts.
	if soon := s.now.Add(s.Apply / 10); at.Before(soon) {
		at = soon
	}
	return at
}

// waits tells a rollout that waits for something from one that cannot go on.
func waits(err error) bool {
	return errors.Is(err, rollout.ErrStopped) || errors.Is(err, rollout.ErrUnjudged)
}
