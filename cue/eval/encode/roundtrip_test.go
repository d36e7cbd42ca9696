package encode_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/pelletier/go-toml/v2"
	"go.yaml.in/yaml/v3"
	"pgregory.net/rapid"

	"github.com/muster-config/muster/cue/eval/encode"
)

// read decodes by the ordinary library of the format into plain values, numbers by their digits.
func read(format string, data []byte) (any, error) {
	switch format {
	case "json":
		d := json.NewDecoder(bytes.NewReader(data))
		d.UseNumber()
		var v any
		if err := d.Decode(&v); err != nil {
			return nil, err
		}
		if _, err := d.Token(); !errors.Is(err, io.EOF) {
			return nil, fmt.Errorf("more than one value")
		}
		return plain(v), nil
	case "yaml":
		d := yaml.NewDecoder(bytes.NewReader(data))
		var n yaml.Node
		if err := d.Decode(&n); err != nil {
			return nil, err
		}
		if err := d.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
			return nil, fmt.Errorf("more than one document")
		}
		return fromNode(n.Content[0])
	case "toml":
		v := map[string]any{}
		if err := toml.Unmarshal(data, &v); err != nil {
			return nil, err
		}
		return plain(v), nil
	}
	return nil, fmt.Errorf("no reader for %s", format)
}

func plain(v any) any {
	switch v := v.(type) {
	case json.Number:
		return num(v)
	case int64:
		return num(strconv.FormatInt(v, 10))
	case []any:
		out := make([]any, len(v))
		for i, e := range v {
			out[i] = plain(e)
		}
		return out
	case map[string]any:
		out := make(map[string]any, len(v))
		for k, e := range v {
			out[k] = plain(e)
		}
		return out
	}
	return v
}

func fromNode(n *yaml.Node) (any, error) {
	switch n.Kind {
	case yaml.SequenceNode:
		out := []any{}
		for _, c := range n.Content {
			v, err := fromNode(c)
			if err != nil {
				return nil, err
			}
			out = append(out, v)
		}
		return out, nil
	case yaml.MappingNode:
		out := map[string]any{}
		for i := 0; i < len(n.Content); i += 2 {
			k := n.Content[i]
			if k.ShortTag() != "!!str" {
				return nil, fmt.Errorf("key %q is a %s", k.Value, k.ShortTag())
			}
			v, err := fromNode(n.Content[i+1])
			if err != nil {
				return nil, err
			}
			out[k.Value] = v
		}
		return out, nil
	case yaml.ScalarNode:
		switch n.ShortTag() {
		case "!!null":
			return nil, nil
		case "!!bool":
			return n.Value == "true", nil
		case "!!int", "!!float":
			return num(n.Value), nil
		case "!!str":
			return n.Value, nil
		}
	}
	return nil, fmt.Errorf("line %d: %q is a %s", n.Line, n.Value, n.ShortTag())
}

// floats makes decimals comparable with what a reader of doubles gives.
var floats = cmp.FilterValues(func(a, b any) bool {
	_, af := a.(float64)
	_, bf := b.(float64)
	return af != bf
}, cmp.Comparer(func(a, b any) bool { return asFloat(a) == asFloat(b) }))

func asFloat(v any) any {
	if n, ok := v.(num); ok && strings.Contains(string(n), ".") {
		f, err := strconv.ParseFloat(string(n), 64)
		if err == nil {
			return f
		}
	}
	return v
}

type fataler interface {
	Helper()
	Fatalf(string, ...any)
}

func readBack(t fataler, format string, want any, out []byte) {
	t.Helper()
	got, err := read(format, out)
	if err != nil {
		t.Fatalf("%s does not read back: %v\n%s", format, err, out)
	}
	if d := cmp.Diff(want, got, floats); d != "" {
		t.Fatalf("%s reads back as another value (-want +got):\n%s\n%s", format, d, out)
	}
}

// text mixes free text with the words that readers stumble over.
func text() *rapid.Generator[string] {
	return rapid.OneOf(
		rapid.SampledFrom(traps),
		rapid.String(),
		rapid.StringMatching(`[-+a-z0-9_.:~#<>=|'"\\ \n]{0,12}`),
		rapid.Custom(func(t *rapid.T) string {
			return rapid.SampledFrom(traps).Draw(t, "a") + rapid.SampledFrom([]string{"", " ", "\n", ": ", " #"}).Draw(t, "sep") + rapid.SampledFrom(traps).Draw(t, "b")
		}),
	)
}

func values(null bool, depth int) *rapid.Generator[any] {
	integer := rapid.Custom(func(t *rapid.T) any { return num(strconv.FormatInt(rapid.Int64().Draw(t, "int"), 10)) })
	decimal := rapid.Custom(func(t *rapid.T) any {
		return num(rapid.StringMatching(`-?(0|[1-9][0-9]{0,20})\.[0-9]{1,20}`).Draw(t, "dec"))
	})
	gens := []*rapid.Generator[any]{
		text().AsAny(), rapid.Bool().AsAny(), integer, decimal,
	}
	if null {
		gens = append(gens, rapid.Just[any](nil), rapid.Custom(func(t *rapid.T) any { return num(rapid.StringMatching(`-?[1-9][0-9]{20,40}`).Draw(t, "big")) }))
	}
	if depth > 0 {
		gens = append(gens, rapid.Custom(func(t *rapid.T) any {
			out := rapid.SliceOfN(values(null, depth-1), 0, 4).Draw(t, "list")
			return append([]any{}, out...)
		}), objects(null, depth).AsAny())
	}
	return rapid.OneOf(gens...)
}

func objects(null bool, depth int) *rapid.Generator[map[string]any] {
	return rapid.MapOfN(text(), values(null, depth-1), 0, 4)
}

func TestRoundTrip(t *testing.T) {
	for _, format := range []string{"json", "yaml", "toml"} {
		t.Run(format, rapid.MakeCheck(func(t *rapid.T) {
			v := objects(format != "toml", 4).Draw(t, "value")
			out, err := encode.Encode(format, v)
			if err != nil {
				t.Fatal(err)
			}
			readBack(t, format, v, out)
			if format == "yaml" {
				readVersions(t, v, out)
			}
			if again, err := encode.Encode(format, v); err != nil || !bytes.Equal(out, again) {
				t.Fatalf("equal values, other bytes: %v", err)
			}
			if len(out) > 0 && out[len(out)-1] != '\n' {
				t.Fatalf("no final newline")
			}
			if i := strings.IndexFunc(string(out), func(r rune) bool { return r != '\n' && r < 0x20 || r == 0x85 || r == 0x2028 }); i >= 0 {
				t.Fatalf("raw control character at %d", i)
			}
		}))
	}
}

// TestDeep goes near the limit of nesting, where indentation and headers are long.
func TestDeep(t *testing.T) {
	for format, depth := range map[string]int{"json": 990, "yaml": 990, "toml": 300} {
		v := any("end")
		for i := range depth {
			if i%3 == 0 && format != "toml" {
				v = list{v, num("1")}
			} else {
				v = object{"k": v, "no": "=\n"}
			}
		}
		v = object{"root": v}
		out, err := encode.Encode(format, v)
		if err != nil {
			t.Fatal(err)
		}
		got, err := read(format, out)
		if err != nil {
			t.Fatalf("%s does not read back: %v", format, err)
		}
		if !reflect.DeepEqual(v, got) {
			t.Errorf("%s reads back as another value", format)
		}
	}
}

// TestEnvShell lets a real shell read what was written.
func TestEnvShell(t *testing.T) {
	v := object{}
	for i, s := range traps {
		if !strings.ContainsAny(s, "\n\r\x00\x07\x7f") {
			v[fmt.Sprintf("K%03d", i)] = s
		}
	}
	for i, s := range []string{`$HOME`, "`id`", `a'b`, `a"b`, `a\b`, `a\\b`, `\`, `'`, `"`, `$(id)'`, "a\tb", `!x`, `it's $5 \ "q" ` + "`x`", "a=b c", ";", "&", "*"} {
		v[fmt.Sprintf("L%03d", i)] = s
	}
	for seed := range 500 {
		s := text().Example(seed)
		if !strings.ContainsFunc(s, func(r rune) bool { return r < 0x20 && r != '\t' || r == 0x7f }) {
			v[fmt.Sprintf("R%03d", seed)] = s
		}
	}
	out, err := encode.Encode("env", v)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("sh", "-c", `set -a; . /dev/stdin; env -0`)
	cmd.Stdin = bytes.NewReader(out)
	cmd.Env = []string{"PATH=/usr/bin:/bin", "HOME=/wrong"}
	got, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]string{}
	for line := range strings.SplitSeq(string(got), "\x00") {
		k, s, _ := strings.Cut(line, "=")
		seen[k] = s
	}
	for k, want := range v {
		if got, ok := seen[k]; !ok || got != want {
			t.Errorf("%s: the shell reads %q, want %q", k, got, want)
		}
	}
}

func FuzzString(f *testing.F) {
	for _, s := range traps {
		f.Add(s, s)
	}
	f.Fuzz(func(t *testing.T, key, s string) {
		v := object{key: s, "in": list{object{key: list{s, s}}}}
		for _, format := range []string{"json", "yaml", "toml"} {
			out, err := encode.Encode(format, v)
			if err != nil {
				continue // not UTF-8
			}
			readBack(t, format, v, out)
			if format == "yaml" {
				readVersions(t, v, out)
			}
		}
	})
}

func FuzzNumber(f *testing.F) {
	for _, s := range []string{"0", "-0", "1", "010", "1e3", "0.10", "-0.5", ".5", "5.", "+1", "99999999999999999999", "1_0", "0x1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		for _, format := range []string{"json", "yaml", "toml"} {
			v := object{"n": num(s)}
			out, err := encode.Encode(format, v)
			if err != nil {
				continue
			}
			if strings.ContainsAny(string(out), "eE_xX+") {
				t.Fatalf("%s: %s", format, out)
			}
			if format == "json" && !json.Valid(out) {
				t.Fatalf("not JSON: %s", out)
			}
			if format != "toml" {
				readBack(t, format, v, out)
			}
		}
	})
}
