// Package source reads a commit of a git repository, or its work tree, as a tree of plain files with an identity. It never touches the
// work tree or the index. The only importer of go-git; imports none of our packages.
//
// References and the search for the repository are read here and not by go-git, because a reader beside a running `git gc` must look in
// the right order, and must look again. Objects, packs and the index are go-git's. A remote is followed by a Mirror, over connections of our own:
// where credentials go and how long a silence may last is not left to a library.
package source

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"time"
)

// Errors; test with errors.Is. Messages name the repository, the path and the next step.
var (
	ErrNoRepo      = errors.New("not a git repository")
	ErrNoRev       = errors.New("no such commit")
	ErrUnsupported = errors.New("not supported by this version") // object format, reftable, submodule, LFS pointer, symlink …
	ErrShallow     = errors.New("history not available: shallow clone")
	ErrBranchGone  = errors.New("branch gone")
	ErrNoWorkTree  = errors.New("no work tree")
)

// Bounds on a tree. What is larger is refused by name before it is read.
const (
	MaxFile    = 64 << 20 // bytes of one file
	MaxTree    = 1 << 30  // bytes of all files, followed links counted again
	MaxEntries = 200_000  // files and directories
	maxDepth   = 256      // directories in a path
)

// Person is a git author or committer.
type Person struct {
	Name, Email string
	At          time.Time
}

// Identity is what a commit says of itself. Ids are lower-case hex, 40 or 64 digits.
type Identity struct {
	Commit    string
	Tree      string
	Parents   []string
	Author    Person
	Committer Person
	Subject   string // first line
	WorkTree  bool   // read from disk: Commit is HEAD's or "", Tree is a digest of the files
}

// Tree is a read-only tree. FS serves regular files only: in-tree relative symlinks to files are followed by reading; what CONFIG-REPO.md refuses
// (submodules, LFS pointers, escaping or dangling links, odd names, case twins) was refused with path and reason.
//
// Symlinks named `.#…` are an editor's lock and are left out. Everything is safe for concurrent use.
type Tree interface {
	Identity() Identity
	FS() fs.FS
	// Files are all paths, sorted.
	Files() []string
}

// Repo is an opened repository, bare or not. Safe for concurrent use; other processes may commit, pack and collect garbage meanwhile.
type Repo struct {
	name     string // as errors call it
	gitDir   string // HEAD, index
	common   string // objects, refs, config; differs from gitDir in a linked work tree
	workTree string // "" if bare
	objects  *objects
	past     history
}

// Open opens the repository that contains dir (also a linked work tree, also bare).
func Open(dir string) (*Repo, error) {
	r, err := discover(dir)
	if err != nil {
		return nil, err
	}
	if err := r.checkFormat(); err != nil {
		return nil, fmt.Errorf("repository %s: %w", r.name, err)
	}
	r.objects = newObjects(r.common)
	return r, nil
}

// Close releases pack files held open. Trees read before stay usable.
func (r *Repo) Close() error { return r.objects.close() }

// Commit reads rev (a branch, tag, HEAD~1, full or short id) as a tree. Bytes come from the blobs, never from the work tree or the user's git config.
// Small files are read at once, others when they are opened.
func (r *Repo) Commit(rev string) (Tree, error) {
	c, err := r.resolve(rev)
	if err != nil {
		return nil, fmt.Errorf("repository %s: %w", r.name, err)
	}
	t, err := r.readCommit(c)
	if err != nil {
		return nil, fmt.Errorf("repository %s: commit %s: %w", r.name, short(c), err)
	}
	return t, nil
}

// WorkTree reads the files on disk that git does not ignore, untracked ones too. All are read at once: the tree is a snapshot.
func (r *Repo) WorkTree() (Tree, error) {
	return r.WorkTreeSeen("")
}

// WorkTreeSeen is WorkTree for who reads one again and again: what was seen is kept in dir, which is the caller's own and private, and a file that nobody
// touched since is not read, unless it is opened: then as it is found, and a change meanwhile is an error. Where that cannot be told (a network file system,
// a change of a moment ago) it is read.
func (r *Repo) WorkTreeSeen(dir string) (Tree, error) {
	t, err := r.readWorkTree(dir)
	if err != nil {
		return nil, fmt.Errorf("work tree %s: %w", r.name, err)
	}
	return t, nil
}

// Summed is a Tree that knows the SHA-256 of a file without reading it.
type Summed interface {
	Sum(name string) (sum [sha256.Size]byte, known bool)
}

// Resolve gives the commit id of rev.
func (r *Repo) Resolve(rev string) (string, error) {
	c, err := r.resolve(rev)
	if err != nil {
		return "", fmt.Errorf("repository %s: %w", r.name, err)
	}
	return c.Hash.String(), nil
}

// Contains reports whether descendant contains ancestor: they are equal or there is a path of parents. ErrShallow when history ends before the answer.
func (r *Repo) Contains(descendant, ancestor string) (bool, error) {
	ok, err := r.contains(descendant, ancestor)
	if err != nil {
		return false, fmt.Errorf("repository %s: %w", r.name, err)
	}
	return ok, nil
}

// Tip gives the commit at the tip of a local branch, read anew each time, for one who follows it. ErrBranchGone if there is no such branch:
// a remote-tracking ref of that name, which may be stale, is not taken for it.
func (r *Repo) Tip(branch string) (commit string, err error) {
	id, err := r.tip(branch)
	if err != nil {
		return "", fmt.Errorf("repository %s: branch %q: %w", r.name, branch, err)
	}
	return id, nil
}
