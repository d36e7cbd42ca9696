package dir

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	mrand "math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

const (
	tmpPrefix = ".tmp-"
	lockName  = ".lock"
	// A temporary file lives for the length of one write. After this long it is the rest of a crash.
	tmpAge = time.Hour
)

// staged writes data durably to a temporary file beside the key's, lets commit move it into place and makes that durable. A crash at any point
// leaves the old object or the new one, and at most a temporary file that a later write sweeps away.
func (s *Store) staged(ctx context.Context, key string, data []byte, commit func(tmp, path string) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	path, err := s.path(key)
	if err != nil {
		return err
	}
	dir := filepath.Dir(path)
	if err := mkdirAll(dir); err != nil {
		return err
	}
	s.sweep(dir)
	tmp := filepath.Join(dir, tmpPrefix+rand.Text())
	defer os.Remove(tmp) // after a rename it is gone already
	if err := writeFile(tmp, data); err != nil {
		return named(err, tmp, path)
	}
	if err := commit(tmp, path); err != nil {
		return named(err, tmp, path)
	}
	return syncDir(dir)
}

// named has an error of the system name the key's file in place of the temporary one: its name is another one each time, and the same trouble is to read the same.
func named(err error, tmp, path string) error {
	var file *fs.PathError
	if errors.As(err, &file) && file.Path == tmp {
		file.Path = path
	}
	var link *os.LinkError
	if errors.As(err, &link) && link.Old == tmp {
		link.Old = filepath.Dir(path)
	}
	return err
}

func writeFile(path string, data []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	return err
}

// mkdirAll makes path and makes each new name durable in its parent.
func mkdirAll(path string) error {
	info, err := os.Stat(path)
	switch {
	case err == nil && info.IsDir():
		return nil
	case err == nil:
		return fmt.Errorf("%s is there and is not a directory", path)
	case errors.Is(err, syscall.ENOTDIR):
		return fmt.Errorf("a file is in the way of the directory %s", path)
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	parent := filepath.Dir(path)
	if err := mkdirAll(parent); err != nil {
		return err
	}
	if err := os.Mkdir(path, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return syncDir(parent)
}

// sweep removes what crashed writers left in a directory, once for each. It never blocks a write: what it cannot remove, List passes over.
func (s *Store) sweep(dir string) {
	s.mu.Lock()
	done := s.swept[dir]
	s.swept[dir] = true
	s.mu.Unlock()
	if done {
		return
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), tmpPrefix) {
			continue
		}
		if info, err := e.Info(); err == nil && info.Mode().IsRegular() && time.Since(info.ModTime()) > tmpAge {
			os.Remove(filepath.Join(dir, e.Name()))
		}
	}
}

// lock takes the store's lock, across processes. It is held for a compare and a rename, so waiting is by trying again; a process that was stopped
// while it held the lock shows as a clear error when ctx ends.
func (s *Store) lock(ctx context.Context) (unlock func(), err error) {
	path := filepath.Join(s.root, lockName)
	f, err := openLock(path)
	if err != nil {
		return nil, err
	}
	for wait := 100 * time.Microsecond; ; wait = min(2*wait, 10*time.Millisecond) {
		taken, err := tryLock(f)
		switch {
		case err != nil:
			f.Close()
			return nil, fmt.Errorf("lock %s: %w", path, err)
		case taken:
			return func() { f.Close() }, nil // closing unlocks
		}
		select {
		case <-ctx.Done():
			f.Close()
			return nil, fmt.Errorf("lock %s, which another process holds: %w", path, ctx.Err())
		case <-time.After(wait + mrand.N(wait)):
		}
	}
}
