package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/muster-config/muster/cmd/internal/cli"
	"github.com/muster-config/muster/distributor"
	"github.com/muster-config/muster/distributor/api"
	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/rollout/standing"
)

func (a *app) logCmd() *cobra.Command {
	var from reading
	var limit int
	cmd := &cobra.Command{
		Use:   "log [COHORT]",
		Short: "what happened: releases, overrides, rollbacks, holds, freezes, with who and why",
		Long: `Prints what happened, the newest first: every release with its commit, author,
pull request, and what it is to each cohort; every decision about a cohort's hosts:
overrides set, extended and ended, rollbacks, halts, pauses, freezes, holds, with
who made it and from which machine, why, for which hosts and until when; what ended
by itself at its time; and every commit that was refused. With a cohort only what is
about it.

It reads the store alone and verifies all of it, but that a commit was refused:
that is a note of the publisher's, which nobody signs. No collector is needed. The
keyring of --keys or --keyring is trusted; without one, the store's own.

What it cannot know: what was done on a host alone ("muster-agent hold" and "apply":
the host reports that, and "muster hosts" shows it); decisions of which the copy of
the head was lost or removed by gc; and whether the name in "by" is true: who has the
rollout key or an operator key signs any name, but through a collector with tokens
it is the token's.`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if limit < 0 {
				return cli.Fail(cli.Usage, "0 prints all", "--limit %d is negative", limit)
			}
			ctx := cmd.Context()
			h, err := from.history(ctx)
			if err != nil {
				return err
			}
			cohort := ""
			if len(args) == 1 {
				cohort = args[0]
			}
			entries, err := h.Log(ctx, cohort, limit)
			if err != nil {
				return err
			}
			if len(entries) == 0 && cohort != "" {
				newest, err := h.Newest(ctx)
				if err != nil {
					return err
				}
				if newest == nil {
					return unknownCohort(cohort, nil)
				}
				if _, ok := newest.Cohorts[cohort]; !ok {
					return unknownCohort(cohort, slices.Collect(maps.Keys(newest.Cohorts)))
				}
			}
			a.noteSkipped(h)
			if a.json {
				out := []logEntry{}
				for _, e := range entries {
					out = append(out, logEntryOf(e))
				}
				return cli.PrintJSON(a.out, out)
			}
			if len(entries) == 0 {
				fmt.Fprintln(a.out, "nothing was published yet")
				return nil
			}
			a.printLog(entries, cohort)
			return nil
		},
	}
	from.flags(cmd)
	cmd.Flags().IntVar(&limit, "limit", 20, "how many lines at most; 0: all")
	return cmd
}

// noteSkipped names what could not be believed, and was left out.
func (a *app) noteSkipped(h *distributor.History) {
	for _, s := range h.Skipped {
		fmt.Fprintf(a.errOut, "muster: warning: left out: %s\n", cli.Printable(s))
	}
	if len(h.Skipped) > 0 {
		fmt.Fprintln(a.errOut, "muster: note: `muster fsck` says more about the store")
	}
}

// logEntry is a line of `log --json`: kind is "release", "decision" or "refused".
type logEntry struct {
	At      time.Time `json:"at"`
	Kind    string    `json:"kind"`
	Epoch   uint64    `json:"epoch,omitempty"`
	Release *logged   `json:"release,omitempty"`
	Decided *decided  `json:"decision,omitempty"`
	Refused *refusal  `json:"refused,omitempty"`
}

type refusal struct {
	Commit string `json:"commit"`
	Why    string `json:"why"`
}

type logged struct {
	Commit  string                       `json:"commit"`
	Kind    manifest.ReleaseKind         `json:"kind"`
	Author  manifest.Person              `json:"author"`
	Subject string                       `json:"subject"`
	Cohorts map[string]api.ReleaseCohort `json:"cohorts"`

	PullRequest int        `json:"pull_request,omitempty"`
	Approvers   []string   `json:"approvers,omitempty"`
	Override    string     `json:"override,omitempty"`  // kind override: its id; who set it and why, its decisions tell
	NotAfter    *time.Time `json:"not_after,omitempty"` // kind override
}

type decided struct {
	Cohort string     `json:"cohort"`
	Order  string     `json:"order"`
	What   string     `json:"what"`
	By     string     `json:"by"`
	Why    string     `json:"why"`
	Hosts  []string   `json:"hosts"`
	Until  *time.Time `json:"until,omitempty"`
}

func logEntryOf(e distributor.Entry) logEntry {
	if d := e.Decision; d != nil {
		return logEntry{At: e.At, Kind: "decision", Epoch: d.Epoch, Decided: &decided{
			Cohort: d.Cohort, Order: d.Mark.String(), What: d.What, By: d.By, Why: d.Why, Hosts: append([]string{}, d.Hosts...), Until: d.Until,
		}}
	}
	if r := e.Refused; r != nil {
		return logEntry{At: e.At, Kind: "refused", Refused: &refusal{r.Commit, r.Why}}
	}
	r := e.Release
	l := &logged{Commit: r.Commit, Kind: r.Kind, Author: r.Author, Subject: r.Subject, Cohorts: map[string]api.ReleaseCohort{}, PullRequest: r.PullRequest, Approvers: r.Approvers, Override: r.OverrideID, NotAfter: r.NotAfter}
	for name, c := range r.Cohorts {
		l.Cohorts[name] = api.ReleaseCohort{State: c.State, Epoch: c.Epoch, Reason: c.Reason}
	}
	return logEntry{At: e.At, Kind: "release", Epoch: r.Epoch, Release: l}
}

func (a *app) printLog(entries []distributor.Entry, cohort string) {
	var rows [][]string
	for _, e := range entries {
		at := e.At.UTC().Format(time.RFC3339)
		if r := e.Refused; r != nil {
			rows = append(rows, []string{at, "refused", fmt.Sprintf("%s: %s", cli.Short(r.Commit), r.Why)})
			continue
		}
		if d := e.Decision; d != nil {
			rows = append(rows, []string{at, d.Cohort, standing.Happened(*d)})
			continue
		}
		r := e.Release
		text := fmt.Sprintf("%s %s: %s (%s)", cli.Short(r.Commit), r.Author.Name, r.Subject, states(r, cohort))
		switch {
		case r.Kind == manifest.ReleaseOverride:
			text = fmt.Sprintf("override %s made for %s, beside commit %s%s", r.OverrideID, cli.Names(overriddenIn(r), 5), cli.Short(r.Commit), untilText(r.NotAfter))
		case r.PullRequest > 0:
			text += fmt.Sprintf(", pull request #%d", r.PullRequest)
			if len(r.Approvers) > 0 {
				text += ", approved by " + cli.Names(r.Approvers, 3)
			}
		}
		rows = append(rows, []string{at, fmt.Sprintf("epoch %d", r.Epoch), text})
	}
	cli.PrintTable(a.out, rows)
}

// states is "built eu, us; holds asia; blocked lab: reason".
func states(r *manifest.Release, only string) string {
	names := map[manifest.CohortState][]string{}
	var reasons []string
	for _, name := range slices.Sorted(maps.Keys(r.Cohorts)) {
		c := r.Cohorts[name]
		if only != "" && name != only {
			continue
		}
		names[c.State] = append(names[c.State], name)
		if c.State == manifest.StateBlocked {
			reasons = append(reasons, c.Reason)
		}
	}
	var parts []string
	for _, state := range []manifest.CohortState{manifest.StateBuilt, manifest.StateHolds, manifest.StateBlocked} {
		if len(names[state]) > 0 {
			part := string(state) + " " + cli.Names(names[state], 5)
			if state == manifest.StateBlocked {
				part += ": " + strings.Join(slices.Compact(reasons), "; ")
			}
			parts = append(parts, part)
		}
	}
	if parts == nil {
		return "no cohorts"
	}
	return strings.Join(parts, "; ")
}

// overriddenIn are the cohorts that have a statement of a release's own override.
func overriddenIn(r *manifest.Release) (names []string) {
	for name, part := range r.Cohorts {
		if slices.ContainsFunc(part.Overridden, func(e manifest.Envelope) bool {
			st, err := manifest.DecodeStatement(e.Payload) // verified with its release
			return err == nil && st.Override == r.OverrideID
		}) {
			names = append(names, name)
		}
	}
	return names
}
