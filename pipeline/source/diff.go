package source

import (
	"context"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/filemode"
)

// Change is one file that differs between two commits. From and To are blob ids; "" where there is no file. They are equal where only the
// mode changed. A submodule is listed with the commit that it names; a link with the blob that holds its target, so that a file which a link leads to
// is listed by its own name only.
type Change struct {
	Path     string
	From, To string
}

// Diff gives the files that differ between two revisions, sorted by path. Equal trees are not read.
func (r *Repo) Diff(ctx context.Context, from, to string) ([]Change, error) {
	a, err := r.resolve(from)
	if err != nil {
		return nil, fmt.Errorf("repository %s: %w", r.name, err)
	}
	b, err := r.resolve(to)
	if err != nil {
		return nil, fmt.Errorf("repository %s: %w", r.name, err)
	}
	w := treeDiff{r: r, out: []Change{}}
	if err := w.dirs(ctx, "", a.TreeHash, b.TreeHash, 0); err != nil {
		return nil, fmt.Errorf("repository %s: diff %s %s: %w", r.name, short(a), short(b), err)
	}
	slices.SortFunc(w.out, func(a, b Change) int { return strings.Compare(a.Path, b.Path) })
	return w.out, nil
}

type treeDiff struct {
	r     *Repo
	out   []Change
	names int
}

func (w *treeDiff) dirs(ctx context.Context, prefix string, from, to plumbing.Hash, depth int) error {
	if from == to {
		return nil
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	list, err := w.r.diffDirs(from, to)
	if err != nil {
		return fmt.Errorf("%s: %w", shown(prefix+"."), err)
	}
	if w.names += len(list); w.names > 2*MaxEntries {
		return refuse(prefix+list[0].name, fmt.Sprintf("more than %d changes", 2*MaxEntries), "split the repository")
	}
	for _, c := range list {
		p := prefix + c.name
		if depth >= maxDepth {
			return refuse(p, fmt.Sprintf("more than %d directories deep", maxDepth), "move it up")
		}
		var dirs [2]plumbing.Hash
		var files [2]string
		for i, e := range []treeEntry{c.from, c.to} {
			switch e.mode {
			case 0:
			case filemode.Dir:
				dirs[i] = e.id
			default:
				files[i] = e.id.String()
			}
		}
		if files[0] != "" || files[1] != "" {
			w.out = append(w.out, Change{Path: p, From: files[0], To: files[1]})
		}
		if err := w.dirs(ctx, p+"/", dirs[0], dirs[1], depth+1); err != nil {
			return err
		}
	}
	return nil
}

// DiffTrees gives the files whose content or mode differs between two trees, of which either may be a work tree, sorted by path. From and To are
// blob ids. Links count with the content of the file they lead to, as the trees show them.
func DiffTrees(from, to Tree) ([]Change, error) {
	out := []Change{}
	a, b := from.Files(), to.Files()
	for len(a) > 0 || len(b) > 0 {
		var c Change
		inA := len(b) == 0 || len(a) > 0 && a[0] <= b[0]
		inB := len(a) == 0 || len(b) > 0 && b[0] <= a[0]
		var modeA, modeB fs.FileMode
		var err error
		if inA {
			c.Path, a = a[0], a[1:]
			if c.From, modeA, err = blobID(from, c.Path); err != nil {
				return nil, err
			}
		}
		if inB {
			c.Path, b = b[0], b[1:]
			if c.To, modeB, err = blobID(to, c.Path); err != nil {
				return nil, err
			}
		}
		if c.From != c.To || modeA != modeB {
			out = append(out, c)
		}
	}
	return out, nil
}

func blobID(t Tree, name string) (string, fs.FileMode, error) {
	own, ok := t.(*tree)
	if ok && !own.index[name].blob.IsZero() {
		n := own.index[name]
		return n.blob.String(), n.mode, nil
	}
	fi, err := fs.Stat(t.FS(), name)
	if err != nil {
		return "", 0, err
	}
	data, err := fs.ReadFile(t.FS(), name)
	if err != nil {
		return "", 0, err
	}
	return plumbing.ComputeHash(plumbing.BlobObject, data).String(), fi.Mode(), nil
}
