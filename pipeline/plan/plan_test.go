package plan_test

import (
	"encoding/json"
	"math/rand/v2"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-config/muster/cue/eval"
	"github.com/muster-config/muster/distributor/inventory"
	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/pipeline/plan"
)

func TestNothing(t *testing.T) {
	p := plan.Of(valid("commit 1").Side, valid("commit 2").Side, plan.Options{})
	if p.Changes || p.Summary != "nothing changes on any host: 3 cohorts, 403 to 423 hosts" {
		t.Errorf("changes %v, %q", p.Changes, p.Summary)
	}
	data, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(data), "null") {
		t.Errorf("a list prints as null: %s", data)
	}
}

// TestText is a change of every kind.
func TestText(t *testing.T) {
	base, head := valid("main (aaaaaaaaaaaa)"), valid("work tree")
	prod := "services/checkout/overlays/env/prod.yaml"
	for _, c := range []string{"prod-eu", "prod-us"} {
		head.replace("checkout", c,
			leaf("limits.workers", set("env=prod", "16", prod+":2"), set("base", "9", "services/checkout/base.yaml:6")), // shadowed
			leaf("timeout_ms", set("env=prod", "3000", prod+":3"), set("base", "1500", "services/checkout/base.yaml:2")),
			leaf("flags.new", set("base", "true", "services/checkout/base.yaml:9")),
		)
	}
	head.replace("checkout", "staging",
		leaf("limits.workers", set("base", "9", "services/checkout/base.yaml:6")),
		leaf("flags.new", set("base", "true", "services/checkout/base.yaml:9")),
	)
	head.drop("mailer", "staging")
	head.source("services/checkout/base.yaml", "base 2")
	for i, f := range head.Source {
		if f.Path == "services/mailer/base.json" {
			head.Source[i].Data = []byte("base 2")
		}
	}
	head.Policy.Precedence = []string{"env", "cohort"}
	c := head.Policy.Cohorts["prod-eu"]
	c.Rollout = "careful"
	head.Policy.Cohorts["prod-eu"] = c
	c = head.Policy.Cohorts["staging"]
	c.Hosts = manifest.HostsPolicy{List: []string{"st-1", "st-2", "st-4"}}
	head.Policy.Cohorts["staging"] = c
	head.problem(eval.Problem{Severity: eval.SeverityWarning, Service: "checkout", Path: "timeout_ms", Message: "looks long", Cohorts: []string{"prod-eu"}, SetAt: []eval.Pos{{File: prod, Line: 3, Col: 1}}})
	old := eval.Problem{Severity: eval.SeverityNotice, Service: "mailer", Message: "odd"}
	base.problem(old)
	head.problem(old)

	p := plan.Of(base.Side, head.Side, plan.Options{})
	const want = `plan: work tree against main (aaaaaaaaaaaa)

checkout
  + flags.new       true   prod-eu, prod-us, staging (403 to 423 hosts)
      set at services/checkout/base.yaml:9:1 (base)
  ~ limits.workers  8 → 9   staging (3 hosts)
      set at services/checkout/base.yaml:6:1 (base)
  ~ timeout_ms      1500 → 3000   prod-eu, prod-us (400 to 420 hosts)
      set at services/checkout/overlays/env/prod.yaml:3:1 (env=prod)
      was set at services/checkout/base.yaml:2:1 (base)
  - timeout_ms      1500   staging (3 hosts)
      was set at services/checkout/base.yaml:2:1 (base)
  ~ file checkout/checkout.yaml   prod-eu, prod-us, staging (403 to 423 hosts)

mailer
  - service removed: 1 value, 1 file   staging (3 hosts)
  - file mailer/mailer.yaml   staging (3 hosts)

fleet
  ~ cohorts.prod-eu.rollout  "standard" → "careful"
  - cohorts.staging.hosts.list.st-3
  + cohorts.staging.hosts.list.st-4
  ~ precedence  ["env","region","cohort","host"] → ["env","cohort"]
      a rollout runs under the policy of the release it starts from: this counts from the next one on

cohorts
  ~ prod-eu  120 hosts: checkout; standard: 3 waves: 6 hosts (5%, bake 10m), then 30 (25%, bake 30m), then all 120
  ~ prod-us  280 to 300 hosts: checkout; careful: 3 waves: 14 to 15 hosts (5%, bake 10m), then after approval 70 to 75 (25%, bake 30m), then all 280 to 300
  ~ staging  3 hosts: checkout, mailer; standard: 3 waves: 1 host (5%, bake 10m), then 1 (25%, bake 30m), then all 3

notes
  checkout: limits.workers: an edit at services/checkout/base.yaml:6:1 (base) is shadowed by env=prod at services/checkout/overlays/env/prod.yaml:2:1 in prod-eu, prod-us

warnings
  warning: checkout: timeout_ms: looks long (prod-eu)
      set at services/checkout/overlays/env/prod.yaml:3:1
  1 finding that main (aaaaaaaaaaaa) has too; ` + "`muster validate` prints them" + `

3 values in 1 service, 1 service removed, 2 files, 4 settings of the fleet, 3 of 3 cohorts, 403 to 423 hosts
digest `
	if diff := cmp.Diff(want+p.Digest+"\n", text(p)); diff != "" {
		t.Error(diff)
	}
	if !p.Changes || !p.Head.Valid {
		t.Errorf("changes %v, valid %v", p.Changes, p.Head.Valid)
	}
}

func TestSourceChanged(t *testing.T) {
	base, head := valid("a"), valid("b")
	head.Source[1].Data = []byte("# a comment\nbase 1")
	p := plan.Of(base.Side, head.Side, plan.Options{})
	if diff := cmp.Diff([]plan.Unrendered{{Service: "mailer", Files: []string{"services/mailer/base.json"}}}, p.Unrendered); diff != "" {
		t.Error(diff)
	}
	if p.Changes {
		t.Error("a comment changes nothing")
	}
	head.source("lib/types.cue", "package types")
	p = plan.Of(base.Side, head.Side, plan.Options{})
	if len(p.Unrendered) != 2 || p.Unrendered[0].Service != "" {
		t.Errorf("%+v", p.Unrendered)
	}
	if !strings.Contains(text(p), "\n  mailer: source changed, nothing rendered changed (services/mailer/base.json)\n") {
		t.Error(text(p))
	}
}

// TestShadowed: which edits below an unchanged value are told, and how.
func TestShadowed(t *testing.T) {
	top := set("env=prod", "5", "p.yaml:1")
	for name, c := range map[string]struct {
		before, after eval.Leaf
		want          string
	}{
		"an edit":    {leaf("x", top, set("base", "1", "b.yaml:1")), leaf("x", top, set("base", "2", "b.yaml:1")), "mailer: x: an edit at b.yaml:1:1 (base) is shadowed by env=prod at p.yaml:1:1 in staging"},
		"a new line": {leaf("x", top), leaf("x", top, set("base", "2", "b.yaml:1")), "mailer: x: a new line at b.yaml:1:1 (base) is shadowed by env=prod at p.yaml:1:1 in staging"},
		"a line out": {leaf("x", top, set("base", "2", "b.yaml:1")), leaf("x", top), "mailer: x: the line that was removed at b.yaml:1:1 (base) is shadowed by env=prod at p.yaml:1:1 in staging"},
		"covered":    {leaf("x", set("base", "5", "b.yaml:1")), leaf("x", top, set("base", "5", "b.yaml:1")), ""},
		"the middle": {leaf("x", top, set("region=eu", "3", "r.yaml:1"), set("base", "1", "b.yaml:1")), leaf("x", top, set("region=eu", "4", "r.yaml:1"), set("base", "1", "b.yaml:1")), "mailer: x: an edit at r.yaml:1:1 (region=eu) is shadowed by env=prod at p.yaml:1:1 in staging"},
		"moved":      {leaf("x", top, set("base", "1", "b.yaml:1")), leaf("x", top, set("base", "1", "b.yaml:7")), ""},
		"removed": {
			eval.Leaf{Path: []string{"x"}, Setting: set("env=prod", "null", "p.yaml:1"), Origin: eval.OriginRemoved, Shadows: []eval.Setting{set("base", "1", "b.yaml:1")}},
			eval.Leaf{Path: []string{"x"}, Setting: set("env=prod", "null", "p.yaml:1"), Origin: eval.OriginRemoved, Shadows: []eval.Setting{set("base", "2", "b.yaml:1")}},
			"mailer: x: an edit at b.yaml:1:1 (base) is without effect, the value is removed by env=prod at p.yaml:1:1 in staging",
		},
		"no longer needed": {leaf("x", top, set("base", "1", "b.yaml:1")), leaf("x", set("base", "5", "b.yaml:1")), ""},
	} {
		t.Run(name, func(t *testing.T) {
			base, head := valid("a").replace("mailer", "staging", c.before), valid("b").replace("mailer", "staging", c.after)
			p := plan.Of(base.Side, head.Side, plan.Options{})
			if len(p.Values) != 0 || (c.want == "") != (len(p.Shadowed) == 0) || !strings.Contains(text(p), c.want) {
				t.Errorf("want %q:\n%s", c.want, text(p))
			}
		})
	}
}

// TestVariants: a host with files of its own is counted where it changes, and not where it does not.
func TestVariants(t *testing.T) {
	one, two := set("base", "1", "b.yaml:1"), set("base", "2", "b.yaml:1")
	own := set("host=st-2", "7", "h.yaml:1")
	base := valid("a").replace("mailer", "staging", leaf("x", one)).unit("mailer", "staging/st-2", []eval.Leaf{leaf("x", own, one)})
	head := valid("b").replace("mailer", "staging", leaf("x", two)).unit("mailer", "staging/st-2", []eval.Leaf{leaf("x", own, two)})
	p := plan.Of(base.Side, head.Side, plan.Options{})
	if got := p.Values[0].In.String(); len(p.Values) != 1 || got != "staging except staging/st-2 (2 hosts)" {
		t.Errorf("%q", got)
	}
	if p.Tally.Hosts.Max != 2 || len(p.Shadowed) != 1 || p.Shadowed[0].In.String() != "staging/st-2 (1 host)" {
		t.Errorf("%+v, %+v", p.Tally, p.Shadowed)
	}

	// Only the host changes; then it loses what is its own.
	p = plan.Of(base.Side, valid("b").replace("mailer", "staging", leaf("x", one)).unit("mailer", "staging/st-2", []eval.Leaf{leaf("x", set("host=st-2", "8", "h.yaml:1"), one)}).Side, plan.Options{})
	if got := p.Values[0].In.String(); got != "staging/st-2 (1 host)" || p.Summary != "1 value in 1 service, 1 file, 1 of 3 cohorts, 1 host" {
		t.Errorf("%q, %q", got, p.Summary)
	}
	p = plan.Of(base.Side, valid("b").replace("mailer", "staging", leaf("x", one)).Side, plan.Options{})
	if diff := cmp.Diff([]plan.Variant{{Cohort: "staging", Host: "st-2", Service: "mailer", Kind: plan.Removed}}, p.Variants); diff != "" {
		t.Error(diff)
	}
	if len(p.Values) != 1 || p.Values[0].Before != "7" || p.Values[0].After != "1" {
		t.Errorf("%+v", p.Values)
	}
	if !strings.Contains(text(p), "- host st-2 of staging has no files of its own any more") {
		t.Error(text(p))
	}
}

func TestCohorts(t *testing.T) {
	base, head := valid("a"), valid("b")
	delete(head.Policy.Cohorts, "prod-us")
	head.Units = slices.DeleteFunc(head.Units, func(u eval.Unit) bool { return u.Cohort == "prod-us" })
	head.Policy.Cohorts["edge"] = manifest.CohortPolicy{Services: []string{"mailer"}, Hosts: manifest.HostsPolicy{Match: map[string][]string{"zone": {"x"}}}, Rollout: "standard"}
	head.unit("mailer", "edge", nil, file("mailer.yaml", "x"))
	p := plan.Of(base.Side, head.Side, plan.Options{})
	got := text(p)
	for _, want := range []string{
		"\n  + edge     new, hosts unknown: mailer; standard: 3 waves: 5% (bake 10m), then 25% (bake 30m), then all hosts\n",
		"\n  - prod-us  removed, 280 to 300 hosts: publish asks for --remove-cohort=prod-us\n",
		"\n    prod-eu  unchanged, 120 hosts\n",
		"\n2 services, 2 files, 2 of 3 cohorts, 280 to 300 hosts, unknown in edge\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in:\n%s", want, got)
		}
	}
	// The inventory knows: by cohort, and of those who match.
	p = plan.Of(base.Side, head.Side, plan.Options{Inventory: []inventory.Host{
		{Name: "e1", Cohort: "edge", Labels: map[string]string{"zone": "x"}}, {Name: "e2", Cohort: "edge", Labels: map[string]string{"zone": "y"}},
		{Name: "e3", Cohort: "edge", Labels: map[string]string{"zone": "x"}}, {Name: "p", Cohort: "prod-eu", Labels: map[string]string{}},
	}})
	if !strings.Contains(text(p), "edge     new, 2 hosts: mailer; standard: 3 waves: 1 host (5%, bake 10m), then 1 (25%, bake 30m), then all 2\n") || !strings.Contains(text(p), "prod-eu  unchanged, 1 host\n") {
		t.Error(text(p))
	}
}

// TestVariantOfNothing: an overlay that comes to what the cohort has makes no files of its own.
func TestVariantOfNothing(t *testing.T) {
	base, head := valid("a"), valid("b")
	for _, u := range base.Units {
		if u.Service == "checkout" && u.Cohort == "prod-eu" {
			head.unit("checkout", "prod-eu/web-1", u.Leaves, u.Files...)
		}
	}
	head.source("services/checkout/overlays/host/web-1.yaml", "timeout_ms: 1500")
	p := plan.Of(base.Side, head.Side, plan.Options{})
	if len(p.Variants) > 0 || p.Changes || strings.Contains(text(p), "files of its own") {
		t.Error(text(p))
	}
}

// TestInventory: who comes to a cohort and who leaves it is a change, though no file is.
func TestInventory(t *testing.T) {
	with := func(name, csv string) *world {
		w := valid(name).source("fleet/hosts.csv", csv)
		w.Policy.Inventory = &manifest.Inventory{File: "fleet/hosts.csv"}
		c := w.Policy.Cohorts["prod-us"]
		c.Hosts = manifest.HostsPolicy{Match: map[string][]string{"zone": {"a", "b"}}}
		w.Policy.Cohorts["prod-us"] = c
		return w
	}
	p := plan.Of(with("a", "host,cohort,zone\nu1,prod-us,a\nu2,prod-us,b\nst-1,staging,a\n").Side, with("b", "host,cohort,zone\nu1,prod-us,c\nu2,prod-us,b\nu3,prod-us,a\nu4,prod-us,a\n").Side, plan.Options{})
	want := []plan.Setting{{Path: "inventory.prod-us", Kind: plan.Removed, Before: `"u1"`}, {Path: "inventory.prod-us", Kind: plan.Added, After: `"u3, u4"`}}
	if diff := cmp.Diff(want, p.Policy); diff != "" {
		t.Error(diff)
	}
	if !p.Changes || p.Summary != "2 settings of the fleet, and nothing changes on any host: 3 cohorts, 126 hosts" {
		t.Error(p.Summary)
	}
	// A list and rows are one set of hosts; the path is read as evaluation reads it.
	both := func(csv string) plan.Side {
		w := with("x", csv)
		w.Policy.Inventory.File = "./fleet//hosts.csv"
		c := w.Policy.Cohorts["prod-us"]
		c.Hosts = manifest.HostsPolicy{List: []string{"u1", "u2"}}
		w.Policy.Cohorts["prod-us"] = c
		return w.Side
	}
	p = plan.Of(both("host,cohort\nu1,prod-us\n"), both("host,cohort\nu1,prod-us\nu3,prod-us\n"), plan.Options{})
	if diff := cmp.Diff([]plan.Setting{{Path: "inventory.prod-us", Kind: plan.Added, After: `"u3"`}}, p.Policy); diff != "" || len(p.Notes) > 0 || !strings.Contains(text(p), "prod-us  unchanged, 3 hosts\n") {
		t.Errorf("%s%q\n%s", diff, p.Notes, text(p))
	}
	p = plan.Of(with("a", "host,cohort\nu1,prod-us\n").Side, with("b", "host\nu1\n").Side, plan.Options{})
	if len(p.Notes) != 1 || !strings.HasPrefix(p.Notes[0], "the inventory fleet/hosts.csv does not read: line 1: ") || !strings.Contains(text(p), "prod-us  unchanged, hosts unknown\n") {
		t.Errorf("%q\n%s", p.Notes, text(p))
	}
}

// TestInvalid: a service that does not validate blocks its cohorts, and what cannot be compared is neither added nor removed.
func TestInvalid(t *testing.T) {
	broken := eval.Problem{Severity: eval.SeverityError, Service: "mailer", Cohorts: []string{"prod-eu", "prod-us"}, Path: "from", Message: "not a host"}
	breakIt := func(w *world) *world {
		w.problem(broken)
		w.Blocked = map[string]string{"prod-eu": "mailer: from: not a host", "prod-us": "mailer: from: not a host"}
		w.Units = slices.DeleteFunc(w.Units, func(u eval.Unit) bool { return u.Service == "mailer" && u.Cohort != "staging" })
		return w
	}
	change := func(w *world) *world {
		return w.replace("checkout", "staging", leaf("timeout_ms", set("base", "9", "b.yaml:1"))).replace("checkout", "prod-eu", leaf("timeout_ms", set("base", "9", "b.yaml:1")))
	}
	p := plan.Of(valid("a").Side, change(breakIt(valid("b"))).Side, plan.Options{})
	if p.Head.Valid || p.Refused() || len(p.Services) != 0 || p.Summary != "2 values in 1 service, 1 file, 1 of 3 cohorts, 3 hosts; 2 cohorts blocked by errors" {
		t.Errorf("%q %+v", p.Summary, p)
	}
	if !strings.Contains(text(p), "! prod-eu  blocked, its hosts keep what they have: mailer: from: not a host\n") {
		t.Error(text(p))
	}

	p = plan.Of(breakIt(valid("a")).Side, change(valid("b")).Side, plan.Options{})
	if !p.Head.Valid || p.Base.Valid || !p.Changes || len(p.Services) != 0 {
		t.Errorf("%+v", p)
	}
	if diff := cmp.Diff([]plan.Missing{{Service: "mailer", Cohorts: []string{"prod-eu", "prod-us"}}}, p.NotCompared); diff != "" {
		t.Error(diff)
	}
	for _, want := range []string{
		"? prod-us  not compared: it is blocked in a: mailer: from: not a host; 280 to 300 hosts; careful: 3 waves",
		"mailer: not compared in prod-eu, prod-us: it does not validate in a",
		"timeout_ms      1500 → 9   prod-eu, staging (123 hosts)",
	} {
		if !strings.Contains(text(p), want) {
			t.Errorf("no %q in:\n%s", want, text(p))
		}
	}

	// No fleet at all.
	none := newWorld("b").problem(eval.Problem{Severity: eval.SeverityError, Message: "no fleet"})
	none.Policy, none.Refused = manifest.Policy{}, true
	if p = plan.Of(valid("a").Side, none.Side, plan.Options{}); !p.Refused() || p.Changes || p.Head.Valid {
		t.Errorf("%+v", p)
	}
	p = plan.Of(none.Side, valid("b").Side, plan.Options{})
	if p.Refused() || !p.Changes || !strings.Contains(text(p), "b has no fleet that can be read: nothing could be compared in prod-eu, prod-us, staging") {
		t.Error(text(p))
	}
}

func TestEvidenceAndMode(t *testing.T) {
	base, head := valid("a"), valid("b")
	for i := range head.Units {
		if head.Units[i].Service == "mailer" {
			head.Units[i].Evidence = manifest.GradeDisk
			head.Units[i].Files = []eval.File{{Name: "mailer.yaml", Mode: 0o600, Data: head.Units[i].Files[0].Data}}
		}
	}
	p := plan.Of(base.Side, head.Side, plan.Options{})
	for _, want := range []string{"~ confirm  process → disk   prod-eu, prod-us, staging", "~ file mailer/mailer.yaml   mode 0644 → 0600   prod-eu"} {
		if !strings.Contains(text(p), want) {
			t.Errorf("no %q in:\n%s", want, text(p))
		}
	}
	if p.Digest == plan.Of(base.Side, base.Side, plan.Options{}).Digest {
		t.Error("the digest does not see a mode")
	}
	// A literal 0 in the place of release.epoch: the same at epoch 0, and not on a host.
	epoch := valid("c")
	for i := range epoch.Units {
		epoch.Units[i].UsesEpoch = epoch.Units[i].Service == "mailer"
	}
	if p := plan.Of(base.Side, epoch.Side, plan.Options{}); !p.Changes || p.Cohorts[0].State != plan.StateChanged || len(p.Unrendered) > 0 {
		t.Errorf("%+v", p.Cohorts)
	}
}

func TestWavesByMatchAndCount(t *testing.T) {
	base, head := valid("a"), valid("b")
	for _, w := range []*world{base, head} {
		r := w.Policy.Rollouts["standard"]
		r.Waves = []manifest.Wave{{Match: map[string]string{"canary": "true"}, Bake: "5m"}, {Count: 2, Bake: "5m"}, {Percent: 50, Min: 3, Bake: "0s"}, {Percent: 100, Bake: "0s"}}
		w.Policy.Rollouts["standard"] = r
	}
	head.replace("mailer", "staging", leaf("from", set("base", `"x"`, "b.yaml:1")))
	list := []inventory.Host{{Name: "st-1", Cohort: "staging", Labels: map[string]string{"canary": "true"}}, {Name: "st-2", Cohort: "staging", Labels: map[string]string{}}}
	p := plan.Of(base.Side, head.Side, plan.Options{Inventory: list})
	if want := "staging  3 hosts: mailer; standard: 4 waves: 1 host (canary=true, bake 5m), then 2 (2 hosts, bake 5m), then 3 (50%), then all 3\n"; !strings.Contains(text(p), want) {
		t.Errorf("no %q in:\n%s", want, text(p))
	}
	p = plan.Of(base.Side, head.Side, plan.Options{})
	// The list of the fleet has names, and no labels: nobody is a canary.
	if want := "4 waves: 0 hosts (canary=true, bake 5m), then 2 (2 hosts"; !strings.Contains(text(p), want) {
		t.Errorf("no %q in:\n%s", want, text(p))
	}
}

// TestOrder: the same two builds give the same plan, in whatever order their units and problems come.
func TestOrder(t *testing.T) {
	base, head := valid("a"), valid("b")
	for _, c := range []string{"prod-eu", "prod-us", "staging"} {
		head.replace("checkout", c, leaf("b", set("base", "1", "b.yaml:1")), leaf("a."+c, set("cohort="+c, "2", c+".yaml:1")))
	}
	want, err := json.Marshal(plan.Of(base.Side, head.Side, plan.Options{}))
	if err != nil {
		t.Fatal(err)
	}
	for range 50 {
		for _, s := range []*world{base, head} {
			rand.Shuffle(len(s.Units), func(i, j int) { s.Units[i], s.Units[j] = s.Units[j], s.Units[i] })
			rand.Shuffle(len(s.Source), func(i, j int) { s.Source[i], s.Source[j] = s.Source[j], s.Source[i] })
		}
		got, err := json.Marshal(plan.Of(base.Side, head.Side, plan.Options{}))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), string(got)); diff != "" {
			t.Fatal(diff)
		}
	}
}

// TestColour: colours are all that a terminal gets more.
func TestColour(t *testing.T) {
	base, head := valid("a"), valid("b").replace("mailer", "staging", leaf("x", set("base", "1", "b.yaml:1")))
	head.everywhere("web", nil, file("nginx.conf", "a\n"))
	p := plan.Of(base.Side, head.Side, plan.Options{})
	var b strings.Builder
	if err := p.Text(&b, plan.TextOptions{Colour: true}); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(b.String(), "  \x1b[32m+\x1b[0m x") || !strings.Contains(b.String(), "  \x1b[31m-\x1b[0m from") {
		t.Errorf("%q", b.String())
	}
	if diff := cmp.Diff(text(p), regexp.MustCompile("\x1b\\[[0-9]*m").ReplaceAllString(b.String(), "")); diff != "" {
		t.Error(diff)
	}
}

// TestDocumented demands that docs/formats.md names every field of a plan.
func TestDocumented(t *testing.T) {
	doc, err := os.ReadFile("../../docs/formats.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, ok := strings.Cut(string(doc), "\n## Plan\n")
	if !ok {
		t.Fatal("no section on plans")
	}
	seen := map[reflect.Type]bool{}
	var visit func(typ reflect.Type)
	visit = func(typ reflect.Type) {
		for typ.Kind() == reflect.Slice {
			typ = typ.Elem()
		}
		if typ.Kind() != reflect.Struct || seen[typ] {
			return
		}
		seen[typ] = true
		for i := range typ.NumField() {
			f := typ.Field(i)
			if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "" && !strings.Contains(section, "`"+name+"`") {
				t.Errorf("docs/formats.md does not name %s.%s: `%s`", typ.Name(), f.Name, name)
			}
			visit(f.Type)
		}
	}
	visit(reflect.TypeFor[plan.Plan]())
	if len(seen) < 15 {
		t.Errorf("only %d types were looked at", len(seen))
	}
}

// TestHunks: an edit that is the same in several cohorts is told once, whatever stands around it; what differs is told for each.
func TestHunks(t *testing.T) {
	files := func(w *world, edit func(cohort string) string) *world {
		for _, c := range []string{"prod-eu", "prod-us", "staging"} {
			w.unit("web", c, nil, file("web.conf", edit(c)))
		}
		return w
	}
	body := strings.Repeat("line\n", 9)
	base := files(valid("a"), func(c string) string { return "name " + c + "\nport 1\n" + body + "end " + c + "\n" })
	head := files(valid("b"), func(c string) string {
		end := "end " + c + "\n"
		if c == "staging" {
			end = "other end\n"
		}
		return "name " + c + "\nport 2\n" + body + end
	})
	p := plan.Of(base.Side, head.Side, plan.Options{})
	want := `
web
  ~ file web/web.conf   prod-eu, prod-us, staging (403 to 423 hosts)
      @@
      -port 1
      +port 2
  ~ file web/web.conf   staging (3 hosts)
      @@ -10,3 +10,3 @@
       line
       line
      -end staging
      +other end
`
	if got := text(p); !strings.Contains(got, want) {
		t.Errorf("no %s in:\n%s", want, got)
	}
	if p.Tally.Files != 1 {
		t.Errorf("%d files", p.Tally.Files)
	}
	// Only the line numbers differ: what is around it is shown.
	for _, tt := range []struct {
		top  map[string]string
		diff string
	}{
		{map[string]string{"prod-us": "top\n", "staging": "top\ntop\n"}, "@@\n line\n line\n-x\n+y\n"},
		{nil, "@@ -8,3 +8,3 @@\n line\n line\n-x\n+y\n"},
	} {
		base = files(valid("a"), func(c string) string { return tt.top[c] + body + "x\n" })
		head = files(valid("b"), func(c string) string { return tt.top[c] + body + "y\n" })
		p = plan.Of(base.Side, head.Side, plan.Options{})
		if len(p.Files) != 1 || p.Files[0].Diff != tt.diff || len(p.Files[0].In.Cohorts) != 3 {
			t.Errorf("not %q: %+v", tt.diff, p.Files)
		}
	}
}

// TestRefused: where nothing can be published the plan says that, and nothing of hosts.
func TestRefused(t *testing.T) {
	head := newWorld("work tree").problem(eval.Problem{Severity: eval.SeverityError, Path: "cohorts", Message: "is <not> there", SetAt: []eval.Pos{{File: "fleet/fleet.cue", Line: 3, Col: 1}}})
	head.Refused = true
	p := plan.Of(valid("main").Side, head.Side, plan.Options{})
	if p.Digest != "" || p.Changes || !p.Refused() {
		t.Errorf("%+v", p)
	}
	const says = "the work tree does not validate, nothing of it can be published: 1 error"
	if got := text(p); got != "plan: work tree against main\n\n"+says+"\n" {
		t.Error(got)
	}
	want := `### muster plan: not valid

**` + strings.Replace(says, ":", "&#58;", 1) + `**

<code>work tree</code> against <code>main</code>

#### Errors

- <code>cohorts</code>: is &#60;not&#62; there · set at <code>fleet/fleet.cue&#58;3&#58;1</code>
`
	if diff := cmp.Diff(want, p.Markdown("")); diff != "" {
		t.Error(diff)
	}
}

// TestOneWave: all at once is no list of waves.
func TestOneWave(t *testing.T) {
	for hosts, want := range map[manifest.Expect]string{
		{Min: 2, Max: 2}: "staging  2 hosts: mailer; standard: 2 hosts at once\n",
		{Min: 1, Max: 1}: "staging  1 host: mailer; standard: 1 host at once\n",
		{Min: 2, Max: 4}: "staging  2 to 4 hosts: mailer; standard: 2 to 4 hosts at once\n",
	} {
		side := func(name, from string) plan.Side {
			w := valid(name).replace("mailer", "staging", leaf("from", set("base", from, "")))
			c := w.Policy.Cohorts["staging"]
			c.Hosts = manifest.HostsPolicy{Expect: &hosts}
			w.Policy.Cohorts["staging"] = c
			w.Policy.Rollouts["standard"] = manifest.RolloutPolicy{Waves: []manifest.Wave{{Percent: 100, Bake: "0s"}}}
			return w.Side
		}
		if got := text(plan.Of(side("a", "1"), side("b", "2"), plan.Options{})); !strings.Contains(got, want) {
			t.Errorf("no %q in:\n%s", want, got)
		}
	}
}
