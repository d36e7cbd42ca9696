package source

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"github.com/go-git/go-billy/v5/osfs"
	"github.com/go-git/go-git/v5/plumbing/filemode"
	"github.com/go-git/go-git/v5/plumbing/format/index"
	"github.com/go-git/go-git/v5/storage/filesystem"
)

// readWorkTree reads all, or with a directory for what was seen only what changed since.
func (r *Repo) readWorkTree(seenIn string) (*tree, error) {
	if r.workTree == "" {
		return nil, fmt.Errorf("%w: the repository is bare; name a revision instead (--rev)", ErrNoWorkTree)
	}
	began := clock()
	seen, end, err := r.seenBefore(seenIn)
	if err != nil {
		return nil, err
	}
	defer end()
	// The index is read while the disk is; one that is as it was seen is read only if something is ignored.
	index := sync.OnceValues(r.tracked)
	indexStamp := stamp{}
	indexSeen := false
	if seen != nil {
		indexStamp = stampFile(filepath.Join(r.gitDir, "index"))
		indexSeen = seen.before != nil && indexStamp != (stamp{}) && indexStamp == seen.before.index
	}
	var reading sync.WaitGroup
	defer reading.Wait()
	if !indexSeen {
		reading.Go(func() { _, _ = index() })
	}
	ignored, err := r.standardIgnores()
	if err != nil {
		return nil, err
	}
	id := Identity{WorkTree: true}
	switch head, err := r.ref("HEAD"); {
	case err == nil:
		id.Commit = head.String()
	case !errors.Is(err, errNoRef): // a first commit need not be there yet
		return nil, err
	}
	root, err := readDisk(r.workTree, ignored, func() *trackedSet {
		if t, err := index(); err == nil {
			return t
		}
		return &trackedSet{} // nothing of what is read counts then
	}, seen)
	tracked, indexErr := &trackedSet{}, error(nil) // what it says of modes and links counts only where nothing is seen
	if !indexSeen {
		tracked, indexErr = index()
	}
	if err := cmp.Or(indexErr, err); err != nil {
		return nil, err
	}
	about := 0
	if seen != nil && seen.before != nil {
		about = seen.before.n
	}
	w := &assembler{b: newBuilder(about), tracked: tracked}
	if err := w.dir(root); err != nil {
		return nil, err
	}
	t, err := w.b.finish(id)
	if err != nil {
		return nil, err
	}
	t.id.Tree = digest(t)
	if seen != nil && (seen.news.Load() > 0 || !indexSeen && indexStamp.before(began.Add(-settled))) {
		remember(r.seenFile(seenIn), r.workTree, root, indexStamp, began)
	}
	return t, nil
}

// seenBefore is what was seen of the work tree, nil where that does not count: without a place for it, on a file system that is not known to stamp every
// change, and where git goes by its index rather than by the disk. end is to be called in any case.
func (r *Repo) seenBefore(dir string) (w *watch, end func(), err error) {
	end = func() {}
	if dir == "" {
		return nil, end, nil
	}
	links, byIndex, err := r.byIndex()
	if err != nil || links || byIndex {
		return nil, end, err
	}
	top, ok := openTop(r.workTree)
	if !ok {
		return nil, end, nil
	}
	return &watch{before: recall(r.seenFile(dir), r.workTree), top: top}, top.close, nil
}

// byIndex tells what git does not take from the disk here: links, which it writes as files holding the target where core.symlinks is false, and modes, as
// where core.fileMode is false.
func (r *Repo) byIndex() (links, modes bool, err error) {
	cfg, err := readConfig(filepath.Join(r.common, "config"))
	if err != nil {
		return false, false, err
	}
	core := cfg.Section("core")
	return strings.EqualFold(core.Option("symlinks"), "false"), noModes || strings.EqualFold(core.Option("filemode"), "false"), nil
}

// digest names the files' bytes, modes and paths: 64 hex digits.
func digest(t *tree) string {
	h := sha256.New()
	var b []byte
	for _, p := range t.files {
		n := t.index[p]
		b = append(b[:0], '0')
		b = append(strconv.AppendUint(b, uint64(n.mode.Perm()), 8), ' ')
		b = append(hex.AppendEncode(b, n.sum[:]), ' ')
		b = append(append(b, p...), '\n')
		h.Write(b)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// trackedSet holds the paths of the index and their directories: git never ignores what it tracks.
type trackedSet struct {
	files, dirs map[string]bool
	// texts are links that git wrote as files holding the target, where core.symlinks is false.
	texts map[string]bool
	// execs are the executable ones; byIndex says that git goes by them and not by the disk, as where core.fileMode is false.
	execs   map[string]bool
	byIndex bool
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
	t := &trackedSet{files: map[string]bool{}, dirs: map[string]bool{}, texts: map[string]bool{}, execs: map[string]bool{}}
	noLinks, byIndex, err := r.byIndex()
	if err != nil {
		return nil, err
	}
	t.byIndex = byIndex
	for _, e := range idx.Entries {
		if e.Mode == filemode.Submodule {
			return nil, submodule(e.Name)
		}
		if e.SkipWorktree {
			return nil, refuse(e.Name, "left out of the work tree by a sparse checkout", "run git sparse-checkout disable, "+next)
		}
		t.files[e.Name] = true
		t.execs[e.Name] = e.Mode == filemode.Executable
		t.texts[e.Name] = noLinks && e.Mode == filemode.Symlink
		for d := path.Dir(e.Name); d != "." && !t.dirs[d]; d = path.Dir(d) {
			t.dirs[d] = true
		}
	}
	return t, nil
}

// assembler gives what the disk reader found to the builder, in the order of names: so the first error is the same one each time.
type assembler struct {
	b       *builder
	tracked *trackedSet
}

// dir enters one directory. Inside an ignored one only tracked files are there.
func (w *assembler) dir(d *diskDir) error {
	if d.err != nil {
		return d.err
	}
	for i := range d.entries {
		e := &d.entries[i]
		p := path.Join(d.path, e.name)
		switch {
		case e.name == ".git":
			return refuse(d.path, "a repository inside the repository, which git takes for a submodule", "remove its .git, or ignore the directory")
		case e.sub != nil:
			if err := w.subdir(p, e.sub); err != nil {
				return err
			}
		default:
			if err := w.file(p, e); err != nil {
				return err
			}
		}
	}
	return nil
}

// subdir leaves out a directory without files, which git does not know.
func (w *assembler) subdir(p string, d *diskDir) error {
	if err := w.b.addDir(p); err != nil {
		return err
	}
	before := w.b.entries
	if err := w.dir(d); err != nil {
		return err
	}
	if w.b.entries == before {
		w.b.leave(p)
	}
	return nil
}

func (w *assembler) file(p string, e *diskEntry) error {
	switch {
	case e.err != nil:
		return e.err
	case e.link:
		return w.b.addLink(p, string(e.data))
	case w.tracked.texts[p] && e.size <= maxTarget:
		return w.b.addLink(p, string(e.data))
	}
	if err := w.b.reserve(p, e.size); err != nil {
		return err
	}
	if e.data == nil && e.read == nil {
		return fmt.Errorf("%s: not read", shown(p)) // the builder refused it, or the sum of all
	}
	exec := e.exec
	if w.tracked.byIndex { // a file that it does not know would come in as a plain one
		exec = w.tracked.execs[p]
	}
	return w.b.put(p, exec, &node{size: e.size, data: e.data, read: e.read, sum: e.sum})
}
