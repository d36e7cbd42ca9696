package source

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/go-git/go-billy/v5/osfs"
	"github.com/go-git/go-git/v5/plumbing/filemode"
	"github.com/go-git/go-git/v5/plumbing/format/index"
	"github.com/go-git/go-git/v5/storage/filesystem"
)

func (r *Repo) readWorkTree() (*tree, error) {
	if r.workTree == "" {
		return nil, fmt.Errorf("%w: the repository is bare; name a revision instead (--rev)", ErrNoWorkTree)
	}
	tracked, err := r.tracked()
	if err != nil {
		return nil, err
	}
	ignored, err := r.standardIgnores()
	if err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(r.workTree)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	id := Identity{WorkTree: true}
	switch head, err := r.resolve("HEAD"); {
	case err == nil:
		id.Commit = head.Hash.String()
	case !errors.Is(err, ErrNoRev): // a first commit need not be there yet
		return nil, err
	}
	w := &diskReader{root: root, b: newBuilder(), tracked: tracked}
	if err := w.dir(".", ignored, false); err != nil {
		return nil, err
	}
	t, err := w.b.finish(id)
	if err != nil {
		return nil, err
	}
	t.id.Tree = digest(t)
	return t, nil
}

// digest names the files' bytes, modes and paths: 64 hex digits.
func digest(t *tree) string {
	h := sha256.New()
	for _, p := range t.files {
		n := t.index[p]
		fmt.Fprintf(h, "%04o %x %s\n", n.mode.Perm(), sha256.Sum256(n.data), p)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// trackedSet holds the paths of the index and their directories: git never ignores what it tracks.
type trackedSet struct {
	files, dirs map[string]bool
	// texts are links that git wrote as files holding the target, where core.symlinks is false.
	texts map[string]bool
}

func (r *Repo) tracked() (*trackedSet, error) {
	const next = "or name a revision instead (--rev HEAD)"
	s := filesystem.NewStorage(osfs.New(r.gitDir), nil)
	idx, err := s.Index()
	switch {
	case errors.Is(err, index.ErrUnknownExtension):
		return nil, fmt.Errorf("index: split or sparse index: %w: run git update-index --no-split-index and git sparse-checkout disable, %s", ErrUnsupported, next)
	case err != nil:
		return nil, fmt.Errorf("index: %w: run git status, %s", err, next)
	}
	cfg, err := readConfig(filepath.Join(r.common, "config"))
	if err != nil {
		return nil, err
	}
	noLinks := strings.EqualFold(cfg.Section("core").Option("symlinks"), "false")
	t := &trackedSet{files: map[string]bool{}, dirs: map[string]bool{}, texts: map[string]bool{}}
	for _, e := range idx.Entries {
		if e.Mode == filemode.Submodule {
			return nil, submodule(e.Name)
		}
		if e.SkipWorktree {
			return nil, refuse(e.Name, "left out of the work tree by a sparse checkout", "run git sparse-checkout disable, "+next)
		}
		t.files[e.Name] = true
		t.texts[e.Name] = noLinks && e.Mode == filemode.Symlink
		for d := path.Dir(e.Name); d != "." && !t.dirs[d]; d = path.Dir(d) {
			t.dirs[d] = true
		}
	}
	return t, nil
}

type diskReader struct {
	root    *os.Root
	b       *builder
	tracked *trackedSet
}

// dir reads one directory. Inside an ignored one only tracked files count, and nothing can be un-ignored.
func (w *diskReader) dir(dir string, ignored ignores, inIgnored bool) error {
	list, err := fs.ReadDir(w.root.FS(), dir)
	if err != nil {
		return err
	}
	if !inIgnored {
		if ignored, err = w.ignoresOf(dir, ignored); err != nil {
			return err
		}
	}
	for _, e := range list {
		p := path.Join(dir, e.Name())
		if e.Name() == ".git" {
			if dir == "." {
				continue
			}
			return refuse(dir, "a repository inside the repository, which git takes for a submodule", "remove its .git, or ignore the directory")
		}
		if e.IsDir() {
			skip := inIgnored || ignored.match(p, true)
			if skip && !w.tracked.dirs[p] {
				continue
			}
			if err := w.subdir(p, ignored, skip); err != nil {
				return err
			}
			continue
		}
		if !w.tracked.files[p] && (inIgnored || ignored.match(p, false)) {
			continue
		}
		if err := w.file(p, e); err != nil {
			return err
		}
	}
	return nil
}

// subdir leaves out a directory without files, which git does not know.
func (w *diskReader) subdir(p string, ignored ignores, inIgnored bool) error {
	if err := w.b.addDir(p); err != nil {
		return err
	}
	before := w.b.entries
	if err := w.dir(p, ignored, inIgnored); err != nil {
		return err
	}
	if w.b.entries == before {
		w.b.leave(p)
	}
	return nil
}

func (w *diskReader) file(p string, e fs.DirEntry) error {
	switch {
	case e.Type() == fs.ModeSymlink:
		target, err := w.root.Readlink(p)
		if err != nil {
			return err
		}
		return w.b.addLink(p, target)
	case !e.Type().IsRegular():
		return nil // sockets, pipes and devices: git passes them over
	}
	fi, err := w.root.Lstat(p)
	if err != nil {
		return err
	}
	if w.tracked.texts[p] && fi.Size() <= maxTarget {
		target, err := w.root.ReadFile(p)
		if err != nil {
			return err
		}
		return w.b.addLink(p, string(target))
	}
	if err := w.b.reserve(p, fi.Size()); err != nil {
		return err
	}
	f, err := w.root.Open(p)
	if err != nil {
		return err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, fi.Size()+1))
	if err != nil {
		return fmt.Errorf("%s: %w", shown(p), err)
	}
	if int64(len(data)) != fi.Size() {
		return fmt.Errorf("%s: changed while it was read; try again", shown(p))
	}
	return w.b.put(p, fi.Mode()&0o100 != 0, &node{size: int64(len(data)), data: data})
}

// ignoresOf adds the directory's own .gitignore. Like git, it does not follow a link of that name.
func (w *diskReader) ignoresOf(dir string, above ignores) (ignores, error) {
	p := path.Join(dir, ".gitignore")
	fi, err := w.root.Lstat(p)
	if errors.Is(err, fs.ErrNotExist) || err == nil && !fi.Mode().IsRegular() {
		return above, nil
	}
	if err != nil {
		return nil, err
	}
	if fi.Size() > 1<<20 {
		return nil, tooLarge(p, fi.Size())
	}
	data, err := w.root.ReadFile(p)
	if err != nil {
		return nil, err
	}
	return above.with(dir, data), nil
}
