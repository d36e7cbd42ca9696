package eval

import (
	"slices"

	"cuelang.org/go/cue"
	"cuelang.org/go/cue/ast"
	"cuelang.org/go/cue/build"

	"github.com/muster-config/muster/cue/eval/layer"
)

// What is cheaper than to fill in the whole package again, and says the same of good data. What is not good is always looked at the long way, so that
// there is one way only in which messages come about.

// quick unifies data with the schema alone, without the rest of the package; nil where that may come to something else, or where more than the value
// is asked for. (To build one expression, `values & {…}` in the package's scope, would be cheaper still; but then CUE lets unknown fields pass.)
func (r *serviceRun) quick(schema cue.Value) func(*layer.Node) cue.Value {
	if r.long || !r.separable || r.req.LeavesToo || r.hide.marks {
		return nil
	}
	return func(n *layer.Node) cue.Value { return schema.Unify(r.ctx.BuildExpr(n.AST())) }
}

// separable reports whether nothing that the schema could refer to depends on `values`: outside of `files` and `confirm`, which nothing else may use,
// no reference leads to it.
func separable(inst *build.Instance) bool {
	ends := []string{"files", "confirm"}
	for _, f := range inst.Files {
		for _, d := range f.Decls {
			if field, ok := d.(*ast.Field); ok {
				label, plain := field.Label.(*ast.Ident)
				if !plain || field.Alias != nil {
					return false // another name for something
				}
				if slices.Contains(ends, label.Name) {
					continue
				}
				if mentionsAny(field.Value, "values", "files", "confirm", "self", "__self") {
					return false
				}
				continue
			}
			if _, isImport := d.(*ast.ImportDecl); !isImport && mentionsAny(d, "values", "files", "confirm", "self", "__self") {
				return false
			}
		}
	}
	return true
}

// mentionsAny reports whether an identifier of one of these names stands anywhere in n, a label included.
func mentionsAny(n ast.Node, names ...string) bool {
	found := false
	ast.Walk(n, func(n ast.Node) bool {
		if id, ok := n.(*ast.Ident); ok && slices.Contains(names, id.Name) {
			found = true
		}
		return !found
	}, nil)
	return found
}

// visible are the values of a merged tree, by where they were read.
func visible(merged *layer.Node) map[*layer.Node]bool {
	out := map[*layer.Node]bool{}
	values(merged, func(n *layer.Node) bool {
		out[n] = true
		return true
	})
	return out
}

// values visits the scalars, lists and empty structs of a tree, until f says no.
func values(n *layer.Node, f func(*layer.Node) bool) bool {
	if n.Kind != layer.Struct || len(n.Fields) == 0 {
		return f(n)
	}
	empty := true
	for _, c := range n.Fields {
		if c.Kind == layer.Delete {
			continue
		}
		if empty = false; !values(c, f) {
			return false
		}
	}
	return !empty || f(n) // without what it deletes it is an empty struct
}

// shown reports whether all that a layer gives is visible in one unit that validates: the schema has accepted it there. A node that two paths share may be
// visible at one of them only.
func (r *serviceRun) shown(n *layer.Node) bool {
	return !r.long && !n.Shared && slices.ContainsFunc(r.valid, func(unit map[*layer.Node]bool) bool {
		return values(n, func(v *layer.Node) bool { return unit[v] })
	})
}
