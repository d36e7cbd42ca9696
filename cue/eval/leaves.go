package eval

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"slices"
	"strconv"
	"strings"

	"cuelang.org/go/cue"
	"cuelang.org/go/cue/ast"
	"cuelang.org/go/cue/token"

	"github.com/muster-config/muster/cue/eval/encode"
	"github.com/muster-config/muster/cue/eval/layer"
)

// leafWalk gathers the leaves of one unit: of each value of the result where it comes from, and what it hides.
type leafWalk struct {
	stack  *stack
	hide   *secrets
	schema func(path []string) cue.Value // may not exist
	out    []Leaf
	final  map[string]bool // paths of the result: true for a leaf, false for what has leaves below
	errs   []*layer.Error
}

func (r *serviceRun) leafWalk(s *stack, schema func([]string) cue.Value) *leafWalk {
	return &leafWalk{stack: s, hide: r.hide, schema: schema, final: map[string]bool{}}
}

// ofValue are the leaves of a package's final `values`.
func (w *leafWalk) ofValue(v cue.Value) []Leaf {
	w.value(nil, v, false, false)
	return w.finish()
}

// ofTree are the leaves of merged layers that no schema applies to.
func (w *leafWalk) ofTree() []Leaf {
	leaves(w.stack.merged, func(path []string, n *layer.Node) {
		w.add(path, n.Plain(), cue.Value{}, w.secret(path), false)
	})
	return w.finish()
}

// value visits a value and what is below it. What lies in a field marked as a secret is one; def: it lies in a default.
func (w *leafWalk) value(path []string, v cue.Value, secret, def bool) {
	secret = secret || w.hide.isSecret(path, v)
	d, has := v.Default()
	if d.Kind() == cue.StructKind {
		it, err := d.Fields()
		any := false
		for err == nil && it.Next() {
			any = true
			w.value(slices.Concat(path, []string{it.Selector().Unquoted()}), it.Value(), secret, def || has)
		}
		if any || len(path) == 0 {
			return
		}
	}
	plain, err := layer.Plain(d)
	if err != nil {
		err.Path = slices.Concat(path, err.Path)
		w.errs = append(w.errs, err) // the files cannot hold it either, and say so
		return
	}
	w.add(path, plain, v, secret || w.secret(path) || w.hidesSecret(path, v), def)
}

// add makes a leaf of a value of the result.
func (w *leafWalk) add(path []string, plain encode.Value, v cue.Value, secret, def bool) {
	w.reached(path)
	leaf := Leaf{Path: path, Origin: OriginLayer}
	says := w.stack.says(path)
	if w.stack.merged.At(path) != nil && len(says) > 0 {
		leaf.Setting = w.setting(says[0], path, secret)
		leaf.set(plain)
		says = says[1:]
	} else {
		leaf.Origin, leaf.At = given(v)
		if def {
			leaf.Origin = OriginDefault
		}
		leaf.Secret = secret || w.hide.reveals(plain, leaf.Origin == OriginComputed)
		leaf.set(plain)
	}
	for _, s := range says {
		leaf.Shadows = append(leaf.Shadows, w.setting(s, path, secret))
	}
	w.out = append(w.out, leaf)
}

// finish adds what a layer removed from those below it, and sorts.
func (w *leafWalk) finish() []Leaf {
	for _, l := range w.stack.layers {
		leaves(l.node, func(path []string, n *layer.Node) {
			if n.Kind == layer.Delete || w.known(path) {
				return
			}
			says := w.stack.says(path)
			if says[0].node.Kind != layer.Delete {
				return // hidden by a value, whose leaf shows it
			}
			w.reached(path)
			secret := w.secret(path)
			leaf := Leaf{Path: path, Origin: OriginRemoved, Setting: w.setting(says[0], path, secret)}
			for _, s := range says[1:] {
				leaf.Shadows = append(leaf.Shadows, w.setting(s, path, secret))
			}
			w.out = append(w.out, leaf)
		})
	}
	slices.SortFunc(w.out, func(a, b Leaf) int { return slices.Compare(a.Path, b.Path) })
	return w.out
}

func pathKey(path []string) string { return strings.Join(path, "\x00") }

func (w *leafWalk) reached(path []string) {
	for i := 1; i < len(path); i++ {
		if key := pathKey(path[:i]); !w.final[key] {
			w.final[key] = false
		}
	}
	w.final[pathKey(path)] = true
}

// known reports whether the result has a value at path, above or below it.
func (w *leafWalk) known(path []string) bool {
	for i := 1; i < len(path); i++ {
		if w.final[pathKey(path[:i])] {
			return true
		}
	}
	_, ok := w.final[pathKey(path)]
	return ok
}

// secret reports whether path, or something that it lies in, is a secret by name or by the schema's mark.
func (w *leafWalk) secret(path []string) bool {
	for i := 1; i <= len(path); i++ {
		var s cue.Value
		if w.hide.marks {
			s = w.schema(path[:i])
		}
		if w.hide.isSecret(path[i-1:i], s) {
			return true
		}
	}
	return false
}

// hidesSecret reports whether something in a list is a secret: it is shown as one.
func (w *leafWalk) hidesSecret(path []string, v cue.Value) bool {
	d, _ := v.Default()
	found := false
	switch d.Kind() {
	case cue.StructKind:
		for it, err := d.Fields(); err == nil && !found && it.Next(); {
			p := slices.Concat(path, []string{it.Selector().Unquoted()})
			found = w.hide.isSecret(p, it.Value()) || w.hidesSecret(p, it.Value())
		}
	case cue.ListKind:
		it, err := d.List()
		for i := 0; err == nil && !found && it.Next(); i++ {
			found = w.hidesSecret(slices.Concat(path, []string{strconv.Itoa(i)}), it.Value())
		}
	}
	return found
}

// setting is what one layer says, for a leaf at path.
func (w *leafWalk) setting(s stacked, path []string, secret bool) Setting {
	out := Setting{Layer: s.name, Secret: secret}
	s.node.Walk(func(below []string, _ *layer.Node) {
		if len(below) > 0 && !out.Secret {
			out.Secret = w.secret(slices.Concat(path, below))
		}
	})
	pos := s.node.Pos
	if s.node.Kind == layer.Struct && s.node.KeyPos.IsValid() {
		pos = s.node.KeyPos
	}
	if at := positions(pos); len(at) > 0 {
		out.At = at[0]
	}
	plain := s.node.Plain()
	out.Secret = out.Secret || w.hide.reveals(plain, false)
	out.set(plain)
	return out
}

// set gives the value in one line, or only its digest.
func (s *Setting) set(v encode.Value) {
	text := canonical(v)
	sum := sha256.Sum256(text)
	s.Sum, s.Value = hex.EncodeToString(sum[:]), ""
	if !s.Secret {
		s.Value = string(text)
	}
}

// canonical is a value as canonical JSON in one line.
func canonical(v encode.Value) []byte {
	text, err := encode.Encode("json", v)
	if err != nil {
		return nil // not reached: what cannot be written as JSON is refused before
	}
	var line bytes.Buffer
	if json.Compact(&line, text) != nil {
		return nil
	}
	return line.Bytes()
}

// given tells whether a value that no layer gives is a schema's default or computed by the package, and where that is written. A default
// that is computed from other fields, `*(workers * 4)`, counts as computed; a constant of the schema does too.
func given(v cue.Value) (Origin, Pos) {
	d, has := v.Default()
	origin, at := OriginComputed, d.Pos()
	switch stars := defaults(v, d); {
	case has && len(stars) > 0:
		origin, at = OriginDefault, stars[0].Pos()
		for _, x := range stars {
			if computes(x) {
				origin, at = OriginComputed, x.Pos()
				break
			}
		}
	case has, v.IncompleteKind() == cue.StructKind:
		origin = OriginDefault // [...string] or {[string]: bool}, of which nothing was given
	default:
		// The constraints beside it, `string & …`, have positions too: the part that gives the value counts.
		part := v
		if op, args := v.Expr(); op == cue.AndOp {
			for _, a := range args {
				if a.IsConcrete() {
					part = a
					break
				}
			}
		}
		at = part.Pos()
		if f, ok := part.Source().(*ast.Field); ok {
			at = f.Value.Pos()
		}
	}
	if p := positions(at); len(p) > 0 {
		return origin, p[0]
	}
	if p := positions(v.Pos()); len(p) > 0 {
		return origin, p[0]
	}
	return origin, Pos{}
}

// defaults are the operands marked with * in the source of a value, those of a reference it stands for included.
func defaults(values ...cue.Value) []ast.Expr {
	var out []ast.Expr
	seen := map[ast.Node]bool{}
	var visit func(x ast.Node)
	visit = func(x ast.Node) {
		if x == nil || seen[x] {
			return
		}
		seen[x] = true
		switch x := x.(type) {
		case *ast.Field:
			visit(x.Value)
		case *ast.ParenExpr:
			visit(x.X)
		case *ast.BinaryExpr:
			if x.Op == token.OR || x.Op == token.AND {
				visit(x.X)
				visit(x.Y)
			}
		case *ast.UnaryExpr:
			if x.Op == token.MUL {
				out = append(out, x.X)
			}
		}
	}
	for _, v := range values {
		visit(v.Source())
		if op, args := v.Expr(); op == cue.AndOp {
			for _, a := range args {
				visit(a.Source())
			}
		}
		visit(cue.Dereference(v).Source())
	}
	return out
}

// computes reports whether an expression takes its value from elsewhere.
func computes(x ast.Expr) bool {
	found := false
	ast.Walk(x, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.Field:
			ast.Walk(n.Value, func(n ast.Node) bool {
				if e, ok := n.(ast.Expr); ok && !found {
					found = computes(e)
				}
				return false
			}, nil)
			return false
		case *ast.SelectorExpr, *ast.CallExpr, *ast.IndexExpr, *ast.Interpolation, *ast.Comprehension:
			found = true
		case *ast.Ident:
			found = found || n.Name != "null" && n.Name != "_"
		}
		return !found
	}, nil)
	return found
}
