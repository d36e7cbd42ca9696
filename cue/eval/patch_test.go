package eval

import (
	"strings"
	"testing"
)

func TestPatch(t *testing.T) {
	for want, settings := range map[string][]string{
		`{"timeout_ms":5000}`:                            {"timeout_ms=5000"},
		`{"limits":{"cpus":2,"memory":"1Gi"}}`:           {"limits.cpus=2", "limits.memory=1Gi"},
		`{"a":null,"b":true,"c":"true","d":1.5}`:         {"a=null", "b=true", `c="true"`, "d=1.50"},
		`{"hosts":{"a.example":{"x":[1,2]}}}`:            {`hosts."a.example"={x: [1, 2]}`},
		`{"big":9007199254740993,"url":"http://x/?a=b"}`: {"big=9007199254740993", "url=http://x/?a=b"},
	} {
		if got, err := Patch(settings); err != nil || got != want {
			t.Errorf("%q: %s, %v; want %s", settings, got, err, want)
		}
	}
	// B134: what is wrong with a value is told without it.
	for text, settings := range map[string][]string{
		"setting 1 is not PATH=VALUE": {"SECRET"}, "setting 2: not a path": {"a=1", ".x=SECRET"}, "the value of a.b is not YAML": {"a.b=[SECRET"},
		"a is given twice": {"a=1", "a=SECRET"}, "nothing is set": nil, "setting 1: not a path": {`"a=SECRET`},
		"the value of b is not YAML": {"b=x\nSECRET: 1"},
	} {
		got, err := Patch(settings)
		if err == nil || !strings.Contains(err.Error(), text) || strings.Contains(err.Error(), "SECRET") {
			t.Errorf("%q: %s, %v; want %q", settings, got, err, text)
		}
	}
	if got, err := PatchFile("p.yaml", []byte("timeout_ms: 5000\nnote: null\n")); err != nil || got != `{"note":null,"timeout_ms":5000}` {
		t.Error(got, err)
	}
	if got, err := PatchFiles("p.yaml", []byte("pay: {timeout_ms: 5000}\nweb: {note: null}\n")); err != nil || got["web"] != `{"note":null}` || len(got) != 2 {
		t.Error(got, err)
	}
	for name, data := range map[string]string{"p.txt": "a: 1", "p.yaml": "a: [SECRET", "q.yaml": "", "r.yaml": "pay: SECRET"} {
		if _, err := PatchFiles(name, []byte(data)); err == nil || strings.Contains(err.Error(), "SECRET") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
