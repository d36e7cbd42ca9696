package main

import (
	"fmt"
	"math"
	"strings"

	"github.com/muster-config/muster/distributor/rollout/gate"
)

var (
	sizes   = []int{20, 200, 2000}
	bases   = []float64{0.001, 0.01}
	effects = []float64{1, 1.2, 2, 10}
)

// section is one gate's table.
type section struct {
	kind  kind
	title string
	about string
	ratio float64
	bases []float64
}

var sections = []section{
	{comparedCounts, "Counts beside the control group", "`prometheus` counts bad requests, `of` all, `compare: ratio: 1.5`. An exact test (conditional binomial).", 1.5, bases},
	{boundedCounts, "Counts against a bound", "`prometheus` counts bad requests, `of` all, `max` is twice the base rate. An exact test (binomial). Twice as bad is just what is allowed here.", 2, bases},
	{comparedValues, "Latency beside the control group", "`prometheus` gives a latency, `compare: ratio: 1.5`. A sign test.", 1.5, []float64{0}},
}

const intro = `# How often gates are wrong

Written by ` + "`make rates`" + `: %s simulated rollouts for each row, judged by the code that judges real ones (distributor/rollout/gate). In brackets: exact 95%% intervals. %s

A rollout takes two waves: 5%% of the hosts with a bake of 10 minutes, and 25%% with one of 30, a look every 30 s. A wave passes, fails, or is inconclusive: then its bake is extended, twice at
most, and then a person is asked (**held**). The world is not kind to gates:

- 20 requests a second on each host, 8 to 32 with the time of day.
- Bad requests come in bunches, 3 on average: a dispersion of 5.
- The rate of each host wavers by 30%% (standard deviation), that of all hosts together by 20%% more, and both hang together over time: 0.8 from one look to the next.
- Hosts differ from one another by 10%% for good.

**Stopped** at 1 × is a false alarm. At more it is what a gate is for: in the first wave, or in the second, **later**. **Missed** went through both waves. What is 1.2 × as bad is within what these
gates allow, and missing it is right. What a gate may be wrong is shared out over the looks of one gate in one wave, or in the watch: two gates, or two waves, may be wrong twice. Where the first wave has too little to go by for a factor, the smallest that it can be trusted to see stands behind: 19 of 20 releases that bad do not pass it.
`

func page(n int) string {
	var b strings.Builder
	fmt.Fprintf(&b, intro, grouped(n), "The same numbers come out each time.")
	for _, s := range sections {
		s.write(&b, n)
	}
	writeLate(&b, n)
	writeApart(&b, n)
	writeDetectable(&b)
	return b.String()
}

// cells are the section's cases.
func (s section) cells() []cell {
	var list []cell
	for _, base := range s.bases {
		if s.kind == comparedValues {
			base = 1
		}
		for _, hosts := range sizes {
			for _, effect := range effects {
				list = append(list, cell{s.kind, hosts, base, effect, s.ratio, 0.1, 0})
			}
		}
	}
	return list
}

func (s section) write(b *strings.Builder, n int) {
	fmt.Fprintf(b, "\n## %s\n\n%s\n\n", s.title, s.about)
	b.WriteString("| base | hosts | in wave 1 | as bad | stopped, % | in wave 1 | later | held, % | missed, % | |\n|---|---|---|---|---|---|---|---|---|---|\n")
	for _, c := range s.cells() {
		t := run(c, n)
		base := pct(c.base) + "%"
		if c.kind == comparedValues {
			base = "–"
		}
		note := ""
		if seen := gate.Detectable(c.gate(), c.size()); c.effect > c.ratio && seen > c.effect {
			note = "the first wave sees " + atLeast(seen)
		}
		missed := share(t.ends[passed], n)
		if c.effect <= c.ratio {
			missed = "–"
		}
		fmt.Fprintf(b, "| %s | %s | %d | %v × | %s | %s | %s | %s | %s | %s |\n", base, grouped(c.hosts), c.size().Canary, c.effect, share(t.stopped(), n), pct(float64(t.ends[stoppedFirst])/float64(n)),
			pct(float64(t.ends[stoppedLater])/float64(n)), share(t.ends[held], n), missed, note)
	}
}

// late are cells of a release that is good for a while.
func late() []cell {
	var list []cell
	for _, s := range sections {
		base := s.bases[len(s.bases)-1]
		if s.kind == comparedValues {
			base = 1
		}
		for _, hosts := range []int{200, 2000} {
			for _, effect := range []float64{3, 10} {
				for _, begins := range []float64{0.5, 0.75} {
					list = append(list, cell{s.kind, hosts, base, effect, s.ratio, 0.1, begins})
				}
			}
		}
	}
	return list
}

func writeLate(b *strings.Builder, n int) {
	b.WriteString(`
## Bad after a while

A release that is good for the first half of a bake, or three quarters, and bad from then on, in each wave. Base 1%; the gates of above.

| gate | hosts | as bad | from | stopped, % | in wave 1 | later | held, % | missed, % |
|---|---|---|---|---|---|---|---|---|
`)
	names := map[kind]string{comparedCounts: "counts, beside the control group", boundedCounts: "counts, a bound", comparedValues: "latency"}
	from := map[float64]string{0.5: "half", 0.75: "three quarters"}
	for _, c := range late() {
		t := run(c, n)
		fmt.Fprintf(b, "| %s | %s | %v × | %s | %s | %s | %s | %s | %s |\n", names[c.kind], grouped(c.hosts), c.effect, from[c.late], share(t.stopped(), n), pct(float64(t.ends[stoppedFirst])/float64(n)),
			pct(float64(t.ends[stoppedLater])/float64(n)), share(t.ends[held], n), share(t.ends[passed], n))
	}
}

// apart are cells of a good release on hosts that differ from one another.
func apart() []cell {
	var list []cell
	for _, differ := range []float64{0.1, 0.2, 0.3} {
		for _, ratio := range []float64{1.5, 2, 3} {
			list = append(list, cell{comparedCounts, 20, 0.01, 1, ratio, differ, 0})
		}
	}
	return list
}

func writeApart(b *strings.Builder, n int) {
	b.WriteString(`
## Hosts that differ

One canary among 20 hosts that is always worse than the others looks like a bad release: nothing that is heard during a bake tells the two apart. The ratio has to be above what hosts differ by.
A good release, counts beside the control group, base 1%, 20 hosts:

| hosts differ by | ratio | false alarms, % | held, % |
|---|---|---|---|
`)
	for _, c := range apart() {
		t := run(c, n)
		fmt.Fprintf(b, "| %v%% | %v | %s | %s |\n", c.apart*100, c.ratio, share(t.stopped(), n), share(t.ends[held], n))
	}
}

func writeDetectable(b *strings.Builder) {
	b.WriteString(`
## What a gate cannot see

The smallest factor that the first wave can be trusted to see (19 of 20 such releases do not pass it), for counts beside the control group with a ratio of 1.5: by hosts, requests a second on each, and
base rate. ` + "`muster rollout simulate`" + ` says the same of a policy and an inventory. A dash: at no factor.

| hosts | in the first wave | requests/s | base 0.01% | base 0.1% | base 1% | base 5% |
|---|---|---|---|---|---|---|
`)
	for _, hosts := range sizes {
		for _, events := range []float64{0.1, 1, 10, 100, 1000} {
			c := cell{kind: comparedCounts, hosts: hosts, ratio: 1.5}
			fmt.Fprintf(b, "| %s | %d | %v |", grouped(hosts), c.size().Canary, events)
			for _, base := range []float64{0.0001, 0.001, 0.01, 0.05} {
				s := c.size()
				s.Events, s.Base = events, base
				fmt.Fprintf(b, " %s |", atLeast(gate.Detectable(c.gate(), s)))
			}
			b.WriteString("\n")
		}
	}
}

func atLeast(factor float64) string {
	switch {
	case math.IsInf(factor, 1):
		return "–"
	case factor >= 10:
		return fmt.Sprintf("%.0f ×", math.Ceil(factor))
	}
	return fmt.Sprintf("%.1f ×", math.Ceil(factor*10)/10)
}

func grouped(n int) string {
	s := fmt.Sprint(n)
	if len(s) > 3 {
		s = s[:len(s)-3] + "," + s[len(s)-3:]
	}
	return s
}
