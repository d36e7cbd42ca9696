package bundle

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/klauspost/compress/zstd"
	"pgregory.net/rapid"

	"github.com/muster-config/muster/distributor/wire"
)

func sample() []File {
	return []File{
		{Path: "checkout/checkout.yaml", Mode: 0o644, Data: []byte("timeout_ms: 2000\n")},
		{Path: "checkout/empty", Mode: 0o600},
		{Path: "search/conf.d/" + strings.Repeat("long-", 20) + strings.Repeat("/dir", 40) + "/x.json", Mode: 0o440, Data: []byte("{}")},
		{Path: "search/größe.toml", Mode: 0o755, Data: bytes.Repeat([]byte("a = 1\n"), 1000)},
	}
}

// indexFor says of files what is true.
func indexFor(files []File) Index {
	ix := Index{V: 1, Repo: "acme/config", Cohort: "prod-eu", Epoch: 7, Commit: "c0ffee", Services: map[string]Service{}}
	of := map[string][]File{}
	for _, f := range files {
		name, _, _ := strings.Cut(f.Path, "/")
		of[name] = append(of[name], f)
	}
	for name, fs := range of {
		d := ContentDigest(fs)
		ix.Services[name] = Service{Epoch: 7, Digest: d, Digest0: d, Files: len(fs)}
	}
	return ix
}

func pack(t testing.TB, files []File) *Packed {
	t.Helper()
	p, err := Pack(indexFor(files), files)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestRoundTrip(t *testing.T) {
	files := sample()
	p := pack(t, files)
	for name, r := range map[string]io.Reader{
		"at once": bytes.NewReader(p.Data), "byte by byte": iotest.OneByteReader(bytes.NewReader(p.Data)), "data with EOF": iotest.DataErrReader(bytes.NewReader(p.Data)),
	} {
		plan, err := Scan(r)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		want := &Plan{Index: indexFor(files), Content: p.Content, Tar: p.Tar, TarSize: p.TarSize, Object: p.Object, Size: int64(len(p.Data))}
		for _, f := range files {
			want.Entries = append(want.Entries, entryOf(f))
		}
		if diff := cmp.Diff(want, plan); diff != "" {
			t.Fatalf("%s: plan, want -, got +:\n%s", name, diff)
		}
		if plan.Content != ContentDigest(files) {
			t.Errorf("content %s, want %s", plan.Content, ContentDigest(files))
		}
		var got []File
		if err := Extract(bytes.NewReader(p.Data), plan, func(e Entry, data io.Reader) error {
			content, err := io.ReadAll(data)
			if len(content) == 0 {
				content = nil
			}
			got = append(got, File{Path: e.Path, Mode: e.Mode, Data: content})
			return err
		}); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(files, got); diff != "" {
			t.Errorf("%s: files, want -, got +:\n%s", name, diff)
		}
	}
}

func TestContentDigestByHand(t *testing.T) {
	files := []File{{Path: "b/x", Mode: 0o600, Data: []byte("x")}, {Path: "a/y", Mode: 0o644}}
	text := "0644 e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855 a/y\n" +
		"0600 2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881 b/x\n"
	sum := sha256.Sum256([]byte(text))
	if got, want := ContentDigest(files), "sha256:"+hex.EncodeToString(sum[:]); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if files[0].Path != "b/x" {
		t.Error("the caller's slice was sorted")
	}
}

func TestPackIsDeterministic(t *testing.T) {
	files := sample()
	first := pack(t, files)
	for range 5 {
		files[0], files[3] = files[3], files[0]
		files[1], files[2] = files[2], files[1]
		if again := pack(t, files); !bytes.Equal(first.Data, again.Data) || first.Tar != again.Tar {
			t.Fatal("same input, other bytes")
		}
	}
}

// The tar that others read: plain regular files, no owner, no time, PAX only where a path needs it.
func TestTarForm(t *testing.T) {
	p := pack(t, sample())
	z, err := zstd.NewReader(bytes.NewReader(p.Data))
	if err != nil {
		t.Fatal(err)
	}
	defer z.Close()
	raw, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	if sum := sha256.Sum256(raw); p.Tar != fmt.Sprintf("sha256:%x", sum) || p.TarSize != int64(len(raw)) {
		t.Errorf("tar digest %s, size %d, of %d bytes", p.Tar, p.TarSize, len(raw))
	}
	tr := tar.NewReader(bytes.NewReader(raw))
	var names []string
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, h.Name)
		plain := len(h.Name) < 100 && !strings.Contains(h.Name, "ö")
		if h.Typeflag != tar.TypeReg || h.Uid != 0 || h.Gid != 0 || h.Uname != "" || h.Gname != "" || !h.ModTime.Equal(time.Unix(0, 0)) || (h.Format == tar.FormatUSTAR) != plain {
			t.Errorf("%s: %+v", h.Name, h)
		}
	}
	if names[0] != IndexPath || len(names) != 5 {
		t.Errorf("names %v", names)
	}
}

func TestPackRefuses(t *testing.T) {
	ok := []File{{Path: "a/x", Mode: 0o644, Data: []byte("x")}}
	for name, change := range map[string]func(*Index){
		"unknown service":   func(ix *Index) { delete(ix.Services, "a") },
		"service too many":  func(ix *Index) { ix.Services["b"] = Service{Digest: ContentOf(nil), Digest0: ContentOf(nil), Files: 1} },
		"wrong digest":      func(ix *Index) { s := ix.Services["a"]; s.Digest = ContentOf(nil); ix.Services["a"] = s },
		"no digest0":        func(ix *Index) { s := ix.Services["a"]; s.Digest0 = ""; ix.Services["a"] = s },
		"wrong count":       func(ix *Index) { s := ix.Services["a"]; s.Files = 2; ix.Services["a"] = s },
		"service from soon": func(ix *Index) { s := ix.Services["a"]; s.Epoch = 8; ix.Services["a"] = s },
		"other version":     func(ix *Index) { ix.V = 2 },
		"no repo":           func(ix *Index) { ix.Repo = "" },
		"epoch over 2^53":   func(ix *Index) { ix.Epoch = 1 << 53 },
	} {
		ix := indexFor(ok)
		change(&ix)
		var e *Error
		if _, err := Pack(ix, ok); !errors.As(err, &e) {
			t.Errorf("%s: %v, want *Error", name, err)
		}
	}
	// A service may have no files; then it says so.
	ix := indexFor(ok)
	ix.Services["none"] = Service{Epoch: 7, Digest: ContentOf(nil), Digest0: ContentOf(nil)}
	p, err := Pack(ix, ok)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Scan(bytes.NewReader(p.Data)); err != nil {
		t.Error(err)
	}
}

func TestTree(t *testing.T) {
	files := []File{
		{Path: ".github/workflows/x.yml", Mode: 0o644, Data: []byte("x")},
		{Path: "README", Mode: 0o644, Data: []byte("1")},
		{Path: "fleet.cue", Mode: 0o755, Data: bytes.Repeat([]byte("y"), 100_000)},
		{Path: "readme", Mode: 0o644, Data: []byte("2")}, // git has both
	}
	p, err := PackTree(files)
	if err != nil {
		t.Fatal(err)
	}
	got, err := ReadTree(bytes.NewReader(p.Data))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(files, got); diff != "" {
		t.Error(diff)
	}
	if p.Content != ContentDigest(files) || p.Files != 4 {
		t.Errorf("%s, %d files", p.Content, p.Files)
	}
	for _, bad := range []string{"../x", "/x", "a//b", "fleet.cue/below"} {
		if _, err := PackTree(append(files[:4:4], File{Path: bad, Mode: 0o644})); err == nil {
			t.Errorf("%q is allowed", bad)
		}
	}
	empty, err := PackTree(nil)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := ReadTree(bytes.NewReader(empty.Data)); err != nil || len(got) != 0 {
		t.Errorf("empty tree: %v, %v", got, err)
	}
	if _, err := Scan(bytes.NewReader(p.Data)); err == nil {
		t.Error("a tree passes for a bundle")
	}
}

func TestExtractChecksAgainstThePlan(t *testing.T) {
	files := sample()
	p := pack(t, files)
	plan, err := Scan(bytes.NewReader(p.Data))
	if err != nil {
		t.Fatal(err)
	}
	files[0].Data = []byte("timeout_ms: 9000\n") // as long
	other := pack(t, files)
	var e *Error
	for name, put := range map[string]func(Entry, io.Reader) error{
		"reading":     func(_ Entry, r io.Reader) error { _, err := io.ReadAll(r); return err },
		"wrapping":    func(_ Entry, r io.Reader) error { _, err := io.ReadAll(r); return fmt.Errorf("copy: %w", err) },
		"not reading": func(Entry, io.Reader) error { return nil },
	} {
		if name == "wrapping" {
			put = func(_ Entry, r io.Reader) error {
				if _, err := io.ReadAll(r); err != nil {
					return errors.New("hidden")
				}
				return nil
			}
		}
		if err := Extract(bytes.NewReader(other.Data), plan, put); !errors.As(err, &e) || e.Code != CodeDigest {
			t.Errorf("%s: %v, want %s", name, err, CodeDigest)
		}
	}
	// An error of put is its own, no fault of the bundle.
	full := errors.New("no space left on device")
	if err := Extract(bytes.NewReader(p.Data), plan, func(Entry, io.Reader) error { return full }); !errors.Is(err, full) || errors.As(err, &e) {
		t.Errorf("%v, want the error of put", err)
	}
	// So is one of the reader.
	if err := Extract(io.MultiReader(bytes.NewReader(p.Data[:100]), iotest.ErrReader(full)), plan, func(Entry, io.Reader) error { return nil }); !errors.Is(err, full) || errors.As(err, &e) {
		t.Errorf("%v, want the error of the reader", err)
	}
	if _, err := Scan(io.MultiReader(bytes.NewReader(p.Data[:100]), iotest.ErrReader(full))); !errors.Is(err, full) || errors.As(err, &e) {
		t.Errorf("%v, want the error of the reader", err)
	}
}

func TestAnyFilesRoundTrip(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		names := rapid.SliceOfNDistinct(rapid.StringMatching(`[a-c]/[a-z0-9._-]{1,120}`), 0, 20, rapid.ID[string]).Draw(rt, "names")
		var files []File
		for _, n := range names {
			if strings.HasSuffix(n, "/.") || strings.HasSuffix(n, "/..") {
				continue
			}
			files = append(files, File{Path: n, Mode: rapid.SampledFrom([]uint32{0o400, 0o600, 0o644, 0o755, 0o777}).Draw(rt, "mode"),
				Data: rapid.SliceOfN(rapid.Byte(), 0, 2000).Draw(rt, "data")})
		}
		p, err := Pack(indexFor(files), files)
		if err != nil {
			rt.Fatal(err)
		}
		plan, err := Scan(bytes.NewReader(p.Data))
		if err != nil {
			rt.Fatal(err)
		}
		if plan.Content != ContentDigest(files) || plan.Object != p.Object || plan.Tar != p.Tar || len(plan.Entries) != len(files) {
			rt.Fatalf("plan %+v of %+v", plan, p)
		}
	})
}

// mustIndex is the index entry for hand-made archives.
func mustIndex(t testing.TB, ix Index) []byte {
	t.Helper()
	doc, err := wire.Encode(ix)
	if err != nil {
		t.Fatal(err)
	}
	return doc
}

// What ScanKeeping keeps is what Extract gives; what is more than it may keep is read again. Either way decoders that are used again carry nothing over.
func TestScanKeeping(t *testing.T) {
	for _, big := range []string{strings.Repeat("a", 5000), "b", strings.Repeat("c", 70_000)} {
		files := append(sample(), File{Path: "zz/big", Mode: 0o644, Data: []byte(big)})
		p := pack(t, files)
		var all int64
		for _, f := range files {
			all += int64(len(f.Data))
		}
		for most, kept := range map[int64]bool{0: false, 1: false, all - 1: false, all: true, all + 1: true} {
			plan, data, err := ScanKeeping(bytes.NewReader(p.Data), most)
			if err != nil {
				t.Fatal(err)
			}
			if (data != nil) != kept {
				t.Fatalf("%d bytes, at most %d: kept %t", all, most, data != nil)
			}
			i := 0
			if err := Extract(bytes.NewReader(p.Data), plan, func(e Entry, r io.Reader) error {
				content, err := io.ReadAll(r)
				if kept && !bytes.Equal(content, data[i]) {
					t.Errorf("%s differs", e.Path)
				}
				i++
				return err
			}); err != nil {
				t.Fatal(err)
			}
		}
		broken := append([]byte(nil), p.Data...)
		broken[len(broken)/2] ^= 0xff
		if _, _, err := ScanKeeping(bytes.NewReader(broken), all); err == nil {
			t.Error("broken bytes pass")
		}
	}
}
