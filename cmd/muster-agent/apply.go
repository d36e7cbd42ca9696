package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"time"

	"github.com/spf13/cobra"

	"github.com/muster-config/muster/agent"
	"github.com/muster-config/muster/agent/host"
	"github.com/muster-config/muster/cmd/internal/cli"
	"github.com/muster-config/muster/distributor/manifest"
)

// logLevel is what commands beside run log.
const logLevel = slog.LevelWarn

// wanted is what can be given to --from.
const wanted = "give the file that `muster override set --out FILE` wrote, or a directory or the URL of a store"

func (a *app) applyCmd() *cobra.Command {
	var f holding
	var from string
	cmd := &cobra.Command{
		Use:   "apply --from DIR|URL|FILE",
		Short: "take what a store or a file brings, by hand, with every check",
		Long: `Takes what a directory, a store's URL, or a file that "muster override set --out" wrote
says for this host: for when its own sources cannot be reached. Nothing comes this way
that could not have come from a store: keyrings, signatures, order, host name, the
bundle's digest and the host's own checks are as with any sync; a process that does not
take it well sends the host back. What is refused changes nothing (exit code 4).

Then the host is held at what it got, so that its sources do not take it away again:
--reason and --for (or --until) are needed, unless a source of the host gives the very
same head. Where what it got is an override, the hold ends with it at the latest.
"muster-agent unhold" ends it before. With the hold the file's override falls, unless a
source of the host says it by then. A file for other hosts is refused (exit code 1).`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			small()
			if from == "" {
				return cli.Fail(cli.Usage, wanted, "--from is missing")
			}
			o, err := f.order()
			if err != nil {
				return err
			}
			if o.Why != "" || o.For != 0 || !o.Until.IsZero() {
				if o, err = f.asked(); err != nil {
					return err
				}
			}
			cfg, err := a.load()
			if err != nil {
				return err
			}
			return a.apply(cmd.Context(), cfg, from, o)
		},
	}
	cmd.Flags().StringVar(&from, "from", "", "a directory or the URL of a store, or a file")
	f.flags(cmd)
	cmd.Flags().BoolVar(&a.json, "json", false, "print the result as JSON")
	return cmd
}

func (a *app) apply(ctx context.Context, cfg agent.Config, from string, o agent.HoldOrder) error {
	res, err := host.Apply(ctx, cfg, from, o, a.opener(ctx, cfg))
	if ctxErr := ctx.Err(); ctxErr != nil {
		return fmt.Errorf("broken off: %w", ctxErr)
	}
	if res.Host == "" {
		if errors.Is(err, fs.ErrNotExist) {
			return cli.Fail(cli.Usage, wanted, "%w", err)
		}
		if errors.Is(err, manifest.ErrMalformed) {
			return cli.Fail(cli.NotTrusted, wanted, "%w", err)
		}
		return byHandError(err)
	}
	if a.json {
		if perr := cli.PrintJSON(a.out, res); perr != nil {
			return perr
		}
	} else if len(res.Sources) > 0 && res.Sources[0].Error == "" {
		a.say(res)
	}
	if len(res.Sources) > 0 && res.Sources[0].Error != "" {
		err = byHandError(err)
		code := cli.CodeOf(err)
		if res.Sources[0].Refused {
			code = cli.NotTrusted
		}
		return cli.Fail(code, cli.HintOf(err), "nothing was changed: %w", err)
	}
	return outcome(res, byHandError(err), false)
}

// sayHeld says that the host is held, if it is.
func (a *app) sayHeld(r agent.OnceResult) {
	if h := r.Held; h != nil {
		fmt.Fprintf(a.out, "%s: %s\n", r.Host, cli.Printable(fmt.Sprintf("held by %s until %s: %s", h.By, h.Until.UTC().Format(time.RFC3339), h.Why)))
	}
}
