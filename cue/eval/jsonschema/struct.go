package jsonschema

import (
	"slices"
	"strconv"
	"strings"

	"cuelang.org/go/cue"
	"cuelang.org/go/cue/ast"

	"github.com/muster-config/muster/cue/eval/encode"
)

// oddName is a name that no schema gives a field: only what takes any name takes it.
const oddName = "\ue000"

// object is the schema of a struct.
func (g *schemaWriter) object(v cue.Value) part {
	out := part{"type": "object"}
	it, err := v.Fields(cue.Optional(true), cue.Patterns(true))
	if err != nil {
		return out // a choice that is still open
	}
	properties, patterns := part{}, part{}
	var required []any
	closed := !v.Allows(cue.Str(oddName)) && !computes(v)
	var others part
	for it.Next() {
		sel, f := it.Selector(), it.Value()
		if sel.ConstraintType() == cue.PatternConstraint {
			s := g.maybeSecret("", f)
			if re := patternOf(sel.Pattern()); re == "" {
				others, closed = part{}, false
				if sel.Pattern().IncompleteKind() == cue.StringKind && !bounded(sel.Pattern()) {
					others = s
				}
			} else {
				patterns[re] = s
			}
			continue
		}
		name := sel.Unquoted()
		g.path = append(g.path, name)
		properties[name] = g.maybeSecret(name, f)
		given := g.inList == 0 && (g.overlay || g.elsewhere(g.path))
		g.path = g.path[:len(g.path)-1]
		if given {
			continue
		}
		if sel.ConstraintType() == cue.RequiredConstraint || sel.ConstraintType() == 0 && g.demanded(f, 0) {
			required = append(required, name)
		}
	}
	if len(properties) > 0 {
		out["properties"] = properties
	}
	if len(required) > 0 {
		slices.SortFunc(required, func(a, b any) int { return strings.Compare(a.(string), b.(string)) })
		out["required"] = required
	}
	if len(patterns) > 0 {
		out["patternProperties"] = patterns
	}
	switch {
	case closed:
		out["additionalProperties"] = false
	case len(others) > 0 && len(patterns) == 0:
		out["additionalProperties"] = others
	}
	return out
}

// maybeSecret is the schema of a field, without values if it is a secret.
func (g *schemaWriter) maybeSecret(name string, f cue.Value) part {
	if g.secret(name) || markedSecret(f) {
		g.hidden++
		defer func() { g.hidden-- }()
	}
	return g.field(f)
}

// list is the schema of a list. Lists replace as a whole.
func (g *schemaWriter) list(v cue.Value) part {
	g.inList++
	defer func() { g.inList-- }()
	out := part{"type": "array"}
	if op, args := v.Expr(); op == cue.CallOp || op == cue.AndOp && slices.ContainsFunc(args, func(a cue.Value) bool { o, _ := a.Expr(); return o == cue.CallOp }) {
		return out // a validator of package list, say
	}
	var first []any
	it, err := v.List()
	if err != nil {
		return out
	}
	for it.Next() {
		first = append(first, g.schema(it.Value()))
	}
	if len(first) > 0 {
		out["prefixItems"], out["minItems"] = first, encode.Number(strconv.Itoa(len(first)))
	}
	rest := v.LookupPath(cue.MakePath(cue.AnyIndex))
	if op, args := v.Expr(); !rest.Exists() && op == cue.NoOp && len(args) == 1 && hasDefault(v) {
		rest = args[0].LookupPath(cue.MakePath(cue.AnyIndex)) // a list with a default
		if rest.Exists() {
			first = nil
			delete(out, "prefixItems")
			delete(out, "minItems")
		}
	}
	switch {
	case rest.Exists():
		if s := g.schema(rest); len(s) > 0 {
			out["items"] = s
		}
	case len(first) > 0 && !hasOpenDefault(v):
		out["items"] = false
	}
	return out
}

// hasOpenDefault tells whether the items that are known are only a default's.
func hasOpenDefault(v cue.Value) bool {
	op, _ := v.Expr()
	return op == cue.OrOp || marksDefault(v)
}

// patternOf is the expression that a pattern constraint's names match, if an editor can know it.
func patternOf(pattern cue.Value) string {
	op, args := pattern.Expr()
	if op != cue.RegexMatchOp || len(args) != 1 {
		return ""
	}
	if re, err := args[0].String(); err == nil && portable(re) {
		return re
	}
	return ""
}

// bounded tells whether a pattern is more than `string`.
func bounded(pattern cue.Value) bool {
	op, _ := pattern.Expr()
	return op != cue.NoOp
}

// computes tells whether fields of a struct depend on a condition or a loop: then its schema does not know all names.
func computes(v cue.Value) bool {
	if op, args := v.Expr(); op == cue.AndOp {
		return slices.ContainsFunc(args, computes)
	}
	n := cue.Dereference(v).Source()
	if f, ok := n.(*ast.Field); ok {
		n = f.Value
	}
	s, ok := n.(*ast.StructLit)
	if !ok {
		return n != nil && v.IncompleteKind() == cue.StructKind && !isName(n)
	}
	return slices.ContainsFunc(s.Elts, func(d ast.Decl) bool {
		switch d := d.(type) {
		case *ast.Comprehension:
			return true
		case *ast.EmbedDecl:
			_, comprehension := d.Expr.(*ast.Comprehension)
			return comprehension
		case *ast.Field:
			_, name := d.Label.(*ast.Ident)
			_, text := d.Label.(*ast.BasicLit)
			_, pattern := d.Label.(*ast.ListLit)
			return !name && !text && !pattern
		}
		return false
	})
}

// isName reports a reference, or an operation on some: what it stands for is looked at by itself.
func isName(n ast.Node) bool {
	switch n.(type) {
	case *ast.Ident, *ast.SelectorExpr, *ast.File, *ast.BinaryExpr:
		return true
	}
	return false
}

// demanded tells whether a field that no layer sets would be missing. What is computed or has a default would not.
func (g *schemaWriter) demanded(v cue.Value, depth int) bool {
	if root, path := v.ReferencePath(); root.Exists() {
		s := path.Selectors()
		if len(s) == 0 || !s[len(s)-1].IsDefinition() {
			return false
		}
	}
	v = cue.Dereference(v)
	op, args := v.Expr()
	if depth > maxSchemaDepth {
		return false
	}
	if v.IncompleteKind() == cue.StructKind && op != cue.OrOp {
		it, err := v.Fields(cue.Optional(true))
		if err != nil {
			return false
		}
		for it.Next() {
			t := it.Selector().ConstraintType()
			if t == cue.RequiredConstraint || t == 0 && g.demanded(it.Value(), depth+1) {
				return true
			}
		}
		return false
	}
	if v.IncompleteKind() == cue.ListKind || v.IsConcrete() {
		return false
	}
	if d, ok := v.Default(); ok && d.IsConcrete() {
		return false
	}
	return plainType(v, op, args)
}

// predeclared are CUE's own types that a layer can give a value of.
var predeclared = []string{
	"_", "bool", "string", "number", "int", "float", "uint", "int8", "int16", "int32", "int64", "int128", "uint8", "uint16", "uint32", "uint64", "uint128",
	"float32", "float64", "rune",
}

// plainType tells whether a scalar that is not concrete is a type, or bounds or a choice of such: no reference in it can make it concrete.
func plainType(v cue.Value, op cue.Op, args []cue.Value) bool {
	switch op {
	case cue.NoOp:
		n := cue.Dereference(v).Source()
		if f, ok := n.(*ast.Field); ok {
			n = f.Value
		}
		id, ok := n.(*ast.Ident)
		return ok && slices.Contains(predeclared, id.Name) || n == nil
	case cue.GreaterThanEqualOp, cue.GreaterThanOp, cue.LessThanEqualOp, cue.LessThanOp, cue.RegexMatchOp, cue.NotRegexMatchOp, cue.NotEqualOp:
		return len(args) == 1
	case cue.AndOp, cue.OrOp:
		for _, a := range args {
			if a.IsConcrete() && op == cue.OrOp {
				continue
			}
			o, as := cue.Dereference(a).Expr()
			if _, path := a.ReferencePath(); len(path.Selectors()) > 0 && !path.Selectors()[len(path.Selectors())-1].IsDefinition() {
				return false
			}
			if !plainType(a, o, as) {
				return false
			}
		}
		// A marked default that is computed stands in the source only.
		return op == cue.AndOp || !marksDefault(v)
	}
	return false
}

// marksDefault looks for `*` in the source of a disjunction.
func marksDefault(v cue.Value) bool {
	found := false
	if n := v.Source(); n != nil {
		ast.Walk(n, func(n ast.Node) bool {
			if u, ok := n.(*ast.UnaryExpr); ok && u.Op.String() == "*" {
				found = true
			}
			return !found
		}, nil)
	}
	return found
}
