package main

import (
	"fmt"
	"math"
	"math/rand/v2"

	"gonum.org/v1/gonum/mathext"
)

// tally is how n rollouts of a cell ended.
type tally struct {
	n    int
	ends [4]int
}

// run simulates n rollouts of a cell. The same cell gives the same tally.
func run(c cell, n int) tally {
	t := tally{n: n}
	begun(c)
	seed := uint64(c.kind)<<60 ^ math.Float64bits(c.base) ^ math.Float64bits(c.effect)<<7 ^ uint64(c.hosts)<<30 ^ math.Float64bits(c.ratio)<<3 ^ math.Float64bits(c.apart)<<11 ^ math.Float64bits(c.late)<<5
	rng := rand.New(rand.NewPCG(seed, 5))
	for range n {
		t.ends[simulate(rng, c)]++
	}
	return t
}

// begun is told of each cell that is simulated: it takes some minutes.
var begun = func(cell) {}

// stopped is how many the gate stopped.
func (t tally) stopped() int { return t.ends[stoppedFirst] + t.ends[stoppedLater] }

// interval is the exact 95% interval (Clopper and Pearson) of a share of k in n.
func interval(k, n int) (low, high float64) {
	low, high = 0, 1
	if k > 0 {
		low = mathext.InvRegIncBeta(float64(k), float64(n-k+1), 0.025)
	}
	if k < n {
		high = mathext.InvRegIncBeta(float64(k+1), float64(n-k), 0.975)
	}
	return low, high
}

// share writes k of n as a percentage with its interval.
func share(k, n int) string {
	low, high := interval(k, n)
	return fmt.Sprintf("%s (%s–%s)", pct(float64(k)/float64(n)), pct(low), pct(high))
}

func pct(v float64) string {
	switch v *= 100; {
	case v == 0 || v == 100:
		return fmt.Sprintf("%.0f", v)
	case v < 1:
		return fmt.Sprintf("%.2f", v)
	case v > 99:
		return fmt.Sprintf("%.2f", v)
	}
	return fmt.Sprintf("%.1f", v)
}
