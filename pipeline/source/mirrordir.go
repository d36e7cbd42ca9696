package source

import (
	"bytes"
	"context"
	"crypto/sha1"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/go-git/go-git/v5/plumbing"
)

// claim makes the directory ours, or finds that it is, and locks it.
func (m *Mirror) claim() error {
	if err := m.moveAside(); err != nil {
		return err
	}
	if err := os.MkdirAll(m.dir, 0o700); err != nil {
		return err
	}
	_, err := os.Lstat(m.path(markName))
	if errors.Is(err, fs.ErrNotExist) {
		if empty, err := noFiles(m.dir); err != nil {
			return err
		} else if !empty {
			return fmt.Errorf("it holds files that are not muster's: name a directory that is new or empty")
		}
		err = os.WriteFile(m.path(markName), nil, 0o600)
	}
	if err != nil {
		return err
	}
	m.lock, err = os.OpenFile(m.path(lockName), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	taken, err := lockFile(m.lock)
	if err != nil || !taken {
		_ = m.lock.Close()
		if err == nil {
			return fmt.Errorf("%w; end it, or name another directory", ErrMirrorBusy)
		}
		return fmt.Errorf("lock: %w", err)
	}
	return nil
}

// moveAside makes room where a plain file is in the cache's place. It may be anybody's: it is kept.
func (m *Mirror) moveAside() error {
	fi, err := os.Stat(m.dir)
	if errors.Is(err, fs.ErrNotExist) || err == nil && fi.IsDir() {
		return nil
	}
	if err != nil {
		return err
	}
	if !fi.Mode().IsRegular() {
		return errors.New("it is not a directory")
	}
	for i := range 100 {
		to := fmt.Sprintf("%s.old%d", m.dir, i)
		if err := os.Link(m.dir, to); errors.Is(err, fs.ErrExist) {
			continue
		} else if err != nil {
			return err
		}
		m.opts.Warn(fmt.Sprintf("cache %s: a plain file is in its place: moved to %s", m.dir, to))
		return os.Remove(m.dir)
	}
	return errors.New("it is a plain file: move it away")
}

// noFiles reports whether a directory holds nothing but directories, of which nothing can be lost.
func noFiles(dir string) (bool, error) {
	found := errors.New("found")
	err := filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			return found
		}
		return err
	})
	if errors.Is(err, found) {
		return false, nil
	}
	return err == nil, err
}

// prepare sweeps what a killed process left, and throws away a clone that is another remote's or damaged.
func (m *Mirror) prepare(ctx context.Context) error {
	for _, prefix := range []string{"new-", "old-", "tmp_"} {
		if err := sweep(m.dir, prefix); err != nil {
			return err
		}
	}
	mark := []byte("muster keeps a copy of this repository here, and removes it when it is damaged: put nothing else here.\n" + m.remote.shown + "\n")
	old, err := readSmall(m.path(markName))
	if err != nil {
		return err
	}
	_, err = os.Lstat(m.path(repoName))
	there := err == nil
	switch {
	case bytes.Equal(old, mark):
	case there:
		// The mark is written before anything else, so this is another remote's. Its objects are of no use, and its refs would be wrong.
		err = m.throwAway(errors.New("it is the copy of another remote"))
		there = false
		fallthrough
	default:
		if err = errors.Join(ignoreMissing(err), m.writeMark(mark)); err != nil {
			return err
		}
	}
	if !there {
		return ctx.Err()
	}
	if err := sweep(m.path(repoName, "objects", "pack"), "tmp_"); err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ENOTDIR) {
		return err
	}
	if damage := m.check(); damage != nil {
		return m.throwAway(damage)
	}
	if err := m.open(); err != nil {
		return err
	}
	return m.pointTo()
}

func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

func (m *Mirror) writeMark(mark []byte) error {
	tmp := m.path("tmp_mark")
	if err := os.WriteFile(tmp, mark, 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, m.path(markName))
}

// pointTo makes the branch the clone's only one: the cache may have been another branch's, of a name that is a folder now.
func (m *Mirror) pointTo() error {
	head := "ref: refs/heads/" + m.branch + "\n"
	if data, err := readSmall(filepath.Join(m.repo.gitDir, "HEAD")); err == nil && string(data) == head {
		return nil
	}
	if err := os.RemoveAll(filepath.Join(m.repo.gitDir, "refs", "heads")); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Join(m.repo.gitDir, "refs", "heads"), 0o755); err != nil {
		return err
	}
	tmp := filepath.Join(m.repo.gitDir, "tmp_head")
	if err := os.WriteFile(tmp, []byte(head), 0o644); err != nil {
		return err
	}
	return os.Rename(tmp, filepath.Join(m.repo.gitDir, "HEAD"))
}

// throwAway removes the clone, told once. It is renamed first, so that a half of it is never taken for one.
func (m *Mirror) throwAway(damage error) error {
	m.opts.Warn(fmt.Sprintf("cache %s: %s: it is thrown away and fetched again", m.dir, clean(damage.Error())))
	if err := m.closeRepo(); err != nil {
		return err
	}
	m.ready = false
	old, err := os.MkdirTemp(m.dir, "old-")
	if err != nil {
		return err
	}
	if err := os.Rename(m.path(repoName), filepath.Join(old, repoName)); ignoreMissing(err) != nil {
		return err
	}
	return os.RemoveAll(old)
}

// check looks whether the clone can be read: every pack and index whole, and the tip there. It reads all of the packs once, about a second for two gigabytes,
// for a power cut can leave files of zeros under right names.
func (m *Mirror) check() error {
	dir := m.path(repoName)
	if !isGitDir(dir) {
		return errors.New("it is not a complete repository")
	}
	packs := filepath.Join(dir, "objects", "pack")
	list, err := os.ReadDir(packs)
	if err != nil {
		return err
	}
	pairs := map[string]int{}
	for _, e := range list {
		base, ext := strings.TrimSuffix(e.Name(), filepath.Ext(e.Name())), filepath.Ext(e.Name())
		switch ext {
		case ".pack":
			pairs[base]++
		case ".idx":
			pairs[base] += 2
		}
	}
	for base, have := range pairs {
		if have != 3 {
			return fmt.Errorf("%s has no pack, or no index", base)
		}
		pack, err := trailer(filepath.Join(packs, base+".pack"), 0)
		if err != nil {
			return err
		}
		index, err := trailer(filepath.Join(packs, base+".idx"), len(pack))
		if err != nil {
			return err
		}
		if pack != index {
			return fmt.Errorf("%s is not the pack of its index", base)
		}
	}
	r, err := Open(dir)
	if err != nil {
		return err
	}
	defer func() { _ = r.Close() }()
	last, err := r.ref(lastRef)
	if err != nil {
		return err
	}
	c, err := r.commit(last)
	if err != nil {
		return err
	}
	_, _, err = r.objects.get(plumbing.TreeObject, c.TreeHash)
	return err
}

// trailer checks the SHA-1 at the end of a pack or index, and gives the 20 bytes that end back bytes before the end of what it covers: for an index
// that is the pack's own sum.
func trailer(name string, back int) (sum [sha1.Size]byte, err error) {
	f, err := os.Open(name)
	if err != nil {
		return sum, err
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return sum, err
	}
	short := fmt.Errorf("%s is cut short or damaged", filepath.Base(name))
	n := fi.Size() - sha1.Size
	if n < int64(back)+12 {
		return sum, short
	}
	h := sha1.New()
	if _, err := io.CopyN(h, f, n); err != nil {
		return sum, err
	}
	if _, err := io.ReadFull(f, sum[:]); err != nil {
		return sum, err
	}
	if !bytes.Equal(h.Sum(nil), sum[:]) {
		return sum, short
	}
	if back > 0 {
		_, err = f.ReadAt(sum[:], n-int64(back))
	}
	return sum, err
}
