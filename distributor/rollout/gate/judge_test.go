package gate

import (
	"fmt"

	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/muster-config/muster/distributor/manifest"
	"pgregory.net/rapid"
)

var begin = time.Date(2026, 11, 30, 10, 0, 0, 0, time.UTC)

func num(v float64) *float64 { return &v }

// gateOf is a gate with the schema's defaults.
func gateOf(change func(*manifest.Gate)) manifest.Gate {
	g := manifest.Gate{Every: "30s", Fails: 1, NoData: "wait"}
	change(&g)
	return g
}

func bound(most float64) manifest.Gate {
	return gateOf(func(g *manifest.Gate) { g.Prometheus, g.Max = "up", num(most) })
}

func counted(change func(*manifest.Gate)) manifest.Gate {
	return gateOf(func(g *manifest.Gate) {
		g.Prometheus, g.Of = "sum(increase(bad_total[$every]) * $canary)", "sum(increase(all_total[$every]) * $canary)"
		change(g)
	})
}

// ask is a question about one gate, ten minutes of bake, at its end.
func ask(g manifest.Gate) Question {
	return Question{Cohort: "prod", Wave: 1, Epoch: 7, Baseline: 6, Gates: map[string]manifest.Gate{"g": g}, From: begin, Bake: 10 * time.Minute, Now: begin.Add(10 * time.Minute),
		Canary: hosts("a", 10), Control: hosts("b", 190)}
}

func hosts(prefix string, n int) []Host {
	list := make([]Host, n)
	for i := range list {
		list[i] = Host{Name: fmt.Sprintf("%s-%d", prefix, i), At: begin.Add(9*time.Minute + 30*time.Second)}
	}
	return list
}

// at puts looks at their times.
func at(looks ...Look) []Look {
	for i := range looks {
		looks[i].At = lookAt(begin, 30*time.Second, i+1)
	}
	return looks
}

func values(vs ...float64) []Look {
	var list []Look
	for _, v := range vs {
		list = append(list, Look{GateSample: manifest.GateSample{Canary: num(v)}})
	}
	return at(list...)
}

func repeat(n int, l Look) []Look {
	list := make([]Look, n)
	for i := range list {
		list[i] = l
	}
	return at(list...)
}

func count4(bad, all, badControl, allControl float64) Look {
	return Look{GateSample: manifest.GateSample{Canary: num(bad), OfCanary: num(all), Control: num(badControl), OfOthers: num(allControl)}}
}

func pair(canary, control float64) Look {
	return Look{GateSample: manifest.GateSample{Canary: num(canary), Control: num(control)}}
}

func judgeOne(t *testing.T, q Question, looks []Look) manifest.GateVerdict {
	t.Helper()
	list := Judge(q, map[string]Heard{"g": {Looks: looks}})
	if len(list) != 1 {
		t.Fatalf("%d verdicts", len(list))
	}
	if err := list[0].Validate(); err != nil {
		t.Errorf("%+v: %v", list[0], err)
	}
	return list[0]
}

// TestBound: `fails` bad looks in a row fail, whenever; a pass takes a whole bake of good ones.
func TestBound(t *testing.T) {
	good := func(n int) []float64 {
		list := make([]float64, n)
		for i := range list {
			list[i] = 0.001
		}
		return list
	}
	with := func(n int, at map[int]float64) []float64 {
		list := good(n)
		for i, v := range at {
			list[i] = v
		}
		return list
	}
	hole := Look{Trouble: "the query found nothing"}
	for name, c := range map[string]struct {
		fails int
		looks []Look
		now   time.Duration
		want  manifest.Outcome
		says  string
	}{
		"good for the bake":            {1, values(good(20)...), 10 * time.Minute, manifest.OutcomePass, "20 of 20 looks"},
		"good so far":                  {1, values(good(19)...), 9*time.Minute + 40*time.Second, manifest.OutcomeInconclusive, "19 of 20 looks"},
		"one bad look":                 {1, values(with(3, map[int]float64{2: 0.2})...), 2 * time.Minute, manifest.OutcomeFail, "0.2, at most 0.01 allowed, once"},
		"one bad look, late":           {1, values(with(20, map[int]float64{19: 0.2})...), 10 * time.Minute, manifest.OutcomeFail, "once"},
		"bad before it was good":       {1, values(with(20, map[int]float64{0: 0.2})...), 10 * time.Minute, manifest.OutcomeFail, "once"},
		"bad twice, of three":          {3, values(with(20, map[int]float64{4: 0.2, 5: 0.2})...), 10 * time.Minute, manifest.OutcomePass, "bad twice in a row of 3"},
		"bad three times":              {3, values(with(20, map[int]float64{4: 0.2, 5: 0.2, 6: 0.3})...), 10 * time.Minute, manifest.OutcomeFail, "3 times in a row"},
		"bad three times, not in row":  {3, values(with(20, map[int]float64{4: 0.2, 6: 0.2, 8: 0.3})...), 10 * time.Minute, manifest.OutcomeInconclusive, "out of the bound in 3 of the newest 20 looks"},
		"as it slides, bad no more":    {3, values(with(25, map[int]float64{4: 0.2, 6: 0.2, 8: 0.3})...), 12*time.Minute + 30*time.Second, manifest.OutcomePass, ""},
		"bad now":                      {3, values(with(20, map[int]float64{18: 0.2, 19: 0.2})...), 10 * time.Minute, manifest.OutcomeInconclusive, "out of the bound now"},
		"a hole does not end a row":    {2, append(values(0.2), at(hole, hole, values(0.2)[0])[1:]...), 2 * time.Minute, manifest.OutcomeFail, "twice in a row"},
		"nothing heard":                {1, nil, 10 * time.Minute, manifest.OutcomeInconclusive, "0 of 20 looks, the last one missing: not heard"},
		"after the bake, as it slides": {1, values(good(25)...), 12*time.Minute + 30*time.Second, manifest.OutcomePass, "20 of 20"},
	} {
		t.Run(name, func(t *testing.T) {
			g := bound(0.01)
			g.Fails = c.fails
			q := ask(g)
			q.Now = begin.Add(c.now)
			v := judgeOne(t, q, c.looks)
			if v.Outcome != c.want || !strings.Contains(v.Why, c.says) {
				t.Errorf("%s: %s; want %s and %q", v.Outcome, v.Why, c.want, c.says)
			}
		})
	}
}

// TestCoverage: one look in ten may be missing, never two in a row, and not the newest.
func TestCoverage(t *testing.T) {
	for name, c := range map[string]struct {
		missing []int
		extra   int // looks after the bake
		want    manifest.Outcome
	}{
		"none":                     {nil, 0, manifest.OutcomePass},
		"one":                      {[]int{5}, 0, manifest.OutcomePass},
		"two":                      {[]int{5, 11}, 0, manifest.OutcomePass},
		"two in a row":             {[]int{5, 6}, 0, manifest.OutcomeInconclusive},
		"three":                    {[]int{5, 8, 11}, 0, manifest.OutcomeInconclusive},
		"the newest":               {[]int{19}, 0, manifest.OutcomeInconclusive},
		"at the begin: extended":   {[]int{0, 1, 2}, 3, manifest.OutcomePass},
		"at the begin: not enough": {[]int{0, 1, 2}, 1, manifest.OutcomeInconclusive},
	} {
		t.Run(name, func(t *testing.T) {
			n := 20 + c.extra
			looks := repeat(n, values(0.001)[0])
			for _, i := range c.missing {
				looks[i].Canary, looks[i].Trouble = nil, "the query found nothing"
			}
			q := ask(bound(0.01))
			q.Now = begin.Add(time.Duration(n) * 30 * time.Second)
			if v := judgeOne(t, q, looks); v.Outcome != c.want {
				t.Errorf("%s: %s", v.Outcome, v.Why)
			}
		})
	}
}

// TestB101Judged: what is no number is no pass, and says why; good for two looks and then empty neither.
func TestB101Judged(t *testing.T) {
	for _, trouble := range []string{"the query found nothing", "NaN is no number", "+Inf is no number", "null is no number", "the query gives 2 series, not one"} {
		q := ask(bound(0.01))
		for name, looks := range map[string][]Look{
			"from the begin":        repeat(20, Look{Trouble: trouble}),
			"good twice, then gone": append(values(0.001, 0.001), repeat(20, Look{Trouble: trouble})[2:]...),
		} {
			for _, when := range []time.Duration{q.Bake, 2 * q.Bake, 3 * q.Bake} {
				q.Now = begin.Add(when)
				v := judgeOne(t, q, looks)
				if v.Outcome != manifest.OutcomeInconclusive || when == q.Bake && !strings.Contains(v.Why, trouble) {
					t.Errorf("%s, %s, after %s: %s: %s", trouble, name, when, v.Outcome, v.Why)
				}
			}
		}
	}
	t.Run("no events is no data", func(t *testing.T) {
		g := counted(func(g *manifest.Gate) { g.Max = num(0.01) })
		looks := append(repeat(2, count4(0, 1000, 0, 1000)), repeat(20, count4(0, 0, 0, 1000))[2:]...)
		if v := judgeOne(t, ask(g), looks); v.Outcome != manifest.OutcomeInconclusive || !strings.Contains(v.Why, "no events on the canary") {
			t.Errorf("%s: %s", v.Outcome, v.Why)
		}
	})
	t.Run("few events are no pass", func(t *testing.T) {
		g := counted(func(g *manifest.Gate) { g.Max = num(0.01) })
		if v := judgeOne(t, ask(g), repeat(20, count4(0, 4, 0, 1000))); v.Outcome != manifest.OutcomeInconclusive || !strings.Contains(v.Why, "a pass needs 100 events") {
			t.Errorf("%s: %s", v.Outcome, v.Why)
		}
	})
}

// TestNoData: no_data "fail" takes looks without data in a row for a failure; what is the source's fault never.
func TestNoData(t *testing.T) {
	g := bound(0.01)
	g.NoData = "fail"
	q := ask(g)
	q.Now = begin.Add(2 * time.Minute)
	empty, broken := Look{Trouble: "the query found nothing"}, Look{Trouble: "the source is down: no answer within 10s", Down: true}
	for name, c := range map[string]struct {
		looks []Look
		want  manifest.Outcome
	}{
		"gone":                {append(values(0.001), repeat(4, empty)[1:]...), manifest.OutcomeFail},
		"never there":         {repeat(4, empty), manifest.OutcomeFail},
		"for two looks":       {append(values(0.001, 0.001), repeat(4, empty)[2:]...), manifest.OutcomeInconclusive},
		"the source is down":  {repeat(4, broken), manifest.OutcomeInconclusive},
		"down among the last": {at(empty, empty, broken, empty), manifest.OutcomeInconclusive},
		"not heard yet":       {at(empty, empty, empty), manifest.OutcomeInconclusive},
	} {
		if v := judgeOne(t, q, c.looks); v.Outcome != c.want {
			t.Errorf("%s: %s: %s", name, v.Outcome, v.Why)
		}
	}
	// A control group that is idle says nothing about the canary.
	g = counted(func(g *manifest.Gate) { g.Compare, g.NoData = &manifest.GateCompare{Ratio: 1.5}, "fail" })
	q = ask(g)
	for name, c := range map[string]struct {
		look Look
		want manifest.Outcome
	}{"the control group is idle": {count4(0, 5000, 0, 0), manifest.OutcomeInconclusive}, "the canary is idle": {count4(0, 0, 0, 5000), manifest.OutcomeFail}, "both are": {count4(0, 0, 0, 0), manifest.OutcomeFail}} {
		if v := judgeOne(t, q, repeat(20, c.look)); v.Outcome != c.want {
			t.Errorf("%s: %s: %s", name, v.Outcome, v.Why)
		}
	}
}

// TestB111NotTheCanary: a source that is down is inconclusive and says so; a fleet that is ill as a whole is not the canary's fault.
func TestB111NotTheCanary(t *testing.T) {
	ratio := &manifest.GateCompare{Ratio: 1.5}
	for name, c := range map[string]struct {
		gate  manifest.Gate
		looks []Look
		want  manifest.Outcome
		says  string
	}{
		"down":                   {bound(0.01), repeat(20, Look{Trouble: "the source is down: prometheus at http://p:9090 answered 503", Down: true}), manifest.OutcomeInconclusive, "the source is down"},
		"counts, both ill":       {counted(func(g *manifest.Gate) { g.Compare = ratio }), repeat(20, count4(600, 3000, 11000, 57000)), manifest.OutcomePass, "1 × the control group's: 20% of 60,000"},
		"values, both ill":       {gateOf(func(g *manifest.Gate) { g.Prometheus, g.Compare = "x * $canary", ratio }), repeat(20, pair(900, 880)), manifest.OutcomePass, "1 × the control group's: median 900"},
		"bound and ratio, both":  {counted(func(g *manifest.Gate) { g.Max, g.Compare = num(0.05), ratio }), repeat(20, count4(600, 3000, 11000, 57000)), manifest.OutcomeInconclusive, "not the canary's fault"},
		"bound and ratio, value": {gateOf(func(g *manifest.Gate) { g.Prometheus, g.Max, g.Compare = "x * $canary", num(500), ratio }), repeat(20, pair(900, 880)), manifest.OutcomeInconclusive, "not the canary's fault"},
		"bound and ratio, alone": {counted(func(g *manifest.Gate) { g.Max, g.Compare = num(0.05), ratio }), repeat(20, count4(600, 3000, 110, 57000)), manifest.OutcomeFail, "at most 5% allowed"},
		"ill, and worse":         {counted(func(g *manifest.Gate) { g.Max, g.Compare = num(0.05), ratio }), repeat(20, count4(1500, 3000, 5700, 57000)), manifest.OutcomeFail, "5"},
		"worse":                  {counted(func(g *manifest.Gate) { g.Compare = ratio }), repeat(20, count4(600, 3000, 570, 57000)), manifest.OutcomeFail, "20 × the control group's"},
		"control is gone": {counted(func(g *manifest.Gate) { g.Compare = ratio }), repeat(20, Look{GateSample: manifest.GateSample{Canary: num(6), OfCanary: num(3000)}, Trouble: "of the control group: the query found nothing"}),
			manifest.OutcomeInconclusive, "of the control group: the query found nothing"},
		"control is gone, over the bound": {counted(func(g *manifest.Gate) { g.Max, g.Compare = num(0.05), ratio }), repeat(20, Look{GateSample: manifest.GateSample{Canary: num(600), OfCanary: num(3000)}, Trouble: "of the control group: the query found nothing"}),
			manifest.OutcomeFail, "20% of 3,000 events, at most 5% allowed"},
	} {
		t.Run(name, func(t *testing.T) {
			v := judgeOne(t, ask(c.gate), c.looks)
			if v.Outcome != c.want || !strings.Contains(v.Why, c.says) {
				t.Errorf("%s: %s; want %s and %q", v.Outcome, v.Why, c.want, c.says)
			}
		})
	}
}

// TestBadCanary: 20% errors on 10 of 200 hosts fail at the first look, however the gate is written; so does a late fault.
func TestBadCanary(t *testing.T) {
	gates := map[string]manifest.Gate{
		"bound": counted(func(g *manifest.Gate) { g.Max = num(0.01) }),
		"ratio": counted(func(g *manifest.Gate) { g.Compare = &manifest.GateCompare{Ratio: 1.5} }),
		"value": bound(0.05),
	}
	for name, g := range gates {
		for _, rps := range []float64{1, 2, 50} {
			q := ask(g)
			n := rps * 10 * 30
			q.Now = begin.Add(30 * time.Second)
			ill, well := count4(0.2*n, n, 0.01*n*19, n*19), count4(0.005*n, n, 0.005*n*19, n*19)
			if name == "value" {
				ill, well = values(0.2)[0], values(0.005)[0]
			}
			first := at(ill)
			if rps < 2 { // 6 requests a look on each host are few: the second look tells
				first, q.Now = at(ill, ill), q.Now.Add(30*time.Second)
			}
			if v := judgeOne(t, q, first); v.Outcome != manifest.OutcomeFail {
				t.Errorf("%s, %v requests a second: %s: %s", name, rps, v.Outcome, v.Why)
			}
			q.Now = begin.Add(10 * time.Minute)
			if v := judgeOne(t, q, append(repeat(18, well), repeat(20, ill)[18:]...)); v.Outcome != manifest.OutcomeFail {
				t.Errorf("%s, %v requests a second, late: %s: %s", name, rps, v.Outcome, v.Why)
			}
			if v := judgeOne(t, q, repeat(20, well)); v.Outcome != manifest.OutcomePass {
				t.Errorf("%s, %v requests a second, well: %s: %s", name, rps, v.Outcome, v.Why)
			}
		}
	}
}

// TestAlone: where nothing is left to compare with, a gate that only compares is inconclusive, but in the last wave and after it, where that is so by nature; a bound goes on to count.
func TestAlone(t *testing.T) {
	only := counted(func(g *manifest.Gate) { g.Compare = &manifest.GateCompare{Ratio: 2} })
	both := counted(func(g *manifest.Gate) { g.Compare, g.Max = &manifest.GateCompare{Ratio: 2}, num(0.01) })
	canary := func(bad float64) []Look {
		l := count4(bad, 3000, 0, 0)
		l.Control, l.OfOthers = nil, nil
		return repeat(20, l)
	}
	for name, c := range map[string]struct {
		gate manifest.Gate
		wave int
		last bool
		bad  float64
		want manifest.Outcome
		says string
	}{
		"only a ratio, first wave":       {only, 1, false, 3, manifest.OutcomeInconclusive, "nothing to compare with"},
		"only a ratio, later":            {only, 2, false, 3, manifest.OutcomeInconclusive, "nothing to compare with"},
		"only a ratio, last":             {only, 3, true, 3, manifest.OutcomePass, NoControlLeft},
		"only a ratio, in the only wave": {only, 1, true, 3, manifest.OutcomePass, NoControlLeft},
		"with a bound, and good":         {both, 3, true, 3, manifest.OutcomePass, ""},
		"with a bound, and bad":          {both, 3, true, 600, manifest.OutcomeFail, ""},
		"with a bound, first, good":      {both, 1, false, 3, manifest.OutcomePass, ""},
	} {
		q := ask(c.gate)
		q.Wave, q.Last, q.Canary = c.wave, c.last, hosts("a", 199)
		for name, q.Control = range map[string][]Host{name: nil, name + ", one host is held": hosts("b", 1)} {
			if !c.last && q.Control != nil {
				continue
			}
			if v := judgeOne(t, q, canary(c.bad)); v.Outcome != c.want || !strings.Contains(v.Why, c.says) {
				t.Errorf("%s: %s: %s", name, v.Outcome, v.Why)
			}
		}
	}
}

// TestBeforeTheStart: in wave 0 only what is broken counts.
func TestBeforeTheStart(t *testing.T) {
	q := ask(bound(0.01))
	q.Wave = 0
	for name, c := range map[string]struct {
		heard Heard
		want  manifest.Outcome
	}{
		"not asked":   {Heard{}, manifest.OutcomeInconclusive},
		"down":        {Heard{Looks: []Look{{Trouble: "the source is down", Down: true}}}, manifest.OutcomeInconclusive},
		"found none":  {Heard{Looks: []Look{{Trouble: "the query found nothing"}}}, manifest.OutcomePass},
		"a number":    {Heard{Looks: values(5)}, manifest.OutcomePass},
		"wrong query": {Heard{Broken: "the query is wrong: 1:4: parse error"}, manifest.OutcomeBroken},
	} {
		if v := Judge(q, map[string]Heard{"g": c.heard})[0]; v.Outcome != c.want {
			t.Errorf("%s: %s: %s", name, v.Outcome, v.Why)
		}
	}
	bad := gateOf(func(g *manifest.Gate) { g.Prometheus, g.Compare = "up", &manifest.GateCompare{Ratio: 2} })
	for wave := range 2 {
		q := ask(bad)
		q.Wave = wave
		if v := Judge(q, nil)[0]; v.Outcome != manifest.OutcomeBroken || !strings.Contains(v.Why, "needs $canary") {
			t.Errorf("compares without $canary, wave %d: %s: %s", wave, v.Outcome, v.Why)
		}
	}
}

// TestJudgeProperties: whatever is heard, verdicts are valid, in order, one a gate, the same each time; none passes on less than nine tenths of a bake; one that failed stays failed.
func TestJudgeProperties(t *testing.T) {
	ratio := &manifest.GateCompare{Ratio: 1.5}
	gates := []manifest.Gate{bound(0.5), counted(func(g *manifest.Gate) { g.Max = num(0.1) }), counted(func(g *manifest.Gate) { g.Min = num(0.9) }), counted(func(g *manifest.Gate) { g.Compare = ratio }),
		gateOf(func(g *manifest.Gate) { g.Prometheus, g.Compare = "x * $canary", ratio }), gateOf(func(g *manifest.Gate) { g.Prometheus, g.Compare = "x * $canary", &manifest.GateCompare{Ratio: 0.5} }),
		gateOf(func(g *manifest.Gate) { g.Prometheus, g.Compare, g.Max = "x * $canary", ratio, num(10) })}
	value := rapid.Custom(func(t *rapid.T) *float64 {
		switch rapid.IntRange(0, 9).Draw(t, "kind") {
		case 0:
			return nil
		case 1:
			return num(0)
		case 2:
			return num(rapid.Float64Range(-1e300, 1e300).Draw(t, "wild"))
		}
		return num(rapid.Float64Range(0, 1000).Draw(t, "v"))
	})
	rapid.Check(t, func(t *rapid.T) {
		q := ask(gates[rapid.IntRange(0, len(gates)-1).Draw(t, "gate")])
		q.Wave = rapid.IntRange(1, 3).Draw(t, "wave")
		q.Last = q.Wave == 3
		n := rapid.IntRange(0, 60).Draw(t, "looks")
		q.Now = begin.Add(time.Duration(n) * 30 * time.Second)
		looks := repeat(n, Look{})
		for i := range looks {
			looks[i].Canary, looks[i].Control, looks[i].OfCanary, looks[i].OfOthers = value.Draw(t, "c"), value.Draw(t, "b"), value.Draw(t, "n"), value.Draw(t, "m")
			if looks[i].Canary == nil {
				looks[i].Trouble = "gone"
			}
		}
		heard := map[string]Heard{"g": {Looks: looks}}
		v := Judge(q, heard)[0]
		if err := v.Validate(); err != nil {
			t.Fatal(err)
		}
		if again := Judge(q, heard)[0]; cmp.Diff(v, again) != "" {
			t.Fatal(cmp.Diff(v, again))
		}
		if len(v.Samples) != min(n, manifest.KeptGateSamples) {
			t.Fatalf("%d samples of %d", len(v.Samples), n)
		}
		there := 0
		for _, l := range looks[max(0, n-20):] {
			if l.Canary != nil {
				there++
			}
		}
		if v.Outcome == manifest.OutcomePass && (n < 20 || there < 18) {
			t.Fatalf("passes on %d of %d looks: %s", there, n, v.Why)
		}
		if strings.Contains(v.Why, "NaN") || strings.Contains(v.Why, "Inf") {
			t.Fatalf("says %q", v.Why)
		}
		if v.Outcome == manifest.OutcomeFail {
			later := q
			later.Now = q.Now.Add(10 * time.Minute)
			if w := Judge(later, heard)[0]; w.Outcome != manifest.OutcomeFail && q.Gates["g"].Compare == nil {
				t.Fatalf("failed (%s), and then %s: %s", v.Why, w.Outcome, w.Why)
			}
		}
	})
}

// What says nothing leaves nothing between two semicolons.
func TestNothingIsSaidOnce(t *testing.T) {
	down := Look{Trouble: "the source is down: no answer within 10s", Down: true}
	for name, g := range map[string]manifest.Gate{
		"values": gateOf(func(g *manifest.Gate) {
			g.Prometheus, g.Max, g.Compare = "x * $canary", num(1), &manifest.GateCompare{Ratio: 2}
		}),
		"counts": counted(func(g *manifest.Gate) { g.Max, g.Compare = num(0.01), &manifest.GateCompare{Ratio: 2} }),
	} {
		for _, looks := range [][]Look{nil, repeat(20, down), repeat(3, down)} {
			if v := judgeOne(t, ask(g), looks); strings.Contains(v.Why, "; ;") || strings.HasPrefix(v.Why, ";") || v.Outcome != manifest.OutcomeInconclusive {
				t.Errorf("%s: %s: %q", name, v.Outcome, v.Why)
			}
		}
	}
}
