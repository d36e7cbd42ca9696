package rollout_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/rollout"
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
