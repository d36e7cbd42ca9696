package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/muster-config/muster/agent"
	"github.com/muster-config/muster/agent/host"
	"github.com/muster-config/muster/agent/install"
	"github.com/muster-config/muster/cmd/internal/cli"
)

// verified is `verify --json`.
type verified struct {
	Root    string   `json:"root"`
	Epoch   uint64   `json:"epoch"`
	Commit  string   `json:"commit"`
	Content string   `json:"content"` // as recorded
	Found   string   `json:"found"`   // as found on disk
	Drift   []string `json:"drift"`
	Links   []string `json:"links"`  // what is wrong with a link
	Mounts  []string `json:"mounts"` // mounts that a swap does not reach
	Good    bool     `json:"good"`
}

func (a *app) verifyCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "verify",
		Short: "compare the installed files with their release; also beside a running agent",
		Long: `Reads every file that is installed and compares it with the record of its release:
bytes, modes, owners, files that are missing or do not belong there, links. Changes
nothing. Ends with 1 if something differs, or if nothing is installed. It also warns of
mounts that keep showing an old release: mount root as a whole, not a file of it.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := a.load()
			if err != nil {
				return err
			}
			in, content, drift, err := install.VerifyOwned(cmd.Context(), cfg.Root, host.Owners(cfg))
			if err != nil {
				return err
			}
			mounts, err := install.Mounts(cfg.Root)
			if err != nil {
				return err
			}
			v := verified{Root: cfg.Root, Found: content, Drift: append([]string{}, drift...), Links: []string{}, Mounts: append([]string{}, mounts...)}
			if in != nil {
				v.Epoch, v.Commit, v.Content = in.Epoch, in.Commit, in.Content
				v.Links = append(v.Links, install.LinkTrouble(cfg.Root, cfg.LinksOf(in))...)
				v.Good = len(drift) == 0 && len(v.Links) == 0
			}
			if a.json {
				if err := cli.PrintJSON(a.out, v); err != nil {
					return err
				}
			}
			if !a.json {
				for _, m := range mounts {
					fmt.Fprintf(a.out, "warning: %s\n", cli.Printable(m))
				}
			}
			switch {
			case in == nil:
				return cli.Fail(cli.No, "start the agent; where none runs, `muster-agent once` installs what is assigned to this host", "nothing is installed under %s", cfg.Root)
			case v.Good && !a.json:
				fmt.Fprintf(a.out, "%s: epoch %d, %s, as released\n", cfg.Root, v.Epoch, v.Content)
			case !v.Good:
				if !a.json {
					for _, p := range drift {
						fmt.Fprintf(a.out, "differs: %s\n", cli.Printable(p))
					}
					for _, l := range v.Links {
						fmt.Fprintf(a.out, "link: %s\n", cli.Printable(l))
					}
				}
				hint := "a running agent puts it right at its next sync; where none runs, `muster-agent once` does it"
				if s, err := host.Status(cmd.Context(), cfg); err == nil && s.Held != nil && s.Code == agent.CodeHeld {
					hint = "held: it is repaired when the hold ends, at " + s.Held.Until.UTC().Format(time.RFC3339) + ", or with `muster-agent unhold`"
				}
				return cli.Fail(cli.No, hint, "%s under %s", cli.Count(len(drift)+len(v.Links), "path")+" not as released", in.Dir)
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&a.json, "json", false, "print the result as JSON")
	return cmd
}
