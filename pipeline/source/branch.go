package source

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/filemode"
	"github.com/go-git/go-git/v5/plumbing/object"
)

// ErrBranchExists says that a branch of the name is there already, and holds something else.
var ErrBranchExists = errors.New("a branch of this name is there already")

// NewCommit is a commit to be made on top of another one.
type NewCommit struct {
	Parent  string            // revision
	Files   map[string][]byte // path → new content; other files stay
	Message string
	Author  Person // committer too
}

// Branch makes a commit and a new branch that points at it: objects and a ref, nothing else. Neither the work tree, nor the index, nor what is checked out changes. A branch of that
// name that holds the same files on the same parent is taken for ours.
func (r *Repo) Branch(name string, n NewCommit) (commit string, err error) {
	if commit, err = r.branch(name, n); err != nil {
		return "", fmt.Errorf("repository %s: branch %q: %w", r.name, name, err)
	}
	return commit, nil
}

func (r *Repo) branch(name string, n NewCommit) (string, error) {
	ref := "refs/heads/" + strings.TrimPrefix(name, "refs/heads/")
	if !validRef(ref) || strings.HasPrefix(filepath.Base(ref), "-") {
		return "", fmt.Errorf("%w: not a branch name", ErrNoRev)
	}
	parent, err := r.resolve(n.Parent)
	if err != nil {
		return "", err
	}
	tree, err := r.treeWith(parent.TreeHash, n.Files)
	if err != nil {
		return "", err
	}
	old, err := r.ref(ref)
	if err == nil {
		at, err := r.commit(old)
		if err != nil {
			return "", err
		}
		if at.TreeHash == tree && len(at.ParentHashes) == 1 && at.ParentHashes[0] == parent.Hash {
			return at.Hash.String(), nil
		}
		return "", ErrBranchExists
	}
	if !errors.Is(err, errNoRef) {
		return "", err
	}
	who := object.Signature{Name: n.Author.Name, Email: n.Author.Email, When: n.Author.At}
	c := &object.Commit{Author: who, Committer: who, Message: n.Message, TreeHash: tree, ParentHashes: []plumbing.Hash{parent.Hash}}
	obj := &plumbing.MemoryObject{}
	if err := c.Encode(obj); err != nil {
		return "", fmt.Errorf("encode the commit: %w", err)
	}
	id, err := r.objects.put(obj)
	if err != nil {
		return "", err
	}
	return id.String(), r.newRef(ref, id)
}

// newRef makes a ref that is not there, as git does: its lock file first.
func (r *Repo) newRef(ref string, id plumbing.Hash) error {
	file := filepath.Join(r.common, filepath.FromSlash(ref))
	if err := os.MkdirAll(filepath.Dir(file), 0o777); err != nil { // as the umask lets it be, like git
		return fmt.Errorf("make %s: %w", ref, err)
	}
	lock, err := os.OpenFile(file+".lock", os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if errors.Is(err, os.ErrExist) {
		return fmt.Errorf("%w: git holds its lock %s.lock", ErrBranchExists, ref)
	}
	if err != nil {
		return fmt.Errorf("lock %s: %w", ref, err)
	}
	defer os.Remove(file + ".lock") // gone by the rename, when all went well
	_, err = io.WriteString(lock, id.String()+"\n")
	if err = errors.Join(err, lock.Close()); err != nil {
		return fmt.Errorf("write %s: %w", ref, err)
	}
	if _, err := r.ref(ref); !errors.Is(err, errNoRef) {
		return ErrBranchExists
	}
	if err := os.Rename(file+".lock", file); err != nil {
		return fmt.Errorf("make %s: %w", ref, err)
	}
	return nil
}

// treeWith is a tree with some files in place of, or beside, its own.
func (r *Repo) treeWith(base plumbing.Hash, files map[string][]byte) (plumbing.Hash, error) {
	var entries []object.TreeEntry
	if !base.IsZero() {
		raw, err := r.rawTree(base)
		if err != nil {
			return base, err
		}
		scan := treeScan{data: raw}
		for scan.next() {
			entries = append(entries, object.TreeEntry{Name: string(scan.name), Mode: scan.mode, Hash: scan.id})
		}
		if err := scan.fail(base); err != nil {
			return base, err
		}
	}
	below := map[string]map[string][]byte{}
	for path, data := range files {
		top, rest, nested := strings.Cut(path, "/")
		if top == "" || top == "." || top == ".." || strings.EqualFold(top, ".git") {
			return base, fmt.Errorf("%q is not a path that git keeps", path)
		}
		i := slices.IndexFunc(entries, func(e object.TreeEntry) bool { return e.Name == top })
		if nested {
			if below[top] == nil {
				below[top] = map[string][]byte{}
			}
			below[top][rest] = data
			continue
		}
		if i >= 0 && entries[i].Mode != filemode.Regular && entries[i].Mode != filemode.Executable && entries[i].Mode != filemode.Deprecated {
			return base, fmt.Errorf("%s is no plain file in the commit: edit what it points at", path)
		}
		obj := &plumbing.MemoryObject{}
		obj.SetType(plumbing.BlobObject)
		if _, err := obj.Write(data); err != nil {
			return base, err
		}
		id, err := r.objects.put(obj)
		if err != nil {
			return base, err
		}
		if i >= 0 {
			entries[i].Hash = id
		} else {
			entries = append(entries, object.TreeEntry{Name: top, Mode: filemode.Regular, Hash: id})
		}
	}
	for top, inside := range below {
		i := slices.IndexFunc(entries, func(e object.TreeEntry) bool { return e.Name == top })
		var at plumbing.Hash
		if i >= 0 {
			if entries[i].Mode != filemode.Dir {
				return base, fmt.Errorf("%s is no directory in the commit", top)
			}
			at = entries[i].Hash
		}
		id, err := r.treeWith(at, inside)
		if err != nil {
			return base, err
		}
		if i >= 0 {
			entries[i].Hash = id
		} else {
			entries = append(entries, object.TreeEntry{Name: top, Mode: filemode.Dir, Hash: id})
		}
	}
	sort.Sort(object.TreeEntrySorter(entries))
	obj := &plumbing.MemoryObject{}
	if err := (&object.Tree{Entries: entries}).Encode(obj); err != nil {
		return base, fmt.Errorf("encode a tree: %w", err)
	}
	return r.objects.put(obj)
}

// put writes an object into the repository's own store; one that is there already stays.
func (o *objects) put(obj plumbing.EncodedObject) (plumbing.Hash, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if err := o.openLocked(); err != nil {
		return plumbing.ZeroHash, err
	}
	if o.stores[0].HasEncodedObject(obj.Hash()) == nil {
		return obj.Hash(), nil
	}
	id, err := o.stores[0].SetEncodedObject(obj)
	if err != nil {
		return id, fmt.Errorf("write object %s: %w", obj.Hash(), err)
	}
	return id, nil
}

// Head is the branch that is checked out, "" when none is.
func (r *Repo) Head() string {
	value, err := r.refValue("HEAD")
	if err != nil {
		return ""
	}
	target, ok := strings.CutPrefix(value, "ref:")
	if branch, isBranch := strings.CutPrefix(strings.TrimSpace(target), "refs/heads/"); ok && isBranch {
		return branch
	}
	return ""
}
