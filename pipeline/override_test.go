package pipeline_test

import (
	"context"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-config/muster/cue/eval"
	"github.com/muster-config/muster/pipeline"
)

// under is the evaluator with overrides: what one says is appended to the file, "!…" is refused.
type under struct{ evaluator }

func (e *under) evaluate(ctx context.Context, req *eval.Request, limits eval.Limits) (*eval.Result, error) {
	res, err := e.evaluator.evaluate(ctx, req, limits)
	for i := range res.Units {
		u := &res.Units[i]
		for _, o := range req.Overrides {
			if o.Service != u.Service || o.Cohort != u.Cohort {
				continue
			}
			if strings.HasPrefix(o.Values, "!") {
				res.Problems = append(res.Problems, eval.Problem{Severity: eval.SeverityError, Service: u.Service, Cohorts: []string{u.Cohort}, Message: o.Values[1:], SetAt: []eval.Pos{{File: "override " + o.ID}}})
			}
			u.Files[0].Data = append(u.Files[0].Data, o.Values...)
		}
	}
	return res, err
}

func TestOverride(t *testing.T) {
	e := &under{}
	r, err := pipeline.Build(t.Context(), tree{strings.Repeat("a", 40), map[string]string{
		"services/pay/eu": "pay ", "services/pay/us": "pay ", "services/web/eu": "web EPOCH ", "services/web/eu/h1": "web h1 EPOCH ",
	}}, pipeline.Options{Evaluate: e.evaluate})
	if err != nil {
		t.Fatal(err)
	}
	stood := stand{}
	plain, err := r.At(t.Context(), 1, stood.standing)
	if err != nil {
		t.Fatal(err)
	}
	stood.take(plain)
	asked := len(e.asked)
	over := func(service, values string) []eval.Override {
		return []eval.Override{{ID: "a", Cohort: "eu", Service: service, Values: values}}
	}
	o, err := r.Override(t.Context(), "eu", over("pay", "+ up"))
	if err != nil {
		t.Fatal(err)
	}
	if got := e.asked[asked:]; len(got) != 1 || cmp.Diff(got[0].Services, []string{"pay"}) != "" || cmp.Diff(got[0].Cohorts, []string{"eu"}) != "" {
		t.Errorf("more was evaluated than the overridden service: %d requests, the first %v %v", len(got), got[0].Services, got[0].Cohorts)
	}
	cohorts, err := o.At(t.Context(), 2, stood.standing)
	if err != nil {
		t.Fatal(err)
	}
	eu := cohorts["eu"]
	if len(cohorts) != 1 || eu.Same || eu.Blocked != "" {
		t.Fatalf("%+v", cohorts)
	}
	text := map[string]string{}
	for _, f := range eu.Files {
		text[f.Path] = string(f.Data)
	}
	// The service that nobody changed keeps its epoch and its bytes.
	if d := cmp.Diff(map[string]string{"pay/pay.txt": "pay + up", "web/web.txt": "web 1 "}, text); d != "" {
		t.Error(d)
	}
	if eu.Services["pay"].Epoch != 2 || eu.Services["web"].Epoch != 1 {
		t.Errorf("service epochs: %+v", eu.Services)
	}
	if len(eu.Variants) != 1 || eu.Variants[0].Host != "h1" || eu.Variants[0].Services["pay"].Epoch != 2 {
		t.Errorf("variants: %+v", eu.Variants)
	}
	if eu.Inputs == plain["eu"].Inputs {
		t.Error("the inputs do not tell of the override")
	}

	// The release after it: the override's own bundle stands, and did not change.
	under := stand{"eu": eu}
	again, err := o.At(t.Context(), 3, under.standing)
	if err != nil || !again["eu"].Same {
		t.Errorf("the same override over the same commit is not the same: %+v, %v", again["eu"].Services, err)
	}

	for name, bad := range map[string][]eval.Override{"does not validate": over("pay", "!too long"), "not carried": over("gone", "+")} {
		o, err := r.Override(t.Context(), "eu", bad)
		if err != nil {
			t.Fatal(err)
		}
		if o.Blocked()["eu"] == "" || !strings.Contains(o.Blocked()["eu"], "override a") {
			t.Errorf("%s: blocked %q", name, o.Blocked())
		}
		if _, err := o.At(t.Context(), 2, stood.standing); err == nil {
			t.Errorf("%s: it can be published", name)
		}
	}
	if _, err := r.Override(t.Context(), "mars", nil); err == nil {
		t.Error("a cohort that is not there")
	}
}
