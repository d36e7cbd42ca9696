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
	"github.com/muster-config/muster/distributor"
	"github.com/muster-config/muster/distributor/api"
	"github.com/muster-config/muster/distributor/keys"
	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/rollout"
	"github.com/muster-config/muster/distributor/store"
	"github.com/muster-config/muster/distributor/store/open"
)

// steering is how a command changes orders: through a collector that has the rollout key, or in the store, with the key at hand.
type steering struct {
	conn       connection
	storeURL   string
	dir        string
	keyring    string
	rolloutKey string
}

func (s *steering) flags(cmd *cobra.Command) {
	s.conn.flags(cmd)
	s.storeFlags(cmd)
}

func (s *steering) storeFlags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&s.storeURL, "store", "", "the store's URL [MUSTER_STORE]")
	cmd.Flags().StringVar(&s.dir, "keys", "", "directory with keyring.json and rollout.key [MUSTER_KEYS]")
	cmd.Flags().StringVar(&s.keyring, "keyring", "", "the keyring to trust, if it is not in --keys")
	cmd.Flags().StringVar(&s.rolloutKey, "rollout-key", "", "the rollout key, if it is not in --keys: a path, env:NAME or exec:COMMAND")
}

// through says whether to ask the collector: a flag goes before the environment, a collector before the store.
func (s *steering) through() (bool, error) {
	switch {
	case s.conn.url != "":
		return true, nil
	case s.storeURL != "":
		return false, nil
	case os.Getenv("MUSTER_COLLECTOR") != "" && s.rolloutKey == "" && s.dir == "":
		return true, nil
	case os.Getenv("MUSTER_STORE") != "":
		return false, nil
	case s.conn.given():
		return true, nil
	}
	return false, cli.Fail(cli.Usage, "a collector with a rollout key does it (--collector, MUSTER_COLLECTOR), or the command itself with --store and --keys", "neither --collector nor --store is given")
}

// signed is an open store with the key to write orders.
type signed struct {
	store   store.Store
	keyring []byte
	signer  manifest.Signer
}

func (s *steering) open(ctx context.Context) (*signed, error) {
	at, err := envOr("store", s.storeURL, "MUSTER_STORE")
	if err != nil {
		return nil, err
	}
	dir, ring, key := s.dir, s.keyring, s.rolloutKey
	if dir == "" {
		dir = os.Getenv("MUSTER_KEYS")
	}
	if dir == "" && (ring == "" || key == "") {
		return nil, cli.Fail(cli.Usage, "give --keys, or set MUSTER_KEYS; or give --keyring and --rollout-key; or --collector, which has the key", "--keys is missing")
	}
	if ring == "" {
		ring = filepath.Join(dir, keydir.Keyring)
	}
	if key == "" {
		key = filepath.Join(dir, keydir.Rollout)
	}
	out := &signed{}
	if out.keyring, _, err = keydir.ReadKeyring(ring); err != nil {
		return nil, err
	}
	if out.signer, err = keys.Open(ctx, key); err != nil {
		return nil, cli.Fail(codeOr(err, cli.Usage), "the rollout key is in the directory that `muster keys init` made", "rollout key: %w", err)
	}
	if out.store, err = open.Open(ctx, at); err != nil {
		return nil, cli.Fail(codeOr(err, cli.Usage), storeHint(at), "%w", err)
	}
	return out, nil
}

// history opens the store to read it, and checks that hosts take what the key signs.
func (s *signed) history(ctx context.Context) (*distributor.History, error) {
	h, err := distributor.OpenHistory(ctx, s.store, s.keyring, time.Now())
	if errors.Is(err, store.ErrNotFound) {
		return nil, noStoreAt(s.store.URL(), err)
	}
	if err != nil {
		return nil, err
	}
	if !h.MayOrder(s.signer.KeyID()) {
		return nil, cli.Fail(cli.NotTrusted, "give the rollout key of this repo, or add the key to the role in a new keyring", "the rollout key is not in the role rollout of the store's newest keyring: hosts would refuse what it signs")
	}
	return h, nil
}

// actCmd is one of pause, resume, approve, abort, supersede, refresh, freeze and unfreeze.
func (a *app) actCmd(kind rollout.ActionKind, short, long string) *cobra.Command {
	var s steering
	var q api.Act
	var until string
	cmd := &cobra.Command{
		Use: string(kind) + " COHORT", Short: short,
		Long: long + `

It goes through the collector, whose token says who you are, or is written into the
store with the rollout key. Who and why stand in the order itself, in "muster log"
and "muster rollout status". What is so already is said, and exits with 0; what does
not fit where the rollout stands exits with 1; 3 when somebody else was first.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			cohort := args[0]
			if strings.TrimSpace(q.Reason) == "" && kind != rollout.Refresh {
				return cli.Fail(cli.Usage, "say why with --reason: it is kept, and shown to those who ask later", "--reason is missing")
			}
			if kind == rollout.Freeze {
				end, err := endOf(until, time.Now())
				if err != nil {
					return err
				}
				q.Until = &end
			}
			q.By = whoami()
			through, err := s.through()
			if err != nil {
				return err
			}
			var done *api.Acted
			if through {
				done, err = s.ask(cmd.Context(), cohort, kind, q)
			} else {
				done, err = s.write(cmd.Context(), cohort, kind, q)
			}
			if err != nil {
				return err
			}
			if a.json {
				return cli.PrintJSON(a.out, done)
			}
			fmt.Fprintf(a.out, "%s: %s\n", cohort, cli.Printable(done.Said))
			if done.Warning != "" {
				fmt.Fprintf(a.errOut, "muster: warning: %s\n", cli.Printable(done.Warning))
			}
			return nil
		},
	}
	s.flags(cmd)
	cmd.Flags().StringVar(&q.Reason, "reason", "", "why, for those who ask later")
	epoch := "only if this epoch is under way"
	if kind == rollout.Supersede {
		epoch = "only if this epoch is the one under way, whose place is taken"
	}
	cmd.Flags().Var(fromOne[uint64]{to: &q.Epoch}, "epoch", epoch)
	switch kind {
	case rollout.Approve:
		cmd.Flags().Var(fromOne[int]{to: &q.Wave}, "wave", "the wave to approve, also before it waits")
	case rollout.Freeze:
		cmd.Flags().StringVar(&until, "until", "", "its end: a time (2026-12-01T08:00:00Z), or a duration from now (48h)")
	}
	return cmd
}

// ask has the collector do it.
func (s *steering) ask(ctx context.Context, cohort string, kind rollout.ActionKind, q api.Act) (*api.Acted, error) {
	c, err := s.conn.open()
	if err != nil {
		return nil, err
	}
	defer c.Close()
	done, err := c.Act(ctx, cohort, string(kind), q)
	if errors.Is(err, api.ErrNotFound) || errors.Is(err, api.ErrNoCohort) {
		if kerr := cohortKnown(ctx, c, cohort); kerr != nil {
			return nil, kerr
		}
	}
	return done, err
}

// write does it in the store, and tells the collector, if one is named.
func (s *steering) write(ctx context.Context, cohort string, kind rollout.ActionKind, q api.Act) (*api.Acted, error) {
	o, err := s.open(ctx)
	if err != nil {
		return nil, err
	}
	h, err := o.history(ctx)
	if err != nil {
		return nil, err
	}
	in, trust, err := h.Steering(ctx, cohort)
	if errors.Is(err, distributor.ErrNoRelease) {
		known := []string{}
		if in.Release != nil {
			known = slices.Collect(maps.Keys(in.Release.Cohorts))
		}
		return nil, unknownCohort(cohort, known)
	}
	if err != nil {
		return nil, err
	}
	in.By = q.By
	done, err := rollout.Perform(ctx, o.store, trust, o.signer, in, rollout.Action{Kind: kind, By: q.By, Why: q.Reason, Wave: q.Wave, Epoch: q.Epoch, Until: q.Until}, time.Now())
	if err != nil {
		return nil, err
	}
	r := done.View.Manifest.Rollout
	out := &api.Acted{Cohort: cohort, Changed: done.Changed, Said: done.Said, Mark: done.View.Mark().String(), Target: r.Target, Phase: r.Phase}
	switch {
	case done.History != nil:
		out.Warning = done.History.Error()
	case done.Changed && s.conn.given():
		if err := s.conn.handOver(ctx, o.store, []string{cohort}); err != nil {
			out.Warning = fmt.Sprintf("the collector hears of it at its next look at the store: %v", err)
		}
	}
	return out, nil
}

// endOf reads a time, or a duration from now.
func endOf(s string, now time.Time) (time.Time, error) {
	fail := func(format string, args ...any) (time.Time, error) {
		return time.Time{}, cli.Fail(cli.Usage, "a time is written 2026-12-01T08:00:00Z, a duration from now 48h", format, args...)
	}
	if s == "" {
		return fail("--until is missing")
	}
	t, err := time.Parse(time.RFC3339, s)
	if d, derr := time.ParseDuration(s); derr == nil {
		t, err = now.Add(d), nil
	}
	switch {
	case err != nil:
		return fail("--until %q is neither a time nor a duration", s)
	case !t.After(now):
		return fail("--until %s is past", s)
	}
	return t.UTC().Truncate(time.Second), nil
}
