//go:build !linux && !windows && !portable

package source

import (
	"os"

	"golang.org/x/sys/unix"
)

// readDir lists an open directory.
func readDir(dir int, _ []byte) ([]dirent, error) {
	fd, err := again(func() (int, error) { return unix.FcntlInt(uintptr(dir), unix.F_DUPFD_CLOEXEC, 0) })
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "directory")
	defer f.Close()
	list, err := f.ReadDir(-1)
	if err != nil {
		return nil, err
	}
	out := make([]dirent, len(list))
	for i, e := range list {
		out[i] = dirent{name: e.Name(), kind: e.Type()}
	}
	return out, nil
}
