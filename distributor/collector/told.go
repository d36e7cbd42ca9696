package collector

import (
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/muster-config/muster/distributor/manifest"
)

// maxMoves bounds the moves that are remembered of a cohort.
const maxMoves = 200

// move is a head that told other hosts of a cohort to take an epoch than the one before it, or put overrides on hosts, or took them from these.
type move struct {
	at            time.Time
	before, after []manifest.Assignment // but for holds
	was, is       []manifest.Ending
	ended         []manifest.Override // by a person
	set           []grant
}

// takesOut says whether the head took a host out of an override.
func (m *move) takesOut(host string) bool {
	out := func(list []manifest.Ending, id string) bool {
		return slices.ContainsFunc(list, func(e manifest.Ending) bool {
			below, err := strconv.ParseUint(e.Below, 16, 64)
			return e.Override == id && (e.Below == "" || err == nil && manifest.Point(e.Salt, host) < below)
		})
	}
	return slices.ContainsFunc(m.is, func(e manifest.Ending) bool { return out(m.is, e.Override) && !out(m.was, e.Override) }) ||
		slices.ContainsFunc(m.ended, func(o manifest.Override) bool { return len(o.Hosts) == 0 || slices.Contains(o.Hosts, host) })
}

// takesIn says whether the head put an override on a host.
func (m *move) takesIn(host string) bool {
	return slices.ContainsFunc(m.set, func(g grant) bool { return g.covers(host) })
}

// grant is an override that a head puts on hosts.
type grant struct {
	all bool
	to  []string // if not all
	not []string // those that had it
}

func (g *grant) covers(host string) bool {
	return (g.all || slices.Contains(g.to, host)) && !slices.Contains(g.not, host)
}

// setBy are the overrides that a head puts on hosts that the one before it did not put them on.
func setBy(before, after *manifest.View) (list []grant) {
	for _, o := range after.Overrides {
		same := func(b manifest.VerifiedOverride) bool { return b.ID == o.ID && b.Ended == nil }
		if o.Ended != nil || slices.ContainsFunc(before.Overrides, func(b manifest.VerifiedOverride) bool { return same(b) && len(b.Hosts) == 0 }) {
			continue
		}
		g := grant{all: len(o.Hosts) == 0, to: o.Hosts}
		for _, b := range before.Overrides {
			if same(b) {
				g.not = append(g.not, b.Hosts...)
			}
		}
		if g.all || slices.ContainsFunc(g.to, g.covers) {
			list = append(list, g)
		}
	}
	return list
}

// endedBy are the overrides that a head ends and the one before it did not.
func endedBy(before, after *manifest.View) (list []manifest.Override) {
	for _, o := range after.Overrides {
		known := func(b manifest.VerifiedOverride) bool { return b.ID == o.ID && b.Ended != nil }
		if o.Ended != nil && !slices.ContainsFunc(before.Overrides, known) {
			list = append(list, o.Override)
		}
	}
	return list
}

// waves are the assignments that are no holds.
func waves(m *manifest.Manifest) []manifest.Assignment {
	return slices.DeleteFunc(slices.Clone(m.Assign), func(a manifest.Assignment) bool { return len(a.Hosts) > 0 })
}

// waveEpoch is what waves tell a host to run; 0 if nothing.
func waveEpoch(waves []manifest.Assignment, host *manifest.Host) uint64 {
	for i := range waves {
		switch a := &waves[i]; {
		case a.Below != "":
			if below, err := strconv.ParseUint(a.Below, 16, 64); err == nil && manifest.Point(a.Salt, host.Name) < below {
				return a.Epoch
			}
		case len(a.Match) > 0:
			if matches(a.Match, host.Labels) {
				return a.Epoch
			}
		default:
			return a.Epoch
		}
	}
	return 0
}

func matches(want, have map[string]string) bool {
	for k, v := range want {
		if got, ok := have[k]; !ok || got != v {
			return false
		}
	}
	return true
}

// note remembers what a new head changes for hosts. Under Collector.mu.
func (co *cohort) note(next *manifest.View, now time.Time) {
	if co.view == nil {
		return // whom an earlier head told what is not known: all count from the first of them
	}
	m := move{
		at: now, before: waves(&co.view.Manifest), after: waves(&next.Manifest), was: co.view.Manifest.Rollout.Endings, is: next.Manifest.Rollout.Endings, ended: endedBy(co.view, next), set: setBy(co.view, next),
	}
	if len(m.ended) == 0 && len(m.set) == 0 && slices.Equal(m.was, m.is) && slices.EqualFunc(m.before, m.after, func(a, b manifest.Assignment) bool {
		return a.Below == b.Below && a.Salt == b.Salt && a.Epoch == b.Epoch && maps.Equal(a.Match, b.Match)
	}) {
		return
	}
	co.moves = append(co.moves, m)
	if over := len(co.moves) - maxMoves; over > 0 {
		co.moves = slices.Clone(co.moves[over:])
	}
}

// toldAt is when a host was told to take an epoch. A rollout tells one host after the other: who is told last is not late because the first was told long ago. Nor is one who comes to it
// from under an override, which ended a moment ago, or by one.
// Under Collector.mu.
func (co *cohort) toldAt(epoch uint64, host manifest.Host) time.Time {
	first := co.assigned[epoch]
	for _, m := range slices.Backward(co.moves) {
		if m.at.Before(first) {
			break
		}
		if waveEpoch(m.after, &host) == epoch && waveEpoch(m.before, &host) != epoch || m.takesOut(host.Name) || m.takesIn(host.Name) {
			return m.at
		}
	}
	return first
}
