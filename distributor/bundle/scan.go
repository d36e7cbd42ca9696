package bundle

import (
	"archive/tar"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"

	"github.com/klauspost/compress/zstd"

	"github.com/muster-config/muster/distributor/wire"
)

// Scan reads a whole compressed bundle and checks it: limits, order, names (relative, clean, unique also when case is folded, no file below a file), types, modes,
// nothing after the end of tar or zstd, index first and in agreement with the files. Memory is bounded whatever the input says. Errors are *Error, except that an
// error of r itself, which says nothing about the bundle, comes back wrapped as it is.
func Scan(r io.Reader) (*Plan, error) {
	plan, _, err := ScanKeeping(r, 0)
	return plan, err
}

// ScanKeeping is Scan that gives the files' bytes as well, in the order of the plan's entries, if they are no more than most in all; else nil, and Extract reads
// them. It is for bundles that are known to be small: with most > 0 it uses memory that stays.
func ScanKeeping(r io.Reader, most int64) (_ *Plan, kept [][]byte, err error) {
	a, err := newArchive(r, false, most > 0)
	if err != nil {
		return nil, nil, err
	}
	defer a.close()
	plan := &Plan{}
	kept = [][]byte{}
	left := most
	if err := a.walk(func(name string, size int64, data io.Reader) error {
		if name == IndexPath {
			return plan.Index.read(size, data)
		}
		if left -= size; left < 0 || kept == nil || most == 0 {
			kept = nil
			return nil
		}
		content, err := readAll(data, size)
		kept = append(kept, content)
		return err
	}); err != nil {
		return nil, nil, err
	}
	if err := a.check.index(&plan.Index); err != nil {
		return nil, nil, err
	}
	plan.Entries = a.check.entries
	plan.Content = ContentOf(plan.Entries)
	plan.Tar, plan.TarSize = digest(a.tarSum), a.tarSize.n
	plan.Object, plan.Size = digest(a.objectSum), a.objectSize.n
	return plan, kept, nil
}

func (ix *Index) read(size int64, data io.Reader) error {
	if size > MaxIndex {
		return refuse(CodeTooLarge, IndexPath, "index of %d bytes, at most %d allowed", size, MaxIndex)
	}
	doc := make([]byte, size)
	if _, err := io.ReadFull(data, doc); err != nil {
		return err
	}
	if err := wire.Decode(doc, ix); err != nil {
		return refuse(CodeMalformed, IndexPath, "%w", err)
	}
	return ix.check()
}

// Extract reads the bundle again and calls put for each file in order; the plan must come from Scan of the same bytes, every file is checked against it:
// data ends with an error instead of io.EOF if the file is not the planned one. What put wrote counts only if Extract returns nil.
func Extract(r io.Reader, plan *Plan, put func(e Entry, data io.Reader) error) error {
	a, err := newArchive(r, false, false)
	if err != nil {
		return err
	}
	defer a.close()
	next := 0
	err = a.walk(func(name string, size int64, data io.Reader) error {
		if name == IndexPath {
			return nil
		}
		if next >= len(plan.Entries) || plan.Entries[next].Path != name || plan.Entries[next].Size != size || plan.Entries[next].Mode != a.mode {
			return refuse(CodeDigest, name, "is not the file that was planned")
		}
		want := plan.Entries[next]
		next++
		v := &verified{r: data, sum: sha256.New(), left: size, want: want}
		if err := put(want, v); err != nil {
			if v.err != nil {
				return v.err // put only handed on what reading gave it
			}
			return &putError{fmt.Errorf("unpack %q: %w", name, err)}
		}
		_, err := io.Copy(io.Discard, v)
		return err
	})
	switch {
	case err != nil:
		return err
	case next != len(plan.Entries), digest(a.tarSum) != plan.Tar, digest(a.objectSum) != plan.Object:
		return refuse(CodeDigest, "", "is not the archive that was planned")
	}
	return nil
}

// verified is a file's data, which end in an error if they are not the planned ones.
type verified struct {
	r    io.Reader
	sum  hash.Hash
	left int64
	want Entry
	err  error
}

// putError marks an error that is put's own: a full disk is no fault of the bundle.
type putError struct{ error }

func (e *putError) Unwrap() error { return e.error }

func (v *verified) Read(p []byte) (int, error) {
	n, err := v.r.Read(p)
	v.sum.Write(p[:n])
	v.left -= int64(n)
	if v.left == 0 && hex.EncodeToString(v.sum.Sum(nil)) != v.want.SHA256 {
		n, err = 0, refuse(CodeDigest, v.want.Path, "is not the file that was planned")
	}
	if err != nil && !errors.Is(err, io.EOF) {
		v.err = err
	}
	return n, err
}

// ReadTree reads what PackTree wrote, within limits.
func ReadTree(r io.Reader) ([]File, error) {
	a, err := newArchive(r, true, false)
	if err != nil {
		return nil, err
	}
	defer a.close()
	var files []File
	if err := a.walk(func(name string, size int64, data io.Reader) error {
		content, err := readAll(data, size)
		files = append(files, File{Path: name, Mode: a.mode, Data: content})
		return err
	}); err != nil {
		return nil, err
	}
	return files, nil
}

// readAll reads size bytes without trusting size: memory grows with what really comes.
func readAll(r io.Reader, size int64) ([]byte, error) {
	buf := make([]byte, 0, min(size, 64<<10))
	for {
		if len(buf) == cap(buf) {
			buf = append(buf, 0)[:len(buf)]
		}
		n, err := r.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		if errors.Is(err, io.EOF) {
			return buf, nil
		}
		if err != nil {
			return nil, err
		}
	}
}

// archive reads one tar.zst in the one form that write gives it: what it reads it also writes anew, to a hash only, and at the end both tars must be
// the same. So no second way to say the same thing (other header formats, padding, extra records) gets in.
type archive struct {
	check      *checker
	mode       uint32 // of the file that walk visits
	objectSum  hash.Hash
	objectSize counter
	tarSum     hash.Hash
	tarSize    counter
	frame      *frame
	stored     io.Reader // frame, limited and summed
	zstd       *zstd.Decoder
	tarStream  io.Reader
	again      bool // zstd is one of decoders
}

// decoders are used again for small bundles, each with the memory of the largest that it has met. They are few and made at the start, so that what one keeps
// inside belongs to no part of the program that may end before it.
var decoders = func() chan *zstd.Decoder {
	list := make(chan *zstd.Decoder, 2)
	for range cap(list) {
		if z, err := newDecoder(nil); err == nil {
			list <- z
		}
	}
	return list
}()

func newDecoder(r io.Reader) (*zstd.Decoder, error) {
	return zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(MaxWindow), zstd.WithDecoderMaxMemory(MaxTar))
}

func newArchive(r io.Reader, tree, small bool) (*archive, error) {
	a := &archive{check: newChecker(tree), objectSum: sha256.New(), tarSum: sha256.New()}
	a.frame = &frame{r: r}
	a.stored = io.TeeReader(&limited{r: a.frame, left: MaxCompressed, max: MaxCompressed, what: "stored archive"},
		io.MultiWriter(a.objectSum, &a.objectSize))
	if small {
		select {
		case a.zstd = <-decoders:
			a.again = true
		default:
		}
	}
	var err error
	if a.again {
		err = a.zstd.Reset(a.stored)
	} else {
		a.zstd, err = newDecoder(a.stored)
	}
	if err != nil {
		return nil, a.refused(err)
	}
	z := a.zstd
	a.tarStream = io.TeeReader(&limited{r: z, left: MaxTar, max: MaxTar, what: "unpacked archive"}, io.MultiWriter(a.tarSum, &a.tarSize))
	return a, nil
}

func (a *archive) close() {
	switch {
	case !a.again:
		a.zstd.Close()
	case a.zstd.Reset(nil) == nil:
		decoders <- a.zstd
	}
}

// walk visits every file; data not read by visit are skipped. After a nil return all sums are complete.
func (a *archive) walk(visit func(name string, size int64, data io.Reader) error) error {
	anew := sha256.New()
	tw := tar.NewWriter(anew)
	tr := tar.NewReader(a.tarStream)
	for first := !a.check.tree; ; first = false {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) && !first {
			break
		}
		if errors.Is(err, io.EOF) {
			return refuse(CodeMalformed, "", "is empty, without an index")
		}
		if err != nil {
			return a.refused(err)
		}
		if err := a.file(h, first, tr, tw, visit); err != nil {
			return a.refused(err)
		}
	}
	if err := tw.Close(); err != nil {
		return a.refused(err)
	}
	var more [1]byte
	if n, err := io.ReadFull(a.tarStream, more[:]); n > 0 {
		return refuse(CodeMalformed, "", "there are bytes after the end of the tar")
	} else if !errors.Is(err, io.EOF) {
		return a.refused(err)
	}
	// The decoder stops at the end of the frame; what follows it is seen only by reading on.
	if _, err := io.Copy(io.Discard, a.stored); err != nil {
		return a.refused(err)
	}
	if digest(anew) != digest(a.tarSum) {
		return refuse(CodeMalformed, "", "the tar is not in the one form that muster writes")
	}
	return nil
}

func (a *archive) file(h *tar.Header, first bool, tr *tar.Reader, tw *tar.Writer, visit func(string, int64, io.Reader) error) error {
	switch {
	case h.Typeflag != tar.TypeReg:
		return refuse(CodeMalformed, h.Name, "is of type %q; only regular files are allowed", h.Typeflag)
	case first && h.Name != IndexPath:
		return refuse(CodeMalformed, h.Name, "comes first, where %s belongs", IndexPath)
	case first && h.Mode != indexMode:
		return refuse(CodeMalformed, h.Name, "mode %o, not %o", h.Mode, indexMode)
	}
	if !first {
		if err := a.check.header(h.Name, h.Mode, h.Size); err != nil {
			return err
		}
	}
	if err := tw.WriteHeader(header(h.Name, h.Mode, h.Size)); err != nil {
		return err
	}
	sum := sha256.New()
	a.mode = uint32(h.Mode)
	data := io.TeeReader(tr, io.MultiWriter(sum, tw))
	if err := visit(h.Name, h.Size, data); err != nil {
		return err
	}
	if _, err := io.Copy(io.Discard, data); err != nil {
		return err
	}
	if !first {
		a.check.entries = append(a.check.entries, Entry{Path: h.Name, Mode: uint32(h.Mode), Size: h.Size, SHA256: hex.EncodeToString(sum.Sum(nil))})
	}
	return nil
}

// refused gives an error of the archive its code; r's own error stays what it is.
func (a *archive) refused(err error) error {
	var e *Error
	var put *putError
	switch {
	case errors.As(err, &put):
		return put.error
	case a.frame.broken != nil:
		return fmt.Errorf("read bundle: %w", a.frame.broken)
	case errors.As(err, &e):
		return err
	case errors.Is(err, zstd.ErrWindowSizeExceeded), errors.Is(err, zstd.ErrDecoderSizeExceeded):
		return refuse(CodeTooLarge, "", "%w", err)
	}
	return refuse(CodeMalformed, "", "%w", err)
}
