package encode_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"

	"github.com/muster-config/muster/cue/eval/encode"
)

// asVersion reads a document as a reader of YAML 1.1 or 1.2 by the letter would: the library gives the structure and which scalars are bare,
// and `resolves` gives the types of those.
func asVersion(version string, n *yaml.Node) (any, error) {
	switch n.Kind {
	case yaml.DocumentNode:
		return asVersion(version, n.Content[0])
	case yaml.SequenceNode:
		out := []any{}
		for _, c := range n.Content {
			v, err := asVersion(version, c)
			if err != nil {
				return nil, err
			}
			out = append(out, v)
		}
		return out, nil
	case yaml.MappingNode:
		out := map[string]any{}
		for i := 0; i < len(n.Content); i += 2 {
			k, err := asVersion(version, n.Content[i])
			if err != nil {
				return nil, err
			}
			key, ok := k.(string)
			if !ok {
				return nil, fmt.Errorf("line %d: the key %q is no string in YAML %s", n.Line, n.Content[i].Value, version)
			}
			if out[key], err = asVersion(version, n.Content[i+1]); err != nil {
				return nil, err
			}
		}
		return out, nil
	case yaml.ScalarNode:
		if n.Style != 0 {
			return n.Value, nil
		}
		for rule, re := range resolves {
			kind, ok := strings.CutPrefix(rule, version+" ")
			if !ok || !re.MatchString(n.Value) {
				continue
			}
			switch kind {
			case "null":
				return nil, nil
			case "bool":
				return n.Value == "true", nil
			case "int", "float":
				return num(n.Value), nil
			}
			return nil, fmt.Errorf("line %d: %q is a %s in YAML %s", n.Line, n.Value, kind, version)
		}
		return n.Value, nil
	}
	return nil, fmt.Errorf("line %d: a node of kind %d", n.Line, n.Kind)
}

// readVersions reads YAML back by the letter of both versions.
func readVersions(t fataler, want any, out []byte) {
	t.Helper()
	var doc yaml.Node
	if err := yaml.Unmarshal(out, &doc); err != nil {
		t.Fatalf("does not read back: %v\n%s", err, out)
	}
	for _, version := range []string{"1.1", "1.2"} {
		got, err := asVersion(version, &doc)
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Fatalf("YAML %s reads back as another value (-want +got):\n%s\n%s", version, d, out)
		}
	}
}

// pyYAML loads each document of a JSON list with every safe loader that there is, and prints the values with their types.
const pyYAML = `
import json, sys, yaml
def typed(v):
    if v is None: return None
    if isinstance(v, bool): return {"bool": v}
    if isinstance(v, int): return {"int": str(v)}
    if isinstance(v, float): return {"float": repr(v)}
    if isinstance(v, str): return {"str": v}
    if isinstance(v, list): return {"list": [typed(e) for e in v]}
    if isinstance(v, dict):
        for k in v:
            if not isinstance(k, str): return {"other": "key " + type(k).__name__}
        return {"map": {k: typed(e) for k, e in v.items()}}
    return {"other": type(v).__name__}
loaders = [yaml.SafeLoader] + ([yaml.CSafeLoader] if hasattr(yaml, "CSafeLoader") else [])
out = []
for doc in json.load(sys.stdin):
    for loader in loaders:
        try: v = typed(yaml.load(doc, loader))
        except Exception as e: v = {"other": type(e).__name__}
        out.append({"loader": loader.__name__, "value": v})
print(json.dumps({"loaders": len(loaders), "results": out}))
`

// typed is what pyYAML prints for a value.
func typed(v any) any {
	switch v := v.(type) {
	case bool:
		return object{"bool": v}
	case string:
		return object{"str": v}
	case num:
		if !strings.Contains(string(v), ".") {
			return object{"int": string(v)}
		}
		return object{"float": string(v)}
	case list:
		out := list{}
		for _, e := range v {
			out = append(out, typed(e))
		}
		return object{"list": out}
	case object:
		out := object{}
		for k, e := range v {
			out[k] = typed(e)
		}
		return object{"map": out}
	}
	return v
}

// sameDouble compares the digits of floats by the double they stand for.
var sameDouble = cmp.FilterPath(func(p cmp.Path) bool {
	k, ok := p.Index(-2).(cmp.MapIndex)
	return ok && k.Key().String() == "float"
}, cmp.Comparer(func(a, b any) bool {
	x, errX := strconv.ParseFloat(fmt.Sprint(a), 64)
	y, errY := strconv.ParseFloat(fmt.Sprint(b), 64)
	return errX == nil && errY == nil && x == y
}))

// TestB025PyYAML lets PyYAML, the YAML 1.1 reader that most tools stand on, read what was written.
func TestB025PyYAML(t *testing.T) {
	if out, err := exec.Command("python3", "-c", "import yaml").CombinedOutput(); err != nil {
		t.Skipf("needs python3 with PyYAML (Debian: apt-get install python3-yaml): %v %s", err, bytes.TrimSpace(out))
	}
	values := []any{sample}
	for _, s := range traps {
		values = append(values, object{"k": s, s: list{s, object{s: s}}}, s)
	}
	for _, n := range []string{"0", "-12", "0.25", "3.10", "1000000000000000000000", "-0.0000000000000000000001", "12345678901234567890.5"} {
		values = append(values, object{"n": num(n), "l": list{num(n)}})
	}
	for seed := range 300 {
		values = append(values, objects(true, 4).Example(seed))
	}
	var docs []string
	for _, v := range values {
		out, err := encode.Encode("yaml", v)
		if err != nil {
			t.Fatal(err)
		}
		docs = append(docs, string(out))
	}
	in, err := json.Marshal(docs)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("python3", "-c", pyYAML)
	cmd.Stdin = bytes.NewReader(in)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("python3: %v\n%s", err, stderr.Bytes())
	}
	var answer struct {
		Loaders int
		Results []struct {
			Loader string
			Value  any
		}
	}
	if err := json.Unmarshal(out, &answer); err != nil {
		t.Fatal(err)
	}
	if answer.Loaders < 1 || len(answer.Results) != len(values)*answer.Loaders {
		t.Fatalf("%d results of %d loaders for %d documents", len(answer.Results), answer.Loaders, len(values))
	}
	for i, got := range answer.Results {
		if d := cmp.Diff(typed(values[i/answer.Loaders]), got.Value, sameDouble); d != "" {
			t.Errorf("%s reads another value (-want +got):\n%s\n%s", got.Loader, d, docs[i/answer.Loaders])
		}
	}
}
