package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/muster-config/muster/cmd/internal/cli"
	"github.com/muster-config/muster/cmd/internal/keydir"
	"github.com/muster-config/muster/cmd/internal/publish"
	"github.com/muster-config/muster/distributor"
	"github.com/muster-config/muster/distributor/keys"
	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/store"
	"github.com/muster-config/muster/distributor/store/open"
	"github.com/muster-config/muster/pipeline"
	"github.com/muster-config/muster/pipeline/source"
)

func (a *app) publishCmd() *cobra.Command {
	var conn connection
	var storeURL, dir, releaseKey, rolloutKey, rev, rollout string
	cmd := &cobra.Command{
		Use:   "publish",
		Short: "make a release of a commit in the store",
		Long: `Evaluates a commit, uploads the bundle of every cohort that changed, and appends
one release to the store. With --rollout=now every cohort is assigned at once.
A commit that does not validate uses no epoch and writes no release.

--keys names the directory that ` + "`muster keys init`" + ` made. A key by itself is a path,
env:NAME or exec:COMMAND. A root key is never read. A collector is told at once if
it is named; it finds out by itself otherwise.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			now := false
			if cmd.Flags().Changed("rollout") {
				if err := oneOf("rollout", rollout, "now"); err != nil {
					return err
				}
				now = true
			}
			url, err := envOr("store", storeURL, "MUSTER_STORE")
			if err != nil {
				return err
			}
			if dir == "" {
				dir = os.Getenv("MUSTER_KEYS")
			}
			p, st, err := openPublisher(cmd.Context(), url, dir, releaseKey, rolloutKey, now)
			if err != nil {
				return err
			}
			repo, err := source.Open(a.dir)
			if err != nil {
				return err
			}
			job, err := publish.Job(repo, rev, pipeline.Options{})
			if err != nil {
				return err
			}
			res, err := p.Publish(cmd.Context(), job.Commit, job.Contains, job.Build, distributor.PublishOptions{RolloutNow: now, Settings: job.Settings})
			var refused *publish.Refused
			if errors.As(err, &refused) {
				printProblems(a.errOut, refused.Problems)
				return cli.Fail(cli.No, "", "commit %s is not valid: %s; nothing was published", cli.Short(job.Commit.ID), countProblems(refused.Problems))
			}
			if res != nil {
				if conn.given() {
					if herr := conn.handOver(cmd.Context(), st, res.Assigned); herr != nil {
						res.Warnings = append(res.Warnings, fmt.Sprintf("the collector hears of it at its next look at the store: %v", herr))
					}
				}
				if perr := a.printPublished(res, job.Commit); perr != nil {
					return perr
				}
			}
			if err != nil {
				return err
			}
			if len(res.Blocked) > 0 {
				return cli.Fail(cli.No, "the other cohorts are published; see the reasons above", "blocked: %s", strings.Join(res.Blocked, ", "))
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&storeURL, "store", "", "file:///path or s3://bucket/prefix?endpoint=…&region=… [MUSTER_STORE]")
	cmd.Flags().StringVar(&dir, "keys", "", "directory with release.key, rollout.key and keyring.json [MUSTER_KEYS]")
	cmd.Flags().StringVar(&releaseKey, "release-key", "", "the release key, if it is not in --keys")
	cmd.Flags().StringVar(&rolloutKey, "rollout-key", "", "the rollout key, if it is not in --keys")
	cmd.Flags().StringVar(&rev, "rev", "HEAD", "the commit to publish")
	cmd.Flags().StringVar(&rollout, "rollout", "", "now: assign every cohort at once")
	conn.flags(cmd)
	return cmd
}

// openPublisher puts a publisher together from the flags.
func openPublisher(ctx context.Context, url, dir, releaseKey, rolloutKey string, assign bool) (*distributor.Publisher, store.Store, error) {
	if dir == "" {
		return nil, nil, cli.Fail(cli.Usage, "give --keys, or set MUSTER_KEYS; `muster keys init DIR --repo NAME` makes them", "--keys is missing")
	}
	keyring, repo, err := keydir.ReadKeyring(filepath.Join(dir, keydir.Keyring))
	if err != nil {
		return nil, nil, err
	}
	if releaseKey == "" {
		releaseKey = filepath.Join(dir, keydir.Release)
	}
	cfg := distributor.Config{Repo: repo, Keyring: keyring, By: "muster publish", Now: time.Now}
	if cfg.Release, err = openKey(ctx, "release", releaseKey); err != nil {
		return nil, nil, err
	}
	if assign {
		if rolloutKey == "" {
			rolloutKey = filepath.Join(dir, keydir.Rollout)
		}
		if cfg.Rollout, err = openKey(ctx, "rollout", rolloutKey); err != nil {
			return nil, nil, err
		}
	}
	if cfg.Store, err = open.Open(ctx, url); err != nil {
		return nil, nil, cli.Fail(codeOr(err, cli.Usage), "", "%w", err)
	}
	p, err := distributor.NewPublisher(cfg)
	return p, cfg.Store, err
}

func openKey(ctx context.Context, name, ref string) (manifest.Signer, error) {
	s, err := keys.Open(ctx, ref)
	if err != nil {
		return nil, cli.Fail(codeOr(err, cli.Local), fmt.Sprintf("`muster keys init` makes it; --%s-key takes a path, env:NAME or exec:COMMAND", name), "%s %w", name, err) // "release key PATH: …"
	}
	return s, nil
}

// codeOr is the exit code that err brings, or fallback.
func codeOr(err error, fallback int) int {
	if code := cli.CodeOf(err, rules...); code != cli.Local {
		return code
	}
	return fallback
}

// printPublished says what the release came to.
func (a *app) printPublished(res *distributor.Result, commit distributor.Commit) error {
	for _, w := range res.Warnings {
		fmt.Fprintf(a.errOut, "muster: warning: %s\n", cli.Printable(w))
	}
	if a.json {
		return cli.PrintJSON(a.out, res)
	}
	again := ""
	if res.Already {
		again = " (published before)"
	}
	fmt.Fprintf(a.out, "epoch %d is commit %s%s: %s\n", res.Epoch, cli.Short(res.Commit), again, cli.Printable(commit.Subject))
	rows := [][]string{{"COHORT", "STATE", "EPOCH", "SIZE", "ROLLOUT"}}
	for _, name := range slices.Sorted(maps.Keys(res.Cohorts)) {
		c := res.Cohorts[name]
		state := "as before"
		switch {
		case slices.Contains(res.Assigned, name):
			state = "assigned now"
		case slices.Contains(res.Waiting, name):
			state = "waits: publish with --rollout=now"
		}
		rows = append(rows, []string{name, string(c.State), fmt.Sprint(c.Epoch), cli.Number(int(c.Size)) + " B", state})
	}
	cli.PrintTable(a.out, rows)
	return nil
}
