package forge_test

import (
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"

	"github.com/muster-config/muster/pipeline/forge"
)

// long are texts about the limits: short and long lines, four-byte characters across the cut, code blocks that hold fences.
func long() []string {
	var out []string
	for _, n := range []int{65_520, 65_534, 65_535, 65_536, 65_537, 300_000} {
		out = append(out, strings.Repeat("x", n), strings.Repeat("a line\n", n/7), strings.Repeat("😀", n/4), strings.Repeat("😀", n), "a"+strings.Repeat("😀", n))
	}
	return append(out, "````diff\n"+strings.Repeat("```\nmore\n", 20_000)+"````\n", "<details><summary>s</summary>\n\n"+strings.Repeat("- x\n", 30_000)+"</details>\n")
}

// TestB116Fit: within the limit, at a line, with the fence closed and the number left out.
func TestB116Fit(t *testing.T) {
	for i, text := range long() {
		got := forge.Fit(text, forge.MaxOutput)
		if len(got) > forge.MaxOutput || !utf8.ValidString(got) {
			t.Errorf("text %d: %d bytes, valid %t", i, len(got), utf8.ValidString(got))
		}
		if len(text) <= forge.MaxOutput && got != text {
			t.Errorf("text %d fits and was changed", i)
		}
		if len(text) > forge.MaxOutput && !strings.HasSuffix(got, "left out.\n") {
			t.Errorf("text %d: no word of what is left out: %q", i, got[len(got)-60:])
		}
	}
	got := forge.Fit("top\n````diff\n```\nx\n```\n"+strings.Repeat("+ y\n", 100)+"````\nend\n", 120)
	if want := "top\n````diff\n```\nx\n```\n+ y\n"; !strings.HasPrefix(got, want) || !strings.Contains(got, "\n````\n") || !strings.HasSuffix(got, " lines left out.\n") {
		t.Errorf("%q", got)
	}
	got = forge.Fit("<details>\n"+strings.Repeat("- z\n", 100)+"</details>\n", 100)
	if !strings.Contains(got, "</details>\n") || strings.Count(got, "<details>") != strings.Count(got, "</details>") {
		t.Errorf("%q", got)
	}
}

func TestFitProperties(t *testing.T) {
	parts := rapid.SliceOf(rapid.SampledFrom([]string{"a\n", "```\n", "````go\n", "~~~\n", "~~~~\n", "<details>\n", "</details>\n", "text 😀😀 ", "\n", "    ```\n"}))
	rapid.Check(t, func(t *rapid.T) {
		text := strings.Join(parts.Draw(t, "parts"), "")
		max := rapid.IntRange(80, 400).Draw(t, "max")
		got := forge.Fit(text, max)
		if len(got) > max || !utf8.ValidString(got) {
			t.Fatalf("%d bytes of %d: %q", len(got), max, got)
		}
		if len(text) <= max && got != text {
			t.Fatal("changed what fits")
		}
		if f := openFence(got); f != "" && len(text) > max {
			t.Fatalf("fence %q is open: %q", f, got)
		}
	})
}

// openFence is the code block that is open at the end; CommonMark 4.5.
func openFence(text string) string {
	open := ""
	for line := range strings.Lines(text) {
		l := strings.TrimRight(line, "\n")
		indent := len(l) - len(strings.TrimLeft(l, " "))
		l = l[indent:]
		if indent > 3 || l == "" || l[0] != '`' && l[0] != '~' {
			continue
		}
		run := len(l) - len(strings.TrimLeft(l, l[:1]))
		rest := l[run:]
		switch {
		case open == "" && run >= 3 && (l[0] == '~' || !strings.Contains(rest, "`")):
			open = l[:run]
		case open != "" && l[0] == open[0] && run >= len(open) && strings.TrimSpace(rest) == "":
			open = ""
		}
	}
	return open
}

func ExampleFit() {
	fmt.Print(forge.Fit("verdict\n```\n"+strings.Repeat("0123456789\n", 10)+"```\n", 60))
	// Output:
	// verdict
	// ```
	// 0123456789
	// 0123456789
	// ```
	//
	// 10 lines left out.
}
