package main

import (
	"github.com/spf13/cobra"

	"github.com/muster-config/muster/cmd/internal/cli"
)

// demoCmd says that there is none here: its hosts are real agents, and the agent is for Linux.
func (a *app) demoCmd() *cobra.Command {
	cmd := &cobra.Command{Use: "demo", Short: "the whole system on this machine, with a story (Linux and macOS)", RunE: func(*cobra.Command, []string) error {
		return cli.Fail(cli.Usage, "run it there, or in the Windows Subsystem for Linux; every other command works here", "muster demo needs Linux or macOS")
	}}
	cmd.FParseErrWhitelist.UnknownFlags = true // whatever was asked of it
	return cmd
}

func (a *app) demoReloadCmd() *cobra.Command {
	cmd := a.demoCmd()
	cmd.Use, cmd.Hidden = "demo-reload", true
	return cmd
}
