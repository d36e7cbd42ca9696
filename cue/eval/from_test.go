package eval

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// templated is a service whose file t comes from the template.
func templated(template, data string) string {
	return oneCohort + "-- services/s/s.cue --\npackage s\n#Config: {a: int, b: [...string], big: int, f: float, n: null, on: bool}\nvalues: #Config\n" +
		"files: t: {format: \"template\", from: \"t.tmpl\", data: " + data + "}\n" +
		"-- services/s/base.yaml --\na: 5\nb: [x, y]\nbig: 123456789012345678901\nf: 2.50\nn:\non: true\n-- services/s/t.tmpl --\n" + template
}

func TestTemplate(t *testing.T) {
	for name, tt := range map[string]struct{ template, want string }{
		"plain":       {"a\n", "a\n"},
		"values":      {"{{.a}} {{.big}} {{.f}} {{.on}}{{range .b}} {{.}}{{end}}\n", "5 123456789012345678901 2.5 true x y\n"},
		"comparisons": {"{{if gt .a 4}}big{{end}} {{if eq .a 5}}five{{end}} {{len .b}} {{index .b 1}} {{and .on 1}}\n", "big five 2 y 1\n"},
		"null":        {"{{with .n}}x{{else}}none{{end}}{{if .n}}y{{end}}{{range .n}}z{{end}}\n", "none\n"},
		"define":      {"{{define \"x\"}}<{{.}}>{{end}}{{template \"x\" .a}}{{- /* gone */ -}}\n", "<5>"},
		"printf":      {"{{printf \"%03d|%q\" .a (index .b 0)}}\n", "005|\"x\"\n"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := file(t, Evaluate(repo(templated(tt.template, "values"))), "prod", "s", "t"); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

func TestTemplateErrors(t *testing.T) {
	for name, tt := range map[string]struct{ template, want string }{
		"syntax":          {"ok\n{{if}}\n", "missing value for if\n    set at    services/s/t.tmpl:2\n"},
		"missing key":     {"ok\n  {{.nope}}\n", "at <.nope>: the data has no key \"nope\"\n    set at    services/s/t.tmpl:2:5\n"},
		"below a string":  {"{{index .b 0 | printf \"%s\"}}{{(index .b 0).c}}\n", "at <0>: can't evaluate field c in type string\n    set at    services/s/t.tmpl:1:"},
		"index":           {"{{index .b 9}}\n", "at <index .b 9>: error calling index: index out of range: 9\n    set at    services/s/t.tmpl:1:3\n"},
		"no such func":    {"\n\n{{env \"HOME\"}}\n", "function \"env\" not defined\n    set at    services/s/t.tmpl:3\n"},
		"no file access":  {"{{template \"/etc/passwd\"}}\n", "at <{{template \"/etc/passwd\"}}>: template \"/etc/passwd\" not defined\n    set at    services/s/t.tmpl:1:"},
		"null":            {"a\nb: {{.n}}\n", "line 2 of the result would hold null (data.n): leave it out with {{with}}, or give a value\n    set at    services/s/t.tmpl\n"},
		"without end":     {"{{range 100000000}}{{range 1000}}0123456789012345678901234567890123456789012345678901234567890123456789{{end}}{{end}}", "the template gives more than 64 MiB, the most that a bundle carries in one file\n    set at    services/s/t.tmpl\n"},
		"its own caller":  {"{{define \"x\"}}{{template \"x\"}}{{end}}{{template \"x\"}}", "exceeded maximum template depth"},
		"not UTF-8":       {"\xff", "not UTF-8: a template is text\n    set at    services/s/t.tmpl\n"},
		"kinds differ":    {"{{if lt .f 3}}{{end}}", "incompatible types for comparison: string and int\n    set at    services/s/t.tmpl:1:6\n"},
		"call of nothing": {"{{call .a}}", "error calling call: non-function .a of type an integer\n"},
	} {
		t.Run(name, func(t *testing.T) {
			req := repo(templated(tt.template, "values"))
			req.FilesToo = false // errors are found all the same
			got := Format(Evaluate(req).Problems)
			line, rest, _ := strings.Cut(got, "\n")
			line, _, _ = strings.Cut(line, " (cohort prod)")
			if got = strings.TrimRight(line, " ") + "\n" + rest; !strings.HasPrefix(got, "files.t: ") || !strings.Contains(got, tt.want) {
				t.Errorf("got\n%swant\n%s", got, tt.want)
			}
		})
	}
	// A secret in the data is in no message.
	said := text(t, "-- services/s/s.cue --\npackage s\n#Config: password: string\nvalues: #Config\nfiles: t: {format: \"template\", from: \"t.tmpl\", data: values}\n"+
		"-- services/s/base.yaml --\npassword: hunter2\n-- services/s/t.tmpl --\n{{index .password .password}}\n")
	if !strings.Contains(said, "services/s/t.tmpl:1:") || strings.Contains(said, "hunter2") {
		t.Errorf("got %s", said)
	}
}

func TestFrom(t *testing.T) {
	const entry = "-- services/s/s.cue --\npackage s\nfiles: f: "
	bytes := "\x00\xff\r\n\xef\xbb\xbf"
	files := "-- services/s/base.yaml --\n-- services/s/certs/ca.pem --\nPEM\n-- lib/motd.txt --\nhello\n-- services/other/base.yaml --\n-- secret.txt --\nno\n-- services/s/bin --\n"
	with := func(e string) *Request {
		req := repo(oneCohort + entry + e + "\n" + files)
		for i := range req.Files {
			if req.Files[i].Path == "services/s/bin" {
				req.Files[i].Data = []byte(bytes)
			}
		}
		req.Services = []string{"s"}
		return req
	}
	for e, want := range map[string]string{
		`{format: "raw", from: "certs/ca.pem", mode: "0600"}`: "PEM\n",
		`{format: "raw", from: "bin"}`:                        bytes,
		`{format: "text", from: "lib/motd.txt"}`:              "hello\n",
		`{format: "text", data: "x"}`:                         "x",
	} {
		res := Evaluate(with(e))
		if res.Failed() {
			t.Errorf("%s:\n%s", e, Format(res.Problems))
			continue
		}
		if string(res.Units[0].Files[0].Data) != want {
			t.Errorf("%s: got %q", e, res.Units[0].Files[0].Data)
		}
		if strings.Contains(e, "0600") != (res.Units[0].Files[0].Mode == 0o600) {
			t.Errorf("%s: mode %o", e, res.Units[0].Files[0].Mode)
		}
		req := with(e)
		req.FilesToo = false
		bare := Evaluate(req)
		if bare.Units[0].Files[0].Data != nil || bare.Units[0].Files[0].Mode != res.Units[0].Files[0].Mode {
			t.Errorf("%s without files: %+v", e, bare.Units[0].Files)
		}
	}
	for e, want := range map[string]string{
		`{format: "raw", from: "../other/base.yaml"}`:       `files.f.from: "../other/base.yaml" is no path inside services/s or lib: it is relative and clean`,
		`{format: "raw", from: "certs/../../other/x"}`:      "is no path inside",
		`{format: "raw", from: "lib/../secret.txt"}`:        "is no path inside",
		`{format: "raw", from: "/etc/passwd"}`:              "is no path inside",
		`{format: "raw", from: ""}`:                         "is no path inside",
		`{format: "raw", from: "certs/ca.pen"}`:             `files.f.from: no file services/s/certs/ca.pen (did you mean "certs/ca.pem"?)`,
		`{format: "raw", from: "certs"}`:                    "no file services/s/certs: it is a directory",
		`{format: "raw", from: "lib/modt.txt"}`:             `no file lib/modt.txt (did you mean "lib/motd.txt"?)`,
		`{format: "raw", data: "x"}`:                        "takes `from`, and no data",
		`{format: "raw"}`:                                   "from is missing",
		`{format: "text", data: "x", from: "certs/ca.pem"}`: "text takes data or from",
		`{format: "text"}`:                                  "data is missing: a string; or from, a file",
		`{format: "text", from: "bin"}`:                     "not UTF-8",
		`{format: "template", data: {}}`:                    "from is missing: the template",
		`{format: "template", from: "certs/ca.pem"}`:        "data is missing: what the template is executed with",
		`{format: "json", from: "base.yaml"}`:               "format json is written from data: `from` is for text, template and raw",
		`{format: "json", from: "base.yaml", data: {}}`:     "format json is written from data",
		`{format: "raw", from: 5}`:                          "files.f.from: 5 is an integer, not a string",
		`{format: "raw", from: string}`:                     "files.f.from: not concrete",
	} {
		said := Format(Evaluate(with(e)).Problems)
		if !strings.Contains(said, want) || !strings.Contains(said, "set at    services/s/") {
			t.Errorf("%s: got %s, want %s", e, said, want)
		}
	}
}

// CUE's own text/template stays possible.
func TestStockTemplate(t *testing.T) {
	res := Evaluate(repo(oneCohort + "-- services/s/s.cue --\npackage s\nimport \"text/template\"\nfiles: f: {format: \"text\", data: template.Execute(\"a={{.a}}\\n\", {a: 1})}\n"))
	if d := cmp.Diff("a=1\n", file(t, res, "prod", "s", "f")); d != "" {
		t.Error(d)
	}
}

// The commands differ in whether they want bytes; what is refused, and the names and modes, do not.
func TestFilesTooChecksTheSame(t *testing.T) {
	for name, files := range map[string]string{
		"text of a number": "-- services/s/s.cue --\npackage s\nfiles: f: {format: \"text\", data: 5}\n",
		"toml of null":     "-- services/s/base.toml --\na = 1\n-- services/s/overlays/env/prod.json --\n{\"b\": [null]}\n",
		"env of a struct":  "-- services/s/base.env --\nA=1\n-- services/s/overlays/env/prod.yaml --\nB: {c: 1}\n",
		"good":             "-- services/s/base.toml --\na = 1\n",
		"good with files":  "-- services/s/s.cue --\npackage s\nfiles: {f: {format: \"text\", data: \"x\"}, g: {format: \"env\", data: {A: 1}, mode: \"0640\"}}\n",
	} {
		req := repo(oneCohort + files)
		with := Evaluate(req)
		req.FilesToo = false
		without := Evaluate(req)
		if d := cmp.Diff(Format(with.Problems), Format(without.Problems)); d != "" {
			t.Errorf("%s (-with +without files):\n%s", name, d)
		}
		if strings.HasPrefix(name, "good") != !with.Failed() {
			t.Errorf("%s: %s", name, Format(with.Problems))
		}
		for i, u := range with.Units {
			for j := range u.Files {
				with.Units[i].Files[j].Data = nil
			}
		}
		if d := cmp.Diff(with.Units, without.Units); d != "" {
			t.Errorf("%s: units (-with +without files):\n%s", name, d)
		}
	}
}
