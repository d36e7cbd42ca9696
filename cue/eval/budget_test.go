package eval

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
)

// The budget of one unit of manyTargets: what it took when this was written with cue v0.17.1. A version of CUE, or a change here, that needs a third
// more fails the build; after a look at why, the figures are written anew.
const (
	budgetBytes  = 700_000
	budgetAllocs = 4_300
)

// manyTargets is a repository of 300 definitions, 700 files and 15 cohorts, at a scale: the services, which are most of the files, are fewer.
func manyTargets(services int) *Request {
	var b strings.Builder
	b.WriteString("-- fleet/fleet.cue --\npackage fleet\nprecedence: [\"env\", \"region\"]\n")
	for _, env := range []string{"dev", "staging", "prod"} {
		for r := range 5 {
			fmt.Fprintf(&b, "cohorts: \"%s-r%d\": {labels: {env: %q, region: \"r%d\"}, hosts: expect: 10}\n", env, r, env, r)
		}
	}
	for f := range 10 {
		fmt.Fprintf(&b, "-- lib/types/t%d.cue --\npackage types\n", f)
		for d := range 30 {
			fmt.Fprintf(&b, "#T%d: {name!: string, size: int & >=0 & <%d | *%d, on: *true | bool, limits: [string]: int & <1000}\n", f*30+d, 1000+d, d)
		}
	}
	for s := range services {
		dir := fmt.Sprintf("services/s%03d/", s)
		fmt.Fprintf(&b, "-- %ss.cue --\npackage s\nimport \"muster.example/config/lib/types\"\n#Config: {\n", dir)
		for d := range 8 {
			fmt.Fprintf(&b, "\tf%d: types.#T%d\n", d, (s*8+d)%300)
		}
		b.WriteString("\ttotal: int | *(f0.size + f1.size)\n}\nvalues: #Config\n")
		fmt.Fprintf(&b, "-- %sbase.yaml --\n", dir)
		for d := range 8 {
			fmt.Fprintf(&b, "f%d: {name: n%d, limits: {a: 1, b: 2}}\n", d, d)
		}
		for _, env := range []string{"dev", "staging", "prod"} {
			fmt.Fprintf(&b, "-- %soverlays/env/%s.yaml --\nf0: {size: 10}\nf1: {on: false}\n", dir, env)
		}
		fmt.Fprintf(&b, "-- %soverlays/region/r1.yaml --\nf2: {size: 20}\n", dir)
	}
	return repo(b.String())
}

func TestB045Budget(t *testing.T) {
	req := manyTargets(20)
	Evaluate(manyTargets(1)) // what is made once in a process
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	res := Evaluate(req)
	runtime.ReadMemStats(&after)
	if res.Failed() || len(res.Units) != 20*15 {
		t.Fatalf("%d units:\n%s", len(res.Units), Format(res.Problems))
	}
	units := uint64(len(res.Units))
	size, allocs := (after.TotalAlloc-before.TotalAlloc)/units, (after.Mallocs-before.Mallocs)/units
	t.Logf("%d bytes and %d allocations a unit", size, allocs)
	limit := func(budget uint64) uint64 {
		if raceEnabled {
			budget *= 2 // the detector keeps books of its own
		}
		return budget + budget/3
	}
	if size > limit(budgetBytes) || allocs > limit(budgetAllocs) {
		t.Errorf("a unit takes %d bytes in %d allocations: the budget is %d and %d, and a third more", size, allocs, budgetBytes, budgetAllocs)
	}
	// A budget that nothing comes near is none.
	if !raceEnabled && (size < budgetBytes/2 || allocs < budgetAllocs/2) {
		t.Errorf("a unit takes %d bytes in %d allocations, less than half of the budget of %d and %d: write it anew", size, allocs, budgetBytes, budgetAllocs)
	}
}
