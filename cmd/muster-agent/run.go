package main

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/muster-config/muster/agent"
	"github.com/muster-config/muster/agent/host"
	"github.com/muster-config/muster/agent/install"
	"github.com/muster-config/muster/agent/probe"
	"github.com/muster-config/muster/cmd/internal/cli"
)

func (a *app) runCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "run",
		Short: "keep this host right until TERM; HUP reads the configuration again",
		Long: `Keeps this host right: a change arrives by the collector's long poll, everything
is read anew at each poll. TERM ends it; a change that is past its swap is brought
to a safe end first. HUP reads the configuration again; a broken one is reported
and the agent goes on with the one it has.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			small()
			// As process 1 of a container it also buries what its commands leave behind.
			reaping, stop := context.WithCancel(cmd.Context())
			buried := make(chan struct{})
			go func() { defer close(buried); probe.Reap(reaping) }()
			defer func() { stop(); <-buried }()
			hup := make(chan os.Signal, 1)
			signal.Notify(hup, syscall.SIGHUP)
			defer signal.Stop(hup)
			return a.run(cmd.Context(), hup)
		},
	}
}

// run runs one agent after the other: a new configuration is a new agent on the same state.
func (a *app) run(ctx context.Context, hup <-chan os.Signal) error {
	log := a.logger(slog.LevelInfo)
	cfg, err := a.load()
	if err != nil {
		return err
	}
	h, err := a.open(ctx, cfg, log)
	if errors.Is(err, install.ErrLocked) {
		return cli.Fail(cli.Local, "stop it, or set root: to another directory", "%w", err)
	}
	if err != nil {
		return err
	}
	log.Info("agent runs", "version", version(), "host", cfg.Host, "cohort", cfg.Cohort, "root", cfg.Root)
	for {
		next, err := a.runUntil(ctx, h, hup, log)
		_ = h.Close()
		if err != nil || next == nil {
			return err
		}
		if h, err = a.open(ctx, *next, log); err != nil {
			// What could be checked beforehand was. The old configuration is still good.
			log.Error("configuration not taken, going on with the old one", "err", err)
			if h, err = a.open(ctx, cfg, log); err != nil {
				return err
			}
			continue
		}
		cfg = *next
		log.Info("configuration read again", "host", cfg.Host, "cohort", cfg.Cohort)
	}
}

// runUntil runs an agent until it ends or a good new configuration has come.
func (a *app) runUntil(ctx context.Context, h *host.Host, hup <-chan os.Signal, log *slog.Logger) (*agent.Config, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	done := make(chan error, 1)
	go func() { done <- h.Run(ctx) }()
	for {
		select {
		case err := <-done:
			return nil, err
		case <-hup:
		}
		next, err := agent.LoadConfig(a.config)
		if err == nil {
			err = host.Check(ctx, next)
		}
		if err != nil {
			log.Error("configuration not taken, going on with the old one", "err", err)
			continue
		}
		cancel(agent.ErrReconfigured)
		if err := <-done; err != nil {
			return nil, err
		}
		return &next, nil
	}
}
