package eval

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const hostFleet = `
-- fleet/fleet.cue --
package fleet

precedence: ["env", "cohort", "host"]
cohorts: {
	open: {labels: env: "test", services: ["s", "c"], hosts: expect: 3}
	listed: {labels: env: "prod", services: ["s", "c"], hosts: list: ["web-1", "web-2"]}
	other: {labels: env: "prod", services: ["x"], hosts: expect: 1}
	csv: {labels: env: "prod", services: ["s", "c"], hosts: match: dc: "eu"}
}
inventory: file: "fleet/hosts.csv"
-- fleet/hosts.csv --
host,cohort,dc
db-1,csv,eu
db-2,csv,us
x-1,other,eu
-- services/x/base.yaml --
a: 1
`

// units are "service cohort host: file" of each unit.
func unitText(res *Result) string {
	var b strings.Builder
	for _, u := range res.Units {
		b.WriteString(u.Service + " " + u.Cohort + " " + u.Host + ":")
		for _, f := range u.Files {
			b.WriteString(" " + strings.Join(strings.Fields(string(f.Data)), " "))
		}
		b.WriteString("\n")
	}
	return b.String()
}

func TestHostVariants(t *testing.T) {
	res := Evaluate(repo(hostFleet + `
-- services/s/base.yaml --
a: 1
-- services/s/overlays/cohort/listed.yaml --
a: 2
-- services/s/overlays/host/web-1.yaml --
a: 3
-- services/s/overlays/host/db-2.yaml --
a: 4
-- services/s/overlays/host/new-1.yaml --
a: 5
-- services/s/overlays/host/x-1.yaml --
a: 6
-- services/c/c.cue --
package c

cohort: {name: string, labels: [string]: string}
host: {name: *"any" | string, labels: {[string]: string}}
#Config: {a: int, who: string, dc: string}
values: #Config & {who: host.name, dc: *host.labels.dc | "none"}
base: a: 1
overlay: host: "db-1": a: 7
overlay: host: "web-2": a: 8
`))
	if len(res.Problems) > 0 {
		t.Fatal(Format(res.Problems))
	}
	const want = `c csv : { "a": 1, "dc": "none", "who": "any" }
c csv db-1: { "a": 7, "dc": "eu", "who": "db-1" }
c listed : { "a": 1, "dc": "none", "who": "any" }
c listed web-2: { "a": 8, "dc": "none", "who": "web-2" }
c open : { "a": 1, "dc": "none", "who": "any" }
s csv : a: 1
s csv db-2: a: 4
s listed : a: 2
s listed web-1: a: 3
s open : a: 1
s open new-1: a: 5
s open x-1: a: 6
x other : a: 1
`
	if d := cmp.Diff(want, unitText(res)); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

func TestHostVariantOfNobody(t *testing.T) {
	said := Format(Evaluate(repo(strings.Replace(hostFleet, `services: ["s", "c"], hosts: expect: 3`, `services: [], hosts: expect: 3`, 1) + `
-- services/s/base.yaml --
a: 1
-- services/c/base.yaml --
a: 1
-- services/s/overlays/host/web-l.yaml --
a: 3
-- services/s/overlays/host/x-1.yaml --
a: 3
-- services/s/overlays/host/a b.yaml --
a: 3
`)).Problems)
	const want = `"a b" is no host name: letters, digits, dots, - and _
    set at    services/s/overlays/host/a b.yaml
warning: no cohort that carries this service has the host "web-l", so this overlay has no effect (did you mean "web-1"?)
    set at    services/s/overlays/host/web-l.yaml
warning: no cohort that carries this service has the host "x-1", so this overlay has no effect
    set at    services/s/overlays/host/x-1.yaml
`
	if d := cmp.Diff(want, said); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

func TestHostsFile(t *testing.T) {
	for name, tt := range map[string]struct{ csv, want string }{
		"missing":        {"", "inventory.file: no file \"fleet/hosts.csv\" in the tree: a list of hosts lies below fleet, lib or services, such as fleet/hosts.csv\n    set at    fleet/fleet.cue:4:12\n"},
		"bad":            {"-- fleet/hosts.csv --\nhost,cohort\na b,prod\n", "inventory.file: host \"a b\" is not a host name: letters, digits, dots, - and _\n    set at    fleet/hosts.csv:2\n"},
		"quotes":         {"-- fleet/hosts.csv --\nhost,cohort\n\"a,prod\n", "inventory.file: extraneous or missing \" in quoted-field\n    set at    fleet/hosts.csv:2:9\n"},
		"unknown cohort": {"-- fleet/hosts.csv --\nhost,cohort\nweb-1,prod\n\nweb-2,prd\nweb-3,prd\n", "inventory.file: host \"web-2\" is in cohort \"prd\", which the fleet does not have (did you mean \"prod\"?)\n    set at    fleet/hosts.csv:4\n"},
		"twice":          {"-- fleet/hosts.csv --\nhost,cohort\nweb-1,prod\nweb-1,test\nweb-9,test\n", "host \"web-1\" is also in cohort \"prod\", and both carry \"s\"\n    set at    fleet/hosts.csv:3\n    set at    fleet/hosts.csv:2\n"},
	} {
		t.Run(name, func(t *testing.T) {
			got := Format(Evaluate(repo("-- fleet/fleet.cue --\npackage fleet\n\ncohorts: {prod: hosts: expect: 1, test: hosts: list: [\"web-9\"], more: {services: [], hosts: list: [\"web-9\"]}}\ninventory: file: \"fleet/hosts.csv\"\n-- services/s/base.yaml --\n" + tt.csv)).Problems)
			if got != tt.want {
				t.Errorf("got\n%swant\n%s", got, tt.want)
			}
		})
	}
}

// What only a variant has is said, where a cohort asks for it.
func TestHostOutsideAVariant(t *testing.T) {
	said := Format(Evaluate(repo(hostFleet + `
-- services/s/base.yaml --
a: 1
-- services/c/c.cue --
package c

host: {name: string, labels: [string]: string}
#Config: {a: int, who: string}
values: #Config & {who: host.name}
base: a: "x"
`)).Problems)
	const want = `a: "x" is a string, not an integer  (3 cohorts: csv, listed, open)
    set at    services/c/c.cue:6:7
    schema at services/c/c.cue:4:11
`
	const hint = "who: missing: the schema requires string (`host` has values only in a host's variant: for the cohort itself declare a default, `host: name: *\"\" | string`)"
	if !strings.HasPrefix(said, want+hint) {
		t.Errorf("got\n%s", said)
	}
}

// The service epoch of a variant is its own, and the leaves of a variant name its layer.
func TestHostVariantEpochAndLeaves(t *testing.T) {
	req := repo(hostFleet + `
-- services/s/base.yaml --
a: 1
-- services/c/c.cue --
package c

release: epoch: int
#Config: a: int
values: #Config
base: a: 1
overlay: host: "web-2": a: 8
files: "x.txt": {format: "text", data: "\(values.a) \(release.epoch)"}
`)
	req.LeavesToo, req.Services = true, []string{"c"}
	req.Epochs = map[string]map[string]uint64{"listed": {"c": 4}, "listed/web-2": {"c": 5}}
	res := Evaluate(req)
	if len(res.Problems) > 0 {
		t.Fatal(Format(res.Problems))
	}
	if d := cmp.Diff("c csv : 1 0\nc listed : 1 4\nc listed web-2: 8 5\nc open : 1 0\n", unitText(res)); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if d := cmp.Diff("layer a: 8 host=web-2 c.cue:7:25\n  1 base c.cue:6:7\n", leafText(res, "c", "listed", "web-2")); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}
