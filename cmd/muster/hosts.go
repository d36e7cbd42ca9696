package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/muster-config/muster/cmd/internal/cli"
	"github.com/muster-config/muster/distributor/api"
)

func (a *app) hostsCmd() *cobra.Command {
	var conn connection
	var cohort, wanted string
	cmd := &cobra.Command{
		Use:   "hosts",
		Short: "every host: what it is to run, what it runs, and why that is not the same",
		Long: `Prints a line for every host that is expected or reports:

  DESIRED    the epoch of the release that it is to run
  INSTALLED  the epoch whose files are in place on its disk; - if it never said
  KNOWN BY   how far it is proven that the processes run these files:
               process    every process itself stated the epoch it loaded
               restarted  they started after the files were in place
               reloaded   they were told to load them, and nothing more is known
               disk       the files are in place, nothing is known of a process
             each service says in its schema which of them it asks for
  VERDICT    confirmed, if that is enough; else what is wrong, and WHY says more`,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := conn.open()
			if err != nil {
				return err
			}
			hosts, err := c.Hosts(cmd.Context(), cohort, wanted)
			if cohort != "" && (errors.Is(err, api.ErrNotFound) || errors.Is(err, api.ErrNoCohort)) {
				if kerr := cohortKnown(cmd.Context(), c, cohort); kerr != nil {
					return kerr
				}
			}
			if err != nil {
				return err
			}
			if a.json {
				return cli.PrintJSON(a.out, append([]api.Host{}, hosts...)) // an empty list prints as []
			}
			if len(hosts) == 0 {
				fmt.Fprintln(a.out, "no host")
				return nil
			}
			rows := [][]string{{"HOST", "COHORT", "VERDICT", "DESIRED", "INSTALLED", "KNOWN BY", "WHY"}}
			for _, h := range hosts {
				grade := string(h.Grade)
				if grade == "" {
					grade = "-"
				}
				rows = append(rows, []string{h.Host, h.Cohort, string(h.Verdict), epochOrDash(h.Desired), epochOrDash(h.Running), grade, h.Why})
			}
			cli.PrintTable(a.out, rows)
			return nil
		},
	}
	cmd.AddCommand(a.hostsChanges()...)
	conn.flags(cmd)
	cmd.Flags().StringVar(&cohort, "cohort", "", "only the hosts of this cohort")
	cmd.Flags().StringVar(&wanted, "verdict", "", "only the hosts with this verdict: confirmed, silent, refused, …")
	return cmd
}

// epochOrDash is an epoch, or "-" where there is none.
func epochOrDash(epoch uint64) string {
	if epoch == 0 {
		return "-"
	}
	return fmt.Sprint(epoch)
}
