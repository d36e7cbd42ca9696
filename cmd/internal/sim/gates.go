package sim

import (
	"context"
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

// said is what a gate said to any controller.
type said struct {
	passed time.Time // last
	failed time.Time // first
}

func (a *asker) Changed() <-chan struct{} { return nil } // looked at anew with everything else

func (a *asker) Judge(_ context.Context, q gate.Question) []manifest.GateVerdict {
	w, now := a.w, time.Now()
	heard := map[string]gate.Heard{}
	for name, g := range q.Gates {
		if g.Reported == "" && q.Wave != 0 {
			heard[name] = gate.Heard{Looks: w.looks(g, q, a.a.skew)}
		}
	}
	list := gate.Judge(q, heard)
	empty := false
	for _, v := range list {
		if q.Wave == 0 {
			continue // only whether they are broken
		}
		w.census.gate(string(v.Outcome))
		w.mu.Lock()
		k := askKey{q.Cohort, q.Epoch, q.Wave, v.Gate}
		h := w.asked[k]
		if h == nil {
			h = &said{}
			w.asked[k] = h
		}
		switch v.Outcome {
		case manifest.OutcomePass:
			h.passed = now
			empty = empty || q.Gates[v.Gate].Reported == "" && !slices.ContainsFunc(heard[v.Gate].Looks, func(l gate.Look) bool { return l.Canary != nil })
		case manifest.OutcomeFail:
			// One that was resumed fails anew.
			if h.failed.IsZero() || h.failed.Before(q.From.Add(-clocks)) {
				h.failed = now
			}
		}
		w.mu.Unlock()
	}
	if empty {
		w.breach("no gate passes on no data", "cohort %s, release %d, wave %d: %+v", q.Cohort, q.Epoch, q.Wave, list)
	}
	return list
}

// looks are what a gate that asks Prometheus finds: the share of canary hosts whose users see errors, every so often. Nothing comes of a look while metrics are not to be had.
func (w *World) looks(g manifest.Gate, q gate.Question, skew time.Duration) (list []gate.Look) {
	every, err := time.ParseDuration(g.Every)
	if err != nil {
		return nil // Judge says so
	}
	w.mu.Lock()
	blackouts := w.blackouts
	w.mu.Unlock()
	var canary []*host
	if f := w.fleet(q.Cohort); f != nil {
		for _, h := range f.hosts {
			if slices.ContainsFunc(q.Canary, func(c gate.Host) bool { return c.Name == h.name }) {
				canary = append(canary, h)
			}
		}
	}
	ahead := min(every/3, 5*time.Second) // as a Keeper does: the last look of a bake is heard when it ends
	for t := q.From.Add(every - ahead); !t.After(q.Now); t = t.Add(every) {
		at := t.Add(-skew) // by the controller's clock; what happened is by the true one
		look := gate.Look{GateSample: manifest.GateSample{At: t.UTC()}}
		bad, all := 0, 0
		dark := slices.ContainsFunc(blackouts, func(s span) bool { return s.has(at) })
		for _, h := range canary {
			if dark {
				break
			}
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
		switch {
		case dark:
			look.Trouble, look.Down = "prometheus does not answer", true
		case all == 0:
			look.Trouble = "no series"
		default:
			share := float64(bad) / float64(all)
			look.Canary = &share
		}
		list = append(list, look)
	}
	return list
}
