package source

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/go-git/go-billy/v5/osfs"
	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/cache"
	"github.com/go-git/go-git/v5/storage/filesystem"
	"github.com/go-git/go-git/v5/storage/filesystem/dotgit"
)

// cacheSize holds delta bases and small objects; the tree's own files are not kept here.
const cacheSize = 32 << 20

// largeObject is the size from which go-git does not read an object before it is asked for its bytes.
const largeObject = 1 << 20

// objects reads from a repository's object store and from the stores it borrows from (objects/info/alternates). go-git follows alternates
// only inside the .git directory and opens them anew for each object; here each is a store of its own. go-git's stores are not safe for
// concurrent use, and learn of packs only once: hence the lock and the reopening.
type objects struct {
	mu     sync.Mutex
	dir    string
	stores []*filesystem.ObjectStorage
	absent []string // alternates that are not there
}

func newObjects(dir string) *objects { return &objects{dir: dir} }

func (o *objects) close() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.closeLocked()
}

func (o *objects) closeLocked() error {
	var errs []error
	for _, s := range o.stores {
		errs = append(errs, s.Close())
	}
	o.stores = nil
	return errors.Join(errs...)
}

func (o *objects) openLocked() error {
	if o.stores != nil {
		return nil
	}
	dirs, absent, err := alternates(filepath.Join(o.dir, "objects"))
	if err != nil {
		return err
	}
	o.absent = absent
	shared := cache.NewObjectLRU(cacheSize)
	for _, d := range dirs {
		o.stores = append(o.stores, filesystem.NewObjectStorageWithOptions(
			dotgit.New(osfs.New(filepath.Dir(d))), shared, filesystem.Options{KeepDescriptors: true, LargeObjectThreshold: largeObject}))
	}
	return nil
}

// alternates lists an objects directory and all it borrows from, as git does: relative names start at the objects directory that
// mentions them, at most five levels deep.
func alternates(root string) (dirs, absent []string, err error) {
	dirs = []string{root}
	level := []string{root}
	for range 5 {
		var next []string
		for _, d := range level {
			data, err := readSmall(filepath.Join(d, "info", "alternates"))
			if errors.Is(err, os.ErrNotExist) {
				continue
			}
			if err != nil {
				return nil, nil, fmt.Errorf("alternates: %w", err)
			}
			s := bufio.NewScanner(bytes.NewReader(data))
			for s.Scan() {
				line := s.Text()
				if line == "" || strings.HasPrefix(line, "#") {
					continue
				}
				alt := under(d, line)
				if strings.HasPrefix(line, `"`) || filepath.Base(alt) != "objects" {
					return nil, nil, fmt.Errorf("alternates: object store %s: %w: run git repack -a -d and remove objects/info/alternates", line, ErrUnsupported)
				}
				if fi, err := os.Stat(alt); err != nil || !fi.IsDir() {
					absent = append(absent, alt)
					continue
				}
				if !slices.Contains(dirs, alt) {
					dirs = append(dirs, alt)
					next = append(next, alt)
				}
			}
		}
		level = next
	}
	return dirs, absent, nil
}

// try asks each store. If none answers, packs may have been rewritten under us: all are opened anew, twice.
func (o *objects) try(what string, f func(*filesystem.ObjectStorage) error) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	var worst error
	for range 3 {
		if err := o.openLocked(); err != nil {
			return err
		}
		worst = plumbing.ErrObjectNotFound
		for _, s := range o.stores {
			err := f(s)
			if err == nil {
				return nil
			}
			if !errors.Is(err, plumbing.ErrObjectNotFound) {
				worst = err
			}
		}
		_ = o.closeLocked() // nothing was written: a close that fails loses nothing
	}
	if errors.Is(worst, plumbing.ErrObjectNotFound) && len(o.absent) > 0 {
		return fmt.Errorf("%s: %w: this repository borrows objects from %s (objects/info/alternates), which is not there", what, worst, o.absent[0])
	}
	if errors.Is(worst, plumbing.ErrObjectNotFound) {
		return fmt.Errorf("%s: %w: the clone is partial or damaged; run git fsck, or clone it anew", what, worst)
	}
	return fmt.Errorf("%s: %w", what, worst)
}

// get reads an object whole and checks that its bytes have the id asked for.
func (o *objects) get(t plumbing.ObjectType, h plumbing.Hash) (kind plumbing.ObjectType, data []byte, err error) {
	kind, _, data, err = o.peek(h, math.MaxInt64)
	if err == nil && t != plumbing.AnyObject && kind != t {
		return kind, nil, fmt.Errorf("object %s is a %s, not a %s", h, kind, t)
	}
	return kind, data, err
}

// peek gives an object's type and length, and its bytes, checked, if they are no more than limit. A larger one is not read.
func (o *objects) peek(h plumbing.Hash, limit int64) (kind plumbing.ObjectType, size int64, data []byte, err error) {
	err = o.try("object "+h.String(), func(s *filesystem.ObjectStorage) error {
		obj, err := s.EncodedObject(plumbing.AnyObject, h)
		if err != nil {
			return err
		}
		kind, size, data = obj.Type(), obj.Size(), nil
		if size > limit {
			return nil
		}
		rd, err := obj.Reader()
		if err != nil {
			return err
		}
		defer rd.Close()
		const corrupt = "corrupt: its content does not match its id; run git fsck"
		data = make([]byte, size)
		if _, err := io.ReadFull(rd, data); err != nil {
			return fmt.Errorf("%s: %w", corrupt, err)
		}
		var got plumbing.Hash
		if mem, ok := obj.(*plumbing.MemoryObject); ok {
			got = mem.Hash() // of its content, and remembered
		} else {
			got = plumbing.ComputeHash(kind, data)
		}
		if got != h {
			return errors.New(corrupt)
		}
		return nil
	})
	return kind, size, data, err
}

// withPrefix lists the ids that begin with hex digits, sorted.
func (o *objects) withPrefix(digits string) ([]plumbing.Hash, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	_ = o.closeLocked() // a new pack must be seen
	if err := o.openLocked(); err != nil {
		return nil, err
	}
	even, err := decodeHex(digits[:len(digits)&^1])
	if err != nil {
		return nil, err
	}
	var out []plumbing.Hash
	for _, s := range o.stores {
		hashes, err := s.HashesWithPrefix(even)
		if err != nil {
			return nil, fmt.Errorf("look up %s: %w", digits, err)
		}
		for _, h := range hashes {
			if strings.HasPrefix(h.String(), digits) && !slices.Contains(out, h) {
				out = append(out, h)
			}
		}
	}
	slices.SortFunc(out, func(a, b plumbing.Hash) int { return bytes.Compare(a[:], b[:]) })
	return out, nil
}
