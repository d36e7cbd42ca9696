package eval

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"cuelang.org/go/cue/token"

	"github.com/muster-config/muster/cue/eval/layer"
)

// builtin marks positions in the shipped schema, which is no file of the tree.
const builtin = "muster:"

// positions turns CUE's positions into ours, without the unknown ones and those of the shipped schema, each once.
func positions(at ...token.Pos) []Pos {
	var out []Pos
	for _, p := range at {
		if p.IsValid() {
			out = append(out, position(p.Position())...)
		}
	}
	return distinct(out)
}

func position(p token.Position) []Pos {
	name := strings.TrimPrefix(p.Filename, "/")
	if name == "" || strings.HasPrefix(name, builtin) {
		return nil
	}
	return []Pos{{File: name, Line: p.Line, Col: p.Column}}
}

func distinct(at []Pos) []Pos {
	var out []Pos
	for _, p := range at {
		if !slices.Contains(out, p) {
			out = append(out, p)
		}
	}
	return out
}

// fromLayer turns what a layer reader found into problems.
func fromLayer(service string, errs []*layer.Error) []Problem {
	var out []Problem
	for _, e := range errs {
		p := Problem{Severity: SeverityError, Service: service, Path: layer.PathText(e.Path), Message: e.Msg}
		for _, at := range e.At {
			p.SetAt = append(p.SetAt, position(at)...)
		}
		out = append(out, p)
	}
	return out
}

func comparePos(a, b Pos) int {
	return cmp.Or(strings.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Col, b.Col))
}

func compareProblems(a, b Problem) int {
	return cmp.Or(
		strings.Compare(a.Service, b.Service), strings.Compare(a.Path, b.Path),
		slices.CompareFunc(a.SetAt, b.SetAt, comparePos), slices.CompareFunc(a.SchemaAt, b.SchemaAt, comparePos),
		strings.Compare(string(a.Severity), string(b.Severity)), strings.Compare(a.Message, b.Message), slices.Compare(a.Cohorts, b.Cohorts))
}

// fold makes one problem of those that differ only in their cohorts, and sorts. One that is about no cohort covers the same one of a cohort.
func fold(problems []Problem) []Problem {
	key := func(p Problem) string {
		return fmt.Sprintf("%q %q %q %q %v %v", p.Service, p.Severity, p.Path, p.Message, p.SetAt, p.SchemaAt)
	}
	first := map[string]int{}
	var out []Problem
	for _, p := range problems {
		i, ok := first[key(p)]
		switch {
		case !ok:
			first[key(p)] = len(out)
			out = append(out, p)
		case len(out[i].Cohorts) == 0 || len(p.Cohorts) == 0:
			out[i].Cohorts = nil
		default:
			cohorts := slices.Concat(out[i].Cohorts, p.Cohorts)
			slices.Sort(cohorts)
			out[i].Cohorts = slices.Compact(cohorts)
		}
	}
	slices.SortFunc(out, compareProblems)
	return out
}

// Headline is what is wrong in one line, without where.
func Headline(p Problem) string {
	line := p.Message
	switch {
	case p.Path != "":
		line = p.Path + ": " + line
	case len(p.SetAt) == 0 && p.Service != "":
		line = p.Service + ": " + line
	}
	if p.Severity != SeverityError {
		line = string(p.Severity) + ": " + line
	}
	return printable(line)
}

const (
	maxColumn = 100 // the cohorts stand in one column, unless a headline is so long that they would leave the screen
	maxNamed  = 5   // cohorts that a line names
)

// Format writes problems as people read them: one group of lines each, nothing else.
func Format(problems []Problem) string {
	column := 0
	for _, p := range problems {
		if n := utf8.RuneCountInString(Headline(p)); listed(p) > 0 && n <= maxColumn {
			column = max(column, n)
		}
	}
	var b strings.Builder
	for _, p := range problems {
		line := Headline(p)
		names := strings.Join(p.Cohorts[:min(len(p.Cohorts), maxNamed)], ", ")
		if more := len(p.Cohorts) - maxNamed; more > 0 {
			names += fmt.Sprintf(" and %d more", more)
		}
		switch n := listed(p); {
		case n == 1:
			line = fmt.Sprintf("%-*s  (cohort %s)", column, line, names)
		case n > 1:
			line = fmt.Sprintf("%-*s  (%d cohorts: %s)", column, line, n, names)
		}
		b.WriteString(line + "\n")
		for _, at := range p.SetAt {
			fmt.Fprintf(&b, "    set at    %s\n", printable(at.String()))
		}
		for _, at := range p.SchemaAt {
			fmt.Fprintf(&b, "    schema at %s\n", printable(at.String()))
		}
	}
	return b.String()
}

// listed is how many cohorts are named. An unknown field of an overlay is wrong whoever takes it: where it is set says more.
func listed(p Problem) int {
	if strings.HasPrefix(p.Message, "unknown field") && len(p.SetAt) > 0 && strings.Contains(p.SetAt[0].File, "/overlays/") {
		return 0
	}
	return len(p.Cohorts)
}

// printable replaces what a terminal would obey, or what would turn the direction of the line.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r < 0x20 && r != '\t' || r >= 0x7f && r < 0xa0 || r == '\u2028' || r == '\u2029' || r >= 0x202a && r <= 0x202e || r >= 0x2066 && r <= 0x2069 {
			return '?'
		}
		return r
	}, s)
}

// String is file:line:col, without what is unknown.
func (p Pos) String() string {
	switch {
	case p.Line == 0:
		return p.File
	case p.Col == 0:
		return fmt.Sprintf("%s:%d", p.File, p.Line)
	}
	return fmt.Sprintf("%s:%d:%d", p.File, p.Line, p.Col)
}
