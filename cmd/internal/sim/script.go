package sim

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/rollout"
	"github.com/muster-config/muster/distributor/verdict"
)

// play is one run: a fleet comes up, everything goes wrong for a while, and then nothing does any more.
func (w *World) play() {
	w.serve()
	w.steer("ctl-1")
	w.steer("ctl-2")
	w.census.fault(faultDuplicate)
	w.wg.Add(1)
	go w.watch()
	first := w.change("first", map[string]string{"app": w.write("app", trait{kind: traitGood}), "web": w.write("web", trait{kind: traitGood})}, nil)
	if !w.publish(first) {
		return
	}
	for i, h := range w.hosts {
		w.wg.Add(1)
		go func() {
			defer w.wg.Done()
			if w.pause(time.Duration(i)*137*time.Millisecond + time.Duration(w.fixed("up", h.name)%uint64(5*time.Second))) {
				h.up()
			}
		}()
	}
	if !w.until("the first release is everywhere", 20*time.Minute, w.behind) {
		return
	}
	d := &draw{mix(w.seed)}
	// Most runs are short; some are long enough for a controller that stood still for an hour to come back into.
	length := d.between(15*time.Minute, 30*time.Minute)
	if d.percent(10) {
		length = d.between(70*time.Minute, 90*time.Minute)
	}
	end := time.Now().Add(length)
	for name, act := range w.cast() {
		w.wg.Add(1)
		go func() {
			defer w.wg.Done()
			act(&draw{mix(w.seed ^ text(name))}, end)
		}()
	}
	if w.pause(time.Until(end) + 30*time.Second) {
		w.end()
	}
}

// until waits for what must come.
func (w *World) until(what string, limit time.Duration, missing func() string) bool {
	end := time.Now().Add(limit)
	for {
		why := missing()
		if why == "" {
			return true
		}
		if time.Now().After(end) {
			w.breach("what must come comes", "%s, not within %s: %s\n%s", what, limit, why, w.verdicts())
			return false
		}
		if !w.pause(5 * time.Second) {
			return false
		}
	}
}

// verdicts is what the collector says of hosts that are not confirmed.
func (w *World) verdicts() string {
	c, err := w.collector()
	if err != nil {
		return err.Error()
	}
	text := ""
	hosts, err := c.Hosts(w.ctx, "", "")
	for _, h := range hosts {
		if h.Verdict != verdict.Confirmed {
			text += fmt.Sprintf("%s %s: %s\n", h.Host, h.Verdict, h.Why)
		}
	}
	if err != nil {
		text += err.Error()
	}
	return text
}

// behind says what keeps the newest commit from being everywhere.
func (w *World) behind() string {
	for _, f := range w.cohorts {
		v := f.now()
		switch {
		case v == nil:
			return f.name + " has no order"
		case v.Manifest.Rollout.Target != w.stands(f.name) || v.Manifest.Rollout.Phase != manifest.PhaseDone:
			return f.name + " " + outline(v)
		}
	}
	return ""
}

// write makes a text that does something.
func (w *World) write(service string, t trait) string {
	w.mu.Lock()
	content := fmt.Sprintf("%s %d\n", service, len(w.commits)+1)
	w.mu.Unlock()
	w.traits.Store(content, t)
	return content
}

// whole is what an epoch of the repo says, as texts.
func (w *World) texts(n int) map[string]string {
	w.mu.Lock()
	defer w.mu.Unlock()
	if n < 0 {
		n += len(w.commits)
	}
	return w.commits[max(n, 0)].texts
}

// good says whether nothing in a state of the repo does harm.
func (w *World) good(texts map[string]string) bool {
	for _, t := range texts {
		if w.trait(t).kind != traitGood {
			return false
		}
	}
	return true
}

// develop publishes commits, good and bad ones, reverts, and such that change nothing or only the policy.
func (w *World) develop(d *draw, end time.Time) {
	for w.pause(d.between(10*time.Second, 6*time.Minute)) && time.Now().Before(end) {
		for _, f := range w.cohorts {
			if v := f.now(); v != nil && v.Manifest.Rollout.Phase != manifest.PhaseDone && v.Manifest.Rollout.Phase != manifest.PhaseHalted {
				w.census.fault(faultMiddle)
				break
			}
		}
		bad := !w.good(w.texts(-1))
		service := services[0]
		if d.percent(25) {
			service = services[1]
		}
		var c commit
		switch n := d.n(100); {
		case bad && n < 45:
			// Back to the newest state without harm.
			back := -1
			for w.n()+back >= 0 && !w.good(w.texts(back)) {
				back--
			}
			w.census.fault(faultRevert)
			c = w.change("revert", w.texts(back), nil)
		case n < 8:
			texts := w.adopt()
			if texts == nil {
				continue
			}
			c = w.change("adopt", texts, nil)
		case n < 15:
			w.census.fault(faultNoop)
			c = w.change("nothing", nil, nil)
		case n < 22:
			w.census.fault(faultPolicy)
			c = w.change("policy", nil, func(p *manifest.Policy) { w.repolicy(d, p) })
		case n < 62:
			t := w.harm(d)
			w.census.fault(faultBad)
			w.census.add("bad " + t.kind)
			if t.kind == traitLate {
				w.census.fault(faultLate)
			}
			c = w.change("bad: "+t.kind, map[string]string{service: w.write(service, t)}, nil)
		default:
			texts := map[string]string{service: w.write(service, trait{kind: traitGood})}
			for s, text := range w.texts(-1) {
				if s != service && w.trait(text).kind != traitGood {
					texts[s] = w.write(s, trait{kind: traitGood})
				}
			}
			c = w.change("good", texts, nil)
		}
		if !w.publish(c) {
			return
		}
		if blocked := w.blockedOf(c); len(blocked) > 0 && d.percent(50) {
			w.unblock(blocked[0])
			if !w.publish(c) {
				return
			}
		}
	}
}

func (w *World) n() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.commits)
}

// harm is something that a release does.
func (w *World) harm(d *draw) trait {
	share := []uint64{100, 100, 60, 30}[d.n(4)]
	switch d.n(9) {
	case 0:
		return trait{kind: traitRefused, share: share}
	case 1:
		return trait{kind: traitReload, share: share}
	case 2:
		return trait{kind: traitIll, share: share}
	case 3:
		return trait{kind: traitDeaf, share: share}
	case 4:
		return trait{kind: traitMute, share: share}
	case 5, 6:
		return trait{kind: traitErrors, share: share, delay: d.between(0, time.Minute)}
	default:
		return trait{kind: traitLate, share: share, delay: d.between(2*time.Minute, 14*time.Minute)}
	}
}

// repolicy changes how a cohort takes releases.
func (w *World) repolicy(d *draw, p *manifest.Policy) {
	name := pick(d, w.cohorts).name
	r := p.Rollouts[name]
	switch d.n(4) {
	case 0:
		r.MaxInFlight = pick(d, []string{"10%", "20%", "34%", "3"})
	case 1:
		r.MaxFailed = d.n(3)
	case 2:
		r.Waves = append([]manifest.Wave{{Percent: 5, Bake: "1m0s"}}, r.Waves[len(r.Waves)-1])
		r.ApproveBefore = []int{}
	case 3:
		r.Watch = pick(d, []string{"0s", "5m0s", "15m0s"})
	}
	p.Rollouts[name] = r
}

// people click: to take things on, and at random.
func (w *World) people(d *draw, end time.Time) {
	for w.pause(d.between(2*time.Second, 110*time.Second)) && time.Now().Before(end) {
		f := pick(d, w.cohorts)
		if d.percent(55) {
			w.tend(f, pick(d, []string{"ana", "ben"}))
			continue
		}
		if d.percent(15) {
			w.strike(d, f)
			continue
		}
		a := rollout.Action{By: pick(d, []string{"ana", "ben", "cleo"}), Why: "clicked"}
		a.Kind = pick(d, []rollout.ActionKind{rollout.Pause, rollout.Pause, rollout.Resume, rollout.Approve, rollout.Approve, rollout.Abort, rollout.Supersede, rollout.Freeze, rollout.Unfreeze, rollout.Refresh})
		if a.Kind == rollout.Freeze {
			until := time.Now().Add(d.between(time.Minute, 12*time.Minute)).UTC().Truncate(time.Second)
			a.Until = &until
		}
		if d.percent(20) {
			if v := f.now(); v != nil {
				a.Epoch = v.Manifest.Rollout.Target // the one that was on the screen
			}
			w.pause(d.between(0, 30*time.Second))
		}
		_ = w.act(f.name, a) // noted
		if d.percent(25) {
			_ = w.act(f.name, a)
		}
	}
}

// tend does what a cohort waits for.
func (w *World) tend(f *fleet, by string) {
	v := f.now()
	if v == nil {
		return
	}
	r := &v.Manifest.Rollout
	a := rollout.Action{By: by, Why: "on duty"}
	switch {
	case slices.ContainsFunc(r.Freezes, func(s manifest.Stop) bool { return !past(s.Until, time.Now()) }):
		a.Kind = rollout.Unfreeze
	case r.Pause != nil || len(r.Halts) > 0 || r.Phase == manifest.PhasePaused:
		a.Kind, a.Aborted = rollout.Resume, true
	case r.Phase == manifest.PhaseAwaitingApproval:
		a.Kind = rollout.Approve
	default:
		return
	}
	_ = w.act(f.name, a) // noted
}

// end takes every fault away, publishes what is good, and demands that it gets everywhere.
func (w *World) end() {
	w.heal()
	if !w.pause(time.Minute) {
		return
	}
	last := w.change("last", map[string]string{"app": w.write("app", trait{kind: traitGood}), "web": w.write("web", trait{kind: traitGood})}, nil)
	if !w.publishWhole(last) {
		return
	}
	epoch := w.epochOf(last)
	tended := time.Now()
	if !w.until("the last release is everywhere", 5*time.Hour, func() string {
		if time.Since(tended) > 45*time.Second {
			tended = time.Now()
			for _, f := range w.cohorts {
				w.tend(f, "ana")
			}
		}
		return w.behind()
	}) {
		return
	}
	// Two re-syncs of ten minutes, a tenth of jitter, and the time to apply.
	if w.pause(2*11*time.Minute + time.Minute) {
		w.everywhere(epoch)
	}
}

// heal ends all faults.
func (w *World) heal() {
	now := time.Now()
	w.mu.Lock()
	w.calm.Store(true)
	clear(w.gone)
	w.ops.healed = now
	w.weather = nil
	for i := range w.blackouts {
		if w.blackouts[i].to.After(now) {
			w.blackouts[i].to = now
		}
	}
	for _, c := range w.controllers {
		c.frozen.Store(0)
	}
	serverless, idle := w.server == nil, len(w.controllers) == 0
	w.mu.Unlock()
	w.note("world", "calm", "")
	if serverless {
		w.serve()
	}
	if idle {
		w.steer("ctl-1")
	}
	for _, h := range w.hosts {
		h.mu.Lock()
		for name, p := range h.procs {
			p.deaf = false
			if p.ill && p.up {
				h.load(name)
			}
		}
		h.mu.Unlock()
		h.setRight()
		if !h.alive() {
			h.up()
		}
	}
}

// who is everybody that goes by a name: a host has a way to the store and one to the collector.
func who(name string) []string {
	if strings.HasPrefix(name, "ctl-") || name == "collector" {
		return []string{name}
	}
	return []string{name, name + "+"}
}
