package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/muster-config/muster/cmd/internal/cli"
	"github.com/muster-config/muster/distributor/api"
	"github.com/muster-config/muster/distributor/manifest"
)

// story is what the demo tells and checks. It looks only where anybody can look: at the collector's API and at the processes themselves.
type story struct {
	opts  Options
	dir   string
	start time.Time
	told  atomic.Bool // the story is over
	mu    sync.Mutex  // of the output

	repo      *repo
	store     string // URL
	collector string // URL
	client    *api.Client
	policy    manifest.Policy
	hosts     []*host
	refused   chan error // a commit that the publisher does not take

	monitor        net.Listener // of the shop's own monitoring, which the gate asks; nil with the user's own repository
	monitorURL     string
	inWaves        func()                // starts the controller
	releaseInWaves func(context.Context) // from now on releases are published, and the controller assigns them

	count   int // hosts that confirmed at the last look, and since when
	countAt time.Time
}

// patience is how long a step may take on a slow machine.
const patience = 60 * time.Second

func (s *story) say(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fmt.Fprintf(s.opts.Out, "%6.1fs  %s\n", time.Since(s.start).Seconds(), cli.Printable(fmt.Sprintf(format, args...)))
}

// released waits until the publisher has made a release of the commit.
func (s *story) released(ctx context.Context, commit string) (uint64, error) {
	deadline := time.Now().Add(patience)
	for {
		releases, err := s.client.Releases(ctx)
		if err != nil {
			return 0, err
		}
		for _, r := range releases {
			if r.Commit == commit {
				return r.Epoch, nil
			}
		}
		select {
		case err := <-s.refused:
			return 0, fmt.Errorf("publish commit %s: %w", cli.Short(commit), err)
		default:
		}
		if time.Now().After(deadline) {
			return 0, differs("commit %s is not released after %s", cli.Short(commit), patience)
		}
		if err := pause(ctx, 50*time.Millisecond); err != nil {
			return 0, err
		}
	}
}

// until asks the collector about epoch until enough is true or patience ends; it returns the last answer.
func (s *story) until(ctx context.Context, epoch uint64, enough func(*api.Wait) bool) (*api.Wait, error) {
	deadline := time.Now().Add(patience)
	var g *api.Wait
	for {
		q := api.WaitQuery{Wait: time.Second}
		if g != nil {
			q.After = g.Version
		}
		next, err := s.client.Wait(ctx, epoch, q)
		switch {
		case errors.Is(err, api.ErrNotFound) && g == nil: // the collector has not read it yet
		case err != nil:
			return nil, err
		default:
			g = next
		}
		if g != nil && enough(g) || time.Now().After(deadline) {
			if g == nil {
				return nil, differs("the collector does not know epoch %d after %s", epoch, patience)
			}
			return g, nil
		}
		if err := pause(ctx, 20*time.Millisecond); err != nil {
			return nil, err
		}
	}
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// who names the hosts that are not confirmed.
func who(g *api.Wait) string {
	var parts []string
	for _, w := range slices.Concat(g.Waiting, g.OwedHosts) {
		parts = append(parts, fmt.Sprintf("%s %s: %s", w.Host, w.Verdict, w.Why))
	}
	if parts == nil {
		return g.Why
	}
	return strings.Join(parts, "; ")
}

// runs is the service epoch that the checkout process of a host states, from itself.
func (s *story) runs(ctx context.Context, name string) (uint64, error) {
	h, err := s.at(name)
	if err != nil {
		return 0, err
	}
	state, err := ask(ctx, h.processes[deafService].url)
	return state.ConfigEpoch, err
}

// reloads is how often every process was reloaded, by "host/service", from the processes themselves.
func (s *story) reloads(ctx context.Context) (map[string]int, error) {
	counts := map[string]int{}
	for _, h := range s.hosts {
		for name, p := range h.processes {
			state, err := ask(ctx, p.url)
			if err != nil {
				return nil, fmt.Errorf("ask %s on %s: %w", name, h.name, err)
			}
			counts[h.name+"/"+name] = state.Reloads
		}
	}
	return counts, nil
}

func ask(ctx context.Context, url string) (health, error) {
	var state health
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/health", nil)
	if err != nil {
		return state, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return state, err
	}
	defer resp.Body.Close()
	return state, json.NewDecoder(resp.Body).Decode(&state)
}
