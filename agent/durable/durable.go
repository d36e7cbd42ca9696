// Package durable is the disk as crash-safe code needs it: a few verbs, each of which leaves either the old or the new state behind, whatever
// moment the power goes. Everything that the agent writes goes through a Disk.
//
// A file is written under a random name in its own directory, fsynced, renamed over the old one, and the directory is fsynced. Modes are exact
// from the first moment and do not depend on the umask.
package durable

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// Op names a call that changes or syncs the disk.
type Op string

// The calls that a Disk makes.
const (
	OpCreate  Op = "create"  // an empty file, exclusively, with its final mode
	OpWrite   Op = "write"   // its bytes
	OpSync    Op = "sync"    // fsync of a file
	OpMkdir   Op = "mkdir"   //
	OpSyncDir Op = "syncdir" // fsync of a directory
	OpSymlink Op = "symlink" //
	OpRename  Op = "rename"  // the path is the new name
	OpRemove  Op = "remove"  //
	OpLink    Op = "link"    // a second name for a file
	OpChown   Op = "chown"   // owner and group of a new file that is still empty
)

// Disk makes the calls. The zero value is ready.
type Disk struct {
	// Trace, if set, is told of each call before it is made; its error is returned in place of the call. Tests record, fail and kill here.
	Trace func(op Op, path string) error
}

func (d Disk) trace(op Op, path string) error {
	if d.Trace == nil {
		return nil
	}
	return d.Trace(op, path)
}

// tempPrefix starts the names of files and links that are not yet what they will be.
const tempPrefix = ".tmp-"

// TempName is a random name for something unfinished. Left-overs of a crash are found by it: see Sweep.
func TempName() string {
	var b [12]byte
	rand.Read(b[:]) // never fails since Go 1.24
	return tempPrefix + hex.EncodeToString(b[:])
}

// WriteFile replaces path by data as a whole.
func (d Disk) WriteFile(path string, mode fs.FileMode, data []byte) error {
	return d.replace(path, mode, data, d.Rename)
}

// WriteFileUnsynced is WriteFile but for the fsync of the directory. Whoever looks sees the old bytes or the new, all of them; after a power cut it may be
// the old ones again, until the directory is fsynced, as by the next change of another name in it.
func (d Disk) WriteFileUnsynced(path string, mode fs.FileMode, data []byte) error {
	return d.replace(path, mode, data, d.Move)
}

func (d Disk) replace(path string, mode fs.FileMode, data []byte, rename func(from, to string) error) error {
	tmp := filepath.Join(filepath.Dir(path), TempName())
	err := d.CreateFile(tmp, mode, bytes.NewReader(data))
	if err == nil {
		err = rename(tmp, path)
	}
	if err != nil {
		os.Remove(tmp)
		return err
	}
	return nil
}

// CreateFile makes a new file with exactly this mode, copies src into it and fsyncs it. It never follows a link and never opens what is there
// already. The entry itself is durable only after SyncDir of the directory. On an error the file may be left behind, incomplete.
func (d Disk) CreateFile(path string, mode fs.FileMode, src io.Reader) error {
	return d.CreateOwned(path, mode, Owner{Keep, Keep}, src)
}

// Owner is whose a file is to be, by ids. Keep leaves one as it comes.
type Owner struct{ UID, GID int }

// Keep is the id of nobody: owner or group of a new file stay those of the process.
const Keep = -1

// CreateOwned is CreateFile with an owner.
func (d Disk) CreateOwned(path string, mode fs.FileMode, owner Owner, src io.Reader) error {
	f, err := d.write(path, mode, owner, src)
	if err != nil {
		return err
	}
	err = d.syncFile(f, path)
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	return err
}

// write makes a new file and copies src into it. It is open, and not synced yet.
func (d Disk) write(path string, mode fs.FileMode, owner Owner, src io.Reader) (_ *File, err error) {
	if err := d.trace(OpCreate, path); err != nil {
		return nil, &fs.PathError{Op: "create", Path: path, Err: err}
	}
	f, err := Open(path, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW, mode)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = f.Close()
		}
	}()
	// The owner comes first: whoever it is, what he may do with the file is in the mode.
	if owner.UID != Keep || owner.GID != Keep {
		if err := d.trace(OpChown, path); err != nil {
			return nil, &fs.PathError{Op: "chown", Path: path, Err: err}
		}
		if err := f.chown(owner); err != nil {
			return nil, err
		}
	}
	// The umask may have taken bits away. They come back while the file is still empty: no byte of it is ever readable by more than mode says.
	if err := f.chmod(mode); err != nil {
		return nil, err
	}
	if err := d.trace(OpWrite, path); err != nil {
		return nil, &fs.PathError{Op: "write", Path: path, Err: err}
	}
	if _, err := Copy(f, src); err != nil {
		return nil, err
	}
	return f, nil
}

var buffers = sync.Pool{New: func() any { b := make([]byte, 32<<10); return &b }}

// Copy is io.Copy between files, streams and sums, through a buffer that is used again: an agent reads and writes many small files.
func Copy(dst io.Writer, src io.Reader) (int64, error) {
	b := buffers.Get().(*[]byte)
	defer buffers.Put(b)
	// Neither side may bring a buffer of its own.
	return io.CopyBuffer(struct{ io.Writer }{dst}, struct{ io.Reader }{src}, *b)
}

func (d Disk) syncFile(f *File, path string) error {
	if err := d.trace(OpSync, path); err != nil {
		return &fs.PathError{Op: "sync", Path: path, Err: err}
	}
	return f.sync()
}

// Batch creates many files, each as CreateOwned does, and fsyncs them after they have all been written. Every one of them is fsynced, as every one must be; but
// a journaling file system commits all that happened until the first fsync at once, and has nothing left to commit at the others, where file by file it would
// commit as often as there are files.
type Batch struct {
	disk Disk
	open []*File
}

// maxBatch bounds the files that are open at a time.
const maxBatch = 64

// Batch starts an empty one. It is for one goroutine.
func (d Disk) Batch() *Batch { return &Batch{disk: d} }

// Create makes and writes a file. It is durable only after Sync.
func (b *Batch) Create(path string, mode fs.FileMode, owner Owner, src io.Reader) error {
	if len(b.open) == maxBatch {
		if err := b.Sync(); err != nil {
			return err
		}
	}
	f, err := b.disk.write(path, mode, owner, src)
	if err == nil {
		b.open = append(b.open, f)
	}
	return err
}

// Sync fsyncs every file that was created since the last Sync.
func (b *Batch) Sync() error {
	defer b.Close()
	for i, f := range b.open {
		err := b.disk.syncFile(f, f.Name())
		if cerr := f.Close(); err == nil {
			err = cerr
		}
		if err != nil {
			b.open = b.open[i+1:]
			return err
		}
	}
	b.open = b.open[:0]
	return nil
}

// Close lets go of files that were not synced: those of a batch that failed.
func (b *Batch) Close() {
	for _, f := range b.open {
		_ = f.Close()
	}
	b.open = nil
}

// Mkdir makes one directory with exactly this mode. The entry is durable only after SyncDir of the parent.
func (d Disk) Mkdir(path string, mode fs.FileMode) error {
	if err := d.trace(OpMkdir, path); err != nil {
		return &fs.PathError{Op: "mkdir", Path: path, Err: err}
	}
	if err := os.Mkdir(path, mode.Perm()); err != nil {
		return err
	}
	return os.Chmod(path, mode.Perm())
}

// MkdirAll makes path and its missing parents, and fsyncs each directory that got a new entry.
func (d Disk) MkdirAll(path string, mode fs.FileMode) error {
	switch info, err := os.Stat(path); {
	case err == nil && info.IsDir():
		return nil
	case err == nil:
		return &fs.PathError{Op: "mkdir", Path: path, Err: errors.New("there is something that is not a directory")}
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	parent := filepath.Dir(path)
	if parent != path {
		if err := d.MkdirAll(parent, mode); err != nil {
			return err
		}
	}
	if err := d.Mkdir(path, mode); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return d.SyncDir(parent)
}

// SyncDir fsyncs a directory: the names in it are durable then.
func (d Disk) SyncDir(path string) error {
	f, err := Open(path, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	return d.syncOpen(f, path)
}

func (d Disk) syncOpen(f *File, path string) error {
	if err := d.trace(OpSyncDir, path); err != nil {
		return &fs.PathError{Op: "sync", Path: path, Err: err}
	}
	return f.sync()
}

// Symlink makes link point to target, in place of an earlier link, with no moment in which there is none. It never goes into a directory that the
// old link points to. The directory is fsynced.
func (d Disk) Symlink(target, link string) error {
	tmp := filepath.Join(filepath.Dir(link), TempName())
	if err := d.trace(OpSymlink, tmp); err != nil {
		return &os.LinkError{Op: "symlink", Old: target, New: link, Err: err}
	}
	if err := os.Symlink(target, tmp); err != nil {
		return err
	}
	if err := d.Rename(tmp, link); err != nil {
		os.Remove(tmp)
		return err
	}
	return nil
}

// Aside gives what is at path a second name, durably. What has that name already and is the same file is left as it is; another one is fs.ErrExist.
func (d Disk) Aside(path, second string) error {
	if err := d.trace(OpLink, second); err != nil {
		return &os.LinkError{Op: "link", Old: path, New: second, Err: err}
	}
	if err := os.Link(path, second); errors.Is(err, fs.ErrExist) {
		a, aerr := os.Lstat(path)
		b, berr := os.Lstat(second)
		if aerr != nil || berr != nil || !os.SameFile(a, b) {
			return err
		}
	} else if err != nil {
		return err
	}
	return d.SyncDir(filepath.Dir(second))
}

// Remove removes one name, durably. That it is gone already is no error.
func (d Disk) Remove(path string) error {
	if err := d.trace(OpRemove, path); err != nil {
		return &fs.PathError{Op: "remove", Path: path, Err: err}
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return d.SyncDir(filepath.Dir(path))
}

// Rename moves from to to and fsyncs the directory of the new name. It is opened first, so that nothing but the fsync itself can fail after the rename.
// The directory of the old name is not synced.
func (d Disk) Rename(from, to string) error {
	dst, err := Open(filepath.Dir(to), unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer func() { _ = dst.Close() }()
	if err := d.trace(OpRename, to); err != nil {
		return &os.LinkError{Op: "rename", Old: from, New: to, Err: err}
	}
	if err := rename(from, to); err != nil {
		return err
	}
	return d.syncOpen(dst, filepath.Dir(to))
}

// Move is Rename without the fsync, which the caller owes: SyncDir of the directory of the new name, before anything that relies on it.
func (d Disk) Move(from, to string) error {
	if err := d.trace(OpRename, to); err != nil {
		return &os.LinkError{Op: "rename", Old: from, New: to, Err: err}
	}
	return rename(from, to)
}

// rename is os.Rename without a look at what has the new name: the kernel says what may not be replaced.
func rename(from, to string) error {
	for {
		err := unix.Rename(from, to)
		switch {
		case err == nil:
			return nil
		case !errors.Is(err, unix.EINTR):
			return &os.LinkError{Op: "rename", Old: from, New: to, Err: err}
		}
	}
}

// RemoveAll removes a tree. It is not synced: what a crash brings back is swept at the next start.
func (d Disk) RemoveAll(path string) error {
	if err := d.trace(OpRemove, path); err != nil {
		return &fs.PathError{Op: "remove", Path: path, Err: err}
	}
	if removeTree(path, 0) == nil {
		return nil
	}
	return os.RemoveAll(path) // it has more patience, and says what is in the way
}

// maxDepth is deeper than the directories of a release go.
const maxDepth = 64

// removeTree is os.RemoveAll for a tree in which nobody else works, with half of the calls.
func removeTree(path string, depth int) error {
	var st unix.Stat_t
	switch err := unix.Lstat(path, &st); {
	case errors.Is(err, unix.ENOENT):
		return nil
	case err != nil:
		return err
	case st.Mode&unix.S_IFMT != unix.S_IFDIR:
		return unix.Unlink(path)
	case depth == maxDepth:
		return unix.ELOOP
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return err
	}
	for _, e := range entries {
		name := filepath.Join(path, e.Name())
		if e.IsDir() {
			err = removeTree(name, depth+1)
		} else {
			err = unix.Unlink(name)
		}
		if err != nil {
			return err
		}
	}
	return unix.Rmdir(path)
}

// Sweep removes what a crash left unfinished in dir.
func (d Disk) Sweep(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), tempPrefix) {
			if err := d.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
				return fmt.Errorf("sweep %s: %w", dir, err)
			}
		}
	}
	return nil
}
