package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/muster-config/muster/cmd/internal/cli"
	"github.com/muster-config/muster/cmd/internal/keydir"
	"github.com/muster-config/muster/cmd/internal/through"
	"github.com/muster-config/muster/distributor"
	"github.com/muster-config/muster/distributor/api"
	"github.com/muster-config/muster/distributor/keys"
	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/rollout"
	"github.com/muster-config/muster/distributor/rollout/standing"
	"github.com/muster-config/muster/distributor/store"
	"github.com/muster-config/muster/distributor/store/open"
)

func (a *app) overrideCmd() *cobra.Command {
	return group("override", "change values on hosts now, for a time, without a commit", a.overrideSetCmd(), a.overrideListCmd(), a.overrideExtendCmd(), a.overrideEndCmd(), a.overridePullCmd())
}

// operating is how a command changes a store with the operator key. A collector, if there is one, only hears of it sooner.
type operating struct {
	conn     connection
	storeURL string
	dir      string
	keyring  string
	key      string
}

func (s *operating) flags(cmd *cobra.Command) {
	s.conn.flags(cmd)
	cmd.Flags().StringVar(&s.storeURL, "store", "", "the store's URL [MUSTER_STORE]; without one the collector reads and writes it")
	cmd.Flags().StringVar(&s.dir, "keys", "", "directory with keyring.json and operator.key [MUSTER_KEYS]")
	cmd.Flags().StringVar(&s.keyring, "keyring", "", "the keyring to trust, if it is not in --keys")
	cmd.Flags().StringVar(&s.key, "operator-key", "", "the operator key, if it is not in --keys: a path, env:NAME or exec:COMMAND")
}

func (s *operating) open(ctx context.Context) (*distributor.Operator, store.Store, error) {
	at, err := envOr("store", s.storeURL, "MUSTER_STORE")
	over := s.conn.given() && s.storeURL == "" && os.Getenv("MUSTER_STORE") == ""
	if err != nil && !over {
		return nil, nil, err
	}
	keyring, signer, err := s.signing(ctx)
	if err != nil {
		return nil, nil, err
	}
	if over {
		return s.through(ctx, keyring, signer)
	}
	st, err := open.Open(ctx, at)
	if err != nil {
		return nil, nil, cli.Fail(codeOr(err, cli.Usage), storeHint(at), "%w", err)
	}
	o, err := distributor.OpenOperator(ctx, st, keyring, signer, time.Now)
	if errors.Is(err, store.ErrNotFound) {
		return nil, nil, noStoreAt(st.URL(), err)
	}
	return o, st, err
}

// signing is the keyring to trust, and the operator key.
func (s *operating) signing(ctx context.Context) ([]byte, manifest.Signer, error) {
	dir, ring, key := s.dir, s.keyring, s.key
	if dir == "" {
		dir = os.Getenv("MUSTER_KEYS")
	}
	if dir == "" && (ring == "" || key == "") {
		return nil, nil, cli.Fail(cli.Usage, "give --keys, or set MUSTER_KEYS; or give --keyring and --operator-key", "--keys is missing")
	}
	if ring == "" {
		ring = filepath.Join(dir, keydir.Keyring)
	}
	if key == "" {
		key = filepath.Join(dir, keydir.Operator)
	}
	keyring, _, err := keydir.ReadKeyring(ring)
	if err != nil {
		return nil, nil, err
	}
	signer, err := keys.Open(ctx, key)
	if err != nil {
		return nil, nil, cli.Fail(codeOr(err, cli.Usage), "the operator key is in the directory that `muster keys init` made", "operator key: %w", err)
	}
	return keyring, signer, nil
}

// through is for who has an operator key and a token, and no rights on the bucket: the collector reads and writes it, and holds what is written to the rules.
func (s *operating) through(ctx context.Context, keyring []byte, signer manifest.Signer) (*distributor.Operator, store.Store, error) {
	client, err := s.conn.open()
	if err != nil {
		return nil, nil, err
	}
	st := through.New(client)
	o, err := distributor.OpenOperator(ctx, st, keyring, signer, time.Now)
	if err != nil {
		return nil, nil, err
	}
	o.Putter = st.PutOverride
	return o, st, nil
}

// told hands new heads to the collector, if one is named.
func (s *operating) told(ctx context.Context, a *app, st store.Store, cohorts []string) {
	if _, it := st.(*through.Store); it || !s.conn.given() {
		return // it did that itself
	}
	if err := s.conn.handOver(ctx, st, cohorts); err != nil {
		fmt.Fprintf(a.errOut, "muster: warning: the collector hears of it at its next look at the store: %s\n", cli.Printable(err.Error()))
	}
}

// overrideEntry is a line of `override list --json`.
type overrideEntry struct {
	ID       string    `json:"id"`
	Cohort   string    `json:"cohort"`
	Hosts    []string  `json:"hosts"` // empty: the whole cohort
	Services []string  `json:"services"`
	Epoch    uint64    `json:"epoch"`
	Author   string    `json:"author"`
	Reason   string    `json:"reason"`
	Created  time.Time `json:"created"`
	NotAfter time.Time `json:"not_after"`
	Ending   bool      `json:"ending,omitempty"` // it ends in steps already
	Yields   bool      `json:"yields,omitempty"` // it acts on nobody: the release that it was laid over was taken back
	Under    []string  `json:"under,omitempty"`  // newer overrides of the cohort that change a service of it too: on one path the newer wins
}

func overrideEntries(found []distributor.Found) []overrideEntry {
	list := []overrideEntry{}
	for i, f := range found {
		e := overrideEntry{
			ID: f.ID, Cohort: f.Cohort, Hosts: append([]string{}, f.Hosts...), Services: servicesOf(f.Patches), Epoch: f.Epoch, Author: f.Author, Reason: f.Reason,
			Created: f.Created.UTC(), NotAfter: f.NotAfter.UTC(),
			Yields: f.View.Yields(&f.Override, time.Now()),
			Ending: slices.ContainsFunc(f.View.Manifest.Rollout.Endings, func(e manifest.Ending) bool { return e.Override == f.ID }),
		}
		for _, later := range found[i+1:] {
			if later.Cohort == f.Cohort && slices.ContainsFunc(e.Services, func(s string) bool { return slices.Contains(servicesOf(later.Patches), s) }) {
				e.Under = append(e.Under, later.ID)
			}
		}
		list = append(list, e)
	}
	return list
}

// printActive says what was decided by hand, or by a halt, and acts on cohorts, or on one: whoever looks at what runs must know of that first.
func printActive(w io.Writer, st *api.Status, only string, now time.Time) (said []string) {
	for _, name := range slices.Sorted(maps.Keys(st.Cohorts)) {
		if only == "" || name == only {
			said = append(said, standing.Lines(name, st.Cohorts[name], now)...)
		}
	}
	for _, line := range said {
		fmt.Fprintln(w, cli.Printable(line))
	}
	return said
}

func servicesOf(patches []manifest.Patch) []string {
	names := []string{}
	for _, p := range patches {
		names = append(names, p.Service)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

func (a *app) overrideListCmd() *cobra.Command {
	var from reading
	cmd := &cobra.Command{
		Use: "list", Short: "the overrides that act now, and until when",
		Long: `Prints the overrides that act now, a line for each cohort. It reads the store alone,
and verifies what it reads. What they change, "muster override set" has shown, and
the hosts' files have; the patches themselves are not printed, since they may hold
secrets.`,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			h, err := from.history(cmd.Context())
			if err != nil {
				return err
			}
			found, err := h.Overrides(cmd.Context())
			if err != nil {
				return err
			}
			a.noteSkipped(h)
			list := overrideEntries(found)
			if a.json {
				return cli.PrintJSON(a.out, list)
			}
			if len(list) == 0 {
				fmt.Fprintln(a.out, "no override acts now")
				return nil
			}
			now := time.Now()
			rows := [][]string{{"OVERRIDE", "COHORT", "HOSTS", "SERVICES", "EPOCH", "AGE", "ENDS", "BY", "REASON"}}
			for _, e := range list {
				hosts := "all"
				if len(e.Hosts) > 0 {
					hosts = cli.Names(e.Hosts, 3)
				}
				ends := e.NotAfter.Format(time.RFC3339)
				if e.Ending {
					ends += ", in steps now"
				}
				rows = append(rows, []string{e.ID, e.Cohort, hosts, cli.Names(e.Services, 3), fmt.Sprint(e.Epoch), cli.Elapsed(now.Sub(e.Created)), ends, e.Author, e.Reason})
			}
			cli.PrintTable(a.out, rows)
			for _, e := range list {
				if e.Yields {
					fmt.Fprintf(a.out, "%s on %s acts on no host now: what it was laid over was taken back; it acts again with the next release, `muster override end %s` ends it\n", e.ID, e.Cohort, e.ID)
				}
				if len(e.Under) > 0 {
					fmt.Fprintf(a.out, "%s on %s: %s lies above it; on one path the newer wins\n", e.ID, e.Cohort, cli.Names(e.Under, 3))
				}
				if age := now.Sub(e.Created); age > api.OldAfter {
					fmt.Fprintf(a.out, "%s on %s is %s old: bring what it says into the config repo, and end it\n", e.ID, e.Cohort, cli.Elapsed(age))
				}
			}
			return nil
		},
	}
	from.flags(cmd)
	return cmd
}

// livingOf are the living overrides of an id, on the cohorts given or on all.
func livingOf(found []distributor.Found, id string, cohorts []string) ([]distributor.Found, error) {
	var list []distributor.Found
	ids, on := map[string]bool{}, map[string]bool{}
	for _, f := range found {
		ids[f.ID] = true
		if f.ID == id {
			on[f.Cohort] = true
		}
		if f.ID == id && (len(cohorts) == 0 || slices.Contains(cohorts, f.Cohort)) {
			list = append(list, f)
		}
	}
	if len(list) > 0 {
		for _, c := range cohorts {
			if !on[c] {
				return nil, cli.Fail(cli.Usage, "it acts on "+cli.Names(slices.Collect(maps.Keys(on)), 10), "override %s does not act on cohort %s", id, c)
			}
		}
		return list, nil
	}
	hint := "`muster override list` shows those that act; one that has ended needs nothing"
	if s := cli.Suggest(id, slices.Collect(maps.Keys(ids))); s != "" {
		hint = s
	}
	return nil, cli.Fail(cli.No, hint, "no override %s acts now", cli.Printable(id))
}

func (a *app) overrideExtendCmd() *cobra.Command {
	return a.overrideChangeCmd("extend ID", "let an override last longer", `Lets an override last for --ttl from now. Who and why stand in the override itself
from then on, the reason after the first one. The operator key's longest time counts
anew.`, true,
		func(ctx context.Context, o *distributor.Operator, f distributor.Found, ttl time.Duration, reason string) (*rollout.Applied, string, error) {
			done, err := o.Extend(ctx, f, ttl, whoami(), reason)
			return done, "lasts until " + time.Now().Add(ttl).UTC().Format(time.RFC3339), err
		})
}

func (a *app) overrideEndCmd() *cobra.Command {
	return a.overrideChangeCmd("end ID", "end an override now", `Ends an override now, on all its hosts at once: each goes to what its rollout says
now. Without this it ends by itself at its time.`, false,
		func(ctx context.Context, o *distributor.Operator, f distributor.Found, _ time.Duration, reason string) (*rollout.Applied, string, error) {
			done, err := o.End(ctx, f, whoami(), reason)
			return done, "ended", err
		})
}

// overrideChangeCmd is extend or end.
func (a *app) overrideChangeCmd(use, short, long string, lasts bool, do func(context.Context, *distributor.Operator, distributor.Found, time.Duration, string) (*rollout.Applied, string, error)) *cobra.Command {
	var s operating
	var cohorts []string
	var reason, ttl string
	cmd := &cobra.Command{
		Use: use, Short: short, Long: long, Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx := cmd.Context()
			if strings.TrimSpace(reason) == "" {
				return cli.Fail(cli.Usage, "say why with --reason: it is kept, and shown to those who ask later", "--reason is missing")
			}
			var d time.Duration
			if lasts {
				var err error
				if d, err = ttlOf(ttl); err != nil {
					return err
				}
			}
			o, st, err := s.open(ctx)
			if err != nil {
				return err
			}
			found, err := o.Overrides(ctx)
			if err != nil {
				return err
			}
			if found, err = livingOf(found, args[0], cohorts); err != nil {
				return err
			}
			for _, f := range found {
				if !lasts {
					break
				}
				if err := o.May(f.Cohort, d); err != nil {
					return cli.Fail(cli.NotTrusted, "take the key of somebody who may, or a shorter --ttl", "%w", err)
				}
			}
			type changed struct {
				ID     string `json:"id"`
				Cohort string `json:"cohort"`
				Said   string `json:"said"`
			}
			list := []changed{}
			var names []string
			var failed error
			for _, f := range found {
				done, said, err := do(ctx, o, f, d, reason)
				if err != nil {
					failed = errors.Join(failed, err)
					continue
				}
				if done.History != nil {
					fmt.Fprintf(a.errOut, "muster: warning: %s\n", cli.Printable(done.History.Error()))
				}
				list, names = append(list, changed{f.ID, f.Cohort, said}), append(names, f.Cohort)
			}
			s.told(ctx, a, st, names)
			if a.json {
				if err := cli.PrintJSON(a.out, list); err != nil {
					return err
				}
				return failed
			}
			for _, c := range list {
				fmt.Fprintf(a.out, "%s: override %s %s\n", c.Cohort, c.ID, c.Said)
			}
			return failed
		},
	}
	s.flags(cmd)
	cmd.Flags().StringSliceVar(&cohorts, "cohort", nil, "only on these cohorts")
	cmd.Flags().StringVar(&reason, "reason", "", "why, for those who ask later")
	if lasts {
		cmd.Flags().StringVar(&ttl, "ttl", "", "how long it lasts from now on, as in 2h")
	}
	return cmd
}

// ttlOf reads how long an override lasts. What the operator key allows, is its own matter.
func ttlOf(s string) (time.Duration, error) {
	const hint = "a duration is written 45m or 2h; how long at most, the operator key's role says"
	if s == "" {
		return 0, cli.Fail(cli.Usage, hint, "--ttl is missing")
	}
	d, err := time.ParseDuration(s)
	if err != nil {
		return 0, cli.Fail(cli.Usage, hint, "--ttl %q is not a duration", s)
	}
	if d < time.Second {
		return 0, cli.Fail(cli.Usage, hint, "--ttl %s: an override lasts a second at least", s)
	}
	return d.Truncate(time.Second), nil
}
