// Package agenttest is a small signed world for tests of the agent: a store with releases, and processes that load what an agent installs.
package agenttest

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/muster-config/muster/distributor/bundle"
	"github.com/muster-config/muster/distributor/keys"
	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/parcel"
	"github.com/muster-config/muster/distributor/store"
	"github.com/muster-config/muster/distributor/wire"
)

// Repo and Cohort of a World.
const (
	Repo   = "acme/config"
	Cohort = "prod-eu"
)

// World is a store and the keys that fill it.
type World struct {
	Store   store.Store
	Keyring []byte
	StoreID string

	// Apart gives releases epochs as of overrides that are made apart from the store.
	Apart bool

	t        testing.TB
	keys     keys.Set
	serial   uint64
	releases map[uint64]manifest.Statement
	last     map[string]bundle.Service
}

// New fills an empty store with a keyring.
func New(t testing.TB, s store.Store) *World {
	t.Helper()
	w := &World{Store: s, StoreID: strings.Repeat("5a", 16), t: t, releases: map[uint64]manifest.Statement{}, last: map[string]bundle.Service{}}
	w.keys = keys.Set{Root: keys.FromSeed(1), Release: keys.FromSeed(2), Rollout: keys.FromSeed(3), Operator: keys.FromSeed(4)}
	env, err := w.keys.Keyring(Repo, time.Now().Add(-time.Hour).UTC())
	w.check(err)
	w.Keyring = w.encode(env)
	w.Put(manifest.KeyKeyring(1), w.Keyring)
	return w
}

func (w *World) check(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *World) encode(v any) []byte {
	w.t.Helper()
	data, err := wire.Encode(v)
	w.check(err)
	return data
}

// Put writes an object, whatever is there.
func (w *World) Put(key string, data []byte) {
	w.t.Helper()
	w.check(w.Store.Put(context.Background(), key, data))
}

// Files are the files of a release: "checkout/checkout.yaml" → content. A name may end in "@0600" for a mode other than 0644.
type Files map[string]string

// Release makes a release of the next epoch and gives its statement. Service epochs are those of a publisher: a service whose bytes are as in the last
// release keeps its own. Changes edit the statement before it is signed.
func (w *World) Release(files Files, changes ...func(*manifest.Statement)) manifest.Statement {
	w.t.Helper()
	epoch := uint64(len(w.releases) + 1)
	if w.Apart {
		epoch += parcel.FirstApart
	}
	byService := map[string][]bundle.File{}
	var all []bundle.File
	for name, data := range files {
		path, mode := name, uint32(0o644)
		if p, m, ok := strings.Cut(name, "@"); ok {
			path = p
			_, err := fmt.Sscanf(m, "%o", &mode)
			w.check(err)
		}
		f := bundle.File{Path: path, Mode: mode, Data: []byte(data)}
		svc, _, _ := strings.Cut(path, "/")
		byService[svc] = append(byService[svc], f)
		all = append(all, f)
	}
	st := manifest.Statement{
		V: 1, Store: w.StoreID, Repo: Repo, Cohort: Cohort, Epoch: epoch, Commit: fmt.Sprintf("%040x", epoch), Evidence: map[string]manifest.Grade{},
		Inputs: digest("inputs"), Content0: digest("content0"),
	}
	index := bundle.Index{V: 1, Repo: Repo, Cohort: Cohort, Epoch: epoch, Commit: st.Commit, Services: map[string]bundle.Service{}}
	for svc, list := range byService {
		d := bundle.ContentDigest(list)
		s := bundle.Service{Epoch: epoch, Digest: d, Digest0: d, Files: len(list)}
		if old, ok := w.last[svc]; ok && old.Digest == d {
			s.Epoch = old.Epoch
		}
		index.Services[svc] = s
		st.Evidence[svc] = manifest.GradeProcess
	}
	w.last = index.Services
	packed, err := bundle.Pack(index, all)
	w.check(err)
	w.Put(manifest.KeyBundle(packed.Object), packed.Data)
	st.Bundle = manifest.Object{Object: packed.Object, Size: int64(len(packed.Data)), Tar: packed.Tar, TarSize: packed.TarSize}
	st.Content, st.Files = packed.Content, packed.Files
	for _, c := range changes {
		c(&st)
	}
	w.releases[epoch] = st
	return st
}

// Grade asks for another grade of evidence for all services.
func Grade(g manifest.Grade) func(*manifest.Statement) {
	return func(st *manifest.Statement) {
		st.Evidence = maps.Clone(st.Evidence)
		for svc := range st.Evidence {
			st.Evidence[svc] = g
		}
	}
}

func digest(name string) string {
	e := manifest.Envelope{Payload: []byte(name)}
	return e.Digest()
}

func (w *World) seal(kind manifest.Kind, v any, by manifest.Signer) manifest.Envelope {
	w.t.Helper()
	e, err := manifest.Seal(kind, v, by)
	w.check(err)
	return *e
}

// Head makes the next head, which assigns epoch to every host. Changes edit the manifest before it is signed.
func (w *World) Head(epoch uint64, changes ...func(*manifest.Manifest)) []byte {
	w.t.Helper()
	w.serial++
	now := time.Now().UTC().Truncate(time.Second)
	m := manifest.Manifest{
		V: 1, Store: w.StoreID, Repo: Repo, Cohort: Cohort, Era: 1, Serial: w.serial, Issued: now, FreshUntil: now.Add(24 * time.Hour),
		Rollout: manifest.Rollout{
			PolicyName: "standard", PolicyEpoch: 1, Target: epoch, Baseline: epoch, Phase: manifest.PhaseDone, Since: now, Why: "now", By: "test",
			Policy: manifest.RolloutPolicy{
				Waves: []manifest.Wave{{Percent: 100, Bake: "0s"}}, MinReported: 0.95, MaxInFlight: "10%", Spread: "0s", Timeout: "2h", OnFailure: "rollback", Watch: "30m",
				Gates: map[string]manifest.Gate{}, ApproveBefore: []int{}, Windows: []string{},
			},
		},
		Assign: []manifest.Assignment{{Epoch: epoch, Why: "baseline"}},
	}
	for _, c := range changes {
		c(&m)
	}
	named := map[uint64]bool{}
	for _, a := range m.Assign {
		named[a.Epoch] = true
	}
	for _, e := range slices.Sorted(maps.Keys(named)) {
		m.Statements = append(m.Statements, w.seal(manifest.KindStatement, w.releases[e], w.keys.Release))
	}
	return w.encode(manifest.Head{Manifest: w.seal(manifest.KindManifest, m, w.keys.Rollout), Overrides: []manifest.Envelope{}})
}

// Assign writes the next head and gives its bytes.
func (w *World) Assign(epoch uint64, changes ...func(*manifest.Manifest)) []byte {
	w.t.Helper()
	head := w.Head(epoch, changes...)
	w.Put(manifest.KeyHead(Cohort), head)
	return head
}

// Override is a head that puts an override of one release's files over the whole cohort until notAfter. Changes edit the manifest before it is signed.
func (w *World) Override(epoch uint64, files Files, notAfter time.Time, changes ...func(*manifest.Manifest)) []byte {
	w.t.Helper()
	last := maps.Clone(w.last)
	st := w.Release(files, func(st *manifest.Statement) { st.Override = "inc-311" })
	w.last = last
	sealed := w.seal(manifest.KindStatement, st, w.keys.Operator)
	o := manifest.Override{
		V: 1, Store: w.StoreID, Repo: Repo, Cohort: Cohort, ID: "inc-311", Author: "ana", Reason: "INC-311", Created: notAfter.Add(-time.Hour).UTC(), NotAfter: notAfter.UTC(),
		Epoch: st.Epoch, Statement: &sealed, Patches: []manifest.Patch{{Service: "checkout", Values: `{"timeout_ms": 5000}`}},
	}
	var h manifest.Head
	w.check(wire.Decode(w.Head(epoch, changes...), &h))
	h.Overrides = append(h.Overrides, w.seal(manifest.KindOverride, o, w.keys.Operator))
	data := w.encode(h)
	w.Put(manifest.KeyHead(Cohort), data)
	return data
}

// Bare is a head without its overrides and with another beat: what whoever can write to the bucket makes of it.
func (w *World) Bare(head []byte, beat uint64) []byte {
	w.t.Helper()
	var h manifest.Head
	w.check(wire.Decode(head, &h))
	h.Overrides, h.Beat = []manifest.Envelope{}, beat
	return w.encode(h)
}

// Rotate puts keyring 2 into the store, in which the rollout key is another; heads are signed with that one from now on. Changes edit it before it is signed.
func (w *World) Rotate(changes ...func(*manifest.Keyring)) {
	w.t.Helper()
	next := w.keys
	next.Rollout = keys.FromSeed(13)
	k := keys.NewKeyring(Repo, time.Now().UTC(), next.Root.Public(), next.Release.Public(), next.Rollout.Public(), next.Operator.Public())
	k.Version = 2
	for _, c := range changes {
		c(&k)
	}
	w.keys = next
	w.Keyring = w.encode(w.seal(manifest.KindKeyring, k, next.Root))
	w.Put(manifest.KeyKeyring(2), w.Keyring)
}
