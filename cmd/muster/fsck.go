package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/muster-config/muster/cmd/internal/cli"
	"github.com/muster-config/muster/distributor"
	"github.com/muster-config/muster/distributor/api"
	"github.com/muster-config/muster/distributor/store"
)

func (a *app) fsckCmd() *cobra.Command {
	var from reading
	var conn connection
	var fleet bool
	cmd := &cobra.Command{
		Use:   "fsck",
		Short: "check every object, signature and reference in a store",
		Long: `Reads every object of a store and checks signatures, digests, the chain of
releases and all references. It writes nothing. The keyring of --keys or
--keyring is trusted; without one, the store's own, and the output says so.

With --fleet it also asks the collector for all hosts: what each signed about
itself must be what the store has signed statements of, and what the collector
says of it must agree with both.

Exit codes: 0 no fault; 1 faults; 4 the keyring given is not this store's; 5 there
is no store at the address, or it does not answer.`,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			st, keyring, err := from.open(cmd.Context())
			if err != nil {
				return err
			}
			var hosts []distributor.Seen
			if fleet { // before the store is read: it is then never behind its hosts
				if hosts, err = askHosts(cmd.Context(), &conn); err != nil {
					return err
				}
			}
			r, err := distributor.FsckFleet(cmd.Context(), st, keyring, time.Now(), hosts)
			if errors.Is(err, store.ErrNotFound) {
				return noStoreAt(st.URL(), err)
			}
			if err != nil {
				return err
			}
			if a.json {
				if err := cli.PrintJSON(a.out, r); err != nil {
					return err
				}
			} else {
				a.printFsck(r)
			}
			if !r.OK() {
				return cli.Fail(cli.No, "each line says what to do next", "the store has %s", cli.Count(len(r.Problems), "fault"))
			}
			return nil
		},
	}
	from.flags(cmd)
	conn.flags(cmd)
	cmd.Flags().BoolVar(&fleet, "fleet", false, "hold all hosts against the store too, as the collector shows them")
	return cmd
}

// askHosts asks the collector for all hosts, with what each signed last.
func askHosts(ctx context.Context, conn *connection) ([]distributor.Seen, error) {
	c, err := conn.open()
	if err != nil {
		return nil, err
	}
	hosts, err := c.Hosts(ctx, "", "")
	if err != nil {
		return nil, err
	}
	list := make([]distributor.Seen, len(hosts))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(8)
	for i, h := range hosts {
		list[i] = distributor.Seen{Host: h.Host, Cohort: h.Cohort, Desired: h.Desired, Running: h.Running}
		group.Go(func() error {
			signed, err := c.HostSigned(ctx, h.Host)
			switch {
			case errors.Is(err, api.ErrNotFound):
				return nil // gone meanwhile
			case err != nil:
				return err
			case signed.Cohort == h.Cohort:
				list[i].Desired, list[i].Running, list[i].Signed = signed.Desired, signed.Running, signed.Signed
			}
			return nil
		})
	}
	return list, group.Wait()
}

func (a *app) printFsck(r *distributor.Report) {
	for _, p := range r.Problems {
		fmt.Fprintf(a.out, "fault:  %s\n", cli.Printable(p.String()))
	}
	for _, p := range r.Notices {
		fmt.Fprintf(a.out, "notice: %s\n", cli.Printable(p.String()))
	}
	c := r.Checked
	fmt.Fprintf(a.out, "store %s of repo %s, newest release %d\n", r.Store, r.Repo, r.Newest)
	fmt.Fprintf(a.out, "checked %s, %s, %s, %s, %s, %s\n", cli.Count(c.Releases, "release"), cli.Count(c.Statements, "statement"),
		cli.Count(c.Bundles, "bundle"), cli.Count(c.Sources, "source tree"), cli.Count(c.Heads, "head"), cli.Count(c.Keyrings, "keyring"))
	if c.Hosts > 0 {
		fmt.Fprintf(a.out, "held %s against it\n", cli.Count(c.Hosts, "host"))
	}
	fmt.Fprintf(a.out, "trusted: %s\n", trusted(r.Keyring))
	if r.OK() {
		fmt.Fprintln(a.out, "no fault")
	}
}
