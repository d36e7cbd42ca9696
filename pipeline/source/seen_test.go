package source_test

import (
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-config/muster/pipeline/source"
)

// seenTree reads a work tree by what was seen of it before, as long after as it takes for every stamp to be believed.
func seenTree(t *testing.T, dir, cache string, later time.Duration) source.Tree {
	t.Helper()
	defer source.SetClock(func() time.Time { return time.Now().Add(later) })()
	tree, err := open(t, dir).WorkTreeSeen(cache)
	if err != nil {
		t.Fatal(err)
	}
	return tree
}

// unread are the files of a tree that were not read.
func unread(t *testing.T, tree source.Tree) []string {
	t.Helper()
	out := []string{}
	for _, name := range tree.Files() {
		if source.Unread(tree, name) {
			out = append(out, name)
		}
	}
	return out
}

// Whatever happens to a work tree between two readings, the second says the same with what was seen before as without; and where nothing happened, nothing
// is read.
func TestWorkTreeSeen(t *testing.T) {
	if runtime.GOOS != "linux" || source.Portable {
		t.Log("all is read here: only the answers are compared")
	}
	repo := func(t *testing.T) string {
		dir := initRepo(t)
		write(t, dir, ".gitignore", "*.log\n")
		write(t, dir, "a.yaml", "a\n")
		write(t, dir, "b/c/d.yaml", "d\n")
		write(t, dir, "b/c/e.yaml", "e\n")
		write(t, dir, "b/f.yaml", "f\n")
		write(t, dir, "b/x.log", "ignored\n")
		if err := os.Symlink("f.yaml", filepath.Join(dir, "b/link.yaml")); err != nil {
			t.Fatal(err)
		}
		commit(t, dir, "c")
		write(t, dir, "b/new.yaml", "untracked\n")
		return dir
	}
	must := func(t *testing.T, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	sameTimes := func(t *testing.T, name, data string) {
		t.Helper()
		fi, err := os.Stat(name)
		must(t, err)
		must(t, os.WriteFile(name, []byte(data), 0o644))
		must(t, os.Chtimes(name, fi.ModTime(), fi.ModTime()))
	}
	for name, change := range map[string]func(t *testing.T, dir string){
		"nothing":             func(*testing.T, string) {},
		"a file":              func(t *testing.T, dir string) { write(t, dir, "b/c/d.yaml", "longer\n") },
		"same size and mtime": func(t *testing.T, dir string) { sameTimes(t, filepath.Join(dir, "b/c/d.yaml"), "D\n") },
		"a new file":          func(t *testing.T, dir string) { write(t, dir, "b/c/n.yaml", "n\n") },
		"a new directory":     func(t *testing.T, dir string) { write(t, dir, "n/n/n.yaml", "n\n") },
		"a file removed":      func(t *testing.T, dir string) { must(t, os.Remove(filepath.Join(dir, "b/c/d.yaml"))) },
		"a directory removed": func(t *testing.T, dir string) { must(t, os.RemoveAll(filepath.Join(dir, "b/c"))) },
		"a mode":              func(t *testing.T, dir string) { must(t, os.Chmod(filepath.Join(dir, "a.yaml"), 0o755)) },
		"renamed over": func(t *testing.T, dir string) {
			write(t, dir, "n.yaml", "D\n")
			must(t, os.Rename(filepath.Join(dir, "n.yaml"), filepath.Join(dir, "b/c/d.yaml")))
		},
		"two directories change places": func(t *testing.T, dir string) {
			write(t, dir, "g/d.yaml", "other\n")
			write(t, dir, "g/e.yaml", "other\n")
			must(t, os.Rename(filepath.Join(dir, "b/c"), filepath.Join(dir, "b/x")))
			must(t, os.Rename(filepath.Join(dir, "g"), filepath.Join(dir, "b/c")))
		},
		"a link elsewhere": func(t *testing.T, dir string) {
			must(t, os.Remove(filepath.Join(dir, "b/link.yaml")))
			must(t, os.Symlink("new.yaml", filepath.Join(dir, "b/link.yaml")))
		},
		"a directory becomes a file": func(t *testing.T, dir string) {
			must(t, os.RemoveAll(filepath.Join(dir, "b/c")))
			write(t, dir, "b/c", "file\n")
		},
		"no longer ignored":      func(t *testing.T, dir string) { write(t, dir, ".gitignore", "nothing\n") },
		"ignored by the user":    func(t *testing.T, dir string) { write(t, dir, ".git/info/exclude", "new.yaml\n") },
		"tracked though ignored": func(t *testing.T, dir string) { git(t, dir, "add", "-f", "b/x.log") },
		"another commit":         func(t *testing.T, dir string) { commit(t, dir, "next") },
		"modes by the index":     func(t *testing.T, dir string) { git(t, dir, "config", "core.fileMode", "false") },
		"a hard link that is written": func(t *testing.T, dir string) {
			other := filepath.Join(t.TempDir(), "other")
			must(t, os.Link(filepath.Join(dir, "a.yaml"), other))
			must(t, os.WriteFile(other, []byte("A\n"), 0o644))
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir, cache := repo(t), t.TempDir()
			seenTree(t, dir, cache, time.Hour)
			change(t, dir)
			want := workTree(t, dir)
			got := seenTree(t, dir, cache, 2*time.Hour)
			if name == "nothing" && runtime.GOOS == "linux" && !source.Portable {
				if n := len(unread(t, got)); n != len(got.Files()) {
					t.Errorf("read all but %v", unread(t, got))
				}
			}
			if d := cmp.Diff(want.Identity(), got.Identity()); d != "" {
				t.Errorf("identity: %s", d)
			}
			if d := cmp.Diff(contents(t, want), contents(t, got)); d != "" {
				t.Error(d)
			}
			third := seenTree(t, dir, cache, 3*time.Hour)
			if d := cmp.Diff(contents(t, want), contents(t, third)); d != "" {
				t.Errorf("and once more: %s", d)
			}
		})
	}
}

// What changed a moment before it was read is read again: a later change could leave the same stamp.
func TestWorkTreeSeenTooFresh(t *testing.T) {
	dir, cache := initRepo(t), t.TempDir()
	write(t, dir, "a.yaml", "a\n")
	commit(t, dir, "c")
	fi, err := os.Stat(filepath.Join(dir, "a.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	back := source.SetClock(func() time.Time { return fi.ModTime().Add(time.Second) })
	for range 2 {
		tree, err := open(t, dir).WorkTreeSeen(cache)
		if err != nil {
			t.Fatal(err)
		}
		if len(unread(t, tree)) > 0 {
			t.Errorf("not read: %v", unread(t, tree))
		}
	}
	back()
	// And from where no file can be newer it is believed.
	seenTree(t, dir, cache, time.Hour)
	if tree := seenTree(t, dir, cache, time.Hour); runtime.GOOS == "linux" && !source.Portable && len(unread(t, tree)) != 1 {
		t.Error("it was read again")
	}
}

// A file that was not read and changes before it is opened is an error, not another tree's content.
func TestWorkTreeSeenChangesLater(t *testing.T) {
	dir, cache := initRepo(t), t.TempDir()
	write(t, dir, "a.yaml", "a\n")
	commit(t, dir, "c")
	seenTree(t, dir, cache, time.Hour)
	tree := seenTree(t, dir, cache, time.Hour)
	if len(unread(t, tree)) != 1 {
		return // all is read here
	}
	write(t, dir, "a.yaml", "b\n")
	if _, err := readFS(tree, "a.yaml"); err == nil || !strings.Contains(err.Error(), "changed while it was read") {
		t.Errorf("got %v", err)
	}
}

// Whatever is done to the file of what was seen, the tree is the right one.
func TestWorkTreeSeenDamaged(t *testing.T) {
	dir, cache := initRepo(t), t.TempDir()
	write(t, dir, "a.yaml", "a\n")
	write(t, dir, "b/c.yaml", "c\n")
	commit(t, dir, "c")
	want := contents(t, seenTree(t, dir, cache, time.Hour))
	files, err := filepath.Glob(filepath.Join(cache, "tree-*"))
	if err != nil || len(files) > 1 {
		t.Fatal(files, err)
	}
	for _, name := range files {
		good, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for at := 0; at < len(good); at += 29 {
			bad := slices.Clone(good)
			bad[at] ^= 0x21
			for _, data := range [][]byte{bad, good[:at]} {
				if err := os.WriteFile(name, data, 0o600); err != nil {
					t.Fatal(err)
				}
				if d := cmp.Diff(want, contents(t, seenTree(t, dir, cache, time.Hour))); d != "" {
					t.Fatalf("at %d: %s", at, d)
				}
			}
		}
	}
}
