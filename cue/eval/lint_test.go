package eval

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// said is what is said about a repo; want "" means nothing.
func checkSaid(t *testing.T, files, want string) *Result {
	t.Helper()
	res := Evaluate(repo(files))
	if d := cmp.Diff(want, Format(res.Problems)); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	return res
}

func TestIdleLayers(t *testing.T) {
	res := checkSaid(t, threeCohorts+`
-- services/s/base.yaml --
a: 1
b: 1
c: {x: 1, y: [1, {z: 1.50}]}
d: 4
e: text
f: null
-- services/s/overlays/env/prod.yaml --
a: 1
b: 2
c: {x: 2, y: [1, {z: 1.5}], q: {}}
d: null
gone: null
e: {x: null}
f: null
-- services/s/overlays/region/eu.yaml --
b: 2
c: {}
d: null
-- services/s/overlays/cohort/prod-eu.yaml --
a: 1.0
`, `notice: a: the same as below it, so it has no effect
    set at    services/s/overlays/env/prod.yaml:1:4
    set at    services/s/base.yaml:1:4
notice: c: the same as below it, so it has no effect
    set at    services/s/overlays/region/eu.yaml:2:4
    set at    services/s/base.yaml:3:4
notice: c.q: not in base, and no schema checks it (did you mean "x"?)
    set at    services/s/overlays/env/prod.yaml:3:29
notice: c.y: the same as below it, so it has no effect
    set at    services/s/overlays/env/prod.yaml:3:14
    set at    services/s/base.yaml:3:14
notice: e: a struct, and base has a string: no schema checks it
    set at    services/s/overlays/env/prod.yaml:6:4
    set at    services/s/base.yaml:5:4
notice: gone: removes what no layer below it gives, so it has no effect
    set at    services/s/overlays/env/prod.yaml:5:7
`)
	if len(res.Units) != 3 {
		t.Errorf("%d units", len(res.Units))
	}
}

func TestFrozenInBase(t *testing.T) {
	checkSaid(t, threeCohorts+`
-- services/s/s.cue --
package s

#Config: {workers: int, pool: int, twice: int, name: string, list: [...int], other: int, own: int, limits: cpu: int}
values: #Config
base: {
	workers: 8
	pool:    workers * 4
	twice:   base.pool + 1
	name:    "w\(workers)"
	list: [1, limits.cpu]
	own:   workers
	limits: cpu: 1
	other: 5
}
overlay: env: prod: {workers: 16, own: 1}
overlay: region: us: limits: cpu: 2
overlay: region: eu: workers: 8
files: "s.json": {format: "json", data: values}
`, `warning: list: computed in base from limits.cpu, which region=us changes: it keeps base's value (compute it in #Config, where it follows)  (cohort prod-us)
    set at    services/s/s.cue:10:2
    set at    services/s/s.cue:16:30
warning: name: computed in base from workers, which env=prod changes: it keeps base's value (compute it in #Config, where it follows)  (cohort prod-us)
    set at    services/s/s.cue:9:2
    set at    services/s/s.cue:15:22
warning: pool: computed in base from workers, which env=prod changes: it keeps base's value (compute it in #Config, where it follows)  (cohort prod-us)
    set at    services/s/s.cue:7:2
    set at    services/s/s.cue:15:22
warning: twice: computed in base from workers, which env=prod changes: it keeps base's value (compute it in #Config, where it follows)  (cohort prod-us)
    set at    services/s/s.cue:8:2
    set at    services/s/s.cue:15:22
`)
}

func TestBranchingOnTheEpoch(t *testing.T) {
	service := func(body string) string {
		return oneCohort + "-- services/s/s.cue --\npackage s\n\nimport \"strings\"\n_s: strings.Repeat(\"x\", 1)\nrelease: epoch: int\n#Config: {a: int, ...}\nvalues: #Config & {a: 1}\n" + body + "\n-- services/s/t.tmpl --\n{{if gt .e 5}}x{{end}}\n"
	}
	for name, body := range map[string]string{
		"the number":     `files: f: {format: "json", data: {e: release.epoch, t: "e\(release.epoch)-x", l: [release.epoch]}}`,
		"as text":        `files: f: {format: "env", data: {E: release.epoch, T: "v=\(release.epoch)"}}`,
		"all formats":    `files: {f: {format: "toml", data: {e: release.epoch}}, g: {format: "yaml", data: {e: release.epoch, f: "\(release.epoch)"}}, h: {format: "text", data: "\(release.epoch)"}}`,
		"not in a file":  `values: b: release.epoch`,
		"only a default": `files: f: {format: "json", data: [if release.epoch >= 0 {1}]}`,
	} {
		t.Run(name, func(t *testing.T) {
			for _, files := range []bool{true, false} {
				req := repo(service(body))
				req.FilesToo = files
				res := Evaluate(req)
				if len(res.Problems) > 0 || len(res.Units) != 1 || !res.Units[0].UsesEpoch {
					t.Fatalf("%+v\n%s", res.Units, Format(res.Problems))
				}
				for _, f := range res.Units[0].Files {
					if (f.Data != nil) != files {
						t.Errorf("bytes %q", f.Data)
					}
				}
			}
		})
	}
	for name, tt := range map[string]struct{ body, want string }{
		"value":    {`files: f: {format: "json", data: {a: 1, d: release.epoch > 100}}`, "files.f: line 3 of it branches on release.epoch"},
		"zero":     {`files: f: {format: "json", data: {if release.epoch == 0 {b: 1}, c: 1}}`, "files.f: line 2 of it branches on release.epoch"},
		"computed": {`files: f: {format: "text", data: "\(release.epoch + 1)"}`, "files.f: line 1 of it branches"},
		"a file":   {`files: {f: {format: "json", data: 1}, if release.epoch > 3 {g: {format: "json", data: 1}}}`, "files.g: there only at some epochs"},
		"no file":  {`files: {f: {format: "json", data: 1}, if release.epoch < 3 {g: {format: "json", data: 1}}}`, "files.g: there only at some epochs"},
		"name":     {`files: {f: {format: "json", data: 1}, "g\(release.epoch)": {format: "json", data: 1}}`, "files.g0: its name depends on release.epoch"},
		"mode":     {`files: f: {format: "json", data: 1, mode: [if release.epoch > 3 {"0600"}, "0644"][0]}`, "files.f: its mode branches on release.epoch"},
		"confirm":  {`confirm: [if release.epoch > 3 {"disk"}, "process"][0]`, "confirm: branches on release.epoch"},
		"layer":    {"base: {if release.epoch > 3 {b: 1}}", "line 2 of it branches"},
		"template": {`files: f: {format: "template", from: "t.tmpl", data: e: release.epoch}`, "files.f: line 1 of it branches"},
		"bound":    {"release: epoch: <1000\nfiles: f: {format: \"json\", data: release.epoch}", "release.epoch"},
		"not zero": {"release: epoch: >0\nfiles: f: {format: \"json\", data: release.epoch}", "release.epoch"},
		"values":   {`values: b: [if release.epoch > 3 {int & "x"}, 1][0]`, "release.epoch rises up to 2^53, and at 4503599627370497: "},
	} {
		t.Run(name, func(t *testing.T) {
			req := repo(service(tt.body))
			req.FilesToo = false
			res := Evaluate(req)
			said := Format(res.Problems)
			if !strings.Contains(said, tt.want) || !strings.Contains(said, "services/s/s.cue:") || len(res.Units) > 0 || len(res.Problems) != 1 {
				t.Errorf("got %s", said)
			}
		})
	}
}
