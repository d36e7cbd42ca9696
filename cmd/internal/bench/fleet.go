package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/muster-config/muster/agent"
	"github.com/muster-config/muster/agent/client"
	"github.com/muster-config/muster/agent/durable"
	"github.com/muster-config/muster/agent/host"
	"github.com/muster-config/muster/agent/install"
	"github.com/muster-config/muster/agent/probe"
	"github.com/muster-config/muster/distributor"
	"github.com/muster-config/muster/distributor/api"
	"github.com/muster-config/muster/distributor/bundle"
	"github.com/muster-config/muster/distributor/collector"
	"github.com/muster-config/muster/distributor/keys"
	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/store"
	"github.com/muster-config/muster/distributor/store/open"
	"github.com/muster-config/muster/distributor/wire"
)

const (
	repo    = "bench/config"
	cohort  = "fleet"
	service = "app"
)

// fleet is a publisher, a collector and n real agents in this process, each with its own directory and its own connections.
type fleet struct {
	dir       string
	store     store.Store
	publisher *distributor.Publisher
	client    *api.Client
	keyring   []byte
	collector string // URL
	commits   []string
	hosts     []*measured
	exec      bool // reload by a program, as in production; else by a call in the process
	fsyncs    atomic.Int64
}

// measured is one agent; what it is made of is wrapped so that the time of each step is known.
type measured struct {
	root   string
	epoch  func() uint64 // what the process states
	reload func() error
	mu     sync.Mutex
	at     map[string]time.Time
}

func (m *measured) mark(step string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.at[step] = time.Now()
}

// timedInstaller, timedProber and timedReporter say when a step ended.
type timedInstaller struct {
	agent.Installer
	m *measured
}

func (t timedInstaller) Stage(ctx context.Context, r manifest.Resolution, open func(context.Context) (io.ReadCloser, error)) (*agent.Staged, error) {
	t.m.mark("heard")
	s, err := t.Installer.Stage(ctx, r, open)
	t.m.mark("staged")
	return s, err
}

func (t timedInstaller) Swap(ctx context.Context, s *agent.Staged) error {
	err := t.Installer.Swap(ctx, s)
	t.m.mark("swapped")
	return err
}

type timedProber struct {
	agent.Prober
	m    *measured
	exec bool
}

func (t timedProber) Run(ctx context.Context, c probe.Command) probe.Result {
	var res probe.Result
	if t.exec {
		res = t.Prober.Run(ctx, c)
	}
	if res.Err == nil {
		res.Err = t.m.reload()
	}
	t.m.mark("reloaded")
	return res
}

func (t timedProber) Ask(ctx context.Context, q probe.Question) (probe.Answer, error) {
	n, err := t.Prober.Ask(ctx, q)
	t.m.mark("confirmed")
	return n, err
}

type timedReporter struct {
	agent.Reporter
	m *measured
}

func (t timedReporter) Report(ctx context.Context, item api.ReportItem) (api.ReportResult, error) {
	res, err := t.Reporter.Report(ctx, item)
	t.m.mark("reported")
	return res, err
}

// steps in their order.
var steps = []string{"heard", "staged", "swapped", "reloaded", "confirmed", "reported"}

func (f *fleet) start(ctx context.Context, group *errgroup.Group, n int) error {
	var err error
	if f.store, err = open.Open(ctx, "file://"+filepath.Join(f.dir, "store")); err != nil {
		return err
	}
	set := keys.Set{Root: keys.FromSeed(1), Release: keys.FromSeed(2), Rollout: keys.FromSeed(3), Operator: keys.FromSeed(4)}
	env, err := set.Keyring(repo, time.Now())
	if err != nil {
		return err
	}
	if f.keyring, err = wire.Encode(env); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(f.dir, "keyring.json"), f.keyring, 0o644); err != nil {
		return err
	}
	f.publisher, err = distributor.NewPublisher(distributor.Config{
		Store: f.store, Repo: repo, Release: set.Release, Rollout: set.Rollout, Keyring: f.keyring, By: "bench", Now: time.Now,
	})
	if err != nil {
		return err
	}
	if err := f.startCollector(ctx, group); err != nil {
		return err
	}
	names := hostNames(n)
	if _, err := f.publish(ctx, names, 4096); err != nil {
		return err
	}
	return f.startHosts(ctx, group, names)
}

func hostNames(n int) []string {
	names := make([]string, n)
	for i := range n {
		names[i] = fmt.Sprintf("host-%04d", i)
	}
	return names
}

func (f *fleet) startCollector(ctx context.Context, group *errgroup.Group) error {
	ln, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	cfg := collector.Config{
		Listen: ln.Addr().String(), Store: "file://" + filepath.Join(f.dir, "store"), Keyring: filepath.Join(f.dir, "keyring.json"),
		Database: "sqlite://" + filepath.Join(f.dir, "collector.db"),
	}.WithDefaults()
	c, err := collector.New(cfg, collector.Deps{Store: f.store, Keyring: f.keyring, Now: time.Now})
	if err != nil {
		return err
	}
	serve(ctx, group, ln, c.Handler())
	group.Go(func() error { return c.Run(ctx) })
	f.collector = "http://" + ln.Addr().String()
	f.client, err = api.NewClient(f.collector, api.ClientOptions{})
	return err
}

func serve(ctx context.Context, group *errgroup.Group, ln net.Listener, h http.Handler) {
	srv := &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second}
	group.Go(func() error {
		if err := srv.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return nil
	})
	group.Go(func() error {
		<-ctx.Done()
		return srv.Close()
	})
}

// startHosts starts the agents, and one server that speaks for all their processes (each states what it loaded itself).
func (f *fleet) startHosts(ctx context.Context, group *errgroup.Group, names []string) error {
	ln, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{host}", func(w http.ResponseWriter, r *http.Request) {
		i, err := strconv.Atoi(r.PathValue("host"))
		if err != nil || i < 0 || i >= len(f.hosts) {
			http.NotFound(w, r)
			return
		}
		fmt.Fprintf(w, `{"config_epoch": %d}`, f.hosts[i].epoch())
	})
	for i := range names {
		m := &measured{root: filepath.Join(f.dir, "hosts", names[i]), at: map[string]time.Time{}}
		var mu sync.Mutex
		var loaded uint64
		m.epoch = func() uint64 { mu.Lock(); defer mu.Unlock(); return loaded }
		m.reload = func() error {
			c, err := client.Open(m.root, service)
			if err != nil {
				return err
			}
			defer c.Close()
			for _, name := range fileNames {
				if _, err := c.ReadFile(name); err != nil {
					return err
				}
			}
			mu.Lock()
			defer mu.Unlock()
			loaded = c.Epoch()
			return nil
		}
		f.hosts = append(f.hosts, m)
	}
	serve(ctx, group, ln, mux)
	for i, m := range f.hosts {
		if err := f.startAgent(ctx, group, names[i], m, fmt.Sprintf("http://%s/%d", ln.Addr(), i)); err != nil {
			return err
		}
	}
	return nil
}

func (f *fleet) startAgent(ctx context.Context, group *errgroup.Group, name string, m *measured, health string) error {
	if err := os.MkdirAll(m.root, 0o755); err != nil {
		return err
	}
	root, err := install.OpenDisk(m.root, durable.Disk{Trace: func(op durable.Op, _ string) error {
		if op == durable.OpSync || op == durable.OpSyncDir {
			f.fsyncs.Add(1)
		}
		return nil
	}})
	if err != nil {
		return err
	}
	c, err := api.NewClient(f.collector, api.ClientOptions{})
	if err != nil {
		return err
	}
	cfg := agent.Config{
		Host: name, Repo: repo, Cohort: cohort, Sources: []string{f.collector}, Root: m.root, Poll: time.Minute,
		Keyring: filepath.Join(f.dir, "keyring.json"), Collector: agent.CollectorConfig{URL: f.collector},
		Services: map[string]agent.ServiceConfig{service: {
			Reload:  []string{"/bin/true"},
			Confirm: &agent.ConfirmConfig{HTTP: health, Field: "config_epoch", Within: 30 * time.Second},
		}},
	}.WithDefaults()
	a, err := agent.New(agent.Options{
		Config: cfg, Keyring: f.keyring, Carriers: []agent.Carrier{host.Collector{Client: c}, agent.StoreCarrier{Store: f.store}},
		Installer: timedInstaller{root, m}, Memory: root, Prober: timedProber{probe.New(), m, f.exec}, Reporter: timedReporter{c, m}, Now: time.Now, Version: "bench",
	})
	if err != nil {
		return err
	}
	group.Go(func() error {
		defer root.Close()
		defer c.Close()
		if err := a.Run(ctx); err != nil && ctx.Err() == nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		return nil
	})
	return nil
}

var fileNames = []string{"a", "b", "c"}

// publish releases one commit with new bytes in all files, prepared beforehand (evaluation is not measured here), assigns it at once and
// hands the head to the collector, as `muster publish --rollout=now` does.
func (f *fleet) publish(ctx context.Context, hosts []string, size int) (uint64, error) {
	n := len(f.commits) + 1
	id := fmt.Sprintf("%040x", n)
	parents := []string{}
	if n > 1 {
		parents = append(parents, f.commits[n-2])
	}
	who := manifest.Person{Name: "bench", Email: "bench@example.com", At: time.Now().UTC().Truncate(time.Second)}
	commit := distributor.Commit{ID: id, Tree: id, Parents: parents, Author: who, Committer: who, Subject: fmt.Sprintf("round %d", n)}
	sum := sha256.Sum256([]byte(id))
	text := strings.Repeat(hex.EncodeToString(sum[:]), size/64)
	var files []bundle.File
	for _, name := range fileNames {
		files = append(files, bundle.File{Path: service + "/" + name, Mode: 0o644, Data: []byte(text)})
	}
	build := func(_ context.Context, in distributor.BuildInput) (*distributor.Build, error) {
		digest := bundle.ContentDigest(files)
		return &distributor.Build{
			Commit: commit, Evaluator: "bench", Settings: digestOf("settings"), Policy: policy(hosts), Source: files,
			Cohorts: map[string]distributor.CohortBuild{cohort: {
				Index: bundle.Index{V: 1, Repo: repo, Cohort: cohort, Epoch: in.Epoch, Commit: id, Services: map[string]bundle.Service{
					service: {Epoch: in.Epoch, Digest: digest, Digest0: digest, Files: len(files)},
				}},
				Files: files, Evidence: map[string]manifest.Grade{service: manifest.GradeProcess}, Content0: digest, Inputs: digestOf(id),
			}},
		}, nil
	}
	contains := func(_ context.Context, ancestor string) (bool, error) { return true, nil }
	res, err := f.publisher.Publish(ctx, commit, contains, build, distributor.PublishOptions{RolloutNow: true, Settings: digestOf("settings")})
	if err != nil {
		return 0, err
	}
	f.commits = append(f.commits, id)
	head, err := f.store.Get(ctx, manifest.KeyHead(cohort), manifest.MaxHeadBytes)
	if err != nil {
		return 0, err
	}
	return res.Epoch, f.client.PutHead(ctx, cohort, head.Data)
}

func policy(hosts []string) manifest.Policy {
	sort.Strings(hosts)
	return manifest.Policy{
		Precedence: []string{"cohort"},
		Cohorts:    map[string]manifest.CohortPolicy{cohort: {Labels: map[string]string{}, Services: []string{service}, Hosts: manifest.HostsPolicy{List: hosts}, Rollout: "standard", Order: 100}},
		Rollouts: map[string]manifest.RolloutPolicy{"standard": {
			Waves: []manifest.Wave{{Percent: 100, Bake: "0s"}}, MinReported: 0.95, MaxInFlight: "100%", Spread: "0s", Timeout: "2h", OnFailure: "rollback", Watch: "30m",
		}},
	}
}

func digestOf(s string) string {
	sum := sha256.Sum256([]byte(s))
	return "sha256:" + hex.EncodeToString(sum[:])
}

// green waits until the collector says that every host has confirmed.
func (f *fleet) green(ctx context.Context, epoch uint64, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	var after uint64
	for {
		w, err := f.client.Wait(ctx, epoch, api.WaitQuery{After: after, Wait: 10 * time.Second})
		switch {
		case errors.Is(err, api.ErrNotFound):
			if ctx.Err() != nil {
				return ctx.Err()
			}
			time.Sleep(5 * time.Millisecond)
			continue
		case err != nil:
			return err
		case w.Green:
			return nil
		case ctx.Err() != nil:
			return fmt.Errorf("epoch %d: %d confirmed, %s", epoch, w.Confirmed, w.Why)
		}
		after = w.Version
	}
}
