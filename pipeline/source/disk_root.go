//go:build windows || portable

package source

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
)

// This is how a work tree is read on Windows. With the build tag portable it is read so everywhere, for the tests of this package.

// handle is an open directory, out of which no name leads: neither a symbolic link nor a junction.
type handle = *os.Root

const (
	leadsElsewhere = runtime.GOOS == "windows"
	noModes        = runtime.GOOS == "windows" // files have no executable bit there: git goes by its index
)

// open goes down from the root name by name.
func (w *diskReader) open(p string) (handle, error) {
	dir, err := os.OpenRoot(w.root)
	if err != nil {
		return nil, err
	}
	if p != "." {
		for name := range strings.SplitSeq(p, "/") {
			next, err := openDirAt(dir, name)
			closeDir(dir)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", shown(p), err)
			}
			dir = next
		}
	}
	return dir, nil
}

// openDirAt opens a plain directory. OpenRoot would follow a link to another directory of the same tree: so what is opened must be what Lstat saw.
func openDirAt(dir handle, name string) (handle, error) {
	was, err := dir.Lstat(name)
	if err != nil {
		return nil, cause(err)
	}
	if !was.IsDir() {
		return nil, errChanged
	}
	sub, err := dir.OpenRoot(name)
	if err != nil {
		return nil, cause(err)
	}
	if is, err := sub.Stat("."); err != nil || !os.SameFile(was, is) {
		sub.Close()
		return nil, errors.Join(errChanged, cause(err))
	}
	return sub, nil
}

func closeDir(dir handle) { _ = dir.Close() }

// readDir lists an open directory.
func readDir(dir handle, _ []byte) ([]dirent, error) {
	f, err := dir.Open(".")
	if err != nil {
		return nil, cause(err)
	}
	defer f.Close()
	list, err := f.ReadDir(-1)
	if err != nil {
		return nil, cause(err)
	}
	out := make([]dirent, len(list))
	for i, e := range list {
		out[i] = dirent{name: e.Name(), kind: e.Type()}
	}
	return out, nil
}

func readLink(dir handle, p, name string) ([]byte, error) {
	to, err := dir.Readlink(name)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", shown(p), cause(err))
	}
	if len(to) > maxTarget {
		return nil, refuse(p, "a symlink with an overlong target", "run git fsck")
	}
	return []byte(filepath.ToSlash(to)), nil
}

func (w *diskReader) read(e *diskEntry, dir handle, name string, buf []byte) error {
	was, err := dir.Lstat(name)
	switch {
	case err != nil:
		return cause(err)
	case !was.Mode().IsRegular():
		return errChanged
	}
	f, err := dir.Open(name)
	if err != nil {
		return cause(err)
	}
	defer f.Close()
	is, err := f.Stat()
	if err != nil {
		return cause(err)
	}
	if !is.Mode().IsRegular() || !os.SameFile(was, is) {
		return errChanged
	}
	e.exec = is.Mode()&0o100 != 0
	return w.fill(e, is.Size(), buf, func(b []byte) (int, error) {
		n, err := f.Read(b)
		if errors.Is(err, io.EOF) {
			err = nil
		}
		return n, cause(err)
	})
}

// cause drops the path that os repeats.
func cause(err error) error {
	var pe *fs.PathError
	if errors.As(err, &pe) {
		return pe.Err
	}
	return err
}
