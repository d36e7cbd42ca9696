package rollout_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/rollout"
	"github.com/muster-config/muster/distributor/rollout/gate"
)

// at is a fleet whose rollout of epoch 8 stands somewhere.
func at(t *testing.T, where string) *fleet {
	p := gated(standard(bakeless(10, 50, 100)...), "errors")
	p.ApproveBefore = []int{2}
	f := newFleet(t, 20, p)
	if where == "at rest" {
		return f
	}
	f.publish(8, map[string]string{"a": "a8"})
	switch where {
	case "advancing":
		f.next()
	case "baking":
		f.to(1, manifest.PhaseBaking)
	case "awaiting":
		f.to(2, manifest.PhaseAwaitingApproval)
	case "paused":
		f.to(1, manifest.PhaseBaking)
		f.must(rollout.Action{Kind: rollout.Pause, By: "ben", Why: "lunch"})
	case "held":
		f.gates = func(q gate.Question) []manifest.GateVerdict {
			return say1(q, manifest.OutcomeInconclusive, "no samples")
		}
		f.to(1, manifest.PhasePaused)
	case "rolling back":
		f.to(2, manifest.PhaseAwaitingApproval)
		f.must(rollout.Action{Kind: rollout.Abort, By: "ben", Why: "wrong"})
	case "halted":
		f.to(1, manifest.PhaseBaking)
		f.gates = failing(8, func(gate.Question) bool { return true })
		f.until("halted", time.Hour, func() bool { return f.r().Phase == manifest.PhaseHalted })
	case "watched", "done":
		f.to(2, manifest.PhaseAwaitingApproval)
		f.must(rollout.Action{Kind: rollout.Approve})
		f.done(8)
		if where == "done" {
			f.pass(time.Hour)
		}
	}
	return f
}

// What each action does wherever the rollout stands: "!" refuses, "=" says that it is so already. Whatever changed something changes nothing the second time.
func TestAct(t *testing.T) {
	until := now.Add(100 * time.Hour)
	for where, wants := range map[string]map[rollout.ActionKind]string{
		"at rest": {
			rollout.Pause:     "!epoch 7 is done; a pause stops a rollout under way, `muster freeze prod --until 48h --reason …` stops those to come",
			rollout.Resume:    "=nothing is paused or halted: epoch 7 is done",
			rollout.Approve:   "!epoch 7 is done",
			rollout.Abort:     "!nothing is under way: epoch 7 is done",
			rollout.Supersede: "!there is no newer release for it than epoch 7",
			rollout.Refresh:   "the order is signed anew, and good for another 24h0m0s",
			rollout.Freeze:    "frozen until 2026-12-04T16:00:00Z: nothing moves forward, going back does",
			rollout.Unfreeze:  "=is not frozen",
		},
		"advancing": {
			rollout.Pause:     "epoch 8 paused at wave 1 of 3 (10%)",
			rollout.Resume:    "=nothing is paused or halted: epoch 8 is advancing wave 1 of 3 (10%)",
			rollout.Approve:   "!no wave waits for approval: epoch 8 is advancing wave 1 of 3 (10%); --wave N approves one ahead",
			rollout.Abort:     "epoch 8 aborted, hosts go back to epoch 7",
			rollout.Supersede: "!there is no newer release for it than epoch 8",
		},
		"baking": {
			rollout.Pause: "epoch 8 paused at wave 1 of 3 (10%)",
			rollout.Abort: "epoch 8 aborted, hosts go back to epoch 7",
		},
		"awaiting": {
			rollout.Pause:   "epoch 8 paused at wave 2 of 3 (50%)",
			rollout.Resume:  "=nothing is paused or halted: epoch 8 waits for the approval of wave 2 of 3 (50%)",
			rollout.Approve: "wave 2 of epoch 8 approved",
			rollout.Abort:   "epoch 8 aborted, hosts go back to epoch 7",
		},
		"paused": {
			rollout.Pause:   "=is paused already, by ben since 2026-11-30T12:01:00Z: lunch",
			rollout.Resume:  "epoch 8 resumed at wave 1 of 3 (10%)",
			rollout.Approve: "!no wave waits for approval: epoch 8 is paused at wave 1 of 3 (10%); --wave N approves one ahead",
			rollout.Abort:   "epoch 8 aborted, hosts go back to epoch 7",
		},
		"held": {
			rollout.Resume: "epoch 8 resumed at wave 1 of 3 (10%), passing over what was inconclusive there",
			rollout.Abort:  "epoch 8 aborted, hosts go back to epoch 7",
		},
		"rolling back": {
			rollout.Pause:     "!epoch 8 goes back to epoch 7 since 2026-11-30T12:02:00Z: epoch 8 aborted, hosts go back to epoch 7 by ben: wrong; a pause stops a rollout under way, `muster freeze prod --until 48h --reason …` stops those to come",
			rollout.Resume:    "!epoch 8 goes back to epoch 7 since 2026-11-30T12:02:00Z: epoch 8 aborted, hosts go back to epoch 7 by ben: wrong; resume it when it is there",
			rollout.Approve:   "!epoch 8 goes back to epoch 7",
			rollout.Abort:     "=epoch 8 goes back already: epoch 8 goes back to epoch 7",
			rollout.Supersede: "!epoch 8 goes back to epoch 7",
		},
		"halted": {
			rollout.Pause:     "!epoch 8 is halted since",
			rollout.Resume:    "the halt of epoch 8 ended, epoch 8 begins from wave 1",
			rollout.Approve:   "!epoch 8 is halted since",
			rollout.Abort:     "=epoch 8 was taken back already: epoch 8 is halted since",
			rollout.Supersede: "!epoch 8 is halted since",
		},
		"watched": {
			rollout.Pause:   "!epoch 8 is done, and watched; a pause",
			rollout.Approve: "!epoch 8 is done, and watched",
			rollout.Abort:   "epoch 8 aborted, hosts go back to epoch 7",
		},
		"done": {rollout.Abort: "!nothing is under way: epoch 8 is done", rollout.Approve: "!epoch 8 is done"},
	} {
		for kind, want := range wants {
			t.Run(fmt.Sprint(kind, " ", where), func(t *testing.T) {
				f := at(t, where)
				f.now = f.now.Add(time.Second)
				a := rollout.Action{Kind: kind, By: "ana", Why: "because"}
				if kind == rollout.Freeze {
					a.Until = &until
				}
				begin := *f.r()
				said, changed, err := f.act(a)
				switch {
				case strings.HasPrefix(want, "!"):
					if changed || !isUnfit(err) || !strings.HasPrefix(err.Error(), fmt.Sprintf("%s cohort prod: does not fit the rollout: %s", kind, want[1:])) {
						t.Errorf("%t, %v", changed, err)
					}
					return
				case strings.HasPrefix(want, "="):
					if changed || err != nil || !strings.HasPrefix(said, want[1:]) {
						t.Errorf("%q, %t, %v", said, changed, err)
					}
					return
				}
				if !changed || err != nil || said != want {
					t.Fatalf("%q, %t, %v; want %q", said, changed, err, want)
				}
				r := f.r()
				if kind != rollout.Refresh && kind != rollout.Freeze && (r.By != "ana" || r.Why != said+" by ana: because") {
					t.Errorf("who and why is not noted: %s, %s", r.By, r.Why)
				}
				if r.Told > begin.Told {
					t.Error("a person's action tells hosts")
				}
				if said, changed, err := f.act(a); changed || err != nil || said == "" {
					t.Errorf("the second time: %q, %t, %v", said, changed, err)
				}
			})
		}
	}
}

func TestActRefuses(t *testing.T) {
	f := at(t, "awaiting")
	soon, past := f.now.Add(time.Hour), f.now.Add(-time.Second)
	for want, a := range map[string]rollout.Action{
		"its target is epoch 8 by now, not 7: look again":                     {Kind: rollout.Approve, Epoch: 7},
		"is the one under way, whose place is taken: that is epoch 8, not 9":  {Kind: rollout.Supersede, Epoch: 9},
		"there is no wave 4, it has 3":                                        {Kind: rollout.Approve, Wave: 4},
		"wave 3 wants no approval: epoch 8 waits":                             {Kind: rollout.Approve, Wave: 3},
		"a freeze needs an end that is to come":                               {Kind: rollout.Freeze, Why: "x"},
		"freeze cohort prod: does not fit the rollout: a freeze needs an end": {Kind: rollout.Freeze, Why: "x", Until: &past},
		"a freeze needs a reason":                                             {Kind: rollout.Freeze, Until: &soon},
		`"dance" is nothing that can be done`:                                 {Kind: "dance"},
	} {
		if _, changed, err := f.act(a); changed || !isUnfit(err) || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %t, %v; want %s", a, changed, err, want)
		}
	}
	if _, _, changed, err := rollout.Act(f.input(f.view), rollout.Action{Kind: rollout.Pause}, f.now); changed || !isUnfit(err) {
		t.Errorf("by nobody: %t, %v", changed, err)
	}
	if _, _, changed, err := rollout.Act(f.input(nil), rollout.Action{Kind: rollout.Pause, By: "ana"}, f.now); changed || !isUnfit(err) || !strings.Contains(err.Error(), "nothing is assigned to cohort prod yet") {
		t.Errorf("no head: %t, %v", changed, err)
	}
	f.must(rollout.Action{Kind: rollout.Approve, Epoch: 8})
	f.to(2, manifest.PhaseBaking)
	if said, changed, err := f.act(rollout.Action{Kind: rollout.Approve}); changed || err != nil || said != "wave 2 of epoch 8 is approved already" {
		t.Errorf("approved and begun: %s, %t, %v", said, changed, err)
	}
	if _, _, err := f.act(rollout.Action{Kind: rollout.Approve, Wave: 1}); !isUnfit(err) {
		t.Errorf("%v", err)
	}
}

// An abort wins and stays, whatever comes at the same time, and however often it is said.
func TestB103Abort(t *testing.T) {
	t.Run("while paused, and the pause ends", func(t *testing.T) {
		f := at(t, "paused")
		end := f.now.Add(10 * time.Minute)
		m := f.view.Manifest
		pause := *m.Rollout.Pause
		pause.Until = &end
		m.Rollout.Pause = &pause
		m.Serial++
		f.put(m)
		serial := f.view.Manifest.Serial
		f.must(rollout.Action{Kind: rollout.Abort, Why: "no"})
		if f.view.Manifest.Serial <= serial {
			t.Error("no new order")
		}
		f.pass(48 * time.Hour)
		f.stands(manifest.PhaseHalted, 1)
		if f.running(7) != 20 || f.told(8) != 0 {
			t.Errorf("%d run 7", f.running(7))
		}
		if said, changed, err := f.act(rollout.Action{Kind: rollout.Abort, Why: "no"}); changed || err != nil || !strings.HasPrefix(said, "epoch 8 was taken back already") {
			t.Errorf("%s, %t, %v", said, changed, err)
		}
	})
	t.Run("a pause that ends by itself", func(t *testing.T) {
		f := at(t, "paused")
		end := f.now.Add(10 * time.Minute)
		m := f.view.Manifest
		pause := *m.Rollout.Pause
		pause.Until = &end
		m.Rollout.Pause = &pause
		m.Serial++
		f.put(m)
		f.pass(9 * time.Minute)
		f.stands(manifest.PhasePaused, 1)
		// Abort in the very second in which it ends: whoever is first, it is aborted.
		f.now = end
		for _, first := range []bool{true, false} {
			g := *f
			if first {
				g.next()
			}
			g.must(rollout.Action{Kind: rollout.Abort, Why: "no"})
			g.pass(time.Hour)
			g.stands(manifest.PhaseHalted, 1)
		}
	})
	t.Run("by an order that lost", func(t *testing.T) {
		// A controller decided on the head before the abort: its order has the abort's serial, and compare-and-swap refuses it. Deciding again it does not move.
		f := at(t, "baking")
		f.must(rollout.Action{Kind: rollout.Abort, Why: "no"})
		f.pass(10 * time.Hour)
		if f.told(8) != 0 || f.r().Halts[0].By != "ana" || f.r().Halts[0].Why != "aborted: no" {
			t.Errorf("%+v", f.r())
		}
	})
}
