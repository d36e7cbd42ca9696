package amend

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/pipeline"
)

func fleet(precedence ...string) *pipeline.Rendered {
	c := func(env, region string) manifest.CohortPolicy {
		return manifest.CohortPolicy{Labels: map[string]string{"env": env, "region": region}, Services: []string{"web"}}
	}
	return &pipeline.Rendered{Policy: manifest.Policy{Precedence: precedence, Cohorts: map[string]manifest.CohortPolicy{
		"prod-eu": c("prod", "eu"), "prod-us": c("prod", "us"), "staging": c("staging", "eu"), "lab": {Labels: map[string]string{"env": "lab"}, Services: []string{"other"}},
	}}}
}

// The least specific layer is tried first, one before two, and never one that is for others without being for all; a set has nothing in vain.
func TestSets(t *testing.T) {
	for name, tt := range map[string]struct {
		precedence []string
		parts      []Part
		want       []string
		why        string
	}{
		"two of one env": {
			[]string{"env", "region", "env+region", "cohort"}, []Part{{Cohort: "prod-eu"}, {Cohort: "prod-us"}},
			[]string{"base", "env=prod", "region=us env+region=prod+eu", "region=us cohort=prod-eu", "env+region=prod+eu env+region=prod+us", "env+region=prod+eu cohort=prod-us", "env+region=prod+us cohort=prod-eu", "cohort=prod-eu cohort=prod-us", "cohort=prod-eu cohort=prod-us"}, "",
		},
		"all":              {[]string{"env"}, []Part{{Cohort: "prod-eu"}, {Cohort: "prod-us"}, {Cohort: "staging"}}, []string{"base", "env=prod env=staging"}, "for itself alone"},
		"one of its own":   {[]string{"env", "region"}, []Part{{Cohort: "prod-us"}}, []string{"base", "env=prod", "region=us", "region=us"}, ""},
		"one of no own":    {[]string{"env", "region"}, []Part{{Cohort: "prod-eu"}}, []string{"base", "env=prod", "region=eu"}, "cohort prod-eu has no layer for itself alone"},
		"hosts":            {[]string{"env", "host"}, []Part{{Cohort: "prod-eu", Hosts: []string{"a", "b"}}}, []string{"host=a host=b"}, ""},
		"hosts, no layer":  {[]string{"env"}, []Part{{Cohort: "prod-eu", Hosts: []string{"a"}}}, nil, `"host" in the fleet's precedence`},
		"different values": {[]string{"env"}, []Part{{Cohort: "prod-eu", Values: "{}"}, {Cohort: "prod-us"}}, nil, "the same values"},
	} {
		t.Run(name, func(t *testing.T) {
			s := &search{built: fleet(tt.precedence...), service: "web", parts: tt.parts}
			var got []string
			for set := range s.sets() {
				var names []string
				for _, at := range set {
					names = append(names, at.name())
				}
				if len(names) > 0 {
					got = append(got, strings.Join(names, " "))
				}
			}
			if d := cmp.Diff(tt.want, got); d != "" || !strings.Contains(s.why, tt.why) {
				t.Errorf("%s\n%q", d, s.why)
			}
		})
	}
}

// A large fleet is not searched set by set.
func TestSetsOfManyCohorts(t *testing.T) {
	r := &pipeline.Rendered{Policy: manifest.Policy{Precedence: []string{"region", "cohort"}, Cohorts: map[string]manifest.CohortPolicy{}}}
	var parts []Part
	for i := range 400 {
		name := fmt.Sprintf("c-%03d", i)
		r.Policy.Cohorts[name] = manifest.CohortPolicy{Labels: map[string]string{"region": fmt.Sprint("r", i/10)}, Services: []string{"web"}}
		if i < 200 {
			parts = append(parts, Part{Cohort: name})
		}
	}
	s := &search{built: r, service: "web", parts: parts}
	var sizes []int
	for set := range s.sets() {
		sizes = append(sizes, len(set))
	}
	if !slices.Equal(sizes, []int{1, 20, 200}) {
		t.Errorf("%v", sizes)
	}
}

func TestEqualEffects(t *testing.T) {
	a := map[string]string{"prod": "1", "prod/web-1": "2"}
	for name, tt := range map[string]struct {
		b    map[string]string
		want bool
	}{
		"same":                         {map[string]string{"prod": "1", "prod/web-1": "2"}, true},
		"a host as its cohort":         {map[string]string{"prod": "1", "prod/web-1": "2", "prod/web-2": "1"}, true},
		"a host that lost its own":     {map[string]string{"prod": "1"}, false},
		"another cohort":               {map[string]string{"prod": "3", "prod/web-1": "2"}, false},
		"a host that is another's own": {map[string]string{"prod": "1", "prod/web-1": "2", "prod/web-2": "3"}, false},
	} {
		if got := equal(a, tt.b); got != tt.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}
