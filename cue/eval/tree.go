package eval

import (
	"bytes"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"
	"time"
)

// moduleFile makes the tree a CUE module when it has none of its own.
const (
	modulePath      = "cue.mod/module.cue"
	localModulePath = "cue.mod/local-module.cue"
	moduleText      = "module: \"muster.example/config@v0\"\nlanguage: version: \"v0.17.0\"\n"
)

// tree is the request's files as an fs.FS with an index of directories: CUE's loader lists directories again and again, which is
// quadratic in the number of services without one.
type tree struct {
	files map[string][]byte
	dirs  map[string][]fs.DirEntry // sorted
	// origin leads from the places where vendored packages are shown to the files of the tree.
	origin   map[string]string
	vendored map[string][]byte // those files
}

func newTree(files []TreeFile) *tree {
	t := &tree{files: map[string][]byte{}, dirs: map[string][]fs.DirEntry{".": nil}, origin: map[string]string{}, vendored: map[string][]byte{}}
	for _, f := range files {
		t.files[f.Path] = f.Data
	}
	if _, ok := t.files[modulePath]; !ok {
		t.files[modulePath] = []byte(moduleText)
	}
	t.vendor()
	for name, data := range t.files {
		t.enter(name, entry{name: path.Base(name), size: int64(len(data))})
	}
	for _, list := range t.dirs {
		slices.SortFunc(list, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	}
	return t
}

// enter adds an entry to its directory, and the directory to its parents.
func (t *tree) enter(name string, e entry) {
	dir := path.Dir(name)
	_, known := t.dirs[dir]
	t.dirs[dir] = append(t.dirs[dir], e)
	if !known {
		t.enter(dir, entry{name: path.Base(dir), dir: true})
	}
}

// under lists the files below dir, as paths from the root, sorted.
func (t *tree) under(dir string) []string {
	var out []string
	for _, e := range t.dirs[dir] {
		name := path.Join(dir, e.Name())
		if e.IsDir() {
			out = append(out, t.under(name)...)
		} else {
			out = append(out, name)
		}
	}
	return out
}

// services are the directories under services/, sorted.
func (t *tree) services() []string {
	var out []string
	for _, e := range t.dirs["services"] {
		if e.IsDir() {
			out = append(out, e.Name())
		}
	}
	return out
}

// cueFiles are the .cue files directly in dir.
func (t *tree) cueFiles(dir string) []string {
	var out []string
	for _, e := range t.dirs[dir] {
		if !e.IsDir() && strings.HasSuffix(e.Name(), ".cue") {
			out = append(out, path.Join(dir, e.Name()))
		}
	}
	return out
}

// Open implements fs.FS.
func (t *tree) Open(name string) (fs.File, error) {
	if data, ok := t.files[name]; ok {
		return &openFile{entry: entry{name: path.Base(name), size: int64(len(data))}, r: bytes.NewReader(data)}, nil
	}
	if list, ok := t.dirs[name]; ok {
		return &openDir{entry: entry{name: path.Base(name), dir: true}, list: list}, nil
	}
	return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
}

// ReadDir implements fs.ReadDirFS.
func (t *tree) ReadDir(name string) ([]fs.DirEntry, error) {
	list, ok := t.dirs[name]
	if !ok {
		return nil, &fs.PathError{Op: "readdir", Path: name, Err: fs.ErrNotExist}
	}
	return slices.Clone(list), nil
}

// ReadFile implements fs.ReadFileFS.
func (t *tree) ReadFile(name string) ([]byte, error) {
	data, ok := t.files[name]
	if !ok {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
	}
	return slices.Clone(data), nil
}

// Stat implements fs.StatFS.
func (t *tree) Stat(name string) (fs.FileInfo, error) {
	if data, ok := t.files[name]; ok {
		return entry{name: path.Base(name), size: int64(len(data))}, nil
	}
	if _, ok := t.dirs[name]; ok {
		return entry{name: path.Base(name), dir: true}, nil
	}
	return nil, &fs.PathError{Op: "stat", Path: name, Err: fs.ErrNotExist}
}

// entry is a file or directory as both fs.DirEntry and fs.FileInfo.
type entry struct {
	name string
	size int64
	dir  bool
}

func (e entry) Name() string               { return e.name }
func (e entry) Size() int64                { return e.size }
func (e entry) IsDir() bool                { return e.dir }
func (e entry) ModTime() time.Time         { return time.Time{} }
func (e entry) Sys() any                   { return nil }
func (e entry) Type() fs.FileMode          { return e.Mode().Type() }
func (e entry) Info() (fs.FileInfo, error) { return e, nil }
func (e entry) Mode() fs.FileMode {
	if e.dir {
		return fs.ModeDir | 0o555
	}
	return 0o444
}

type openFile struct {
	entry
	r *bytes.Reader
}

func (f *openFile) Stat() (fs.FileInfo, error) { return f.entry, nil }
func (f *openFile) Read(b []byte) (int, error) { return f.r.Read(b) }
func (f *openFile) Close() error               { return nil }

type openDir struct {
	entry
	list []fs.DirEntry
}

func (d *openDir) Stat() (fs.FileInfo, error) { return d.entry, nil }
func (d *openDir) Close() error               { return nil }
func (d *openDir) Read([]byte) (int, error) {
	return 0, &fs.PathError{Op: "read", Path: d.name, Err: fs.ErrInvalid}
}

func (d *openDir) ReadDir(n int) ([]fs.DirEntry, error) {
	list := d.list
	if n > 0 {
		if len(list) == 0 {
			return nil, io.EOF
		}
		list = list[:min(n, len(list))]
	}
	d.list = d.list[len(list):]
	return slices.Clone(list), nil
}
