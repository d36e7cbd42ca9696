// Package layer holds one source of values: a tree of plain data that remembers where each value was written and what it replaces.
// Layers are read from YAML, JSON, TOML and .env files or taken from a CUE value, merged here, and handed to CUE as syntax with their positions kept.
package layer

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"cuelang.org/go/cue/ast"
	"cuelang.org/go/cue/literal"
	"cuelang.org/go/cue/token"

	"github.com/muster-config/muster/cue/eval/encode"
)

// Kind of a node.
type Kind int

// The kinds. Delete is a null in an overlay: it removes what lies below.
const (
	Scalar Kind = iota
	List
	Struct
	Delete
)

// Node is one value of a layer, or of merged layers. Nodes are immutable once read: merging shares them.
type Node struct {
	Kind     Kind
	Value    any              // Scalar: nil, bool, encode.Number, string
	Items    []*Node          // List
	Fields   map[string]*Node // Struct
	Replaces bool             // Struct: it took the place of something that was no struct, so nothing below shows through
	Shared   bool             // the root of a layer in which aliases made two paths share nodes
	Pos      token.Pos        // the value
	KeyPos   token.Pos        // the key; invalid in lists and at the root
}

// maxDepth is that of package encode: deeper could not be written anyway.
const maxDepth = 1000

// Error is what is wrong with one layer. It never carries a value, which may be a secret.
type Error struct {
	Path []string
	Msg  string
	At   []token.Position // a line or column of 0 is unknown
}

func (e *Error) Error() string {
	s := e.Msg
	if len(e.Path) > 0 {
		s = PathText(e.Path) + ": " + s
	}
	if len(e.At) > 0 {
		at := e.At[0]
		place := at.Filename
		if at.Line > 0 {
			place += ":" + strconv.Itoa(at.Line)
		}
		if at.Column > 0 {
			place += ":" + strconv.Itoa(at.Column)
		}
		s = place + ": " + s
	}
	return s
}

// PathText writes a path with dots; keys that are not plain words are quoted.
func PathText(path []string) string {
	parts := make([]string, len(path))
	for i, p := range path {
		parts[i] = p
		if p == "" || strings.ContainsFunc(p, func(r rune) bool {
			return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '_' || r == '-' || r == '#')
		}) {
			parts[i] = strconv.Quote(p)
		}
	}
	return strings.Join(parts, ".")
}

// Keys are the field names in order.
func (n *Node) Keys() []string { return slices.Sorted(maps.Keys(n.Fields)) }

// Merge lays hi over lo: structs merge, anything else replaces. Either may be nil. It is associative, so layers may be merged in any grouping.
func Merge(lo, hi *Node) *Node {
	switch {
	case lo == nil:
		return hi
	case hi == nil:
		return lo
	case hi.Kind != Struct || hi.Replaces:
		return hi
	case lo.Kind != Struct:
		out := *hi
		out.Replaces = true
		return &out
	}
	out := *lo
	out.Fields = make(map[string]*Node, len(lo.Fields)+len(hi.Fields))
	maps.Copy(out.Fields, lo.Fields)
	for k, h := range hi.Fields {
		out.Fields[k] = Merge(out.Fields[k], h)
	}
	return &out
}

// Final is the tree without its deletions: what remains when nothing more lies below. nil stays nil.
func (n *Node) Final() *Node {
	if n == nil || n.Kind != Struct {
		return n
	}
	out := *n
	out.Replaces = false
	out.Fields = make(map[string]*Node, len(n.Fields))
	for k, f := range n.Fields {
		if f.Kind != Delete {
			out.Fields[k] = f.Final()
		}
	}
	return &out
}

// Without is the tree without the node at path.
func (n *Node) Without(path []string) *Node {
	if n == nil || len(path) == 0 {
		return nil
	}
	out := *n
	switch n.Kind {
	case Struct:
		f, ok := n.Fields[path[0]]
		if !ok {
			return n
		}
		out.Fields = maps.Clone(n.Fields)
		if len(path) == 1 {
			delete(out.Fields, path[0])
		} else {
			out.Fields[path[0]] = f.Without(path[1:])
		}
	case List:
		i, err := strconv.Atoi(path[0])
		if err != nil || i < 0 || i >= len(n.Items) {
			return n
		}
		out.Items = slices.Clone(n.Items)
		if len(path) == 1 {
			out.Items = slices.Delete(out.Items, i, i+1)
		} else {
			out.Items[i] = n.Items[i].Without(path[1:])
		}
	default:
		return n
	}
	return &out
}

// At is the node at path, or nil.
func (n *Node) At(path []string) *Node {
	for _, p := range path {
		if n == nil {
			return nil
		}
		switch n.Kind {
		case Struct:
			n = n.Fields[p]
		case List:
			i, err := strconv.Atoi(p)
			if err != nil || i < 0 || i >= len(n.Items) {
				return nil
			}
			n = n.Items[i]
		default:
			return nil
		}
	}
	return n
}

// Overlap calls f for each path that both trees set: two spellings of one layer may not.
func Overlap(a, b *Node, f func(path []string, a, b *Node)) { overlap(nil, a, b, f) }

func overlap(path []string, a, b *Node, f func([]string, *Node, *Node)) {
	if a == nil || b == nil {
		return
	}
	if a.Kind != Struct || b.Kind != Struct {
		f(path, a, b)
		return
	}
	for _, k := range a.Keys() {
		overlap(slices.Concat(path, []string{k}), a.Fields[k], b.Fields[k], f)
	}
}

// Walk visits every node, parents first, fields in order of their names.
func (n *Node) Walk(f func(path []string, n *Node)) { n.walk(nil, f) }

func (n *Node) walk(path []string, f func([]string, *Node)) {
	if n == nil {
		return
	}
	f(path, n)
	for _, k := range n.Keys() {
		n.Fields[k].walk(slices.Concat(path, []string{k}), f)
	}
	for i, e := range n.Items {
		e.walk(slices.Concat(path, []string{strconv.Itoa(i)}), f)
	}
}

// Plain is the tree as values that encode.Encode takes. A nil node is an empty struct.
func (n *Node) Plain() encode.Value {
	if n == nil {
		return map[string]any{}
	}
	switch n.Kind {
	case Struct:
		m := make(map[string]any, len(n.Fields))
		for k, f := range n.Fields {
			if f.Kind != Delete {
				m[k] = f.Plain()
			}
		}
		return m
	case List:
		l := make([]any, len(n.Items))
		for i, e := range n.Items {
			l[i] = e.Plain()
		}
		return l
	case Scalar:
		return n.Value
	}
	return nil
}

// AST is the tree as CUE syntax with the positions of the layers. A nil node is an empty struct.
func (n *Node) AST() ast.Expr {
	if n == nil {
		return &ast.StructLit{}
	}
	switch n.Kind {
	case Struct:
		s := &ast.StructLit{Lbrace: n.Pos}
		for _, k := range n.Keys() {
			if f := n.Fields[k]; f.Kind != Delete {
				label := &ast.BasicLit{ValuePos: f.KeyPos, Kind: token.STRING, Value: literal.String.Quote(k)}
				s.Elts = append(s.Elts, &ast.Field{Label: label, Value: f.AST()})
			}
		}
		return s
	case List:
		l := &ast.ListLit{Lbrack: n.Pos}
		for _, e := range n.Items {
			l.Elts = append(l.Elts, e.AST())
		}
		return l
	}
	lit := &ast.BasicLit{ValuePos: n.Pos}
	switch v := n.Value.(type) {
	case nil:
		lit.Kind, lit.Value = token.NULL, "null"
	case bool:
		lit.Kind, lit.Value = token.FALSE, "false"
		if v {
			lit.Kind, lit.Value = token.TRUE, "true"
		}
	case string:
		lit.Kind, lit.Value = token.STRING, literal.String.Quote(v)
	case encode.Number:
		lit.Kind, lit.Value = token.INT, strings.TrimPrefix(string(v), "-")
		if strings.Contains(lit.Value, ".") {
			lit.Kind = token.FLOAT
		}
		if v[0] == '-' {
			return &ast.UnaryExpr{OpPos: n.Pos, Op: token.SUB, X: lit}
		}
	default:
		panic(fmt.Sprintf("layer: a scalar of type %T", v)) // the readers make no others
	}
	return lit
}
