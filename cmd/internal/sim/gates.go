package sim

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/rollout/gate"
)

// asker judges gates by the simulated traffic: what users saw of each host at each instant is known, unless metrics were not to be had then.
type asker struct {
	w *World
	a *actor
}

// askKey is a gate of a wave of a rollout.
type askKey struct {
	cohort string
	epoch  uint64
	wave   int
	gate   string
}

// heard is what a gate said to any controller.
type heard struct {
	passed time.Time // last
	failed time.Time // first
}

func (a *asker) Changed() <-chan struct{} { return nil } // looked at anew with everything else

func (a *asker) Judge(_ context.Context, q gate.Question) []manifest.GateVerdict {
	var list []manifest.GateVerdict
	w := a.w
	now := time.Now()
	for _, name := range slices.Sorted(maps.Keys(q.Gates)) {
		g := q.Gates[name]
		v := manifest.GateVerdict{Gate: name, Wave: q.Wave, From: q.From.UTC(), To: q.Now.UTC()}
		if q.Wave == 0 {
			v.Outcome, v.Why = manifest.OutcomeInconclusive, "nothing was asked yet"
			list = append(list, v)
			continue
		}
		if g.Reported != "" {
			judgeReported(&v, g, q)
		} else {
			w.judgeTraffic(&v, g, q, a.a.skew)
		}
		w.census.gate(string(v.Outcome))
		w.mu.Lock()
		k := askKey{q.Cohort, q.Epoch, q.Wave, name}
		h := w.asked[k]
		if h == nil {
			h = &heard{}
			w.asked[k] = h
		}
		switch v.Outcome {
		case manifest.OutcomePass:
			h.passed = now
		case manifest.OutcomeFail:
			if h.failed.IsZero() {
				h.failed = now
			}
		}
		w.mu.Unlock()
		list = append(list, v)
	}
	return list
}

// judgeReported is a built-in gate: the share of canary hosts that refused.
func judgeReported(v *manifest.GateVerdict, g manifest.Gate, q gate.Question) {
	bad, all := 0, 0
	for _, h := range q.Canary {
		if h.At.Before(q.From) {
			continue
		}
		all++
		if h.Refused {
			bad++
		}
	}
	switch {
	case all == 0:
		v.Outcome, v.Why = manifest.OutcomeInconclusive, "no host has reported since"
	case float64(bad)/float64(all) > *g.Max:
		v.Outcome, v.Why = manifest.OutcomeFail, fmt.Sprintf("%d of %d refused", bad, all)
	case q.Now.Sub(q.From) < q.Bake:
		v.Outcome, v.Why = manifest.OutcomeInconclusive, "the bake is not over"
	default:
		v.Outcome, v.Why = manifest.OutcomePass, fmt.Sprintf("0 of %d refused", all)
	}
}

// judgeTraffic looks at the share of canary hosts whose users see errors, every so often.
func (w *World) judgeTraffic(v *manifest.GateVerdict, g manifest.Gate, q gate.Question, skew time.Duration) {
	every, err := time.ParseDuration(g.Every)
	if err != nil {
		v.Outcome, v.Why = manifest.OutcomeBroken, err.Error()
		return
	}
	w.mu.Lock()
	blackouts := w.blackouts
	w.mu.Unlock()
	var canary []*host
	for _, f := range w.cohorts {
		if f.name != q.Cohort {
			continue
		}
		for _, h := range f.hosts {
			if slices.ContainsFunc(q.Canary, func(c gate.Host) bool { return c.Name == h.name }) {
				canary = append(canary, h)
			}
		}
	}
	good, fails, run := 0, 0, 0
	// Samples lie on a grid, as those of a scrape.
	for t := q.From.Truncate(every).Add(every); !t.After(q.Now); t = t.Add(every) {
		at := t.Add(-skew) // by the controller's clock; what happened is by the true one
		if slices.ContainsFunc(blackouts, func(s span) bool { return s.has(at) }) {
			continue
		}
		bad, all := 0, 0
		for _, h := range canary {
			h.mu.Lock()
			b, any := h.errorsAt(at)
			// As the series of hosts are joined with what each says it runs: one that was told and does not run it yet is none of them.
			if h.disk.epoch() != q.Epoch || at.Before(h.landed) {
				b, any = false, false
			}
			h.mu.Unlock()
			if any {
				all++
			}
			if b {
				bad++
			}
		}
		s := manifest.GateSample{At: t.UTC()}
		if all == 0 {
			continue
		}
		share := float64(bad) / float64(all)
		s.Canary = &share
		if share > *g.Max {
			run++
			if run >= g.Fails {
				fails++
			}
		} else {
			run = 0
			good++
		}
		if len(v.Samples) < 3 {
			v.Samples = append(v.Samples, s)
		}
	}
	switch {
	case fails > 0:
		v.Outcome, v.Why = manifest.OutcomeFail, "users see errors"
	case good > 0 && time.Duration(good+1)*every >= q.Bake && q.Now.Sub(q.From) >= q.Bake:
		v.Outcome, v.Why = manifest.OutcomePass, fmt.Sprintf("%d good samples", good)
	default:
		v.Outcome, v.Why = manifest.OutcomeInconclusive, fmt.Sprintf("%d samples", good)
	}
}
