package forge_test

import (
	"errors"
	"strings"
	"testing"
	"unicode"

	"pgregory.net/rapid"

	"github.com/muster-config/muster/pipeline/forge"
)

// heard are the commands that a runner finds in what a step prints: https://github.com/actions/runner/blob/main/src/Runner.Common/ActionCommand.cs
func heard(out string) (lines []string) {
	for _, line := range strings.FieldsFunc(out, func(r rune) bool { return r == '\n' || r == '\r' }) {
		if strings.HasPrefix(strings.TrimLeftFunc(line, unicode.IsSpace), "::") || strings.Contains(line, "##[") {
			lines = append(lines, line)
		}
	}
	return lines
}

// Whatever is written, and in whatever pieces, is no command, and loses nothing.
func TestMute(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		pieces := rapid.SliceOf(rapid.SampledFrom([]string{":", "::", "#", "##", "[", "##[", " ", "\t", "\n", "\r", "a", "\u00a0", "\u0085", "\u2028", "\u3000", "é", "::error file=x::y", "\xff"})).Draw(t, "pieces")
		var b strings.Builder
		w := forge.Mute(&b)
		for _, p := range pieces {
			if n, err := w.Write([]byte(p)); n != len(p) || err != nil {
				t.Fatalf("%d %v", n, err)
			}
		}
		if got := heard(b.String()); len(got) > 0 {
			t.Fatalf("%q is %q: %q", pieces, b.String(), got)
		}
		bare := func(s string) string { return strings.ReplaceAll(s, " ", "") }
		if all := strings.Join(pieces, ""); bare(b.String()) != bare(all) {
			t.Fatalf("%q became %q", all, b.String())
		}
	})
	for in, want := range map[string]string{"::error::x\n": ": :error::x\n", "at [::1]:7070": "at [::1]:7070", "##[group]": "## [group]", "a: b\n\t :: c": "a: b\n\t : : c", "# [x] ## y": "# [x] ## y"} {
		var b strings.Builder
		if forge.Mute(&b).Write([]byte(in)); b.String() != want {
			t.Errorf("%q became %q, want %q", in, b.String(), want)
		}
	}
	if _, err := forge.Mute(closed{}).Write([]byte("x")); err == nil {
		t.Error("what could not be written is not told")
	}
}

type closed struct{}

func (closed) Write([]byte) (int, error) { return 0, errors.New("closed") }

// An annotation of a level that there is not is no command of some other name.
func TestWriteAnnotation(t *testing.T) {
	var b strings.Builder
	if err := forge.WriteAnnotation(&b, forge.Annotation{Level: "set-env name=x", Message: "m"}); err == nil || b.Len() > 0 {
		t.Errorf("%v %q", err, b.String())
	}
	if err := forge.WriteAnnotation(&b, forge.Annotation{Level: forge.LevelError, Path: "a\n::b,c=d.cue", Line: 1, Title: "t\n::x:: y,z", Message: "m\r\n::add-mask::secret%0A"}); err != nil {
		t.Fatal(err)
	}
	if want := "::error file=a%0A%3A%3Ab%2Cc=d.cue,line=1,title=t %3A%3Ax%3A%3A y%2Cz::m%0A::add-mask::secret%250A\n"; b.String() != want {
		t.Errorf("got %q, want %q", b.String(), want)
	}
}
