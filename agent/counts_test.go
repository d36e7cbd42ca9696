package agent_test

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-config/muster/agent"
	"github.com/muster-config/muster/agent/agenttest"
	"github.com/muster-config/muster/agent/install"
	"github.com/muster-config/muster/agent/probe"
	"github.com/muster-config/muster/distributor/api"
	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/report"
	"github.com/muster-config/muster/distributor/store/mem"
)

// stated is a process that states an epoch at once, is ill when told to, and starts anew when told to.
type stated struct {
	agent.Prober
	mu    sync.Mutex
	epoch uint64
	ill   bool
	start string
	slow  int // a reload starts it anew only when it has been looked at so often
}

// Run is the reload: it returns at once, and the process starts anew a while later.
func (s *stated) Run(context.Context, probe.Command) probe.Result {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.slow = 4
	return probe.Result{}
}

func (s *stated) Ask(context.Context, probe.Question) (probe.Answer, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	time.Sleep(4 * time.Millisecond)
	if s.ill {
		return probe.Answer{}, errors.New("answers 500")
	}
	return probe.Answer{Epoch: s.epoch}, nil
}

func (s *stated) Unit(context.Context, string) (probe.Unit, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.slow > 0 {
		if s.slow--; s.slow == 0 {
			s.epoch, s.start = s.epoch+1, s.start+"'"
		}
	}
	return probe.Unit{State: "active", Start: s.start}, nil
}

func (s *stated) set(f func(*stated)) { s.mu.Lock(); defer s.mu.Unlock(); f(s) }

// heard keeps the signed reports; while it is deaf, posts fail.
type heardAll struct {
	mu    sync.Mutex
	deaf  bool
	all   []report.Report
	beats int
}

func (h *heardAll) Report(_ context.Context, item api.ReportItem) (api.ReportResult, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.deaf {
		return api.ReportResult{}, errors.New("nobody there")
	}
	if item.Signed == nil {
		h.beats++
		return api.ReportResult{Accepted: true, Counter: item.Heartbeat.Counter}, nil
	}
	r, err := report.Decode(item.Signed.Payload)
	if err != nil {
		return api.ReportResult{}, err
	}
	h.all = append(h.all, *r)
	return api.ReportResult{Host: r.Host, Accepted: true, Counter: r.Counter, HeartbeatKey: []byte("0123456789abcdef0123456789abcdef")}, nil
}

// probed sums up what signed reports told of a probe, from the n-th on.
func (h *heardAll) probed(name string, from int) (reports, count, failures int, p50 float64, restarts int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, r := range h.all[from:] {
		p := r.Probes[name]
		reports, count, failures, p50, restarts = reports+1, count+p.Count, failures+p.Failures, p.P50MS, r.Services["checkout"].Restarts
	}
	return reports, count, failures, p50, restarts
}

func (h *heardAll) len() int { h.mu.Lock(); defer h.mu.Unlock(); return len(h.all) }

// TestProbesReported: while a gate judges hosts by their probes, each look is told, with failures and latency, also what was counted while the collector was away. Else the looks of a host that stays as
// it is cost no signature. A restart that no reload asked for is counted, from the begin of the rollout's phase.
func TestProbesReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		world := agenttest.New(t, mem.New())
		root, err := install.Open(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		defer root.Close()
		p, heard := &stated{Prober: probe.New(), start: "a"}, &heardAll{}
		a, err := agent.New(agent.Options{
			Config: agent.Config{
				Host: "web-1", Repo: agenttest.Repo, Cohort: agenttest.Cohort, Sources: []string{world.Store.URL()}, Root: root.Path(), Poll: 10 * time.Second,
				Services: map[string]agent.ServiceConfig{"checkout": {Unit: "checkout.service", Reload: []string{"/bin/true"}, Confirm: &agent.ConfirmConfig{HTTP: "http://127.0.0.1:1/", Field: "e", Within: 5 * time.Second}}},
			},
			Keyring: world.Keyring, Carriers: []agent.Carrier{agent.StoreCarrier{Store: world.Store}}, Installer: root, Memory: root, Prober: p, Reporter: heard, Now: time.Now,
			Logger: slog.New(slog.DiscardHandler), MachineID: "m",
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- a.Run(ctx) }()
		defer func() { cancel(); <-done }()

		world.Release(files{"checkout/checkout.yaml": "1"})
		world.Release(files{"checkout/checkout.yaml": "2"})
		world.Assign(1)
		time.Sleep(time.Minute)
		quiet := heard.len()
		p.set(func(p *stated) { p.start = "b" })
		time.Sleep(5 * time.Minute)
		if n, _, _, _, restarts := heard.probed("checkout", quiet); n != 1 || restarts != 1 {
			t.Errorf("%d signed reports and %d restarts where only the process started anew, once", n, restarts)
		}

		gates := func(phase manifest.Phase) func(*manifest.Manifest) {
			return func(m *manifest.Manifest) {
				m.Rollout.Baseline, m.Rollout.Phase, m.Rollout.Since = 1, phase, time.Now().UTC()
				most := 0.1
				m.Rollout.Policy.Gates = map[string]manifest.Gate{"ill": {Reported: "probe_failures", Max: &most, Every: "10s", Fails: 1, NoData: "wait"}}
			}
		}
		world.Assign(2, gates(manifest.PhaseBaking))
		time.Sleep(time.Minute)
		from := heard.len()
		before := a.Status().Probes["checkout"]
		time.Sleep(5 * time.Minute)
		n, count, _, p50, restarts := heard.probed("checkout", from)
		if n < 25 || count < 25 || p50 != 4 || restarts != 0 {
			t.Errorf("in five minutes of a bake %d reports tell of %d probes of %g ms; %d restarts since its begin", n, count, p50, restarts)
		}
		heard.mu.Lock()
		heard.deaf = true
		heard.mu.Unlock()
		p.set(func(p *stated) { p.ill = true })
		time.Sleep(5 * time.Minute)
		heard.mu.Lock()
		heard.deaf = false
		heard.mu.Unlock()
		time.Sleep(2 * time.Minute)
		_, count, failures, _, _ := heard.probed("checkout", from)
		now := a.Status().Probes["checkout"]
		if told := now.Count - before.Count; failures < 35 || count < told-2 || count > told || now.Failures < failures || now.Seconds <= before.Seconds {
			t.Errorf("%d probes and %d failures were told; the host counted %+v since %+v", count, failures, now, before)
		}
	})
}
