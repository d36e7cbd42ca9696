package bundle

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// frame passes on the bytes of exactly one zstd frame (RFC 8878, 3.1.1) and refuses what a decoder would take silently: a second frame, a skippable
// one, anything after the end, a dictionary, a window over the limit.
type frame struct {
	r        io.Reader
	need     int  // bytes of the block or checksum still to pass before the next header
	header   bool // the frame header has passed
	last     bool // the last block has begun
	checksum bool
	done     bool
	buf      [18]byte // the header that is being collected, and its length
	n        int
	err      error // final
	broken   error // r's own error, which says nothing about the bundle
}

const frameMagic = 0xFD2FB528

func (f *frame) Read(p []byte) (int, error) {
	if f.err != nil {
		return 0, f.err
	}
	if len(p) == 0 {
		return 0, nil
	}
	n, err := f.r.Read(p)
	if ferr := f.pass(p[:n]); ferr != nil {
		f.err = ferr
		return 0, ferr // nothing of this read may be decoded
	}
	switch {
	case errors.Is(err, io.EOF) && !f.done:
		f.err = refuse(CodeMalformed, "", "the zstd frame ends early")
		if n == 0 {
			return 0, f.err
		}
	case errors.Is(err, io.EOF):
		f.err = io.EOF
	case err != nil:
		f.broken, f.err = err, err
	}
	return n, err
}

// pass follows the structure over p.
func (f *frame) pass(p []byte) error {
	for len(p) > 0 {
		if f.need > 0 {
			n := min(f.need, len(p))
			f.need -= n
			p = p[n:]
			if f.need == 0 {
				f.blockEnd()
			}
			continue
		}
		if f.done {
			return refuse(CodeMalformed, "", "there are bytes after the end of the zstd frame")
		}
		f.buf[f.n] = p[0]
		f.n++
		p = p[1:]
		var err error
		if f.header {
			err = f.blockHeader()
		} else {
			err = f.frameHeader()
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (f *frame) blockEnd() {
	switch {
	case !f.last: // the next block header follows
	case f.checksum:
		f.checksum = false
		f.need = 4
	default:
		f.done = true
	}
}

func (f *frame) blockHeader() error {
	if f.n < 3 {
		return nil
	}
	h := uint32(f.buf[0]) | uint32(f.buf[1])<<8 | uint32(f.buf[2])<<16
	f.n = 0
	f.last = h&1 != 0
	size := int(h >> 3)
	switch h >> 1 & 3 {
	case 0, 2:
		f.need = size
	case 1: // one byte, repeated
		f.need = 1
	default:
		return refuse(CodeMalformed, "", "reserved zstd block type")
	}
	if f.need == 0 {
		f.blockEnd()
	}
	return nil
}

func (f *frame) frameHeader() error {
	if f.n < 5 {
		return nil
	}
	if binary.LittleEndian.Uint32(f.buf[:4]) != frameMagic {
		return refuse(CodeMalformed, "", "is no zstd frame")
	}
	d := f.buf[4]
	single := d&0x20 != 0
	fcs := [4]int{0, 2, 4, 8}[d>>6]
	if single && fcs == 0 {
		fcs = 1
	}
	window := 1
	if single {
		window = 0
	}
	if d&3 != 0 {
		return refuse(CodeMalformed, "", "needs a zstd dictionary")
	}
	if d&0x08 != 0 {
		return refuse(CodeMalformed, "", "reserved bit in the zstd frame header")
	}
	if f.n < 5+window+fcs {
		return nil
	}
	var size uint64
	field := f.buf[5+window : 5+window+fcs]
	for i := len(field) - 1; i >= 0; i-- {
		size = size<<8 | uint64(field[i])
	}
	if fcs == 2 {
		size += 256
	}
	if fcs > 0 && size > MaxTar {
		return refuse(CodeTooLarge, "", "unpacks to %d bytes, at most %d allowed", size, MaxTar)
	}
	need := size // a single segment is its own window
	if !single {
		w := f.buf[5]
		base := uint64(1) << (10 + w>>3)
		need = base + base/8*uint64(w&7)
	}
	if need > MaxWindow {
		return refuse(CodeTooLarge, "", "needs a zstd window of %d bytes, at most %d allowed", need, MaxWindow)
	}
	f.header, f.checksum, f.n = true, d&0x04 != 0, 0
	return nil
}

// limited fails, with a refusal, on the first byte over max.
type limited struct {
	r    io.Reader
	left int64
	what string
	max  int64
}

func (l *limited) Read(p []byte) (int, error) {
	if int64(len(p)) > l.left+1 {
		p = p[:l.left+1]
	}
	n, err := l.r.Read(p)
	l.left -= int64(n)
	if l.left < 0 {
		return 0, &Error{Code: CodeTooLarge, Err: fmt.Errorf("%s: more than %d bytes", l.what, l.max)}
	}
	return n, err
}

type counter struct{ n int64 }

func (c *counter) Write(p []byte) (int, error) {
	c.n += int64(len(p))
	return len(p), nil
}
