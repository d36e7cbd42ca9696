package pipeline_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/muster-config/muster/cue/eval"
	"github.com/muster-config/muster/distributor/bundle"
	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/pipeline"
	"github.com/muster-config/muster/pipeline/source"
)

// tree is a source.Tree of files in memory.
type tree struct {
	id    string
	files map[string]string
}

func (t tree) Identity() source.Identity { return source.Identity{Commit: t.id, Tree: t.id} }
func (t tree) Files() []string           { return slices.Sorted(maps.Keys(t.files)) }
func (t tree) FS() fs.FS {
	m := fstest.MapFS{}
	for name, text := range t.files {
		m[name] = &fstest.MapFile{Data: []byte(text)}
	}
	return m
}

// evaluator stands in for CUE: "services/<service>/<cohort>" is the text of one file, in which EPOCH is replaced by the service epoch, and
// "services/<service>/<cohort>/<host>" is that of a host with its own. "no file" renders none, "!" begins an error, "!*" one that names no cohort, "!!" one of
// the whole tree, and "?" one that comes with an epoch. BRANCH renders an odd text for every epoch but 0: what a package must not do.
type evaluator struct {
	asked []eval.Request
}

func (e *evaluator) evaluate(_ context.Context, req *eval.Request, _ eval.Limits) (*eval.Result, error) {
	e.asked = append(e.asked, *req)
	res := &eval.Result{Policy: manifest.Policy{Cohorts: map[string]manifest.CohortPolicy{}}}
	for _, f := range req.Files {
		parts := strings.Split(f.Path, "/")
		if parts[0] != "services" {
			continue
		}
		service, cohort, host, text := parts[1], parts[2], "", string(f.Data)
		key := cohort
		if len(parts) > 3 {
			host = parts[3]
			key += "/" + host
		} else {
			policy := res.Policy.Cohorts[cohort]
			policy.Services = append(policy.Services, service)
			res.Policy.Cohorts[cohort] = policy
		}
		if len(req.Services) > 0 && !slices.Contains(req.Services, service) || len(req.Cohorts) > 0 && !slices.Contains(req.Cohorts, cohort) {
			continue
		}
		epoch := req.Epochs[key][service]
		if message, bad := strings.CutPrefix(text, "!"); bad || epoch > 0 && strings.HasPrefix(text, "?") {
			p := eval.Problem{Severity: eval.SeverityError, Service: service, Cohorts: []string{cohort}, Path: "timeout_ms", Message: message, SetAt: []eval.Pos{{File: f.Path, Line: 3, Col: 7}}}
			switch {
			case strings.HasPrefix(message, "*"):
				p.Cohorts = nil
			case strings.HasPrefix(message, "!"):
				p.Service, p.Cohorts = "", nil
			}
			res.Problems = append(res.Problems, p)
			continue
		}
		u := eval.Unit{Service: service, Cohort: cohort, Host: host, Evidence: manifest.GradeProcess, UsesEpoch: strings.Contains(text, "EPOCH") || strings.Contains(text, "BRANCH") || strings.HasPrefix(text, "?")}
		if strings.Contains(text, "BRANCH") && epoch > 0 {
			text = fmt.Sprint("odd since it branches, ", epoch%2, len(e.asked))
		}
		if strings.Contains(text, "DISK") {
			u.Evidence = manifest.GradeDisk
		}
		if text != "no file" && req.FilesToo {
			u.Files = []eval.File{{Name: service + ".txt", Mode: 0o644, Data: []byte(strings.ReplaceAll(text, "EPOCH", fmt.Sprint(epoch)))}}
		}
		res.Units = append(res.Units, u)
	}
	return res, nil
}

func build(t testing.TB, e *evaluator, files map[string]string, opts pipeline.Options) *pipeline.Rendered {
	t.Helper()
	opts.Evaluate = e.evaluate
	r, err := pipeline.Build(t.Context(), tree{strings.Repeat("a", 40), files}, opts)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// stand is what a store would answer after cohorts were published.
type stand map[string]pipeline.Cohort

func (s stand) standing(_ context.Context, cohort string) (*pipeline.Stood, error) {
	c, ok := s[cohort]
	if !ok {
		return nil, nil
	}
	content := func(v pipeline.Variant) pipeline.Content {
		return pipeline.Content{Content: bundle.ContentDigest(v.Files), Content0: v.Content0, Evidence: v.Evidence}
	}
	stood := &pipeline.Stood{Content: content(c.Variant), Variants: map[string]pipeline.Content{}, Index: func(_ context.Context, host string) (*bundle.Index, error) {
		for _, v := range append([]pipeline.Variant{c.Variant}, c.Variants...) {
			if v.Host == host {
				return &bundle.Index{Services: v.Services}, nil
			}
		}
		return nil, fmt.Errorf("no variant %q", host)
	}}
	for _, v := range c.Variants {
		stood.Variants[v.Host] = content(v)
	}
	return stood, nil
}

func (s stand) take(cohorts map[string]pipeline.Cohort) {
	for name, c := range cohorts {
		if !c.Same && c.Blocked == "" {
			s[name] = c
		}
	}
}

func TestB084NothingRendered(t *testing.T) {
	for name, test := range map[string]struct {
		files map[string]string
		want  string
	}{
		"a service without files":     {map[string]string{"services/a/prod": "x", "services/b/prod": "no file"}, "b: renders no file"},
		"a host without files":        {map[string]string{"services/a/prod": "x", "services/a/prod/web-1": "no file"}, "a: renders no file"},
		"an empty file is a file":     {map[string]string{"services/a/prod": ""}, ""},
		"an error of evaluation":      {map[string]string{"services/a/prod": "!unknown field"}, "a: timeout_ms: unknown field (services/a/prod:3:7)"},
		"two errors: the first, more": {map[string]string{"services/a/prod": "!unknown field", "services/b/prod": "!x"}, "and 1 more"},
	} {
		t.Run(name, func(t *testing.T) {
			r := build(t, &evaluator{}, test.files, pipeline.Options{})
			_, err := r.At(t.Context(), 1, stand{}.standing)
			var refused *pipeline.RefusedError
			if test.want == "" {
				if err != nil {
					t.Error(err)
				}
			} else if !errors.As(err, &refused) || !strings.Contains(err.Error(), test.want) {
				t.Errorf("%v, want %q", err, test.want)
			}
		})
	}
}

// A literal 0 in place of release.epoch leaves the epoch-0 render as it was; the files that stand carry another number all the same.
func TestEpochReplacedByItsZero(t *testing.T) {
	stands := stand{}
	first := build(t, &evaluator{}, map[string]string{"services/a/prod": "n=EPOCH", "services/b/prod": "x"}, pipeline.Options{})
	cohorts, err := first.At(t.Context(), 4, stands.standing)
	if err != nil {
		t.Fatal(err)
	}
	stands.take(cohorts)
	second := build(t, &evaluator{}, map[string]string{"services/a/prod": "n=0", "services/b/prod": "y"}, pipeline.Options{})
	if cohorts, err = second.At(t.Context(), 5, stands.standing); err != nil {
		t.Fatal(err)
	}
	a := cohorts["prod"].Services["a"]
	if a.Epoch != 5 || a.Digest == stands["prod"].Services["a"].Digest {
		t.Errorf("other bytes under service epoch %d", a.Epoch)
	}
	// And nothing but that literal changes: the cohort does not hold.
	stands.take(cohorts)
	third := build(t, &evaluator{}, map[string]string{"services/a/prod": "n=EPOCH", "services/b/prod": "y"}, pipeline.Options{})
	if cohorts, err = third.At(t.Context(), 6, stands.standing); err != nil || cohorts["prod"].Same || cohorts["prod"].Services["a"].Epoch != 6 {
		t.Errorf("%+v, %v", cohorts["prod"], err)
	}
}

// The same where a neighbour goes on referring to it: only the index that stands tells in which service the number was.
func TestEpochReplacedBesideANeighbour(t *testing.T) {
	for _, change := range [][2]string{{"n=EPOCH", "n=0"}, {"n=0", "n=EPOCH"}} {
		stands := stand{}
		at := func(epoch uint64, a string) pipeline.Cohort {
			t.Helper()
			cohorts, err := build(t, &evaluator{}, map[string]string{"services/a/prod": a, "services/b/prod": "b=EPOCH"}, pipeline.Options{}).At(t.Context(), epoch, stands.standing)
			if err != nil {
				t.Fatal(err)
			}
			stands.take(cohorts)
			return cohorts["prod"]
		}
		at(4, change[0])
		if c := at(5, change[0]); !c.Same {
			t.Errorf("%s: %+v", change[0], c)
		}
		if c := at(6, change[1]); c.Same || c.Services["a"].Epoch != 6 || c.Services["b"].Epoch != 4 {
			t.Errorf("%s to %s: %+v", change[0], change[1], c)
		}
	}
}

func TestServiceWithoutCohortServices(t *testing.T) {
	e := &evaluator{}
	opts := pipeline.Options{Evaluate: func(ctx context.Context, req *eval.Request, lim eval.Limits) (*eval.Result, error) {
		res, err := e.evaluate(ctx, req, lim)
		res.Policy.Cohorts["empty"] = manifest.CohortPolicy{Services: []string{}}
		return res, err
	}}
	r, err := pipeline.Build(t.Context(), tree{"t", map[string]string{"services/a/prod": "x"}}, opts)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.At(t.Context(), 1, stand{}.standing); err == nil || !strings.Contains(err.Error(), "carries no service") {
		t.Errorf("%v", err)
	}
}

func TestFiles(t *testing.T) {
	e := &evaluator{}
	r := build(t, e, map[string]string{"services/b/prod": "x", "services/a/prod": "at EPOCH", "services/a/staging": "y", "README.md": "no", "site/x.cue": "yes"}, pipeline.Options{})
	files, err := r.Files("prod")
	if err != nil {
		t.Fatal(err)
	}
	want := []bundle.File{{Path: "a/a.txt", Mode: 0o644, Data: []byte("at 0")}, {Path: "b/b.txt", Mode: 0o644, Data: []byte("x")}}
	if diff := cmp.Diff(want, files); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if _, err := r.Files("prod-eu"); !errors.Is(err, pipeline.ErrUnknownCohort) || !strings.Contains(err.Error(), "prod, staging") {
		t.Errorf("%v", err)
	}
	var names []string
	for _, f := range r.Source {
		names = append(names, f.Path)
	}
	if want := []string{"services/a/prod", "services/a/staging", "services/b/prod", "site/x.cue"}; !slices.Equal(names, want) {
		t.Errorf("source %v", names)
	}
}

func TestNarrowedIsNotPublished(t *testing.T) {
	for _, opts := range []pipeline.Options{{Services: []string{"a"}}, {Cohorts: []string{"prod"}}, {CheckOnly: true}, {Verdict: true}} {
		r := build(t, &evaluator{}, map[string]string{"services/a/prod": "x"}, opts)
		if _, err := r.At(t.Context(), 1, stand{}.standing); err == nil {
			t.Errorf("%+v was published", opts)
		}
	}
}

// Only what uses the epoch is evaluated again, at its service epoch, and only in cohorts that changed.
func TestEvaluatedAgain(t *testing.T) {
	e, s := &evaluator{}, stand{}
	files := map[string]string{"services/a/prod": "a at EPOCH", "services/b/prod": "b", "services/a/staging": "a at EPOCH"}
	at := func(epoch uint64) map[string]pipeline.Cohort {
		cohorts, err := build(t, e, files, pipeline.Options{}).At(t.Context(), epoch, s.standing)
		if err != nil {
			t.Fatal(err)
		}
		s.take(cohorts)
		return cohorts
	}
	at(5)
	files["services/b/prod"] = "b2"
	e.asked = nil
	cohorts := at(6)
	if len(e.asked) != 2 {
		t.Fatalf("evaluated %d times", len(e.asked))
	}
	want := map[string]map[string]uint64{"prod": {"a": 5}}
	if diff := cmp.Diff(want, e.asked[1].Epochs); diff != "" || !slices.Equal(e.asked[1].Services, []string{"a"}) || !slices.Equal(e.asked[1].Cohorts, []string{"prod"}) {
		t.Errorf("asked again for %v of %v (-want +got):\n%s", e.asked[1].Services, e.asked[1].Cohorts, diff)
	}
	prod := cohorts["prod"]
	if got := string(prod.Files[0].Data); got != "a at 5" || prod.Services["a"].Epoch != 5 || prod.Services["b"].Epoch != 6 {
		t.Errorf("%q, %+v", got, prod.Services)
	}
	if digest := bundle.ContentDigest(prod.Files[:1]); prod.Services["a"].Digest != digest || prod.Services["a"].Digest0 == digest {
		t.Errorf("digests %+v", prod.Services["a"])
	}
	if !cohorts["staging"].Same || cohorts["staging"].Files != nil {
		t.Errorf("staging %+v", cohorts["staging"])
	}
	e.asked = nil
	at(7)
	if len(e.asked) != 1 {
		t.Errorf("nothing changed, and it was evaluated %d times", len(e.asked))
	}
}

// A service that renders other bytes under a standing epoch has changed: one service epoch never names two contents.
func TestBranchingOnEpoch(t *testing.T) {
	e, s := &evaluator{}, stand{}
	files := map[string]string{"services/a/prod": "BRANCH", "services/b/prod": "b"}
	for epoch := uint64(1); epoch < 4; epoch++ {
		files["services/b/prod"] = fmt.Sprint("b", epoch)
		cohorts, err := build(t, e, files, pipeline.Options{}).At(t.Context(), epoch, s.standing)
		if err != nil {
			t.Fatal(err)
		}
		if a := cohorts["prod"].Services["a"]; a.Epoch != epoch || a.Digest != bundle.ContentDigest(cohorts["prod"].Files[:1]) {
			t.Errorf("epoch %d: %+v", epoch, a)
		}
		s.take(cohorts)
	}
}

// Only a new statement can ask for another evidence, although no file differs; the service did not change, and keeps its epoch.
func TestOtherEvidence(t *testing.T) {
	e, s, grade := &evaluator{}, stand{}, manifest.GradeProcess
	at := func(epoch uint64) pipeline.Cohort {
		r, err := pipeline.Build(t.Context(), tree{strings.Repeat("a", 40), map[string]string{"services/a/prod": "x"}}, pipeline.Options{
			Evaluate: func(ctx context.Context, req *eval.Request, lim eval.Limits) (*eval.Result, error) {
				res, err := e.evaluate(ctx, req, lim)
				for i := range res.Units {
					res.Units[i].Evidence = grade
				}
				return res, err
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		cohorts, err := r.At(t.Context(), epoch, s.standing)
		if err != nil {
			t.Fatal(err)
		}
		s.take(cohorts)
		return cohorts["prod"]
	}
	at(1)
	if c := at(2); !c.Same {
		t.Errorf("nothing changed: %+v", c)
	}
	grade = manifest.GradeDisk
	if c := at(3); c.Same || c.Evidence["a"] != manifest.GradeDisk || c.Services["a"].Epoch != 1 {
		t.Errorf("another evidence: %+v", c)
	}
}

func TestInputsAndSettings(t *testing.T) {
	files := map[string]string{"services/a/prod": "x"}
	inputs := func(id string) string {
		r, err := pipeline.Build(t.Context(), tree{id, files}, pipeline.Options{Evaluate: (&evaluator{}).evaluate})
		if err != nil {
			t.Fatal(err)
		}
		cohorts, err := r.At(t.Context(), 1, stand{}.standing)
		if err != nil {
			t.Fatal(err)
		}
		return cohorts["prod"].Inputs
	}
	if first, again, other := inputs("t1"), inputs("t1"), inputs("t2"); !manifest.ValidDigest(first) || first != again || first == other {
		t.Error(first, again, other)
	}
	before := pipeline.Options{}.Settings()
	defer func(v string) { eval.EvaluatorVersion = v }(eval.EvaluatorVersion)
	eval.EvaluatorVersion += "x"
	if after := (pipeline.Options{}).Settings(); after == before || !manifest.ValidDigest(after) {
		t.Errorf("settings %s, of another evaluator %s", before, after)
	}
}

// Over any run of commits a service's epoch changes exactly when its epoch-0 digest does, and its files are those of its epoch.
func TestServiceEpochs(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		s, files := stand{}, map[string]string{"services/a/prod": "x", "services/a/staging": "x"}
		type state struct {
			text  string
			epoch uint64
		}
		have := map[string]state{}
		for epoch := uint64(1); epoch <= uint64(rapid.IntRange(1, 10).Draw(rt, "commits")); epoch++ {
			for range rapid.IntRange(0, 2).Draw(rt, "changes") {
				name := fmt.Sprintf("services/%s/%s", rapid.SampledFrom([]string{"b", "c", "d"}).Draw(rt, "service"), rapid.SampledFrom([]string{"prod", "staging"}).Draw(rt, "cohort"))
				if text := rapid.SampledFrom([]string{"", "x", "y", "x EPOCH", "y EPOCH"}).Draw(rt, "text"); text == "" {
					delete(files, name)
				} else {
					files[name] = text
				}
			}
			cohorts, err := build(t, &evaluator{}, files, pipeline.Options{}).At(t.Context(), epoch, s.standing)
			if err != nil {
				rt.Fatal(err)
			}
			next := map[string]state{}
			for name, text := range files {
				parts := strings.Split(name, "/")
				c := cohorts[parts[2]]
				if c.Same {
					if have[name].text != text {
						rt.Fatalf("epoch %d: %s changed and its cohort holds", epoch, name)
					}
					next[name] = have[name]
					continue
				}
				got, old := c.Services[parts[1]], have[name]
				changed := old.text != text
				if changed && got.Epoch != epoch || !changed && got.Epoch != old.epoch {
					rt.Fatalf("epoch %d: %s: service epoch %d, changed %t, before %+v", epoch, name, got.Epoch, changed, old)
				}
				i := slices.IndexFunc(c.Files, func(f bundle.File) bool { return f.Path == parts[1]+"/"+parts[1]+".txt" })
				if want := strings.ReplaceAll(text, "EPOCH", fmt.Sprint(got.Epoch)); i < 0 || string(c.Files[i].Data) != want {
					rt.Fatalf("epoch %d: %s renders %v", epoch, name, c.Files)
				}
				next[name] = state{text, got.Epoch}
			}
			have = next
			s.take(cohorts)
		}
	})
}
