//go:build !portable

package source

import (
	"slices"

	"golang.org/x/sys/unix"
)

// stampless tells that nothing is known of how stamps are made.
const stampless = false

// top is the directory that paths are looked up from, on one file system.
type top struct {
	fd  int
	dev uint64
}

// local are the file systems that stamp changes by this machine's own clock, and every change: what is shared over a network may do neither.
var local = []int64{unix.EXT4_SUPER_MAGIC, unix.XFS_SUPER_MAGIC, unix.BTRFS_SUPER_MAGIC, unix.TMPFS_MAGIC, unix.F2FS_SUPER_MAGIC, unix.OVERLAYFS_SUPER_MAGIC}

// openTop opens the root of a work tree, if stamps can be believed there.
func openTop(root string) (top, bool) {
	fd, err := again(func() (int, error) { return unix.Open(root, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0) })
	if err != nil {
		return top{}, false
	}
	var kind unix.Statfs_t
	var st unix.Stat_t
	if unix.Fstatfs(fd, &kind) != nil || unix.Fstat(fd, &st) != nil || !slices.Contains(local, int64(kind.Type)) { //nolint:unconvert // another width elsewhere
		_ = unix.Close(fd)
		return top{}, false
	}
	return top{fd, st.Dev}, true
}

func (t top) close() { _ = unix.Close(t.fd) }

func (t top) stamp(st *unix.Stat_t) stamp {
	if uint64(st.Dev) != t.dev { //nolint:unconvert // another width elsewhere
		return stamp{} // something is mounted there
	}
	return stamp{ino: st.Ino, size: st.Size, mtime: st.Mtim.Nano(), ctime: st.Ctim.Nano(), mode: st.Mode}
}

// of is the stamp at a path; links are not followed. Zero if there is none.
func (t top) of(p string) stamp {
	var st unix.Stat_t
	if _, err := again(func() (int, error) { return 0, unix.Fstatat(t.fd, p, &st, unix.AT_SYMLINK_NOFOLLOW) }); err != nil {
		return stamp{}
	}
	return t.stamp(&st)
}

// ofOpen is the stamp of an open directory.
func (t top) ofOpen(fd handle) stamp {
	var st unix.Stat_t
	if _, err := again(func() (int, error) { return 0, unix.Fstat(fd, &st) }); err != nil {
		return stamp{}
	}
	return t.stamp(&st)
}

// stampFile is the stamp of a file outside of the tree, on whatever local file system it is.
func stampFile(name string) stamp {
	var st unix.Stat_t
	var kind unix.Statfs_t
	if unix.Stat(name, &st) != nil || unix.Statfs(name, &kind) != nil || !slices.Contains(local, int64(kind.Type)) { //nolint:unconvert // another width elsewhere
		return stamp{}
	}
	return top{dev: uint64(st.Dev)}.stamp(&st) //nolint:unconvert // another width elsewhere
}

func (s stamp) exec() bool    { return s.mode&0o100 != 0 }
func (s stamp) regular() bool { return s.mode&unix.S_IFMT == unix.S_IFREG }
