package bundle

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// vector is a known input and what it packs to.
type vector struct {
	Note  string `json:"note"`
	Index Index  `json:"index"`
	Files []struct {
		Path string `json:"path"`
		Mode uint32 `json:"mode"`
		Text string `json:"text"`
	} `json:"files"`
	Content string `json:"content"`
	Tar     string `json:"tar"`
	TarSize int64  `json:"tar_size"`
	Object  string `json:"object"`
}

const vectorNote = "content and tar are a promise to every host; object changes with the version of the zstd library, which is why statements name the digest of the tar"

// The golden vector: MUSTER_UPDATE=1 writes it anew, read the diff.
func TestVector(t *testing.T) {
	path := filepath.Join("..", "..", "testdata", "vectors", "bundle", "small.json")
	var want vector
	if data, err := os.ReadFile(path); err == nil {
		if err := json.Unmarshal(data, &want); err != nil {
			t.Fatal(err)
		}
	} else if os.Getenv("MUSTER_UPDATE") == "" {
		t.Fatal(err)
	}
	if os.Getenv("MUSTER_UPDATE") != "" {
		want = vector{Note: vectorNote, Index: indexFor(sample())}
		for _, f := range sample() {
			want.Files = append(want.Files, struct {
				Path string `json:"path"`
				Mode uint32 `json:"mode"`
				Text string `json:"text"`
			}{f.Path, f.Mode, string(f.Data)})
		}
	}
	var files []File
	for _, f := range want.Files {
		files = append(files, File{f.Path, f.Mode, []byte(f.Text)})
	}
	p, err := Pack(want.Index, files)
	if err != nil {
		t.Fatal(err)
	}
	got := want
	got.Content, got.Tar, got.TarSize, got.Object = p.Content, p.Tar, p.TarSize, p.Object
	object := filepath.Join(filepath.Dir(path), "small.tar.zst")
	if os.Getenv("MUSTER_UPDATE") != "" {
		data, err := json.MarshalIndent(got, "", "  ")
		if err != nil {
			t.Fatal(err)
		}
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, append(data, '\n'), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(object, p.Data, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("want -, got +:\n%s\nIf only object differs, the zstd library changed: MUSTER_UPDATE=1", diff)
	}
	// A bundle that was stored long ago stays readable.
	stored, err := os.ReadFile(object)
	if err != nil {
		t.Fatal(err)
	}
	plan, err := Scan(bytes.NewReader(stored))
	if err != nil {
		t.Fatal(err)
	}
	if plan.Content != want.Content || plan.Tar != want.Tar {
		t.Errorf("stored bundle: content %s, tar %s", plan.Content, plan.Tar)
	}
}
