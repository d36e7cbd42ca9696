package source_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/muster-config/muster/pipeline/source"
)

// gitEnv keeps the user's settings out and the dates fixed, so that ids are the same everywhere.
var gitEnv = []string{
	"GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_NOSYSTEM=1", "GIT_TERMINAL_PROMPT=0", "LC_ALL=C",
	"GIT_AUTHOR_NAME=Ana", "GIT_AUTHOR_EMAIL=ana@example.com", "GIT_AUTHOR_DATE=2026-01-02T03:04:05Z",
	"GIT_COMMITTER_NAME=Ben", "GIT_COMMITTER_EMAIL=ben@example.com", "GIT_COMMITTER_DATE=2026-01-02T03:04:06Z",
}

func TestMain(m *testing.M) {
	for _, kv := range gitEnv {
		k, v, _ := strings.Cut(kv, "=")
		os.Setenv(k, v)
	}
	for _, k := range []string{"GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"} {
		os.Unsetenv(k)
	}
	if dir := os.Getenv("SOURCE_TEST_MEMORY"); dir != "" {
		if err := memoryChild(dir, os.Getenv("SOURCE_TEST_CACHE")); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	empty, err := os.MkdirTemp("", "home")
	if err != nil {
		panic(err)
	}
	os.Setenv("HOME", empty)
	os.Setenv("XDG_CONFIG_HOME", empty)
	code := m.Run()
	for _, dir := range append(tempDirs, empty) {
		os.RemoveAll(dir)
	}
	os.Exit(code)
}

// tempDirs live as long as the test program.
var tempDirs []string

func tempDir() (string, error) {
	dir, err := os.MkdirTemp("", "source")
	tempDirs = append(tempDirs, dir)
	return dir, err
}

// runGit runs git and gives its error instead of ending the test, for use beside the test's goroutine.
func runGit(dir string, args ...string) (string, error) {
	cmd := exec.Command("git", append([]string{"-c", "protocol.file.allow=always", "-c", "gc.auto=0", "-c", "core.fsync=none"}, args...)...)
	cmd.Dir = dir
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("git %s: %w: %s", strings.Join(args, " "), err, stderr.String())
	}
	return strings.TrimSpace(string(out)), nil
}

func git(t testing.TB, dir string, args ...string) string {
	t.Helper()
	out, err := runGit(dir, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func initRepo(t testing.TB, args ...string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "repo")
	git(t, ".", append(append([]string{"init", "-q", "-b", "main"}, args...), dir)...)
	return dir
}

func write(t testing.TB, dir, name, content string) {
	t.Helper()
	p := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(p, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

func link(t testing.TB, dir, name, target string) {
	t.Helper()
	p := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(target, p); err != nil {
		t.Fatal(err)
	}
}

func commit(t testing.TB, dir, msg string) string {
	t.Helper()
	git(t, dir, "add", "-A")
	git(t, dir, "commit", "-q", "--allow-empty", "-m", msg)
	return git(t, dir, "rev-parse", "HEAD")
}

func open(t testing.TB, dir string) *source.Repo {
	t.Helper()
	r, err := source.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

func readTree(t testing.TB, dir, rev string) source.Tree {
	t.Helper()
	tree, err := open(t, dir).Commit(rev)
	if err != nil {
		t.Fatal(err)
	}
	return tree
}

// contents reads a whole tree by its FS.
func contents(t testing.TB, tree source.Tree) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, name := range tree.Files() {
		out[name] = readFile(t, tree, name)
	}
	return out
}

func readFile(t testing.TB, tree source.Tree, name string) string {
	t.Helper()
	data, err := readFS(tree, name)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// refused checks that an error is the sentinel, is one line, and says all of parts.
func refused(t testing.TB, err, sentinel error, parts ...string) {
	t.Helper()
	if !errors.Is(err, sentinel) {
		t.Fatalf("got error %v, want %v", err, sentinel)
	}
	for _, p := range parts {
		if !strings.Contains(err.Error(), p) {
			t.Errorf("error %q does not say %q", err, p)
		}
	}
	if strings.Contains(err.Error(), "\n") {
		t.Errorf("error is not one line: %q", err)
	}
}

func wantFiles(t testing.TB, tree source.Tree, want ...string) {
	t.Helper()
	slices.Sort(want)
	if got := tree.Files(); !slices.Equal(got, want) {
		t.Errorf("files %q, want %q", got, want)
	}
}
