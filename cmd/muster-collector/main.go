// Command muster-collector hears from every host and says what is true of it.
package main

import (
	"context"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/muster-config/muster/cmd/internal/cli"
)

func main() {
	cli.Main("muster-collector", func(ctx context.Context) error {
		return run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	})
}

// run is one call of muster-collector.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	root := &cobra.Command{
		Use:   "muster-collector",
		Short: "hears from every host what it really runs, and says when a release is confirmed everywhere",
		Long: `muster-collector hears from every host what it really runs, and says when a
release is confirmed everywhere. It is never in the way: without it hosts still
get their configuration from the store.

Exit codes: 0 done; 2 usage; 4 not trusted; 5 not reachable; 7 local failure;
130 interrupted.`,
		SilenceErrors: true, SilenceUsage: true, CompletionOptions: cobra.CompletionOptions{DisableDefaultCmd: true},
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return cli.Fail(cli.Usage, "`muster-collector --help` lists the commands", "unknown command %q", args[0])
			}
			return cmd.Help()
		},
	}
	root.SetHelpCommand(&cobra.Command{Hidden: true, Use: "no-help"})
	root.AddCommand(runCmd(stdout, stderr), &cobra.Command{
		Use: "version", Short: "print the version", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			_, err := fmt.Fprintf(stdout, "muster-collector %s\n", cli.Version)
			return err
		},
	})
	usage := func(cmd *cobra.Command, err error) error {
		return cli.Fail(cli.Usage, fmt.Sprintf("`%s --help` lists the flags", cmd.CommandPath()), "%s: %w", cmd.CommandPath(), err)
	}
	root.SetFlagErrorFunc(usage)
	for _, sub := range root.Commands() {
		if args := sub.Args; args != nil {
			sub.Args = func(cmd *cobra.Command, given []string) error {
				if err := args(cmd, given); err != nil {
					return usage(cmd, err)
				}
				return nil
			}
		}
	}
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	return root.ExecuteContext(ctx)
}
