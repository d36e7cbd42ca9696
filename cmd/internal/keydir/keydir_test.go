package keydir

import (
	"bytes"
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-config/muster/cmd/internal/cli"
	"github.com/muster-config/muster/distributor/keys"
	"github.com/muster-config/muster/distributor/manifest"
)

func TestCreate(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "deep", "keys")
	if err := Create(dir, "acme/config", time.Now()); err != nil {
		t.Fatal(err)
	}
	modes := map[string]fs.FileMode{}
	err := filepath.WalkDir(filepath.Dir(dir), func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		rel, _ := filepath.Rel(dir, path)
		modes[rel] = info.Mode().Perm()
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]fs.FileMode{Root: 0o600, Release: 0o600, Rollout: 0o600, Operator: 0o600, Keyring: 0o644}
	if diff := cmp.Diff(want, modes); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}

	data, repo, err := ReadKeyring(filepath.Join(dir, Keyring))
	if err != nil || repo != "acme/config" {
		t.Fatalf("ReadKeyring: %q, %v", repo, err)
	}
	ring, err := manifest.VerifyKeyring(data)
	if err != nil {
		t.Fatal(err)
	}
	id := func(name string) string {
		k, err := keys.Open(context.Background(), filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		return k.KeyID()
	}
	roles := manifest.Roles{
		Root:     manifest.RootRole{Keys: []string{id(Root)}, Threshold: 1},
		Release:  []manifest.ReleaseRole{{Key: id(Release)}},
		Rollout:  []string{id(Rollout)},
		Operator: []manifest.OperatorRole{{Key: id(Operator), Cohorts: []string{"*"}, MaxTTL: "24h0m0s"}},
	}
	if diff := cmp.Diff(roles, ring.Roles); diff != "" {
		t.Errorf("roles (-want +got):\n%s", diff)
	}

	// Keys are never overwritten.
	before, _ := os.ReadFile(filepath.Join(dir, Release))
	if err := Create(dir, "acme/config", time.Now()); cli.CodeOf(err) != cli.Usage {
		t.Errorf("second Create: %v", err)
	}
	if after, _ := os.ReadFile(filepath.Join(dir, Release)); !bytes.Equal(before, after) {
		t.Error("second Create changed a key")
	}
}

func TestReadKeyringRefuses(t *testing.T) {
	dir := t.TempDir()
	bad := filepath.Join(dir, "keyring.json")
	if err := os.WriteFile(bad, []byte(`{"payloadType":"x","payload":"e30=","signatures":[]}`), 0o644); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]int{bad: cli.NotTrusted, filepath.Join(dir, "none.json"): cli.Local} {
		if _, _, err := ReadKeyring(path); cli.CodeOf(err) != want {
			t.Errorf("%s: code %d (%v), want %d", path, cli.CodeOf(err), err, want)
		}
	}
}
