package agent_test

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"log/slog"
	"math"
	"path/filepath"
	"slices"
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

// calm is a fleet without processes in a bubble: real agents on real disks, whose clocks are the bubble's.
type calm struct {
	t     *testing.T
	world *agenttest.World
	dir   string
}

func newCalm(t *testing.T) *calm {
	return &calm{t: t, world: agenttest.New(t, mem.New()), dir: t.TempDir()}
}

// ran is when the collector first heard of an epoch that runs, by host.
type ran struct {
	mu   sync.Mutex
	at   map[uint64]map[string]time.Time
	last map[string]report.Report
}

func (r *ran) Report(_ context.Context, item api.ReportItem) (api.ReportResult, error) {
	if item.Signed == nil {
		return api.ReportResult{Accepted: true, Counter: item.Heartbeat.Counter}, nil
	}
	rep, err := report.Decode(item.Signed.Payload)
	if err != nil {
		return api.ReportResult{}, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.at == nil {
		r.at, r.last = map[uint64]map[string]time.Time{}, map[string]report.Report{}
	}
	if r.at[rep.Running] == nil {
		r.at[rep.Running] = map[string]time.Time{}
	}
	if _, ok := r.at[rep.Running][rep.Host]; !ok {
		r.at[rep.Running][rep.Host] = time.Now()
	}
	r.last[rep.Host] = *rep
	return api.ReportResult{Host: rep.Host, Accepted: true, Counter: rep.Counter, HeartbeatKey: []byte("0123456789abcdef0123456789abcdef")}, nil
}

func (r *ran) of(host string) report.Report {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.last[host]
}

func (r *ran) when(epoch uint64, host string) (time.Time, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	at, ok := r.at[epoch][host]
	return at, ok
}

// start runs a host's agent until stop.
func (c *calm) start(name string, to agent.Reporter) (stop func()) {
	c.t.Helper()
	root, err := install.Open(filepath.Join(c.dir, name))
	if err != nil {
		c.t.Fatal(err)
	}
	a, err := agent.New(agent.Options{
		Config:  agent.Config{Host: name, Repo: agenttest.Repo, Cohort: agenttest.Cohort, Sources: []string{c.world.Store.URL()}, Root: filepath.Join(c.dir, name), Poll: 10 * time.Second},
		Keyring: c.world.Keyring, Carriers: []agent.Carrier{agent.StoreCarrier{Store: c.world.Store}}, Installer: root, Memory: root, Prober: probe.New(), Reporter: to,
		Logger: slog.New(slog.DiscardHandler), Version: "test", MachineID: "m",
	})
	if err != nil {
		c.t.Fatal(err)
	}
	ctx, cancel := context.WithCancelCause(c.t.Context())
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()
	return func() {
		cancel(agent.ErrReconfigured)
		if err := <-done; err != nil {
			c.t.Error(err)
		}
		root.Close()
	}
}

// release makes a release whose files need no process.
func (c *calm) release(text string) {
	c.t.Helper()
	c.world.Release(files{"checkout/checkout.yaml": text}, agenttest.Grade(manifest.GradeDisk))
}

// rolling makes an order of a rollout from epoch 1 to 2 under way.
func rolling(spread string, change func(*manifest.Manifest)) func(*manifest.Manifest) {
	return func(m *manifest.Manifest) {
		m.Rollout.Target, m.Rollout.Baseline, m.Rollout.Phase, m.Rollout.Wave, m.Rollout.Policy.Spread = 2, 1, manifest.PhaseAdvancing, 1, spread
		m.Assign = []manifest.Assignment{{Below: "ffffffffffffffff", Salt: "2", Epoch: 2, Why: "wave 1 of 1"}, {Epoch: 1, Why: "baseline"}}
		if change != nil {
			change(m)
		}
	}
}

// turnOf is a host's part of the spread, worked out anew.
func turnOf(host string, epoch uint64, spread time.Duration) time.Duration {
	sum := sha256.Sum256([]byte(fmt.Sprintf("spread/%d\x00%s", epoch, host)))
	return time.Duration(float64(binary.BigEndian.Uint64(sum[:8])) / math.Exp2(64) * float64(spread))
}

// TestSpread: hosts that are told at once take a release one after the other, each at its own time; the hosts of a small first wave are as far from one another as all.
func TestSpread(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, heard := newCalm(t), &ran{}
		c.release("1")
		c.release("2")
		c.world.Assign(1)
		names := make([]string, 24)
		for i := range names {
			names[i] = fmt.Sprintf("web-%d", i)
			defer c.start(names[i], heard)()
		}
		time.Sleep(time.Minute)
		for _, name := range names {
			if heard.of(name).Running != 1 {
				t.Fatalf("%s runs %d", name, heard.of(name).Running)
			}
		}
		const spread = 10 * time.Minute
		c.world.Assign(2, rolling("10m", nil))
		told := time.Now()
		time.Sleep(time.Minute)
		for _, name := range names {
			turn := turnOf(name, 2, spread)
			r := heard.of(name)
			switch {
			case turn > 2*time.Minute && (r.WaitsUntil == nil || r.WaitsUntil.Sub(told.Add(turn)).Abs() > 2*time.Second):
				t.Errorf("%s waits until %v, its turn is %s", name, r.WaitsUntil, told.Add(turn))
			case r.Running == 2 && r.WaitsUntil != nil:
				t.Errorf("%s runs it, and waits until %s", name, r.WaitsUntil)
			}
		}
		time.Sleep(spread)
		var first, last time.Duration = spread, 0
		for _, name := range names {
			at, ok := heard.when(2, name)
			// It counts from the order; a host may hear of it a poll later, which only matters where its turn is over by then.
			want := max(turnOf(name, 2, spread), 0)
			got := at.Sub(told)
			if !ok || got < want-time.Second || got > max(want, 12*time.Second)+2*time.Second {
				t.Errorf("%s takes it after %s, want %s (%v)", name, got, want, ok)
			}
			first, last = min(first, got), max(last, got)
		}
		if first > time.Minute || last < 9*time.Minute {
			t.Errorf("the fleet takes it between %s and %s", first, last)
		}
		// A wave of 10% by the ring of waves.
		slices.SortFunc(names, func(a, b string) int {
			if manifest.Point("2", a) < manifest.Point("2", b) {
				return -1
			}
			return 1
		})
		wave := names[:4]
		when := func(name string) time.Time { at, _ := heard.when(2, name); return at }
		var most time.Duration
		for _, a := range wave {
			for _, b := range wave {
				most = max(most, when(a).Sub(when(b)))
			}
		}
		if most < 2*time.Minute {
			t.Errorf("the first wave takes it within %s of 10m", most)
		}
	})
}

// TestSpreadNever: what is urgent, or leads away from a release, waits for no turn.
func TestSpreadNever(t *testing.T) {
	on := func(m *manifest.Manifest) { rolling("8h", nil)(m) }
	for name, order := range map[string]struct {
		before func(*manifest.Manifest)
		begin  uint64 // epoch that runs before
		order  func(*manifest.Manifest)
		want   uint64
	}{
		"rollback": {begin: 2, order: func(m *manifest.Manifest) {
			on(m)
			m.Rollout.Phase, m.Assign = manifest.PhaseRollingBack, []manifest.Assignment{{Epoch: 1, Why: "baseline"}}
		}, want: 1},
		"halted": {begin: 2, order: func(m *manifest.Manifest) {
			on(m)
			m.Rollout.Phase, m.Assign = manifest.PhaseHalted, []manifest.Assignment{{Epoch: 1, Why: "baseline"}}
		}, want: 1},
		"hold": {begin: 1, order: func(m *manifest.Manifest) {
			on(m)
			m.Assign = append([]manifest.Assignment{{Hosts: []string{"web-1"}, Epoch: 2, Why: "hold"}}, m.Assign...)
		}, want: 2},
		"first release": {begin: 1, order: func(m *manifest.Manifest) { on(m); m.Rollout.Baseline = 0 }, want: 2},
		"done":          {begin: 1, order: func(m *manifest.Manifest) { on(m); m.Rollout.Baseline, m.Rollout.Phase = 2, manifest.PhaseDone }, want: 2},
		"nothing there": {begin: 0, order: on, want: 2},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, heard := newCalm(t), &ran{}
				c.release("1")
				c.release("2")
				if order.begin > 0 {
					c.world.Assign(order.begin)
					defer c.start("web-1", heard)()
					time.Sleep(time.Minute)
				}
				c.world.Assign(2, order.order)
				if order.begin == 0 {
					defer c.start("web-1", heard)()
				}
				time.Sleep(30 * time.Second)
				if got := heard.of("web-1"); got.Running != order.want || !got.Confirmed {
					t.Errorf("runs %d, %q", got.Running, got.Reason)
				}
			})
		})
	}
	// An override of the whole cohort, in the middle of a rollout.
	synctest.Test(t, func(t *testing.T) {
		c, heard := newCalm(t), &ran{}
		c.release("1")
		c.world.Assign(1)
		defer c.start("web-1", heard)()
		time.Sleep(time.Minute)
		c.release("2")
		c.world.Override(2, files{"checkout/checkout.yaml": "now"}, time.Now().Add(time.Hour), rolling("8h", nil))
		time.Sleep(30 * time.Second)
		if got := heard.of("web-1"); got.Override == "" {
			t.Errorf("runs %d %q, %q", got.Running, got.Override, got.Reason)
		}
	})
}

// TestSpreadRestart: a restart, another order of the same rollout and full re-syncs leave a host's turn where it is; `once` waits for none.
func TestSpreadRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const host, spread = "web-1", time.Hour
		c, heard := newCalm(t), &ran{}
		c.release("1")
		c.release("2")
		c.world.Assign(1)
		stop := c.start(host, heard)
		time.Sleep(time.Minute)
		c.world.Assign(2, rolling("1h", nil))
		told := time.Now()
		want := turnOf(host, 2, spread)
		if want < 20*time.Minute {
			t.Fatalf("the turn of %s is %s: take another name", host, want)
		}
		time.Sleep(time.Minute)
		if got := heard.of(host); got.Running != 1 || got.Desired != 2 || got.Reason == "" {
			t.Errorf("while it waits: %+v", got)
		}
		for time.Since(told) < want-5*time.Minute {
			time.Sleep(4 * time.Minute)
			stop()
			stop = c.start(host, heard)
			c.world.Assign(2, rolling("1h", nil)) // issued anew
		}
		time.Sleep(want - time.Since(told) - time.Minute)
		if got := heard.of(host); got.Running != 1 {
			t.Errorf("runs %d a minute before its turn", got.Running)
		}
		time.Sleep(2 * time.Minute)
		if got := heard.of(host); got.Running != 2 || !got.Confirmed {
			t.Errorf("runs %d a minute after its turn: %q", got.Running, got.Reason)
		}
		stop()
	})
}
