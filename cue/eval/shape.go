package eval

import (
	"slices"
	"strconv"

	"cuelang.org/go/cue"
	"cuelang.org/go/cue/ast"
	"cuelang.org/go/cue/token"

	"github.com/muster-config/muster/cue/eval/encode"
	"github.com/muster-config/muster/cue/eval/layer"
)

// CUE lists the fields of a struct in an order that follows the source. To find that order costs it a sixth of an evaluation, and files are written in the
// order of names. So the fields are looked up by name instead: those that units had before, of the same service or of one before it, and those of the
// unit's own layers. Whether that is all of them CUE says itself: its `len` counts the fields of each struct. Where the count is another, they are listed
// after all.

// shape is which fields structs were seen to have.
type shape struct {
	names  []string // sorted
	paths  []cue.Path
	below  []*shape
	learnt bool
}

// reading is one use of a shape.
type reading struct {
	counts         ast.Expr // that each struct has as many fields as were found
	found, missing int
}

// learn adds what a value has.
func (s *shape) learn(v encode.Value) {
	m, ok := v.(map[string]any)
	if !ok {
		return
	}
	s.learnt = true
	for name, f := range m {
		s.field(name).learn(f)
	}
}

func (s *shape) field(name string) *shape {
	i, known := slices.BinarySearch(s.names, name)
	if !known {
		s.names = slices.Insert(s.names, i, name)
		s.paths = slices.Insert(s.paths, i, cue.MakePath(cue.Str(name)))
		s.below = slices.Insert(s.below, i, &shape{})
	}
	return s.below[i]
}

// within is the name by which an expression speaks of the value.
const within = "v"

// plain is layer.Plain of a value that validates; merged are its layers.
func (r *serviceRun) plain(v cue.Value, merged *layer.Node) (encode.Value, *layer.Error) {
	if r.long {
		return layer.Plain(v)
	}
	if r.seen.shape.learnt {
		var as reading
		out, ok := r.seen.shape.read(v, merged, ast.NewIdent(within), &as)
		ok = ok && r.counted(v, as.counts)
		if as.missing > as.found/2 {
			r.seen.shape = &shape{} // of services that are too unlike
		}
		if ok {
			return out, nil
		}
	}
	out, err := layer.Plain(v)
	if err == nil {
		r.seen.shape.learn(out)
	}
	return out, err
}

// counted reports whether CUE counts as many fields in a value.
func (r *serviceRun) counted(v cue.Value, counts ast.Expr) bool {
	all, err := r.ctx.BuildExpr(counts, cue.Scope(r.ctx.Encode(map[string]cue.Value{within: v}))).Bool()
	return err == nil && all
}

// read looks up the fields of a struct, and those of the structs in it, and notes how many each must have. It gives up where a struct is a default, of which
// `len` may count something else.
func (s *shape) read(v cue.Value, merged *layer.Node, at ast.Expr, as *reading) (encode.Value, bool) {
	if merged != nil && merged.Kind == layer.Struct {
		for name := range merged.Fields {
			s.field(name)
		}
	}
	out := make(map[string]any, len(s.names))
	for i, path := range s.paths {
		f := v.LookupPath(path)
		if !f.Exists() {
			as.missing++
			continue
		}
		as.found++
		name := s.names[i]
		if f.IncompleteKind() == cue.StructKind {
			if _, isDefault := f.Default(); isDefault {
				return nil, false
			}
			sub, ok := s.below[i].read(f, merged.At([]string{name}), &ast.SelectorExpr{X: at, Sel: ast.NewString(name)}, as)
			if !ok {
				return nil, false
			}
			out[name] = sub
			continue
		}
		plain, err := layer.Plain(f)
		if err != nil {
			return nil, false
		}
		out[name] = plain
	}
	want := ast.Expr(&ast.BinaryExpr{X: ast.NewCall(ast.NewIdent("len"), at), Op: token.EQL, Y: ast.NewLit(token.INT, strconv.Itoa(len(out)))})
	if as.counts != nil {
		want = &ast.BinaryExpr{X: as.counts, Op: token.LAND, Y: want}
	}
	as.counts = want
	return out, true
}
