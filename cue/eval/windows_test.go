package eval

import (
	"strings"
	"testing"
)

// TestRolloutTimes: windows that cannot be read, or never open, and hosts that wait longer for their turn than their wave may take, are refused with their place.
func TestRolloutTimes(t *testing.T) {
	for fields, want := range map[string]string{
		`windows: ["* 9-16 * * mon-fri", "0 0 29 2 *", "0 0 30 2 1", "*/15 * * * 7"]`: "",
		`windows: ["0 25 * * *"]`:                   `rollouts.standard.windows.0: window "0 25 * * *": hour: "25" is not from 0 to 23`,
		`windows: ["* * * * *", "* * * * fri-mon"]`: `rollouts.standard.windows.1: window "* * * * fri-mon": weekday: "fri-mon" runs backwards: write it as two`,
		`windows: ["0 0 30 2 *"]`:                   `rollouts.standard.windows.0: window "0 0 30 2 *": it never opens: no month that it names has such a day`,
		`windows: ["0 0 31 4,6 *"]`:                 "it never opens",
		`spread: "30m"`:                             "",
		`spread: "2h"`:                              "rollouts.standard.spread: hosts wait up to 2h for their turn, and a wave has 2h (timeout) to confirm: make spread shorter, or timeout longer",
		`{spread: "10m", timeout: "5m"}`:            "hosts wait up to 10m for their turn",
		`watch: "2562047h"`:                         "rollouts.standard.watch: 2562047h is longer than 30 days (720h)",
		`timeout: "721h"`:                           "rollouts.standard.timeout: 721h is longer",
		`waves: [{bake: "2562047h"}]`:               "rollouts.standard.waves.0.bake: 2562047h is longer",
		`timeout: "720h"`:                           "",
		`{spread: "10m", timeout: "0s"}`:            "", // a wave has all the time there is
	} {
		said := Format(Evaluate(repo(oneCohort + "-- fleet/rollouts.cue --\npackage fleet\nrollouts: standard: {waves: [{percent: 100}]}\nrollouts: standard: " + fields + "\n-- services/s/base.yaml --\na: 1\n")).Problems)
		if want == "" && said != "" || !strings.Contains(said, want) || want != "" && !strings.Contains(said, "fleet/rollouts.cue:3:") {
			t.Errorf("%s\ngot  %s\nwant %s", fields, said, want)
		}
	}
}
