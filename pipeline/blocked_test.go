package pipeline_test

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-config/muster/pipeline"
)

// A service that does not validate blocks the cohorts that carry it, or those in which it does not, and no other.
func TestBlocked(t *testing.T) {
	good := map[string]string{"services/a/eu": "x", "services/a/us": "x", "services/b/eu": "y", "services/c/asia": "z"}
	for name, test := range map[string]struct {
		change  map[string]string
		want    map[string]string
		refused bool
	}{
		"nothing":                      {nil, map[string]string{}, false},
		"one cohort":                   {map[string]string{"services/a/eu": "!bad"}, map[string]string{"eu": "a: timeout_ms: does not validate (services/a/eu:3:7)"}, false},
		"all that carry it":            {map[string]string{"services/a/eu": "!*bad"}, map[string]string{"eu": "a: timeout_ms: does not validate (services/a/eu:3:7)", "us": "a: timeout_ms: does not validate (services/a/eu:3:7)"}, false},
		"two services":                 {map[string]string{"services/a/eu": "!bad", "services/b/eu": "!x"}, map[string]string{"eu": "a: timeout_ms: does not validate (services/a/eu:3:7), and 1 more"}, false},
		"no file":                      {map[string]string{"services/c/asia": "no file"}, map[string]string{"asia": "c: renders no file: nothing would be left of it on its hosts; give it a file, or take it out of the cohort's services (asia)"}, false},
		"at its epoch":                 {map[string]string{"services/c/asia": "?"}, map[string]string{"asia": "c: timeout_ms: does not validate (services/c/asia:3:7)"}, false},
		"the tree":                     {map[string]string{"services/a/eu": "!!bad"}, nil, true},
		"every cohort":                 {map[string]string{"services/a/eu": "!*bad", "services/c/asia": "!bad"}, nil, true},
		"every cohort, one at the end": {map[string]string{"services/a/eu": "!*bad", "services/c/asia": "?"}, nil, true},
	} {
		t.Run(name, func(t *testing.T) {
			files := maps.Clone(good)
			maps.Copy(files, test.change)
			r := build(t, &evaluator{}, files, pipeline.Options{})
			cohorts, err := r.At(t.Context(), 1, stand{}.standing)
			if test.refused {
				var refused *pipeline.RefusedError
				if !errors.As(err, &refused) || len(refused.Problems) == 0 {
					t.Fatalf("%v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			got := map[string]string{}
			for name, c := range cohorts {
				if c.Blocked != "" {
					got[name] = c.Blocked
				}
				if (c.Blocked == "") != (len(c.Files) > 0) || (c.Blocked == "") != (len(c.Services) > 0) {
					t.Errorf("cohort %s: %+v", name, c)
				}
			}
			before := test.want // what Build knew already
			if name == "at its epoch" {
				before = map[string]string{}
				if len(r.Found()) != 1 || len(r.Problems) != 0 {
					t.Errorf("problems %v, found %v", r.Problems, r.Found())
				}
			}
			if diff := cmp.Diff(before, r.Blocked()); diff != "" {
				t.Errorf("blocked (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			for name := range before {
				if _, err := r.Files(name); err == nil {
					t.Errorf("files of %s, which is blocked", name)
				}
			}
		})
	}
}

// What a blocked cohort stands on stays, and the next good commit builds it on that.
func TestBlockedThenBuilt(t *testing.T) {
	s := stand{}
	at := func(epoch uint64, files map[string]string) map[string]pipeline.Cohort {
		cohorts, err := build(t, &evaluator{}, files, pipeline.Options{}).At(t.Context(), epoch, s.standing)
		if err != nil {
			t.Fatal(err)
		}
		s.take(cohorts)
		return cohorts
	}
	at(1, map[string]string{"services/a/eu": "x", "services/b/eu": "y", "services/a/us": "x"})
	if c := at(2, map[string]string{"services/a/eu": "x2", "services/b/eu": "!bad", "services/a/us": "x2"}); c["eu"].Blocked == "" || c["us"].Services["a"].Epoch != 2 {
		t.Errorf("%+v", c)
	}
	c := at(3, map[string]string{"services/a/eu": "x2", "services/b/eu": "y", "services/a/us": "x2"})
	if !c["us"].Same || c["eu"].Services["a"].Epoch != 3 || c["eu"].Services["b"].Epoch != 1 {
		t.Errorf("%+v", c)
	}
}

func variant(t *testing.T, c pipeline.Cohort, host string) pipeline.Variant {
	t.Helper()
	i := slices.IndexFunc(c.Variants, func(v pipeline.Variant) bool { return v.Host == host })
	if i < 0 {
		t.Fatalf("no variant of %s in %+v", host, c.Variants)
	}
	return c.Variants[i]
}

// A host's own files make a variant of the whole bundle; what did not change for the host keeps its service epoch, through its coming, changes and going.
func TestVariants(t *testing.T) {
	e, s := &evaluator{}, stand{}
	files := map[string]string{"services/a/eu": "a at EPOCH", "services/b/eu": "b"}
	at := func(epoch uint64) pipeline.Cohort {
		t.Helper()
		cohorts, err := build(t, e, files, pipeline.Options{}).At(t.Context(), epoch, s.standing)
		if err != nil {
			t.Fatal(err)
		}
		s.take(cohorts)
		return cohorts["eu"]
	}
	text := func(v pipeline.Variant) (all string) {
		for _, f := range v.Files {
			all += string(f.Data) + ";"
		}
		return all
	}
	check := func(v pipeline.Variant, want string, a, b uint64) {
		t.Helper()
		if text(v) != want || v.Services["a"].Epoch != a || v.Services["b"].Epoch != b {
			t.Errorf("%s %q, service epochs %d and %d; want %q, %d and %d", v.Host, text(v), v.Services["a"].Epoch, v.Services["b"].Epoch, want, a, b)
		}
	}
	if c := at(1); len(c.Variants) != 0 {
		t.Errorf("%+v", c.Variants)
	}
	files["services/b/eu/web-1"] = "b of web-1"
	c := at(2)
	check(c.Variant, "a at 1;b;", 1, 1)
	check(variant(t, c, "web-1"), "a at 1;b of web-1;", 1, 2)
	files["services/b/eu/web-2"] = "b" // as the cohort's: none
	if c = at(3); !c.Same {
		t.Errorf("%+v", c)
	}
	files["services/a/eu/web-2"] = "own EPOCH"
	c = at(4)
	check(c.Variant, "a at 1;b;", 1, 1)
	check(variant(t, c, "web-1"), "a at 1;b of web-1;", 1, 2)
	check(variant(t, c, "web-2"), "own 4;b;", 4, 1)
	files["services/b/eu"] = "b2"
	c = at(5)
	check(c.Variant, "a at 1;b2;", 1, 5)
	check(variant(t, c, "web-1"), "a at 1;b of web-1;", 1, 2)
	check(variant(t, c, "web-2"), "own 4;b;", 4, 1)
	// The host's own file goes: on this host the service changes, on the others it does not.
	delete(files, "services/a/eu/web-2")
	c = at(6)
	check(c.Variant, "a at 1;b2;", 1, 5)
	check(variant(t, c, "web-2"), "a at 6;b;", 6, 1)
	if c = at(7); !c.Same {
		t.Errorf("%+v", c)
	}
	// Where the epochs meet again the variant ends.
	files["services/a/eu"] = "new at EPOCH"
	delete(files, "services/b/eu/web-2")
	c = at(8)
	check(c.Variant, "new at 8;b2;", 8, 5)
	check(variant(t, c, "web-1"), "new at 8;b of web-1;", 8, 2)
	check(variant(t, c, "web-2"), "new at 8;b2;", 8, 8)
	files["services/b/eu"] = "b3"
	c = at(9)
	check(c.Variant, "new at 8;b3;", 8, 9)
	if len(c.Variants) != 1 {
		t.Errorf("%+v", c.Variants)
	}
	// Only the evidence changes, on one host.
	files["services/b/eu/web-1"] = "b of web-1 DISK"
	if c = at(10); c.Same {
		t.Error("held")
	}
	r := build(t, e, files, pipeline.Options{})
	if got, err := r.FilesOf("eu", "web-1"); err != nil || string(got[1].Data) != "b of web-1 DISK" || !slices.Equal(r.Variants("eu"), []string{"web-1"}) {
		t.Errorf("%v, %v, %v", got, r.Variants("eu"), err)
	}
}

// What is said of a blocked cohort goes into releases and stays there: place and kind of the fault, and no value.
func TestReasonQuotesNothing(t *testing.T) {
	for message, want := range map[string]string{
		`"postgres://u:MARKER@h/db" is a string, not a struct`:             "of the wrong type",
		`"MARKER" is not one of "info", "debug"`:                           "not one of the values that the schema accepts",
		`"MARKER" is not "x": the package fixes the value; make it MARKER`: "the package fixes another value",
		`MARKER is out of range: it must be >5`:                            "out of range",
		`conflicting values "MARKER" and 5`:                                "does not validate",
		`unknown field (did you mean "MARKER"?)`:                           "unknown field",
		"missing: the schema requires MARKER":                              "missing: the schema requires it",
	} {
		files := map[string]string{"services/a/eu": "!" + message, "services/c/asia": "z"}
		cohorts, err := build(t, &evaluator{}, files, pipeline.Options{}).At(t.Context(), 1, stand{}.standing)
		if err != nil {
			t.Fatal(err)
		}
		if got := cohorts["eu"].Blocked; got != "a: timeout_ms: "+want+" (services/a/eu:3:7)" {
			t.Errorf("%s\n%s", message, got)
		}
		delete(files, "services/c/asia")
		_, err = build(t, &evaluator{}, files, pipeline.Options{}).At(t.Context(), 1, stand{}.standing)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "MARKER") {
			t.Errorf("%s\n%v", message, err)
		}
	}
}

// An evaluation that ended early is no fault of the services that it did not come to: nothing is published, and nothing is blocked.
func TestUnevaluatedBlocksNothing(t *testing.T) {
	files := map[string]string{"services/a/eu": "!not evaluated: the evaluation of all services exceeded 10m", "services/c/asia": "z"}
	cohorts, err := build(t, &evaluator{}, files, pipeline.Options{}).At(t.Context(), 1, stand{}.standing)
	var refused *pipeline.RefusedError
	if err == nil || errors.As(err, &refused) || cohorts != nil || !strings.Contains(err.Error(), "publish again") {
		t.Errorf("%v, %v", cohorts, err)
	}
}
