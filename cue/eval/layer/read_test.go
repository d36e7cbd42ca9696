package layer

import (
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
		{"aliases of aliases", "a.yaml", "n: &n ~\na: &a [1]\nb: &b {k: *a}\nc: [*b, *a, *n]\nd: *n\n", map[string]any{
			"n": nil, "a": []any{num("1")}, "b": map[string]any{"k": []any{num("1")}}, "c": []any{map[string]any{"k": []any{num("1")}}, []any{num("1")}, nil}, "d": nil}},
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
		{"tab", "a.yaml", "a:\n\tb: 1\n", "a.yaml:2:1: not valid YAML: a tab: YAML indents with spaces"},
		{"tab further down", "a.yaml", "a:\n  b: |\n    y\n    \tx\n\tc: 2\n", "a.yaml:5:1: not valid YAML: a tab: YAML indents with spaces"},
		{"tab behind spaces", "a.yaml", "a:\n  - x\n \t- y\n", "a.yaml:3:2: not valid YAML: a tab: YAML indents with spaces"},
		{"tab that is none", "a.yaml", "a: [1,\n\t2]\nb: [1, @x]\n", "a.yaml:3: not valid YAML: found character that cannot start any token"},
		{"second colon", "a.yaml", "x: 1\ny: note: this\nz: 1\n", "a.yaml:2:8: not valid YAML: a second \": \" in one line: quote the value, or begin a new line"},
		{"second colon in the first line", "a.yaml", "k: foo: bar # x\n", "a.yaml:1:7: not valid YAML: a second \": \" in one line: quote the value, or begin a new line"},
		{"colon behind quotes", "a.yaml", "k: \"x: y\": z\n", "a.yaml:1:10: not valid YAML: a second \": \" in one line: quote the value, or begin a new line"},
		{"indented too far", "a.yaml", "a: 1\n b: 2\n", "a.yaml:2:3: not valid YAML: a \": \" inside a value: wrong indentation, or the value needs quotes"},
		{"indented too little", "a.yaml", "a:\n  - b: 1\n  c: 2\n", "a.yaml:2: not valid YAML: did not find expected '-' indicator"},
		{"line of a broken list", "a.yaml", "a: 1\nb:\n  - c: 1\n    d: [1, 2\n  - e: 1\n", "a.yaml:4: not valid YAML: did not find expected ',' or ']'"},
		{"conflict in yaml", "a.yaml", "a: x\n<<<<<<< HEAD\nb: 1\n=======\nb: 2\n>>>>>>> other\n", "a.yaml:2:1: a git conflict marker: the merge is not finished; keep one of the sides"},
		{"conflict in json", "a.json", "{\n<<<<<<< HEAD\n\"a\": 1\n=======\n\"a\": 2\n>>>>>>> other\n}\n", "a.json:2:1: a git conflict marker: the merge is not finished; keep one of the sides"},
		{"conflict in toml", "a.toml", "a = 1\r\n<<<<<<< HEAD\r\nb = 1\r\n=======\r\nb = 2\r\n>>>>>>> other\r\n", "a.toml:2:1: a git conflict marker: the merge is not finished; keep one of the sides"},
		{"half of a conflict", "a.env", "A=1\nB=2\n=======\nB=1\n>>>>>>> other\n", "a.env:3:1: a git conflict marker: the merge is not finished; keep one of the sides"},
		{"underlined heading", "a.yaml", "a: \"x\n=======\n y\"\nb: [1, @x]\n", "a.yaml:4: not valid YAML: found character that cannot start any token"},
		{"invisible line break", "a.yaml", "a: 1 # x\u2028b: 2\n", "a.yaml:1:9: an invisible line break (U+0085, U+2028 or U+2029), which YAML readers take differently: write it as an escape in double quotes"},
		{"alias in itself", "a.yaml", "a: &x [*x]\n", "a.yaml:1:8: a.0: an alias inside its own anchor"},
		{"merge key twice", "a.yaml", "x: &x {k: 1}\na:\n  <<: *x\n  <<: *x\n", "a.yaml:4:3: a.\"<<\": set twice in one file"},
		{"merge of a scalar", "a.yaml", "x: &x 1\na: {<<: *x}\n", "a.yaml:2:9: a: << takes a mapping, or a list of them"},
		{"old line ends", "a.yaml", "a: 1\rb: .inf\r", "a.yaml:1:9: b: infinity and not-a-number are not values"},
		{"two documents", "a.yaml", "a: 1\n---\nb: 1\n", "a.yaml:2:1: more than one YAML document: a layer is one"},
		{"columns count bytes", "a.yaml", "{é: 1, b: .inf}\n", "a.yaml:1:12: b: infinity and not-a-number are not values"},
		{"scalar", "a.yaml", "5\n", "a.yaml:1:1: a layer is a struct (key: value), not an integer"},
		{"json list", "a.json", "[1]", "a.json:1:1: a layer is a struct (key: value), not a list"},
		{"json null", "a.json", "null", "a.json:1:1: a layer is a struct (key: value), not null"},
		{"json ends", "a.json", "{\"a\": 1", "a.json:1:8: not valid JSON: it ends too early"},
		{"json twice", "a.json", "{} {}", "a.json:1:4: not valid JSON: something follows the document"},
		{"json comment", "a.json", "{\n  // x\n}", "a.json:2:3: not valid JSON"},
		{"half a pair", "a.json", `{"a": "\ud800x"}`, "a.json:1:7: a: half of a surrogate pair (\\ud800 to \\udfff)"},
		{"other", "a.ini", "", "a.ini: not a layer: its name must end in .yaml, .json, .toml or .env"},
		{"yml", "a.yml", "a: 1\n", "a.yml: not a layer: rename it to end in .yaml"},
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

// A blank file is an empty layer in every format, base and overlay alike.
func TestB030BlankInEveryFormat(t *testing.T) {
	for file, bodies := range map[string][]string{
		"a.yaml": {"", "\n", "# c\n", "---\n", "--- # c\n...\n", "\ufeff"},
		"a.json": {"", " \n", "\ufeff", "{}"},
		"a.toml": {"", "\n", "# c\n", "\ufeff# c"},
		"a.env":  {"", "\n", "# c\n", "\ufeff\r\n"},
	} {
		for _, body := range bodies {
			for _, base := range []bool{true, false} {
				n, errs := Read(file, []byte(body), base)
				if len(errs) > 0 || n == nil || n.Kind != Struct || len(n.Fields) != 0 || !n.Pos.IsValid() {
					t.Errorf("%s %q: %+v, %v", file, body, n, errs)
				}
			}
		}
	}
}
