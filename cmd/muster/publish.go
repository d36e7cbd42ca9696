package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/muster-config/muster/cmd/internal/cli"
	"github.com/muster-config/muster/cmd/internal/delivery"
	"github.com/muster-config/muster/cmd/internal/keydir"
	"github.com/muster-config/muster/cmd/internal/publish"
	"github.com/muster-config/muster/distributor"
	"github.com/muster-config/muster/distributor/keys"
	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/store"
	"github.com/muster-config/muster/distributor/store/open"
	"github.com/muster-config/muster/pipeline"
	"github.com/muster-config/muster/pipeline/forge"
	"github.com/muster-config/muster/pipeline/source"
)

// publishing is `muster publish` under way.
type publishing struct {
	*app
	conn    connection
	keys    publisherKeys
	rollout string
	rev     string
	removed []string
	watch   watching
	forge   forging
	per     string // deployments
	noPull  bool   // no pull request that reverts

	saying    sync.Mutex
	github    *forge.Client       // nil: not asked for
	deliverer *delivery.Deliverer // nil: nothing is told

	now       bool // assign at once
	store     store.Store
	publisher *distributor.Publisher
}

func (a *app) publishCmd() *cobra.Command {
	p := &publishing{app: a}
	cmd := &cobra.Command{
		Use:   "publish",
		Short: "make a release of a commit in the store",
		Long: `Evaluates a commit, uploads the bundle of every cohort that changed, and appends
one release to the store. With --rollout=now every cohort is assigned at once.

A service that does not validate blocks the cohorts that carry it: the others are
published, and the exit code is 1. Where nothing is left to publish the commit is
refused, and uses no epoch.

With --watch every commit of a branch is published as it comes, until Ctrl-C: of
the repository here, or of --remote URL, which is fetched into --cache DIR.

--keys names the directory that ` + "`muster keys init`" + ` made. A key by itself is a path,
env:NAME or exec:COMMAND. A root key is never read. A collector is told at once if
it is named; it finds out by itself otherwise.`,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if cmd.Flags().Changed("rollout") {
				if err := oneOf("rollout", p.rollout, "now"); err != nil {
					return err
				}
				p.now = true
			}
			if err := p.watch.check(cmd); err != nil {
				return err
			}
			url, err := envOr("store", p.keys.storeURL, "MUSTER_STORE")
			if err != nil {
				return err
			}
			ctx := cmd.Context()
			if err := p.openForge(cmd); err != nil {
				return err
			}
			if p.publisher, p.store, err = p.keys.open(ctx, url, p.now); err != nil {
				return err
			}
			if p.watch.on {
				return p.follow(ctx)
			}
			return p.once(ctx)
		},
	}
	p.keys.flags(cmd)
	cmd.Flags().StringVar(&p.rev, "rev", "HEAD", "the commit to publish")
	cmd.Flags().StringVar(&p.rollout, "rollout", "", "now: assign every cohort at once")
	cmd.Flags().StringSliceVar(&p.removed, "remove-cohort", nil, "a cohort that the commit's fleet no longer has, on purpose")
	p.watch.flags(cmd)
	p.conn.flags(cmd)
	p.forgeFlags(cmd)
	return cmd
}

// once publishes one commit.
func (p *publishing) once(ctx context.Context) error {
	defer p.sayCalls()
	repo, err := source.Open(p.dir)
	if err != nil {
		return err
	}
	job, err := publish.Prepare(repo, p.rev, pipeline.Options{})
	if err != nil {
		return err
	}
	job.Build = p.attributed(repo, job.Build)
	fresh, err := noStore(ctx, p.store)
	if err != nil {
		return err
	}
	opts := distributor.PublishOptions{RolloutNow: p.now, Settings: job.Settings, RemoveCohorts: p.removed}
	res, err := p.publisher.Publish(ctx, job.Commit, job.Contains, job.Build, opts)
	p.tellRefused(ctx, job.Commit.ID, err)
	var refused *publish.Refused
	if errors.As(err, &refused) {
		printProblems(p.errOut, refused.Problems)
		return cli.Fail(cli.No, "", "commit %s is not valid: %s; nothing was published", cli.Short(job.Commit.ID), countProblems(refused.Problems))
	}
	if res != nil {
		p.tellCollector(ctx, res)
		if !p.json {
			if p.rev == "HEAD" {
				p.noteUncommitted(repo)
			}
			word := "store"
			if fresh {
				word = "new store"
			}
			fmt.Fprintf(p.out, "%s %s\n", word, cli.Printable(p.store.URL()))
		}
		p.printFound(job, res)
		if perr := p.printPublished(res, job.Commit); perr != nil {
			return perr
		}
	}
	if err != nil {
		return err
	}
	return p.answer(res)
}

// answer is the exit code of a release that stands.
func (p *publishing) answer(res *distributor.Result) error {
	if len(res.Blocked) > 0 {
		hint := "the other cohorts are published; correct what is said above and commit, which builds the blocked ones too"
		return cli.Fail(cli.No, hint, "blocked: %s", strings.Join(res.Blocked, ", "))
	}
	if p.now && len(res.Waiting) > 0 {
		return cli.Fail(cli.No, "the release stands; the warnings above say who stopped the cohort and why", "not assigned: %s", strings.Join(res.Waiting, ", "))
	}
	return nil
}

// tellCollector hands new heads over, if a collector is named.
func (p *publishing) tellCollector(ctx context.Context, res *distributor.Result) {
	if !p.conn.given() {
		return
	}
	if err := p.conn.handOver(ctx, p.store, res.Assigned); err != nil {
		res.Warnings = append(res.Warnings, fmt.Sprintf("the collector hears of it at its next look at the store: %v", err))
	}
}

// noStore reports whether nothing was ever published to a store.
func noStore(ctx context.Context, st store.Reader) (bool, error) {
	_, err := st.Get(ctx, manifest.KeyStore, manifest.MaxSmallBytes)
	if errors.Is(err, store.ErrNotFound) {
		return true, nil
	}
	return false, err
}

// publisherKeys are the flags by which a command that writes finds its store and its keys.
type publisherKeys struct {
	storeURL, dir, keyring string
	releaseKey, rolloutKey string

	ring []byte // as read by open
}

func (k *publisherKeys) flags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&k.storeURL, "store", "", "file:///path or s3://bucket/prefix?endpoint=…&region=… [MUSTER_STORE]")
	cmd.Flags().StringVar(&k.dir, "keys", "", "directory with release.key, rollout.key and keyring.json [MUSTER_KEYS]")
	cmd.Flags().StringVar(&k.keyring, "keyring", "", "the keyring, if it is not in --keys")
	cmd.Flags().StringVar(&k.releaseKey, "release-key", "", "the release key, if it is not in --keys")
	cmd.Flags().StringVar(&k.rolloutKey, "rollout-key", "", "the rollout key, if it is not in --keys")
}

// open puts a publisher together from the flags; one that assigns needs the rollout key.
func (k *publisherKeys) open(ctx context.Context, url string, assign bool) (*distributor.Publisher, store.Store, error) {
	dir, ring, releaseKey, rolloutKey := k.dir, k.keyring, k.releaseKey, k.rolloutKey
	if dir == "" {
		dir = os.Getenv("MUSTER_KEYS")
	}
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
	k.ring = keyring
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
		return nil, nil, cli.Fail(codeOr(err, cli.Usage), storeHint(url), "%w", err)
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
