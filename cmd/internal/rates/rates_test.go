package main

import (
	"strings"
	"testing"

	"github.com/muster-config/muster/distributor/rollout/gate"
)

// TestRates: gates stop less than one good release in a hundred, and let less than one in twenty pass that is ten times as bad, wherever that can be seen; a full table is docs/rates.md.
func TestRates(t *testing.T) {
	const n = 300
	for _, s := range sections {
		seen := 0
		for _, c := range s.cells() {
			switch c.effect {
			case 1:
				if got := run(c, n); got.stopped() > n/100 {
					t.Errorf("%s, %d hosts, base %v: %d of %d good releases stopped", s.title, c.hosts, c.base, got.stopped(), n)
				}
			case 10:
				// On one canary with one bad request in a thousand, 12 are bad in the whole bake of a good release.
				if gate.Detectable(c.gate(), c.size()) > c.effect {
					continue
				}
				seen++
				if got := run(c, n); got.ends[passed] > n/20 {
					t.Errorf("%s, %d hosts, base %v: %d of %d releases passed that are ten times as bad", s.title, c.hosts, c.base, got.ends[passed], n)
				}
			}
		}
		if want := 3*len(s.bases) - len(s.bases)/2; seen < want {
			t.Errorf("%s: ten times as bad is seen in %d cells, not %d", s.title, seen, want)
		}
	}
}

// TestLate: what is three times as bad from three quarters of a bake on does not pass where it can be seen.
func TestLate(t *testing.T) {
	const n = 200
	for _, c := range late() {
		if gate.Detectable(c.gate(), c.size()) > c.effect {
			continue
		}
		if got := run(c, n); got.ends[passed] > n/20 {
			t.Errorf("%+v: %d of %d passed", c, got.ends[passed], n)
		}
	}
}

// TestDetectableHolds: a release that is as bad as gate.Detectable says does not pass.
func TestDetectableHolds(t *testing.T) {
	const n = 200
	for _, s := range sections {
		for _, c := range s.cells() {
			if c.effect != 1 {
				continue
			}
			c.effect = gate.Detectable(c.gate(), c.size())
			if got := run(c, n); got.ends[passed] > n/20 {
				t.Errorf("%s, %d hosts, base %v: %d of %d passed that are %.2g times as bad", s.title, c.hosts, c.base, got.ends[passed], n, c.effect)
			}
		}
	}
}

// TestPage: the page has a row for each case, and says what is not seen.
func TestPage(t *testing.T) {
	text := page(1)
	rows := strings.Count(text, "\n| ")
	if want := 60 + 24 + 9 + 15 + 6; rows != want {
		t.Errorf("%d rows, not %d", rows, want)
	}
	for _, part := range []string{"the first wave sees 14 ×", "1 simulated rollouts", "2,000"} {
		if !strings.Contains(text, part) {
			t.Errorf("no %q", part)
		}
	}
}

func TestInterval(t *testing.T) {
	for _, c := range []struct {
		k, n      int
		low, high float64
	}{{0, 10000, 0, 0.000369}, {10000, 10000, 0.999631, 1}, {5, 100, 0.01643, 0.11284}} {
		low, high := interval(c.k, c.n)
		if diff := low - c.low; diff > 1e-5 || diff < -1e-5 {
			t.Errorf("%d of %d: from %v", c.k, c.n, low)
		}
		if diff := high - c.high; diff > 1e-5 || diff < -1e-5 {
			t.Errorf("%d of %d: to %v", c.k, c.n, high)
		}
	}
}
