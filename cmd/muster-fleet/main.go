// Command muster-fleet is many simulated hosts in one process, for load tests and for planning capacity.
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
	cli.Main("muster-fleet", func(ctx context.Context) error { return run(ctx, os.Args[1:], os.Stdout, os.Stderr) })
}

const long = `Runs many simulated hosts in one process: the real agent, with a disk and
processes that are simulated, over the real protocol and with connections of
their own. They fetch, verify, install, confirm and report as real hosts do, and
keep nothing on this machine.

They must be expected where the config repo says so: put them into hosts.list,

  muster-fleet run --hosts 200 --names

prints them. They keep nothing, so after a restart they are new hosts of old names, which a
collector refuses until somebody says that they are the same:

  muster hosts accept $(muster-fleet run --hosts 200 --names)

With a collector that runs:

  muster-fleet run --hosts 200 --cohort prod-eu --keyring keyring.json \
      --collector http://127.0.0.1:7070 --metrics 127.0.0.1:9464

Faults are given to hosts by chance (--seed picks the same ones again): some do
not hear reloads, some are down, some refuse what comes. --bad-epoch N makes the
release with that number do harm where it runs: a share of requests fails, or its
processes answer late or not at all.

Prometheus reads of --metrics what it would read of such hosts: muster_host_info
says for each host which epoch it runs, http_requests_total and
http_request_errors_total count what its product serves, with a label host.

Exit codes: 0 done; 2 usage; 4 not trusted; 5 not reachable; 7 local failure;
130 interrupted.`

// run is one call of muster-fleet.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	root := &cobra.Command{
		Use: "muster-fleet", Short: "many simulated hosts in one process, for load tests and for planning capacity", Long: long,
		SilenceErrors: true, SilenceUsage: true, CompletionOptions: cobra.CompletionOptions{DisableDefaultCmd: true},
	}
	var f flags
	cmd := &cobra.Command{
		Use: "run", Short: "run simulated hosts until --for is over", Long: long, Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd.Context(), stdout, stderr) },
	}
	f.add(cmd)
	root.AddCommand(cmd)
	cli.Root(root)
	usage := func(cmd *cobra.Command, err error) error {
		return cli.Fail(cli.Usage, fmt.Sprintf("`%s --help` lists the flags", cmd.CommandPath()), "%w", err)
	}
	root.SetFlagErrorFunc(usage)
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	return root.ExecuteContext(ctx)
}
