package source

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/go-git/go-git/v5/plumbing"
)

// node is a file or a directory of a finished tree.
type node struct {
	name     string // last element
	mode     fs.FileMode
	size     int64
	data     []byte                 // the content, or
	read     func() ([]byte, error) // how to get it
	children []*node                // of a directory, sorted by name
	sum      [sha256.Size]byte      // of a work tree's file
	blob     plumbing.Hash          // of a file of a commit, of its target for a link; else zero
}

func (n *node) content() ([]byte, error) {
	if n.read != nil {
		return n.read()
	}
	return n.data, nil
}

// node is its own fs.FileInfo and fs.DirEntry. A tree carries no times: they would differ between two clones of one commit.

func (n *node) Name() string               { return n.name }
func (n *node) Size() int64                { return n.size }
func (n *node) Mode() fs.FileMode          { return n.mode }
func (n *node) ModTime() time.Time         { return time.Time{} }
func (n *node) IsDir() bool                { return n.mode.IsDir() }
func (n *node) Sys() any                   { return nil }
func (n *node) Type() fs.FileMode          { return n.mode.Type() }
func (n *node) Info() (fs.FileInfo, error) { return n, nil }

// tree is a Tree and its file system: an index by path.
type tree struct {
	id    Identity
	index map[string]*node // "." is the root
	files []string
}

func (t *tree) Identity() Identity {
	id := t.id
	id.Parents = slices.Clone(id.Parents)
	return id
}
func (t *tree) FS() fs.FS       { return (*files)(t) }
func (t *tree) Files() []string { return append([]string{}, t.files...) } // never nil: it prints as []

// Sum implements Summed: it knows the files of a work tree.
func (t *tree) Sum(name string) (sum [sha256.Size]byte, known bool) {
	n, ok := t.index[name]
	if !ok || n.IsDir() || n.sum == sum {
		return sum, false
	}
	return n.sum, true
}

type files tree

var (
	_ fs.ReadFileFS = (*files)(nil)
	_ fs.ReadDirFS  = (*files)(nil)
	_ fs.StatFS     = (*files)(nil)
)

func (f *files) find(op, name string) (*node, error) {
	if !fs.ValidPath(name) {
		return nil, &fs.PathError{Op: op, Path: name, Err: fs.ErrInvalid}
	}
	n, ok := f.index[name]
	if !ok {
		return nil, &fs.PathError{Op: op, Path: name, Err: fs.ErrNotExist}
	}
	return n, nil
}

func (f *files) Open(name string) (fs.File, error) {
	n, err := f.find("open", name)
	if err != nil {
		return nil, err
	}
	if n.IsDir() {
		return &openDir{node: n, path: name}, nil
	}
	data, err := n.content()
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: name, Err: err}
	}
	return &openFile{node: n, Reader: bytes.NewReader(data)}, nil
}

func (f *files) Stat(name string) (fs.FileInfo, error) {
	n, err := f.find("stat", name)
	if err != nil {
		return nil, err // not a nil *node in an interface
	}
	return n, nil
}

func (f *files) ReadFile(name string) ([]byte, error) {
	n, err := f.find("read", name)
	if err != nil {
		return nil, err
	}
	if n.IsDir() {
		return nil, &fs.PathError{Op: "read", Path: name, Err: fmt.Errorf("is a directory: %w", fs.ErrInvalid)}
	}
	data, err := n.content()
	if err != nil {
		return nil, &fs.PathError{Op: "read", Path: name, Err: err}
	}
	if n.read == nil {
		data = bytes.Clone(data) // the caller may change it
	}
	return data, nil
}

func (f *files) ReadDir(name string) ([]fs.DirEntry, error) {
	n, err := f.find("readdir", name)
	if err != nil {
		return nil, err
	}
	if !n.IsDir() {
		return nil, &fs.PathError{Op: "readdir", Path: name, Err: fmt.Errorf("not a directory: %w", fs.ErrInvalid)}
	}
	return entries(n.children), nil
}

func entries(nodes []*node) []fs.DirEntry {
	out := make([]fs.DirEntry, len(nodes))
	for i, c := range nodes {
		out[i] = c
	}
	return out
}

type openFile struct {
	node *node
	*bytes.Reader
}

func (f *openFile) Stat() (fs.FileInfo, error) { return f.node, nil }
func (f *openFile) Close() error               { return nil }

type openDir struct {
	node *node
	path string
	at   int
}

func (d *openDir) Stat() (fs.FileInfo, error) { return d.node, nil }
func (d *openDir) Close() error               { return nil }
func (d *openDir) Read([]byte) (int, error) {
	return 0, &fs.PathError{Op: "read", Path: d.path, Err: fmt.Errorf("is a directory: %w", fs.ErrInvalid)}
}

func (d *openDir) ReadDir(n int) ([]fs.DirEntry, error) {
	rest := d.node.children[d.at:]
	if n > 0 {
		if len(rest) == 0 {
			return nil, io.EOF
		}
		rest = rest[:min(n, len(rest))]
	}
	d.at += len(rest)
	return entries(rest), nil
}

// list finishes the index: children sorted, all file paths in order. entered are its paths, and perhaps some that it has not.
func (t *tree) list(entered []string) {
	t.files = make([]string, 0, len(entered))
	byName := func(a, b *node) int { return strings.Compare(a.name, b.name) }
	for _, p := range entered {
		n := t.index[p]
		if n == nil {
			continue
		}
		parent := t.index[path.Dir(p)]
		parent.children = append(parent.children, n)
		if !n.IsDir() {
			t.files = append(t.files, p)
		}
	}
	for _, n := range t.index {
		if !slices.IsSortedFunc(n.children, byName) {
			slices.SortFunc(n.children, byName)
		}
	}
	slices.Sort(t.files)
}
