package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/muster-config/muster/cmd/internal/cli"
	"github.com/muster-config/muster/distributor/api"
	"github.com/muster-config/muster/distributor/verdict"
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
	hosts     []*host
	refused   chan error // a commit that the publisher does not take
}

// patience is how long a step may take on a slow machine.
const patience = 60 * time.Second

func (s *story) say(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fmt.Fprintf(s.opts.Out, "%6.1fs  %s\n", time.Since(s.start).Seconds(), cli.Printable(fmt.Sprintf(format, args...)))
}

// everybodyConfirms is the first half of the story: one commit, twelve hosts.
func (s *story) everybodyConfirms(ctx context.Context) error {
	commit, err := s.repo.commit(ctx, "configuration of three services")
	if err != nil {
		return err
	}
	at := time.Now()
	s.say("git commit %s: configuration of three services", cli.Short(commit))
	epoch, err := s.released(ctx, commit)
	if err != nil {
		return err
	}
	s.say("released as epoch %d and assigned to every cohort", epoch)
	g, err := s.until(ctx, epoch, func(g *api.Wait) bool { return g.Green })
	if err != nil {
		return err
	}
	if !g.Green || g.Confirmed != len(s.hosts) {
		return differs("epoch %d is confirmed by %d of %d hosts: %s", epoch, g.Confirmed, len(s.hosts), who(g))
	}
	s.say("%d/%d hosts confirm epoch %d: every process states that it loaded it (%s after the commit)", g.Confirmed, len(s.hosts), epoch, cli.Elapsed(time.Since(at)))
	return nil
}

// oneIsDeaf is the second half: a change of one service, and a process that does not hear.
func (s *story) oneIsDeaf(ctx context.Context) error {
	before, err := s.reloads(ctx)
	if err != nil {
		return err
	}
	old, err := s.runs(ctx)
	if err != nil {
		return err
	}
	if err := s.repo.edit("services/checkout/base.yaml", "timeout_ms: 1500\n", "timeout_ms: 1500\nretries: 5\n"); err != nil {
		return err
	}
	commit, err := s.repo.commit(ctx, "checkout: retry five times")
	if err != nil {
		return err
	}
	at := time.Now()
	s.say("git commit %s: checkout: retry five times (one service, all cohorts)", cli.Short(commit))
	s.say("the checkout process on %s ignores reloads from now on", deafHost)
	epoch, err := s.released(ctx, commit)
	if err != nil {
		return err
	}
	s.say("released as epoch %d and assigned to every cohort", epoch)

	// It is deaf, not slow, if that is so for as long as a process has to state the epoch.
	states := fmt.Sprintf("process still states epoch %d", old)
	var deaf *api.Host
	var since time.Time
	g, err := s.until(ctx, epoch, func(g *api.Wait) bool {
		if g.Green {
			return true // then it heard
		}
		h, herr := s.host(ctx, deafHost)
		if g.Confirmed != len(s.hosts)-1 || herr != nil || !strings.Contains(h.Why, states) {
			deaf = nil
			return false
		}
		if deaf == nil {
			since = time.Now()
		}
		deaf = h
		return time.Since(since) > within
	})
	if err != nil {
		return err
	}
	switch {
	case g.Green:
		return differs("epoch %d is confirmed by all %d hosts, although the checkout process on %s must not have heard of it", epoch, g.Confirmed, deafHost)
	case deaf == nil:
		return differs("after %s epoch %d is confirmed by %d of %d hosts: %s", patience, epoch, g.Confirmed, len(s.hosts), who(g))
	case deaf.Verdict == verdict.Confirmed || !strings.Contains(deaf.Why, deafService):
		return differs("%s is %q: %s", deafHost, deaf.Verdict, deaf.Why)
	}
	s.say("%d/%d hosts confirm epoch %d (%s after the commit); not confirmed, also %s later:", g.Confirmed, len(s.hosts), epoch, cli.Elapsed(since.Sub(at)), within)
	s.say("    %s  %s: %s", deaf.Host, deaf.Verdict, deaf.Why)

	after, err := s.reloads(ctx)
	if err != nil {
		return err
	}
	var changed int
	for _, key := range slices.Sorted(maps.Keys(after)) {
		n := after[key] - before[key]
		if !strings.HasSuffix(key, "/"+deafService) {
			if n != 0 {
				return differs("%s was reloaded %d times, although its files did not change", key, n)
			}
			continue
		}
		if n < 1 || n > 1 && !strings.HasPrefix(key, deafHost+"/") {
			return differs("%s was reloaded %d times for one change", key, n)
		}
		changed++
	}
	s.say("reloaded: checkout on %d hosts, once each; search and mailer nowhere, their files did not change", changed)
	return nil
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

// host is one host as the collector shows it.
func (s *story) host(ctx context.Context, name string) (*api.Host, error) {
	hosts, err := s.client.Hosts(ctx, "", "")
	if err != nil {
		return nil, err
	}
	for _, h := range hosts {
		if h.Host == name {
			return &h, nil
		}
	}
	return nil, differs("the collector does not know host %s", name)
}

// runs is the service epoch that the deaf process states, from itself.
func (s *story) runs(ctx context.Context) (uint64, error) {
	for _, h := range s.hosts {
		if h.name == deafHost {
			state, err := ask(ctx, h.processes[deafService].url)
			return state.ConfigEpoch, err
		}
	}
	return 0, differs("the fleet has no host %s", deafHost)
}

// reloads is how often every process was reloaded, by "host/service", from the processes themselves.
func (s *story) reloads(ctx context.Context) (map[string]int, error) {
	counts := map[string]int{}
	for _, h := range s.hosts {
		for name, p := range h.processes {
			state, err := ask(ctx, p.url)
			if err != nil {
				return nil, err
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
