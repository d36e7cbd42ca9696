package agent_test

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/muster-config/muster/agent"
	"github.com/muster-config/muster/agent/agenttest"
	"github.com/muster-config/muster/distributor/api"
	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/report"
	"github.com/muster-config/muster/distributor/store"
	"github.com/muster-config/muster/distributor/store/mem"
)

// poll is a long poll as a collector's: it waits for a mark that is not `after`.
type poll struct {
	agent.Carrier
	mu      sync.Mutex
	changed chan struct{}
	head    []byte
	mark    manifest.Mark
	asked   []manifest.Mark
	bad     int           // so many answers are junk
	heads   atomic.Uint64 // how often the carrier was read in full
}

func newPoll(c agent.Carrier) *poll { return &poll{Carrier: c, changed: make(chan struct{})} }

func (p *poll) Head(ctx context.Context, cohort string) ([]byte, error) {
	p.heads.Add(1)
	return p.Carrier.Head(ctx, cohort)
}

func (p *poll) push(head []byte, mark manifest.Mark) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.head, p.mark = head, mark
	close(p.changed)
	p.changed = make(chan struct{})
}

func (p *poll) AwaitHead(ctx context.Context, _ string, after manifest.Mark) ([]byte, error) {
	p.mu.Lock()
	p.asked = append(p.asked, after)
	p.mu.Unlock()
	for {
		p.mu.Lock()
		head, mark, changed := p.head, p.mark, p.changed
		if head != nil && mark != after {
			if p.bad > 0 {
				p.bad--
				head = []byte(`{"junk": true}`)
			}
			p.mu.Unlock()
			return head, nil
		}
		p.mu.Unlock()
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-changed:
		}
	}
}

func (p *poll) marks() []manifest.Mark {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]manifest.Mark{}, p.asked...)
}

// B094: the long poll waits behind the newest head that was verified. A head that cannot be believed, or is older, is asked for again after a pause.
func TestB094WaitMark(t *testing.T) {
	r := newRig(t, "checkout")
	r.cfg.Poll = time.Minute
	c := newCollector(t)
	r.reporter = c
	r.world.Release(files{"checkout/checkout.yaml": "1"})
	r.world.Release(files{"checkout/checkout.yaml": "2"})
	first := r.world.Assign(1)
	p := newPoll(r.carriers[0])
	r.carriers = []agent.Carrier{p}
	p.push(first, manifest.Mark{Era: 1, Serial: 1})
	stop := r.running(r.agent())
	c.wait("confirmed at 1", confirmedAt(1))

	p.mu.Lock()
	p.bad = 2
	p.mu.Unlock()
	p.push(r.world.Head(2), manifest.Mark{Era: 1, Serial: 2}) // by the long poll alone: no full read would find it
	c.wait("confirmed at 2", confirmedAt(2))
	stop()
	marks := p.marks()
	for i, m := range marks {
		if m.Serial > 2 {
			t.Errorf("question %d waits behind %s", i, m)
		}
	}
	n := 0
	for _, m := range marks {
		if m.Serial == 1 {
			n++
		}
	}
	if n != 3 { // once in time, twice more after junk
		t.Errorf("asked %d times behind 1: %v", n, marks)
	}
}

// A carrier that goes back to an older head after a newer one is refused, and is not asked in a hot loop.
func TestB094LaggingReplica(t *testing.T) {
	r := newRig(t, "checkout")
	c := newCollector(t)
	r.reporter = c
	r.cfg.Poll = time.Minute
	r.world.Release(files{"checkout/checkout.yaml": "1"})
	r.world.Release(files{"checkout/checkout.yaml": "2"})
	old := r.world.Assign(1)
	r.world.Assign(2)
	p := newPoll(r.carriers[0])
	r.carriers = []agent.Carrier{p}
	p.push(old, manifest.Mark{Era: 1, Serial: 1})
	stop := r.running(r.agent())
	c.wait("confirmed at 2", confirmedAt(2))
	// It has asked a few times by now; with a pause that doubles from 5 ms that is few in the time of a whole apply.
	newest := r.world.Head(1)
	p.push(newest, manifest.Mark{Era: 1, Serial: 3})
	c.wait("confirmed at 1", confirmedAt(1))
	stop()
	if n := len(p.marks()); n > 20 {
		t.Errorf("asked %d times", n)
	}
}

// B078: a collector that takes the connection and never answers, or answers with errors, costs an apply nothing; the newest report is delivered later.
func TestB078CollectorHangs(t *testing.T) {
	for name, set := range map[string]func(*collector){
		"hangs": func(c *collector) { c.hang = true },
		"fails": func(c *collector) { c.fail = fmt.Errorf("500: %w", store.ErrUnreachable) },
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, "checkout")
			c := newCollector(t)
			set(c)
			r.reporter = c
			r.world.Release(files{"checkout/checkout.yaml": "1"})
			r.world.Release(files{"checkout/checkout.yaml": "2"})
			r.world.Assign(1)
			p := newPoll(r.carriers[0])
			p.push(r.world.Assign(1), manifest.Mark{Era: 1, Serial: 2})
			r.carriers = []agent.Carrier{p}
			started := time.Now()
			stop := r.running(r.agent())
			await(t, "the first release", func() bool { return r.procs["checkout"].Epoch() == 1 })
			p.push(r.world.Assign(2), manifest.Mark{Era: 1, Serial: 3})
			await(t, "the second release", func() bool { get(r.procs["checkout"]); return r.procs["checkout"].Epoch() == 2 })
			if took := time.Since(started); took > 5*time.Second {
				t.Errorf("took %s", took)
			}
			c.mu.Lock()
			c.hang, c.fail = false, nil
			c.mu.Unlock()
			c.wait("confirmed at 2", confirmedAt(2))
			for _, got := range c.reports() {
				if got.Desired != 2 {
					t.Errorf("a report about release %d arrives: only the newest is kept", got.Desired)
				}
			}
			stop()
		})
	}
}

// get asks a process, which makes it look for its signal.
func get(p *agenttest.Process) { agenttest.Ask(p) }

// await polls a condition of the real world: there is nothing to be told by.
func await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(20 * time.Second)
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("%s did not come", what)
		}
	}
}

// Signed reports come when the state changes; in between there are heartbeats with the boot's key, and the last one says that the agent leaves.
func TestReports(t *testing.T) {
	r := newRig(t, "checkout")
	c := newCollector(t)
	rec := &recorder{collector: c}
	r.reporter = rec
	r.world.Release(files{"checkout/checkout.yaml": "1"})
	r.world.Assign(1)
	stop := r.running(r.agent())
	first := c.wait("confirmed at 1", confirmedAt(1))
	await(t, "a heartbeat", func() bool { c.mu.Lock(); defer c.mu.Unlock(); return c.beats > 1 })
	n := len(c.reports())
	stop()
	all := c.reports()
	if n > 3 {
		t.Errorf("%d signed reports for one change", n)
	}
	last := all[len(all)-1]
	if last.Phase != report.PhaseLeaving || last.Boot != first.Boot || last.Poll != 1 {
		t.Errorf("last: %+v", last)
	}
	if first.Seen != "1-1-0" || first.Desired != 1 || first.Attempted != 1 || first.Source != "baseline" || first.Grade != manifest.GradeProcess || first.Agent != "test" {
		t.Errorf("first: %+v", first)
	}
	asked, reloaded := 0, 0 // a slow machine has one more report, that of the change on its way
	for _, rep := range all {
		asked += rep.Probes["checkout"].Count
		reloaded += rep.Probes["checkout reload"].Count
	}
	if asked == 0 || reloaded != 1 {
		t.Errorf("%d probes, %d reloads", asked, reloaded)
	}
	var counter uint64
	for _, item := range rec.items {
		switch {
		case item.Signed != nil:
			rep, err := report.Decode(item.Signed.Payload)
			if err != nil {
				t.Fatal(err)
			}
			keys := map[string]([]byte){}
			_ = keys
			if _, err := item.Signed.VerifySignatures(manifest.KindReport, publicOf(rep.Key)); err != nil {
				t.Errorf("signature: %v", err)
			}
			if rep.Counter <= counter {
				t.Errorf("counter %d after %d", rep.Counter, counter)
			}
			counter = rep.Counter
		case item.Heartbeat != nil:
			h := item.Heartbeat
			mac := hmac.New(sha256.New, []byte("0123456789abcdef0123456789abcdef"))
			fmt.Fprintf(mac, "muster heartbeat\n%s\n%s\n%s\n%s\n%d\n%s", h.Repo, h.Cohort, h.Host, h.Boot, h.Counter, h.Digest)
			if !bytes.Equal(mac.Sum(nil), h.MAC) || h.Counter <= counter {
				t.Errorf("heartbeat: %+v after %d", h, counter)
			}
			counter = h.Counter
		}
	}
	// The identity stays over starts; the boot does not.
	stop = r.running(r.agent())
	again := c.wait("of another boot", func(r report.Report) bool { return r.Boot != first.Boot })
	stop()
	if !bytes.Equal(again.Key, first.Key) {
		t.Error("another identity after a restart")
	}
}

type recorder struct {
	*collector
	mu    sync.Mutex
	items []api.ReportItem
}

func (r *recorder) Report(ctx context.Context, item api.ReportItem) (api.ReportResult, error) {
	r.mu.Lock()
	r.items = append(r.items, item)
	r.mu.Unlock()
	return r.collector.Report(ctx, item)
}

// The end of the agent in the middle of a confirmation: it ends at once, the next start goes on with the window and comes to a verdict, and a change that makes
// a process ill is taken back by it (B081, B086).
func TestB086EndInMidApply(t *testing.T) {
	for name, tc := range map[string]struct {
		content string
		epoch   uint64
	}{"it is well": {"2", 2}, "it is ill": {"poison", 1}} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, "checkout")
			c := newCollector(t)
			r.reporter = c
			r.world.Release(files{"checkout/checkout.yaml": "1"})
			r.world.Assign(1)
			r.confirmed(1)
			r.procs["checkout"].SetDeaf(true)
			r.edit("checkout", func(s *agent.ServiceConfig) { s.Confirm.Within = 30 * time.Second })
			r.world.Release(files{"checkout/checkout.yaml": tc.content})
			r.world.Assign(2)
			stop := r.running(r.agent())
			c.wait("that waits", func(r report.Report) bool { return r.Phase == report.PhaseConfirming && r.Running == 2 })
			started := time.Now()
			stop()
			if took := time.Since(started); took > 10*time.Second {
				t.Errorf("the end took %s", took)
			}
			r.tidy()
			r.procs["checkout"].SetDeaf(false)
			r.edit("checkout", func(s *agent.ServiceConfig) { s.Confirm.Within = 300 * time.Millisecond })
			r.patient = true // a second try of the ill one is not part of this
			stop = r.running(r.agent())
			n := len(c.reports())
			got := c.wait("with a verdict", func(rep report.Report) bool {
				return len(c.reports()) > n && rep.Running == tc.epoch && (rep.Confirmed || rep.Phase == report.PhaseRolledBack) && rep.Services["checkout"].State == "confirmed"
			})
			stop()
			if got.Desired != 0 && got.Desired != 2 {
				t.Errorf("%+v", got)
			}
			r.sound(tc.epoch)
		})
	}
}

// A newer head ends the wait for a process that does not hear.
func TestNewerHeadEndsTheWait(t *testing.T) {
	r := newRig(t, "checkout")
	c := newCollector(t)
	r.reporter = c
	r.world.Release(files{"checkout/checkout.yaml": "1"})
	r.world.Release(files{"checkout/checkout.yaml": "2"})
	r.world.Release(files{"checkout/checkout.yaml": "3"})
	p := newPoll(r.carriers[0])
	p.push(r.world.Assign(1), manifest.Mark{Era: 1, Serial: 1})
	r.carriers = []agent.Carrier{p}
	r.cfg.Poll = time.Minute // the wait ends at once, not at the next look
	r.edit("checkout", func(s *agent.ServiceConfig) { s.Confirm.Within = time.Hour })
	stop := r.running(r.agent())
	c.wait("confirmed at 1", confirmedAt(1))
	r.procs["checkout"].SetDeaf(true)
	p.push(r.world.Assign(2), manifest.Mark{Era: 1, Serial: 2})
	c.wait("that waits", func(r report.Report) bool { return r.Phase == report.PhaseConfirming && r.Running == 2 })
	r.procs["checkout"].SetDeaf(false)
	r.procs["checkout"].SetDeaf(true)
	p.push(r.world.Assign(3), manifest.Mark{Era: 1, Serial: 3})
	c.wait("of the third", func(r report.Report) bool { return r.Running == 3 })
	r.procs["checkout"].SetDeaf(false)
	c.wait("confirmed at 3", confirmedAt(3))
	stop()
	r.sound(3)
}

// With a working long poll the sources are not read at each poll; when it breaks they are, and when it comes back it begins with a full read.
func TestFullReadAfterReconnect(t *testing.T) {
	r := newRig(t, "checkout")
	c := newCollector(t)
	r.reporter = c
	r.world.Release(files{"checkout/checkout.yaml": "1"})
	r.world.Release(files{"checkout/checkout.yaml": "2"})
	r.world.Assign(1)
	var down atomic.Bool
	broke := make(chan struct{})
	hinter := &clockwork{Carrier: r.carriers[0]}
	hinter.await = func(ctx context.Context, after manifest.Mark) ([]byte, error) {
		if down.Load() {
			return nil, store.ErrUnreachable
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-broke:
			return nil, store.ErrUnreachable
		}
	}
	r.carriers = []agent.Carrier{hinter}
	stop := r.running(r.agent())
	c.wait("confirmed at 1", confirmedAt(1))
	down.Store(true)
	close(broke)
	r.world.Assign(2) // nobody says so: the full read finds it
	c.wait("confirmed at 2", confirmedAt(2))
	stop()
}

// A rotated keyring is found in the store, kept over a restart, and heads are signed by its key only.
func TestStaleIsAnAlarm(t *testing.T) {
	r := newRig(t, "checkout")
	c := newCollector(t)
	r.reporter = c
	r.world.Release(files{"checkout/checkout.yaml": "1"})
	r.world.Assign(1, func(m *manifest.Manifest) {
		m.Issued = m.Issued.Add(-48 * time.Hour)
		m.FreshUntil = m.Issued.Add(24 * time.Hour)
	})
	res := r.confirmed(1)
	if !res.Confirmed {
		t.Error("a stale head is an outage")
	}
	if last := c.reports()[len(c.reports())-1]; !last.Stale {
		t.Errorf("%+v", last)
	}
}

// Another keyring in the store is followed; one that is not signed by the roots of the last is not.
func TestKeyringIsFollowed(t *testing.T) {
	r := newRig(t, "checkout")
	r.world.Release(files{"checkout/checkout.yaml": "1"})
	r.world.Assign(1)
	r.confirmed(1)
	r.world.Put(manifest.KeyKeyring(2), []byte(`{"payloadType":"x","payload":"","signatures":[]}`))
	r.confirmed(1)
	old := r.world.Keyring
	r.world.Rotate()
	r.world.Assign(1) // signed by the new rollout key only
	r.world.Keyring, old = old, r.world.Keyring
	r.confirmed(1) // the host's own file is still the old one
	r.world.Keyring = old
	r.confirmed(1)
}

func publicOf(key []byte) map[string]publicKey {
	return map[string]publicKey{manifest.KeyIDOf(key): key}
}

// The cause of an end is not told as leaving when the agent goes on under another configuration.
func TestReconfiguredIsNotLeaving(t *testing.T) {
	r := newRig(t, "checkout")
	c := newCollector(t)
	r.reporter = c
	r.world.Release(files{"checkout/checkout.yaml": "1"})
	r.world.Assign(1)
	ctx, cancel := context.WithCancelCause(t.Context())
	done := make(chan error, 1)
	a := r.agent()
	go func() { done <- a.Run(ctx) }()
	c.wait("confirmed at 1", confirmedAt(1))
	cancel(agent.ErrReconfigured)
	if err := <-done; err != nil && !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	for _, rep := range c.reports() {
		if rep.Phase == report.PhaseLeaving {
			t.Errorf("%+v", rep)
		}
	}
	// B079: with nothing new, the next one is confirmed all the same.
	n := len(c.reports())
	stop := r.running(r.agent())
	c.wait("confirmed again", func(rep report.Report) bool { return len(c.reports()) > n && rep.Confirmed })
	stop()
	if strings.Contains(r.logs.String(), "level=ERROR") {
		t.Error("errors in the log")
	}
}

// hanging is a carrier that takes every question and never answers.
type hanging struct{ name string }

func (s hanging) Name() string { return s.name }

func (hanging) Head(ctx context.Context, _ string) ([]byte, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

func (hanging) Keyring(ctx context.Context, _ uint64) ([]byte, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

func (hanging) Object(ctx context.Context, _ string) (io.ReadCloser, int64, error) {
	<-ctx.Done()
	return nil, 0, ctx.Err()
}

// B061: a source that hangs, as one whose credentials do not come, is left for the next one after a moment, is asked no more in this sync, and for the bundle last.
func TestB061SourceHangs(t *testing.T) {
	r := newRig(t, "checkout")
	r.carriers = []agent.Carrier{hanging{"s3://hangs"}, r.carriers[0]}
	r.world.Release(files{"checkout/checkout.yaml": "1"})
	r.world.Assign(1)
	started := time.Now()
	res := r.confirmed(1)
	// By its own limit it would cost 5 s for the keyring alone.
	if took := time.Since(started); took > 4*time.Second {
		t.Errorf("%s", took)
	}
	if len(res.Sources) != 2 || !strings.Contains(res.Sources[0].Error, "no answer in time") || res.Sources[0].Refused || res.Sources[1].Mark != "1-1-0" {
		t.Errorf("%+v", res.Sources)
	}
	// Alone, it ends at that limit, and the host keeps what it has.
	r.carriers = r.carriers[:1]
	started = time.Now()
	if res, err := r.once(); err != nil || !res.Confirmed || res.Running != 1 || time.Since(started) > 15*time.Second {
		t.Errorf("%+v, %v after %s", res, err, time.Since(started))
	}
}

// A keyring file that changes on a host which has pinned one is not taken, and that is said: once, with both digests.
func TestKeyringFileChanged(t *testing.T) {
	r := newRig(t, "checkout")
	r.world.Release(files{"checkout/checkout.yaml": "1"})
	r.world.Assign(1)
	r.confirmed(1)
	pinned := r.world.Keyring
	other := agenttest.New(t, mem.New()) // the same keys, signed at another time
	if bytes.Equal(other.Keyring, pinned) {
		t.Fatal("the keyrings are the same")
	}
	r.world.Keyring = other.Keyring
	r.confirmed(1)
	r.confirmed(1)
	const said = "the keyring file has changed and is not taken"
	if n := strings.Count(r.logs.String(), said); n != 1 {
		t.Errorf("said %d times", n)
	}
	for _, data := range [][]byte{pinned, other.Keyring} {
		sum := sha256.Sum256(data)
		if !strings.Contains(r.logs.String(), hex.EncodeToString(sum[:])) {
			t.Errorf("the log does not name %x", sum)
		}
	}
}
