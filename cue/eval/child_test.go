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

// Evaluation that does not end is ended, and the service is named.
func TestB036Endless(t *testing.T) {
	good := "-- services/good/base.yaml --\na: 1\n"
	products := "-- services/endless/a.cue --\npackage endless\nimport \"list\"\nx: [for a in list.Range(0, 3000, 1) for b in list.Range(0, 3000, 1) {a*b}]\n"
	type limited struct {
		files string
		lim   Limits
		want  string
	}
	tests := map[string]limited{
		"disjuncts by time": {chained(14), Limits{Wall: 5 * time.Second}, `evaluation exceeded 5s on service "endless"`},
		"products by time":  {products, Limits{Wall: 5 * time.Second}, `evaluation exceeded 5s on service "endless"`},
	}
	if !raceEnabled { // the race detector needs, and dies of, memory of its own
		tests["disjuncts by memory"] = limited{chained(14), Limits{Memory: 160 << 20}, `evaluation needed more than 160 MiB of memory on service "endless"`}
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			start := time.Now()
			_, err := Run(t.Context(), repo(oneCohort+good+tt.files), tt.lim)
			if err == nil {
				t.Fatal("it ended")
			}
			if err.Error() != tt.want {
				t.Errorf("got %q, want %q", err, tt.want)
			}
			if took := time.Since(start); took > 50*time.Second {
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
				if !strings.Contains(err.Error(), `on service "s"`) {
					t.Errorf("the service is not named: %v", err)
				}
				return
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
	req := repo(oneCohort + "-- services/big/base.yaml --\na: " + strings.Repeat("x", 200_000) + "\n")
	_, err := Run(t.Context(), req, Limits{Output: 100_000})
	if err == nil || !strings.HasPrefix(err.Error(), "evaluation gave more than 100000 bytes of output") {
		t.Errorf("got %v", err)
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
