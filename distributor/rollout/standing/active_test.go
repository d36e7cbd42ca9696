package standing_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-config/muster/distributor/api"
	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/rollout"
	"github.com/muster-config/muster/distributor/rollout/standing"
)

var noon = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

func at(d time.Duration) *time.Time { t := noon.Add(d); return &t }

// activeView has something of everything, and what is over.
func activeView() *manifest.View {
	v := &manifest.View{}
	r := &v.Manifest.Rollout
	r.Halts = []manifest.Stop{{By: "muster", Why: "gate errors failed", Since: noon.Add(-time.Hour), Epoch: 7}}
	r.Freezes = []manifest.Stop{{By: "ana", Why: "black friday", Since: noon.Add(-49 * time.Hour), Until: at(time.Hour)}, {By: "bo", Why: "over", Since: noon.Add(-3 * time.Hour), Until: at(-time.Minute)}}
	r.Holds = []manifest.Stop{{By: "cy", Why: "INC-9", Since: noon.Add(-5 * time.Minute), Until: at(time.Hour), Hosts: []string{"db-1", "db-2"}}}
	first := &manifest.VerifiedStatement{}
	v.Overrides = []manifest.VerifiedOverride{
		{Override: manifest.Override{ID: "inc-1", Author: "ana", Reason: "slow", Created: noon.Add(-time.Minute), NotAfter: noon.Add(2 * time.Hour), Epoch: 3, Patches: []manifest.Patch{{Service: "web", Values: `{"password":"SECRET"}`}}}, First: first},
		{Override: manifest.Override{ID: "inc-2", Author: "bo", Reason: "short", Hosts: []string{"web-1"}, Created: noon.Add(-time.Minute), NotAfter: noon.Add(12 * time.Minute), Epoch: 4, Patches: []manifest.Patch{{Service: "web", Values: "{}"}}}, First: first},
		{Override: manifest.Override{ID: "inc-0", Author: "bo", Reason: "past", Created: noon.Add(-2 * time.Hour), NotAfter: noon.Add(-time.Hour), Epoch: 2}, First: first},
	}
	return v
}

// made says that the release of inc-1 is two days old: it was extended since.
func made(epoch uint64) time.Time {
	if epoch == 3 {
		return noon.Add(-50 * time.Hour)
	}
	return time.Time{}
}

// D005: what acts is told with who, why, since when, until when, and what ends it; what is over a day old is nagged about; what it changes is not told.
func TestD005Active(t *testing.T) {
	list := standing.Active(activeView(), noon, made)
	var kinds, lines []string
	for _, a := range list {
		kinds, lines = append(kinds, a.Kind+" "+a.ID), append(lines, standing.Sentence("prod", a, noon))
	}
	if d := cmp.Diff([]string{"halt ", "freeze ", "hold ", "override inc-1", "override inc-2"}, kinds); d != "" {
		t.Fatal(d)
	}
	want := []string{
		"prod: halted by muster since 2026-11-30T11:00:00Z: gate errors failed; git revert and publish what failed, or `muster rollout resume prod --reason …`",
		"prod: frozen by ana since 2026-11-28T11:00:00Z until 2026-11-30T13:00:00Z: black friday; it is over a day old: `muster unfreeze prod --reason …` ends it",
		"db-1, db-2 of prod held by cy since 5m until 2026-11-30T13:00:00Z: INC-9",
		"override inc-1 acts on prod since 2 days until 2026-11-30T14:00:00Z, by ana: slow; it is over a day old: `muster override pr inc-1` brings it into the config repo, `muster override end inc-1 --reason …` ends it",
		"override inc-2 acts on web-1 of prod since 1m until 2026-11-30T12:12:00Z, by bo: short; it ends by itself in 12m: `muster override pr inc-2` brings it into the config repo, `muster override extend inc-2 --ttl … --reason …` lets it last",
	}
	if d := cmp.Diff(want, lines); d != "" {
		t.Error(d)
	}
	if strings.Contains(strings.Join(lines, ""), "SECRET") {
		t.Error("a patch is told")
	}
	all := map[string][]api.Active{"prod": list}
	if got := standing.Old(all, noon); got != "1 freeze, 1 override are over a day old: bring what stays into the config repo, and end the rest" {
		t.Errorf("%q", got)
	}
	if got := standing.Old(all, noon.Add(-48*time.Hour)); got != "" {
		t.Errorf("%q", got)
	}
	// The halt of which the rollout tells already is not told twice; the rest is.
	c := api.Cohort{Active: list, Rollout: &api.Rollout{Phase: manifest.PhaseHalted, Halts: []manifest.Stop{{}}, Waits: "halted by muster since …; git revert"}}
	if got := standing.Lines("prod", c, noon); len(got) != 5 || got[0] != "prod: halted by muster since …; git revert" || got[1] != want[1] {
		t.Errorf("%q", got)
	}
}

func TestHappened(t *testing.T) {
	for want, d := range map[string]rollout.Decision{
		"frozen by ana until 2026-11-30T13:00:00Z: black friday": {What: "frozen", By: "ana", Why: "black friday", Until: at(time.Hour)},
		"held a, b, c, d, e and 2 more by bo: x":                 {What: "held", By: "bo", Why: "x", Hosts: []string{"a", "b", "c", "d", "e", "f", "g"}},
		"the hold ended on web-1: held by ana":                   {What: "the hold ended", Why: "held by ana", Hosts: []string{"web-1"}},
		"override inc-2 of hello on web-2 by bo: x":              {What: "override inc-2 of hello", By: "bo", Why: "x", Hosts: []string{"web-2"}},
		"override inc-1 ended by itself: its time was over":      {What: "override inc-1 ended by itself", Why: "its time was over"},
	} {
		if got := standing.Happened(d); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// What was laid over a release that was taken back acts on nobody, and that is said.
func TestActiveYields(t *testing.T) {
	v := activeView()
	v.Manifest.Assign, v.Overrides[0].Over = []manifest.Assignment{{Epoch: 1}}, 2
	for _, a := range standing.Active(v, noon, made) {
		said := strings.Contains(standing.Sentence("prod", a, noon), "override inc-1 acts on no host of prod now, since what it was laid over was taken back, and acts again with the next release until 2026-11-30T14:00:00Z, by ana: slow")
		if a.Yields != (a.ID == "inc-1") || said != (a.ID == "inc-1") {
			t.Errorf("%+v: %s", a, standing.Sentence("prod", a, noon))
		}
	}
}
