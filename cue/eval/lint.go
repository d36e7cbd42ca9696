package eval

import (
	"fmt"
	"reflect"
	"slices"
	"strconv"

	"cuelang.org/go/cue"
	"cuelang.org/go/cue/ast"
	"cuelang.org/go/cue/token"

	"github.com/muster-config/muster/cue/eval/layer"
)

// lints looks over the layers of all targets, once each has been merged.
type lints struct {
	service string
	stacks  map[string]*stack // by target
	cohort  map[string]string // of a target
	order   []string
}

func (l *lints) add(t target, s *stack) {
	if l.stacks == nil {
		l.stacks, l.cohort = map[string]*stack{}, map[string]string{}
	}
	l.stacks[t.name()], l.cohort[t.name()] = s, t.cohort
	l.order = append(l.order, t.name())
}

// idle finds what a layer says in vain: what is the same below it, wherever the layer is used.
func (l *lints) idle() []Problem {
	type use struct {
		problem Problem
		counts  bool // somewhere it changes something
	}
	type key struct { // one leaf of one layer; what CUE gives is the same leaf for all cohorts if it is written at the same place
		layer, path string
		pos         token.Pos
	}
	uses := map[key]*use{}
	var order []key
	for _, name := range l.order {
		for i, s := range l.stacks[name].layers {
			if i == 0 && s.name == "base" {
				continue
			}
			leaves(s.node, func(path []string, n *layer.Node) {
				k := key{s.name, pathKey(path), n.Pos}
				u := uses[k]
				if u == nil {
					u = &use{problem: Problem{
						Severity: SeverityNotice, Service: l.service, Path: layer.PathText(path), Message: "the same as below it, so it has no effect",
					}}
					uses[k] = u
					order = append(order, k)
				}
				below := covering(s.below, path)
				switch {
				case u.counts:
				case n.Kind == layer.Delete:
					u.problem.Message = "removes what no layer below it gives, so it has no effect"
					u.counts = below != nil && below.Kind != layer.Delete
				case below == nil || s.below.At(path) != below || below.Kind == layer.Delete:
					u.counts = true
				case n.Kind == layer.Struct:
					u.counts = below.Kind != layer.Struct
				default:
					u.counts = n.Kind != below.Kind || !reflect.DeepEqual(n.Plain(), below.Plain())
				}
				if !u.counts && len(u.problem.SetAt) < 3 {
					u.problem.SetAt = distinct(append(u.problem.SetAt, positions(n.Pos)...))
					if below != nil {
						u.problem.SetAt = distinct(append(u.problem.SetAt, positions(below.Pos)...))
					}
				}
			})
		}
	}
	var out []Problem
	for _, k := range order {
		if u := uses[k]; !u.counts {
			out = append(out, u.problem)
		}
	}
	return out
}

// unlike finds what a layer sets and base does not have, or has of another kind: where there is no schema, nothing else sees a typo.
func (l *lints) unlike() []Problem {
	var out []Problem
	tell := func(path []string, msg string, at ...token.Pos) {
		out = append(out, Problem{Severity: SeverityNotice, Service: l.service, Path: layer.PathText(path), Message: msg, SetAt: positions(at...)})
	}
	var compare func(path []string, over, base *layer.Node)
	compare = func(path []string, over, base *layer.Node) {
		if len(base.Fields) == 0 {
			return // there to be filled
		}
		for _, k := range over.Keys() {
			p, f, b := append(path[:len(path):len(path)], k), over.Fields[k], base.Fields[k]
			switch {
			case f.Kind == layer.Delete:
			case b == nil:
				msg := "not in base, and no schema checks it"
				if near := nearest(k, base.Keys()); near != "" {
					msg += fmt.Sprintf(" (did you mean %q?)", near)
				}
				tell(p, msg, f.KeyPos)
			case f.Kind == layer.Struct && b.Kind == layer.Struct:
				compare(p, f, b)
			case !alike(f, b):
				tell(p, fmt.Sprintf("%s, and base has %s: no schema checks it", f.What(), b.What()), f.Pos, b.Pos)
			}
		}
	}
	seen := map[*layer.Node]bool{} // of a file there is one
	for _, name := range l.order {
		layers := l.stacks[name].layers
		if len(layers) == 0 || layers[0].name != "base" {
			continue
		}
		for _, over := range layers[1:] {
			if !seen[over.node] {
				seen[over.node] = true
				compare(nil, over.node, layers[0].node)
			}
		}
	}
	return out
}

// alike reports whether two values are of one kind; null may stand for any, and a number is a number.
func alike(a, b *layer.Node) bool {
	kinds := kindOf(a) | kindOf(b)
	return kinds&cue.NullKind != 0 || kindOf(a) == kindOf(b) || kinds == cue.NumberKind
}

// frozen finds values that base computes from others of its own, where an overlay changes those: the value stays base's.
func (l *lints) frozen(base cue.Value) []Problem {
	deps := dependencies(base)
	var out []Problem
	for _, name := range l.order {
		s := l.stacks[name]
		if len(s.layers) == 0 || s.layers[0].name != "base" {
			continue
		}
		bottom := s.layers[0].node
		for _, d := range deps {
			own := bottom.At(d.path)
			if own == nil || s.merged.At(d.path) == nil || s.merged.At(d.path).Pos != own.Pos {
				continue // an overlay gives it anew
			}
			for _, from := range d.from {
				was, is := bottom.At(from), s.merged.At(from)
				if was == nil || is != nil && reflect.DeepEqual(was.Plain(), is.Plain()) {
					continue
				}
				over := s.says(from)[0]
				out = append(out, Problem{
					Severity: SeverityWarning, Service: l.service, Cohorts: []string{l.cohort[name]}, Path: layer.PathText(d.path),
					Message: fmt.Sprintf("computed in base from %s, which %s changes: it keeps base's value (compute it in #Config, where it follows)", layer.PathText(from), over.name),
					SetAt:   distinct(slices.Concat(positions(own.Pos), positions(over.node.Pos))),
				})
			}
		}
	}
	return out
}

// dependency is a value of base that is computed from others of base.
type dependency struct {
	path []string
	from [][]string
}

// dependencies are those of a base in CUE, in order of their paths, through one another too.
func dependencies(base cue.Value) []dependency {
	direct := map[string][][]string{}
	var order []dependency
	var visit func(path []string, v cue.Value)
	visit = func(path []string, v cue.Value) {
		switch v.IncompleteKind() {
		case cue.StructKind:
			it, err := v.Fields()
			for err == nil && it.Next() {
				visit(slices.Concat(path, []string{it.Selector().Unquoted()}), it.Value())
			}
			return
		case cue.ListKind:
			from := references(v, 0)
			it, err := v.List()
			for err == nil && it.Next() {
				from = append(from, references(it.Value(), 0)...)
			}
			direct[pathKey(path)] = from
		default:
			direct[pathKey(path)] = references(v, 0)
		}
		if len(direct[pathKey(path)]) > 0 {
			order = append(order, dependency{path: path})
		}
	}
	visit(nil, base)
	for i, d := range order {
		seen := map[string]bool{pathKey(d.path): true}
		var follow func(path []string)
		follow = func(path []string) {
			for _, p := range direct[pathKey(path)] {
				if key := pathKey(p); !seen[key] {
					seen[key] = true
					order[i].from = append(order[i].from, p)
					follow(p)
				}
			}
		}
		follow(d.path)
	}
	return order
}

// references are the paths below `base` that an expression refers to.
func references(v cue.Value, depth int) [][]string {
	if _, ref := v.ReferencePath(); len(ref.Selectors()) > 1 && ref.Selectors()[0].String() == "base" {
		var path []string
		for _, s := range ref.Selectors()[1:] {
			if s.LabelType() == cue.IndexLabel {
				path = append(path, strconv.Itoa(s.Index()))
			} else {
				path = append(path, s.Unquoted())
			}
		}
		return [][]string{path}
	}
	op, args := v.Expr()
	if op == cue.NoOp || depth > 16 {
		return nil
	}
	var out [][]string
	for _, a := range args {
		out = append(out, references(a, depth+1)...)
	}
	return out
}

// computesInBase reports whether the syntax of the package's `base` has anything but plain data.
func (r *serviceRun) computesInBase() bool {
	for _, f := range r.inst.Files {
		for _, d := range f.Decls {
			if field, ok := d.(*ast.Field); ok {
				if name, _, _ := ast.LabelName(field.Label); name == "base" && computes(field.Value) {
					return true
				}
			}
		}
	}
	return false
}
