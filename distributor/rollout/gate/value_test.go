package gate

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/muster-config/muster/distributor/manifest"
)

func latencies(ratio float64) manifest.Gate {
	return gateOf(func(g *manifest.Gate) {
		g.Prometheus, g.Compare = "histogram_quantile(0.99, sum by (le) (rate(request_seconds_bucket[1m]) * $canary))", &manifest.GateCompare{Ratio: ratio}
	})
}

// pairs are looks at a canary that is factor times as slow, both with some noise, and a day that both share.
func pairs(n int, factor, noise float64) []Look {
	rng := rand.New(rand.NewPCG(3, 4))
	list := make([]Look, n)
	for i := range list {
		day := 20 * (1 + 0.5*math.Sin(float64(i)/10))
		list[i] = pair(day*factor*math.Exp(noise*rng.NormFloat64()), day*math.Exp(noise*rng.NormFloat64()))
	}
	return at(list...)
}

func TestCompareValues(t *testing.T) {
	for name, c := range map[string]struct {
		looks []Look
		bake  time.Duration
		now   int // looks
		want  manifest.Outcome
		says  string
	}{
		"as fast":                  {pairs(20, 1, 0.1), 10 * time.Minute, 20, manifest.OutcomePass, "× the control group's: median"},
		"a fifth slower":           {pairs(20, 1.2, 0.1), 10 * time.Minute, 20, manifest.OutcomePass, "at most 1.5 × allowed"},
		"twice as slow":            {pairs(20, 2, 0.1), 10 * time.Minute, 20, manifest.OutcomeFail, "1.9 × the control group's"},
		"twice, not long enough":   {pairs(20, 2, 0.1), 10 * time.Minute, 8, manifest.OutcomeInconclusive, "8 of 20 looks"},
		"ten times: at once":       {pairs(20, 10, 0.1), 10 * time.Minute, 3, manifest.OutcomeFail, "over 3 looks"},
		"ten times, two looks":     {pairs(20, 10, 0.1), 10 * time.Minute, 2, manifest.OutcomeInconclusive, ""},
		"too short a bake":         {pairs(4, 1, 0.1), 2 * time.Minute, 4, manifest.OutcomeInconclusive, "a pass needs 12 looks"},
		"on the edge":              {pairs(20, 1.7, 0.3), 10 * time.Minute, 20, manifest.OutcomeInconclusive, "too few looks to tell"},
		"something beside nothing": {repeat(20, pair(5, 0)), 10 * time.Minute, 20, manifest.OutcomeFail, ""},
		"nothing beside nothing":   {repeat(20, pair(0, 0)), 10 * time.Minute, 20, manifest.OutcomePass, "median 0 against the control group's 0"},
	} {
		q := ask(latencies(1.5))
		q.Bake, q.Now = c.bake, begin.Add(time.Duration(c.now)*30*time.Second)
		v := judgeOne(t, q, c.looks[:c.now])
		if v.Outcome != c.want || !strings.Contains(v.Why, c.says) {
			t.Errorf("%s: %s: %s; want %s, %q", name, v.Outcome, v.Why, c.want, c.says)
		}
	}
}

// TestHangTogether: looks that follow one another closely count for less.
func TestHangTogether(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	failed := func(memory float64) int {
		n := 0
		for range 2000 {
			d := make([]float64, 60)
			x := rng.NormFloat64()
			for i := range d {
				d[i] = x
				x = memory*x + math.Sqrt(1-memory*memory)*rng.NormFloat64()
			}
			if signTest(d) < 0.001 {
				n++
			}
		}
		return n
	}
	// As bad as allowed: 2 of 2,000 are right; without blocks it would be hundreds.
	for memory, most := range map[float64]int{0: 8, 0.5: 20, 0.8: 40} {
		if n := failed(memory); n > most {
			t.Errorf("correlation %v: %d of 2000", memory, n)
		}
	}
	if p := signTest(make([]float64, 20)); p != 1 {
		t.Errorf("no differences: %v", p)
	}
	if p := signTest(nil); p != 1 {
		t.Errorf("nothing: %v", p)
	}
}

// TestValuesBeginLate: a canary that is slow now does not pass for having been fast before, and fails when that lasts.
func TestValuesBeginLate(t *testing.T) {
	for _, c := range []struct {
		bake, onset, now int
		want             manifest.Outcome
		says             string
	}{
		{20, 11, 20, manifest.OutcomeInconclusive, "but of late it is 3.5 × the control group's: median 350 against the control group's 100 over 5 looks"},
		{20, 17, 20, manifest.OutcomeInconclusive, "of late it is 2.2 × the control group's: median 225"},
		{20, 11, 40, manifest.OutcomeFail, "3.5 ×"},
		{60, 30, 60, manifest.OutcomeFail, "3.5 ×"},
		{60, 45, 60, manifest.OutcomeFail, "over 15 looks"},
		{60, 55, 60, manifest.OutcomeInconclusive, "of late"},
		{20, 20, 20, manifest.OutcomePass, "1 ×"},
	} {
		looks := repeat(c.now, pair(100, 100))
		for i := c.onset; i < c.now; i++ {
			looks[i].Canary = num(350)
		}
		q := ask(latencies(1.2))
		q.Bake, q.Now = time.Duration(c.bake)*30*time.Second, begin.Add(time.Duration(c.now)*30*time.Second)
		if v := judgeOne(t, q, looks); v.Outcome != c.want || !strings.Contains(v.Why, c.says) {
			t.Errorf("slow from look %d of %d on, bake of %d: %s: %s; want %s, %q", c.onset+1, c.now, c.bake, v.Outcome, v.Why, c.want, c.says)
		}
	}
}
