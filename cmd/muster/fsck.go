package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/muster-config/muster/cmd/internal/cli"
	"github.com/muster-config/muster/distributor"
	"github.com/muster-config/muster/distributor/store"
)

func (a *app) fsckCmd() *cobra.Command {
	var from reading
	cmd := &cobra.Command{
		Use:   "fsck",
		Short: "check every object, signature and reference in a store",
		Long: `Reads every object of a store and checks signatures, digests, the chain of
releases and all references. It writes nothing. The keyring of --keys or
--keyring is trusted; without one, the store's own, and the output says so.

Exit codes: 0 no fault; 1 faults; 4 the keyring given is not this store's; 5 there
is no store at the address, or it does not answer.`,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			st, keyring, err := from.open(cmd.Context())
			if err != nil {
				return err
			}
			r, err := distributor.Fsck(cmd.Context(), st, keyring, time.Now())
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
	return cmd
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
	fmt.Fprintf(a.out, "trusted: %s\n", trusted(r.Keyring))
	if r.OK() {
		fmt.Fprintln(a.out, "no fault")
	}
}
