package collector

import (
	"context"
	"errors"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/muster-config/muster/distributor/api"
	"github.com/muster-config/muster/distributor/keys"
	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/report"
	"github.com/muster-config/muster/distributor/store"
	"github.com/muster-config/muster/distributor/verdict"
)

// nextKeyring is keyring 2, whose release key is another one.
func (w *world) nextKeyring(release *keys.Key) []byte {
	k := keys.NewKeyring(repo, start, rootKey.Public(), release.Public(), rolloutKey.Public(), keys.FromSeed(4).Public())
	k.Version = 2
	return w.encode(w.seal(manifest.KindKeyring, k, rootKey))
}

// failing is a store that fails to give some keys.
type failing struct {
	store.Store
	keys map[string]error
}

func (f *failing) Get(ctx context.Context, key string, limit int64) (store.Object, error) {
	if err := f.keys[key]; err != nil {
		return store.Object{}, err
	}
	return f.Store.Get(ctx, key, limit)
}

// A release that a new key signed is taken, though its keyring could not be read, or was not there yet, when the release was seen first.
func TestReleaseOfANewKey(t *testing.T) {
	for name, late := range map[string]func(t *testing.T, r *rig, f *failing, keyring []byte){
		"keyring cannot be read": func(t *testing.T, r *rig, f *failing, keyring []byte) {
			r.put(manifest.KeyKeyring(2), keyring)
			f.keys[manifest.KeyKeyring(2)] = store.ErrUnreachable
			if err := r.c.read(t.Context()); !errors.Is(err, store.ErrUnreachable) {
				t.Errorf("%v", err)
			}
			if strings.Contains(r.log.String(), "release is skipped") {
				t.Errorf("without the newest keyring it says what is junk:\n%s", r.log)
			}
			delete(f.keys, manifest.KeyKeyring(2))
		},
		"keyring comes late": func(t *testing.T, r *rig, _ *failing, keyring []byte) {
			r.read()
			r.put(manifest.KeyKeyring(2), keyring)
		},
		"release comes late": func(t *testing.T, r *rig, f *failing, keyring []byte) {
			r.put(manifest.KeyKeyring(2), keyring)
			f.keys[manifest.KeyRelease(1)] = store.ErrNotFound
			if err := r.c.read(t.Context()); !errors.Is(err, store.ErrNotFound) {
				t.Errorf("%v", err)
			}
			delete(f.keys, manifest.KeyRelease(1))
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			f := &failing{Store: w.store, keys: map[string]error{}}
			w.store = f
			w.cohort("prod", "web-1")
			r := newRig(t, w, nil)
			before := releaseKey
			releaseKey = keys.FromSeed(22)
			t.Cleanup(func() { releaseKey = before })
			w.publish("prod")
			late(t, r, f, w.nextKeyring(releaseKey))
			r.read()
			if rels, err := r.client.Releases(t.Context()); err != nil || len(rels) != 1 {
				t.Errorf("%+v, %v\n%s", rels, err, r.log)
			}
		})
	}
}

// What a release key signed and this version cannot read hides no release and is no junk; what a retired key signs is.
func TestReleaseOfALaterFormat(t *testing.T) {
	w := newWorld(t)
	w.cohort("prod", "web-1")
	r := newRig(t, w, nil)
	w.publish("prod")
	r.read()
	w.put(manifest.KeyRelease(2), w.encode(w.seal(manifest.KindRelease, map[string]any{"v": 2, "news": true}, strangerKey)))
	r.read() // anybody may have put that
	w.put(manifest.KeyRelease(3), w.encode(w.seal(manifest.KindRelease, map[string]any{"v": 2, "news": true}, releaseKey)))
	for range 2 {
		if err := r.c.read(t.Context()); err == nil || !strings.Contains(err.Error(), manifest.KeyRelease(3)+" is signed by a release key, but cannot be read") || !strings.Contains(err.Error(), "upgrade") {
			t.Errorf("%v", err)
		}
	}
	if n := strings.Count(r.log.String(), "release is skipped"); n != 1 || len(r.c.junk) != 1 {
		t.Errorf("%d releases are junk:\n%s", len(r.c.junk), r.log)
	}
}

// Two keyrings of one version are not for the collector to choose from.
func TestAnotherKeyringOfTheSameVersion(t *testing.T) {
	w := newWorld(t)
	r := newRig(t, w, nil)
	r.c.mu.Lock()
	r.c.dirty.trust = true
	r.c.mu.Unlock()
	r.flush()
	r.server.Close()
	r.c.Close()
	k := keys.NewKeyring(repo, start, rootKey.Public(), strangerKey.Public(), rolloutKey.Public(), keys.FromSeed(4).Public())
	cfg := Config{Poll: time.Hour, Keyring: "/etc/muster/keyring.json", Database: "sqlite://" + filepath.Join(r.dir, "state.db")}
	_, err := New(cfg, Deps{Store: w.store, Keyring: w.encode(w.seal(manifest.KindKeyring, k, rootKey)), Now: w.now})
	if err == nil || !strings.Contains(err.Error(), filepath.Join(r.dir, "state.db")) || !strings.Contains(err.Error(), "another keyring of version 1 than /etc/muster/keyring.json holds") {
		t.Errorf("%v", err)
	}
	c, err := New(cfg, Deps{Store: w.store, Keyring: w.keyring, Now: w.now})
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
}

// A collector that was away when a release silenced a host does not take the silence for one from before.
func TestSilencedWhileTheCollectorWasAway(t *testing.T) {
	w := newWorld(t)
	w.cohort("prod", "web-1", "web-2", "web-3")
	r := newRig(t, w, nil)
	one := w.publish("prod")
	w.assign("prod", one)
	r.read()
	for _, name := range []string{"web-1", "web-2", "web-3"} {
		r.agent("prod", name).runs(one).say()
	}
	w.advance(time.Minute)
	two := w.publish("prod")
	w.assign("prod", two)
	w.advance(10 * time.Minute) // it reads nothing, and hears nothing
	r.read()
	r.is("web-2", verdict.Silent, "last heard 11m0s ago")
	if g := r.wait(two, api.WaitQuery{}); g.Green || g.Owed != 0 || len(g.Waiting) != 3 {
		t.Errorf("%+v", g)
	}
}

// A host whose agent said that it stops counts no longer, at once.
func TestLeavingHost(t *testing.T) {
	w := newWorld(t)
	w.cohort("prod", "web-1", "web-2")
	r := newRig(t, w, nil)
	one := w.publish("prod")
	w.assign("prod", one)
	r.read()
	a := r.agent("prod", "web-1").runs(one)
	a.say()
	r.agent("prod", "web-2").runs(one).say()
	a.report.Phase = report.PhaseLeaving
	a.say()
	r.is("web-1", verdict.Silent, "its agent said that it stops")
	if g := r.wait(one, api.WaitQuery{}); g.Green || g.Confirmed != 1 || g.Owed != 0 {
		t.Errorf("%+v", g)
	}
}

// Nobody can say that all hosts of a cohort are there which are chosen by labels alone.
func TestHostsChosenByMatch(t *testing.T) {
	w := newWorld(t)
	w.cohort("prod")
	p := w.policy.Cohorts["prod"]
	p.Hosts = manifest.HostsPolicy{Match: map[string][]string{"dc": {"x"}}}
	w.policy.Cohorts["prod"] = p
	r := newRig(t, w, nil)
	one := w.publish("prod")
	w.assign("prod", one)
	r.read()
	a := r.agent("prod", "web-1").runs(one)
	a.say()
	r.is("web-1", verdict.Unexpected, "its labels are not those of hosts.match")
	a.report.Labels = map[string]string{"dc": "x"}
	a.say()
	r.is("web-1", verdict.Confirmed, "")
	if g := r.wait(one, api.WaitQuery{}); g.Green || !g.Never || !strings.Contains(g.Why, "nobody can know of a host that never reported; add hosts.expect, or an inventory") {
		t.Errorf("%+v", g)
	}
	p.Hosts.Expect = &manifest.Expect{Min: 1, Max: 1}
	w.policy.Cohorts["prod"] = p
	two := w.publish()
	r.read()
	if g := r.wait(two, api.WaitQuery{}); !g.Green {
		t.Errorf("counted by number: %+v", g)
	}
}

// Only one of the two kinds of "not there" may pass, and the answer tells which it is.
func TestWaitForWhatIsNotThere(t *testing.T) {
	w := newWorld(t)
	w.cohort("prod", "web-1")
	r := newRig(t, w, nil)
	one := w.publish("prod")
	r.read()
	_, err := r.client.Wait(t.Context(), one, api.WaitQuery{Cohort: "nowhere"})
	if !errors.Is(err, api.ErrNoCohort) || errors.Is(err, api.ErrNotFound) || !strings.Contains(err.Error(), `release 1 has no cohort "nowhere"`) {
		t.Errorf("%v", err)
	}
	if _, err := r.client.Wait(t.Context(), one+1, api.WaitQuery{Cohort: "nowhere"}); !errors.Is(err, api.ErrNotFound) || errors.Is(err, api.ErrNoCohort) {
		t.Errorf("%v", err)
	}
	if got := get(t, r.server.URL+api.PathWait+"1?cohort=nowhere"); !strings.Contains(got, `"reason":"unknown cohort"`) {
		t.Error(got)
	}
}

// A host that was installed anew counts again after the collector was told to forget it, and another one is still pinned.
func TestForget(t *testing.T) {
	w := newWorld(t)
	w.cohort("prod", "web-1", "web-2")
	r := newRig(t, w, nil)
	one := w.publish("prod")
	w.assign("prod", one)
	r.read()
	r.agent("prod", "web-1").runs(one).say()
	r.agent("prod", "web-2").runs(one).say()
	if _, err := r.client.Report(t.Context(), r.agent("prod", "web-1").runs(one).signed()); !errors.Is(err, api.ErrDenied) {
		t.Fatalf("another key: %v", err)
	}
	r.is("web-1", verdict.Duplicate, "`muster hosts accept web-1`")
	r.flush()
	cfg := Config{Database: "sqlite://" + filepath.Join(r.dir, "state.db")}
	if _, err := Forget(t.Context(), cfg, "web-1"); err == nil || !strings.Contains(err.Error(), "another collector has it open") {
		t.Errorf("while it runs: %v", err)
	}
	r.server.Close()
	r.c.Close()
	for want := int64(1); want >= 0; want-- {
		if n, err := Forget(t.Context(), cfg, "web-1"); n != want || err != nil {
			t.Errorf("%d, %v", n, err)
		}
	}
	if _, err := Forget(t.Context(), Config{Database: cfg.Database + ".not"}, "web-1"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v", err)
	}
	r.start(nil)
	r.read()
	r.agent("prod", "web-1").runs(one).say()
	r.is("web-1", verdict.Confirmed, "")
	if _, err := r.client.Report(t.Context(), r.agent("prod", "web-2").runs(one).signed()); !errors.Is(err, api.ErrDenied) {
		t.Errorf("another key: %v", err)
	}
}
