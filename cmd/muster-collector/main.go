// Command muster-collector hears from every host and says what is true of it.
package main

import (
	"context"
	"errors"
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

Exit codes: 0 done; 1 no such host; 2 usage; 4 not trusted; 5 not reachable;
7 local failure; 130 interrupted.`,
		SilenceErrors: true, SilenceUsage: true, CompletionOptions: cobra.CompletionOptions{DisableDefaultCmd: true},
	}
	root.AddCommand(runCmd(stdout, stderr), forgetCmd(stdout))
	cli.Root(root)
	usage := func(cmd *cobra.Command, err error) error {
		return cli.Fail(cli.Usage, fmt.Sprintf("`%s --help` lists the flags", cmd.CommandPath()), "%s: %w", cmd.CommandPath(), err)
	}
	root.SetFlagErrorFunc(usage)
	for _, sub := range root.Commands() {
		if args := sub.Args; args != nil {
			sub.Args = func(cmd *cobra.Command, given []string) error {
				err := args(cmd, given)
				var e *cli.Error
				if err == nil || errors.As(err, &e) {
					return err
				}
				return usage(cmd, err)
			}
		}
	}
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	return root.ExecuteContext(ctx)
}
