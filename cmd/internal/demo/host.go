package demo

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/muster-config/muster/agent"
	machine "github.com/muster-config/muster/agent/host"
	"github.com/muster-config/muster/cmd/internal/cli"
	"github.com/muster-config/muster/distributor/manifest"
)

// host is one machine of the fleet: an agent with a root of its own, and a process for every service.
type host struct {
	name, cohort string
	root         string
	config       string // path of agent.yaml
	link         *link  // to the collector
	collector    string // URL through the link
	processes    map[string]*process

	stop context.CancelFunc // ends the agent
	done chan struct{}      // the agent has ended
}

// Who plays which part in the story. They are hosts of examples/acme/fleet/fleet.cue.
const (
	deafHost    = "eu-3" // its checkout process does not hear
	deafService = "checkout"
	downHost    = "us-2"
	cutHost     = "eu-5"
	editedHost  = "eu-7"
	editedPart  = "mailer" // the service whose file is edited by hand
)

// Bounds of a fleet made from somebody's own repo.
const (
	maxHosts = 48 // all of them
	someOf   = 4  // hosts of a cohort that says how many, or which labels, but no names
)

// hostNames are the hosts of a cohort: its list, or as many made-up names as it expects, at most a few.
func hostNames(cohort string, p manifest.CohortPolicy) []string {
	if len(p.Hosts.List) > 0 {
		return p.Hosts.List
	}
	n := someOf
	if e := p.Hosts.Expect; e != nil {
		n = min(max(e.Min, 1), 2*someOf)
	}
	var names []string
	for i := range n {
		names = append(names, fmt.Sprintf("%s-%d", cohort, i+1))
	}
	return names
}

// startProcesses starts the process of every service on every host, as a host has them before muster comes.
func (s *story) startProcesses(ctx context.Context, group *errgroup.Group) error {
	left := 0
	for _, cohort := range slices.Sorted(maps.Keys(s.policy.Cohorts)) {
		policy := s.policy.Cohorts[cohort]
		for _, name := range hostNames(cohort, policy) {
			if len(s.hosts) == maxHosts {
				left++
				continue
			}
			h := &host{name: name, cohort: cohort, processes: map[string]*process{}, link: &link{to: strings.TrimPrefix(s.collector, "http://")}}
			dir := filepath.Join(s.dir, "hosts", cohort, name)
			h.root, h.config = filepath.Join(dir, "root"), filepath.Join(dir, "agent.yaml")
			s.hosts = append(s.hosts, h)
			ln, url, err := listen(ctx)
			if err != nil {
				return err
			}
			h.collector = url
			group.Go(func() error { return h.link.serve(ctx, ln) })
			for _, service := range policy.Services {
				ln, url, err := listen(ctx)
				if err != nil {
					return err
				}
				deaf := !s.own() && name == deafHost && service == deafService && s.opts.Sabotage != Hearing
				p := &process{service: service, root: h.root, url: url, deaf: deaf}
				h.processes[service] = p
				group.Go(func() error { return p.serve(ctx, ln) })
			}
		}
	}
	if left > 0 {
		s.say("%s of the fleet are left out: a demo has %d at most, so nothing of theirs is confirmed", cli.Count(left, "host"), maxHosts)
	}
	return nil
}

// startAgents starts the agent of every host.
func (s *story) startAgents(ctx context.Context, group *errgroup.Group) error {
	services := map[string]bool{}
	for _, h := range s.hosts {
		if err := os.MkdirAll(h.root, 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(h.config, []byte(s.agentYAML(h)), 0o644); err != nil {
			return err
		}
		if err := s.startAgent(ctx, group, h); err != nil {
			return fmt.Errorf("agent of %s: %w", h.name, err)
		}
		for name := range h.processes {
			services[name] = true
		}
	}
	s.say("%s in %s, each with a real agent and a process for %s", cli.Count(len(s.hosts), "host"), cli.Count(len(s.policy.Cohorts), "cohort"),
		cli.Names(slices.Sorted(maps.Keys(services)), 5))
	return nil
}

// startAgent starts the agent of one host as muster-agent would: from its file.
func (s *story) startAgent(ctx context.Context, group *errgroup.Group, h *host) error {
	cfg, err := agent.LoadConfig(h.config)
	if err != nil {
		return err
	}
	log, err := os.OpenFile(filepath.Join(filepath.Dir(h.config), "agent.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	// They share this machine, and are no clones of each other: no machine id.
	m, err := machine.Open(ctx, cfg, machine.Options{Logger: slog.New(slog.NewTextHandler(log, nil)), Version: cli.Version, MachineID: "-"})
	if err != nil {
		log.Close()
		return err
	}
	ctx, h.stop = context.WithCancel(ctx)
	h.done = make(chan struct{})
	group.Go(func() error {
		defer close(h.done)
		defer log.Close()
		defer m.Close()
		if err := m.Run(ctx); err != nil && ctx.Err() == nil {
			return fmt.Errorf("agent of %s: %w", h.name, err)
		}
		return nil
	})
	return nil
}

// down switches the host off: its agent ends, and its processes answer nobody.
func (h *host) down() {
	h.stop()
	<-h.done
	for _, p := range h.processes {
		p.down()
	}
}

// up switches it on again: processes start with the files that are there, then the agent starts.
func (s *story) up(ctx context.Context, group *errgroup.Group, h *host) error {
	for _, p := range h.processes {
		if err := p.start(); err != nil {
			return err
		}
	}
	return s.startAgent(ctx, group, h)
}

// ending is a file that is there once the demo ends.
func (s *story) ending() string { return filepath.Join(s.dir, "ending") }

// agentYAML is the host's configuration file, as a person would write it.
func (s *story) agentYAML(h *host) string {
	sources := fmt.Sprintf("[%q, %q]", h.collector, s.store)
	if h.name == editedHost && !s.own() {
		// One host reads the bucket only, as hosts may that cannot reach the collector's heads: it looks at everything anew at each poll.
		sources = fmt.Sprintf("[%q]", s.store)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "host: %s\nrepo: %s\ncohort: %s\n", h.name, s.name(), h.cohort)
	fmt.Fprintf(&b, "sources: %s\n", sources)
	fmt.Fprintf(&b, "keyring: %q\nroot: %q\n", s.keyring(), h.root)
	fmt.Fprintf(&b, "collector: {url: %q}\npoll: %s\nservices:\n", h.collector, poll)
	for _, name := range slices.Sorted(maps.Keys(h.processes)) {
		url := h.processes[name].url
		// An agent that is told to end runs the reloads that it owes all the same. When the whole demo ends they are nobody's any more, and starting this binary for each takes seconds.
		fmt.Fprintf(&b, "  %s:\n    reload: [/bin/sh, -c, %q, %q, %q, demo-reload, %q]\n    confirm: {http: %q, field: config_epoch, within: %s}\n",
			name, `[ -e "$0" ] || exec "$@"`, s.ending(), s.opts.Executable, url+"/reload", url+"/health", within)
	}
	return b.String()
}

// at is the host of that name.
func (s *story) at(name string) (*host, error) {
	for _, h := range s.hosts {
		if h.name == name {
			return h, nil
		}
	}
	return nil, differs("the fleet has no host %s", name)
}
