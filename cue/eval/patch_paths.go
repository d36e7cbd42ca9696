package eval

import (
	"fmt"

	"github.com/muster-config/muster/cue/eval/layer"
)

// PatchPaths are the paths that an override's values set or remove, as messages write them, sorted.
func PatchPaths(values string) ([]string, error) {
	n, errs := layer.ReadAs(".json", "override", []byte(values), false)
	if len(errs) > 0 {
		return nil, fmt.Errorf("the values of an override: %s", errs[0].Msg)
	}
	var paths []string
	var walk func(n *layer.Node, at []string)
	walk = func(n *layer.Node, at []string) {
		if n.Kind != layer.Struct || len(n.Fields) == 0 {
			paths = append(paths, layer.PathText(at))
			return
		}
		for _, k := range n.Keys() {
			walk(n.Fields[k], append(at[:len(at):len(at)], k))
		}
	}
	if len(n.Fields) > 0 {
		walk(n, nil)
	}
	return paths, nil
}

// SplitPath reads a path as messages write it.
func SplitPath(text string) ([]string, error) { return splitPath(text) }
