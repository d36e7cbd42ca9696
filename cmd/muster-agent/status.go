package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/muster-config/muster/agent"
	"github.com/muster-config/muster/agent/host"
	"github.com/muster-config/muster/cmd/internal/cli"
)

func (a *app) statusCmd() *cobra.Command {
	var onlyHead bool
	cmd := &cobra.Command{
		Use:   "status",
		Short: "what this host runs and what keeps it from being confirmed, as its agent knows it",
		Long: `Asks the running agent, through its socket in root, what it knows: what is assigned
and installed, and what each process says. Where no agent runs, or it does not answer
in a moment, it says so and reads what is on disk; processes are not asked then.
Changes nothing.

With --head it prints the newest signed head that this host believes, as it came: what
"muster override set --out" needs where there is no store.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := a.load()
			if err != nil {
				return err
			}
			if onlyHead {
				return a.head(cmd.Context(), cfg)
			}
			s, err := host.Status(cmd.Context(), cfg)
			if errors.Is(err, fs.ErrPermission) {
				return cli.Fail(cli.Local, "run it as root or as the agent's user", "%w", err)
			}
			if err != nil {
				return err
			}
			if a.json {
				return cli.PrintJSON(a.out, s)
			}
			a.sayStatus(s, time.Now())
			return nil
		},
	}
	cmd.Flags().BoolVar(&a.json, "json", false, "print the status as JSON")
	cmd.Flags().BoolVar(&onlyHead, "head", false, "print the newest signed head, and nothing else")
	return cmd
}

// head prints the newest head that the host believes.
func (a *app) head(ctx context.Context, cfg agent.Config) error {
	data, err := host.Head(ctx, cfg)
	if errors.Is(err, fs.ErrPermission) {
		return cli.Fail(cli.Local, "run it as root or as the agent's user", "%w", err)
	}
	if err != nil {
		return err
	}
	if data == nil {
		return cli.Fail(cli.No, "`muster-agent status` says what its sources answer", "this host has no head of cohort %s yet", cfg.Cohort)
	}
	_, err = fmt.Fprintf(a.out, "%s\n", data)
	return err
}

func (a *app) sayStatus(s *agent.Status, now time.Time) {
	say := func(format string, args ...any) { fmt.Fprintf(a.out, format+"\n", args...) }
	if s.Daemon {
		say("%s: %s, process %d, up %s; mode %s", s.Host, s.Version, s.PID, cli.Elapsed(now.Sub(s.Started)), s.Mode)
	} else if s.Silent != "" {
		say("%s: %s; this is what is on disk under %s", s.Host, cli.Printable(s.Silent), s.Root)
	} else {
		say("%s: no agent runs; this is what is on disk under %s", s.Host, s.Root)
	}
	switch {
	case s.Running == 0:
		say("%s: nothing installed", s.Host)
	case s.Override != "":
		say("%s: epoch %d with override %s", s.Host, s.Running, cli.Printable(s.Override))
	default:
		say("%s: epoch %d, commit %s", s.Host, s.Running, cli.Short(s.Commit))
	}
	if h := s.Held; h != nil {
		say("%s: held by %s until %s: %s", s.Host, cli.Printable(h.By), h.Until.UTC().Format(time.RFC3339), cli.Printable(h.Why))
	}
	switch {
	case s.Desired == 0:
		say("%s: no head of cohort %s is known yet", s.Host, s.Cohort)
	case s.Desired != s.Running:
		say("%s: epoch %d is assigned", s.Host, s.Desired)
	}
	if s.Beside != 0 {
		say("%s: that came by hand; its order says epoch %d, to which it goes when the hold ends", s.Host, s.Beside)
	}
	switch {
	case s.Confirmed:
		say("%s: confirmed, grade %s", s.Host, s.Grade)
	case s.Reason != "" && s.Code != agent.CodeHeld:
		say("%s: %s: %s", s.Host, cmp.Or(string(s.Phase), "not confirmed"), cli.Printable(s.Reason))
	}
	if s.Stale {
		say("%s: the newest head is past its time: look at the rollout controller", s.Host)
	}
	for _, p := range s.Drift {
		say("differs: %s", cli.Printable(p))
	}
	if s.Drifted > 0 && s.Code == agent.CodeHeld {
		say("%s: %s not as released; held: it is repaired when the hold ends", s.Host, cli.Count(s.Drifted, "path"))
	}
	if len(s.Services) > 0 {
		rows := [][]string{{"SERVICE", "STATE", "STATES", "INSTALLED", "GRADE", "WHY"}}
		for _, name := range slices.Sorted(maps.Keys(s.Services)) {
			svc := s.Services[name]
			rows = append(rows, []string{name, svc.State, epochText(svc.Epoch), epochText(svc.Expected), string(svc.Grade), svc.Reason})
			for _, i := range slices.Sorted(maps.Keys(svc.Instances)) {
				in := svc.Instances[i]
				rows = append(rows, []string{"  " + i, in.State, epochText(in.Epoch), "", "", in.Reason})
			}
		}
		cli.PrintTable(a.out, rows)
	}
	if len(s.Owed) > 0 {
		say("owe a reload: %s", strings.Join(s.Owed, ", "))
	}
	for _, w := range s.Warnings {
		say("warning: %s", cli.Printable(w))
	}
	for _, src := range s.Sources {
		if src.Error != "" {
			say("source %s: %s", cli.Printable(src.Name), cli.Printable(src.Error))
		}
	}
}

func epochText(n uint64) string {
	if n == 0 {
		return "-"
	}
	return fmt.Sprint(n)
}
