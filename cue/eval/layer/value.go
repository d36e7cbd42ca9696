package layer

import (
	"errors"
	"fmt"
	"math/big"
	"slices"
	"strconv"
	"strings"

	"cuelang.org/go/cue"
	"cuelang.org/go/cue/token"

	"github.com/muster-config/muster/cue/eval/encode"
)

// From takes a layer out of a CUE value that validates (concrete or not). Of a base, defaults are taken too. Of an overlay only what is
// concrete without resolving a default, so that `#Config & {…}` brings what it says and not the schema's defaults; null deletes.
// said tells whether a position lies in the layer's own source: what is written there and gives no value is an error, while what a
// schema leaves open is not.
func From(v cue.Value, base bool, said func(token.Pos) bool) (*Node, []*Error) {
	x := &extractor{base: base, said: said}
	n := x.value(nil, v, false)
	if len(x.errs) == 0 && n != nil && n.Kind != Struct {
		x.fail(nil, v, "a layer is a struct (key: value), not "+n.What())
	}
	if len(x.errs) > 0 {
		return nil, x.errs
	}
	if n == nil {
		n = &Node{Kind: Struct, Fields: map[string]*Node{}, Pos: v.Pos()}
	}
	return n, nil
}

type extractor struct {
	base bool
	said func(token.Pos) bool
	errs []*Error
}

// open handles a value that gives nothing: an error if the layer wrote it.
func (x *extractor) open(path []string, v cue.Value, msg string) *Node {
	at := []token.Pos{v.Pos()}
	_, args := v.Expr()
	for _, a := range args {
		at = append(at, a.Pos())
	}
	if slices.ContainsFunc(at, x.said) {
		x.fail(path, v, msg)
	}
	return nil
}

func (x *extractor) fail(path []string, v cue.Value, msg string) {
	e := &Error{Path: slices.Clone(path), Msg: msg}
	if p := v.Pos(); p.IsValid() {
		e.At = append(e.At, p.Position())
	}
	x.errs = append(x.errs, e)
}

// value is the node of v, or nil when v says nothing.
func (x *extractor) value(path []string, v cue.Value, inList bool) *Node {
	if len(path) > maxDepth {
		x.fail(path[:5], v, fmt.Sprintf("nested deeper than %d levels", maxDepth))
		return nil
	}
	switch v.IncompleteKind() {
	case cue.StructKind:
		if op, _ := cue.Dereference(v).Expr(); op == cue.OrOp && !x.base && !inList {
			return x.open(path, v, "not concrete: a choice that is still open")
		}
		return x.fields(path, v)
	case cue.BottomKind:
		return x.open(path, v, "cannot be computed: it refers to something that has no value here")
	}
	if !v.IsConcrete() {
		d, ok := v.Default()
		switch {
		case !ok:
			return x.open(path, v, "not concrete: a layer gives values")
		case !x.base && !inList:
			return x.open(path, v, "a default has no effect in an overlay: give the value")
		}
		v = d
	}
	pos := literalPos(v)
	switch kind := v.Kind(); kind {
	case cue.ListKind:
		it, err := v.List()
		if err != nil {
			x.fail(path, v, "cannot be computed")
			return nil
		}
		n := &Node{Kind: List, Pos: pos}
		for i := 0; it.Next(); i++ {
			p := slices.Concat(path, []string{strconv.Itoa(i)})
			e := x.value(p, it.Value(), true)
			if e == nil {
				x.fail(p, it.Value(), "an item of a list must be given in full")
				continue
			}
			n.Items = append(n.Items, e)
		}
		if len(n.Items) == 0 && !v.Len().IsConcrete() {
			return nil // [...string] is a type, not a value
		}
		return n
	case cue.NullKind:
		if !x.base && !inList {
			return &Node{Kind: Delete, Pos: pos}
		}
		return &Node{Kind: Scalar, Pos: pos}
	default:
		s, err := scalar(v, kind)
		if err != nil {
			x.fail(path, v, err.Error())
			return nil
		}
		return &Node{Kind: Scalar, Value: s, Pos: pos}
	}
}

func (x *extractor) fields(path []string, v cue.Value) *Node {
	it, err := v.Fields()
	if err != nil {
		if v.Validate() != nil {
			x.fail(path, v, "cannot be computed")
		}
		return nil // a choice of structs that is still open
	}
	n := &Node{Kind: Struct, Fields: map[string]*Node{}, Pos: v.Pos()}
	any := false
	for it.Next() {
		any = true
		if it.Selector().ConstraintType()&cue.RequiredConstraint != 0 {
			continue // demanded by a schema, not given here
		}
		k := it.Selector().Unquoted()
		f := x.value(slices.Concat(path, []string{k}), it.Value(), false)
		if f == nil {
			continue
		}
		f.KeyPos = f.Pos
		if f.Kind == Struct {
			f.KeyPos = it.Value().Pos()
		}
		n.Fields[k] = f
	}
	if any && len(n.Fields) == 0 {
		return nil // all of it is schema
	}
	return n
}

// literalPos is where the concrete value was written: of a conjunction the part that is concrete.
func literalPos(v cue.Value) token.Pos {
	if op, args := v.Expr(); op == cue.AndOp {
		for _, a := range args {
			if a.IsConcrete() && a.Pos().IsValid() {
				return a.Pos()
			}
		}
	}
	return v.Pos()
}

func scalar(v cue.Value, kind cue.Kind) (any, error) {
	switch kind {
	case cue.BoolKind:
		return v.Bool()
	case cue.StringKind:
		s, err := v.String()
		if strings.Contains(s, "\x00") {
			return nil, errors.New(noNUL)
		}
		return s, err
	case cue.IntKind, cue.FloatKind:
		var mant big.Int
		exp, err := v.MantExp(&mant)
		if err != nil {
			return nil, errors.New("not a number that can be written")
		}
		return FromMantExp(&mant, exp, kind == cue.IntKind)
	case cue.BytesKind:
		return nil, errors.New("bytes (single quotes) are no value: use a string")
	}
	return nil, errors.New("not a concrete value")
}

// Plain turns a validated, concrete CUE value into a value that encode.Encode takes: exact numbers, defaults resolved.
func Plain(v cue.Value) (encode.Value, *Error) { return plain(nil, v) }

func plain(path []string, v cue.Value) (encode.Value, *Error) {
	fail := func(msg string) (encode.Value, *Error) {
		e := &Error{Path: slices.Clone(path), Msg: msg}
		if p := v.Pos(); p.IsValid() {
			e.At = []token.Position{p.Position()}
		}
		return nil, e
	}
	if len(path) > maxDepth {
		path = path[:5]
		return fail(fmt.Sprintf("nested deeper than %d levels", maxDepth))
	}
	v, _ = v.Default()
	switch kind := v.Kind(); kind {
	case cue.NullKind:
		return nil, nil
	case cue.StructKind:
		it, err := v.Fields()
		if err != nil {
			return fail("cannot be computed")
		}
		m := map[string]any{}
		for it.Next() {
			k := it.Selector().Unquoted()
			f, e := plain(append(path, k), it.Value())
			if e != nil {
				return nil, e
			}
			m[k] = f
		}
		return m, nil
	case cue.ListKind:
		it, err := v.List()
		if err != nil {
			return fail("cannot be computed")
		}
		l := []any{}
		for it.Next() {
			e, err := plain(append(path, strconv.Itoa(len(l))), it.Value())
			if err != nil {
				return nil, err
			}
			l = append(l, e)
		}
		return l, nil
	default:
		s, err := scalar(v, kind)
		if err != nil {
			return fail(err.Error())
		}
		return s, nil
	}
}
