package collector

import (
	"bytes"
	"errors"
	"io/fs"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/muster-config/muster/distributor/api"
	"github.com/muster-config/muster/distributor/verdict"
)

// pair are two collectors over one database.
func pair(t *testing.T, w *world) (one, two *rig) {
	raw := pgDatabase(t)
	open := func() *rig {
		c, err := New(Config{Poll: time.Hour, Database: raw}, Deps{Store: w.store, Keyring: w.keyring, Now: w.now})
		if err != nil {
			t.Fatal(err)
		}
		r := &rig{world: w, c: c, log: &logged{}, server: httptest.NewServer(c.Handler())}
		t.Cleanup(func() { r.server.Close(); c.Close() })
		r.client = r.as("")
		return r
	}
	return open(), open()
}

// Several collectors before one database: a host may speak to any of them, and each knows what it said to another. Order holds across them.
func TestCollectorsShareADatabase(t *testing.T) {
	w := newWorld(t)
	w.cohort("prod", "web-1", "web-2")
	one, two := pair(t, w)
	epoch := w.publish("prod")
	w.assign("prod", epoch)
	one.read()
	two.read()
	both := func() {
		t.Helper()
		for _, r := range []*rig{one, two, one, two} {
			r.flush()
			if err := r.c.sync(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
	a, b := one.agent("prod", "web-1").runs(epoch), two.agent("prod", "web-2").runs(epoch)
	old := a.say()
	a.say()
	b.say()
	both()
	for _, r := range []*rig{one, two} {
		if g := r.wait(epoch, api.WaitQuery{}); !g.Green || g.Confirmed != 2 {
			t.Errorf("%+v", g)
		}
	}
	// The next heartbeat goes to the other one: same secret, known boot, rising counter.
	a.rig = two
	if res, err := two.client.Report(t.Context(), a.heartbeat()); err != nil || !res.Accepted {
		t.Errorf("%+v, %v", res, err)
	}
	// A replayed report is late there too.
	if res, err := two.client.Report(t.Context(), old); err != nil || res.Accepted || res.Counter == 0 {
		t.Errorf("replayed: %+v, %v", res, err)
	}
	both()
	// A word to one about a host reaches the other; so does taking it back.
	change := func(r *rig, what string) {
		t.Helper()
		if _, err := r.client.ChangeHosts(t.Context(), what, api.HostsChange{Hosts: []string{"web-2"}, By: "ana"}); err != nil {
			t.Fatal(err)
		}
		both()
	}
	change(one, api.HostsRetire)
	two.is("web-2", verdict.Retired, "retired by ana")
	change(two, api.HostsUnretire)
	one.is("web-2", verdict.Confirmed, "")
	// Silence counts for all of them: one that heard it is enough.
	w.advance(170 * time.Second)
	b.rig = one
	if res, err := one.client.Report(t.Context(), b.signed()); err != nil || !res.Accepted {
		t.Fatalf("%+v, %v", res, err)
	}
	one.read()
	two.read()
	both()
	w.advance(20 * time.Second)
	two.is("web-2", verdict.Confirmed, "")
	two.is("web-1", verdict.Silent, "")
	// Two machines under one name, one at each collector, are seen by both.
	clone := two.agent("prod", "web-2").runs(epoch)
	clone.key, clone.report.Key, clone.report.Boot = b.key, b.report.Key, "boot-clone"
	clone.say()
	both()
	b.signed()
	if _, err := one.client.Report(t.Context(), b.signed()); err != nil {
		t.Fatal(err)
	}
	both()
	for _, r := range []*rig{one, two} {
		r.is("web-2", verdict.Duplicate, "2 agents speak as web-2")
	}
	if n, err := Forget(t.Context(), one.c.cfg, "web-2"); n != 1 || err != nil {
		t.Errorf("forget: %d, %v", n, err)
	}
	if _, err := Forget(t.Context(), Config{Database: "sqlite:///nowhere/at/all.db"}, "x"); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "database") {
		t.Errorf("%v", err)
	}
}

// A key that a person accepted at one collector is the host's own at every other, at once and for good: what the former key said, or says, does not bring that back.
func TestAcceptedKeyEverywhere(t *testing.T) {
	w := newWorld(t)
	w.cohort("prod", "web-1")
	one, two := pair(t, w)
	epoch := w.publish("prod")
	w.assign("prod", epoch)
	one.read()
	two.read()
	sync := func(list ...*rig) {
		t.Helper()
		for _, r := range list {
			r.flush()
			if err := r.c.sync(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
	tell := func(r *rig, a *agent, want bool) {
		t.Helper()
		res, err := r.c.Report(t.Context(), a.signed())
		if err != nil || res.Accepted != want {
			t.Fatalf("%+v, %v; want accepted %t", res, err, want)
		}
	}
	old, anew := one.agent("prod", "web-1").runs(epoch), one.agent("prod", "web-1").runs(epoch)
	anew.report.Boot = "boot-anew"
	tell(one, old, true)
	sync(one, two, one, two)
	// What was said to one later than what the other wrote again stands.
	old.report.Agent = "0.2.0"
	tell(one, old, true)
	tell(two, anew, false)
	two.flush()
	if err := one.c.sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	if h := one.c.cohorts["prod"].hosts["web-1"]; h.boots[h.current].Counter != old.counter || h.report.Agent != "0.2.0" || h.foreignKey == nil {
		t.Errorf("counter %d, want %d; agent %s; %x", h.boots[h.current].Counter, old.counter, h.report.Agent, h.foreignKey)
	}
	one.is("web-1", verdict.Duplicate, "another identity key")
	// The row of the former key is written anew just before the word is given.
	tell(two, anew, false)
	two.flush()
	if _, err := one.client.ChangeHosts(t.Context(), api.HostsAccept, api.HostsChange{Hosts: []string{"web-1"}, By: "ana"}); err != nil {
		t.Fatal(err)
	}
	if err := one.c.sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	if h := one.c.cohorts["prod"].hosts["web-1"]; !bytes.Equal(h.key, anew.key.Public()) || h.report != nil {
		t.Errorf("it is undone: %+v", h)
	}
	sync(one, two)
	tell(two, old, false)
	tell(two, anew, true)
	sync(two, one)
	tell(one, old, false)
	tell(one, anew, true)
	w.advance(time.Hour)
	one.read()
	two.read()
	tell(two, anew, true)
	sync(two, one)
	for _, r := range []*rig{one, two} {
		r.is("web-1", verdict.Confirmed, "")
	}
}
