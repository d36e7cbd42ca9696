package sim

import (
	"fmt"
	"time"
)

// faults lets things go wrong, each for a while.
func (w *World) faults(d *draw, end time.Time) {
	next := 3
	for w.pause(d.between(time.Second, 40*time.Second)) && time.Now().Before(end) {
		h := pick(d, w.hosts)
		switch d.n(16) {
		case 0, 1:
			actors := who(h.name)
			switch d.n(4) {
			case 0:
				actors = actors[:1]
			case 1:
				actors = actors[1:]
			}
			w.cut(faultCutHost, d.between(time.Minute, 15*time.Minute), actors...)
		case 2, 3:
			w.census.fault(faultKillAgent)
			w.note("world", "kill", "agent of %s", h.name)
			h.kill()
			w.after(d.between(0, 4*time.Minute), h.boot)
		case 4:
			w.census.fault(faultDownHost)
			w.note("world", "down", "%s", h.name)
			h.down()
			w.after(d.between(time.Minute, 20*time.Minute), h.up)
		case 5:
			w.illness(d, h)
		case 6:
			name := pick(d, services)
			h.mu.Lock()
			h.procs[name].deaf = true
			h.mu.Unlock()
			w.census.fault(faultDeaf)
			w.note("world", "deaf", "%s of %s", name, h.name)
			w.after(d.between(time.Minute, 20*time.Minute), func() {
				h.mu.Lock()
				defer h.mu.Unlock()
				if h.procs[name].deaf = false; h.procs[name].up {
					h.load(name) // somebody restarts it
				}
			})
		case 7, 8:
			if name, ok := w.killController(d.n(8)); ok {
				w.census.fault(faultKillCtl)
				w.note("world", "kill", "%s", name)
				if w.many() < 2 {
					w.after(d.between(0, 2*time.Minute), func() { w.steer(name) })
				}
			}
		case 9:
			if w.many() < 3 {
				w.census.fault(faultDuplicate)
				w.steer(fmt.Sprintf("ctl-%d", next))
				next++
			}
		case 10:
			w.mu.Lock()
			if n := len(w.controllers); n > 0 {
				c := w.controllers[d.n(n)]
				c.frozen.Store(time.Now().Add(time.Hour).UnixNano())
				w.census.fault(faultHour)
				w.mu.Unlock()
				w.note("world", "freeze", "%s for an hour", c.name)
				if w.many() < 4 {
					w.steer(fmt.Sprintf("ctl-%d", next))
					next++
				}
			} else {
				w.mu.Unlock()
			}
		case 11:
			w.mu.Lock()
			name := ""
			if n := len(w.controllers); n > 0 {
				name = w.controllers[d.n(n)].name
			}
			w.mu.Unlock()
			if name != "" {
				w.cut(faultCutCtl, d.between(30*time.Second, 8*time.Minute), name)
			}
		case 12:
			w.census.fault(faultKillServer)
			w.note("world", "kill", "collector")
			w.crash()
			w.after(d.between(0, 3*time.Minute), func() {
				if _, err := w.collector(); err != nil {
					w.serve()
				}
			})
		case 13:
			w.cut(faultCutServer, d.between(10*time.Second, 4*time.Minute), "collector")
		case 14:
			w.storm(d)
		case 15:
			if d.percent(50) {
				w.blackout(d)
			} else {
				w.strike(d, h.fleet)
			}
		}
	}
}

// after does something after a while, unless faults are over by then: heal does it then.
func (w *World) after(d time.Duration, do func()) {
	w.wg.Add(1)
	go func() {
		defer w.wg.Done()
		if !w.pause(d) {
			return
		}
		if !w.quiet() {
			do()
		}
	}()
}

func (w *World) many() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.controllers)
}

// cut lets nothing that actors send arrive.
func (w *World) cut(fault string, d time.Duration, actors ...string) {
	w.census.fault(fault)
	w.note("world", "cut", "%v for %s", actors, d.Round(time.Second))
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, a := range actors {
		w.gone[a] = time.Now().Add(d)
	}
}

// illness makes a process ill, whatever it runs.
func (w *World) illness(d *draw, h *host) {
	name := pick(d, services)
	h.mu.Lock()
	h.procs[name].ill = true
	h.mu.Unlock()
	w.census.fault(faultIll)
	w.note("world", "ill", "%s of %s", name, h.name)
	w.after(d.between(30*time.Second, 10*time.Minute), func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		if h.procs[name].up {
			h.load(name)
		}
	})
}

func (w *World) storm(d *draw) {
	s := storm{kind: []string{faultLostWrite, faultLostAnswer, faultStoreError}[d.n(3)], share: uint64(50 + d.n(400))}
	now := time.Now()
	s.from, s.to = now, now.Add(d.between(20*time.Second, 5*time.Minute))
	w.note("world", "storm", "%s, %d of 1000, for %s", s.kind, s.share, s.to.Sub(now).Round(time.Second))
	w.mu.Lock()
	defer w.mu.Unlock()
	w.weather = append(w.weather, s)
}

func (w *World) blackout(d *draw) {
	now := time.Now()
	s := span{now, now.Add(d.between(30*time.Second, 15*time.Minute))}
	w.census.fault(faultBlackout)
	w.note("world", "blackout", "for %s", s.to.Sub(now).Round(time.Second))
	w.mu.Lock()
	defer w.mu.Unlock()
	w.blackouts = append(w.blackouts, s)
}
