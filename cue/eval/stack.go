package eval

import (
	"github.com/muster-config/muster/cue/eval/layer"
)

// stack is the layers of one unit, the lowest first, each as it was written, and what they merge to.
type stack struct {
	layers []stacked
	merged *layer.Node // without deletions; never nil once all layers are there
}

type stacked struct {
	name  string // as in Setting.Layer
	node  *layer.Node
	below *layer.Node // what the lower ones merge to; nil for the lowest
}

func (s *stack) push(name string, n *layer.Node) {
	if n != nil {
		s.layers = append(s.layers, stacked{name, n, s.merged})
		s.merged = layer.Merge(s.merged, n)
	}
}

// finish is what remains when nothing more lies above.
func (s *stack) finish() {
	if s.merged == nil {
		s.merged = &layer.Node{Kind: layer.Struct, Fields: map[string]*layer.Node{}}
	}
	s.merged = s.merged.Final()
}

// says are the layers that give something at path, or at an ancestor that covers it (a scalar, a list or a deletion), the highest first.
func (s *stack) says(path []string) []stacked {
	var out []stacked
	for i := len(s.layers) - 1; i >= 0; i-- {
		if n := covering(s.layers[i].node, path); n != nil {
			out = append(out, stacked{name: s.layers[i].name, node: n})
		}
	}
	return out
}

// covering is the node at path, or the one on the way to it that is no struct; nil if the tree says nothing of it.
func covering(n *layer.Node, path []string) *layer.Node {
	for _, p := range path {
		if n == nil || n.Kind != layer.Struct {
			return n
		}
		n = n.Fields[p]
	}
	return n
}

// leaves visits what a layer gives: scalars, whole lists, deletions and empty structs, in order of their paths.
func leaves(n *layer.Node, f func(path []string, n *layer.Node)) {
	var visit func(path []string, n *layer.Node)
	visit = func(path []string, n *layer.Node) {
		if n.Kind != layer.Struct || len(n.Fields) == 0 && len(path) > 0 {
			f(path, n)
			return
		}
		for _, k := range n.Keys() {
			visit(append(path[:len(path):len(path)], k), n.Fields[k])
		}
	}
	if n != nil {
		visit(nil, n)
	}
}
