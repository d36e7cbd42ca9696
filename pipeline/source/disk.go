package source

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
)

// diskDir is a directory of a work tree as it was read: what git does not ignore, sorted by name.
type diskDir struct {
	path      string // "." is the root
	ignored   ignores
	inIgnored bool // only tracked files count, and nothing can be un-ignored
	entries   []diskEntry
	err       error
	stamp     stamp    // from before it was listed
	list      []dirent // all names, ignored ones too
}

type diskEntry struct {
	name string
	sub  *diskDir
	link bool
	exec bool
	size int64
	data []byte // the content, or a link's target; nil if it is too large, or was not read
	sum  [sha256.Size]byte
	err  error

	stamp stamp // of a file, from before it was read
	// read gets the content of a file that is as it was seen before.
	read func() ([]byte, error)
}

// dirent is a name in a directory; kind is the type bits.
type dirent struct {
	name string
	kind fs.FileMode
}

// diskReader reads a work tree by several goroutines, a directory at a time. Every name is opened in its own directory (a handle) and never followed, so
// that no link and no renaming leads out.
type diskReader struct {
	root    string
	tracked func() *trackedSet // waits for the index; only where something is ignored, or much too much is there, does it matter
	seen    *watch             // nil: all is read

	mu      sync.Mutex
	more    sync.Cond
	todo    []*diskDir
	busy    int
	idle    atomic.Int32
	entries atomic.Int64
	bytes   atomic.Int64
}

func readDisk(root string, ignored ignores, tracked func() *trackedSet, seen *watch) (*diskDir, error) {
	w := &diskReader{root: root, tracked: tracked, seen: seen}
	w.more.L = &w.mu
	top := &diskDir{path: ".", ignored: ignored}
	w.todo = []*diskDir{top}
	var wg sync.WaitGroup
	for range min(max(2, runtime.GOMAXPROCS(0)), 8) {
		wg.Go(w.work)
	}
	wg.Wait()
	return top, top.err
}

// work takes directories, the newest first, until none is left and nobody can find another.
func (w *diskReader) work() {
	buf := make([]byte, 64<<10)
	w.mu.Lock()
	defer w.mu.Unlock()
	for {
		for len(w.todo) == 0 {
			if w.busy == 0 {
				w.more.Broadcast()
				return
			}
			w.idle.Add(1)
			w.more.Wait()
			w.idle.Add(-1)
		}
		d := w.todo[len(w.todo)-1]
		w.todo = w.todo[:len(w.todo)-1]
		w.busy++
		w.mu.Unlock()
		d.err = w.dir(d, &opened{open: func() (handle, error) { return w.open(d.path) }}, buf, 0)
		w.mu.Lock()
		w.busy--
		if w.busy == 0 {
			w.more.Broadcast()
		}
	}
}

// opened is a directory that is opened once that is needed: one that is as it was seen need not be.
type opened struct {
	open func() (handle, error)
	fd   handle
	is   bool
}

func (o *opened) get() (handle, error) {
	if !o.is {
		fd, err := o.open()
		if err != nil {
			return fd, err
		}
		o.fd, o.is = fd, true
	}
	return o.fd, nil
}

func (o *opened) close() {
	if o.is {
		closeDir(o.fd)
	}
}

// below reads a subdirectory, or leaves it to a goroutine that has nothing to do.
func (w *diskReader) below(d *diskDir, dir *opened, name string, buf []byte, held int) {
	const maxHeld = 16 // directories held open by one goroutine
	if w.idle.Load() > 0 || held == maxHeld {
		w.mu.Lock()
		w.todo = append(w.todo, d)
		w.mu.Unlock()
		w.more.Signal()
		return
	}
	d.err = w.dir(d, &opened{open: func() (handle, error) {
		parent, err := dir.get()
		if err != nil {
			return parent, err
		}
		fd, err := openDirAt(parent, name)
		if err != nil {
			return fd, fmt.Errorf("%s: %w", shown(d.path), err)
		}
		return fd, nil
	}}, buf, held+1)
}

// names lists a directory, unless it is as it was seen.
func (w *diskReader) names(d *diskDir, known *seenDir, dir *opened, buf []byte) ([]dirent, error) {
	if known != nil && known.stamp != (stamp{}) {
		if d.stamp = w.seen.top.of(d.path); d.stamp == known.stamp {
			list := make([]dirent, len(known.entries))
			for i := range list {
				list[i] = known.entries[i].dirent
			}
			return list, nil
		}
	}
	fd, err := dir.get()
	if err != nil {
		return nil, err
	}
	if w.seen != nil {
		w.seen.news.Add(1)
		d.stamp = w.seen.top.ofOpen(fd)
	}
	list, err := readDir(fd, buf)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", shown(d.path), err)
	}
	slices.SortFunc(list, func(a, b dirent) int { return strings.Compare(a.name, b.name) })
	return list, nil
}

// dir reads a directory, and closes it.
func (w *diskReader) dir(d *diskDir, dir *opened, buf []byte, held int) error {
	defer dir.close()
	var known *seenDir
	if w.seen != nil {
		known = w.seen.before.dir(d.path)
	}
	list, err := w.names(d, known, dir, buf)
	if err != nil {
		return err
	}
	if w.seen != nil {
		d.list = list
	}
	if n := w.entries.Add(int64(len(list))); n > 2*MaxEntries && n > 2*MaxEntries+int64(len(w.tracked().files)) {
		return refuse(d.path, fmt.Sprintf("more than %d files and directories", MaxEntries), "split the repository, or ignore what does not belong to it")
	}
	ignored := d.ignored
	if !d.inIgnored {
		if ignored, err = w.ignoresOf(d, dir, list, buf); err != nil {
			return err
		}
	}
	d.entries = make([]diskEntry, 0, len(list))
	for _, e := range list {
		name := e.name
		p := name
		if d.path != "." {
			p = d.path + "/" + name
		}
		switch {
		case name == ".git":
			if d.path != "." {
				d.entries = append(d.entries, diskEntry{name: name})
			}
		case e.kind == fs.ModeDir:
			skip := d.inIgnored || ignored.match(p, true)
			if skip && !w.tracked().dirs[p] {
				continue
			}
			if strings.Count(p, "/") > maxDepth {
				continue // the builder refuses the directory above
			}
			sub := &diskDir{path: p, ignored: ignored, inIgnored: skip}
			d.entries = append(d.entries, diskEntry{name: name, sub: sub})
			w.below(sub, dir, name, buf, held)
		case (d.inIgnored || ignored.match(p, false)) && !w.tracked().files[p]:
		case e.kind == fs.ModeSymlink:
			entry := diskEntry{name: name, link: true}
			fd, err := dir.get()
			if err != nil {
				return err
			}
			entry.data, entry.err = readLink(fd, p, name)
			d.entries = append(d.entries, entry)
		case e.kind.IsRegular():
			entry, err := w.regular(d, known, dir, p, name, buf)
			if err != nil {
				return err
			}
			d.entries = append(d.entries, entry)
		case e.kind&fs.ModeIrregular != 0 && leadsElsewhere:
			why := refuse(p, "a junction, or another reparse point that is no symbolic link", "put the files themselves there, or ignore it")
			d.entries = append(d.entries, diskEntry{name: name, err: why})
		} // sockets, pipes and devices: git passes them over
	}
	return nil
}

// regular is a file as it was seen, or as it is read.
func (w *diskReader) regular(d *diskDir, known *seenDir, dir *opened, p, name string, buf []byte) (diskEntry, error) {
	if was, ok := known.file(name); ok {
		if is := w.seen.top.of(p); is == was.stamp && is.regular() && is.size <= MaxFile {
			return diskEntry{name: name, exec: is.exec(), size: is.size, sum: was.sum, stamp: is, read: w.again(d.path, p, name, was.sum)}, nil
		}
	}
	fd, err := dir.get()
	if err != nil {
		return diskEntry{}, err
	}
	if w.seen != nil {
		w.seen.news.Add(1)
	}
	return w.file(fd, p, name, buf), nil
}

// file reads one file, unless it is too large by itself or with all others: the builder says so, in order.
func (w *diskReader) file(dir handle, p, name string, buf []byte) diskEntry {
	e := diskEntry{name: name}
	e.err = w.read(&e, dir, name, buf)
	if e.err != nil {
		e.err = fmt.Errorf("%s: %w", shown(p), e.err)
	}
	return e
}

var errChanged = errors.New("changed while it was read; try again")

// fill reads the whole of a file that is size bytes long by its attributes, unless it is too large.
func (w *diskReader) fill(e *diskEntry, size int64, buf []byte, read func([]byte) (int, error)) error {
	e.size = size
	if e.size > MaxFile || w.bytes.Add(e.size) > MaxTree {
		return nil
	}
	if int64(len(buf)) <= e.size {
		buf = make([]byte, e.size+1)
	}
	n := 0
	for n <= int(e.size) { // one byte more than there should be
		got, err := read(buf[n : e.size+1])
		if err != nil {
			return err
		}
		if got == 0 {
			break
		}
		if n += got; n == int(e.size) {
			break // less than asked for is the end of a regular file
		}
	}
	if n != int(e.size) {
		return errChanged
	}
	e.data = append(make([]byte, 0, n), buf[:n]...)
	e.sum = sha256.Sum256(e.data)
	return nil
}

// ignoresOf adds the directory's own .gitignore. Like git, it does not follow a link of that name.
func (w *diskReader) ignoresOf(d *diskDir, dir *opened, list []dirent, buf []byte) (ignores, error) {
	const name = ".gitignore"
	i, there := slices.BinarySearchFunc(list, name, func(e dirent, name string) int { return strings.Compare(e.name, name) })
	if !there || !list[i].kind.IsRegular() {
		return d.ignored, nil
	}
	var e diskEntry
	p := path.Join(d.path, name)
	fd, err := dir.get()
	if err != nil {
		return nil, err
	}
	if err := w.read(&e, fd, name, buf); err != nil {
		return nil, fmt.Errorf("%s: %w", shown(p), err)
	}
	w.bytes.Add(-e.size) // it counts as a file
	if e.size > 1<<20 || e.data == nil {
		return nil, tooLarge(p, e.size)
	}
	return d.ignored.with(d.path, e.data), nil
}
