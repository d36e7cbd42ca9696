package main

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/muster-config/muster/cmd/internal/cli"
	"github.com/muster-config/muster/distributor/collector"
)

func forgetCmd(stdout io.Writer) *cobra.Command {
	var path string
	cmd := &cobra.Command{
		Use:   "forget --config FILE HOST",
		Short: "forget a host that was installed anew, so that its new identity key counts; stop the collector first",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if path == "" {
				return cli.Fail(cli.Usage, "give --config /etc/muster/collector.yaml", "--config is missing")
			}
			cfg, err := collector.LoadConfig(path)
			if err != nil {
				return &cli.Error{Code: cli.Usage, Err: err}
			}
			n, err := collector.Forget(cmd.Context(), cfg, args[0])
			if err != nil {
				return err
			}
			if n == 0 {
				return cli.Fail(cli.No, "`muster hosts` lists them while the collector runs", "no host %.80q is remembered", args[0])
			}
			_, err = fmt.Fprintf(stdout, "host %s is forgotten: the next identity key that speaks as it is its own\n", cli.Printable(args[0]))
			return err
		},
	}
	cmd.Flags().StringVar(&path, "config", "", "collector.yaml")
	return cmd
}
