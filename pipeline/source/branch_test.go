package source_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/muster-config/muster/pipeline/source"
)

// A commit on a new branch, with git's own opinion of it; what is checked out stays.
func TestBranch(t *testing.T) {
	dir := t.TempDir()
	git := func(args ...string) string {
		t.Helper()
		cmd := exec.Command("git", append([]string{"-C", dir}, args...)...)
		cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL="+os.DevNull, "GIT_CONFIG_NOSYSTEM=1", "GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@x", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@x")
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("git %v: %v\n%s", args, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	put := func(name, text string) {
		t.Helper()
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	git("init", "-q", "-b", "main")
	put("services/a/base.yaml", "x: 1\n")
	put("services/a.b/base.yaml", "y: 1\n") // sorts between the directory a and its slash
	put("run.sh", "#!/bin/sh\n")
	if err := os.Chmod(filepath.Join(dir, "run.sh"), 0o755); err != nil {
		t.Fatal(err)
	}
	git("add", "-A")
	git("commit", "-q", "-m", "first")
	git("gc", "-q")
	put("services/a/base.yaml", "x: dirty\n")
	before := git("status", "--porcelain") + git("rev-parse", "main") + git("symbolic-ref", "HEAD")

	repo, err := source.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer repo.Close()
	one := source.NewCommit{
		Parent: "HEAD", Files: map[string][]byte{"services/a/base.yaml": []byte("x: 2\n"), "services/a/overlays/env/prod.yaml": []byte("x: 3\n"), "run.sh": []byte("#!/bin/bash\n")},
		Message: "a: x\n\nwhy\n", Author: source.Person{Name: "Ana", Email: "ana@example.org", At: time.Unix(1_800_000_000, 0).UTC()},
	}
	id, err := repo.Branch("muster/override-1", one)
	if err != nil {
		t.Fatal(err)
	}
	if got := git("rev-parse", "muster/override-1"); got != id {
		t.Errorf("branch at %s, commit %s", got, id)
	}
	git("fsck", "--strict", "--no-dangling")
	if got := git("diff", "--name-status", "main", "muster/override-1"); got != "M\trun.sh\nM\tservices/a/base.yaml\nA\tservices/a/overlays/env/prod.yaml" {
		t.Errorf("%s", got)
	}
	if got := git("ls-tree", "muster/override-1", "run.sh"); !strings.HasPrefix(got, "100755 ") {
		t.Errorf("%s", got)
	}
	if got := git("log", "-1", "--format=%an <%ae> %at %s", "muster/override-1"); got != "Ana <ana@example.org> 1800000000 a: x" {
		t.Errorf("%s", got)
	}
	if after := git("status", "--porcelain") + git("rev-parse", "main") + git("symbolic-ref", "HEAD"); after != before || repo.Head() != "main" {
		t.Errorf("before\n%s\nafter\n%s", before, after)
	}
	// The same again is ours, whenever it was made; another one is not.
	one.Author.At = one.Author.At.Add(time.Hour)
	if again, err := repo.Branch("muster/override-1", one); err != nil || again != id {
		t.Errorf("%s, %v", again, err)
	}
	one.Files["run.sh"] = []byte("other")
	if _, err := repo.Branch("muster/override-1", one); !errors.Is(err, source.ErrBranchExists) {
		t.Errorf("%v", err)
	}
	for _, name := range []string{"../x", "a..b", "-x", "x.lock", ""} {
		if _, err := repo.Branch(name, one); err == nil {
			t.Errorf("branch %q was made", name)
		}
	}
	for _, file := range []string{".git/config", "../x", "services/a/base.yaml/below"} {
		if _, err := repo.Branch("bad", source.NewCommit{Parent: "HEAD", Files: map[string][]byte{file: []byte("x")}, Message: "m", Author: one.Author}); err == nil {
			t.Errorf("file %q was taken", file)
		}
	}
	if got := git("branch", "--list", "bad"); got != "" {
		t.Errorf("%s", got)
	}
}
