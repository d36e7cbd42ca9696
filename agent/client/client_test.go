package client_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/muster-config/muster/agent/client"
)

// lay lays out a release as the agent does.
func lay(t *testing.T, root, name, record, content string) {
	t.Helper()
	dir := filepath.Join(root, "releases", name)
	if err := os.MkdirAll(filepath.Join(dir, "checkout"), 0o755); err != nil {
		t.Fatal(err)
	}
	for p, data := range map[string]string{".muster.json": record, "checkout/checkout.yaml": content} {
		if err := os.WriteFile(filepath.Join(dir, p), []byte(data), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	os.Remove(filepath.Join(root, "current"))
	if err := os.Symlink("releases/"+name, filepath.Join(root, "current")); err != nil {
		t.Fatal(err)
	}
}

func TestOpenStaysWithItsRelease(t *testing.T) {
	root := t.TempDir()
	lay(t, root, "7-aa", `{"repo":"r","cohort":"c","epoch":7,"commit":"x","content":"sha256:aa","services":{"checkout":{"epoch":5,"digest":"sha256:bb"}},"later":1}`, "old")
	c, err := client.Open(root, "checkout")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	lay(t, root, "8-bb", `{"epoch":8,"services":{"checkout":{"epoch":8}}}`, "new")
	data, err := c.ReadFile("checkout.yaml")
	if err != nil || string(data) != "old" || c.Epoch() != 5 || c.Release().Epoch != 7 {
		t.Errorf("%q, %d, %v", data, c.Epoch(), err)
	}
	if data, err := fs.ReadFile(c.FS(), "checkout.yaml"); err != nil || string(data) != "old" {
		t.Errorf("%q, %v", data, err)
	}
	if _, err := c.ReadFile("../.muster.json"); err == nil {
		t.Error("a file of another service was read")
	}
	rel, err := client.Load(root)
	if err != nil || rel.Epoch != 8 || rel.Services["checkout"].Epoch != 8 || filepath.Base(rel.Dir) != "8-bb" {
		t.Errorf("%+v, %v", rel, err)
	}
}

func TestNothingInstalled(t *testing.T) {
	root := t.TempDir()
	if _, err := client.Open(root, "checkout"); !errors.Is(err, client.ErrNone) {
		t.Errorf("%v", err)
	}
	lay(t, root, "7-aa", `{"epoch":7,"services":{"checkout":{"epoch":5}}}`, "old")
	if _, err := client.Open(root, "search"); !errors.Is(err, client.ErrNone) {
		t.Errorf("%v", err)
	}
	lay(t, root, "7-aa", `{`, "old")
	if _, err := client.Load(root); err == nil || errors.Is(err, client.ErrNone) {
		t.Errorf("%v", err)
	}
}
