package install_test

import (
	"os"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
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
