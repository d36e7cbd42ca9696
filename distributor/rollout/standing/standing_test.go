package standing_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-config/muster/distributor/api"
	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/rollout/standing"
	"github.com/muster-config/muster/distributor/verdict"
)

var now = time.Date(2026, 11, 30, 12, 5, 0, 0, time.UTC)

// input is prod with ten hosts, of which two were told to run epoch 2.
func input(change func(r *manifest.Rollout)) standing.Input {
	var names []string
	for i := range 10 {
		names = append(names, fmt.Sprintf("h-%d", i))
	}
	below, _ := manifest.Threshold("2", names, 2)
	m := manifest.Manifest{
		Cohort: "prod",
		Rollout: manifest.Rollout{
			Target: 2, Baseline: 1, Wave: 1, Phase: manifest.PhaseBaking, Since: now.Add(-5 * time.Minute), By: "muster", Why: "well",
			Policy: manifest.RolloutPolicy{
				Waves: []manifest.Wave{{Percent: 15, Bake: "10m"}, {Count: 5, Bake: "10m"}, {Match: map[string]string{"zone": "a"}, Bake: "0s"}}, ApproveBefore: []int{3}, Timeout: "1h", Watch: "30m",
				Gates: map[string]manifest.Gate{"errors": {Prometheus: "x", Of: "y", Compare: &manifest.GateCompare{Ratio: 1.5}, Every: "30s"}},
			},
		},
		Assign: []manifest.Assignment{{Below: below, Salt: "2", Epoch: 2, Why: "wave 1"}, {Epoch: 1, Why: "baseline"}},
	}
	if change != nil {
		change(&m.Rollout)
	}
	in := standing.Input{Cohort: "prod", Now: now, View: &manifest.View{Manifest: m, Statements: []manifest.VerifiedStatement{{Statement: manifest.Statement{Epoch: 1}}, {Statement: manifest.Statement{Epoch: 2}}}}}
	told := 0
	for _, n := range names {
		h := standing.Host{Name: n, Verdict: verdict.Confirmed, Running: 1}
		if res, err := manifest.Resolve(in.View, manifest.Host{Name: n}, now); err == nil && res.Epoch() == 2 {
			h.Running = 2
			if told++; told == 2 {
				h.Verdict, h.Running, h.Why = verdict.Applying, 1, "swapping"
			}
		}
		in.Hosts = append(in.Hosts, h)
	}
	return in
}

// TestAsks: a ratio below 1 asks for at least so much.
func TestAsks(t *testing.T) {
	for ratio, want := range map[float64]string{1.5: "at most 1.5 times", 1: "at most 1 times", 0.8: "at least 0.8 times"} {
		if got := standing.Asks(manifest.Gate{HTTP: "http://x/$epoch", Compare: &manifest.GateCompare{Ratio: ratio}, Every: "30s"}); got != "http: "+want+" the control's, every 30s" {
			t.Errorf("%v: %s", ratio, got)
		}
	}
}

func TestOf(t *testing.T) {
	r := standing.Of(input(nil))
	if r.Eligible != 10 || r.Told != 2 || r.Confirmed != 1 || !r.Until.Equal(now.Add(5*time.Minute)) {
		t.Errorf("%+v", r)
	}
	var states, takes []string
	var sizes []int
	for _, w := range r.Waves {
		states, takes, sizes = append(states, w.State), append(takes, w.Takes), append(sizes, w.Hosts)
	}
	if diff := cmp.Diff([]string{"now", "next", "next"}, states) + cmp.Diff([]string{"15%", "5 hosts", "zone=a"}, takes) + cmp.Diff([]int{2, 5, 10}, sizes); diff != "" {
		t.Error(diff)
	}
	// Who is not confirmed comes first.
	if in := r.Waves[0].In; len(in) != 2 || in[0].Verdict != verdict.Applying || in[1].Verdict != verdict.Confirmed {
		t.Errorf("%+v", in)
	}
	if g := r.Gates; len(g) != 1 || g[0].Verdict != nil || g[0].Asks != "bad events of all: at most 1.5 times the control's, every 30s" {
		t.Errorf("%+v", g)
	}
	in := input(nil)
	in.Live, in.Gates = true, []manifest.GateVerdict{{Gate: "errors", Wave: 1, Outcome: manifest.OutcomeInconclusive, Why: "no data"}}
	if r := standing.Of(in); !r.Gates[0].Live || r.Waits != "gate errors is inconclusive: no data" {
		t.Errorf("%+v: %s", r.Gates, r.Waits)
	}
	// Without hosts nobody is counted, and what the head says of those told stands.
	in = input(func(r *manifest.Rollout) { r.Told = 7 })
	in.Hosts = nil
	if r := standing.Of(in); r.Told != 7 || r.Eligible != 0 || len(r.Waves[0].In) != 0 {
		t.Errorf("%+v", r)
	}
}

// What it waits for names who, why and the command that ends it.
func TestWaits(t *testing.T) {
	since := now.Add(-2 * time.Hour)
	stop := manifest.Stop{By: "ana", Why: "INC-7", Since: since}
	until := now.Add(time.Hour)
	for name, tt := range map[string]struct {
		change  func(r *manifest.Rollout)
		said    string
		want    string
		overdue bool
		stopped bool
	}{
		"baking":    {func(*manifest.Rollout) {}, "", "the bake is not over", false, false},
		"advancing": {func(r *manifest.Rollout) { r.Phase = manifest.PhaseAdvancing }, "", "1 of 2 hosts that were told have not confirmed: h-", false, false},
		"paused": {func(r *manifest.Rollout) { r.Phase, r.Was, r.Pause = manifest.PhasePaused, manifest.PhaseBaking, &stop }, "",
			"paused at wave 1 of 3 by ana since 2026-11-30T10:05:00Z: INC-7; `muster rollout resume prod --reason …` goes on, `muster rollout abort prod --reason …` goes back", true, true},
		"paused before it begins": {func(r *manifest.Rollout) {
			r.Phase, r.Was, r.Wave, r.Pause = manifest.PhasePaused, manifest.PhaseDone, 0, &stop
		}, "", "paused by ana since 2026-11-30T10:05:00Z: INC-7; `muster rollout resume prod --reason …` goes on", true, true},
		"a broken gate before it begins": {func(r *manifest.Rollout) {
			r.Phase, r.Was, r.Wave, r.Pause = manifest.PhasePaused, manifest.PhaseDone, 0, &stop
			r.Verdicts = []manifest.GateVerdict{{Gate: "errors", Outcome: manifest.OutcomeBroken}}
		}, "", "paused by ana since 2026-11-30T10:05:00Z: INC-7; publish a release that repairs the gate, or `muster rollout resume prod --reason …` begins without it", true, true},
		"held by a gate": {func(r *manifest.Rollout) {
			r.Phase, r.Pause = manifest.PhasePaused, &stop
			r.Verdicts = []manifest.GateVerdict{{Gate: "errors", Outcome: manifest.OutcomeInconclusive}, {Gate: "fine", Outcome: manifest.OutcomePass}}
		}, "", "paused at wave 1 of 3, gate errors by ana", true, true},
		"approval": {func(r *manifest.Rollout) { r.Phase, r.Wave, r.Since = manifest.PhaseAwaitingApproval, 3, now }, "",
			"wave 3 of 3 waits for a person since 2026-11-30T12:05:00Z: `muster rollout approve prod --reason …`", false, true},
		"approved, and the window is shut": {func(r *manifest.Rollout) {
			r.Phase, r.Wave, r.Approved = manifest.PhaseAwaitingApproval, 3, []int{3}
		}, "epoch 2 waits: the next window", "epoch 2 waits: the next window", false, true},
		"rolling back": {func(r *manifest.Rollout) { r.Phase, r.Halts = manifest.PhaseRollingBack, []manifest.Stop{stop} }, "",
			"halted by ana since 2026-11-30T10:05:00Z: INC-7; goes back to epoch 1, 2 hosts are still told to run epoch 2; then git revert and publish what failed, or `muster rollout resume prod --reason …`", false, true},
		"halted": {func(r *manifest.Rollout) { r.Phase, r.Halts = manifest.PhaseHalted, []manifest.Stop{stop} }, "", "halted by ana since", false, true},
		"not reverted": {func(r *manifest.Rollout) {
			r.Phase, r.Halts = manifest.PhaseHalted, []manifest.Stop{{By: "ana", Since: since}}
		}, "halted by ana; x; epoch 9 waits: it does not restore b as epoch 7 had it",
			"halted by ana; x; epoch 9 waits: it does not restore b as epoch 7 had it", false, true},
		"frozen":           {func(r *manifest.Rollout) { stop := stop; stop.Until = &until; r.Freezes = []manifest.Stop{stop} }, "", "frozen by ana since 2026-11-30T10:05:00Z until 2026-11-30T13:05:00Z: INC-7; `muster unfreeze prod --reason …`", false, true},
		"a freeze's end":   {func(r *manifest.Rollout) { stop := stop; stop.Until = &since; r.Freezes = []manifest.Stop{stop} }, "", "the bake is not over", false, false},
		"a later order":    {func(r *manifest.Rollout) { r.Phase = manifest.PhaseDone }, "cohort eu goes first", "cohort eu goes first", false, false},
		"watched":          {func(r *manifest.Rollout) { r.Phase, r.Fallback, r.Since, r.Wave = manifest.PhaseDone, 1, now, 4 }, "", "done, and watched until 2026-11-30T12:35:00Z: a failure until then goes back to epoch 1", false, false},
		"done for good":    {func(r *manifest.Rollout) { r.Phase = manifest.PhaseDone }, "", "", false, false},
		"its time is over": {func(r *manifest.Rollout) { r.Phase, r.Pause = manifest.PhasePaused, nil }, "", "paused at wave 1 of 3 since", false, true},
	} {
		t.Run(name, func(t *testing.T) {
			in := input(tt.change)
			in.Said = tt.said
			r := standing.Of(in)
			if !strings.HasPrefix(r.Waits, tt.want) || tt.want == "" && r.Waits != "" {
				t.Errorf("waits %q\nwant  %q", r.Waits, tt.want)
			}
			if r.Overdue != tt.overdue || standing.Stopped(r) != tt.stopped {
				t.Errorf("overdue %v, stopped %v", r.Overdue, standing.Stopped(r))
			}
		})
	}
}

// B105: the waves' sizes rise and end with everybody; the first is never empty.
func TestB105Sizes(t *testing.T) {
	for _, tt := range []struct {
		n     int
		waves []manifest.Wave
		want  []int
	}{
		{0, []manifest.Wave{{Percent: 10}, {Percent: 100}}, []int{0, 0}},
		{1, []manifest.Wave{{Percent: 1}, {Percent: 50}, {Percent: 100}}, []int{1, 1, 1}},
		{3, []manifest.Wave{{Percent: 5}, {Percent: 25}, {Percent: 100}}, []int{1, 1, 3}},
		{10, []manifest.Wave{{Percent: 15}, {Percent: 85}, {Percent: 100}}, []int{2, 9, 10}},
		{99, []manifest.Wave{{Count: 200}, {Percent: 10}, {Percent: 100}}, []int{99, 99, 99}},
		{1000, []manifest.Wave{{Percent: 1, Min: 25}, {Percent: 33}, {Percent: 50}}, []int{25, 330, 1000}},
	} {
		if diff := cmp.Diff(tt.want, standing.Sizes(tt.waves, make([]map[string]string, tt.n))); diff != "" {
			t.Errorf("%d hosts: %s", tt.n, diff)
		}
	}
}

func TestLine(t *testing.T) {
	if got := standing.Line(standing.Of(input(nil))); got != "epoch 2 is baking, wave 1 of 3 until 2026-11-30T12:10:00Z; the bake is not over" {
		t.Error(got)
	}
	done := input(func(r *manifest.Rollout) { r.Phase = manifest.PhaseDone })
	if got := standing.Line(standing.Of(done)); got != "" {
		t.Error(got)
	}
	done.Queue = []api.Queued{{Epoch: 3}}
	if got := standing.Line(standing.Of(done)); got != "epoch 2 is done; epoch 3 is released and not begun" {
		t.Error(got)
	}
}
