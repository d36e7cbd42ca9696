//go:build unix

package dir

import (
	"errors"
	"os"
	"syscall"
)

const onWindows = false

// Form is what the URL of such a store looks like.
const Form = "file:///path"

// errLink is a symbolic link in the place of a file.
var errLink error = syscall.ELOOP

// openPlain opens a file for reading and follows no link. O_NONBLOCK keeps a named pipe that somebody put there from blocking us.
func openPlain(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK|syscall.O_CLOEXEC, 0)
}

func openLock(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW|syscall.O_CLOEXEC, 0o644)
}

// tryLock is false when somebody else has the lock.
func tryLock(f *os.File) (bool, error) {
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		switch {
		case err == nil:
			return true, nil
		case errors.Is(err, syscall.EWOULDBLOCK):
			return false, nil
		case !errors.Is(err, syscall.EINTR):
			return false, err
		}
	}
}

// appear gives a file a name that nothing has yet: link(2). It is durable after syncDir.
func appear(from, to string) error { return os.Link(from, to) }

// rename puts a file in the place of another. It is durable after syncDir.
func rename(from, to string) error { return os.Rename(from, to) }

func syncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	defer d.Close()
	if err := d.Sync(); err != nil && !errors.Is(err, syscall.EINVAL) { // some file systems cannot; they need not
		return err
	}
	return nil
}

// noLinks says whether a link was refused since the file system has none.
func noLinks(err error) bool {
	return errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.ENOTSUP) || errors.Is(err, syscall.ENOSYS)
}

func diskFull(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}
