package gate

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/muster-config/muster/distributor/manifest"
	"gonum.org/v1/gonum/stat/combin"
	"pgregory.net/rapid"
)

// TestExact: the tests' chances are those of the binomial distribution, summed term by term.
func TestExact(t *testing.T) {
	tail := func(k, n int, p float64) float64 {
		sum := 0.0
		for i := k; i <= n; i++ {
			sum += math.Exp(combin.LogGeneralizedBinomial(float64(n), float64(i))) * math.Pow(p, float64(i)) * math.Pow(1-p, float64(n-i))
		}
		return sum
	}
	near := func(name string, got, want float64) {
		t.Helper()
		if math.Abs(got-want) > 1e-9*max(1e-6, want) && math.Abs(got-want) > 1e-12 {
			t.Errorf("%s: %g, want %g", name, got, want)
		}
	}
	for _, n := range []int{1, 7, 40, 300} {
		for _, k := range []int{0, 1, 3, n / 2, n} {
			for _, p := range []float64{0.001, 0.01, 0.3, 0.9} {
				near(fmt.Sprintf("bound: %d of %d, %v", k, n, p), bounded{p}.p(counts{bad: float64(min(k, n)), all: float64(n)}, 1, 1), tail(min(k, n), n, p))
			}
		}
	}
	// Of k bad ones in both groups, the canary has its share of the events, times the ratio.
	for _, c := range []counts{{5, 100, 10, 900}, {0, 100, 10, 900}, {8, 50, 0, 50}, {30, 1000, 30, 9000}} {
		for _, ratio := range []float64{1, 1.5, 4} {
			s := ratio * c.all / (ratio*c.all + c.allControl)
			near(fmt.Sprintf("%v, ratio %v", c, ratio), compared{ratio}.p(c, 1, 1), tail(int(c.bad), int(c.bad+c.badControl), s))
		}
	}
	for name, p := range map[string]float64{"no events": compared{2}.p(counts{}, 1, 1), "no control": compared{2}.p(counts{bad: 3, all: 4}, 1, 1), "no bad": bounded{0.1}.p(counts{all: 10}, 1, 1)} {
		if p != 1 {
			t.Errorf("%s: %v", name, p)
		}
	}
	if p := (bounded{0}).p(counts{bad: 1, all: 1e6}, 2, burst); p != 0 {
		t.Errorf("one bad event where none is allowed: %v", p)
	}
}

// TestSpending: all that may be spent on false alarms is spent over the looks, and no more.
func TestSpending(t *testing.T) {
	for _, bake := range []int{1, 2, 3, 20, 60, 2880} {
		for _, looks := range []int{bake, 3 * bake, 100 * bake} {
			sum := 0.0
			for k := 1; k <= looks; k++ {
				sum += spend(k, bake, 1)
			}
			if sum > 1+1e-9 || looks == bake && math.Abs(sum-0.5) > 1e-9 {
				t.Errorf("looks, bake of %d: %v after %d", bake, sum, looks)
			}
		}
	}
	sum := 0.0
	for i := 1; i <= 4; i++ {
		sum += spendQuarter(i, 1)
	}
	if math.Abs(sum-0.75) > 1e-9 {
		t.Errorf("in a bake: %v", sum)
	}
	for i := 5; i <= 10000; i++ {
		sum += spendQuarter(i, 1)
	}
	if sum > 1 || sum < 0.99 {
		t.Errorf("for ever: %v", sum)
	}
}

// TestManyLooks: a gate that looks 60 times at a rate that is just what is allowed fails no more often than it may, also when events come in bunches.
func TestManyLooks(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, bunch := range []float64{1, 4} {
		for name, test := range map[string]test{"bound": bounded{0.01}, "ratio": compared{1}} {
			const n = 1500
			failed := 0
			for range n {
				looks := make([]counts, 60)
				for i := range looks {
					draw := func(events float64) float64 {
						k := 0.0
						mean := events * 0.01 / bunch
						for p := rng.ExpFloat64(); p < mean; p += rng.ExpFloat64() {
							k += bunch
						}
						return k
					}
					looks[i] = counts{draw(500), 500, draw(4500), 4500}
				}
				if examine(test, looks, 20, 1).at > 0 {
					failed++
				}
			}
			// alphaSustained and alphaSudden together allow 3 of 1,500; more than 11 have a chance below 1 in 5,000.
			if failed > 11 {
				t.Errorf("%s, bunches of %v: %d of %d rollouts stopped that were as good as allowed", name, bunch, failed, n)
			}
		}
	}
}

// TestMinAndRatioBelowOne are the mirror images: too few good events, too little against the control group.
func TestMinAndRatioBelowOne(t *testing.T) {
	for name, c := range map[string]struct {
		gate manifest.Gate
		look Look
		want manifest.Outcome
		says string
	}{
		"enough good":        {counted(func(g *manifest.Gate) { g.Min = num(0.99) }), count4(2995, 3000, 0, 1), manifest.OutcomePass, "99.8% of 60,000 events, at least 99% needed"},
		"too few good":       {counted(func(g *manifest.Gate) { g.Min = num(0.99) }), count4(2400, 3000, 0, 1), manifest.OutcomeFail, "80% of 3,000 events, at least 99% needed"},
		"within":             {counted(func(g *manifest.Gate) { g.Min, g.Max = num(0.4), num(0.6) }), count4(1500, 3000, 0, 1), manifest.OutcomePass, "40% to 60% allowed"},
		"above":              {counted(func(g *manifest.Gate) { g.Min, g.Max = num(0.4), num(0.6) }), count4(2900, 3000, 0, 1), manifest.OutcomeFail, "40% to 60% allowed"},
		"below":              {counted(func(g *manifest.Gate) { g.Min, g.Max = num(0.4), num(0.6) }), count4(100, 3000, 0, 1), manifest.OutcomeFail, "40% to 60% allowed"},
		"as many sales":      {counted(func(g *manifest.Gate) { g.Compare = &manifest.GateCompare{Ratio: 0.8} }), count4(300, 3000, 5700, 57000), manifest.OutcomePass, "at least 0.8 × needed"},
		"half the sales":     {counted(func(g *manifest.Gate) { g.Compare = &manifest.GateCompare{Ratio: 0.8} }), count4(100, 3000, 5700, 57000), manifest.OutcomeFail, "0.33 × the control group's: 3.33%"},
		"none of them":       {counted(func(g *manifest.Gate) { g.Compare = &manifest.GateCompare{Ratio: 0.8} }), count4(0, 3000, 5700, 57000), manifest.OutcomeFail, "0 × the control group's"},
		"values, half":       {gateOf(func(g *manifest.Gate) { g.Prometheus, g.Compare = "x * $canary", &manifest.GateCompare{Ratio: 0.8} }), pair(50, 100), manifest.OutcomeFail, "0.5 × the control group's"},
		"values, as many":    {gateOf(func(g *manifest.Gate) { g.Prometheus, g.Compare = "x * $canary", &manifest.GateCompare{Ratio: 0.8} }), pair(90, 100), manifest.OutcomePass, "0.9 × the control group's"},
		"more than all":      {counted(func(g *manifest.Gate) { g.Max = num(0.5) }), count4(4000, 3000, 0, 1), manifest.OutcomeFail, "100%"},
		"none allowed":       {counted(func(g *manifest.Gate) { g.Max = num(0) }), count4(1, 3000, 0, 1), manifest.OutcomeFail, "at most 0% allowed"},
		"none allowed, none": {counted(func(g *manifest.Gate) { g.Max = num(0) }), count4(0, 3000, 0, 1), manifest.OutcomePass, "0% of 60,000 events"},
	} {
		v := judgeOne(t, ask(c.gate), repeat(20, c.look))
		if v.Outcome != c.want || !strings.Contains(v.Why, c.says) {
			t.Errorf("%s: %s: %s; want %s, %q", name, v.Outcome, v.Why, c.want, c.says)
		}
	}
}

// TestEdge: an excess that may be chance is neither a failure nor a pass.
func TestEdge(t *testing.T) {
	g := counted(func(g *manifest.Gate) { g.Max = num(0.01) })
	looks := repeat(20, count4(1, 100, 0, 1))
	for i := range 20 {
		looks[i].Canary = num(float64(1 + (i+1)%3*(i%4+3)/5)) // 1.8% of 2,000, where 1% is allowed
	}
	v := judgeOne(t, ask(g), looks)
	if v.Outcome != manifest.OutcomeInconclusive || !strings.Contains(v.Why, "too few events to tell") {
		t.Errorf("%s: %s", v.Outcome, v.Why)
	}
	// The same for longer is a failure.
	q := ask(g)
	q.Now = begin.Add(30 * time.Minute)
	long := append(append(append([]Look{}, looks...), looks...), looks...)
	if v := judgeOne(t, q, at(long...)); v.Outcome != manifest.OutcomeFail {
		t.Errorf("three times as long: %s: %s", v.Outcome, v.Why)
	}
}

// TestFails: a test that fails counts when as many looks in a row are over what is allowed.
func TestFails(t *testing.T) {
	g := counted(func(g *manifest.Gate) { g.Max, g.Fails = num(0.01), 3 })
	q := ask(g)
	for n, want := range map[int]manifest.Outcome{2: manifest.OutcomeInconclusive, 3: manifest.OutcomeFail} {
		q.Now = begin.Add(time.Duration(n) * 30 * time.Second)
		if v := judgeOne(t, q, repeat(n, count4(600, 3000, 0, 1))); v.Outcome != want {
			t.Errorf("after %d looks: %s: %s", n, v.Outcome, v.Why)
		}
	}
}

// TestDispersionSeen: the same number of bad events says less when they came in a few bunches.
func TestDispersionSeen(t *testing.T) {
	even, bunched := make([]counts, 40), make([]counts, 40)
	for i := range even {
		even[i] = counts{3, 100, 0, 0}
		bunched[i] = counts{0, 100, 0, 0}
	}
	bunched[7].bad, bunched[31].bad = 60, 60
	test := bounded{0.01}
	if d := spread(test, even, 0.001); d != 1 {
		t.Errorf("even: %v", d)
	}
	if d := spread(test, bunched, 0.001); d < 20 {
		t.Errorf("bunched: %v", d)
	}
	if d := spread(test, even[:3], 0.001); d != burst {
		t.Errorf("too few to see: %v", d)
	}
}

// TestDetectable: more hosts and more traffic see more; what cannot be seen is said to be so; gates over hosts are counted out.
func TestDetectable(t *testing.T) {
	of := counted(func(g *manifest.Gate) { g.Compare = &manifest.GateCompare{Ratio: 1.5} })
	size := Size{Canary: 1, Control: 19, Events: 20, Base: 0.01, Bake: 10 * time.Minute}
	last := math.Inf(1)
	for _, hosts := range []int{1, 10, 100} {
		s := size
		s.Canary, s.Control = hosts, 19*hosts
		got := Detectable(of, s)
		if got >= last || got < 1.5 {
			t.Errorf("%d hosts: %v after %v", hosts, got, last)
		}
		last = got
	}
	rapid.Check(t, func(t *rapid.T) {
		s := Size{Canary: rapid.IntRange(1, 500).Draw(t, "canary"), Control: rapid.IntRange(1, 5000).Draw(t, "control"), Events: rapid.Float64Range(0.001, 1000).Draw(t, "events"),
			Base: rapid.Float64Range(1e-6, 0.5).Draw(t, "base"), Bake: time.Duration(rapid.IntRange(0, 7200).Draw(t, "bake")) * time.Second}
		g := rapid.SampledFrom([]manifest.Gate{of, counted(func(g *manifest.Gate) { g.Max = num(0.02) }), bound(0.02), gateOf(func(g *manifest.Gate) { g.Reported, g.Max = "restarts", num(0.1) })}).Draw(t, "gate")
		got := Detectable(g, s)
		if math.IsNaN(got) || got < 1 {
			t.Fatalf("%v", got)
		}
		if !math.IsInf(got, 1) && got > 1.0001 && Finds(g, s, s.Base*got/1.01) >= 0.9501 {
			t.Fatalf("%v, and a hundredth less is found as well", got)
		}
	})
	for name, s := range map[string]Size{
		"no traffic": {Canary: 1, Control: 19, Base: 0.01, Bake: time.Hour},
		"few events": {Canary: 1, Control: 19, Events: 0.1, Base: 0.01, Bake: 10 * time.Minute},
		"no control": {Canary: 20, Events: 20, Base: 0.01, Bake: 10 * time.Minute},
		"no canary":  {Control: 20, Events: 20, Base: 0.01, Bake: 10 * time.Minute},
		"no base":    {Canary: 1, Control: 19, Events: 20, Bake: 10 * time.Minute},
	} {
		if got := Detectable(of, s); !math.IsInf(got, 1) {
			t.Errorf("%s: %v", name, got)
		}
	}
	refuse := gateOf(func(g *manifest.Gate) { g.Reported, g.Max = "refused", num(0) })
	if got := Finds(refuse, Size{Canary: 10, Bake: time.Minute}, 0.1); math.Abs(got-(1-math.Pow(0.9, 10))) > 1e-9 {
		t.Errorf("one of 10 hosts refuses, each with a chance of a tenth: %v", got)
	}
	if got := Finds(bound(0.5), Size{Canary: 1, Base: 0.1}, 0.4); got != 0 {
		t.Errorf("a value below its bound: %v", got)
	}
}

// TestBeginsLate: what begins late, and then lasts, is a breach, not dispersion; the same in the time after the last wave.
func TestBeginsLate(t *testing.T) {
	for _, c := range []struct {
		looks, onset int
		events, bad  float64
		want         manifest.Outcome
	}{
		{60, 0, 200000, 0.019, manifest.OutcomeFail}, {60, 10, 200000, 0.019, manifest.OutcomeFail}, {60, 30, 200000, 0.019, manifest.OutcomeFail}, {60, 45, 200000, 0.019, manifest.OutcomeFail},
		{20, 10, 20000, 0.015, manifest.OutcomeFail}, {20, 15, 20000, 0.018, manifest.OutcomeFail},
		{60, 45, 200000, 0.012, manifest.OutcomeInconclusive}, {20, 17, 20000, 0.018, manifest.OutcomeInconclusive},
		{60, 45, 200000, 0.009, manifest.OutcomePass}, {20, 10, 20000, 0.009, manifest.OutcomePass},
	} {
		looks := repeat(c.looks, count4(0.001*c.events, c.events, 0.001*c.events, c.events))
		for i := c.onset; i < c.looks; i++ {
			looks[i].Canary = num(c.bad * c.events)
		}
		gates := map[string]manifest.Gate{"bound": counted(func(g *manifest.Gate) { g.Max = num(0.01) }), "ratio": counted(func(g *manifest.Gate) { g.Compare = &manifest.GateCompare{Ratio: 10} })}
		if c.events < 100000 {
			delete(gates, "ratio") // the control group has too few bad ones then
		}
		for name, g := range gates {
			q := ask(g)
			q.Bake = time.Duration(c.looks) * 30 * time.Second
			q.Now = begin.Add(q.Bake)
			if v := judgeOne(t, q, looks); v.Outcome != c.want {
				t.Errorf("%s, %v from look %d of %d on: %s: %s", name, c.bad, c.onset+1, c.looks, v.Outcome, v.Why)
			}
		}
	}
}
