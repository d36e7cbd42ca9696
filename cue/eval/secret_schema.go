package eval

import (
	"cuelang.org/go/cue"

	"github.com/muster-config/muster/cue/eval/encode"
	"github.com/muster-config/muster/cue/eval/layer"
)

const (
	deepest = 16   // below this a schema repeats itself
	widest  = 2000 // parts of a schema that are looked at; a larger one is taken to have a secret
)

// within reports whether a struct or a list that the schema s asks for has a secret in it. What is put in its place is likely to be that secret: the
// address of a database where its parts belong.
func (x *secrets) within(s cue.Value) (found bool) {
	defer func() {
		if recover() != nil {
			found = true // the library cannot take some expressions apart: then nothing is shown
		}
	}()
	left := widest
	return x.below(s, 0, &left)
}

func (x *secrets) below(s cue.Value, depth int, left *int) bool {
	kind := s.IncompleteKind()
	if op, args := s.Expr(); kind == cue.BottomKind && op == cue.AndOp && depth <= deepest { // its parts contradict each other
		for _, a := range args {
			if x.below(a, depth+1, left) {
				return true
			}
		}
		return false
	}
	if !s.Exists() || kind == cue.TopKind || kind&(cue.StructKind|cue.ListKind) == 0 || depth > deepest {
		return false
	}
	if *left--; *left < 0 {
		return true
	}
	if choices := alternatives(s); choices != nil {
		for _, a := range choices {
			if x.below(a, depth+1, left) {
				return true
			}
		}
		return false
	}
	if kind&cue.StructKind != 0 {
		if it, err := s.Fields(cue.Optional(true), cue.Patterns(true)); err == nil {
			for it.Next() {
				sel := it.Selector()
				named := sel.ConstraintType() != cue.PatternConstraint && x.secretKey(sel.Unquoted())
				if named || marked(it.Value()) || x.below(it.Value(), depth+1, left) {
					return true
				}
			}
		}
	}
	if kind&cue.ListKind != 0 {
		if it, err := s.List(); err == nil {
			for it.Next() {
				if marked(it.Value()) || x.below(it.Value(), depth+1, left) {
					return true
				}
			}
		}
		return x.below(s.LookupPath(cue.MakePath(cue.AnyIndex)), depth+1, left)
	}
	return false
}

// misplaced learns the texts that stand where a struct or a list with a secret belongs.
func (x *secrets) misplaced(n *layer.Node, s cue.Value) {
	if n == nil || !s.Exists() {
		return
	}
	kind := s.IncompleteKind()
	switch {
	case n.Kind == layer.Struct && kind&cue.StructKind != 0:
		for k, c := range n.Fields {
			x.misplaced(c, field(s, k))
		}
	case n.Kind == layer.List && kind&cue.ListKind != 0:
		for i, c := range n.Items {
			x.misplaced(c, index(s, i))
		}
	case x.within(s):
		n.Walk(func(_ []string, n *layer.Node) {
			switch v := n.Value.(type) {
			case string:
				x.add(v)
			case encode.Number:
				x.add(string(v))
			}
		})
	}
}
