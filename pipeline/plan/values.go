package plan

import (
	"cmp"
	"slices"
	"strings"

	"github.com/muster-config/muster/cue/eval"
	"github.com/muster-config/muster/cue/eval/layer"
)

// leaves are those of a unit by path.
func leaves(u *eval.Unit) map[string]*eval.Leaf {
	out := map[string]*eval.Leaf{}
	if u != nil {
		for i := range u.Leaves {
			out[layer.PathText(u.Leaves[i].Path)] = &u.Leaves[i]
		}
	}
	return out
}

// value is a leaf if there is a value at it, and not only a layer that removes one.
func value(l *eval.Leaf) *eval.Leaf {
	if l == nil || l.Origin == eval.OriginRemoved {
		return nil
	}
	return l
}

// values compares leaf by leaf: what differs, and edits that a later layer hides.
func (c *comparison) values() {
	all := c.comparedAt()
	var changed places[Value]
	var hidden places[Shadowed]
	for _, p := range c.pairs {
		if p.before == nil || p.after == nil || sameLeaves(p.before.Leaves, p.after.Leaves) {
			continue
		}
		before, after := leaves(p.before), leaves(p.after)
		paths := make([]string, 0, len(after))
		for path := range after {
			paths = append(paths, path)
		}
		for path := range before {
			if after[path] == nil {
				paths = append(paths, path)
			}
		}
		slices.Sort(paths)
		for _, path := range paths {
			was, is := before[path], after[path]
			if v, ok := change(was, is); ok {
				v.Service, v.Path = p.service, path
				key := strings.Join([]string{v.Service, v.Path, string(v.Kind), sum(was), sum(is)}, "\x00")
				changed.add(key, p.place, func() Value { return v }, func(to *Value) {
					to.Set, to.Was, to.Secret = addSet(to.Set, v.Set), addSet(to.Was, v.Was), to.Secret || v.Secret
				})
				continue
			}
			for _, s := range shadowed(was, is) {
				s.Service, s.Path = p.service, path
				key := strings.Join([]string{s.Service, s.Path, string(s.Kind), s.Edit.Layer, s.Edit.At.String(), s.By.Layer, s.By.At.String()}, "\x00")
				hidden.add(key, p.place, func() Shadowed { return s }, nil)
			}
		}
	}
	for _, key := range changed.order {
		g := changed.by[key]
		g.what.In = c.where(g.at, all[g.what.Service])
		if g.what.Secret {
			g.what.Before, g.what.After = "", "" // one cohort may know the field as a secret by its schema, another not
		}
		c.Values = append(c.Values, g.what)
	}
	slices.SortStableFunc(c.Values, func(a, b Value) int {
		return cmp.Or(strings.Compare(a.Service, b.Service), strings.Compare(a.Path, b.Path), slices.Compare(a.In.Cohorts, b.In.Cohorts), slices.Compare(a.In.Hosts, b.In.Hosts))
	})
	for _, key := range hidden.order {
		g := hidden.by[key]
		g.what.In = c.where(g.at, all[g.what.Service])
		c.Shadowed = append(c.Shadowed, g.what)
	}
	slices.SortStableFunc(c.Shadowed, func(a, b Shadowed) int {
		return cmp.Or(strings.Compare(a.Service, b.Service), strings.Compare(a.Path, b.Path), slices.Compare(a.In.Cohorts, b.In.Cohorts))
	})
}

// sameLeaves reports whether all layers say the same, wherever they say it: most units of a large repo.
func sameLeaves(a, b []eval.Leaf) bool {
	says := func(x, y eval.Setting) bool { return x.Layer == y.Layer && x.Sum == y.Sum }
	return slices.EqualFunc(a, b, func(x, y eval.Leaf) bool {
		return x.Origin == y.Origin && says(x.Setting, y.Setting) && slices.Equal(x.Path, y.Path) && slices.EqualFunc(x.Shadows, y.Shadows, says)
	})
}

func sum(l *eval.Leaf) string {
	if l = value(l); l == nil {
		return ""
	}
	return l.Sum
}

// change compares one path; ok is false when the value is the same, or none on both sides.
func change(was, is *eval.Leaf) (v Value, ok bool) {
	before, after := value(was), value(is)
	switch {
	case before == nil && after == nil:
		return v, false
	case before == nil:
		v.Kind = Added
	case after == nil:
		v.Kind = Removed
	case before.Sum == after.Sum:
		return v, false
	default:
		v.Kind = Changed
	}
	v.Set, v.Was = setsOf(is), setsOf(was)
	v.Secret = before != nil && before.Secret || after != nil && after.Secret
	if !v.Secret {
		if before != nil {
			v.Before = before.Value
		}
		if after != nil {
			v.After = after.Value
		}
	}
	return v, true
}

func setsOf(l *eval.Leaf) []Set {
	if l == nil {
		return []Set{}
	}
	return []Set{{Origin: l.Origin, Layer: l.Layer, At: l.At}}
}

func addSet(sets, more []Set) []Set {
	for _, s := range more {
		if !slices.Contains(sets, s) {
			sets = append(sets, s)
		}
	}
	slices.SortFunc(sets, func(a, b Set) int {
		return cmp.Or(strings.Compare(a.Layer, b.Layer), strings.Compare(a.At.File, b.At.File), cmp.Compare(a.At.Line, b.At.Line), cmp.Compare(a.At.Col, b.At.Col), strings.Compare(string(a.Origin), string(b.Origin)))
	})
	return sets
}

// shadowed finds the edits below what decides a value, while that stays as it is.
func shadowed(was, is *eval.Leaf) []Shadowed {
	if is == nil || is.Layer == "" {
		return nil // nothing decides here, or it is the package, which sees what lies below
	}
	before, after := below(was), below(is)
	by := Set{Origin: is.Origin, Layer: is.Layer, At: is.At}
	var out []Shadowed
	for _, s := range after {
		old, ok := find(before, s.Layer)
		if !ok && was != nil && was.Layer == s.Layer && was.Origin != eval.OriginRemoved && was.Sum == s.Sum {
			continue // not an edit: a new layer covers it with the same value
		}
		edit := Set{Origin: eval.OriginLayer, Layer: s.Layer, At: s.At}
		switch {
		case !ok:
			out = append(out, Shadowed{Kind: Added, Edit: edit, By: by})
		case old.Sum != s.Sum:
			out = append(out, Shadowed{Kind: Changed, Edit: edit, By: by})
		}
	}
	for _, s := range before {
		if _, ok := find(after, s.Layer); !ok && s.Layer != is.Layer {
			out = append(out, Shadowed{Kind: Removed, Edit: Set{Origin: eval.OriginLayer, Layer: s.Layer, At: s.At}, By: by})
		}
	}
	return out
}

func below(l *eval.Leaf) []eval.Setting {
	if l == nil {
		return nil
	}
	return l.Shadows
}

func find(settings []eval.Setting, layer string) (eval.Setting, bool) {
	for _, s := range settings {
		if s.Layer == layer {
			return s, true
		}
	}
	return eval.Setting{}, false
}

// unrendered finds services whose source changed although nothing that is rendered did, and files of no service if nothing changes at all.
func (c *comparison) unrendered() {
	moved := map[string][]string{} // service → files of it that differ
	before, after := c.base.sources(), c.head.sources()
	note := func(path string) {
		service := ""
		if rest, ok := strings.CutPrefix(path, "services/"); ok {
			service, _, _ = strings.Cut(rest, "/")
		}
		moved[service] = append(moved[service], path)
	}
	for path, data := range after {
		if old, ok := before[path]; !ok || string(old) != string(data) {
			note(path)
		}
	}
	for path := range before {
		if _, ok := after[path]; !ok {
			note(path)
		}
	}
	rendered := map[string]bool{}
	for _, p := range c.pairs {
		if p.differs() {
			rendered[p.service] = true
		}
	}
	for _, co := range c.Cohorts {
		if co.State != StateAdded && co.State != StateRemoved && co.State != StateBlocked && co.State != StateUnknown {
			continue
		}
		// Nothing is known of what its services would do.
		for _, x := range []*sideIndex{c.base, c.head} {
			for _, s := range x.Policy.Cohorts[co.Name].Services {
				rendered[s] = true
			}
		}
	}
	for service, files := range moved {
		slices.Sort(files)
		if service == "" && (len(rendered) > 0 || len(c.Policy) > 0) || rendered[service] {
			continue
		}
		c.Unrendered = append(c.Unrendered, Unrendered{service, files})
	}
	slices.SortFunc(c.Unrendered, func(a, b Unrendered) int { return strings.Compare(a.Service, b.Service) })
}
