package eval

import (
	"context"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// What is wrong with one overlay is an error of the cohorts that take it: the others are rendered.
func TestOverlayBlocksItsTakers(t *testing.T) {
	const schema = "-- services/s/s.cue --\npackage s\n#Config: {a: int, b: *1 | int}\nvalues: #Config\n"
	const base = "-- services/s/base.yaml --\na: 1\n"
	const pkg = "-- services/s/s.cue --\npackage s\n#Config: {a: int, b: *1 | int}\nvalues: #Config\nbase: a: 1\n"
	all := []string{"prod-eu", "prod-us", "staging"}
	for name, tt := range map[string]struct {
		files   string
		message string
		cohorts []string // of the error; nil is all
	}{
		"unknown field":              {schema + base + "-- services/s/overlays/env/prod.yaml --\nc: 1\n", "unknown field", []string{"prod-eu", "prod-us"}},
		"that a later layer removes": {schema + base + "-- services/s/overlays/env/prod.yaml --\nc: 1\n-- services/s/overlays/region/us.yaml --\nc: null\n", "unknown field", []string{"prod-eu", "prod-us"}},
		"refused value":              {schema + base + "-- services/s/overlays/region/us.yaml --\na: x\n", "", []string{"prod-us"}},
		"syntax":                     {schema + base + "-- services/s/overlays/cohort/staging.yaml --\na: [\n", "not valid YAML", []string{"staging"}},
		"twice in one file":          {base + "-- services/s/overlays/env+region/prod+eu.yaml --\na: 1\na: 2\n", "set twice", []string{"prod-eu"}},
		"two files of one overlay":   {base + "-- services/s/overlays/region/eu.yaml --\na: 2\n-- services/s/overlays/region/eu.json --\n{\"a\": 3}\n", "a second overlay", []string{"prod-eu", "staging"}},
		"a host's":                   {schema + base + "-- services/s/overlays/host/h1.yaml --\nc: 1\n", "unknown field", []string{"prod-us"}},
		"unknown field in CUE":       {pkg + "overlay: env: prod: c: 1\n", "unknown field", []string{"prod-eu", "prod-us"}},
		"a conflict in CUE":          {pkg + "overlay: env: prod: {a: 1, a: 2}\n", "", []string{"prod-eu", "prod-us"}},
		"a closed one in CUE":        {pkg + "overlay: env: prod: #Config & {a: \"x\"}\n", "", []string{"prod-eu", "prod-us"}},
		"one of two overlays":        {schema + base + "-- services/s/overlays/env/prod.yaml --\nc: 1\n-- services/s/overlays/env/staging.yaml --\nb: 2\n", "unknown field", []string{"prod-eu", "prod-us"}},
		"base":                       {schema + "-- services/s/base.yaml --\na: 1\nc: 1\n", "unknown field", nil},
		"the package":                {"-- services/s/s.cue --\npackage s\n#Config: a: int\nvalues: #Config\nx: 1 & 2\n" + base, "", nil},
	} {
		t.Run(name, func(t *testing.T) {
			res := Evaluate(repo(threeCohorts + "-- fleet/hosts.cue --\npackage fleet\ncohorts: \"prod-us\": hosts: list: [\"h1\"]\ncohorts: \"prod-eu\": hosts: list: [\"h2\"]\ncohorts: staging: hosts: list: [\"h3\"]\n" + tt.files))
			found := map[string]bool{}
			whole := false
			for _, p := range res.Problems {
				if p.Severity != SeverityError {
					continue
				}
				if !strings.Contains(p.Message, tt.message) {
					t.Errorf("another error: %+v", p)
				}
				whole = whole || len(p.Cohorts) == 0
				for _, c := range p.Cohorts {
					found[c] = true
				}
			}
			got := slices.Sorted(maps.Keys(found))
			if whole {
				got = nil
			}
			if d := cmp.Diff(tt.cohorts, got); d != "" {
				t.Errorf("who is blocked (-want +got):\n%s%s", d, Format(res.Problems))
			}
			units := map[string]bool{}
			for _, u := range res.Units {
				units[u.Cohort] = true
			}
			for _, c := range all {
				if tt.cohorts != nil && !found[c] && !units[c] {
					t.Errorf("%s got nothing", c)
				}
			}
		})
	}
}

// Services that have no end are evaluated alone at the same time: both are named after the time of two limits, not of three.
func TestTwoEndless(t *testing.T) {
	two := strings.ReplaceAll(chained(14), "endless", "first") + strings.ReplaceAll(chained(14), "endless", "second")
	const wall = 4 * time.Second
	start := time.Now()
	res, err := Run(t.Context(), repo(oneCohort+"-- services/good/base.yaml --\na: 1\n"+two), Limits{Wall: wall})
	if err != nil {
		t.Fatal(err)
	}
	var named []string
	for _, p := range res.Problems {
		if strings.Contains(p.Message, "evaluation exceeded") {
			named = append(named, p.Service)
		}
	}
	if d := cmp.Diff([]string{"first", "second"}, named); d != "" {
		t.Errorf("%s%s", d, Format(res.Problems))
	}
	if len(res.Units) != 1 || res.Units[0].Service != "good" {
		t.Errorf("units %v", res.Units)
	}
	t.Logf("%s", time.Since(start))
}

// Suspects are evaluated at the same time, and what one of them blows does not touch another.
func TestSuspectsTogether(t *testing.T) {
	req := repo(oneCohort + "-- services/a/base.yaml --\na: 1\n-- services/b/base.yaml --\na: 1\n" + chained(14))
	s := newSupervisor(req, Limits{Wall: 4 * time.Second})
	s.got.fleet(evaluateFleet(newTree(req.Files), newAnswers()))
	s.suspects = []string{"a", "endless", "b"}
	if err := s.together(t.Context(), t.Context()); err != nil {
		t.Fatal(err)
	}
	if s.got.services["a"] == nil || len(s.got.services["a"].Units) != 1 || !s.blamed["endless"] || s.blamed["a"] {
		t.Errorf("answered %v, blamed %v", s.got.services, s.blamed)
	}
	if d := cmp.Diff([]string{"b"}, s.suspects); workers() == 2 && d != "" {
		t.Error(d)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	s.suspects = []string{"a", "b"}
	if err := s.together(ended, ended); err == nil {
		t.Error("a cancelled evaluation went on")
	}
}
