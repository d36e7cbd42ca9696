package plan

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/muster-config/muster/cue/eval"
)

func filesByName(u *eval.Unit) map[string]*eval.File {
	out := map[string]*eval.File{}
	if u != nil {
		for i := range u.Files {
			out[u.Files[i].Name] = &u.Files[i]
		}
	}
	return out
}

// files compares what is rendered, file by file.
func (c *comparison) files() {
	all := c.comparedAt()
	var groups places[hunk]
	for _, p := range c.pairs {
		if !p.differs() {
			continue
		}
		before, after := filesByName(p.before), filesByName(p.after)
		told := valuesDiffer(p)
		var hide *mask // made when a diff is
		for name := range union(before, after) {
			was, is := before[name], after[name]
			f := File{Service: p.service, Name: name}
			switch {
			case was == nil:
				f.Kind = Added
			case is == nil:
				f.Kind = Removed
			case string(was.Data) == string(is.Data) && was.Mode == is.Mode:
				continue
			default:
				f.Kind = Changed
				if was.Mode != is.Mode {
					f.Mode = fmt.Sprintf("%04o → %04o", was.Mode, is.Mode)
				}
				switch {
				case string(was.Data) == string(is.Data) || told && isData(was) && isData(is):
				case was.Secret || is.Secret:
					f.Diff = "(not shown: the service has secrets)\n"
				case secretName.MatchString(name):
					f.Diff = "(not shown: by its name it holds a secret)\n"
				default:
					if hide == nil {
						hide = newMask(p.before, p.after)
					}
					f.Diff = Diff(was.Data, is.Data, hide.line)
				}
			}
			file := strings.Join([]string{f.Service, f.Name, string(f.Kind), f.Mode}, "\x00")
			seen := map[string]int{}
			for _, h := range hunks(f.Diff) {
				edit := h.edit()
				seen[edit]++ // the same edit twice in a file is two
				groups.add(fmt.Sprint(file, "\x00", seen[edit], "\x00", edit), p.place, func() hunk { return hunk{f, file, h} }, func(to *hunk) { to.text = to.text.with(h) })
			}
		}
	}
	// Edits of one file on the same hosts are told together.
	together := map[string]int{}
	for _, key := range groups.order {
		g := groups.by[key]
		f := g.what.File
		f.Diff, f.In = string(g.what.text), c.where(g.at, all[f.Service])
		id := g.what.file + "\x00" + f.In.String() + strings.Join(slices.Concat(f.In.Cohorts, f.In.Hosts, f.In.Except), ",")
		if i, ok := together[id]; ok {
			c.Files[i].Diff += f.Diff
			continue
		}
		together[id] = len(c.Files)
		c.Files = append(c.Files, f)
	}
	slices.SortFunc(c.Files, func(a, b File) int {
		return cmp.Or(strings.Compare(a.Service, b.Service), strings.Compare(a.Name, b.Name), slices.Compare(a.In.Cohorts, b.In.Cohorts), slices.Compare(a.In.Hosts, b.In.Hosts), slices.Compare(a.In.Except, b.In.Except), strings.Compare(a.Mode, b.Mode), strings.Compare(a.Diff, b.Diff))
	})
}

// hunk is one edit of a file, which may be the same where the lines around it are others.
type hunk struct {
	File
	file string // what tells the file and its kind of change
	text hunkText
}

// hunkText is a part of what Diff gives: a line with @@ and those below it, or all of it where there is none.
type hunkText string

func hunks(diff string) []hunkText {
	var out []hunkText
	for line := range strings.Lines(diff) {
		if len(out) == 0 || strings.HasPrefix(line, "@@") {
			out = append(out, "")
		}
		out[len(out)-1] += hunkText(line)
	}
	if out == nil {
		return []hunkText{""} // its values tell it
	}
	return out
}

// edit is the hunk without its place and what is around it.
func (h hunkText) edit() string {
	var b strings.Builder
	for line := range strings.Lines(string(h)) {
		if !strings.HasPrefix(line, "@@") && !strings.HasPrefix(line, " ") {
			b.WriteString(line)
		}
	}
	return b.String()
}

// with is the hunk as it can be shown for another place too: without line numbers, and without the lines around it, where these differ.
func (h hunkText) with(other hunkText) hunkText {
	if h == other {
		return h
	}
	_, body, _ := strings.Cut(string(h), "\n")
	if _, b, _ := strings.Cut(string(other), "\n"); b != body {
		body = h.edit()
	}
	return hunkText("@@\n" + body)
}

func union[A any](a, b map[string]A) map[string]bool {
	out := make(map[string]bool, len(a)+len(b))
	for k := range a {
		out[k] = true
	}
	for k := range b {
		out[k] = true
	}
	return out
}

// valuesDiffer reports whether a value of the unit differs, which then tells what changes in its data files.
func valuesDiffer(p pair) bool {
	before, after := leaves(p.before), leaves(p.after)
	for path := range union(before, after) {
		if sum(before[path]) != sum(after[path]) {
			return true
		}
	}
	return false
}

// isData reports whether a file holds values and nothing else: what differs in it is told by the values. Its name says nothing: a template may write JSON.
func isData(f *eval.File) bool {
	switch f.Format {
	case "json", "yaml", "toml", "env":
		return true
	}
	return false
}
