// Package parcel is the one file in which a head goes to a host by hand, with the keyrings and objects that it needs, where no store can be reached: `muster override set --out` writes it,
// `muster-agent apply --from` reads it.
//
// It is a tar of regular files in the plainest form (USTAR, no extensions), named by their keys in a store: at most one head (cohorts/<cohort>.json), keyrings (keyring/<version>.json) and
// objects (bundles/…). It vouches for nothing: what is in it is judged as if it came from a store.
package parcel

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/muster-config/muster/distributor/bundle"
	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/store"
)

// Limits of a file.
const (
	MaxEntries = 256
	MaxBytes   = 2 << 30
)

// FirstApart is the lowest epoch of overrides that are made apart from their store, for carrying by hand: a store gives its epochs out from 1, so that none of theirs is ever one of the store's.
const FirstApart = 1 << 52

const block = 512

// Parcel is a file that was looked through. It reads from the file again for each object, and is safe for concurrent use.
type Parcel struct {
	r       io.ReaderAt
	entries map[string]entry
	cohort  string
}

type entry struct{ at, size int64 }

// Open looks through a file of size bytes. Whatever is not as it must be refuses it as a whole: manifest.ErrMalformed.
func Open(r io.ReaderAt, size int64) (*Parcel, error) {
	p, err := open(r, size)
	if err != nil {
		return nil, fmt.Errorf("%w file: %w", manifest.ErrMalformed, err)
	}
	return p, nil
}

func open(r io.ReaderAt, size int64) (*Parcel, error) {
	switch {
	case size > MaxBytes:
		return nil, fmt.Errorf("larger than %d bytes", int64(MaxBytes))
	case size < 2*block || size%block != 0:
		return nil, errors.New("it ends early, or is no tar file")
	}
	p := &Parcel{r: r, entries: map[string]entry{}}
	var head [block]byte
	for at := int64(0); ; {
		if at+block > size {
			return nil, errors.New("it ends early: nothing marks its end")
		}
		if _, err := r.ReadAt(head[:], at); err != nil {
			return nil, fmt.Errorf("read it: %w", unexpected(err))
		}
		at += block
		if head == [block]byte{} {
			return p, p.end(at, size)
		}
		key, n, err := plain(&head)
		if err != nil {
			return nil, err
		}
		limit, err := p.limit(key)
		switch {
		case err != nil:
			return nil, err
		case n > limit:
			return nil, fmt.Errorf("%s is larger than %d bytes", key, limit)
		case n > size-at:
			return nil, fmt.Errorf("it ends early, within %s", key)
		case len(p.entries) == MaxEntries:
			return nil, fmt.Errorf("more than %d entries", MaxEntries)
		}
		if _, twice := p.entries[key]; twice {
			return nil, fmt.Errorf("%s is in it twice", key)
		}
		p.entries[key] = entry{at, n}
		at += (n + block - 1) / block * block
	}
}

// end demands zeros up to the end, and not many of them.
func (p *Parcel) end(at, size int64) error {
	rest := size - at
	if rest < block || rest > 64<<10 {
		return errors.New("it ends early, or something stands after its end")
	}
	data := make([]byte, rest)
	if _, err := p.r.ReadAt(data, at); err != nil {
		return fmt.Errorf("read it: %w", unexpected(err))
	}
	if len(bytes.Trim(data, "\x00")) > 0 {
		return errors.New("something stands after its end")
	}
	return nil
}

// plain reads the header of a regular file. Everything else that a tar can say is refused: links, devices, directories, extended headers.
func plain(h *[block]byte) (key string, size int64, err error) {
	sum := int64(0)
	for i, c := range h {
		if i >= 148 && i < 156 {
			c = ' '
		}
		sum += int64(c)
	}
	want, err := octal(h[148:156])
	if err != nil || want != sum || string(h[257:263]) != "ustar\x00" {
		return "", 0, errors.New("it is no tar file, or damaged")
	}
	name, ok := text(h[:100])
	if !ok || len(bytes.Trim(h[345:500], "\x00")) > 0 {
		return "", 0, errors.New("the name of an entry is not one of a store's")
	}
	if h[156] != tar.TypeReg {
		return "", 0, fmt.Errorf("%.100q is no regular file", name)
	}
	if len(bytes.Trim(h[157:257], "\x00")) > 0 {
		return "", 0, fmt.Errorf("%.100q is a link", name)
	}
	if size, err = octal(h[124:136]); err != nil {
		return "", 0, fmt.Errorf("%.100q has no size", name)
	}
	return name, size, nil
}

// text is a field that zeros follow.
func text(field []byte) (string, bool) {
	s, rest, _ := bytes.Cut(field, []byte{0})
	return string(s), len(bytes.Trim(rest, "\x00")) == 0
}

func octal(field []byte) (int64, error) {
	s := strings.Trim(string(field), " \x00")
	n, err := strconv.ParseInt(s, 8, 64)
	if err != nil || n < 0 {
		return 0, errors.New("not an octal number")
	}
	return n, nil
}

// limit is how large an entry may be; a key that has no place in such a file is an error.
func (p *Parcel) limit(key string) (int64, error) {
	if name, ok := middle(key, manifest.PrefixCohorts, ".json"); ok && manifest.ValidName(name) {
		if p.cohort != "" && p.cohort != name {
			return 0, fmt.Errorf("it holds the heads of two cohorts, %s and %s", p.cohort, name)
		}
		p.cohort = name
		return manifest.MaxHeadBytes, nil
	}
	if digits, ok := middle(key, manifest.PrefixKeyrings, ".json"); ok {
		if v, err := strconv.ParseUint(digits, 10, 64); err == nil && manifest.KeyKeyring(v) == key {
			return manifest.MaxKeyringBytes, nil
		}
	}
	if rest, ok := middle(key, manifest.PrefixBundles, ".tar.zst"); ok {
		if _, hex, ok := strings.Cut(rest, "/"); ok && manifest.ValidDigest("sha256:"+hex) && manifest.KeyBundle("sha256:"+hex) == key {
			return max(bundle.MaxCompressed, manifest.MaxVariantsBytes), nil
		}
	}
	return 0, fmt.Errorf("%.100q does not belong there", key)
}

func middle(s, before, after string) (string, bool) {
	s, ok := strings.CutPrefix(s, before)
	if !ok {
		return "", false
	}
	return strings.CutSuffix(s, after)
}

// Cohort is whose head is in it, "" if there is none.
func (p *Parcel) Cohort() string { return p.cohort }

// Keys are the keys of all that is in it, sorted.
func (p *Parcel) Keys() []string { return slices.Sorted(maps.Keys(p.entries)) }

// Open streams an object; store.ErrNotFound if it is not there.
func (p *Parcel) Open(key string) (io.Reader, int64, error) {
	e, ok := p.entries[key]
	if !ok {
		return nil, 0, fmt.Errorf("%s: %w in the file", key, store.ErrNotFound)
	}
	return &whole{io.NewSectionReader(p.r, e.at, e.size), e.size}, e.size, nil
}

// Read gives an object of at most limit bytes.
func (p *Parcel) Read(key string, limit int64) ([]byte, error) {
	r, size, err := p.Open(key)
	if err != nil {
		return nil, err
	}
	if size > limit {
		return nil, fmt.Errorf("%s: %w", key, store.ErrTooLarge)
	}
	return io.ReadAll(r)
}

// whole makes a body that ends early, since the file was cut meanwhile, an error.
type whole struct {
	r    io.Reader
	left int64
}

func (w *whole) Read(b []byte) (int, error) {
	n, err := w.r.Read(b)
	w.left -= int64(n)
	if errors.Is(err, io.EOF) && w.left > 0 {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// Write writes a file with objects, by key, that Open takes.
func Write(w io.Writer, objects map[string][]byte) error {
	t := tar.NewWriter(w)
	check := &Parcel{}
	for _, key := range slices.Sorted(maps.Keys(objects)) {
		data := objects[key]
		limit, err := check.limit(key)
		if err == nil && int64(len(data)) > limit {
			err = fmt.Errorf("%s is larger than %d bytes", key, limit)
		}
		if err != nil {
			return err
		}
		if err := t.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: key, Size: int64(len(data)), Mode: 0o600, Format: tar.FormatUSTAR}); err != nil {
			return fmt.Errorf("write %s: %w", key, err)
		}
		if _, err := t.Write(data); err != nil {
			return fmt.Errorf("write %s: %w", key, err)
		}
	}
	if len(objects) > MaxEntries {
		return fmt.Errorf("more than %d entries", MaxEntries)
	}
	if err := t.Close(); err != nil {
		return fmt.Errorf("write the end: %w", err)
	}
	return nil
}
