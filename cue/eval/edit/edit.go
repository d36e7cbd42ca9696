// Package edit sets values in layer files as a careful person would: what is asked for changes, and every other byte, comments and order too, stays as it was written.
// Bytes in, bytes out. What a format cannot say, or what is written in a way that this package does not understand, is an error, never a guess: each result is read again and
// compared with what it must say.
package edit

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"reflect"
	"slices"

	"github.com/muster-config/muster/cue/eval/layer"
)

// ErrCannot says that a file must be edited by hand.
var ErrCannot = errors.New("cannot be edited by a program")

// Layer sets in a layer file (YAML, JSON, TOML, .env, by its name) what an override's values set: JSON text of an object, in which null removes. In a base a removed key leaves the
// file; in an overlay it is null there, so that what lies below is removed.
func Layer(name string, data []byte, base bool, values string) ([]byte, error) {
	p, err := readPatch(values)
	if err != nil {
		return nil, err
	}
	ext := path.Ext(name)
	old, err := read(ext, name, data, base)
	if err != nil {
		return nil, err
	}
	want := layer.Merge(old, p.node)
	if base {
		want = want.Final()
	}
	one := map[string]func([]byte, *layer.Node, bool, setting) ([]byte, error){".yaml": setYAML, ".json": setJSON, ".toml": setTOML, ".env": setEnv}[ext]
	out := data
	for _, s := range p.settings {
		now, err := read(ext, name, out, base)
		if err == nil {
			out, err = one(out, now, base, s)
		}
		if err != nil {
			out = nil
			break
		}
	}
	if out != nil && says(ext, name, out, base, want) {
		return out, nil
	}
	if ext == ".yaml" { // without the layout, then
		if out, err := yamlAnew(data, base, p.settings); err == nil && says(ext, name, out, base, want) {
			return out, nil
		}
	}
	return nil, fmt.Errorf("%s: %w: set the values by hand", name, ErrCannot)
}

func read(ext, name string, data []byte, base bool) (*layer.Node, error) {
	n, errs := layer.ReadAs(ext, name, data, base)
	if len(errs) > 0 {
		return nil, errs[0]
	}
	return n, nil
}

func says(ext, name string, data []byte, base bool, want *layer.Node) bool {
	got, err := read(ext, name, data, base)
	return err == nil && same(got, want)
}

// same compares what two layers say, not how they came to it.
func same(a, b *layer.Node) bool {
	if a.Kind != b.Kind {
		return false
	}
	switch a.Kind {
	case layer.Delete:
		return true
	case layer.Struct:
		return slices.Equal(a.Keys(), b.Keys()) && !slices.ContainsFunc(a.Keys(), func(k string) bool { return !same(a.Fields[k], b.Fields[k]) })
	}
	return reflect.DeepEqual(a.Plain(), b.Plain())
}

// setting is one value to set: a scalar, a list, an empty struct, or nothing (remove).
type setting struct {
	path   []string
	value  any // as encoding/json gives it, numbers as json.Number
	remove bool
}

type patch struct {
	node     *layer.Node
	settings []setting
}

func readPatch(values string) (*patch, error) {
	n, errs := layer.ReadAs(".json", "override", []byte(values), false)
	if len(errs) > 0 {
		return nil, fmt.Errorf("the values: %s", errs[0].Msg)
	}
	dec := json.NewDecoder(bytes.NewReader([]byte(values)))
	dec.UseNumber()
	var all map[string]any
	if err := dec.Decode(&all); err != nil {
		return nil, fmt.Errorf("the values: %w", err)
	}
	p := &patch{node: n}
	var walk func(n *layer.Node, v any, at []string)
	walk = func(n *layer.Node, v any, at []string) {
		m, ok := v.(map[string]any)
		if !ok || len(m) == 0 {
			p.settings = append(p.settings, setting{at, v, n.Kind == layer.Delete})
			return
		}
		for _, k := range n.Keys() {
			walk(n.Fields[k], m[k], append(at[:len(at):len(at)], k))
		}
	}
	if len(all) > 0 {
		walk(n, all, nil)
	}
	return p, nil
}

// place is how far a layer goes along a path: the deepest node, and how many keys lead to it.
func place(n *layer.Node, path []string) (*layer.Node, int) {
	for i, k := range path {
		if n.Kind != layer.Struct || n.Fields[k] == nil {
			return n, i
		}
		n = n.Fields[k]
	}
	return n, len(path)
}

// nested is a value below keys.
func nested(keys []string, v any) any {
	for _, k := range slices.Backward(keys) {
		v = map[string]any{k: v}
	}
	return v
}

// splice replaces data[from:to].
func splice(data []byte, from, to int, text string) []byte {
	return slices.Concat(data[:from:from], []byte(text), data[to:])
}

// lastField is the field of a struct that is written last.
func lastField(n *layer.Node) *layer.Node {
	var last *layer.Node
	for _, f := range n.Fields {
		if f.KeyPos.IsValid() && (last == nil || f.KeyPos.Offset() > last.KeyPos.Offset()) {
			last = f
		}
	}
	return last
}

func firstField(n *layer.Node) *layer.Node {
	var first *layer.Node
	for _, f := range n.Fields {
		if f.KeyPos.IsValid() && (first == nil || f.KeyPos.Offset() < first.KeyPos.Offset()) {
			first = f
		}
	}
	return first
}

// flowEnd is the end of a quoted text, or of what stands in brackets, that begins at i; -1 if it has none.
func flowEnd(data []byte, i int) int {
	depth := 0
	for i < len(data) {
		switch c := data[i]; c {
		case '"', '\'':
			j := quoteEnd(data, i)
			if j < 0 || depth == 0 {
				return j
			}
			i = j
			continue
		case '[', '{':
			depth++
		case ']', '}':
			if depth--; depth == 0 {
				return i + 1
			}
		case '#':
			return -1 // a comment, or a text that looks like one: not for a program
		}
		i++
	}
	return -1
}

func quoteEnd(data []byte, i int) int {
	q := data[i]
	for j := i + 1; j < len(data); j++ {
		switch {
		case data[j] == '\\' && q == '"':
			j++
		case data[j] == q && q == '\'' && j+1 < len(data) && data[j+1] == q:
			j++
		case data[j] == q:
			return j + 1
		}
	}
	return -1
}

// lineEnd is where the line of i ends, before its line break.
func lineEnd(data []byte, i int) int {
	if j := bytes.IndexByte(data[i:], '\n'); j >= 0 {
		return i + j
	}
	return len(data)
}

// lineStart is where the line of i begins.
func lineStart(data []byte, i int) int { return bytes.LastIndexByte(data[:i], '\n') + 1 }

func jsonText(v any) string {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		panic("edit: " + err.Error()) // it came from JSON
	}
	return string(bytes.TrimSpace(b.Bytes()))
}
