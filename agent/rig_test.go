package agent_test

import (
	"context"
	"io"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/muster-config/muster/agent"
	"github.com/muster-config/muster/agent/agenttest"
	"github.com/muster-config/muster/agent/durable"
	"github.com/muster-config/muster/agent/install"
	"github.com/muster-config/muster/agent/probe"
	"github.com/muster-config/muster/distributor/api"
	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/report"
	"github.com/muster-config/muster/distributor/store/dir"
)

func TestMain(m *testing.M) {
	if job := os.Getenv("MUSTER_TEST_CHILD"); job != "" {
		os.Exit(child(job))
	}
	goleak.VerifyTestMain(m)
}

// rig is a host and its world: a real store, a real disk, real processes.
type rig struct {
	t        *testing.T
	world    *agenttest.World
	store    string
	root     string
	disk     durable.Disk
	procs    map[string]*agenttest.Process
	cfg      agent.Config
	carriers []agent.Carrier
	reporter agent.Reporter
	logs     *logs
	patient  bool
	owners   map[string]install.Ownership
	etc      string // where links are, in the tests that have some
	prober   agent.Prober

	open *install.Root
}

// logs is a log that a test can read.
type logs struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *logs) Write(p []byte) (int, error) { l.mu.Lock(); defer l.mu.Unlock(); return l.b.Write(p) }
func (l *logs) String() string              { l.mu.Lock(); defer l.mu.Unlock(); return l.b.String() }

func newRig(t *testing.T, services ...string) *rig {
	t.Helper()
	r := &rig{t: t, store: filepath.Join(t.TempDir(), "store"), root: filepath.Join(t.TempDir(), "root"), prober: probe.New(), procs: map[string]*agenttest.Process{}, logs: &logs{}}
	s, err := dir.Open(r.store)
	if err != nil {
		t.Fatal(err)
	}
	r.world = agenttest.New(t, s)
	r.carriers = []agent.Carrier{agent.StoreCarrier{Store: s}}
	r.cfg = agent.Config{Host: "web-17", Repo: agenttest.Repo, Cohort: agenttest.Cohort, Sources: []string{s.URL()}, Root: r.root, Poll: time.Second, Services: map[string]agent.ServiceConfig{}}
	for _, name := range services {
		p := agenttest.NewProcess(t, r.root, name)
		r.procs[name] = p
		r.cfg.Services[name] = agent.ServiceConfig{Reload: p.Hook, Confirm: &agent.ConfirmConfig{HTTP: p.URL, Field: "build.config_epoch", Within: 2 * time.Second}}
	}
	t.Cleanup(func() {
		if r.open != nil {
			r.open.Close()
		}
		if t.Failed() {
			t.Log("agent's log:\n" + r.logs.String())
		}
	})
	return r
}

// edit changes a service's configuration.
func (r *rig) edit(name string, change func(*agent.ServiceConfig)) {
	c := r.cfg.Services[name]
	if c.Confirm != nil {
		confirm := *c.Confirm
		c.Confirm = &confirm
	}
	change(&c)
	r.cfg.Services[name] = c
}

// agent is a new start of the agent on the same root.
func (r *rig) agent() *agent.Agent {
	r.t.Helper()
	if r.open != nil {
		r.open.Close()
	}
	var err error
	if r.open, err = install.OpenDisk(r.root, r.disk); err != nil {
		r.t.Fatal(err)
	}
	r.open.Own(r.owners)
	cfg := r.cfg
	cfg.Services = maps.Clone(r.cfg.Services)
	opts := agent.Options{
		Config: cfg, Keyring: r.world.Keyring, Carriers: r.carriers, Installer: r.open, Linker: r.open, Memory: r.open, Prober: r.prober, Reporter: r.reporter,
		Logger: slog.New(slog.NewTextHandler(r.logs, &slog.HandlerOptions{Level: slog.LevelDebug})), Version: "test", MachineID: "m1",
	}
	if r.patient {
		opts = agent.Patient(opts)
	} else {
		opts = agent.Fast(opts)
	}
	a, err := agent.New(opts)
	if err != nil {
		r.t.Fatal(err)
	}
	return a
}

// once is one full sync by a newly started agent.
func (r *rig) once() (agent.OnceResult, error) {
	r.t.Helper()
	return r.agent().Once(r.t.Context(), false)
}

// confirmed does one full sync and demands that the host is confirmed at epoch.
func (r *rig) confirmed(epoch uint64) agent.OnceResult {
	r.t.Helper()
	res, err := r.once()
	if err != nil || !res.Confirmed || res.Running != epoch || res.Desired != epoch {
		r.t.Fatalf("not confirmed at %d: %+v, %v", epoch, res, err)
	}
	r.sound(epoch)
	return res
}

// sound checks everything that must hold of a host at any time: current is one whole release, nothing unfinished lies about, few releases are kept, and the
// secrets are the owner's only.
func (r *rig) sound(epoch uint64) {
	r.t.Helper()
	in, content, drift, err := install.Verify(r.t.Context(), r.root)
	if err != nil || in == nil || len(drift) > 0 || content != in.Content || in.Epoch != epoch {
		r.t.Fatalf("current: %+v, drift %v, %v; want a whole release %d", in, drift, err, epoch)
	}
	r.tidy()
}

func (r *rig) tidy() {
	r.t.Helper()
	if left := r.names("tmp"); len(left) > 0 {
		r.t.Errorf("left in tmp: %v", left)
	}
	if n := len(r.names("releases")); n > 3 {
		r.t.Errorf("%d releases are kept: %v", n, r.names("releases"))
	}
	for _, name := range r.names("") {
		if strings.HasPrefix(name, ".tmp-") {
			r.t.Errorf("left in the root: %s", name)
		}
	}
	for _, name := range []string{"state.json", "identity.json"} {
		if info, err := os.Stat(filepath.Join(r.root, name)); err != nil {
			r.t.Error(err)
		} else if info.Mode() != 0o600 {
			r.t.Errorf("%s has mode %s", name, info.Mode())
		}
	}
}

func (r *rig) names(sub string) []string {
	r.t.Helper()
	list, err := os.ReadDir(filepath.Join(r.root, sub))
	if err != nil {
		r.t.Fatal(err)
	}
	var names []string
	for _, e := range list {
		names = append(names, e.Name())
	}
	return names
}

func (r *rig) read(name string) string {
	data, err := os.ReadFile(filepath.Join(r.root, "current", name))
	if err != nil {
		return err.Error()
	}
	return string(data)
}

// running starts Run and gives a function that ends it and waits.
func (r *rig) running(a *agent.Agent) (stop func()) {
	r.t.Helper()
	ctx, cancel := context.WithCancel(r.t.Context())
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()
	var once sync.Once
	stop = func() {
		once.Do(func() {
			cancel()
			if err := <-done; err != nil {
				r.t.Errorf("run: %v", err)
			}
		})
	}
	r.t.Cleanup(stop)
	return stop
}

// collector takes reports.
type collector struct {
	t testing.TB

	mu      sync.Mutex
	all     []report.Report
	beats   int
	changed chan struct{}
	hang    bool
	fail    error
}

func newCollector(t testing.TB) *collector {
	return &collector{t: t, changed: make(chan struct{})}
}

// Report implements agent.Reporter.
func (c *collector) Report(ctx context.Context, item api.ReportItem) (api.ReportResult, error) {
	c.mu.Lock()
	hang, fail := c.hang, c.fail
	c.mu.Unlock()
	if hang {
		<-ctx.Done()
		return api.ReportResult{}, ctx.Err()
	}
	if fail != nil {
		return api.ReportResult{}, fail
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	res := api.ReportResult{Accepted: true, HeartbeatKey: []byte("0123456789abcdef0123456789abcdef")}
	if item.Signed != nil {
		r, err := report.Decode(item.Signed.Payload)
		if err != nil {
			c.t.Errorf("report: %v", err)
			return res, err
		}
		res.Host, res.Counter = r.Host, r.Counter
		c.all = append(c.all, *r)
	} else {
		c.beats++
		res.Counter = item.Heartbeat.Counter
	}
	close(c.changed)
	c.changed = make(chan struct{})
	return res, nil
}

func (c *collector) reports() []report.Report {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.all)
}

// wait waits for a report that is as wanted.
func (c *collector) wait(what string, ok func(report.Report) bool) report.Report {
	c.t.Helper()
	deadline := time.NewTimer(20 * time.Second)
	defer deadline.Stop()
	for from := 0; ; {
		c.mu.Lock()
		all, changed := c.all, c.changed
		c.mu.Unlock()
		for ; from < len(all); from++ {
			if ok(all[from]) {
				return all[from]
			}
		}
		select {
		case <-changed:
		case <-deadline.C:
			c.t.Fatalf("no report %s; the last of %d: %+v", what, len(all), all[max(len(all)-1, 0):])
		}
	}
}

func confirmedAt(epoch uint64) func(report.Report) bool {
	return func(r report.Report) bool { return r.Confirmed && r.Running == epoch }
}

// faulty is a carrier that can be told to misbehave.
type faulty struct {
	agent.Carrier
	name string

	mu     sync.Mutex
	head   func() ([]byte, error)
	object func(key string) (io.ReadCloser, int64, error)
}

func (f *faulty) Name() string { return f.name }

func (f *faulty) Head(ctx context.Context, cohort string) ([]byte, error) {
	f.mu.Lock()
	head := f.head
	f.mu.Unlock()
	if head != nil {
		return head()
	}
	return f.Carrier.Head(ctx, cohort)
}

func (f *faulty) Object(ctx context.Context, key string) (io.ReadCloser, int64, error) {
	f.mu.Lock()
	object := f.object
	f.mu.Unlock()
	if object != nil {
		if body, size, err := object(key); body != nil || err != nil {
			return body, size, err
		}
	}
	return f.Carrier.Object(ctx, key)
}

// clockwork is a carrier that can be waited at.
type clockwork struct {
	agent.Carrier
	await func(ctx context.Context, after manifest.Mark) ([]byte, error)
}

func (c *clockwork) AwaitHead(ctx context.Context, _ string, after manifest.Mark) ([]byte, error) {
	return c.await(ctx, after)
}
