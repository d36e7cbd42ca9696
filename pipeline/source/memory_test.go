package source_test

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/muster-config/muster/pipeline/source"
)

// memoryChild is another run of this test program: it reads a repository, and a mirror of it, under the limit.
func memoryChild(dir, cache string) error {
	limit := syscall.Rlimit{Cur: memoryLimit, Max: memoryLimit}
	if err := syscall.Setrlimit(syscall.RLIMIT_DATA, &limit); err != nil {
		return err
	}
	m, err := source.OpenMirror(context.Background(), cache, dir, "main", source.MirrorOptions{})
	if err != nil {
		return err
	}
	defer m.Close()
	if _, err := m.Fetch(context.Background()); err != nil {
		return err
	}
	r, err := source.Open(dir)
	if err != nil {
		return err
	}
	defer r.Close()
	for _, r := range []*source.Repo{r, m.Repo()} {
		for _, rev := range []string{"main", "main~1", "main~30"} {
			tree, err := r.Commit(rev)
			if err != nil {
				return err
			}
			for _, name := range tree.Files() {
				if _, err := readFS(tree, name); err != nil {
					return err
				}
			}
		}
		lines, err := r.Blame(context.Background(), "main", "a.yaml", []int{1})
		if err != nil {
			return err
		}
		if lines[1].Subject != "commit 1" {
			return fmt.Errorf("blame: %+v", lines)
		}
		if _, err := r.Diff(context.Background(), "main~53", "main"); err != nil {
			return err
		}
	}
	if _, err = r.Commit("huge"); err == nil || !strings.Contains(err.Error(), "media/huge.bin") {
		return fmt.Errorf("the huge file: %w", err)
	}
	return nil
}

// TestB022Memory reads 54 commits of a file of 5 MiB, and refuses one of 400 MiB unread, in a process that may have 256 MiB.
func TestB022Memory(t *testing.T) {
	dir := initRepo(t)
	const size = 5 << 20
	write(t, dir, "huge", "")
	if err := os.Truncate(filepath.Join(dir, "huge"), 400<<20); err != nil {
		t.Fatal(err)
	}
	huge := git(t, dir, "-c", "core.compression=1", "hash-object", "-w", "huge")
	cmd := exec.Command("git", "-c", "core.compression=0", "-c", "core.fsync=none", "fast-import", "--quiet", "--big-file-threshold=1m")
	cmd.Dir, cmd.Stderr = dir, os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	random := rand.NewChaCha8([32]byte{})
	header := func(ref string, n int) {
		msg := fmt.Sprintf("commit %d", n)
		fmt.Fprintf(in, "commit refs/heads/%s\ncommitter C <c@d> %d +0000\ndata %d\n%s\n", ref, n, len(msg), msg)
	}
	file := func(name string, size int64, from io.Reader) {
		fmt.Fprintf(in, "M 100644 inline %s\ndata %d\n", name, size)
		if _, err := io.CopyN(in, from, size); err != nil {
			t.Fatal(err)
		}
		fmt.Fprintln(in)
	}
	for n := range 54 {
		header("main", n+1)
		file("media/photo.raw", size, random)
		if n == 0 {
			file("a.yaml", 5, strings.NewReader("a: 1\n"))
		}
	}
	fmt.Fprint(in, "reset refs/heads/huge\nfrom refs/heads/main\n\n")
	header("huge", 55)
	fmt.Fprintf(in, "M 100644 %s media/huge.bin\n", huge)
	if err := in.Close(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	child := exec.Command(os.Args[0])
	cache := filepath.Join(t.TempDir(), "cache")
	child.Env = append(os.Environ(), "SOURCE_TEST_MEMORY="+dir, "SOURCE_TEST_CACHE="+cache, "GOMEMLIMIT=180MiB")
	if out, err := child.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%.2000s", err, out)
	}
}
