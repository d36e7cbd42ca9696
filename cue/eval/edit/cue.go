package edit

import (
	"fmt"

	"cuelang.org/go/cue/ast"
	"cuelang.org/go/cue/format"
	"cuelang.org/go/cue/parser"
)

// HasCUE reports whether a CUE file spells out fields along a path: `overlay: env: prod: …`, say.
func HasCUE(name string, data []byte, path []string) bool {
	f, err := parser.ParseFile(name, data)
	if err != nil {
		return false
	}
	_, depth := deepest(f.Decls, path)
	return depth == len(path)
}

// CUE sets below a path of a CUE file what an override's values set: JSON text of an object, in which null is written as null. The file is formatted as `cue fmt` does.
func CUE(name string, data []byte, path []string, values string) ([]byte, error) {
	p, err := readPatch(values)
	if err != nil {
		return nil, err
	}
	f, err := parser.ParseFile(name, data, parser.ParseComments)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	for _, s := range p.settings {
		if err := setCUE(f, append(path[:len(path):len(path)], s.path...), s.value); err != nil {
			return nil, fmt.Errorf("%s: %w: set the values by hand", name, err)
		}
	}
	out, err := format.Node(f)
	if err != nil {
		return nil, fmt.Errorf("%s: format: %w", name, err)
	}
	return out, nil
}

// LineOf is the line of the value at a path of a CUE file, 0 if it has none.
func LineOf(name string, data []byte, path []string) int {
	f, err := parser.ParseFile(name, data)
	if err != nil {
		return 0
	}
	field, depth := deepest(f.Decls, path)
	if field == nil || depth < len(path) {
		return 0
	}
	return field.Value.Pos().Line()
}

func setCUE(f *ast.File, path []string, v any) error {
	field, depth := deepest(f.Decls, path)
	expr, err := exprOf(nested(path[min(depth, len(path)):], v))
	if err != nil {
		return err
	}
	switch {
	case field == nil: // nothing of it is there
		one := &ast.Field{Label: ast.NewString(path[0])}
		if expr, err = exprOf(nested(path[1:], v)); err != nil {
			return err
		}
		one.Label, one.Value = label(path[0]), expr
		f.Decls = append(f.Decls, one)
		return nil
	case depth == len(path):
		ast.SetComments(expr, ast.Comments(field.Value))
		field.Value = expr
		return nil
	}
	st := structOf(field.Value)
	if st == nil {
		return ErrCannot
	}
	if expr, err = exprOf(nested(path[depth+1:], v)); err != nil {
		return err
	}
	st.Elts = append(st.Elts, &ast.Field{Label: label(path[depth]), Value: expr})
	return nil
}

func label(name string) ast.Label {
	if ast.IsValidIdent(name) {
		return ast.NewIdent(name)
	}
	return ast.NewString(name)
}

func exprOf(v any) (ast.Expr, error) {
	e, err := parser.ParseExpr("value", jsonText(v))
	if err != nil {
		return nil, fmt.Errorf("the value: %w", err)
	}
	ast.Walk(e, func(n ast.Node) bool { // JSON quotes every key
		if f, ok := n.(*ast.Field); ok {
			if name, _, err := ast.LabelName(f.Label); err == nil {
				f.Label = label(name)
			}
		}
		return true
	}, nil)
	return e, nil
}

// deepest is the field that goes furthest along a path, and how far. One label may stand in several places.
func deepest(decls []ast.Decl, path []string) (best *ast.Field, depth int) {
	if len(path) == 0 {
		return nil, 0
	}
	for _, d := range decls {
		f, ok := d.(*ast.Field)
		if !ok {
			continue
		}
		if name, _, err := ast.LabelName(f.Label); err != nil || name != path[0] {
			continue
		}
		found, n := f, 1
		if st := structOf(f.Value); st != nil && len(path) > 1 {
			if deeper, m := deepest(st.Elts, path[1:]); deeper != nil {
				found, n = deeper, m+1
			}
		}
		if n > depth {
			best, depth = found, n
		}
	}
	return best, depth
}

// structOf is the struct of a value that is one, or that is unified with one: `#Config & {…}`.
func structOf(e ast.Expr) *ast.StructLit {
	switch e := e.(type) {
	case *ast.StructLit:
		return e
	case *ast.ParenExpr:
		return structOf(e.X)
	case *ast.BinaryExpr:
		if st := structOf(e.Y); st != nil {
			return st
		}
		return structOf(e.X)
	}
	return nil
}
