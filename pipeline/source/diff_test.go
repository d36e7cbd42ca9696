package source_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/muster-config/muster/pipeline/source"
)

// gitDiff is what the git program says.
func gitDiff(dir, from, to string) ([]source.Change, error) {
	out, err := runGit(dir, "diff-tree", "-r", "-z", "--no-renames", "--no-abbrev", from, to)
	if err != nil {
		return nil, err
	}
	changes := []source.Change{}
	fields := strings.Split(strings.TrimSuffix(out, "\x00"), "\x00")
	for i := 0; i+1 < len(fields); i += 2 {
		f := strings.Fields(fields[i])
		changes = append(changes, source.Change{Path: fields[i+1], From: strings.Trim(f[2], "0"), To: strings.Trim(f[3], "0")})
	}
	slices.SortFunc(changes, func(a, b source.Change) int { return strings.Compare(a.Path, b.Path) })
	return changes, nil
}

func trimmed(list []source.Change) []source.Change {
	out := []source.Change{}
	for _, c := range list {
		out = append(out, source.Change{Path: c.Path, From: strings.Trim(c.From, "0"), To: strings.Trim(c.To, "0")})
	}
	return out
}

func TestDiffLikeGit(t *testing.T) {
	dir := initRepo(t)
	count := 0
	rapid.Check(t, func(rt *rapid.T) {
		count++
		// Names whose order in a tree is not that of their paths, and that are files here and directories there.
		part := rapid.SampledFrom([]string{"a", "a.b", "a-b", "a0", "b", "A"})
		s := script{run: count}
		for n := 1; n <= 2; n++ {
			fmt.Fprintf(&s, "commit refs/heads/%s\ncommitter C <c@d> 1 +0000\ndata 0\ndeleteall\n", s.ref(n))
			for range rapid.IntRange(0, 8).Draw(rt, "files") {
				name := strings.Join(rapid.SliceOfN(part, 1, 3).Draw(rt, "name"), "/")
				mode := rapid.SampledFrom([]string{"100644", "100644", "100755", "120000"}).Draw(rt, "mode")
				content := rapid.SampledFrom([]string{"1", "2"}).Draw(rt, "content")
				fmt.Fprintf(&s, "M %s inline %s\ndata 1\n%s\n", mode, name, content)
			}
			if rapid.IntRange(0, 5).Draw(rt, "submodule") == 0 {
				fmt.Fprintf(&s, "M 160000 %s sub\n", strings.Repeat(fmt.Sprint(n), 40))
			}
		}
		if err := s.load(dir); err != nil {
			rt.Fatal(err)
		}
		r, err := source.Open(dir)
		if err != nil {
			rt.Fatal(err)
		}
		defer r.Close()
		for _, pair := range [][2]string{{s.ref(1), s.ref(2)}, {s.ref(2), s.ref(1)}, {s.ref(1), s.ref(1)}} {
			got, err := r.Diff(context.Background(), pair[0], pair[1])
			if err != nil {
				rt.Fatal(err)
			}
			want, err := gitDiff(dir, pair[0], pair[1])
			if err != nil {
				rt.Fatal(err)
			}
			if d := cmp.Diff(want, trimmed(got)); d != "" {
				rt.Fatalf("%v: -git +muster:\n%s", pair, d)
			}
		}
	})
}

func TestDiff(t *testing.T) {
	dir := initRepo(t)
	write(t, dir, "services/a/base.yaml", "a: 1\n")
	write(t, dir, "services/b/base.yaml", "b: 1\n")
	one := commit(t, dir, "one")
	write(t, dir, "services/a/base.yaml", "a: 2\n")
	if err := os.Remove(filepath.Join(dir, "services/b/base.yaml")); err != nil {
		t.Fatal(err)
	}
	write(t, dir, "services/c/base.yaml", "c: 1\n")
	commit(t, dir, "two")
	r := open(t, dir)
	blob := func(rev string) string { return git(t, dir, "rev-parse", rev) }
	want := []source.Change{
		{Path: "services/a/base.yaml", From: blob("HEAD~1:services/a/base.yaml"), To: blob("HEAD:services/a/base.yaml")},
		{Path: "services/b/base.yaml", From: blob("HEAD~1:services/b/base.yaml")},
		{Path: "services/c/base.yaml", To: blob("HEAD:services/c/base.yaml")},
	}
	got, err := r.Diff(context.Background(), one, "main")
	if d := cmp.Diff(want, got); err != nil || d != "" {
		t.Errorf("%v %s", err, d)
	}
	if got, err := r.Diff(context.Background(), "main", "main"); err != nil || got == nil || len(got) != 0 {
		t.Errorf("equal: %v, %v", got, err)
	}
	_, err = r.Diff(context.Background(), "nope", "main")
	refused(t, err, source.ErrNoRev, "nope", dir)
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err = r.Diff(ended, one, "main"); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

func TestDiffTrees(t *testing.T) {
	dir := initRepo(t)
	write(t, dir, "a", "1\n")
	write(t, dir, "b", "1\n")
	write(t, dir, "run.sh", "x\n")
	write(t, dir, "same", "same\n")
	link(t, dir, "to-a", "a")
	commit(t, dir, "one")
	write(t, dir, "a", "2\n")
	git(t, dir, "mv", "b", "c")
	if err := os.Chmod(filepath.Join(dir, "run.sh"), 0o755); err != nil {
		t.Fatal(err)
	}
	r := open(t, dir)
	head, err := r.Commit("HEAD")
	if err != nil {
		t.Fatal(err)
	}
	disk := workTree(t, dir)
	commit(t, dir, "two")
	next, err := r.Commit("HEAD")
	if err != nil {
		t.Fatal(err)
	}
	blob := func(rev string) string { return git(t, dir, "rev-parse", rev) }
	want := []source.Change{
		{Path: "a", From: blob("HEAD~1:a"), To: blob("HEAD:a")},
		{Path: "b", From: blob("HEAD~1:b")},
		{Path: "c", To: blob("HEAD:c")},
		{Path: "run.sh", From: blob("HEAD:run.sh"), To: blob("HEAD:run.sh")},
		{Path: "to-a", From: blob("HEAD~1:a"), To: blob("HEAD:a")},
	}
	for name, to := range map[string]source.Tree{"work tree": disk, "commit": next} {
		got, err := source.DiffTrees(head, to)
		if d := cmp.Diff(want, got); err != nil || d != "" {
			t.Errorf("%s: %v %s", name, err, d)
		}
	}
	if got, err := source.DiffTrees(disk, next); err != nil || got == nil || len(got) != 0 {
		t.Errorf("committed since: %v, %v", got, err)
	}
}

// TestMergeBaseLikeGit compares random graphs with the git program.
func TestMergeBaseLikeGit(t *testing.T) {
	dir := initRepo(t)
	count := 0
	rapid.Check(t, func(rt *rapid.T) {
		count++
		s := script{run: count}
		for range rapid.IntRange(2, 16).Draw(rt, "commits") {
			var parents []int
			for range min(s.commits, rapid.SampledFrom([]int{1, 1, 1, 2, 2, 3, 0}).Draw(rt, "parents")) {
				if p := rapid.IntRange(max(1, s.commits-5), s.commits).Draw(rt, "parent"); !slices.Contains(parents, p) {
					parents = append(parents, p)
				}
			}
			s.commit(nil, parents...)
		}
		if err := s.load(dir); err != nil {
			rt.Fatal(err)
		}
		r, err := source.Open(dir)
		if err != nil {
			rt.Fatal(err)
		}
		defer r.Close()
		for range 3 {
			a := s.ref(rapid.IntRange(1, s.commits).Draw(rt, "a"))
			b := s.ref(rapid.IntRange(1, s.commits).Draw(rt, "b"))
			out, err := runGit(dir, "merge-base", "--all", a, b)
			want := strings.Fields(out)
			got, gotErr := r.MergeBase(context.Background(), a, b)
			switch {
			case err != nil && !errors.Is(gotErr, source.ErrUnrelated):
				rt.Fatalf("%s %s: %s, %v; git: %v", a, b, got, gotErr, err)
			case err == nil && (gotErr != nil || got != want[0]):
				rt.Fatalf("%s %s: %s, %v; git: %v", a, b, got, gotErr, want)
			}
		}
	})
}

func TestMergeBaseShallow(t *testing.T) {
	origin := initRepo(t)
	commit(t, origin, "one")
	fork := commit(t, origin, "two")
	git(t, origin, "checkout", "-q", "-b", "side")
	commit(t, origin, "side one")
	commit(t, origin, "side two")
	git(t, origin, "checkout", "-q", "main")
	commit(t, origin, "three")
	ctx := context.Background()
	clone := func(depth int) *source.Repo {
		dir := filepath.Join(t.TempDir(), "clone")
		git(t, ".", "clone", "-q", "--no-single-branch", "--depth", fmt.Sprint(depth), "file://"+origin, dir)
		return open(t, dir)
	}
	if got, err := open(t, origin).MergeBase(ctx, "main", "side"); err != nil || got != fork {
		t.Errorf("%s, %v", got, err)
	}
	for _, depth := range []int{1, 2} {
		_, err := clone(depth).MergeBase(ctx, "main", "origin/side")
		refused(t, err, source.ErrShallow, "git fetch --unshallow", `"origin/side"`)
	}
	// The cut lies behind the fork: nothing better can be beyond it.
	if got, err := clone(3).MergeBase(ctx, "main", "origin/side"); err != nil || got != fork {
		t.Errorf("%s, %v", got, err)
	}
	ended, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := open(t, origin).MergeBase(ended, "main", "side"); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}
