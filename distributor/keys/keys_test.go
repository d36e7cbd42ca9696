package keys_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/muster-config/muster/distributor/keys"
	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/wire"
)

var message = []byte("what is signed")

// signs demands that s signs as key does.
func signs(t *testing.T, s manifest.Signer, key *keys.Key) {
	t.Helper()
	sig, err := s.Sign(message)
	if err != nil || !ed25519.Verify(key.Public(), message, sig) || s.KeyID() != key.KeyID() || !s.Public().Equal(key.Public()) {
		t.Errorf("it signs as %.12s, not as %.12s: %v", s.KeyID(), key.KeyID(), err)
	}
}

func written(t *testing.T, key *keys.Key) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "some.key")
	if err := key.WriteFile(path); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestFile(t *testing.T) {
	key, err := keys.Generate()
	if err != nil {
		t.Fatal(err)
	}
	path := written(t, key)
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	opened, err := keys.Open(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	signs(t, opened, key)

	before, _ := os.ReadFile(path)
	if err := keys.FromSeed(1).WriteFile(path); !errors.Is(err, fs.ErrExist) {
		t.Errorf("a key was overwritten: %v", err)
	}
	if after, _ := os.ReadFile(path); !bytes.Equal(before, after) {
		t.Error("the file changed")
	}
	if other, _ := keys.Generate(); other.KeyID() == key.KeyID() {
		t.Error("two new keys are one")
	}
}

func TestFileRefused(t *testing.T) {
	text, err := os.ReadFile(written(t, keys.FromSeed(7)))
	if err != nil {
		t.Fatal(err)
	}
	ec, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(ec)
	if err != nil {
		t.Fatal(err)
	}
	block := func(kind string, der []byte) []byte {
		return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
	}
	for name, c := range map[string]struct {
		data []byte
		mode os.FileMode
		want string
	}{
		"others may read":  {text, 0o644, "others may read it (mode 0644): run chmod 600"},
		"group may read":   {text, 0o640, "others may read it (mode 0640)"},
		"others may write": {text, 0o602, "others may read it (mode 0602)"},
		"empty":            {nil, 0o600, "not one PEM block"},
		"no PEM":           {[]byte("hello"), 0o600, "not one PEM block"},
		"two keys":         {append(bytes.Clone(text), text...), 0o600, "not one PEM block"},
		"a public key":     {block("PUBLIC KEY", []byte("x")), 0o600, "not one PEM block"},
		"damaged":          {block("PRIVATE KEY", []byte("x")), 0o600, "damaged"},
		"other algorithm":  {block("PRIVATE KEY", der), 0o600, "not an Ed25519 key"},
		"too large":        {append(bytes.Clone(text), bytes.Repeat([]byte("\n"), 20<<10)...), 0o600, "no key"},
	} {
		path := filepath.Join(t.TempDir(), "some.key")
		if err := os.WriteFile(path, c.data, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, c.mode); err != nil {
			t.Fatal(err)
		}
		_, err := keys.Open(t.Context(), path)
		if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
	if _, err := keys.Open(t.Context(), filepath.Join(t.TempDir(), "none.key")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
	if _, err := keys.Open(t.Context(), t.TempDir()); err == nil || !strings.Contains(err.Error(), "not a regular file") {
		t.Errorf("a directory: %v", err)
	}
}

func TestEnvironment(t *testing.T) {
	key := keys.FromSeed(7)
	text, err := os.ReadFile(written(t, key))
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range map[string]string{"PEM": string(text), "base64": base64.StdEncoding.EncodeToString(text) + "\n"} {
		t.Setenv("MUSTER_TEST_KEY", value)
		s, err := keys.Open(t.Context(), "env:MUSTER_TEST_KEY")
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		signs(t, s, key)
	}
	for _, value := range []string{"", "hunter2", base64.StdEncoding.EncodeToString([]byte("hunter2"))} {
		t.Setenv("MUSTER_TEST_KEY", value)
		if _, err := keys.Open(t.Context(), "env:MUSTER_TEST_KEY"); err == nil || !strings.Contains(err.Error(), "env:MUSTER_TEST_KEY") || value != "" && strings.Contains(err.Error(), value) {
			t.Errorf("%q: %v", value, err)
		}
	}
}

// signer writes a command that answers with fixed bytes, and returns its reference.
func signer(t *testing.T, public, signature []byte, more string) string {
	t.Helper()
	dir := t.TempDir()
	for name, data := range map[string][]byte{"public": public, "signature": signature, "sign.sh": []byte(`#!/bin/sh
case "$#:$1" in
"1:public") cat "` + dir + `/public" ;;
"0:") cat >"` + dir + `/message"; ` + more + `cat "` + dir + `/signature" ;;
*) exit 9 ;;
esac
`)} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return "exec:sh " + filepath.Join(dir, "sign.sh")
}

func TestCommand(t *testing.T) {
	key := keys.FromSeed(7)
	sig, err := key.Sign(message)
	if err != nil {
		t.Fatal(err)
	}
	ref := signer(t, key.Public(), sig, "")
	s, err := keys.Open(t.Context(), ref)
	if err != nil {
		t.Fatal(err)
	}
	signs(t, s, key)
	if got, err := os.ReadFile(filepath.Join(filepath.Dir(strings.TrimPrefix(ref, "exec:sh ")), "message")); err != nil || !bytes.Equal(got, message) {
		t.Errorf("the command was given %q, %v", got, err)
	}
	// An answer that does not verify is never used.
	if got, err := s.Sign([]byte("another message")); err == nil || got != nil || !strings.Contains(err.Error(), "no signature of its public key") {
		t.Errorf("%x, %v", got, err)
	}

	for name, c := range map[string]struct{ ref, open, sign string }{
		"no command":        {"exec: ", "no command", ""},
		"none of that name": {"exec:/nonexistent/signer", "exit status 127", ""},
		"fails":             {"exec:exit 3;", "exit status 3", ""},
		"short public key":  {signer(t, key.Public()[:31], sig, ""), "31 bytes, not 32", ""},
		"endless answer":    {"exec:yes;", "more than 4096 bytes", ""},
		"fails to sign":     {signer(t, key.Public(), sig, "exit 4; "), "", "exit status 4"},
		"signs with hex":    {signer(t, key.Public(), []byte(hex.EncodeToString(sig)), ""), "", "128 bytes"},
		"another's key":     {signer(t, keys.FromSeed(8).Public(), sig, ""), "", "no signature of its public key"},
		"silent":            {signer(t, key.Public(), nil, ""), "", "0 bytes"},
		"chatty":            {signer(t, key.Public(), bytes.Repeat(sig, 100), ""), "", "more than 4096 bytes"},
	} {
		s, err := keys.Open(t.Context(), c.ref)
		if c.open != "" {
			if err == nil || !strings.Contains(err.Error(), c.open) {
				t.Errorf("%s: %v, want %q", name, err, c.open)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if _, err := s.Sign(message); err == nil || !strings.Contains(err.Error(), c.sign) {
			t.Errorf("%s: %v, want %q", name, err, c.sign)
		}
	}
}

func TestCommandIsCutOff(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	start := time.Now()
	if _, err := keys.Open(ctx, "exec:exec sleep 60;"); err == nil {
		t.Error("it ended by itself")
	}
	if took := time.Since(start); took > 20*time.Second {
		t.Errorf("it took %s", took)
	}
}

// No way of printing a key shows it.
func TestKeysStayHidden(t *testing.T) {
	key := keys.FromSeed('S') // 32 times
	seed := strings.Repeat("S", 32)
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%o", "%b", "%p"} {
		for _, v := range []any{key, *key, []any{key}, struct{ K *keys.Key }{key}} {
			out := fmt.Sprintf(verb, v)
			for _, bad := range []string{seed, hex.EncodeToString([]byte(seed)), "83 83 83", "53 53 53", "123 123 123", "1010011 1010011", strings.ToUpper(hex.EncodeToString([]byte(seed))), "0x53, 0x53"} {
				if strings.Contains(out, bad) {
					t.Errorf("%s of %T shows the key: %s", verb, v, out)
				}
			}
		}
	}
}

func TestSet(t *testing.T) {
	set := keys.Set{Root: keys.FromSeed(1), Release: keys.FromSeed(2), Rollout: keys.FromSeed(3), Operator: keys.FromSeed(4)}
	e, err := set.Keyring("acme/config", time.Date(2026, 11, 30, 10, 0, 0, 0, time.UTC))
	if err != nil {
		t.Fatal(err)
	}
	data, err := wire.Encode(e)
	if err != nil {
		t.Fatal(err)
	}
	s, err := manifest.NewTrust("acme/config", data)
	if err != nil {
		t.Fatal(err)
	}
	k, err := s.Keys()
	if err != nil {
		t.Fatal(err)
	}
	r := k.Roles
	if k.Version != 1 || k.Era != 1 || r.Root.Threshold != 1 || r.Root.Keys[0] != set.Root.KeyID() || r.Release[0].Key != set.Release.KeyID() || r.Release[0].LastEpoch != 0 ||
		r.Rollout[0] != set.Rollout.KeyID() || r.Operator[0].Key != set.Operator.KeyID() || r.Operator[0].Cohorts[0] != "*" || r.Operator[0].MaxTTL != "24h0m0s" || len(k.Keys) != 4 {
		t.Errorf("%+v", k)
	}
	if _, err := set.Keyring("../x", time.Now()); err == nil {
		t.Error("a repo name that is none")
	}
	set.Rollout = set.Release
	if _, err := set.Keyring("acme/config", time.Now()); err == nil {
		t.Error("one key for two roles")
	}
}
