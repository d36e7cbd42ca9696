package sim

import (
	"slices"
	"time"

	"github.com/muster-config/muster/agent"
)

// repairFor is how long a file that was changed by hand may stay so: a full re-sync and its jitter, a try that does not work, and the time to apply.
const repairFor = 16 * time.Minute

// edited is what somebody changed by hand on a host. Under host.mu.
type edited struct {
	paths []string
	at    time.Time
}

// edit changes a file by hand.
func (h *host) edit(service string) {
	h.mu.Lock()
	if h.disk.current == nil || len(h.disk.edited.paths) > 0 {
		h.mu.Unlock()
		return
	}
	h.disk.edited = edited{[]string{service + "/" + service + ".conf"}, time.Now()}
	h.mu.Unlock()
	h.w.census.fault(faultDrift)
	h.w.note("world", "edit", "%s of %s", service, h.name)
}

// repaired notes that a release was put in place whole. Under h.mu.
func (d *disk) repaired(w *World, same bool) {
	if same && len(d.edited.paths) > 0 {
		w.census.fault(faultRepair)
	}
	d.edited = edited{}
}

// touched adds the services whose files were changed by hand to what differs. Under h.mu.
func (d *disk) touched(files map[string]agent.Change, next *installed) {
	if next != d.current {
		return
	}
	for _, s := range services {
		if slices.Contains(d.edited.paths, s+"/"+s+".conf") {
			c := files[s]
			c.Changed = append(c.Changed, s+".conf")
			files[s] = c
		}
	}
}

// unrepaired demands that what was changed by hand is put right.
func (w *World) unrepaired() {
	now := time.Now()
	for _, h := range w.hosts {
		w.mu.Lock()
		since := later(w.gone[h.name], w.gone[h.name+"+"])
		w.mu.Unlock()
		h.mu.Lock()
		since = later(later(since, h.disk.edited.at), later(h.booted, later(h.clock.set, h.stumbled)))
		bad := len(h.disk.edited.paths) > 0 && h.life != nil && now.Sub(since) > repairFor && h.disk.current != nil && !h.failed[h.disk.current.Content]
		h.mu.Unlock()
		if bad {
			w.breach("what is changed by hand is put right", "%s: %s ago", h.name, now.Sub(h.disk.edited.at).Round(time.Second))
			return
		}
	}
}
