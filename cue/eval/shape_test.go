package eval

import (
	"fmt"
	"strings"
	"testing"

	"cuelang.org/go/cue"
	"cuelang.org/go/cue/ast"
	"cuelang.org/go/cue/cuecontext"
	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/muster-config/muster/cue/eval/layer"
)

func shapeRun() *serviceRun {
	return &serviceRun{evaluation: &evaluation{}, ctx: cuecontext.New(), seen: &seen{shape: &shape{}}}
}

// unitOf compiles what stands in braces.
func unitOf(r *serviceRun, text string) cue.Value {
	return r.ctx.CompileString("v: {" + text + "}\n#D: {d: 1, e?: 2}\n").LookupPath(cue.ParsePath("v"))
}

// byName reads by the names that are known and reports whether CUE counts as many.
func byName(r *serviceRun, v cue.Value) bool {
	var as reading
	_, ok := r.seen.shape.read(v, nil, ast.NewIdent(within), &as)
	return ok && r.counted(v, as.counts)
}

func TestShapeMissesNoField(t *testing.T) {
	r, known := shapeRun(), &shape{}
	for _, tt := range []struct {
		unit string
		want bool // the names known from those before are all of them
	}{
		{"a: 1, b: {c: 2}", false},
		{"a: 1, b: {c: 2}", true},
		{"b: {c: 3}, a: 2", true},
		{"a: 1, b: {c: 2, d: 3}", false}, // one more, below
		{"a: 1, b: {c: 2}, z: 1", false}, // one more, at the top
		{"a: 1, b: {c: 2}", true},        // fewer
		{"b: {d: 1}", true},
		{"a: 1, b: {c: 2}, y: 1", false},
		{"a: 1, b: {x: 2}, z: 1", false}, // one more and one fewer
		{"a: 1, _h: 2, #D: 3, o?: 4, let L = 5, b: {c: L}", true},
		{"[=~\"^p\"]: int, p: 1, a: 1", false},
		{"for k in [\"k1\", \"k2\"] {(k): 1}, a: 1", false},
		{"if true {a: 1}, if false {nope: 1}", true},
		{"a: 1, l: [{x: 1}, {y: 2}]", false},
		{"a: 1, l: [{z: 1}, {y: 2}]", true}, // what lies in lists is listed
		{"a: b, b: {c: 1}", false},
		{"a: b, b: {c: 1}", true},
		{"a: b, b: {c: 1, w: 1}", false},
		{"a: *{c: 1} | {d: 1}", false}, // a default
		{"a: #D & {e: 2}", false},
		{"a: #D & {e: 2}", true},
		{"\"odd name\": {\"in\\\"side\": {len: 1}}, len: 2, v: 3, true: 4", false},
		{"\"odd name\": {\"in\\\"side\": {len: 1}}, len: 2, v: 3, true: 4", true},
		{"", true},
	} {
		v := unitOf(r, tt.unit)
		if err := v.Validate(cue.Concrete(true), cue.Final()); err != nil {
			t.Fatalf("%s: %v", tt.unit, err)
		}
		r.seen.shape = known
		if got := byName(r, v); got != tt.want {
			t.Errorf("{%s}: read by name %t, want %t", tt.unit, got, tt.want)
		}
		want, lerr := layer.Plain(v)
		got, gerr := r.plain(v, nil)
		if lerr != nil || gerr != nil {
			t.Fatal(lerr, gerr)
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("{%s} (-listed +by name):\n%s", tt.unit, d)
		}
		known.learn(want)
	}
}

func TestShapeMissesNoFieldOfAny(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := shapeRun()
		var text func(depth int) string
		text = func(depth int) string {
			var b strings.Builder
			for _, name := range []string{"a", "b", "c", "d"} {
				switch n := rapid.IntRange(0, 9).Draw(t, "what"); {
				case n < 3:
					fmt.Fprintf(&b, "%s: %d\n", name, n)
				case n < 5 && depth > 0:
					fmt.Fprintf(&b, "%s: {%s}\n", name, text(depth-1))
				case n == 5:
					fmt.Fprintf(&b, "%s?: int\n", name)
				case n == 6:
					fmt.Fprintf(&b, "%s: [{%s: 1}]\n", name, name)
				case n == 7:
					fmt.Fprintf(&b, "if true {%s: {x: 1}}\n", name)
				}
			}
			return b.String()
		}
		for range 6 {
			unit := text(2)
			v := unitOf(r, unit)
			want, err := layer.Plain(v)
			if err != nil {
				t.Fatal(err)
			}
			got, err := r.plain(v, nil)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(want, got); d != "" {
				t.Fatalf("{%s} (-listed +by name):\n%s", unit, d)
			}
		}
	})
}

// Units of several cohorts and services, in one batch, come to the same as the long way.
func TestShapeOfManyUnits(t *testing.T) {
	var b strings.Builder
	b.WriteString("-- fleet/fleet.cue --\npackage fleet\nprecedence: [\"env\"]\n")
	for _, env := range []string{"a", "b", "c"} {
		fmt.Fprintf(&b, "cohorts: %s: {labels: {env: %q}, hosts: expect: 1}\n", env, env)
	}
	for i, s := range []string{
		"#Config: {a: int, o?: {x: *1 | int}, m: [string]: int, copy: m, if a > 1 {big: {y: a}}}\nvalues: #Config\n",
		"#Config: {a: int, o?: {x: *1 | int, z: *2 | int}, m: [string]: int, t: *{e: 1} | {f: 2}}\nvalues: #Config\n",
		"#Config: {a: int, o?: {...}, m: [string]: int, l: [...{x: *1 | int, ...}]}\nvalues: #Config\nfiles: f: {format: \"yaml\", data: values}\n",
	} {
		dir := fmt.Sprintf("services/s%d/", i)
		fmt.Fprintf(&b, "-- %ss.cue --\npackage s\n%s-- %sbase.yaml --\na: 1\nm: {p: 1}\n", dir, s, dir)
		fmt.Fprintf(&b, "-- %soverlays/env/b.yaml --\na: 2\no: {x: 3}\n-- %soverlays/env/c.yaml --\nm: {q: 1, p: null}\no: {}\n", dir, dir)
	}
	req := repo(b.String())
	if res := Evaluate(req); res.Failed() || len(res.Units) != 9 {
		t.Fatalf("%d units, %s", len(res.Units), Format(res.Problems))
	}
	sameAsLong(t, req)
}
