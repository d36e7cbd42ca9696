package jsonschema

import (
	"regexp"
	"slices"
	"strings"

	"cuelang.org/go/cue"

	"github.com/muster-config/muster/cue/eval/encode"
	"github.com/muster-config/muster/cue/eval/layer"
)

func (g *schemaWriter) expression(v cue.Value) part {
	op, args := v.Expr()
	switch kind := v.IncompleteKind(); {
	case kind == cue.StructKind && op != cue.OrOp:
		return g.object(v)
	case kind == cue.ListKind && op != cue.OrOp:
		return g.list(v)
	case op == cue.OrOp:
		return g.choice(v, args)
	case op == cue.AndOp:
		out := kinds(v)
		for _, a := range args {
			for k, limit := range g.limit(a) {
				tighten(out, k, limit)
			}
		}
		return out
	case op == cue.NoOp && len(args) == 1 && hasDefault(v) && !hasDefault(args[0]):
		return g.expression(args[0]) // `*3 | int & >=0` is told as its second half
	case v.IsConcrete() && kind == cue.NullKind:
		return part{"type": "null"}
	case v.IsConcrete() && kind != cue.BytesKind && g.hidden == 0:
		if plain, err := layer.Plain(v); err == nil {
			return part{"const": plain}
		}
	}
	out := kinds(v)
	for k, limit := range g.limit(v) {
		out[k] = limit
	}
	return out
}

func hasDefault(v cue.Value) bool {
	_, ok := v.Default()
	return ok
}

// kindOf is the kind of a value, also of one that cannot be computed yet.
func kindOf(v cue.Value) cue.Kind {
	kind := v.IncompleteKind()
	if kind != cue.BottomKind {
		return kind
	}
	switch op, args := v.Expr(); op {
	case cue.AndOp:
		all := cue.TopKind
		for _, a := range args {
			if k := kindOf(a); k != cue.BottomKind {
				all &= k
			}
		}
		return all
	case cue.InterpolationOp:
		return cue.StringKind
	}
	return cue.TopKind
}

// kinds asks for the kind of a value only.
func kinds(v cue.Value) part {
	kind := kindOf(v)
	if kind == cue.TopKind || kind == cue.BottomKind {
		return part{}
	}
	var names []any
	for _, k := range []struct {
		kind cue.Kind
		name string
	}{
		{cue.NullKind, "null"}, {cue.BoolKind, "boolean"}, {cue.StringKind, "string"}, {cue.ListKind, "array"}, {cue.StructKind, "object"},
	} {
		if kind&k.kind != 0 {
			names = append(names, k.name)
		}
	}
	switch {
	case kind&cue.FloatKind != 0:
		names = append(names, "number")
	case kind&cue.IntKind != 0:
		names = append(names, "integer")
	}
	switch len(names) {
	case 0:
		return part{}
	case 1:
		return part{"type": names[0]}
	}
	return part{"type": names}
}

var limits = map[cue.Op]string{
	cue.GreaterThanEqualOp: "minimum", cue.GreaterThanOp: "exclusiveMinimum", cue.LessThanEqualOp: "maximum", cue.LessThanOp: "exclusiveMaximum",
}

// limit is what a unary operator demands beyond the kind.
func (g *schemaWriter) limit(v cue.Value) part {
	op, args := cue.Dereference(v).Expr()
	out := part{}
	if op == cue.AndOp {
		for _, a := range args {
			for k, limit := range g.limit(a) {
				tighten(out, k, limit)
			}
		}
		return out
	}
	if len(args) != 1 || !args[0].IsConcrete() {
		return out
	}
	switch op {
	case cue.GreaterThanEqualOp, cue.GreaterThanOp, cue.LessThanEqualOp, cue.LessThanOp:
		if plain, err := layer.Plain(args[0]); err == nil {
			if n, ok := plain.(encode.Number); ok {
				out[limits[op]] = n
			}
		}
	case cue.RegexMatchOp:
		if re, err := args[0].String(); err == nil && portable(re) {
			out["pattern"] = re
		}
	case cue.NotEqualOp:
		if plain, err := layer.Plain(args[0]); err == nil && g.hidden == 0 {
			out["not"] = part{"const": plain}
		}
	}
	return out
}

// tighten adds a limit to those that are there. Of two that JSON Schema has one place for, the second goes into allOf.
func tighten(out part, k string, limit any) {
	old, ok := out[k]
	switch {
	case !ok:
		out[k] = limit
	case old != limit || k == "not":
		all, _ := out["allOf"].([]any)
		out["allOf"] = append(all, part{k: limit})
	}
}

// portable tells whether a regular expression of RE2 means the same to ECMAScript, which editors use.
func portable(re string) bool {
	if strings.Contains(strings.ReplaceAll(re, "(?:", ""), "(?") || strings.Contains(re, "[[:") {
		return false
	}
	for i := 0; i+1 < len(re); i++ {
		if re[i] == '\\' {
			if strings.IndexByte("AzQECpPaxv", re[i+1]) >= 0 || re[i+1] >= '0' && re[i+1] <= '9' {
				return false
			}
			i++
		}
	}
	_, err := regexp.Compile(re)
	return err == nil
}

// choice is a disjunction: an enumeration where all are plain values.
func (g *schemaWriter) choice(v cue.Value, args []cue.Value) part {
	var values, schemas []any
	plain := true
	for _, a := range args {
		if a.Err() != nil && a.IncompleteKind() == cue.BottomKind {
			continue // it cannot be chosen
		}
		s := g.schema(a)
		delete(s, "default")
		if len(s) == 0 {
			return part{}
		}
		if c, ok := s["const"]; ok && len(s) == 1 {
			values = append(values, c)
		} else if s["type"] == "null" && len(s) == 1 {
			values = append(values, nil)
		} else if e, ok := s["enum"].([]any); ok && len(s) == 1 {
			values = append(values, e...)
		} else {
			plain = false
		}
		if !slices.ContainsFunc(schemas, func(o any) bool { return same(o, s) }) {
			schemas = append(schemas, s)
		}
	}
	switch {
	case len(schemas) == 0:
		return kinds(v)
	case plain:
		return part{"enum": values}
	case len(schemas) == 1:
		return schemas[0].(part)
	}
	return part{"anyOf": schemas}
}

func same(a, b any) bool {
	x, errX := encode.Encode("json", a)
	y, errY := encode.Encode("json", b)
	return errX == nil && errY == nil && string(x) == string(y)
}
