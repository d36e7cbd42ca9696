package eval

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math/big"
	"path"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/muster-config/muster/cue/eval/encode"
	"github.com/muster-config/muster/cue/eval/jsonschema"
	"github.com/muster-config/muster/cue/eval/layer"
)

// editor judges values as an editor does: JSON Schema, as far as our schemas use it. An unknown keyword fails the test.
type editor struct {
	t    *testing.T
	root any
}

func newEditor(t *testing.T, doc []byte) *editor {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(doc))
	d.UseNumber()
	e := &editor{t: t}
	if err := d.Decode(&e.root); err != nil {
		t.Fatalf("%v\n%s", err, doc)
	}
	return e
}

func rational(v any) *big.Rat {
	r, ok := new(big.Rat).SetString(fmt.Sprint(v))
	if !ok {
		return nil
	}
	return r
}

func equal(a, b any) bool {
	if x, ok := b.(json.Number); ok {
		n, ok := a.(encode.Number)
		return ok && rational(n).Cmp(rational(x)) == 0
	}
	return reflect.DeepEqual(a, b)
}

func kindName(v any) string {
	switch v := v.(type) {
	case nil:
		return "null"
	case bool:
		return "boolean"
	case string:
		return "string"
	case []any:
		return "array"
	case map[string]any:
		return "object"
	case encode.Number:
		if rational(v).IsInt() {
			return "integer"
		}
		return "number"
	}
	return "?"
}

// why says what is wrong with v; "" if nothing.
func (e *editor) why(schema, v any, at string) string {
	if schema == false {
		return at + ": not allowed"
	}
	s, ok := schema.(map[string]any)
	if !ok {
		return ""
	}
	object, _ := v.(map[string]any)
	list, _ := v.([]any)
	text, isText := v.(string)
	number, isNumber := v.(encode.Number)
	for _, k := range slices.Sorted(maps.Keys(s)) {
		want := s[k]
		bad := ""
		switch k {
		case "$schema", "$defs", "title", "description", "default":
		case "$ref":
			var target any
			target = e.root
			for _, p := range strings.Split(strings.TrimPrefix(want.(string), "#/"), "/") {
				target = target.(map[string]any)[p]
			}
			if target == nil {
				e.t.Fatalf("$ref to nothing: %v", want)
			}
			bad = e.why(target, v, at)
		case "type":
			names, ok := want.([]any)
			if !ok {
				names = []any{want}
			}
			if kind := kindName(v); !slices.Contains(names, any(kind)) && (kind != "integer" || !slices.Contains(names, any("number"))) {
				bad = at + ": " + kind
			}
		case "const":
			if !equal(v, want) {
				bad = at + ": not the constant"
			}
		case "enum":
			if !slices.ContainsFunc(want.([]any), func(w any) bool { return equal(v, w) }) {
				bad = at + ": not one of them"
			}
		case "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum":
			if isNumber {
				c := rational(number).Cmp(rational(want))
				if c < 0 && strings.HasSuffix(strings.ToLower(k), "minimum") || c > 0 && strings.HasSuffix(strings.ToLower(k), "maximum") || c == 0 && strings.HasPrefix(k, "exclusive") {
					bad = at + ": " + k
				}
			}
		case "pattern":
			if isText && !regexp.MustCompile(want.(string)).MatchString(text) {
				bad = at + ": pattern"
			}
		case "not":
			if e.why(want, v, at) == "" {
				bad = at + ": not"
			}
		case "anyOf", "allOf":
			fits := 0
			for _, w := range want.([]any) {
				if e.why(w, v, at) == "" {
					fits++
				}
			}
			if fits == 0 || k == "allOf" && fits < len(want.([]any)) {
				bad = at + ": " + k
			}
		case "required":
			for _, name := range want.([]any) {
				if _, ok := object[name.(string)]; object != nil && !ok {
					bad = at + ": missing " + name.(string)
				}
			}
		case "properties":
			for name, w := range want.(map[string]any) {
				if f, ok := object[name]; ok && bad == "" {
					bad = e.why(w, f, at+"."+name)
				}
			}
		case "patternProperties":
			for re, w := range want.(map[string]any) {
				for name, f := range object {
					if regexp.MustCompile(re).MatchString(name) && bad == "" {
						bad = e.why(w, f, at+"."+name)
					}
				}
			}
		case "additionalProperties":
			known, _ := s["properties"].(map[string]any)
			patterns, _ := s["patternProperties"].(map[string]any)
			for name, f := range object {
				_, ok := known[name]
				for re := range patterns {
					ok = ok || regexp.MustCompile(re).MatchString(name)
				}
				if !ok && bad == "" {
					bad = e.why(want, f, at+"."+name)
				}
			}
		case "prefixItems", "items":
			first, _ := s["prefixItems"].([]any)
			for i, item := range list {
				w := s["items"]
				if i < len(first) {
					w = first[i]
				}
				if bad == "" {
					bad = e.why(w, item, fmt.Sprintf("%s.%d", at, i))
				}
			}
		case "minItems":
			if list != nil && rational(want).Cmp(big.NewRat(int64(len(list)), 1)) > 0 {
				bad = at + ": too few"
			}
		default:
			e.t.Fatalf("keyword %q", k)
		}
		if bad != "" {
			return bad
		}
	}
	return ""
}

// withNulls is a layer as its file says it: deletions are null.
func withNulls(n *layer.Node) any {
	switch n.Kind {
	case layer.Struct:
		out := map[string]any{}
		for k, f := range n.Fields {
			out[k] = withNulls(f)
		}
		return out
	case layer.List:
		out := []any{}
		for _, i := range n.Items {
			out = append(out, withNulls(i))
		}
		return out
	}
	return n.Value
}

func def(base bool) map[string]any {
	name := "overlay"
	if base {
		name = "base"
	}
	return map[string]any{"$ref": "#/$defs/" + name}
}

// mutant is a layer with one change.
type mutant struct {
	name string
	doc  map[string]any
}

// mutants changes every value of a document to others, removes each, and adds unknown keys.
func mutants(doc map[string]any) []mutant {
	var out []mutant
	clone := func() map[string]any {
		var copyOf func(any) any
		copyOf = func(v any) any {
			switch v := v.(type) {
			case map[string]any:
				m := map[string]any{}
				for k, e := range v {
					m[k] = copyOf(e)
				}
				return m
			case []any:
				l := []any{}
				for _, e := range v {
					l = append(l, copyOf(e))
				}
				return l
			}
			return v
		}
		return copyOf(doc).(map[string]any)
	}
	at := func(m map[string]any, path []string) map[string]any {
		for _, p := range path {
			m = m[p].(map[string]any)
		}
		return m
	}
	var walk func(m map[string]any, path []string)
	walk = func(m map[string]any, path []string) {
		c := clone()
		at(c, path)["zzz"] = "x"
		out = append(out, mutant{strings.Join(path, ".") + " unknown key", c})
		for _, k := range slices.Sorted(maps.Keys(m)) {
			c := clone()
			delete(at(c, path), k)
			out = append(out, mutant{strings.Join(path, ".") + "." + k + " removed", c})
			for i, v := range []any{"odd text", encode.Number("99999999"), map[string]any{"zzz": "x"}, nil} {
				c := clone()
				at(c, path)[k] = v
				out = append(out, mutant{fmt.Sprintf("%s.%s value %d", strings.Join(path, "."), k, i), c})
			}
			if sub, ok := m[k].(map[string]any); ok {
				walk(sub, append(slices.Clone(path), k))
			}
		}
	}
	walk(doc, nil)
	return out
}

// The exported schemas take each layer of the example repos, never refuse what validate takes, and find most of what it refuses.
func TestJSONSchemas(t *testing.T) {
	for _, dir := range []string{"../../examples/acme", "testdata/convention"} {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			req := dirRequest(t, dir)
			req.SchemasToo, req.FilesToo = true, false
			res := Evaluate(req)
			if res.Failed() || len(res.Schemas) == 0 {
				t.Fatalf("%d schemas\n%s", len(res.Schemas), Format(res.Problems))
			}
			found, refused := 0, 0
			for i, f := range req.Files {
				service, ok := serviceOf(f.Path)
				if !ok || !layer.IsLayer(path.Base(f.Path)) || res.Schemas[service] == nil {
					continue
				}
				base := path.Dir(f.Path) == "services/"+service
				if base && !strings.HasPrefix(path.Base(f.Path), "base.") {
					continue
				}
				n, errs := layer.Read(f.Path, f.Data, base)
				if len(errs) > 0 {
					t.Fatal(errs)
				}
				format := strings.TrimPrefix(path.Ext(f.Path), ".")
				doc := withNulls(n).(map[string]any)
				e := newEditor(t, res.Schemas[service])
				if why := e.why(def(base), doc, ""); why != "" {
					t.Errorf("%s is refused: %s", f.Path, why)
				}
				for k, m := range mutants(doc) {
					if raceEnabled && k%5 != 0 {
						continue // each is an evaluation
					}
					data, err := encode.Encode(format, m.doc)
					if err != nil {
						continue // null in TOML, say
					}
					again := *req
					again.Services, again.SchemasToo = []string{service}, false
					again.Files = nil
					for j, g := range req.Files {
						if other, ok := serviceOf(g.Path); ok && other != service {
							continue
						}
						if j == i {
							g.Data = data
						}
						again.Files = append(again.Files, g)
					}
					problems := Evaluate(&again).Problems
					says := slices.ContainsFunc(problems, func(p Problem) bool { return p.Severity != SeverityNotice })
					why := e.why(def(base), m.doc, "")
					switch {
					case why != "" && !says:
						t.Errorf("%s, %s: the schema refuses what validate takes: %s", f.Path, m.name, why)
					case says:
						refused++
						if why != "" {
							found++
						}
					}
				}
			}
			t.Logf("the schemas find %d of %d", found, refused)
			if refused < 10 || found*10 < refused*6 {
				t.Errorf("the schemas find %d of %d that validate refuses", found, refused)
			}
		})
	}
}

func TestJSONSchemaOfTheFirstLine(t *testing.T) {
	res := Evaluate(&Request{Files: dirRequest(t, "../../examples/acme").Files, SchemasToo: true})
	golden(t, "golden/checkout.schema.json", string(res.Schemas["checkout"]))
	if !utf8.Valid(res.Schemas["checkout"]) || bytes.Contains(res.Schemas["checkout"], []byte("\r")) {
		t.Error("not plain text")
	}
	// An editor's first line names one file: overlays have a small one that refers to the service's.
	var overlay map[string]string
	if err := json.Unmarshal(jsonschema.Overlay("checkout.schema.json"), &overlay); err != nil {
		t.Fatal(err)
	}
	if overlay["$ref"] != "checkout.schema.json#/$defs/overlay" {
		t.Errorf("got %v", overlay)
	}
	for _, service := range []string{"search", "mailer"} {
		if res.Schemas[service] == nil {
			t.Errorf("no schema of %s", service)
		}
	}
}
