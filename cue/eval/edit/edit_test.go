package edit_test

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-config/muster/cue/eval/edit"
)

// What is asked for changes, and every other byte stays.
func TestLayer(t *testing.T) {
	const yaml = "# of checkout\nlisten: 8080 # never change it\n\ntimeout_ms: 1500   # ms\nlimits:\n    workers: 8\n    # more is not better\n    tags:\n    - a\n    - b\n\nflags: {fast: true, slow: false}\nhosts:\n- a.example\n- b.example\nname: 'it''s'\n# the end\n"
	for name, tt := range map[string]struct {
		file, in, values string
		base             bool
		want             string
	}{
		"scalar":            {"base.yaml", "a: 1\ntimeout_ms: 1500   # ms\n\nb: 2\n", `{"timeout_ms":5000}`, true, "a: 1\ntimeout_ms: 5000   # ms\n\nb: 2\n"},
		"quoted":            {"base.yaml", yaml, `{"name":"yes"}`, true, "# of checkout\nlisten: 8080 # never change it\n\ntimeout_ms: 1500   # ms\nlimits:\n    workers: 8\n    # more is not better\n    tags:\n    - a\n    - b\n\nflags: {fast: true, slow: false}\nhosts:\n- a.example\n- b.example\nname: \"yes\"\n# the end\n"},
		"nested":            {"base.yaml", yaml, `{"limits":{"workers":9,"burst":{"ms":7}}}`, true, "# of checkout\nlisten: 8080 # never change it\n\ntimeout_ms: 1500   # ms\nlimits:\n    workers: 9\n    # more is not better\n    tags:\n    - a\n    - b\n    burst:\n        ms: 7\n\nflags: {fast: true, slow: false}\nhosts:\n- a.example\n- b.example\nname: 'it''s'\n# the end\n"},
		"block list":        {"base.yaml", "hosts:\n- a\n- b\n\nx: 1\n", `{"hosts":["c"]}`, true, "hosts: [c]\n\nx: 1\n"},
		"in braces":         {"base.yaml", "flags: {fast: true, slow: false}\n", `{"flags":{"fast":false,"new":"x"}}`, true, "flags: {fast: false, slow: false, new: x}\n"},
		"new key":           {"base.yaml", "a: 1\n# the end\n", `{"b":{"c":[1,2]}}`, true, "a: 1\nb:\n  c: [1, 2]\n# the end\n"},
		"no break":          {"base.yaml", "a: 1", `{"b":2}`, true, "a: 1\nb: 2\n"},
		"empty file":        {"overlays/env/prod.yaml", "", `{"a":{"b":"x"}}`, false, "a:\n  b: x\n"},
		"only a comment":    {"overlays/env/prod.yaml", "# nothing yet\n", `{"a":null}`, false, "# nothing yet\na: null\n"},
		"removed in base":   {"base.yaml", "a: 1\nb:\n  c: 1\n  d: 2\n", `{"b":{"c":null}}`, true, "a: 1\nb:\n  d: 2\n"},
		"null in overlay":   {"overlays/env/prod.yaml", "a: 1\n", `{"a":null,"b":null}`, false, "a: null\nb: null\n"},
		"struct for scalar": {"base.yaml", "a: 1\nb: 2\n", `{"a":{"x":{"z":true}}}`, true, "a: {x: {z: true}}\nb: 2\n"},
		"block text":        {"base.yaml", "a: |\n  one\n  # two\n# own\nb: 2 # two\n", `{"a":"x"}`, true, "a: x\n# own\nb: 2 # two\n"},
		"anchor":            {"base.yaml", "a: &x 1\nb: *x\n", `{"b":2}`, true, "a: &x 1\nb: 2\n"},
		"json":              {"base.json", "{\n  \"a\": 1,\n  \"b\": {\n    \"c\": [1, 2]\n  }\n}\n", `{"a":"x","b":{"c":[3],"d":null},"e":{"f":1}}`, false, "{\n  \"a\": \"x\",\n  \"b\": {\n    \"c\": [3],\n    \"d\": null\n  },\n  \"e\": {\"f\":1}\n}\n"},
		"json removed":      {"base.json", "{\"a\": 1, \"b\": 2,\n \"c\": 3}\n", `{"a":null,"c":null}`, true, "{\"b\": 2}\n"},
		"toml":              {"base.toml", "# top\na = 1 # one\nlist = [1, 2]\n\n[limits]\nworkers = 8\n\n[other]\nx = \"y\" # why\n", `{"a":2,"list":[3],"limits":{"workers":9,"burst":5},"other":{"x":"z"},"new":true}`, true, "# top\na = 2 # one\nlist = [3]\nnew = true\n\n[limits]\nworkers = 9\nburst = 5\n\n[other]\nx = \"z\" # why\n"},
		"env":               {"base.env", "# env\nA=1\nB='two words'\n", `{"A":"2","B":"x y","C":"new"}`, true, "# env\nA=2\nB=\"x y\"\nC=new\n"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := edit.Layer(tt.file, []byte(tt.in), tt.base, tt.values)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(tt.want, string(got)); d != "" {
				t.Error(d)
			}
		})
	}
	for name, tt := range map[string]struct{ file, in, values string }{
		"null in a TOML overlay": {"overlays/env/prod.toml", "a = 1\n", `{"a":null}`},
		"struct in env":          {"base.env", "A=1\n", `{"B":{"c":1}}`},
	} {
		if _, err := edit.Layer(tt.file, []byte(tt.in), false, tt.values); !errors.Is(err, edit.ErrCannot) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestCUE(t *testing.T) {
	const in = "package search\n\nbase: {\n\t// ms\n\ttimeout_ms: 1500 // measured\n\tshards: a: weight: 1\n}\n\noverlay: env: prod: workers: 16\n"
	for name, tt := range map[string]struct {
		path   []string
		values string
		want   string
	}{
		"value":       {[]string{"base"}, `{"timeout_ms":3000}`, "package search\n\nbase: {\n\t// ms\n\ttimeout_ms: 3000 // measured\n\tshards: a: weight: 1\n}\n\noverlay: env: prod: workers: 16\n"},
		"new in one":  {[]string{"base"}, `{"workers":4}`, "package search\n\nbase: {\n\t// ms\n\ttimeout_ms: 1500 // measured\n\tshards: a: weight: 1\n\tworkers: 4\n}\n\noverlay: env: prod: workers: 16\n"},
		"new overlay": {[]string{"overlay", "env", "dev"}, `{"workers":1}`, "package search\n\nbase: {\n\t// ms\n\ttimeout_ms: 1500 // measured\n\tshards: a: weight: 1\n}\n\noverlay: env: {\n\tprod: workers: 16\n\tdev: {\n\t\tworkers: 1\n\t}\n}\n"},
	} {
		got, err := edit.CUE("search.cue", []byte(in), tt.path, tt.values)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if d := cmp.Diff(tt.want, string(got)); d != "" {
			t.Errorf("%s: %s\n%s", name, d, got)
		}
	}
	if !edit.HasCUE("search.cue", []byte(in), []string{"overlay", "env", "prod"}) || edit.HasCUE("search.cue", []byte(in), []string{"overlay", "env", "dev"}) {
		t.Error("which overlays there are")
	}
	if n := edit.LineOf("search.cue", []byte(in), []string{"base", "timeout_ms"}); n != 5 {
		t.Errorf("line %d", n)
	}
}
