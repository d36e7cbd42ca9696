package eval

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"cuelang.org/go/cue"
	"cuelang.org/go/cue/ast"
	"cuelang.org/go/cue/build"
	"cuelang.org/go/cue/errors"
	"cuelang.org/go/cue/token"

	"github.com/muster-config/muster/cue/eval/layer"
)

// nested explains why a text does not satisfy yaml.Validate(#S) or json.Validate(#S): what is wrong in it, by line. CUE says no more than that it does not.
func (c *checker) nested(path []string, n *layer.Node, part cue.Value) (string, bool) {
	text, isText := n.Value.(string)
	_, args := part.Expr()
	if !isText || len(args) != 2 {
		return "", false
	}
	format, _, _ := strings.Cut(fmt.Sprint(args[0]), ".Validate")
	if format != "yaml" && format != "json" {
		return "", false
	}
	hidden := c.hidden(path, c.at(path))
	inner, errs := layer.Read("text."+format, []byte(text), true)
	var found []string
	for _, e := range errs {
		line := 0
		if len(e.At) > 0 {
			line = e.At[0].Line
		}
		found = append(found, inText(line, layer.PathText(e.Path), e.Msg))
	}
	if len(errs) == 0 {
		at := cue.MakePath(cue.Str("text"))
		lone := c.ctx.BuildExpr(ast.NewStruct()).FillPath(at, args[1]) // away from where it stands, so that errors have paths of their own
		sub := &checker{ctx: c.ctx, schema: lone.LookupPath(at), within: c.within, secret: func(p []string, s cue.Value) bool { return hidden || c.secret(p, s) }}
		sub.unify = func(n *layer.Node) cue.Value { return lone.FillPath(at, c.ctx.BuildExpr(n.AST())).LookupPath(at) }
		_, problems := sub.check(inner)
		for _, p := range problems {
			line := 0
			if len(p.SetAt) > 0 {
				line = p.SetAt[0].Line
			}
			found = append(found, inText(line, p.Path, p.Message))
		}
	}
	if len(found) == 0 {
		return "", false
	}
	return "is not the " + strings.ToUpper(format) + " that the schema wants: " + strings.Join(found, "; "), true
}

func inText(line int, path, msg string) string {
	if path != "" {
		msg = path + ": " + msg
	}
	if line > 0 {
		msg = fmt.Sprintf("line %d of it: %s", line, msg)
	}
	return msg
}

// calls is what went wrong inside a function that an error is about, which CUE keeps below "error in call to".
func calls(e errors.Error) string {
	format, _ := e.Msg()
	if !strings.HasPrefix(format, "error in call to") {
		return ""
	}
	for inner := errors.Unwrap(e); inner != nil; inner = errors.Unwrap(inner) {
		if x, ok := inner.(errors.Error); ok { //nolint:errorlint // each layer is looked at by itself
			format, args := x.Msg()
			if text := strings.Join(strings.Fields(fmt.Sprintf(format, args...)), " "); text != "" {
				if p := x.Path(); len(p) > 0 {
					text = strings.Join(p, ".") + ": " + text
				}
				return text
			}
			continue
		}
		return strings.Join(strings.Fields(inner.Error()), " ")
	}
	return ""
}

// locate finds the field, or the nearest above it, that a path means in the syntax of a package: CUE gives no place for a structural cycle.
func locate(inst *build.Instance, path []string) []Pos {
	if inst == nil {
		return nil
	}
	best, depth := token.NoPos, 0
	var visit func(decls []ast.Decl, rest []string)
	visit = func(decls []ast.Decl, rest []string) {
		for _, d := range decls {
			field, ok := d.(*ast.Field)
			if !ok {
				continue
			}
			if name, _, err := ast.LabelName(field.Label); err != nil || len(rest) == 0 || name != rest[0] {
				continue
			}
			below := rest[1:]
			if at := len(path) - len(below); at > depth {
				best, depth = field.Pos(), at
			}
			value := field.Value
			if l, ok := value.(*ast.ListLit); ok && len(below) > 0 {
				if i, err := strconv.Atoi(below[0]); err == nil && i < len(l.Elts) {
					value, below = l.Elts[i], below[1:]
				}
			}
			if s, ok := value.(*ast.StructLit); ok {
				visit(s.Elts, below)
			}
		}
	}
	for _, f := range inst.Files {
		visit(slices.Clone(f.Decls), path)
	}
	return positions(best)
}
