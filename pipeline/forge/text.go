package forge

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// Limits of what GitHub takes, in characters. They are kept in bytes, of which there are never fewer: whatever a server counts, nothing is refused.
const (
	MaxOutput      = 65_535  // a check's summary and its text: https://docs.github.com/en/rest/checks/runs#create-a-check-run
	MaxComment     = 65_536  // https://docs.github.com/en/rest/issues/comments
	maxDescription = 140     // of a status: https://docs.github.com/en/rest/commits/statuses and …/deployments/statuses
	maxTitle       = 255     // of an annotation
	maxMessage     = 8 << 10 // of an annotation; GitHub takes 64 KB, but fifty of those at once are no text for people
	maxSummary     = 1000 << 10
	maxSaid        = 300 // of what a server says, in an error of ours
)

// Fit cuts markdown to at most max bytes: at the end of a line, with code blocks and folded sections closed, and a note of how much is left out. What matters is to stand
// first.
func Fit(text string, max int) string {
	if len(text) <= max {
		return text
	}
	lines := strings.SplitAfter(text, "\n")
	var b strings.Builder
	var at block
	for i, line := range lines {
		next := at
		next.line(line)
		end := next.end() + leftOut(len(lines)-i-1)
		if i < len(lines)-1 && b.Len()+len(line)+len(end) > max || i == len(lines)-1 && b.Len()+len(line) > max {
			end = at.end() + leftOut(len(lines)-i)
			out := b.String()
			if room := max - len(out) - len(end) - 1; i == 0 && room > 0 {
				out = cutBytes(line, room) + "\n" // one line that is too long by itself
			} else if out != "" && !strings.HasSuffix(out, "\n") {
				out += "\n"
			}
			return cutBytes(out, max-len(end)) + end
		}
		b.WriteString(line)
		at = next
	}
	return b.String()
}

func leftOut(n int) string {
	if n == 1 {
		return "\n1 line left out.\n"
	}
	return fmt.Sprintf("\n%d lines left out.\n", n)
}

// block is what is open at a line of markdown.
type block struct {
	fence  string // of the code block
	folded int    // <details>
}

func (k *block) line(line string) {
	text := strings.TrimRight(line, "\r\n")
	indent := len(text) - len(strings.TrimLeft(text, " "))
	text = text[indent:]
	run := len(text) - len(strings.TrimLeft(text, "`"))
	if strings.HasPrefix(text, "~") {
		run = len(text) - len(strings.TrimLeft(text, "~"))
	}
	switch {
	case k.fence != "":
		if indent < 4 && run >= len(k.fence) && text[0] == k.fence[0] && strings.TrimSpace(text[run:]) == "" {
			k.fence = ""
		}
	case indent < 4 && run >= 3 && (text[0] == '~' || !strings.Contains(text[run:], "`")):
		k.fence = text[:run]
	default:
		k.folded = max(0, k.folded+strings.Count(text, "<details>")-strings.Count(text, "</details>"))
	}
}

func (k block) end() string {
	s := ""
	if k.fence != "" {
		s = k.fence + "\n"
	}
	return s + strings.Repeat("\n</details>\n", k.folded)
}

// cutBytes keeps at most n bytes, and no half of a character.
func cutBytes(s string, n int) string {
	if len(s) <= n {
		return s
	}
	n = max(0, n)
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}

// oneLine is text as one line without control characters: messages of servers, subjects of commits.
func oneLine(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r < 0x20 || r >= 0x7f && r < 0xa0 || r == 0x2028 || r == 0x2029 || r >= 0x202a && r <= 0x202e || r >= 0x2066 && r <= 0x2069:
			return ' '
		}
		return r
	}, strings.Join(strings.Fields(strings.ToValidUTF8(s, "?")), " "))
}

// describe is one line of at most 140 characters.
func describe(s string) string {
	s = oneLine(s)
	if r := []rune(s); len(r) > maxDescription {
		return string(r[:maxDescription-1]) + "…"
	}
	return s
}
