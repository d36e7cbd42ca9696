package main

import (
	"math"
	"math/rand/v2"
	"time"

	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/rollout/gate"
	"gonum.org/v1/gonum/stat/distuv"
)

// The world that rollouts are simulated in. docs/rates.md says the same in words.
const (
	traffic  = 20.0 // requests of one host in a second, over a day
	swing    = 0.6  // by which part of that it rises and falls with the time of day
	bunch    = 3.0  // bad requests come in bunches of so many on average (retries): a dispersion of 5
	unsteady = 0.3  // a host's own rate wavers by so much of itself (standard deviation)
	common   = 0.2  // and the rate of all hosts together by so much
	memory   = 0.8  // correlation of that wavering from one look to the next
	every    = 30 * time.Second
)

// waves of the simulated rollout: the share of hosts, and the bake.
var waves = []struct {
	share float64
	bake  time.Duration
}{{0.05, 10 * time.Minute}, {0.25, 30 * time.Minute}}

// kind is a way to write a gate.
type kind int

const (
	comparedCounts kind = iota // of, compare: ratio
	boundedCounts              // of, max
	comparedValues             // compare: ratio, of latencies
)

// cell is one case of the table.
type cell struct {
	kind   kind
	hosts  int
	base   float64 // share of requests that are bad; 1 for latencies
	effect float64 // what the new release multiplies it by
	ratio  float64 // that the gate allows: of the control group, or max as a multiple of base
	apart  float64 // by how much hosts differ from one another for good (standard deviation, as a share)
	late   float64 // the part of a bake after which it begins to be bad: 0, at once
}

// end is how a simulated rollout ended.
type end int

const (
	stoppedFirst end = iota // by the gate, in the first wave
	stoppedLater
	held // a person was asked: inconclusive through two extensions
	passed
)

// gate is the cell's gate.
func (c cell) gate() manifest.Gate {
	g := manifest.Gate{Prometheus: "sum(increase(bad_total[$every]) * $canary)", Every: every.String(), Fails: 1, NoData: "wait"}
	if c.kind != comparedValues {
		g.Of = "sum(increase(all_total[$every]) * $canary)"
	}
	if c.kind == boundedCounts {
		limit := c.ratio * c.base
		g.Max = &limit
	} else {
		g.Compare = &manifest.GateCompare{Ratio: c.ratio}
	}
	return g
}

// size is what a gate gets to see of the first wave.
func (c cell) size() gate.Size {
	n := canaries(c.hosts, waves[0].share)
	return gate.Size{Canary: n, Control: c.hosts - n, Events: traffic, Base: c.base, Bake: waves[0].bake}
}

func canaries(hosts int, share float64) int { return max(1, int(math.Ceil(share*float64(hosts)))) }

// group is the canary or the control group: some hosts, whose own rates waver.
type group struct {
	hosts  float64
	differ float64 // how its hosts differ from the average, for good
	waver  float64 // logarithm of how they do now
}

// world is one simulated rollout's.
type world struct {
	rng     *rand.Rand
	c       cell
	effect  float64 // now
	phase   float64 // of the day
	shared  float64
	quality [2]group
}

func newWorld(rng *rand.Rand, c cell, canary int) *world {
	w := &world{rng: rng, c: c, phase: rng.Float64() * 2 * math.Pi}
	for i, n := range []int{canary, c.hosts - canary} {
		g := group{hosts: float64(n), differ: 1}
		if c.apart > 0 && n > 0 {
			// The mean of n gamma-distributed hosts is gamma-distributed.
			shape := g.hosts / (c.apart * c.apart)
			g.differ = distuv.Gamma{Alpha: shape, Beta: shape, Src: rng}.Rand()
		}
		g.waver = rng.NormFloat64() * unsteady / math.Sqrt(max(1, g.hosts))
		w.quality[i] = g
	}
	w.shared = rng.NormFloat64() * common
	return w
}

// step takes the time of one look.
func (w *world) step() {
	fresh := math.Sqrt(1 - memory*memory)
	w.phase += 2 * math.Pi * every.Hours() / 24
	w.shared = memory*w.shared + fresh*common*w.rng.NormFloat64()
	for i := range w.quality {
		g := &w.quality[i]
		g.waver = memory*g.waver + fresh*unsteady/math.Sqrt(max(1, g.hosts))*w.rng.NormFloat64()
	}
}

// counts are the requests of a group in a look, and the bad ones of them.
func (w *world) counts(i int, effect float64) (bad, all float64) {
	g := w.quality[i]
	all = w.poisson(g.hosts * traffic * every.Seconds() * (1 + swing*math.Sin(w.phase)))
	rate := min(1, w.c.base*effect*g.differ*math.Exp(g.waver+w.shared))
	bunches := w.poisson(all * rate / bunch)
	if bunches == 0 {
		return 0, all
	}
	// The sum of bunches geometric numbers, each 1 at least and bunch on average: a gamma mixture of Poisson numbers.
	more := w.poisson(distuv.Gamma{Alpha: bunches, Beta: 1 / (bunch - 1), Src: w.rng}.Rand())
	return min(all, bunches+more), all
}

func (w *world) poisson(mean float64) float64 {
	if mean <= 0 {
		return 0
	}
	if mean > 1e5 { // the same, faster
		return max(0, math.Round(mean+math.Sqrt(mean)*w.rng.NormFloat64()))
	}
	return distuv.Poisson{Lambda: mean, Src: w.rng}.Rand()
}

// latency is what a group's latency reads in a look.
func (w *world) latency(i int, effect float64) float64 {
	g := w.quality[i]
	busy := 1 + 0.3*math.Sin(w.phase)
	return 20 * effect * g.differ * busy * math.Exp(g.waver+w.shared+0.1*w.rng.NormFloat64()/math.Sqrt(max(1, g.hosts)))
}

// look is what the gate hears.
func (w *world) look(at time.Time) gate.Look {
	n := new([4]float64)
	var l gate.Look
	l.At = at
	if w.c.kind == comparedValues {
		n[0], n[1] = w.latency(0, w.effect), w.latency(1, 1)
		l.Canary, l.Control = &n[0], &n[1]
		return l
	}
	n[0], n[1] = w.counts(0, w.effect)
	n[2], n[3] = w.counts(1, 1)
	l.Canary, l.OfCanary, l.Control, l.OfOthers = &n[0], &n[1], &n[2], &n[3]
	return l
}

var begin = time.Date(2026, 11, 30, 8, 0, 0, 0, time.UTC)

// simulate runs one rollout through its waves.
func simulate(rng *rand.Rand, c cell) end {
	gates := map[string]manifest.Gate{"gate": c.gate()}
	control := make([]gate.Host, 1)
	for i, wave := range waves {
		w := newWorld(rng, c, canaries(c.hosts, wave.share))
		q := gate.Question{Cohort: "c", Wave: i + 1, Epoch: 2, Baseline: 1, Gates: gates, From: begin, Bake: wave.bake, Control: control}
		looks := make([]gate.Look, 0, 3*int(wave.bake/every))
		outcome := manifest.OutcomeInconclusive
		// The bake, and twice as long again for what is inconclusive; it passes as soon as it does.
		for quarter := 4; quarter <= 12 && outcome == manifest.OutcomeInconclusive; quarter++ {
			q.Now = begin.Add(wave.bake * time.Duration(quarter) / 4)
			for {
				at := begin.Add(time.Duration(len(looks)+1)*every - 5*time.Second)
				if at.After(q.Now) {
					break
				}
				w.step()
				if w.effect = 1; at.Sub(begin) > time.Duration(c.late*float64(wave.bake)) {
					w.effect = c.effect
				}
				looks = append(looks, w.look(at))
			}
			outcome = gate.Judge(q, map[string]gate.Heard{"gate": {Looks: looks}})[0].Outcome
		}
		switch {
		case outcome == manifest.OutcomeFail && i == 0:
			return stoppedFirst
		case outcome == manifest.OutcomeFail:
			return stoppedLater
		case outcome != manifest.OutcomePass:
			return held
		}
	}
	return passed
}
