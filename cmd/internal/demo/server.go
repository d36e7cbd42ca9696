package demo

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/muster-config/muster/cmd/internal/cli"
	"github.com/muster-config/muster/cmd/internal/keydir"
	"github.com/muster-config/muster/cmd/internal/publish"
	"github.com/muster-config/muster/distributor"
	"github.com/muster-config/muster/distributor/api"
	"github.com/muster-config/muster/distributor/collector"
	"github.com/muster-config/muster/distributor/keys"
	"github.com/muster-config/muster/distributor/store/open"
	"github.com/muster-config/muster/examples"
	"github.com/muster-config/muster/pipeline"
	"github.com/muster-config/muster/pipeline/source"
)

const repoName = "acme/config"

func (s *story) keyring() string { return filepath.Join(s.dir, "keys", keydir.Keyring) }

// prepare makes the repository, the keys, and the name of the store.
func (s *story) prepare(ctx context.Context) (err error) {
	if s.repo, err = newRepo(ctx, filepath.Join(s.dir, "config"), examples.Acme()); err != nil {
		return err
	}
	s.say("config repo at %s: three services, three cohorts", s.repo.dir)
	if err := keydir.Create(filepath.Join(s.dir, "keys"), repoName, time.Now()); err != nil {
		return err
	}
	s.store = "file://" + filepath.ToSlash(filepath.Join(s.dir, "store"))
	s.say("keys for %s, and an empty store at %s", repoName, s.store)
	return nil
}

// startServers starts the collector, and the publisher that follows the branch.
func (s *story) startServers(ctx context.Context, group *errgroup.Group) (err error) {
	ln, url, err := listen(ctx)
	if err != nil {
		return err
	}
	s.collector = url
	config := filepath.Join(s.dir, "collector.yaml")
	text := fmt.Sprintf("listen: %s\nstore: %q\nkeyring: %q\ndatabase: %q\npoll: 200ms\n", ln.Addr(), s.store, s.keyring(), "sqlite://"+filepath.Join(s.dir, "collector.db"))
	if err := os.WriteFile(config, []byte(text), 0o644); err != nil {
		return err
	}
	if err := s.runCollector(ctx, group, config, ln); err != nil {
		return err
	}
	if s.client, err = api.NewClient(url, api.ClientOptions{}); err != nil {
		return err
	}
	s.say("collector at %s", url)
	follower, err := s.follower(ctx)
	if err != nil {
		return err
	}
	group.Go(func() error { return follower.Run(ctx) })
	return nil
}

// runCollector runs the collector of a configuration file on ln.
func (s *story) runCollector(ctx context.Context, group *errgroup.Group, config string, ln net.Listener) error {
	cfg, err := collector.LoadConfig(config)
	if err != nil {
		return err
	}
	keyring, err := os.ReadFile(cfg.Keyring)
	if err != nil {
		return err
	}
	st, err := open.OpenRead(ctx, cfg.Store)
	if err != nil {
		return err
	}
	c, err := collector.New(cfg, collector.Deps{Store: st, Keyring: keyring})
	if err != nil {
		return fmt.Errorf("collector: %w", err)
	}
	group.Go(func() error { return c.Run(ctx) })
	group.Go(func() error { return serve(ctx, ln, c.Handler()) })
	return nil
}

// follower publishes every commit of the branch, and assigns it to all hosts at once.
func (s *story) follower(ctx context.Context) (*distributor.Follower, error) {
	keyring, name, err := keydir.ReadKeyring(s.keyring())
	if err != nil {
		return nil, err
	}
	cfg := distributor.Config{Repo: name, Keyring: keyring, By: "muster demo", Now: time.Now}
	if cfg.Release, err = keys.Open(ctx, filepath.Join(s.dir, "keys", keydir.Release)); err != nil {
		return nil, err
	}
	if cfg.Rollout, err = keys.Open(ctx, filepath.Join(s.dir, "keys", keydir.Rollout)); err != nil {
		return nil, err
	}
	if cfg.Store, err = open.Open(ctx, s.store); err != nil {
		return nil, err
	}
	publisher, err := distributor.NewPublisher(cfg)
	if err != nil {
		return nil, err
	}
	return &distributor.Follower{
		Publisher: publisher,
		Tip: func(context.Context) (string, error) {
			repo, err := source.Open(s.repo.dir)
			if err != nil {
				return "", err
			}
			return repo.Resolve("main")
		},
		Open: func(_ context.Context, commit string) (*distributor.Job, error) {
			repo, err := source.Open(s.repo.dir)
			if err != nil {
				return nil, err
			}
			return publish.Job(repo, commit, pipeline.Options{})
		},
		Every:   200 * time.Millisecond,
		Options: distributor.PublishOptions{RolloutNow: true},
		Log:     slog.New(slog.DiscardHandler),
		Done:    s.published,
	}, nil
}

// published hears of every commit. The story looks at the collector instead; but a commit that is refused never gets there, and later ones
// are the user's.
func (s *story) published(commit string, res *distributor.Result, err error) {
	switch {
	case err != nil && !s.told.Load():
		select {
		case s.refused <- err:
		default:
		}
	case err != nil:
		s.say("commit %s is not published: %s", cli.Short(commit), err)
	case s.told.Load():
		s.say("commit %s is released as epoch %d", cli.Short(commit), res.Epoch)
	}
}

// whatToTry says how to go on.
func (s *story) whatToTry() {
	call := s.opts.Call
	if abs, err := filepath.Abs(call); err == nil && filepath.Base(call) != call {
		call = abs
	}
	fmt.Fprintf(s.opts.Out, `
It stays up until Ctrl-C; then nothing is left of it. In another terminal:

  export MUSTER_COLLECTOR=%[1]s MUSTER_STORE=%[2]s
  cd %[3]s

  %[4]s status
  %[4]s hosts
  sed -i 's/per_minute: 10/per_minute: 20/' services/mailer/overlays/env/staging.yaml
  git commit -a -m 'mailer: faster in staging'
  %[4]s wait HEAD --cohort staging

A typo is refused, with its place:

  echo 'timout_ms: 100' >> services/checkout/base.yaml
  %[4]s validate
  git checkout services/checkout/base.yaml

What the store holds, and whether all of it is genuine:

  %[4]s fsck --keyring %[5]s

`, s.collector, s.store, s.repo.dir, call, s.keyring())
}
