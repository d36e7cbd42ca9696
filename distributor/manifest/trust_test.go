package manifest_test

import (
	"bytes"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-config/muster/distributor/manifest"
)

// 'No signature' is never 'nothing to verify': only a good signature by a key with the right role passes.
func TestB128SignatureStripped(t *testing.T) {
	s := newTrust(t)
	m := order(t, 7)
	good := head(t, m)
	signatures := func(change func(e *manifest.Envelope)) []byte {
		h := good
		h.Manifest.Signatures = append([]manifest.Signature(nil), good.Manifest.Signatures...)
		change(&h.Manifest)
		return encode(t, h)
	}
	for name, c := range map[string]struct {
		data []byte
		text string
	}{
		"empty list":      {signatures(func(e *manifest.Envelope) { e.Signatures = nil }), "carries no signature"},
		"empty signature": {signatures(func(e *manifest.Envelope) { e.Signatures[0].Sig = nil }), "does not fit"},
		"cut signature":   {signatures(func(e *manifest.Envelope) { e.Signatures[0].Sig = e.Signatures[0].Sig[:63] }), "does not fit"},
		"long signature":  {signatures(func(e *manifest.Envelope) { e.Signatures[0].Sig = append(bytes.Clone(e.Signatures[0].Sig), 0) }), "does not fit"},
		"unknown key":     {encode(t, manifest.Head{Manifest: seal(t, manifest.KindManifest, m, strangerKey)}), "may not sign this"},
		"known id, other key": {signatures(func(e *manifest.Envelope) {
			e.Signatures[0].Sig = seal(t, manifest.KindManifest, m, strangerKey).Signatures[0].Sig
		}), "does not fit"},
		"empty key id":       {signatures(func(e *manifest.Envelope) { e.Signatures[0].KeyID = "" }), "may not sign this"},
		"key id in capitals": {signatures(func(e *manifest.Envelope) { e.Signatures[0].KeyID = strings.ToUpper(e.Signatures[0].KeyID) }), "may not sign this"},
		"release key":        {encode(t, manifest.Head{Manifest: seal(t, manifest.KindManifest, m, releaseKey)}), "may not sign this"},
		"operator key":       {encode(t, manifest.Head{Manifest: seal(t, manifest.KindManifest, m, operatorKey)}), "may not sign this"},
		"root key":           {encode(t, manifest.Head{Manifest: seal(t, manifest.KindManifest, m, root1)}), "may not sign this"},
		"other payload type": {encode(t, manifest.Head{Manifest: seal(t, manifest.KindStatement, m, rolloutKey)}), "the envelope says it carries"},
		"type renamed":       {signatures(func(e *manifest.Envelope) { e.PayloadType = "application/vnd.muster.statement.v1+json" }), "the envelope says it carries"},
		"one byte of payload": {signatures(func(e *manifest.Envelope) {
			e.Payload = bytes.Replace(e.Payload, []byte(`"serial":7`), []byte(`"serial":8`), 1)
		}), "does not fit"},
		"many signatures": {signatures(func(e *manifest.Envelope) {
			for len(e.Signatures) <= manifest.MaxSignatures {
				e.Signatures = append(e.Signatures, e.Signatures[0])
			}
		}), "more than 16 signatures"},
		"statement stripped": {encode(t, head(t, order(t, 7, func(m *manifest.Manifest) { m.Statements[0].Signatures = nil }))), "statements[0]: statement: not signed by a trusted key: it carries no signature"},
		"statement by rollout key": {encode(t, head(t, order(t, 7, func(m *manifest.Manifest) {
			m.Statements[1] = seal(t, manifest.KindStatement, statement(1043), rolloutKey)
		}))), "statements[1]"},
		"plain statement by operator key": {encode(t, head(t, order(t, 7, func(m *manifest.Manifest) {
			m.Statements[1] = seal(t, manifest.KindStatement, statement(1043), operatorKey)
		}))), "may not sign this one"},
		"statement by a retired release key": {encode(t, head(t, order(t, 7, func(m *manifest.Manifest) {
			m.Statements[1] = seal(t, manifest.KindStatement, statement(1043), oldReleaseKey)
		}))), "may not sign this one"},
		"override stripped of its signature": {encode(t, func() any {
			h := head(t, m, override(t, "inc-311", 1044))
			h.Overrides[0].Signatures = nil
			return h
		}()), "overrides[0]"},
		"override by rollout key": {encode(t, manifest.Head{Manifest: good.Manifest, Overrides: []manifest.Envelope{seal(t, manifest.KindOverride, override(t, "inc-311", 1044), rolloutKey)}}), "overrides[0]"},
	} {
		t.Run(name, func(t *testing.T) { refuse(t, s, c.data, manifest.ErrSignature, c.text) })
	}

	// Signature and alg fields that other formats have are unknown here.
	for name, extra := range map[string]string{"alg": `"none"`, "key": `"x"`, "signature": `""`} {
		t.Run("extra field "+name, func(t *testing.T) {
			data := edit(t, encode(t, good), func(m map[string]json.RawMessage) {
				m["manifest"] = edit(t, m["manifest"], func(e map[string]json.RawMessage) { e[name] = json.RawMessage(extra) })
			})
			refuse(t, s, data, manifest.ErrMalformed, "manifest."+name+": unknown field")
		})
	}

	// A good signature beside a bad one counts, and in a rotation both keys do.
	both := head(t, m)
	both.Manifest.Signatures = append([]manifest.Signature{{KeyID: newRolloutKey.KeyID(), Sig: []byte("bad")}}, both.Manifest.Signatures...)
	accept(t, s, both, now)
	accept(t, s, manifest.Head{Manifest: seal(t, manifest.KindManifest, m, newRolloutKey)}, now)
	accept(t, s, manifest.Head{Manifest: seal(t, manifest.KindManifest, m, rolloutKey, newRolloutKey)}, now)
	accept(t, s, head(t, order(t, 7, func(m *manifest.Manifest) {
		m.Statements = append(m.Statements, seal(t, manifest.KindStatement, statement(1040), oldReleaseKey))
	})), now)
}

// A key of an algorithm that is not ours is refused with the keyring that names it.
func TestB128OtherAlgorithm(t *testing.T) {
	for name, change := range map[string]func(*manifest.PublicKey){
		"none": func(k *manifest.PublicKey) { k.Type = "none" }, "rsa": func(k *manifest.PublicKey) { k.Type = "rsa" }, "Ed25519": func(k *manifest.PublicKey) { k.Type = "Ed25519" },
		"short": func(k *manifest.PublicKey) { k.Public = k.Public[:31] },
	} {
		k := baseKeyring()
		pub := k.Keys[rolloutKey.KeyID()]
		change(&pub)
		k.Keys[rolloutKey.KeyID()] = pub
		if _, err := manifest.NewTrust(repo, encode(t, seal(t, manifest.KindKeyring, k, root1, root2))); !errors.Is(err, manifest.ErrMalformed) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// The floor is (era, serial) and stands apart from every cache: nothing but a higher order is taken after it.
func TestB130Replay(t *testing.T) {
	old := encode(t, head(t, order(t, 7)))
	s, _ := accept(t, newTrust(t), head(t, order(t, 7)), now)
	s, _ = accept(t, s, head(t, order(t, 9)), now)
	refuse(t, s, old, manifest.ErrOrder, "manifest 1-7 after 1-9")

	t.Run("after expiry", func(t *testing.T) {
		if _, _, err := s.AcceptHead(cohort, old, now.AddDate(1, 0, 0)); !errors.Is(err, manifest.ErrOrder) {
			t.Error(err)
		}
	})
	t.Run("clock set back", func(t *testing.T) {
		if _, _, err := s.AcceptHead(cohort, old, time.Unix(0, 0)); !errors.Is(err, manifest.ErrOrder) {
			t.Error(err)
		}
	})
	t.Run("a host with a pinned minimum", func(t *testing.T) {
		pinned := newTrust(t)
		pinned.Floors = map[string]manifest.Floor{cohort: {Era: 1, Serial: 8}}
		refuse(t, pinned, old, manifest.ErrOrder, "1-7 after 1-8")
		accept(t, pinned, head(t, order(t, 8)), now)
	})
	t.Run("a lower epoch under a higher serial is a rollback", func(t *testing.T) {
		next, view := accept(t, s, head(t, order(t, 10, func(m *manifest.Manifest) {
			m.Assign, m.Statements = []manifest.Assignment{{Epoch: 1040, Why: "rolled back"}}, []manifest.Envelope{seal(t, manifest.KindStatement, statement(1040), releaseKey)}
		})), now)
		if r, err := manifest.Resolve(view, manifest.Host{Name: "web-1"}, now); err != nil || r.Epoch() != 1040 {
			t.Errorf("%d, %v", r.Epoch(), err)
		}
		refuse(t, next, encode(t, head(t, order(t, 9))), manifest.ErrOrder, "")
	})
	t.Run("another cohort's floor is its own", func(t *testing.T) {
		if got := s.Floors["staging"]; got != (manifest.Floor{}) {
			t.Errorf("%+v", got)
		}
	})
	t.Run("older era", func(t *testing.T) {
		k2 := baseKeyring()
		k2.Version, k2.Era = 2, 2
		raised, err := s.AcceptKeyring(encode(t, seal(t, manifest.KindKeyring, k2, root1, root2)))
		if err != nil {
			t.Fatal(err)
		}
		// The withdrawn key cannot outbid with a serial, nor with an era that no keyring has begun.
		refuse(t, raised, encode(t, head(t, order(t, manifest.MaxCounter))), manifest.ErrOrder, "manifest of era 1, and keyring 2 began era 2")
		refuse(t, raised, encode(t, head(t, order(t, 1, func(m *manifest.Manifest) { m.Era = 3 }))), manifest.ErrKeyring, "read keyring 3 first")
		after, view := accept(t, raised, head(t, order(t, 1, func(m *manifest.Manifest) { m.Era = 2 })), now)
		if view.Mark() != (manifest.Mark{Era: 2, Serial: 1}) {
			t.Error(view.Mark())
		}
		refuse(t, after, encode(t, head(t, order(t, 10))), manifest.ErrOrder, "1-10 after 2-1")
	})
}

// A withheld manifest shows as stale once it is no longer fresh; it is still taken, and a newer one ends it.
func TestB131Freeze(t *testing.T) {
	s := newTrust(t)
	h := head(t, order(t, 9))
	s, view := accept(t, s, h, issued.Add(24*time.Hour))
	if view.Stale {
		t.Error("stale at the last fresh moment")
	}
	s, view = accept(t, s, h, issued.Add(24*time.Hour+1))
	if !view.Stale {
		t.Error("not stale after it")
	}
	if r, err := manifest.Resolve(view, manifest.Host{Name: "web-1"}, issued.AddDate(1, 0, 0)); err != nil || r.Epoch() == 0 {
		t.Errorf("a stale head still assigns: %v", err)
	}
	if _, view = accept(t, newTrust(t), h, issued.AddDate(0, 0, 3)); !view.Stale {
		t.Error("a new host takes it and says so")
	}
	if _, view = accept(t, s, h, issued.AddDate(0, 0, -1)); view.Stale {
		t.Error("a clock that is behind makes nothing stale")
	}
	renewed := order(t, 10, func(m *manifest.Manifest) { m.Issued, m.FreshUntil = issued.AddDate(0, 0, 1), issued.AddDate(0, 0, 2) })
	if _, view = accept(t, s, head(t, renewed), issued.Add(30*time.Hour)); view.Stale {
		t.Error("stale after it was renewed")
	}
	// A validity that is longer than the format allows could hide a freeze.
	refuse(t, s, encode(t, head(t, order(t, 11, func(m *manifest.Manifest) { m.FreshUntil = issued.Add(24*time.Hour + 1) }))), manifest.ErrMalformed, "fresh_until")
}

func TestAcceptHeadForeign(t *testing.T) {
	s, _ := accept(t, newTrust(t), head(t, order(t, 7)), now)
	if s.Store != storeID {
		t.Errorf("store %q is not pinned", s.Store)
	}
	other := strings.Repeat("ff", 16)
	for name, c := range map[string]struct {
		head manifest.Head
		text string
	}{
		"store":  {head(t, order(t, 8, func(m *manifest.Manifest) { m.Store = other })), "it is of store " + other},
		"repo":   {head(t, order(t, 8, func(m *manifest.Manifest) { m.Repo = "evil/config" })), "it is of repo evil/config"},
		"cohort": {head(t, order(t, 8, func(m *manifest.Manifest) { m.Cohort = "staging" })), "it is of cohort staging"},
		"statement's cohort": {head(t, order(t, 8, func(m *manifest.Manifest) {
			m.Statements[0] = seal(t, manifest.KindStatement, statement(1042, func(st *manifest.Statement) { st.Cohort = "staging" }), releaseKey)
		})), "statement of epoch 1042"},
		"statement's store": {head(t, order(t, 8, func(m *manifest.Manifest) {
			m.Statements[0] = seal(t, manifest.KindStatement, statement(1042, func(st *manifest.Statement) { st.Store = other }), releaseKey)
		})), "statement of epoch 1042"},
		"override's cohort": {head(t, order(t, 8), override(t, "inc-311", 1044, func(o *manifest.Override) {
			o.Cohort = "staging"
			o.Statement = pointer(seal(t, manifest.KindStatement, func() manifest.Statement { st := overridden(1044, "inc-311"); st.Cohort = "staging"; return st }(), operatorKey))
		})), "override inc-311"},
	} {
		t.Run(name, func(t *testing.T) { refuse(t, s, encode(t, c.head), manifest.ErrForeign, c.text) })
	}
	if _, err := manifest.NewTrust("evil/config", encode(t, s.Keyring)); !errors.Is(err, manifest.ErrForeign) {
		t.Errorf("keyring of another repo: %v", err)
	}
}

func TestAcceptHeadEquivocation(t *testing.T) {
	s, _ := accept(t, newTrust(t), head(t, order(t, 7)), now)
	twin := func(epoch uint64) manifest.Envelope {
		return seal(t, manifest.KindStatement, statement(epoch, func(st *manifest.Statement) { st.Content = digest("twin") }), releaseKey)
	}
	t.Run("in one head", func(t *testing.T) {
		h := head(t, order(t, 8, func(m *manifest.Manifest) { m.Statements = append(m.Statements, twin(1043)) }))
		refuse(t, newTrust(t), encode(t, h), manifest.ErrEquivocation, "epoch 1043")
	})
	t.Run("across heads", func(t *testing.T) {
		refuse(t, s, encode(t, head(t, order(t, 8, func(m *manifest.Manifest) { m.Statements[1] = twin(1043) }))), manifest.ErrEquivocation, "epoch 1043")
	})
	t.Run("the same serial, another payload", func(t *testing.T) {
		refuse(t, s, encode(t, head(t, order(t, 7, func(m *manifest.Manifest) { m.Rollout.Why = "other" }))), manifest.ErrEquivocation, "two manifests 1-7")
	})
	t.Run("the same manifest again, another signature", func(t *testing.T) {
		accept(t, s, manifest.Head{Manifest: seal(t, manifest.KindManifest, order(t, 7), newRolloutKey), Beat: 3}, now)
	})
	t.Run("an override's statement", func(t *testing.T) {
		s, _ := accept(t, s, head(t, order(t, 8), override(t, "inc-311", 1044)), now)
		other := overridden(1044, "inc-311")
		other.Content = digest("twin")
		refuse(t, s, encode(t, head(t, order(t, 9), override(t, "inc-311", 1044, func(o *manifest.Override) {
			o.Reason, o.Statement = "other", pointer(seal(t, manifest.KindStatement, other, operatorKey))
		}))), manifest.ErrEquivocation, "epoch 1044/inc-311")
	})
	t.Run("after many releases", func(t *testing.T) {
		s := s
		for i := range uint64(100) {
			s, _ = accept(t, s, head(t, order(t, 8+i, func(m *manifest.Manifest) {
				m.Statements = []manifest.Envelope{seal(t, manifest.KindStatement, statement(2000+i), releaseKey)}
				m.Assign = []manifest.Assignment{{Epoch: 2000 + i, Why: "all"}}
			})), now)
			if n := len(s.Contents[cohort]); n > manifest.MaxRememberedContents {
				t.Fatalf("remembers %d contents", n)
			}
		}
		refuse(t, s, encode(t, head(t, order(t, 200, func(m *manifest.Manifest) {
			m.Statements, m.Assign = []manifest.Envelope{twin(2050)}, []manifest.Assignment{{Epoch: 2050, Why: "all"}}
		}))), manifest.ErrEquivocation, "epoch 2050")
		refuse(t, s, encode(t, head(t, order(t, 200, func(m *manifest.Manifest) {
			m.Statements, m.Assign = []manifest.Envelope{twin(2098)}, []manifest.Assignment{{Epoch: 2098, Why: "all"}}
		}))), manifest.ErrEquivocation, "epoch 2098")
		// Also an epoch far below the remembered ones is held, once it was seen again.
		s, _ = accept(t, s, head(t, order(t, 200)), now)
		refuse(t, s, encode(t, head(t, order(t, 201, func(m *manifest.Manifest) { m.Statements[1] = twin(1043) }))), manifest.ErrEquivocation, "epoch 1043")
	})
}

func TestAcceptHeadMalformed(t *testing.T) {
	s := newTrust(t)
	good := encode(t, head(t, order(t, 7)))
	payload := func(change func(string) string) []byte {
		m := encode(t, order(t, 7))
		changed := change(string(m))
		if changed == string(m) {
			t.Fatal("the test changes nothing")
		}
		// Signed by the right key: it is the reader that must refuse.
		return encode(t, manifest.Head{Manifest: seal(t, manifest.KindManifest, json.RawMessage(changed), rolloutKey)})
	}
	replace := func(old, new string) []byte {
		return payload(func(s string) string { return strings.Replace(s, old, new, 1) })
	}
	with := func(change func(*manifest.Manifest)) []byte { return encode(t, head(t, order(t, 7, change))) }
	for name, c := range map[string]struct {
		data []byte
		text string
	}{
		"empty":              {nil, "ends in the middle"},
		"oversized":          {append(bytes.Clone(good), bytes.Repeat([]byte(" "), manifest.MaxHeadBytes)...), "larger than"},
		"trailing data":      {append(bytes.Clone(good), "{}"...), "data after the document"},
		"unknown head field": {edit(t, good, func(m map[string]json.RawMessage) { m["note"] = json.RawMessage(`1`) }), "note: unknown field"},
		"no overrides field": {edit(t, good, func(m map[string]json.RawMessage) { delete(m, "overrides") }), "overrides: missing"},
		"beat over 2^53":     {edit(t, good, func(m map[string]json.RawMessage) { m["beat"] = json.RawMessage(`9007199254740992`) }), "beat"},
		"duplicate key":      {replace(`"serial":7`, `"serial":7,"serial":8`), "serial: doubled key"},
		"unknown field":      {replace(`"serial":7`, `"serial":7,"seriel":8`), "seriel: unknown field"},
		"other case":         {replace(`"serial":7`, `"Serial":7`), "Serial: unknown field"},
		"missing field":      {replace(`"serial":7,`, ``), "serial: missing"},
		"null":               {replace(`"serial":7`, `"serial":null`), "serial: null"},
		"float":              {replace(`"serial":7`, `"serial":7.0`), "serial"},
		"newer version":      {replace(`"v":1`, `"v":2,"new":[]`), "written by a newer muster"},
		"version 0":          {replace(`"v":1`, `"v":0`), "no version"},
		"serial 0":           {with(func(m *manifest.Manifest) { m.Serial = 0 }), "serial"},
		"serial over 2^53":   {with(func(m *manifest.Manifest) { m.Serial = manifest.MaxCounter + 1 }), "serial"},
		"epoch 0":            {with(func(m *manifest.Manifest) { m.Assign[3].Epoch = 0 }), "epoch"},
		"store id":           {with(func(m *manifest.Manifest) { m.Store = "x" }), "store"},
		"cohort name":        {with(func(m *manifest.Manifest) { m.Cohort = "../x" }), "cohort"},
		"never fresh":        {with(func(m *manifest.Manifest) { m.FreshUntil = m.Issued }), "fresh_until"},
		"phase":              {with(func(m *manifest.Manifest) { m.Rollout.Phase = "resting" }), "phase"},
		"no assignment":      {with(func(m *manifest.Manifest) { m.Assign = nil }), "assign"},
		"no statement":       {with(func(m *manifest.Manifest) { m.Statements = nil }), "statements"},
		"many statements": {with(func(m *manifest.Manifest) {
			for len(m.Statements) <= manifest.MaxStatements {
				m.Statements = append(m.Statements, m.Statements[0])
			}
		}), "statements: not 1 to 64"},
		"many overrides": {encode(t, func() any {
			h := head(t, order(t, 7), override(t, "inc-311", 1044))
			for len(h.Overrides) <= manifest.MaxOverrides {
				h.Overrides = append(h.Overrides, h.Overrides[0])
			}
			return h
		}()), "overrides: more than 32"},
		"assigns what it does not carry": {with(func(m *manifest.Manifest) { m.Assign[1].Epoch = 1041 }), "there is no statement of epoch 1041"},
		"carries only the overridden one": {with(func(m *manifest.Manifest) {
			m.Statements[1] = seal(t, manifest.KindStatement, overridden(1043, "inc-311"), releaseKey)
		}), "there is no statement of epoch 1043"},
		"last is conditional":      {with(func(m *manifest.Manifest) { m.Assign = m.Assign[:3] }), "unconditional"},
		"last ends":                {with(func(m *manifest.Manifest) { m.Assign[3].Until = &now }), "unconditional"},
		"unconditional in between": {with(func(m *manifest.Manifest) { m.Assign[1] = m.Assign[3] }), "exactly one of"},
		"two selectors":            {with(func(m *manifest.Manifest) { m.Assign[1].Hosts = []string{"a"} }), "exactly one of"},
		"below without salt":       {with(func(m *manifest.Manifest) { m.Assign[1].Salt = "" }), "salt"},
		"salt without below":       {with(func(m *manifest.Manifest) { m.Assign[1].Below = "" }), "below"},
		"short below":              {with(func(m *manifest.Manifest) { m.Assign[1].Below = "8000" }), "below"},
		"below in capitals":        {with(func(m *manifest.Manifest) { m.Assign[1].Below = "800000000000000F" }), "below"},
		"host name":                {with(func(m *manifest.Manifest) { m.Assign[0].Hosts[0] = "-rf" }), "host name"},
		"long why":                 {with(func(m *manifest.Manifest) { m.Assign[3].Why = strings.Repeat("x", manifest.MaxTextBytes+1) }), "why"},
		"escape sequence in why":   {with(func(m *manifest.Manifest) { m.Rollout.Why = "\x1b[2J" }), "control character"},
		"policy that cannot be":    {with(func(m *manifest.Manifest) { m.Rollout.Policy.OnFailure = "pray" }), "on_failure"},
		"statement digest": {with(func(m *manifest.Manifest) {
			m.Statements[0] = seal(t, manifest.KindStatement, statement(1042, func(st *manifest.Statement) { st.Content = "sha256:xyz" }), releaseKey)
		}), "content: not a digest"},
		"statement grade": {with(func(m *manifest.Manifest) {
			m.Statements[0] = seal(t, manifest.KindStatement, statement(1042, func(st *manifest.Statement) { st.Evidence["checkout"] = "hearsay" }), releaseKey)
		}), "not a grade"},
		"override speaks of another epoch":  {encode(t, head(t, order(t, 7), override(t, "inc-311", 1044, func(o *manifest.Override) { o.Epoch = 1045 }))), "another override, epoch"},
		"override with another's statement": {encode(t, head(t, order(t, 7), override(t, "inc-311", 1044, func(o *manifest.Override) { o.ID = "inc-312" }))), "another override"},
		"override with a plain statement": {encode(t, head(t, order(t, 7), override(t, "inc-311", 1044, func(o *manifest.Override) {
			o.Statement = pointer(seal(t, manifest.KindStatement, statement(1044), operatorKey))
		}))), "another override"},
		"override without statement": {encode(t, head(t, order(t, 7), override(t, "inc-311", 1044, func(o *manifest.Override) { o.Statement = nil }))), "its statement, or its end"},
		"override without reason":    {encode(t, head(t, order(t, 7), override(t, "inc-311", 1044, func(o *manifest.Override) { o.Reason = "" }))), "reason"},
		"patch that is no object":    {encode(t, head(t, order(t, 7), override(t, "inc-311", 1044, func(o *manifest.Override) { o.Patches[0].Values = "[1]" }))), "not a JSON object"},
	} {
		t.Run(name, func(t *testing.T) { refuse(t, s, c.data, manifest.ErrMalformed, c.text) })
	}

	t.Run("ext is kept and not looked into", func(t *testing.T) {
		_, view := accept(t, s, head(t, order(t, 7, func(m *manifest.Manifest) {
			m.Ext = manifest.Ext{"later": json.RawMessage(`{"serial":null,"x":[1,{}]}`)}
		})), now)
		if string(view.Manifest.Ext["later"]) != `{"serial":null,"x":[1,{}]}` {
			t.Errorf("%s", view.Manifest.Ext["later"])
		}
	})
}

func TestOverrides(t *testing.T) {
	web := manifest.Host{Name: "web-1"}
	resolves := func(t *testing.T, v *manifest.View, at time.Time, want string) {
		t.Helper()
		r, err := manifest.Resolve(v, web, at)
		if err != nil || r.Override != want {
			t.Errorf("at %s the host runs override %q (%s), want %q: %v", at.Format(time.TimeOnly), r.Override, r.Source, want, err)
		}
	}
	t.Run("stripped from the head", func(t *testing.T) {
		s, view := accept(t, newTrust(t), head(t, order(t, 7), override(t, "inc-311", 1044)), now)
		resolves(t, view, now, "inc-311")
		// Whoever owns the bucket can leave it out, under the same manifest or a newer one.
		s, view = accept(t, s, head(t, order(t, 7)), now)
		resolves(t, view, now, "inc-311")
		s, view = accept(t, s, head(t, order(t, 8)), now)
		resolves(t, view, now, "inc-311")
		resolves(t, view, issued.Add(2*time.Hour-1), "inc-311")
		resolves(t, view, issued.Add(2*time.Hour), "")
		s, view = accept(t, s, head(t, order(t, 9)), issued.Add(2*time.Hour))
		resolves(t, view, now, "inc-311") // this view was made of what was kept until then
		if len(s.Overrides) != 0 {
			t.Errorf("still kept after its end: %d", len(s.Overrides[cohort]))
		}
	})
	t.Run("ended, and brought back", func(t *testing.T) {
		with := head(t, order(t, 7), override(t, "inc-311", 1044))
		s, _ := accept(t, newTrust(t), with, now)
		s, view := accept(t, s, head(t, order(t, 7), ended(t, "inc-311", 1044)), now)
		resolves(t, view, now, "")
		// An older head has the same manifest: its order is no protection, the kept end is.
		s, view = accept(t, s, with, now)
		resolves(t, view, now, "")
		s, view = accept(t, s, head(t, order(t, 8)), now)
		resolves(t, view, now, "")
		_, view = accept(t, s, with2(t, override(t, "inc-311", 1044)), now)
		resolves(t, view, now, "")
	})
	t.Run("an end that is over earlier than what it ends", func(t *testing.T) {
		s, _ := accept(t, newTrust(t), head(t, order(t, 7), override(t, "inc-311", 1044)), now)
		short := ended(t, "inc-311", 1044)
		short.NotAfter = now.Add(time.Second)
		s, _ = accept(t, s, head(t, order(t, 7), short), now)
		_, view := accept(t, s, head(t, order(t, 8)), now.Add(time.Minute))
		resolves(t, view, now.Add(time.Minute), "")
	})
	t.Run("ended by another operator, who may not act so long", func(t *testing.T) {
		k := baseKeyring()
		k.Roles.Operator[1].Cohorts, k.Roles.Operator[1].MaxTTL = []string{"prod-*"}, "1m"
		s, err := manifest.NewTrust(repo, encode(t, seal(t, manifest.KindKeyring, k, root1, root3)))
		if err != nil {
			t.Fatal(err)
		}
		s, _ = accept(t, s, head(t, order(t, 7), override(t, "inc-311", 1044)), now)
		_, view := accept(t, s, manifest.Head{Manifest: head(t, order(t, 7)).Manifest, Overrides: []manifest.Envelope{seal(t, manifest.KindOverride, ended(t, "inc-311", 1044), narrowKey)}}, now)
		resolves(t, view, now, "")
	})
	t.Run("its key was withdrawn", func(t *testing.T) {
		s, _ := accept(t, newTrust(t), head(t, order(t, 7), override(t, "inc-311", 1044)), now)
		k := baseKeyring()
		k.Version, k.Roles.Operator = 2, k.Roles.Operator[1:]
		s, err := s.AcceptKeyring(encode(t, seal(t, manifest.KindKeyring, k, root1, root2)))
		if err != nil {
			t.Fatal(err)
		}
		s, view := accept(t, s, head(t, order(t, 8)), now)
		resolves(t, view, now, "")
		if len(s.Overrides) != 0 {
			t.Error("still kept")
		}
	})
	t.Run("TTL", func(t *testing.T) {
		long := func(d time.Duration) []byte {
			return encode(t, head(t, order(t, 7), override(t, "inc-311", 1044, func(o *manifest.Override) { o.NotAfter = o.Created.Add(d) })))
		}
		refuse(t, newTrust(t), long(24*time.Hour+1), manifest.ErrSignature, "may act for 24h at most")
		refuse(t, newTrust(t), long(0), manifest.ErrMalformed, "not_after")
		if _, _, err := newTrust(t).AcceptHead(cohort, long(24*time.Hour), now); err != nil {
			t.Error(err)
		}
	})
	t.Run("dated ahead to live longer", func(t *testing.T) {
		_, view := accept(t, newTrust(t), head(t, order(t, 7), override(t, "inc-311", 1044, func(o *manifest.Override) {
			o.Created, o.NotAfter = now.AddDate(1, 0, 0), now.AddDate(1, 0, 1)
		})), now)
		resolves(t, view, now, "")
		resolves(t, view, now.AddDate(1, 0, 0).Add(-15*time.Minute), "inc-311") // the host's clock may be a little behind
	})
	t.Run("operator out of its cohorts", func(t *testing.T) {
		o := override(t, "inc-311", 1044, func(o *manifest.Override) {
			o.Statement = pointer(seal(t, manifest.KindStatement, overridden(1044, "inc-311"), narrowKey))
		})
		h := manifest.Head{Manifest: head(t, order(t, 7)).Manifest, Overrides: []manifest.Envelope{seal(t, manifest.KindOverride, o, narrowKey)}}
		refuse(t, newTrust(t), encode(t, h), manifest.ErrSignature, "may not act on cohort prod-eu")
		refuse(t, newTrust(t), encode(t, head(t, order(t, 7, func(m *manifest.Manifest) {
			m.Statements = append(m.Statements, seal(t, manifest.KindStatement, overridden(1043, "inc-311"), narrowKey))
		}))), manifest.ErrSignature, "may not sign this one")
	})
	t.Run("with a statement by another key", func(t *testing.T) {
		o := override(t, "inc-311", 1044, func(o *manifest.Override) {
			o.Statement = pointer(seal(t, manifest.KindStatement, overridden(1044, "inc-311"), narrowKey))
		})
		refuse(t, newTrust(t), encode(t, head(t, order(t, 7), o)), manifest.ErrSignature, "signed by another key")
	})
	t.Run("a flood", func(t *testing.T) {
		s := newTrust(t)
		var err error
		for i := 0; err == nil && i < 100; i++ {
			s, _, err = s.AcceptHead(cohort, encode(t, head(t, order(t, 7+uint64(i)), override(t, fmt.Sprint("inc-", i), 1044))), now)
		}
		if !errors.Is(err, manifest.ErrMalformed) || len(s.Overrides[cohort]) != 2*manifest.MaxOverrides {
			t.Errorf("%v, %d kept", err, len(s.Overrides[cohort]))
		}
	})
}

// with2 is a newer head with an override.
func with2(t testing.TB, o manifest.Override) manifest.Head { return head(t, order(t, 9), o) }

func TestKeyrings(t *testing.T) {
	s := newTrust(t)
	next := func(changes ...func(*manifest.Keyring)) manifest.Keyring {
		k := baseKeyring()
		k.Version = 2
		for _, c := range changes {
			c(&k)
		}
		return k
	}
	newRoots := func(k *manifest.Keyring) {
		fresh := strangerKey
		k.Keys[fresh.KeyID()] = manifest.PublicKey{Type: "ed25519", Public: fresh.Public()}
		k.Roles.Root.Keys = []string{fresh.KeyID(), root3.KeyID()}
	}
	counted := seal(t, manifest.KindKeyring, next(), root1)
	counted.Signatures = append(counted.Signatures, counted.Signatures[0])
	for name, c := range map[string]struct {
		data []byte
		want error
		text string
	}{
		"unsigned":                   {encode(t, manifest.Envelope{PayloadType: counted.PayloadType, Payload: counted.Payload}), manifest.ErrSignature, "no signature"},
		"one root of two":            {encode(t, seal(t, manifest.KindKeyring, next(), root1)), manifest.ErrSignature, "1 of the 2 root signatures"},
		"one root counted twice":     {encode(t, counted), manifest.ErrSignature, "1 of the 2 root signatures"},
		"no root":                    {encode(t, seal(t, manifest.KindKeyring, next(), releaseKey, rolloutKey)), manifest.ErrSignature, "may not sign"},
		"only its own new roots":     {encode(t, seal(t, manifest.KindKeyring, next(newRoots), strangerKey, root3)), manifest.ErrSignature, "1 of the 2"},
		"only the old roots":         {encode(t, seal(t, manifest.KindKeyring, next(newRoots), root1, root2)), manifest.ErrSignature, "keyring"},
		"version skipped":            {encode(t, seal(t, manifest.KindKeyring, next(func(k *manifest.Keyring) { k.Version = 3 }), root1, root2)), manifest.ErrKeyring, "version 3 after 1"},
		"version 1 with new content": {encode(t, seal(t, manifest.KindKeyring, next(func(k *manifest.Keyring) { k.Version = 1; k.Issued = now }), root1, root2)), manifest.ErrKeyring, "version 1 has two contents"},
		"era falls":                  {encode(t, seal(t, manifest.KindKeyring, next(func(k *manifest.Keyring) { k.Era = 0 }), root1, root2)), manifest.ErrKeyring, "era 0 after 1"},
		"another repo":               {encode(t, seal(t, manifest.KindKeyring, next(func(k *manifest.Keyring) { k.Repo = "evil/config" }), root1, root2)), manifest.ErrForeign, "evil/config"},
		"a statement":                {encode(t, seal(t, manifest.KindStatement, next(), root1, root2)), manifest.ErrSignature, "says it carries"},
		"oversized":                  {bytes.Repeat([]byte(" "), manifest.MaxKeyringBytes+1), manifest.ErrMalformed, "larger"},
		"a root twice": {encode(t, seal(t, manifest.KindKeyring, next(func(k *manifest.Keyring) { k.Roles.Root.Keys = append(k.Roles.Root.Keys, root1.KeyID()) }), root1, root2)),
			manifest.ErrMalformed, "already a root key"},
		"one key under two ids": {encode(t, seal(t, manifest.KindKeyring, next(func(k *manifest.Keyring) {
			k.Keys[strings.Repeat("0", 64)] = k.Keys[root1.KeyID()]
			k.Roles.Root.Keys = []string{root1.KeyID(), strings.Repeat("0", 64)}
		}), root1, root2)), manifest.ErrMalformed, "not the key's own"},
		"threshold 0":        {encode(t, seal(t, manifest.KindKeyring, next(func(k *manifest.Keyring) { k.Roles.Root.Threshold = 0 }), root1, root2)), manifest.ErrMalformed, "threshold"},
		"threshold over":     {encode(t, seal(t, manifest.KindKeyring, next(func(k *manifest.Keyring) { k.Roles.Root.Threshold = 4 }), root1, root2)), manifest.ErrMalformed, "threshold"},
		"role without key":   {encode(t, seal(t, manifest.KindKeyring, next(func(k *manifest.Keyring) { delete(k.Keys, rolloutKey.KeyID()) }), root1, root2)), manifest.ErrMalformed, "not among the keys"},
		"one key, two roles": {encode(t, seal(t, manifest.KindKeyring, next(func(k *manifest.Keyring) { k.Roles.Rollout[0] = releaseKey.KeyID() }), root1, root2)), manifest.ErrMalformed, "already a"},
		"bad glob":           {encode(t, seal(t, manifest.KindKeyring, next(func(k *manifest.Keyring) { k.Roles.Operator[0].Cohorts = []string{"["} }), root1, root2)), manifest.ErrMalformed, "pattern"},
		"endless TTL":        {encode(t, seal(t, manifest.KindKeyring, next(func(k *manifest.Keyring) { k.Roles.Operator[0].MaxTTL = "" }), root1, root2)), manifest.ErrMalformed, "max_ttl"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := s.AcceptKeyring(c.data)
			if !errors.Is(err, manifest.ErrKeyring) || !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.text) {
				t.Errorf("%v, want %q, %q", err, c.want, c.text)
			}
			if !cmp.Equal(got, s) {
				t.Error("the state changed")
			}
		})
	}

	if same, err := s.AcceptKeyring(encode(t, seal(t, manifest.KindKeyring, baseKeyring(), root3, root2))); err != nil || !cmp.Equal(same, s) {
		t.Errorf("the same version again: %v", err)
	}
	rotated, err := s.AcceptKeyring(encode(t, seal(t, manifest.KindKeyring, next(newRoots), root1, root3, strangerKey)))
	if err != nil {
		t.Fatal(err)
	}
	if k, err := rotated.Keys(); err != nil || k.Version != 2 {
		t.Errorf("version %d, %v", k.Version, err)
	}
	third := next(newRoots)
	third.Version = 3
	if _, err := rotated.AcceptKeyring(encode(t, seal(t, manifest.KindKeyring, third, root1, root2))); !errors.Is(err, manifest.ErrSignature) {
		t.Errorf("roots that were rotated out: %v", err)
	}
	if _, err := rotated.AcceptKeyring(encode(t, seal(t, manifest.KindKeyring, third, strangerKey, root3))); err != nil {
		t.Errorf("roots that were rotated in: %v", err)
	}
	if k, err := manifest.VerifyKeyring(append(encode(t, seal(t, manifest.KindKeyring, baseKeyring(), root1, root2)), '\n')); err != nil || k.Repo != repo {
		t.Errorf("by itself: %v", err)
	}
	if _, err := (manifest.TrustState{Repo: repo}).Keys(); !errors.Is(err, manifest.ErrKeyring) {
		t.Errorf("no keyring: %v", err)
	}
}

// One key under two names is one key, and a name that is not the key's own is none.
func TestVerifySignaturesCountsKeys(t *testing.T) {
	e := seal(t, manifest.KindManifest, order(t, 7), rolloutKey, newRolloutKey)
	e.Signatures = append(e.Signatures, e.Signatures[0], manifest.Signature{KeyID: "alias", Sig: e.Signatures[0].Sig}, manifest.Signature{KeyID: newRolloutKey.KeyID(), Sig: e.Signatures[0].Sig})
	all := map[string]ed25519.PublicKey{rolloutKey.KeyID(): rolloutKey.Public(), newRolloutKey.KeyID(): newRolloutKey.Public(), "alias": rolloutKey.Public()}
	want := []string{rolloutKey.KeyID(), newRolloutKey.KeyID()}
	slices.Sort(want)
	if ids, err := e.VerifySignatures(manifest.KindManifest, all); err != nil || !slices.Equal(ids, want) {
		t.Errorf("%v, %v", ids, err)
	}
	for name, keys := range map[string]map[string]ed25519.PublicKey{
		"no keys": nil, "alias only": {"alias": rolloutKey.Public()}, "short key": {rolloutKey.KeyID(): rolloutKey.Public()[:31]}, "other key under its id": {rolloutKey.KeyID(): strangerKey.Public()},
	} {
		if ids, err := e.VerifySignatures(manifest.KindManifest, keys); !errors.Is(err, manifest.ErrSignature) || len(ids) != 0 {
			t.Errorf("%s: %v, %v", name, ids, err)
		}
	}
	if _, err := manifest.Seal(manifest.KindManifest, order(t, 7)); err == nil {
		t.Error("sealed by nobody")
	}
}
