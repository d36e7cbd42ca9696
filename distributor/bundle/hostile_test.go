package bundle

import (
	"archive/tar"
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
)

// compress is a second way to write zstd.
func compress(t testing.TB, data []byte, o ...zstd.EOption) []byte {
	t.Helper()
	var out bytes.Buffer
	z, err := zstd.NewWriter(&out, o...)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := z.Write(data); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func entry(name string, data string) tar.Header {
	return tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: int64(len(data)), ModTime: time.Unix(0, 0)}
}

type item struct {
	tar.Header
	data string
}

// rawTar writes a header without the checks of archive/tar, which would refuse most of what an attacker writes.
func rawTar(items []item) []byte {
	var out bytes.Buffer
	for _, it := range items {
		var b [512]byte
		name := it.Name
		if len(name) > 100 { // in a PAX record
			body := paxRecord("path", name)
			out.Write(rawTar([]item{{Header: tar.Header{Typeflag: 'x', Name: "PaxHeaders.0/x", Mode: 0o644, Size: int64(len(body))}, data: body}})[:512+(len(body)+511)&^511])
			name = name[:100]
		}
		copy(b[0:100], name)
		octal(b[100:108], it.Mode)
		octal(b[108:116], int64(it.Uid))
		octal(b[116:124], int64(it.Gid))
		octal(b[124:136], it.Size)
		octal(b[136:148], max(it.ModTime.Unix(), 0))
		copy(b[148:156], "        ")
		b[156] = it.Typeflag
		copy(b[157:257], it.Linkname)
		copy(b[257:265], "ustar\x0000")
		copy(b[265:297], it.Uname)
		octal(b[329:337], 0)
		octal(b[337:345], 0)
		sum := int64(0)
		for _, c := range b {
			sum += int64(c)
		}
		octal(b[148:155], sum) // and a NUL
		b[154] = 0
		b[155] = ' '
		out.Write(b[:])
		out.WriteString(it.data)
		out.Write(make([]byte, (512-out.Len()%512)%512))
	}
	out.Write(make([]byte, 1024))
	return out.Bytes()
}

func octal(dst []byte, v int64) {
	for i := len(dst) - 2; i >= 0; i-- {
		dst[i] = byte('0' + v&7)
		v >>= 3
	}
}

func paxRecord(k, v string) string {
	n := len(k) + len(v) + 3
	for {
		s := itoa(n) + " " + k + "=" + v + "\n"
		if len(s) == n {
			return s
		}
		n = len(s)
	}
}

func itoa(n int) string {
	if n < 10 {
		return string(rune('0' + n))
	}
	return itoa(n/10) + string(rune('0'+n%10))
}

// hostile is an archive of the given entries after a true index for files that would be all right.
func hostile(t testing.TB, files []item) []byte {
	t.Helper()
	var plain []File
	for _, f := range files {
		plain = append(plain, File{Path: f.Name, Mode: 0o644, Data: []byte(f.data)})
	}
	ix := string(mustIndex(t, indexFor(plain)))
	return rawTar(append([]item{{entry(IndexPath, ix), ix}}, files...))
}

func refusal(t *testing.T, name string, data []byte, code string) {
	t.Helper()
	plan, err := Scan(bytes.NewReader(data))
	var e *Error
	if !errors.As(err, &e) || plan != nil {
		t.Errorf("%s: plan %v, error %v, want *Error", name, plan, err)
		return
	}
	if e.Code != code {
		t.Errorf("%s: %v, want code %q", name, err, code)
	}
	if !strings.Contains(err.Error(), code) || strings.Contains(err.Error(), "\n") || len(err.Error()) > 400 {
		t.Errorf("%s: message %q", name, err)
	}
}

func TestHandMadeIsGood(t *testing.T) {
	if _, err := Scan(bytes.NewReader(compress(t, hostile(t, []item{{entry("a/x", "1"), "1"}, {entry("b/y", ""), ""}})))); err != nil {
		t.Fatalf("the hand-made archive must pass, or the tests below prove nothing: %v", err)
	}
}

func TestB125UnsafePath(t *testing.T) {
	for _, name := range []string{
		"../x", "/etc/x", "a/../../x", `a\..\x`, "./a", "", ".", "..", "a//b", "a/", "a/./b", "a/..", strings.Repeat("a/", 2500) + "x", "a/" + strings.Repeat("b", 256),
		"a/x\x01", "a/x\n", "a/\x7f", "a/\xff\xfe", "a/\u202egpj.exe", "no-service", ".muster/other", ".MUSTER/x", "a/b/../c", "//a/b", "a/\u0085",
	} {
		refusal(t, name, compress(t, hostile(t, []item{{entry(name, "x"), "x"}})), CodePath)
		// Whoever builds bundles refuses the same.
		if _, err := Pack(indexFor([]File{{Path: name}}), []File{{Path: name, Mode: 0o644, Data: []byte("x")}}); err == nil {
			t.Errorf("Pack takes %q", name)
		}
	}
	// Names that are one file somewhere.
	for _, names := range [][]string{
		{"a/x", "a/x"},            // twice
		{"s/A", "s/a"},            // case
		{"s/d", "s/d/x"},          // file below file
		{"s/d", "s/d-e", "s/d/x"}, // not side by side in order
		{"s/D/x", "s/d"},          // a directory and a file, by case
		{"s/D/x", "s/d/y"},        // two directories, by case
		{"s/e\u0301", "s/\u00e9"}, // é in two ways
		{"s/STRASSE", "s/stra\u00dfe"},
		{"s/\u017f", "s/s"}, // long s
		{"S/x", "s/y"},      // services
		{"s/\u212a", "s/k"}, // Kelvin
	} {
		var items []item
		var files []File
		for _, n := range names {
			items = append(items, item{entry(n, "x"), "x"})
			files = append(files, File{Path: n, Mode: 0o644, Data: []byte("x")})
		}
		if names[len(names)-1] == "s/s" || names[len(names)-1] == "s/k" { // keep them in order
			items[0], items[1] = items[1], items[0]
		}
		refusal(t, strings.Join(names, " + "), compress(t, rawBundle(t, items)), CodePath)
		if _, err := Pack(indexFor(files), files); err == nil {
			t.Errorf("Pack takes %q", names)
		}
	}
}

// rawBundle is hostile with non-ASCII names, which only PAX can hold.
func rawBundle(t testing.TB, files []item) []byte {
	t.Helper()
	var plain []File
	for _, f := range files {
		plain = append(plain, File{Path: f.Name, Mode: 0o644, Data: []byte(f.data)})
	}
	ix := string(mustIndex(t, indexFor(plain)))
	var out bytes.Buffer
	tw := tar.NewWriter(&out)
	for _, it := range append([]item{{entry(IndexPath, ix), ix}}, files...) {
		if err := tw.WriteHeader(&it.Header); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(tw, it.data); err != nil {
			t.Fatal(err)
		}
	}
	if err := tw.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func TestOtherForms(t *testing.T) {
	with := func(change func(*tar.Header)) []byte {
		h := entry("a/x", "x")
		change(&h)
		return compress(t, hostile(t, []item{{h, "x"}}))
	}
	link := func(kind byte) []byte {
		return with(func(h *tar.Header) { h.Typeflag, h.Linkname, h.Size = kind, "/etc/passwd", 0 })
	}
	good := hostile(t, []item{{entry("a/x", "x"), "x"}})
	zgood := compress(t, good)
	skippable := append([]byte{0x50, 0x2a, 0x4d, 0x18, 4, 0, 0, 0}, "junk"...)
	for _, tc := range []struct {
		name string
		data []byte
		code string
	}{
		{"symbolic link", link(tar.TypeSymlink), CodeMalformed},
		{"hard link", link(tar.TypeLink), CodeMalformed},
		{"device", link(tar.TypeChar), CodeMalformed},
		{"block device", link(tar.TypeBlock), CodeMalformed},
		{"directory", link(tar.TypeDir), CodeMalformed},
		{"fifo", link(tar.TypeFifo), CodeMalformed},
		{"unknown type", link('Z'), CodeMalformed},
		{"setuid", with(func(h *tar.Header) { h.Mode = 0o4755 }), CodeMalformed},
		{"setgid", with(func(h *tar.Header) { h.Mode = 0o2755 }), CodeMalformed},
		{"sticky", with(func(h *tar.Header) { h.Mode = 0o1755 }), CodeMalformed},
		{"mode 0", with(func(h *tar.Header) { h.Mode = 0 }), CodeMalformed},
		{"owner", with(func(h *tar.Header) { h.Uid = 1000 }), CodeMalformed},
		{"group", with(func(h *tar.Header) { h.Gid = 1000 }), CodeMalformed},
		{"owner's name", with(func(h *tar.Header) { h.Uname = "root" }), CodeMalformed},
		{"time", with(func(h *tar.Header) { h.ModTime = time.Unix(1e9, 0) }), CodeMalformed},
		{"junk after the tar", compress(t, append(bytes.Clone(good), "junk"...)), CodeMalformed},
		{"zeros after the tar", compress(t, append(bytes.Clone(good), make([]byte, 9216)...)), CodeMalformed},
		{"no end of the tar", compress(t, good[:len(good)-1024]), CodeMalformed},
		{"half an end", compress(t, good[:len(good)-512]), CodeMalformed},
		{"cut tar", compress(t, good[:len(good)-1600]), CodeMalformed},
		{"junk in the padding", compress(t, bytes.Replace(good, []byte("x\x00\x00\x00\x00\x00\x00\x00"), []byte("x\x00\x00\x00\x00\x00\x00!"), 1)), CodeMalformed},
		{"junk after the frame", append(bytes.Clone(zgood), "junk"...), CodeMalformed},
		{"one byte after the frame", append(bytes.Clone(zgood), 0), CodeMalformed},
		{"two frames", append(bytes.Clone(zgood), zgood...), CodeMalformed},
		{"a tar in two frames", append(compress(t, good[:700]), compress(t, good[700:])...), CodeMalformed},
		{"empty frame behind", append(bytes.Clone(zgood), compress(t, nil, zstd.WithZeroFrames(true))...), CodeMalformed},
		{"skippable frame behind", append(bytes.Clone(zgood), skippable...), CodeMalformed},
		{"skippable frame before", append(bytes.Clone(skippable), zgood...), CodeMalformed},
		{"cut frame", zgood[:len(zgood)-1], CodeMalformed},
		{"without checksum's bytes", zgood[:len(zgood)-4], CodeMalformed},
		{"flipped bit", flip(zgood, len(zgood)/2), CodeMalformed},
		{"nothing", nil, CodeMalformed},
		{"no zstd", []byte("hello, this is text"), CodeMalformed},
		{"gzip", []byte("\x1f\x8b\x08\x00\x00\x00\x00\x00"), CodeMalformed},
		{"empty tar", compress(t, make([]byte, 1024)), CodeMalformed},
		{"wide window", wideWindow(), CodeTooLarge},
		{"dictionary", []byte{0x28, 0xb5, 0x2f, 0xfd, 0x01, 0x00, 0x07, 0x01, 0, 0}, CodeMalformed},
	} {
		refusal(t, tc.name, tc.data, tc.code)
	}
}

func flip(data []byte, at int) []byte {
	data = bytes.Clone(data)
	data[at] ^= 0x10
	return data
}

func wideWindow() []byte {
	return []byte{0x28, 0xb5, 0x2f, 0xfd, 0x00, 17 << 3, 1, 0, 0} // 128 MiB
}

func TestIndexMustAgree(t *testing.T) {
	f := item{entry("a/x", "x"), "x"}
	ix := func(change func(*Index)) item {
		i := indexFor([]File{{Path: "a/x", Mode: 0o644, Data: []byte("x")}})
		change(&i)
		doc := string(mustIndex(t, i))
		return item{entry(IndexPath, doc), doc}
	}
	text := func(doc string) item { return item{entry(IndexPath, doc), doc} }
	good := ix(func(*Index) {})
	other := entry(IndexPath, good.data)
	other.Mode = 0o600
	for _, tc := range []struct {
		name  string
		items []item
		code  string
	}{
		{"missing", []item{f}, CodeMalformed},
		{"not first", []item{f, good}, CodeMalformed},
		{"twice", []item{good, good, f}, CodeMalformed},
		{"mode", []item{{other, good.data}, f}, CodeMalformed},
		{"other digest", []item{ix(func(i *Index) { i.Services["a"] = Service{7, ContentOf(nil), ContentOf(nil), 1} }), f}, CodeDigest},
		{"other count", []item{ix(func(i *Index) { s := i.Services["a"]; s.Files = 2; i.Services["a"] = s }), f}, CodeMalformed},
		{"service missing", []item{ix(func(i *Index) { delete(i.Services, "a") }), f}, CodeMalformed},
		{"file missing", []item{good}, CodeMalformed},
		{"no JSON", []item{text("hello"), f}, CodeMalformed},
		{"unknown field", []item{text(strings.Replace(good.data, `{"v"`, `{"evil":1,"v"`, 1)), f}, CodeMalformed},
		{"doubled field", []item{text(strings.Replace(good.data, `{"v":1`, `{"v":1,"v":1`, 1)), f}, CodeMalformed},
		{"missing field", []item{text(strings.Replace(good.data, `"commit":"c0ffee",`, ``, 1)), f}, CodeMalformed},
		{"not in order", []item{ix(func(i *Index) {
			i.Services["a"] = Service{7, ContentDigest([]File{{Path: "a/x", Mode: 0o644}, {Path: "a/y", Mode: 0o644}}), ContentOf(nil), 2}
		}), {entry("a/y", ""), ""}, {entry("a/x", ""), ""}}, CodeMalformed},
	} {
		want := tc.code
		if tc.name == "twice" {
			want = CodePath // a second one is a file in the index's directory
		}
		refusal(t, tc.name, compress(t, rawTar(tc.items)), want)
	}
}

// heap is the live and the total memory that f took.
func heap(f func()) (grown, total uint64) {
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.HeapSys - min(after.HeapSys, before.HeapSys), after.TotalAlloc - before.TotalAlloc
}

// zeros is a zstd frame of n × 128 KiB zeros in n × 4 bytes.
func zeros(prefix []byte, n int) []byte {
	out := []byte{0x28, 0xb5, 0x2f, 0xfd, 0x00, 8 << 3} // window 256 KiB
	block := func(last, kind, size int, data ...byte) {
		var h [4]byte
		binary.LittleEndian.PutUint32(h[:], uint32(size<<3|kind<<1|last))
		out = append(append(out, h[:3]...), data...)
	}
	for len(prefix) > 0 {
		c := min(len(prefix), 100<<10)
		block(0, 0, c, prefix[:c]...)
		prefix = prefix[c:]
	}
	for range n {
		block(0, 1, 128<<10, 0)
	}
	block(1, 0, 0)
	return out
}

func TestB127Bombs(t *testing.T) {
	ix := string(mustIndex(t, indexFor(nil)))
	first := item{entry(IndexPath, ix), ix}
	noEnd := func(items ...item) []byte { raw := rawTar(items); return raw[:len(raw)-1024] }
	lying := entry("a/x", "")
	lying.Size = 10
	huge := entry("a/x", "")
	huge.Size = 1<<33 - 1
	whole := entry("a/x", "")
	whole.Size = MaxFile
	many := func() []byte {
		items := []item{first}
		for i := range MaxFiles + 1000 {
			n := itoa(1_000_000 + i)
			items = append(items, item{entry("a/"+n, ""), ""})
		}
		return compress(t, rawTar(items))
	}()
	bigIndex := entry(IndexPath, "")
	bigIndex.Size = 60 << 20
	for _, tc := range []struct {
		name string
		data []byte
		code string
	}{
		{"10 GB of zeros after the tar", zeros(rawTar([]item{first}), 80_000), CodeMalformed},
		{"10 GB in one file", zeros(noEnd(first, item{huge, ""}), 80_000), CodeTooLarge},
		{"header says 10 bytes", zeros(noEnd(first, item{lying, ""}), 8000), CodeMalformed},
		{"two million files", many, CodeTooLarge},
		{"largest file, no end", zeros(noEnd(first, item{whole, ""}), 100), CodeMalformed},
		{"index of 60 MB", zeros(noEnd(item{bigIndex, ""}), 1000), CodeTooLarge},
		{"claims 1 GB", append([]byte{0x28, 0xb5, 0x2f, 0xfd, 0x80, 0x58}, 0, 0, 0, 0x40, 1, 0, 0), CodeTooLarge},
	} {
		var err error
		grown, total := heap(func() { _, err = Scan(bytes.NewReader(tc.data)) })
		var e *Error
		if !errors.As(err, &e) || e.Code != tc.code {
			t.Errorf("%s: %v, want code %q", tc.name, err, tc.code)
		}
		if grown > 64<<20 || total > 200<<20 {
			t.Errorf("%s: the heap grew by %d MiB, %d MiB allocated in all", tc.name, grown>>20, total>>20)
		}
	}
}

// A host with a usual bundle must stay small: a decoder with the default window would alone take 8 MiB, twice for each apply.
func TestUsualBundleTakesLittleMemory(t *testing.T) {
	data := make([]byte, 400<<10)
	for i, r := 0, rand.New(rand.NewPCG(1, 2)); i < len(data); i++ {
		data[i] = byte('a' + r.IntN(16))
	}
	p := pack(t, []File{{Path: "a/x", Mode: 0o644, Data: data}})
	_, total := heap(func() {
		if _, err := Scan(bytes.NewReader(p.Data)); err != nil {
			t.Error(err)
		}
	})
	if total > 4<<20 {
		t.Errorf("scanning %d bytes allocates %d KiB", len(p.Data), total>>10)
	}
}

// The publisher checks the limits of the agent.
func TestPackLimits(t *testing.T) {
	block := make([]byte, 60<<20)
	var large, many []File
	for i := range 5 {
		large = append(large, File{Path: "a/" + itoa(i), Mode: 0o644, Data: block})
	}
	for i := range MaxFiles + 1 {
		many = append(many, File{Path: "a/" + itoa(i), Mode: 0o644})
	}
	for name, files := range map[string][]File{
		"in all":   large,
		"files":    many,
		"one file": {{Path: "a/x", Mode: 0o644, Data: make([]byte, MaxFile+1)}},
	} {
		var e *Error
		if _, err := Pack(Index{}, files); !errors.As(err, &e) || e.Code != CodeTooLarge {
			t.Errorf("%s: %v, want code %q", name, err, CodeTooLarge)
		}
	}
}

func FuzzScan(f *testing.F) {
	good := hostile(f, []item{{entry("a/x", "x"), "x"}})
	f.Add(compress(f, good))
	f.Add(pack(f, sample()).Data)
	f.Add(append(compress(f, good), 0))
	f.Add(zeros(good, 3))
	f.Add(wideWindow())
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, data []byte) {
		plan, err := Scan(bytes.NewReader(data))
		if err != nil {
			return
		}
		// What passes is in the one form: extracted and packed again it is the same tar.
		var files []File
		if err := Extract(bytes.NewReader(data), plan, func(e Entry, r io.Reader) error {
			content, err := io.ReadAll(r)
			files = append(files, File{e.Path, e.Mode, content})
			return err
		}); err != nil {
			t.Fatal(err)
		}
		if ContentDigest(files) != plan.Content {
			t.Fatal("content differs")
		}
		if _, err := Pack(plan.Index, files); err != nil {
			t.Fatalf("Pack refuses what Scan took: %v", err)
		}
	})
}

// FuzzTar looks behind the compression, which random bytes hardly pass.
func FuzzTar(f *testing.F) {
	f.Add(hostile(f, []item{{entry("a/x", "x"), "x"}}))
	f.Add(rawBundle(f, []item{{entry("a/\u00e9", "x"), "x"}}))
	z, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithWindowSize(64<<10))
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		plan, err := Scan(bytes.NewReader(z.EncodeAll(raw, nil)))
		var e *Error
		if err != nil && !errors.As(err, &e) {
			t.Fatalf("no *Error: %v", err)
		}
		if err == nil && int64(len(raw)) != plan.TarSize {
			t.Fatalf("took %d of %d bytes", plan.TarSize, len(raw))
		}
	})
}
