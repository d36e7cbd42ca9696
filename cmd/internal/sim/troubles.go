package sim

import (
	"slices"
	"time"

	"github.com/muster-config/muster/distributor/manifest"
)

// What goes wrong around overrides, and what operators do.
const (
	faultOverride        = "override set"
	faultOverrideNow     = "override set for all at once"
	faultOverridden      = "host takes an override"
	faultOverrideRefused = "override refused by a host"
	faultBadOverride     = "override that does harm"
	faultCarried         = "override carried by a release"
	faultBlocked         = "commit blocked under an override"
	faultTwo             = "two overrides on one path"
	faultExtend          = "override extended"
	faultEnd             = "override ended by a person"
	faultEndSteps        = "override ends in steps before its time"
	faultEndStep         = "another step of an override's end"
	faultEndSame         = "override ends since git says the same"
	faultAdopt           = "override brought into git"
	faultMayNot          = "operator key out of its bounds"
	faultClock           = "clock set"
	faultClockUnder      = "clock set under an override"
	faultCutUnder        = "host cut off until after an override's end"
	faultRebootUnder     = "reboot of a cut-off host under an override"
	faultDrift           = "file changed by hand"
	faultRepair          = "file put right"
	faultForged          = "override that its key may not sign"
	faultFrozen          = "override under a freeze"
	faultBackFrozen      = "rollback under a freeze"
	faultBackUnder       = "rollback under an override"
	faultBackOver        = "way back leaves an override behind"
)

var operatorFaults = []string{
	faultOverride, faultOverrideNow, faultOverridden, faultOverrideRefused, faultBadOverride, faultCarried, faultBlocked, faultTwo, faultExtend, faultEnd, faultEndSteps, faultEndStep, faultEndSame,
	faultAdopt, faultMayNot, faultClock, faultClockUnder, faultCutUnder, faultRebootUnder, faultFrozen, faultBackFrozen,
	faultBackUnder, faultForged, faultDrift, faultRepair,
}

// cast is everybody who acts while faults last.
func (w *World) cast() map[string]func(*draw, time.Time) {
	dora := &operator{w: w, name: "dora", key: signing.Operator}
	emil := &operator{w: w, name: "emil", key: narrow}
	return map[string]func(*draw, time.Time){
		"faults": w.faults, "commits": w.develop, "people": w.people, "dora": dora.operate, "emil": emil.operate, "troubles": w.troubles,
	}
}

// under are the hosts that run an override, and until when each does at most.
func (w *World) under() (list []*host, until map[string]time.Time) {
	until = map[string]time.Time{}
	for _, h := range w.hosts {
		h.mu.Lock()
		if cur := h.disk.current; cur != nil && cur.Override != "" {
			list = append(list, h)
			for i := range h.pocket.known {
				if g := &h.pocket.known[i]; g.ID == cur.Override && g.Ended == nil {
					until[h.name] = later(until[h.name], g.NotAfter)
				}
			}
		}
		h.mu.Unlock()
	}
	return list, until
}

// troubles are what makes the end of an override hard: clocks that are set, and hosts that hear of nothing until after it, and start anew meanwhile.
func (w *World) troubles(d *draw, end time.Time) {
	for w.pause(d.between(20*time.Second, 4*time.Minute)) && time.Now().Before(end) {
		list, until := w.under()
		h, covered := pick(d, w.hosts), false
		if len(list) > 0 && d.percent(75) {
			h, covered = pick(d, list), true
		}
		if d.percent(15) {
			h.edit(pick(d, services))
			continue
		}
		if !covered || d.percent(45) {
			off := d.between(time.Minute, 3*time.Hour)
			if d.percent(60) {
				off = -off
			}
			w.census.fault(faultClock)
			if covered {
				w.census.fault(faultClockUnder)
			}
			h.jump(off)
			if d.percent(50) {
				w.after(d.between(time.Minute, 20*time.Minute), h.setRight)
			}
			continue
		}
		w.cut(faultCutHost, time.Until(until[h.name])+d.between(6*time.Minute, 15*time.Minute), who(h.name)...)
		w.census.fault(faultCutUnder)
		if d.percent(40) {
			w.census.fault(faultRebootUnder)
			h.down()
			w.after(d.between(time.Second, 3*time.Minute), h.up)
		}
	}
}

// setRight sets the clock as it was made.
func (h *host) setRight() {
	h.mu.Lock()
	off, first := h.clock.off, h.clock.first
	h.mu.Unlock()
	if off != first {
		h.jump(first)
	}
}

// adopt finds the text of an override that lives, to be brought into the config repo.
func (w *World) adopt() map[string]string {
	for _, f := range w.cohorts {
		v := f.now()
		if v == nil {
			continue
		}
		for _, o := range v.Living(time.Now()) {
			w.mu.Lock()
			m := w.ops.meant[o.ID]
			w.mu.Unlock()
			if m != nil && w.trait(m.text).kind == traitGood {
				w.census.fault(faultAdopt)
				return map[string]string{m.service: m.text}
			}
		}
	}
	return nil
}

// blockedIn says whether a cohort could not have the commit of an epoch. Under w.mu.
func (w *World) blockedIn(epoch uint64, cohort string) bool {
	c := w.released(epoch)
	return c != nil && w.ops.blocked[c.n][cohort] != ""
}

// blockedAnywhere says whether some cohort could not have the commit of an epoch.
func (w *World) blockedAnywhere(epoch uint64) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	c := w.released(epoch)
	return c != nil && c.epoch == epoch && len(w.ops.blocked[c.n]) > 0
}

// blockedOf are the cohorts that could not have a commit.
func (w *World) blockedOf(c commit) (list []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for name := range w.ops.blocked[c.n] {
		list = append(list, name)
	}
	slices.Sort(list)
	return list
}

// stands is the epoch that stands for a cohort.
func (w *World) stands(cohort string) uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.ops.stands[cohort]
}

func (w *World) epochOf(c commit) uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.commits[c.n-1].epoch
}

// publishWhole publishes a commit until every cohort can have it: what keeps it from one ends by itself, or by a person.
func (w *World) publishWhole(c commit) bool {
	for try := 0; ; try++ {
		if !w.publish(c) {
			return false
		}
		blocked := w.blockedOf(c)
		if len(blocked) == 0 {
			return true
		}
		if try > 60 {
			w.breach("a commit that was blocked is built when it fits", "%v after an hour: %v", blocked, w.behind())
			return false
		}
		if try > 2 {
			for _, name := range blocked {
				w.unblock(name)
			}
		}
		if !w.pause(time.Minute) {
			return false
		}
	}
}

// assignedNow is what the stored head assigns to a host at this moment.
func (h *host) assignedNow() string {
	v := h.fleet.now()
	if v == nil {
		return ""
	}
	r, err := manifest.Resolve(v, manifest.Host{Name: h.name, Labels: h.labels}, time.Now())
	if err != nil {
		return ""
	}
	return r.Content
}
