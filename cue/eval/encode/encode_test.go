package encode_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-config/muster/cue/eval/encode"
)

type (
	list   = []any
	object = map[string]any
	num    = encode.Number
)

var sample = object{
	"zeta":  nil,
	"alpha": object{"b": num("2"), "a": num("1.50"), "empty": object{}},
	"list":  list{num("1"), "two", list{true, false}, list{}, object{"k": "v", "l": list{"x"}}},
	"pem":   "-----BEGIN-----\nabc=\n\n-----END-----\n",
	"html":  "<a href=\"x\">&</a>",
	"big":   num("123456789012345678901234567890"),
	"url":   "http://db-1:5432/x?y=1",
	"long":  "one line\nno end",
}

func TestGolden(t *testing.T) {
	tests := []struct {
		name, format string
		value        any
		want         string
	}{
		{"json", "json", sample, `{
  "alpha": {
    "a": 1.50,
    "b": 2,
    "empty": {}
  },
  "big": 123456789012345678901234567890,
  "html": "<a href=\"x\">&</a>",
  "list": [
    1,
    "two",
    [
      true,
      false
    ],
    [],
    {
      "k": "v",
      "l": [
        "x"
      ]
    }
  ],
  "long": "one line\nno end",
  "pem": "-----BEGIN-----\nabc=\n\n-----END-----\n",
  "url": "http://db-1:5432/x?y=1",
  "zeta": null
}
`},
		{"yaml", "yaml", sample, `alpha:
  a: 1.50
  b: 2
  empty: {}
big: 123456789012345678901234567890
html: "<a href=\"x\">&</a>"
list:
  - 1
  - two
  - - true
    - false
  - []
  - k: v
    l:
      - x
long: |-
  one line
  no end
pem: |
  -----BEGIN-----
  abc=

  -----END-----
url: "http://db-1:5432/x?y=1"
zeta: null
`},
		{"toml", "toml", object{
			"z": "last", "a": num("-9223372036854775808"), "d": num("0.10"), "l": list{num("1"), object{"x y": true}, object{}},
			"t":  object{"only": object{"sub": object{"k": "a\nb"}, "e": object{}}},
			"ts": list{object{"n": num("1"), "in": object{"m": num("2")}}, object{}},
			"é":  object{"k": list{}},
		}, `a = -9223372036854775808
d = 0.10
l = [1, { "x y" = true }, {}]
z = "last"

[t.only.e]

[t.only.sub]
k = "a\nb"

[[ts]]
n = 1

[ts.in]
m = 2

[[ts]]

["é"]
k = []
`},
		{"env", "env", object{"B": true, "A": num("1.0"), "URL": "http://x:1/?a=b", "S": "two words $HOME", "Q": `it's "$x" \ `, "E": ""},
			"A=1.0\nB=true\nE=\nQ=\"it's \\\"\\$x\\\" \\\\ \"\nS='two words $HOME'\nURL='http://x:1/?a=b'\n"},
		{"text", "text", "as it is\r\n", "as it is\r\n"},
		{"yaml scalar", "yaml", "no", "\"no\"\n"},
		{"yaml literal at the top", "yaml", "a\nb", "|-\n  a\n  b\n"},
		{"yaml empty", "yaml", object{}, "{}\n"},
		{"toml empty", "toml", object{}, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := encode.Encode(tt.format, tt.value)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(tt.want, string(got)); d != "" {
				t.Errorf("-want +got:\n%s", d)
			}
		})
	}
}

func TestRefused(t *testing.T) {
	const secret = "hunter2"
	deep := any("x")
	for range 1100 {
		deep = list{deep}
	}
	tests := []struct {
		name, format string
		value        any
		path         []string
		msg          string
	}{
		{"null in toml", "toml", object{"a": object{"b": nil}}, []string{"a", "b"}, "no null"},
		{"null in a toml list", "toml", object{"a": list{num("1"), nil}}, []string{"a", "1"}, "no null"},
		{"null in an array of tables", "toml", object{"a": list{object{"k": nil}}}, []string{"a", "0", "k"}, "no null"},
		{"integer over int64 in toml", "toml", object{"a": num("9223372036854775808")}, []string{"a"}, "64 bits"},
		{"integer under int64 in toml", "toml", object{"a": num("-9223372036854775809")}, []string{"a"}, "64 bits"},
		{"decimal over float64 in toml", "toml", object{"a": num(strings.Repeat("9", 400) + ".0")}, []string{"a"}, "64-bit floats"},
		{"list as toml", "toml", list{}, nil, "a list"},
		{"newline in env", "env", object{"A": secret + "\n"}, []string{"A"}, "line break"},
		{"carriage return in env", "env", object{"A": secret + "\r"}, []string{"A"}, "line break"},
		{"NUL in env", "env", object{"A": secret + "\x00"}, []string{"A"}, "control character"},
		{"null in env", "env", object{"A": nil}, []string{"A"}, "no null"},
		{"struct in env", "env", object{"A": object{"b": secret}}, []string{"A"}, "a struct"},
		{"list in env", "env", object{"A": list{secret}}, []string{"A"}, "a list"},
		{"bad name in env", "env", object{"a-b": secret}, []string{"a-b"}, "not a name"},
		{"digit first in env", "env", object{"1A": secret}, []string{"1A"}, "not a name"},
		{"scalar as env", "env", secret, nil, "a string"},
		{"struct as text", "text", object{"a": secret}, nil, "a struct"},
		{"exponent", "json", object{"a": num("1e3")}, []string{"a"}, "plain decimal"},
		{"leading zero", "yaml", object{"a": num("010")}, []string{"a"}, "plain decimal"},
		{"empty number", "yaml", num(""), nil, "plain decimal"},
		{"bad UTF-8", "yaml", object{"a": secret + "\xff"}, []string{"a"}, "UTF-8"},
		{"bad UTF-8 key", "json", object{"a\xff": secret}, []string{"a\xff"}, "UTF-8"},
		{"Go int", "json", object{"a": 1}, []string{"a"}, "Go type int"},
		{"too deep", "yaml", deep, nil, "nested deeper"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			out, err := encode.Encode(tt.format, tt.value)
			var e *encode.Error
			if !errors.As(err, &e) {
				t.Fatalf("got %q, %v; want an *Error", out, err)
			}
			if tt.path != nil || tt.name != "too deep" {
				if d := cmp.Diff(tt.path, e.Path, cmp.Transformer("nil", func(p []string) []string { return append([]string{}, p...) })); d != "" {
					t.Errorf("path: %s", d)
				}
			}
			if !strings.Contains(e.Msg, tt.msg) {
				t.Errorf("message %q does not say %q", e.Msg, tt.msg)
			}
			if strings.Contains(e.Error(), secret) {
				t.Errorf("message shows the value: %s", e)
			}
			if strings.Contains(e.Error(), "\n") || strings.Contains(e.Error(), "\xff") {
				t.Errorf("message is not one clean line: %q", e.Error())
			}
		})
	}
}

func TestUnknownFormat(t *testing.T) {
	if _, err := encode.Encode("xml", "x"); err == nil || !strings.Contains(err.Error(), "json, yaml, toml, env, text") {
		t.Fatalf("got %v", err)
	}
}

func TestErrorText(t *testing.T) {
	e := &encode.Error{Path: []string{"limits", "a.b", "0"}, Msg: "m"}
	if got, want := e.Error(), `limits."a.b".0: m`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
