package agent

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/muster-config/muster/agent/probe"
)

// holdFails is how many failures in a row, a second apart at most, make a service ill that has been well after the change: one alone may be chance.
const holdFails = 2

// hold is how a service has been since the change.
type hold struct {
	since time.Time // well since; zero: not yet
	fails int       // in a row
	done  bool
}

// awaitHealthy asks every service of the trial that was well before the swap until it has been well for its `for`. What was ill before is reported, and is no
// reason to go back. A service may take as long to come up as it may take to confirm. ended is as in awaitConfirmed.
func (a *Agent) awaitHealthy(ctx context.Context, t *trial) (ended bool, err error) {
	holds := map[string]*hold{}
	pause := time.Second
	for _, name := range t.Healthy {
		cfg := a.cfg.Services[name]
		if _, in := a.cur.Services[name]; !in || cfg.Healthy == nil || a.health[name].stopped != "" {
			continue
		}
		holds[name] = &hold{}
		pause = min(pause, max(cfg.Healthy.For/10, a.timing.probe))
	}
	for _, name := range sorted(holds) {
		a.reason = fmt.Sprintf("%s: confirmed, and has to be healthy for %s before that counts", name, a.cfg.Services[name].Healthy.For)
		break
	}
	started := a.now()
	for asks := 1; ; asks++ {
		open := false
		for _, name := range sorted(holds) {
			h := holds[name]
			if h.done {
				continue
			}
			if err := a.holds(ctx, name, h, started); err != nil {
				return true, err
			}
			open = open || !h.done
		}
		if !open {
			return true, nil
		}
		if asks == 5 {
			a.publish(true)
		}
		if a.superseded(ctx, t) || !sleep(ctx, pause) {
			return false, nil
		}
	}
}

func (a *Agent) holds(ctx context.Context, name string, h *hold, started time.Time) error {
	cfg := a.cfg.Services[name].Healthy
	asked := time.Now()
	err := a.opts.Prober.Well(ctx, probe.Health{URL: cfg.HTTP, Status: cfg.Status})
	a.count(name+" healthy", time.Since(asked), err)
	said := a.health[name]
	said.at, said.well = a.now(), err
	a.health[name] = said
	switch {
	case err == nil:
		if h.since.IsZero() {
			h.since = a.now()
		}
		h.fails = 0
		h.done = a.now().Sub(h.since) >= cfg.For
		return nil
	case ctx.Err() != nil:
		return nil // the end of the agent is not the service's illness
	case h.since.IsZero():
		if within := a.cfg.Services[name].within(); a.now().Sub(started) >= within {
			return &Fault{Code: CodeUnwell, Err: fmt.Errorf("%s was healthy before the change and is not within %s after it: %w", name, within, err)}
		}
		return nil
	}
	if h.fails++; h.fails >= holdFails {
		return &Fault{Code: CodeUnwell, Err: fmt.Errorf("%s was healthy for %s after the change, not for %s: %w", name, a.now().Sub(h.since).Round(time.Millisecond), cfg.For, err)}
	}
	return nil
}

// before asks the services of a change before the swap, and notes in the trial which of them can be judged after it.
func (a *Agent) before(ctx context.Context, t *trial, s *Staged) {
	var names []string
	for _, name := range s.Changed {
		cfg := a.cfg.Services[name]
		if _, in := s.Services[name]; in && (len(cfg.voices()) > 0 || cfg.Unit != "" || cfg.Healthy != nil) {
			names = append(names, name)
		}
	}
	said := a.askAll(ctx, names)
	for _, name := range names {
		h := said[name]
		if h.stopped != "" {
			continue // it loads the new files when it starts
		}
		cfg := a.cfg.Services[name]
		if len(cfg.voices()) > 0 || cfg.Unit != "" {
			t.Waits = append(t.Waits, name)
			if h.failure() == nil {
				t.Well = append(t.Well, name)
			}
		}
		if cfg.Healthy != nil && h.well == nil {
			t.Healthy = append(t.Healthy, name)
		}
	}
	slices.Sort(t.Waits)
	slices.Sort(t.Well)
	slices.Sort(t.Healthy)
}
