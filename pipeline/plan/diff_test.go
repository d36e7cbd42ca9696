package plan

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func same(s string) string { return s }

func TestDiff(t *testing.T) {
	numbers := func(n int, except ...string) []byte {
		var b strings.Builder
		for i := 1; i <= n; i++ {
			line := fmt.Sprint(i)
			for _, e := range except {
				if from, to, _ := strings.Cut(e, "="); from == line {
					line = to
				}
			}
			if line != "" {
				b.WriteString(line + "\n")
			}
		}
		return []byte(b.String())
	}
	for name, c := range map[string]struct {
		before, after []byte
		want          string
	}{
		"one line":     {numbers(9), numbers(9, "5=five"), "@@ -3,5 +3,5 @@\n 3\n 4\n-5\n+five\n 6\n 7\n"},
		"at the start": {numbers(4), numbers(4, "1="), "@@ -1,3 +1,2 @@\n-1\n 2\n 3\n"},
		"at the end":   {numbers(4), numbers(5), "@@ -3,2 +3,3 @@\n 3\n 4\n+5\n"},
		"two hunks":    {numbers(20), numbers(20, "2=b", "18="), "@@ -1,4 +1,4 @@\n 1\n-2\n+b\n 3\n 4\n@@ -16,5 +16,4 @@\n 16\n 17\n-18\n 19\n 20\n"},
		"one hunk":     {numbers(20), numbers(20, "2=b", "7="), "@@ -1,9 +1,8 @@\n 1\n-2\n+b\n 3\n 4\n 5\n 6\n-7\n 8\n 9\n"},
		"new":          {nil, []byte("a\n"), "@@ -0,0 +1 @@\n+a\n"},
		"gone":         {[]byte("a\nb"), nil, "@@ -1,2 +0,0 @@\n-a\n-b\n"},
		"last newline": {[]byte("a\n"), []byte("a"), "(only the end of the last line)\n"},
		"binary":       {[]byte("a\x00"), []byte("abc"), "(not text: 2 bytes → 3 bytes)\n"},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(c.want, Diff(c.before, c.after, same)); diff != "" {
				t.Error(diff)
			}
		})
	}
	long := Diff(nil, numbers(500), same)
	if n := strings.Count(long, "\n"); n != diffLines+2 || !strings.HasSuffix(long, "(440 lines more)\n") {
		t.Errorf("%d lines: %s", n, long)
	}
	other := numbers(3000)
	for i := range other {
		if other[i] != '\n' {
			other[i] += 50
		}
	}
	if got := Diff(numbers(3000), other, same); got != "(3,000 lines → 3,000 lines, most of them others)\n" {
		t.Errorf("%s", got)
	}
}

// TestCommonIsLongest: what the diff keeps is in both, in order, and no longer common part exists.
func TestCommonIsLongest(t *testing.T) {
	lines := rapid.SliceOfN(rapid.SampledFrom([]string{"a", "b", "c", "d"}), 0, 14)
	rapid.Check(t, func(t *rapid.T) {
		a, b := lines.Draw(t, "a"), lines.Draw(t, "b")
		keep, ok := common(a, b)
		if !ok {
			t.Fatal("a short edit was refused")
		}
		i, j := -1, -1
		for _, k := range keep {
			if k[0] <= i || k[1] <= j || a[k[0]] != b[k[1]] {
				t.Fatalf("%v of %v and %v", keep, a, b)
			}
			i, j = k[0], k[1]
		}
		longest := make([][]int, len(a)+1)
		for i := range longest {
			longest[i] = make([]int, len(b)+1)
			for j := range longest[i] {
				switch {
				case i == 0 || j == 0:
				case a[i-1] == b[j-1]:
					longest[i][j] = longest[i-1][j-1] + 1
				default:
					longest[i][j] = max(longest[i-1][j], longest[i][j-1])
				}
			}
		}
		if len(keep) != longest[len(a)][len(b)] {
			t.Fatalf("keeps %d of %v and %v, could keep %d", len(keep), a, b, longest[len(a)][len(b)])
		}
	})
}

func FuzzDiff(f *testing.F) {
	f.Add([]byte("a\nb\nc\n"), []byte("a\nc\n"))
	f.Add([]byte(""), []byte("x"))
	f.Add([]byte("a\r\nb"), []byte("a\n\nb\n"))
	f.Add([]byte("-----BEGIN X-----\nMII\n-----END X-----\n"), []byte("@@ -1 +1 @@\n```\n"))
	f.Fuzz(func(t *testing.T, before, after []byte) {
		m := newMask()
		got := Diff(before, after, m.line)
		if (got == "") && string(before) != string(after) {
			t.Errorf("no difference between %q and %q", before, after)
		}
		if n := strings.Count(got, "\n"); n > 2*diffLines+2 {
			t.Errorf("%d lines", n)
		}
		text := fenced(got)
		fence, _, _ := strings.Cut(text, "diff\n")
		if strings.Count(text, fence) != 2 {
			t.Errorf("the fence %q is in its content: %q", fence, text)
		}
	})
}
