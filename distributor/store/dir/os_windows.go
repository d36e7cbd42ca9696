package dir

import (
	"errors"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/windows"
)

const onWindows = true

// Form is what the URL of such a store looks like.
const Form = "file:///C:/path"

// errLink is a symbolic link, or another reparse point, in the place of a file.
var errLink = errors.New("a reparse point")

// openPlain opens a file for reading and follows no reparse point. Others may rename over it and remove it meanwhile.
func openPlain(path string) (*os.File, error) {
	return openAs("open", path, windows.GENERIC_READ, windows.OPEN_EXISTING)
}

func openLock(path string) (*os.File, error) {
	return openAs("lock", path, windows.GENERIC_READ|windows.GENERIC_WRITE, windows.OPEN_ALWAYS)
}

func openAs(op, path string, access, mode uint32) (*os.File, error) {
	name, err := windows.UTF16PtrFromString(path)
	if err != nil {
		return nil, &fs.PathError{Op: op, Path: path, Err: err}
	}
	var h windows.Handle
	err = patiently(func() error {
		h, err = windows.CreateFile(name, access, windows.FILE_SHARE_READ|windows.FILE_SHARE_WRITE|windows.FILE_SHARE_DELETE, nil, mode,
			windows.FILE_FLAG_OPEN_REPARSE_POINT|windows.FILE_FLAG_BACKUP_SEMANTICS, 0)
		return err
	})
	if err != nil {
		return nil, &fs.PathError{Op: op, Path: path, Err: err}
	}
	f := os.NewFile(uintptr(h), path)
	var info windows.ByHandleFileInformation
	if err := windows.GetFileInformationByHandle(h, &info); err != nil {
		f.Close()
		return nil, &fs.PathError{Op: op, Path: path, Err: err}
	}
	if info.FileAttributes&windows.FILE_ATTRIBUTE_REPARSE_POINT != 0 {
		f.Close()
		return nil, &fs.PathError{Op: op, Path: path, Err: errLink}
	}
	return f, nil
}

// tryLock is false when somebody else has the lock. It ends with the file, also when this process dies.
func tryLock(f *os.File) (bool, error) {
	err := windows.LockFileEx(windows.Handle(f.Fd()), windows.LOCKFILE_EXCLUSIVE_LOCK|windows.LOCKFILE_FAIL_IMMEDIATELY, 0, 1, 0, &windows.Overlapped{})
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, windows.ERROR_LOCK_VIOLATION), errors.Is(err, windows.ERROR_IO_PENDING):
		return false, nil
	}
	return false, err
}

// appear gives a file a name that nothing has yet, and returns when that is on the disk.
func appear(from, to string) error { return move("create", from, to, windows.MOVEFILE_WRITE_THROUGH) }

// rename puts a file in the place of another, and returns when that is on the disk. It is refused while somebody has the old one open without
// sharing: a virus scanner, say, for a moment.
func rename(from, to string) error {
	return move("rename", from, to, windows.MOVEFILE_REPLACE_EXISTING|windows.MOVEFILE_WRITE_THROUGH)
}

func move(op, from, to string, flags uint32) error {
	a, err := windows.UTF16PtrFromString(from)
	if err != nil {
		return &os.LinkError{Op: op, Old: from, New: to, Err: err}
	}
	b, err := windows.UTF16PtrFromString(to)
	if err != nil {
		return &os.LinkError{Op: op, Old: from, New: to, Err: err}
	}
	if err := patiently(func() error { return windows.MoveFileEx(a, b, flags) }); err != nil {
		return &os.LinkError{Op: op, Old: from, New: to, Err: err}
	}
	return nil
}

// patiently tries for a second what another one's open file forbids.
func patiently(f func() error) error {
	for end := time.Now().Add(time.Second); ; time.Sleep(5 * time.Millisecond) {
		err := f()
		if !errors.Is(err, windows.ERROR_SHARING_VIOLATION) && !errors.Is(err, windows.ERROR_ACCESS_DENIED) || time.Now().After(end) {
			return err
		}
	}
}

// syncDir: Windows has no fsync of a directory. The names of files last since rename and appear wait for them; those of new directories are
// in the journal of NTFS before them.
func syncDir(string) error { return nil }

// noLinks: appear does without.
func noLinks(error) bool { return false }

func diskFull(err error) bool {
	return errors.Is(err, windows.ERROR_DISK_FULL) || errors.Is(err, windows.ERROR_HANDLE_DISK_FULL)
}
