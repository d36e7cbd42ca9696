package plan_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-config/muster/pipeline/plan"
)

// What acts stands at the top, and says what of the plan lies under it.
func TestUnder(t *testing.T) {
	until := time.Date(2026, 12, 1, 10, 0, 0, 0, time.UTC)
	p := plan.Plan{
		Head: plan.Ref{Name: "head", Valid: true}, Base: plan.Ref{Name: "base", Valid: true},
		Values: []plan.Value{
			{Service: "checkout", Path: "timeout_ms", Kind: plan.Changed, Before: "1", After: "2", In: plan.Where{Cohorts: []string{"prod-eu", "staging"}}},
			{Service: "checkout", Path: "limits.workers", Kind: plan.Changed, Before: "1", After: "2", In: plan.Where{Hosts: []string{"prod-eu/web-1"}}},
			{Service: "checkout", Path: "limitsless", Kind: plan.Changed, Before: "1", After: "2", In: plan.Where{Cohorts: []string{"prod-eu"}}},
			{Service: "search", Path: "timeout_ms", Kind: plan.Changed, Before: "1", After: "2", In: plan.Where{Cohorts: []string{"prod-eu"}}},
		},
	}
	over := func(id, cohort string, hosts []string, paths ...string) plan.Acting {
		return plan.Acting{Active: plan.Active{Kind: "override", ID: id, Cohort: cohort, Hosts: hosts, By: "ana", Until: &until, Text: "override " + id + " acts"}, Paths: map[string][]string{"checkout": paths}}
	}
	blocks := over("four", "prod-eu", nil)
	blocks.Blocked = "override four no longer fits: checkout: workers: out of range"
	p.Under([]plan.Acting{
		over("one", "prod-eu", nil, "timeout_ms", "limits"), over("two", "prod-us", nil, "timeout_ms"), over("three", "prod-eu", []string{"web-2"}, "limits.workers"), blocks,
		{Active: plan.Active{Kind: "hold", Cohort: "prod-eu", Hosts: []string{"db-1"}, Text: "db-1 of prod-eu held"}},
	})
	var got [][]plan.Over
	for _, a := range p.Active {
		got = append(got, a.Over)
	}
	want := [][]plan.Over{{{Service: "checkout", Path: "timeout_ms"}, {Service: "checkout", Path: "limits.workers"}}, {}, {}, {}, {}}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	var b strings.Builder
	if err := p.Text(&b, plan.TextOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{
		"plan: head against base\noverride one acts\n    checkout limits.workers, checkout timeout_ms: shadowed by override one of ana until 2026-12-01T10:00:00Z\noverride two acts\n",
		"override four acts\n    publishing this would block cohort prod-eu: override four no longer fits: checkout: workers: out of range\n", "db-1 of prod-eu held\n",
	} {
		if !strings.Contains(b.String(), line) {
			t.Errorf("no %q in\n%s", line, b.String())
		}
	}
	md := p.Markdown("")
	if !strings.Contains(md, "#### Acts now, by hand\n") || !strings.Contains(md, "shadowed by override one of ana") || !strings.Contains(md, "would block cohort prod-eu") {
		t.Errorf("%s", md)
	}
}
