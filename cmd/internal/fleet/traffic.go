package fleet

import (
	"math"
	"math/rand/v2"
	"sync"
	"time"
)

// traffic is what a host's product serves: requests, some of which fail. It is worked out when somebody looks, and before what runs changes.
type traffic struct {
	rate  float64 // requests a second
	fails float64 // share that fails whatever runs
	harm  func() Harm

	mu       sync.Mutex
	rng      *rand.Rand
	until    time.Time
	requests uint64
	errors   uint64
	firstBad time.Time // when the first request failed because of what runs
}

// account works out what was served until now.
func (t *traffic) account() {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	if t.until.IsZero() {
		t.until = now
		return
	}
	span := now.Sub(t.until)
	t.until = now
	n := t.draw(t.rate * span.Seconds())
	bad := t.harm().ErrorRate
	failed := t.binomial(n, t.fails)
	caused := t.binomial(n-failed, bad)
	t.requests += n
	t.errors += failed + caused
	if caused > 0 && t.firstBad.IsZero() {
		t.firstBad = now
	}
}

// draw is how many come where so many are expected: Poisson, and for many its normal neighbour.
func (t *traffic) draw(mean float64) uint64 {
	if mean > 500 {
		return uint64(max(0, math.Round(mean+math.Sqrt(mean)*t.rng.NormFloat64())))
	}
	var n uint64
	limit, product := math.Exp(-mean), t.rng.Float64()
	for product > limit {
		n++
		product *= t.rng.Float64()
	}
	return n
}

// binomial is how many of n it hits.
func (t *traffic) binomial(n uint64, p float64) uint64 {
	switch {
	case p <= 0 || n == 0:
		return 0
	case p >= 1:
		return n
	case n > 10_000:
		mean := float64(n) * p
		return uint64(min(max(0, math.Round(mean+math.Sqrt(mean*(1-p))*t.rng.NormFloat64())), float64(n)))
	}
	var hits uint64
	for range n {
		if t.rng.Float64() < p {
			hits++
		}
	}
	return hits
}

func (t *traffic) counted() (requests, errors uint64, firstBad time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.requests, t.errors, t.firstBad
}
