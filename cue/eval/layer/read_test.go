package layer

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-config/muster/cue/eval/encode"
)

func TestRead(t *testing.T) {
	num := func(s string) any { return encode.Number(s) }
	for _, tt := range []struct {
		name, file, body string
		want             any
	}{
		{"scalars", "a.yaml", "a: 1\nb: -2.50\nc: true\nd: x y\ne: ~\nf: 0x1F\ng: +7\nh: -0\ni: -0.0\nj: .5\nk: 1e-3\n",
			map[string]any{"a": num("1"), "b": num("-2.5"), "c": true, "d": "x y", "e": nil, "f": num("31"), "g": num("7"), "h": num("0"), "i": num("0.0"), "j": num("0.5"), "k": num("0.001")}},
		{"quoted", "a.yaml", "a: '1'\nb: \"true\"\nc: |\n  1\nd: !!str 5\n", map[string]any{"a": "1", "b": "true", "c": "1\n", "d": "5"}},
		{"big integer", "a.yaml", "a: 12345678901234567890123456789012\n", map[string]any{"a": num("12345678901234567890123456789012")}},
		{"aliases", "a.yaml", "a: &x {k: 1}\nb: *x\n", map[string]any{"a": map[string]any{"k": num("1")}, "b": map[string]any{"k": num("1")}}},
		{"merge keys", "a.yaml", "a: &x {k: 1, l: 2}\nb: {<<: *x, k: 3}\nc: {<<: [{k: 5}, *x]}\n",
			map[string]any{"a": map[string]any{"k": num("1"), "l": num("2")}, "b": map[string]any{"k": num("3"), "l": num("2")}, "c": map[string]any{"k": num("5"), "l": num("2")}}},
		{"keys are strings", "a.yaml", "8080: a\n1.5: b\ntrue: c\non: d\n", map[string]any{"8080": "a", "1.5": "b", "true": "c", "on": "d"}},
		{"crlf", "a.yaml", "a: 1\r\nb: x\r\n", map[string]any{"a": num("1"), "b": "x"}},
		{"byte order mark", "a.yaml", "\ufeffa: 1\n", map[string]any{"a": num("1")}},
		{"json", "a.json", `{"a": [1, 2.0, -3e2, "x\u00e9", null, true, {}], "b": {"c": "\ud83d\ude00"}}`,
			map[string]any{"a": []any{num("1"), num("2.0"), num("-300.0"), "xé", nil, true, map[string]any{}}, "b": map[string]any{"c": "😀"}}},
		{"json mark", "a.json", "\ufeff{\"a\": \"\ufffd\"}", map[string]any{"a": "\ufffd"}},
		{"blank json", "a.json", " \n", map[string]any{}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n, errs := Read(tt.file, []byte(tt.body), true)
			if len(errs) > 0 {
				t.Fatal(errs)
			}
			if d := cmp.Diff(tt.want, n.Plain()); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
		})
	}
}

func TestReadRefuses(t *testing.T) {
	for _, tt := range []struct{ name, file, body, want string }{
		{"utf-16", "a.yaml", "\xff\xfea\x00", "a.yaml:1:1: UTF-16 or UTF-32, but a layer is UTF-8"},
		{"nul", "a.yaml", "a: 1\nb: \x00\n", "a.yaml:2:4: a NUL byte: a layer is UTF-8 text"},
		{"latin-1", "a.yaml", "a: 1\nb: caf\xe9\n", "a.yaml:2:7: not UTF-8"},
		{"latin-1 in json", "a.json", "{\"b\": \"\xe9\"}", "a.json:1:8: not UTF-8"},
		{"infinity", "a.yaml", "a: .inf\n", "a.yaml:1:4: a: infinity and not-a-number are not values"},
		{"not a number", "a.yaml", "a: {b: .nan}\n", "a.yaml:1:8: a.b: infinity and not-a-number are not values"},
		{"too many digits", "a.yaml", "a: 12345678901234567890123456789012345\n", "a.yaml:1:4: a: a number of more than 34 digits would be rounded: quote it, so that it is a string"},
		{"huge", "a.json", `{"a": 1e999}`, "a.json:1:7: a: the number is out of range"},
		{"zip code", "a.yaml", "zip: 08123\n", "a.yaml:1:6: zip: a number with a leading zero: quote it, so that it is a string"},
		{"binary", "a.yaml", "a: !!binary aGk=\n", "a.yaml:1:4: a: binary data is no value: name a file instead"},
		{"own tag", "a.yaml", "a: !vault x\n", "a.yaml:1:4: a: a YAML tag that is not known"},
		{"tag on a mapping", "a.yaml", "a: !x {b: 1}\n", "a.yaml:1:4: a: a YAML tag that is not known"},
		{"wrong tag", "a.yaml", "a: !!int x\n", "a.yaml:1:4: a: the value is not what its tag says"},
		{"complex key", "a.yaml", "? [a]\n: 1\n", "a.yaml:1:3: a key must be a plain word or a string"},
		{"null key", "a.yaml", "~: 1\n", "a.yaml:1:1: a key must be a plain word or a string"},
		{"unknown anchor", "a.yaml", "a: *nope\n", "a.yaml: not valid YAML: an alias of an anchor that is not there"},
		{"tab", "a.yaml", "a:\n\tb: 1\n", "a.yaml:2: not valid YAML: found character that cannot start any token"},
		{"two documents", "a.yaml", "a: 1\n---\nb: 1\n", "a.yaml:2:1: more than one YAML document: a layer is one"},
		{"columns count bytes", "a.yaml", "{é: 1, b: .inf}\n", "a.yaml:1:12: b: infinity and not-a-number are not values"},
		{"scalar", "a.yaml", "5\n", "a.yaml:1:1: a layer is a struct (key: value), not an integer"},
		{"json list", "a.json", "[1]", "a.json:1:1: a layer is a struct (key: value), not a list"},
		{"json null", "a.json", "null", "a.json:1:1: a layer is a struct (key: value), not null"},
		{"json ends", "a.json", "{\"a\": 1", "a.json:1:8: not valid JSON: it ends too early"},
		{"json twice", "a.json", "{} {}", "a.json:1:4: not valid JSON: something follows the document"},
		{"json comment", "a.json", "{\n  // x\n}", "a.json:2:3: not valid JSON"},
		{"half a pair", "a.json", `{"a": "\ud800x"}`, "a.json:1:7: a: half of a surrogate pair (\\ud800 to \\udfff)"},
		{"later", "a.toml", "a = 1", "a.toml: TOML layers are not read by this version yet: write it as YAML"},
		{"other", "a.ini", "", "a.ini: not a layer: its name must end in .yaml or .json"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, errs := Read(tt.file, []byte(tt.body), true)
			if len(errs) == 0 {
				t.Fatal("it is read")
			}
			if got := errs[0].Error(); got != tt.want {
				t.Errorf("got  %s\nwant %s", got, tt.want)
			}
		})
	}
}

func TestNullInOverlayDeletes(t *testing.T) {
	for _, f := range []string{"a.yaml", "a.json"} {
		n, errs := Read(f, []byte(`{"a": null, "l": [null]}`), false)
		if len(errs) > 0 {
			t.Fatal(errs)
		}
		if n.Fields["a"].Kind != Delete || n.Fields["l"].Items[0].Kind != Scalar {
			t.Errorf("%s: %v and %v", f, n.Fields["a"].Kind, n.Fields["l"].Items[0].Kind)
		}
	}
}

// What is read must come out of the encoder and be read again as the same.
func fuzz(t *testing.T, name string, data []byte) {
	n, errs := Read(name, data, true)
	if len(errs) > 0 {
		for _, e := range errs {
			if e.Msg == "" || strings.Contains(e.Msg, "\n") {
				t.Fatalf("error without one line of text: %q", e.Msg)
			}
			for _, at := range e.At {
				if at.Filename != name || at.Line < 0 || at.Column < 0 {
					t.Fatalf("position %v", at)
				}
			}
		}
		return
	}
	n.Walk(func(path []string, n *Node) {
		if p := n.Pos.Position(); len(path) > 0 && (p.Line < 1 || p.Column < 1) {
			t.Fatalf("%q has no position", path)
		}
	})
	for _, format := range []string{"yaml", "json"} {
		out, err := encode.Encode(format, n.Plain())
		if err != nil {
			t.Fatalf("what was read cannot be written as %s: %v", format, err)
		}
		again, errs := Read("again."+format, out, true)
		if len(errs) > 0 {
			t.Fatalf("what was written as %s cannot be read: %v\n%s", format, errs, out)
		}
		if !reflect.DeepEqual(n.Plain(), again.Plain()) {
			t.Fatalf("%s reads back differently:\n%s", format, cmp.Diff(n.Plain(), again.Plain()))
		}
	}
}

func FuzzYAML(f *testing.F) {
	for _, s := range []string{"", "a: 1\nb: [x, {c: d}]\n", "a: &x {b: 1}\nc: {<<: *x}\n", "a: |\n  x\n y: >-\n", "{a: !!str 1, ? b : c}", "--- a: b\n...\n", "a: 0o17\nb: 1_0\nc: .5e3\n", "a: \"\\u2028\\x85\"\n"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) { fuzz(t, "f.yaml", data) })
}

func FuzzJSON(f *testing.F) {
	for _, s := range []string{"", `{"a":[1,2.5e3,null,{"b":"\u00e9\ud83d\ude00"}]}`, `{"a":1,"a":2}`, "{\"\ufffd\":\"\\ufffd\"}", `{"a":{}}x`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) { fuzz(t, "f.json", data) })
}

func FuzzNumber(f *testing.F) {
	for _, s := range []string{"0", "-0.0", "1e3", "123.4500", "9e400", "1e-400", "nan"} {
		f.Add(s, true)
		f.Add(s, false)
	}
	f.Fuzz(func(t *testing.T, s string, integer bool) {
		n, err := ParseNumber(s, integer)
		if err != nil {
			return
		}
		again, err := ParseNumber(string(n), !strings.Contains(string(n), "."))
		if err != nil || again != n {
			t.Fatalf("%q is %q, and that is %q, %v", s, n, again, err)
		}
		if strings.ContainsAny(fmt.Sprint(n), "eE+") {
			t.Fatalf("%q has an exponent", n)
		}
	})
}
