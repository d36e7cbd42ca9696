package agent_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/muster-config/muster/agent"
	"github.com/muster-config/muster/agent/agenttest"
	"github.com/muster-config/muster/agent/install"
	"github.com/muster-config/muster/agent/probe"
	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/report"
	"github.com/muster-config/muster/distributor/store"
)

var anHour = agent.HoldOrder{By: "ana", Why: "INC-311", For: time.Hour}

// hold holds the host by an agent that does not run.
func (r *rig) hold(o agent.HoldOrder) {
	r.t.Helper()
	if _, err := r.agent().Hold(o); err != nil {
		r.t.Fatal(err)
	}
}

// A held host keeps its files, also those that were changed by hand; nothing is reloaded. When it is over, all that waited comes at once.
func TestHold(t *testing.T) {
	r := newRig(t, "checkout")
	c := newCollector(t)
	r.reporter = c
	r.world.Release(files{"checkout/checkout.yaml": "1"})
	r.world.Release(files{"checkout/checkout.yaml": "2"})
	r.world.Assign(1)
	r.confirmed(1)
	r.hold(anHour)
	for range 2 { // each is a start of the agent
		res, err := r.once()
		if err != nil || !res.Confirmed || res.Held == nil || res.Held.By != "ana" || res.Held.Why != "INC-311" || res.Held.Until.Sub(res.Held.Since) < 59*time.Minute {
			t.Fatalf("%+v, %v", res, err)
		}
	}
	reloads := len(r.procs["checkout"].Reloads())
	r.world.Assign(2)
	if err := os.WriteFile(filepath.Join(r.root, "current/checkout/checkout.yaml"), []byte("edited"), 0o644); err != nil {
		t.Fatal(err)
	}
	res, err := r.once()
	if err != nil || res.Confirmed || res.Installed || res.Running != 1 || res.Desired != 2 || res.Reason != "held by ana until "+res.Held.Until.Format(time.RFC3339)+": INC-311" {
		t.Errorf("%+v, %v", res, err)
	}
	if got := r.read("checkout/checkout.yaml"); got != "edited" || len(r.procs["checkout"].Reloads()) != reloads {
		t.Errorf("it was changed: %q, %d reloads", got, len(r.procs["checkout"].Reloads())-reloads)
	}
	rep := c.reports()[len(c.reports())-1]
	if rep.Held == nil || rep.Code != agent.CodeHeld || rep.Phase != report.PhaseIdle || rep.Drifted != 1 || rep.Desired != 2 || rep.Running != 1 {
		t.Errorf("%+v", rep)
	}
	was, err := r.agent().Unhold("bo", "done")
	if err != nil || was.By != "ana" {
		t.Errorf("%+v, %v", was, err)
	}
	if _, err := r.agent().Unhold("bo", "done"); !errors.Is(err, agent.ErrNoHold) {
		t.Errorf("twice: %v", err)
	}
	r.confirmed(2)
}

// A rollback, an override and its end wait as well, and so does the host's first release.
func TestHoldAndOrders(t *testing.T) {
	r := newRig(t, "checkout")
	r.world.Release(files{"checkout/checkout.yaml": "1"})
	r.world.Assign(1)
	r.hold(anHour)
	if res, err := r.once(); err != nil || res.Running != 0 || res.Held == nil {
		t.Fatalf("first release: %+v, %v", res, err)
	}
	if _, err := r.agent().Unhold("ana", ""); err != nil {
		t.Fatal(err)
	}
	r.confirmed(1)
	r.hold(anHour)
	r.world.Override(1, files{"checkout/checkout.yaml": "emergency"}, time.Now().Add(time.Hour))
	if res, err := r.once(); err != nil || res.Override != "" || res.Running != 1 {
		t.Errorf("override: %+v, %v", res, err)
	}
	r.sound(1)
}

// A hold that comes while a release is being checked is in time: nothing is swapped.
func TestHoldWhileChecking(t *testing.T) {
	r := newRig(t, "checkout")
	c := newCollector(t)
	r.reporter = c
	r.world.Release(files{"checkout/checkout.yaml": "1"})
	r.world.Release(files{"checkout/checkout.yaml": "2"})
	r.world.Assign(1)
	r.confirmed(1)
	dir := t.TempDir()
	r.edit("checkout", func(s *agent.ServiceConfig) {
		s.Check = []string{"sh", "-c", `touch "$0/begun"; while ! [ -e "$0/go" ]; do sleep 0.01; done`, dir}
	})
	r.world.Assign(2)
	a := r.agent()
	stop := r.running(a)
	await(t, "the check", func() bool { _, err := os.Stat(filepath.Join(dir, "begun")); return err == nil })
	if _, err := a.Hold(anHour); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "go"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	c.wait("that says held", func(r report.Report) bool { return r.Held != nil && r.Code == agent.CodeHeld && r.Running == 1 })
	if got := r.read("checkout/checkout.yaml"); got != "1" {
		t.Errorf("swapped all the same: %q", got)
	}
	if _, err := a.Unhold("ana", ""); err != nil {
		t.Fatal(err)
	}
	c.wait("confirmed at 2", confirmedAt(2))
	stop()
}

// A document that cannot be read holds the host, and says so: a hold is not forgotten silently.
func TestHoldUnreadable(t *testing.T) {
	r := newRig(t, "checkout")
	r.world.Release(files{"checkout/checkout.yaml": "1"})
	r.world.Release(files{"checkout/checkout.yaml": "2"})
	r.world.Assign(1)
	r.confirmed(1)
	path := filepath.Join(r.root, "hold.json")
	if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	r.world.Assign(2)
	res, err := r.once()
	if err != nil || res.Running != 1 || res.Held == nil || !strings.Contains(res.Held.Why, "hold.json is broken") || !strings.Contains(res.Held.Why, "remove it to go on without a hold") {
		t.Errorf("%+v, %v", res, err)
	}
	if _, err := r.agent().Unhold("ana", ""); err == nil || !strings.Contains(err.Error(), "hold.json is broken") {
		t.Errorf("unhold: %v", err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	r.confirmed(2)
}

func TestHoldRefused(t *testing.T) {
	r := newRig(t, "checkout")
	a := r.agent()
	for says, o := range map[string]agent.HoldOrder{
		"the reason is missing":         {By: "ana", For: time.Hour},
		"the end is missing":            {By: "ana", Why: "x"},
		"it has two ends":               {Why: "x", For: time.Hour, Until: time.Now().Add(time.Hour)},
		"a second at least":             {Why: "x", For: time.Millisecond},
		"is past":                       {Why: "x", Until: time.Now().Add(-time.Second)},
		"longer than 90 days":           {Why: "x", For: agent.MaxHold + time.Hour},
		"a second at least ":            {Why: "x", For: -time.Hour},
		"reason is longer than 500":     {Why: strings.Repeat("x", 501), For: time.Hour},
		"who asks is longer than 500 b": {By: strings.Repeat("x", 501), Why: "x", For: time.Hour},
	} {
		if _, err := a.Hold(o); !errors.Is(err, agent.ErrHoldRefused) || !strings.Contains(err.Error(), strings.TrimSpace(says)) {
			t.Errorf("%s: %v", says, err)
		}
	}
	if _, err := os.Stat(filepath.Join(r.root, "hold.json")); !os.IsNotExist(err) {
		t.Errorf("what is refused leaves something behind: %v", err)
	}
}

// Without an agent that runs, status tells a hold from the disk, until it is over.
func TestHoldSavedStatus(t *testing.T) {
	r := newRig(t, "checkout")
	r.world.Release(files{"checkout/checkout.yaml": "1"})
	r.world.Assign(1)
	r.confirmed(1)
	r.hold(anHour)
	cfg := r.cfg.WithDefaults()
	for after, held := range map[time.Duration]bool{0: true, 2 * time.Hour: false} {
		st, err := agent.SavedStatus(cfg, install.Documents(r.root), nil, "", nil, "", time.Now().Add(after), probe.New().Now())
		if err != nil || (st.Held != nil) != held || st.Seen != "1-1-0" {
			t.Errorf("after %s: %+v, %v", after, st, err)
		}
	}
	head, err := agent.SavedHead(cfg, install.Documents(r.root), time.Now())
	if _, derr := manifest.DecodeHead(head); err != nil || derr != nil {
		t.Errorf("%v, %v", err, derr)
	}
}

// by applies what a store brings, by an agent that does not run.
func (r *rig) by(from agent.Carrier, o agent.HoldOrder) (agent.OnceResult, error) {
	r.t.Helper()
	return r.agent().ApplyOnce(r.t.Context(), from, o)
}

// other is a second store with all that the world's has now.
func (r *rig) other() *faulty {
	return &faulty{Carrier: r.carriers[0], name: "by hand"}
}

// TestApplyFrom: what is brought by hand comes with all checks, and stays, whatever the sources say meanwhile.
func TestApplyFrom(t *testing.T) {
	r := newRig(t, "checkout")
	r.world.Release(files{"checkout/checkout.yaml": "1"})
	r.world.Release(files{"checkout/checkout.yaml": "2"})
	r.world.Release(files{"checkout/checkout.yaml": "3"})
	r.world.Assign(1)
	r.confirmed(1)
	brought := r.world.Head(2)
	from := r.other()
	from.head = func() ([]byte, error) { return brought, nil }
	if res, err := r.by(from, agent.HoldOrder{}); !errors.Is(err, agent.ErrNeedsHold) || res.Host != "" {
		t.Errorf("without a hold: %+v, %v", res, err)
	}
	r.sound(1)
	res, err := r.by(from, anHour)
	if err != nil || !res.Confirmed || res.Running != 2 || res.Held == nil || res.Held.Why != "INC-311" {
		t.Fatalf("%+v, %v", res, err)
	}
	if _, err := r.by(from, agent.HoldOrder{}); !errors.Is(err, agent.ErrHeld) {
		t.Errorf("held already: %v", err)
	}
	// A newer order of the fleet is known, and does not move it; what was brought is put back where it is changed by hand.
	if err := os.WriteFile(filepath.Join(r.root, "current/checkout/checkout.yaml"), []byte("edited"), 0o644); err != nil {
		t.Fatal(err)
	}
	if res, err := r.once(); err != nil || res.Running != 2 || !res.Confirmed || r.read("checkout/checkout.yaml") != "2" {
		t.Errorf("%+v, %v", res, err)
	}
	r.world.Assign(3)
	if res, err := r.once(); err != nil || res.Running != 2 || res.Desired != 3 || res.Held == nil {
		t.Errorf("%+v, %v", res, err)
	}
	// What comes by hand next takes its place, and its hold.
	next := r.world.Head(3)
	from.head = func() ([]byte, error) { return next, nil }
	res, err = r.by(from, agent.HoldOrder{By: "bo", Why: "INC-312", For: time.Hour})
	if err != nil || res.Running != 3 || res.Held == nil || res.Held.Why != "INC-312" {
		t.Fatalf("%+v, %v", res, err)
	}
	if _, err := r.agent().Unhold("bo", ""); err != nil {
		t.Fatal(err)
	}
	// What a source says as well needs no hold.
	same := r.world.Assign(1)
	from.head = func() ([]byte, error) { return same, nil }
	res, err = r.by(from, agent.HoldOrder{})
	if err != nil || !res.Confirmed || res.Running != 1 || res.Held != nil {
		t.Errorf("%+v, %v", res, err)
	}
}

// What is not to be believed, or does not work here, leaves the host as it was, and holds nothing.
func TestApplyFromRefused(t *testing.T) {
	r := newRig(t, "checkout")
	r.world.Release(files{"checkout/checkout.yaml": "1"})
	r.world.Release(files{"checkout/checkout.yaml": "2"})
	old := r.world.Head(1)
	r.world.Assign(1)
	r.confirmed(1)
	change := func(f func(*manifest.Manifest)) []byte { return r.world.Head(2, f) }
	for name, tt := range map[string]struct {
		head []byte
		is   error
	}{
		"an older order": {old, manifest.ErrOrder},
		"another store":  {change(func(m *manifest.Manifest) { m.Store = strings.Repeat("00", 16) }), manifest.ErrForeign},
		"another repo":   {change(func(m *manifest.Manifest) { m.Repo = "acme/other" }), manifest.ErrForeign},
		"another cohort": {change(func(m *manifest.Manifest) { m.Cohort = "staging" }), manifest.ErrForeign},
		"unsigned":       {[]byte(strings.Replace(string(r.world.Head(2)), `"keyid":"`, `"keyid":"0`, 1)), manifest.ErrSignature},
		"junk":           {[]byte("{}"), manifest.ErrMalformed},
	} {
		from := r.other()
		from.head = func() ([]byte, error) { return tt.head, nil }
		res, err := r.by(from, anHour)
		if !errors.Is(err, tt.is) || len(res.Sources) != 1 || !res.Sources[0].Refused || res.Held != nil || res.Running != 1 {
			t.Errorf("%s: %+v, %v", name, res, err)
		}
		r.sound(1)
	}
	// Objects with other bytes, or none.
	for name, files := range map[string]func(*faulty){
		"another bundle": func(f *faulty) { f.object = junk },
		"no bundle":      func(f *faulty) { f.object = nothing },
	} {
		from := r.other()
		head := r.world.Head(2)
		from.head = func() ([]byte, error) { return head, nil }
		files(from)
		own := r.carriers
		r.carriers = []agent.Carrier{cutOff(from)}
		res, err := r.by(from, anHour)
		if err == nil || res.Held != nil || res.Running != 1 || res.Installed {
			t.Errorf("%s: %+v, %v", name, res, err)
		}
		r.carriers = own
		r.sound(1)
	}
	// A check of the host's own that says no: an earlier hold is in force again.
	r.hold(agent.HoldOrder{By: "bo", Why: "mine", For: time.Hour})
	r.edit("checkout", func(s *agent.ServiceConfig) { s.Check = []string{"false"} })
	from := r.other()
	head := r.world.Head(2)
	from.head = func() ([]byte, error) { return head, nil }
	res, err := r.by(from, anHour)
	if err == nil || res.Code != agent.CodeCheck || res.Running != 1 {
		t.Errorf("check: %+v, %v", res, err)
	}
	res, err = r.once()
	if err != nil || res.Held == nil || res.Held.By != "bo" || res.Running != 1 {
		t.Errorf("after it: %+v, %v", res, err)
	}
	r.cfg.Mode = agent.ModeObserve
	if _, err := r.by(from, anHour); err == nil || !strings.Contains(err.Error(), "mode: observe") {
		t.Errorf("observe: %v", err)
	}
}

// An override that comes by hand ends with its hold, and the host goes back to what it had, without any source.
func TestApplyFromOverride(t *testing.T) {
	r := newRig(t, "checkout")
	c := newClocks(time.Now())
	r.prober = c
	r.world.Release(files{"checkout/checkout.yaml": "1"})
	r.world.Assign(1)
	r.confirmed(1)
	before, err := r.carriers[0].Head(t.Context(), agenttest.Cohort)
	if err != nil {
		t.Fatal(err)
	}
	brought := r.world.Override(1, files{"checkout/checkout.yaml": "emergency"}, c.now().Add(time.Hour))
	r.world.Put(manifest.KeyHead(agenttest.Cohort), before) // as the fleet has it
	from := r.other()
	from.head = func() ([]byte, error) { return brought, nil }
	start := func() *agent.Agent {
		a := r.agent()
		agent.SetNow(a, c.now)
		return a
	}
	res, err := start().ApplyOnce(t.Context(), from, agent.HoldOrder{By: "ana", Why: "INC-311", For: 9 * time.Hour})
	if err != nil || !res.Confirmed || res.Override != "inc-311" || res.Held == nil || res.Held.Until.After(c.now().Add(time.Hour)) {
		t.Fatalf("%+v, %v", res, err)
	}
	r.carriers = []agent.Carrier{cutOff(r.carriers[0])}
	c.pass(59 * time.Minute)
	if res, _ := start().Once(t.Context(), false); res.Override != "inc-311" || res.Held == nil {
		t.Errorf("in its time: %+v", res)
	}
	c.pass(2 * time.Minute)
	if res, _ := start().Once(t.Context(), false); res.Override != "" || res.Held != nil || res.Running != 1 || !res.Confirmed {
		t.Errorf("after it: %+v", res)
	}
}

// Through an agent that runs: by its own goroutine, and as soon as it can.
func TestApplyWhileRunning(t *testing.T) {
	r := newRig(t, "checkout")
	c := newCollector(t)
	r.reporter = c
	r.cfg.Poll = time.Minute
	r.world.Release(files{"checkout/checkout.yaml": "1"})
	r.world.Release(files{"checkout/checkout.yaml": "2"})
	r.world.Assign(1)
	a := r.agent()
	stop := r.running(a)
	c.wait("confirmed at 1", confirmedAt(1))
	brought := r.world.Head(2)
	from := r.other()
	from.head = func() ([]byte, error) { return brought, nil }
	res, err := a.Apply(t.Context(), from, anHour)
	if err != nil || !res.Confirmed || res.Running != 2 || res.Held == nil {
		t.Fatalf("%+v, %v", res, err)
	}
	rep := c.wait("held at 2", func(r report.Report) bool { return r.Running == 2 && r.Confirmed && r.Held != nil })
	if rep.Held.Why != "INC-311" {
		t.Errorf("%+v", rep.Held)
	}
	stop()
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := a.Apply(gone, from, anHour); !errors.Is(err, agent.ErrNotRun) {
		t.Errorf("after the end: %v", err)
	}
}

// junk gives other bytes than were signed, nothing none.
func junk(string) (io.ReadCloser, int64, error) {
	return io.NopCloser(strings.NewReader("junk")), -1, nil
}

func nothing(key string) (io.ReadCloser, int64, error) {
	return nil, 0, fmt.Errorf("%s: %w", key, store.ErrNotFound)
}

// What a file brings goes with the hold that it came with, although this host has accepted it: the newest head decides, with the sources there and without them, after each start of the agent. The
// same file may come again, and what a source says as well stays, whatever becomes of the hold and of the head: whoever owns the bucket cannot strip it.
func TestApplyFromOverrideUnhold(t *testing.T) {
	r := newRig(t, "checkout")
	r.world.Release(files{"checkout/checkout.yaml": "1"})
	plain := r.world.Assign(1)
	r.confirmed(1)
	r.world.Apart = true
	brought := r.world.Override(1, files{"checkout/checkout.yaml": "emergency"}, time.Now().Add(time.Hour), func(m *manifest.Manifest) { m.Serial = 2 })
	r.world.Apart = false
	r.world.Put(manifest.KeyHead(agenttest.Cohort), plain)
	from := r.other()
	from.head = func() ([]byte, error) { return brought, nil }
	own := r.carriers
	for name, there := range map[string]bool{"sources": true, "no source": false} {
		r.carriers = own
		if !there {
			r.carriers = []agent.Carrier{cutOff(own[0])}
		}
		// An agent that starts on a host that a file was applied to, whose sources say another head of another order or none.
		current := r.world.Bare(brought, 0)
		r.world.Put(manifest.KeyHead(agenttest.Cohort), current)
		res, err := r.by(from, anHour)
		if err != nil || !res.Confirmed || res.Override != "inc-311" {
			t.Fatalf("%s: %+v, %v", name, res, err)
		}
		if res, _ := r.once(); res.Override != "inc-311" || !res.Confirmed || r.read("checkout/checkout.yaml") != "emergency" {
			t.Errorf("%s, held: %+v", name, res)
		}
		if _, err := r.agent().Unhold("ana", ""); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if res, _ := r.once(); res.Override != "" || res.Running != 1 || !res.Confirmed || r.read("checkout/checkout.yaml") != "1" {
				t.Errorf("%s, no longer held: %+v", name, res)
			}
		}
		// Another hold does not bring it back.
		r.hold(anHour)
		if res, _ := r.once(); res.Override != "" || res.Running != 1 || res.Desired != 1 {
			t.Errorf("%s, held anew: %+v", name, res)
		}
	}
	r.carriers = own
	if res, err := r.by(from, anHour); err != nil || res.Override != "inc-311" {
		t.Fatalf("%+v, %v", res, err)
	}
	r.world.Put(manifest.KeyHead(agenttest.Cohort), brought)
	if res, _ := r.once(); res.Override != "inc-311" {
		t.Errorf("said: %+v", res)
	}
	if _, err := r.agent().Unhold("ana", ""); err != nil {
		t.Fatal(err)
	}
	r.world.Put(manifest.KeyHead(agenttest.Cohort), r.world.Bare(brought, 7))
	if res, _ := r.once(); res.Override != "inc-311" || !res.Confirmed || r.read("checkout/checkout.yaml") != "emergency" {
		t.Errorf("stripped: %+v", res)
	}
}

// What fails to work on the host leaves no override behind, and takes no hold away that somebody set meanwhile.
func TestApplyFromOverrideFails(t *testing.T) {
	r := newRig(t, "checkout")
	r.world.Release(files{"checkout/checkout.yaml": "1"})
	r.world.Assign(1)
	r.confirmed(1)
	r.world.Apart = true
	brought := r.world.Override(1, files{"checkout/checkout.yaml": "emergency"}, time.Now().Add(time.Hour))
	r.world.Apart = false
	r.world.Put(manifest.KeyHead(agenttest.Cohort), r.world.Bare(brought, 0))
	from := r.other()
	from.head = func() ([]byte, error) { return brought, nil }
	services := r.cfg.Services
	r.edit("checkout", func(s *agent.ServiceConfig) { s.Check = []string{"false"} })
	if res, err := r.by(from, anHour); err == nil || res.Held != nil || res.Override != "" {
		t.Errorf("%+v, %v", res, err)
	}
	r.cfg.Services = services
	if res, err := r.once(); err != nil || res.Override != "" || res.Desired != 1 || !res.Confirmed {
		t.Errorf("%+v, %v", res, err)
	}
}

// A hold that an agent took is said at once, also by one that leaves: nothing but the disk tells of it then.
func TestHoldWhileLeaving(t *testing.T) {
	r := newRig(t, "checkout")
	c := newCollector(t)
	r.reporter = c
	r.world.Release(files{"checkout/checkout.yaml": "1"})
	r.world.Assign(1)
	a := r.agent()
	stop := r.running(a)
	c.wait("confirmed at 1", confirmedAt(1))
	stop()
	if _, err := a.Hold(anHour); err != nil {
		t.Fatal(err)
	}
	if st := a.Status(); st.Held == nil || st.Held.Why != "INC-311" {
		t.Errorf("the one that leaves: %+v", st.Held)
	}
	st, err := agent.SavedStatus(r.cfg.WithDefaults(), install.Documents(r.root), nil, "", nil, "", time.Now(), probe.New().Now())
	if err != nil || st.Held == nil || st.Held.Why != "INC-311" {
		t.Errorf("the disk: %+v, %v", st, err)
	}
}
