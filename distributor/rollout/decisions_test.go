package rollout_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/rollout"
	"github.com/muster-config/muster/distributor/rollout/gate"
)

func TestDecisions(t *testing.T) {
	until := now.Add(time.Hour)
	stop := manifest.Stop{By: "ana", Why: "INC-311", Since: now, Until: &until}
	hold := manifest.Stop{By: "ben", Why: "disk", Since: now, Hosts: []string{"db-9"}}
	for name, test := range map[string]struct {
		change func(*manifest.Manifest)
		want   []string
	}{
		"renewed": {func(m *manifest.Manifest) { m.Serial, m.Issued = 5, now.Add(time.Hour) }, nil},
		"to all":  {func(m *manifest.Manifest) { m.Rollout.Target, m.Rollout.By = 8, "muster publish" }, []string{"epoch 8 to all hosts by muster publish"}},
		"another wave": {func(m *manifest.Manifest) {
			m.Rollout.Phase, m.Rollout.Wave, m.Rollout.Policy.Waves = manifest.PhaseAdvancing, 2, make([]manifest.Wave, 3)
		}, []string{"epoch 7: wave 2 of 3"}},
		"another share": {func(m *manifest.Manifest) {
			m.Assign = append([]manifest.Assignment{{Below: "1", Salt: "7", Epoch: 7}}, m.Assign...)
		}, []string{"epoch 7 to all hosts"}},
		"back": {func(m *manifest.Manifest) {
			m.Rollout.Phase, m.Rollout.Baseline, m.Rollout.Why = manifest.PhaseRollingBack, 5, "errors"
		}, []string{"back to epoch 5: errors"}},
		"frozen": {func(m *manifest.Manifest) { m.Rollout.Freezes = []manifest.Stop{stop} }, []string{"frozen by ana until 2026-11-30T13:00:00Z: INC-311"}},
		"paused": {func(m *manifest.Manifest) { m.Rollout.Pause, m.Rollout.Phase = &stop, manifest.PhasePaused }, []string{"paused by ana until 2026-11-30T13:00:00Z: INC-311"}},
		"halted": {func(m *manifest.Manifest) {
			m.Rollout.Halts, m.Rollout.Phase = []manifest.Stop{stop}, manifest.PhaseHalted
		}, []string{"halted by ana until 2026-11-30T13:00:00Z: INC-311"}},
		"held":            {func(m *manifest.Manifest) { m.Rollout.Holds = append(m.Rollout.Holds, hold) }, []string{"held [db-9] by ben: disk"}},
		"a hold ended":    {func(m *manifest.Manifest) { m.Rollout.Holds = m.Rollout.Holds[1:] }, []string{"the hold ended [db-1]: held by ana: no reason given"}},
		"a hold ran out":  {func(m *manifest.Manifest) { m.Rollout.Holds = m.Rollout.Holds[:1] }, nil},
		"an assigned one": {func(m *manifest.Manifest) { m.Assign = m.Assign[1:] }, nil}, // a hold's own assignment
		"two at once":     {func(m *manifest.Manifest) { m.Rollout.Freezes, m.Rollout.Target = []manifest.Stop{stop}, 8 }, []string{"frozen by ana until 2026-11-30T13:00:00Z: INC-311", "epoch 8 to all hosts"}},
	} {
		t.Run(name, func(t *testing.T) {
			before := prev(nil)
			after := prev(test.change)
			after.Manifest.Assign = append([]manifest.Assignment{}, after.Manifest.Assign...)
			var got []string
			for _, d := range rollout.Decisions(before, after) {
				if d.Cohort != "prod" || !d.At.Equal(after.Manifest.Issued) || d.Mark != after.Mark() {
					t.Errorf("%+v", d)
				}
				got = append(got, say(d))
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
	first := prev(func(m *manifest.Manifest) { m.Rollout.Holds, m.Assign = nil, m.Assign[2:] })
	if got := rollout.Decisions(nil, first); len(got) != 1 || say(got[0]) != "epoch 7 to all hosts" {
		t.Errorf("the first head: %+v", got)
	}
}

func TestDecisionsOnOverrides(t *testing.T) {
	o := manifest.VerifiedOverride{Override: manifest.Override{ID: "inc-311", Author: "ana", Reason: "slow", NotAfter: now.Add(time.Hour), Epoch: 8, Patches: []manifest.Patch{{Service: "checkout"}}}}
	ended := o
	ended.Ended = &manifest.OverrideEnd{By: "ben", Reason: "done", At: now}
	none, set, end := prev(nil), prev(nil), prev(nil)
	set.Overrides, end.Overrides = []manifest.VerifiedOverride{o}, []manifest.VerifiedOverride{o, ended}
	for _, test := range []struct {
		from, to *manifest.View
		want     string
	}{
		{none, set, "override inc-311 of checkout by ana until 2026-11-30T13:00:00Z: slow"}, {set, set, ""}, {set, end, "override inc-311 ended by ben: done"}, {end, none, ""},
	} {
		var got []string
		for _, d := range rollout.Decisions(test.from, test.to) {
			got = append(got, say(d))
		}
		if strings.Join(got, "; ") != test.want {
			t.Errorf("%q, want %q", got, test.want)
		}
	}
}

// What is told of a whole rollout: each wave, what a person did, the failure with what it rests on, the way back, the halt and its end.
func TestDecisionsOfARollout(t *testing.T) {
	p := gated(standard(bakeless(10, 50, 100)...), "errors")
	p.ApproveBefore = []int{2}
	f := newFleet(t, 10, p)
	f.publish(8, map[string]string{"a": "a8"})
	f.to(1, manifest.PhaseBaking)
	f.must(rollout.Action{Kind: rollout.Pause, By: "ben", Why: "lunch"})
	f.must(rollout.Action{Kind: rollout.Resume, By: "ben"})
	f.to(2, manifest.PhaseAwaitingApproval)
	f.must(rollout.Action{Kind: rollout.Approve, Why: "CHG-7"})
	f.gates = failing(8, func(q gate.Question) bool { return q.Wave == 2 && len(q.Canary) == 5 })
	f.until("it is halted", time.Hour, func() bool { return f.r().Phase == manifest.PhaseHalted })
	f.gates = nil
	f.publish(9, map[string]string{"a": "a7"})
	f.settle()
	f.must(rollout.Action{Kind: rollout.Abort, Why: "not today"})
	f.settle()
	f.must(rollout.Action{Kind: rollout.Resume})
	f.settle()
	f.to(2, manifest.PhaseAwaitingApproval)
	f.must(rollout.Action{Kind: rollout.Approve})
	f.done(9)
	f.pass(time.Hour)
	until := f.now.Add(time.Hour)
	f.must(rollout.Action{Kind: rollout.Freeze, Why: "INC-9", Until: &until})
	f.now = f.now.Add(time.Second)
	f.must(rollout.Action{Kind: rollout.Refresh})
	f.must(rollout.Action{Kind: rollout.Unfreeze, By: "ben", Why: "over"})
	var got []string
	for i := range f.heads[1:] {
		for _, d := range rollout.Decisions(f.heads[i], f.heads[i+1]) {
			text := say(d)
			for _, v := range d.Verdicts {
				text += fmt.Sprintf(" {%s %s, %d samples}", v.Gate, v.Outcome, len(v.Samples))
			}
			if strings.Contains(d.What, "hosts told") || strings.Contains(d.What, " left") {
				continue // the steps of a wave
			}
			got = append(got, text)
		}
	}
	want := []string{
		"epoch 8: wave 1 of 3 (10%) by controller: epoch 8, wave 1 of 3 (10%): 1 of 10 hosts are told",
		"epoch 8: wave 1 of 3 (10%) bakes by controller: epoch 8, wave 1 of 3 (10%): 1 of 1 hosts confirm it",
		"paused by ben: lunch",
		"the pause ended by ben: paused by ben: lunch",
		"epoch 8: wave 1 of 3 (10%) bakes by ben: epoch 8 resumed at wave 1 of 3 (10%) by ben",
		"epoch 8: wave 2 of 3 (50%) waits for approval by controller: epoch 8: wave 2 of 3 (50%) waits for approval {errors pass, 1 samples}",
		"epoch 8: wave 2 approved by ana: wave 2 of epoch 8 approved by ana: CHG-7",
		"epoch 8: wave 2 of 3 (50%) by controller: epoch 8, wave 2 of 3 (50%): 2 of 10 hosts are told",
		"halted by muster: epoch 8: gate errors: 3% of requests fail, at most 1% may",
		"back to epoch 7 by controller: epoch 8 failed at wave 2 of 3 (50%), back to epoch 7: gate errors: 3% of requests fail, at most 1% may {errors fail, 1 samples}",
		"back at epoch 7, halted by controller: epoch 8 failed at wave 2 of 3 (50%), back to epoch 7: gate errors: 3% of requests fail, at most 1% may",
		"the halt ended by controller: halted by muster: epoch 8: gate errors: 3% of requests fail, at most 1% may",
		"epoch 7 again on all hosts by controller: the halt of epoch 8 is over: epoch 9 takes a back",
		"epoch 9: wave 1 of 3 (10%) by controller: epoch 9, wave 1 of 3 (10%): 1 of 10 hosts are told",
		"epoch 9: wave 1 of 3 (10%) bakes by controller: epoch 9, wave 1 of 3 (10%): 1 of 1 hosts confirm it",
		"halted by ana: aborted: not today",
		"back to epoch 7 by ana: epoch 9 aborted, hosts go back to epoch 7 by ana: not today",
		"back at epoch 7, halted by controller: epoch 9 aborted, hosts go back to epoch 7 by ana: not today",
		"the halt ended by ana: halted by ana: aborted: not today",
		"epoch 7 again on all hosts by ana: the halt of epoch 9 ended, epoch 9 begins from wave 1 by ana",
		"epoch 9: wave 1 of 3 (10%) by controller: epoch 9, wave 1 of 3 (10%): 1 of 10 hosts are told",
		"epoch 9: wave 1 of 3 (10%) bakes by controller: epoch 9, wave 1 of 3 (10%): 1 of 1 hosts confirm it",
		"epoch 9: wave 2 of 3 (50%) waits for approval by controller: epoch 9: wave 2 of 3 (50%) waits for approval {errors pass, 1 samples}",
		"epoch 9: wave 2 approved by ana: wave 2 of epoch 9 approved by ana",
		"epoch 9: wave 2 of 3 (50%) by controller: epoch 9, wave 2 of 3 (50%): 2 of 10 hosts are told",
		"epoch 9: wave 2 of 3 (50%) bakes by controller: epoch 9, wave 2 of 3 (50%): 5 of 5 hosts confirm it",
		"epoch 9: wave 3 of 3 (100%) by controller: epoch 9, wave 3 of 3 (100%): 6 of 10 hosts are told {errors pass, 1 samples}",
		"epoch 9: wave 3 of 3 (100%) bakes by controller: epoch 9, wave 3 of 3 (100%): 10 of 10 hosts confirm it",
		"epoch 9 to all hosts by controller: epoch 9 is confirmed by 10 of 10 hosts {errors pass, 1 samples}",
		"epoch 9 is watched no longer by controller: epoch 9 to all hosts, and well for 30m0s after that {errors pass, 1 samples}",
		"frozen by ana until " + until.Format(time.RFC3339) + ": INC-9",
		"the freeze ended by ben: frozen by ana: INC-9; frozen no longer by ben: over",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func say(d rollout.Decision) string {
	text := d.What
	if len(d.Hosts) > 0 {
		text += " [" + strings.Join(d.Hosts, " ") + "]"
	}
	if d.By != "" {
		text += " by " + d.By
	}
	if d.Until != nil {
		text += " until " + d.Until.Format(time.RFC3339)
	}
	if d.Why != "" {
		text += ": " + d.Why
	}
	return text
}
