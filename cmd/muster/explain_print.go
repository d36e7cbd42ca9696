package main

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"slices"
	"time"

	"github.com/muster-config/muster/cmd/internal/cli"
	"github.com/muster-config/muster/cue/eval"
	"github.com/muster-config/muster/pipeline/source"
)

// history finds who wrote lines.
type history struct {
	repo *source.Repo
	tree source.Tree
}

// fill asks for each file once, within historyTime for all. What history does not tell stays open.
func (h history) fill(ctx context.Context, x *explanation) {
	ctx, cancel := context.WithTimeout(ctx, historyTime)
	defer cancel()
	at := map[string][]*setting{}
	add := func(s *setting) {
		if s.At.File != "" && s.At.Line > 0 {
			at[s.At.File] = append(at[s.At.File], s)
		}
	}
	for i := range x.Values {
		add(&x.Values[i].setting)
		for j := range x.Values[i].Shadows {
			add(&x.Values[i].Shadows[j])
		}
	}
	for _, file := range slices.Sorted(maps.Keys(at)) {
		var numbers []int
		of := h.ofFile(file, at[file])
		for _, n := range of {
			numbers = append(numbers, n...)
		}
		slices.Sort(numbers)
		lines := h.lines(ctx, file, slices.Compact(numbers))
		for s, n := range of {
			if l, ok := latest(lines, n); ok {
				s.Change = changeOf(l)
			}
		}
	}
}

// lines asks history about a commit's file; of one on disk, lines that HEAD does not have are not committed.
func (h history) lines(ctx context.Context, file string, numbers []int) map[int]source.Line {
	id := h.tree.Identity()
	var lines map[int]source.Line
	var err error
	switch {
	case !id.WorkTree:
		lines, err = h.repo.Blame(ctx, id.Commit, file, numbers)
	case id.Commit == "": // nothing is committed yet
		lines = map[int]source.Line{}
		for _, n := range numbers {
			lines[n] = source.Line{Local: true}
		}
	default:
		var text []byte
		if text, err = readTree(h.tree, file); err == nil {
			lines, err = h.repo.BlameText(ctx, id.Commit, file, text, numbers)
		}
	}
	if err != nil {
		return nil // the value is explained all the same
	}
	return lines
}

func changeOf(l source.Line) *change {
	switch {
	case l.Local:
		return &change{}
	case l.Commit == "":
		return nil
	}
	return &change{Committed: true, Commit: l.Commit, Author: l.Author.Name, Email: l.Author.Email, Date: l.Author.At.UTC().Format(time.RFC3339), Subject: l.Subject}
}

func readTree(t source.Tree, file string) ([]byte, error) { return fs.ReadFile(t.FS(), file) }

// print writes one value in full, and more of them as a table.
func (x explanation) print(w io.Writer) {
	if len(x.Values) == 1 {
		x.Values[0].print(w)
		return
	}
	rows := [][]string{{"PATH", "VALUE", "LAYER", "PLACE", "CHANGED BY"}}
	for _, v := range x.Values {
		rows = append(rows, []string{v.Path, short(v.value(), 60), v.layer(), v.At.String(), v.Change.brief()})
		for _, s := range v.Shadows {
			rows = append(rows, []string{"  shadows", short(s.value(), 60), s.Layer, s.At.String(), s.Change.brief()})
		}
	}
	cli.PrintTable(w, rows)
}

func (x explained) print(w io.Writer) {
	line := func(format string, args ...any) { fmt.Fprintln(w, cli.Printable(fmt.Sprintf(format, args...))) }
	line("%s = %s", x.Path, x.value())
	who := func(c *change) {
		if text := c.full(); text != "" {
			line("    %s", text)
		}
	}
	line("  %s %s", x.how(), where(x.setting))
	who(x.Change)
	for _, s := range x.Shadows {
		line("  shadows %s from %s", s.value(), where(s))
		who(s.Change)
	}
}

// how says what gave the value.
func (x explained) how() string {
	switch x.Origin {
	case eval.OriginComputed:
		return "computed by the package, at"
	case eval.OriginDefault:
		return "the schema's default, at"
	case eval.OriginRemoved:
		return "removed by"
	}
	return "set by"
}

// layer is the column of the table.
func (x explained) layer() string {
	switch x.Origin {
	case eval.OriginComputed, eval.OriginDefault:
		return "(" + string(x.Origin) + ")"
	}
	return x.setting.Layer
}

func (x explained) value() string {
	if x.Origin == eval.OriginRemoved {
		return "(removed)"
	}
	return x.setting.value()
}

func (s setting) value() string {
	if s.Secret {
		return "(secret)"
	}
	return string(s.Value)
}

// where is the layer and its place, as far as they are known.
func where(s setting) string {
	at := s.At.String()
	switch {
	case s.Layer == "" && at == "":
		return "a place that is not known"
	case s.Layer == "":
		return at
	case at == "":
		return s.Layer
	}
	return s.Layer + ", " + at
}

func (c *change) brief() string {
	switch {
	case c == nil:
		return ""
	case !c.Committed:
		return "not committed"
	}
	return fmt.Sprintf("%s %s %s", cli.Short(c.Commit), c.Date, c.Author)
}

func (c *change) full() string {
	switch {
	case c == nil:
		return ""
	case !c.Committed:
		return "not committed"
	}
	return fmt.Sprintf("%s %s %s <%s>: %s", cli.Short(c.Commit), c.Date, c.Author, c.Email, c.Subject)
}

// short cuts a long value for a table; explained alone, or as JSON, it is whole.
func short(s string, n int) string {
	if r := []rune(s); len(r) > n {
		return string(r[:n-1]) + "…"
	}
	return s
}
