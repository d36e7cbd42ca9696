package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/muster-config/muster/cmd/internal/cli"
	"github.com/muster-config/muster/distributor/api"
	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/rollout/standing"
	"github.com/muster-config/muster/distributor/verdict"
)

func (a *app) statusCmd() *cobra.Command {
	var conn connection
	cmd := &cobra.Command{
		Use:   "status [COHORT]",
		Short: "what each cohort is to run, and how many hosts confirm it",
		Long: `Prints a line for every cohort: the epoch of the release that it is to run, or, where a
rollout went back or is halted, the one that was taken back, and OTHERS tells what hosts
run instead; and how many of the expected hosts confirm that epoch. STATE is

  assigned   the release is assigned to the hosts, not all of them confirm it yet
  confirmed  every expected host confirms it

or where a rollout stands: idle, advancing, baking, awaiting approval, paused,
rolling back, halted, with the wave of how many; "muster rollout status" says more.
Above the table stands what was decided by hand, or stops a rollout, and acts now:
halts, pauses, freezes, holds, emergency overrides, with who, why, since when, until
when, and what ends it; what is over a day old is nagged about. CONFIRMED counts the
hosts that confirm this very epoch. OTHERS counts the rest: those that are told to run
the baseline, and do, and the others by verdict; "muster hosts" names them. In --json, "phase" is the rollout's own: "done" there
says that the release is assigned to all hosts, not that they run it.`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := conn.open()
			if err != nil {
				return err
			}
			st, err := c.Status(cmd.Context())
			if err != nil {
				return err
			}
			if st.Cohorts == nil {
				st.Cohorts = map[string]api.Cohort{}
			}
			if len(args) == 1 {
				one, ok := st.Cohorts[args[0]]
				if !ok {
					return unknownCohort(args[0], slices.Collect(maps.Keys(st.Cohorts)))
				}
				st.Cohorts = map[string]api.Cohort{args[0]: one}
			}
			if a.json {
				return cli.PrintJSON(a.out, st)
			}
			if len(st.Cohorts) == 0 {
				fmt.Fprintln(a.out, "no cohort yet: nothing was published to the collector's store")
				return nil
			}
			printActive(a.out, st, "", time.Now())
			rows := [][]string{{"COHORT", "EPOCH", "STATE", "CONFIRMED", "OTHERS", "COMMIT", "SUBJECT"}}
			var why []string
			for _, name := range slices.Sorted(maps.Keys(st.Cohorts)) {
				c := st.Cohorts[name]
				rows = append(rows, []string{
					name, fmt.Sprint(c.Target), stateOf(c), fmt.Sprintf("%s of %s", cli.Number(confirming(c)), cli.Number(c.Expected)),
					others(c), cli.Short(c.Commit), c.Subject,
				})
				if c.Stale || c.Verdicts[verdict.Unknown] > 0 {
					why = append(why, name+": "+c.Why)
				}
				if c.Rollout != nil && len(c.Rollout.Queue) > 0 && standing.Stopped(c.Rollout) {
					why = append(why, fmt.Sprintf("%s: %s behind it; `muster rollout status %s` lists them", name, cli.Count(len(c.Rollout.Queue), "release"), name))
				}
			}
			cli.PrintTable(a.out, rows)
			for _, line := range why {
				fmt.Fprintln(a.out, cli.Printable(line))
			}
			return nil
		},
	}
	conn.flags(cmd)
	return cmd
}

// stateOf is where a cohort stands. The rollout's own "done" says that the release is assigned to all, which people would read as more.
func stateOf(c api.Cohort) string {
	switch {
	case c.Phase != manifest.PhaseDone:
		text := string(c.Phase)
		if r := c.Rollout; r != nil && r.Wave > 0 && r.Wave <= len(r.Waves) && len(r.Waves) > 1 {
			text += fmt.Sprintf(" %d/%d", r.Wave, len(r.Waves))
		}
		return text
	case c.Expected > 0 && c.Verdicts[verdict.Confirmed] >= c.Expected:
		return "confirmed"
	}
	return "assigned"
}

// confirming is how many hosts confirm the target. While a rollout has not told all of them, or took it back, more confirm what they are told.
func confirming(c api.Cohort) int {
	n := c.Verdicts[verdict.Confirmed]
	if c.Rollout != nil && c.Phase != manifest.PhaseDone {
		return min(n, c.Rollout.Confirmed)
	}
	return n
}

// others is "47 at epoch 3, 2 applying, 1 silent", or "-".
func others(c api.Cohort) string {
	var parts []string
	if n := c.Verdicts[verdict.Confirmed] - confirming(c); n > 0 {
		parts = append(parts, fmt.Sprintf("%s at epoch %d", cli.Number(n), c.Baseline))
	}
	counts := c.Verdicts
	for _, code := range slices.Sorted(maps.Keys(counts)) {
		if code != verdict.Confirmed && counts[code] > 0 {
			parts = append(parts, fmt.Sprintf("%s %s", cli.Number(counts[code]), code))
		}
	}
	if parts == nil {
		return "-"
	}
	return strings.Join(parts, ", ")
}

// cohortKnown checks that the collector knows a cohort.
func cohortKnown(ctx context.Context, c interface {
	Status(ctx context.Context) (*api.Status, error)
}, name string,
) error {
	st, err := c.Status(ctx)
	if err != nil {
		return err
	}
	if _, ok := st.Cohorts[name]; !ok {
		return unknownCohort(name, slices.Collect(maps.Keys(st.Cohorts)))
	}
	return nil
}

func unknownCohort(name string, known []string) error {
	hint := "nothing was published to the collector's store yet"
	if len(known) > 0 {
		hint = strings.TrimSpace(cli.Suggest(name, known) + " there are " + cli.Names(known, 10))
	}
	return cli.Fail(cli.Usage, hint, "no cohort %q", name)
}
