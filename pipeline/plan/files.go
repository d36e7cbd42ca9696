package plan

import (
	"cmp"
	"fmt"
	"path"
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
	var groups places[File]
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
				if string(was.Data) != string(is.Data) && (!told || !isData(name)) {
					if hide == nil {
						hide = newMask(p.before, p.after)
					}
					f.Diff = Diff(was.Data, is.Data, hide.line)
				}
			}
			groups.add(strings.Join([]string{f.Service, f.Name, string(f.Kind), f.Mode, f.Diff}, "\x00"), p.place, func() File { return f }, nil)
		}
	}
	for _, key := range groups.order {
		g := groups.by[key]
		g.what.In = c.where(g.at, all[g.what.Service])
		c.Files = append(c.Files, g.what)
	}
	slices.SortFunc(c.Files, func(a, b File) int {
		return cmp.Or(strings.Compare(a.Service, b.Service), strings.Compare(a.Name, b.Name), slices.Compare(a.In.Cohorts, b.In.Cohorts), slices.Compare(a.In.Hosts, b.In.Hosts))
	})
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

// isData reports whether a file holds values and nothing else: what differs in it is told by the values.
func isData(name string) bool {
	switch path.Ext(name) {
	case ".json", ".yaml", ".yml", ".toml", ".env":
		return true
	}
	return false
}
