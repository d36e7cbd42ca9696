package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"github.com/spf13/cobra"

	"github.com/muster-config/muster/agent"
	"github.com/muster-config/muster/agent/install"
	"github.com/muster-config/muster/cmd/internal/cli"
	"github.com/muster-config/muster/distributor/report"
	"github.com/muster-config/muster/distributor/store"
)

func (a *app) onceCmd() *cobra.Command {
	var onlyInstall bool
	cmd := &cobra.Command{
		Use:   "once",
		Short: "one full sync; 0 only if this host runs what is assigned to it",
		Long: `Does one full sync and ends: every source is asked, pauses after failures do not
count. Ends with 0 only if the host runs what the signed manifest assigns to it, and
every service is confirmed at its required grade; 1 if it does not; 4 if every
source was refused; 5 if one was not reached and no other was good.

With --install it ends after the swap, for a unit's ExecStartPre: the service that
starts next loads the new files by itself. Beside a running agent, which installs what
is new, it only checks that the installed files are whole: 0 if they are, else 7.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			small()
			cfg, err := a.load()
			if err != nil {
				return err
			}
			h, err := a.open(cmd.Context(), cfg, a.logger(slog.LevelWarn))
			switch {
			case errors.Is(err, install.ErrLocked) && onlyInstall:
				return a.beside(cmd.Context(), cfg, err)
			case errors.Is(err, install.ErrLocked):
				return cli.Fail(cli.Local, "the agent is running, and its next sync does this; `muster-agent verify` works beside it", "%w", err)
			case err != nil:
				return err
			}
			defer func() { _ = h.Close() }()
			res, err := h.Once(cmd.Context(), onlyInstall)
			if ctxErr := cmd.Context().Err(); ctxErr != nil {
				return fmt.Errorf("broken off: %w", ctxErr)
			}
			if res.Host == "" {
				return err
			}
			if a.json {
				if perr := cli.PrintJSON(a.out, res); perr != nil {
					return perr
				}
			} else {
				a.say(res)
			}
			return outcome(res, err, onlyInstall)
		},
	}
	cmd.Flags().BoolVar(&onlyInstall, "install", false, "end after the swap: no reload, no confirmation")
	cmd.Flags().BoolVar(&a.json, "json", false, "print the result as JSON")
	return cmd
}

// beside is `once --install` on a host whose agent runs: that one installs, and a service may start with what is there if it is whole.
func (a *app) beside(ctx context.Context, cfg agent.Config, locked error) error {
	in, content, drift, err := install.Verify(ctx, cfg.Root)
	const hint = "the agent is running, and its next sync puts this right; its log says what keeps it from that"
	switch {
	case err != nil:
		return cli.Fail(cli.Local, hint, "%w, and what it installed cannot be verified: %w", locked, err)
	case in == nil:
		return cli.Fail(cli.Local, hint, "%w, and nothing is installed there yet", locked)
	case len(drift) > 0:
		return cli.Fail(cli.Local, hint, "%w, and %s not as released under %s", locked, cli.Count(len(drift), "path"), in.Dir)
	}
	if a.json {
		return cli.PrintJSON(a.out, agent.OnceResult{
			Host: cfg.Host, Cohort: cfg.Cohort, Running: in.Epoch, Content: content, Changed: []string{}, Phase: string(report.PhaseIdle), Reason: locked.Error(),
			Sources: []agent.SourceResult{}, Waiting: []agent.WaitingService{},
		})
	}
	fmt.Fprintf(a.out, "%s: epoch %d is installed and whole; %v\n", cfg.Host, in.Epoch, locked)
	return nil
}

func (a *app) say(r agent.OnceResult) {
	switch {
	case r.Running == 0:
		fmt.Fprintf(a.out, "%s: nothing installed\n", r.Host)
	case len(r.Changed) > 0:
		fmt.Fprintf(a.out, "%s: epoch %d installed, changed: %s\n", r.Host, r.Running, strings.Join(r.Changed, ", "))
	default:
		fmt.Fprintf(a.out, "%s: epoch %d, nothing changed\n", r.Host, r.Running)
	}
	if r.Override != "" {
		fmt.Fprintf(a.out, "%s: under override %s\n", r.Host, cli.Printable(r.Override))
	}
	if r.Confirmed {
		fmt.Fprintf(a.out, "%s: confirmed, grade %s\n", r.Host, r.Grade)
	}
	a.sayHeld(r)
	for _, w := range r.Waiting {
		fmt.Fprintf(a.out, "%s: %s: %s: %s\n", r.Host, w.Service, w.State, w.Reason)
	}
}

// outcome is the exit code of what a sync came to. A source that was refused or not reached does not matter while another was good.
func outcome(r agent.OnceResult, err error, onlyInstall bool) error {
	if errors.Is(err, agent.ErrNotKept) {
		// Before all else: what this host has seen could be forgotten, and then an older manifest is taken again.
		return cli.Fail(cli.Local, "check the file system of root: (space, rights, its health), then run the command again", "%w", err)
	}
	good, refused, empty := 0, 0, 0
	var firstRefused, first error
	for _, s := range r.Sources {
		switch {
		case s.Err == nil:
			good++
			continue
		case errors.Is(s.Err, store.ErrNotFound):
			empty++
		case s.Refused:
			refused++
			if firstRefused == nil {
				firstRefused = fmt.Errorf("%s: %w", s.Name, s.Err)
			}
		}
		if first == nil {
			first = fmt.Errorf("%s: %w", s.Name, s.Err)
		}
	}
	switch {
	case good > 0:
	case refused == len(r.Sources):
		return cli.Fail(cli.NotTrusted, cli.HintOf(firstRefused), "no source gave a head that can be believed; %w", firstRefused)
	case empty == len(r.Sources):
		return cli.Fail(cli.No, "check cohort: and sources: in the configuration; `muster publish` assigns releases to a cohort", "no source knows cohort %s; %w", r.Cohort, first)
	default:
		return cli.Fail(cli.Unreachable, "check sources: in the configuration and the network; the host keeps what it has", "no source was reached; %w", first)
	}
	switch {
	case onlyInstall && r.Held != nil && r.Running != 0: // the service starts with what somebody wants to stay there
		return nil
	case onlyInstall && r.Installed && err != nil: // a link, say: the service would start with somebody else's file
		return cli.Fail(cli.No, cli.HintOf(err), "epoch %d is installed, and %w", r.Desired, err)
	case onlyInstall && r.Installed, r.Confirmed:
		return nil
	case err != nil && !r.Installed:
		code := cli.CodeOf(err)
		if code == cli.Interrupted {
			code = cli.No
		}
		switch r.Code {
		case agent.CodeCheck, agent.CodeReload, agent.CodeUnwell:
			code = cli.No
		case agent.CodeDigest, agent.CodeUnsafe, agent.CodeEmpty, agent.CodeMalformed:
			code = cli.NotTrusted
		case agent.CodeNotFound, agent.CodeUnreachable, agent.CodeStalled:
			code = cli.Unreachable
		case agent.CodeNoSpace:
			return cli.Fail(cli.Local, "free space on the file system of root:; the host keeps what it has", "epoch %d not installed: %w", r.Desired, err)
		}
		return cli.Fail(code, cli.HintOf(err), "epoch %d not installed: %w", r.Desired, err)
	case r.Reason != "":
		return cli.Fail(cli.No, "", "epoch %d is not confirmed: %s", r.Desired, r.Reason)
	}
	return cli.Fail(cli.No, "", "epoch %d is not confirmed", r.Desired)
}
