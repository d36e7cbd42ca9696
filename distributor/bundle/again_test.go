package bundle_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/klauspost/compress/zstd"

	"github.com/muster-config/muster/distributor/bundle"
)

// A bundle does not depend on what was packed before it: encoders are used again.
func TestPackAgain(t *testing.T) {
	dice := rand.New(rand.NewPCG(1, 2))
	words := []string{"timeout", "retries", "pool", "\n", ": ", "1", "250", "{", "}", "zone", "eu-west-1a", "\t"}
	text := func(n int) []byte {
		var b bytes.Buffer
		for b.Len() < n {
			if dice.IntN(8) == 0 {
				fmt.Fprint(&b, dice.Uint64())
			}
			b.WriteString(words[dice.IntN(len(words))])
		}
		return b.Bytes()[:n]
	}
	for i := range 100 {
		size := dice.IntN(3000)
		if i%10 == 0 {
			size = dice.IntN(700_000) // several blocks
		}
		var files []bundle.File
		for k := range 1 + dice.IntN(4) {
			files = append(files, bundle.File{Path: fmt.Sprintf("app/%d.conf", k), Mode: 0o644, Data: text(size)})
		}
		packed, err := bundle.PackTree(files)
		if err != nil {
			t.Fatal(err)
		}
		d, err := zstd.NewReader(bytes.NewReader(packed.Data))
		if err != nil {
			t.Fatal(err)
		}
		var tar, fresh bytes.Buffer
		if _, err := d.WriteTo(&tar); err != nil {
			t.Fatal(err)
		}
		d.Close()
		window := 64 << 10
		for window < tar.Len() && window < bundle.MaxWindow {
			window *= 2
		}
		z, err := zstd.NewWriter(&fresh, zstd.WithEncoderConcurrency(1), zstd.WithWindowSize(window))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := z.Write(tar.Bytes()); err != nil {
			t.Fatal(err)
		}
		if err := z.Close(); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(packed.Data, fresh.Bytes()) {
			t.Fatalf("pack %d, of %d bytes, differs from what a new encoder writes", i, tar.Len())
		}
	}
}
