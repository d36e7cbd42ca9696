package main

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-config/muster/distributor/api"
	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/verdict"
)

func TestPrintRollout(t *testing.T) {
	since := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	until := since.Add(10 * time.Minute)
	a, b, all, control := 3.0, 5.0, 1000.0, 4.0
	r := &api.Rollout{
		Cohort: "prod", Target: 7, Baseline: 6, Phase: manifest.PhaseBaking, Wave: 1, Since: since, Until: &until, By: "muster", Why: "epoch 7, wave 1 of 2: 2 of 2 hosts confirm it", Waits: "gate errors is inconclusive: too little",
		Eligible: 1200, Told: 2, Confirmed: 1,
		Waves: []api.RolloutWave{
			{Wave: 1, Takes: "2 hosts", Hosts: 2, Bake: "10m", State: api.WaveNow, In: []api.WaveHost{{Host: "web-2", Verdict: verdict.Applying, Why: "swap\x1bping"}, {Host: "web-1", Verdict: verdict.Confirmed}}, More: 3},
			{Wave: 2, Takes: "100%", Hosts: 1200, Bake: "0s", State: api.WaveNext, Approval: true},
		},
		Gates: []api.RolloutGate{
			{Gate: "errors", Asks: "bad events of all: at most 0.01, every 30s", Live: true, Verdict: &manifest.GateVerdict{Gate: "errors", Outcome: manifest.OutcomeInconclusive, Why: "too little", Samples: []manifest.GateSample{
				{At: since}, {At: since.Add(30 * time.Second), Canary: &a, OfCanary: &all, Control: &control, OfOthers: &all}, {At: since.Add(time.Minute), Canary: &b},
			}}},
			{Gate: "queue", Asks: "http: at most 5, every 30s"},
		},
		Queue: []api.Queued{{Epoch: 8, Commit: "0123456789abcdef0123", Subject: "faster", Author: "Ana"}},
	}
	var out strings.Builder
	printRollout(&out, r, true, since.Add(4*time.Minute))
	const want = `prod: epoch 7, baking, wave 1 of 2, baseline epoch 6, since 2026-11-30T12:00:00Z
  why    epoch 7, wave 1 of 2: 2 of 2 hosts confirm it (by muster)
  waits  gate errors is inconclusive: too little
  time   6m0s left, until 2026-11-30T12:10:00Z
  hosts  2 of 1,200 are told to run it, 1 confirmed

WAVE  TAKES    HOSTS  BAKE  STATE
1     2 hosts  2      10m   now
2     100%     1,200  0s    next, a person approves it

in wave 1:
  web-2  applying  swap?ping
  confirmed: web-1
  and 3 more

GATE    SAYS          ASKS                                        WHY
errors  inconclusive  bad events of all: at most 0.01, every 30s  too little
queue   nothing yet   http: at most 5, every 30s

errors, the newest of 3 samples:
  AT                    CANARY     CONTROL
  2026-11-30T12:00:00Z  -          -
  2026-11-30T12:00:30Z  3 of 1000  4 of 1000
  2026-11-30T12:01:00Z  5          -

1 release behind it:
  epoch 8  0123456789ab  Ana  faster
`
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Error(diff)
	}
	// Nobody counted hosts: the store alone.
	out.Reset()
	r.Phase, r.Until, r.Overdue, r.Pause = manifest.PhasePaused, nil, true, &manifest.Stop{By: "ana", Since: since}
	printRollout(&out, r, false, since.Add(25*time.Hour))
	if text := out.String(); !strings.Contains(text, "  late   it has waited for a person for 25h0m0s\n") || !strings.Contains(text, "1     2 hosts  -      10m   now\n") || strings.Contains(text, "  hosts  ") {
		t.Error(text)
	}
}

func TestShareOf(t *testing.T) {
	for text, want := range map[string]float64{"5%": 0.05, "0.05": 0.05, "0%": 0, "100%": 1, "1": 1} {
		if got, err := shareOf(text); err != nil || got != want {
			t.Errorf("%s: %g, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "5", "-1%", "101%", "NaN", "x"} {
		if got, err := shareOf(text); err == nil {
			t.Errorf("%s: %g", text, got)
		}
	}
}

func TestEndOf(t *testing.T) {
	now := time.Date(2026, 11, 30, 12, 0, 0, 500, time.UTC)
	for text, want := range map[string]time.Time{"2h": now.Add(2 * time.Hour).Truncate(time.Second), "2026-12-01T08:00:00+01:00": time.Date(2026, 12, 1, 7, 0, 0, 0, time.UTC)} {
		if got, err := endOf(text, now); err != nil || !got.Equal(want) {
			t.Errorf("%s: %s, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "tomorrow", "-2h", "2026-11-30T12:00:00Z", "0s"} {
		if got, err := endOf(text, now); err == nil {
			t.Errorf("%s: %s", text, got)
		}
	}
}
