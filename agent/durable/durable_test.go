package durable_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-config/muster/agent/durable"
)

// traced records the calls of a Disk, with random names made plain, and fails the n-th.
type traced struct {
	dir    string
	calls  []string
	failAt int
}

func (r *traced) disk() durable.Disk {
	return durable.Disk{Trace: func(op durable.Op, path string) error {
		name := strings.TrimPrefix(strings.TrimPrefix(path, r.dir), "/")
		if i := strings.Index(name, ".tmp-"); i >= 0 {
			name = name[:i] + "TMP"
		}
		r.calls = append(r.calls, strings.TrimSpace(string(op)+" "+name))
		if len(r.calls) == r.failAt {
			return syscall.EIO
		}
		return nil
	}}
}

func TestOrderOfCalls(t *testing.T) {
	for name, tc := range map[string]struct {
		do   func(d durable.Disk, dir string) error
		want []string
	}{
		"write file": {func(d durable.Disk, dir string) error { return d.WriteFile(dir+"/f", 0o600, []byte("x")) },
			[]string{"create TMP", "write TMP", "sync TMP", "rename f", "syncdir"}},
		"symlink": {func(d durable.Disk, dir string) error { return d.Symlink("target", dir+"/l") },
			[]string{"symlink TMP", "rename l", "syncdir"}},
		"mkdir all": {func(d durable.Disk, dir string) error { return d.MkdirAll(dir+"/a/b", 0o755) },
			[]string{"mkdir a", "syncdir", "mkdir a/b", "syncdir a"}},
	} {
		t.Run(name, func(t *testing.T) {
			r := &traced{dir: t.TempDir()}
			if err := tc.do(r.disk(), r.dir); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, r.calls); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// A fault at any call leaves the old content or the new one, and no unfinished file.
func TestWriteFileFaults(t *testing.T) {
	for at := 1; ; at++ {
		r := &traced{dir: t.TempDir(), failAt: at}
		f := filepath.Join(r.dir, "f")
		if err := (durable.Disk{}).WriteFile(f, 0o600, []byte("old")); err != nil {
			t.Fatal(err)
		}
		err := r.disk().WriteFile(f, 0o600, []byte("new"))
		data, rerr := os.ReadFile(f)
		if rerr != nil || string(data) != "old" && string(data) != "new" || err == nil && string(data) != "new" {
			t.Errorf("fault %d: %q, %v, %v", at, data, rerr, err)
		}
		if list, _ := os.ReadDir(r.dir); len(list) != 1 {
			t.Errorf("fault %d: left %v", at, list)
		}
		if err == nil {
			break
		}
		if !errors.Is(err, syscall.EIO) {
			t.Errorf("fault %d: %v", at, err)
		}
	}
}

func TestModesIgnoreTheUmask(t *testing.T) {
	defer syscall.Umask(syscall.Umask(0o077))
	dir := t.TempDir()
	d := durable.Disk{}
	for _, mode := range []fs.FileMode{0o400, 0o644, 0o755, 0o777} {
		f := filepath.Join(dir, mode.String())
		if err := d.CreateFile(f, mode|fs.ModeSetuid, strings.NewReader("x")); err != nil {
			t.Fatal(err)
		}
		if info, err := os.Stat(f); err != nil || info.Mode() != mode {
			t.Errorf("%v, %v; want %s", info.Mode(), err, mode)
		}
	}
	if err := d.MkdirAll(filepath.Join(dir, "a/b"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, p := range []string{"a", "a/b"} {
		if info, err := os.Stat(filepath.Join(dir, p)); err != nil || info.Mode().Perm() != 0o755 {
			t.Errorf("%s: %v, %v", p, info.Mode(), err)
		}
	}
}

// A new file is never written through a link, nor over what is there.
func TestCreateFileIsExclusive(t *testing.T) {
	dir := t.TempDir()
	victim, link := filepath.Join(dir, "victim"), filepath.Join(dir, "link")
	if err := os.WriteFile(victim, []byte("mine"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(dir, "new"), link); err != nil {
		t.Fatal(err)
	}
	for _, p := range []string{victim, link} {
		if err := (durable.Disk{}).CreateFile(p, 0o644, strings.NewReader("x")); !errors.Is(err, fs.ErrExist) {
			t.Errorf("%s: %v", p, err)
		}
	}
	if data, _ := os.ReadFile(victim); string(data) != "mine" {
		t.Errorf("%q", data)
	}
	// A link onto a link to a directory replaces the link and does not go into the directory (B064).
	sub := filepath.Join(dir, "sub")
	if err := os.Mkdir(sub, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, to := range []string{"sub", "victim", "sub"} {
		if err := (durable.Disk{}).Symlink(to, filepath.Join(dir, "current")); err != nil {
			t.Fatal(err)
		}
	}
	if list, _ := os.ReadDir(sub); len(list) > 0 {
		t.Errorf("something was put into the directory: %v", list)
	}
}

// Aside gives a second name and leaves the first; a name that is taken by another file is not touched, one that a crash left is as good as made.
func TestAside(t *testing.T) {
	r := &traced{dir: t.TempDir()}
	d := r.disk()
	f, second := filepath.Join(r.dir, "f"), filepath.Join(r.dir, "f.aside")
	if err := os.WriteFile(f, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := d.Aside(f, second); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff([]string{"link f.aside", "syncdir", "link f.aside", "syncdir"}, r.calls); diff != "" {
		t.Error(diff)
	}
	a, aerr := os.Stat(f)
	b, berr := os.Stat(second)
	if aerr != nil || berr != nil || !os.SameFile(a, b) {
		t.Errorf("%v, %v", aerr, berr)
	}
	other := filepath.Join(r.dir, "other")
	if err := os.WriteFile(other, []byte("other"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := d.Aside(other, second); !errors.Is(err, fs.ErrExist) {
		t.Error(err)
	}
	if err := d.Remove(second); err != nil {
		t.Error(err)
	}
	if err := d.Remove(second); err != nil {
		t.Errorf("what is gone is removed: %v", err)
	}
	if data, err := os.ReadFile(f); string(data) != "mine" {
		t.Errorf("%q, %v", data, err)
	}
	for at, do := range map[int]func(durable.Disk) error{1: func(d durable.Disk) error { return d.Aside(f, second) }, 2: func(d durable.Disk) error { return d.Remove(other) }} {
		r := &traced{dir: r.dir, failAt: at}
		if err := do(r.disk()); !errors.Is(err, syscall.EIO) {
			t.Errorf("fault %d: %v", at, err)
		}
	}
}

// The owner is set while a file is empty, before its mode is.
func TestCreateOwned(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: to give files away needs root")
	}
	r := &traced{dir: t.TempDir()}
	f := filepath.Join(r.dir, "f")
	if err := r.disk().CreateOwned(f, 0o640, durable.Owner{UID: 1, GID: durable.Keep}, strings.NewReader("secret")); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"create f", "chown f", "write f", "sync f"}, r.calls); diff != "" {
		t.Error(diff)
	}
	info, err := os.Stat(f)
	if err != nil || info.Mode() != 0o640 || info.Sys().(*syscall.Stat_t).Uid != 1 || info.Sys().(*syscall.Stat_t).Gid != 0 {
		t.Errorf("%+v, %v", info, err)
	}
}
