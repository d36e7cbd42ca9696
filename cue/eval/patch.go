package eval

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/muster-config/muster/cue/eval/encode"
	"github.com/muster-config/muster/cue/eval/layer"
)

// Patch makes an override's values, JSON text of an object, of settings PATH=VALUE: a path as messages write it, and a value as YAML, in which null deletes. Errors name the
// setting by its place in the list and its path, never the value: it may be a secret.
func Patch(settings []string) (string, error) {
	var all *layer.Node
	given := map[string]bool{}
	for i, s := range settings {
		name, value, ok := strings.Cut(s, "=")
		if !ok {
			return "", fmt.Errorf("setting %d is not PATH=VALUE", i+1)
		}
		keys, err := splitPath(name)
		if err != nil {
			return "", fmt.Errorf("setting %d: %w", i+1, err)
		}
		if shown := layer.PathText(keys); given[shown] {
			return "", fmt.Errorf("%s is given twice", shown)
		}
		given[layer.PathText(keys)] = true
		// The line break ends a plain scalar, and lets a value begin with anything that YAML can begin with.
		n, errs := layer.ReadAs(".yaml", "value", []byte("v: "+value+"\n"), false)
		if len(errs) > 0 || len(n.Fields) != 1 || n.Fields["v"] == nil {
			return "", fmt.Errorf("the value of %s is not YAML: quote it, as in %s='\"…\"'", layer.PathText(keys), layer.PathText(keys))
		}
		node := n.Fields["v"]
		for _, k := range slices.Backward(keys) {
			node = &layer.Node{Kind: layer.Struct, Fields: map[string]*layer.Node{k: node}}
		}
		all = layer.Merge(all, node)
	}
	if all == nil {
		return "", errors.New("nothing is set: give PATH=VALUE")
	}
	return string(canonical(patchValue(all))), nil
}

// PatchFile makes the values of a file, by its extension a layer of any format.
func PatchFile(name string, data []byte) (string, error) {
	n, err := readPatch(name, data)
	if err != nil {
		return "", err
	}
	return string(canonical(patchValue(n))), nil
}

// PatchFiles makes the values of several services of one file, whose top level names the services.
func PatchFiles(name string, data []byte) (map[string]string, error) {
	n, err := readPatch(name, data)
	if err != nil {
		return nil, err
	}
	out := map[string]string{}
	for _, service := range n.Keys() {
		if n.Fields[service].Kind != layer.Struct {
			return nil, fmt.Errorf("%s: %s is %s: at the top level of the file stand services, each with its values", name, strconv.Quote(service), n.Fields[service].What())
		}
		out[service] = string(canonical(patchValue(n.Fields[service])))
	}
	return out, nil
}

func readPatch(name string, data []byte) (*layer.Node, error) {
	n, errs := layer.ReadAs(path.Ext(name), name, data, false)
	if len(errs) > 0 {
		e := errs[0]
		where := name
		if len(e.At) > 0 && e.At[0].Line > 0 {
			where = fmt.Sprintf("%s:%d:%d", name, e.At[0].Line, e.At[0].Column)
		}
		return nil, fmt.Errorf("%s: %s", where, e.Msg)
	}
	if len(n.Fields) == 0 {
		return nil, fmt.Errorf("%s: nothing is set in it", name)
	}
	return n, nil
}

// patchValue is a layer as plain data, its deletions as null.
func patchValue(n *layer.Node) encode.Value {
	if n.Kind != layer.Struct {
		return n.Plain()
	}
	m := make(map[string]any, len(n.Fields))
	for k, f := range n.Fields {
		m[k] = patchValue(f)
	}
	return m
}

// splitPath reads what layer.PathText writes.
func splitPath(s string) (keys []string, err error) {
	bad := errors.New(`not a path: keys with dots between them, odd ones quoted, as in limits.cpus or hosts."a.example"`)
	for {
		if strings.HasPrefix(s, `"`) {
			quoted, err := strconv.QuotedPrefix(s)
			if err != nil {
				return nil, bad
			}
			key, err := strconv.Unquote(quoted)
			if err != nil {
				return nil, bad
			}
			keys, s = append(keys, key), s[len(quoted):]
			if s != "" && s[0] != '.' {
				return nil, bad
			}
		} else {
			i := strings.IndexByte(s, '.')
			if i < 0 {
				i = len(s)
			}
			if i == 0 || strings.ContainsAny(s[:i], "\" \t\n[]") {
				return nil, bad
			}
			keys, s = append(keys, s[:i]), s[i:]
		}
		if s == "" {
			return keys, nil
		}
		s = s[1:]
	}
}
