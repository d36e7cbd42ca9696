package source

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func FuzzIgnorePattern(f *testing.F) {
	for _, s := range []string{"a", "/a/", "!b", "**/x/**", "[!a-z]*", "[[:alpha:]", "a\\", "*a*b*c*d*", "**/**/**/**", "\\", "[]", "[b-a]"} {
		f.Add(s, "a/b/c")
	}
	f.Fuzz(func(t *testing.T, line, name string) {
		if len(line) > 1000 || len(name) > 1000 {
			return
		}
		p, ok := parsePattern(".", line)
		if !ok {
			return
		}
		start := time.Now()
		got := p.match(name, true)
		if d := time.Since(start); d > time.Second {
			t.Fatalf("took %s", d)
		}
		if list := (ignores{p}); list.match(name, true) != (got && !p.negated) {
			t.Fatal("the list does not follow its only pattern")
		}
	})
}

func FuzzRevision(f *testing.F) {
	dir := f.TempDir()
	for _, args := range [][]string{{"init", "-q", "-b", "main"}, {"-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "--allow-empty", "-m", "c"}} {
		cmd := exec.Command("git", args...)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_NOSYSTEM=1")
		if out, err := cmd.CombinedOutput(); err != nil {
			f.Fatalf("git: %v: %s", err, out)
		}
	}
	r, err := Open(dir)
	if err != nil {
		f.Fatal(err)
	}
	only, err := r.Resolve("main")
	if err != nil {
		f.Fatal(err)
	}
	for _, s := range []string{"main", "HEAD^0", "HEAD~1", "@", "v1^{commit}", "../x", "a@{1}", ":/x", "deadbeef", "^", "~", "HEAD^{", "\x00", strings.Repeat("\xf3", 300), strings.Repeat("a/", 3000) + "b"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, rev string) {
		id, err := r.Resolve(rev)
		switch {
		case err == nil && id != only:
			t.Fatalf("%q is %s", rev, id)
		case err != nil && !errors.Is(err, ErrNoRev):
			t.Fatalf("%q: %v", rev, err)
		case err != nil && strings.Contains(err.Error(), "\n"):
			t.Fatalf("%q: not one line: %v", rev, err)
		}
	})
}

// FuzzPackedRefs reads a damaged file without a wrong answer.
func FuzzPackedRefs(f *testing.F) {
	id := strings.Repeat("ab", 20)
	f.Add("# pack-refs with: peeled fully-peeled sorted\n" + id + " refs/heads/main\n^" + id + "\n")
	f.Add(id + " refs/heads/main")
	f.Add("x refs/heads/main\n" + id + "  refs/heads/main\n")
	dir := f.TempDir()
	r := &Repo{gitDir: dir, common: dir}
	f.Fuzz(func(t *testing.T, data string) {
		if err := os.WriteFile(filepath.Join(dir, "packed-refs"), []byte(data), 0o644); err != nil {
			t.Fatal(err)
		}
		h, err := r.ref("refs/heads/main")
		if err == nil && !strings.Contains(data, h.String()+" refs/heads/main") {
			t.Fatalf("made up %s", h)
		}
	})
}
