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
	var until, lasts string
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
				if until != "" && lasts != "" {
					return cli.Fail(cli.Usage, "", "--until and --for exclude each other")
				}
				if lasts != "" {
					if d, err := cli.Duration(lasts); err != nil || d < time.Second {
						return cli.Fail(cli.Usage, "a duration is written 90m, 48h or 3d", "--for %q is not a duration of a second or more", lasts)
					}
					until = lasts
				}
				end, err := endOf(until, time.Now())
				if err != nil {
					return err
				}
				q.Until = &end
			}
			return a.act(cmd.Context(), &s, cohort, kind, q)
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
	case rollout.Resume:
		cmd.Flags().BoolVar(&q.Aborted, "aborted", false, "also what somebody else aborted or rolled back")
	case rollout.Freeze:
		cmd.Flags().StringVar(&lasts, "for", "", "how long it lasts (4h, 3d)")
		cmd.Flags().StringVar(&until, "until", "", "its end: a time (2026-12-01T08:00:00Z), or a duration from now (48h, 3d)")
	}
	return cmd
}

// act does it, and says what was done.
func (a *app) act(ctx context.Context, s *steering, cohort string, kind rollout.ActionKind, q api.Act) error {
	q.By = whoami()
	through, err := s.through()
	if err != nil {
		return err
	}
	var done *api.Acted
	if through {
		done, err = s.ask(ctx, cohort, kind, q)
		err = withoutCollector(err, "the command writes the order itself")
	} else {
		done, err = s.write(ctx, cohort, kind, q)
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
}

// withoutCollector says how to go on when the collector is away.
func withoutCollector(err error, does string) error {
	if !errors.Is(err, api.ErrUnreachable) {
		return err
	}
	way := "give --store and --keys (a collector named by MUSTER_COLLECTOR: unset it)"
	return cli.Fail(cli.CodeOf(err, rules...), "without it: "+way+", and "+does, "%w", err)
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
	in, trust, action, err := s.prepare(ctx, o, cohort, kind, q)
	if err != nil {
		return nil, err
	}
	done, err := rollout.Perform(ctx, o.store, trust, o.signer, in, action, time.Now())
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

// prepare reads from the store what an action looks at beside the head, and from the collector, if one is named, what the hosts run that a hold names.
func (s *steering) prepare(ctx context.Context, o *signed, cohort string, kind rollout.ActionKind, q api.Act) (in rollout.Input, trust manifest.TrustState, a rollout.Action, err error) {
	a = rollout.Action{
		Kind: kind, By: q.By, Why: q.Reason, Wave: q.Wave, Epoch: q.Epoch, Until: q.Until,
		Hosts: q.Hosts, To: q.To, Now: q.Now, DropOverrides: q.DropOverrides, Aborted: q.Aborted,
	}
	h, err := o.history(ctx)
	if err != nil {
		return in, trust, a, err
	}
	in, trust, err = h.Steering(ctx, cohort)
	if errors.Is(err, distributor.ErrNoRelease) {
		known := []string{}
		if in.Release != nil {
			known = slices.Collect(maps.Keys(in.Release.Cohorts))
		}
		return in, trust, a, unknownCohort(cohort, known)
	}
	if err != nil {
		return in, trust, a, err
	}
	in.By, in.Named = q.By, map[uint64]manifest.Envelope{}
	if a.To != 0 {
		env, epoch, err := h.Plain(ctx, cohort, a.To)
		if errors.Is(err, distributor.ErrNoRelease) {
			return in, trust, a, cli.Fail(cli.Usage, "`muster log "+cohort+"` lists its releases", "%w", err)
		}
		if err != nil {
			return in, trust, a, err
		}
		a.To, in.Named[epoch] = epoch, env
	}
	if kind != rollout.Hold {
		return in, trust, a, nil
	}
	if list := in.Release.Policy.Cohorts[cohort].Hosts.List; len(list) > 0 {
		for _, host := range a.Hosts {
			if !slices.Contains(list, host) {
				return in, trust, a, unknownHost(host, cohort, list)
			}
		}
	}
	if !s.conn.given() {
		return in, trust, a, nil
	}
	if a.Runs, err = s.conn.runs(ctx, cohort, a.Hosts); err != nil {
		if a.To == 0 {
			return in, trust, a, err
		}
		a.Runs = nil // named is what they are held at
	}
	for _, epoch := range a.Runs {
		if env, of, err := h.Plain(ctx, cohort, epoch); err == nil && of == epoch {
			in.Named[epoch] = env
		}
	}
	return in, trust, a, nil
}

func unknownHost(host, cohort string, known []string) error {
	return cli.Fail(cli.Usage, strings.TrimSpace(cli.Suggest(host, known)+" `muster hosts` lists them"), "no host %q in cohort %s", host, cohort)
}

// runs asks the collector what hosts of a cohort run.
func (c *connection) runs(ctx context.Context, cohort string, hosts []string) (map[string]uint64, error) {
	client, err := c.open()
	if err != nil {
		return nil, err
	}
	defer client.Close()
	list, err := client.Hosts(ctx, cohort, "")
	if err != nil {
		return nil, err
	}
	runs, known := map[string]uint64{}, []string{}
	for _, h := range list {
		known = append(known, h.Host)
		if slices.Contains(hosts, h.Host) {
			runs[h.Host] = h.Running
		}
	}
	for _, h := range hosts {
		if _, ok := runs[h]; !ok {
			return nil, unknownHost(h, cohort, known)
		}
	}
	return runs, nil
}

// endOf reads a time, or a duration from now.
func endOf(s string, now time.Time) (time.Time, error) {
	fail := func(format string, args ...any) (time.Time, error) {
		return time.Time{}, cli.Fail(cli.Usage, "a time is written 2026-12-01T08:00:00Z, a duration from now 48h or 3d", format, args...)
	}
	if s == "" {
		return fail("--until is missing")
	}
	t, err := time.Parse(time.RFC3339, s)
	if d, derr := cli.Duration(s); derr == nil {
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
