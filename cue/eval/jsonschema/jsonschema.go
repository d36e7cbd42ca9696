// Package jsonschema writes CUE schemas as JSON Schema, for editors.
package jsonschema

import (
	"slices"
	"strconv"
	"strings"

	"cuelang.org/go/cue"

	"github.com/muster-config/muster/cue/eval/encode"
	"github.com/muster-config/muster/cue/eval/layer"
)

// draft is the dialect of the schemas that are written.
const draft = "https://json-schema.org/draft/2020-12/schema"

// maxSchemaDepth and maxSchemaParts bound what references may unfold to; beyond them anything is allowed.
const (
	maxSchemaDepth = 40
	maxSchemaParts = 5_000
)

// Write gives a service's #Config as a JSON Schema (draft 2020-12) for editors, or nil if it cannot be built:
//
//	$defs.base      for the base: what is demanded is required, but for what an overlay gives
//	$defs.overlay   for overlays: the same with nothing required, and null for every key, which deletes it
//
// The document as a whole stands for the base. It is canonical: equal schemas give equal bytes. elsewhere tells whether an overlay of the
// service gives a value at a path.
//
// An editor must not underline what `validate` takes, so where CUE says more than JSON Schema can (a bound that depends on a neighbour, a
// computed value, a regular expression of RE2's own) only the kind of the value is asked for. cuelang.org/go/encoding/jsonschema is not
// used: it refuses references between fields, and its output may change from release to release.
//
// A field that is marked @secret(), or whose name secret knows, is told by its kind and its bounds: its defaults and constants are left out.
func Write(service string, config cue.Value, elsewhere func(path []string) bool, secret func(name string) bool) []byte {
	if config.Err() != nil {
		return nil
	}
	g := &schemaWriter{defs: part{}, cycles: map[string]string{}, elsewhere: elsewhere, secret: secret}
	base := g.schema(config)
	base["title"] = service
	g.overlay, g.parts = true, 0
	overlay := g.schema(config)
	overlay["title"] = "an overlay of " + service + ": null deletes a key"
	g.defs["base"], g.defs["overlay"] = base, overlay
	out, err := encode.Encode("json", part{"$schema": draft, "$ref": "#/$defs/base", "$defs": g.defs})
	if err != nil {
		return nil // what CUE took for text or a number is both
	}
	return out
}

// Overlay is the document for editors of overlays. It refers to base, the name of the file that holds the service's schema.
func Overlay(base string) []byte {
	out, err := encode.Encode("json", map[string]any{"$schema": draft, "$ref": base + "#/$defs/overlay"})
	if err != nil {
		panic(err) // a file's name that is no text
	}
	return out
}

// part is one schema. An empty one allows anything.
type part = map[string]any

type schemaWriter struct {
	overlay bool
	inList  int // lists replace as a whole, so what is in one is given in full
	depth   int
	parts   int
	open    []string          // references being followed
	cycles  map[string]string // those of them that lead back to themselves: the name in defs
	defs    part

	elsewhere func(path []string) bool
	path      []string // of fields; nothing in a list
	secret    func(name string) bool
	hidden    int // in how many fields that are secrets this is
}

// full tells whether a value must be given in full here.
func (g *schemaWriter) full() bool { return !g.overlay || g.inList > 0 }

// schema is the schema of one value.
func (g *schemaWriter) schema(v cue.Value) part {
	g.parts++
	if g.depth++; g.depth > maxSchemaDepth || g.parts > maxSchemaParts {
		g.depth--
		return part{}
	}
	defer func() { g.depth-- }()

	root, path := v.ReferencePath()
	if !root.Exists() {
		return g.described(v)
	}
	selectors := path.Selectors()
	if len(selectors) == 0 || !selectors[len(selectors)-1].IsDefinition() {
		return kinds(v) // another field's value: computed
	}
	ref := root.Pos().String() + " " + path.String() + " " + strconv.FormatBool(g.full())
	if slices.Contains(g.open, ref) {
		if g.cycles[ref] == "" {
			g.cycles[ref] = selectors[len(selectors)-1].String() + "." + strconv.Itoa(len(g.cycles)+1)
		}
		return part{"$ref": "#/$defs/" + strings.TrimPrefix(g.cycles[ref], "#")}
	}
	g.open = append(g.open, ref)
	out := g.described(v)
	g.open = g.open[:len(g.open)-1]
	if name := strings.TrimPrefix(g.cycles[ref], "#"); name != "" {
		g.defs[name] = out
		delete(g.cycles, ref)
		g.cycles[ref+" done"] = name // keeps the numbers apart
		return part{"$ref": "#/$defs/" + name}
	}
	return out
}

// described is the schema with the default and the words of its definition.
func (g *schemaWriter) described(v cue.Value) part {
	v = cue.Dereference(v)
	out := g.expression(v)
	if words := docText(v); words != "" {
		out["description"] = words
	}
	if d, ok := v.Default(); ok && d.IsConcrete() && out["const"] == nil && g.full() && g.hidden == 0 && !markedSecret(v) && v.IncompleteKind()&(cue.StructKind|cue.ListKind) == 0 {
		if plain, err := layer.Plain(d); err == nil {
			out["default"] = plain
		}
	}
	return out
}

// field is the schema of a struct's field: in an overlay null deletes it.
func (g *schemaWriter) field(v cue.Value) part {
	s := g.schema(v)
	if words := docText(v); words != "" {
		s["description"] = words
	}
	if g.full() {
		return s
	}
	if e, ok := s["enum"].([]any); ok {
		if !slices.Contains(e, nil) {
			s["enum"] = append(e, nil)
		}
		return s
	}
	if c, ok := s["const"]; ok {
		delete(s, "const")
		s["enum"] = []any{c, nil}
		return s
	}
	switch t := s["type"].(type) {
	case string:
		if t != "null" {
			s["type"] = []any{t, "null"} // the other keywords are about values of their own kind
		}
		return s
	case []any:
		if !slices.Contains(t, "null") {
			s["type"] = append(t, "null")
		}
		return s
	}
	if choices, ok := s["anyOf"].([]any); ok {
		if !slices.ContainsFunc(choices, func(c any) bool { return same(c, part{"type": "null"}) }) {
			s["anyOf"] = append(choices, part{"type": "null"})
		}
		return s
	}
	if len(s) == 0 || s["$ref"] == nil {
		return s
	}
	out := part{"anyOf": []any{s, part{"type": "null"}}}
	if words, ok := s["description"]; ok {
		out["description"] = words
		delete(s, "description")
	}
	return out
}

func docText(v cue.Value) string {
	var out []string
	for _, group := range v.Doc() {
		if text := strings.TrimSpace(group.Text()); text != "" && !slices.Contains(out, text) {
			out = append(out, text)
		}
	}
	return strings.Join(out, "\n\n")
}

func markedSecret(v cue.Value) bool {
	return slices.ContainsFunc(v.Attributes(cue.FieldAttr), func(a cue.Attribute) bool { return a.Name() == "secret" })
}
