package source

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"
)

// What was seen of a work tree when it was last read, in one file a work tree: as git's index does, it tells a file that nobody touched from one that is to
// be read. It is never wrong, only missing: what does not match is read.

// stamp is what the system says of a file or directory beside its content. Who writes to it changes ctime, whatever else is put back. The zero value is
// equal to none.
type stamp struct {
	ino          uint64
	size         int64
	mtime, ctime int64 // nanoseconds
	mode         uint32
}

// settled is how much older than the beginning of the reading a change must be for a stamp to be believed: a later change within the same tick of the file
// system's clock would leave the same stamp (git calls that racily clean). Two seconds is the coarsest tick there is.
const settled = 2 * time.Second

func (s stamp) before(t time.Time) bool { return s.ino != 0 && max(s.mtime, s.ctime) < t.UnixNano() }

// seen is a work tree as it was.
type seen struct {
	index stamp // of git's index, which had nothing in it that is refused
	dirs  map[string]*seenDir
	n     int // directories and names
}

type seenDir struct {
	stamp   stamp // zero: only its files are known
	entries []seenEntry
}

type seenEntry struct {
	dirent
	stamp stamp // zero unless it is a file whose content is known
	sum   [sha256.Size]byte
}

func (s *seen) dir(p string) *seenDir {
	if s == nil {
		return nil
	}
	return s.dirs[p]
}

// file is what is known of a file in a directory.
func (d *seenDir) file(name string) (seenEntry, bool) {
	if d == nil {
		return seenEntry{}, false
	}
	i, ok := slices.BinarySearchFunc(d.entries, name, func(e seenEntry, name string) int { return strings.Compare(e.name, name) })
	if !ok || d.entries[i].stamp == (stamp{}) {
		return seenEntry{}, false
	}
	return d.entries[i], true
}

// clock is time.Now; tests let time pass.
var clock = time.Now

const seenMagic = "muster work tree 1\n"

// seenFile is where a work tree's is kept.
func (r *Repo) seenFile(dir string) string {
	sum := sha256.Sum256([]byte(r.workTree + "\x00" + r.gitDir))
	return filepath.Join(dir, "tree-"+hex.EncodeToString(sum[:16]))
}

// recall reads what was seen; nil if that is nothing, or damaged.
func recall(name, root string) *seen {
	f, err := os.Open(name)
	if err != nil {
		return nil
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil || !fi.Mode().IsRegular() || fi.Size() > 256<<20 || fi.Size() < int64(len(seenMagic)+sha256.Size) {
		return nil
	}
	data := make([]byte, fi.Size())
	for n := 0; n < len(data); {
		got, err := f.Read(data[n:])
		if err != nil {
			return nil
		}
		n += got
	}
	body, sum := data[:len(data)-sha256.Size], data[len(data)-sha256.Size:]
	if want := sha256.Sum256(body); !bytes.Equal(sum, want[:]) || !bytes.HasPrefix(body, []byte(seenMagic)) {
		return nil
	}
	s, err := decodeSeen(body[len(seenMagic):], root)
	if err != nil {
		return nil
	}
	return s
}

var errSeen = errors.New("not what was seen of a work tree")

type seenReader struct {
	b    []byte
	text string // the same bytes: names share its memory
	bad  bool
}

func (r *seenReader) take(n uint64) []byte {
	if r.bad || n > uint64(len(r.b)) {
		r.bad = true
		return nil
	}
	out := r.b[:n]
	r.b = r.b[n:]
	return out
}

func (r *seenReader) uint() uint64 {
	n, size := binary.Uvarint(r.b)
	if size <= 0 {
		r.bad = true
		return 0
	}
	r.b = r.b[size:]
	return n
}

func (r *seenReader) string() string {
	n := r.uint()
	from := uint64(len(r.text) - len(r.b))
	if r.take(n); r.bad {
		return ""
	}
	return r.text[from : from+n]
}

const stampSize = 8 + 8 + 8 + 8 + 4

func (r *seenReader) stamp() (s stamp) {
	if b := r.take(stampSize); b != nil {
		s.ino, s.size = binary.LittleEndian.Uint64(b), int64(binary.LittleEndian.Uint64(b[8:]))
		s.mtime, s.ctime = int64(binary.LittleEndian.Uint64(b[16:])), int64(binary.LittleEndian.Uint64(b[24:]))
		s.mode = binary.LittleEndian.Uint32(b[32:])
	}
	return s
}

func appendStamp(b []byte, s stamp) []byte {
	b = binary.LittleEndian.AppendUint64(b, s.ino)
	b = binary.LittleEndian.AppendUint64(b, uint64(s.size))
	b = binary.LittleEndian.AppendUint64(b, uint64(s.mtime))
	b = binary.LittleEndian.AppendUint64(b, uint64(s.ctime))
	return binary.LittleEndian.AppendUint32(b, s.mode)
}

func appendText(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

func decodeSeen(data []byte, root string) (*seen, error) {
	r := &seenReader{b: data, text: string(data)}
	if r.string() != root {
		return nil, errSeen
	}
	s := &seen{index: r.stamp()}
	dirs, names := r.uint(), r.uint()
	if r.bad || dirs > uint64(len(data)) || names > uint64(len(data)) {
		return nil, errSeen
	}
	s.n = int(dirs + names)
	s.dirs = make(map[string]*seenDir, dirs)
	all, list := make([]seenDir, dirs), make([]seenEntry, 0, names)
	for i := range all {
		d := &all[i]
		p := r.string()
		d.stamp = r.stamp()
		n := r.uint()
		if r.bad || n > uint64(cap(list)-len(list)) {
			return nil, errSeen
		}
		from := len(list)
		for range n {
			e := seenEntry{dirent: dirent{name: r.string()}}
			kind := r.uint()
			if kind&1 != 0 {
				e.stamp = r.stamp()
				copy(e.sum[:], r.take(sha256.Size))
			}
			if kind>>1 > math.MaxUint32 {
				return nil, errSeen
			}
			e.kind = fs.FileMode(kind >> 1)
			list = append(list, e)
		}
		d.entries = list[from:len(list):len(list)]
		s.dirs[p] = d
	}
	if r.bad || len(r.b) > 0 {
		return nil, errSeen
	}
	return s, nil
}

// remember writes what is seen now, if it can. What changed too short a time before the reading began is left out.
func remember(name, root string, top *diskDir, index stamp, began time.Time) {
	limit := began.Add(-settled)
	if !index.before(limit) {
		index = stamp{}
	}
	var dirs, names uint64
	var body []byte
	var visit func(d *diskDir)
	visit = func(d *diskDir) {
		dirs++
		body = appendText(body, d.path)
		if d.stamp.before(limit) {
			body = appendStamp(body, d.stamp)
		} else {
			body = appendStamp(body, stamp{})
		}
		body = binary.AppendUvarint(body, uint64(len(d.list)))
		names += uint64(len(d.list))
		i := 0
		for _, e := range d.list {
			for i < len(d.entries) && d.entries[i].name < e.name {
				i++
			}
			body = appendText(body, e.name)
			kind := uint64(e.kind) << 1
			if i < len(d.entries) && d.entries[i].name == e.name && d.entries[i].sub == nil && d.entries[i].stamp.before(limit) {
				body = binary.AppendUvarint(body, kind|1)
				body = append(appendStamp(body, d.entries[i].stamp), d.entries[i].sum[:]...)
			} else {
				body = binary.AppendUvarint(body, kind)
			}
		}
		for i := range d.entries {
			if sub := d.entries[i].sub; sub != nil {
				visit(sub)
			}
		}
	}
	visit(top)
	data := appendText([]byte(seenMagic), root)
	data = appendStamp(data, index)
	data = binary.AppendUvarint(binary.AppendUvarint(data, dirs), names)
	data = append(data, body...)
	sum := sha256.Sum256(data)
	data = append(data, sum[:]...)
	tmp, err := os.CreateTemp(filepath.Dir(name), "tmp-")
	if err != nil {
		return
	}
	_, err = tmp.Write(data)
	if cerr := tmp.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(tmp.Name(), name)
	}
	if err != nil {
		os.Remove(tmp.Name())
	}
}

// watch is the part of a reading that goes by what was seen. Its methods are for several goroutines.
type watch struct {
	before *seen // nil: nothing was seen
	top    top
	news   atomic.Int64 // what was not as it was seen
}

// again reads a file once more that was not read because it is as it was seen.
func (w *diskReader) again(dir, p, name string, sum [sha256.Size]byte) func() ([]byte, error) {
	return func() ([]byte, error) {
		fd, err := w.open(dir)
		if err != nil {
			return nil, err
		}
		defer closeDir(fd)
		reader := &diskReader{root: w.root} // its sum of bytes is its own
		e := reader.file(fd, p, name, nil)
		switch {
		case e.err != nil:
			return nil, e.err
		case e.data == nil || e.sum != sum:
			return nil, fmt.Errorf("%s: %w", shown(p), errChanged)
		}
		return e.data, nil
	}
}
