package eval

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"
	"pgregory.net/rapid"
)

// theLongWay evaluates without what quick.go leaves out.
func theLongWay(req *Request) *Result {
	to := newAnswers()
	t := newTree(req.Files)
	if f := evaluateFleet(t, to); !f.failed() {
		e := &evaluation{req: req, tree: t, policy: &f.Policy, to: to, long: true}
		e.all(1)
	}
	return to.result(req)
}

// sameAsLong fails unless both ways give the same result.
func sameAsLong(t interface{ Fatalf(string, ...any) }, req *Request) {
	if d := cmp.Diff(theLongWay(req), Evaluate(req)); d != "" {
		t.Fatalf("the long way and the quick one (-long +quick):\n%s", d)
	}
}

func TestQuickSaysTheSame(t *testing.T) {
	names, err := filepath.Glob("testdata/errors/*.txt")
	if err != nil || len(names) == 0 {
		t.Fatal(names, err)
	}
	for _, name := range names {
		a, err := txtar.ParseFile(name)
		if err != nil {
			t.Fatal(err)
		}
		sameAsLong(t, repo(string(txtar.Format(a))))
	}
	sameAsLong(t, dirRequest(t, "testdata/convention"))
	for _, dir := range []string{"../../cmd/muster/skeleton", "../../examples/acme"} {
		if _, err := os.Stat(dir); err != nil {
			t.Fatal(err)
		}
		sameAsLong(t, dirRequest(t, dir))
	}
	config := "-- services/s/base.yaml --\na: 1\nm: {x: 1}\n-- services/s/overlays/env/prod.yaml --\na: 2\n"
	for name, files := range map[string]string{
		"plain":                 "#Config: {a: int, b: *(a*2) | int, m: [string]: int}\nvalues: #Config\n",
		"sees values":           "#Config: {a: int, b: int | *_c, m: [string]: int}\nvalues: #Config\n_c: values.a * 3\n",
		"sees values by let":    "#Config: {a: int, b: int | *C, m: [string]: int}\nvalues: #Config\nlet V = values\nlet C = V.a * 3\n",
		"sees an alias":         "#Config: {a: int, b: int | *(V.a * 3), m: [string]: int}\nV=values: #Config\n",
		"quoted":                "#Config: {a: int, b: int | *c, m: [string]: int}\n\"values\": #Config\nc: values.a\n",
		"sees files":            "#Config: {a: int, b: int | *files.f.data, m: [string]: int}\nvalues: #Config\nfiles: f: {format: \"json\", data: values.a}\n",
		"files":                 "#Config: {a: int, m: [string]: int}\nvalues: #Config\nfiles: f: {format: \"json\", data: {v: values, c: cohort.name}}\ncohort: {name: string, ...}\n",
		"files by default":      "#Config: {a: int, m: [string]: int}\nvalues: #Config\nfiles: [string]: format: *\"json\" | \"yaml\"\nfiles: f: data: values\n",
		"no format":             "#Config: {a: int, m: [string]: int}\nvalues: #Config\nfiles: f: data: values\n",
		"odd mode":              "#Config: {a: int, m: [string]: int}\nvalues: #Config\nfiles: f: {format: \"json\", mode: \"777\", data: values}\n",
		"confirm":               "#Config: {a: int, m: [string]: int}\nvalues: #Config\nconfirm: \"disk\"\n",
		"cohort":                "#Config: {a: int, m: [string]: int, n: *cohort.name | string}\nvalues: #Config\ncohort: {name: string, labels: [string]: string}\n",
		"a choice":              "#Config: {a: 1, m: x: int} | {a: 2, m: x: int, z: *3 | int}\nvalues: #Config\n",
		"conditional":           "#Config: {a: int, m: [string]: int, if a > 1 {big: *true | bool}}\nvalues: #Config\n",
		"secret":                "#Config: {a: int, m: [string]: int, p: *\"/etc/p\" | string @secret()}\nvalues: #Config\n",
		"refuses base":          "#Config: {a: int & >1, m: [string]: int}\nvalues: #Config\n",
		"refuses the merged":    "#Config: {a: <2, m: [string]: int}\nvalues: #Config\n",
		"unknown":               "#Config: {m: [string]: int}\nvalues: #Config\n",
		"missing":               "#Config: {a: int, m: [string]: int, z!: int}\nvalues: #Config\n",
		"open":                  "#Config: {a: int, ...}\nvalues: #Config\n",
		"no schema":             "other: 1\n",
		"overlay in CUE":        "#Config: {a: int, m: [string]: int}\nvalues: #Config\noverlay: env: prod: m: y: 7\n",
		"overlay with a typo":   "#Config: {a: int, m: [string]: int}\nvalues: #Config\noverlay: env: prod: n: 7\n",
		"hidden and misspelt":   "#Config: {a: int, m: [string]: int}\nvalues: #Config\noverlay: env: test: aa: 7\n",
		"needs a neighbour":     "#Config: {a: int & >=m.x, m: [string]: int}\nvalues: #Config\n",
		"package level default": "#Config: {a: int, b: *d | int, m: [string]: int}\nd: 4\nvalues: #Config\n",
	} {
		t.Run(name, func(t *testing.T) {
			sameAsLong(t, repo(oneCohort+"-- services/s/s.cue --\npackage s\n"+files+config))
		})
	}
}

func TestQuickSaysTheSameOfAnything(t *testing.T) {
	number := rapid.IntRange(0, 4)
	rapid.Check(t, func(rt *rapid.T) {
		var b strings.Builder
		b.WriteString("-- fleet/fleet.cue --\npackage fleet\nprecedence: [\"env\", \"region\"]\n")
		for _, env := range []string{"prod", "test"} {
			for _, region := range []string{"eu", "us"} {
				fmt.Fprintf(&b, "cohorts: \"%s-%s\": {labels: {env: %q, region: %q}, hosts: expect: 1}\n", env, region, env, region)
			}
		}
		fmt.Fprintf(&b, "-- services/s/s.cue --\npackage s\n#Config: {a: int & <%d, b: int | *(a+1), c?: string, d: {e: *1 | int, f?: int & >=e}}\nvalues: #Config\n", rapid.IntRange(2, 6).Draw(rt, "bound"))
		if rapid.Bool().Draw(rt, "files") {
			b.WriteString("files: f: {format: \"json\", data: values}\n")
		}
		layer := func(name string) {
			fmt.Fprintf(&b, "-- services/s/%s.yaml --\n", name)
			for _, key := range []string{"a", "b", "c", "x"} {
				if rapid.IntRange(0, 5).Draw(rt, key) > 3 || name == "base" && key == "a" {
					fmt.Fprintf(&b, "%s: %d\n", key, number.Draw(rt, "n"))
				}
			}
			if rapid.Bool().Draw(rt, "d") {
				fmt.Fprintf(&b, "d: {e: %d, f: %d}\n", number.Draw(rt, "e"), number.Draw(rt, "f"))
			}
		}
		layer("base")
		for _, name := range []string{"env/prod", "env/test", "region/eu", "region/us"} {
			layer("overlays/" + name)
		}
		want, got := theLongWay(repo(b.String())), Evaluate(repo(b.String()))
		// A value that some valid unit shows, and that its own layer alone would refuse for want of a neighbour, is told by the long way only.
		want.Problems = withoutWarnings(want.Problems)
		got.Problems = withoutWarnings(got.Problems)
		if d := cmp.Diff(want, got); d != "" {
			rt.Fatalf("the long way and the quick one (-long +quick):\n%s", d)
		}
	})
}

func withoutWarnings(problems []Problem) []Problem {
	var out []Problem
	for _, p := range problems {
		if p.Severity == SeverityError {
			out = append(out, p)
		}
	}
	return out
}

// What stands at two paths by an alias is checked at both, also where a later layer hides one.
func TestQuickSeesAliases(t *testing.T) {
	const repo = "-- services/s/s.cue --\npackage s\n#Config: {x: {m?: int, o?: int}, y: {q?: int, o?: >3}}\nvalues: #Config\n-- services/s/overlays/env/prod.yaml --\ny: {m: null, o: null}\n-- services/s/base.yaml --\n"
	for _, base := range []string{"x: {m: 1}\ny: {m: 1}\n", "x: &a {m: 1}\ny: *a\n", "x: &a {m: 1}\ny: {<<: *a, q: 1}\n"} {
		if said := text(t, repo+base); !strings.Contains(said, "y.m: unknown field") {
			t.Errorf("%s: %q", base, said)
		}
	}
	if said := text(t, repo+"x: &a {o: 1}\ny: *a\n"); !strings.Contains(said, "warning: y.o: 1 is out of range") {
		t.Errorf("a refused value: %q", said)
	}
}
