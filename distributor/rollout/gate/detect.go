package gate

import (
	"math"
	"time"

	"github.com/muster-config/muster/distributor/manifest"
	"gonum.org/v1/gonum/stat/distuv"
)

// Size is how much a gate gets to see of a wave.
type Size struct {
	Canary  int     // hosts that run the target
	Control int     // hosts that keep the baseline; 0: none are left
	Events  float64 // events of one host in a second, or its probes; a gate over hosts or values takes no notice of it
	Base    float64 // the share of events (or hosts) that are bad, or the value, while nothing is wrong
	Bake    time.Duration
}

const (
	// dispersed is the dispersion of bad events that is reckoned with: they come in bunches, as retries do.
	dispersed = 5
	// wavering is by how much rates and values waver that is reckoned with, all hosts' together.
	wavering = 1.3
)

// Detectable is the smallest factor on Base that a gate does not let pass: a release that is so bad does not get through the bake in about 95 of 100 cases, since the gate fails or, on the edge,
// is inconclusive and a person is asked. +Inf: none, at that size, or Base is 0. What is below it, the gate cannot be trusted to see, and `muster rollout simulate` says so. docs/rates.md
// holds it against simulated rollouts.
func Detectable(g manifest.Gate, s Size) float64 {
	share := ofShares(g)
	top := math.Inf(1)
	if s.Base > 0 {
		if top = 1 / s.Base; !share {
			top = 1e6
		}
	}
	if math.IsInf(top, 1) || Finds(g, s, top*s.Base) < 0.95 {
		return math.Inf(1)
	}
	low, high := 1.0, top // the chance rises with the factor
	for range 60 {
		if mid := math.Sqrt(low * high); Finds(g, s, mid*s.Base) >= 0.95 {
			high = mid
		} else {
			low = mid
		}
	}
	return high
}

// ofShares reports whether a gate is about shares, of 1 at most.
func ofShares(g manifest.Gate) bool {
	return g.Of != "" || g.Reported != "" && g.Reported != probeLatency
}

// Finds is about how likely a gate fails by the end of a bake when the canary's share of bad events (or hosts), or its value, is bad, and everything else as in s.
func Finds(g manifest.Gate, s Size, bad float64) float64 {
	if s.Canary <= 0 || bad < 0 || s.Base < 0 || ofShares(g) && bad > 1 {
		return 0
	}
	j := judging{g: g, e: every(g)}
	chance := 0.0
	if g.Max != nil {
		chance = max(chance, j.finds(s, bounded{*g.Max}, *g.Max, bad))
	}
	if g.Compare != nil && s.Control > 0 && g.Compare.Ratio >= 1 {
		chance = max(chance, j.finds(s, compared{g.Compare.Ratio}, g.Compare.Ratio*s.Base, bad))
	}
	return chance
}

// finds is the same for one of the gate's conditions; limit is the share or value at which it begins to be bad.
func (j *judging) finds(s Size, t test, limit, bad float64) float64 {
	_, isBound := t.(bounded)
	looks := wanted(s.Bake, j.e)
	sure := func(yes bool) float64 {
		if yes {
			return 1
		}
		return 0
	}
	canary, control := float64(s.Canary), float64(s.Control)
	switch {
	case j.ofHosts() && isBound:
		return above(math.Floor(limit*canary+1e-9), canary, bad)
	case j.ofHosts():
		return power(t, canary, control, s.Base, bad, spendQuarter(4, alphaHosts), 1, 1)
	case !j.ofCounts() && !isBound && looks < MinLooks:
		return sure(bad > suddenFactor*limit)
	case !j.ofCounts():
		return sure(bad >= wavering*limit && bad > limit)
	case isBound && bad < wavering*limit:
		return 0
	}
	seconds := max(s.Bake, j.e).Seconds()
	n, m := s.Events*canary*seconds, s.Events*control*seconds
	if n < j.minEvents() || !isBound && m < j.minEvents() {
		return 0
	}
	alpha := wholeShare * spendQuarter(4, alphaSustained)
	return power(t, n, m, s.Base, bad, alpha, dispersed*widened(blocksOf(looks), alpha), dispersed)
}

// power is the chance that a test at level alpha finds a share of bad events among n of the canary, with base among m of the control group. The test assumes one dispersion, the events have another.
func power(t test, n, m, base, bad, alpha, assumed, dispersion float64) float64 {
	fails := func(k float64) bool {
		c := counts{k, n, base * m, m}
		return t.over(c) && t.p(c, 1, assumed) < alpha
	}
	if !fails(n) {
		return 0
	}
	low, high := 0.0, n // fails(high), and not fails(low)
	for high-low > max(0.5, n*1e-9) {
		if mid := (low + high) / 2; fails(mid) {
			high = mid
		} else {
			low = mid
		}
	}
	if bad >= 1 {
		return 1
	}
	return upperTail(math.Ceil(high)/dispersion, n/dispersion, bad)
}

// above is the chance of more than k of n.
func above(k, n, p float64) float64 {
	if k >= n {
		return 0
	}
	return upperTail(k+1, n, p)
}

// widened is how much more dispersion a test at level alpha assumes than so many blocks show: as much as Student's t is wider than the normal distribution.
func widened(blocks int, alpha float64) float64 {
	if blocks < leastBlocks {
		return burst
	}
	w := distuv.StudentsT{Sigma: 1, Nu: float64(blocks - 1)}.Quantile(1-alpha) / distuv.UnitNormal.Quantile(1-alpha)
	return w * w
}
