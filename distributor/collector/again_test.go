package collector

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/muster-config/muster/distributor/api"
	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/store"
	"github.com/muster-config/muster/distributor/store/dir"
	"github.com/muster-config/muster/distributor/store/mem"
	"github.com/muster-config/muster/distributor/verdict"
)

// replaceRelease makes the store lose its newest release, and another one of the same number, signed by the same key, come in its place.
func (w *world) replaceRelease(t *testing.T, built ...string) {
	t.Helper()
	if err := w.store.Delete(t.Context(), manifest.KeyRelease(w.epoch)); err != nil {
		t.Fatal(err)
	}
	for name, e := range w.stands {
		if e == w.epoch {
			w.stands[name] = w.epoch - 1
		}
	}
	w.epoch--
	w.note = "written anew"
	w.publish(built...)
	w.note = ""
}

// A release whose number was given out again is never green for hosts that run the lost one; what is true of the hosts stays.
func TestNumberGivenOutAgain(t *testing.T) {
	const other = "prod: the head of cohort prod carries another statement of epoch 2 than release 2; check the store with muster fsck"
	const replaced = "prod: the store holds another release 2 than it did before; check the store with muster fsck"
	openDir := func(t *testing.T) store.Store {
		st, err := dir.Open(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		return st
	}
	openMem := func(*testing.T) store.Store { return mem.New() }
	for name, tt := range map[string]struct {
		open   func(*testing.T) store.Store
		before func(r *rig) // restarts, or reads, or does nothing
		why    string
		logged bool
	}{
		"it runs":                        {openMem, func(*rig) {}, replaced, true},
		"it runs, and reads":             {openDir, func(r *rig) { r.read() }, replaced, true},
		"restart with its database":      {openMem, func(r *rig) { r.flush(); r.restart(); r.read() }, replaced, true},
		"restart with its database, dir": {openDir, func(r *rig) { r.flush(); r.restart(); r.read() }, replaced, true},
		"restart without its database":   {openMem, func(r *rig) { r.dir = filepath.Join(r.dir, "new"); r.restart(); r.read() }, other, false},
		"restart without, dir":           {openDir, func(r *rig) { r.dir = filepath.Join(r.dir, "new"); r.restart(); r.read() }, other, false},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.store = tt.open(t)
			w.cohort("prod", "web-1")
			w.cohort("test", "test-1")
			r := newRig(t, w, nil)
			one := w.publish("prod", "test")
			w.assign("test", one)
			two := w.publish("prod")
			w.assign("prod", two)
			r.read()
			prod, test := r.agent("prod", "web-1").runs(two), r.agent("test", "test-1").runs(one)
			prod.say()
			test.say()
			if g := r.wait(two, api.WaitQuery{}); !g.Green || g.Confirmed != 2 {
				t.Fatalf("before: %+v", g)
			}
			lost, err := w.store.Get(t.Context(), manifest.KeyRelease(two), manifest.MaxReleaseBytes)
			if err != nil {
				t.Fatal(err)
			}
			w.replaceRelease(t, "prod")
			tt.before(r)
			prod.say()
			test.say()
			for range 2 {
				if g := r.wait(two, api.WaitQuery{Cohort: "prod"}); g.Green || !g.Never || g.Confirmed != 1 || g.Why != tt.why {
					t.Errorf("%+v\nwant %s", g, tt.why)
				}
			}
			if g := r.wait(two, api.WaitQuery{}); g.Green || !g.Never {
				t.Errorf("%+v", g)
			}
			r.is("web-1", verdict.Confirmed, "")
			// The first release cannot be green through the lost one either, and stays so where the second never was.
			if g := r.wait(one, api.WaitQuery{Cohort: "prod"}); g.Green || !g.Never {
				t.Errorf("the first release: %+v", g)
			}
			if g := r.wait(one, api.WaitQuery{Cohort: "test"}); !g.Green {
				t.Errorf("the first release elsewhere: %+v", g)
			}
			// A release that holds it says the same.
			three := w.publish("test")
			r.read()
			if g := r.wait(three, api.WaitQuery{Cohort: "prod"}); g.Green || !g.Never || g.Why != tt.why {
				t.Errorf("it holds: %+v", g)
			}
			if n := strings.Count(r.log.String(), "the store holds another release than before"); n > 1 || (n == 1) != tt.logged {
				t.Errorf("it is said %d times:\n%s", n, r.log)
			}
			// Restored from a backup.
			if err := w.store.Delete(t.Context(), manifest.KeyRelease(two)); err != nil {
				t.Fatal(err)
			}
			w.put(manifest.KeyRelease(two), lost.Data)
			r.read()
			if g := r.wait(two, api.WaitQuery{Cohort: "prod"}); g.Green != tt.logged {
				t.Errorf("restored: %+v", g)
			}
			// Built again under a number of its own, all is well for whoever remembers the lost one, too.
			w.stands["prod"] = 0
			four := w.publish("prod")
			w.assign("prod", four)
			r.read()
			prod.runs(four).say()
			if g := r.wait(four, api.WaitQuery{}); !g.Cohorts["prod"].Green {
				t.Errorf("built again: %+v", g)
			}
		})
	}
}

// A statement that stands since long before what is remembered is compared too; where its release is gone, nobody says green.
func TestStatementOfAReleaseThatIsGone(t *testing.T) {
	w := newWorld(t)
	w.cohort("prod", "web-1")
	one := w.publish("prod")
	w.assign("prod", one)
	two := w.publish()
	r := newRig(t, w, nil)
	r.read()
	r.c.mu.Lock()
	r.c.releases = r.c.releases[1:] // as if there were 1000 later ones
	r.c.mu.Unlock()
	r.agent("prod", "web-1").runs(one).say()
	for _, epoch := range []uint64{one, two} {
		if g := r.wait(epoch, api.WaitQuery{}); !g.Green {
			t.Errorf("release %d: %+v", epoch, g)
		}
	}
	if err := w.store.Delete(t.Context(), manifest.KeyRelease(one)); err != nil {
		t.Fatal(err)
	}
	r.restart()
	r.read()
	r.agent("prod", "web-1").runs(one).say()
	if g := r.wait(two, api.WaitQuery{}); g.Green || g.Never || !strings.Contains(g.Why, "release 1, whose statement the head of cohort prod carries, cannot be read") {
		t.Errorf("%+v", g)
	}
}

// A database from before releases were remembered is read on, and remembers them from then on.
func TestDatabaseWithoutReleases(t *testing.T) {
	w := newWorld(t)
	w.cohort("prod", "web-1")
	r := newRig(t, w, nil)
	one := w.publish("prod")
	w.assign("prod", one)
	r.read()
	r.agent("prod", "web-1").runs(one).say()
	r.flush()
	if _, err := r.sqlite().db.ExecContext(t.Context(), "DROP TABLE releases"); err != nil {
		t.Fatal(err)
	}
	r.restart()
	r.read()
	r.is("web-1", verdict.Confirmed, "")
	r.flush()
	w.replaceRelease(t, "prod")
	r.restart()
	r.read()
	if g := r.wait(one, api.WaitQuery{}); g.Green || !g.Never || !strings.Contains(g.Why, "holds another release 1") {
		t.Errorf("%+v", g)
	}
}
