//go:build !windows

package main

import (
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/muster-config/muster/cmd/internal/cli"
	"github.com/muster-config/muster/cmd/internal/demo"
)

func (a *app) demoCmd() *cobra.Command {
	var opts demo.Options
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "the whole system on this machine, with a story",
		Long: `Runs the whole system on this machine, in a temporary directory and on loopback:
a config repo with three services, a store, a publisher that follows the branch,
a collector with its page, and twenty-four hosts with a real agent each.

One commit is confirmed by all of them. A file that somebody edits by hand is
seen and repaired. A second commit meets a process that does not hear, a host
that is down, and one that the collector does not hear: the late ones converge,
the deaf one is named. A third holds a value that every schema takes and that
does harm: it goes to one host, is stopped and comes back, and the value that was
meant goes everywhere. Then it stays up for you to try, and ends with Ctrl-C,
leaving nothing behind.

With --repo it runs on a config repo of your own, which is only read: made-up
hosts of its cohorts confirm HEAD, and every later commit is published.`,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if cmd.Flags().Changed("sabotage") {
				if err := oneOf("sabotage", opts.Sabotage, demo.Sabotages...); err != nil {
					return err
				}
				if opts.Repo != "" {
					return cli.Fail(cli.Usage, "the story is that of the demo's own repo", "--sabotage and --repo do not go together")
				}
			}
			exe, err := os.Executable()
			if err != nil {
				return err
			}
			opts.Out, opts.Executable, opts.Call = a.out, exe, os.Args[0]
			return demo.Run(cmd.Context(), opts)
		},
	}
	cmd.Flags().BoolVar(&opts.Exit, "exit", false, "end after the story: with 0 if exactly that was seen, else with 1")
	cmd.Flags().StringVar(&opts.Repo, "repo", "", "a config repo of your own, instead of the example")
	cmd.Flags().StringVar(&opts.Listen, "listen", "127.0.0.1:7070", "loopback address of the collector and its page; a free port if it is taken")
	cmd.Flags().StringVar(&opts.Sabotage, "sabotage", "", "take one fault out of the story, which must then end with 1: "+strings.Join(demo.Sabotages, ", "))
	return cmd
}

// demoReloadCmd is what the demo's agents run to have a process load its files.
func (a *app) demoReloadCmd() *cobra.Command {
	return &cobra.Command{Use: "demo-reload URL", Hidden: true, Args: cobra.ExactArgs(1), RunE: func(cmd *cobra.Command, args []string) error {
		return demo.Reload(cmd.Context(), args[0])
	}}
}
