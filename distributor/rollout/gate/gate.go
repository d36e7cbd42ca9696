// Package gate asks the health conditions of a rollout and judges them. Judging is pure (Judge); a Keeper asks Prometheus and HTTP endpoints beside it. What it cannot know it calls
// inconclusive: no data is never a pass.
package gate

import (
	"context"
	"time"

	"github.com/muster-config/muster/distributor/manifest"
)

// Question is what a rollout wants to know: how the hosts that run Epoch do since From, beside those that keep Baseline.
type Question struct {
	Cohort   string
	Wave     int // 1-based; one above the last wave: while a finished rollout is watched; 0: before it starts, when only broken gates are looked for
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

// Asker answers questions. It never waits for the network: what was not heard yet is inconclusive, and Changed is closed when there is more to hear.
type Asker interface {
	Judge(ctx context.Context, q Question) []manifest.GateVerdict // sorted by gate, one for each
	Changed() <-chan struct{}
}
