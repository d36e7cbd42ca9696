package sim

import (
	"fmt"
	"time"

	"github.com/muster-config/muster/distributor/api"
	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/verdict"
)

// swapped judges a swap: a host runs only what the head it saw assigns, and swaps nothing for itself. Under h.mu.
func (h *host) swapped(before, next *installed, back bool) string {
	switch {
	case back:
		return ""
	case before != nil && len(h.disk.edited.paths) == 0 && before.Epoch == next.Epoch && before.Content == next.Content && before.Override == next.Override:
		return fmt.Sprintf("swaps epoch %d for itself", next.Epoch)
	case !h.told(next.Content, 90*time.Second):
		return fmt.Sprintf("swaps to epoch %d, which no head that reached it assigns", next.Epoch)
	}
	return ""
}

// upSince is when the machine last came up. Under h.mu.
func (h *host) upSince() time.Time {
	if n := len(h.downs); n > 0 {
		return h.downs[n-1].to
	}
	return h.w.start.Add(-time.Hour)
}

// watch looks at what no single order shows, until the run is over.
func (w *World) watch() {
	defer w.wg.Done()
	for w.pause(20 * time.Second) {
		w.green()
		w.late()
		w.overrun()
		w.unrepaired()
	}
}

// green is never said when a host is not confirmed.
func (w *World) green() {
	c, err := w.collector()
	if err != nil {
		return
	}
	w.mu.Lock()
	var epoch uint64
	for i := range w.commits {
		if w.commits[i].epoch > 0 {
			epoch = w.commits[i].epoch
		}
	}
	w.mu.Unlock()
	if epoch == 0 {
		return
	}
	g, err := c.Wait(w.ctx, epoch, api.WaitQuery{})
	if err != nil || !g.Green {
		return
	}
	w.census.add("green")
	if w.blockedAnywhere(epoch) {
		w.breach("green is never said of what is blocked", "epoch %d is green", epoch)
		return
	}
	w.trueGreen(g)
}

func (w *World) trueGreen(g *api.Wait) {
	now := time.Now()
	owed := map[string]bool{}
	for _, o := range g.OwedHosts {
		owed[o.Host] = true
	}
	for _, f := range w.cohorts {
		w.mu.Lock()
		recent := append([]*manifest.View{}, f.recent...)
		w.mu.Unlock()
		why := "there is no order"
		for i := len(recent) - 1; i >= 0 && why != ""; i-- {
			why = ""
			if r := &recent[i].Manifest.Rollout; len(r.Halts) > 0 || r.Phase == manifest.PhaseRollingBack {
				why = fmt.Sprintf("cohort %s is %s", f.name, r.Phase)
				continue
			}
			for _, h := range f.hosts {
				r, err := manifest.Resolve(recent[i], manifest.Host{Name: h.name, Labels: h.labels}, now)
				if err != nil {
					why = err.Error()
					break
				}
				if r.Override != "" {
					why = fmt.Sprintf("host %s is under override %s", h.name, r.Override)
					break
				}
				h.mu.Lock()
				at, ok := h.rightAt[r.Content]
				h.mu.Unlock()
				if !owed[h.name] && (!ok || now.Sub(at) > 3*hostPoll+time.Minute) {
					why = fmt.Sprintf("host %s did not run epoch %d lately", h.name, r.Epoch())
					break
				}
			}
		}
		if why != "" {
			w.breach("green is never said when a host is not confirmed", "epoch %d is green, and %s", g.Epoch, why)
			return
		}
	}
}

// late: what must happen in time does: a failure leads back, a wave that is not confirmed in its time too.
func (w *World) late() {
	now := time.Now()
	w.mu.Lock()
	well := w.wellSince(now)
	rule, why := "", ""
	for _, f := range w.cohorts {
		if f.head == nil || f.head.Manifest.Rollout.Baseline == 0 {
			continue
		}
		r := &f.head.Manifest.Rollout
		backing := r.Phase == manifest.PhaseRollingBack || r.Phase == manifest.PhaseHalted
		wave := r.Wave
		for name := range r.Policy.Gates {
			h := w.asked[askKey{f.name, r.Target, wave, name}]
			t := f.waves[waveKey{r.Target, 1}]
			if h == nil || h.failed.IsZero() || t != nil && h.failed.Before(t.told) || backing || r.Phase == manifest.PhaseDone && r.Fallback == 0 {
				continue
			}
			if now.Sub(later(well, h.failed)) > 2*time.Minute && now.Sub(f.wrote) > time.Minute {
				rule, why = "a failure leads back", fmt.Sprintf("cohort %s: gate %s of wave %d of release %d failed %s ago, and it is %s", f.name, name, wave, r.Target, now.Sub(h.failed).Round(time.Second), r.Phase)
			}
		}
		timeout, _ := time.ParseDuration(r.Policy.Timeout)
		if t := f.waves[waveKey{r.Target, r.Wave}]; r.Phase == manifest.PhaseAdvancing && t != nil && !t.told.IsZero() && f.stopped.Before(t.told) && timeout > 0 {
			if now.Sub(later(well, t.told)) > timeout+4*time.Minute {
				rule, why = "a wave that takes too long is a failure", fmt.Sprintf("cohort %s: wave %d of release %d was told %s ago", f.name, r.Wave, r.Target, now.Sub(t.told).Round(time.Second))
			}
		}
	}
	w.mu.Unlock()
	if rule != "" {
		w.breach(rule, "%s", why)
	}
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// ill notes that something is in the way of controllers. Under w.mu.
func (w *World) wellSince(now time.Time) time.Time {
	bad := w.server == nil || now.Before(w.gone["collector"]) || len(w.controllers) == 0
	some := false
	for _, c := range w.controllers {
		if !c.dead.Load() && c.frozen.Load() < now.UnixNano() && !now.Before(w.gone[c.name]) {
			some = true
		}
	}
	for _, s := range w.weather {
		bad = bad || s.has(now)
	}
	if bad || !some {
		w.wellFrom = now
	}
	return w.wellFrom
}

// everywhere demands that every host runs what it is assigned, and that the collector says so.
func (w *World) everywhere(epoch uint64) {
	c, err := w.collector()
	if err != nil {
		w.breach("in the end everything is right", "%v", err)
		return
	}
	for _, h := range w.hosts {
		assigned := h.assignedNow()
		h.mu.Lock()
		cur := h.disk.current
		why := ""
		switch {
		case h.life == nil:
			why = "it is not up"
		case cur == nil || cur.Content != assigned:
			why = "it does not run what it is assigned"
		case cur.Override != "":
			why = "it runs override " + cur.Override
		case h.procs["app"].text != cur.texts["app"] || h.procs["web"].text != cur.texts["web"]:
			why = "its processes have not loaded it"
		}
		h.mu.Unlock()
		if why != "" {
			w.breach("in the end every live host reaches its assignment", "%s: %s", h.name, why)
			return
		}
		if v, err := c.Host(w.ctx, h.name); err != nil || v.Verdict != verdict.Confirmed {
			w.breach("in the end the collector says so", "%s: %+v, %v", h.name, v, err)
			return
		}
	}
	g, err := c.Wait(w.ctx, epoch, api.WaitQuery{})
	if err != nil || !g.Green {
		w.breach("in the end the collector says so", "epoch %d is not green: %+v, %v", epoch, g, err)
		return
	}
	w.trueGreen(g)
}
