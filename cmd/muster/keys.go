package main

import (
	"fmt"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/muster-config/muster/cmd/internal/cli"
	"github.com/muster-config/muster/cmd/internal/keydir"
)

func (a *app) keysCmd() *cobra.Command {
	var repo string
	initCmd := &cobra.Command{
		Use:   "init DIR --repo NAME",
		Short: "make the keys and the keyring of a config repo",
		Long: `Makes DIR with four keys, each readable by you alone, and the keyring that names
them. Hosts and collectors get keyring.json; publishers get release.key and
rollout.key; root/root.key belongs off this machine.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if repo == "" {
				return cli.Fail(cli.Usage, "usage: "+cmd.UseLine(), "--repo is missing")
			}
			dir := args[0]
			if err := keydir.Create(dir, repo, time.Now()); err != nil {
				return fmt.Errorf("keys init: %w", err)
			}
			if a.json {
				return cli.PrintJSON(a.out, struct {
					Dir     string `json:"dir"`
					Repo    string `json:"repo"`
					Keyring string `json:"keyring"`
				}{dir, repo, filepath.Join(dir, keydir.Keyring)})
			}
			fmt.Fprintf(a.out, "%s has the keys of %s now:\n", dir, repo)
			cli.PrintTable(a.out, [][]string{
				{"  " + keydir.Root, "signs keyrings only; take it off this machine, and keep a copy"},
				{"  " + keydir.Release, "signs releases: for publishers"},
				{"  " + keydir.Rollout, "assigns releases to hosts: for publishers, or the collector"},
				{"  " + keydir.Operator, "signs emergency overrides, of at most 24h"},
				{"  " + keydir.Keyring, "whom to believe; not secret: for every host and collector"},
			})
			return nil
		},
	}
	initCmd.Flags().StringVar(&repo, "repo", "", "the config repo's name, as in agent.yaml: acme/config")
	return group("keys", "make the keys of a config repo", initCmd)
}
