package gate

import (
	"strings"
	"testing"

	"github.com/muster-config/muster/distributor/manifest"
)

// TestThin: what a verdict carries of many looks: the bad ones first, the newest always, in order.
func TestThin(t *testing.T) {
	bad := func(l Look) bool { return *l.Canary > 0.5 }
	for name, c := range map[string]struct {
		n    int
		bad  func(i int) bool
		keep int // bad ones that must be there
	}{
		"none":     {0, func(int) bool { return false }, 0},
		"few":      {40, func(i int) bool { return i%2 == 0 }, 9},
		"many":     {3000, func(i int) bool { return i == 17 || i == 2000 }, 2},
		"all bad":  {3000, func(int) bool { return true }, 12},
		"half bad": {100, func(i int) bool { return i < 50 }, 9},
		"a few":    {45, func(i int) bool { return i < 3 }, 3},
	} {
		looks := repeat(c.n, Look{})
		for i := range looks {
			looks[i].Canary = num(0.1)
			if c.bad(i) {
				looks[i].Canary = num(0.9)
			}
		}
		got := thin(looks, bad)
		if len(got) != min(c.n, manifest.KeptGateSamples) {
			t.Errorf("%s: %d samples", name, len(got))
		}
		found := 0
		for i, s := range got {
			if *s.Canary > 0.5 {
				found++
			}
			if i > 0 && !s.At.After(got[i-1].At) {
				t.Errorf("%s: not in order, or twice", name)
			}
		}
		if found < c.keep {
			t.Errorf("%s: %d bad ones", name, found)
		}
		if c.n > 0 && !got[len(got)-1].At.Equal(looks[c.n-1].At) {
			t.Errorf("%s: the newest is not there", name)
		}
	}
}

func TestTexts(t *testing.T) {
	for got, want := range map[string]string{
		number(0.0123456): "0.01235", number(12034): "12,034", number(-1234567): "-1,234,567", number(0): "0", number(1e20): "1e+20",
		percent(0.0042): "0.42%", percent(1): "100%", factor(1.84): "1.8 ×", factor(19.6): "20 ×", factor(1234): "1,234 ×", times(1): "once", times(2): "twice in a row", times(3): "3 times in a row",
		clean(" a\n\tb\x1b[31m \xff"): "a b [31m", clean(strings.Repeat("ä", 500)): strings.Repeat("ä", 300) + "…",
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
