package source_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-config/muster/pipeline/source"
)

func mktree(t testing.TB, dir, list string) string {
	t.Helper()
	cmd := exec.Command("git", "mktree")
	cmd.Dir = dir
	cmd.Stdin = strings.NewReader(list)
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("git mktree: %v", err)
	}
	return strings.TrimSpace(string(out))
}

// both reads what is on disk in dir as a commit and as a work tree: one rule for the two.
func both(t *testing.T, dir string, check func(*testing.T, source.Tree, error)) {
	t.Helper()
	r := open(t, dir)
	t.Run("work tree", func(t *testing.T) {
		tree, err := r.WorkTree()
		check(t, tree, err)
	})
	commit(t, dir, "c")
	t.Run("commit", func(t *testing.T) {
		tree, err := r.Commit("HEAD")
		check(t, tree, err)
	})
}

func TestB001(t *testing.T) {
	dir := initRepo(t)
	write(t, dir, "services/a/base.yaml", "real: 1\n")
	link(t, dir, "services/b/base.yaml", "../a/base.yaml")
	link(t, dir, "services/c/chain.yaml", "../b/../b/./base.yaml")
	both(t, dir, func(t *testing.T, tree source.Tree, err error) {
		if err != nil {
			t.Fatal(err)
		}
		want := map[string]string{"services/a/base.yaml": "real: 1\n", "services/b/base.yaml": "real: 1\n", "services/c/chain.yaml": "real: 1\n"}
		if d := cmp.Diff(want, contents(t, tree)); d != "" {
			t.Error(d)
		}
		if err := fstest.TestFS(tree.FS(), tree.Files()...); err != nil {
			t.Error(err)
		}
	})
	one, two := filepath.Join(t.TempDir(), "1"), filepath.Join(t.TempDir(), "2")
	git(t, ".", "clone", "-q", dir, one)
	git(t, ".", "clone", "-q", "-c", "core.symlinks=false", dir, two)
	if fi, err := os.Lstat(filepath.Join(two, "services/b/base.yaml")); err != nil || !fi.Mode().IsRegular() {
		t.Fatalf("%v, %v: want the link's text in a plain file", fi, err)
	}
	if got := readFile(t, workTree(t, two), "services/b/base.yaml"); got != "real: 1\n" {
		t.Errorf("work tree without symlinks: got %q", got)
	}
	a, b := readTree(t, one, "HEAD"), readTree(t, two, "HEAD")
	if d := cmp.Diff(contents(t, a), contents(t, b)); d != "" || a.Identity().Tree != b.Identity().Tree {
		t.Errorf("two clones differ: %s", d)
	}
}

func TestB002(t *testing.T) {
	outside := t.TempDir()
	write(t, outside, "outside.yaml", "TOPSECRET")
	tests := []struct{ name, file, target, why string }{
		{"dangling and absolute", "x.cue", "/nowhere", "leaves the repository"},
		{"dangling", "x.cue", "nowhere.cue", "not there"},
		{"absolute", "secret.yaml", "/etc/passwd", "leaves the repository"},
		{"absolute to itself", "secret.yaml", "@/a.yaml", "leaves the repository"},
		{"outside", "leak.yaml", "../../outside.yaml", "leaves the repository"},
		{"outside and back", "leak.yaml", "../repo/a.yaml", "leaves the repository"},
		{"directory", "d", "sub", "to a directory"},
		{"directory with a slash", "d", "sub/", "to a directory"},
		{"itself as root", "d", ".", "to a directory"},
		{"file as directory", "d", "a.yaml/x", "not there"},
		{"file with a slash", "d", "a.yaml/", "not there"},
		{"through a missing directory", "d", "none/../a.yaml", "not there"},
		{"into the git directory", "d", ".git/config", "not there"},
		{"circle", "d", "./d", "circle"},
		{"to a lock", "d", "sub/.#lock", "not there"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := initRepo(t)
			write(t, filepath.Dir(dir), "outside.yaml", "TOPSECRET")
			write(t, dir, "a.yaml", "a: 1\n")
			write(t, dir, "sub/b.yaml", "b: 1\n")
			link(t, dir, "sub/.#lock", "ana@host.1:2")
			link(t, dir, tt.file, strings.ReplaceAll(tt.target, "@", dir))
			both(t, dir, func(t *testing.T, tree source.Tree, err error) {
				refused(t, err, source.ErrUnsupported, tt.file, tt.why)
				if tree != nil {
					t.Error("a tree beside the error")
				}
			})
		})
	}
	t.Run("editor lock", func(t *testing.T) {
		dir := initRepo(t)
		write(t, dir, "a.yaml", "a: 1\n")
		link(t, dir, ".#x.cue", "user@host.1:2")
		link(t, dir, "sub/.#y", "user@host.1:2")
		write(t, dir, ".#real", "a file, not a lock\n")
		both(t, dir, func(t *testing.T, tree source.Tree, err error) {
			if err != nil {
				t.Fatal(err)
			}
			wantFiles(t, tree, "a.yaml", ".#real")
		})
	})
}

func TestB004(t *testing.T) {
	for _, modules := range []bool{true, false} {
		dir := initRepo(t)
		write(t, dir, "a", "a")
		if modules {
			write(t, dir, ".gitmodules", "[submodule \"x\"]\n\tpath = modules/x\n\turl = https://example.com/x\n")
		}
		git(t, dir, "add", "-A")
		git(t, dir, "update-index", "--add", "--cacheinfo", "160000,"+strings.Repeat("ab", 20)+",modules/x")
		_, err := open(t, dir).WorkTree()
		refused(t, err, source.ErrUnsupported, "modules/x", "submodule")
		git(t, dir, "commit", "-q", "-m", "sub")
		_, err = open(t, dir).Commit("HEAD")
		refused(t, err, source.ErrUnsupported, "modules/x", "submodule")
	}
	dir := initRepo(t)
	git(t, ".", "init", "-q", filepath.Join(dir, "deep", "inner"))
	write(t, dir, "deep/inner/a", "a")
	_, err := open(t, dir).WorkTree()
	refused(t, err, source.ErrUnsupported, "deep/inner", "repository inside")
	write(t, dir, ".gitignore", "/deep/\n")
	tree, err := open(t, dir).WorkTree()
	if err != nil {
		t.Fatal(err)
	}
	wantFiles(t, tree, ".gitignore")
}

func TestB005(t *testing.T) {
	oid := strings.Repeat("0a", 32)
	pointer := "version https://git-lfs.github.com/spec/v1\noid sha256:" + oid + "\nsize 12\n"
	tests := []struct {
		name, content string
		refuse        bool
	}{
		{"pointer", pointer, true},
		{"without final newline", strings.TrimSuffix(pointer, "\n"), true},
		{"with extension", "version https://git-lfs.github.com/spec/v1\next-0-foo sha256:" + oid + "\noid sha256:" + oid + "\nsize 12\n", true},
		{"old host", strings.Replace(pointer, "git-lfs.github.com", "hawser.github.com", 1), true},
		{"comment", "# see version https://git-lfs.github.com/spec/v1\na: 1\n", false},
		{"yaml that begins like one", "version https://git-lfs.github.com/spec/v1\na: 1\n", false},
		{"in the middle", "x\n" + pointer, false},
		{"with more", pointer + "more: 1\n", false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := initRepo(t)
			write(t, dir, ".gitattributes", "*.pem -text\n")
			write(t, dir, "certs/ca.pem", tt.content)
			both(t, dir, func(t *testing.T, tree source.Tree, err error) {
				if tt.refuse {
					refused(t, err, source.ErrUnsupported, "certs/ca.pem", "LFS pointer, content not in the repository")
				} else if err != nil || readFile(t, tree, "certs/ca.pem") != tt.content {
					t.Errorf("err %v", err)
				}
			})
		})
	}
}

func TestNames(t *testing.T) {
	tests := []struct {
		name  string
		files []string
		want  []string
	}{
		{"not UTF-8", []string{"a/b\xff.yaml"}, []string{`"a/b\xff.yaml"`, "UTF-8"}},
		{"newline", []string{"a\nb"}, []string{`"a\nb"`, "control character"}},
		{"C1 control", []string{"a\u0085b"}, []string{"control character"}},
		{"escape in a directory", []string{"a\x1b[31m/b"}, []string{"control character"}},
		{"case", []string{"svc/Readme", "svc/README"}, []string{"svc/R", "only by case"}},
		{"directory case", []string{"Svc/a", "svc/b"}, []string{"only by case"}},
		{"file and directory", []string{"X", "x/y"}, []string{"only by case"}},
		{"Unicode form", []string{"caf\u00e9", "cafe\u0301"}, []string{"Unicode form"}},
		{"both", []string{"CAF\u00c9", "cafe\u0301"}, []string{"only by case"}},
		{"folding beyond lower case", []string{"stra\u00dfe", "STRASSE"}, []string{"only by case"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := initRepo(t)
			for _, f := range tt.files {
				write(t, dir, f, f)
			}
			both(t, dir, func(t *testing.T, _ source.Tree, err error) {
				refused(t, err, source.ErrUnsupported, tt.want...)
			})
		})
	}
	t.Run("link and file", func(t *testing.T) {
		dir := initRepo(t)
		write(t, dir, "a", "a")
		link(t, dir, "A", "a")
		both(t, dir, func(t *testing.T, _ source.Tree, err error) { refused(t, err, source.ErrUnsupported, "only by case") })
	})
}

// TestForgedTrees reads trees that git itself would not write.
func TestForgedTrees(t *testing.T) {
	dir := initRepo(t)
	write(t, dir, "x", "x")
	blob := git(t, dir, "hash-object", "-w", "x")
	id := make([]byte, 20)
	for i := range id {
		var b byte
		for _, c := range blob[2*i : 2*i+2] {
			b = b<<4 | byte(strings.IndexRune("0123456789abcdef", c))
		}
		id[i] = b
	}
	for name, raw := range map[string]string{
		"dot dot":   "100644 ..\x00" + string(id),
		"git":       "100644 .git\x00" + string(id),
		"GIT":       "100644 .GIT\x00" + string(id),
		"slash":     "100644 a/b\x00" + string(id),
		"absolute":  "100644 /etc/x\x00" + string(id),
		"duplicate": "100644 a\x00" + string(id) + "100755 a\x00" + string(id),
	} {
		t.Run(name, func(t *testing.T) {
			cmd := exec.Command("git", "hash-object", "-w", "-t", "tree", "--literally", "--stdin")
			cmd.Dir, cmd.Stdin = dir, strings.NewReader(raw)
			out, err := cmd.Output()
			if err != nil {
				t.Fatal(err)
			}
			c := git(t, dir, "commit-tree", "-m", "forged", strings.TrimSpace(string(out)))
			_, err = open(t, dir).Commit(c)
			refused(t, err, source.ErrUnsupported)
		})
	}
}

func TestCorruptObject(t *testing.T) {
	dir := initRepo(t)
	write(t, dir, "a", "honest\n")
	write(t, dir, "b", "forged\n")
	commit(t, dir, "c")
	object := func(rev string) string {
		id := git(t, dir, "rev-parse", rev)
		return filepath.Join(dir, ".git/objects", id[:2], id[2:])
	}
	forged, err := os.ReadFile(object("HEAD:b"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(object("HEAD:a")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(object("HEAD:a"), forged, 0o444); err != nil {
		t.Fatal(err)
	}
	if _, err = open(t, dir).Commit("HEAD"); err == nil || !strings.Contains(err.Error(), "corrupt") {
		t.Fatalf("got %v", err)
	}
}
