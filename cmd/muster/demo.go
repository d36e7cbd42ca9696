package main

import (
	"os"

	"github.com/spf13/cobra"

	"github.com/muster-config/muster/cmd/internal/cli"
	"github.com/muster-config/muster/cmd/internal/demo"
)

func (a *app) demoCmd() *cobra.Command {
	var exit bool
	var sabotage string
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "the whole system on this machine, with a story",
		Long: `Runs the whole system on this machine, in a temporary directory and on loopback:
a config repo with three services, a store, a publisher that follows the branch,
a collector, and twelve hosts with a real agent each. One commit is confirmed by
all of them; a second one meets a process that does not hear. Then it stays up
for you to try, and ends with Ctrl-C, leaving nothing behind.`,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if cmd.Flags().Changed("sabotage") {
				if err := oneOf("sabotage", sabotage, "hearing"); err != nil {
					return err
				}
			}
			exe, err := os.Executable()
			if err != nil {
				return err
			}
			return demo.Run(cmd.Context(), demo.Options{Out: a.out, Executable: exe, Call: os.Args[0], Exit: exit, Hearing: sabotage == "hearing"})
		},
	}
	cmd.Flags().BoolVar(&exit, "exit", false, "end after the story: with 0 if exactly that was seen, else with 1")
	cmd.Flags().StringVar(&sabotage, "sabotage", "", "hearing: the deaf process hears, so the story must fail")
	return cmd
}

// demoReloadCmd is what the demo's agents run to have a process load its files.
func (a *app) demoReloadCmd() *cobra.Command {
	return &cobra.Command{Use: "demo-reload URL", Hidden: true, Args: cobra.ExactArgs(1), RunE: func(cmd *cobra.Command, args []string) error {
		return demo.Reload(cmd.Context(), args[0])
	}}
}
