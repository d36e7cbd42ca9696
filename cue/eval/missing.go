package eval

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"cuelang.org/go/cue"
	"cuelang.org/go/cue/ast"
	"cuelang.org/go/cue/errors"
	"cuelang.org/go/cue/format"
	"cuelang.org/go/cue/parser"
	"cuelang.org/go/cue/token"

	"github.com/muster-config/muster/cue/eval/layer"
)

// nextStep begins what to do about a value that no layer gives.
const nextStep = "; set it in "

// missing explains a path that has no value: a default that comes to nothing, a layer that took the value away, or nobody who gave one.
func (c *checker) missing(g group, n *layer.Node, s cue.Value) Problem {
	p := Problem{Severity: SeverityError, Service: c.service, Path: c.text(g.path), SchemaAt: positions(s.Pos())}
	if !g.has("required but not present") {
		if msg, at := c.defaults(g.path, s); msg != "" {
			p.Message, p.SchemaAt = msg, at
			return p
		}
	}
	p.Message = "missing: the schema requires " + wanted(s)
	if len(g.path) > 1 {
		if parent := n.At(g.path[:len(g.path)-1]); parent != nil {
			p.SetAt = positions(parent.Pos)
		}
	}
	if c.layers == nil {
		return p
	}
	full := slices.Concat(c.prefix, g.path)
	if by := c.layers.removed(full); by != nil {
		where := "overlay " + by.name
		if at := positions(by.node.Pos); len(at) > 0 {
			where, p.SetAt = at[0].String(), at
		}
		p.Message += "; removed by " + where
		return p
	}
	for i := range full {
		if above := c.layers.merged.At(full[:i]); above != nil && above.Kind == layer.List {
			return p // it belongs where the list is, which is told
		}
	}
	if c.home != nil {
		p.Message += nextStep + c.home() + ", or in an overlay of those cohorts"
	}
	return p
}

// removed is the layer that deletes what lower ones give at path; nil if none does.
func (s *stack) removed(path []string) *stacked {
	says := s.says(path)
	if len(says) < 2 || says[0].node.Kind != layer.Delete || says[1].node.Kind == layer.Delete {
		return nil
	}
	return &says[0]
}

// home is the file where a value goes that holds for all cohorts.
func (r *serviceRun) home() string {
	if r.base != nil {
		return r.base.path
	}
	for _, at := range positions(r.pkg.LookupPath(basePath).Pos()) {
		return at.File
	}
	return r.dir + "/base.yaml"
}

// defaults says why the defaults that the schema writes for a path give it no value: CUE leaves out one that fails without a word.
func (c *checker) defaults(path []string, s cue.Value) (string, []Pos) {
	if len(path) == 0 {
		return "", nil
	}
	var marks []ast.Expr
	for _, f := range fieldsOf(s, 0) {
		marks = append(marks, defaultsOf(f.Value)...)
	}
	scope := c.full
	for _, p := range path[:len(path)-1] {
		if i, err := strconv.Atoi(p); err == nil && scope.IncompleteKind() == cue.ListKind {
			scope = scope.LookupPath(cue.MakePath(cue.Index(i)))
		} else {
			scope = scope.LookupPath(cue.MakePath(cue.Str(p)))
		}
	}
	if !scope.Exists() {
		return "", nil
	}
	hidden := c.hidden(path, s)
	var words []string
	var at []token.Pos
	for _, x := range marks {
		v, known := c.evaluate(x, scope)
		if !known {
			continue
		}
		if v.Err() != nil || !v.IsConcrete() {
			why, pos := c.culprit(x, scope)
			if why != "" {
				why = ": " + why
			}
			return "the default cannot be computed" + why, positions(pos)
		}
		plain, err := layer.Plain(v)
		if err != nil || v.IncompleteKind()&(cue.StructKind|cue.ListKind) != 0 || s.Unify(v).Err() != nil {
			continue
		}
		if word := showPlain(plain); !slices.Contains(words, word) {
			words, at = append(words, word), append(at, x.Pos())
		}
	}
	switch {
	case len(words) < 2:
		return "", nil
	case hidden:
		return "ambiguous defaults: leave one of them", positions(at...)
	}
	return "ambiguous defaults: " + strings.Join(words, " and ") + "; leave one of them", positions(at...)
}

// fieldsOf are the fields of the syntax that a constraint comes from.
func fieldsOf(v cue.Value, depth int) []*ast.Field {
	if f, ok := v.Source().(*ast.Field); ok {
		return []*ast.Field{f}
	}
	var out []*ast.Field
	if op, args := v.Expr(); op == cue.AndOp && depth < 8 {
		for _, a := range args {
			out = append(out, fieldsOf(a, depth+1)...)
		}
	}
	return out
}

// defaultsOf are the expressions behind the default marks of a constraint.
func defaultsOf(x ast.Expr) []ast.Expr {
	switch x := x.(type) {
	case *ast.ParenExpr:
		return defaultsOf(x.X)
	case *ast.BinaryExpr:
		if x.Op == token.OR || x.Op == token.AND {
			return append(defaultsOf(x.X), defaultsOf(x.Y)...)
		}
	case *ast.UnaryExpr:
		if x.Op == token.MUL {
			return []ast.Expr{x.X}
		}
	}
	return nil
}

// evaluate computes an expression of the schema anew, among the values that there are. It is not known if it uses names that are none of values, such
// as that of a comprehension.
func (c *checker) evaluate(x ast.Expr, scope cue.Value) (v cue.Value, known bool) {
	text, err := format.Node(x)
	if err != nil {
		return cue.Value{}, false
	}
	fresh, err := parser.ParseExpr("", text) // the one at hand is bound to its place
	if err != nil {
		return cue.Value{}, false
	}
	v = c.ctx.BuildExpr(fresh, cue.Scope(scope), cue.InferBuiltins(true))
	v, _ = v.Default()
	return v, !slices.ContainsFunc(errors.Errors(v.Err()), func(e errors.Error) bool {
		return strings.Contains(e.Error(), "reference ") && strings.Contains(e.Error(), "not found")
	})
}

// culprit finds the reference for which an expression cannot be computed; if it is none of them, there is only the place of the expression.
func (c *checker) culprit(x ast.Expr, scope cue.Value) (why string, at token.Pos) {
	at = x.Pos()
	// look is for a reference, whole unless something is selected from it.
	look := func(ref ast.Expr, whole bool) bool {
		v, known := c.evaluate(ref, scope)
		text, err := format.Node(ref)
		switch {
		case !known || err != nil:
		case v.Err() != nil && strings.Contains(v.Err().Error(), "undefined field"):
			why = "undefined field " + string(text)
			if sel, ok := ref.(*ast.SelectorExpr); ok {
				in, _ := c.evaluate(sel.X, scope)
				if name, _, err := ast.LabelName(sel.Sel); err == nil {
					if near := nearest(name, fieldNames(in)); near != "" {
						why += fmt.Sprintf(" (did you mean %q?)", near)
					}
				}
			}
		case whole && (v.Err() != nil || !v.IsConcrete() && v.IncompleteKind()&(cue.StructKind|cue.ListKind) == 0):
			why = string(text) + " has no value"
		}
		if why != "" {
			at = ref.Pos()
		}
		return why != ""
	}
	var visit func(n ast.Node, whole bool) bool
	walk := func(n ast.Node) {
		ast.Walk(n, func(n ast.Node) bool { return why == "" && visit(n, true) }, nil)
	}
	visit = func(n ast.Node, whole bool) bool {
		switch n := n.(type) {
		case *ast.Field:
			walk(n.Value)
			return false
		case *ast.SelectorExpr:
			if visit(n.X, false); why == "" {
				look(n, whole)
			}
			return false
		case *ast.Ident:
			look(n, whole)
			return false
		}
		return true
	}
	walk(x)
	return why, at
}

// written is a constraint as the schema writes it, or "" where that does not tell all of it or takes more than a line.
func written(s cue.Value) string {
	for range 4 {
		fields := fieldsOf(s, 0)
		if len(fields) != 1 {
			return ""
		}
		switch x := fields[0].Value.(type) {
		case *ast.Ident, *ast.SelectorExpr:
			d := cue.Dereference(s)
			if f, ok := d.Source().(*ast.Field); !ok || f == fields[0] {
				return "" // a name of CUE's own, such as uint8
			}
			s = d
		default:
			text, err := format.Node(x)
			if err != nil || len(text) > maxShown || strings.Contains(string(text), "\n") || mentionsDefinition(x) {
				return ""
			}
			return string(text)
		}
	}
	return ""
}

// mentionsDefinition reports whether an expression refers to a definition, whose content says more than its name.
func mentionsDefinition(x ast.Expr) bool {
	found := false
	ast.Walk(x, func(n ast.Node) bool {
		id, ok := n.(*ast.Ident)
		found = found || ok && strings.HasPrefix(strings.TrimPrefix(id.Name, "_"), "#")
		return !found
	}, nil)
	return found
}
