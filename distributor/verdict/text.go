package verdict

import (
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/report"
)

// maxWhy bounds a sentence, in bytes.
const maxWhy = 600

// clean makes text of hosts fit for one line: no control characters, no runs of space, no text that runs backwards.
func clean(s string) string {
	if len(s) <= maxWhy && tidy(s) {
		return s
	}
	s = strings.Map(func(r rune) rune {
		switch {
		case unicode.IsControl(r), r == '\u2028', r == '\u2029':
			return ' '
		case unicode.Is(unicode.Bidi_Control, r), r == unicode.ReplacementChar:
			return '?'
		}
		return r
	}, s)
	s = strings.Join(strings.Fields(s), " ")
	if len(s) <= maxWhy {
		return s
	}
	n := maxWhy - len("…")
	for n > 0 && s[n]&0xc0 == 0x80 {
		n--
	}
	return s[:n] + "…"
}

// tidy says whether a text is plain ASCII in one line, with single spaces between its words: most are.
func tidy(s string) bool {
	space := true // also at both ends
	for i := range len(s) {
		c := s[i]
		if c < ' ' || c >= 0x7f || c == ' ' && space {
			return false
		}
		space = c == ' '
	}
	return !space || s == ""
}

// rough is a duration without digits that nobody needs.
func rough(d time.Duration) string {
	switch {
	case d < 0:
		return "0s"
	case d < time.Second:
		return d.Round(time.Millisecond).String()
	case d < 10*time.Second:
		return d.Round(100 * time.Millisecond).String()
	}
	return d.Round(time.Second).String()
}

func skewText(d time.Duration) string {
	switch {
	case d > time.Minute:
		return fmt.Sprintf(" (%s ahead)", rough(d))
	case d < -time.Minute:
		return fmt.Sprintf(" (%s behind)", rough(-d))
	}
	return ""
}

func until(t *time.Time) string {
	if t == nil {
		return ""
	}
	return " until " + t.UTC().Format(time.RFC3339)
}

func because(why string) string {
	if why == "" {
		return ""
	}
	return " (" + why + ")"
}

func colon(why string) string {
	if why == "" {
		return ""
	}
	return ": " + why
}

func orUnsaid(s string) string {
	if s == "" {
		return "no reason given"
	}
	return s
}

func tries(r *report.Report) string {
	if r.Tries < 2 {
		return ""
	}
	return fmt.Sprintf(" after %d tries", r.Tries)
}

func gradeText(g manifest.Grade) string {
	if g == "" {
		return ""
	}
	return ", known by " + string(g)
}

// some joins the first few of a list that has n entries.
func some(list []string, n int) string {
	const most = 3
	if n <= most && len(list) <= most {
		return strings.Join(list, "; ")
	}
	shown := list[:min(most, len(list))]
	return fmt.Sprintf("%s and %d more", strings.Join(shown, "; "), max(n, len(list))-len(shown))
}

// plural is "1 file was", "3 files were".
func plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun + " was"
	}
	return number(n) + " " + noun + "s were"
}

// count is "1 host", "1,200 hosts".
func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return number(n) + " " + noun + "s"
}

// number has commas between the thousands.
func number(n int) string {
	s := strconv.Itoa(n)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
