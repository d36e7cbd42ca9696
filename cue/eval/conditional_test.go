package eval

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// An `if` of the package itself is judged once values, cohort and host are filled in.
func TestTopLevelIf(t *testing.T) {
	const files = threeCohorts + `
-- services/tls/x.cue --
package tls
#Config: {tls: bool, cert!: string}
values: #Config
files: "a.yaml": {format: "yaml", data: values}
if values.tls {files: "tls.conf": {format: "text", data: values.cert}}
-- services/tls/base.yaml --
tls: true
cert: c
-- services/who/a.cue --
package who
cohort: {name: string, ...}
values: {x: 1}
files: "a.json": {format: "json", data: values}
if cohort.name == "staging" {files: "p": {format: "text", data: "p"}}
-- services/none/a.cue --
package none
cohort: {name: string, ...}
files: "a.txt": {format: "text", data: "a"}
if cohort.name == "staging" {files: "p": {format: "text", data: "p"}}
`
	req := repo(files)
	req.FilesToo, req.SchemasToo = true, true
	res := Evaluate(req)
	if res.Failed() {
		t.Fatalf("problems:\n%s", Format(res.Problems))
	}
	got := map[string]string{}
	for _, u := range res.Units {
		var names []string
		for _, f := range u.Files {
			names = append(names, f.Name)
		}
		got[u.Service+" "+u.Cohort] = strings.Join(names, " ")
	}
	want := map[string]string{
		"tls prod-eu": "a.yaml tls.conf", "tls prod-us": "a.yaml tls.conf", "tls staging": "a.yaml tls.conf",
		"who prod-eu": "a.json", "who prod-us": "a.json", "who staging": "a.json p",
		"none prod-eu": "a.txt", "none prod-us": "a.txt", "none staging": "a.txt p",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if res.Schemas["tls"] == nil {
		t.Error("no schema")
	}
}

// What has no value then is an error of the cohorts, with its place.
func TestTopLevelIfWithoutValue(t *testing.T) {
	for name, pkg := range map[string]string{
		"never given": "values: {x: 1}\nother: string\nif other == \"a\" {files: \"p\": {format: \"text\", data: \"p\"}}\n",
		"conflict":    "values: {on: true}\nif values.on {files: \"p\": {format: \"text\", data: \"p\" & \"q\"}}\n",
	} {
		t.Run(name, func(t *testing.T) {
			res := Evaluate(repo(threeCohorts + "\n-- services/s/s.cue --\npackage s\n" + pkg))
			if !res.Failed() {
				t.Fatalf("units: %v", res.Units)
			}
			for _, p := range res.Problems {
				if p.Service != "s" || len(p.SetAt) == 0 || len(p.Cohorts) != 3 && name == "never given" {
					t.Errorf("%+v", p)
				}
			}
		})
	}
}
