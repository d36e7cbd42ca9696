package eval

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-config/muster/distributor/manifest"
)

const threeCohorts = `
-- fleet/fleet.cue --
package fleet

precedence: ["env", "region", "env+region", "cohort", "host"]
cohorts: {
	staging: {labels: {env: "staging", region: "eu"}, hosts: expect: 1}
	"prod-eu": {labels: {env: "prod", region: "eu"}, hosts: expect: 1}
	"prod-us": {labels: {env: "prod", region: "us"}, hosts: expect: 1}
}
`

// The last label wins, in files and in CUE; a joint label applies where both values match.
func TestPrecedence(t *testing.T) {
	files := "-- services/f/base.yaml --\nv: base\nenv: base\njoint: base\nkeep: 1\n" +
		"-- services/f/overlays/env/prod.yaml --\nv: env\nenv: prod\n" +
		"-- services/f/overlays/region/eu.json --\n{\"v\": \"region\", \"keep\": null}\n" +
		"-- services/f/overlays/env+region/prod+eu.yaml --\nv: joint\njoint: yes\n" +
		"-- services/f/overlays/cohort/prod-us.yaml --\nv: cohort\n"
	cue := `-- services/c/c.cue --
package c

#Config: {v!: string, env!: string, joint!: string, keep?: int}
values: #Config
base: {v: "base", env: "base", joint: "base", keep: 1}
overlay: env: prod: {v: "env", env: "prod"}
overlay: region: eu: {v: "region", keep: null}
overlay: "env+region": "prod+eu": {v: "joint", joint: "yes"}
overlay: cohort: "prod-us": v: "cohort"
files: "c.yaml": {format: "yaml", data: values}
`
	res := Evaluate(repo(threeCohorts + files + cue))
	for cohort, want := range map[string]string{
		"staging": "env: base\njoint: base\nv: region\n",
		"prod-eu": "env: prod\njoint: \"yes\"\nv: joint\n",
		"prod-us": "env: prod\njoint: base\nkeep: 1\nv: cohort\n",
	} {
		for _, service := range []string{"f", "c"} {
			if got := file(t, res, cohort, service, service+".yaml"); got != want {
				t.Errorf("%s for %s: got\n%swant\n%s", service, cohort, got, want)
			}
		}
	}
}

// An overlay written as `#Config & {…}` brings what it says: not the schema's defaults, nor values computed from them.
func TestOverlayLeaksNoDefaults(t *testing.T) {
	res := Evaluate(repo(threeCohorts + `-- services/s/s.cue --
package s

#Config: {
	workers: int | *2
	pool:    int | *(workers * 4)
	level:   *"info" | "debug" | "warn"
	name!:   string
	tags: [...string]
	limits: {cpu: *1 | int, mem?: int}
	kind: *{a: 1} | {b: int}
	port!: int & >low
	low:   int
}
values: #Config
base: {workers: 8, level: "debug", name: "n", tags: ["x"], limits: cpu: 3, kind: b: 2, port: 5, low: 1}
overlay: env: prod: #Config & {workers: 16}
overlay: cohort: "prod-us": #Config & {limits: mem: 7}
files: "s.yaml": {format: "yaml", data: values}
`))
	const want = "kind:\n  b: 2\nlevel: debug\nlimits:\n  cpu: 3\nlow: 1\nname: \"n\"\npool: 64\nport: 5\ntags:\n  - x\nworkers: 16\n"
	if d := cmp.Diff(want, file(t, res, "prod-eu", "s", "s.yaml")); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if d := cmp.Diff(strings.Replace(want, "  cpu: 3\n", "  cpu: 3\n  mem: 7\n", 1), file(t, res, "prod-us", "s", "s.yaml")); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

func TestReleaseEpoch(t *testing.T) {
	req := repo(threeCohorts + `-- services/uses/a.cue --
package uses

release: epoch: int
#Config: a: int
values: #Config
files: "a.yaml": {format: "yaml", data: {values, epoch: release.epoch}}
confirm: "restarted"
-- services/uses/base.yaml --
a: 1
-- services/declares/a.cue --
package declares

release: epoch: int
#Config: release: int
values: #Config
base: release: 3
files: "a.yaml": {format: "yaml", data: {release: values.release}}
-- services/plain/base.yaml --
a: 1
`)
	req.Epochs = map[string]map[string]uint64{"prod-eu": {"uses": 1<<53 - 1}}
	res := Evaluate(req)
	if got := file(t, res, "prod-eu", "uses", "a.yaml"); got != "a: 1\nepoch: 9007199254740991\n" {
		t.Errorf("got %q", got)
	}
	if got := file(t, res, "staging", "uses", "a.yaml"); got != "a: 1\nepoch: 0\n" {
		t.Errorf("got %q", got)
	}
	for _, u := range res.Units {
		if u.UsesEpoch != (u.Service == "uses") {
			t.Errorf("%s uses the epoch: %v", u.Service, u.UsesEpoch)
		}
		want := manifest.GradeProcess
		if u.Service == "uses" {
			want = manifest.GradeRestarted
		}
		if u.Evidence != want {
			t.Errorf("%s: evidence %s, want %s", u.Service, u.Evidence, want)
		}
	}
}

func TestFiles(t *testing.T) {
	res := Evaluate(repo(oneCohort + `-- services/s/a.cue --
package s

#Config: {a: int, f: float}
values: #Config
files: {
	"conf.d/a.json": {format: "json", data: values, mode: "0600"}
	"a.env": {format: "env", data: A: values.a}
	"a.txt": {format: "text", data: "a=\(values.a)\n"}
}
-- services/s/base.yaml --
a: 100000000000000000000000
f: 1e3
`))
	if got, want := file(t, res, "prod", "s", "conf.d/a.json"), "{\n  \"a\": 100000000000000000000000,\n  \"f\": 1000.0\n}\n"; got != want {
		t.Errorf("json: %q", got)
	}
	if got := file(t, res, "prod", "s", "a.env"); got != "A=100000000000000000000000\n" {
		t.Errorf("env: %q", got)
	}
	if got := file(t, res, "prod", "s", "a.txt"); got != "a=100000000000000000000000\n" {
		t.Errorf("text: %q", got)
	}
	var modes []string
	for _, f := range res.Units[0].Files {
		modes = append(modes, f.Name)
		if want := map[bool]uint32{true: 0o600, false: 0o644}[f.Name == "conf.d/a.json"]; f.Mode != want {
			t.Errorf("%s: mode %o", f.Name, f.Mode)
		}
	}
	if d := cmp.Diff([]string{"a.env", "a.txt", "conf.d/a.json"}, modes); d != "" {
		t.Error(d)
	}
}

// A service without `files` gives one file of base's format; adding a schema without defaults changes no byte of it.
func TestSchemaChangesNoByte(t *testing.T) {
	const schema = "-- services/s/s.cue --\npackage s\n#Config: {a!: [...number], b!: string, c!: null, d!: [string]: _}\nvalues: #Config\n"
	for _, base := range []string{
		"-- services/s/base.yaml --\nb: \"yes\"\na: [1.50, 2, -0.0, 1e2, 12345678901234567890123456789]\nc:\nd:\n  x y: [true, {z: null}]\n  \"10\": |\n    text\n",
		"-- services/s/base.json --\n{\"b\": \"\", \"a\": [1.50, 0, 1E2], \"c\": null, \"d\": {\"é\": [[]], \"\": {}}}\n",
	} {
		name := "s." + map[bool]string{true: "yaml", false: "json"}[strings.Contains(base, "base.yaml")]
		bare := file(t, Evaluate(repo(oneCohort+base)), "prod", "s", name)
		with := file(t, Evaluate(repo(oneCohort+base+schema)), "prod", "s", name)
		if d := cmp.Diff(bare, with); d != "" {
			t.Errorf("%s (-without +with a schema):\n%s", name, d)
		}
	}
}

func TestPolicyDefaults(t *testing.T) {
	res := Evaluate(repo(`
-- fleet/fleet.cue --
package fleet

cohorts: {
	a: hosts: list: ["h1"]
	b: {
		description: "second"
		services: ["s*", "web"]
		hosts: {match: {dc: ["x", "y"], canary: "true"}, expect: {min: 2, max: 4}}
		ephemeral: true
		order: -5
		rollout: "slow"
	}
}
inventory: http: "https://inventory.example/hosts"
rollouts: slow: {waves: [{match: canary: "true", bake: "1h30m"}, {count: 2, min: 1}, {percent: 50.5}, {percent: 100}], max_in_flight: 3, gates: g: {http: "https://x/?e=$epoch", compare: ratio: 1.5}}
-- services/web/base.yaml --
-- services/s1/base.yaml --
-- services/other/base.yaml --
`))
	if len(res.Problems) > 0 {
		t.Fatal(Format(res.Problems))
	}
	want := manifest.Policy{
		Precedence: []string{},
		Cohorts: map[string]manifest.CohortPolicy{
			"a": {Labels: map[string]string{}, Services: []string{"other", "s1", "web"}, Hosts: manifest.HostsPolicy{List: []string{"h1"}}, Rollout: "standard", Order: 100},
			"b": {
				Description: "second", Labels: map[string]string{}, Services: []string{"s1", "web"}, Rollout: "slow", Order: -5, Ephemeral: true, RetireAfter: "15m",
				Hosts: manifest.HostsPolicy{Match: map[string][]string{"dc": {"x", "y"}, "canary": {"true"}}, Expect: &manifest.Expect{Min: 2, Max: 4}},
			},
		},
		Inventory: &manifest.Inventory{HTTP: "https://inventory.example/hosts"},
		Rollouts: map[string]manifest.RolloutPolicy{
			"standard": standard(),
			"slow": func() manifest.RolloutPolicy {
				p := standard()
				p.Waves = []manifest.Wave{{Match: map[string]string{"canary": "true"}, Bake: "1h30m"}, {Count: 2, Min: 1, Bake: "0s"}, {Percent: 50.5, Bake: "0s"}, {Percent: 100, Bake: "0s"}}
				p.Gates = map[string]manifest.Gate{"g": {HTTP: "https://x/?e=$epoch", Compare: &manifest.GateCompare{Ratio: 1.5}, Every: "30s", Fails: 1, NoData: "wait"}}
				p.MaxInFlight = "3"
				return p
			}(),
		},
	}
	if d := cmp.Diff(want, res.Policy); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

// The defaults that stand in Go for a fleet without rollouts are those of the schema.
func TestStandardIsTheSchemasDefault(t *testing.T) {
	res := Evaluate(repo("-- fleet/fleet.cue --\npackage fleet\ncohorts: a: hosts: expect: 0\nrollouts: standard: waves: [{percent: 100}]\n"))
	if len(res.Problems) > 0 {
		t.Fatal(Format(res.Problems))
	}
	if d := cmp.Diff(standard(), res.Policy.Rollouts["standard"]); d != "" {
		t.Errorf("(-Go +schema):\n%s", d)
	}
}

func TestNarrowing(t *testing.T) {
	req := repo(threeCohorts + "-- services/a/base.yaml --\nx: 1\n-- services/b/base.yaml --\nx: 1\nx: 2\n")
	req.Services, req.Cohorts = []string{"a"}, []string{"staging", "prod-us"}
	res := Evaluate(req)
	if len(res.Problems) > 0 {
		t.Fatal(Format(res.Problems))
	}
	var got []string
	for _, u := range res.Units {
		got = append(got, u.Service+" "+u.Cohort)
	}
	if d := cmp.Diff([]string{"a prod-us", "a staging"}, got); d != "" {
		t.Error(d)
	}
	if len(res.Policy.Cohorts) != 3 {
		t.Errorf("the policy is narrowed too: %d cohorts", len(res.Policy.Cohorts))
	}
	req.Services, req.Cohorts = []string{"nope"}, []string{"nowhere"}
	said := Format(Evaluate(req).Problems)
	if !strings.Contains(said, `no service "nope"`) || !strings.Contains(said, `no cohort "nowhere"`) {
		t.Errorf("got %s", said)
	}
}

// A service that is broken does not keep the others from being rendered.
func TestOneBrokenService(t *testing.T) {
	res := Evaluate(repo(oneCohort + "-- services/bad/a.cue --\npackage bad\nx: {\n-- services/two/a.cue --\npackage one\n-- services/two/b.cue --\npackage two\n" +
		"-- services/good/a.cue --\npackage good\n#Config: a: int\nvalues: #Config\n-- services/good/base.yaml --\na: 1\n"))
	if len(res.Units) != 1 || res.Units[0].Service != "good" {
		t.Errorf("units: %+v", res.Units)
	}
	for _, p := range res.Problems {
		if p.Service != "bad" && p.Service != "two" {
			t.Errorf("problem of %q: %s", p.Service, p.Message)
		}
	}
	if !res.Failed() {
		t.Error("nothing failed")
	}
}

func TestPathsLeadNowhereElse(t *testing.T) {
	for _, name := range []string{"/etc/passwd", "../x", "a//b", "", "."} {
		if res := Evaluate(&Request{Files: []TreeFile{{Path: name}}}); !res.Failed() || len(res.Problems) != 1 {
			t.Errorf("%q: %s", name, Format(res.Problems))
		}
	}
}

func TestFormat(t *testing.T) {
	got := Format([]Problem{
		{Severity: SeverityError, Service: "checkout", Cohorts: []string{"prod-eu", "prod-us", "staging"}, Path: "log_level", Message: `"verbose" is not one of "info", "debug", "warn", "error"`,
			SetAt: []Pos{{"services/checkout/overlays/env/prod.yaml", 3, 12}}, SchemaAt: []Pos{{"services/checkout/schema.cue", 6, 2}}},
		{Severity: SeverityWarning, Service: "checkout", Path: "limits.cpus", Message: "unknown\x1b[1m field", SetAt: []Pos{{"a.yaml", 7, 0}, {"b.yaml", 0, 0}}},
		{Severity: SeverityError, Service: "pay", Cohorts: []string{"x"}, Message: "no place"},
		{Severity: SeverityNotice, Service: "pay", Cohorts: []string{"a", "b", "c", "d", "e", "f"}, Message: "many"},
		{Severity: SeverityError, Service: "pay", Cohorts: []string{"x"}, Message: strings.Repeat("long", 30)},
	})
	want := `log_level: "verbose" is not one of "info", "debug", "warn", "error"  (3 cohorts: prod-eu, prod-us, staging)
    set at    services/checkout/overlays/env/prod.yaml:3:12
    schema at services/checkout/schema.cue:6:2
warning: limits.cpus: unknown?[1m field
    set at    a.yaml:7
    set at    b.yaml
pay: no place                                                        (cohort x)
notice: pay: many                                                    (6 cohorts: a, b, c, d, e and 1 more)
pay: ` + strings.Repeat("long", 30) + "  (cohort x)\n"
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}
