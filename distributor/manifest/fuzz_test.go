package manifest_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/muster-config/muster/distributor/manifest"
)

// decoders are all readers of one document, by the name of its vector.
var decoders = map[string]func([]byte) (any, error){
	"keyring":              func(b []byte) (any, error) { return document(manifest.DecodeKeyring(b)) },
	"statement":            func(b []byte) (any, error) { return document(manifest.DecodeStatement(b)) },
	"statement-overridden": func(b []byte) (any, error) { return document(manifest.DecodeStatement(b)) },
	"release":              func(b []byte) (any, error) { return document(manifest.DecodeRelease(b)) },
	"release-override":     func(b []byte) (any, error) { return document(manifest.DecodeRelease(b)) },
	"manifest":             func(b []byte) (any, error) { return document(manifest.DecodeManifest(b)) },
	"override":             func(b []byte) (any, error) { return document(manifest.DecodeOverride(b)) },
	"override-end":         func(b []byte) (any, error) { return document(manifest.DecodeOverride(b)) },
	"head":                 func(b []byte) (any, error) { return document(manifest.DecodeHead(b)) },
	"variants":             func(b []byte) (any, error) { return document(manifest.DecodeVariants(b)) },
	"store":                func(b []byte) (any, error) { return document(manifest.DecodeStoreID(b)) },
	"commit":               func(b []byte) (any, error) { return document(manifest.DecodeCommitIndex(b)) },
	"commit-refused":       func(b []byte) (any, error) { return document(manifest.DecodeCommitIndex(b)) },
}

func document[T any](doc *T, err error) (any, error) {
	if err != nil {
		return nil, err
	}
	return *doc, nil
}

// ext compares what is kept without being looked into: its white space may go.
func ext(t testing.TB) cmp.Option {
	return cmp.FilterValues(func(a, b manifest.Ext) bool { return len(a)+len(b) > 0 }, cmp.Comparer(func(a, b manifest.Ext) bool { return bytes.Equal(encode(t, a), encode(t, b)) }))
}

// seeds gives every vector to a fuzz target.
func seeds(f *testing.F) {
	files, err := filepath.Glob(vectors + "/*.json")
	if err != nil || len(files) == 0 {
		f.Fatalf("no vectors in %s: %v", vectors, err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
}

// No document makes a reader panic, and what it reads it writes as something that it reads the same.
func FuzzDocuments(f *testing.F) {
	seeds(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		for name, decode := range decoders {
			doc, err := decode(data)
			if err != nil {
				continue
			}
			once := encode(t, doc)
			again, err := decode(once)
			if err != nil {
				t.Fatalf("%s: written, but not read: %v\n%s", name, err, once)
			}
			if diff := cmp.Diff(doc, again, cmpopts.EquateEmpty(), ext(t)); diff != "" {
				t.Fatalf("%s: %s", name, diff)
			}
			if twice := encode(t, again); !bytes.Equal(once, twice) {
				t.Fatalf("%s: not stable\n%s\n%s", name, once, twice)
			}
		}
		if e, err := manifest.ParseEnvelope(data); err == nil {
			_, _ = e.VerifySignatures(manifest.KindManifest, nil)
		}
	})
}

// A head that nobody signed moves nothing; one that is accepted is the genuine one, whatever stands around it.
func FuzzAcceptHead(f *testing.F) {
	seeds(f)
	s := newTrust(f)
	genuine := encode(f, fullHead(f))
	f.Add(genuine)
	f.Add(encode(f, head(f, order(f, 7))))
	f.Add(encode(f, head(f, order(f, 7), override(f, "inc-311", 1044), ended(f, "inc-311", 1044))))
	known := map[string]bool{}
	for _, m := range []manifest.Manifest{fullManifest(f), order(f, 7)} {
		e := seal(f, manifest.KindManifest, m, rolloutKey)
		known[e.Digest()] = true
	}
	before := encode(f, s)
	f.Fuzz(func(t *testing.T, data []byte) {
		next, view, err := s.AcceptHead(cohort, data, now)
		if !bytes.Equal(before, encode(t, s)) {
			t.Fatal("the old state was changed")
		}
		if err != nil {
			if view != nil || !bytes.Equal(before, encode(t, next)) {
				t.Fatal("a refused head left a trace")
			}
			return
		}
		if !known[view.Head.Manifest.Digest()] {
			t.Fatalf("accepted what was not signed: %s", data)
		}
		if _, err := manifest.Resolve(view, manifest.Host{Name: "web-1"}, now); err != nil {
			t.Fatal(err)
		}
		if _, _, err := next.AcceptHead(cohort, data, now); err != nil {
			t.Fatalf("refused the second time: %v", err)
		}
	})
}

// Changing any single byte of a head never makes another decision pass.
func TestEveryByteOfAHead(t *testing.T) {
	s := newTrust(t)
	good := encode(t, head(t, order(t, 7)))
	_, want, err := s.AcceptHead(cohort, good, now)
	if err != nil {
		t.Fatal(err)
	}
	for i := range good {
		bad := bytes.Clone(good)
		bad[i] ^= 1
		_, view, err := s.AcceptHead(cohort, bad, now)
		if err == nil && !cmp.Equal(view.Manifest, want.Manifest) {
			t.Errorf("byte %d of %d: another manifest is accepted", i, len(good))
		}
	}
}
