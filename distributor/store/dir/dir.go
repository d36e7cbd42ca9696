// Package dir is a store in a directory: file://. One file per key with the bytes as stored. Compare-and-swap holds across processes on one machine:
// creation is link(2), replacement is compare and rename under flock(2), or what Windows has in their place. Names that begin with a dot are the store's own and never listed.
package dir

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"syscall"

	"github.com/muster-config/muster/distributor/store"
)

// Store is a directory. It is made by the first write: reading a store that is not there finds nothing and leaves nothing behind.
type Store struct {
	root string

	mu    sync.Mutex
	swept map[string]bool // directories whose left-over temporary files this store has removed
}

var _ store.Store = (*Store)(nil)

// Open uses the directory at path. It fails if path is there and is something else.
func Open(path string) (*Store, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("store %s: %w", path, err)
	}
	if info, err := os.Stat(abs); err == nil && !info.IsDir() {
		return nil, fmt.Errorf("store %s: is not a directory", abs)
	} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("store %s: %w", abs, classify(err))
	}
	return &Store{root: abs, swept: map[string]bool{}}, nil
}

// URL is the file:// address.
func (s *Store) URL() string {
	return (&url.URL{Scheme: "file", Path: urlPath(s.root, onWindows)}).String()
}

// Get reads an object.
func (s *Store) Get(ctx context.Context, key string, limit int64) (store.Object, error) {
	data, err := s.read(ctx, key, limit)
	if err != nil {
		return store.Object{}, s.fail("get", key, err)
	}
	return store.Object{Data: data, Token: tokenOf(data)}, nil
}

// GetIfChanged reads an object unless it still has token.
func (s *Store) GetIfChanged(ctx context.Context, key string, token store.Token, limit int64) (store.Object, error) {
	o, err := s.Get(ctx, key, limit)
	if err == nil && o.Token == token {
		return store.Object{}, store.ErrNotModified
	}
	return o, err
}

// Open streams an object.
func (s *Store) Open(ctx context.Context, key string) (io.ReadCloser, int64, error) {
	f, size, err := s.open(ctx, key)
	if err != nil {
		return nil, 0, s.fail("open", key, err)
	}
	return &whole{File: f, left: size}, size, nil
}

// whole turns an early end of the file (somebody cut it while it was read) into an error.
type whole struct {
	*os.File
	left int64
}

func (w *whole) Read(p []byte) (int, error) {
	n, err := w.File.Read(p)
	w.left -= int64(n)
	if errors.Is(err, io.EOF) && w.left != 0 {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

// WriteTo keeps os.File's own WriteTo from going around Read.
func (w *whole) WriteTo(dst io.Writer) (int64, error) {
	return io.Copy(dst, struct{ io.Reader }{w})
}

func (s *Store) read(ctx context.Context, key string, limit int64) ([]byte, error) {
	f, size, err := s.open(ctx, key)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if size > limit {
		return nil, fmt.Errorf("%d bytes, at most %d allowed: %w", size, limit, store.ErrTooLarge)
	}
	data := make([]byte, size)
	if _, err := io.ReadFull(f, data); err != nil {
		return nil, err
	}
	return data, nil
}

// open opens the file of a key.
func (s *Store) open(ctx context.Context, key string) (*os.File, int64, error) {
	if err := ctx.Err(); err != nil {
		return nil, 0, err
	}
	path, err := s.path(key)
	if err != nil {
		return nil, 0, err
	}
	f, err := openPlain(path)
	if errors.Is(err, errLink) {
		return nil, 0, fmt.Errorf("%s is a symbolic link; a store holds plain files only", path)
	}
	if err != nil {
		return nil, 0, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is not a regular file", path)
		if info.IsDir() {
			err = store.ErrNotFound // other keys live below it, as in an object store
		}
	}
	if err != nil {
		f.Close()
		return nil, 0, err
	}
	return f, info.Size(), nil
}

// path is the file of a key. All directories on the way are plain ones: through a link the store would read and write outside of itself.
func (s *Store) path(key string) (string, error) {
	if err := store.CheckKey(key); err != nil {
		return "", err
	}
	if onWindows {
		if err := checkWindowsKey(key); err != nil {
			return "", err
		}
	}
	path := filepath.Join(s.root, filepath.FromSlash(key))
	for dir := filepath.Dir(path); len(dir) > len(s.root); dir = filepath.Dir(dir) {
		info, err := os.Lstat(dir)
		switch {
		case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR):
		case err != nil:
			return "", err
		case info.Mode()&(fs.ModeSymlink|fs.ModeIrregular) != 0: // irregular: a junction of Windows
			return "", fmt.Errorf("%s is a symbolic link; a store holds plain directories only", dir)
		}
	}
	return path, nil
}

// Put stores a blob over what is there: a rename, so that a reader sees the old bytes or the new.
func (s *Store) Put(ctx context.Context, key string, data []byte) error {
	err := s.staged(ctx, key, data, func(tmp, path string) error {
		return rename(tmp, path)
	})
	return s.fail("put", key, err)
}

// Create makes a register: appear fails if the name is taken, and shows the whole file at once.
func (s *Store) Create(ctx context.Context, key string, data []byte) (store.Token, error) {
	if len(data) > store.MaxRegister {
		return "", s.fail("create", key, fmt.Errorf("%d bytes, at most %d allowed: %w", len(data), store.MaxRegister, store.ErrTooLarge))
	}
	err := s.staged(ctx, key, data, func(tmp, path string) error {
		err := named(appear(tmp, path), tmp, path)
		switch {
		case errors.Is(err, fs.ErrExist):
			// A link, a pipe or a directory under the name is no object of ours, and is never followed.
			if info, serr := os.Lstat(path); serr == nil && !info.Mode().IsRegular() {
				return store.ErrExists
			}
			if same, rerr := s.holds(ctx, key, data); rerr != nil || same {
				return rerr
			}
			return store.ErrExists
		case noLinks(err):
			return fmt.Errorf("the file system has no hard links (%w): %w", err, store.ErrNoCAS)
		}
		return err
	})
	if err != nil {
		return "", s.fail("create", key, err)
	}
	return tokenOf(data), nil
}

// Replace overwrites a register under the store's lock.
func (s *Store) Replace(ctx context.Context, key string, data []byte, token store.Token) (store.Token, error) {
	if len(data) > store.MaxRegister {
		return "", s.fail("replace", key, fmt.Errorf("%d bytes, at most %d allowed: %w", len(data), store.MaxRegister, store.ErrTooLarge))
	}
	// Only what is there is replaced, so that a missing store stays missing.
	if _, err := s.read(ctx, key, store.MaxRegister); errors.Is(err, fs.ErrNotExist) || errors.Is(err, store.ErrNotFound) {
		return "", s.fail("replace", key, fmt.Errorf("it is gone: %w", store.ErrConflict))
	} else if err != nil {
		return "", s.fail("replace", key, err)
	}
	err := s.staged(ctx, key, data, func(tmp, path string) error {
		unlock, err := s.lock(ctx)
		if err != nil {
			return err
		}
		defer unlock()
		now, err := s.read(ctx, key, store.MaxRegister)
		switch {
		case errors.Is(err, fs.ErrNotExist), errors.Is(err, store.ErrNotFound):
			return fmt.Errorf("it is gone: %w", store.ErrConflict)
		case err != nil:
			return err
		case tokenOf(now) == token:
			return rename(tmp, path)
		case bytes.Equal(now, data):
			return nil
		}
		return store.ErrConflict
	})
	if err != nil {
		return "", s.fail("replace", key, err)
	}
	return tokenOf(data), nil
}

func (s *Store) holds(ctx context.Context, key string, data []byte) (bool, error) {
	now, err := s.read(ctx, key, int64(len(data)))
	switch {
	case errors.Is(err, store.ErrTooLarge):
		return false, nil
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, store.ErrNotFound):
		return false, nil // a directory, or removed since: either way not ours
	}
	return bytes.Equal(now, data), err
}

// Delete removes an object, under the lock: between compare and rename of a Replace nothing may vanish.
func (s *Store) Delete(ctx context.Context, key string) error {
	path, err := s.path(key)
	if err != nil {
		return s.fail("delete", key, err)
	}
	if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		return nil
	}
	unlock, err := s.lock(ctx)
	if err != nil {
		return s.fail("delete", key, err)
	}
	defer unlock()
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return s.fail("delete", key, err)
	case info.IsDir():
		return nil
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return s.fail("delete", key, err)
	}
	return s.fail("delete", key, syncDir(filepath.Dir(path)))
}

// tokenOf is a digest of the content: a register that went from A over B back to A is in every respect what it was.
func tokenOf(data []byte) store.Token {
	sum := sha256.Sum256(data)
	return store.Token(hex.EncodeToString(sum[:]))
}

func (s *Store) fail(op, key string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s %s in %s: %w", op, key, s.root, classify(err))
}

// classify adds the store's own error to the system's, and the next step where there is one.
func classify(err error) error {
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR):
		return store.ErrNotFound
	case errors.Is(err, syscall.EROFS):
		return fmt.Errorf("%w: %w", store.ErrReadOnly, err)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%w: %w", store.ErrDenied, err)
	case diskFull(err):
		return fmt.Errorf("%w; free some space and try again: %w", store.ErrFull, err)
	}
	return err
}
