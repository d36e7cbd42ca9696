package dir

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/muster-config/muster/distributor/store"
)

// What the system says, and what the user reads.
func TestErrorsOfTheSystem(t *testing.T) {
	s := &Store{root: "/srv/muster"}
	for _, tc := range []struct {
		errno syscall.Errno
		want  error
		text  string
	}{
		{syscall.EACCES, store.ErrDenied, "permission denied"},
		{syscall.EPERM, store.ErrDenied, "operation not permitted"},
		{syscall.EROFS, store.ErrReadOnly, "read-only"},
		{syscall.ENOSPC, store.ErrFull, "the disk is full"},
		{syscall.EDQUOT, syscall.EDQUOT, "the disk is full"},
		{syscall.ENOENT, store.ErrNotFound, "not found"},
		{syscall.EIO, syscall.EIO, "input/output error"},
	} {
		err := s.fail("put", "cohorts/prod.json", &fs.PathError{Op: "open", Path: "/srv/muster/cohorts/.tmp-X", Err: tc.errno})
		if !errors.Is(err, tc.want) {
			t.Errorf("%v: %v, want %v", tc.errno, err, tc.want)
		}
		for _, part := range []string{"put", "cohorts/prod.json", "/srv/muster", tc.text} {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%v: %q does not say %q", tc.errno, err, part)
			}
		}
	}
}

// A full disk leaves the old object and no rest. The limit on file sizes of this process stands in for it.
func TestWriteFailsHalfway(t *testing.T) {
	s, err := Open(filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Put(t.Context(), "a/x", []byte("old")); err != nil {
		t.Fatal(err)
	}
	var before syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_FSIZE, &before); err != nil {
		t.Fatal(err)
	}
	small := before
	small.Cur = 10_000
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &small); err != nil {
		t.Fatal(err)
	}
	err = s.Put(t.Context(), "a/x", make([]byte, 50_000))
	if rerr := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &before); rerr != nil {
		t.Fatal(rerr)
	}
	if !errors.Is(err, syscall.EFBIG) {
		t.Errorf("%v, want EFBIG", err)
	}
	if o, err := s.Get(t.Context(), "a/x", 100); err != nil || string(o.Data) != "old" {
		t.Errorf("then it holds %q, %v", o.Data, err)
	}
	if err != nil && (strings.Contains(err.Error(), tmpPrefix) || !strings.Contains(err.Error(), filepath.Join(s.root, "a", "x"))) {
		t.Errorf("%v: it is to read the same each time, and to name the file", err)
	}
	if entries, _ := os.ReadDir(filepath.Join(s.root, "a")); len(entries) != 1 {
		t.Errorf("left over: %v", entries)
	}
}

// A process that was stopped while it held the lock must not hang others for ever, and they say what they wait for.
func TestLockHeldByAnother(t *testing.T) {
	s, err := Open(filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	token, err := s.Create(t.Context(), "head", []byte("one"))
	if err != nil {
		t.Fatal(err)
	}
	unlock, err := s.lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err = s.Replace(ctx, "head", []byte("two"), token)
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), ".lock, which another process holds") {
		t.Errorf("%v", err)
	}
	if o, err := s.Get(t.Context(), "head", 10); err != nil || string(o.Data) != "one" {
		t.Errorf("reading needs no lock: %q, %v", o.Data, err)
	}
	unlock()
	if _, err := s.Replace(t.Context(), "head", []byte("two"), token); err != nil {
		t.Errorf("after the lock is free: %v", err)
	}
}
