package sim

import (
	"time"
	"unsafe"
)

// clock is what a host takes for the time. Somebody may set it; how long the machine runs does not change by that. Under host.mu.
type clock struct {
	first time.Duration // how wrong it was made
	off   time.Duration // how wrong it is
	was   time.Duration // before it was last set
	set   time.Time     // when that was
	up    time.Time     // when the machine came up: its running time counts from there
	turns int           // how often it was set
}

// now is the time as the host's agent reads it.
func (h *host) now() time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	return instant(time.Now().Add(h.clock.off), time.Since(h.clock.up))
}

// jump sets the clock.
func (h *host) jump(off time.Duration) {
	h.mu.Lock()
	c := &h.clock
	c.was, c.off, c.set = c.off, off, time.Now()
	c.turns++
	h.beginAnew(c.set)
	h.mu.Unlock()
	h.w.note("world", "clock", "%s is off by %s", h.name, off.Round(time.Second))
}

// readings are what the clock may have said to one who decides now, or did a moment ago. Under h.mu.
func (h *host) readings(now time.Time, grace time.Duration) []time.Time {
	list := []time.Time{now.Add(h.clock.off), now.Add(h.clock.off - grace)}
	if h.clock.turns > 0 && now.Sub(h.clock.set) < grace {
		list = append(list, now.Add(h.clock.was), now.Add(h.clock.was-grace))
	}
	// What begins and ends between the two counts as well: a hold ends, say, and soon after that an override.
	for back := time.Minute; back < grace; back += time.Minute {
		list = append(list, now.Add(h.clock.off-back))
	}
	return list
}

// instant is a time as processes read it: a wall clock, and a running time that goes on evenly when the wall clock is set. The clock of a simulation has no running time of its own, and
// nothing but time.Now makes a time that has one; so it is put together as time.Now does.
func instant(wall time.Time, running time.Duration) time.Time {
	const (
		monotonic  = 1 << 63
		fromYear1  = (1884*365 + 1884/4 - 1884/100 + 1884/400) * 86400
		unixToYear = (1969*365 + 1969/4 - 1969/100 + 1969/400) * 86400
	)
	t := struct {
		wall uint64
		ext  int64
		loc  *time.Location
	}{
		monotonic | uint64(wall.Unix()+unixToYear-fromYear1)<<30 | uint64(wall.Nanosecond()), int64(running) + 1, time.Local,
	}
	return *(*time.Time)(unsafe.Pointer(&t))
}
