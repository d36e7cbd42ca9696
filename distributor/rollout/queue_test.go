package rollout_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/rollout"
	"github.com/muster-config/muster/distributor/rollout/gate"
	"github.com/muster-config/muster/distributor/verdict"
)

func isUnfit(err error) bool { return errors.Is(err, rollout.ErrUnfit) }

func (f *fleet) to(wave int, phase manifest.Phase) {
	f.t.Helper()
	f.until(fmt.Sprintf("%s wave %d", phase, wave), 20*time.Hour, func() bool { return f.r().Wave == wave && f.r().Phase == phase })
}

// done waits until an epoch is everywhere.
func (f *fleet) done(epoch uint64) {
	f.t.Helper()
	f.until(fmt.Sprintf("epoch %d is everywhere", epoch), 20*time.Hour, func() bool {
		return f.r().Target == epoch && f.r().Phase == manifest.PhaseDone && f.running(epoch) == len(f.hosts)
	})
}

func TestB102NewReleaseWhileOneIsUnderWay(t *testing.T) {
	begin := func(t *testing.T) *fleet {
		f := newFleet(t, 20, standard(bakeless(10, 50, 100)...))
		f.publish(8, map[string]string{"a": "a8"})
		f.to(1, manifest.PhaseBaking)
		return f
	}
	t.Run("it waits", func(t *testing.T) {
		f := begin(t)
		f.publish(9, map[string]string{"b": "b9"})
		f.publish(10, map[string]string{"b": "b10"})
		f.done(8)
		if f.told(9)+f.told(10) != 0 {
			t.Error("it did not wait")
		}
		f.done(10) // 9 is carried by it
		for _, v := range f.heads {
			if v.Manifest.Rollout.Target == 9 {
				t.Error("one that was overtaken is rolled out")
			}
		}
	})
	t.Run("it waits for the watch", func(t *testing.T) {
		f := begin(t)
		f.publish(9, map[string]string{"b": "b9"})
		f.done(8)
		if _, err := f.try(); !isWaiting(err) || !strings.Contains(err.Error(), "epoch 9 waits until epoch 8 was watched") {
			t.Errorf("%v", err)
		}
		f.must(rollout.Action{Kind: rollout.Supersede, Why: "urgent"})
		f.settle()
		if f.r().Target != 9 {
			t.Errorf("%+v", f.r())
		}
	})
	t.Run("a revert takes its place", func(t *testing.T) {
		f := begin(t)
		had := map[string]bool{}
		for _, h := range f.hosts {
			had[h.Name] = h.Running == 8
		}
		f.publish(9, map[string]string{"a": "a7"})
		f.settle()
		if f.running(8) != 0 {
			t.Errorf("%d still run 8", f.running(8))
		}
		f.done(9)
		for _, v := range f.heads {
			if len(v.Manifest.Rollout.Halts) > 0 {
				t.Error("a revert is no failure")
			}
		}
	})
	t.Run("a revert of half of it waits", func(t *testing.T) {
		f := newFleet(t, 20, standard(bakeless(10, 50, 100)...))
		f.publish(8, map[string]string{"a": "a8", "b": "b8"})
		f.to(1, manifest.PhaseBaking)
		f.publish(9, map[string]string{"a": "a7"})
		f.settle()
		f.stands(manifest.PhaseBaking, 1)
	})
	t.Run("after a halt, half of it says what is left", func(t *testing.T) {
		f := newFleet(t, 20, standard(bakeless(10, 50, 100)...))
		f.publish(8, map[string]string{"a": "a8", "b": "b8"})
		f.to(1, manifest.PhaseBaking)
		f.must(rollout.Action{Kind: rollout.Abort, Why: "wrong"})
		f.publish(9, map[string]string{"a": "a7", "b": "b8"})
		f.settle()
		f.stands(manifest.PhaseHalted, 1)
		if changed, err := f.try(); changed || err == nil || !strings.Contains(err.Error(), "epoch 9 waits: it does not restore b as epoch 7 had it") {
			t.Errorf("%t, %v", changed, err)
		}
	})
	t.Run("what cannot be read is no revert", func(t *testing.T) {
		f := begin(t)
		f.publish(9, map[string]string{"a": "a7"})
		delete(f.services, 9)
		f.settle()
		f.stands(manifest.PhaseBaking, 1)
	})
	t.Run("a variant that is not restored", func(t *testing.T) {
		f := newFleet(t, 20, standard(bakeless(10, 50, 100)...))
		f.publish(8, map[string]string{"a": "a8", "a@h-001": "special"})
		f.to(1, manifest.PhaseBaking)
		f.publish(9, map[string]string{"a": "a7"})
		f.settle()
		f.stands(manifest.PhaseBaking, 1)
		f.part = 8
		f.publish(10, map[string]string{"a": "a7"})
		delete(f.services[10], "a@h-001") // it runs the cohort's again
		f.done(10)
	})
	t.Run("while it is paused", func(t *testing.T) {
		f := begin(t)
		f.must(rollout.Action{Kind: rollout.Pause, Why: "look"})
		f.publish(9, map[string]string{"b": "b9"})
		f.pass(5 * time.Hour)
		f.stands(manifest.PhasePaused, 1)
		f.publish(10, map[string]string{"a": "a7"})
		f.done(10)
	})
	t.Run("while it is watched", func(t *testing.T) {
		f := begin(t)
		f.done(8)
		f.publish(9, map[string]string{"a": "a7"})
		f.settle()
		if f.running(8) != 0 || f.r().Fallback != 0 {
			t.Errorf("%d still run 8: %+v", f.running(8), f.r())
		}
		f.done(9)
	})
	t.Run("while it goes back", func(t *testing.T) {
		f := begin(t)
		f.to(3, manifest.PhaseBaking)
		f.ill(verdict.Failed, 8, 0, 1, 2, 3)
		for range 100 {
			if f.r().Phase == manifest.PhaseRollingBack {
				break
			}
			f.next()
			f.apply()
		}
		f.publish(9, map[string]string{"b": "b9"})
		f.until("it is halted", time.Hour, func() bool { return f.r().Phase == manifest.PhaseHalted })
		f.pass(time.Hour)
		f.stands(manifest.PhaseHalted, 3)
	})
	t.Run("an operator asks", func(t *testing.T) {
		f := begin(t)
		if _, _, err := f.act(rollout.Action{Kind: rollout.Supersede, Why: "x"}); !isUnfit(err) {
			t.Errorf("there is nothing newer: %v", err)
		}
		f.publish(9, map[string]string{"b": "b9"})
		f.must(rollout.Action{Kind: rollout.Supersede, Why: "urgent"})
		if said, changed, err := f.act(rollout.Action{Kind: rollout.Supersede, Why: "urgent"}); changed || err != nil || !strings.Contains(said, "goes back already") {
			t.Errorf("%s, %t, %v", said, changed, err)
		}
		f.settle()
		if r := f.r(); r.Target != 9 || r.Baseline != 7 || r.Wave != 1 || len(r.Halts) != 0 {
			t.Errorf("%+v", r)
		}
		f.done(9)
	})
}

// A halt ends when the newest release has the baseline's content again for all that failed, or when a person says so; nothing else ends it.
func TestHaltEnds(t *testing.T) {
	begin := func(t *testing.T) *fleet {
		f := newFleet(t, 20, gated(standard(bakeless(10, 100)...), "errors"))
		f.gates = failing(8, func(gate.Question) bool { return true })
		f.publish(8, map[string]string{"a": "a8", "b": "b8"})
		f.until("it is halted", time.Hour, func() bool { return f.r().Phase == manifest.PhaseHalted })
		return f
	}
	t.Run("by nothing else", func(t *testing.T) {
		f := begin(t)
		f.publish(9, map[string]string{"c": "c9"})
		f.publish(10, map[string]string{"a": "a7"}) // b is as it was
		f.pass(48 * time.Hour)
		f.stands(manifest.PhaseHalted, 1)
		if _, err := f.try(); !isWaiting(err) || !strings.Contains(err.Error(), "halted by muster") || !strings.Contains(err.Error(), "git revert") {
			t.Errorf("%v", err)
		}
	})
	t.Run("by a revert", func(t *testing.T) {
		f := begin(t)
		f.publish(9, map[string]string{"a": "a7", "b": "b7", "c": "c9"})
		f.settle()
		if r := f.r(); r.Target != 9 || len(r.Halts) != 0 || r.Wave != 1 {
			t.Errorf("%+v", r)
		}
		f.done(9)
	})
	t.Run("by a resume", func(t *testing.T) {
		f := begin(t)
		f.gates = nil
		f.must(rollout.Action{Kind: rollout.Resume, Why: "it was the network"})
		f.settle()
		f.stands(manifest.PhaseBaking, 1)
		f.done(8)
	})
	t.Run("by a resume, with a fix", func(t *testing.T) {
		f := begin(t)
		f.publish(9, map[string]string{"a": "a9"})
		f.pass(time.Hour)
		f.stands(manifest.PhaseHalted, 1)
		f.must(rollout.Action{Kind: rollout.Resume, Why: "epoch 9 corrects it"})
		f.settle()
		if f.r().Target != 9 {
			t.Errorf("%+v", f.r())
		}
	})
}

// A health check that can never pass holds up nobody but its own release: its fix, pushed a minute later, comes as soon as the hosts are back.
func TestB114FixBehindABrokenCheck(t *testing.T) {
	f := newFleet(t, 20, standard(bakeless(10, 100)...))
	f.ill(verdict.Lagging, 8) // they wait for a port on which nobody listens
	f.publish(8, map[string]string{"a": "a8"})
	f.pass(time.Minute)
	if f.told(8) == 0 {
		t.Fatal("it did not begin")
	}
	f.publish(9, map[string]string{"a": "a7"})
	f.pass(2 * time.Minute)
	if f.running(8) != 0 || f.r().Target != 9 {
		t.Errorf("%d still run 8: %+v", f.running(8), f.r())
	}
	f.done(9)
}
