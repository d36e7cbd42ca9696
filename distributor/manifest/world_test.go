package manifest_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/muster-config/muster/distributor/keys"
	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/wire"
)

const (
	storeID = "00112233445566778899aabbccddeeff"
	repo    = "acme/config"
	cohort  = "prod-eu"
)

var (
	issued = time.Date(2026, 11, 30, 10, 0, 0, 0, time.UTC)
	now    = issued.Add(time.Hour)

	root1, root2, root3 = keys.FromSeed(1), keys.FromSeed(2), keys.FromSeed(3)
	releaseKey          = keys.FromSeed(10)
	oldReleaseKey       = keys.FromSeed(11) // good to epoch 1040
	rolloutKey          = keys.FromSeed(20)
	newRolloutKey       = keys.FromSeed(21) // both are good: a rotation
	operatorKey         = keys.FromSeed(30) // all cohorts, 24h
	narrowKey           = keys.FromSeed(31) // staging-*, 2h
	strangerKey         = keys.FromSeed(99)
)

func pointer[T any](v T) *T { return &v }

// digest is a well-formed digest that stands for a named thing.
func digest(name string) string {
	e := manifest.Envelope{Payload: []byte(name)}
	return e.Digest()
}

func object(name string) manifest.Object {
	return manifest.Object{Object: digest(name + " stored"), Size: 1234, Tar: digest(name + " tar"), TarSize: 10240}
}

func baseKeyring() manifest.Keyring {
	k := manifest.Keyring{
		V: 1, Repo: repo, Version: 1, Era: 1, Issued: issued, Keys: map[string]manifest.PublicKey{},
		Roles: manifest.Roles{
			Root:    manifest.RootRole{Keys: []string{root1.KeyID(), root2.KeyID(), root3.KeyID()}, Threshold: 2},
			Release: []manifest.ReleaseRole{{Key: releaseKey.KeyID()}, {Key: oldReleaseKey.KeyID(), LastEpoch: 1040}},
			Rollout: []string{rolloutKey.KeyID(), newRolloutKey.KeyID()},
			Operator: []manifest.OperatorRole{
				{Key: operatorKey.KeyID(), Cohorts: []string{"*"}, MaxTTL: "24h"},
				{Key: narrowKey.KeyID(), Cohorts: []string{"staging-*"}, MaxTTL: "2h"},
			},
		},
	}
	for name, key := range map[string]*keys.Key{
		"root 1": root1, "root 2": root2, "root 3": root3, "release": releaseKey, "old release": oldReleaseKey,
		"rollout": rolloutKey, "new rollout": newRolloutKey, "operator": operatorKey, "staging operator": narrowKey,
	} {
		k.Keys[key.KeyID()] = manifest.PublicKey{Type: "ed25519", Public: key.Public(), Name: name}
	}
	return k
}

func seal(t testing.TB, kind manifest.Kind, payload any, by ...*keys.Key) manifest.Envelope {
	t.Helper()
	signers := make([]manifest.Signer, len(by))
	for i, k := range by {
		signers[i] = k
	}
	e, err := manifest.Seal(kind, payload, signers...)
	if err != nil {
		t.Fatal(err)
	}
	return *e
}

func encode(t testing.TB, v any) []byte {
	t.Helper()
	data, err := wire.Encode(v)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func newTrust(t testing.TB) manifest.TrustState {
	t.Helper()
	s, err := manifest.NewTrust(repo, encode(t, seal(t, manifest.KindKeyring, baseKeyring(), root1, root2)))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// change edits a document before it is signed.
type change[T any] func(*T)

func statement(epoch uint64, changes ...change[manifest.Statement]) manifest.Statement {
	st := manifest.Statement{
		V: 1, Store: storeID, Repo: repo, Cohort: cohort, Epoch: epoch, Commit: strings.Repeat("a1", 20),
		Bundle: object(fmt.Sprint(epoch)), Content: digest(fmt.Sprint("content ", epoch)), Files: 3,
		Evidence: map[string]manifest.Grade{"checkout": manifest.GradeProcess, "search": manifest.GradeDisk},
		Inputs:   digest("inputs"), Content0: digest(fmt.Sprint("content0 ", epoch)),
	}
	for _, c := range changes {
		c(&st)
	}
	return st
}

func overridden(epoch uint64, id string) manifest.Statement {
	return statement(epoch, func(st *manifest.Statement) {
		st.Override, st.Content, st.Bundle = id, digest(fmt.Sprint("content ", epoch, id)), object(fmt.Sprint(epoch, id))
	})
}

// override is an operator's, of two hours from an hour before now; its own release is the epoch.
func override(t testing.TB, id string, epoch uint64, changes ...change[manifest.Override]) manifest.Override {
	o := manifest.Override{
		V: 1, Store: storeID, Repo: repo, Cohort: cohort, ID: id, Author: "ana@example.com", Reason: "INC-311",
		Created: issued, NotAfter: issued.Add(2 * time.Hour), Epoch: epoch,
		Patches:   []manifest.Patch{{Service: "checkout", Values: `{"timeout_ms": 5000}`}},
		Statement: pointer(seal(t, manifest.KindStatement, overridden(epoch, id), operatorKey)),
	}
	for _, c := range changes {
		c(&o)
	}
	return o
}

func ended(t testing.TB, id string, epoch uint64) manifest.Override {
	return override(t, id, epoch, func(o *manifest.Override) {
		o.Statement, o.Patches = nil, nil
		o.Ended = &manifest.OverrideEnd{By: "ben@example.com", Reason: "fixed", At: now}
	})
}

func standardPolicy() manifest.RolloutPolicy {
	return manifest.RolloutPolicy{
		Waves:       []manifest.Wave{{Percent: 5, Bake: "10m"}, {Percent: 100, Bake: "0s"}},
		MinReported: 0.95, MaxInFlight: "10%", Spread: "0s", Timeout: "2h", OnFailure: "rollback", Watch: "30m",
	}
}

// order makes a manifest that assigns epochs 1042 and, to web-17, 1043.
func order(t testing.TB, serial uint64, changes ...change[manifest.Manifest]) manifest.Manifest {
	m := manifest.Manifest{
		V: 1, Store: storeID, Repo: repo, Cohort: cohort, Era: 1, Serial: serial, Issued: issued, FreshUntil: issued.Add(24 * time.Hour),
		Statements: []manifest.Envelope{seal(t, manifest.KindStatement, statement(1042), releaseKey), seal(t, manifest.KindStatement, statement(1043), releaseKey)},
		Rollout: manifest.Rollout{
			PolicyName: "standard", PolicyEpoch: 1042, Policy: standardPolicy(), Target: 1043, Baseline: 1042, Wave: 1,
			Phase: manifest.PhaseAdvancing, Since: issued, Why: "wave 1 of 2", By: "controller",
		},
		Assign: []manifest.Assignment{
			{Hosts: []string{"db-17"}, Epoch: 1042, Why: "hold by ana: INC-311"},
			{Below: "8000000000000000", Salt: "1043", Epoch: 1043, Why: "wave 1 of 2 (5%)"},
			{Match: map[string]string{"canary": "true"}, Epoch: 1043, Why: "wave 1 of 2 (label)"},
			{Epoch: 1042, Why: "baseline"},
		},
	}
	for _, c := range changes {
		c(&m)
	}
	return m
}

func head(t testing.TB, m manifest.Manifest, overrides ...manifest.Override) manifest.Head {
	h := manifest.Head{Manifest: seal(t, manifest.KindManifest, m, rolloutKey)}
	for _, o := range overrides {
		h.Overrides = append(h.Overrides, seal(t, manifest.KindOverride, o, operatorKey))
	}
	return h
}

// accept demands that a head is accepted, and that the old state stays as it was.
func accept(t testing.TB, s manifest.TrustState, h any, at time.Time) (manifest.TrustState, *manifest.View) {
	t.Helper()
	before := encode(t, s)
	next, view, err := s.AcceptHead(cohort, encode(t, h), at)
	if err != nil {
		t.Fatalf("refused: %v", err)
	}
	if !bytes.Equal(before, encode(t, s)) {
		t.Fatal("the old state was changed")
	}
	// What is remembered survives being written down.
	var again manifest.TrustState
	if err := wire.Decode(encode(t, next), &again); err != nil {
		t.Fatal(err)
	}
	return again, view
}

// refuse demands that a head is refused for a reason, and that state and view show nothing of it.
func refuse(t testing.TB, s manifest.TrustState, data []byte, want error, text string) {
	t.Helper()
	before := encode(t, s)
	next, view, err := s.AcceptHead(cohort, data, now)
	if !errors.Is(err, want) || !strings.Contains(fmt.Sprint(err), text) {
		t.Errorf("error %v, want %q, %q", err, want, text)
	}
	if view != nil || !bytes.Equal(before, encode(t, next)) || !bytes.Equal(before, encode(t, s)) {
		t.Error("a refused head left a trace")
	}
}

// edit changes a JSON document as text, as somebody without keys can.
func edit(t testing.TB, data []byte, change func(map[string]json.RawMessage)) []byte {
	t.Helper()
	var m map[string]json.RawMessage
	if err := json.Unmarshal(data, &m); err != nil {
		t.Fatal(err)
	}
	change(m)
	out, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return out
}
