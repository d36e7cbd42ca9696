package collector

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-config/muster/distributor/bundle"
	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/report"
	"github.com/muster-config/muster/distributor/rollout/gate"
	"github.com/muster-config/muster/distributor/store"
	"github.com/muster-config/muster/distributor/verdict"
)

// packed is a bundle of two services, as it lies in the store.
func (w *world) packed(cohort, host string, epoch uint64, checkout string) *bundle.Packed {
	w.t.Helper()
	files := []bundle.File{{Path: "checkout/checkout.yaml", Mode: 0o644, Data: []byte(checkout)}, {Path: "search/search.yaml", Mode: 0o644, Data: []byte("a: 1\n")}}
	ix := bundle.Index{V: 1, Repo: repo, Cohort: cohort, Host: host, Epoch: epoch, Commit: fmt.Sprintf("%040x", epoch), Services: map[string]bundle.Service{}}
	for _, f := range files {
		name, _, _ := strings.Cut(f.Path, "/")
		ix.Services[name] = bundle.Service{Epoch: epoch, Digest: bundle.ContentDigest([]bundle.File{f}), Digest0: digest(string(f.Data)), Files: 1}
	}
	p, err := bundle.Pack(ix, files)
	if err != nil {
		w.t.Fatal(err)
	}
	w.put(manifest.KeyBundle(p.Object), p.Data)
	return p
}

// release publishes a release whose bundles are there: one for the cohort, and one for each host that has its own.
func (w *world) release(cohort, checkout string, hosts map[string]string) (epoch uint64, bundles map[string]*bundle.Packed) {
	w.t.Helper()
	w.epoch++
	epoch = w.epoch
	bundles = map[string]*bundle.Packed{"": w.packed(cohort, "", epoch, checkout)}
	p := bundles[""]
	st := manifest.Statement{
		V: 1, Store: storeID, Repo: repo, Cohort: cohort, Epoch: epoch, Commit: fmt.Sprintf("%040x", epoch), Bundle: manifest.Object{Object: p.Object, Size: int64(len(p.Data)), Tar: p.Tar, TarSize: p.TarSize},
		Content: p.Content, Files: p.Files, Evidence: map[string]manifest.Grade{}, Inputs: digest("in"), Content0: digest("0"),
	}
	for _, host := range []string{"h-1", "h-2"} {
		if text, ok := hosts[host]; ok {
			v := w.packed(cohort, host, epoch, text)
			bundles[host] = v
			st.Variants = append(st.Variants, manifest.Variant{Host: host, Bundle: manifest.Object{Object: v.Object, Size: int64(len(v.Data)), Tar: v.Tar, TarSize: v.TarSize}, Content: v.Content, Files: v.Files, Evidence: map[string]manifest.Grade{}, Content0: digest("0")})
		}
	}
	e := w.seal(manifest.KindStatement, st, releaseKey)
	rel := manifest.Release{
		V: 1, Store: storeID, Repo: repo, Epoch: epoch, Kind: manifest.ReleaseCommit, Commit: st.Commit, Tree: fmt.Sprintf("%040x", epoch+1000), Parents: []string{},
		Author: manifest.Person{Name: "Ana", Email: "ana@example.com", At: start}, Committer: manifest.Person{Name: "Ana", Email: "ana@example.com", At: start},
		Subject: "change", Evaluator: "muster 0.1.0", Settings: digest("settings"), Source: object("source"), Created: w.now(), Policy: w.policy,
		Cohorts: map[string]manifest.ReleaseCohort{cohort: {State: manifest.StateBuilt, Epoch: epoch, Statement: &e}},
	}
	w.put(manifest.KeyRelease(epoch), w.encode(w.seal(manifest.KindRelease, rel, releaseKey)))
	return epoch, bundles
}

// What a release holds is read from its bundles once, and believed as far as its statement vouches for it.
func TestServices(t *testing.T) {
	w := newWorld(t)
	w.cohort("prod", "h-1", "h-2")
	one, bundles := w.release("prod", "timeout: 1s\n", map[string]string{"h-1": "timeout: 9s\n"})
	c, err := New(Config{Poll: time.Second}, Deps{Store: w.store, Keyring: w.keyring, Now: w.now})
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	got, err := c.Services(ctx, "prod", one)
	want := map[string]string{"checkout": digest("timeout: 1s\n"), "search": digest("a: 1\n"), "checkout@h-1": digest("timeout: 9s\n"), "search@h-1": digest("a: 1\n")}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	// It is not read again.
	for _, p := range bundles {
		if err := w.store.Delete(ctx, manifest.KeyBundle(p.Object)); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := c.Services(ctx, "prod", one); err != nil || len(got) != 4 {
		t.Errorf("%v, %v", got, err)
	}
	// Another index under the same name, one of another release, and nothing at all.
	two, bundles := w.release("prod", "timeout: 2s\n", nil)
	w.put(manifest.KeyBundle(bundles[""].Object), w.packed("prod", "", two, "timeout: 1s\n").Data)
	if _, err := c.Services(ctx, "prod", two); !errors.Is(err, errDamaged) {
		t.Errorf("%v", err)
	}
	w.put(manifest.KeyBundle(bundles[""].Object), []byte("junk"))
	if _, err := c.Services(ctx, "prod", two); err == nil {
		t.Error("junk is a bundle")
	}
	if err := w.store.Delete(ctx, manifest.KeyBundle(bundles[""].Object)); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Services(ctx, "prod", two); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("%v", err)
	}
	if _, err := c.Services(ctx, "prod", 77); err == nil {
		t.Error("a release that is not there")
	}
	if _, err := c.Services(ctx, "staging", one); err == nil || !strings.Contains(err.Error(), "made no statement for cohort staging") {
		t.Errorf("%v", err)
	}
}

func TestReported(t *testing.T) {
	at := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	rep := &report.Report{
		Phase: report.PhaseFailed, Drifted: 3, Services: map[string]report.Service{"a": {Restarts: 2}, "b": {Restarts: 1}},
	}
	want := gate.Host{Name: "h-1", At: at, RolledBack: true, Drifted: true, Restarts: 3}
	if diff := cmp.Diff(want, reported("h-1", rep, at)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got := reported("h-1", &report.Report{Phase: report.PhaseRefused}, at); !got.Refused || got.RolledBack {
		t.Errorf("%+v", got)
	}
}

// A collector that has just begun says that it does not know its hosts yet, and so does one whose cohort nobody counts.
func TestSettling(t *testing.T) {
	w := newWorld(t)
	w.cohort("prod", "h-1", "h-2")
	r := newRig(t, w, nil)
	one := r.publish("prod")
	r.assign("prod", one)
	r.read()
	r.publish("prod")
	r.read()
	_, seen, err := r.c.Cohort(t.Context(), "prod")
	if err != nil || !strings.Contains(seen.Settling, "has not heard of 2 hosts yet") || len(seen.Hosts) != 2 || seen.Hosts[0].Verdict != verdict.Missing {
		t.Errorf("%+v, %v", seen, err)
	}
	r.agent("prod", "h-1").runs(one).say()
	r.advance(settleFor)
	r.read()
	_, seen, err = r.c.Cohort(t.Context(), "prod")
	if err != nil || seen.Settling != "" || seen.Unseen != "" || len(seen.Hosts) != 2 {
		t.Errorf("%+v, %v", seen, err)
	}
}
