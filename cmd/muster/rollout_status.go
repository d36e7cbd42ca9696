package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/muster-config/muster/cmd/internal/cli"
	"github.com/muster-config/muster/distributor/api"
	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/rollout/standing"
	"github.com/muster-config/muster/distributor/verdict"
)

func (a *app) rolloutStatusCmd() *cobra.Command {
	var conn connection
	var from reading
	cmd := &cobra.Command{
		Use:   "status COHORT",
		Short: "where a rollout stands: waves, who is in, gates and what they heard, what it waits for",
		Long: `Prints where a cohort's rollout stands: its waves with their hosts, who is in the
one under way, every gate with its value and the samples behind it, how much time is
left, what it waits for and which command ends that, and the newer releases that
wait behind it with their commits.

The collector says it. Without one, --store alone says what the order itself holds:
then nobody counts hosts, and gates are as the last order left them.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx := cmd.Context()
			var r *api.Rollout
			var err error
			if !conn.given() && from.storeURL == "" && os.Getenv("MUSTER_STORE") == "" {
				return cli.Fail(cli.Usage, "give --collector, or set MUSTER_COLLECTOR: it counts hosts too; or give --store, or set MUSTER_STORE: it says what the order holds", "neither --collector nor --store is given")
			}
			counted := conn.url != "" || conn.given() && from.storeURL == ""
			if counted {
				r, err = conn.rollout(ctx, args[0])
			} else {
				r, err = from.rollout(ctx, args[0])
			}
			if err != nil {
				return err
			}
			if a.json {
				return cli.PrintJSON(a.out, r)
			}
			if r == nil {
				fmt.Fprintf(a.out, "%s: nothing is assigned to it yet\n", args[0])
				return nil
			}
			printRollout(a.out, r, counted, time.Now())
			return nil
		},
	}
	conn.flags(cmd)
	from.flags(cmd)
	return cmd
}

// rollout asks the collector.
func (c *connection) rollout(ctx context.Context, cohort string) (*api.Rollout, error) {
	client, err := c.open()
	if err != nil {
		return nil, err
	}
	defer client.Close()
	if err := cohortKnown(ctx, client, cohort); err != nil {
		return nil, err
	}
	co, err := client.Cohort(ctx, cohort)
	if err != nil {
		return nil, err
	}
	return co.Rollout, nil
}

// rollout reads the store.
func (r *reading) rollout(ctx context.Context, cohort string) (*api.Rollout, error) {
	h, err := r.history(ctx)
	if err != nil {
		return nil, err
	}
	newest, err := h.Newest(ctx)
	if err != nil {
		return nil, err
	}
	view, err := h.Head(ctx, cohort)
	if err != nil {
		return nil, err
	}
	if view == nil {
		if newest != nil {
			if _, ok := newest.Cohorts[cohort]; ok {
				return nil, nil
			}
			return nil, unknownCohort(cohort, slices.Collect(maps.Keys(newest.Cohorts)))
		}
		return nil, unknownCohort(cohort, nil)
	}
	in := standing.Input{Cohort: cohort, View: view, Now: time.Now()}
	waiting, err := h.Queue(ctx, cohort, view.Manifest.Rollout.Target)
	if err != nil {
		return nil, err
	}
	for _, rel := range waiting {
		in.Queue = append(in.Queue, api.Queued{Epoch: rel.Epoch, Commit: rel.Commit, Subject: rel.Subject, Author: rel.Author.Name, Created: rel.Created})
	}
	if newest != nil && newest.Cohorts[cohort].State == manifest.StateBlocked {
		in.Blocked = newest.Cohorts[cohort].Reason
	}
	return standing.Of(in), nil
}

// maxSamples is how many samples of a gate are printed: the newest. --json has all of them.
const maxSamples = 5

func printRollout(w io.Writer, r *api.Rollout, counted bool, now time.Time) {
	line := func(format string, args ...any) { fmt.Fprintln(w, cli.Printable(fmt.Sprintf(format, args...))) }
	head := fmt.Sprintf("%s: epoch %d, %s", r.Cohort, r.Target, r.Phase)
	if n := len(r.Waves); r.Wave > 0 && r.Wave <= n && r.Phase != manifest.PhaseDone {
		head += fmt.Sprintf(", wave %d of %d", r.Wave, n)
	}
	if r.Phase != manifest.PhaseDone {
		head += fmt.Sprintf(", baseline epoch %d", r.Baseline)
	}
	line("%s, since %s", head, at(r.Since))
	if r.Why != "" {
		line("  why    %s (by %s)", r.Why, r.By)
	}
	if r.Waits != "" {
		line("  waits  %s", r.Waits)
	}
	if r.Overdue {
		line("  late   it has waited for a person for %s", cli.Elapsed(now.Sub(stoppedSince(r))))
	}
	if r.Until != nil {
		left := "over"
		if d := r.Until.Sub(now); d > 0 {
			left = cli.Elapsed(d) + " left"
		}
		line("  time   %s, until %s", left, at(*r.Until))
	}
	if counted && r.Eligible > 0 {
		line("  hosts  %s of %s are told to run it, %s confirmed", cli.Number(r.Told), cli.Number(r.Eligible), cli.Number(r.Confirmed))
	}
	for i, f := range r.Freezes {
		if i == 0 && strings.HasPrefix(r.Waits, "frozen ") {
			continue // said already
		}
		line("  frozen by %s since %s%s: %s", f.By, at(f.Since), untilText(f.Until), f.Why)
	}
	if len(r.Skipped) > 0 {
		line("  gates passed over in this wave: %s", cli.Names(r.Skipped, 10))
	}
	fmt.Fprintln(w)
	printWaves(w, r, counted)
	printGates(w, r)
	if len(r.Queue) > 0 {
		fmt.Fprintln(w)
		line("%s behind it:", cli.Count(len(r.Queue), "release"))
		rows := [][]string{}
		for _, q := range r.Queue {
			rows = append(rows, []string{"  epoch " + strconv.FormatUint(q.Epoch, 10), cli.Short(q.Commit), q.Author, q.Subject})
		}
		cli.PrintTable(w, rows)
	}
}

// stoppedSince is since when a person is waited for.
func stoppedSince(r *api.Rollout) time.Time {
	if r.Pause != nil {
		return r.Pause.Since
	}
	return r.Since
}

func printWaves(w io.Writer, r *api.Rollout, counted bool) {
	rows := [][]string{{"WAVE", "TAKES", "HOSTS", "BAKE", "STATE"}}
	for _, wave := range r.Waves {
		hosts, state := "-", wave.State
		if counted {
			hosts = cli.Number(wave.Hosts)
		}
		if wave.State != api.WaveDone && wave.Approval {
			state += ", a person approves it"
			if wave.Approved {
				state = wave.State + ", approved"
			}
		}
		rows = append(rows, []string{strconv.Itoa(wave.Wave), wave.Takes, hosts, wave.Bake, state})
	}
	cli.PrintTable(w, rows)
	for _, wave := range r.Waves {
		if len(wave.In) == 0 {
			continue
		}
		fmt.Fprintf(w, "\nin wave %d:\n", wave.Wave)
		table := [][]string{}
		var well []string
		for _, h := range wave.In {
			if h.Verdict == verdict.Confirmed {
				well = append(well, h.Host)
				continue
			}
			table = append(table, []string{"  " + h.Host, string(h.Verdict), h.Why})
		}
		cli.PrintTable(w, table)
		if len(well) > 0 {
			fmt.Fprintf(w, "  confirmed: %s\n", cli.Printable(cli.Names(well, 20)))
		}
		if wave.More > 0 {
			fmt.Fprintf(w, "  and %s more\n", cli.Number(wave.More))
		}
	}
}

func printGates(w io.Writer, r *api.Rollout) {
	if len(r.Gates) == 0 {
		return
	}
	fmt.Fprintln(w)
	rows := [][]string{{"GATE", "SAYS", "ASKS", "WHY"}}
	for _, g := range r.Gates {
		says, why := "nothing yet", ""
		if v := g.Verdict; v != nil {
			says, why = string(v.Outcome), v.Why
			if !g.Live {
				why += fmt.Sprintf(" (at %s)", at(v.To))
			}
		}
		rows = append(rows, []string{g.Gate, says, g.Asks, why})
	}
	cli.PrintTable(w, rows)
	for _, g := range r.Gates {
		if g.Verdict == nil || len(g.Verdict.Samples) == 0 {
			continue
		}
		samples := g.Verdict.Samples
		fmt.Fprintf(w, "\n%s, the newest of %s:\n", cli.Printable(g.Gate), cli.Count(len(samples), "sample"))
		table := [][]string{{"  AT", "CANARY", "CONTROL"}}
		for _, s := range samples[max(0, len(samples)-maxSamples):] {
			table = append(table, []string{"  " + at(s.At), sampleText(s.Canary, s.OfCanary), sampleText(s.Control, s.OfOthers)})
		}
		cli.PrintTable(w, table)
	}
}

// sampleText is a value, or a count of all; "-" where nothing was there.
func sampleText(v, of *float64) string {
	number := func(f float64) string { return strconv.FormatFloat(f, 'g', 6, 64) }
	switch {
	case v == nil:
		return "-"
	case of != nil:
		return number(*v) + " of " + number(*of)
	}
	return number(*v)
}

func at(t time.Time) string { return t.UTC().Format(time.RFC3339) }

func untilText(t *time.Time) string {
	if t == nil {
		return ""
	}
	return " until " + at(*t)
}
