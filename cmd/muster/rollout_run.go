package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/muster-config/muster/cmd/internal/cli"
	"github.com/muster-config/muster/distributor/api"
	"github.com/muster-config/muster/distributor/collector"
	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/rollout"
	"github.com/muster-config/muster/distributor/rollout/gate"
	"github.com/muster-config/muster/distributor/store"
)

func (a *app) rolloutRunCmd() *cobra.Command {
	var s steering
	var prometheus string
	var gateHosts []string
	cmd := &cobra.Command{
		Use:   "run",
		Short: "take cohorts to new releases, beside a collector that has no rollout key",
		Long: `Is a rollout controller by itself: what muster-collector does with a rollout_key, on
another machine, where the key is. It reads releases and orders from the store
(--store), signs and writes orders with the rollout key (--keys), asks gates
(--prometheus), and hears from the collector (--collector) what every host runs. The
token needs the right to read (role viewer), for all cohorts; with the role operator
hosts hear of an order at once, else when the collector reads the store.

It needs all of these: without the collector nobody knows what hosts run, and then
no rollout goes on, nor is one begun; orders are only kept fresh. Any number of
controllers may run at once. It ends with Ctrl-C, at any point.`,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !s.conn.given() {
				return cli.Fail(cli.Usage, "give --collector, or set MUSTER_COLLECTOR: it says what hosts run", "--collector is missing")
			}
			return a.runController(cmd.Context(), &s, gate.Config{Prometheus: prometheus, HTTPHosts: gateHosts})
		},
	}
	s.flags(cmd)
	cmd.Flags().StringVar(&prometheus, "prometheus", "", "URL of the Prometheus that gates ask; without it gates that ask one are left to other controllers")
	cmd.Flags().StringSliceVar(&gateHosts, "gate-hosts", nil, "hosts, with a port or for any, that http gates may ask; any that is not link-local, if left out")
	return cmd
}

// readEvery is how often the store is read. Orders that somebody else writes are heard of from the collector at once.
const readEvery = 2 * time.Second

func (a *app) runController(ctx context.Context, s *steering, gates gate.Config) error {
	o, err := s.open(ctx)
	if err != nil {
		return err
	}
	if _, err := o.history(ctx); err != nil {
		return err
	}
	client, err := s.conn.open()
	if err != nil {
		return err
	}
	defer client.Close()
	if _, err := client.Status(ctx); err != nil {
		return err
	}
	log := slog.New(slog.NewTextHandler(a.errOut, nil))
	// A collector that nobody reports to: it reads the store, and judges no host.
	c, err := collector.New(collector.Config{Store: o.store.URL(), Poll: readEvery}, collector.Deps{Store: readOnly{o.store}, Keyring: o.keyring, Log: log, Aside: true})
	if err != nil {
		return err
	}
	gates.Setting = "none was given: give `muster rollout run` --prometheus URL"
	keeper, err := gate.NewKeeper(gates)
	if err != nil {
		return errors.Join(cli.Fail(cli.Usage, "give it as http://prometheus:9090", "--prometheus: %w", err), c.Close())
	}
	controller := &rollout.Controller{Store: o.store, Signer: o.signer, Seen: &elsewhere{Collector: c, client: client, store: o.store, log: log}, Gates: keeper, By: "muster rollout run by " + whoami(), Log: log}
	fmt.Fprintf(a.out, "taking cohorts to new releases: store %s, hosts as %s says; Ctrl-C ends it\n", cli.Printable(o.store.URL()), client.URL())
	group, gctx := errgroup.WithContext(ctx)
	group.Go(func() error { return c.Run(gctx) })
	group.Go(func() error { return keeper.Run(gctx) })
	group.Go(func() error { return controller.Run(gctx) })
	return group.Wait()
}

// elsewhere is what a controller knows: releases and orders from the store, hosts from a collector's API.
type elsewhere struct {
	*collector.Collector
	client *api.Client
	store  store.Reader
	log    *slog.Logger
	silent atomic.Bool
}

// Cohort is the head as the store has it, and the hosts as the collector judges them. Under another head they say nothing: the mark tells.
func (e *elsewhere) Cohort(ctx context.Context, cohort string) (*manifest.View, rollout.Observed, error) {
	view, seen, err := e.Collector.Cohort(ctx, cohort)
	if err != nil || view == nil {
		return view, seen, err
	}
	got, err := e.client.Observed(ctx, cohort)
	if err != nil {
		return nil, rollout.Observed{}, fmt.Errorf("hosts of cohort %s: %w", cohort, err)
	}
	seen.Hosts, seen.Mark, seen.Unseen, seen.Settling = nil, manifest.Mark{}, got.Unseen, got.Settling
	if got.Mark != "" {
		if seen.Mark, err = manifest.ParseMark(got.Mark); err != nil {
			return nil, rollout.Observed{}, fmt.Errorf("hosts of cohort %s: the collector's mark: %w", cohort, err)
		}
	}
	for _, h := range got.Hosts {
		var waits time.Time
		if h.Waits != nil {
			waits = *h.Waits
		}
		seen.Hosts = append(seen.Hosts, rollout.Host{
			Name: h.Name, Labels: h.Labels, Verdict: h.Verdict, Running: h.Running, Attempted: h.Attempted, Silent: h.Silent, Left: h.Left, Told: h.Told, Waits: waits,
			Reported: gate.Host{Name: h.Name, At: h.At, Refused: h.Refused, RolledBack: h.RolledBack, Drifted: h.Drifted, Restarts: h.Restarts, Probes: h.Probes, Failures: h.Failures, LatencyMS: h.LatencyMS},
		})
	}
	return view, seen, nil
}

// Wrote has the store read again, and the collector told of the order, so that hosts hear of it at once; else they do when the collector reads the store. A token that may not
// hand orders over is not asked again.
func (e *elsewhere) Wrote(cohort string) {
	e.Collector.Wrote(cohort)
	if e.silent.Load() {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	obj, err := e.store.Get(ctx, manifest.KeyHead(cohort), manifest.MaxHeadBytes)
	if err != nil {
		return // the collector reads it by itself
	}
	if err := e.client.PutHead(ctx, cohort, obj.Data); errors.Is(err, api.ErrDenied) {
		e.silent.Store(true)
		e.log.Info("the token may not hand orders over: hosts hear of them when the collector reads the store; one with the role operator is faster", "err", err)
	}
}

// readOnly hides that the store can be written: a collector that nobody reports to must not write who is there.
type readOnly struct{ store.ReadStore }
