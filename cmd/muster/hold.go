package main

import (
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/muster-config/muster/cmd/internal/cli"
	"github.com/muster-config/muster/distributor/api"
	"github.com/muster-config/muster/distributor/rollout"
)

func (a *app) holdCmd() *cobra.Command {
	var s steering
	var q api.Act
	var until, lasts string
	cmd := &cobra.Command{
		Use:   "hold COHORT HOST…",
		Short: "keep some hosts at what they run, until a time",
		Long: `Keeps hosts at the release that they run, or at --at, until the hold ends: nothing
that is rolled out, rolled back or overridden changes them before that. They count
for no wave, and "muster wait" is not green while one is held.

The collector says what they run. Without one, and without --at, they are held at what
the order leads them to now. When the end has come they go where they belong, as many
at once as the rollout policy's max_in_flight allows.

A hold on the host itself, with no store and no collector: "muster-agent hold".

It goes through the collector, whose token says who you are, or is written into the
store with the rollout key. Who and why stand in the order itself.`,
		Args: cobra.MinimumNArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			if strings.TrimSpace(q.Reason) == "" {
				return missingReason()
			}
			text := until
			switch {
			case until != "" && lasts != "":
				return cli.Fail(cli.Usage, "", "--until and --for exclude each other")
			case until == "" && lasts == "":
				return cli.Fail(cli.Usage, "as in --for 4h, --for 3d or --until 2026-12-01T08:00:00Z", "a hold has an end: --for or --until is missing")
			case lasts != "":
				if d, err := cli.Duration(lasts); err != nil || d < time.Second {
					return cli.Fail(cli.Usage, "a duration is written 90m, 48h or 3d", "--for %q is not a duration of a second or more", lasts)
				}
				text = lasts
			}
			end, err := endOf(text, time.Now())
			if err != nil {
				return err
			}
			q.Until, q.Hosts = &end, args[1:]
			return a.act(cmd.Context(), &s, args[0], rollout.Hold, q)
		},
	}
	s.flags(cmd)
	cmd.Flags().StringVar(&q.Reason, "reason", "", "why, for those who ask later")
	cmd.Flags().StringVar(&until, "until", "", "its end: a time (2026-12-01T08:00:00Z), or a duration from now (48h, 3d)")
	cmd.Flags().StringVar(&lasts, "for", "", "how long it lasts (4h, 3d)")
	cmd.Flags().Var(fromOne[uint64]{to: &q.To}, "at", "the epoch to hold them at; what they run, if left out")
	return cmd
}

func (a *app) unholdCmd() *cobra.Command {
	var s steering
	var q api.Act
	cmd := &cobra.Command{
		Use:   "unhold COHORT HOST…",
		Short: "end a hold of hosts before its time",
		Long: `Ends the hold of hosts before its time: they go where they belong, as many at once as
the rollout policy's max_in_flight allows.`,
		Args: cobra.MinimumNArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			q.Hosts = args[1:]
			if strings.TrimSpace(q.Reason) == "" {
				q.Reason = "no reason given"
			}
			return a.act(cmd.Context(), &s, args[0], rollout.Unhold, q)
		},
	}
	s.flags(cmd)
	cmd.Flags().StringVar(&q.Reason, "reason", "", "why, for those who ask later")
	return cmd
}

func missingReason() error {
	return cli.Fail(cli.Usage, "say why with --reason: it is kept, and shown to those who ask later", "--reason is missing")
}
