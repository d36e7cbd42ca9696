//go:build !windows && !portable

package source

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"golang.org/x/sys/unix"
)

// handle is an open directory.
type handle = int

const (
	leadsElsewhere = false // what is neither file, directory nor link is a socket, a pipe or a device
	noModes        = false
)

// open goes down from the root name by name.
func (w *diskReader) open(p string) (handle, error) {
	fd, err := again(func() (int, error) { return unix.Open(w.root, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0) })
	if err != nil {
		return 0, &fs.PathError{Op: "open", Path: w.root, Err: err}
	}
	if p != "." {
		for name := range strings.SplitSeq(p, "/") {
			next, err := openDirAt(fd, name)
			closeDir(fd)
			if err != nil {
				return 0, fmt.Errorf("%s: %w", shown(p), err)
			}
			fd = next
		}
	}
	return fd, nil
}

func openDirAt(dir handle, name string) (handle, error) {
	return again(func() (int, error) {
		return unix.Openat(dir, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	})
}

func closeDir(dir handle) { _ = unix.Close(dir) }

func again(f func() (int, error)) (int, error) {
	for {
		n, err := f()
		if !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}

func readLink(dir handle, p, name string) ([]byte, error) {
	buf := make([]byte, maxTarget+1)
	n, err := again(func() (int, error) { return unix.Readlinkat(dir, name, buf) })
	if err != nil {
		return nil, fmt.Errorf("%s: %w", shown(p), err)
	}
	if n > maxTarget {
		return nil, refuse(p, "a symlink with an overlong target", "run git fsck")
	}
	return buf[:n:n], nil
}

func (w *diskReader) read(e *diskEntry, dir handle, name string, buf []byte) error {
	fd, err := again(func() (int, error) {
		return unix.Openat(dir, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	})
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if _, err := again(func() (int, error) { return 0, unix.Fstat(fd, &st) }); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return errChanged
	}
	e.exec = st.Mode&0o100 != 0
	if w.seen != nil {
		e.stamp = w.seen.top.stamp(&st)
	}
	return w.fill(e, st.Size, buf, func(b []byte) (int, error) {
		return again(func() (int, error) { return unix.Read(fd, b) })
	})
}
