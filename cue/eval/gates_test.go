package eval

import (
	"strings"
	"testing"
)

// TestGates: what a gate may say, and what is said of one that says too much or too little, with its place.
func TestGates(t *testing.T) {
	for gate, want := range map[string]string{
		`{prometheus: "sum(increase(a[$every]) * $canary)", of: "sum(increase(b[$every]) * $canary)", max: 0.01, compare: ratio: 1.5}`: "",
		`{reported: "restarts", max: 0, fails: 2, no_data: "fail"}`:                                                                    "",
		`{http: "https://x/?e=$epoch", compare: ratio: 0.5, every: "10s"}`:                                                             "",
		`{reported: "mood", max: 0}`: `reported: "mood" is not one of "refused", "rolled_back", "drift", "restarts", "probe_failures", "probe_latency"`,
		`{max: 1}`:                   "gates.g: a gate asks one of prometheus, http and reported",
		`{prometheus: "up", reported: "drift", max: 1}`:                              "gates.g: a gate asks one of prometheus, http and reported",
		`{prometheus: "up"}`:                                                         "a gate has a bound: min, max or compare",
		`{prometheus: "up", min: 2, max: 1}`:                                         "max is below min",
		`{http: "https://x", of: "b", max: 1}`:                                       "of counts the events of a prometheus gate",
		`{prometheus: "up * $canaries", max: 1}`:                                     "unknown name $canaries: there are $cohort, $epoch, $canary, $control and $every",
		`{prometheus: "sum(up)", compare: ratio: 2}`:                                 "a gate that compares needs $canary",
		`{prometheus: "sum(increase(a[1m]))", of: "sum(increase(b[1m]))", max: 0.1}`: "write [$every] in the place of [1m]",
		`{prometheus: "a", of: "b", max: 5}`:                                         "0.01 is 1%",
		`{prometheus: "x * $canary", compare: ratio: 2}`:                             "wave 1 cannot pass this gate: to compare values takes 12 looks, and a bake of 5m0s has 10",
		`{prometheus: "up", max: 1, every: "500ms"}`:                                 "every: 500ms is less than a second",
		`{prometeus: "up", max: 1}`:                                                  `unknown field (did you mean "prometheus"?)`,
	} {
		said := Format(Evaluate(repo(oneCohort + "-- fleet/rollouts.cue --\npackage fleet\nrollouts: standard: {waves: [{percent: 5, bake: \"5m\"}, {percent: 100}], gates: g: " + gate + "}\n-- services/s/base.yaml --\na: 1\n")).Problems)
		if want == "" && said != "" || !strings.Contains(said, want) || want != "" && !strings.Contains(said, "fleet/rollouts.cue:2:") {
			t.Errorf("%s\ngot  %s\nwant %s", gate, said, want)
		}
	}
}

// TestGateNeverCompares: a gate that only compares needs a wave before the last one that bakes.
func TestGateNeverCompares(t *testing.T) {
	const only, both = `{prometheus: "sum(increase(a[$every]) * $canary)", of: "sum(increase(b[$every]) * $canary)", compare: ratio: 2}`, `{prometheus: "sum(increase(a[$every]) * $canary)", of: "sum(increase(b[$every]) * $canary)", compare: ratio: 2, max: 0.1}`
	for _, c := range []struct {
		waves, gate string
		refused     bool
	}{
		{`[{percent: 100, bake: "1h"}]`, only, true},
		{`[{percent: 10}, {percent: 100, bake: "1h"}]`, only, true},
		{`[{percent: 10, bake: "10m"}, {percent: 100}]`, only, false},
		{`[{percent: 10}, {percent: 20, bake: "10m"}, {percent: 100}]`, only, false},
		{`[{percent: 100, bake: "1h"}]`, both, false},
	} {
		said := Format(Evaluate(repo(oneCohort + "-- fleet/rollouts.cue --\npackage fleet\nrollouts: standard: {waves: " + c.waves + ", gates: g: " + c.gate + "}\n-- services/s/base.yaml --\na: 1\n")).Problems)
		if got := strings.Contains(said, "rollouts.standard.gates.g: nothing would ever be compared"); got != c.refused {
			t.Errorf("%s, %s: %s", c.waves, c.gate, said)
		}
	}
}
