package sim

import (
	"bytes"
	"fmt"
	"strings"
	"time"

	"github.com/muster-config/muster/distributor/manifest"
)

// clocks is by how much two controllers may disagree on a time, and how late one may be that hears of something.
const (
	clocks  = 15 * time.Second
	hearing = 75 * time.Second
	deed    = 5 * time.Minute // how long after a person did something a head may still come of it
)

// countUnheard: hosts count that the collector of now has not heard of yet.
const countUnheard = true

// wrote judges a head that was just written against the one before it.
func (w *World) wrote(who, cohort string, data []byte) {
	f := w.fleet(cohort)
	now := time.Now()
	w.mu.Lock()
	next, view, err := f.trust.AcceptHead(cohort, data, now)
	if err != nil {
		w.mu.Unlock()
		w.breach("every head that is written is believed", "%s by %s: %v", cohort, who, err)
		return
	}
	prev := f.head
	if prev != nil && bytes.Equal(f.raw, data) {
		w.mu.Unlock()
		return // once more, as the answer got lost
	}
	f.trust, f.head = next, view
	f.before, f.raw = f.raw, data
	f.views[string(data)] = view
	if f.begun.IsZero() {
		f.begun = now
	}
	if f.first == nil && len(view.Statements) > 0 {
		f.first = &view.Statements[0]
	}
	f.orders++
	f.recent, f.recentAt = append(f.recent, view), append(f.recentAt, now)
	for len(f.recentAt) > 1 && now.Sub(f.recentAt[1]) > time.Minute {
		f.recent, f.recentAt = f.recent[1:], f.recentAt[1:]
	}
	c := &check{w: w, f: f, who: who, prev: prev, view: view, now: now, barePrev: bare(prev), bareView: bare(view)}
	c.all()
	f.wrote = now
	w.mu.Unlock()
	r := &view.Manifest.Rollout
	w.note(who, "order", "%s %s", cohort, outline(view))
	w.census.phase(string(r.Phase))
	if prev != nil && prev.Manifest.Rollout.Phase != r.Phase {
		w.census.transition(string(prev.Manifest.Rollout.Phase), string(r.Phase))
	}
	if c.rule != "" {
		w.breach(c.rule, "%s by %s: %s", cohort, who, c.why)
	}
}

// outline is a head in one line.
func outline(v *manifest.View) string {
	m := &v.Manifest
	r := &m.Rollout
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s, wave %d, target %d, baseline %d", v.Mark(), r.Phase, r.Wave, r.Target, r.Baseline)
	if r.Fallback != 0 {
		fmt.Fprintf(&b, ", fallback %d", r.Fallback)
	}
	if r.Pause != nil {
		fmt.Fprintf(&b, ", paused by %s", r.Pause.By)
	}
	for _, h := range r.Halts {
		fmt.Fprintf(&b, ", halt %d by %s", h.Epoch, h.By)
	}
	for _, h := range r.Freezes {
		fmt.Fprintf(&b, ", freeze by %s", h.By)
	}
	if len(r.Approved) > 0 {
		fmt.Fprintf(&b, ", approved %v", r.Approved)
	}
	for _, a := range m.Assign {
		switch {
		case len(a.Hosts) > 0:
			fmt.Fprintf(&b, " [%s: %d]", strings.Join(a.Hosts, " "), a.Epoch)
		case a.Below != "":
			fmt.Fprintf(&b, " [<%.4s/%s: %d]", a.Below, a.Salt, a.Epoch)
		case len(a.Match) > 0:
			fmt.Fprintf(&b, " [%v: %d]", a.Match, a.Epoch)
		default:
			fmt.Fprintf(&b, " [%d]", a.Epoch)
		}
	}
	for _, o := range v.Overrides {
		fmt.Fprintf(&b, " {%s%s %v}", o.ID, map[bool]string{true: " ended"}[o.Ended != nil], o.Hosts)
	}
	for _, e := range r.Endings {
		fmt.Fprintf(&b, " (%s ends <%.4s)", e.Override, e.Below)
	}
	fmt.Fprintf(&b, "; %s", r.Why)
	return b.String()
}

// check is one head against the one before it. Under w.mu.
type check struct {
	w          *World
	f          *fleet
	who        string
	prev, view *manifest.View
	now        time.Time

	barePrev, bareView *manifest.View // without overrides

	forward []*host // sent to the target by this head
	back    []*host // sent away from a target
	rule    string  // the first that is broken
	why     string
}

func (c *check) broken(rule, format string, args ...any) {
	if c.rule == "" {
		c.rule, c.why = rule, fmt.Sprintf(format, args...)
	}
}

// did says whether a person did something to the cohort a moment ago.
func (c *check) did(kinds ...string) bool {
	for _, k := range kinds {
		if a, ok := c.w.acts[c.f.name+"/"+k]; ok && c.now.Sub(a.at) < deed {
			return true
		}
	}
	return false
}

func (c *check) all() {
	c.contents()
	c.overrides()
	if c.prev == nil {
		for _, h := range c.f.hosts {
			h.assigned, h.since = c.content(c.view, h), c.now
		}
		return
	}
	c.order()
	c.moves()
	c.stops()
	c.wave()
	c.leaving()
	c.baseline()
	c.holds()
	c.inFlight()
	c.size()
	c.remember()
}

// resolve says where the rollout leads a host: overrides are looked at apart.
func (c *check) resolve(v *manifest.View, h *host) (manifest.Resolution, bool) {
	switch v {
	case c.view:
		v = c.bareView
	case c.prev:
		v = c.barePrev
	}
	r, err := manifest.Resolve(v, manifest.Host{Name: h.name, Labels: h.labels}, c.now)
	return r, err == nil
}

// content is what a host is to run.
func (c *check) content(v *manifest.View, h *host) string {
	r, err := manifest.Resolve(v, manifest.Host{Name: h.name, Labels: h.labels}, c.now)
	if err != nil {
		return ""
	}
	return r.Content
}

// order: (era, serial) rises, and so do targets.
func (c *check) order() {
	a, b := c.prev.Mark(), c.view.Mark()
	if b.Compare(a) <= 0 || c.view.Manifest.Serial < c.prev.Manifest.Serial {
		c.broken("orders rise", "%s after %s", b, a)
	}
	if p, r := c.prev.Manifest.Rollout.Target, c.view.Manifest.Rollout.Target; r < p && r != c.view.Manifest.Rollout.Baseline {
		c.broken("epochs rise", "target %d after %d", r, p)
	}
	if c.f.orders > 3000 {
		c.broken("orders are few", "%d of them", c.f.orders)
	}
}

// contents: never more than two in a cohort, holds and overrides apart.
func (c *check) contents() {
	set := map[string]uint64{}
	for _, a := range c.view.Manifest.Assign {
		if len(a.Hosts) > 0 {
			continue
		}
		for _, st := range c.view.Statements {
			if st.Epoch == a.Epoch && st.Override == "" {
				set[st.Content] = a.Epoch
			}
		}
	}
	if len(set) > 2 {
		c.broken("at most two contents in a cohort", "%d: %s", len(set), outline(c.view))
	}
}

// moves: forward leads to the target and only while a wave is told, back leads to the baseline and only in a rollback; nobody else is moved.
func (c *check) moves() {
	r, p := &c.view.Manifest.Rollout, &c.prev.Manifest.Rollout
	for _, h := range c.f.hosts {
		was, ok1 := c.resolve(c.prev, h)
		is, ok2 := c.resolve(c.view, h)
		if !ok2 {
			c.broken("every host is assigned something", "%s", h.name)
			return
		}
		if !ok1 || was.Epoch() == is.Epoch() {
			continue
		}
		if was.Source == manifest.FromHold || is.Source == manifest.FromHold {
			continue // a person's
		}
		switch to := is.Epoch(); {
		case to == r.Target && r.Target != r.Baseline, to == r.Target && r.Phase == manifest.PhaseDone, to == r.Target && p.Target != r.Target:
			c.forward = append(c.forward, h)
			if r.Phase != manifest.PhaseAdvancing && r.Phase != manifest.PhaseDone {
				c.broken("hosts move forward only while a wave is told", "%s to %d in phase %s", h.name, to, r.Phase)
			}
			if p.Target == r.Target && was.Epoch() != p.Baseline {
				c.broken("hosts move forward only from the baseline", "%s from %d to %d, and the baseline is %d", h.name, was.Epoch(), to, p.Baseline)
			}
		case to == r.Baseline:
			c.back = append(c.back, h)
			superseded := p.Target != r.Target || c.did("supersede")
			if r.Phase != manifest.PhaseRollingBack && r.Phase != manifest.PhaseHalted && !superseded {
				c.broken("hosts go back only in a rollback", "%s from %d to %d in phase %s", h.name, was.Epoch(), to, r.Phase)
			}
		default:
			c.broken("hosts move to the target or to the baseline", "%s from %d to %d", h.name, was.Epoch(), to)
		}
	}
}

// remember keeps what later heads are judged by.
func (c *check) remember() {
	r, p := &c.view.Manifest.Rollout, &c.prev.Manifest.Rollout
	t := c.f.wave(r.Target, r.Wave)
	if r.Phase == manifest.PhaseAdvancing && (t.told.IsZero() || p.Target != r.Target || p.Phase == manifest.PhaseHalted) {
		*t = waveTimes{told: c.now}
	}
	if r.Phase == manifest.PhaseBaking && t.baked.IsZero() {
		t.baked = c.now
	}
	// What a person aborted has fallen, whatever the order says of it.
	if a := c.w.acts[c.f.name+"/abort"]; a.by == c.who && c.now.Sub(a.at) < time.Minute && r.Phase == manifest.PhaseRollingBack && p.Phase != manifest.PhaseRollingBack {
		c.f.fallen[r.Target] = c.now
	}
	for _, s := range r.Halts {
		if _, ok := c.f.fallen[s.Epoch]; !ok {
			c.f.fallen[s.Epoch] = c.now
		}
	}
	if c.did("resume") && len(r.Halts) == 0 {
		clear(c.f.fallen)
	}
	if r.Pause != nil || len(r.Freezes) > 0 || r.Phase == manifest.PhasePaused {
		c.f.stopped = c.now
	}
	for _, h := range c.f.hosts {
		if is := c.content(c.view, h); is != h.assigned {
			h.assigned, h.since = is, c.now
		}
	}
}
