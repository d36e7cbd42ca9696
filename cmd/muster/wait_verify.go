package main

import (
	"cmp"
	"context"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/muster-config/muster/cmd/internal/cli"
	"github.com/muster-config/muster/cmd/internal/keydir"
	"github.com/muster-config/muster/distributor/api"
	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/verdict"
	"github.com/muster-config/muster/distributor/wire"
)

// prover checks by signatures what the collector says is green.
type prover struct {
	on            bool
	keys, keyring string
	pinsFile      string

	// What is asked for: nothing of it is the collector's word. With a commit, the epoch is one that the collector found, and the signed release must be of that commit.
	epoch  uint64
	commit string
	cohort string
	strict bool

	from  evidence
	now   func() time.Time
	trust manifest.TrustState
	mu    sync.Mutex
	pins  map[string]ed25519.PublicKey // "<cohort>/<host>" → identity key
	fresh bool                         // there are new ones
}

// evidence is the part of the collector's client that hands out what is signed.
type evidence interface {
	Hosts(ctx context.Context, cohort, verdict string) ([]api.Host, error)
	HostSigned(ctx context.Context, host string) (*api.Host, error)
	GetHead(ctx context.Context, cohort string, after manifest.Mark, wait time.Duration) ([]byte, manifest.Mark, error)
	Object(ctx context.Context, key string) (io.ReadCloser, int64, error)
}

// verified is the part of `wait --verify --json` that was checked.
type verified struct {
	Proven  int        `json:"proven"`
	Owed    int        `json:"owed"`    // what they signed last is older than the release, as far as the collector shows
	Claimed []unproven `json:"claimed"` // of which only the collector says that they need not, or do, confirm
	Lacking []lacking  `json:"lacking"` // cohorts that too few hosts prove
	Pinned  bool       `json:"pinned"`  // identity keys were compared with those known before
}

// lacking is a cohort that is not proven, whatever its hosts say.
type lacking struct {
	Cohort string `json:"cohort"`
	Why    string `json:"why"`
}

type unproven struct {
	Host   string `json:"host"`
	Cohort string `json:"cohort"`
	Why    string `json:"why"`
	forged bool
}

func (p *prover) flags(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&p.on, "verify", false, "do not take the collector's word: check what hosts signed")
	cmd.Flags().StringVar(&p.keys, "keys", "", "with --verify: directory with the keyring.json to trust [MUSTER_KEYS]")
	cmd.Flags().StringVar(&p.keyring, "keyring", "", "with --verify: the keyring to trust")
	cmd.Flags().StringVar(&p.pinsFile, "pins", "", "with --verify: file that remembers the hosts' identity keys from one time to the next")
}

// open reads the keyring and the pins.
func (p *prover) open() error {
	path := p.keyring
	switch {
	case !p.on && (p.pinsFile != "" || p.keys != "" || p.keyring != ""):
		return cli.Fail(cli.Usage, "add --verify", "--keys, --keyring and --pins are for --verify")
	case !p.on:
		return nil
	case p.keys != "" && path != "":
		return cli.Fail(cli.Usage, "", "--keys and --keyring exclude each other")
	case path == "" && p.keys == "":
		p.keys = os.Getenv("MUSTER_KEYS")
	}
	if path == "" && p.keys == "" {
		return cli.Fail(cli.Usage, "give --keyring, or --keys, or set MUSTER_KEYS: the keyring as whoever keeps the root key gave it to you", "--verify needs a keyring that does not come from the collector")
	}
	if path == "" {
		path = filepath.Join(p.keys, keydir.Keyring)
	}
	data, repo, err := keydir.ReadKeyring(path)
	if err != nil {
		return err
	}
	if p.trust, err = manifest.NewTrust(repo, data); err != nil {
		return cli.Fail(cli.NotTrusted, "", "keyring %s: %w", path, err)
	}
	return p.readPins()
}

func (p *prover) readPins() error {
	p.pins = map[string]ed25519.PublicKey{}
	if p.pinsFile == "" {
		return nil
	}
	data, err := os.ReadFile(p.pinsFile)
	if errors.Is(err, fs.ErrNotExist) {
		p.fresh = true // also an empty one is written: that it can be is known now
		return nil
	}
	var texts map[string]string
	if err == nil {
		err = wire.Decode(data, &texts)
	}
	if err != nil {
		return cli.Fail(cli.Local, "it is an object of \"<cohort>/<host>\": \"<key in hex>\"", "--pins %s: %w", p.pinsFile, err)
	}
	for name, text := range texts {
		key, err := hex.DecodeString(text)
		if err != nil || len(key) != ed25519.PublicKeySize {
			return cli.Fail(cli.Local, "take the line out to know the host anew", "--pins %s: %s has no key of 32 bytes in hex", p.pinsFile, name)
		}
		p.pins[name] = key
	}
	return nil
}

// writePins remembers keys that were seen for the first time.
func (p *prover) writePins() error {
	if p.pinsFile == "" || !p.fresh {
		return nil
	}
	texts := map[string]string{}
	for name, key := range p.pins {
		texts[name] = hex.EncodeToString(key)
	}
	data, err := json.MarshalIndent(texts, "", "  ")
	if err != nil {
		return err
	}
	tmp, err := os.CreateTemp(filepath.Dir(p.pinsFile), "."+filepath.Base(p.pinsFile)+"-*")
	if err != nil {
		return cli.Fail(cli.Local, "", "--pins: %w", err)
	}
	defer os.Remove(tmp.Name()) // after the rename there is nothing
	_, err = tmp.Write(append(data, '\n'))
	err = errors.Join(err, tmp.Sync(), tmp.Close())
	if err == nil {
		err = os.Rename(tmp.Name(), p.pinsFile)
	}
	if err != nil {
		return cli.Fail(cli.Local, "", "--pins: %w", err)
	}
	p.fresh = false
	return nil
}

// run proves that what was asked for is confirmed, and tries again what may only be late until end.
func (p *prover) run(ctx context.Context, end time.Time, say progress) (*verified, error) {
	for {
		v, err := p.prove(ctx)
		if err != nil {
			return nil, err
		}
		if err := p.writePins(); err != nil {
			return v, err
		}
		forged := slices.ContainsFunc(v.Claimed, func(u unproven) bool { return u.forged })
		switch {
		case len(v.Claimed)+len(v.Lacking) == 0:
			return v, nil
		case forged:
			return v, cli.Fail(cli.NotTrusted, "find out who reports as these hosts before anything else; `muster hosts` shows what the collector knows", "epoch %d: reports that are not their hosts' own: %s", p.epoch, who(v.Claimed, true))
		case !p.now().Before(end):
			return v, cli.Fail(cli.No, "the collector says that it is confirmed; nothing that hosts signed does", "epoch %d is proven by %s, and %s", p.epoch, cli.Count(v.Proven, "host"), v.open())
		}
		say.line(fmt.Sprintf("epoch %d: proven by %s, and %s", p.epoch, cli.Count(v.Proven, "host"), v.open()))
		select {
		case <-ctx.Done():
			return v, ctx.Err()
		case <-time.After(min(time.Second, max(0, end.Sub(p.now())))):
		}
	}
}

// open is what is not proven, in one line.
func (v *verified) open() string {
	var parts []string
	if len(v.Claimed) > 0 {
		parts = append(parts, "only claimed of "+who(v.Claimed, false))
	}
	if len(v.Lacking) > 0 {
		var names []string
		for _, l := range v.Lacking {
			names = append(names, l.Cohort)
		}
		parts = append(parts, "by too few in cohort "+cli.Names(names, 10))
	}
	return strings.Join(parts, "; ")
}

// print says what was proven and what was not.
func (v *verified) print(w io.Writer, epoch uint64) {
	if v == nil {
		return
	}
	if v.Proven > 0 {
		text := fmt.Sprintf("epoch %d is proven by the signatures of %s", epoch, cli.Count(v.Proven, "host"))
		if v.Owed > 0 {
			text += fmt.Sprintf(", %s owed", cli.Number(v.Owed))
		}
		if !v.Pinned {
			text += "; their keys are those that the collector shows (--pins FILE remembers them)"
		}
		fmt.Fprintln(w, text)
	}
	rows := [][]string{}
	for _, u := range v.Claimed {
		rows = append(rows, []string{"  " + u.Host, u.Cohort, u.Why})
	}
	if len(rows) > 0 {
		fmt.Fprintln(w, "only claimed:")
		cli.PrintTable(w, rows)
	}
	for _, l := range v.Lacking {
		fmt.Fprintln(w, cli.Printable("not proven: cohort "+l.Cohort+": "+l.Why))
	}
}

func who(list []unproven, forged bool) string {
	var names []string
	for _, u := range list {
		if !forged || u.forged {
			names = append(names, u.Host)
		}
	}
	return cli.Names(names, 10)
}

// prove looks at every host of every cohort of the release that was asked for, as it was signed: the collector says neither which release nor which cohorts.
func (p *prover) prove(ctx context.Context) (*verified, error) {
	v := &verified{Claimed: []unproven{}, Lacking: []lacking{}, Pinned: p.pinsFile != ""}
	if err := p.followKeyrings(ctx); err != nil {
		return nil, err
	}
	rel, err := p.release(ctx)
	if err != nil {
		return nil, err
	}
	names := slices.Sorted(maps.Keys(rel.Cohorts))
	if p.cohort != "" {
		names = []string{p.cohort}
	}
	if len(names) == 0 {
		return nil, cli.Fail(cli.No, "", "release %d, as it was signed, has no cohort that could prove it", rel.Epoch)
	}
	for _, cohort := range names {
		if err := p.inCohort(ctx, v, rel, cohort); err != nil {
			return nil, err
		}
	}
	slices.SortFunc(v.Claimed, func(a, b unproven) int {
		return cmp.Or(cmp.Compare(a.Cohort, b.Cohort), cmp.Compare(a.Host, b.Host))
	})
	return v, nil
}

// release is the one asked for, verified.
func (p *prover) release(ctx context.Context) (*manifest.Release, error) {
	keys, err := p.trust.Keys()
	if err != nil {
		return nil, err
	}
	data, err := p.object(ctx, manifest.KeyRelease(p.epoch), manifest.MaxReleaseBytes)
	if err != nil {
		return nil, err
	}
	rel, _, err := manifest.VerifyRelease(keys, data)
	switch {
	case err != nil:
		return nil, cli.Fail(cli.NotTrusted, "the collector shows a release that the keyring given does not vouch for", "release %d: %w", p.epoch, err)
	case rel.Epoch != p.epoch:
		return nil, cli.Fail(cli.NotTrusted, "", "the collector shows release %d as release %d", rel.Epoch, p.epoch)
	case p.commit != "" && (rel.Commit != p.commit || rel.Kind != manifest.ReleaseCommit):
		return nil, cli.Fail(cli.NotTrusted, "", "the collector shows release %d as that of commit %s; it was signed for commit %s", rel.Epoch, cli.Short(p.commit), cli.Short(rel.Commit))
	}
	return rel, nil
}

func (p *prover) inCohort(ctx context.Context, v *verified, rel *manifest.Release, cohort string) error {
	part, ok := rel.Cohorts[cohort]
	switch {
	case !ok:
		return cli.Fail(cli.NotTrusted, "", "release %d, as it was signed, has no cohort %s", rel.Epoch, cohort)
	case part.State == manifest.StateBlocked || part.Epoch == 0:
		return cli.Fail(cli.NotTrusted, "correct what blocks it and publish that", "release %d, as it was signed, gives cohort %s nothing to confirm: %s", rel.Epoch, cohort, cmp.Or(part.Reason, "there is no statement"))
	}
	head, _, err := p.from.GetHead(ctx, cohort, manifest.Mark{}, 0)
	if errors.Is(err, api.ErrNotFound) {
		v.Lacking = append(v.Lacking, lacking{cohort, "the collector shows no head of it; if a later release took it away, name the others with --cohort"})
		return nil
	}
	if err != nil {
		return err
	}
	next, view, err := p.trust.AcceptHead(cohort, head, p.now())
	if err != nil {
		return cli.Fail(cli.NotTrusted, "the collector shows a head that the keyring given does not vouch for", "%w", err)
	}
	if view.Stale {
		return cli.Fail(cli.No, "the rollout controller signs it anew every hour, `muster rollout refresh` does where there is none", "the head of cohort %s is older than its fresh_until (%s): it proves nothing about now", cohort, view.Manifest.FreshUntil.UTC().Format(time.RFC3339))
	}
	if next.Store != rel.Store {
		return cli.Fail(cli.NotTrusted, "", "cohort %s: head and release %d are of two stores", cohort, rel.Epoch)
	}
	p.trust = next
	hosts, err := p.from.Hosts(ctx, cohort, "")
	if err != nil {
		return err
	}
	// Whom the signed release lists, the collector can neither leave out nor excuse.
	policy := rel.Policy.Cohorts[cohort].Hosts
	ask := map[string]bool{}
	for _, name := range policy.List {
		ask[name] = true
	}
	for _, h := range hosts {
		if h.Verdict != verdict.Retired && h.Verdict != verdict.Unexpected { // of these green speaks by itself: they are not counted
			ask[h.Host] = true
		}
	}
	excused := map[string]verdict.Code{}
	for _, h := range hosts {
		if h.Verdict == verdict.Retired || h.Verdict == verdict.Silent && !p.strict {
			excused[h.Host] = h.Verdict
		}
	}
	before := v.Proven
	// Releases follow each other as their commits do, so that each later one contains this one's.
	good := func(epoch uint64) bool { return epoch == part.Epoch || epoch > rel.Epoch }
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(8)
	for name := range ask {
		group.Go(func() error { return p.host(ctx, v, rel, view, good, cohort, name, excused[name]) })
	}
	if err := group.Wait(); err != nil {
		return err
	}
	least := 1
	if policy.Expect != nil {
		least = max(least, policy.Expect.Min)
	}
	if n := v.Proven - before; n < least {
		v.Lacking = append(v.Lacking, lacking{cohort, fmt.Sprintf("proven by %s, and it takes %d", cli.Count(n, "host"), least)})
	}
	return nil
}

// host looks at one host. One that the collector excuses need not confirm if what it signed last is from before the release.
func (p *prover) host(ctx context.Context, v *verified, rel *manifest.Release, view *manifest.View, good func(uint64) bool, cohort, name string, excuse verdict.Code) error {
	h, err := p.from.HostSigned(ctx, name)
	if err != nil && !errors.Is(err, api.ErrNotFound) {
		return err
	}
	c := verdict.Claim{Host: name, View: view, Good: good, Now: p.now()}
	if h != nil {
		c.Signed = h.Signed
	}
	id := cohort + "/" + name
	p.mu.Lock()
	c.Pinned = p.pins[id]
	p.mu.Unlock()
	if want, err := c.Assigned(); err == nil && want.Variants != nil {
		if c.Variants, err = p.variants(ctx, *want.Variants); err != nil {
			return err
		}
	}
	proven, err := verdict.Prove(c)
	owed := err != nil && excuse != "" && verdict.Before(c, rel)
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil && !owed {
		why := err.Error()
		if excuse != "" {
			why = fmt.Sprintf("the collector says %s, and %s", excuse, why)
		}
		v.Claimed = append(v.Claimed, unproven{Host: name, Cohort: cohort, Why: why, forged: errors.Is(err, verdict.ErrForged)})
		return nil
	}
	if p.pinsFile != "" && p.pins[id] == nil {
		p.pins[id], p.fresh = proven.Key, true
	}
	if owed {
		v.Owed++
		return nil
	}
	v.Proven++
	return nil
}

func (p *prover) variants(ctx context.Context, o manifest.Object) (*manifest.Variants, error) {
	data, err := p.object(ctx, manifest.KeyBundle(o.Object), manifest.MaxVariantsBytes)
	if err != nil {
		return nil, err
	}
	if sum := sha256.Sum256(data); "sha256:"+hex.EncodeToString(sum[:]) != o.Object {
		return nil, cli.Fail(cli.NotTrusted, "", "the collector shows other bytes for %s than were signed", o.Object)
	}
	var doc manifest.Variants
	if err := wire.Decode(data, &doc); err != nil {
		return nil, err
	}
	return &doc, nil
}

// followKeyrings takes the keyrings that follow the one given, each signed by its predecessor's root keys.
func (p *prover) followKeyrings(ctx context.Context) error {
	for range 100 {
		keys, err := p.trust.Keys()
		if err != nil {
			return err
		}
		data, err := p.object(ctx, manifest.KeyKeyring(keys.Version+1), manifest.MaxKeyringBytes)
		if errors.Is(err, api.ErrNotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		if p.trust, err = p.trust.AcceptKeyring(data); err != nil {
			return cli.Fail(cli.NotTrusted, "", "keyring %d: %w", keys.Version+1, err)
		}
	}
	return nil
}

func (p *prover) object(ctx context.Context, key string, limit int64) ([]byte, error) {
	body, size, err := p.from.Object(ctx, key)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", key, err)
	}
	defer body.Close()
	if size > limit {
		return nil, cli.Fail(cli.NotTrusted, "", "%s is said to have %d bytes, at most %d are read", key, size, limit)
	}
	data, err := io.ReadAll(io.LimitReader(body, limit))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", key, err)
	}
	return data, nil
}
