package install_test

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/muster-config/muster/agent/agenttest"
	"github.com/muster-config/muster/agent/install"
)

// mount gives a file system of its own. It takes root's rights; without them there is a user's way to none.
func mount(t *testing.T, kind, options string) string {
	t.Helper()
	dir := t.TempDir()
	mountAt(t, dir, kind, options)
	return dir
}

func mountAt(t *testing.T, dir, kind, options string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: a file system of its own needs root")
	}
	if err := unix.Mount("muster-test", dir, kind, 0, options); err != nil {
		t.Fatalf("mount: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Errorf("unmount: %v", err)
		}
	})
}

func remount(t *testing.T, dir, options string) {
	t.Helper()
	if err := unix.Mount("", dir, "", unix.MS_REMOUNT, options); err != nil {
		t.Fatalf("remount: %v", err)
	}
}

// as calls f with the rights of another user, on a thread that ends with it. Root's own rights would hide what is missing.
func as(t *testing.T, uid int, f func() error) error {
	t.Helper()
	if os.Geteuid() != 0 {
		return f()
	}
	out := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread goes with the goroutine
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, ^uintptr(0), uintptr(uid), ^uintptr(0)); errno != 0 {
			out <- errno
			return
		}
		out <- f()
	}()
	return <-out
}

// B075: a mount of one installed file keeps showing the release that it was made from. It is found, as is a mount inside the releases; one of the whole root is
// what is wanted, and is none.
func TestB075Mounts(t *testing.T) {
	base := mount(t, "tmpfs", "") // root's rights, or none of this
	s := newSite(t, filepath.Join(base, "a b"))
	s.install(s.world.Release(agenttest.Files{"checkout/checkout.yaml": "one"}))
	in, err := s.root.Current(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	found := func(want ...string) {
		t.Helper()
		got, err := install.Mounts(s.root.Path())
		if err != nil || len(got) != len(want) {
			t.Fatalf("%q, %v; want %q", got, err, want)
		}
		for i := range want {
			if !strings.Contains(got[i], want[i]) {
				t.Errorf("%q, want %q", got[i], want[i])
			}
		}
	}
	bind := func(from, to string) {
		t.Helper()
		if err := unix.Mount(from, to, "", unix.MS_BIND, ""); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Unmount(to, unix.MNT_DETACH) })
	}
	found()
	elsewhere := t.TempDir()
	whole, one := filepath.Join(elsewhere, "root"), filepath.Join(elsewhere, "file")
	if err := errors.Join(os.Mkdir(whole, 0o755), os.WriteFile(one, nil, 0o644)); err != nil {
		t.Fatal(err)
	}
	bind(s.root.Path(), whole)
	found()
	bind(filepath.Join(in.Dir, "checkout/checkout.yaml"), one)
	found(one + " is a mount of ")
	s.install(s.world.Release(agenttest.Files{"checkout/checkout.yaml": "two"}))
	if data, err := os.ReadFile(one); string(data) != "one" {
		t.Errorf("the mount shows %q, %v", data, err)
	}
	if data, err := os.ReadFile(filepath.Join(whole, "current/checkout/checkout.yaml")); string(data) != "two" {
		t.Errorf("the mount of the root shows %q, %v", data, err)
	}
	mountAt(t, filepath.Join(in.Dir, "checkout"), "tmpfs", "")
	found(one+" is a mount of ", in.Dir+"/checkout is a mount point")
}
