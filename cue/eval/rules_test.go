package eval

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-config/muster/cue/eval/layer"
)

// B029: what is missing is an error also where only a variant or only one cohort lacks it.
func TestB029MissingSomewhere(t *testing.T) {
	res := Evaluate(repo(hostFleet + "-- services/s/base.yaml --\na: 1\n-- services/s/s.cue --\npackage s\n#Config: {a!: int, b?: int}\nvalues: #Config\n" +
		"-- services/s/overlays/host/web-1.yaml --\na: null\n-- services/c/base.yaml --\na: 1\n"))
	const want = `a: missing: the schema requires int; removed by services/s/overlays/host/web-1.yaml:1:4  (cohort listed)
    set at    services/s/overlays/host/web-1.yaml:1:4
    schema at services/s/s.cue:2:11
`
	if d := cmp.Diff(want, Format(res.Problems)); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	for _, u := range res.Units {
		if u.Service == "s" && u.Cohort == "listed" {
			t.Errorf("a unit of the cohort whose variant is refused: %+v", u)
		}
	}
}

// B035: an evaluation leaves nothing behind, since each has contexts of its own.
func TestB035Memory(t *testing.T) {
	rounds, first := 500, 100
	if raceEnabled {
		rounds, first = 60, 20
	}
	heap := func() uint64 {
		runtime.GC()
		runtime.GC() // what finalizers held
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	var at uint64
	for i := range rounds {
		if i == first {
			at = heap()
		}
		res := Evaluate(repo(oneCohort + fmt.Sprintf("-- services/s/s.cue --\npackage s\n#Config: {a!: int, b: int | *(a * 2)}\nvalues: #Config\nfiles: \"s.json\": {format: \"json\", data: values}\n-- services/s/base.yaml --\na: %d\n-- services/p/base.yaml --\na: %d\n", i, i)))
		if want := fmt.Sprintf("{\n  \"a\": %d,\n  \"b\": %d\n}\n", i, 2*i); file(t, res, "prod", "s", "s.json") != want {
			t.Fatal(res.Units)
		}
	}
	if now := heap(); now > at+20<<20 {
		t.Errorf("after %d evaluations the heap has %d KiB, after %d it has %d KiB", first, at>>10, rounds, now>>10)
	}
}

// B041: with and without bytes, and narrowed to the service, the same files come out, and a file that CUE would leave out is refused each time.
func TestB041SameFiles(t *testing.T) {
	files := oneCohort + "-- services/s/a.cue --\npackage s\n#Config: {a: int, b: int}\nvalues: #Config\nbase: a: 1\nfiles: {\"x.json\": {format: \"json\", data: values}, \".hidden\": {format: \"text\", data: \"h\"}}\n" +
		"-- services/s/b.cue --\npackage s\nbase: b: 2\n-- services/t/base.yaml --\na: 1\n"
	list := func(res *Result) (out []string) {
		for _, u := range res.Units {
			for _, f := range u.Files {
				if u.Service == "s" {
					out = append(out, f.Name)
				}
			}
		}
		return out
	}
	for name, extra := range map[string]string{"all": "", "hidden": "-- services/s/.hidden.cue --\npackage s\nbase: b: 2\n", "underscore": "-- services/s/_x.cue --\npackage s\nbase: b: 2\n"} {
		var lists [][]string
		var said []string
		for _, change := range []func(*Request){func(*Request) {}, func(r *Request) { r.FilesToo = false }, func(r *Request) { r.Services = []string{"s"} }, func(r *Request) { r.LeavesToo = true }} {
			req := repo(files + extra)
			change(req)
			res := Evaluate(req)
			lists, said = append(lists, list(res)), append(said, Format(res.Problems))
		}
		for i := range lists {
			if !slices.Equal(lists[i], lists[0]) || said[i] != said[0] {
				t.Errorf("%s, request %d: %q and %q\n%s\n%s", name, i, lists[0], lists[i], said[0], said[i])
			}
		}
		switch {
		case extra == "" && !slices.Equal(lists[0], []string{".hidden", "x.json"}):
			t.Errorf("files %q\n%s", lists[0], said[0])
		case extra != "" && !strings.Contains(said[0], "rename it"):
			t.Errorf("%s: %s", name, said[0])
		}
	}
}

// B044: what is wrong in a text within a value is found, with the place in the outer file; marshalling inside works, in a stable order.
func TestB044Nested(t *testing.T) {
	schema := func(format string) string {
		return "-- services/s/s.cue --\npackage s\nimport \"encoding/" + format + "\"\n#S: {a: int, b: string, password?: int}\n#Config: x: " + format + ".Validate(#S)\nvalues: #Config\n"
	}
	for name, tt := range map[string]struct{ files, want string }{
		"yaml": {schema("yaml") + "-- services/s/base.yaml --\nx: |\n  a: x\n  b: 5\n",
			`x: "a: x\nb: 5\n" is not the YAML that the schema wants: line 1 of it: a: "x" is a string, not an integer; line 2 of it: b: 5 is an integer, not a string`},
		"json": {schema("json") + "-- services/s/base.yaml --\nx: '{\"a\": 1,\"c\": 5}'\n",
			`is not the JSON that the schema wants: line 1 of it: c: unknown field (did you mean "a"?); b: missing: the schema requires string`},
		"syntax": {schema("yaml") + "-- services/s/base.yaml --\nx: \"a: [\"\n",
			`x: "a: [" is not the YAML that the schema wants: line 1 of it: not valid YAML: did not find expected node content`},
		"marshal": {"-- services/s/s.cue --\npackage s\nimport \"encoding/yaml\"\n_foo: {b: int, a: 1}\nfiles: {for n in [\"one\"] {(n): {format: \"json\", data: bar: config: yaml.Marshal(_foo & {name: n})}}}\n",
			`files.one.data.bar.config: error in call to encoding/yaml.Marshal: b: incomplete value int`},
		"unmarshal": {"-- services/s/s.cue --\npackage s\nimport \"encoding/json\"\n#Config: {x: string, y: json.Unmarshal(x)}\nvalues: #Config\nbase: x: \"{\"\n",
			`y: error in call to encoding/json.Unmarshal: `},
	} {
		t.Run(name, func(t *testing.T) {
			said := text(t, tt.files)
			if !strings.Contains(said, tt.want) || !strings.Contains(said, "set at    services/s/") {
				t.Errorf("got %s, want %s", said, tt.want)
			}
		})
	}
	if said := text(t, schema("yaml")+"-- services/s/base.yaml --\nx: |\n  a: 1\n  b: c\n  password: hunter2\n"); !strings.HasPrefix(said, "x: the value (it holds a secret, not shown) is not the YAML") || strings.Contains(said, "hunter2") {
		t.Errorf("the secret inside is printed: %s", said)
	}
	res := Evaluate(repo(oneCohort + "-- services/s/s.cue --\npackage s\nimport \"encoding/yaml\"\n_foo: {b: 1, a: {d: 2, c: [1, {z: 1, y: 2}]}}\n" +
		"files: {for n in [\"one\", \"two\"] {(n): {format: \"text\", data: yaml.Marshal(_foo & {name: n})}}}\n"))
	for _, n := range []string{"one", "two"} {
		if got, want := file(t, res, "prod", "s", n), "b: 1\na:\n  d: 2\n  c:\n    - 1\n    - z: 1\n      \"y\": 2\nname: "+n+"\n"; got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// Each error about a cycle has a place.
func TestCyclesHaveAPlace(t *testing.T) {
	for name, body := range map[string]string{
		"references": "a: b\nb: c\nc: a\nfiles: f: {format: \"json\", data: a}\n",
		"sums":       "#Config: {a: int, b: int}\nvalues: #Config & {a: values.b + 1, b: values.a + 1}\nbase: {}\n",
		"base":       "#Config: {a: int, b: int}\nvalues: #Config\nbase: {a: b+1, b: a+1}\n",
		"definition": "#T: {n: #T}\nvalues: #T\nbase: {}\n",
		"struct":     "x: {y: x}\nvalues: x\nfiles: f: {format: \"json\", data: x}\n",
		"lists":      "a: [b]\nb: [a]\nfiles: \"x.json\": {format: \"json\", data: a}\n",
		"bounds":     "a: !=b\nb: !=c\nc: !=a\nfiles: \"x.json\": {format: \"json\", data: a}\n",
		"for":        "a: {for k, v in b {(k): v}}\nb: {for k, v in a {(k): v+1}, x: 1}\nfiles: \"x.json\": {format: \"json\", data: a}\n",
		"if":         "a: {if b.x == _|_ {y: 1}}\nb: {if a.y == _|_ {x: 1}}\nfiles: \"x.json\": {format: \"json\", data: a}\n",
		"quoted":     "\"x y\": {z: \"x y\"}\n\"x-y\": {z: {w: \"x-y\".z}}\nval=\"v v\": {q: val}\n",
	} {
		res := Evaluate(repo(oneCohort + "-- services/s/s.cue --\npackage s\n" + body))
		if !res.Failed() {
			t.Errorf("%s: no error", name)
		}
		for _, p := range res.Problems {
			if p.Severity == SeverityError && (len(p.SetAt) == 0 && len(p.SchemaAt) == 0 || slices.ContainsFunc(p.SetAt, func(at Pos) bool { return at.Line == 0 })) {
				t.Errorf("%s: no place: %s", name, Format(res.Problems))
			}
		}
	}
}

// A fleet may demand a line of evaluators.
func TestEvaluatorPin(t *testing.T) {
	pinned := func(line string) string {
		return Format(Evaluate(repo(strings.Replace(oneCohort, "package fleet\n", "package fleet\n\nmuster: "+line+"\n", 1) + "-- services/s/base.yaml --\na: 1\n")).Problems)
	}
	if said := pinned(`"0.1"`); said != "" {
		t.Errorf("its own line: %s", said)
	}
	const want = "muster: this fleet wants evaluator 0.2, and this is 0.1: take that version of muster, or change the line in a commit of its own\n    set at    fleet/fleet.cue:3:1\n"
	if d := cmp.Diff(want, pinned(`"0.2"`)); d != "" {
		t.Errorf("another line (-want +got):\n%s", d)
	}
}

// Without `files` the one file has base's format, whichever that is.
func TestSingleFormats(t *testing.T) {
	for ext, tt := range map[string]struct{ base, want string }{
		"yaml": {"a: 1\nb: x\n", "a: 1\nb: x y\n"},
		"json": {`{"a": 1, "b": "x"}`, "{\n  \"a\": 1,\n  \"b\": \"x y\"\n}\n"},
		"toml": {"b = 'x'\na = 1\n", "a = 1\nb = \"x y\"\n"},
		"env":  {"b=x\na=1\n", "a=1\nb='x y'\n"},
	} {
		for over, overlay := range map[string]string{"yaml": "b: x y\n", "json": `{"b": "x y"}`, "toml": "b = \"x y\"\n", "env": "b=\"x y\"\n"} {
			res := Evaluate(repo(oneCohort + "-- services/s/base." + ext + " --\n" + tt.base + "\n-- services/s/overlays/env/prod." + over + " --\n" + overlay + "\n"))
			if got := file(t, res, "prod", "s", "s."+ext); got != tt.want {
				t.Errorf("%s over %s: got %q, want %q", over, ext, got, tt.want)
			}
		}
	}
	said := text(t, "-- services/s/base.toml --\na = 1\n-- services/s/base.env --\nA=1\n-- services/s/overlays/env/prod.toml --\n-- services/s/overlays/env/prod.env --\n")
	if !strings.Contains(said, "a second base: services/s/base.env is there already") || !strings.Contains(said, "a second overlay for env=prod: services/s/overlays/env/prod.env is there already") {
		t.Errorf("got %s", said)
	}
}

// A service that does not validate takes nothing but itself away: the others keep their units, and for a mistake of some cohorts the rest keeps its own.
func TestHealthyUnitsStay(t *testing.T) {
	res := Evaluate(repo(threeCohorts + `
-- services/good/base.yaml --
a: 1
-- services/some/s.cue --
package some

#Config: a: int
values: #Config
-- services/some/base.yaml --
a: 1
-- services/some/overlays/region/us.yaml --
a: x
-- services/whole/base.yaml --
a: 1
a: 2
-- services/broken/s.cue --
package broken

x: {
-- services/warned/s.cue --
package warned

#Config: a: int
values: #Config
confrim: "disk"
-- services/warned/base.yaml --
a: 1
-- services/lonely.yaml --
a: 1
`))
	var units []string
	for _, u := range res.Units {
		units = append(units, u.Service+" "+u.Cohort)
	}
	want := []string{"good prod-eu", "good prod-us", "good staging", "some prod-eu", "some staging", "warned prod-eu", "warned prod-us", "warned staging"}
	if d := cmp.Diff(want, units); d != "" {
		t.Errorf("units (-want +got):\n%s", d)
	}
	var errs []string
	for _, p := range res.Problems {
		if p.Severity == SeverityError {
			errs = append(errs, fmt.Sprint(p.Service, " ", p.Cohorts))
		}
	}
	if d := cmp.Diff([]string{"broken []", "some [prod-us]", "whole []"}, errs); d != "" {
		t.Errorf("errors (-want +got):\n%s", d)
	}
	if said := Format(res.Problems); !strings.Contains(said, "warning: not read: a service is a directory below services, with a base or a CUE package\n    set at    services/lonely.yaml\n") {
		t.Errorf("a file beside the services: %s", said)
	}
}

// Without a schema secrets are known by the names of their keys, and are in no message.
func TestSecretsWithoutSchema(t *testing.T) {
	const marker = "12345SECRET"
	for name, files := range map[string]string{
		"env newline": "-- services/s/base.env --\nA=1\n-- services/s/overlays/env/prod.yaml --\nPASSWORD: \"" + marker + "\\n\"\n",
		"env syntax":  "-- services/s/base.env --\nPASSWORD=\"" + marker + "\n",
		"toml syntax": "-- services/s/base.toml --\npassword = \"" + marker + "\n",
		"toml date":   "-- services/s/base.toml --\npassword = 1979-05-27T07:32:00Z\n[db]\npassword = " + marker + "\n",
		"toml twice":  "-- services/s/base.toml --\npassword = \"" + marker + "\"\npassword = \"" + marker + "\"\n",
		"toml null":   "-- services/s/base.toml --\na = 1\n-- services/s/overlays/env/prod.yaml --\ntokens: [" + marker + ", null]\n",
	} {
		res := Evaluate(repo(oneCohort + files))
		if said := Format(res.Problems); !res.Failed() || strings.Contains(said, marker) || !strings.Contains(said, "set at    services/s/") {
			t.Errorf("%s: got %s", name, said)
		}
	}
}

// A value that repeats a secret, or has a password in an address, is one too; and what is secret inside of a leaf can be found by its digest.
func TestSecretsInOtherValues(t *testing.T) {
	const files = oneCohort + `
-- services/s/base.yaml --
password: hunter2secret
url: "postgres://app:other@db/x"
site: "https://user@host:8080/a:b@c"
note: use hunter2secret here
token_file: /run/credentials/s
mount: /run/credentials/s
users: [{name: ann, password: "in a list"}]
private_key: |
  first line
    second line
pin_token: 99
size: 99
`
	req := repo(files)
	req.LeavesToo = true
	u := Evaluate(req).Units[0]
	secret := map[string]bool{}
	for _, l := range u.Leaves {
		if secret[layer.PathText(l.Path)] = l.Secret; l.Secret && l.Value != "" {
			t.Errorf("%v is shown: %s", l.Path, l.Value)
		}
	}
	want := map[string]bool{"password": true, "url": true, "site": false, "note": true, "token_file": true, "mount": false, "users": true, "private_key": true, "pin_token": true, "size": false}
	if d := cmp.Diff(want, secret); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	for _, text := range []string{"hunter2secret", "in a list", "first line", "second line"} {
		if sum := sha256.Sum256(canonical(text)); !slices.Contains(u.Secrets, hex.EncodeToString(sum[:])) {
			t.Errorf("no digest of %q", text)
		}
	}
	if req.LeavesToo = false; Evaluate(req).Units[0].Secrets != nil {
		t.Error("digests that nobody asked for")
	}
}

// What only a release's own rules refuse is said when the fleet is checked.
func TestFleetThatNoReleaseCarries(t *testing.T) {
	said := Format(Evaluate(repo(strings.Replace(oneCohort, "hosts: expect: 1}", "hosts: expect: 1}\nrollouts: standard: {waves: [{percent: 100}], watch: \"9999999999999999h\"}", 1) + "-- services/s/base.yaml --\na: 1\n")).Problems)
	if !strings.Contains(said, "a release cannot carry this fleet: rollouts.standard: watch") || !strings.Contains(said, "set at    fleet") {
		t.Error(said)
	}
	if said := Format(Evaluate(repo(strings.Replace(oneCohort, "precedence: [\"env\"]", "", 1) + "-- services/s/base.yaml --\na: 1\n")).Problems); said != "" {
		t.Error(said)
	}
}

// What a message says beside what is wrong: where the schema is, and what to do.
func TestPlacesAndNextSteps(t *testing.T) {
	for files, want := range map[string]string{
		"-- services/s/s.cue --\npackage s\n#Config: {q: r: string} & {q: {} @secret()}\n#Config: l: [...string] @secret()\nvalues: #Config\n-- services/s/base.yaml --\nq: {r: hunter3}\nl: [hunter4]\n": "l.0: a secret stays out of the repo: give the absolute path where the host has it  (cohort prod)\n" +
			"    set at    services/s/base.yaml:2:5\n    schema at services/s/s.cue:3:17\n",
		"-- services/s/s.cue --\npackage s\nenv: string\nif env == \"prod\" {files: \"x.json\": {format: \"json\", data: {}}}\n":                                                "an `if` of the package itself has no value to look at; put it inside `files: {…}`",
		"-- services/s/s.cue --\npackage s\ncohort: {name: string, labels: [string]: string}\nfiles: {if cohort.name == \"prod\" {\"x.json\": {format: \"json\", data: {}}}}\n": "",
	} {
		if said := text(t, files); !strings.Contains(said, want) || want == "" && said != "" {
			t.Errorf("%s\ngot %s", files, said)
		}
	}
}

// What no bundle carries is said here, and not when the commit is published.
func TestFilesThatNoBundleCarries(t *testing.T) {
	const entry = `: {format: "text", data: "x"}`
	for files, want := range map[string]string{
		`"stra\u00dfe"` + entry + `, "STRASSE"` + entry:               "only by Unicode form",
		`"cafe\u0301/x"` + entry + `, "caf\u00e9"` + entry:            "which is a file",
		`"a\u202eb"` + entry:                                          "no control characters",
		`"a\u0085b"` + entry:                                          "no control characters",
		`"a": {format: "text", data: "x", mode: "0044"}`:              "mode 0044: the file's owner could not read it",
		`"a": {format: "text", data: "x", mode: "0400"}, "b"` + entry: "",
	} {
		said := text(t, "-- services/s/s.cue --\npackage s\nfiles: {"+files+"}\n")
		if !strings.Contains(said, want) || want == "" && said != "" || want != "" && !strings.Contains(said, "set at    services/s/s.cue:2:") {
			t.Errorf("%s\ngot %s", files, said)
		}
	}
}
