package gate

import (
	"fmt"
	"math"

	"gonum.org/v1/gonum/mathext"
)

// How sure a test must be. A gate may look often; what it may wrongly say in a whole bake is shared out over its looks, so that many looks raise no more false alarms than one.
const (
	// alphaSustained is for the tests at the quarters of a bake: of all that was heard since it began (half of it), and of the newest windows (the other half).
	alphaSustained = 0.0015
	wholeShare     = 0.5
	// alphaSudden is for the test of the newest looks, at each look: it demands twice the excess, and assumes that events come in bunches of burst.
	alphaSudden = 0.0005
	burst       = 5
	// suspicious is when a test is on the edge: no failure, and no pass either.
	suspicious = 0.05
	// MinEvents is how many events of the canary (and of the control group, if it is compared with) a pass needs.
	MinEvents = 100
)

// counts are events of the canary, and of the control group, over some looks.
type counts struct{ bad, all, badControl, allControl float64 }

func (c *counts) add(o counts) {
	c.bad, c.all, c.badControl, c.allControl = c.bad+o.bad, c.all+o.all, c.badControl+o.badControl, c.allControl+o.allControl
}

// test is an exact test of counts against a limit: whether more are bad than allowed.
type test interface {
	// p is how likely it is to see as many bad ones or more if just as many are bad as allowed, times a factor, with the counts divided by the dispersion.
	p(c counts, excess, dispersion float64) float64
	// over reports whether more are bad than allowed, sure or not.
	over(c counts) bool
	// dispersion estimates by how much more than chance the blocks differ.
	dispersion(blocks []counts) float64
}

// bounded: a share of at most limit is bad. Exact binomial.
type bounded struct{ limit float64 }

func (t bounded) over(c counts) bool { return c.all > 0 && c.bad > t.limit*c.all }

func (t bounded) p(c counts, excess, dispersion float64) float64 {
	// Twice a share of 60% is no share: then half-way to 100%.
	limit := min(t.limit*excess, 1-(1-t.limit)/excess)
	return upperTail(c.bad/dispersion, c.all/dispersion, limit)
}

func (t bounded) dispersion(blocks []counts) float64 {
	var sum counts
	for _, b := range blocks {
		sum.add(b)
	}
	share := (sum.bad + 0.5) / (sum.all + 1)
	chi := 0.0
	for _, b := range blocks {
		if b.all > 0 {
			d := b.bad - b.all*share
			chi += d * d / (b.all * share * (1 - share))
		}
	}
	return chi / float64(len(blocks)-1)
}

// compared: the canary's share is at most ratio times that of the control group. Given how many are bad in both together, how many of them are the canary's is binomial: exact for rare
// events, and on the safe side for others.
type compared struct{ ratio float64 }

func (t compared) over(c counts) bool {
	return c.all > 0 && c.allControl > 0 && c.bad*c.allControl > t.ratio*c.badControl*c.all
}

func (t compared) p(c counts, excess, dispersion float64) float64 {
	if c.all <= 0 || c.allControl <= 0 {
		return 1
	}
	w := t.ratio * excess * c.all
	return upperTail(c.bad/dispersion, (c.bad+c.badControl)/dispersion, w/(w+c.allControl))
}

func (t compared) dispersion(blocks []counts) float64 {
	var sum counts
	for _, b := range blocks {
		sum.add(b)
	}
	if sum.all <= 0 || sum.allControl <= 0 {
		return 1
	}
	odds := (sum.bad + 0.5) / sum.all / ((sum.badControl + 0.5) / sum.allControl)
	chi := 0.0
	for _, b := range blocks {
		m := b.bad + b.badControl
		if m <= 0 || b.all <= 0 || b.allControl <= 0 {
			continue
		}
		s := odds * b.all / (odds*b.all + b.allControl)
		d := b.bad - m*s
		chi += d * d / (m * s * (1 - s))
	}
	return chi / float64(len(blocks)-1)
}

// upperTail is the chance of k or more of n, each with chance p; k and n need not be whole.
func upperTail(k, n, p float64) float64 {
	switch {
	case k <= 0 || p >= 1:
		return 1
	case p <= 0:
		return 0
	case k > n:
		k = n
	}
	return mathext.RegIncBeta(k, n-k+1, p)
}

// span is a row of the newest looks that is tested beside all of them: what begins late, and then lasts, is little of the whole, and looks like dispersion there.
type span struct {
	looks  int
	alpha  float64 // its share of alphaSustained
	excess float64 // a short one demands some excess, since rates waver
}

// windows are those that fit into k looks.
func windows(k, bake int) []span {
	var list []span
	for _, w := range []span{{bake, 0, 1}, {(bake + 1) / 2, 0, 1}, {(bake + 3) / 4, 0, wavering}} {
		if w.looks < k && w.looks >= leastBlocks {
			list = append(list, w)
		}
	}
	for i := range list {
		list[i].alpha = (1 - wholeShare) / float64(len(list))
	}
	return list
}

// finding is what the tests say of a row of looks.
type finding struct {
	at   int     // 1-based: the look at which it failed; 0: it did not
	from int     // 1-based: the first of the looks that the failing test rests on
	edge bool    // the newest test of all looks is on the edge, or one of the newest looks
	disp float64 // dispersion of the newest test of all looks
}

// examine runs the tests over looks as they came, one counts for each; a missing one is zero. Whatever comes later changes nothing about an earlier failure. bake is how many looks fill it.
func examine(t test, looks []counts, bake, fails int) finding {
	var f finding
	var all counts
	f.disp = 1
	quarter, next := 1, quarterAt(1, bake)
	row := 0
	for k := 1; k <= len(looks); k++ {
		c := looks[k-1]
		all.add(c)
		switch {
		case c.all <= 0:
		case t.over(c):
			row++
		default:
			row = 0
		}
		if first := sudden(t, looks[:k], spend(k, bake, alphaSudden), 2); first > 0 && row >= fails {
			f.at, f.from = k, first
			return f
		}
		if k < next {
			continue
		}
		alpha := 0.0
		for ; k >= next; next = quarterAt(quarter, bake) {
			alpha += spendQuarter(quarter, alphaSustained)
			quarter++
		}
		whole := wholeShare * alpha
		f.disp = spread(t, looks[:k], whole)
		p := t.p(all, 1, f.disp)
		if p < whole && row >= fails {
			f.at, f.from = k, 1
			return f
		}
		f.edge = p < suspicious
		for _, w := range windows(k, bake) {
			var newest counts
			for _, c := range looks[k-w.looks : k] {
				newest.add(c)
			}
			disp := spread(t, looks[k-w.looks:k], w.alpha*alpha)
			if row >= fails && t.p(newest, w.excess, disp) < w.alpha*alpha {
				f.at, f.from = k, k-w.looks+1
				return f
			}
			f.edge = f.edge || t.p(newest, 1, disp) < suspicious
		}
	}
	f.edge = f.edge || sudden(t, looks, suspicious/10, 1) > 0
	return f
}

// sudden tests the newest look, the newest two, and the newest four, against what is allowed times excess, and gives the first look of those that fail; 0: none do.
func sudden(t test, looks []counts, alpha, excess float64) int {
	var last counts
	for i := range min(4, len(looks)) {
		at := len(looks) - 1 - i
		last.add(looks[at])
		if i == 2 || last.all <= 0 {
			continue
		}
		if t.p(last, excess, burst) < alpha/3 {
			return at + 1
		}
	}
	return 0
}

// quarterAt is the look at which the i-th quarter of a bake ends.
func quarterAt(i, bake int) int { return max(1, (i*bake+3)/4) }

// spend shares alpha out over looks: half over those of the bake alike, half over those after it, ever less.
func spend(k, bake int, alpha float64) float64 {
	if k <= bake {
		return alpha / 2 / float64(bake)
	}
	return alpha / 2 * float64(bake) / (float64(k) * float64(k-1))
}

// spendQuarter shares alpha out over quarters of a bake: the fourth has the most, those after it a quarter together.
func spendQuarter(i int, alpha float64) float64 {
	switch {
	case i < 4:
		return alpha / 8
	case i == 4:
		return alpha * 3 / 8
	}
	return alpha / 4 * 4 / (float64(i) * float64(i-1))
}

// spread is the dispersion that a test at level alpha assumes: what blocks of looks show, and more, the fewer blocks there are.
func spread(t test, looks []counts, alpha float64) float64 {
	n := blocksOf(len(looks))
	if n < leastBlocks {
		return burst
	}
	blocks := make([]counts, n)
	for i, c := range looks {
		blocks[i*n/len(looks)].add(c)
	}
	return max(1, t.dispersion(blocks)*widened(n, alpha))
}

// leastBlocks is how many it takes to see a dispersion at all.
const leastBlocks = 4

// blocksOf is how many blocks so many looks make: long ones, since looks that are near one another hang together, and enough of them.
func blocksOf(looks int) int { return min(looks, max(8, looks/5)) }

// boundOfCounts tests the share of bad events against the bound. At least min good ones is at most 1-min others.
func (j *judging) boundOfCounts() opinion {
	if j.g.Max != nil {
		o := j.testCounts(bounded{*j.g.Max}, false)
		if o.fail || j.g.Min == nil {
			return o
		}
	}
	return j.testCounts(bounded{1 - *j.g.Min}, true)
}

// compareCounts tests the canary's share against the control group's. A ratio below 1 asks for at least so much: then the control group takes the canary's place.
func (j *judging) compareCounts() opinion {
	if j.g.Compare.Ratio < 1 {
		return j.testCounts(compared{1 / j.g.Compare.Ratio}, true)
	}
	return j.testCounts(compared{j.g.Compare.Ratio}, false)
}

// testCounts examines the looks. Turned: what is counted is the other events (bound), or the control group (comparison).
func (j *judging) testCounts(t test, turned bool) opinion {
	_, isBound := t.(bounded)
	take := func(l *Look) counts {
		if isBound && !j.goodCanary(l) || !isBound && !j.good(l) {
			return counts{}
		}
		c := counts{bad: *l.Canary, all: *l.OfCanary}
		if l.Control != nil && l.OfOthers != nil {
			c.badControl, c.allControl = *l.Control, *l.OfOthers
		}
		switch {
		case turned && isBound:
			c.bad, c.badControl = c.all-c.bad, c.allControl-c.badControl
		case turned:
			c = counts{c.badControl, c.allControl, c.bad, c.all}
		}
		c.bad, c.badControl = max(0, min(c.bad, c.all)), max(0, min(c.badControl, c.allControl))
		return c
	}
	looks := make([]counts, len(j.looks))
	var all counts
	for i, l := range j.looks {
		looks[i] = take(l)
		all.add(looks[i])
	}
	o := opinion{bad: func(l Look) bool { return t.over(take(&l)) }}
	if all.all <= 0 {
		return o
	}
	f := examine(t, looks, wanted(j.q.Bake, j.e), j.g.Fails)
	if f.at > 0 {
		all = counts{}
		for _, c := range looks[f.from-1 : f.at] {
			all.add(c)
		}
	}
	o.fail = f.at > 0
	o.text = j.tell(all, turned, isBound)
	if isBound && o.fail {
		o.shared = all.allControl > 0 && t.over(counts{bad: all.badControl, all: all.allControl})
	}
	switch {
	case o.fail:
		return o
	case all.all < j.minEvents(), !isBound && all.allControl < j.minEvents():
		o.unsure = fmt.Sprintf("a pass needs %.0f %s", j.minEvents(), j.events())
		if !isBound {
			o.unsure += " of each"
		}
	case f.edge:
		o.unsure = "too few events to tell whether that is chance"
	}
	return o
}

// tell says what was counted.
func (j *judging) tell(c counts, turned, isBound bool) string {
	switch {
	case isBound && turned:
		c.bad = c.all - c.bad
		fallthrough
	case isBound:
		return fmt.Sprintf("%s of %s %s, %s", percent(c.bad/c.all), grouped(c.all), j.events(), j.allowed(percent))
	case turned:
		c = counts{c.badControl, c.allControl, c.bad, c.all}
	}
	ratio := c.bad / c.all / (c.badControl / c.allControl)
	said := fmt.Sprintf("%s of %s %s against the control group's %s of %s", percent(share(c.bad, c.all)), grouped(c.all), j.events(), percent(share(c.badControl, c.allControl)), grouped(c.allControl))
	if !math.IsNaN(ratio) && !math.IsInf(ratio, 0) {
		said = factor(ratio) + " the control group's: " + said
	}
	return said + ", " + j.allowedRatio()
}

// events is what is counted, for people.
func (j *judging) events() string {
	switch {
	case j.ofHosts():
		return "hosts"
	case j.g.Reported != "":
		return "probes"
	}
	return "events"
}

func (j *judging) minEvents() float64 {
	if j.g.Reported != "" {
		return MinProbes
	}
	return MinEvents
}

func (j *judging) allowedRatio() string {
	if j.g.Compare.Ratio < 1 {
		return "at least " + factor(j.g.Compare.Ratio) + " needed"
	}
	return "at most " + factor(j.g.Compare.Ratio) + " allowed"
}

func share(k, n float64) float64 {
	if n <= 0 {
		return 0
	}
	return k / n
}
