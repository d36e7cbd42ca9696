package gate

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/muster-config/muster/distributor/manifest"
)

// clean makes a text fit for a head and a terminal: one line, no control characters, not too long.
func clean(s string) string {
	s = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || r == utf8.RuneError {
			return ' '
		}
		return r
	}, s)
	s = strings.Join(strings.Fields(s), " ")
	const most = 600
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "") + "…"
	}
	return s
}

// number writes a value with four digits that count.
func number(v float64) string {
	if v == math.Trunc(v) && math.Abs(v) < 1e15 {
		return grouped(v)
	}
	return strconv.FormatFloat(v, 'g', 4, 64)
}

// percent writes a share.
func percent(v float64) string { return strconv.FormatFloat(v*100, 'g', 3, 64) + "%" }

// grouped writes a count: 12,034.
func grouped(v float64) string {
	s := strconv.FormatFloat(math.Round(v), 'f', -1, 64)
	sign := ""
	if strings.HasPrefix(s, "-") {
		sign, s = "-", s[1:]
	}
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return sign + s
}

// factor writes a ratio: 1.8 ×.
func factor(v float64) string {
	if v >= 10 {
		return grouped(v) + " ×"
	}
	return strconv.FormatFloat(v, 'g', 2, 64) + " ×"
}

func times(n int) string {
	switch n {
	case 1:
		return "once"
	case 2:
		return "twice in a row"
	}
	return fmt.Sprintf("%d times in a row", n)
}

// thin keeps the samples that a verdict carries: up to three quarters of them bad ones, the newest of those, and of the others so many as fit, evenly, the newest among them.
func thin(looks []Look, bad func(Look) bool) []manifest.GateSample {
	const most = manifest.KeptGateSamples
	keep := make([]bool, len(looks))
	left := min(most, len(looks))
	for i := len(looks) - 1; i >= 0 && left > most/4 && len(looks) > most && bad != nil; i-- {
		if bad(looks[i]) {
			keep[i] = true
			left--
		}
	}
	var rest []int
	for i := range looks {
		if !keep[i] {
			rest = append(rest, i)
		}
	}
	left = min(left, len(rest))
	for i := range left {
		keep[rest[(i+1)*len(rest)/left-1]] = true
	}
	var list []manifest.GateSample
	for i, l := range looks {
		if keep[i] {
			list = append(list, l.GateSample)
		}
	}
	return list
}
