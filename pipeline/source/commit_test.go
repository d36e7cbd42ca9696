package source_test

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-config/muster/pipeline/source"
)

func readFS(tree source.Tree, name string) ([]byte, error) { return fs.ReadFile(tree.FS(), name) }

func TestCommit(t *testing.T) {
	dir := initRepo(t)
	write(t, dir, "services/a/base.yaml", "a: 1\n")
	write(t, dir, "services/a/big.bin", strings.Repeat("x", 5000))
	write(t, dir, "run.sh", "#!/bin/sh\n")
	write(t, dir, "é ü/日本.yaml", "")
	if err := os.Chmod(filepath.Join(dir, "run.sh"), 0o755); err != nil {
		t.Fatal(err)
	}
	first := commit(t, dir, "one")
	write(t, dir, "services/a/base.yaml", "a: 2\n")
	second := commit(t, dir, "two: subject\n\nbody")
	write(t, dir, "services/a/base.yaml", "a: dirty\n")
	write(t, dir, "untracked", "x")

	tree := readTree(t, filepath.Join(dir, "services", "a"), "HEAD")
	want := source.Identity{
		Commit: second, Tree: git(t, dir, "rev-parse", "HEAD^{tree}"), Parents: []string{first}, Subject: "two: subject",
		Author:    source.Person{Name: "Ana", Email: "ana@example.com", At: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)},
		Committer: source.Person{Name: "Ben", Email: "ben@example.com", At: time.Date(2026, 1, 2, 3, 4, 6, 0, time.UTC)},
	}
	if d := cmp.Diff(want, tree.Identity()); d != "" {
		t.Error(d)
	}
	wantFiles(t, tree, "services/a/base.yaml", "services/a/big.bin", "run.sh", "é ü/日本.yaml")
	if got := readFile(t, tree, "services/a/base.yaml"); got != "a: 2\n" {
		t.Errorf("got %q", got)
	}
	if fi, err := fs.Stat(tree.FS(), "run.sh"); err != nil || fi.Mode() != 0o755 {
		t.Errorf("run.sh: %v %v", fi, err)
	}
	if err := fstest.TestFS(tree.FS(), tree.Files()...); err != nil {
		t.Error(err)
	}
	if got := readFile(t, readTree(t, dir, "HEAD~1"), "services/a/base.yaml"); got != "a: 1\n" {
		t.Errorf("HEAD~1: got %q", got)
	}

	// What the reader gets is its own.
	data, _ := readFS(tree, "services/a/base.yaml")
	data[0] = 'X'
	if got := readFile(t, tree, "services/a/base.yaml"); got != "a: 2\n" {
		t.Errorf("after a caller's change: %q", got)
	}
}

func TestEmptyCommit(t *testing.T) {
	dir := initRepo(t)
	commit(t, dir, "nothing")
	tree := readTree(t, dir, "HEAD")
	wantFiles(t, tree)
	if err := fstest.TestFS(tree.FS()); err != nil {
		t.Error(err)
	}
}

func TestConcurrentReads(t *testing.T) {
	dir := initRepo(t)
	for i := range 60 {
		write(t, dir, fmt.Sprintf("d%d/f%d", i%7, i), strings.Repeat(fmt.Sprint(i), 900))
	}
	commit(t, dir, "many")
	git(t, dir, "gc", "-q")
	r := open(t, dir)
	tree, err := r.Commit("main")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 6 {
		wg.Go(func() {
			for i := range 60 {
				name := fmt.Sprintf("d%d/f%d", i%7, i)
				data, err := readFS(tree, name)
				if want := strings.Repeat(fmt.Sprint(i), 900); err != nil || string(data) != want {
					t.Errorf("%s: %d bytes, %v", name, len(data), err)
				}
			}
			if _, err := r.Commit("HEAD"); err != nil {
				t.Error(err)
			}
			if _, err := r.WorkTree(); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

// TestRepackWhileReading opens a tree, then has git rewrite and remove every pack before the files are read.
func TestRepackWhileReading(t *testing.T) {
	dir := initRepo(t)
	for i := range 20 {
		write(t, dir, fmt.Sprintf("f%02d", i), strings.Repeat(fmt.Sprint(i), 2000))
		commit(t, dir, "c")
	}
	r := open(t, dir)
	tree, err := r.Commit("HEAD")
	if err != nil {
		t.Fatal(err)
	}
	git(t, dir, "repack", "-q", "-a", "-d")
	git(t, dir, "prune-packed")
	for i := range 10 {
		readFile(t, tree, fmt.Sprintf("f%02d", i))
	}
	write(t, dir, "g", "new")
	commit(t, dir, "c")
	git(t, dir, "gc", "-q", "--prune=now")
	for i := range 20 {
		if got := readFile(t, tree, fmt.Sprintf("f%02d", i)); got != strings.Repeat(fmt.Sprint(i), 2000) {
			t.Errorf("f%02d: other bytes", i)
		}
	}
	if _, err := r.Commit("HEAD"); err != nil {
		t.Error(err)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	readFile(t, tree, "f19") // a closed repository's trees stay usable
}

func TestB006(t *testing.T) {
	dir := initRepo(t)
	write(t, dir, ".gitattributes", "*.yaml text eol=crlf\n")
	write(t, dir, "a.yaml", "a: 1\nb: 2\n")
	write(t, dir, "c.json", "{\r\n}\r\n")
	commit(t, dir, "mixed")
	want := contents(t, readTree(t, dir, "HEAD"))
	if want["a.yaml"] != "a: 1\nb: 2\n" || want["c.json"] != "{\r\n}\r\n" {
		t.Fatalf("not the blobs: %q", want)
	}
	for _, crlf := range []string{"true", "false"} {
		conf := filepath.Join(t.TempDir(), "config")
		write(t, filepath.Dir(conf), "config", "[core]\n\tautocrlf = "+crlf+"\n")
		t.Setenv("GIT_CONFIG_GLOBAL", conf)
		for _, kind := range []string{"--no-bare", "--bare"} {
			clone := filepath.Join(t.TempDir(), "clone")
			git(t, ".", "clone", "-q", kind, dir, clone)
			if d := cmp.Diff(want, contents(t, readTree(t, clone, "HEAD"))); d != "" {
				t.Errorf("autocrlf=%s %s: %s", crlf, kind, d)
			}
		}
	}
}

func TestB022(t *testing.T) {
	dir := initRepo(t)
	write(t, dir, "ok.yaml", "a: 1\n")
	write(t, dir, "media/huge.bin", "")
	if err := os.Truncate(filepath.Join(dir, "media/huge.bin"), source.MaxFile+1); err != nil {
		t.Fatal(err)
	}
	_, err := open(t, dir).WorkTree()
	refused(t, err, source.ErrUnsupported, "media/huge.bin", "67108865 bytes", "67108864")
	commit(t, dir, "huge")
	for _, packed := range []bool{false, true} {
		if packed {
			git(t, dir, "gc", "-q")
		}
		_, err := open(t, dir).Commit("HEAD")
		refused(t, err, source.ErrUnsupported, "media/huge.bin", "67108865 bytes", "67108864")
	}
}

func TestTreeTooLarge(t *testing.T) {
	dir := initRepo(t)
	write(t, dir, "blob", "")
	if err := os.Truncate(filepath.Join(dir, "blob"), source.MaxFile); err != nil {
		t.Fatal(err)
	}
	id := git(t, dir, "hash-object", "-w", "blob")
	for i := range 17 { // one blob under 17 names: 1 GiB and 64 MiB
		git(t, dir, "update-index", "--add", "--cacheinfo", fmt.Sprintf("100644,%s,f%02d", id, i))
	}
	git(t, dir, "commit", "-q", "-m", "large")
	_, err := open(t, dir).Commit("HEAD")
	refused(t, err, source.ErrUnsupported, "f16", "1073741824")
}

// TestTreeBomb names one tree many times: small on disk, endless to walk.
func TestTreeBomb(t *testing.T) {
	dir := initRepo(t)
	write(t, dir, "x", "x")
	blob := git(t, dir, "hash-object", "-w", "x")
	entry := "100644 blob " + blob
	var tree string
	for range 8 {
		var b strings.Builder
		for i := range 10 {
			fmt.Fprintf(&b, "%s\tn%d\n", entry, i)
		}
		tree = mktree(t, dir, b.String())
		entry = "040000 tree " + tree
	}
	c := git(t, dir, "commit-tree", "-m", "bomb", tree)
	_, err := open(t, dir).Commit(c)
	refused(t, err, source.ErrUnsupported, "200000")
}
