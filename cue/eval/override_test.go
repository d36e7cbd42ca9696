package eval

import (
	"context"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const overridable = `
-- fleet/fleet.cue --
package fleet

precedence: ["env", "host"]
cohorts: {
	"prod-eu": {labels: env: "prod", hosts: list: ["web-1", "web-2", "web-3"]}
	"prod-us": {labels: env: "prod", hosts: expect: 1}
}
-- services/pay/schema.cue --
package pay

#Config: {
	timeout_ms!: int & >0 & <=10_000
	mode: *"safe" | "fast"
	note?: string
	password?: string & =~"^[a-z]+$" @secret()
}
values: #Config
host: name: *"" | string
files: "pay.json": {format: "json", data: {v: values, at: host.name}}
-- services/pay/base.yaml --
timeout_ms: 1000
note: base
-- services/pay/overlays/env/prod.yaml --
timeout_ms: 2000
-- services/pay/overlays/host/web-2.yaml --
note: web-2
`

func rendered(t *testing.T, res *Result) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, u := range res.Units {
		out[target{cohort: u.Cohort, host: u.Host}.name()] = strings.Join(strings.Fields(string(u.Files[0].Data)), "")
	}
	return out
}

func TestOverride(t *testing.T) {
	all := func(id, values string, hosts ...string) Override {
		return Override{ID: id, Cohort: "prod-eu", Hosts: hosts, Service: "pay", Values: values}
	}
	plain := map[string]string{
		"prod-eu": `{"at":"","v":{"mode":"safe","note":"base","timeout_ms":2000}}`, "prod-us": `{"at":"","v":{"mode":"safe","note":"base","timeout_ms":2000}}`,
		"prod-eu/web-2": `{"at":"web-2","v":{"mode":"safe","note":"web-2","timeout_ms":2000}}`,
	}
	for name, test := range map[string]struct {
		overrides []Override
		want      map[string]string
	}{
		"none": {},
		"above every layer, in its cohort only": {[]Override{all("a", `{"timeout_ms":5000,"note":"up"}`)}, map[string]string{
			"prod-eu": `{"at":"","v":{"mode":"safe","note":"up","timeout_ms":5000}}`, "prod-eu/web-2": `{"at":"web-2","v":{"mode":"safe","note":"up","timeout_ms":5000}}`,
		}},
		"null deletes": {[]Override{all("a", `{"note":null}`)}, map[string]string{
			"prod-eu": `{"at":"","v":{"mode":"safe","timeout_ms":2000}}`, "prod-eu/web-2": `{"at":"web-2","v":{"mode":"safe","timeout_ms":2000}}`,
		}},
		"the newer wins on one path": {[]Override{all("a", `{"timeout_ms":5000,"mode":"fast"}`), all("b", `{"timeout_ms":6000}`)}, map[string]string{
			"prod-eu": `{"at":"","v":{"mode":"fast","note":"base","timeout_ms":6000}}`, "prod-eu/web-2": `{"at":"web-2","v":{"mode":"fast","note":"web-2","timeout_ms":6000}}`,
		}},
		// web-1 has no overlay of its own: to the package it stays any host of the cohort.
		"of single hosts": {[]Override{all("a", `{"timeout_ms":5000}`, "web-1", "web-2")}, map[string]string{
			"prod-eu/web-1": `{"at":"","v":{"mode":"safe","note":"base","timeout_ms":5000}}`, "prod-eu/web-2": `{"at":"web-2","v":{"mode":"safe","note":"web-2","timeout_ms":5000}}`,
		}},
	} {
		t.Run(name, func(t *testing.T) {
			req := repo(overridable)
			req.Overrides = test.overrides
			res := Evaluate(req)
			if res.Failed() {
				t.Fatalf("problems:\n%s", Format(res.Problems))
			}
			want := map[string]string{}
			for k, v := range plain {
				want[k] = v
			}
			for k, v := range test.want {
				want[k] = v
			}
			if d := cmp.Diff(want, rendered(t, res)); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
		})
	}
}

// What does not validate is refused, and its place is the override's id. B134: never with a secret's value.
func TestB134OverrideRefused(t *testing.T) {
	for name, test := range map[string]struct{ values, path, message string }{
		"out of bounds":    {`{"timeout_ms":99999}`, "timeout_ms", "99999"},
		"wrong type":       {`{"timeout_ms":"soon"}`, "timeout_ms", ""},
		"unknown field":    {`{"timeout":5}`, "timeout", "unknown field"},
		"required removed": {`{"timeout_ms":null}`, "timeout_ms", "missing"},
		"secret":           {`{"password":"12345SECRET"}`, "password", ""},
		"secret's type":    {`{"password":{"deep":"12345SECRET"}}`, "password", ""},
		"not JSON":         {`{"password":"12345SECRET"`, "", "not valid JSON"},
		"no struct":        {`[1]`, "", "a layer is a struct"},
	} {
		t.Run(name, func(t *testing.T) {
			req := repo(overridable)
			req.LeavesToo = true
			req.Overrides = []Override{{ID: "inc-311", Cohort: "prod-eu", Service: "pay", Values: test.values}}
			res := Evaluate(req)
			text := Format(res.Problems)
			if strings.Contains(text, "SECRET") {
				t.Errorf("the value of a secret is told:\n%s", text)
			}
			found := false
			for _, p := range res.Problems {
				found = found || p.Severity == SeverityError && p.Path == test.path && strings.Contains(p.Message, test.message)
				if p.Severity == SeverityError && (len(p.Cohorts) != 1 || p.Cohorts[0] != "prod-eu") {
					t.Errorf("a problem of the override's cohort is told of %v: %s", p.Cohorts, p.Message)
				}
			}
			if !found {
				t.Errorf("no error at %q with %q:\n%s", test.path, test.message, text)
			}
			if name != "required removed" && !strings.Contains(text, "override inc-311") {
				t.Errorf("the override's id is not told:\n%s", text)
			}
			for _, u := range res.Units {
				if u.Cohort == "prod-us" {
					return
				}
			}
			if name != "not JSON" && name != "no struct" { // what cannot be read ends the service
				t.Error("the other cohort is not rendered")
			}
		})
	}
}

// An answer with an override is another answer, also over the border and from the cache.
func TestOverrideCached(t *testing.T) {
	cache, err := OpenCache(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, values := range []string{"", `{"timeout_ms":5000}`, `{"timeout_ms":6000}`, `{"timeout_ms":5000}`, ""} {
		req := repo(overridable)
		if values != "" {
			req.Overrides = []Override{{ID: "a", Cohort: "prod-eu", Hosts: []string{"web-1"}, Service: "pay", Values: values}}
		}
		got, err := cache.Run(context.Background(), req, Limits{})
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(rendered(t, Evaluate(req)), rendered(t, got)); d != "" {
			t.Errorf("override %q (-here +cache):\n%s", values, d)
		}
	}
}
