package rollout_test

import (
	"cmp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/rollout"
	"github.com/muster-config/muster/distributor/rollout/gate"
	"github.com/muster-config/muster/distributor/verdict"
)

// unasked is what a controller without a Prometheus hears of gates that ask one.
func unasked(q gate.Question) []manifest.GateVerdict {
	return say1(q, manifest.OutcomeInconclusive, gate.CannotAsk+"it asks prometheus, and none was given")
}

// A controller that cannot ask a gate leaves it to another one: it neither pauses the rollout before it begins, nor extends a bake, nor holds it, while the other decides.
func TestBlindController(t *testing.T) {
	f := newFleet(t, 20, gated(standard(manifest.Wave{Percent: 10, Bake: "10m"}, manifest.Wave{Percent: 100, Bake: "10m"}), "errors"))
	f.publish(8, map[string]string{"a": "a8"})
	f.created = f.now
	sees := false
	f.gates = func(q gate.Question) []manifest.GateVerdict {
		if sees {
			return say1(q, manifest.OutcomePass, "well")
		}
		return unasked(q)
	}
	// Both look, the blind one first, until it is done.
	for end := f.now.Add(3 * time.Hour); f.r().Target != 8 || f.r().Phase != manifest.PhaseDone || f.r().Fallback != 0; f.now = f.now.Add(20 * time.Second) {
		if !f.now.Before(end) {
			t.Fatalf("%+v", f.r())
		}
		for _, sees = range []bool{false, true} {
			if _, err := f.try(); err != nil && !isWaiting(err) {
				t.Fatal(err)
			}
			if f.r().Pause != nil || f.r().Extended != 0 {
				t.Fatalf("the blind one decides: %+v", f.r())
			}
		}
		f.apply()
	}
	// Alone it says what it waits for, and pauses the rollout in the end.
	sees = false
	f.publish(9, map[string]string{"a": "a9"})
	f.created = f.now
	if changed, err := f.try(); changed || !isWaiting(err) || !strings.Contains(err.Error(), "gate errors: this controller cannot ask it: it asks prometheus, and none was given; another controller may, and else it is paused at ") {
		t.Errorf("%t, %v", changed, err)
	}
	f.pass(3 * time.Minute)
	if f.r().Phase != manifest.PhasePaused || f.r().Pause.By != rollout.Muster || !strings.Contains(f.r().Pause.Why, "epoch 9 does not begin: gate errors: this controller cannot ask it") {
		t.Errorf("%+v", f.r())
	}
	// When one comes that can, it goes on.
	sees = true
	f.to(1, manifest.PhaseBaking)
	sees = false
	f.pass(11 * time.Minute)
	if f.r().Phase != manifest.PhaseBaking || f.r().Extended != 0 {
		t.Errorf("%+v", f.r())
	}
	f.pass(3 * time.Minute)
	if f.r().Phase != manifest.PhasePaused || !strings.Contains(f.r().Pause.Why, "cannot ask it") {
		t.Errorf("%+v", f.r())
	}
}

// A bake that is shorter than a gate's `every` lasts until the gate had a full look.
func TestShortBake(t *testing.T) {
	p := gated(standard(manifest.Wave{Percent: 10, Bake: "5s"}, manifest.Wave{Percent: 100, Bake: "0s"}), "errors")
	if got := rollout.Bake(&p, 1); got != 30*time.Second {
		t.Errorf("wave 1 bakes %s", got)
	}
	if got := rollout.Bake(&p, 2); got != 0 {
		t.Errorf("wave 2 bakes %s", got)
	}
	f := newFleet(t, 20, p)
	f.publish(8, map[string]string{"a": "a8"})
	f.to(1, manifest.PhaseBaking)
	began := f.r().Since
	for f.r().Phase == manifest.PhaseBaking {
		if q := f.asked[len(f.asked)-1]; q.Wave == 1 && q.Bake != 30*time.Second {
			t.Fatalf("asked for %s", q.Bake)
		}
		f.now = f.now.Add(time.Second)
		f.settle()
	}
	if d := f.now.Sub(began); d < 30*time.Second || f.r().Wave < 2 {
		t.Errorf("over after %s: %+v", d, f.r())
	}
}

// Hosts that wait for their turn of the spread have nothing to undo: on the way back they take no place of those that have.
func TestWaitingHostsGoBack(t *testing.T) {
	p := standard(manifest.Wave{Percent: 50, Bake: "10m"}, manifest.Wave{Percent: 100, Bake: "0s"})
	p.MaxInFlight, p.Spread, p.MinReported = "4", "10m", 0.5
	f := newFleet(t, 20, p)
	f.publish(8, map[string]string{"a": "a8"})
	f.until("10 are told", time.Hour, func() bool { return f.told(8) >= 9 })
	// Four of them wait, so that all places are taken; the others run it.
	waits := 0
	for _, h := range slices.SortedFunc(slices.Values(f.hosts), func(a, b *member) int { return cmp.Compare(manifest.Point("8", b.Name), manifest.Point("8", a.Name)) }) {
		if f.at(f.view, h) == 8 && waits < 4 { // the last on the ring: those before them have something to undo
			h.Running, h.stuck, h.Waits = 7, true, f.now.Add(9*time.Minute)
			waits++
		}
	}
	had := f.told(8)
	f.must(rollout.Action{Kind: rollout.Abort, Why: "x"})
	f.loose = true // those that wait are no place, and fleet counts them
	for range 2 * had {
		if _, err := f.try(); err != nil && !isWaiting(err) {
			t.Fatal(err)
		}
		f.apply()
	}
	if f.told(8) != 0 || f.r().Phase != manifest.PhaseHalted {
		t.Errorf("%d hosts still have it: %+v", f.told(8), f.r())
	}
}

// The way back counts hosts that were never heard: they may run the target too. No step sends more of them than there are places, and none follows within a minute.
func TestBackCountsNeverHeard(t *testing.T) {
	p := standard(manifest.Wave{Percent: 100, Bake: "10m"})
	p.MaxInFlight = "3"
	f := newFleet(t, 40, p)
	for _, h := range f.hosts[:4] {
		h.Verdict = verdict.Missing
	}
	f.publish(8, map[string]string{"a": "a8"})
	f.to(1, manifest.PhaseBaking)
	f.must(rollout.Action{Kind: rollout.Abort, Why: "x"})
	last, unheard := 40, 4
	var sentAt []time.Time // one for each that was never heard
	for range 400 {
		if _, err := f.try(); err != nil && !isWaiting(err) {
			t.Fatal(err)
		}
		f.apply()
		told, missing := 0, 0
		for _, h := range f.hosts {
			if f.at(f.view, h) == 8 {
				told++
				if h.Verdict == verdict.Missing {
					missing++
				}
			}
		}
		perhaps := 0 // were sent less than a minute ago, and nobody knows whether they are there
		for _, at := range sentAt {
			if f.now.Sub(at) < time.Minute {
				perhaps++
			}
		}
		if last-told+perhaps > 3 && last != told {
			t.Fatalf("%d hosts are sent back at once beside %d", last-told, perhaps)
		}
		for range unheard - missing {
			sentAt = append(sentAt, f.now)
		}
		last, unheard = told, missing
		f.now = f.now.Add(5 * time.Second)
	}
	if last != 0 || f.r().Phase != manifest.PhaseHalted || len(sentAt) != 4 {
		t.Errorf("%d hosts still have it: %+v", last, f.r())
	}
}
