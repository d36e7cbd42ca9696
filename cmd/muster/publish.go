package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
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
	var storeURL, dir, keyring, releaseKey, rolloutKey, rev, rollout string
	var removed []string
	cmd := &cobra.Command{
		Use:   "publish",
		Short: "make a release of a commit in the store",
		Long: `Evaluates a commit, uploads the bundle of every cohort that changed, and appends
one release to the store. With --rollout=now every cohort is assigned at once.
A commit that does not validate uses no epoch and writes no release.

--keys names the directory that ` + "`muster keys init`" + ` made. A key by itself is a path,
env:NAME or exec:COMMAND. A root key is never read. A collector is told at once if
it is named; it finds out by itself otherwise.`,
		Args: cli.NoArgs,
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
			ctx := cmd.Context()
			p, st, err := openPublisher(ctx, url, dir, keyring, releaseKey, rolloutKey, now)
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
			fresh, err := noStore(ctx, st)
			if err != nil {
				return err
			}
			res, err := p.Publish(ctx, job.Commit, job.Contains, job.Build, distributor.PublishOptions{RolloutNow: now, Settings: job.Settings, RemoveCohorts: removed})
			var refused *publish.Refused
			if errors.As(err, &refused) {
				printProblems(a.errOut, refused.Problems)
				return cli.Fail(cli.No, "", "commit %s is not valid: %s; nothing was published", cli.Short(job.Commit.ID), countProblems(refused.Problems))
			}
			if res != nil {
				if conn.given() {
					if herr := conn.handOver(ctx, st, res.Assigned); herr != nil {
						res.Warnings = append(res.Warnings, fmt.Sprintf("the collector hears of it at its next look at the store: %v", herr))
					}
				}
				if !a.json {
					if rev == "HEAD" {
						a.noteUncommitted(repo)
					}
					word := "store"
					if fresh {
						word = "new store"
					}
					fmt.Fprintf(a.out, "%s %s\n", word, cli.Printable(st.URL()))
				}
				if perr := a.printPublished(res, job.Commit, now); perr != nil {
					return perr
				}
			}
			if err != nil {
				return err
			}
			if len(res.Blocked) > 0 {
				return cli.Fail(cli.No, "the other cohorts are published; see the reasons above", "blocked: %s", strings.Join(res.Blocked, ", "))
			}
			if now && len(res.Waiting) > 0 {
				return cli.Fail(cli.No, "the release stands; the warnings above say who stopped the cohort and why", "not assigned: %s", strings.Join(res.Waiting, ", "))
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&storeURL, "store", "", "file:///path or s3://bucket/prefix?endpoint=…&region=… [MUSTER_STORE]")
	cmd.Flags().StringVar(&dir, "keys", "", "directory with release.key, rollout.key and keyring.json [MUSTER_KEYS]")
	cmd.Flags().StringVar(&keyring, "keyring", "", "the keyring, if it is not in --keys")
	cmd.Flags().StringVar(&releaseKey, "release-key", "", "the release key, if it is not in --keys")
	cmd.Flags().StringVar(&rolloutKey, "rollout-key", "", "the rollout key, if it is not in --keys")
	cmd.Flags().StringVar(&rev, "rev", "HEAD", "the commit to publish")
	cmd.Flags().StringVar(&rollout, "rollout", "", "now: assign every cohort at once")
	cmd.Flags().StringSliceVar(&removed, "remove-cohort", nil, "a cohort that the commit's fleet no longer has, on purpose")
	conn.flags(cmd)
	return cmd
}

// noStore reports whether nothing was ever published to a store.
func noStore(ctx context.Context, st store.Reader) (bool, error) {
	_, err := st.Get(ctx, manifest.KeyStore, manifest.MaxSmallBytes)
	if errors.Is(err, store.ErrNotFound) {
		return true, nil
	}
	return false, err
}

// uncommitted counts the files on disk that differ from HEAD: changed, new and not ignored, or gone. A repository without a work tree has none.
func uncommitted(repo *source.Repo) int {
	disk, err := repo.WorkTree()
	if err != nil {
		return 0
	}
	head, err := repo.Commit("HEAD")
	if err != nil {
		return 0
	}
	n := 0
	for _, name := range head.Files() {
		was, err := fs.ReadFile(head.FS(), name)
		is, derr := fs.ReadFile(disk.FS(), name)
		if err != nil || derr != nil || !bytes.Equal(was, is) {
			n++
		}
	}
	for _, name := range disk.Files() {
		if _, err := fs.Stat(head.FS(), name); err != nil {
			n++
		}
	}
	return n
}

func (a *app) noteUncommitted(repo *source.Repo) {
	switch n := uncommitted(repo); {
	case n == 1:
		fmt.Fprintln(a.errOut, "muster: note: 1 changed file is not in this commit")
	case n > 1:
		fmt.Fprintf(a.errOut, "muster: note: %s are not in this commit\n", cli.Count(n, "changed file"))
	}
}

// openPublisher puts a publisher together from the flags.
func openPublisher(ctx context.Context, url, dir, ring, releaseKey, rolloutKey string, assign bool) (*distributor.Publisher, store.Store, error) {
	if dir == "" && (ring == "" || releaseKey == "" || assign && rolloutKey == "") {
		return nil, nil, cli.Fail(cli.Usage, "give --keys, or set MUSTER_KEYS; `muster keys init DIR --repo NAME` makes them. Or give --keyring and each key by itself", "--keys is missing")
	}
	if ring == "" {
		ring = filepath.Join(dir, keydir.Keyring)
	}
	keyring, repo, err := keydir.ReadKeyring(ring)
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
func (a *app) printPublished(res *distributor.Result, commit distributor.Commit, now bool) error {
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
			state = "not assigned: publish with --rollout=now"
			if now {
				state = "not assigned: stopped"
			}
		}
		rows = append(rows, []string{name, string(c.State), fmt.Sprint(c.Epoch), cli.Number(int(c.Size)) + " B", state})
	}
	cli.PrintTable(a.out, rows)
	return nil
}
