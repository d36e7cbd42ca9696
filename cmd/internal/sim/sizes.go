package sim

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/muster-config/muster/distributor/manifest"
)

// leaving: a wave is left forward only when every gate has passed on data, or a person passed over it.
func (c *check) leaving() {
	r, p := &c.view.Manifest.Rollout, &c.prev.Manifest.Rollout
	if p.Target != r.Target || p.Wave == 0 || p.Wave > len(p.Policy.Waves) {
		return
	}
	was := p.Phase
	if was == manifest.PhasePaused {
		was = p.Was
	}
	on := r.Wave > p.Wave && r.Phase != manifest.PhaseRollingBack && r.Phase != manifest.PhaseHalted || r.Phase == manifest.PhaseAwaitingApproval || r.Phase == manifest.PhaseDone
	if was != manifest.PhaseBaking || !on || p.Target == p.Baseline {
		return
	}
	c.heeded(p.Wave)
	bake, _ := time.ParseDuration(p.Policy.Waves[p.Wave-1].Bake)
	if bake == 0 {
		return
	}
	for name := range p.Policy.Gates {
		h := c.w.asked[askKey{c.f.name, r.Target, p.Wave, name}]
		if (h == nil || h.passed.IsZero() || h.passed.Before(c.f.wave(p.Target, p.Wave).baked)) && !slices.Contains(p.Skipped, name) && !slices.Contains(r.Skipped, name) {
			c.broken("no gate passes on no data", "gate %s of wave %d of release %d never said that it passes", name, p.Wave, r.Target)
		}
	}
}

// heeded: a wave, or the time after the last one, does not end well when a gate said that it failed.
func (c *check) heeded(wave int) {
	p := &c.prev.Manifest.Rollout
	for name := range p.Policy.Gates {
		if h := c.w.asked[askKey{c.f.name, p.Target, wave, name}]; h != nil && !h.failed.IsZero() && c.now.Sub(h.failed) > hearing && h.failed.After(c.f.wave(p.Target, 1).told) {
			c.broken("a failure leads back", "gate %s of wave %d of release %d failed %s ago, and that is passed over", name, wave, p.Target, c.now.Sub(h.failed).Round(time.Second))
		}
	}
}

// baseline: it becomes the target when the rollout is done, and the one before it when that failed late.
func (c *check) baseline() {
	r, p := &c.view.Manifest.Rollout, &c.prev.Manifest.Rollout
	if r.Phase == manifest.PhaseDone && p.Phase != manifest.PhaseDone {
		for _, h := range c.f.hosts {
			if is, ok := c.resolve(c.view, h); ok && is.Source != manifest.FromHold && is.Epoch() != r.Target {
				c.broken("done is when everybody was told", "%s is told %d, and %d is done", h.name, is.Epoch(), r.Target)
			}
		}
	}
	// A done rollout is watched: a late failure finds its way back.
	watch, _ := time.ParseDuration(p.Policy.Watch)
	switch {
	case r.Phase != manifest.PhaseDone || r.Baseline != r.Target || watch == 0:
	case p.Baseline != 0 && p.Baseline != r.Target && r.Fallback != p.Baseline:
		c.broken("a done rollout is watched", "nothing leads back from %d to %d", r.Target, p.Baseline)
	case p.Fallback != 0 && p.Target == r.Target && r.Fallback == 0 && c.now.Sub(p.Since) < watch-clocks && !c.did("supersede"):
		c.broken("a done rollout is watched", "release %d for %s of %s", r.Target, c.now.Sub(p.Since), watch)
	}
	if p.Fallback != 0 && r.Fallback == 0 && r.Phase == manifest.PhaseDone && p.Target == r.Target && !c.did("supersede") {
		c.heeded(len(p.Policy.Waves) + 1)
	}
	if r.Baseline == p.Baseline {
		return
	}
	backing := r.Phase == manifest.PhaseRollingBack || r.Phase == manifest.PhaseHalted
	switch {
	case r.Phase == manifest.PhaseDone && r.Baseline == r.Target:
	case p.Fallback != 0 && r.Baseline == p.Fallback && backing:
	case p.Fallback != 0 && r.Baseline == p.Fallback && c.did("abort"), c.did("rollback"):
	default:
		c.broken("the baseline is what was rolled out", "%d after %d in phase %s", r.Baseline, p.Baseline, r.Phase)
	}
}

// holds: they last until their end.
func (c *check) holds() {
	for _, h := range c.f.hosts {
		was, ok := c.resolve(c.prev, h)
		end := heldUntil(c.prev, h.name)
		if !ok || was.Source != manifest.FromHold || c.now.After(end.Add(-clocks)) || c.did("hold", "unhold") {
			continue
		}
		if is, ok := c.resolve(c.view, h); !ok || is.Source != manifest.FromHold || is.Epoch() != was.Epoch() {
			c.broken("a hold lasts until its end", "%s was held at %d until %s, and goes to %d", h.name, was.Epoch(), end, is.Epoch())
		}
	}
}

// limit is the most that may be on their way.
func limit(policy manifest.RolloutPolicy, n int) int {
	digits, share := strings.CutSuffix(policy.MaxInFlight, "%")
	v, err := strconv.ParseFloat(digits, 64)
	switch {
	case err != nil:
		return 1
	case share:
		return max(1, int(math.Floor(v/100*float64(n)+1e-9)))
	}
	return max(1, int(v))
}

// inFlight: of those that can take an order, no more are on their way than the policy says, forward and back. It counts by what is true: who is known to be there is there.
func (c *check) inFlight() {
	r, p := &c.view.Manifest.Rollout, &c.prev.Manifest.Rollout
	if len(c.forward)+len(c.back) == 0 || p.Baseline == 0 || c.did("now") {
		return
	}
	var on []string
	for _, h := range c.f.hosts {
		is, ok := c.resolve(c.view, h)
		if !ok || is.Source == manifest.FromHold {
			continue
		}
		was, _ := c.resolve(c.prev, h)
		h.mu.Lock()
		to := c.content(c.view, h)
		there := h.disk.current != nil && h.disk.current.Content == to
		// A host that nobody has heard of takes what it is told when it is back: nobody counts it. Nor one that cannot take it, nor one that took something a moment ago and did not say so yet.
		counted := (countUnheard || h.by == c.w.server) && h.life != nil && c.now.Sub(h.heard) < 2*hostPoll && c.now.Sub(h.booted) > hearing && h.heard.After(h.landed) && !h.failed[to] && c.now.Sub(h.pocket.turned) > 5*time.Minute && (h.disk.current == nil || !h.failed[h.disk.current.Content]) && c.now.Sub(h.stumbled) > 2*time.Minute && !(was.Epoch() == is.Epoch() && c.now.Sub(h.since) > 5*time.Minute)
		h.mu.Unlock()
		if !there && counted {
			on = append(on, fmt.Sprintf("%s (%d > %d, heard %s ago)", h.name, h.disk.epoch(), is.Epoch(), c.now.Sub(h.heard).Round(time.Second)))
		}
	}
	if most := limit(r.Policy, len(c.f.hosts)); len(on) > most {
		c.broken("max_in_flight holds", "%d hosts are on their way, at most %d may be: %s", len(on), most, strings.Join(on, " "))
	}
}

// size: no more hosts than the waves so far say were told.
func (c *check) size() {
	r, p := &c.view.Manifest.Rollout, &c.prev.Manifest.Rollout
	if len(c.forward) == 0 || r.Wave < 1 || r.Wave > len(r.Policy.Waves) || p.Baseline == 0 || r.Phase == manifest.PhaseDone {
		return
	}
	told, eligible := 0, 0
	match := map[string]bool{}
	for n := range r.Wave {
		if wave := r.Policy.Waves[n]; len(wave.Match) > 0 {
			for _, h := range c.f.hosts {
				if hasAll(h.labels, wave.Match) {
					match[h.name] = true
				}
			}
		}
	}
	extra := 0
	for _, h := range c.f.hosts {
		is, ok := c.resolve(c.view, h)
		if !ok || is.Source == manifest.FromHold {
			continue
		}
		eligible++
		h.mu.Lock()
		fresh := (countUnheard || h.by == c.w.server) && h.life != nil && c.now.Sub(h.heard) < 2*hostPoll && c.now.Sub(h.upSince()) > 5*time.Minute
		h.mu.Unlock()
		if is.Epoch() == r.Target && r.Target != r.Baseline {
			if match[h.name] {
				extra++
			}
			if fresh {
				told++
			}
		}
	}
	most := 0
	for n := range r.Wave {
		wave := r.Policy.Waves[n]
		k := wave.Count
		switch {
		case len(wave.Match) > 0:
			k = max(len(match), wave.Min)
		case wave.Percent > 0:
			k = manifest.WaveSize(wave.Percent, len(c.f.hosts))
		}
		most = max(most, k, wave.Min)
	}
	if told > most+extra && told > len(match)+most {
		c.broken("a wave has the size that the policy says", "%d hosts of %d have %d in wave %d, at most %d may have it", told, eligible, r.Target, r.Wave, most+extra)
	}
}

func hasAll(labels, want map[string]string) bool {
	for k, v := range want {
		if labels[k] != v {
			return false
		}
	}
	return true
}
