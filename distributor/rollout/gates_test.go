package rollout_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/rollout"
	"github.com/muster-config/muster/distributor/rollout/gate"
)

// No data is never a pass: after two extensions a person is asked, whatever the reason is.
func TestB101NoDataIsNeverAPass(t *testing.T) {
	for name, gates := range map[string]func(q gate.Question) []manifest.GateVerdict{
		"nobody answers": func(gate.Question) []manifest.GateVerdict { return nil },
		"nothing was heard": func(q gate.Question) []manifest.GateVerdict {
			return say1(q, manifest.OutcomeInconclusive, "no samples")
		},
		"of another wave only": func(q gate.Question) []manifest.GateVerdict {
			q.Wave += 7
			return say1(q, manifest.OutcomePass, "well")
		},
		"one of two": func(q gate.Question) []manifest.GateVerdict {
			list := say1(q, manifest.OutcomePass, "well")
			list[0].Outcome = manifest.OutcomeInconclusive
			return list
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFleet(t, 20, gated(standard(), "errors", "latency"))
			f.gates = gates
			f.publish(8, map[string]string{"a": "a8"})
			f.until("it bakes", time.Hour, func() bool { return f.r().Phase == manifest.PhaseBaking })
			f.pass(29 * time.Minute)
			f.stands(manifest.PhaseBaking, 1)
			if f.r().Extended != 2 {
				t.Errorf("extended %d times", f.r().Extended)
			}
			f.pass(2 * time.Minute)
			f.stands(manifest.PhasePaused, 1)
			if p := f.r().Pause; p == nil || p.By != rollout.Muster || !strings.Contains(p.Why, "gate errors: ") || f.r().Was != manifest.PhaseBaking {
				t.Errorf("%+v", p)
			}
			if len(f.r().Verdicts) != 2 || f.r().Verdicts[0].Gate != "errors" {
				t.Errorf("the verdicts are not kept: %+v", f.r().Verdicts)
			}
			f.pass(48 * time.Hour)
			if f.told(8) != 1 {
				t.Errorf("%d hosts are told", f.told(8))
			}
		})
	}
}

// Traffic that ends half way does not pass either.
func TestB101TrafficEnds(t *testing.T) {
	f := newFleet(t, 20, gated(standard(), "errors"))
	f.publish(8, map[string]string{"a": "a8"})
	good := now.Add(5 * time.Minute)
	f.gates = func(q gate.Question) []manifest.GateVerdict {
		if q.Now.Before(good) {
			return say1(q, manifest.OutcomePass, "well")
		}
		return say1(q, manifest.OutcomeInconclusive, "2 samples, at least 20 are needed")
	}
	f.pass(time.Hour)
	f.stands(manifest.PhasePaused, 1)
}

// A gate has to hold for the whole of a bake; the bake's time counts from when the wave was confirmed.
func TestBake(t *testing.T) {
	f := newFleet(t, 20, gated(standard(), "errors"))
	f.publish(8, map[string]string{"a": "a8"})
	f.until("it bakes", time.Hour, func() bool { return f.r().Phase == manifest.PhaseBaking })
	since := f.r().Since
	f.pass(9 * time.Minute)
	f.stands(manifest.PhaseBaking, 1)
	if !f.r().Since.Equal(since) {
		t.Error("the bake's begin moved")
	}
	f.pass(time.Minute)
	f.stands(manifest.PhaseBaking, 2) // told and confirmed at once, in this fleet
	if v := f.r().Verdicts; len(v) != 0 {
		t.Errorf("verdicts of the wave before: %v", v)
	}
	var kept bool
	for _, v := range f.heads {
		r := v.Manifest.Rollout
		kept = kept || r.Wave == 2 && r.Phase == manifest.PhaseAdvancing && len(r.Verdicts) == 1 && r.Verdicts[0].Wave == 1 && len(r.Verdicts[0].Samples) == 1
	}
	if !kept {
		t.Error("what the next wave rests on is not kept with it")
	}
	for _, q := range f.asked {
		if q.Epoch == 8 && q.Wave == 1 && q.Bake != 10*time.Minute || q.Wave == 2 && q.Bake != 30*time.Minute || q.Baseline != 7 {
			t.Fatalf("%+v", q)
		}
		if n := len(q.Canary) + len(q.Control); q.Wave > 0 && n != 20 {
			t.Fatalf("%d hosts: %+v", n, q)
		}
	}
}

// Data that comes late is in time.
func TestBakeIsExtended(t *testing.T) {
	f := newFleet(t, 20, gated(standard(), "errors"))
	f.publish(8, map[string]string{"a": "a8"})
	f.until("it bakes", time.Hour, func() bool { return f.r().Phase == manifest.PhaseBaking })
	later := f.now.Add(13 * time.Minute)
	f.gates = func(q gate.Question) []manifest.GateVerdict {
		if q.Now.Before(later) {
			return say1(q, manifest.OutcomeInconclusive, "no samples")
		}
		return say1(q, manifest.OutcomePass, "well")
	}
	f.pass(12 * time.Minute)
	f.stands(manifest.PhaseBaking, 1)
	if r := f.r(); r.Extended != 1 || !strings.Contains(r.Why, "bakes 10m0s longer: gate errors: no samples") || len(r.Verdicts) != 1 {
		t.Errorf("%+v", r)
	}
	f.pass(time.Minute)
	f.stands(manifest.PhaseBaking, 2)
	if f.r().Extended != 0 {
		t.Error("extensions of the wave before")
	}
}

func TestB107ResumePassesOverAGateOnce(t *testing.T) {
	f := newFleet(t, 20, gated(standard(), "errors", "latency"))
	f.gates = func(q gate.Question) []manifest.GateVerdict {
		list := say1(q, manifest.OutcomePass, "well")
		list[0].Outcome, list[0].Why = manifest.OutcomeInconclusive, "no samples"
		return list
	}
	f.publish(8, map[string]string{"a": "a8"})
	f.until("it is held", time.Hour, func() bool { return f.r().Phase == manifest.PhasePaused })
	if said := f.must(rollout.Action{Kind: rollout.Resume, Why: "checked by hand"}); said != "epoch 8 resumed at wave 1 of 3 (5%), passing over what was inconclusive there" {
		t.Error(said)
	}
	if !slices.Equal(f.r().Skipped, []string{"errors"}) {
		t.Errorf("%v", f.r().Skipped)
	}
	f.pass(2 * time.Minute)
	f.stands(manifest.PhaseBaking, 2)
	if len(f.r().Skipped) != 0 {
		t.Error("it is passed over in the next wave as well")
	}
	// Two releases wait behind it, and nobody comes for a day.
	f.until("it is held again", 2*time.Hour, func() bool { return f.r().Phase == manifest.PhasePaused })
	f.publish(9, map[string]string{"b": "b9"})
	f.publish(10, map[string]string{"b": "b10"})
	f.pass(24 * time.Hour)
	f.stands(manifest.PhasePaused, 2)
	if f.told(8) != 5 || f.told(7) != 15 || f.r().Pause.Why != "wave 2 of 3 (25%) of epoch 8: gate errors: no samples" {
		t.Errorf("%d, %+v", f.told(8), f.r().Pause)
	}
	// What fails is never passed over.
	f.must(rollout.Action{Kind: rollout.Resume})
	f.gates = func(q gate.Question) []manifest.GateVerdict { return say1(q, manifest.OutcomeFail, "3%, at most 1%") }
	f.pass(time.Minute)
	f.stands(manifest.PhaseHalted, 2)
}

// A gate that can never say anything keeps a rollout from beginning. A newer release may repair it.
func TestB114BrokenGate(t *testing.T) {
	f := newFleet(t, 20, gated(standard(), "errors"))
	broken := func(q gate.Question) (list []manifest.GateVerdict) {
		for _, v := range say1(q, manifest.OutcomePass, "well") {
			if g := q.Gates[v.Gate]; strings.HasPrefix(g.Prometheus, "errors{") {
				v.Outcome, v.Why = manifest.OutcomeBroken, "parse error at char 7"
			}
			list = append(list, v)
		}
		return list
	}
	f.gates = broken
	f.publish(8, map[string]string{"a": "a8"})
	f.settle()
	f.stands(manifest.PhasePaused, 0)
	if r := f.r(); r.Was != manifest.PhaseDone || r.Target != 7 || f.told(8) != 0 || r.Pause.Why != "epoch 8 does not begin: gate errors: parse error at char 7" {
		t.Errorf("%+v", r)
	}
	writes := len(f.heads)
	f.pass(30 * time.Minute)
	if len(f.heads) != writes {
		t.Errorf("%d more orders say the same", len(f.heads)-writes)
	}
	// A minute later somebody publishes a gate that can be read; nothing waits for anything.
	fixed := gated(standard(), "errors")
	fixed.Gates["errors"] = manifest.Gate{Prometheus: "rate(errors[5m])", Max: fixed.Gates["errors"].Max, Every: "30s", Fails: 1, NoData: "wait"}
	fixed.Waves = []manifest.Wave{{Percent: 100, Bake: "0s"}}
	f.policies = map[string]manifest.RolloutPolicy{"standard": fixed}
	f.publish(9, map[string]string{"a": "a9"})
	f.pass(2 * time.Minute)
	if r := f.r(); r.Target != 9 || r.Phase != manifest.PhaseBaking || len(r.Policy.Waves) != 3 || r.Pause != nil {
		t.Errorf("%+v", r)
	}
}

// A person may pass over a broken gate, once a wave.
func TestBrokenGateIsPassedOver(t *testing.T) {
	f := newFleet(t, 20, gated(standard(), "errors"))
	f.gates = func(q gate.Question) []manifest.GateVerdict { return say1(q, manifest.OutcomeBroken, "parse error") }
	f.publish(8, map[string]string{"a": "a8"})
	f.settle()
	f.must(rollout.Action{Kind: rollout.Resume})
	f.pass(12 * time.Minute)
	f.stands(manifest.PhasePaused, 2)
	if f.told(8) > 5 || f.r().Was != manifest.PhaseAdvancing && f.r().Was != manifest.PhaseBaking {
		t.Errorf("%d told, %+v", f.told(8), f.r())
	}
}

// The first word of the gates is waited for before anything moves, and not for long.
func TestGatesAreAskedFirst(t *testing.T) {
	f := newFleet(t, 20, gated(standard(), "errors"))
	f.gates = func(q gate.Question) []manifest.GateVerdict {
		return say1(q, manifest.OutcomeInconclusive, "not heard yet")
	}
	f.publish(8, map[string]string{"a": "a8"})
	f.created = f.now
	if changed, err := f.try(); changed || !isWaiting(err) || !strings.Contains(err.Error(), "its gates are asked for the first time") {
		t.Errorf("%t, %v", changed, err)
	}
	f.now = f.now.Add(31 * time.Second)
	if !f.next() {
		t.Error("it waits for gates that may never say anything")
	}
}

// A rollout that was resumed, or a newer release, begins its counts anew.
func TestB102GatesStartAnew(t *testing.T) {
	f := newFleet(t, 20, gated(standard(), "errors"))
	f.publish(8, map[string]string{"a": "a8"})
	f.pass(5 * time.Minute)
	f.must(rollout.Action{Kind: rollout.Abort, Why: "no"})
	f.pass(10 * time.Minute)
	f.must(rollout.Action{Kind: rollout.Resume})
	f.asked = nil
	again := f.now
	f.pass(5 * time.Minute)
	f.stands(manifest.PhaseBaking, 1)
	for _, q := range f.asked {
		if q.From.Before(again) {
			t.Fatalf("judged from before it began again: %+v", q)
		}
	}
}
