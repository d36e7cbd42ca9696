package agent_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/muster-config/muster/agent"
	"github.com/muster-config/muster/agent/probe"
	"github.com/muster-config/muster/distributor/report"
	"github.com/muster-config/muster/distributor/store"
)

// clocks are the two clocks of a host: the wall's, which may be set, and the machine's running time.
type clocks struct {
	agent.Prober
	mu    sync.Mutex
	wall  time.Time
	boots int
	up    time.Duration
}

func newClocks(wall time.Time) *clocks {
	return &clocks{Prober: probe.New(), wall: wall, up: 100 * time.Hour}
}

func (c *clocks) Now() probe.Moment {
	c.mu.Lock()
	defer c.mu.Unlock()
	return probe.Moment{Wall: c.wall, Boot: fmt.Sprintf("boot-%d", c.boots), Up: c.up.Microseconds(), Mono: c.up.Microseconds()}
}

func (c *clocks) now() time.Time { c.mu.Lock(); defer c.mu.Unlock(); return c.wall }

// pass lets time pass on both clocks.
func (c *clocks) pass(d time.Duration) {
	c.mu.Lock()
	c.wall, c.up = c.wall.Add(d), c.up+d
	c.mu.Unlock()
}

// jump sets the wall clock.
func (c *clocks) jump(d time.Duration) { c.mu.Lock(); c.wall = c.wall.Add(d); c.mu.Unlock() }

// reboot is a start of the machine after it was off for a time: the wall clock, which has a battery, went on.
func (c *clocks) reboot(off time.Duration) {
	c.mu.Lock()
	c.wall, c.boots, c.up = c.wall.Add(off), c.boots+1, time.Minute
	c.mu.Unlock()
}

// cutOff is a carrier that cannot be reached any more.
func cutOff(c agent.Carrier) *faulty {
	return &faulty{Carrier: c, name: "gone", head: func() ([]byte, error) { return nil, store.ErrUnreachable }}
}

// step is what happens to a host's clocks, and whether what has an end still acts after it. Each is followed by a start of the agent.
type step struct {
	what string
	do   func(*clocks)
	acts bool
}

// ends are the lives of something that lasts an hour, on a host that is cut off.
var ends = map[string][]step{
	"in its time": {
		{"59 minutes", func(c *clocks) { c.pass(59 * time.Minute) }, true},
		{"1 more", func(c *clocks) { c.pass(time.Minute) }, false},
	},
	"the clock stands still": {
		{"30 minutes", func(c *clocks) { c.pass(30 * time.Minute); c.jump(-30 * time.Minute) }, true},
		{"29 more", func(c *clocks) { c.pass(29 * time.Minute); c.jump(-29 * time.Minute) }, true},
		{"1 more", func(c *clocks) { c.pass(time.Minute); c.jump(-time.Minute) }, false},
		{"a start of the machine", func(c *clocks) { c.reboot(0) }, false},
		{"the clock is set back more", func(c *clocks) { c.jump(-5 * time.Minute) }, false},
	},
	"the clock goes back": {
		{"after 20 minutes", func(c *clocks) { c.pass(20 * time.Minute); c.jump(-25 * time.Minute) }, true},
		{"and again", func(c *clocks) { c.pass(20 * time.Minute); c.jump(-20 * time.Minute) }, true},
		{"an hour of running time", func(c *clocks) { c.pass(20 * time.Minute); c.jump(-20 * time.Minute) }, false},
	},
	"the clock goes ahead": {
		{"to before the end", func(c *clocks) { c.jump(59 * time.Minute) }, true},
		{"beyond it", func(c *clocks) { c.jump(2 * time.Minute) }, false},
	},
	"starts of the machine, and the clock goes on": {
		{"10 minutes, off for 10", func(c *clocks) { c.pass(10 * time.Minute); c.reboot(10 * time.Minute) }, true},
		{"off for 39", func(c *clocks) { c.reboot(39 * time.Minute) }, true},
		{"off for 2", func(c *clocks) { c.reboot(2 * time.Minute) }, false},
	},
	"starts of the machine, and the clock has no battery": {
		// Running time is counted over starts: before them as far as it was noted, after them from the start of the machine.
		{"20 minutes", func(c *clocks) { c.pass(20 * time.Minute); c.jump(-20 * time.Minute) }, true},
		{"off", func(c *clocks) { c.reboot(0) }, true},
		{"20 more", func(c *clocks) { c.pass(20 * time.Minute); c.jump(-20 * time.Minute) }, true},
		{"off again", func(c *clocks) { c.reboot(0) }, true},
		{"20 more", func(c *clocks) { c.pass(20 * time.Minute); c.jump(-20 * time.Minute) }, false},
	},
	"off for long": {{"a day", func(c *clocks) { c.reboot(24 * time.Hour) }, false}},
}

// D005: an override ends on a host that is cut off, by whichever of its clocks is first.
func TestD005OverrideEndsByBothClocks(t *testing.T) {
	for name, steps := range ends {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, "checkout")
			c := newClocks(time.Now())
			r.prober = c
			r.world.Release(files{"checkout/checkout.yaml": "1"})
			r.world.Assign(1)
			r.confirmed(1)
			r.world.Override(1, files{"checkout/checkout.yaml": "emergency"}, c.now().Add(time.Hour))
			once := func() agent.OnceResult {
				a := r.agent()
				agent.SetNow(a, c.now)
				res, _ := a.Once(t.Context(), false) // that no source is reached is as it should be
				return res
			}
			if res := once(); res.Override != "inc-311" {
				t.Fatalf("not taken: %+v", res)
			}
			r.carriers = []agent.Carrier{cutOff(r.carriers[0])}
			for _, s := range steps {
				s.do(c)
				if res := once(); (res.Override == "inc-311") != s.acts || !s.acts && res.Running != 1 {
					t.Fatalf("%s: override %q, epoch %d; acts should be %v", s.what, res.Override, res.Running, s.acts)
				}
			}
			r.sound(1)
		})
	}
}

// A clock that was ahead of the end, and is set right, has ended nothing for good: the fleet still runs it. Of the running time nothing is given back.
func TestD005ClockAheadIsSetRight(t *testing.T) {
	r := newRig(t, "checkout")
	c := newClocks(time.Now())
	r.prober = c
	r.world.Release(files{"checkout/checkout.yaml": "1"})
	r.world.Assign(1)
	r.confirmed(1)
	r.world.Override(1, files{"checkout/checkout.yaml": "emergency"}, c.now().Add(time.Hour))
	runs := func(what, override string) {
		t.Helper()
		a := r.agent()
		agent.SetNow(a, c.now)
		if res, _ := a.Once(t.Context(), false); res.Override != override {
			t.Fatalf("%s: override %q, %+v", what, res.Override, res)
		}
	}
	runs("at first", "inc-311")
	c.jump(3 * time.Hour)
	runs("ahead", "")
	c.jump(-3 * time.Hour)
	runs("set right", "inc-311")
	c.pass(59 * time.Minute)
	c.jump(-time.Hour)
	runs("a minute is left", "inc-311")
	c.pass(time.Minute)
	runs("nothing is left", "")
}

// A host that hears of it late, or by a clock that is behind, has no more of it than there is.
func TestD005HeardLate(t *testing.T) {
	for name, tt := range map[string]struct {
		wall time.Duration // when it is heard, from its creation
		left time.Duration
	}{
		"late":             {50 * time.Minute, 10 * time.Minute},
		"a clock behind":   {-10 * time.Minute, time.Hour},
		"at the beginning": {0, time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, "checkout")
			created := time.Now()
			c := newClocks(created.Add(tt.wall))
			r.prober = c
			r.world.Release(files{"checkout/checkout.yaml": "1"})
			r.world.Override(1, files{"checkout/checkout.yaml": "emergency"}, created.Add(time.Hour))
			for i, acts := range []bool{true, true, false} {
				a := r.agent()
				agent.SetNow(a, c.now)
				if res, _ := a.Once(t.Context(), false); (res.Override != "") != acts {
					t.Fatalf("look %d: override %q", i, res.Override)
				}
				d := []time.Duration{tt.left - time.Minute, time.Minute, 0}[i]
				c.pass(d)
				c.jump(-d)
			}
		})
	}
}

// A hold ends by the same clocks, and survives all that an override survives.
func TestHoldEndsByBothClocks(t *testing.T) {
	for name, steps := range ends {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, "checkout")
			c := newClocks(time.Now().Truncate(time.Second))
			r.prober = c
			r.world.Release(files{"checkout/checkout.yaml": "1"})
			r.world.Release(files{"checkout/checkout.yaml": "2"})
			r.world.Assign(1)
			r.confirmed(1)
			start := func() *agent.Agent {
				a := r.agent()
				agent.SetNow(a, c.now)
				return a
			}
			if _, err := start().Hold(agent.HoldOrder{By: "ana", Why: "INC-311", For: time.Hour}); err != nil {
				t.Fatal(err)
			}
			r.world.Assign(2)
			for _, s := range steps {
				s.do(c)
				res, err := start().Once(t.Context(), false)
				if (res.Held != nil) != s.acts || s.acts && res.Running != 1 || !s.acts && (res.Running != 2 || !res.Confirmed) || err != nil {
					t.Fatalf("%s: %+v, %v; held should be %v", s.what, res, err, s.acts)
				}
			}
		})
	}
}

// While an agent runs, what is over is taken away in time: by the end itself, not at a later look.
func TestHoldEndsWhileRunning(t *testing.T) {
	r := newRig(t, "checkout")
	col := newCollector(t)
	r.reporter = col
	r.cfg.Poll = time.Minute // the end is heard of between two looks
	r.world.Release(files{"checkout/checkout.yaml": "1"})
	r.world.Release(files{"checkout/checkout.yaml": "2"})
	r.world.Assign(1)
	r.confirmed(1)
	a := r.agent()
	if _, err := a.Hold(agent.HoldOrder{By: "ana", Why: "INC-311", For: 2 * time.Second}); err != nil {
		t.Fatal(err)
	}
	r.world.Assign(2)
	stop := r.running(a)
	rep := col.wait("that says held", func(r report.Report) bool { return r.Held != nil })
	if rep.Running != 1 || rep.Desired != 2 || rep.Held.By != "ana" || rep.Held.Why != "INC-311" || rep.Phase != report.PhaseIdle || rep.Code != agent.CodeHeld {
		t.Errorf("%+v", rep)
	}
	rep = col.wait("confirmed at 2", confirmedAt(2))
	if rep.Held != nil {
		t.Errorf("%+v", rep.Held)
	}
	stop()
}
