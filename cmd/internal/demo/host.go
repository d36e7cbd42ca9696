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
)

// host is one machine of the fleet: an agent with a root of its own, and a process for every service.
type host struct {
	name, cohort string
	root         string
	processes    map[string]*process
}

// fleet is who the hosts are: the lists of examples/acme/fleet/fleet.cue. The collector expects those, so a mistake here is not green.
var fleet = map[string][]string{
	"staging": {"stage-1", "stage-2"},
	"prod-eu": {"eu-1", "eu-2", "eu-3", "eu-4", "eu-5", "eu-6"},
	"prod-us": {"us-1", "us-2", "us-3", "us-4"},
}

var services = []string{"checkout", "mailer", "search"}

// startProcesses starts the process of every service on every host, as a host has them before muster comes.
func (s *story) startProcesses(ctx context.Context, group *errgroup.Group) error {
	for _, cohort := range slices.Sorted(maps.Keys(fleet)) {
		for _, name := range fleet[cohort] {
			h := &host{name: name, cohort: cohort, root: filepath.Join(s.dir, "hosts", name, "root"), processes: map[string]*process{}}
			s.hosts = append(s.hosts, h)
			for _, service := range services {
				ln, url, err := listen(ctx)
				if err != nil {
					return err
				}
				deaf := name == deafHost && service == deafService && !s.opts.Hearing
				p := &process{service: service, root: h.root, url: url, deaf: deaf}
				h.processes[service] = p
				group.Go(func() error { return p.serve(ctx, ln) })
			}
		}
	}
	return nil
}

// startAgents starts the agent of every host.
func (s *story) startAgents(ctx context.Context, group *errgroup.Group) error {
	for _, h := range s.hosts {
		config := filepath.Join(s.dir, "hosts", h.name, "agent.yaml")
		if err := os.MkdirAll(h.root, 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(config, []byte(s.agentYAML(h)), 0o644); err != nil {
			return err
		}
		if err := s.startAgent(ctx, group, h.name, config); err != nil {
			return fmt.Errorf("agent of %s: %w", h.name, err)
		}
	}
	s.say("%d hosts in %d cohorts, each with a real agent and a process for %s", len(s.hosts), len(fleet), strings.Join(services, ", "))
	return nil
}

// startAgent starts the agent of one host as muster-agent would: from its file.
func (s *story) startAgent(ctx context.Context, group *errgroup.Group, name, config string) error {
	cfg, err := agent.LoadConfig(config)
	if err != nil {
		return err
	}
	log, err := os.Create(filepath.Join(s.dir, "hosts", name, "agent.log"))
	if err != nil {
		return err
	}
	// They share this machine, and are no clones of each other: no machine id.
	h, err := machine.Open(ctx, cfg, machine.Options{Logger: slog.New(slog.NewTextHandler(log, nil)), Version: cli.Version, MachineID: "-"})
	if err != nil {
		log.Close()
		return err
	}
	group.Go(func() error {
		defer log.Close()
		defer h.Close()
		if err := h.Run(ctx); err != nil && ctx.Err() == nil {
			return fmt.Errorf("agent of %s: %w", name, err)
		}
		return nil
	})
	return nil
}

// agentYAML is the host's configuration file, as a person would write it.
func (s *story) agentYAML(h *host) string {
	var b strings.Builder
	fmt.Fprintf(&b, "host: %s\nrepo: %s\ncohort: %s\n", h.name, repoName, h.cohort)
	fmt.Fprintf(&b, "sources: [%q, %q]\n", s.collector, s.store)
	fmt.Fprintf(&b, "keyring: %q\nroot: %q\n", s.keyring(), h.root)
	fmt.Fprintf(&b, "collector: {url: %q}\npoll: 30s\nservices:\n", s.collector)
	for _, name := range slices.Sorted(maps.Keys(h.processes)) {
		url := h.processes[name].url
		fmt.Fprintf(&b, "  %s:\n    reload: [%q, demo-reload, %q]\n    confirm: {http: %q, field: config_epoch, within: %s}\n",
			name, s.opts.Executable, url+"/reload", url+"/health", within)
	}
	return b.String()
}
