package rollout_test

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/rollout"
	"github.com/muster-config/muster/distributor/rollout/gate"
	"github.com/muster-config/muster/distributor/verdict"
)

// tester is what *testing.T and *rapid.T have in common.
type tester interface {
	Helper()
	Errorf(string, ...any)
	Fatalf(string, ...any)
}

// fleet is hosts of one cohort under heads that Next and Act make, by a clock of its own. After each head it checks what must always hold.
type fleet struct {
	t        tester
	now      time.Time
	view     *manifest.View
	hosts    []*member
	policies map[string]manifest.RolloutPolicy // of the newest release
	part     uint64                            // the epoch that stands after it
	order    int
	created  time.Time
	base     *manifest.Release
	siblings []rollout.Sibling
	services map[uint64]map[string]string
	unseen   string
	settling string
	gates    func(q gate.Question) []manifest.GateVerdict // nil: all pass
	asked    []gate.Question
	heads    []*manifest.View
	loose    bool // in flight is not checked
	rush     bool // all hosts were sent at once
}

// member is one host.
type member struct {
	rollout.Host
	bad   func(epoch uint64) verdict.Code // what becomes of it when it takes an epoch; "" or nil: it is well
	stuck bool                            // takes nothing
}

func standard(waves ...manifest.Wave) manifest.RolloutPolicy {
	if waves == nil {
		waves = []manifest.Wave{{Percent: 5, Bake: "10m"}, {Percent: 25, Bake: "30m"}, {Percent: 100, Bake: "0s"}}
	}
	return manifest.RolloutPolicy{
		Waves: waves, Gates: map[string]manifest.Gate{}, MinReported: 0.95, MaxInFlight: "10%", Spread: "0s", Timeout: "2h", OnFailure: "rollback", Watch: "30m", ApproveBefore: []int{}, Windows: []string{},
	}
}

func gated(p manifest.RolloutPolicy, names ...string) manifest.RolloutPolicy {
	most := 0.01
	p.Gates = map[string]manifest.Gate{}
	for _, n := range names {
		p.Gates[n] = manifest.Gate{Prometheus: "errors{epoch=\"$epoch\"}", Max: &most, Every: "30s", Fails: 1, NoData: "wait"}
	}
	return p
}

// newFleet is a cohort of n hosts that all run epoch 7.
func newFleet(t tester, n int, p manifest.RolloutPolicy) *fleet {
	f := &fleet{t: t, now: now, policies: map[string]manifest.RolloutPolicy{"standard": p}, part: 7, created: now.Add(-time.Hour), services: map[uint64]map[string]string{7: {"a": "a7", "b": "b7"}}}
	f.order = 100
	for i := range n {
		f.hosts = append(f.hosts, &member{Host: rollout.Host{Name: fmt.Sprintf("h-%03d", i), Verdict: verdict.Confirmed, Running: 7}})
	}
	f.policies["standard"] = p
	m, changed, err := rollout.Now(f.input(nil))
	if err != nil || !changed {
		t.Fatalf("%t, %v", changed, err)
	}
	f.put(m)
	return f
}

func (f *fleet) input(prev *manifest.View) rollout.Input {
	return rollout.Input{
		Store: strings.Repeat("0a", 16), Repo: "acme/config", Cohort: "prod", Era: 1, Prev: prev, By: "controller", Now: f.now, Statement: envelope(fmt.Sprint(f.part)), Base: f.base, Named: f.named(),
		Release: &manifest.Release{
			Epoch: max(f.part, 7), Created: f.created, Policy: manifest.Policy{Cohorts: map[string]manifest.CohortPolicy{"prod": {Rollout: "standard", Order: f.order}}, Rollouts: f.policies},
			Cohorts: map[string]manifest.ReleaseCohort{"prod": {State: manifest.StateBuilt, Epoch: f.part}},
		},
	}
}

// named are the statements of all releases.
func (f *fleet) named() map[uint64]manifest.Envelope {
	all := map[uint64]manifest.Envelope{}
	for epoch := range f.services {
		all[epoch] = envelope(fmt.Sprint(epoch))
	}
	return all
}

// publish makes an epoch the newest; services are what it changes against the one before it.
func (f *fleet) publish(epoch uint64, services map[string]string) {
	all := maps.Clone(f.services[f.part])
	maps.Copy(all, services)
	f.services[epoch], f.part, f.created = all, epoch, f.now.Add(-time.Minute)
}

func (f *fleet) r() *manifest.Rollout { return &f.view.Manifest.Rollout }

// put makes a manifest the head, and checks it against the one before.
func (f *fleet) put(m manifest.Manifest) {
	f.t.Helper()
	v := &manifest.View{Manifest: m}
	for _, e := range m.Statements {
		epoch, _ := strconv.ParseUint(string(e.Payload), 10, 64)
		v.Statements = append(v.Statements, manifest.VerifiedStatement{Statement: manifest.Statement{Epoch: epoch}, Digest: e.Digest()})
	}
	before := f.view
	if before != nil {
		v.Overrides = before.Overrides
	}
	f.view = v
	f.heads = append(f.heads, v)
	if err := m.Validate(); err != nil {
		f.t.Fatalf("the order is not valid: %v", err)
	}
	epochs := map[uint64]bool{}
	for _, a := range m.Assign {
		if len(a.Hosts) == 0 {
			epochs[a.Epoch] = true
		}
	}
	if len(epochs) > 2 {
		f.t.Fatalf("more than two contents: %v", m.Assign)
	}
	r := &m.Rollout
	for _, epoch := range []uint64{r.Baseline, r.Fallback} {
		if epoch != 0 && !slices.ContainsFunc(v.Statements, func(st manifest.VerifiedStatement) bool { return st.Epoch == epoch }) {
			f.t.Fatalf("no statement of epoch %d to go back to: %v", epoch, r)
		}
	}
	if before == nil {
		return
	}
	if m.Serial != before.Manifest.Serial+1 {
		f.t.Fatalf("serial %d after %d", m.Serial, before.Manifest.Serial)
	}
	if was := before.Manifest.Rollout; r.Target < was.Target && r.Target != was.Baseline && r.Target != was.Fallback {
		f.t.Fatalf("target %d after %d", r.Target, was.Target)
	}
	if halted := before.Manifest.Rollout.Phase == manifest.PhaseHalted || before.Manifest.Rollout.Phase == manifest.PhaseRollingBack; halted {
		for _, h := range f.hosts {
			if f.source(v, h) != manifest.FromHold && f.at(before, h) != r.Target && f.at(v, h) == before.Manifest.Rollout.Target && before.Manifest.Rollout.Target != before.Manifest.Rollout.Baseline {
				f.t.Fatalf("%s is told the target again while the cohort goes back", h.Name)
			}
		}
	}
	for _, h := range f.hosts {
		if f.at(v, h) == 0 {
			f.t.Fatalf("%s is told nothing", h.Name)
		}
	}
	open, limit := f.open(), f.limit()
	f.rush = f.rush && open > limit
	if open > limit && !f.loose && !f.rush {
		f.t.Fatalf("%d hosts are on their way, %d may: %s, %v", open, limit, r.Why, m.Assign)
	}
}

// limit is how many may be on their way.
func (f *fleet) limit() int {
	text := f.r().Policy.MaxInFlight
	digits, share := strings.CutSuffix(text, "%")
	n, _ := strconv.Atoi(digits)
	if share {
		able := 0
		for _, h := range f.hosts {
			if h.Verdict != verdict.Missing && h.Verdict != verdict.Silent {
				able++
			}
		}
		n = able * n / 100
	}
	return max(1, n)
}

// open counts the hosts that were told something else than they run, and can do it.
func (f *fleet) open() int {
	n := 0
	for _, h := range f.hosts {
		if to := f.at(f.view, h); to != h.Running && h.Verdict != verdict.Missing && h.Verdict != verdict.Silent && h.Verdict != verdict.Observing && !(h.bad != nil && h.bad(to) != "" && h.Attempted == to) {
			n++
		}
	}
	return n
}

func (f *fleet) source(v *manifest.View, h *member) manifest.Source {
	res, err := manifest.Resolve(v, manifest.Host{Name: h.Name, Labels: h.Labels}, f.now)
	if err != nil {
		f.t.Fatalf("%s: %v", h.Name, err)
	}
	return res.Source
}

func (f *fleet) at(v *manifest.View, h *member) uint64 {
	res, err := manifest.Resolve(v, manifest.Host{Name: h.Name, Labels: h.Labels}, f.now)
	if err != nil {
		f.t.Fatalf("%s: %v", h.Name, err)
	}
	return res.Epoch()
}

// observed is what a collector would say.
func (f *fleet) observed() rollout.Observed {
	seen := rollout.Observed{Mark: f.view.Mark(), Siblings: f.siblings, Services: f.services, Unseen: f.unseen, Settling: f.settling}
	for _, h := range f.hosts {
		o := h.Host
		to := f.at(f.view, h)
		switch {
		case h.Verdict == verdict.Missing, h.Verdict == verdict.Silent, h.Verdict == verdict.Held, h.Verdict == verdict.Observing, h.Verdict == verdict.NotRunning, h.Verdict == verdict.Unknown:
		case h.bad != nil && h.Attempted == to && h.bad(to) != "":
			o.Verdict = h.bad(to)
		case f.source(f.view, h) == manifest.FromHold:
			o.Verdict = verdict.Held
		case h.Running != to:
			o.Verdict = verdict.Applying
		case f.under(h) != "":
			o.Verdict = verdict.Overridden
		default:
			o.Verdict = verdict.Confirmed
		}
		seen.Hosts = append(seen.Hosts, o)
	}
	if q, ok := rollout.Question(f.input(f.view), seen, f.now); ok {
		f.asked = append(f.asked, q)
		seen.Gates = f.judge(q)
	}
	return seen
}

func (f *fleet) judge(q gate.Question) []manifest.GateVerdict {
	if f.gates != nil {
		return f.gates(q)
	}
	return say1(q, manifest.OutcomePass, "well")
}

// say1 has all gates say the same.
func say1(q gate.Question, o manifest.Outcome, why string) (list []manifest.GateVerdict) {
	value := 0.5
	for _, name := range slices.Sorted(maps.Keys(q.Gates)) {
		list = append(list, manifest.GateVerdict{Gate: name, Wave: q.Wave, Outcome: o, Why: why, From: q.From, To: q.Now, Samples: []manifest.GateSample{{At: q.Now, Canary: &value}}})
	}
	return list
}

// next is one call of Next. It says whether there is a new head.
func (f *fleet) next() bool {
	f.t.Helper()
	changed, err := f.try()
	if err != nil {
		f.t.Fatalf("next: %v", err)
	}
	return changed
}

// try is next, with what it waits for.
func (f *fleet) try() (bool, error) {
	f.t.Helper()
	m, changed, err := rollout.Next(f.r().Policy, f.input(f.view), f.observed(), f.now)
	if changed {
		f.put(m)
	}
	return changed, err
}

// apply has every host do what it is told.
func (f *fleet) apply() {
	for _, h := range f.hosts {
		f.applyOne(h)
	}
}

func (f *fleet) applyOne(h *member) {
	to := f.at(f.view, h)
	if h.stuck || h.Verdict == verdict.Missing || h.Verdict == verdict.Silent || h.Verdict == verdict.Held || h.Verdict == verdict.Observing || h.Running == to {
		return
	}
	h.Attempted = to
	if h.bad != nil {
		switch h.bad(to) {
		case verdict.RolledBack, verdict.Failed, verdict.Refused, verdict.Overridden:
			return
		case verdict.Silent:
			h.Verdict, h.Silent = verdict.Silent, f.now.Add(time.Second)
			return
		}
	}
	h.Running = to
}

// settle lets hosts and controller go on, without time passing, until nothing moves.
func (f *fleet) settle() {
	f.t.Helper()
	for range 10_000 {
		changed, err := f.try()
		if err != nil && !isWaiting(err) {
			f.t.Fatalf("next: %v", err)
		}
		before := f.open()
		f.apply()
		if !changed && f.open() == before {
			return
		}
	}
	f.t.Fatalf("it never settles: %v", f.r())
}

// pass lets time go by, a minute at a time, and everything with it.
func (f *fleet) pass(d time.Duration) {
	f.t.Helper()
	for end := f.now.Add(d); f.now.Before(end); {
		f.now = f.now.Add(min(time.Minute, end.Sub(f.now)))
		f.settle()
	}
}

// until lets time go by until something holds.
func (f *fleet) until(what string, most time.Duration, holds func() bool) {
	f.t.Helper()
	for end := f.now.Add(most); !holds(); {
		if !f.now.Before(end) {
			f.t.Fatalf("not within %s: %s; %s, %+v", most, what, rollout.Stands(f.r()), *f.r())
		}
		f.now = f.now.Add(time.Minute)
		f.settle()
	}
}

// act is one action of a person.
func (f *fleet) act(a rollout.Action) (said string, changed bool, err error) {
	if a.By == "" {
		a.By = "ana"
	}
	m, said, changed, err := rollout.Act(f.input(f.view), a, f.now)
	if changed {
		f.rush = f.rush || a.Now
		f.put(m)
	}
	return said, changed, err
}

func (f *fleet) must(a rollout.Action) string {
	f.t.Helper()
	said, changed, err := f.act(a)
	if err != nil || !changed {
		f.t.Fatalf("%s: %t, %s, %v", a.Kind, changed, said, err)
	}
	return said
}

func (f *fleet) running(epoch uint64) int {
	n := 0
	for _, h := range f.hosts {
		if h.Running == epoch {
			n++
		}
	}
	return n
}

func (f *fleet) told(epoch uint64) int {
	n := 0
	for _, h := range f.hosts {
		if f.at(f.view, h) == epoch {
			n++
		}
	}
	return n
}

func (f *fleet) stands(phase manifest.Phase, wave int) {
	f.t.Helper()
	if r := f.r(); r.Phase != phase || r.Wave != wave {
		f.t.Errorf("%s, wave %d; want %s, wave %d: %s", r.Phase, r.Wave, phase, wave, r.Why)
	}
}

var _ tester = (*testing.T)(nil)
