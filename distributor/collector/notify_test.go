package collector

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/muster-config/muster/distributor/api"
	"github.com/muster-config/muster/distributor/manifest"
)

// receiver is a real server that a notice is sent to. It answers with what answer says to the n-th try.
type receiver struct {
	*httptest.Server
	mu     sync.Mutex
	answer func(n int) int
	tries  int
	got    []api.Notice
	heads  []http.Header
	bodies [][]byte
}

func newReceiver(t *testing.T, answer func(n int) int) *receiver {
	r := &receiver{answer: answer}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body, _ := io.ReadAll(req.Body)
		r.mu.Lock()
		r.tries++
		status := r.answer(r.tries)
		if status/100 == 2 {
			var n api.Notice
			if err := json.Unmarshal(body, &n); err != nil {
				t.Errorf("%s: %v", body, err)
			}
			r.got, r.heads, r.bodies = append(r.got, n), append(r.heads, req.Header), append(r.bodies, body)
		}
		r.mu.Unlock()
		if status/100 == 3 {
			w.Header().Set("Location", "/elsewhere")
		}
		w.WriteHeader(status)
	}))
	t.Cleanup(r.Close)
	return r
}

func (r *receiver) have() (list []api.Notice) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append(list, r.got...)
}

// sending runs the sending of a rig's notices until the test, or stop, ends it.
func sending(r *rig) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); r.c.sendNotices(ctx) }()
	stop = func() { cancel(); <-done }
	r.t.Cleanup(stop)
	return stop
}

func (r *rig) notify(to ...Notify) {
	r.c.cfg.Notify = to
	kept := r.c.outbox
	r.c.outbox = newOutbox(len(to))
	r.c.outbox.first = time.Millisecond
	for id, l := range kept.letters {
		r.c.outbox.letters[id] = l
	}
}

func pausedBy(who, why string, at time.Time) func(r *manifest.Rollout) {
	return func(r *manifest.Rollout) {
		r.Was, r.Phase, r.Pause = manifest.PhaseBaking, manifest.PhasePaused, &manifest.Stop{By: who, Why: why, Since: at}
	}
}

// A receiver that fails at first gets the notice in the end: once, signed, with its id; and one that does not ask for the event gets nothing.
func TestNotify(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("hunter2-secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	bad := newReceiver(t, func(n int) int { return map[int]int{1: 500, 2: 302, 3: 404}[n] + (max(0, min(n-3, 1)))*204 })
	deaf := newReceiver(t, func(int) int { return 200 })
	r := steeredRig(t, nil)
	r.notify(Notify{URL: bad.URL + "/hook/hunter2-path", SecretFile: secret, Events: []string{api.NoticePaused}}, Notify{URL: deaf.URL, Events: []string{api.NoticeHalted}})
	r.assign("prod", 2, underWay(r.world, 2, 1, pausedBy("ana", "INC-7", r.now())))
	sending(r)
	r.read()
	until(t, "the notice arrives", func() bool { return len(bad.have()) == 1 })
	n := bad.have()[0]
	if n.V != 1 || n.Event != api.NoticePaused || n.Cohort != "prod" || n.Repo != repo || n.Epoch != 2 || n.Baseline != 1 || n.By != "ana" || n.Why != "INC-7" || n.Step != "wave 1 of 3" || n.Subject != "change 2" ||
		n.Overdue || len(n.Queue) != 1 || n.Queue[0].Epoch != 3 || !strings.Contains(n.Next, "`muster rollout resume prod --reason …` goes on") {
		t.Errorf("%+v", n)
	}
	h := bad.heads[0]
	if want := api.NoticeSignature([]byte("hunter2-secret"), h.Get(api.HeaderNoticeTimestamp), bad.bodies[0]); h.Get(api.HeaderNoticeSignature) != want || h.Get(api.HeaderNoticeTimestamp) != fmt.Sprint(start.Unix()) {
		t.Errorf("signature %q, want %q; %v", h.Get(api.HeaderNoticeSignature), want, h)
	}
	if h.Get(api.HeaderNoticeID) != n.ID || h.Get(api.HeaderNoticeEvent) != n.Event || h.Get("Content-Type") != "application/json" {
		t.Errorf("%v", h)
	}
	if tries := bad.tries; tries != 4 {
		t.Errorf("%d tries, want 4: a redirect is not followed", tries)
	}
	if got := deaf.have(); len(got) != 0 {
		t.Errorf("an event that nobody asked for: %+v", got)
	}
	if text := r.log.String(); strings.Contains(text, "hunter2") || !strings.Contains(text, "a notice cannot be sent; it is tried on") || !strings.Contains(text, "notices are sent again") {
		t.Errorf("the log says a secret, or not what happened:\n%s", text)
	}
}

// B107: a pause that nobody ends is told again, with the waiting step and the commits behind it, once an hour is over and once a day then; it is a metric, too.
func TestB107PausedForLong(t *testing.T) {
	to := newReceiver(t, func(int) int { return 200 })
	r := steeredRig(t, nil)
	r.notify(Notify{URL: to.URL})
	r.assign("prod", 2, underWay(r.world, 2, 1, pausedBy("muster", "wave 1 of 3 of epoch 2: gate errors: no data", r.now()), func(ro *manifest.Rollout) {
		ro.Verdicts = []manifest.GateVerdict{{Gate: "errors", Wave: 1, Outcome: manifest.OutcomeInconclusive, Why: "no data", From: start, To: start}}
	}))
	r.read()
	stop := sending(r)
	until(t, "the pause is told", func() bool { return len(to.have()) == 1 })
	stop()
	r.publish("prod")
	r.advance(24*time.Hour - time.Minute)
	r.read()
	stop = sending(r)
	until(t, "that it still stands is told", func() bool { return len(to.have()) == 2 })
	stop()
	n := to.have()[1]
	if !n.Overdue || n.Step != "wave 1 of 3, gate errors" || !strings.Contains(n.Why, "has waited at wave 1 of 3, gate errors for 23h59m0s") || len(n.Queue) != 2 || n.Queue[1].Epoch != 4 || n.Queue[1].Commit == "" {
		t.Errorf("%+v", n)
	}
	r.advance(2 * time.Minute)
	stop = sending(r)
	until(t, "a day later it is told again", func() bool { return len(to.have()) == 3 })
	stop()
	_, text, _ := r.page(t, r.server.Client(), "/metrics")
	for _, want := range []string{`muster_rollout_overdue{cohort="prod"} 1`, `muster_rollout_paused{cohort="prod"} 1`, `muster_rollout_queue{cohort="prod"} 2`, `muster_rollout_stopped_seconds{cohort="prod",stop="pause"} 86460`,
		`muster_rollout_gate{cohort="prod",gate="errors",outcome="inconclusive"} 1`, `muster_rollout_phase{cohort="prod",phase="paused"} 1`, `muster_rollout_wave{cohort="prod"} 1`, `muster_notices_total{result="sent"} 3`} {
		if !strings.Contains(text, want+"\n") {
			t.Errorf("metrics have no %s", want)
		}
	}
	ids := map[string]bool{}
	for _, n := range to.have() {
		ids[n.ID] = true
	}
	if len(ids) != 3 {
		t.Errorf("ids %v", ids)
	}
}

// What was not sent when the collector ended is sent by the next one; what was sent is not sent again. Without what it remembered, it has the same id.
func TestNotifySurvivesARestart(t *testing.T) {
	up := false
	to := newReceiver(t, func(int) int { return map[bool]int{true: 200, false: 503}[up] })
	also := newReceiver(t, func(int) int { return 200 })
	r := steeredRig(t, nil)
	r.notify(Notify{URL: to.URL}, Notify{URL: also.URL})
	r.assign("prod", 2, underWay(r.world, 2, 1, pausedBy("ana", "INC-7", r.now())))
	stop := sending(r)
	r.read()
	until(t, "one has it, the other one failed", func() bool { to.mu.Lock(); defer to.mu.Unlock(); return len(also.have()) == 1 && to.tries > 0 })
	stop()
	// The pause ends, unseen by the next collector.
	r.assign("prod", 2, underWay(r.world, 2, 1))
	r.flush()
	to.mu.Lock()
	up = true
	to.mu.Unlock()
	config := r.c.cfg.Notify
	r.restartWith(config)
	sending(r)
	until(t, "the other one has it", func() bool { return len(to.have()) == 1 })
	if to.have()[0].ID != also.have()[0].ID || len(also.have()) != 1 {
		t.Errorf("%+v\n%+v", to.have(), also.have())
	}
}

// Each event has its notice; an override that ends soon too.
func TestNotices(t *testing.T) {
	r := steeredRig(t, nil)
	now := r.now()
	for name, tt := range map[string]struct {
		change func(ro *manifest.Rollout)
		want   string
	}{
		"baking":  {func(*manifest.Rollout) {}, ""},
		"paused":  {pausedBy("ana", "INC", now), "prod/paused/2/2026-11-30T12:00:00Z"},
		"waiting": {func(ro *manifest.Rollout) { ro.Phase, ro.Wave = manifest.PhaseAwaitingApproval, 2 }, "prod/approval/2/2026-11-30T12:00:00Z"},
		"back": {func(ro *manifest.Rollout) {
			ro.Phase, ro.Halts = manifest.PhaseRollingBack, []manifest.Stop{{By: "muster", Why: "2 refused", Since: now, Epoch: 2}}
		}, "prod/halted/2/2026-11-30T12:00:00Z prod/rolled_back/2/2026-11-30T12:00:00Z"},
		"halted": {func(ro *manifest.Rollout) {
			ro.Phase, ro.Halts = manifest.PhaseHalted, []manifest.Stop{{By: "muster", Why: "2 refused", Since: now, Epoch: 2}}
		}, "prod/halted/2/2026-11-30T12:00:00Z"},
	} {
		m := manifest.Manifest{}
		underWay(r.world, 2, 1, tt.change)(&m)
		var ids []string
		r.c.mu.Lock()
		for _, n := range r.c.notices("prod", &manifest.View{Manifest: m}, now) {
			ids = append(ids, n.ID)
			if n.Next == "" || n.Why == "" {
				t.Errorf("%s: %+v", name, n)
			}
		}
		r.c.mu.Unlock()
		if got := strings.Join(ids, " "); got != tt.want {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
	v := &manifest.View{Overrides: []manifest.VerifiedOverride{
		{Override: manifest.Override{ID: "inc-1", Author: "ana", Reason: "INC-1", Epoch: 4, Created: now, NotAfter: now.Add(29 * time.Minute)}, First: &manifest.VerifiedStatement{}},
		{Override: manifest.Override{ID: "inc-2", Created: now, NotAfter: now.Add(31 * time.Minute)}, First: &manifest.VerifiedStatement{}},
	}}
	r.c.mu.Lock()
	got := r.c.notices("prod", v, now)
	r.c.mu.Unlock()
	if len(got) != 1 || got[0].Event != api.NoticeOverrideEnding || got[0].ID != "prod/override_ending/inc-1/2026-11-30T12:29:00Z" || got[0].Until == nil {
		t.Errorf("%+v", got)
	}
}

// A collector that runs sends by itself, and ends with nothing left running although a receiver hangs.
func TestNotifyRuns(t *testing.T) {
	to := newReceiver(t, func(int) int { return 200 })
	hangs := make(chan struct{})
	deaf := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		select {
		case <-r.Context().Done():
		case <-hangs:
		}
	}))
	t.Cleanup(deaf.Close)
	t.Cleanup(func() { close(hangs) })
	w := newWorld(t)
	w.cohort("prod", "a", "b", "c")
	w.publish("prod")
	w.publish("prod")
	w.assign("prod", 2, underWay(w, 2, 1, pausedBy("ana", "INC-7", w.now())))
	c, err := New(Config{Poll: time.Hour, Notify: []Notify{{URL: deaf.URL}, {URL: to.URL}}}, Deps{Store: w.store, Keyring: w.keyring, Now: w.now})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	until(t, "the one that answers has it", func() bool { return len(to.have()) == 1 })
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// The URLs of receivers are secrets: what is kept holds none, also not what an earlier version left, and the notice is sent all the same after a restart.
func TestNoticesKeepNoURL(t *testing.T) {
	var ok atomic.Bool
	to := newReceiver(t, func(int) int {
		if ok.Load() {
			return 200
		}
		return 500
	})
	r := steeredRig(t, nil)
	secret := []Notify{{URL: to.URL + "/hook/hunter2-path"}}
	r.restartWith(secret)
	r.assign("prod", 2, underWay(r.world, 2, 1, pausedBy("ana", "INC-7", r.now())))
	r.read()
	r.flush()
	kept := func() (text string) {
		m, err := r.c.db.load(t.Context(), func(hostRecord) error { return nil })
		if err != nil {
			t.Fatal(err)
		}
		for _, data := range m.notices {
			text += string(data)
		}
		return text
	}
	if text := kept(); text == "" || strings.Contains(text, "hunter2") || strings.Contains(text, to.URL) {
		t.Errorf("kept: %s", text)
	}
	// As an earlier version kept it.
	r.c.mu.Lock()
	for id, l := range r.c.outbox.letters {
		old := *l
		old.Open = []string{secret[0].URL}
		r.c.keepLetter(id, &old)
	}
	r.c.mu.Unlock()
	r.flush()
	if !strings.Contains(kept(), "hunter2") {
		t.Fatal("the test keeps no URL")
	}
	r.restartWith(secret)
	r.flush()
	if text := kept(); text == "" || strings.Contains(text, "hunter2") {
		t.Errorf("kept after a restart: %s", text)
	}
	ok.Store(true)
	sending(r)
	until(t, "the notice arrives", func() bool { return len(to.have()) == 1 })
}
