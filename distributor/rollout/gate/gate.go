// Package gate asks the health conditions of a rollout and judges them. Judging is pure (Judge); a Keeper asks Prometheus and HTTP endpoints beside it. What it cannot know it calls
// inconclusive: no data is never a pass.
//
// A gate is one of four kinds.
//
//   - A bound on a value: prometheus or http with min or max. `fails` bad looks in a row are a failure.
//   - Counts: prometheus counts the bad events and `of` all events of one look, both over [$every]: sum(increase(errors_total[$every]) * $canary). An exact test (binomial against a
//     bound, conditional binomial against the control group) with the dispersion that the looks themselves show.
//   - Values of the canary and of the concurrent control group: prometheus or http with compare and no `of`. A sign test over looks far enough apart to be independent.
//   - What agents report: reported. The state of the hosts now, of all of the canary.
//
// A gate with a bound and compare needs both to hold; where the control group is out of the bound as well and the canary is no worse, it is not the canary's fault: inconclusive. Where no
// control group is left, the bound alone counts. What a gate may be wrong about a good release is for itself in one wave (or the watch), not for a rollout.
package gate

import (
	"context"
	"strings"
	"time"

	"github.com/muster-config/muster/distributor/manifest"
)

// Question is what a rollout wants to know: how the hosts that run Epoch do since From, beside those that keep Baseline.
type Question struct {
	Cohort   string
	Wave     int  // 1-based; one above the last wave: while a finished rollout is watched; 0: before it starts, when only broken gates are looked for
	Last     bool // the last wave, or the time after it: no control group may be left
	Epoch    uint64
	Baseline uint64
	Gates    map[string]manifest.Gate
	From     time.Time     // begin of the time to be judged: of the bake, or of the wave while it is told
	Bake     time.Duration // how much of it must be covered for a pass
	Now      time.Time
	Canary   []Host // run or were told Epoch
	Control  []Host // keep Baseline
}

// Host is what a host reported, for the built-in gates.
type Host struct {
	Name       string
	At         time.Time // of the report, as the collector received it
	Refused    bool
	RolledBack bool
	Drifted    bool
	Restarts   int     // of its processes since From, as far as known
	Probes     int     // probes since its last report
	Failures   int     // of them
	LatencyMS  float64 // median of them; 0 if unknown
}

// CannotAsk begins what is said of a gate that whoever asks cannot ask at all, since its own settings do not say where. Another controller may be able to.
const CannotAsk = "this controller cannot ask it: "

// Unasked reports whether a verdict says that.
func Unasked(v manifest.GateVerdict) bool { return strings.HasPrefix(v.Why, CannotAsk) }

// Asker answers questions. It never waits for the network: what was not heard yet is inconclusive, and Changed is closed when there is more to hear.
//
// Bake is the time that must be covered, extended or not: when a bake is extended, ask with the same From and Bake and a later Now. It passes as soon as the newest looks, as many as
// fill a bake, are there. Another From, Epoch or Wave is another question: what was heard for the old one counts no more.
type Asker interface {
	Judge(ctx context.Context, q Question) []manifest.GateVerdict // sorted by gate, one for each
	Changed() <-chan struct{}
}
