//go:build !portable

package source

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"

	"golang.org/x/sys/unix"
)

// Where the fields of a linux_dirent64 are: inode and offset, 8 bytes each, then these.
const (
	direntLength = 16
	direntType   = 18
	direntName   = 19
)

// readDir lists an open directory, through a buffer of the caller's: a work tree has thousands of directories, and package os makes a buffer, a file that
// can be polled and a finalizer for each.
func readDir(dir int, buf []byte) ([]dirent, error) {
	var out []dirent
	for {
		n, err := again(func() (int, error) { return unix.Getdents(dir, buf) })
		if err != nil {
			return nil, fmt.Errorf("list: %w", err)
		}
		if n == 0 {
			return out, nil
		}
		for rest := buf[:n]; len(rest) > 0; {
			if len(rest) <= direntName {
				return nil, fmt.Errorf("list: %w", unix.EIO)
			}
			size := int(binary.NativeEndian.Uint16(rest[direntLength:]))
			if size <= direntName || size > len(rest) {
				return nil, fmt.Errorf("list: %w", unix.EIO)
			}
			name, _, _ := bytes.Cut(rest[direntName:size], []byte{0})
			kind := rest[direntType]
			rest = rest[size:]
			if s := string(name); s != "." && s != ".." {
				e := dirent{name: s, kind: direntKinds[kind]}
				if kind == unix.DT_UNKNOWN { // some file systems do not say
					if e.kind, err = kindAt(dir, s); errors.Is(err, unix.ENOENT) {
						continue // gone meanwhile
					} else if err != nil {
						return nil, fmt.Errorf("list: %w", err)
					}
				}
				out = append(out, e)
			}
		}
	}
}

// direntKinds: what is not in it is passed over anyway.
var direntKinds = [256]fs.FileMode{
	unix.DT_DIR: fs.ModeDir, unix.DT_LNK: fs.ModeSymlink, unix.DT_FIFO: fs.ModeNamedPipe, unix.DT_SOCK: fs.ModeSocket, unix.DT_CHR: fs.ModeDevice,
	unix.DT_BLK: fs.ModeDevice, unix.DT_WHT: fs.ModeIrregular,
}

func kindAt(dir int, name string) (fs.FileMode, error) {
	var st unix.Stat_t
	if _, err := again(func() (int, error) { return 0, unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW) }); err != nil {
		return 0, err
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		return 0, nil
	case unix.S_IFDIR:
		return fs.ModeDir, nil
	case unix.S_IFLNK:
		return fs.ModeSymlink, nil
	}
	return fs.ModeIrregular, nil
}
