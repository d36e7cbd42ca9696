package main

import (
	"fmt"

	"github.com/spf13/cobra"

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
	Good    bool     `json:"good"`
}

func (a *app) verifyCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "verify",
		Short: "compare the installed files with their release; also beside a running agent",
		Long: `Reads every file that is installed and compares it with the record of its release:
bytes, modes, files that are missing or do not belong there. Changes nothing. Ends
with 1 if something differs, or if nothing is installed.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := a.load()
			if err != nil {
				return err
			}
			in, content, drift, err := install.Verify(cmd.Context(), cfg.Root)
			if err != nil {
				return err
			}
			v := verified{Root: cfg.Root, Found: content, Drift: drift}
			if drift == nil {
				v.Drift = []string{}
			}
			if in != nil {
				v.Epoch, v.Commit, v.Content = in.Epoch, in.Commit, in.Content
				v.Good = len(drift) == 0
			}
			if a.json {
				if err := cli.PrintJSON(a.out, v); err != nil {
					return err
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
				}
				return cli.Fail(cli.No, "a running agent puts it right at its next sync; where none runs, `muster-agent once` does it", "%s under %s", cli.Count(len(drift), "path")+" not as released", in.Dir)
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&a.json, "json", false, "print the result as JSON")
	return cmd
}
