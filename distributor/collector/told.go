package collector

import (
	"slices"
	"strconv"
	"time"

	"github.com/muster-config/muster/distributor/manifest"
)

// maxMoves bounds the moves that are remembered of a cohort.
const maxMoves = 200

// move is a head that told other hosts of a cohort's ring to take an epoch than the one before it.
type move struct {
	at            time.Time
	before, after []manifest.Assignment // of the ring: neither holds nor labels
}

// ring are the assignments that go by a host's place on the ring, and what everybody else is to run.
func ring(m *manifest.Manifest) []manifest.Assignment {
	return slices.DeleteFunc(slices.Clone(m.Assign), func(a manifest.Assignment) bool { return len(a.Hosts) > 0 || len(a.Match) > 0 })
}

// ringEpoch is what a ring tells a host to run; 0 if nothing.
func ringEpoch(ring []manifest.Assignment, host string) uint64 {
	for _, a := range ring {
		if a.Below == "" {
			return a.Epoch
		}
		if below, err := strconv.ParseUint(a.Below, 16, 64); err == nil && manifest.Point(a.Salt, host) < below {
			return a.Epoch
		}
	}
	return 0
}

// note remembers what a new head changes for the hosts of the ring. Under Collector.mu.
func (co *cohort) note(next *manifest.View, now time.Time) {
	if co.view == nil {
		return // whom an earlier head told what is not known: all count from the first of them
	}
	m := move{now, ring(&co.view.Manifest), ring(&next.Manifest)}
	if slices.EqualFunc(m.before, m.after, func(a, b manifest.Assignment) bool {
		return a.Below == b.Below && a.Salt == b.Salt && a.Epoch == b.Epoch
	}) {
		return
	}
	co.moves = append(co.moves, m)
	if over := len(co.moves) - maxMoves; over > 0 {
		co.moves = slices.Clone(co.moves[over:])
	}
}

// toldAt is when a host was told to take an epoch. A rollout tells one host after the other: who is told last is not late because the first was told long ago.
// Under Collector.mu.
func (co *cohort) toldAt(epoch uint64, host string) time.Time {
	first := co.assigned[epoch]
	for _, m := range slices.Backward(co.moves) {
		if m.at.Before(first) {
			break
		}
		if ringEpoch(m.after, host) == epoch && ringEpoch(m.before, host) != epoch {
			return m.at
		}
	}
	return first
}
