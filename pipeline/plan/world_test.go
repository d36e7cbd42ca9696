package plan_test

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"path"
	"strings"

	"github.com/muster-config/muster/cue/eval"
	"github.com/muster-config/muster/distributor/bundle"
	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/pipeline/plan"
)

// world is a fleet of three cohorts whose units the tests write by hand, as evaluation gives them.
type world struct{ plan.Side }

func newWorld(name string) *world {
	standard := manifest.RolloutPolicy{
		Waves: []manifest.Wave{{Percent: 5, Bake: "10m"}, {Percent: 25, Bake: "30m"}, {Percent: 100, Bake: "0s"}}, Gates: map[string]manifest.Gate{},
		MinReported: 0.95, MaxInFlight: "10%", Spread: "0s", Timeout: "2h", OnFailure: "rollback", Watch: "30m", ApproveBefore: []int{}, Windows: []string{},
	}
	careful := standard
	careful.ApproveBefore = []int{2}
	cohort := func(env, region, rollout string, hosts manifest.HostsPolicy) manifest.CohortPolicy {
		return manifest.CohortPolicy{Labels: map[string]string{"env": env, "region": region}, Services: []string{"checkout", "mailer"}, Hosts: hosts, Rollout: rollout, Order: 100}
	}
	return &world{plan.Side{
		Name: name, Commit: strings.Repeat("a", 40),
		Policy: manifest.Policy{
			Precedence: []string{"env", "region", "cohort", "host"},
			Cohorts: map[string]manifest.CohortPolicy{
				"staging": cohort("staging", "eu", "standard", manifest.HostsPolicy{List: []string{"st-1", "st-2", "st-3"}}),
				"prod-eu": cohort("prod", "eu", "standard", manifest.HostsPolicy{Expect: &manifest.Expect{Min: 120, Max: 120}}),
				"prod-us": cohort("prod", "us", "careful", manifest.HostsPolicy{Expect: &manifest.Expect{Min: 280, Max: 300}}),
			},
			Rollouts: map[string]manifest.RolloutPolicy{"standard": standard, "careful": careful},
		},
		Blocked: map[string]string{},
	}}
}

func sumOf(text string) string {
	s := sha256.Sum256([]byte(text))
	return hex.EncodeToString(s[:])
}

func set(layer, value, at string) eval.Setting {
	s := eval.Setting{Layer: layer, Value: value, Sum: sumOf(value)}
	if at != "" {
		file, line, _ := strings.Cut(at, ":")
		s.At = eval.Pos{File: file, Col: 1}
		fmt.Sscan(line, &s.At.Line)
	}
	return s
}

func leaf(path string, s eval.Setting, shadows ...eval.Setting) eval.Leaf {
	origin := eval.OriginLayer
	if s.Layer == "" {
		origin = eval.OriginComputed
	}
	return eval.Leaf{Path: strings.Split(path, "."), Setting: s, Origin: origin, Shadows: shadows}
}

// secretly makes a leaf a secret one, as evaluation gives it: the value is gone, its digest stays.
func secretly(l eval.Leaf) eval.Leaf {
	l.Secret, l.Value = true, ""
	return l
}

// file is written from data, as its name says.
func file(name, text string) eval.File {
	return eval.File{Name: name, Mode: 0o644, Format: strings.TrimPrefix(path.Ext(name), "."), Data: []byte(text)}
}

// unit adds what a service is in a cohort ("prod-eu") or on a host of it ("prod-eu/web-1"). Without files it has one, made of its leaves.
func (w *world) unit(service, where string, leaves []eval.Leaf, files ...eval.File) *world {
	cohort, host, _ := strings.Cut(where, "/")
	if files == nil {
		var text strings.Builder
		for _, l := range leaves {
			if l.Origin != eval.OriginRemoved {
				fmt.Fprintf(&text, "%s: %s\n", strings.Join(l.Path, "."), l.Sum[:8]+l.Value)
			}
		}
		files = []eval.File{file(service+".yaml", text.String())}
	}
	w.Units = append(w.Units, eval.Unit{Service: service, Cohort: cohort, Host: host, Files: files, Evidence: manifest.GradeProcess, Leaves: leaves})
	return w
}

// everywhere adds a unit to all three cohorts.
func (w *world) everywhere(service string, leaves []eval.Leaf, files ...eval.File) *world {
	for _, c := range []string{"prod-eu", "prod-us", "staging"} {
		w.unit(service, c, leaves, files...)
	}
	return w
}

func (w *world) source(path, text string) *world {
	w.Source = append(w.Source, bundle.File{Path: path, Mode: 0o644, Data: []byte(text)})
	return w
}

func (w *world) problem(p eval.Problem) *world {
	w.Problems = append(w.Problems, p)
	return w
}

// valid is the usual world: two services, the same everywhere but for what env=prod sets.
func valid(name string) *world {
	w := newWorld(name)
	for _, c := range []string{"prod-eu", "prod-us"} {
		w.unit("checkout", c, []eval.Leaf{
			leaf("limits.workers", set("env=prod", "16", "services/checkout/overlays/env/prod.yaml:2"), set("base", "8", "services/checkout/base.yaml:6")),
			leaf("timeout_ms", set("base", "1500", "services/checkout/base.yaml:2")),
		})
	}
	w.unit("checkout", "staging", []eval.Leaf{
		leaf("limits.workers", set("base", "8", "services/checkout/base.yaml:6")),
		leaf("timeout_ms", set("base", "1500", "services/checkout/base.yaml:2")),
	})
	w.everywhere("mailer", []eval.Leaf{leaf("from", set("base", `"a@b.example"`, "services/mailer/base.json:1"))})
	w.source("services/checkout/base.yaml", "base 1").source("services/mailer/base.json", "base 1")
	return w
}

// replace changes a unit that is there.
func (w *world) replace(service, cohort string, leaves ...eval.Leaf) *world {
	for i, u := range w.Units {
		if u.Service == service && u.Cohort == cohort && u.Host == "" {
			w.Units = append(w.Units[:i:i], w.Units[i+1:]...)
			break
		}
	}
	return w.unit(service, cohort, leaves)
}

// drop takes a unit out, and the service from the cohort.
func (w *world) drop(service, cohort string) *world {
	for i, u := range w.Units {
		if u.Service == service && u.Cohort == cohort {
			w.Units = append(w.Units[:i:i], w.Units[i+1:]...)
			break
		}
	}
	c := w.Policy.Cohorts[cohort]
	var left []string
	for _, s := range c.Services {
		if s != service {
			left = append(left, s)
		}
	}
	c.Services = left
	w.Policy.Cohorts[cohort] = c
	return w
}

func text(p plan.Plan) string {
	var b strings.Builder
	if err := p.Text(&b, plan.TextOptions{}); err != nil {
		panic(err)
	}
	return b.String()
}
