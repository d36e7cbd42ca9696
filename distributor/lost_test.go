package distributor_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/muster-config/muster/distributor"
	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/store/dir"
)

// A store that lost objects is never begun anew in part: an epoch, an identity and a keyring are given out once.
func TestLostObjects(t *testing.T) {
	for name, lose := range map[string][]string{
		"the newest release": {manifest.KeyRelease(2)},
		"all releases":       {manifest.KeyRelease(1), manifest.KeyRelease(2)},
		"the identity":       {manifest.KeyStore},
		"the keyring":        {manifest.KeyKeyring(1)},
	} {
		t.Run(name, func(t *testing.T) {
			var h history
			p := newPlace(t, nil)
			c1 := h.commit("", "prod/checkout=a")
			p.mustPublish(h.job(c1), true)
			c2 := h.commit(c1, "prod/checkout=b")
			p.mustPublish(h.job(c2), true)
			for _, key := range lose {
				if err := p.store.Delete(t.Context(), key); err != nil {
					t.Fatal(err)
				}
			}
			before := dump(t, p.store)
			_, err := p.publish(h.job(h.commit(c2, "prod/checkout=c")), true)
			if !errors.Is(err, distributor.ErrDamaged) || !strings.Contains(err.Error(), "restore") {
				t.Errorf("publish: %v", err)
			}
			after := dump(t, p.store)
			for key := range after {
				if _, ok := before[key]; !ok && !strings.HasPrefix(key, manifest.PrefixCommits) {
					t.Errorf("%s was written", key)
				}
			}
		})
	}
}

// Names that are no release do not hide those that are, also when there are more than one list gives.
func TestStrayNames(t *testing.T) {
	var h history
	p := newPlace(t, nil)
	c1 := h.commit("", "prod/checkout=a")
	p.mustPublish(h.job(c1), false)
	last := c1
	const many = 1005
	for i := 2; i <= many; i++ {
		if err := p.store.Put(t.Context(), manifest.KeyRelease(uint64(i)), []byte("junk")); err != nil {
			t.Fatal(err)
		}
	}
	for _, stray := range []string{"-1.json", "00000000000000000005.json.bak", "zzz"} {
		if err := p.store.Put(t.Context(), manifest.PrefixReleases+stray, []byte("x")); err != nil {
			t.Fatal(err)
		}
		last = h.commit(last, fmt.Sprintf("prod/checkout=%s", stray))
		res := p.mustPublish(h.job(last), false)
		if res.Epoch <= many || res.Epoch > many+3 {
			t.Fatalf("with %s: epoch %d", stray, res.Epoch)
		}
	}
}

// In a store of files anything may lie under the next release's name; it burns the number and no more.
func TestEpochTakenByNoObject(t *testing.T) {
	for name, put := range map[string]func(path string) error{
		"directory": func(path string) error { return os.Mkdir(path, 0o755) },
		"link":      func(path string) error { return os.Symlink("/etc/passwd", path) },
		"dangling":  func(path string) error { return os.Symlink("nowhere", path) },
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			st, err := dir.Open(root)
			if err != nil {
				t.Fatal(err)
			}
			var h history
			p := newPlace(t, st)
			c1 := h.commit("", "prod/checkout=a")
			p.mustPublish(h.job(c1), true)
			if err := put(filepath.Join(root, manifest.KeyRelease(2))); err != nil {
				t.Fatal(err)
			}
			if res := p.mustPublish(h.job(h.commit(c1, "prod/checkout=b")), true); res.Epoch != 3 {
				t.Errorf("epoch %d", res.Epoch)
			}
		})
	}
}

// One object that cannot be read is a fault of its own; the rest is still checked.
func TestFsckUnreadableObjects(t *testing.T) {
	root := t.TempDir()
	st, err := dir.Open(root)
	if err != nil {
		t.Fatal(err)
	}
	var h history
	p := newPlace(t, st)
	res := p.mustPublish(h.job(h.commit("", "prod/checkout=a", "staging/checkout=b")), true)
	keys := []string{manifest.KeyBundle(res.Cohorts["prod"].Bundle), manifest.KeyBundle(res.Cohorts["staging"].Bundle), manifest.KeyHead("prod")}
	for _, key := range keys {
		path := filepath.Join(root, key)
		if err := errors.Join(os.Remove(path), os.Symlink("/etc/hostname", path)); err != nil {
			t.Fatal(err)
		}
	}
	report, err := distributor.Fsck(t.Context(), st, nil, p.now)
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range keys {
		if !strings.Contains(fmt.Sprint(report.Problems), key) {
			t.Errorf("%s is not among the problems: %v", key, report.Problems)
		}
	}
}
