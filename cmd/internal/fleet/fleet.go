// Package fleet is many simulated hosts in one process: the real agent loop with a simulated disk and simulated processes, over the real protocol. It is for load tests and for planning
// capacity, and shows what a rollout does when a release does harm. Beside the agents it serves what Prometheus reads of such hosts.
package fleet

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/muster-config/muster/agent"
	"github.com/muster-config/muster/agent/host"
	"github.com/muster-config/muster/distributor/api"
	"github.com/muster-config/muster/distributor/bundle"
)

// Options are what a fleet is made of.
type Options struct {
	Hosts    []string
	Labels   func(host string) map[string]string // nil: none
	Repo     string
	Cohort   string
	Services []string
	Keyring  []byte
	Poll     time.Duration // 0: the agent's default

	// Collector is where heads, objects and reports go; HTTP and Token are for it. Every host has connections of its own.
	Collector string
	Client    api.ClientOptions
	Store     agent.Carrier // nil, or a second source
	// Link replaces Collector: what carries for one host, and where its reports go.
	Link func(host string) ([]agent.Carrier, agent.Reporter, error)

	// Effect is what a release does to the host that runs it; nil: nothing.
	Effect   func(host string, epoch uint64, files []bundle.File) Harm
	Deaf     int           // hosts whose processes do not hear reloads
	Down     int           // hosts whose agent is not running
	DownFrom time.Duration // they go down so long after the start; 0: they never come up
	Refuse   int           // hosts whose own check refuses every release but their first
	Latency  time.Duration // of an answer of a process
	Requests float64       // requests a second that the product serves on each host
	Errors   float64       // share of them that fails whatever runs

	Seed    uint64        // of all chance; the same seed picks the same hosts for the faults
	Ramp    time.Duration // over which the agents start
	Version string
	Log     *slog.Logger // nil: silent
}

// Host is one simulated host.
type Host struct {
	Name   string
	Deaf   bool
	Down   bool
	Refuse bool

	agent   *agent.Agent
	disk    *disk
	procs   *processes
	traffic *traffic
	close   func()
}

// Fleet is the hosts of one process.
type Fleet struct {
	opts  Options
	hosts []*Host
	http  *http.Client
}

// New puts a fleet together. It asks nobody and starts nothing.
func New(o Options) (*Fleet, error) {
	if len(o.Hosts) == 0 {
		return nil, errors.New("a fleet needs a host")
	}
	if n := o.Deaf + o.Down + o.Refuse; n > len(o.Hosts) {
		return nil, fmt.Errorf("%d hosts are to be deaf, down or refusing, and there are %d", n, len(o.Hosts))
	}
	f := &Fleet{opts: o}
	if o.Link == nil && o.Client.HTTP == nil && o.Client.CAFile == "" {
		t := http.DefaultTransport.(*http.Transport).Clone()
		t.MaxIdleConns, t.MaxIdleConnsPerHost = 0, 2*len(o.Hosts)
		f.http = &http.Client{Transport: t}
		f.opts.Client.HTTP = f.http
	}
	s := &shelf{}
	for i, name := range o.Hosts {
		h, err := f.host(name, s, rand.New(rand.NewPCG(o.Seed, uint64(i))))
		if err != nil {
			f.Close()
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		f.hosts = append(f.hosts, h)
	}
	// No host has two faults.
	order := rand.New(rand.NewPCG(o.Seed, 1<<40)).Perm(len(f.hosts))
	for i, n := range order[:o.Deaf+o.Down+o.Refuse] {
		h := f.hosts[n]
		switch {
		case i < o.Deaf:
			h.Deaf, h.procs.deaf = true, true
		case i < o.Deaf+o.Down:
			h.Down = true
		default:
			h.Refuse, h.procs.refuses = true, true
		}
	}
	return f, nil
}

var errRefuses = errors.New("exit status 1: this host takes no other configuration")

func (f *Fleet) host(name string, s *shelf, rng *rand.Rand) (*Host, error) {
	o := f.opts
	d := newDisk(s)
	p := &processes{disk: d, latency: o.Latency, faults: errRefuses, boot: time.Now(), loaded: map[string]*loaded{}, rng: rand.New(rand.NewPCG(rng.Uint64(), 1))}
	p.effect = func(epoch uint64, files []bundle.File) Harm {
		if o.Effect == nil {
			return Harm{}
		}
		return o.Effect(name, epoch, files)
	}
	t := &traffic{rate: o.Requests, fails: o.Errors, rng: rand.New(rand.NewPCG(rng.Uint64(), 2)), harm: p.worst}
	d.moved = t.account
	cfg := agent.Config{
		Host: name, Repo: o.Repo, Cohort: o.Cohort, Root: "/simulated/" + name, Poll: o.Poll, Services: map[string]agent.ServiceConfig{},
		Sources: []string{"simulated:"}, // carriers are given
	}
	if o.Labels != nil {
		cfg.Labels = o.Labels(name)
	}
	for _, service := range o.Services {
		url := "http://127.0.0.1/" + service // asked of the simulated processes, never of the network
		cfg.Services[service] = agent.ServiceConfig{
			Unit: service + ".service", Check: []string{"/simulated/check"}, Reload: []string{"/simulated/reload"},
			Confirm: &agent.ConfirmConfig{HTTP: url, Field: "config_epoch", Within: 5 * time.Second},
		}
	}
	h := &Host{Name: name, disk: d, procs: p, traffic: t, close: func() {}}
	carriers, reporter, err := f.link(h)
	if err != nil {
		return nil, err
	}
	log := o.Log
	if log != nil {
		log = log.With("simulated", true)
	}
	h.agent, err = agent.New(agent.Options{
		Config: cfg, Keyring: o.Keyring, Carriers: carriers, Installer: d, Memory: d, Prober: p, Reporter: reporter, Logger: log, Version: o.Version, MachineID: name,
	})
	if err != nil {
		h.close()
	}
	return h, err
}

func (f *Fleet) link(h *Host) ([]agent.Carrier, agent.Reporter, error) {
	if f.opts.Link != nil {
		return f.opts.Link(h.Name)
	}
	c, err := api.NewClient(f.opts.Collector, f.opts.Client)
	if err != nil {
		return nil, nil, err
	}
	h.close = c.Close
	carriers := []agent.Carrier{host.Collector{Client: c}}
	if f.opts.Store != nil {
		carriers = append(carriers, f.opts.Store)
	}
	return carriers, c, nil
}

// Run runs the hosts until ctx ends.
func (f *Fleet) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	for i, h := range f.hosts {
		if h.Down && f.opts.DownFrom == 0 {
			continue
		}
		group.Go(func() error {
			ctx := ctx
			if h.Down {
				up, cancel := context.WithTimeoutCause(ctx, f.opts.DownFrom, agent.ErrReconfigured) // it says no goodbye
				defer cancel()
				ctx = up
			}
			if pause := f.opts.Ramp * time.Duration(i) / time.Duration(len(f.hosts)); pause > 0 {
				t := time.NewTimer(pause)
				defer t.Stop()
				select {
				case <-ctx.Done():
					return nil
				case <-t.C:
				}
			}
			if err := h.agent.Run(ctx); err != nil && ctx.Err() == nil {
				return fmt.Errorf("%s: %w", h.Name, err)
			}
			return nil
		})
	}
	return group.Wait()
}

// Close lets go of connections. The fleet must not run any more.
func (f *Fleet) Close() {
	for _, h := range f.hosts {
		h.close()
	}
	if f.http != nil {
		f.http.CloseIdleConnections()
	}
}

// Hosts are the fleet's hosts, in the order in which they were named.
func (f *Fleet) Hosts() []*Host { return slices.Clone(f.hosts) }

// Running is the epoch that lies on the host's disk; 0 if none.
func (h *Host) Running() uint64 {
	if in := h.disk.runs(); in != nil {
		return in.Epoch
	}
	return 0
}

// Status is what the host's agent says of it.
func (h *Host) Status() *agent.Status { return h.agent.Status() }

// Moves are what changed under the host's current, the newest thousand, and how many there were.
func (h *Host) Moves() (moves []Move, all int) { return h.disk.history() }

// Loads is how often its processes read their files.
func (h *Host) Loads() int {
	h.procs.mu.Lock()
	defer h.procs.mu.Unlock()
	return h.procs.reloads
}

// FirstBad is when a request first failed because of what the host runs; zero: none did.
func (h *Host) FirstBad() time.Time { _, _, at := h.traffic.counted(); return at }
