package rollout_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/rollout"
	"github.com/muster-config/muster/distributor/rollout/gate"
	"github.com/muster-config/muster/distributor/verdict"
)

// ill has an epoch go wrong on hosts.
func (f *fleet) ill(code verdict.Code, epoch uint64, hosts ...int) {
	if hosts == nil {
		for i := range f.hosts {
			hosts = append(hosts, i)
		}
	}
	for _, i := range hosts {
		f.hosts[i].bad = func(e uint64) verdict.Code {
			if e == epoch {
				return code
			}
			return ""
		}
	}
}

// failing are gates that fail while the epoch is judged.
func failing(epoch uint64, when func(q gate.Question) bool) func(q gate.Question) []manifest.GateVerdict {
	return func(q gate.Question) []manifest.GateVerdict {
		if q.Epoch == epoch && q.Wave > 0 && when(q) {
			return say1(q, manifest.OutcomeFail, "3% of requests fail, at most 1% may")
		}
		return say1(q, manifest.OutcomePass, "well")
	}
}

// back checks that the cohort is halted at epoch 7, and that nobody but the hosts that were told saw anything.
func (f *fleet) back(why string) {
	f.t.Helper()
	r := f.r()
	if r.Phase != manifest.PhaseHalted || len(r.Halts) != 1 || r.Halts[0].By != rollout.Muster || r.Halts[0].Epoch != 8 || !strings.Contains(r.Halts[0].Why, why) || !strings.Contains(r.Why, why) {
		f.t.Fatalf("%s: %s; halts %+v", r.Phase, r.Why, r.Halts)
	}
	if f.running(7) != len(f.hosts) || f.told(7) != len(f.hosts) || len(f.view.Manifest.Assign) != 1 || r.Baseline != 7 || r.Told != 0 || r.Fallback != 0 || r.Pause != nil {
		f.t.Fatalf("%d run 7: %v, %+v", f.running(7), f.view.Manifest.Assign, r)
	}
}

func TestFailureGoesBack(t *testing.T) {
	for name, test := range map[string]struct {
		set func(f *fleet)
		why string
	}{
		"a gate fails":          {func(f *fleet) { f.gates = failing(8, func(q gate.Question) bool { return q.Wave == 2 }) }, "gate errors: 3% of requests fail, at most 1% may"},
		"hosts go back":         {func(f *fleet) { f.ill(verdict.RolledBack, 8) }, "rolled back, at most 0 may"},
		"hosts refuse":          {func(f *fleet) { f.ill(verdict.Refused, 8) }, "refused, at most 0 may"},
		"hosts stay ill":        {func(f *fleet) { f.ill(verdict.Failed, 8) }, "failed, at most 0 may"},
		"hosts fall silent":     {func(f *fleet) { f.ill(verdict.Silent, 8) }, "fell silent with it"},
		"hosts do not confirm":  {func(f *fleet) { f.ill(verdict.Lagging, 8) }, "is not confirmed within 2h0m0s: 0 of 1 hosts confirm, and 1 have to"},
		"hosts take nothing":    {func(f *fleet) { f.jam() }, "is not confirmed within 2h0m0s"},
		"more than one may not": {func(f *fleet) { f.hosts = f.hosts[:3]; f.ill(verdict.RolledBack, 8) }, "rolled back"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFleet(t, 20, gated(standard(), "errors"))
			test.set(f)
			f.publish(8, map[string]string{"a": "a8"})
			f.until("it is halted", 10*time.Hour, func() bool { return f.r().Phase == manifest.PhaseHalted || f.r().Phase == manifest.PhaseRollingBack })
			for _, h := range f.hosts {
				h.stuck = false
				if h.Verdict == verdict.Silent {
					h.Verdict = verdict.Confirmed
				}
			}
			f.until("it is back", time.Hour, func() bool { return f.r().Phase == manifest.PhaseHalted })
			f.settle()
			f.back(test.why)
			// The control hosts were never told anything.
			told := map[string]bool{}
			for _, v := range f.heads {
				for _, h := range f.hosts {
					if f.at(v, h) == 8 {
						told[h.Name] = true
					}
				}
			}
			if len(told) > 5 {
				t.Errorf("%d hosts were told", len(told))
			}
			// It stays like that.
			writes := len(f.heads)
			f.pass(40 * time.Minute)
			if len(f.heads) > writes+1 {
				t.Errorf("%d more orders", len(f.heads)-writes)
			}
		})
	}
}

// jam has no host take anything.
func (f *fleet) jam() {
	for _, h := range f.hosts {
		h.stuck = true
	}
}

// Some may fail, if the policy says so; they hold up nobody.
func TestMaxFailed(t *testing.T) {
	p := standard(bakeless(50, 100)...)
	p.MaxFailed, p.MinReported = 2, 0.8
	f := newFleet(t, 20, p)
	f.ill(verdict.RolledBack, 8, 3, 11)
	f.publish(8, map[string]string{"a": "a8"})
	f.until("it is done", 5*time.Hour, func() bool { return f.r().Phase == manifest.PhaseDone && f.r().Target == 8 })
	if f.running(8) != 18 {
		t.Errorf("%d", f.running(8))
	}
	// One more while it is watched.
	f.ill(verdict.RolledBack, 8, 3, 11, 12)
	f.hosts[12].Attempted = 8
	f.settle()
	f.until("it is back", time.Hour, func() bool { return f.r().Phase == manifest.PhaseHalted })
	f.back("h-003 rolled back, h-011 rolled back, h-012 rolled back, at most 2 may")
}

// A failure after the last wave still goes back, in steps, until the time to watch is over.
func TestLateFailure(t *testing.T) {
	for _, late := range []bool{false, true} {
		f := newFleet(t, 40, gated(standard(bakeless(10, 100)...), "errors"))
		f.publish(8, map[string]string{"a": "a8"})
		f.until("it is done", 5*time.Hour, func() bool { return f.r().Phase == manifest.PhaseDone && f.r().Target == 8 })
		f.stands(manifest.PhaseDone, 3)
		if r := f.r(); r.Fallback != 7 || r.Baseline != 8 || f.running(8) != 40 {
			t.Fatalf("%+v", r)
		}
		wait := 20 * time.Minute
		if late {
			wait = 31 * time.Minute
		}
		f.pass(wait)
		f.gates = failing(8, func(q gate.Question) bool { return q.Wave == 3 })
		if late {
			f.pass(time.Hour)
			f.stands(manifest.PhaseDone, 0)
			if r := f.r(); r.Fallback != 0 || r.Target != 8 || len(f.view.Statements) != 1 {
				t.Errorf("%+v", r)
			}
			continue
		}
		begin := len(f.heads)
		f.until("it is back", time.Hour, func() bool { return f.r().Phase == manifest.PhaseHalted })
		f.back("gate errors: 3%")
		if n := len(f.heads) - begin; n < 10 { // 40 hosts, 4 at a time
			t.Errorf("back in %d orders", n)
		}
		q := f.asked[len(f.asked)-1]
		if q.Baseline != 7 || q.Epoch != 8 || q.Bake != 30*time.Minute || len(q.Canary) != 40 {
			t.Errorf("%+v", q)
		}
	}
}

// A watch in which gates say nothing takes longer, twice; then nobody is told that all is well.
func TestWatchWithoutData(t *testing.T) {
	for name, c := range map[string]struct {
		comes time.Duration // when the gate speaks again, after the begin of the watch; 0: never
		say   manifest.Outcome
		says  string
		lasts time.Duration
	}{
		"never":            {0, "", "epoch 8 to all hosts, and no failure was seen for 1h30m0s after that, but nothing certain was known in that time: gate errors: the source is down", 90 * time.Minute},
		"in time":          {10 * time.Minute, manifest.OutcomePass, "epoch 8 to all hosts, and well for 30m0s after that", 30 * time.Minute},
		"late":             {50 * time.Minute, manifest.OutcomePass, "epoch 8 to all hosts, and well for 30m0s after that", 50 * time.Minute},
		"late, and fails":  {50 * time.Minute, manifest.OutcomeFail, "back to epoch 7: gate errors", 50 * time.Minute},
		"nothing to judge": {time.Second, "alone", "and well for 30m0s after that; not judged in that time, since no control group is left: gate errors", 30 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFleet(t, 20, gated(standard(), "errors"))
			f.gates = func(q gate.Question) []manifest.GateVerdict {
				switch {
				case q.Wave <= 3:
					return say1(q, manifest.OutcomePass, "well")
				case !q.Last:
					t.Error("the watch comes after the last wave")
				case c.comes == 0 || q.Now.Before(q.From.Add(c.comes)):
					return say1(q, manifest.OutcomeInconclusive, "the source is down")
				case c.say == "alone":
					return say1(q, manifest.OutcomePass, gate.NoControlLeft)
				}
				return say1(q, c.say, "heard")
			}
			f.publish(8, map[string]string{"a": "a8"})
			f.until("it is watched", 5*time.Hour, func() bool { return f.r().Phase == manifest.PhaseDone && f.r().Fallback == 7 })
			since := f.r().Since
			extended := 0
			f.until("the watch is over", 5*time.Hour, func() bool {
				extended = max(extended, f.r().Extended)
				return f.r().Fallback == 0
			})
			r := f.r()
			if lasted := f.now.Sub(since); lasted < c.lasts || lasted > c.lasts+2*time.Minute {
				t.Errorf("it took %s", lasted)
			}
			if !strings.Contains(r.Why, c.says) || r.Extended != 0 {
				t.Errorf("says %q, want %q; extended %d", r.Why, c.says, r.Extended)
			}
			if want := min(int((c.lasts-time.Minute)/(30*time.Minute)), 2); extended != want {
				t.Errorf("extended %d times, want %d", extended, want)
			}
		})
	}
}

// on_failure: halt leaves everything where it is. A resume begins again from wave 1, an abort goes back.
func TestOnFailureHalt(t *testing.T) {
	begin := func() *fleet {
		p := gated(standard(), "errors")
		p.OnFailure = "halt"
		f := newFleet(t, 40, p)
		f.gates = failing(8, func(q gate.Question) bool { return q.Wave == 2 })
		f.publish(8, map[string]string{"a": "a8"})
		f.until("it is halted", 5*time.Hour, func() bool { return f.r().Phase == manifest.PhaseHalted })
		f.pass(time.Hour)
		f.stands(manifest.PhaseHalted, 2)
		if f.running(8) < 2 || f.running(7) < 30 {
			t.Errorf("%d run 8", f.running(8))
		}
		return f
	}
	f := begin()
	f.must(rollout.Action{Kind: rollout.Resume})
	f.stands(manifest.PhaseAdvancing, 1)
	f.gates = nil
	f.until("it goes through", 5*time.Hour, func() bool { return f.running(8) == 40 && f.r().Phase == manifest.PhaseDone })
	f = begin()
	f.must(rollout.Action{Kind: rollout.Abort})
	f.until("it is back", time.Hour, func() bool { return f.r().Phase == manifest.PhaseHalted })
	if f.running(7) != 40 {
		t.Errorf("%d", f.running(7))
	}
	// A newer release: first back, then that one.
	f = begin()
	f.publish(9, map[string]string{"b": "b9"})
	f.must(rollout.Action{Kind: rollout.Resume})
	f.until("epoch 9 is done", 20*time.Hour, func() bool { return f.running(9) == 40 && f.r().Phase == manifest.PhaseDone })
	// A revert: the same, by itself.
	f = begin()
	f.publish(9, map[string]string{"a": "a7"})
	f.until("epoch 9 is done", 20*time.Hour, func() bool { return f.running(9) == 40 && f.r().Phase == manifest.PhaseDone })
}

// What is not the release's doing holds a rollout, and does not take it back.
func TestB111NotOurs(t *testing.T) {
	t.Run("the source is down", func(t *testing.T) {
		f := newFleet(t, 20, gated(standard(), "errors"))
		f.gates = func(q gate.Question) []manifest.GateVerdict {
			return say1(q, manifest.OutcomeInconclusive, "prometheus at http://127.0.0.1:9090 does not answer")
		}
		f.publish(8, map[string]string{"a": "a8"})
		f.pass(5 * time.Hour)
		f.stands(manifest.PhasePaused, 1)
		if !strings.Contains(f.r().Pause.Why, "does not answer") || f.running(8) != 1 {
			t.Errorf("%+v", f.r().Pause)
		}
	})
	for _, when := range []manifest.Phase{manifest.PhaseAdvancing, manifest.PhaseBaking, manifest.PhaseDone} {
		t.Run(fmt.Sprint("nobody is heard while ", when), func(t *testing.T) {
			f := newFleet(t, 40, standard(bakeless(10, 100)...))
			f.publish(8, map[string]string{"a": "a8"})
			for range 1000 {
				if f.r().Target == 8 && f.r().Phase == when {
					break
				}
				f.now = f.now.Add(20 * time.Second)
				if f.next(); f.r().Phase != when {
					f.apply()
				}
			}
			for _, h := range f.hosts {
				h.Verdict, h.Silent = verdict.Silent, f.now.Add(3*time.Minute)
			}
			told := f.told(8)
			f.pass(6 * time.Hour)
			if r := f.r(); r.Phase == manifest.PhaseRollingBack || r.Phase == manifest.PhaseHalted || f.told(8) != told {
				t.Errorf("%s, %d told after %d: %s", r.Phase, f.told(8), told, r.Why)
			}
		})
	}
	t.Run("an agent that was stopped", func(t *testing.T) {
		f := newFleet(t, 20, standard(bakeless(50, 100)...))
		f.publish(8, map[string]string{"a": "a8"})
		f.until("it bakes", time.Hour, func() bool { return f.r().Phase == manifest.PhaseBaking })
		for _, h := range f.hosts {
			if h.Running == 8 {
				h.Verdict, h.Silent, h.Left = verdict.Silent, f.now, true
				break
			}
		}
		f.until("it is done", 5*time.Hour, func() bool { return f.r().Phase == manifest.PhaseDone && f.r().Target == 8 })
	})
}

// A failure while a person is waited for is a failure. Who approves then is told so.
func TestB113FailureWhileWaiting(t *testing.T) {
	for name, wait := range map[string]func(f *fleet){
		"for approval": func(f *fleet) {
			f.until("it waits", time.Hour, func() bool { return f.r().Phase == manifest.PhaseAwaitingApproval })
		},
		"paused": func(f *fleet) {
			f.until("it bakes", time.Hour, func() bool { return f.r().Phase == manifest.PhaseBaking })
			f.must(rollout.Action{Kind: rollout.Pause, Why: "lunch"})
		},
	} {
		for fault, set := range map[string]func(f *fleet){
			"a gate": func(f *fleet) { f.gates = failing(8, func(gate.Question) bool { return true }) },
			"hosts": func(f *fleet) {
				for i, h := range f.hosts {
					if h.Running == 8 {
						f.ill(verdict.Failed, 8, i)
					}
				}
			},
		} {
			t.Run(name+" "+fault, func(t *testing.T) {
				p := gated(standard(bakeless(50, 100)...), "errors")
				p.ApproveBefore = []int{2}
				f := newFleet(t, 20, p)
				f.publish(8, map[string]string{"a": "a8"})
				wait(f)
				f.pass(3 * time.Hour)
				if f.told(8) != 10 {
					t.Fatalf("%d told while it waits", f.told(8))
				}
				set(f)
				f.until("it is back", time.Hour, func() bool { return f.r().Phase == manifest.PhaseHalted })
				_, changed, err := f.act(rollout.Action{Kind: rollout.Approve, Wave: 2})
				if changed || !isUnfit(err) || !strings.Contains(err.Error(), "epoch 8 is halted since") {
					t.Errorf("%t, %v", changed, err)
				}
				f.pass(time.Hour)
				if f.told(8) != 0 {
					t.Error("the approval was taken after all")
				}
			})
		}
	}
}

// An observer that has just begun knows few hosts. Those that it has not heard of may run the target: nobody of them is sent back with the others at once, and nobody is told.
func TestNobodyMovesUnheard(t *testing.T) {
	f := newFleet(t, 40, gated(standard(bakeless(50, 100)...), "errors"))
	f.publish(8, map[string]string{"a": "a8"})
	f.to(2, manifest.PhaseBaking)
	f.gates = failing(8, func(gate.Question) bool { return true })
	f.settling = "the collector was started just now"
	heard := map[string]bool{}
	for i, h := range f.hosts {
		if heard[h.Name] = i%8 == 0; !heard[h.Name] {
			h.Verdict = verdict.Missing
		}
	}
	for range 60 {
		f.now = f.now.Add(time.Second)
		f.next()
		f.apply()
	}
	if f.r().Phase != manifest.PhaseRollingBack {
		t.Fatalf("%+v", f.r())
	}
	for _, h := range f.hosts {
		if !heard[h.Name] && f.at(f.view, h) == 7 {
			t.Errorf("%s was sent back unheard", h.Name)
		}
		h.Verdict = verdict.Confirmed
	}
	f.settling = ""
	f.until("it is back", time.Hour, func() bool { return f.r().Phase == manifest.PhaseHalted })
	f.back("gate errors")
}

// What such an observer knows is no reason to go on either: not for a wave to be confirmed, a bake to pass, or a watch to end.
func TestNothingPassesUnheard(t *testing.T) {
	match := manifest.Wave{Match: map[string]string{"zone": "a"}, Bake: "1m"}
	for _, stands := range []manifest.Phase{manifest.PhaseAdvancing, manifest.PhaseBaking, manifest.PhaseDone} {
		f := newFleet(t, 40, standard(match, manifest.Wave{Percent: 50, Bake: "1m"}, manifest.Wave{Percent: 100, Bake: "1m"}))
		for _, h := range f.hosts[:20] {
			h.Labels = map[string]string{"zone": "a"}
		}
		f.publish(8, map[string]string{"a": "a8"})
		for range 1000 {
			if f.r().Target == 8 && f.r().Phase == stands {
				break
			}
			f.now = f.now.Add(10 * time.Second)
			f.next()
			f.apply()
		}
		f.settling = "the collector was started just now"
		for i, h := range f.hosts {
			if i != 39 {
				h.Verdict = verdict.Missing
			}
		}
		before := len(f.heads)
		was := *f.r()
		f.pass(50 * time.Minute)
		if r := f.r(); len(f.heads) > before+1 || r.Phase != was.Phase || r.Wave != was.Wave || r.Fallback != was.Fallback {
			t.Errorf("%s: %d orders, %s wave %d: %s", stands, len(f.heads)-before, r.Phase, r.Wave, r.Why)
		}
	}
}
