package main

import (
	"context"
	"fmt"
	"os"
	"os/user"
	"strings"

	"github.com/spf13/cobra"

	"github.com/muster-config/muster/cmd/internal/cli"
	"github.com/muster-config/muster/distributor/api"
)

// hostsChangeCmd is one of `hosts retire`, `hosts unretire` and `hosts accept`.
func (a *app) hostsChangeCmd(change, short, long, done string) *cobra.Command {
	var conn connection
	var cohort, reason string
	cmd := &cobra.Command{
		Use: change + " HOST…", Short: short, Long: long,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return cli.Fail(cli.Usage, "`muster hosts` lists them", "muster hosts %s: name at least one host", change)
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := conn.open()
			if err != nil {
				return err
			}
			changed, err := changeHosts(cmd.Context(), c, change, api.HostsChange{Cohort: cohort, Hosts: args, Reason: reason, By: whoami()})
			if err != nil {
				return err
			}
			if a.json {
				return cli.PrintJSON(a.out, changed)
			}
			for _, h := range changed.Hosts {
				fmt.Fprintf(a.out, "%s of cohort %s %s\n", cli.Printable(h.Host), cli.Printable(h.Cohort), done)
			}
			return nil
		},
	}
	conn.flags(cmd)
	cmd.Flags().StringVar(&cohort, "cohort", "", "the cohort, where hosts of one name are in several")
	cmd.Flags().StringVar(&reason, "reason", "", "why, for those who ask later")
	return cmd
}

func changeHosts(ctx context.Context, c *api.Client, change string, q api.HostsChange) (*api.HostsChanged, error) {
	got, err := c.ChangeHosts(ctx, change, q)
	if err != nil {
		return nil, err
	}
	if got.Hosts == nil {
		got.Hosts = []api.HostRef{} // prints as []
	}
	return got, nil
}

// whoami names the person at this machine. It proves nothing: with a token the collector uses the token's name.
func whoami() string {
	name := os.Getenv("USER")
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	if host, err := os.Hostname(); err == nil && host != "" {
		name += "@" + host
	}
	return strings.TrimPrefix(name, "@")
}

// hostsChanges are the commands below `hosts`.
func (a *app) hostsChanges() []*cobra.Command {
	return []*cobra.Command{
		a.hostsChangeCmd(api.HostsRetire, "these hosts are gone: nobody waits for them any more",
			"Takes hosts out of the count: they are gone for good, although the inventory may\nstill have them. A host that reports again is shown as retired; `hosts unretire`\ntakes it back.", "is retired"),
		a.hostsChangeCmd(api.HostsUnretire, "take back that hosts are gone", "Counts hosts again that were retired.", "counts again"),
		a.hostsChangeCmd(api.HostsAccept, "these hosts were installed anew: believe their new identity",
			"A host that was installed anew speaks with another identity key, and is shown as\nduplicate until a person says that it is really that host. From then on only the\nnew key is believed.", "is believed with its new identity"),
	}
}
