package rollout_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/rollout"
	"github.com/muster-config/muster/distributor/verdict"
)

func TestNextKeepsFresh(t *testing.T) {
	f := newFleet(t, 20, standard())
	f.now = f.now.Add(59 * time.Minute)
	if f.next() {
		t.Error("nothing to do")
	}
	f.now = f.now.Add(time.Minute)
	serial := f.view.Manifest.Serial
	if !f.next() || !f.view.Manifest.FreshUntil.Equal(f.now.Add(24*time.Hour)) || f.view.Manifest.Serial != serial+1 || f.r().Target != 7 {
		t.Errorf("an hour old: %+v", f.view.Manifest)
	}
	// Whatever holds a rollout back, its order is kept fresh.
	f.publish(8, map[string]string{"a": "a8"})
	until := f.now.Add(10 * time.Hour)
	f.must(rollout.Action{Kind: rollout.Freeze, Why: "INC-1", Until: &until})
	if changed, err := f.try(); changed || !errors.Is(err, rollout.ErrStopped) || !strings.Contains(err.Error(), "frozen by ana") {
		t.Errorf("frozen: %t, %v", changed, err)
	}
	f.now = f.now.Add(time.Hour)
	if !f.next() || f.r().Target != 7 || f.told(8) != 0 {
		t.Errorf("frozen, and kept fresh: %+v", f.r())
	}
}

func TestNextRefuses(t *testing.T) {
	f := newFleet(t, 20, standard())
	f.part = 6
	if changed, err := f.try(); changed || !errors.Is(err, rollout.ErrBehind) {
		t.Errorf("back: %t, %v", changed, err)
	}
	f.part = 7
	in := f.input(f.view)
	in.Statement = envelope("another")
	if _, _, err := rollout.Next(standard(), in, f.observed(), f.now); !errors.Is(err, manifest.ErrEquivocation) {
		t.Errorf("one epoch, two contents: %v", err)
	}
	f.publish(8, map[string]string{"a": "a8"})
	seen := f.observed()
	seen.Mark.Serial--
	if _, changed, err := rollout.Next(standard(), f.input(f.view), seen, f.now); changed || !errors.Is(err, rollout.ErrUnjudged) {
		t.Errorf("seen under another head: %t, %v", changed, err)
	}
	in = f.input(f.view)
	delete(in.Release.Cohorts, "prod")
	if _, _, err := rollout.Next(standard(), in, f.observed(), f.now); !errors.Is(err, rollout.ErrNothing) {
		t.Errorf("%v", err)
	}
}

// A rollout runs under the policy of its baseline. A changed one counts from the next rollout on.
func TestPolicyOfTheBaseline(t *testing.T) {
	f := newFleet(t, 20, standard(bakeless(50, 100)...))
	loose := standard(manifest.Wave{Percent: 100, Bake: "0s"})
	f.policies = map[string]manifest.RolloutPolicy{"standard": loose}
	f.publish(8, map[string]string{"a": "a8"})
	f.until("it is under way", time.Hour, func() bool { return f.r().Target == 8 })
	if n := len(f.r().Policy.Waves); n != 2 {
		t.Errorf("a release loosens its own rollout: %d waves", n)
	}
	// While it is under way another release comes with yet another policy: the one of epoch 8 is for what comes after epoch 8.
	f.base = &manifest.Release{Epoch: 8, Policy: manifest.Policy{Cohorts: map[string]manifest.CohortPolicy{"prod": {Rollout: "standard"}}, Rollouts: map[string]manifest.RolloutPolicy{"standard": loose}}}
	f.policies = map[string]manifest.RolloutPolicy{"standard": standard(bakeless(1, 2, 3, 100)...)}
	f.publish(9, map[string]string{"b": "b9"})
	f.until("epoch 9 is under way", 10*time.Hour, func() bool { return f.r().Target == 9 })
	if n := len(f.r().Policy.Waves); n != 1 || f.r().PolicyEpoch != 8 {
		t.Errorf("%d waves, of release %d", n, f.r().PolicyEpoch)
	}
	// A release that changes nothing but the policy is in force at once.
	f.until("it is done", 10*time.Hour, func() bool { return f.r().Phase == manifest.PhaseDone && f.r().Fallback == 0 })
	if n := len(f.r().Policy.Waves); n != 4 {
		t.Errorf("%d waves", n)
	}
}

// A rollout may be over while some hosts still take its release: they count for the next one, which does not come on top of them.
func TestNextCountsThoseOfTheOneBefore(t *testing.T) {
	for _, test := range []struct {
		still  int // of 100 hosts
		as     verdict.Code
		told   int
		reason string
	}{
		{10, verdict.Applying, 0, "a tenth is on its way already"},
		{4, verdict.Applying, 6, "those that are left"},
		{4, verdict.Unknown, 6, "who is not known to have done with it is on its way"},
		{10, verdict.Lagging, 10, "who does not get there waits for nothing but its turn"},
		{10, verdict.RolledBack, 10, "nor who went back"},
	} {
		f := newFleet(t, 100, standard(manifest.Wave{Percent: 100, Bake: "0s"}))
		f.publish(8, map[string]string{"a": "a8"})
		seen := f.observed()
		for i := range test.still {
			seen.Hosts[i].Verdict, seen.Hosts[i].Running = test.as, 6
		}
		m, changed, err := rollout.Next(f.r().Policy, f.input(f.view), seen, f.now)
		told := 0
		for i, h := range f.hosts {
			if res, rerr := manifest.Resolve(&manifest.View{Manifest: m, Statements: []manifest.VerifiedStatement{{Statement: manifest.Statement{Epoch: 7}}, {Statement: manifest.Statement{Epoch: 8}}}}, manifest.Host{Name: h.Name}, f.now); rerr != nil {
				t.Fatal(rerr)
			} else if res.Epoch() == 8 && (i >= test.still || test.as == verdict.Lagging || test.as == verdict.RolledBack) {
				told++ // that is not on its way already
			}
		}
		if err != nil || !changed || told != test.told {
			t.Errorf("%d %s: %d told, %v; want %d: %s", test.still, test.as, told, err, test.told, test.reason)
		}
	}
}

// The last wave is over when as many confirm as the policy asks, and no sooner.
func TestNextEnds(t *testing.T) {
	for open, done := range map[int]bool{3: false, 2: true, 0: true} {
		p := standard(manifest.Wave{Percent: 100, Bake: "0s"})
		p.MinReported, p.MaxInFlight = 0.9, "100%"
		f := newFleet(t, 20, p)
		for i := range open {
			f.hosts[i].stuck = true
		}
		f.publish(8, map[string]string{"a": "a8"})
		f.settle()
		if is := f.r().Phase == manifest.PhaseDone; is != done {
			t.Errorf("%d of 20 open: %+v", open, f.r())
		}
	}
}

// Hosts that only observe, or whose processes are stopped on purpose, hold nothing up and confirm nothing.
func TestHostsThatCannotConfirm(t *testing.T) {
	for _, code := range []verdict.Code{verdict.Observing, verdict.NotRunning} {
		f := newFleet(t, 20, standard(bakeless(50, 100)...))
		for _, h := range f.hosts[:5] {
			h.Verdict = code
		}
		f.publish(8, map[string]string{"a": "a8"})
		f.until(fmt.Sprint("done beside 5 ", code), 10*time.Hour, func() bool { return f.r().Target == 8 && f.r().Phase == manifest.PhaseDone })
		if f.r().Why != "epoch 8 is confirmed by 15 of 15 hosts" {
			t.Error(f.r().Why)
		}
		// None at all that can: a person is asked.
		f = newFleet(t, 20, standard(bakeless(50, 100)...))
		for _, h := range f.hosts {
			h.Verdict = code
		}
		f.publish(8, map[string]string{"a": "a8"})
		f.until("it is held", 10*time.Hour, func() bool { return f.r().Phase == manifest.PhasePaused })
		if !strings.Contains(f.r().Pause.Why, "none of the 10 hosts that were told can confirm") {
			t.Errorf("%+v", f.r().Pause)
		}
		f.must(rollout.Action{Kind: rollout.Resume})
		f.until("a person knows better", 10*time.Hour, func() bool { return f.r().Wave == 2 })
	}
}
