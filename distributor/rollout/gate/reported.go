package gate

import (
	"fmt"
	"math"
	"slices"
	"time"
)

const (
	// freshFor is how old a host's report may be to tell what it does now: three reports of an idle host missed. A longer `every` makes it three of those.
	freshFor = 3 * time.Minute
	// minFresh is the share of the canary's hosts that must have reported lately for a pass.
	minFresh = 0.9
	// MinProbes is how many probes of the canary a pass needs.
	MinProbes = 20
	// alphaHosts is how likely a comparison of hosts may be wrong, in all of a bake: it is shared out over its quarters.
	alphaHosts = 0.001
)

// The built-in gates.
const (
	refused       = "refused"
	rolledBack    = "rolled_back"
	drift         = "drift"
	restarts      = "restarts"
	probeFailures = "probe_failures"
	probeLatency  = "probe_latency"
)

// ofHosts reports whether the gate is about what state hosts are in, which one look at them all tells.
func (j *judging) ofHosts() bool {
	return j.g.Reported != "" && j.g.Reported != probeFailures && j.g.Reported != probeLatency
}

// ofCounts reports whether looks carry a number of bad events, and one of all.
func (j *judging) ofCounts() bool { return j.g.Of != "" || j.g.Reported == probeFailures }

// look is what hosts report now, as one look. Of probes, only those that reported since then count; zero: all.
func look(kind string, q Question, since func(Host) bool) Look {
	l := Look{}
	l.At = q.Now.UTC()
	switch kind {
	case probeLatency:
		l.Canary, l.Control = latency(q.Canary, since), latency(q.Control, since)
	case probeFailures:
		l.Canary, l.OfCanary = probes(q.Canary, since)
		l.Control, l.OfOthers = probes(q.Control, since)
	default:
		l.Canary, l.OfCanary = states(kind, q.Canary)
		l.Control, l.OfOthers = states(kind, q.Control)
	}
	return l
}

// states counts the hosts that are in a state, among those that reported at all.
func states(kind string, hosts []Host) (in, of *float64) {
	var k, n float64
	for _, h := range hosts {
		if h.At.IsZero() {
			continue
		}
		n++
		if kind == refused && h.Refused || kind == rolledBack && h.RolledBack || kind == drift && h.Drifted || kind == restarts && h.Restarts > 0 {
			k++
		}
	}
	return &k, &n
}

func probes(hosts []Host, since func(Host) bool) (bad, of *float64) {
	var k, n float64
	for _, h := range hosts {
		if since(h) {
			k, n = k+float64(h.Failures), n+float64(h.Probes)
		}
	}
	return &k, &n
}

func latency(hosts []Host, since func(Host) bool) *float64 {
	var list []float64
	for _, h := range hosts {
		if since(h) && h.LatencyMS > 0 && !math.IsInf(h.LatencyMS, 0) {
			list = append(list, h.LatencyMS)
		}
	}
	if len(list) == 0 {
		return nil
	}
	m := median(list)
	return &m
}

// noun is what a state gate counts, for people.
func noun(kind string) string {
	switch kind {
	case refused:
		return "refused it"
	case rolledBack:
		return "rolled back"
	case drift:
		return "drifted"
	}
	return "had processes that restarted"
}

// boundOfHosts holds the share of hosts against the bound. It is exact: all hosts are seen.
func (j *judging) boundOfHosts() opinion {
	now := look(j.g.Reported, j.q, nil)
	if *now.OfCanary == 0 {
		return opinion{}
	}
	out := func(l Look) bool {
		return l.Canary != nil && l.OfCanary != nil && *l.OfCanary > 0 && j.outside(*l.Canary / *l.OfCanary)
	}
	o := opinion{bad: out, text: fmt.Sprintf("%s of %s canary hosts %s, %s", grouped(*now.Canary), grouped(*now.OfCanary), noun(j.g.Reported), j.allowed(percent))}
	if !out(now) {
		return o
	}
	row := 1
	for _, l := range slices.Backward(j.looks[:max(0, len(j.looks)-1)]) {
		if l == nil || !out(*l) {
			break
		}
		row++
	}
	o.fail = row >= j.g.Fails
	o.shared = *now.OfOthers > 0 && j.outside(*now.Control / *now.OfOthers)
	if !o.fail {
		o.text += fmt.Sprintf("; bad %s of %d in a row that fail it", times(row), j.g.Fails)
		o.unsure = "out of the bound now"
	}
	return o
}

// compareHosts compares the shares by the exact test, at each quarter of the bake: with the look that ends it, or the next one that was heard.
func (j *judging) compareHosts() opinion {
	ratio := j.g.Compare.Ratio
	t, turned := compared{ratio}, ratio < 1
	if turned {
		t = compared{1 / ratio}
	}
	take := func(l Look) (c counts, ok bool) {
		if l.Canary == nil || l.OfCanary == nil || l.Control == nil || l.OfOthers == nil || *l.OfCanary <= 0 || *l.OfOthers <= 0 {
			return c, false
		}
		if turned {
			return counts{*l.Control, *l.OfOthers, *l.Canary, *l.OfCanary}, true
		}
		return counts{*l.Canary, *l.OfCanary, *l.Control, *l.OfOthers}, true
	}
	now := look(j.g.Reported, j.q, nil)
	latest, ok := take(now)
	if !ok {
		return opinion{}
	}
	o := opinion{bad: func(l Look) bool { c, ok := take(l); return ok && t.over(c) }}
	bake := wanted(j.q.Bake, j.e)
	alpha, quarter, row := 0.0, 1, 0
	for k := 1; k <= len(j.looks); k++ {
		l := j.looks[k-1]
		under := k == len(j.looks) // it is under way, and ends no quarter yet
		if under {
			l = &now
		}
		for ; !under && k >= quarterAt(quarter, bake); quarter++ {
			alpha += spendQuarter(quarter, alphaHosts)
		}
		if l == nil {
			continue
		}
		c, ok := take(*l)
		if !ok {
			continue
		}
		if row++; !t.over(c) {
			row = 0
		}
		if alpha > 0 && row >= j.g.Fails && t.p(c, 1, 1) < alpha {
			o.fail, o.text = true, j.tell(c, turned, false)
			return o
		}
		if !under {
			alpha = 0
		}
	}
	o.text = j.tell(latest, turned, false)
	if t.over(latest) && t.p(latest, 1, 1) < suspicious {
		o.unsure = "too few hosts to tell whether that is chance"
		if row < j.g.Fails {
			o.unsure = fmt.Sprintf("bad %s of %d in a row that fail it", times(row), j.g.Fails)
		}
	}
	return o
}

// coveredByReports reports whether hosts have been heard to the end of the bake: nearly all of the canary lately.
func (j *judging) coveredByReports() (text string, ok bool) {
	fresh := 0
	for _, h := range j.q.Canary {
		if !h.At.IsZero() && j.q.Now.Sub(h.At) <= max(freshFor, 3*j.e) && !h.At.Before(j.q.From) {
			fresh++
		}
	}
	n := len(j.q.Canary)
	text = fmt.Sprintf("%d of %d hosts reported lately", fresh, n)
	if left := j.q.Bake - j.q.Now.Sub(j.q.From); left > 0 {
		return text + fmt.Sprintf(", %s to go", left.Round(time.Second)), false
	}
	return text, n > 0 && float64(fresh) >= minFresh*float64(n)
}
