package rollout_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/rollout"
	"github.com/muster-config/muster/distributor/verdict"
)

// rolledOut is a fleet that ran 7, then 8, and is at rest at 9.
func rolledOut(t tester, n int, p manifest.RolloutPolicy) *fleet {
	f := newFleet(t, n, p)
	for _, epoch := range []uint64{8, 9} {
		f.publish(epoch, map[string]string{"a": fmt.Sprint("a", epoch)})
		f.until("rolled out", 100*time.Hour, func() bool { return f.r().Phase == manifest.PhaseDone && f.r().Target == epoch && f.r().Fallback == 0 })
	}
	return f
}

// steps has hosts and controller take single turns, and gives how many hosts were sent to an epoch after each order.
func (f *fleet) steps(epoch uint64, turns int) (sent []int) {
	for range turns {
		changed, err := f.try()
		if err != nil && !isWaiting(err) {
			f.t.Fatalf("%v", err)
		}
		if n := f.told(epoch); changed && (len(sent) == 0 || sent[len(sent)-1] != n) {
			sent = append(sent, n)
		}
		f.apply()
	}
	return sent
}

func TestRollback(t *testing.T) {
	for _, where := range []string{"done", "halted", "watched", "canary"} {
		t.Run(where, func(t *testing.T) {
			p := standard(manifest.Wave{Percent: 50, Bake: "10m"}, manifest.Wave{Percent: 100, Bake: "0s"})
			f := rolledOut(t, 40, p)
			a := rollout.Action{Kind: rollout.Rollback, To: 7, Why: "INC-311"}
			from := uint64(9)
			switch where {
			case "halted":
				f.publish(10, map[string]string{"a": "a10"})
				f.to(1, manifest.PhaseBaking)
				f.must(rollout.Action{Kind: rollout.Abort, By: "ben", Why: "no"})
				f.settle()
				f.stands(manifest.PhaseHalted, 1)
			case "watched":
				f.publish(10, map[string]string{"a": "a10"})
				f.done(10)
				from, a.To = 10, 9
			case "canary":
				f.publish(10, map[string]string{"a": "a10"})
				f.to(1, manifest.PhaseBaking)
				from, a.To = 10, 0
			}
			to := a.To
			if to == 0 {
				to = 9
			}
			// A freeze does not stop it.
			far := f.now.Add(100 * time.Hour)
			f.must(rollout.Action{Kind: rollout.Freeze, Why: "black friday", Until: &far})
			serial, told := f.view.Manifest.Serial, f.told(to)
			said := f.must(a)
			if want := fmt.Sprintf("epoch %d goes back to epoch %d, one host first, then the others, and the cohort is halted", from, to); said != want {
				t.Errorf("%q, want %q", said, want)
			}
			if f.told(to) != told || f.view.Manifest.Serial != serial+1 {
				t.Error("a person's action sends hosts")
			}
			if h := f.r().Halts; h[len(h)-1].By != "ana" || h[len(h)-1].Why != fmt.Sprintf("rolled back to epoch %d: INC-311", to) || h[len(h)-1].Epoch != from || !h[len(h)-1].Since.Equal(f.now) {
				t.Errorf("%+v", h)
			}
			if said, changed, err := f.act(a); changed || err != nil {
				t.Errorf("again: %q, %t, %v", said, changed, err)
			}
			// One host, then no more than four at once.
			sent := f.steps(to, 200)
			if len(sent) < 2 || sent[0] != told+1 || sent[len(sent)-1] != 40 {
				t.Errorf("sent %v", sent)
			}
			for i := 1; i < len(sent); i++ {
				if sent[i]-sent[i-1] > 4 {
					t.Errorf("sent %v", sent)
				}
			}
			if f.r().Phase != manifest.PhaseHalted || f.r().Baseline != to || f.r().Trial || f.running(to) != 40 || len(f.view.Manifest.Assign) != 1 {
				t.Errorf("%+v, %d run %d", f.r(), f.running(to), to)
			}
			// It stays, whatever time passes and is published, until what was taken back is not there any more.
			f.must(rollout.Action{Kind: rollout.Unfreeze, Why: "over"})
			f.publish(11, map[string]string{"b": "b11"})
			f.pass(3 * time.Hour)
			if f.r().Phase != manifest.PhaseHalted || f.running(to) != 40 {
				t.Errorf("%+v", f.r())
			}
			f.publish(12, map[string]string{"a": fmt.Sprint("a", to)})
			f.until("the halt ended", time.Hour, func() bool { return f.r().Phase != manifest.PhaseHalted })
			f.done(12)
		})
	}
}

// What is rolled back goes out again when a person resumes; another person's rollback not by the way.
func TestRollbackResumed(t *testing.T) {
	f := rolledOut(t, 10, standard(bakeless(100)...))
	f.must(rollout.Action{Kind: rollout.Rollback, To: 7, By: "ben", Why: "INC-311"})
	f.settle()
	f.stands(manifest.PhaseHalted, 0)
	if _, changed, err := f.act(rollout.Action{Kind: rollout.Resume, Why: "x"}); changed || !isUnfit(err) ||
		!strings.Contains(err.Error(), "epoch 9 was rolled back to epoch 7: INC-311 by ben at ") || !strings.Contains(err.Error(), "--aborted") {
		t.Errorf("%t, %v", changed, err)
	}
	f.must(rollout.Action{Kind: rollout.Resume, Why: "fixed beside it", Aborted: true})
	f.done(9)
}

// A plain resume does not end what somebody else aborted.
func TestResumeOfAnAbort(t *testing.T) {
	for by, aborted := range map[string]bool{"ana": true, "ben": false} {
		f := at(t, "baking")
		f.must(rollout.Action{Kind: rollout.Abort, By: "ben", Why: "workers starve"})
		f.settle()
		f.stands(manifest.PhaseHalted, 1)
		a := rollout.Action{Kind: rollout.Resume, By: by, Why: "x"}
		if aborted {
			if _, changed, err := f.act(a); changed || !isUnfit(err) || !strings.Contains(err.Error(), "epoch 8 was aborted: workers starve by ben at 2026-") {
				t.Errorf("%t, %v", changed, err)
			}
			a.Aborted = true
		}
		f.must(a)
		if len(f.r().Halts) != 0 {
			t.Errorf("%+v", f.r())
		}
	}
}

func TestRollbackNow(t *testing.T) {
	f := rolledOut(t, 40, standard(manifest.Wave{Percent: 50, Bake: "10m"}, manifest.Wave{Percent: 100, Bake: "0s"}))
	f.publish(10, map[string]string{"a": "a10"})
	f.to(1, manifest.PhaseBaking)
	soon := f.now.Add(time.Hour)
	f.must(rollout.Action{Kind: rollout.Hold, Hosts: []string{"h-001"}, Runs: f.runs(), Why: "x", Until: &soon})
	held := f.host("h-001").Running
	// A third content beside two is too much, but all at once it is one.
	a := rollout.Action{Kind: rollout.Rollback, To: 7, Why: "INC-311"}
	if _, changed, err := f.act(a); changed || !isUnfit(err) || !strings.Contains(err.Error(), "hosts run epoch 10 and epoch 9 now") || !strings.Contains(err.Error(), "--to baseline") || !strings.Contains(err.Error(), "--now") {
		t.Errorf("%t, %v", changed, err)
	}
	a.Now = true
	if said := f.must(a); said != "epoch 10 goes back to epoch 7, all at once (--now), and the cohort is halted" {
		t.Error(said)
	}
	if f.told(7) != 39 || f.r().Phase != manifest.PhaseHalted || f.r().Halts[0].Why != "rolled back to epoch 7, all hosts at once (--now): INC-311" {
		t.Errorf("%d told, %+v", f.told(7), f.r())
	}
	if got := f.at(f.view, f.host("h-001")); got != held {
		t.Errorf("the host on hold is led to %d", got)
	}
	if said, changed, err := f.act(a); changed || err != nil || !strings.HasPrefix(said, "every host is led to epoch 7 already: ") {
		t.Errorf("%q, %t, %v", said, changed, err)
	}
	f.settle()
	if f.running(7) != 39 {
		t.Errorf("%d run 7", f.running(7))
	}
}

func TestRollbackRefuses(t *testing.T) {
	f := rolledOut(t, 10, standard(bakeless(10, 100)...))
	for want, a := range map[string]rollout.Action{
		"a rollback needs a reason":            {To: 7},
		"epoch 11 is newer than epoch 9":       {To: 11, Why: "x"},
		"every host is led to epoch 9 already": {Why: "x"},
		"led to epoch 9 already, and nothing":  {To: 9, Why: "x"},
		"no statement of epoch 5":              {To: 5, Why: "x"},
	} {
		a.Kind = rollout.Rollback
		if _, changed, err := f.act(a); changed || !isUnfit(err) || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %t, %v; want %s", a, changed, err, want)
		}
	}
	first := newFleet(t, 3, standard())
	if _, changed, err := first.act(rollout.Action{Kind: rollout.Rollback, Why: "x"}); changed || !isUnfit(err) {
		t.Errorf("%t, %v", changed, err)
	}
	// While hosts are told, the one under way is none to go back to.
	f.publish(10, map[string]string{"a": "a10"})
	f.next()
	if _, changed, err := f.act(rollout.Action{Kind: rollout.Rollback, To: 10, Why: "x"}); changed || !isUnfit(err) || !strings.Contains(err.Error(), "epoch 10 is the one that it leaves or takes just now") {
		t.Errorf("%t, %v", changed, err)
	}
	// Nobody was told yet: it is halted all the same.
	g := at(t, "at rest")
	p := g.policies["standard"]
	p.ApproveBefore = []int{1}
	g = newFleet(t, 10, p)
	g.publish(8, map[string]string{"a": "a8"})
	g.to(1, manifest.PhaseAwaitingApproval)
	if said := g.must(rollout.Action{Kind: rollout.Rollback, Why: "x"}); !strings.HasPrefix(said, "epoch 8 goes back to epoch 7") {
		t.Error(said)
	}
	g.settle()
	g.stands(manifest.PhaseHalted, 1)
}

// The host that goes first does not take it: no other one is sent, until a person says so. One that is silent is passed over.
func TestRollbackFirstHost(t *testing.T) {
	f := rolledOut(t, 20, standard(bakeless(100)...))
	for _, h := range f.hosts {
		h.bad = func(epoch uint64) verdict.Code {
			if epoch == 8 {
				return verdict.Refused
			}
			return ""
		}
	}
	f.must(rollout.Action{Kind: rollout.Rollback, To: 8, Why: "x"})
	f.pass(3 * time.Hour)
	if f.told(8) != 1 || f.r().Phase != manifest.PhaseRollingBack {
		t.Fatalf("%d told, %+v", f.told(8), f.r())
	}
	if _, err := f.try(); !isWaiting(err) || !strings.Contains(err.Error(), "the host that went first does not take it (h-") || !strings.Contains(err.Error(), "muster rollback prod --to 8 --now") {
		t.Errorf("%v", err)
	}
	f.must(rollout.Action{Kind: rollout.Rollback, To: 8, Why: "x", Now: true})
	if f.told(8) != 20 {
		t.Errorf("%d told", f.told(8))
	}

	g := rolledOut(t, 20, standard(bakeless(100)...))
	g.must(rollout.Action{Kind: rollout.Rollback, To: 8, Why: "x"})
	g.next()
	for _, h := range g.hosts {
		if g.at(g.view, h) == 8 {
			h.Verdict, h.Silent = verdict.Silent, g.now.Add(time.Second)
		}
	}
	g.now = g.now.Add(time.Minute)
	g.settle()
	if g.told(8) != 20 || g.running(8) != 19 {
		t.Errorf("%d told, %d run it", g.told(8), g.running(8))
	}
}

// Overrides stay in force, or are dropped in steps, or at once.
func TestRollbackOverrides(t *testing.T) {
	for _, c := range []struct{ drop, now bool }{{false, false}, {true, false}, {true, true}} {
		f := rolledOut(t, 40, standard(bakeless(100)...))
		f.override("inc-1", 10, 10*time.Hour, f.names()[:20]...)
		a := rollout.Action{Kind: rollout.Rollback, To: 8, Why: "x", DropOverrides: c.drop, Now: c.now}
		said := f.must(a)
		if strings.Contains(said, "override inc-1 is taken from its hosts") != c.drop {
			t.Errorf("%q", said)
		}
		if n := f.overridden("inc-1"); n != 20 && !(c.drop && c.now && n == 0) {
			t.Errorf("%+v: on %d hosts at once", c, n)
		}
		last := 20
		for range 60 {
			f.now = f.now.Add(time.Second)
			if _, err := f.try(); err != nil && !isWaiting(err) {
				t.Fatal(err)
			}
			n := f.overridden("inc-1")
			if !c.now && last-n > 4 {
				t.Errorf("%d under it after %d", n, last)
			}
			last = n
			f.apply()
		}
		want, at8 := 20, 20
		if c.drop {
			want, at8 = 0, 40
		}
		if n := f.overridden("inc-1"); n != want || f.running(8) != at8 || f.r().Phase != manifest.PhaseHalted {
			t.Errorf("%+v: on %d hosts, %d run 8, %s", c, n, f.running(8), f.r().Phase)
		}
		if e := f.r().Endings; c.drop && (len(e) != 1 || e[0].By != "ana" || e[0].Below != "") {
			t.Errorf("%+v", e)
		}
	}
}

// Any number of controllers, hosts that fall silent or refuse, and a person who rolls back wherever things stand: it goes back, within max_in_flight, and never three contents; put checks.
func TestRollbackProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := standard(manifest.Wave{Percent: 30, Bake: "5m"}, manifest.Wave{Percent: 100, Bake: "0s"})
		p.MaxInFlight = rapid.SampledFrom([]string{"10%", "1", "7"}).Draw(t, "in flight")
		n := rapid.IntRange(1, 30).Draw(t, "hosts")
		f := rolledOut(t, n, p)
		f.publish(10, map[string]string{"a": "a10"})
		for range rapid.IntRange(0, 40).Draw(t, "before") {
			f.now = f.now.Add(30 * time.Second)
			f.someSteps(t)
		}
		a := rollout.Action{Kind: rollout.Rollback, To: rapid.SampledFrom([]uint64{0, 0, 7, 8, 9}).Draw(t, "to"), Why: "x"}
		runs := f.told(f.r().Target)
		_, changed, err := f.act(a)
		if err != nil && !isUnfit(err) {
			t.Fatalf("%v", err)
		}
		if !changed {
			return
		}
		to := f.r().Baseline
		var gone []*member
		for _, h := range f.hosts {
			if f.at(f.view, h) != to {
				gone = append(gone, h)
			}
		}
		for range 2000 {
			f.now = f.now.Add(5 * time.Second)
			sent, back := 0, false // so far, and one of them is there
			for _, h := range gone {
				if f.at(f.view, h) == to {
					sent++
					back = back || h.Running == to
				}
			}
			before := f.told(to)
			f.someSteps(t)
			if now := sent + f.told(to) - before; now > 1 && !back && now > sent {
				t.Fatalf("%d hosts are sent, of %d, and none is back", now, runs)
			}
			if f.r().Phase == manifest.PhaseHalted && f.running(to) == n {
				break
			}
		}
		if f.r().Phase != manifest.PhaseHalted || f.running(to) != n {
			t.Fatalf("%d of %d are back at %d: %+v", f.running(to), n, to, f.r())
		}
	})
}

// someSteps is one look of a controller, and some hosts doing what they are told.
func (f *fleet) someSteps(t *rapid.T) {
	if _, err := f.try(); err != nil && !isWaiting(err) {
		t.Fatalf("%v", err)
	}
	for _, h := range f.hosts {
		if rapid.IntRange(0, 2).Draw(t, "applies") > 0 {
			f.applyOne(h)
		}
	}
}
