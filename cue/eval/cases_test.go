package eval

import (
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const oneCohort = `
-- fleet/fleet.cue --
package fleet

precedence: ["env"]
cohorts: prod: {labels: env: "prod", hosts: expect: 1}
`

// text is what is said about a repo.
func text(t *testing.T, files string) string {
	t.Helper()
	return Format(Evaluate(repo(oneCohort + files)).Problems)
}

// file is one rendered file; problems fail the test.
func file(t *testing.T, res *Result, cohort, service, name string) string {
	t.Helper()
	if len(res.Problems) > 0 {
		t.Fatalf("problems:\n%s", Format(res.Problems))
	}
	for _, u := range res.Units {
		if u.Cohort != cohort || u.Service != service {
			continue
		}
		for _, f := range u.Files {
			if f.Name == name {
				return string(f.Data)
			}
		}
	}
	t.Fatalf("no file %s/%s for %s", service, name, cohort)
	return ""
}

func TestB024DuplicateKeys(t *testing.T) {
	for _, tt := range []struct{ name, file, body, want string }{
		{"yaml", "base.yaml", "port: 1\nport: 2\n", "2:1 1:1"},
		{"yaml twin", "base.yaml", "port: 1\nport: 1\n", "2:1 1:1"},
		{"yaml structs", "base.yaml", "port: {x: 1}\nport: {y: 2}\n", "2:1 1:1"},
		{"yaml alias", "base.yaml", "x: &x port\n*x : 1\nport: 2\n", "3:1 2:1"},
		{"yaml quoted", "base.yaml", "port: 1\n\"port\": 1\n", "2:1 1:1"},
		{"json", "base.json", `{"port":1,"port":2}`, "1:11 1:2"},
		{"json twin", "base.json", `{"port":1,"port":1}`, "1:11 1:2"},
		{"json structs", "base.json", `{"port":{"x":1},"port":{"y":2}}`, "1:17 1:2"},
		{"json escaped", "base.json", `{"port":1,"por\u0074":1}`, "1:11 1:2"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			res := Evaluate(repo(oneCohort + "-- services/s/" + tt.file + " --\n" + tt.body))
			if len(res.Problems) != 1 || res.Problems[0].Path != "port" || res.Problems[0].Severity != SeverityError {
				t.Fatalf("got:\n%s", Format(res.Problems))
			}
			var got []string
			for _, p := range res.Problems[0].SetAt {
				if p.File != "services/s/"+tt.file {
					t.Errorf("position in %s", p.File)
				}
				got = append(got, fmt.Sprintf("%d:%d", p.Line, p.Col))
			}
			if s := strings.Join(got, " "); s != tt.want {
				t.Errorf("at %s, want %s", s, tt.want)
			}
		})
	}
}

func TestB025PlainWords(t *testing.T) {
	const words = `
country: no
sw: off
y: y
mode: 010
oct: 0o17
under: 1_000
m: 2222:22
d: 2024-01-01
v: 3.10
e: 1e3
n: ~
eq: =
merge: "<<"
`
	const want = `country: "no"
d: "2024-01-01"
e: 1000.0
eq: "="
m: "2222:22"
merge: "<<"
mode: 8
"n": null
oct: 15
sw: "off"
under: 1000
v: 3.1
"y": "y"
`
	got := file(t, Evaluate(repo(oneCohort+"-- services/s/base.yaml --"+words)), "prod", "s", "s.yaml")
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("without a schema (-want +got):\n%s", d)
	}
	// A schema without defaults changes no byte of it.
	got = file(t, Evaluate(repo(oneCohort+"-- services/s/s.cue --\npackage s\n#Config: [string]: _\nvalues: #Config\n-- services/s/base.yaml --"+words)), "prod", "s", "s.yaml")
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("with a schema (-want +got):\n%s", d)
	}
	// A string schema does not take a bool or a number.
	for _, word := range []string{"true", "8", "010", "1e3", "~"} {
		said := text(t, "-- services/s/s.cue --\npackage s\n#Config: country!: string\nvalues: #Config\n-- services/s/base.yaml --\ncountry: "+word+"\n")
		if !strings.Contains(said, "not a string") {
			t.Errorf("%s: %s", word, said)
		}
	}
}

func TestB029MissingRequired(t *testing.T) {
	said := text(t, "-- services/s/s.cue --\npackage s\n#Config: {min: int, max: int & >min}\nvalues: #Config\n-- services/s/base.yaml --\nmin: 1\n")
	if !strings.HasPrefix(said, "max: missing") {
		t.Errorf("incomplete: %s", said)
	}
	said = text(t, "-- services/s/s.cue --\npackage s\n#Config: min!: int\n-- services/s/base.yaml --\nmin: 1\n")
	if !strings.Contains(said, "nothing is checked against it") {
		t.Errorf("schema that is not tied: %s", said)
	}
	said = text(t, "-- services/s/s.cue --\npackage s\n#Svc: min!: int\n-- services/s/base.yaml --\nmin: 1\n")
	if !strings.Contains(said, "no schema applies") {
		t.Errorf("schema of another name: %s", said)
	}
	said = text(t, "-- services/s/s.cue --\npackage s\n#Config: timeout: *1 | int\nvalues: #Config\n-- services/s/base.yaml --\ntimout: 1\n")
	if !strings.HasPrefix(said, "timout: unknown field (did you mean \"timeout\"?)\n    set at    services/s/base.yaml:1:1\n") {
		t.Errorf("misspelt: %s", said)
	}
}

func TestB030Blank(t *testing.T) {
	for name, body := range map[string]string{"zero bytes": "", "comments": "# nothing\n\n# here\n", "marker": "---\n", "marker and comment": "--- # nothing\n", "byte order mark": "\ufeff"} {
		res := Evaluate(repo(oneCohort + "-- services/s/base.yaml --\na: 1\n-- services/s/overlays/env/prod.yaml --\n" + body))
		if got := file(t, res, "prod", "s", "s.yaml"); got != "a: 1\n" {
			t.Errorf("%s: got %q", name, got)
		}
	}
	said := text(t, "-- services/s/base.yaml --\n---\n---\nkind: x\n")
	if !strings.Contains(said, "more than one YAML document") || !strings.Contains(said, "services/s/base.yaml:2:1") && !strings.Contains(said, "services/s/base.yaml:3:1") {
		t.Errorf("two documents: %s", said)
	}
	said = text(t, "-- services/s/base.yaml --\n~\n")
	if !strings.Contains(said, "a layer is a struct") {
		t.Errorf("null document: %s", said)
	}
	// 50 good services and one with a null: the file is named.
	var b strings.Builder
	for i := range 50 {
		fmt.Fprintf(&b, "-- services/good%02d/base.yaml --\nfoo: {}\n", i)
	}
	said = text(t, b.String()+"-- services/bad/s.cue --\npackage bad\n#Config: foo: {}\nvalues: #Config\n-- services/bad/base.yaml --\na: 1\nfoo:\n")
	if !strings.Contains(said, "foo: null is null, not a struct") || !strings.Contains(said, "set at    services/bad/base.yaml:2:5") {
		t.Errorf("null for a struct: %s", said)
	}
}

func TestB032Order(t *testing.T) {
	parts := []string{"#Config: {a: int, m: [string]: int}", "values: #Config", "base: {a: 1, m: {x: 1, y: 2}}", "overlay: env: prod: m: z: 3",
		"_doubled: {for k, v in values.m {(k): v * 2}}", "files: \"o.json\": {format: \"json\", data: {v: values, d: _doubled}}"}
	var want string
	for round := range 12 {
		var b strings.Builder
		b.WriteString(oneCohort)
		for i := range parts {
			// Which part is in which file, and so which comes first, differs each time.
			fmt.Fprintf(&b, "-- services/s/f%d.cue --\npackage s\n%s\n", (i*5+round)%12, parts[(i+round)%len(parts)])
		}
		got := file(t, Evaluate(repo(b.String())), "prod", "s", "o.json")
		if want == "" {
			want = got
		}
		if got != want {
			t.Fatalf("round %d differs:\n%s\n%s", round, want, got)
		}
	}
	if !strings.Contains(want, `"z": 6`) {
		t.Errorf("got %s", want)
	}
}

func TestB034EveryServiceIsFound(t *testing.T) {
	said := text(t, "-- services/a/base.yaml --\na: 1\n-- services/z/z.cue --\npackage z\n#Config: a: int\nvalues: #Config\n-- services/z/base.yaml --\na: x\n")
	if !strings.Contains(said, "services/z/base.yaml:1:4") {
		t.Errorf("the invalid one is not found: %q", said)
	}
	said = Format(Evaluate(repo("-- README.md --\n")).Problems)
	if !strings.Contains(said, "fleet/fleet.cue") {
		t.Errorf("an empty tree: %q", said)
	}
}

// manyServices is a repo of n services, each in CUE with a schema and an overlay.
func manyServices(n int) *Request {
	var b strings.Builder
	b.WriteString(oneCohort + "-- lib/types/types.cue --\npackage types\n#Port: int & >0 & <65536\n")
	for i := range n {
		fmt.Fprintf(&b, "-- services/s%03d/s.cue --\npackage s\nimport \"muster.example/config/lib/types\"\n#Config: {port!: types.#Port, name: *\"n%d\" | string, twice: int | *(port*2)}\nvalues: #Config\nfiles: \"s.yaml\": {format: \"yaml\", data: values}\n", i, i)
		fmt.Fprintf(&b, "-- services/s%03d/base.yaml --\nport: %d\n-- services/s%03d/overlays/env/prod.yaml --\nname: x%d\n", i, i+1, i, i)
	}
	return repo(b.String())
}

func digest(res *Result) string {
	h := sha256.New()
	for _, u := range res.Units {
		for _, f := range u.Files {
			fmt.Fprintf(h, "%s %s %s %o %q\n", u.Service, u.Cohort, f.Name, f.Mode, f.Data)
		}
	}
	return fmt.Sprintf("%d units %x %s", len(res.Units), h.Sum(nil), Format(res.Problems))
}

func TestB038Parallel(t *testing.T) {
	req := manyServices(16)
	run := func(workers int) *Result {
		to := newAnswers()
		evaluate(req, nil, workers, to)
		return to.result(req)
	}
	want := digest(run(1))
	if !strings.HasPrefix(want, fmt.Sprintf("%d units", 16)) {
		t.Fatal(want)
	}
	rounds := 50
	if raceEnabled {
		rounds = 5 // the detector is what finds something then
	}
	for i := range rounds {
		if got := digest(run(8)); got != want {
			t.Fatalf("run %d with 8 workers: %s, want %s", i, got, want)
		}
	}
}

func TestB039Offline(t *testing.T) {
	t.Setenv("CUE_REGISTRY", "http://127.0.0.1:1") // must not be looked at
	module := "-- cue.mod/module.cue --\nmodule: \"corp.example/config@v0\"\nlanguage: version: \"v0.17.0\"\ndeps: \"example.org/shared@v0\": v: \"v0.1.0\"\n"
	use := "-- services/s/s.cue --\npackage s\nimport \"example.org/shared\"\n#Config: a: shared.#A\nvalues: #Config\nbase: a: 1\nfiles: \"s.json\": {format: \"json\", data: values}\n"
	said := text(t, module+use)
	if !strings.Contains(said, "example.org/shared") || len(said) == 0 {
		t.Errorf("missing import: %q", said)
	}
	vendored := "-- unnamed.cue --\nimport ()\n"
	for name, where := range map[string]string{"pkg": "cue.mod/pkg/example.org/shared", "gen": "cue.mod/gen/example.org/shared", "usr": "cue.mod/usr/example.org/shared"} {
		for _, m := range []string{module, strings.Replace(module, "deps: \"example.org/shared@v0\": v: \"v0.1.0\"\n", "", 1)} {
			res := Evaluate(repo(oneCohort + m + use + vendored + "-- " + where + "/a.cue --\npackage shared\n#A: int\n"))
			if got := file(t, res, "prod", "s", "s.json"); got != "{\n  \"a\": 1\n}\n" {
				t.Errorf("%s: got %q", name, got)
			}
		}
		said := text(t, module+strings.Replace(use, "a: 1", "a: \"x\"", 1)+"-- "+where+"/a.cue --\npackage shared\n#A: int\n#B: {\n")
		if !strings.Contains(said, where+"/a.cue:3:") {
			t.Errorf("%s: the position is not in the vendored file:\n%s", name, said)
		}
	}
	res := Evaluate(repo(oneCohort + module + use + "-- cue.mod/local-module.cue --\ndeps: \"example.org/shared@v0\": {v: \"v0.1.0\", replaceWith: \"./vendor/shared\"}\n" +
		"-- vendor/shared/cue.mod/module.cue --\nmodule: \"example.org/shared@v0\"\nlanguage: version: \"v0.17.0\"\n-- vendor/shared/a.cue --\npackage shared\n#A: int\n"))
	if got := file(t, res, "prod", "s", "s.json"); got != "{\n  \"a\": 1\n}\n" {
		t.Errorf("replaced: got %q", got)
	}
}

func TestB041HiddenFiles(t *testing.T) {
	for _, name := range []string{".hidden.cue", "_x.cue", "y_test.cue", "z.cue"} {
		body := "package s\nbase: b: 2\n"
		if name == "z.cue" {
			body = "@if(never)\n" + body
		}
		said := text(t, "-- services/s/a.cue --\npackage s\n#Config: {a: int, b?: int}\nvalues: #Config\nbase: a: 1\n-- services/s/"+name+" --\n"+body)
		if !strings.Contains(said, "services/s/"+name) || strings.Contains(said, "warning") {
			t.Errorf("%s is left out without an error: %q", name, said)
		}
	}
}

// B134: a marker that stands where a secret stands is in no message, whatever is wrong with it.
func TestB134SecretsAreNotPrinted(t *testing.T) {
	const marker = "12345SECRET"
	schema := func(constraint string) string {
		return "-- services/s/s.cue --\npackage s\n#Config: {password!: " + constraint + ", port: int | *1}\nvalues: #Config\nfiles: \"s.json\": {format: \"json\", data: values}\n"
	}
	base := func(body string) string { return "-- services/s/base.yaml --\n" + body }
	for name, files := range map[string]string{
		"type":             schema("int @secret()") + base("password: "+marker+"\n"),
		"pattern":          schema(`string & =~"^[a-z]+$" @secret()`) + base("password: "+marker+"\n"),
		"choice":           schema(`"a" | "b" @secret()`) + base("password: "+marker+"\n"),
		"choice of kinds":  schema(`{file!: string} | {path!: int} @secret()`) + base("password: "+marker+"\n"),
		"length":           strings.Replace(schema("strings.MaxRunes(3)"), "package s\n", "package s\nimport \"strings\"\n", 1) + base("password: "+marker+"\n"),
		"unknown field":    schema("string") + base("password: /x\npassword2: "+marker+"\n"),
		"unknown struct":   schema("string") + base("password: /x\nport: {token: "+marker+"}\n"),
		"yaml syntax":      schema("string") + base("password: \""+marker+"\n"),
		"yaml escape":      schema("string") + base("password: \"\\q"+marker+"\"\n"),
		"yaml anchor":      schema("string") + base("password: *"+marker+"\n"),
		"yaml tag":         schema("string") + base("password: !!int "+marker+"\n"),
		"yaml own tag":     schema("string") + base("password: !"+marker+" x\n"),
		"yaml mapping":     schema("string") + base("password: a: "+marker+"\n"),
		"yaml duplicate":   schema("string") + base("password: "+marker+"\npassword: "+marker+"\n"),
		"json syntax":      "-- services/s/base.json --\n{\"password\": \"" + marker + "\n",
		"json literal":     "-- services/s/base.json --\n{\"password\": " + marker + "}\n",
		"cue syntax":       "-- services/s/s.cue --\npackage s\npassword: " + marker + "\n",
		"cue string":       "-- services/s/s.cue --\npackage s\npassword: \"" + marker + "\n",
		"cue conflict":     "-- services/s/s.cue --\npackage s\npassword: \"" + marker + "\"\npassword: int\n",
		"cue base":         schema("int") + "-- services/s/b.cue --\npackage s\nbase: password: \"" + marker + "\"\n",
		"cue overlay":      schema("int") + "-- services/s/b.cue --\npackage s\noverlay: env: prod: password: \"" + marker + "\"\n",
		"used elsewhere":   schema("string") + base("password: "+marker+"\n") + "-- services/s/b.cue --\npackage s\nfiles: \"t.json\": {format: \"json\", data: {n: int & values.password}}\n",
		"in a bound":       strings.Replace(schema("string"), "port:", "note: !=password, port:", 1) + base("password: "+marker+"\nnote: "+marker+"\n"),
		"in an operand":    strings.Replace(schema("string"), "port:", "note: password + 1, port:", 1) + base("password: "+marker+"\n"),
		"output":           schema("string") + base("password: \""+marker+"\\n\"\n") + "-- services/s/b.cue --\npackage s\nfiles: \"t.env\": {format: \"env\", data: {P: values.password}}\n",
		"literal":          schema("string @secret()") + base("password: "+marker+"\n"),
		"marked by schema": "-- services/s/s.cue --\npackage s\n#Config: {x!: int @secret(), y!: {z!: int} @secret()}\nvalues: #Config\n" + base("x: "+marker+"\ny: z: "+marker+"\n"),
		"number":           schema(`<5 @secret()`) + base("password: 1234567\n"),
		"file name":        schema("string") + base("password: "+marker+"\n") + "-- services/s/b.cue --\npackage s\nfiles: \"t\": {format: values.password, data: 1}\n",
	} {
		t.Run(name, func(t *testing.T) {
			res := Evaluate(repo(oneCohort + files))
			said := Format(res.Problems)
			if name == "marked by schema" {
				said = strings.ReplaceAll(said, "services/s/base.yaml", "")
			}
			if !res.Failed() {
				t.Fatalf("no error:\n%s", said)
			}
			for _, secret := range []string{marker, "1234567"} {
				if strings.Contains(said, secret) {
					t.Errorf("the secret is printed:\n%s", said)
				}
			}
			if !slices.ContainsFunc(res.Problems, func(p Problem) bool { return len(p.SetAt) > 0 && len(p.Message) > 5 }) {
				t.Errorf("neither place nor reason:\n%s", said)
			}
		})
	}
	// The reason is still given.
	said := text(t, schema(`string & =~"^[a-z]+$" @secret()`)+base("password: "+marker+"\n"))
	if !strings.HasPrefix(said, "password: the value (a secret, not shown) does not match \"^[a-z]+$\"") {
		t.Errorf("got %s", said)
	}
	// A mark counts for all below it, for short values too.
	if said := text(t, "-- services/s/s.cue --\npackage s\n#Config: k!: {pin!: string} @secret()\nvalues: #Config\n"+base("k: {pin: 42}\n")); !strings.Contains(said, "k.pin: ") || strings.Contains(said, "42") {
		t.Errorf("got %s", said)
	}
	// A reference is no secret.
	if said := text(t, schema("string @secret()")+base("password: /run/credentials/s.service/password\n")); said != "" {
		t.Errorf("a path is refused: %s", said)
	}
}

func TestMisspeltPackageField(t *testing.T) {
	res := Evaluate(repo(oneCohort + `-- services/s/schema.cue --
package s

#Config: port!: int
values: #Config
confrim: "disk"
owner: "team-s"
_bse: 1
-- services/s/base.yaml --
port: 1
`))
	if len(res.Problems) != 1 || res.Problems[0].Severity != SeverityWarning || res.Problems[0].Path != "confrim" ||
		res.Problems[0].Message != `nothing reads this field (did you mean "confirm"?)` || res.Problems[0].SetAt[0].Line != 5 {
		t.Fatalf("got:\n%s", Format(res.Problems))
	}
}
