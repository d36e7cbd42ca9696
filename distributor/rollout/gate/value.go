package gate

import (
	"fmt"
	"math"
	"slices"

	"gonum.org/v1/gonum/stat"
)

const (
	// MinLooks is how many looks a pass of a comparison of values needs.
	MinLooks = 12
	// suddenFactor times what is allowed, in suddenLooks looks in a row, is no chance however looks hang together.
	suddenFactor = 3
	suddenLooks  = 3
)

// compareValues compares the canary's values with those that the control group has at the same time, so that what both share, the time of day, say, plays no part. A sign test tells
// whether the canary is over the ratio more often than not; looks that hang together (autocorrelation) count as one.
func (j *judging) compareValues() opinion {
	ratio := j.g.Compare.Ratio
	over := func(l Look) bool {
		if l.Canary == nil || l.Control == nil {
			return false
		}
		return excess(*l.Canary, *l.Control, ratio) > 0
	}
	o := opinion{bad: over}
	bake := wanted(j.q.Bake, j.e)
	var diffs, canaries, controls []float64
	quarter, next, row := 1, quarterAt(1, bake), 0
	for k := 1; k <= len(j.looks); k++ {
		if l := j.looks[k-1]; j.good(l) {
			d := excess(*l.Canary, *l.Control, ratio)
			diffs, canaries, controls = append(diffs, d), append(canaries, *l.Canary), append(controls, *l.Control)
			if row++; d <= math.Log(suddenFactor) {
				row = 0
			}
			if need := max(suddenLooks, j.g.Fails); row >= need {
				o.fail, o.text = true, j.besides(canaries[len(canaries)-need:], controls[len(controls)-need:])
				return o
			}
		}
		if k < next {
			continue
		}
		alpha := 0.0
		for ; k >= next; next = quarterAt(quarter, bake) {
			alpha += spendQuarter(quarter, alphaSustained)
			quarter++
		}
		if !lastOver(diffs, j.g.Fails) {
			continue
		}
		if signTest(diffs) < wholeShare*alpha {
			o.fail, o.text = true, j.besides(canaries, controls)
			return o
		}
		for _, w := range windows(len(diffs), bake) {
			if first := len(diffs) - w.looks; signTest(diffs[first:]) < w.alpha*alpha {
				o.fail, o.text = true, j.besides(canaries[first:], controls[first:])
				return o
			}
		}
	}
	if len(diffs) == 0 {
		return o
	}
	o.text = j.besides(canaries, controls)
	switch {
	case len(diffs) < MinLooks:
		o.unsure = fmt.Sprintf("a pass needs %d looks", MinLooks)
	case median(diffs) > 0:
		o.unsure = "too few looks to tell whether that is chance"
	default:
		// What is bad now is no pass, however long it was good before.
		first := len(diffs) - max(suddenLooks, bake/4)
		if newest := diffs[max(0, first):]; median(newest) > 0 || lastOver(diffs, suddenLooks) {
			if median(newest) <= 0 {
				first = len(diffs) - suddenLooks
			}
			o.unsure = "but of late it is " + j.besides(canaries[first:], controls[first:])
		}
	}
	return o
}

// excess is how far a value is over the ratio to another, as a logarithm; over is above 0. A ratio below 1 asks for at least so much.
func excess(canary, control, ratio float64) float64 {
	if ratio < 1 {
		canary, control, ratio = control, canary, 1/ratio
	}
	switch limit := control * ratio; {
	case canary <= limit && (canary <= 0 || limit <= 0):
		return -1
	case canary > limit && limit <= 0:
		return math.Log(suddenFactor) // over nothing: bad, by how much cannot be said
	default:
		return math.Log(canary / limit)
	}
}

// signTest is how likely as many differences over 0, or more, are by chance. Looks that hang together count once: in blocks so long that one tells little about the next. Where the
// differences are far over 0 as against how they waver, MinLooks blocks stand for a longer row: however much looks hang together, all of a bake over the ratio is no chance.
func signTest(diffs []float64) float64 {
	mean, sd := stat.MeanStdDev(diffs, nil)
	r := correlation(diffs)
	length := int(math.Ceil((1 + r) / (1 - r)))
	if clear := mean > farOver*sd*math.Sqrt((1+r)/(1-r)/float64(len(diffs))); clear {
		length = min(length, max(1, len(diffs)/MinLooks))
	}
	blocks, over := 0, 0
	for block := range slices.Chunk(diffs, length) {
		if len(block) < length {
			break
		}
		blocks++
		if median(block) > 0 {
			over++
		}
	}
	return upperTail(float64(over), float64(blocks), 0.5)
}

// farOver is how many standard errors are far.
const farOver = 5

// correlation is that of neighbouring looks, 0 to 0.9: as many looks as (1+r)/(1-r) carry what one independent look would.
func correlation(diffs []float64) float64 {
	if len(diffs) < 4 {
		return 0
	}
	r := stat.Correlation(diffs[:len(diffs)-1], diffs[1:], nil)
	if math.IsNaN(r) {
		return 0
	}
	return max(0, min(r, 0.9))
}

// lastOver reports whether the last n differences are over 0.
func lastOver(diffs []float64, n int) bool {
	if len(diffs) < n {
		return false
	}
	return !slices.ContainsFunc(diffs[len(diffs)-n:], func(d float64) bool { return d <= 0 })
}

func median(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	return stat.Quantile(0.5, stat.LinInterp, sorted, nil)
}

func (j *judging) besides(canaries, controls []float64) string {
	c, b := median(canaries), median(controls)
	said := fmt.Sprintf("median %s against the control group's %s over %d looks", number(c), number(b), len(canaries))
	if b > 0 && c >= 0 {
		said = factor(c/b) + " the control group's: " + said
	}
	return said + ", " + j.allowedRatio()
}
