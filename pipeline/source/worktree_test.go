package source_test

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/muster-config/muster/pipeline/source"
)

func workTree(t testing.TB, dir string) source.Tree {
	t.Helper()
	tree, err := open(t, dir).WorkTree()
	if err != nil {
		t.Fatal(err)
	}
	return tree
}

func TestWorkTree(t *testing.T) {
	dir := initRepo(t)
	write(t, dir, ".gitignore", "*.log\n/build/\n")
	write(t, dir, "a.yaml", "committed\n")
	write(t, dir, "gone.yaml", "x")
	write(t, dir, "kept.log", "tracked though ignored")
	write(t, dir, "build/tracked", "in an ignored directory")
	git(t, dir, "add", "-f", "kept.log", "build/tracked")
	id := commit(t, dir, "c")
	write(t, dir, "a.yaml", "edited\n")
	write(t, dir, "new/b.yaml", "untracked\n")
	write(t, dir, "x.log", "ignored")
	write(t, dir, "build/other", "ignored")
	write(t, dir, ".git/info/exclude", "/local\n")
	write(t, dir, "local", "ignored")
	write(t, os.Getenv("XDG_CONFIG_HOME"), "git/ignore", "*.swp\n")
	t.Cleanup(func() { os.RemoveAll(filepath.Join(os.Getenv("XDG_CONFIG_HOME"), "git")) })
	write(t, dir, "a.swp", "ignored")
	if err := os.MkdirAll(filepath.Join(dir, "empty/empty"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(filepath.Join(dir, "fifo"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(dir, "gone.yaml")); err != nil {
		t.Fatal(err)
	}
	before := snapshot(t, dir)
	tree := workTree(t, filepath.Join(dir, "new"))
	want := map[string]string{".gitignore": "*.log\n/build/\n", "a.yaml": "edited\n", "new/b.yaml": "untracked\n", "kept.log": "tracked though ignored", "build/tracked": "in an ignored directory"}
	if d := cmp.Diff(want, contents(t, tree)); d != "" {
		t.Error(d)
	}
	if err := fstest.TestFS(tree.FS(), tree.Files()...); err != nil {
		t.Error(err)
	}
	if d := cmp.Diff(before, snapshot(t, dir)); d != "" {
		t.Errorf("reading changed the disk: %s", d)
	}
	one := tree.Identity()
	if one.Commit != id || !one.WorkTree || len(one.Tree) != 64 {
		t.Errorf("identity %+v", one)
	}
	if two := workTree(t, dir).Identity(); two.Tree != one.Tree {
		t.Error("same files, another digest")
	}
	write(t, dir, "a.yaml", "later\n")
	if got := readFile(t, tree, "a.yaml"); got != "edited\n" {
		t.Errorf("the snapshot changed to %q", got)
	}
	if two := workTree(t, dir).Identity(); two.Tree == one.Tree {
		t.Error("other files, same digest")
	}
}

// snapshot lists every file below dir with size, mode and time of change.
func snapshot(t testing.TB, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	err := filepath.Walk(dir, func(p string, fi os.FileInfo, err error) error {
		if err == nil {
			out[p] = fmt.Sprint(fi.Size(), fi.Mode(), fi.ModTime())
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestWorkTreeBeforeTheFirstCommit(t *testing.T) {
	dir := initRepo(t)
	write(t, dir, "a", "a")
	tree := workTree(t, dir)
	wantFiles(t, tree, "a")
	if id := tree.Identity(); id.Commit != "" {
		t.Errorf("identity %+v", id)
	}
}

func TestSparseCheckout(t *testing.T) {
	dir := initRepo(t)
	write(t, dir, "in/a", "a")
	write(t, dir, "out/b", "b")
	commit(t, dir, "c")
	git(t, dir, "sparse-checkout", "set", "in")
	_, err := open(t, dir).WorkTree()
	refused(t, err, source.ErrUnsupported, "out/b", "sparse", "--rev")
	wantFiles(t, readTree(t, dir, "HEAD"), "in/a", "out/b")
}

func TestIgnoreConfig(t *testing.T) {
	dir := initRepo(t)
	write(t, dir, "a", "a")
	write(t, dir, "b", "b")
	home := t.TempDir()
	write(t, home, "config", "[user]\n\tname = x\n[core]\n\texcludesFile = ~/mine\n")
	write(t, home, "mine", "/a\n")
	t.Setenv("HOME", home)
	t.Setenv("GIT_CONFIG_GLOBAL", filepath.Join(home, "config"))
	wantFiles(t, workTree(t, dir), "b")
	write(t, home, "theirs", "/b\n")
	git(t, dir, "config", "core.excludesFile", filepath.Join(home, "theirs"))
	wantFiles(t, workTree(t, dir), "a")
}

// gitFiles is what git itself lists: tracked and untracked, without the ignored.
func gitFiles(dir string) ([]string, error) {
	cmd := exec.Command("git", "ls-files", "-z", "-c", "-o", "--exclude-standard")
	cmd.Dir = dir
	out, err := cmd.Output()
	if err != nil {
		return nil, err
	}
	files := strings.FieldsFunc(string(out), func(r rune) bool { return r == 0 })
	slices.Sort(files)
	return append([]string{}, slices.Compact(files)...), nil
}

func sameAsGit(dir string) error {
	want, err := gitFiles(dir)
	if err != nil {
		return err
	}
	r, err := source.Open(dir)
	if err != nil {
		return err
	}
	defer r.Close()
	tree, err := r.WorkTree()
	if err != nil {
		return err
	}
	if d := cmp.Diff(want, tree.Files()); d != "" {
		return fmt.Errorf("-git +muster:\n%s", d)
	}
	return nil
}

var ignoreNames = []string{"a", "b", "ab", "a.log", "!x", "#y", "a b", "a*", "[a]", "a-b", "a\\b", "end ", "\u00e9"}

func TestIgnoreLikeGit(t *testing.T) {
	dir := initRepo(t)
	for _, d := range []string{"", "a/", "b/", "a/b/", "b/a/b/"} {
		for _, n := range ignoreNames {
			if n != "a" && n != "b" {
				write(t, dir, d+n, "")
			}
		}
	}
	write(t, dir, "a/b/a", "")
	write(t, dir, "b/b/b", "")
	for _, lines := range []string{
		"a", "/a", "a/", "/b/", "a/b", "**/b", "a/**", "**/a/**", "a/**/b", "**", "*", "*\n!a/\n!a/b/", "*.log\n!/a/*.log", "!*", "a\n!a", "\\!x", "\\#y", "#y", "!x",
		"a b", "end ", "end\\ ", "end\\  ", "a\\*", "a\\\\b", "[ab]", "[!a]*", "[^a]*", "[a-b]b", "[]a]", "[[:alpha:]]", "[[:alpha:]b", "[a", "a?", "a*b", "*b", "**b", "a**", "a/*", "/*", "/**/b", "/*/b", "*/a/b",
		"a/b/", "b/a/b/*", "a//b", "//a", "/", "", " ", "a/**/", "**/", "\ufeffa", "a\r\nb\r", "a\\", "[\\a]", "[a-]*", "[--b]*", "é", "?", "??", "b/**/b", "**/**/b", "a/**b", "[[:punct:]]*", "[[:nope:]]", "[b-a]",
		"/b/*\n!/b/a/\n/b/a/*\n!/b/a/b/\n",
	} {
		write(t, dir, ".gitignore", lines)
		if err := sameAsGit(dir); err != nil {
			t.Errorf("%q: %v", lines, err)
		}
	}
}

func TestIgnoreProperty(t *testing.T) {
	part := rapid.SampledFrom([]string{"a", "b", "*", "**", "?", "a*", "*b", "[ab]", "[!a]", "ab", "*.log"})
	line := rapid.Custom(func(t *rapid.T) string {
		return rapid.SampledFrom([]string{"", "!", "/", "!/", "**/"}).Draw(t, "pre") + strings.Join(rapid.SliceOfN(part, 1, 3).Draw(t, "parts"), "/") +
			rapid.SampledFrom([]string{"", "/", "/**", " "}).Draw(t, "post")
	})
	dir := initRepo(t)
	for _, n := range []string{"a/a/a", "a/a/b", "a/ab", "a/b/a.log", "b/a/x.log", "b/b/ab", "ab/a", "x.log", "c"} {
		write(t, dir, n, "")
	}
	git(t, dir, "add", "-f", "a/b/a.log", "ab/a")
	rapid.Check(t, func(rt *rapid.T) {
		for _, at := range []string{".gitignore", "a/.gitignore", ".git/info/exclude"} {
			write(t, dir, at, strings.Join(rapid.SliceOfN(line, 0, 3).Draw(rt, at), "\n"))
		}
		if err := sameAsGit(dir); err != nil {
			rt.Fatal(err)
		}
	})
}

// Where core.fileMode is false, as on Windows, git takes what the index says for what is executable.
func TestModesByIndex(t *testing.T) {
	dir := initRepo(t)
	write(t, dir, "run", "x")
	write(t, dir, "read", "x")
	if err := os.Chmod(filepath.Join(dir, "run"), 0o755); err != nil {
		t.Fatal(err)
	}
	commit(t, dir, "c")
	git(t, dir, "config", "core.fileMode", "false")
	write(t, dir, "new", "untracked")
	for name, mode := range map[string]os.FileMode{"run": 0o644, "read": 0o755, "new": 0o755} {
		if err := os.Chmod(filepath.Join(dir, name), mode); err != nil {
			t.Fatal(err)
		}
	}
	tree := workTree(t, dir)
	for name, want := range map[string]os.FileMode{"run": 0o755, "read": 0o644, "new": 0o644} {
		info, err := fs.Stat(tree.FS(), name)
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode().Perm() != want {
			t.Errorf("%s has mode %04o, want %04o as git sees it", name, info.Mode().Perm(), want)
		}
	}
}
