package dir

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/muster-config/muster/distributor/store"
)

// List lists in byte order of the keys. Directories are read only where keys of the answer can be: below prefix and not wholly before after.
func (s *Store) List(ctx context.Context, prefix, after string, limit int) ([]store.Info, error) {
	l := lister{ctx: ctx, root: s.root, prefix: prefix, after: after, limit: limit}
	if err := l.walk(""); err != nil {
		return nil, fmt.Errorf("list %s in %s: %w", prefix, s.root, classify(err))
	}
	return l.infos, nil
}

type lister struct {
	ctx           context.Context
	root          string
	prefix, after string
	limit         int
	infos         []store.Info
}

// walk lists the directory of keys that begin with base ("" or ending in a slash).
func (l *lister) walk(base string) error {
	if err := l.ctx.Err(); err != nil {
		return err
	}
	entries, err := os.ReadDir(filepath.Join(l.root, filepath.FromSlash(base)))
	if errors.Is(err, fs.ErrNotExist) {
		return nil // an empty store, or a directory that went while we listed
	}
	if err != nil {
		return err
	}
	// In key order a directory sorts as its name with a slash: "a-b" is before "a/b".
	names := make([]string, 0, len(entries))
	kinds := make(map[string]fs.DirEntry, len(entries))
	for _, e := range entries {
		name := base + e.Name()
		switch {
		case strings.HasPrefix(e.Name(), "."):
			continue
		case e.IsDir():
			name += "/"
			if !strings.HasPrefix(name, l.prefix) && !strings.HasPrefix(l.prefix, name) {
				continue
			}
			if name < l.after && !strings.HasPrefix(l.after, name) {
				continue
			}
		case !e.Type().IsRegular(), !strings.HasPrefix(name, l.prefix), name <= l.after:
			continue
		}
		if store.CheckKey(strings.TrimSuffix(name, "/")) != nil {
			continue // not written by a store
		}
		names = append(names, name)
		kinds[name] = e
	}
	slices.Sort(names)
	for _, name := range names {
		if len(l.infos) >= l.limit {
			return nil
		}
		if kinds[name].IsDir() {
			if err := l.walk(name); err != nil {
				return err
			}
			continue
		}
		info, err := kinds[name].Info()
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		l.infos = append(l.infos, store.Info{Key: name, Size: info.Size(), Modified: info.ModTime().UTC()})
	}
	return nil
}
