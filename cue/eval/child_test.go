package eval

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func TestRunAnswersWhatEvaluateDoes(t *testing.T) {
	req := dirRequest(t, "testdata/convention")
	// A bound of zero must cross the border too.
	for i, f := range req.Files {
		if f.Path == "fleet/rollout.cue" {
			req.Files[i].Data = []byte(strings.Replace(string(f.Data), "max: 0.01", "max: 0", 1))
		}
	}
	bad := repo(oneCohort + "-- services/a/base.yaml --\na: 1\na: 2\n-- services/b/base.yaml --\na: 1\n")
	for name, req := range map[string]*Request{"good": req, "bad": bad, "check only": {Files: req.Files}, "narrowed": {Files: req.Files, Services: []string{"pay"}, Cohorts: []string{"prod-us"}, FilesToo: true}} {
		t.Run(name, func(t *testing.T) {
			got, err := Run(t.Context(), req, Limits{})
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(Evaluate(req), got, cmpopts.EquateEmpty()); d != "" {
				t.Errorf("in this process and in the child (-here +child):\n%s", d)
			}
		})
	}
	res, err := Run(t.Context(), req, Limits{})
	if err != nil {
		t.Fatal(err)
	}
	if max := res.Policy.Rollouts["standard"].Gates["error_rate"].Max; max == nil || *max != 0 {
		t.Errorf("the gate's bound is %v, want 0", max)
	}
}

func chained(n int) string {
	var b strings.Builder
	b.WriteString("-- services/endless/a.cue --\npackage endless\n#T: { {t!: \"leaf\", out: {}}")
	for i := 1; i <= n; i++ {
		prev := "leaf"
		if i > 1 {
			prev = fmt.Sprintf("r%d", i-1)
		}
		fmt.Fprintf(&b, " | {t!: \"r%d\", out: next: (#T & {t: %q}).out}", i, prev)
	}
	fmt.Fprintf(&b, " }\nout: (#T & {t: \"r%d\"}).out\n", n)
	return b.String()
}

// onlyBlames fails unless the one problem is that of a service that blew a limit, and all other services are answered.
func onlyBlames(t *testing.T, res *Result, service, want string, others ...string) {
	t.Helper()
	if len(res.Problems) != 1 || res.Problems[0].Service != service || res.Problems[0].Severity != SeverityError || res.Problems[0].Message != want {
		t.Errorf("got %q, want of service %s: %s", Format(res.Problems), service, want)
	}
	var got []string
	for _, u := range res.Units {
		got = append(got, u.Service)
	}
	if d := cmp.Diff(others, got); d != "" {
		t.Errorf("answered services (-want +got):\n%s", d)
	}
}

// Evaluation that does not end is ended, the service is named, and the others are answered.
func TestB036Endless(t *testing.T) {
	good := "-- services/a-good/base.yaml --\na: 1\n-- services/z-good/z.cue --\npackage z\nfiles: \"z.json\": {format: \"json\", data: 1}\n"
	products := "-- services/endless/a.cue --\npackage endless\nimport \"list\"\nx: [for a in list.Range(0, 3000, 1) for b in list.Range(0, 3000, 1) {a*b}]\n"
	type limited struct {
		files string
		lim   Limits
		want  string
	}
	tests := map[string]limited{
		"disjuncts by time": {chained(14), Limits{Wall: 5 * time.Second}, `evaluation exceeded 5s`},
		"products by time":  {products, Limits{Wall: 5 * time.Second}, `evaluation exceeded 5s`},
	}
	if !raceEnabled { // the race detector needs, and dies of, memory of its own
		tests["disjuncts by memory"] = limited{chained(14), Limits{Memory: 160 << 20}, `evaluation needed more than 160 MiB of memory`}
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			start := time.Now()
			res, err := Run(t.Context(), repo(oneCohort+good+tt.files), tt.lim)
			if err != nil {
				t.Fatal(err)
			}
			onlyBlames(t, res, "endless", tt.want, "a-good", "z-good")
			if took := time.Since(start); took > 80*time.Second {
				t.Errorf("it took %s", took)
			}
		})
	}
	t.Run("a disjunct that refers to its own field", func(t *testing.T) {
		t.Parallel()
		res, err := Run(t.Context(), repo(oneCohort+good+"-- services/s/a.cue --\npackage s\nt: {a: 1} | {b: (t & {}).b}\nout: t & {a: 1}\nfiles: \"o.json\": {format: \"json\", data: out}\n"), Limits{Wall: 20 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		if got := file(t, res, "prod", "s", "o.json"); got != "{\n  \"a\": 1\n}\n" {
			t.Errorf("got %q", got)
		}
	})
}

// Input that would overflow a stack or unfold without end is refused, and the process that asked goes on.
func TestB037Deep(t *testing.T) {
	bomb := "a0: &a0 [x]\n"
	for i := 1; i <= 9; i++ {
		bomb += fmt.Sprintf("a%d: &a%d [%s]\n", i, i, strings.Repeat(fmt.Sprintf("*a%d, ", i-1), 9))
	}
	const deep = 100_000
	for name, files := range map[string]string{
		"json lists":      "-- services/s/base.json --\n{\"a\": " + strings.Repeat("[", deep) + strings.Repeat("]", deep) + "}\n",
		"json structs":    "-- services/s/base.json --\n" + strings.Repeat(`{"a":`, deep) + "1" + strings.Repeat("}", deep) + "\n",
		"json open":       "-- services/s/base.json --\n" + strings.Repeat("[", deep) + "\n",
		"json not so":     "-- services/s/base.json --\n" + strings.Repeat(`{"a":`, 2000) + "1" + strings.Repeat("}", 2000) + "\n",
		"yaml lists":      "-- services/s/base.yaml --\na: " + strings.Repeat("[", deep) + strings.Repeat("]", deep) + "\n",
		"yaml structs":    "-- services/s/base.yaml --\na: " + strings.Repeat("{a: ", deep) + strings.Repeat("}", deep) + "\n",
		"yaml bomb":       "-- services/s/base.yaml --\n" + bomb,
		"yaml own anchor": "-- services/s/base.yaml --\na: &a [*a]\n",
		"yaml own merge":  "-- services/s/base.yaml --\na: &a {<<: *a}\n",
		"cue lists":       "-- services/s/a.cue --\npackage s\na: " + strings.Repeat("[", deep) + strings.Repeat("]", deep) + "\n",
		"cue structs":     "-- services/s/a.cue --\npackage s\na: " + strings.Repeat("{a: ", deep) + "1" + strings.Repeat("}", deep) + "\n",
		"cue cycle":       "-- services/s/a.cue --\npackage s\na: !=b\nb: !=c\nc: !=a\nfiles: \"x.json\": {format: \"json\", data: a}\n",
	} {
		t.Run(name, func(t *testing.T) {
			res, err := Run(t.Context(), repo(oneCohort+files), Limits{Wall: 30 * time.Second, Memory: 2 << 30})
			if err != nil {
				t.Fatal(err)
			}
			if !res.Failed() {
				t.Errorf("not refused: %s", Format(res.Problems))
			}
			if said := Format(res.Problems); len(said) > 4000 {
				t.Errorf("a message of %d bytes", len(said))
			}
		})
	}
}

func TestRunBoundsOutput(t *testing.T) {
	large := func(name string, n int) string {
		return fmt.Sprintf("-- services/%s/base.yaml --\na: %s\n", name, strings.Repeat("x", n))
	}
	res, err := Run(t.Context(), repo(oneCohort+large("a", 10)+large("big", 200_000)+large("c", 10)), Limits{Output: 100_000})
	if err != nil {
		t.Fatal(err)
	}
	onlyBlames(t, res, "big", "evaluation gave more than 100000 bytes", "a", "c")

	// Each is within the limit of one, all together are not within theirs.
	var many strings.Builder
	for i := range 40 {
		many.WriteString(large(fmt.Sprintf("s%02d", i), 90_000))
	}
	res, err = Run(t.Context(), repo(oneCohort+many.String()), Limits{Output: 100_000})
	if err != nil {
		t.Fatal(err)
	}
	if len(res.Units) == 0 || len(res.Units)+len(res.Problems) != 40 {
		t.Fatalf("%d units and %d problems", len(res.Units), len(res.Problems))
	}
	if want := "not evaluated: the evaluation of all services gave more than 400000 bytes"; res.Problems[0].Message != want {
		t.Errorf("got %q, want %q", res.Problems[0].Message, want)
	}
}

// The fleet can blow a limit too, and then nothing is answered.
func TestRunBoundsTheFleet(t *testing.T) {
	t.Parallel()
	res, err := Run(t.Context(), repo(oneCohort+"-- fleet/x.cue --\npackage fleet\nimport \"list\"\n_x: [for a in list.Range(0, 3000, 1) for b in list.Range(0, 3000, 1) {a*b}]\nrollouts: x: waves: [{percent: 100, bake: \"\\(len(_x))s\"}]\n-- services/s/base.yaml --\na: 1\n"), Limits{Wall: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	if len(res.Problems) != 1 || res.Problems[0].Service != "" || res.Problems[0].Message != "evaluation exceeded 1s on the fleet" || len(res.Units) > 0 {
		t.Errorf("got %s", Format(res.Problems))
	}
}

// Time has an end for all services together, however many are endless.
func TestRunBoundsTotal(t *testing.T) {
	t.Parallel()
	var many strings.Builder
	for i := range 10 {
		fmt.Fprintf(&many, "-- services/endless%d/a.cue --\npackage e\nimport \"list\"\nx: [for a in list.Range(0, 3000, 1) for b in list.Range(0, 3000, 1) {a*b}]\n", i)
	}
	start := time.Now()
	res, err := Run(t.Context(), repo(oneCohort+"-- services/a/base.yaml --\na: 1\n"+many.String()), Limits{Wall: 2 * time.Second, Total: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	if took := time.Since(start); took > 20*time.Second {
		t.Errorf("it took %s", took)
	}
	if len(res.Problems) != 10 {
		t.Errorf("%d problems, want one a service: %s", len(res.Problems), Format(res.Problems))
	}
	if last := res.Problems[9]; last.Service != "endless9" || last.Message != "not evaluated: the evaluation of all services exceeded 5s" {
		t.Errorf("got %+v", last)
	}
	if len(res.Units) != 1 {
		t.Errorf("%d units", len(res.Units))
	}
}

func TestRunIsCancelled(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	_, err := Run(ctx, repo(oneCohort+chained(14)), Limits{})
	if !errors.Is(err, context.DeadlineExceeded) || strings.Contains(err.Error(), "exceeded 1m") {
		t.Errorf("got %v", err)
	}
}
