package source_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/muster-config/muster/pipeline/source"
)

func TestOpen(t *testing.T) {
	dir := initRepo(t)
	write(t, dir, "a/b/c", "x")
	id := commit(t, dir, "c")
	bare := filepath.Join(t.TempDir(), "bare.git")
	git(t, ".", "clone", "-q", "--bare", dir, bare)
	linked := filepath.Join(t.TempDir(), "linked")
	git(t, dir, "worktree", "add", "-q", "-b", "side", linked)
	write(t, linked, "only-here", "y")
	side := commit(t, linked, "side")
	ofBare := filepath.Join(t.TempDir(), "of-bare")
	git(t, bare, "worktree", "add", "-q", ofBare, "main")
	separate := filepath.Join(t.TempDir(), "separate")
	git(t, ".", "clone", "-q", "--separate-git-dir", filepath.Join(t.TempDir(), "elsewhere"), dir, separate)
	git(t, dir, "config", "extensions.worktreeConfig", "true")
	for _, tt := range []struct {
		name, at, want string
		workTree       bool
	}{
		{"root", dir, id, true}, {"below", filepath.Join(dir, "a/b"), id, true}, {"git directory", filepath.Join(dir, ".git"), id, false},
		{"bare", bare, id, false}, {"in a bare", filepath.Join(bare, "refs"), id, false}, {"linked", linked, side, true},
		{"linked to a bare", ofBare, id, true}, {"separate", separate, id, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := open(t, tt.at)
			if got, err := r.Resolve("HEAD"); err != nil || got != tt.want {
				t.Errorf("HEAD is %s, %v; want %s", got, err, tt.want)
			}
			tree, err := r.Commit("HEAD")
			if err != nil || readFile(t, tree, "a/b/c") != "x" {
				t.Errorf("commit: %v", err)
			}
			tree, err = r.WorkTree()
			switch {
			case !tt.workTree:
				refused(t, err, source.ErrNoWorkTree, "--rev")
			case err != nil:
				t.Error(err)
			case tree.Identity().Commit != tt.want || !tree.Identity().WorkTree:
				t.Errorf("identity %+v", tree.Identity())
			}
		})
	}
}

func TestOpenRefused(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "file", "")
	write(t, dir, "broken/.git/config", "")
	write(t, dir, "odd/.git", "nonsense\n")
	write(t, dir, "gone/.git", "gitdir: ../nowhere\n")
	for at, want := range map[string]string{
		".": "nor is any directory above", "none": "no such directory", "file": "it is a file", "broken": "incomplete", "odd": "gitdir line", "gone": "is gone",
	} {
		_, err := source.Open(filepath.Join(dir, at))
		refused(t, err, source.ErrNoRepo, want, dir)
	}
}

func TestB010(t *testing.T) {
	dir := initRepo(t, "--object-format=sha256")
	write(t, dir, "a", "a")
	commit(t, dir, "c")
	_, err := source.Open(dir)
	refused(t, err, source.ErrUnsupported, dir, "objectformat=sha256", "git init --object-format=sha1")

	// Not every git can make these: the config is what tells.
	for ext, want := range map[string]string{"refStorage = reftable": "git refs migrate --ref-format=files", "newFormat = yes": "newformat"} {
		dir := initRepo(t)
		write(t, dir, "a", "a")
		commit(t, dir, "c")
		conf := filepath.Join(dir, ".git/config")
		write(t, dir, ".git/config", "[core]\n\trepositoryformatversion = 1\n[extensions]\n\t"+ext+"\n")
		_, err := source.Open(dir)
		refused(t, err, source.ErrUnsupported, dir, want)
		write(t, dir, ".git/config", "[core]\n\trepositoryformatversion = 1\n[extensions]\n\tobjectFormat = SHA1\n\trefStorage = files\n")
		open(t, dir)
		write(t, dir, ".git/config", "[core]\n\trepositoryformatversion = 7\n")
		_, err = source.Open(dir)
		refused(t, err, source.ErrUnsupported, "version 7")
		if err := os.Remove(conf); err != nil {
			t.Fatal(err)
		}
		open(t, dir)
	}
}

func TestResolve(t *testing.T) {
	dir := initRepo(t)
	c1 := commit(t, dir, "one")
	c2 := commit(t, dir, "two")
	git(t, dir, "tag", "-a", "v1", "-m", "tag", c1)
	git(t, dir, "tag", "-a", "vv", "-m", "tag of a tag", "v1")
	git(t, dir, "tag", "light", c2)
	git(t, dir, "checkout", "-q", "-b", "feature/x", c1)
	side := commit(t, dir, "side")
	git(t, dir, "checkout", "-q", "main")
	git(t, dir, "merge", "-q", "--no-ff", "-m", "merge", "feature/x")
	merge := git(t, dir, "rev-parse", "HEAD")
	git(t, dir, "branch", "both", c1)
	git(t, dir, "tag", "both", c2)
	git(t, dir, "update-ref", "refs/remotes/origin/main", c2)
	git(t, dir, "symbolic-ref", "refs/remotes/origin/HEAD", "refs/remotes/origin/main")
	for _, packed := range []bool{false, true} {
		if packed {
			git(t, dir, "gc", "-q")
		}
		r := open(t, dir)
		for rev, want := range map[string]string{
			"HEAD": merge, "@": merge, "main": merge, "refs/heads/main": merge, "heads/main": merge, "HEAD~1": c2, "HEAD^": c2, "HEAD^1": c2, "HEAD^2": side, "HEAD~2": c1,
			"HEAD^2~1": c1, "HEAD^^": c1, "HEAD~0": merge, "HEAD^0": merge, "HEAD^{commit}": merge, "v1": c1, "v1^{}": c1, "v1^{commit}": c1, "vv": c1, "tags/v1": c1, "light": c2, "light~": c1,
			"feature/x": side, c1: c1, c1[:8]: c1, strings.ToUpper(c1[:9]): c1, c2[:12] + "~1": c1, "both": c2, "heads/both": c1, "origin/main": c2, "origin": c2,
		} {
			got, err := r.Resolve(rev)
			if err != nil || got != want {
				t.Errorf("%s (packed %v): %s, %v; want %s", rev, packed, got, err, want)
			}
			if want := git(t, dir, "rev-parse", "-q", rev+"^{commit}"); got != want {
				t.Errorf("%s: git says %s", rev, want)
			}
		}
		for rev, want := range map[string]string{
			"nope": `"nope"`, "": `""`, "HEAD~9": "has no parent", "HEAD~3": "has no parent", "HEAD^3": "only 2 parents", strings.Repeat("12", 20): "no commit", "abcdef12": "no commit", "config": `"config"`,
			"../../etc/passwd": "not a name", "HEAD@{1}": "not a name", "HEAD^{tree}": "may follow", "main:file": "not a name", "-x": `"-x"`, "HEAD..main": "not a name", git(t, dir, "rev-parse", "HEAD^{tree}"): "is a tree",
			"HEAD^{/one}": "may follow", "ORIG_HEADX": "no branch",
		} {
			_, err := r.Resolve(rev)
			refused(t, err, source.ErrNoRev, want, dir)
		}
	}
	_, err := open(t, initRepo(t)).Resolve("HEAD")
	refused(t, err, source.ErrNoRev, "commit first")
}

func TestContains(t *testing.T) {
	dir := initRepo(t)
	c1 := commit(t, dir, "one")
	c2 := commit(t, dir, "two")
	git(t, dir, "checkout", "-q", "-b", "side", c1)
	side := commit(t, dir, "side")
	git(t, dir, "checkout", "-q", "main")
	r := open(t, dir)
	for _, tt := range []struct {
		d, a string
		want bool
	}{{c2, c1, true}, {c1, c1, true}, {c1, c2, false}, {side, c2, false}, {c2, side, false}, {"side", "main~1", true}} {
		if got, err := r.Contains(tt.d, tt.a); err != nil || got != tt.want {
			t.Errorf("Contains(%.7s, %.7s) = %v, %v", tt.d, tt.a, got, err)
		}
	}
	git(t, dir, "merge", "-q", "--no-ff", "-m", "m", "side")
	if got, err := r.Contains("main", side); err != nil || !got {
		t.Errorf("second parent: %v, %v", got, err)
	}
	_, err := r.Contains("main", strings.Repeat("12", 20))
	refused(t, err, source.ErrNoRev)
}

func TestB007(t *testing.T) {
	origin := initRepo(t)
	write(t, origin, "a", "1")
	c1 := commit(t, origin, "one")
	write(t, origin, "a", "2")
	c2 := commit(t, origin, "two")
	dir := filepath.Join(t.TempDir(), "clone")
	git(t, ".", "clone", "-q", "--depth", "1", "file://"+origin, dir)
	r := open(t, dir)
	tree, err := r.Commit("HEAD")
	if err != nil {
		t.Fatal(err)
	}
	if got := readFile(t, tree, "a"); got != "2" {
		t.Errorf("got %q", got)
	}
	if p := tree.Identity().Parents; len(p) != 1 || p[0] != c1 {
		t.Errorf("parents %v: the commit still names them", p)
	}
	for _, rev := range []string{"HEAD~1", c1, c1[:8]} {
		_, err = r.Commit(rev)
		refused(t, err, source.ErrShallow, "git fetch --unshallow")
	}
	for _, a := range []string{c1, strings.Repeat("12", 20)} {
		_, err = r.Contains(c2, a)
		refused(t, err, source.ErrShallow)
	}
	if ok, err := r.Contains(c2, c2); err != nil || !ok {
		t.Errorf("itself: %v %v", ok, err)
	}
	_, err = open(t, origin).Commit("HEAD~2")
	refused(t, err, source.ErrNoRev, "has no parent")

	git(t, origin, "reset", "-q", "--hard", "HEAD~1")
	git(t, dir, "fetch", "-q", "--depth", "1", "origin", "+main:refs/remotes/origin/main")
	got, err := r.Resolve("origin/main")
	if err != nil || got != c1 {
		t.Errorf("after the forced push: %s, %v", got, err)
	}
	// Both ends are there, the way between them is not known to be whole.
	_, err = r.Contains(c1, c2)
	refused(t, err, source.ErrShallow)
}

func TestB008(t *testing.T) {
	a := initRepo(t)
	write(t, a, "a", strings.Repeat("a", 2000))
	c1 := commit(t, a, "one")
	b := filepath.Join(t.TempDir(), "b")
	git(t, ".", "clone", "-q", "--shared", a, b)
	write(t, b, "b", "b")
	c2 := commit(t, b, "two")
	c := filepath.Join(t.TempDir(), "c")
	git(t, ".", "clone", "-q", "--shared", b, c) // borrows from b and, through it, from a
	linked := filepath.Join(t.TempDir(), "linked")
	git(t, c, "worktree", "add", "-q", linked)
	for _, packed := range []bool{false, true} {
		if packed {
			git(t, a, "gc", "-q")
		}
		for _, dir := range []string{b, c, linked} {
			r := open(t, dir)
			for rev, want := range map[string]string{"HEAD": c2, "HEAD~1": c1, c1[:9]: c1} {
				tree, err := r.Commit(rev)
				if err != nil {
					t.Fatalf("%s: %v", rev, err)
				}
				if tree.Identity().Commit != want || len(readFile(t, tree, "a")) != 2000 {
					t.Errorf("%s: %+v", rev, tree.Identity())
				}
			}
		}
	}
	t.Run("relative", func(t *testing.T) {
		rel, err := filepath.Rel(filepath.Join(b, ".git/objects"), filepath.Join(a, ".git/objects"))
		if err != nil {
			t.Fatal(err)
		}
		write(t, b, ".git/objects/info/alternates", "# comment\n"+rel+"\n")
		readTree(t, b, "HEAD~1")
	})
	t.Run("absent", func(t *testing.T) {
		if err := os.Rename(a, a+".moved"); err != nil {
			t.Fatal(err)
		}
		_, err := open(t, c).Commit("HEAD~1")
		refused(t, err, source.ErrNoRev, "alternates", a)
	})
	t.Run("odd name", func(t *testing.T) {
		write(t, c, ".git/objects/info/alternates", t.TempDir()+"\n")
		_, err := open(t, c).Commit("HEAD")
		refused(t, err, source.ErrUnsupported, "alternates", "git repack")
	})
}

func TestB013(t *testing.T) {
	t.Run("only packed refs", func(t *testing.T) {
		dir := initRepo(t)
		id := commit(t, dir, "c")
		git(t, dir, "tag", "-a", "v1", "-m", "t")
		git(t, dir, "pack-refs", "--all", "--prune")
		if _, err := os.Stat(filepath.Join(dir, ".git/refs/heads/main")); err == nil {
			t.Fatal("the ref is still loose")
		}
		r := open(t, dir)
		for _, rev := range []string{"HEAD", "main", "v1", "refs/heads/main"} {
			if got, err := r.Resolve(rev); err != nil || got != id {
				t.Errorf("%s: %s, %v", rev, got, err)
			}
		}
		if got, err := r.Tip("main"); err != nil || got != id {
			t.Errorf("tip: %s, %v", got, err)
		}
	})
	t.Run("packing while polling", func(t *testing.T) {
		dir := initRepo(t)
		order := map[string]int{commit(t, dir, "0"): 0}
		tree := git(t, dir, "rev-parse", "HEAD^{tree}")
		var ids []string
		parent := git(t, dir, "rev-parse", "HEAD")
		for i := 1; i <= 60; i++ {
			parent = git(t, dir, "commit-tree", "-p", parent, "-m", fmt.Sprint(i), tree)
			order[parent] = i
			ids = append(ids, parent)
		}
		git(t, dir, "update-ref", "refs/keep/all", parent) // else gc removes what is to come
		r := open(t, dir)
		done := make(chan error, 1)
		go func() {
			var err error
			for i, id := range ids {
				if _, err = runGit(dir, "update-ref", "refs/heads/main", id); err != nil {
					break
				}
				if _, err = runGit(dir, "pack-refs", "--all", "--prune"); err != nil {
					break
				}
				if i%20 == 19 {
					if _, err = runGit(dir, "gc", "-q", "--prune=now"); err != nil {
						break
					}
				}
			}
			done <- err
		}()
		last, polls := 0, 0
		for ended := false; !ended; polls++ {
			select {
			case err := <-done:
				if err != nil {
					t.Fatal(err)
				}
				ended = true // one more look, at the final state
			default:
			}
			id, err := r.Tip("main")
			if err != nil {
				t.Fatalf("poll %d: %v", polls, err)
			}
			at, known := order[id]
			if !known || at < last {
				t.Fatalf("poll %d: went from %d to %d (%s)", polls, last, at, id)
			}
			if at > last {
				if _, err := r.Commit(id); err != nil {
					t.Fatal(err)
				}
			}
			last = at
		}
		if last != len(ids) {
			t.Errorf("ended at %d", last)
		}
	})
}

func TestB015(t *testing.T) {
	dir := initRepo(t)
	c1 := commit(t, dir, "one")
	git(t, dir, "branch", "foo")
	git(t, dir, "update-ref", "refs/remotes/origin/foo", c1)
	r := open(t, dir)
	if got, err := r.Tip("foo"); err != nil || got != c1 {
		t.Fatalf("%s, %v", got, err)
	}
	for _, packed := range []bool{false, true} {
		if packed {
			git(t, dir, "pack-refs", "--all")
		}
		git(t, dir, "branch", "-D", "foo")
		_, err := r.Tip("foo")
		refused(t, err, source.ErrBranchGone, "branch gone", `"foo"`, dir)
		git(t, dir, "branch", "foo/bar")
		if got, err := r.Tip("foo/bar"); err != nil || got != c1 {
			t.Errorf("foo/bar: %s, %v", got, err)
		}
		_, err = r.Tip("foo")
		refused(t, err, source.ErrBranchGone)
		git(t, dir, "branch", "-D", "foo/bar")
		git(t, dir, "branch", "foo")
		_, err = r.Tip("foo/bar")
		refused(t, err, source.ErrBranchGone)
	}
	for _, bad := range []string{"", "../config", "a..b", "a b", "/x"} {
		_, err := r.Tip(bad)
		refused(t, err, source.ErrNoRev, "not a branch name")
	}
}

// TestLongHistory bounds the time of the walk: each commit once.
func TestLongHistory(t *testing.T) {
	dir := initRepo(t)
	first := commit(t, dir, "0")
	tree := git(t, dir, "rev-parse", "HEAD^{tree}")
	a, b := first, first
	for i := range 40 { // 2^40 paths
		next := git(t, dir, "commit-tree", "-p", a, "-p", b, "-m", fmt.Sprint(i), tree)
		a, b = next, git(t, dir, "commit-tree", "-p", b, "-p", a, "-m", fmt.Sprint(i), tree)
	}
	other := git(t, dir, "commit-tree", "-m", "root", tree)
	start := time.Now()
	got, err := open(t, dir).Contains(a, other)
	if err != nil || got || time.Since(start) > 5*time.Second {
		t.Errorf("%v, %v after %s", got, err, time.Since(start))
	}
}

// TestB014 forces a branch to a sibling and back to an older commit: the tip is what the branch says now, and that it is no descendant of
// what was published is told, not found out by an error. The policy is the publisher's.
func TestB014(t *testing.T) {
	dir := initRepo(t)
	c1 := commit(t, dir, "one")
	c2 := commit(t, dir, "two")
	r := open(t, dir)
	tree := git(t, dir, "rev-parse", "HEAD^{tree}")
	sibling := git(t, dir, "commit-tree", "-p", c1, "-m", "sibling", tree)
	for _, tip := range []string{sibling, c1} {
		git(t, dir, "update-ref", "refs/heads/main", tip)
		got, err := r.Tip("main")
		if err != nil || got != tip {
			t.Fatalf("tip %s, %v; want %s", got, err, tip)
		}
		if ok, err := r.Contains(got, c2); err != nil || ok {
			t.Errorf("%.7s contains what was published: %v, %v", tip, ok, err)
		}
	}
	if ok, err := r.Contains(c2, c1); err != nil || !ok {
		t.Errorf("back to an older one: %v, %v", ok, err)
	}
	git(t, dir, "reflog", "expire", "--expire=now", "--all")
	git(t, dir, "gc", "-q", "--prune=now")
	_, err := r.Contains("main", c2)
	refused(t, err, source.ErrNoRev, "git fetch")
}
