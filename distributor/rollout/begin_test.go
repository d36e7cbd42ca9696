package rollout_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/rollout"
	"github.com/muster-config/muster/distributor/rollout/gate"
)

func TestApproval(t *testing.T) {
	p := standard(bakeless(10, 50, 100)...)
	p.ApproveBefore = []int{1, 3}
	f := newFleet(t, 20, p)
	f.publish(8, map[string]string{"a": "a8"})
	f.pass(5 * time.Hour)
	f.stands(manifest.PhaseAwaitingApproval, 1)
	if f.told(8) != 0 || f.r().Why != "epoch 8: wave 1 of 3 (10%) waits for approval" {
		t.Errorf("%d told: %s", f.told(8), f.r().Why)
	}
	if said := f.must(rollout.Action{Kind: rollout.Approve, By: "ben", Why: "CHG-7"}); said != "wave 1 of epoch 8 approved" || f.r().By != "ben" || f.r().Why != "wave 1 of epoch 8 approved by ben: CHG-7" {
		t.Errorf("%s, %+v", said, f.r())
	}
	if said, changed, err := f.act(rollout.Action{Kind: rollout.Approve}); changed || err != nil || said != "wave 1 of epoch 8 is approved already" {
		t.Errorf("%s, %t, %v", said, changed, err)
	}
	f.pass(20 * time.Minute)
	f.stands(manifest.PhaseAwaitingApproval, 3)
	if f.told(8) != 10 {
		t.Errorf("%d told", f.told(8))
	}
	// Paused meanwhile, and resumed: it waits again.
	f.must(rollout.Action{Kind: rollout.Pause})
	f.must(rollout.Action{Kind: rollout.Resume})
	f.pass(time.Hour)
	f.stands(manifest.PhaseAwaitingApproval, 3)
	f.must(rollout.Action{Kind: rollout.Approve, Wave: 3})
	f.done(8)
	// The next release wants its own approvals.
	f.pass(time.Hour)
	f.publish(9, map[string]string{"a": "a9"})
	f.pass(time.Hour)
	f.stands(manifest.PhaseAwaitingApproval, 1)
	// A revert of what nobody has got yet takes its place, and so does an abort.
	f.must(rollout.Action{Kind: rollout.Abort})
	f.settle()
	f.stands(manifest.PhaseHalted, 1)
	if f.told(8) != 20 {
		t.Error("hosts moved")
	}
}

// An approval given ahead counts, and asks nobody again.
func TestApprovalAhead(t *testing.T) {
	p := standard(bakeless(10, 50, 100)...)
	p.ApproveBefore = []int{3}
	f := newFleet(t, 20, p)
	f.publish(8, map[string]string{"a": "a8"})
	f.to(1, manifest.PhaseBaking)
	f.must(rollout.Action{Kind: rollout.Approve, Wave: 3})
	f.done(8)
	for _, v := range f.heads {
		if v.Manifest.Rollout.Phase == manifest.PhaseAwaitingApproval {
			t.Error("it waited")
		}
	}
}

func TestWindows(t *testing.T) {
	p := standard(bakeless(10, 100)...)
	p.Windows = []string{"30-59 14 * * *", "0-29 15 * * *"} // it is 12:00
	f := newFleet(t, 20, p)
	f.publish(8, map[string]string{"a": "a8"})
	if changed, err := f.try(); changed || !isWaiting(err) || !strings.HasSuffix(err.Error(), "epoch 8 waits: wave 1 of 2 (10%) begins in the next window, at 2026-11-30T14:30:00Z") {
		t.Errorf("%t, %v", changed, err)
	}
	f.until("the window opens", 3*time.Hour, func() bool { return f.r().Target == 8 })
	if at := f.now.Format("15:04"); at != "14:30" {
		t.Errorf("it began at %s", at)
	}
	// The second one is missed: what is under way goes on baking, and the next wave begins tomorrow.
	f.gates = nil
	f.must(rollout.Action{Kind: rollout.Pause})
	f.now = f.now.Add(2 * time.Hour)
	f.must(rollout.Action{Kind: rollout.Resume})
	f.pass(20 * time.Hour)
	f.stands(manifest.PhaseBaking, 1)
	f.until("the window opens", 3*time.Hour, func() bool { return f.r().Wave == 2 })
	if at := f.now.Format("02 15:04"); at != "01 14:30" {
		t.Errorf("it went on at %s", at)
	}
	f.now = f.now.Add(5 * time.Hour)
	f.done(8) // a wave that began goes on
}

// A freeze stops everything that goes forward, and nothing that goes back; the time of a wave does not run meanwhile.
func TestFreeze(t *testing.T) {
	f := newFleet(t, 40, gated(standard(bakeless(50, 100)...), "errors"))
	f.publish(8, map[string]string{"a": "a8"})
	f.next()
	f.apply()
	f.next()
	told := f.told(8)
	until := f.now.Add(5 * time.Hour)
	freeze := rollout.Action{Kind: rollout.Freeze, Why: "Black Friday", Until: &until}
	if said := f.must(freeze); said != "frozen until 2026-11-30T17:00:00Z: nothing moves forward, going back does" {
		t.Error(said)
	}
	if said, changed, err := f.act(freeze); changed || err != nil || said != "is frozen like that already" {
		t.Errorf("%s, %t, %v", said, changed, err)
	}
	f.pass(4 * time.Hour)
	if f.told(8) != told || f.r().Phase != manifest.PhaseAdvancing {
		t.Errorf("%d told after %d, %s", f.told(8), told, f.r().Phase)
	}
	f.pass(61 * time.Minute)
	if f.told(8) == told {
		t.Errorf("it does not go on: %+v", f.r())
	}
	until = f.now.Add(5 * time.Hour)
	f.must(rollout.Action{Kind: rollout.Freeze, Why: "INC-2", Until: &until})
	f.gates = failing(8, func(gate.Question) bool { return true })
	f.until("it goes back", time.Hour, func() bool { return f.r().Phase == manifest.PhaseHalted })
	f.back("gate errors")
	if said := f.must(rollout.Action{Kind: rollout.Unfreeze}); said != "frozen no longer" {
		t.Error(said)
	}
	if said, changed, err := f.act(rollout.Action{Kind: rollout.Unfreeze}); changed || err != nil || said != "is not frozen" {
		t.Errorf("%s, %t, %v", said, changed, err)
	}
}

func sibling(cohort string, order int, epoch, baseline uint64, phase manifest.Phase, halts ...manifest.Stop) rollout.Sibling {
	return rollout.Sibling{Cohort: cohort, Order: order, Epoch: epoch, Rollout: manifest.Rollout{Target: epoch, Baseline: baseline, Phase: phase, Halts: halts}}
}

// Cohorts of a lower order go first.
func TestOrder(t *testing.T) {
	f := newFleet(t, 20, standard())
	f.publish(8, map[string]string{"a": "a8"})
	for _, test := range []struct {
		sibling rollout.Sibling
		waits   bool
	}{
		{sibling("staging", 10, 8, 7, manifest.PhaseAdvancing), true},
		{sibling("staging", 10, 8, 7, manifest.PhaseDone), true}, // it has not begun
		{sibling("staging", 10, 8, 8, manifest.PhaseDone), false},
		{sibling("staging", 10, 8, 8, manifest.PhaseRollingBack), true}, // a late failure
		{sibling("staging", 10, 6, 6, manifest.PhaseDone), false},       // it does not carry it
		{sibling("staging", 10, 9, 8, manifest.PhaseAdvancing), false},  // it is at the one after it
		{sibling("staging", 10, 6, 5, manifest.PhasePaused), true},      // what this one carries is still under way there
		{sibling("staging", 10, 0, 0, ""), false},                       // nothing stands there
		{sibling("staging", 10, 8, 0, ""), true},                        // no head yet
		{sibling("prod-us", 100, 8, 7, manifest.PhaseAdvancing), false}, // side by side
		{sibling("late", 200, 8, 7, manifest.PhaseDone), false},
	} {
		f.siblings = []rollout.Sibling{test.sibling}
		_, changed, err := rollout.Next(f.r().Policy, f.input(f.view), f.observed(), f.now)
		if changed == test.waits || test.waits && (!isWaiting(err) || !strings.Contains(err.Error(), "cohort staging goes first (order 10)")) {
			t.Errorf("%+v: %t, %v", test.sibling, changed, err)
		}
	}
}

// A release that failed in one cohort pauses in the others, until that is over or a person passes over it.
func TestSiblings(t *testing.T) {
	halt := manifest.Stop{By: rollout.Muster, Why: "gate errors: 3%", Since: now.Add(-time.Minute), Epoch: 8}
	ill := sibling("prod-us", 100, 8, 7, manifest.PhaseHalted, halt)
	begin := func(p manifest.RolloutPolicy) *fleet {
		f := newFleet(t, 20, p)
		f.publish(8, map[string]string{"a": "a8"})
		f.to(1, manifest.PhaseBaking)
		f.siblings = []rollout.Sibling{ill}
		return f
	}
	f := begin(standard())
	f.pass(5 * time.Hour)
	f.stands(manifest.PhasePaused, 1)
	if p := f.r().Pause; p.By != rollout.Muster || p.Why != "release 8 is halted in cohort prod-us: gate errors: 3%" || p.Halt != "prod-us@2026-11-30T11:59:00Z" {
		t.Errorf("%+v", p)
	}
	// It ends with the halt.
	f.siblings = nil
	f.pass(2 * time.Minute)
	f.stands(manifest.PhaseBaking, 2)
	// A person passes over that one halt; another one pauses it again.
	f = begin(standard())
	f.pass(time.Minute)
	f.must(rollout.Action{Kind: rollout.Resume, Why: "only there"})
	f.pass(10 * time.Minute)
	if !slices.Equal(f.r().Ignored, []string{"prod-us@2026-11-30T11:59:00Z"}) || f.r().Wave == 1 {
		t.Errorf("%+v", f.r())
	}
	second := halt
	second.Since = now
	f.siblings = append(f.siblings, sibling("prod-ap", 100, 8, 7, manifest.PhaseHalted, second))
	f.pass(time.Minute)
	if f.r().Phase != manifest.PhasePaused || !strings.Contains(f.r().Pause.Why, "prod-ap") {
		t.Errorf("%+v", f.r())
	}
	// A person's own pause takes its place, and does not end with it.
	f.must(rollout.Action{Kind: rollout.Pause, Why: "mine"})
	f.siblings = nil
	f.pass(time.Hour)
	if f.r().Phase != manifest.PhasePaused {
		t.Error("a person's pause ended by itself")
	}
	// independent.
	p := standard()
	p.Independent = true
	f = begin(p)
	f.done(8)
	// Another release, or one that does not carry the failed one.
	f = begin(standard())
	other := halt
	other.Epoch = 7
	f.siblings = []rollout.Sibling{sibling("prod-us", 100, 8, 6, manifest.PhaseHalted, other)}
	f.done(8)
	// Before it begins, and with what a later release carries.
	for _, epoch := range []uint64{8, 9} {
		f = newFleet(t, 20, standard())
		f.siblings = []rollout.Sibling{ill}
		f.publish(epoch, map[string]string{"a": fmt.Sprint("a", epoch)})
		f.pass(time.Hour)
		f.stands(manifest.PhasePaused, 0)
		if r := f.r(); r.Target != 7 || r.Was != manifest.PhaseDone || r.Pause.Why != fmt.Sprintf("epoch %d does not begin: release 8 is halted in cohort prod-us: gate errors: 3%%", epoch) {
			t.Errorf("%+v", r)
		}
		writes := len(f.heads)
		if f.pass(30 * time.Minute); len(f.heads) > writes+1 { // it is kept fresh
			t.Error("it is said again and again")
		}
		if epoch == 8 {
			f.must(rollout.Action{Kind: rollout.Resume})
		} else {
			f.siblings = nil
		}
		f.done(epoch)
	}
}
