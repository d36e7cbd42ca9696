package source

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/go-git/go-billy/v5/osfs"
	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/cache"
	"github.com/go-git/go-git/v5/plumbing/format/idxfile"
	"github.com/go-git/go-git/v5/plumbing/format/packfile"
	"github.com/go-git/go-git/v5/storage/filesystem"
)

// Each fetch adds a pack, and each pack costs an open file and a look at every read. When there are many, the small ones become one.
const (
	maxPacks  = 48
	smallPack = 4 << 20
	// packWindow is git's own: without deltas, the directories of a thousand commits are a thousand times a directory.
	packWindow = 10
)

// joinPacks is only for a repository of our own. A kill at any point leaves every object in at least one pack.
func (r *Repo) joinPacks(ctx context.Context) error {
	dir := filepath.Join(r.gitDir, "objects", "pack")
	list, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	var small []string
	for _, e := range list {
		base, ok := strings.CutSuffix(e.Name(), ".pack")
		if !ok {
			continue
		}
		fi, err := e.Info()
		if err != nil {
			return err
		}
		if fi.Size() <= smallPack {
			small = append(small, base)
		}
	}
	if len(small) < maxPacks || ctx.Err() != nil {
		return nil
	}
	var want []plumbing.Hash
	for _, base := range small {
		hashes, err := packed(filepath.Join(dir, base+".idx"))
		if err != nil {
			return err
		}
		want = append(want, hashes...)
	}
	slices.SortFunc(want, func(a, b plumbing.Hash) int { return bytes.Compare(a[:], b[:]) })
	want = slices.Compact(want)
	name, err := writePack(r.gitDir, want)
	if err != nil {
		return fmt.Errorf("join packs: %w", errors.Join(err, sweep(dir, "tmp_")))
	}
	// The new index was made by reading the new pack back: what it lists is there.
	got, err := packed(filepath.Join(dir, name+".idx"))
	if err != nil {
		return err
	}
	if !slices.Equal(got, want) {
		return fmt.Errorf("join packs: %d objects became %d", len(want), len(got))
	}
	for _, base := range small {
		if base == name {
			continue
		}
		for _, ext := range []string{".idx", ".pack"} {
			if err := os.Remove(filepath.Join(dir, base+ext)); err != nil {
				return err
			}
		}
	}
	return r.objects.close()
}

// packed lists the objects of a pack in order, by its index.
func packed(name string) ([]plumbing.Hash, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	idx := idxfile.NewMemoryIndex()
	if err := idxfile.NewDecoder(f).Decode(idx); err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Base(name), err)
	}
	iter, err := idx.Entries()
	if err != nil {
		return nil, err
	}
	defer func() { _ = iter.Close() }()
	var out []plumbing.Hash
	for {
		e, err := iter.Next()
		if err != nil {
			break // the end
		}
		out = append(out, e.Hash)
	}
	return out, nil
}

func writePack(gitDir string, objects []plumbing.Hash) (name string, err error) {
	s := filesystem.NewStorageWithOptions(osfs.New(gitDir), cache.NewObjectLRU(cacheSize), filesystem.Options{KeepDescriptors: true})
	defer func() { err = errors.Join(err, s.Close()) }()
	w, err := s.PackfileWriter()
	if err != nil {
		return "", err
	}
	sum, err := packfile.NewEncoder(w, s, false).Encode(objects, packWindow)
	if err := errors.Join(err, w.Close()); err != nil {
		return "", err
	}
	return "pack-" + sum.String(), nil
}
