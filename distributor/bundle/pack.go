package bundle

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"math/bits"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/muster-config/muster/distributor/wire"
)

// Pack writes a bundle: same input, same bytes (zstd streaming encoder, default level, concurrency 1). It refuses what Scan would refuse.
// The files need not be sorted.
func Pack(index Index, files []File) (*Packed, error) {
	sorted, entries, err := prepare(newChecker(false), files)
	if err != nil {
		return nil, err
	}
	if err := (&checker{entries: entries}).index(&index); err != nil {
		return nil, err
	}
	doc, err := wire.Encode(index)
	if err != nil {
		return nil, fmt.Errorf("bundle index: %w", err)
	}
	if len(doc) > MaxIndex {
		return nil, refuse(CodeTooLarge, IndexPath, "index of %d bytes, at most %d allowed", len(doc), MaxIndex)
	}
	all := append([]File{{Path: IndexPath, Mode: indexMode, Data: doc}}, sorted...)
	return write(all, entries)
}

// PackTree writes a deterministic tar.zst of any tree of files, without an index: sources/.
func PackTree(files []File) (*Packed, error) {
	sorted, entries, err := prepare(newChecker(true), files)
	if err != nil {
		return nil, err
	}
	return write(sorted, entries)
}

const indexMode = 0o644

func prepare(c *checker, files []File) ([]File, []Entry, error) {
	sorted := slices.SortedFunc(slices.Values(files), func(a, b File) int { return strings.Compare(a.Path, b.Path) })
	for _, f := range sorted {
		if err := c.header(f.Path, int64(f.Mode), int64(len(f.Data))); err != nil {
			return nil, nil, err
		}
		c.entries = append(c.entries, entryOf(f))
	}
	return sorted, c.entries, nil
}

func write(files []File, entries []Entry) (*Packed, error) {
	var size int64 = 1024
	for _, f := range files {
		size += 512 + (int64(len(f.Data))+511)&^511
	}
	var out bytes.Buffer
	z, err := encoderOf(window(size))
	if err != nil {
		return nil, fmt.Errorf("pack: %w", err)
	}
	z.Reset(&out)
	sum, count := sha256.New(), &counter{}
	tw := tar.NewWriter(io.MultiWriter(z, sum, count))
	for _, f := range files {
		if err := tw.WriteHeader(header(f.Path, int64(f.Mode), int64(len(f.Data)))); err != nil {
			return nil, fmt.Errorf("pack %q: %w", f.Path, err)
		}
		if _, err := tw.Write(f.Data); err != nil {
			return nil, fmt.Errorf("pack %q: %w", f.Path, err)
		}
	}
	if err := tw.Close(); err != nil {
		return nil, fmt.Errorf("pack: %w", err)
	}
	if err := z.Close(); err != nil {
		return nil, fmt.Errorf("pack: %w", err)
	}
	rest(z, window(size))
	if count.n > MaxTar {
		return nil, refuse(CodeTooLarge, "", "more than %d bytes in all", MaxTar)
	}
	object := sha256.Sum256(out.Bytes())
	return &Packed{
		Data: out.Bytes(), Object: fmt.Sprintf("sha256:%x", object), Tar: digest(sum), TarSize: count.n,
		Content: ContentOf(entries), Files: len(entries),
	}, nil
}

// encoders are those at rest, by the logarithm of their window: to make one takes longer than to pack a little configuration. A used one gives the same bytes as a new one.
var encoders [bits.UintSize]sync.Pool

func encoderOf(window int) (*zstd.Encoder, error) {
	if z, ok := encoders[bits.Len(uint(window))].Get().(*zstd.Encoder); ok {
		return z, nil
	}
	return zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithWindowSize(window))
}

// rest keeps an encoder for the next pack, unless it holds much memory.
func rest(z *zstd.Encoder, window int) {
	z.Reset(nil)
	if window <= 1<<20 {
		encoders[bits.Len(uint(window))].Put(z)
	}
}

// header is the one header that a file has: USTAR, or PAX where a path needs it. No owner, no time.
func header(path string, mode, size int64) *tar.Header {
	return &tar.Header{Typeflag: tar.TypeReg, Name: path, Mode: mode, Size: size, ModTime: time.Unix(0, 0)}
}

// window is large enough to see the whole tar and no larger: a host with little configuration unpacks it in little memory. Over the default of
// 8 MiB it never goes.
func window(size int64) int {
	return min(max(1<<bits.Len64(uint64(size-1)), 64<<10), MaxWindow)
}
