package agent_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/muster-config/muster/agent"
	"github.com/muster-config/muster/agent/durable"
	"github.com/muster-config/muster/distributor/report"
)

// A disk on which an fsync never comes back: the reports go on, and do not say for ever that the host is confirmed.
func TestHungDiskIsNotConfirmed(t *testing.T) {
	r := newRig(t, "checkout")
	c := newCollector(t)
	r.reporter = c
	var mu sync.Mutex
	var stuck chan struct{}
	r.disk.Trace = func(op durable.Op, _ string) error {
		mu.Lock()
		wait := stuck
		mu.Unlock()
		if op == durable.OpSync && wait != nil {
			<-wait
		}
		return nil
	}
	r.world.Release(files{"checkout/checkout.yaml": "1"})
	r.world.Assign(1)
	stop := r.running(r.agent())
	free := sync.OnceFunc(func() { mu.Lock(); close(stuck); stuck = nil; mu.Unlock() })
	c.wait("confirmed at 1", confirmedAt(1))
	t.Cleanup(free) // else a failure would wait for the agent for ever
	mu.Lock()
	stuck = make(chan struct{})
	mu.Unlock()
	r.world.Assign(1) // a newer floor is to be written
	got := c.wait("that takes it back", func(r report.Report) bool {
		return !r.Confirmed && strings.HasPrefix(r.Reason, "not probed for more than")
	})
	if got.Reason != "not probed for more than 2s" || got.Running != 1 || got.Phase != report.PhaseIdle {
		t.Errorf("%+v", got)
	}
	free()
	c.wait("confirmed again", func(rep report.Report) bool {
		return confirmedAt(1)(rep) && rep.Counter > got.Counter && rep.Seen == "1-2-0"
	})
	stop()
}

// Floors that could not be written are said before all else.
func TestFloorsNotKept(t *testing.T) {
	r := newRig(t, "checkout")
	r.world.Release(files{"checkout/checkout.yaml": "1"})
	r.world.Assign(1)
	r.confirmed(1)
	r.world.Assign(1)
	r.disk.Trace = func(op durable.Op, path string) error {
		if op == durable.OpRename && filepath.Base(path) == "state.json" {
			return syscall.EIO
		}
		return nil
	}
	res, err := r.once()
	if !errors.Is(err, agent.ErrNotKept) || !errors.Is(err, syscall.EIO) || res.Seen != "" || res.Confirmed {
		t.Errorf("%+v, %v", res, err)
	}
	r.disk.Trace = nil
	r.confirmed(1)
}

// Names and errors that are not UTF-8 make no host silent, and keep no release away from it.
func TestOddBytes(t *testing.T) {
	deep := filepath.Join(strings.Repeat("a", 250), strings.Repeat("b", 250), "\u00e9\u00e9") // the limit of a path cuts its first character in two
	for name, path := range map[string]string{"a name": "x\xff", "a directory": "caf\xe9/x", "a long path": deep} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, "checkout")
			c := newCollector(t)
			r.reporter = c
			r.world.Release(files{"checkout/checkout.yaml": "1"})
			r.world.Assign(1)
			r.confirmed(1)
			at := filepath.Join(r.root, "current/checkout", path)
			if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(at, nil, 0o644); err != nil {
				t.Fatal(err)
			}
			stop := r.running(r.agent())
			drift := c.wait("of the drift", func(r report.Report) bool { return len(r.Drift) > 0 })
			c.wait("confirmed again", func(r report.Report) bool { return confirmedAt(1)(r) && r.Boot == drift.Boot })
			stop()
			r.sound(1)
		})
	}
	t.Run("an error", func(t *testing.T) {
		r := newRig(t, "checkout")
		c := newCollector(t)
		r.reporter = c
		r.edit("checkout", func(s *agent.ServiceConfig) { s.Check = []string{"/no\xff"} })
		r.world.Release(files{"checkout/checkout.yaml": "1"})
		r.world.Assign(1)
		stop := r.running(r.agent())
		c.wait("of the refusal", func(r report.Report) bool { return r.Code == agent.CodeCheck && strings.Contains(r.Reason, "/no?") })
		stop()
	})
}
