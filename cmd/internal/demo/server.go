package demo

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
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

// name is what the keyring calls the config repo.
func (s *story) name() string {
	if s.own() {
		return "demo/config"
	}
	return "acme/config"
}

func (s *story) keyring() string { return filepath.Join(s.dir, "keys", keydir.Keyring) }

// prepare makes the repository (or opens the user's), the keys, and the name of the store.
func (s *story) prepare(ctx context.Context) (err error) {
	if s.own() {
		if s.repo, err = openRepo(s.opts.Repo); err != nil {
			return err
		}
	} else if s.repo, err = newRepo(ctx, filepath.Join(s.dir, "config"), examples.Acme()); err != nil {
		return err
	} else if err := s.writePolicy(ctx); err != nil {
		return err
	}
	if err := s.evaluate(ctx); err != nil {
		return err
	}
	services := map[string]bool{}
	for _, c := range s.policy.Cohorts {
		for _, name := range c.Services {
			services[name] = true
		}
	}
	s.say("config repo at %s: %s, %s", s.repo.dir, cli.Count(len(services), "service"), cli.Count(len(s.policy.Cohorts), "cohort"))
	if err := keydir.Create(filepath.Join(s.dir, "keys"), s.name(), time.Now()); err != nil {
		return err
	}
	s.store = "file://" + filepath.ToSlash(filepath.Join(s.dir, "store"))
	s.say("keys for %s, and an empty store at %s", s.name(), s.store)
	return nil
}

// evaluate reads who the hosts are. What does not validate is told as `muster validate` tells it.
func (s *story) evaluate(ctx context.Context) error {
	repo, err := source.Open(s.repo.dir)
	if s.own() && errors.Is(err, source.ErrNoRepo) {
		return cli.Fail(cli.Usage, "give --repo a config repo, or leave it out to see the example's", "--repo: %w", err)
	}
	if err != nil {
		return err
	}
	defer repo.Close()
	var tree source.Tree
	if s.own() {
		tree, err = repo.Commit("HEAD")
	} else {
		tree, err = repo.WorkTree()
	}
	if s.own() && errors.Is(err, source.ErrNoRev) {
		return cli.Fail(cli.Usage, "the demo runs on what is committed there: commit first", "--repo: %w", err)
	}
	if err != nil {
		return err
	}
	built, err := pipeline.Build(ctx, tree, pipeline.Options{CheckOnly: true})
	if err != nil {
		return err
	}
	if built.Failed() {
		return cli.Fail(cli.No, fmt.Sprintf("`muster validate -C %s --rev HEAD` says where", s.repo.dir), "the config repo is not valid: %w", &pipeline.RefusedError{Problems: built.Problems})
	}
	s.policy = built.Policy
	return nil
}

// startServers starts the collector, and the publisher that follows the branch.
func (s *story) startServers(ctx context.Context, group *errgroup.Group) (err error) {
	ln, url, err := s.listen(ctx)
	if err != nil {
		return err
	}
	s.collector = url
	config := filepath.Join(s.dir, "collector.yaml")
	text := fmt.Sprintf("listen: %q\nstore: %q\nkeyring: %q\ndatabase: %q\npoll: 200ms\n", ln.Addr().String(), s.store, s.keyring(), "sqlite://"+filepath.Join(s.dir, "collector.db"))
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
	first, stop := context.WithCancel(ctx)
	ended := make(chan struct{})
	group.Go(func() error { defer close(ended); return follower.Run(first) })
	s.releaseInWaves = func(waiting context.Context) {
		stop()
		select {
		case <-ended:
		case <-waiting.Done():
			return
		}
		next := *follower
		next.Options.RolloutNow = false
		group.Go(func() error { return next.Run(ctx) })
		s.inWaves()
	}
	if s.monitor != nil {
		group.Go(func() error { return s.watchShop(ctx, s.monitor) })
	}
	return nil
}

// local refuses an address that others could reach: nothing of the demo asks who is there. "" is a free port of its own.
func local(listen string) error {
	if listen == "" {
		return nil
	}
	const hint = "give --listen an address of the loopback interface, such as 127.0.0.1:7070 or [::1]:7070"
	host, port, err := net.SplitHostPort(listen)
	if err != nil {
		return cli.Fail(cli.Usage, hint, "--listen: %w", err)
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return cli.Fail(cli.Usage, hint, "--listen %s: %q is no port", listen, port)
	}
	if ip := net.ParseIP(host); host != "localhost" && (ip == nil || !ip.IsLoopback()) {
		return cli.Fail(cli.Usage, hint, "--listen %s is not on loopback: the demo serves this machine only", listen)
	}
	return nil
}

// listen takes the address that was asked for, or a free port if it is taken.
func (s *story) listen(ctx context.Context) (net.Listener, string, error) {
	if s.opts.Listen == "" {
		return listen(ctx)
	}
	var lc net.ListenConfig
	ln, err := lc.Listen(ctx, "tcp", s.opts.Listen)
	if errors.Is(err, syscall.EADDRINUSE) {
		s.say("%s is taken by another program: a free port is used", s.opts.Listen)
		return listen(ctx)
	}
	if err != nil {
		return nil, "", cli.Fail(cli.Usage, "give --listen an address of this machine, such as 127.0.0.1:7070", "listen: %w", err)
	}
	return ln, "http://" + ln.Addr().String(), nil
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
	st, err := open.Open(ctx, cfg.Store)
	if err != nil {
		return err
	}
	signer, err := keys.Open(ctx, filepath.Join(s.dir, "keys", keydir.Rollout))
	if err != nil {
		return err
	}
	by := collector.Steering{Store: st, Signer: signer}
	deps := collector.Deps{Store: st, Keyring: keyring}
	if !s.own() {
		deps.Steering = &by
	}
	c, err := collector.New(cfg, deps)
	if err != nil {
		return fmt.Errorf("collector: %w", err)
	}
	if err := s.steer(ctx, group, c, by); err != nil {
		return err
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
			defer repo.Close()
			return repo.Resolve(s.repo.head)
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
	if s.own() {
		fmt.Fprintf(s.opts.Out, `
It stays up until Ctrl-C; then nothing is left of it. The page: %[1]s/
Every commit of this repository is published. In another terminal:

  export MUSTER_COLLECTOR=%[1]s MUSTER_STORE=%[2]s
  cd %[3]s

edit a file, then

  git commit -a
  %[4]s wait HEAD

`, s.collector, s.store, s.repo.dir, call)
		return
	}
	fmt.Fprintf(s.opts.Out, `
It stays up until Ctrl-C; then nothing is left of it. The page: %[1]s/
Three things to try (edit, commit, wait). In another terminal:

  export MUSTER_COLLECTOR=%[1]s MUSTER_STORE=%[2]s
  cd %[3]s

  sed -i 's/per_minute: 10/per_minute: 20/' services/mailer/overlays/env/staging.yaml
  git commit -a -m 'mailer: faster in staging'
  %[4]s wait HEAD --cohort staging

Who runs what, and why not:

  %[4]s status
  %[4]s hosts

A typo is refused, with its place:

  echo 'timout_ms: 100' >> services/checkout/base.yaml
  %[4]s validate
  git checkout services/checkout/base.yaml

What the store holds, and whether all of it is genuine:

  %[4]s fsck --keyring %[5]s

`, s.collector, s.store, s.repo.dir, call, s.keyring())
}
