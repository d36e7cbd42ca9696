package main

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-config/muster/distributor/api"
	"github.com/muster-config/muster/distributor/verdict"
)

// Many hosts of one reason are one line, whatever ages and names of their own stand in it; few are a line each.
func TestHostRows(t *testing.T) {
	var c verdict.Green
	for i := range 48 {
		name := fmt.Sprintf("web-%02d", i+1)
		c.Waiting = append(c.Waiting, verdict.Waiting{Host: name, Verdict: verdict.Silent, Why: fmt.Sprintf("%s was last heard %dm%ds ago, at 2026-11-30T12:%02d:00Z", name, i, i, i)})
	}
	c.Waiting = append(c.Waiting, verdict.Waiting{Host: "db-1", Verdict: verdict.Failed, Why: "reload: exit status 1"}, verdict.Waiting{Host: "db-2", Verdict: verdict.Failed, Why: "reload: exit status 2"})
	for i := range 3 {
		c.OwedHosts = append(c.OwedHosts, verdict.Waiting{Host: fmt.Sprintf("old-%d", i), Verdict: verdict.Silent, Why: "silent"})
	}
	got := hostRows(&api.Wait{Cohorts: map[string]verdict.Green{"prod": c}}, true)
	want := [][]string{
		{"  48 hosts", "prod", "silent", "web-01 was last heard 0m0s ago, at 2026-11-30T12:00:00Z (web-01, web-02, web-03, …)"},
		{"  db-1", "prod", "failed", "reload: exit status 1"},
		{"  db-2", "prod", "failed", "reload: exit status 2"},
		{"  old-0", "prod", "owed", "silent"}, {"  old-1", "prod", "owed", "silent"}, {"  old-2", "prod", "owed", "silent"},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}
