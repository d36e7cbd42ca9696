package main

import (
	"bytes"
	"path"
	"slices"
	"strings"

	"github.com/muster-config/muster/cue/eval"
	"github.com/muster-config/muster/pipeline/source"
)

// maxLines is how many lines of one value history is asked about.
const maxLines = 1000

// valueLines are the lines of a file that a value stands on, from the one where it begins: whoever changed one of them made it what it is. Lines without
// anything of it (blank ones, comments) are left out.
func valueLines(text []byte, at eval.Pos) []int {
	lines := strings.Split(string(text), "\n")
	if at.Line < 1 || at.Line > len(lines) {
		return []int{at.Line}
	}
	line := lines[at.Line-1]
	from := max(0, min(at.Col-1, len(line)))
	rest := line[from:]
	flow := strings.HasPrefix(rest, "[") || strings.HasPrefix(rest, "{")
	switch ext := path.Ext(at.File); {
	case ext == ".env":
		return []int{at.Line}
	case ext == ".yaml" && !flow:
		return indented(lines, at.Line, from, rest)
	default:
		comment := "//"
		if ext != ".cue" {
			comment = "#"
		}
		return bracketed(lines, at.Line, from, comment)
	}
}

// indented are the lines of a value in block style: those that follow and are indented deeper than the line of its key, or the items of a list.
func indented(lines []string, first, from int, rest string) []int {
	own, list := len(lines[first-1])-len(strings.TrimLeft(lines[first-1], " ")), rest == "-" || strings.HasPrefix(rest, "- ")
	if list {
		own = from
	}
	literal := strings.HasPrefix(rest, "|") || strings.HasPrefix(rest, ">")
	out := []int{first}
	for n := first; n < len(lines) && len(out) < maxLines; n++ {
		text := strings.TrimSpace(lines[n])
		if text == "" || text[0] == '#' && !literal {
			continue
		}
		depth := len(lines[n]) - len(strings.TrimLeft(lines[n], " "))
		if depth < own || depth == own && !(list && (text == "-" || strings.HasPrefix(text, "- "))) {
			break
		}
		out = append(out, n+1)
	}
	return out
}

// bracketed are the lines up to the end of that on which no bracket and no text is open.
func bracketed(lines []string, first, from int, comment string) []int {
	var out []int
	depth, quote := 0, "" // quote is what ends the text that is open
	for n := first - 1; n < len(lines) && len(out) < maxLines; n++ {
		text := lines[n]
		if n == first-1 {
			text = text[from:]
		}
		if blank := strings.TrimSpace(text); quote != "" || blank != "" && !strings.HasPrefix(blank, comment) {
			out = append(out, n+1)
		}
		for i := 0; i < len(text); i++ {
			switch {
			case quote != "":
				if text[i] == '\\' && quote[0] == '"' {
					i++
				} else if strings.HasPrefix(text[i:], quote) {
					i += len(quote) - 1
					quote = ""
				}
			case strings.HasPrefix(text[i:], comment):
				i = len(text)
			case strings.HasPrefix(text[i:], `"""`), strings.HasPrefix(text[i:], `'''`):
				quote = text[i : i+3]
				i += 2
			case text[i] == '"', text[i] == '\'':
				quote = text[i : i+1]
			case text[i] == '[', text[i] == '{', text[i] == '(':
				depth++
			case text[i] == ']', text[i] == '}', text[i] == ')':
				if depth--; depth < 0 {
					return out
				}
			}
		}
		if len(quote) == 1 {
			quote = "" // it ends on its line
		}
		if depth == 0 && quote == "" {
			break
		}
	}
	return out
}

// latest is the line that was changed last. One that is in no commit is later than all; where one is unknown, so is the answer.
func latest(lines map[int]source.Line, numbers []int) (source.Line, bool) {
	var found []source.Line
	for _, n := range numbers {
		if l, ok := lines[n]; ok {
			found = append(found, l)
		}
	}
	if i := slices.IndexFunc(found, func(l source.Line) bool { return l.Local }); i >= 0 {
		return found[i], true
	}
	if len(found) == 0 || slices.ContainsFunc(found, func(l source.Line) bool { return l.Commit == "" }) {
		return source.Line{}, false
	}
	return slices.MaxFunc(found, func(a, b source.Line) int { return a.Author.At.Compare(b.Author.At) }), true
}

// ofFile gives the lines of each setting's value in the file they are all in.
func (h history) ofFile(file string, settings []*setting) map[*setting][]int {
	text, err := readTree(h.tree, file)
	if err != nil || bytes.IndexByte(text, 0) >= 0 {
		text = nil
	}
	out := map[*setting][]int{}
	for _, s := range settings {
		if out[s] = []int{s.At.Line}; text != nil {
			out[s] = valueLines(text, s.At)
		}
	}
	return out
}
