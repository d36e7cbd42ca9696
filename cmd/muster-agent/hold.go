package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/user"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/muster-config/muster/agent"
	"github.com/muster-config/muster/agent/host"
	"github.com/muster-config/muster/agent/install"
	"github.com/muster-config/muster/cmd/internal/cli"
	"github.com/muster-config/muster/distributor/report"
)

// holding is who asks for a hold, why, and until when.
type holding struct {
	reason, until, lasts string
}

func (f *holding) flags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.reason, "reason", "", "why, for those who ask later")
	cmd.Flags().StringVar(&f.lasts, "for", "", "how long it lasts (4h, 3d)")
	cmd.Flags().StringVar(&f.until, "until", "", "its end: a time (2026-12-01T08:00:00Z), or a duration from now (48h, 3d)")
}

func (f *holding) order() (agent.HoldOrder, error) {
	o := agent.HoldOrder{By: whoami(), Why: strings.TrimSpace(f.reason)}
	switch {
	case f.lasts != "" && f.until != "":
		return o, cli.Fail(cli.Usage, "", "--for and --until exclude each other")
	case f.lasts != "":
		d, err := cli.Duration(f.lasts)
		if err != nil || d < time.Second {
			return o, cli.Fail(cli.Usage, "a duration is written 90m, 48h or 3d", "--for %q is not a duration of a second or more", f.lasts)
		}
		o.For = d
	case f.until != "":
		if d, err := cli.Duration(f.until); err == nil && d >= time.Second {
			o.For = d
			return o, nil
		}
		t, err := time.Parse(time.RFC3339, f.until)
		if err != nil {
			return o, cli.Fail(cli.Usage, "a time is written 2026-12-01T08:00:00Z, a duration from now 48h or 3d", "--until %q is neither a time nor a duration of a second or more", f.until)
		}
		o.Until = t
	}
	return o, nil
}

// asked is an order that lacks neither reason nor end.
func (f *holding) asked() (agent.HoldOrder, error) {
	o, err := f.order()
	switch {
	case err != nil:
		return o, err
	case o.Why == "":
		return o, cli.Fail(cli.Usage, "say why with --reason: it is kept, and shown to those who ask later", "--reason is missing")
	case o.For == 0 && o.Until.IsZero():
		return o, cli.Fail(cli.Usage, "give --for 2h, or --until 2026-12-01T10:00:00Z: a hold has an end", "the end is missing")
	}
	return o, nil
}

// whoami is who runs this command: the person behind sudo, if there is one.
func whoami() string {
	name := os.Getenv("SUDO_USER")
	if name == "" {
		name = os.Getenv("USER")
		if u, err := user.Current(); err == nil {
			name = u.Username
		}
	}
	if h, err := os.Hostname(); err == nil && h != "" {
		name += "@" + h
	}
	return strings.TrimPrefix(name, "@")
}

func (a *app) holdCmd() *cobra.Command {
	var f holding
	cmd := &cobra.Command{
		Use:   "hold",
		Short: "keep this host as it is, for a time",
		Long: `Keeps this host as it is until the end that --for or --until gives: whatever is
published, rolled back or overridden, its files are not changed, nothing is reloaded,
and files that are changed by hand are not put back. A change that is past its swap is
brought to its end first. Status, metrics and the collector say that the host is held,
by whom, why, and until when.

The end comes when either clock is past it: the wall's, or the machine's running time.
A start of the machine does not end it, nor begin it anew. It goes through the running
agent, or straight to the disk where none runs.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o, err := f.asked()
			if err != nil {
				return err
			}
			cfg, err := a.load()
			if err != nil {
				return err
			}
			h, err := host.Hold(cmd.Context(), cfg, o, a.opener(cmd.Context(), cfg))
			if err != nil {
				return byHandError(err)
			}
			return a.sayHold(cfg.Host, "held", h)
		},
	}
	f.flags(cmd)
	cmd.Flags().BoolVar(&a.json, "json", false, "print the hold as JSON")
	return cmd
}

func (a *app) unholdCmd() *cobra.Command {
	var reason string
	cmd := &cobra.Command{
		Use:   "unhold",
		Short: "end the hold of this host",
		Long: `Ends the hold of this host, also one that "muster-agent apply" made: it goes to what
its order says now. An override that came by hand falls with the hold, unless a source
of this host says it by now. A host that is not held stays so: that is no error.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := a.load()
			if err != nil {
				return err
			}
			h, err := host.Unhold(cmd.Context(), cfg, whoami(), reason, a.opener(cmd.Context(), cfg))
			switch {
			case errors.Is(err, agent.ErrNoHold) && a.json:
				return cli.PrintJSON(a.out, nil)
			case errors.Is(err, agent.ErrNoHold):
				fmt.Fprintf(a.out, "%s: is not held\n", cfg.Host)
				return nil
			case err != nil:
				return byHandError(err)
			}
			return a.sayHold(cfg.Host, "no longer held; it was", h)
		},
	}
	cmd.Flags().StringVar(&reason, "reason", "", "why, for the log")
	cmd.Flags().BoolVar(&a.json, "json", false, "print the hold that has ended as JSON, null if there was none")
	return cmd
}

func (a *app) sayHold(name, what string, h report.Hold) error {
	if a.json {
		return cli.PrintJSON(a.out, h)
	}
	fmt.Fprintf(a.out, "%s: %s\n", name, cli.Printable(fmt.Sprintf("%s by %s until %s: %s", what, h.By, h.Until.UTC().Format(time.RFC3339), h.Why)))
	return nil
}

// opener opens the host where no agent runs.
func (a *app) opener(ctx context.Context, cfg agent.Config) func() (*host.Host, error) {
	return func() (*host.Host, error) {
		h, err := a.open(ctx, cfg, a.logger(logLevel))
		if errors.Is(err, install.ErrLocked) {
			return nil, cli.Fail(cli.Local, "it has no control socket: its log says why; restart it, or stop it and give the command again", "an agent runs there that cannot be asked: %w", err)
		}
		return h, err
	}
}

// byHandError gives the errors of what is done by hand their exit codes and next steps.
func byHandError(err error) error {
	if e := new(cli.Error); errors.As(err, &e) {
		return err
	}
	switch {
	case errors.Is(err, agent.ErrHoldRefused):
		return cli.Fail(cli.Usage, "as in: --reason INC-311 --for 2h", "%w", err)
	case errors.Is(err, agent.ErrNotForHost):
		return cli.Fail(cli.No, "take it to the host that it is for, or have one made for this one: muster override set --host", "%w", err)
	case errors.Is(err, agent.ErrHeld):
		return cli.Fail(cli.No, "end that with `muster-agent unhold`, or give --reason and --for: a new hold takes its place", "%w", err)
	case errors.Is(err, agent.ErrNeedsHold):
		return cli.Fail(cli.Usage, "as in: --reason INC-311 --for 2h", "%w", err)
	}
	return err
}
