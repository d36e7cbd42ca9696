package gate

import (
	"strings"
	"testing"
	"time"

	"github.com/muster-config/muster/distributor/manifest"
)

func reportedGate(kind string, most float64) manifest.Gate {
	return gateOf(func(g *manifest.Gate) { g.Reported, g.Max = kind, num(most) })
}

// TestReported: every built-in gate sees its own fault on the canary, and nothing else; silence is no pass.
func TestReported(t *testing.T) {
	ill := map[string]func(*Host){
		"refused":     func(h *Host) { h.Refused = true },
		"rolled_back": func(h *Host) { h.RolledBack = true },
		"drift":       func(h *Host) { h.Drifted = true },
		"restarts":    func(h *Host) { h.Restarts = 2 },
	}
	for _, kind := range manifest.ReportedGates[:4] {
		if ill[kind] == nil {
			t.Fatalf("no fault for %s", kind)
		}
		for fault, make := range ill {
			q := ask(reportedGate(kind, 0.1))
			make(&q.Canary[0])
			if v := judgeOne(t, q, nil); v.Outcome != manifest.OutcomePass {
				t.Errorf("%s, one host with %s: %s: %s", kind, fault, v.Outcome, v.Why)
			}
			make(&q.Canary[1])
			make(&q.Control[1])
			want := manifest.OutcomePass
			if fault == kind {
				want = manifest.OutcomeFail
			}
			v := judgeOne(t, q, nil)
			if v.Outcome != want || want == manifest.OutcomeFail && !strings.Contains(v.Why, "2 of 10 canary hosts") {
				t.Errorf("%s, two hosts with %s: %s: %s", kind, fault, v.Outcome, v.Why)
			}
			if len(v.Samples) != 1 || v.Samples[0].OfCanary == nil || *v.Samples[0].OfCanary != 10 {
				t.Errorf("samples: %v", v.Samples)
			}
		}
	}
	for name, change := range map[string]func(*Question){
		"the bake is not over": func(q *Question) { q.Now = q.Now.Add(-time.Second) },
		"silent hosts":         func(q *Question) { q.Canary[0].At, q.Canary[1].At = begin, begin },
		"never heard":          func(q *Question) { q.Canary[0].At, q.Canary[1].At = time.Time{}, time.Time{} },
		"no canary":            func(q *Question) { q.Canary = nil },
		"before the bake":      func(q *Question) { q.From = q.From.Add(9*time.Minute + 45*time.Second); q.Bake = 15 * time.Second },
	} {
		q := ask(reportedGate("refused", 0))
		change(&q)
		if v := judgeOne(t, q, nil); v.Outcome != manifest.OutcomeInconclusive {
			t.Errorf("%s: %s: %s", name, v.Outcome, v.Why)
		}
	}
}

// TestReportedCompare: restarts all over the fleet are not the canary's; on the canary alone they are.
func TestReportedCompare(t *testing.T) {
	g := gateOf(func(g *manifest.Gate) { g.Reported, g.Compare = "restarts", &manifest.GateCompare{Ratio: 2} })
	restart := func(list []Host, every int) {
		for i := range list {
			if i%every == 0 {
				list[i].Restarts = 1
			}
		}
	}
	for name, c := range map[string]struct {
		canary, control int
		want            manifest.Outcome
	}{"everywhere": {2, 2, manifest.OutcomePass}, "on the canary": {1, 1000, manifest.OutcomeFail}, "one of the canary": {10, 100, manifest.OutcomePass}} {
		q := ask(g)
		restart(q.Canary, c.canary)
		restart(q.Control, c.control)
		if v := judgeOne(t, q, nil); v.Outcome != c.want {
			t.Errorf("%s: %s: %s", name, v.Outcome, v.Why)
		}
	}
}

// TestReportedFails: `fails` looks in a row, the one now among them.
func TestReportedFails(t *testing.T) {
	g := reportedGate("drift", 0)
	g.Fails = 3
	bad, well := Look{GateSample: manifest.GateSample{Canary: num(1), OfCanary: num(10)}}, Look{GateSample: manifest.GateSample{Canary: num(0), OfCanary: num(10)}}
	for name, c := range map[string]struct {
		looks []Look
		want  manifest.Outcome
	}{"once": {repeat(21, well), manifest.OutcomeInconclusive}, "three times": {append(repeat(18, well), repeat(21, bad)[18:]...), manifest.OutcomeFail}} {
		q := ask(g)
		q.Canary[0].Drifted = true
		if v := judgeOne(t, q, c.looks); v.Outcome != c.want {
			t.Errorf("%s: %s: %s", name, v.Outcome, v.Why)
		}
	}
}

// TestReportedCompareSpends: a comparison of hosts is tested at the quarters of a bake, each with its share of what it may be wrong, and fails only when as many looks in a row are over as `fails` says.
func TestReportedCompareSpends(t *testing.T) {
	state := func(bad float64) Look { return count4(bad, 10, 0, 190) }
	for name, c := range map[string]struct {
		fails, now int // looks
		bad        int // hosts of the canary that restarted, from the first look on
		want       manifest.Outcome
	}{
		"at the first look":              {1, 1, 3, manifest.OutcomeInconclusive},
		"four, at the first look":        {1, 1, 4, manifest.OutcomeInconclusive},
		"four, at the first quarter":     {1, 6, 4, manifest.OutcomeFail},
		"three, at the first quarter":    {1, 6, 3, manifest.OutcomeInconclusive}, // the chance is 1.25e-4, and its share as much
		"three, at the fourth":           {1, 20, 3, manifest.OutcomeFail},
		"two, at the end":                {1, 20, 2, manifest.OutcomeInconclusive},
		"four, too few in a row":         {8, 6, 4, manifest.OutcomeInconclusive},
		"four, at the next quarter":      {8, 11, 4, manifest.OutcomeFail},
		"none":                           {1, 20, 0, manifest.OutcomePass},
		"four, more in a row than heard": {30, 20, 4, manifest.OutcomeInconclusive},
	} {
		g := gateOf(func(g *manifest.Gate) {
			g.Reported, g.Compare, g.Fails = "restarts", &manifest.GateCompare{Ratio: 1}, c.fails
		})
		q := ask(g)
		q.Now = begin.Add(time.Duration(c.now) * 30 * time.Second)
		for i := range c.bad {
			q.Canary[i].Restarts = 1
		}
		if v := judgeOne(t, q, repeat(c.now, state(float64(c.bad)))); v.Outcome != c.want {
			t.Errorf("%s: %s: %s", name, v.Outcome, v.Why)
		}
	}
}
