package eval

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// What is said about one service, as the whole text: the message carries the next step, the places follow.
func TestMessages(t *testing.T) {
	schema := func(config string) string {
		return "-- services/s/s.cue --\npackage s\n\n#Level: \"info\" | \"warn\"\n#Config: {\n" + config + "\n}\nvalues: #Config\n"
	}
	const (
		base = "-- services/s/base.yaml --\n"
		prod = "-- services/s/overlays/env/prod.yaml --\n"
	)
	for _, tt := range []struct{ name, files, want string }{
		{"typo in a default", schema("\tdb: pool: *4 | int\n\tcache_mb: int | *(db.pol * 8)") + base,
			`cache_mb: the default cannot be computed: undefined field db.pol (did you mean "pool"?)  (cohort prod)
    schema at services/s/s.cue:6:20
`},
		{"default of a field that nobody gives", schema("\tdb: {name?: string, pool: 1}\n\tuser: string | *\"u-\\(db.name)\"\n\tshare: *(db.pool / 0) | number") + base,
			`share: the default cannot be computed                       (cohort prod)
    schema at services/s/s.cue:7:10
user: the default cannot be computed: db.name has no value  (cohort prod)
    schema at services/s/s.cue:6:23
`},
		{"two defaults", schema("\tlog: *\"info\" | #Level\n\tlog: *\"warn\" | _\n\tport: *1 | *2 | int") + base,
			`log: ambiguous defaults: "info" and "warn"; leave one of them  (cohort prod)
    schema at services/s/s.cue:5:8
    schema at services/s/s.cue:6:8
port: ambiguous defaults: 1 and 2; leave one of them           (cohort prod)
    schema at services/s/s.cue:7:9
    schema at services/s/s.cue:7:14
`},
		{"two defaults of a secret", schema("\tpin: *\"one-secret\" | string @secret()\n\tpin: *\"two-secret\" | string") + base,
			`pin: ambiguous defaults: leave one of them  (cohort prod)
    schema at services/s/s.cue:5:8
    schema at services/s/s.cue:6:8
`},
		{"two defaults and a value", schema("\tlog: *\"info\" | #Level\n\tlog: *\"warn\" | _") + base + "log: info\n", ""},
		{"removed", schema("\ttimeout!: string\n\tlimits!: cpu!: int") + base + "timeout: 10s\nlimits: {cpu: 1}\n" + prod + "timeout: null\nlimits: null\n",
			`limits: missing: the schema requires a struct; removed by services/s/overlays/env/prod.yaml:2:9  (cohort prod)
    set at    services/s/overlays/env/prod.yaml:2:9
    schema at services/s/s.cue:6:2
timeout: missing: the schema requires string; removed by services/s/overlays/env/prod.yaml:1:10  (cohort prod)
    set at    services/s/overlays/env/prod.yaml:1:10
    schema at services/s/s.cue:5:2
`},
		{"missing altogether", schema("\ttimeout!: string\n\tlimits!: cpu!: int\n\tlist!: [...{name!: string}]") + "-- services/s/base.json --\n{\"limits\": {}, \"list\": [{}]}\n",
			`limits.cpu: missing: the schema requires int; set it in services/s/base.json, or in an overlay of those cohorts  (cohort prod)
    set at    services/s/base.json:1:12
    schema at services/s/s.cue:6:11
list.0.name: missing: the schema requires string  (cohort prod)
    set at    services/s/base.json:1:25
    schema at services/s/s.cue:7:14
timeout: missing: the schema requires string; set it in services/s/base.json, or in an overlay of those cohorts  (cohort prod)
    schema at services/s/s.cue:5:2
`},
		{"missing where base is CUE", schema("\ttimeout!: string\n\tn!: int") + "base: n: 1\n",
			`timeout: missing: the schema requires string; set it in services/s/s.cue, or in an overlay of those cohorts  (cohort prod)
    schema at services/s/s.cue:5:2
`},
		{"missing without a base", schema("\ttimeout!: string"),
			`timeout: missing: the schema requires string; set it in services/s/base.yaml, or in an overlay of those cohorts  (cohort prod)
    schema at services/s/s.cue:5:2
`},
		{"null removes nothing", schema("\ttimeout!: string") + prod + "timeout: null\n",
			`timeout: missing: the schema requires string; set it in services/s/base.yaml, or in an overlay of those cohorts  (cohort prod)
    schema at services/s/s.cue:5:2
notice: timeout: removes what no layer below it gives, so it has no effect
    set at    services/s/overlays/env/prod.yaml:1:10
`},
		{"fixed in the package", schema("\ttimeout!: string\n\tport: int") + "values: timeout: \"10s\"\n#Config: port: 1\n" + base + "timeout: 30s\nport: 1\n" + prod + "timeout: 40s\nport: 2\n",
			"port: 2 is not 1: the package fixes the value; make it a default, `*1 | int`, or move it to base  (cohort prod)" + `
    set at    services/s/overlays/env/prod.yaml:2:7
    schema at services/s/s.cue:10:16
` + "timeout: \"40s\" is not \"10s\": the package fixes the value; make it a default, `*\"10s\" | string`, or move it to base  (cohort prod)" + `
    set at    services/s/overlays/env/prod.yaml:1:10
    set at    services/s/base.yaml:1:10
    schema at services/s/s.cue:9:18
`},
		{"a misspelt name", schema("\tport!: int & >0 & <65536\n\tsub!: {name!: string}") + base + "prot: 8080\nsub: {naem: x}\n",
			`prot: unknown field (did you mean "port"?)
    set at    services/s/base.yaml:1:1
sub.naem: unknown field (did you mean "name"?)
    set at    services/s/base.yaml:2:7
`},
		{"another name and something missing", schema("\tport!: int & >0 & <65536\n\tadmin!: #Port\n\treply!: #Port & >1024\n\tweight!: uint8") + "#Port: int & >=1 & <=65535\n" + base + "colour: 1\n",
			`admin: missing: the schema requires int & >=1 & <=65535; set it in services/s/base.yaml, or in an overlay of those cohorts  (cohort prod)
    schema at services/s/s.cue:6:2
colour: unknown field
    set at    services/s/base.yaml:1:1
port: missing: the schema requires int & >0 & <65536; set it in services/s/base.yaml, or in an overlay of those cohorts  (cohort prod)
    schema at services/s/s.cue:5:2
reply: missing: the schema requires uint & >1024 & <=65535; set it in services/s/base.yaml, or in an overlay of those cohorts  (cohort prod)
    schema at services/s/s.cue:7:2
weight: missing: the schema requires uint8; set it in services/s/base.yaml, or in an overlay of those cohorts  (cohort prod)
    schema at services/s/s.cue:8:2
`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if d := cmp.Diff(tt.want, text(t, tt.files)); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
		})
	}
}

func TestOverlayOutsideTheOrder(t *testing.T) {
	fleet := strings.Replace(oneCohort, `["env"]`, `["env", "env+region"]`, 1)
	checkSaid(t, fleet+`-- services/s/base.yaml --
a: 1
-- services/s/overlays/evn/prod.yaml --
a: 2
-- services/s/overlays/region+env/eu+prod.yaml --
a: 2
-- services/s/overlays/zone/x.yaml --
a: 2
-- services/t/t.cue --
package t
values: {a: int}
base: a: 1
overlay: "region+env": "eu+prod": a: 2
`, `an overlay for the label "evn", which is not in the fleet's precedence (did you mean "env"?): rename it, or add "evn" to the order in fleet/fleet.cue
    set at    services/s/overlays/evn/prod.yaml
    set at    fleet/fleet.cue:3:1
an overlay for the label "region+env", which is not in the fleet's precedence (did you mean "env+region"?): move it to env+region/prod+eu
    set at    services/s/overlays/region+env/eu+prod.yaml
    set at    fleet/fleet.cue:3:1
an overlay for the label "zone", which is not in the fleet's precedence: add "zone" to it in fleet/fleet.cue
    set at    services/s/overlays/zone/x.yaml
    set at    fleet/fleet.cue:3:1
overlay."region+env"."eu+prod": an overlay for the label "region+env", which is not in the fleet's precedence (did you mean "env+region"?): move it to env+region/prod+eu
    set at    services/t/t.cue:4:24
    set at    fleet/fleet.cue:3:1
`)
}

// An answer from the cache has the place that `precedence` has now.
func TestOrderIsPlacedAnew(t *testing.T) {
	c := openCache(t)
	const service = "-- services/s/base.yaml --\na: 1\n-- services/s/overlays/zone/x.yaml --\na: 2\n"
	for i, fleet := range []string{oneCohort, strings.Replace(oneCohort, "precedence:", "// a comment\nprecedence:", 1)} {
		res, err := c.Run(t.Context(), repo(fleet+service), Limits{})
		if err != nil {
			t.Fatal(err)
		}
		if len(res.Problems) != 1 || len(res.Problems[0].SetAt) != 2 || res.Problems[0].SetAt[1] != (Pos{File: "fleet/fleet.cue", Line: 3 + i, Col: 1}) {
			t.Errorf("run %d:\n%s", i, Format(res.Problems))
		}
	}
}

func TestUnlikeBase(t *testing.T) {
	res := checkSaid(t, threeCohorts+`
-- services/s/base.yaml --
port: 1
name: x
list: [1]
deep: {ratio: 1.5, nested: {x_size: 1}}
any: null
later: {}
on: true
-- services/s/overlays/env/prod.yaml --
port: "1"
naem: y
list: {a: 1}
deep: {ratio: 2, nested: {y: 1}, nestde: null}
any: text
later: {key: 1}
on: null
-- services/c/s.cue --
package c
#Config: {a: int, b?: int}
values: #Config
base: a: 1
overlay: env: prod: b: 2
-- services/none/overlays/env/prod.yaml --
a: 1
-- services/none/s.cue --
package none
owner: "x"
`, `warning: the package has no `+"`values`, so no schema applies to the layers: declare #Config and add `values: #Config`"+`
    set at    services/none/s.cue
notice: deep.nestde: removes what no layer below it gives, so it has no effect
    set at    services/s/overlays/env/prod.yaml:4:42
notice: deep.nested.y: not in base, and no schema checks it
    set at    services/s/overlays/env/prod.yaml:4:27
notice: list: a struct, and base has a list: no schema checks it
    set at    services/s/overlays/env/prod.yaml:3:7
    set at    services/s/base.yaml:3:7
notice: naem: not in base, and no schema checks it (did you mean "name"?)
    set at    services/s/overlays/env/prod.yaml:2:1
notice: port: a string, and base has an integer: no schema checks it
    set at    services/s/overlays/env/prod.yaml:1:7
    set at    services/s/base.yaml:1:7
`)
	if len(res.Units) == 0 {
		t.Error("a notice refuses")
	}
}
