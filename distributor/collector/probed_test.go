package collector

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/report"
	"github.com/muster-config/muster/distributor/rollout/gate"
)

// What a host tells of its probes reaches the gates, though the rest of its report is one copy with that of all hosts that say the same; a sign of life after it does not tell it again, and a
// restart of the collector does not lose it.
func TestProbesReachGates(t *testing.T) {
	w := newWorld(t)
	w.cohort("prod", "web-1", "web-2")
	w.publish("prod")
	w.publish("prod")
	w.assign("prod", 2, func(m *manifest.Manifest) {
		m.Rollout.Baseline, m.Rollout.Phase = 1, manifest.PhaseAdvancing
	})
	r := newRig(t, w, nil)
	r.read()
	first, second := r.agent("prod", "web-1").runs(2), r.agent("prod", "web-2").runs(2)
	first.report.Probes = map[string]report.Probe{"checkout": {Count: 10, Failures: 4, P50MS: 3, MaxMS: 9}, "search": {Count: 6, P50MS: 9, MaxMS: 9}}
	first.say()
	second.report.Probes = map[string]report.Probe{"checkout": {Count: 5, Failures: 5}}
	second.say()
	told := func() map[string]gate.Host {
		t.Helper()
		_, seen, err := r.c.Cohort(context.Background(), "prod")
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]gate.Host{}
		for _, h := range seen.Hosts {
			got[h.Name] = h.Reported
		}
		return got
	}
	want := map[string]gate.Host{
		"web-1": {Name: "web-1", At: r.now(), Probes: 16, Failures: 4, LatencyMS: 6},
		"web-2": {Name: "web-2", At: r.now(), Probes: 5, Failures: 5},
	}
	if diff := cmp.Diff(want, told()); diff != "" {
		t.Error(diff)
	}
	r.flush()
	r.restart()
	r.read()
	if diff := cmp.Diff(want, told()); diff != "" {
		t.Errorf("after a restart: %s", diff)
	}
	res, err := r.client.Report(context.Background(), first.heartbeat())
	if err != nil || !res.Accepted {
		t.Fatalf("%+v, %v", res, err)
	}
	want["web-1"] = gate.Host{Name: "web-1", At: r.now()}
	if diff := cmp.Diff(want, told()); diff != "" {
		t.Errorf("after a sign of life: %s", diff)
	}
}
