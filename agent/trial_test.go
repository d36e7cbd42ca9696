package agent_test

import (
	"context"
	"io"
	"testing"
	"time"

	"github.com/muster-config/muster/agent"
	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/report"
)

// A head that assigns the release on trial once more, or junk, does not end the trial: a change that makes a process ill is still taken back.
func TestHeadsDuringTheTrial(t *testing.T) {
	for name, during := range map[string]func(r *rig, p *poll){
		"signed anew": func(r *rig, p *poll) { p.push(r.world.Assign(2), manifest.Mark{Era: 1, Serial: 3}) },
		"junk": func(r *rig, p *poll) {
			p.mu.Lock()
			p.bad = 1
			p.mu.Unlock()
			p.push([]byte("{}"), manifest.Mark{Era: 1, Serial: 3})
		},
	} {
		t.Run(name, func(t *testing.T) {
			r, c, p := illRig(t)
			r.edit("checkout", func(s *agent.ServiceConfig) { s.Confirm.Within = 2 * time.Second })
			stop := r.running(r.agent())
			c.wait("that waits", func(r report.Report) bool { return r.Phase == report.PhaseConfirming && r.Running == 2 })
			during(r, p)
			c.wait("of the way back", func(r report.Report) bool { return r.Phase == report.PhaseRolledBack && r.Running == 1 })
			stop()
			r.sound(1)
		})
	}
}

// An agent that starts in the middle of a trial waits behind the head that it knows: a collector that has the same one does not answer, and the trial gets
// its verdict.
func TestStartInTheTrial(t *testing.T) {
	r, c, p := illRig(t)
	r.edit("checkout", func(s *agent.ServiceConfig) { s.Confirm.Within = time.Hour })
	stop := r.running(r.agent())
	c.wait("that waits", func(r report.Report) bool { return r.Phase == report.PhaseConfirming && r.Running == 2 })
	stop()
	before := len(p.marks())
	r.edit("checkout", func(s *agent.ServiceConfig) { s.Confirm.Within = 500 * time.Millisecond })
	stop = r.running(r.agent())
	c.wait("of the way back", func(r report.Report) bool { return r.Phase == report.PhaseRolledBack && r.Running == 1 })
	stop()
	r.sound(1)
	if marks := p.marks()[before:]; len(marks) == 0 || marks[0] != (manifest.Mark{Era: 1, Serial: 2}) {
		t.Errorf("the first question of the new start is behind %v", marks)
	}
}

// illRig is a host confirmed at release 1 that is to go to release 2, which makes its process ill; a failed release is tried once.
func illRig(t *testing.T) (*rig, *collector, *poll) {
	t.Helper()
	r := newRig(t, "checkout")
	r.patient = true
	r.cfg.Poll = time.Minute
	c := newCollector(t)
	r.world.Release(files{"checkout/checkout.yaml": "1"})
	r.world.Assign(1)
	r.confirmed(1)
	r.reporter = c
	r.world.Release(files{"checkout/checkout.yaml": "poison"})
	p := newPoll(r.carriers[0])
	p.push(r.world.Assign(2), manifest.Mark{Era: 1, Serial: 2})
	r.carriers = []agent.Carrier{p}
	return r, c, p
}

// While the files of a newer release are fetched its head is not on disk yet, and the report names what is.
func TestDesiredIsOnDisk(t *testing.T) {
	r := newRig(t, "checkout")
	c := newCollector(t)
	r.world.Release(files{"checkout/checkout.yaml": "1"})
	r.world.Assign(1)
	r.confirmed(1)
	r.reporter = c
	slow := &held{Carrier: r.carriers[0], free: make(chan struct{})}
	r.carriers = []agent.Carrier{slow}
	stop := r.running(r.agent())
	c.wait("confirmed at 1", confirmedAt(1))
	r.world.Release(files{"checkout/checkout.yaml": "2"})
	r.world.Assign(2)
	got := c.wait("of the fetch", func(r report.Report) bool { return r.Phase == report.PhaseFetching && r.Attempted == 2 })
	if got.Desired != 1 || got.Seen != "1-1-0" || got.Confirmed {
		t.Errorf("desired %d, seen %s, confirmed %v", got.Desired, got.Seen, got.Confirmed)
	}
	close(slow.free)
	if got := c.wait("confirmed at 2", confirmedAt(2)); got.Desired != 2 || got.Seen != "1-2-0" {
		t.Errorf("desired %d, seen %s", got.Desired, got.Seen)
	}
	stop()
}

// An era that only the next keyring begins: the long poll alone brings both.
func TestHintOfANewEra(t *testing.T) {
	r := newRig(t, "checkout")
	c := newCollector(t)
	r.reporter = c
	r.cfg.Poll = time.Minute
	r.world.Release(files{"checkout/checkout.yaml": "1"})
	r.world.Release(files{"checkout/checkout.yaml": "2"})
	p := newPoll(r.carriers[0])
	p.push(r.world.Assign(1), manifest.Mark{Era: 1, Serial: 1})
	r.carriers = []agent.Carrier{p}
	stop := r.running(r.agent())
	c.wait("confirmed at 1", confirmedAt(1))
	await(t, "the long poll behind the first head", func() bool { m := p.marks(); return m[len(m)-1].Serial == 1 })
	r.world.Rotate(func(k *manifest.Keyring) { k.Era = 2 })
	p.push(r.world.Head(2, func(m *manifest.Manifest) { m.Era = 2 }), manifest.Mark{Era: 2, Serial: 2})
	c.wait("confirmed at 2", confirmedAt(2))
	stop()
}

// The beat is not signed: a high one hides neither the overrides of a later answer nor those of another source.
func TestBeatHidesNothing(t *testing.T) {
	for name, two := range map[string]bool{"a later answer": false, "another source": true} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, "checkout")
			r.world.Release(files{"checkout/checkout.yaml": "1"})
			full := r.world.Override(1, files{"checkout/checkout.yaml": "overridden"}, time.Now().Add(time.Hour))
			bare := r.world.Bare(full, 1<<50)
			key := manifest.KeyHead(r.cfg.Cohort)
			if two {
				high := &faulty{Carrier: r.carriers[0], name: "high", head: func() ([]byte, error) { return bare, nil }}
				r.carriers = append([]agent.Carrier{high}, r.carriers...)
			} else {
				r.world.Put(key, bare)
				r.confirmed(1)
				r.world.Put(key, full)
			}
			res, err := r.once()
			if err != nil || !res.Confirmed || r.read("checkout/checkout.yaml") != "overridden" {
				t.Errorf("%q: %+v, %v", r.read("checkout/checkout.yaml"), res, err)
			}
			for _, s := range res.Sources {
				if s.Err != nil {
					t.Errorf("%s: %v", s.Name, s.Err)
				}
			}
		})
	}
}

// held is a carrier whose objects come when they are freed.
type held struct {
	agent.Carrier
	free chan struct{}
}

func (h *held) Object(ctx context.Context, key string) (io.ReadCloser, int64, error) {
	select {
	case <-h.free:
		return h.Carrier.Object(ctx, key)
	case <-ctx.Done():
		return nil, 0, ctx.Err()
	}
}
