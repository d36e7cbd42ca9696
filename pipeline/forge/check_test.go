package forge_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/muster-config/muster/pipeline/forge"
	"github.com/muster-config/muster/pipeline/forge/forgetest"
)

func findings(n int) []forge.Annotation {
	var out []forge.Annotation
	for i := range n {
		out = append(out, forge.Annotation{Path: fmt.Sprintf("services/s%d/base.yaml", i), Line: i + 1, Col: 3, Level: forge.LevelError, Title: "timeout_ms", Message: "out of bound"})
	}
	return out
}

func check(n int) forge.Check {
	return forge.Check{Name: "muster / validate", Commit: head, ExternalID: "run-1", Conclusion: "failure", Title: "not valid", Summary: "**not valid**", Text: "plan", Annotations: findings(n)}
}

// TestB115Annotations: at most 50 in a request, all of them in order up to the cap, and the verdict always.
func TestB115Annotations(t *testing.T) {
	for _, tt := range []struct{ findings, requests, written int }{{0, 1, 0}, {1, 1, 1}, {50, 1, 50}, {51, 2, 51}, {143, 3, 143}, {300, 6, 300}, {1200, 6, 300}} {
		t.Run(fmt.Sprint(tt.findings), func(t *testing.T) {
			w := start(t)
			url, err := w.client.Check(t.Context(), check(tt.findings))
			w.ok(err)
			got := w.Checks(head)
			if len(got) != 1 || got[0].GetStatus() != "completed" || got[0].GetConclusion() != "failure" || len(got[0].Annotations) != tt.written || got[0].GetHTMLURL() != url {
				t.Fatalf("%d checks, %+v", len(got), got)
			}
			if n := len(w.Calls()); n != tt.requests {
				t.Errorf("%d requests, want %d: %v", n, tt.requests, w.calls())
			}
			for i, a := range got[0].Annotations {
				if a.GetStartLine() != i+1 || a.GetEndLine() != i+1 || a.GetStartColumn() != 3 || a.GetAnnotationLevel() != "failure" {
					t.Fatalf("annotation %d is %v", i, a)
				}
			}
		})
	}
}

// TestB115RefusedBatch: a batch that the server refuses, wherever it is, leaves the others and the verdict.
func TestB115RefusedBatch(t *testing.T) {
	for bad := range 4 {
		t.Run(fmt.Sprint(bad), func(t *testing.T) {
			w := start(t)
			n := 0
			w.Before = func(c forgetest.Call) *forgetest.Reply {
				if !strings.Contains(string(c.Body), `"annotations"`) {
					return nil
				}
				if n++; n-1 == bad {
					return &forgetest.Reply{Status: http.StatusUnprocessableEntity, Body: `{"message":"Invalid request."}`}
				}
				return nil
			}
			_, err := w.client.Check(t.Context(), check(170))
			w.want(err, forge.ErrInvalid, "Invalid request")
			got := w.Checks(head)
			if len(got) != 1 || got[0].GetStatus() != "completed" || got[0].GetConclusion() != "failure" {
				t.Fatalf("no verdict: %+v", got)
			}
			if want := map[int]int{0: 0, 1: 120, 2: 120, 3: 150}[bad]; len(got[0].Annotations) != want {
				t.Errorf("%d annotations, want %d", len(got[0].Annotations), want)
			}
		})
	}
}

// A server that fails in the middle gets the verdict all the same, once it answers.
func TestCheckServerFails(t *testing.T) {
	w := start(t)
	n := 0
	w.Before = func(c forgetest.Call) *forgetest.Reply {
		if n++; n == 2 {
			return &forgetest.Reply{Status: 502, Body: "bad gateway"}
		}
		return nil
	}
	_, err := w.client.Check(t.Context(), check(143))
	if err == nil {
		t.Error("a batch was lost and nobody says so")
	}
	got := w.Checks(head)
	if len(got) != 1 || got[0].GetConclusion() != "failure" {
		t.Fatalf("no verdict: %+v", got)
	}
}

// An answer that was lost does not make a second check: the first is found by its external id.
func TestCheckAnswerLost(t *testing.T) {
	w := start(t)
	n := 0
	w.Before = func(c forgetest.Call) *forgetest.Reply {
		if n++; n == 1 {
			return &forgetest.Reply{Cut: true, Done: true}
		}
		return nil
	}
	_, err := w.client.Check(t.Context(), check(3))
	w.ok(err)
	if got := w.Checks(head); len(got) != 1 || got[0].GetConclusion() != "failure" {
		t.Errorf("%d checks", len(got))
	}
	w.equal(w.calls(), []string{"POST /check-runs 0", "GET /commits/" + head + "/check-runs 200"})
}

// A request that never arrived is sent again, after a look.
func TestCheckRequestLost(t *testing.T) {
	w := start(t)
	n := 0
	w.Before = func(c forgetest.Call) *forgetest.Reply {
		if n++; n == 1 {
			return &forgetest.Reply{Cut: true}
		}
		return nil
	}
	_, err := w.client.Check(t.Context(), check(3))
	w.ok(err)
	if got := w.Checks(head); len(got) != 1 {
		t.Errorf("%d checks: %v", len(got), w.calls())
	}
}

// TestB116Check: summary and text of any length are taken, with what stands first.
func TestB116Check(t *testing.T) {
	for _, text := range long() {
		w := start(t)
		k := check(0)
		k.Summary, k.Text = "VERDICT\n"+text, "PLAN\n"+text
		_, err := w.client.Check(t.Context(), k)
		w.ok(err)
		got := w.Checks(head)[0]
		if !strings.HasPrefix(got.GetOutput().GetSummary(), "VERDICT\n") || !strings.HasPrefix(got.GetOutput().GetText(), "PLAN\n") {
			t.Error("the beginning is lost")
		}
	}
}

// Other people's text is never more than text: no control characters, no title of several lines, and a path that is none makes no annotation.
func TestCheckHostileText(t *testing.T) {
	w := start(t)
	k := check(0)
	k.Title = "two\nlines\x1b[31m"
	k.Annotations = []forge.Annotation{
		{Path: "a.yaml", Level: forge.LevelWarning, Title: strings.Repeat("t", 400) + "\n::error::x", Message: "m\x1b[2J\u202e" + strings.Repeat("x", 70_000)},
		{Level: forge.LevelError, Message: "without a place"},
	}
	_, err := w.client.Check(t.Context(), k)
	w.ok(err)
	got := w.Checks(head)[0]
	if got.GetOutput().GetTitle() != "two lines [31m" {
		t.Errorf("title %q", got.GetOutput().GetTitle())
	}
	if len(got.Annotations) != 1 {
		t.Fatalf("%d annotations", len(got.Annotations))
	}
	a := got.Annotations[0]
	if strings.ContainsAny(a.GetTitle()+a.GetMessage(), "\x1b\u202e\r") || a.GetStartLine() != 1 || a.StartColumn != nil {
		t.Errorf("annotation %.200v", a)
	}
}

// The caller's end is the end.
func TestCheckCancelled(t *testing.T) {
	w := start(t)
	ctx, cancel := context.WithCancel(t.Context())
	w.Before = func(forgetest.Call) *forgetest.Reply { cancel(); return &forgetest.Reply{Status: 503} }
	_, err := w.client.Check(ctx, check(1))
	w.want(err, context.Canceled, "write the check run")
	if n := w.client.Calls().Requests; n != 1 {
		t.Errorf("it went on: %d requests", n)
	}
}
