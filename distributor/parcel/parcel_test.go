package parcel_test

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/parcel"
	"github.com/muster-config/muster/distributor/store"
)

const hex = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

var object = manifest.KeyBundle("sha256:" + hex)

func good(t testing.TB) []byte {
	t.Helper()
	var b bytes.Buffer
	err := parcel.Write(&b, map[string][]byte{"cohorts/prod.json": []byte("head"), "keyring/1.json": []byte("ring"), object: bytes.Repeat([]byte("x"), 1000)})
	if err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func open(data []byte) (*parcel.Parcel, error) {
	return parcel.Open(bytes.NewReader(data), int64(len(data)))
}

func TestRoundTrip(t *testing.T) {
	p, err := open(good(t))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{object, "cohorts/prod.json", "keyring/1.json"}, p.Keys()); diff != "" || p.Cohort() != "prod" {
		t.Errorf("%s, cohort %q", diff, p.Cohort())
	}
	data, err := p.Read("cohorts/prod.json", 4)
	if err != nil || string(data) != "head" {
		t.Errorf("%q, %v", data, err)
	}
	if _, err := p.Read("cohorts/prod.json", 3); !errors.Is(err, store.ErrTooLarge) {
		t.Errorf("over the limit: %v", err)
	}
	if _, _, err := p.Open("keyring/2.json"); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("what is not there: %v", err)
	}
	r, size, err := p.Open(object)
	if err != nil || size != 1000 {
		t.Fatal(size, err)
	}
	if data, err := io.ReadAll(r); err != nil || len(data) != 1000 {
		t.Errorf("%d bytes, %v", len(data), err)
	}
}

// A file that loses bytes after it was looked through is no short object.
func TestCutMeanwhile(t *testing.T) {
	data := good(t)
	f := &shrinking{data: data}
	p, err := parcel.Open(f, int64(len(data)))
	if err != nil {
		t.Fatal(err)
	}
	f.data = data[:512+100]
	r, _, err := p.Open(object)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(r); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("%v", err)
	}
}

type shrinking struct{ data []byte }

func (s *shrinking) ReadAt(b []byte, at int64) (int, error) {
	return bytes.NewReader(s.data).ReadAt(b, at)
}

func tarOf(t *testing.T, headers ...tar.Header) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range headers {
		h.Mode = 0o644
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(bytes.Repeat([]byte("x"), int(h.Size))); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestRefused(t *testing.T) {
	whole := good(t)
	regular := func(name string) tar.Header { return tar.Header{Typeflag: tar.TypeReg, Name: name, Size: 3} }
	many := make([]tar.Header, 0, parcel.MaxEntries+1)
	for i := range parcel.MaxEntries + 1 {
		many = append(many, regular(manifest.KeyKeyring(uint64(i+1))))
	}
	flipped := bytes.Clone(whole)
	flipped[3] ^= 1
	big := tarOf(t, regular("keyring/1.json"))
	copy(big[124:136], "77777777777\x00")
	fix(big[:512])
	for name, tt := range map[string]struct {
		data []byte
		says string
	}{
		"nothing":                 {nil, "ends early, or is no tar"},
		"text":                    {bytes.Repeat([]byte("junk "), 1024), "no tar file, or damaged"},
		"zeros":                   {make([]byte, 512*2+1), "ends early"},
		"a damaged header":        {flipped, "no tar file, or damaged"},
		"cut in a block":          {whole[:len(whole)-100], "ends early"},
		"without an end":          {whole[:len(whole)-1024], "nothing marks its end"},
		"cut in an object":        {whole[:1024], "ends early, within bundles/"},
		"half an end":             {whole[:len(whole)-512], "ends early"},
		"more after the end":      {append(bytes.Clone(whole), bytes.Repeat([]byte("x"), 512)...), "something stands after its end"},
		"zeros without end":       {append(bytes.Clone(whole), make([]byte, 1<<20)...), "something stands after its end"},
		"a huge size":             {big, "is larger than"},
		"a link":                  {tarOf(t, tar.Header{Typeflag: tar.TypeSymlink, Name: "cohorts/prod.json", Linkname: "/etc/shadow"}), "is no regular file"},
		"a hard link":             {tarOf(t, tar.Header{Typeflag: tar.TypeLink, Name: "cohorts/prod.json", Linkname: "keyring/1.json"}), "is no regular file"},
		"a directory":             {tarOf(t, tar.Header{Typeflag: tar.TypeDir, Name: "cohorts/"}), "is no regular file"},
		"a device":                {tarOf(t, tar.Header{Typeflag: tar.TypeChar, Name: "cohorts/prod.json"}), "is no regular file"},
		"an extended header":      {tarOf(t, tar.Header{Typeflag: tar.TypeReg, Name: "cohorts/prod.json", Size: 3, PAXRecords: map[string]string{"VENDOR.x": "1"}}), "is no regular file"},
		"traversal":               {tarOf(t, regular("../cohorts/prod.json")), "does not belong there"},
		"traversal within":        {tarOf(t, regular("cohorts/../prod.json")), "does not belong there"},
		"an absolute path":        {tarOf(t, regular("/etc/passwd")), "does not belong there"},
		"a name of its own":       {tarOf(t, regular("README")), "does not belong there"},
		"a bundle of another key": {tarOf(t, regular("bundles/00/"+hex+".tar.zst")), "does not belong there"},
		"a keyring with a zero":   {tarOf(t, regular("keyring/01.json")), "does not belong there"},
		"a name too long":         {tarOf(t, regular("cohorts/"+strings.Repeat("a", 80)+".json")), "does not belong there"},
		"two heads":               {tarOf(t, regular("cohorts/a.json"), regular("cohorts/b.json")), "two cohorts"},
		"twice":                   {tarOf(t, regular("keyring/1.json"), regular("keyring/1.json")), "in it twice"},
		"very many":               {tarOf(t, many...), "more than 256 entries"},
	} {
		_, err := open(tt.data)
		if !errors.Is(err, manifest.ErrMalformed) || !strings.Contains(err.Error(), tt.says) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", name, err)
		}
	}
	for key, data := range map[string][]byte{"x": nil, "keyring/1.json": make([]byte, manifest.MaxKeyringBytes+1)} {
		if err := parcel.Write(io.Discard, map[string][]byte{key: data}); err == nil {
			t.Errorf("%s of %d bytes is written", key, len(data))
		}
	}
}

// fix makes a header's checksum right again.
func fix(h []byte) {
	copy(h[148:156], "        ")
	sum := 0
	for _, c := range h {
		sum += int(c)
	}
	copy(h[148:156], []byte{'0' + byte(sum>>15&7), '0' + byte(sum>>12&7), '0' + byte(sum>>9&7), '0' + byte(sum>>6&7), '0' + byte(sum>>3&7), '0' + byte(sum&7), 0, ' '})
}

// FuzzOpen: whatever the bytes are, the file is refused or all that it names can be read in full, within the limits, and written again it is the same.
func FuzzOpen(f *testing.F) {
	f.Add(good(f))
	f.Add(good(f)[:1536])
	f.Add(make([]byte, 1024))
	f.Add([]byte("junk"))
	f.Fuzz(func(t *testing.T, data []byte) {
		p, err := open(data)
		if err != nil {
			if !errors.Is(err, manifest.ErrMalformed) {
				t.Fatalf("%v", err)
			}
			return
		}
		objects := map[string][]byte{}
		for _, key := range p.Keys() {
			if err := store.CheckKey(key); err != nil {
				t.Fatal(err)
			}
			if objects[key], err = p.Read(key, parcel.MaxBytes); err != nil {
				t.Fatalf("%s: %v", key, err)
			}
		}
		var b bytes.Buffer
		if err := parcel.Write(&b, objects); err != nil {
			t.Fatal(err)
		}
		again, err := open(b.Bytes())
		if err != nil || !slices.Equal(again.Keys(), p.Keys()) {
			t.Fatalf("written again: %v", err)
		}
	})
}
