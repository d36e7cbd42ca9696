package source_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/muster-config/muster/pipeline/source"
)

// script writes a history by git fast-import, which makes thousands of commits in the time of one git commit.
type script struct {
	strings.Builder
	run     int // of several in one repository
	commits int
}

func (s *script) ref(n int) string { return fmt.Sprintf("r%d-c%d", s.run, n) }

// commit adds one with the given parents (marks) and files; nil content deletes. It gives the new mark.
func (s *script) commit(files map[string]*string, parents ...int) int {
	s.commits++
	n := s.commits
	msg := fmt.Sprintf("commit %d", n)
	fmt.Fprintf(s, "commit refs/heads/%s\nmark :%d\n", s.ref(n), n)
	who := fmt.Sprintf("<p%d@example.com> %d +0000", n%7, 1767323045+n)
	fmt.Fprintf(s, "author Author %d %s\ncommitter C %s\ndata %d\n%s\n", n%7, who, who, len(msg), msg)
	for i, p := range parents {
		fmt.Fprintf(s, "%s :%d\n", []string{"from", "merge"}[min(i, 1)], p)
	}
	if len(parents) == 0 {
		s.WriteString("deleteall\n")
	}
	for _, name := range slices.Sorted(keys(files)) {
		if c := files[name]; c == nil {
			fmt.Fprintf(s, "D %s\n", name)
		} else {
			fmt.Fprintf(s, "M 100644 inline %s\ndata %d\n%s\n", name, len(*c), *c)
		}
	}
	return n
}

func keys[V any](m map[string]V) func(func(string) bool) {
	return func(yield func(string) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

func (s *script) load(dir string) error {
	cmd := exec.Command("git", "-c", "core.fsync=none", "fast-import", "--quiet", "--force")
	cmd.Dir, cmd.Stdin = dir, strings.NewReader(s.String())
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("git fast-import: %w: %s", err, out)
	}
	return nil
}

// gitBlame is what the git program says: the commit of each line.
func gitBlame(dir, rev, path string) (map[int]string, error) {
	out, err := runGit(dir, "blame", "--no-follow", "--porcelain", rev, "--", path)
	if err != nil {
		return nil, err
	}
	lines := map[int]string{}
	for l := range strings.SplitSeq(out, "\n") {
		f := strings.Fields(l)
		if len(f) < 3 || len(f[0]) != 40 || strings.HasPrefix(l, "\t") {
			continue
		}
		if n, err := strconv.Atoi(f[2]); err == nil {
			lines[n] = f[0]
		}
	}
	return lines, nil
}

func commitsOf(lines map[int]source.Line) map[int]string {
	out := map[int]string{}
	for n, l := range lines {
		out[n] = l.Commit
	}
	return out
}

func upTo(n int) []int {
	out := make([]int, n)
	for i := range out {
		out[i] = i + 1
	}
	return out
}

// TestBlameLikeGit compares random histories with the git program. A version is a selection, in order, from a fixed list of lines: so any two
// have one longest common subsequence only, and there is one right answer.
func TestBlameLikeGit(t *testing.T) {
	dir := initRepo(t)
	count := 0
	rapid.Check(t, func(rt *rapid.T) {
		count++
		const all = 24
		versions := map[int][]bool{} // by mark; nil is no file
		text := func(v []bool) *string {
			if v == nil {
				return nil
			}
			var b strings.Builder
			for i, in := range v {
				if in {
					fmt.Fprintf(&b, "line %d\n", i)
				}
			}
			s := b.String()
			return &s
		}
		s := script{run: count}
		for range rapid.IntRange(1, 14).Draw(rt, "commits") {
			n := s.commits
			var parents []int
			for range min(n, rapid.SampledFrom([]int{1, 1, 1, 2, 2, 3, 0}).Draw(rt, "parents")) {
				p := rapid.IntRange(max(1, n-3), n).Draw(rt, "parent")
				if !slices.Contains(parents, p) {
					parents = append(parents, p)
				}
			}
			v := make([]bool, all)
			for _, p := range parents {
				for i, in := range versions[p] {
					v[i] = v[i] || in
				}
			}
			switch rapid.IntRange(0, 11).Draw(rt, "kind") {
			case 0:
				v = nil
			case 1, 2:
				if len(parents) > 0 { // exactly one side's
					v = slices.Clone(versions[parents[rapid.IntRange(0, len(parents)-1).Draw(rt, "side")]])
				}
			default:
				for range rapid.IntRange(0, 5).Draw(rt, "edits") {
					v[rapid.IntRange(0, all-1).Draw(rt, "line")] = rapid.Bool().Draw(rt, "in")
				}
			}
			files := map[string]*string{"d/e/f": text(v)}
			other := fmt.Sprint(n)
			files["d/other"] = &other
			versions[s.commit(files, parents...)] = v
		}
		if err := s.load(dir); err != nil {
			rt.Fatal(err)
		}
		r, err := source.Open(dir)
		if err != nil {
			rt.Fatal(err)
		}
		defer r.Close()
		for n := max(1, s.commits-1); n <= s.commits; n++ {
			rev := s.ref(n)
			got, err := r.Blame(context.Background(), rev, "d/e/f", upTo(all+3))
			if versions[n] == nil {
				if !errors.Is(err, fs.ErrNotExist) {
					rt.Fatalf("%s: no file, but %v", rev, err)
				}
				continue
			}
			if err != nil {
				rt.Fatal(err)
			}
			want, err := gitBlame(dir, rev, "d/e/f")
			if err != nil {
				rt.Fatal(err)
			}
			if d := cmp.Diff(want, commitsOf(got)); d != "" {
				rt.Fatalf("%s: -git +muster:\n%s", rev, d)
			}
		}
	})
}

// TestBlameRepeatedLines has no single right answer; but a line must be in the commit that is named for it, and not untouched in its only parent.
func TestBlameRepeatedLines(t *testing.T) {
	dir := initRepo(t)
	count := 0
	rapid.Check(t, func(rt *rapid.T) {
		count++
		line := rapid.SampledFrom([]string{"a:", "  x: 1", "  y: 2", "", "}"})
		s := script{run: count}
		var text []string
		texts := map[string]string{}
		for range rapid.IntRange(2, 10).Draw(rt, "commits") {
			text = slices.Clone(text)
			for range rapid.IntRange(0, 4).Draw(rt, "edits") {
				at := rapid.IntRange(0, len(text)).Draw(rt, "at")
				if at < len(text) && rapid.Bool().Draw(rt, "delete") {
					text = slices.Delete(text, at, at+1)
				} else {
					text = slices.Insert(text, at, line.Draw(rt, "line"))
				}
			}
			content := strings.Join(text, "\n")
			parents := []int{s.commits}
			if s.commits == 0 {
				parents = nil
			}
			n := s.commit(map[string]*string{"f": &content}, parents...)
			texts[fmt.Sprintf("commit %d", n)] = content
		}
		if err := s.load(dir); err != nil {
			rt.Fatal(err)
		}
		r, err := source.Open(dir)
		if err != nil {
			rt.Fatal(err)
		}
		defer r.Close()
		got, err := r.Blame(context.Background(), s.ref(s.commits), "f", upTo(100))
		if err != nil {
			rt.Fatal(err)
		}
		for n, l := range got {
			own := strings.SplitAfter(texts[l.Subject], "\n")
			want := strings.SplitAfter(strings.Join(text, "\n"), "\n")[n-1]
			if !slices.Contains(own, want) {
				rt.Fatalf("line %d %q is not in %q: %q", n, want, l.Subject, own)
			}
			k, _ := strconv.Atoi(strings.TrimPrefix(l.Subject, "commit "))
			if k > 1 && texts[l.Subject] == texts[fmt.Sprintf("commit %d", k-1)] {
				rt.Fatalf("line %d: %q changed nothing", n, l.Subject)
			}
		}
	})
}

func TestBlame(t *testing.T) {
	dir := initRepo(t)
	write(t, dir, "services/a/base.yaml", "a: 1\nb: 1\nc: 1")
	first := commit(t, dir, "first")
	write(t, dir, "services/a/base.yaml", "a: 1\nb: 2\nc: 1\n") // the last line gets its newline
	second := commit(t, dir, "second: subject\n\nbody")
	link(t, dir, "services/b/base.yaml", "../a/./base.yaml")
	link(t, dir, "services/b/out.yaml", "../../../out.yaml")
	git(t, dir, "mv", "services/a/base.yaml", "services/a/renamed.yaml")
	write(t, dir, "services/a/base.yaml", "a: 1\nb: 2\nc: 1\n")
	third := commit(t, dir, "third")
	r := open(t, dir)
	ctx := context.Background()
	got, err := r.Blame(ctx, "HEAD", "services/b/base.yaml", []int{3, 1, 2, 2, 0, -1, 4, 99})
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(map[int]string{1: first, 2: second, 3: second}, commitsOf(got)); d != "" {
		t.Error(d)
	}
	l := got[2]
	if l.Subject != "second: subject" || l.Author.Name != "Ana" || l.Author.Email != "ana@example.com" || l.Author.At.Year() != 2026 || l.Local {
		t.Errorf("%+v", l)
	}
	if got, err := r.Blame(ctx, "HEAD", "services/a/renamed.yaml", []int{1}); err != nil || got[1].Commit != third {
		t.Errorf("renames are not followed: %v, %v", got, err)
	}
	if got, err := r.Blame(ctx, "HEAD", "services/a/base.yaml", nil); err != nil || len(got) != 0 {
		t.Errorf("%v, %v", got, err)
	}
	for _, name := range []string{"none", "services", "services/a/base.yaml/x", "services/b/out.yaml"} {
		_, err := r.Blame(ctx, "HEAD", name, []int{1})
		refused(t, err, fs.ErrNotExist, name, dir)
	}
	for _, name := range []string{"", ".", "/etc/passwd", "../x"} {
		_, err := r.Blame(ctx, "HEAD", name, []int{1})
		refused(t, err, fs.ErrInvalid)
	}
	_, err = r.Blame(ctx, "nope", "services/a/base.yaml", []int{1})
	refused(t, err, source.ErrNoRev, "nope")

	t.Run("changed since", func(t *testing.T) {
		text := []byte("new: 0\na: 1\nb: 3\nc: 1\n")
		got, err := r.BlameText(ctx, "HEAD", "services/a/base.yaml", text, upTo(9))
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(map[int]string{1: "", 2: first, 3: "", 4: second}, commitsOf(got)); d != "" {
			t.Error(d)
		}
		if !got[1].Local || got[2].Local || !got[3].Local {
			t.Errorf("%+v", got)
		}
		got, err = r.BlameText(ctx, "HEAD", "services/new.yaml", text, []int{1, 4, 5})
		if d := cmp.Diff(map[int]source.Line{1: {Local: true}, 4: {Local: true}}, got); err != nil || d != "" {
			t.Errorf("new file: %v %s", err, d)
		}
		got, err = r.BlameText(ctx, "HEAD", "services/a/base.yaml", nil, []int{1})
		if err != nil || len(got) != 0 {
			t.Errorf("emptied file: %v, %v", got, err)
		}
	})
	t.Run("no time", func(t *testing.T) {
		ended, cancel := context.WithCancel(ctx)
		cancel()
		got, err := r.Blame(ended, "HEAD", "services/a/base.yaml", []int{1, 2})
		if d := cmp.Diff(map[int]source.Line{1: {}, 2: {}}, got); err != nil || d != "" {
			t.Errorf("%v %s", err, d)
		}
		got, err = r.BlameText(ended, "HEAD", "services/a/base.yaml", []byte("x\ny\n"), []int{1})
		if err != nil || len(got) != 1 || got[1].Commit != "" {
			t.Errorf("%v %v", err, got)
		}
	})
}

// TestBlameShallow has the oldest commit of a shallow clone prove nothing.
func TestBlameShallow(t *testing.T) {
	origin := initRepo(t)
	write(t, origin, "f", "a\nb\n")
	commit(t, origin, "one")
	write(t, origin, "f", "a\nb\nc\n")
	commit(t, origin, "two")
	write(t, origin, "f", "a\nB\nc\n")
	third := commit(t, origin, "three")
	dir := filepath.Join(t.TempDir(), "clone")
	git(t, ".", "clone", "-q", "--depth", "2", "file://"+origin, dir)
	got, err := open(t, dir).Blame(context.Background(), "HEAD", "f", upTo(3))
	if d := cmp.Diff(map[int]string{1: "", 2: third, 3: ""}, commitsOf(got)); err != nil || d != "" {
		t.Errorf("%v %s", err, d)
	}
	partial := filepath.Join(t.TempDir(), "partial")
	git(t, origin, "config", "uploadpack.allowFilter", "true")
	git(t, ".", "clone", "-q", "--filter=blob:none", "file://"+origin, partial)
	got, err = open(t, partial).Blame(context.Background(), "HEAD", "f", upTo(3))
	if d := cmp.Diff(map[int]string{1: "", 2: "", 3: ""}, commitsOf(got)); err != nil || d != "" {
		t.Errorf("blobs of the past are not here: %v %s", err, d)
	}
}
