package demo

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/muster-config/muster/cmd/internal/cli"
	"github.com/muster-config/muster/distributor/api"
	"github.com/muster-config/muster/distributor/verdict"
)

// everybodyConfirms is the first act: one commit, all hosts.
func (s *story) everybodyConfirms(ctx context.Context) (err error) {
	var commit string
	if s.own() {
		if commit, err = s.repo.git(ctx, "rev-parse", s.repo.head); err != nil {
			return err
		}
		s.say("git commit %s of your repository", cli.Short(commit))
	} else {
		const subject = "configuration of three services"
		if commit, err = s.repo.commit(ctx, subject); err != nil {
			return err
		}
		s.say("git commit %s: %s", cli.Short(commit), subject)
	}
	at := time.Now()
	epoch, err := s.released(ctx, commit)
	if err != nil {
		return err
	}
	s.say("released as epoch %d and assigned to every cohort", epoch)
	g, err := s.until(ctx, epoch, func(g *api.Wait) bool { return g.Green || s.own() && g.Confirmed == len(s.hosts) })
	if err != nil {
		return err
	}
	if g.Confirmed != len(s.hosts) || !g.Green && !s.own() {
		return differs("epoch %d is confirmed by %d of %d hosts: %s", epoch, g.Confirmed, len(s.hosts), who(g))
	}
	s.say("%d/%d hosts confirm epoch %d: every process states that it loaded it (%s after the commit)", g.Confirmed, len(s.hosts), epoch, cli.Elapsed(time.Since(at)))
	return nil
}

// oneIsEdited is the second act: somebody edits a file on a host.
func (s *story) oneIsEdited(ctx context.Context) error {
	h, err := s.at(editedHost)
	if err != nil {
		return err
	}
	path, released, err := someFile(filepath.Join(h.root, "current", editedPart))
	if err != nil {
		return err
	}
	s.say("on %s somebody adds a line to %s by hand", h.name, filepath.Join("current", editedPart, filepath.Base(path)))
	if s.opts.Sabotage != NoEdit {
		if err := os.WriteFile(path, append(bytes.Clone(released), "# quick fix\n"...), 0o644); err != nil {
			return err
		}
	}
	seen, err := s.sees(ctx, h.name, 8*poll, 5*time.Millisecond, func(h *api.Host) bool { return h.Verdict == verdict.Drifted })
	if err != nil {
		return err
	}
	if seen.Verdict != verdict.Drifted {
		return differs("%s is %q %s after the edit, and the collector never saw it: %s", h.name, seen.Verdict, 8*poll, seen.Why)
	}
	s.say("    %s  %s: %s", seen.Host, seen.Verdict, seen.Why)
	again, err := s.sees(ctx, h.name, patience, 50*time.Millisecond, func(h *api.Host) bool { return h.Verdict == verdict.Confirmed })
	if err != nil {
		return err
	}
	// The path leads through `current`: a repair puts a directory of its own there.
	_, now, err := someFile(filepath.Join(h.root, "current", editedPart))
	if err != nil {
		return err
	}
	if again.Verdict != verdict.Confirmed || !bytes.Equal(now, released) {
		return differs("%s is %q after the edit, and was to be repaired: %s", h.name, again.Verdict, again.Why)
	}
	s.say("the file is as released again, and %s confirms", h.name)
	return nil
}

// someFile is the first file of a directory, by name.
func someFile(dir string) (path string, data []byte, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return "", nil, err
	}
	for _, e := range entries {
		if !e.IsDir() {
			path = filepath.Join(dir, e.Name())
			data, err = os.ReadFile(path)
			return path, data, err
		}
	}
	return "", nil, differs("%s holds no file", dir)
}

// oneIsDeaf is the third act: a change of one service, a process that does not hear, a host that is down, and one that the collector does not hear.
func (s *story) oneIsDeaf(ctx context.Context, agents *errgroup.Group) error {
	down, err := s.at(downHost)
	if err != nil {
		return err
	}
	cut, err := s.at(cutHost)
	if err != nil {
		return err
	}
	old, err := s.runs(ctx, deafHost)
	if err != nil {
		return err
	}
	s.say("the checkout process on %s ignores reloads from now on; %s is switched off; %s loses the collector, not the store", deafHost, downHost, cutHost)
	before, err := s.reloads(ctx)
	if err != nil {
		return err
	}
	if s.opts.Sabotage != Healed {
		down.down()
	}
	if s.opts.Sabotage != NoCut {
		cut.link.set(true)
	}
	// A release is dated to the second: a host is owed, and not waited for, if it was silent in the second before.
	if err := pause(ctx, 1100*time.Millisecond); err != nil {
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
	epoch, err := s.released(ctx, commit)
	if err != nil {
		return err
	}
	s.say("released as epoch %d and assigned to every cohort", epoch)

	// Deaf is not slow: it is so for as long as a process has to state the epoch.
	n := len(s.hosts)
	want := map[string]string{
		deafHost: fmt.Sprintf("%s: process still states epoch %d", deafService, old),
		downHost: "its agent said that it stops",
		cutHost:  "last heard",
	}
	g, since, err := s.stays(ctx, epoch, n-3, 1, want)
	if err != nil {
		return err
	}
	s.say("%d/%d hosts confirm epoch %d (%s after the commit); not confirmed, also %s later:", g.Confirmed, n, epoch, cli.Elapsed(since.Sub(at)), within)
	s.tellWho(g)
	if runs, err := s.runs(ctx, cutHost); err != nil || runs != epoch {
		return differs("%s could reach the store all the time, and its checkout process states epoch %d: %v", cutHost, runs, err)
	}
	s.say("%s runs epoch %d all the same: it read it from the store", cutHost, epoch)

	s.say("%s is switched on, %s reaches the collector again", downHost, cutHost)
	if s.opts.Sabotage != Healed {
		if err := s.up(ctx, agents, down); err != nil {
			return err
		}
	}
	cut.link.set(false)
	at = time.Now()
	g, since, err = s.stays(ctx, epoch, n-1, 0, map[string]string{deafHost: want[deafHost]})
	if err != nil {
		return err
	}
	s.say("%d/%d hosts confirm epoch %d (%s later); the deaf one is not confirmed, and is named:", g.Confirmed, n, epoch, cli.Elapsed(since.Sub(at)))
	s.tellWho(g)
	return s.countReloads(ctx, before)
}

// tellWho names the hosts that are not confirmed.
func (s *story) tellWho(g *api.Wait) {
	for _, w := range slices.Concat(g.Waiting, g.OwedHosts) {
		s.say("    %s  %s: %s", w.Host, w.Verdict, w.Why)
	}
}

// stays waits until exactly so many hosts confirm, so many are owed, and those of want are named with that reason, for as long as a process has to state an epoch.
func (s *story) stays(ctx context.Context, epoch uint64, confirmed, owed int, want map[string]string) (*api.Wait, time.Time, error) {
	var since time.Time
	as := func(g *api.Wait) string {
		got := map[string]string{}
		for _, w := range slices.Concat(g.Waiting, g.OwedHosts) {
			got[w.Host] = w.Why
		}
		switch {
		case g.Green && len(want)-owed > 0:
			return fmt.Sprintf("all is said to be confirmed, although %s must not be", strings.Join(slices.Sorted(maps.Keys(want)), ", "))
		case g.Confirmed != confirmed:
			return fmt.Sprintf("%d of %d hosts confirm, not %d", g.Confirmed, len(s.hosts), confirmed)
		case g.Owed != owed:
			return fmt.Sprintf("%d hosts are owed, not %d", g.Owed, owed)
		}
		for name, why := range want {
			if !strings.Contains(got[name], why) {
				return fmt.Sprintf("%s is not named with %q", name, why)
			}
		}
		return ""
	}
	g, err := s.until(ctx, epoch, func(g *api.Wait) bool {
		if as(g) != "" {
			since = time.Time{}
			// All is confirmed and stays so: no use in waiting for a fault that is not there.
			return g.Confirmed > confirmed && time.Since(s.moved(g)) > 2*within
		}
		if since.IsZero() {
			since = time.Now()
		}
		return time.Since(since) > within
	})
	if err != nil {
		return nil, since, err
	}
	if wrong := as(g); wrong != "" {
		return nil, since, differs("epoch %d: %s: %s", epoch, wrong, who(g))
	}
	return g, since, nil
}

// moved is when the number of confirmed hosts last changed.
func (s *story) moved(g *api.Wait) time.Time {
	if s.count != g.Confirmed || s.countAt.IsZero() {
		s.count, s.countAt = g.Confirmed, time.Now()
	}
	return s.countAt
}

// countReloads checks that only the service that changed was reloaded.
func (s *story) countReloads(ctx context.Context, before map[string]int) error {
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

// sees looks at a host until it is as wanted or time is up; it returns the last look.
func (s *story) sees(ctx context.Context, name string, d, every time.Duration, as func(*api.Host) bool) (*api.Host, error) {
	deadline := time.Now().Add(d)
	for {
		h, err := s.client.Host(ctx, name)
		if err != nil {
			return nil, err
		}
		if as(h) || time.Now().After(deadline) {
			return h, nil
		}
		if err := pause(ctx, every); err != nil {
			return nil, err
		}
	}
}
