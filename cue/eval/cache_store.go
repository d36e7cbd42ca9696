package eval

import (
	"bytes"
	"crypto/sha256"
	"debug/elf"
	"encoding/hex"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"
)

const (
	cacheLimit = 512 << 20 // bytes of all entries, more or less
	entryMagic = "muster evaluation 1\n"
	entryHead  = len(entryMagic) + 2*sha256.Size // key, then checksum of key and content
	// touchAfter is how old the time of an entry's last use may get: to write it at each use would cost more than it is worth.
	touchAfter = 24 * time.Hour
	// staleAfter is when a temporary file belongs to nobody any more.
	staleAfter = time.Hour
	// writtenUnit is how many written bytes one byte of the file "written" stands for.
	writtenUnit = 64 << 10
)

// cacheStore is a directory of entries that many processes read and write at once. An entry appears whole by a rename and is never changed; nothing is
// synced, since a checksum tells what a crash has damaged.
type cacheStore struct {
	dir   string
	limit int64
	wrote atomic.Int64 // since the last tidy
}

func openCacheStore(dir string) (*cacheStore, error) {
	s := &cacheStore{dir: filepath.Join(dir, "evaluations"), limit: cacheLimit}
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return nil, err
	}
	fi, err := os.Lstat(s.dir)
	if err != nil {
		return nil, err
	}
	if !fi.IsDir() || !ours(fi) {
		return nil, fmt.Errorf("%s is not a directory of this user: remove it, or choose another place", s.dir)
	}
	// Whoever can write here decides what is rendered.
	if fi.Mode().Perm()&0o077 != 0 {
		if err := os.Chmod(s.dir, 0o700); err != nil {
			return nil, err
		}
	}
	return s, nil
}

func (s *cacheStore) path(key cacheKey) string {
	name := hex.EncodeToString(key[:])
	return filepath.Join(s.dir, name[:2], name[2:])
}

func checksum(key cacheKey, content []byte) cacheKey {
	h := sha256.New()
	h.Write(key[:])
	h.Write(content)
	return cacheKey(h.Sum(nil))
}

// get reads an entry. Damaged, cut or foreign ones are none.
func (s *cacheStore) get(key cacheKey) ([]byte, bool) {
	name := s.path(key)
	f, err := os.OpenFile(name, os.O_RDONLY|noWait, 0) // something else in its place must not hold up the reader
	if err != nil {
		return nil, false
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil || !fi.Mode().IsRegular() || fi.Size() < int64(entryHead) || fi.Size() > s.limit {
		return nil, false
	}
	data := make([]byte, fi.Size())
	if _, err := io.ReadFull(f, data); err != nil {
		return nil, false
	}
	head, content := data[:entryHead], data[entryHead:]
	sum := checksum(key, content)
	if string(head[:len(entryMagic)]) != entryMagic || !bytes.Equal(head[len(entryMagic):], append(key[:], sum[:]...)) {
		return nil, false
	}
	if now := time.Now(); now.Sub(fi.ModTime()) > touchAfter {
		_ = os.Chtimes(name, now, now) // only the order of eviction
	}
	return content, true
}

// put keeps an entry if it can: a full disk makes the cache cold and nothing else.
func (s *cacheStore) put(key cacheKey, content []byte) {
	if int64(len(content)) > s.limit/8 {
		return
	}
	name := s.path(key)
	sum := checksum(key, content)
	tmp, err := os.CreateTemp(s.dir, "tmp-")
	if err != nil {
		return
	}
	_, err = tmp.Write(slices.Concat([]byte(entryMagic), key[:], sum[:], content))
	if cerr := tmp.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		if err = os.Rename(tmp.Name(), name); os.IsNotExist(err) {
			if err = os.Mkdir(filepath.Dir(name), 0o700); err == nil || os.IsExist(err) {
				err = os.Rename(tmp.Name(), name)
			}
		}
	}
	if err != nil {
		os.Remove(tmp.Name())
		return
	}
	s.wrote.Add(int64(entryHead + len(content)))
}

// tidy notes how much was written, and evicts once that is much since it was last done by anybody.
func (s *cacheStore) tidy() {
	units := (s.wrote.Swap(0) + writtenUnit - 1) / writtenUnit
	if units == 0 {
		return
	}
	// The size of a file is a counter that many processes can add to.
	name := filepath.Join(s.dir, "written")
	f, err := os.OpenFile(name, os.O_CREATE|os.O_WRONLY|os.O_APPEND|noWait, 0o600)
	if err != nil {
		return
	}
	defer f.Close()
	if _, err := f.Write(make([]byte, units)); err != nil {
		return
	}
	if fi, err := f.Stat(); err == nil && fi.Size()*writtenUnit > s.limit/8 {
		_ = f.Truncate(0)
		s.evict()
	}
}

// evict removes what was used longest ago, down to three quarters of the limit, and what a killed process left behind.
func (s *cacheStore) evict() {
	type item struct {
		path string
		size int64
		used time.Time
	}
	var items []item
	var total int64
	now := time.Now()
	_ = filepath.WalkDir(s.dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || d.Name() == "written" {
			return nil //nolint:nilerr // another process removes at the same time
		}
		fi, err := d.Info()
		switch {
		case err != nil:
		case strings.HasPrefix(d.Name(), "tmp-"):
			if now.Sub(fi.ModTime()) > staleAfter {
				os.Remove(name)
			}
		default:
			items = append(items, item{name, fi.Size(), fi.ModTime()})
			total += fi.Size()
		}
		return nil
	})
	if total <= s.limit {
		return
	}
	slices.SortFunc(items, func(a, b item) int { return a.used.Compare(b.used) })
	for _, i := range items {
		if total <= s.limit/4*3 {
			return
		}
		os.Remove(i.path)
		total -= i.size
	}
}

// identify names the program that evaluates: the linker's digest of its content, or that of the file where the format has none. A development build is
// another evaluator each time.
func identify(executable string) (string, error) {
	if f, err := elf.Open(executable); err == nil {
		defer func() { _ = f.Close() }()
		if note := f.Section(".note.go.buildid"); note != nil {
			if id, err := note.Data(); err == nil && bytes.Count(id, []byte("/")) == 3 { // one given by hand has another form
				return hex.EncodeToString(id), nil
			}
		}
	}
	f, err := os.Open(executable)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}
