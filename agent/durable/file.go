package durable

import (
	"crypto/sha256"
	"errors"
	"io"
	"io/fs"

	"golang.org/x/sys/unix"
)

// File is an open file or directory, for one goroutine. It is not an os.File, which first tries whether the runtime's poller takes it: that is five more system
// calls for each regular file, and the answer is always no. An agent opens many small files.
type File struct {
	fd   int
	name string
}

// Open opens name with flags such as unix.O_RDONLY. Programs that are started do not inherit it.
func Open(name string, flags int, mode fs.FileMode) (*File, error) {
	for {
		fd, err := unix.Open(name, flags|unix.O_CLOEXEC, uint32(mode.Perm()))
		switch {
		case err == nil:
			return &File{fd, name}, nil
		case !errors.Is(err, unix.EINTR):
			return nil, &fs.PathError{Op: "open", Path: name, Err: err}
		}
	}
}

// Name is what it was opened as.
func (f *File) Name() string { return f.name }

// Close lets it go.
func (f *File) Close() error {
	fd := f.fd
	if f.fd = -1; fd < 0 {
		return f.wrap("close", fs.ErrClosed)
	}
	return f.wrap("close", unix.Close(fd)) // never twice: after EINTR it is closed
}

// Stat says what it is now.
func (f *File) Stat() (st unix.Stat_t, err error) {
	err = f.do("stat", func() error { return unix.Fstat(f.fd, &st) })
	return st, err
}

// Read implements io.Reader.
func (f *File) Read(p []byte) (n int, err error) {
	if len(p) == 0 {
		return 0, nil
	}
	p = p[:min(len(p), maxCall)]
	err = f.do("read", func() error { n, err = unix.Read(f.fd, p); return err })
	switch {
	case err != nil:
		return 0, err
	case n == 0:
		return 0, io.EOF
	}
	return n, nil
}

// maxCall is what one read or write is asked for at most, as some systems want it.
const maxCall = 1 << 30

// Write implements io.Writer.
func (f *File) Write(p []byte) (done int, err error) {
	for done < len(p) {
		var n int
		part := p[done:min(len(p), done+maxCall)]
		if err := f.do("write", func() error { n, err = unix.Write(f.fd, part); return err }); err != nil {
			return done, err
		}
		if n == 0 {
			return done, f.wrap("write", io.ErrUnexpectedEOF)
		}
		done += n
	}
	return done, nil
}

// ReadAll reads the rest, of which size bytes are expected, and no more than limit+1 bytes. A read that brings less than was asked for, and all that was
// expected, has met the end of a regular file: it is not asked once more.
func (f *File) ReadAll(size, limit int64) ([]byte, error) {
	buf := make([]byte, 0, min(max(size, 0), limit)+1)
	for {
		n, err := f.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		switch {
		case errors.Is(err, io.EOF):
			return buf, nil
		case err != nil:
			return nil, err
		case int64(len(buf)) > limit, int64(len(buf)) == size:
			return buf, nil
		case len(buf) == cap(buf): // it has grown since
			buf = append(buf, 0)[:len(buf)]
		}
	}
}

func (f *File) sync() error { return f.do("sync", func() error { return fsync(f.fd) }) }

func (f *File) chmod(mode fs.FileMode) error {
	return f.do("chmod", func() error { return unix.Fchmod(f.fd, uint32(mode.Perm())) })
}

func (f *File) chown(o Owner) error {
	return f.do("chown", func() error { return unix.Fchown(f.fd, o.UID, o.GID) })
}

// do makes a call again while a signal interrupts it.
func (f *File) do(op string, call func() error) error {
	if f.fd < 0 {
		return f.wrap(op, fs.ErrClosed)
	}
	for {
		if err := call(); !errors.Is(err, unix.EINTR) {
			return f.wrap(op, err)
		}
	}
}

func (f *File) wrap(op string, err error) error {
	if err == nil {
		return nil
	}
	return &fs.PathError{Op: op, Path: f.name, Err: err}
}

// Sum reads the rest, of which size bytes are expected: how much it is, and its SHA-256.
func (f *File) Sum(size int64) (n int64, sum [sha256.Size]byte, err error) {
	b := buffers.Get().(*[]byte)
	defer buffers.Put(b)
	h := sha256.New()
	for {
		some, err := f.Read(*b)
		h.Write((*b)[:some])
		n += int64(some)
		switch {
		case errors.Is(err, io.EOF), err == nil && n == size && some < len(*b):
			h.Sum(sum[:0])
			return n, sum, nil
		case err != nil:
			return n, sum, err
		}
	}
}
