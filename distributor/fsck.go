package distributor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/store"
)

// Report is what Fsck found. Problems are faults; notices are worth a look.
type Report struct {
	Store    string    `json:"store"`   // its id
	Repo     string    `json:"repo"`    // of the keyring
	Keyring  string    `json:"keyring"` // which keyring was trusted: "given" or "the store's own"
	Newest   uint64    `json:"newest"`  // newest release that verifies
	Checked  Checked   `json:"checked"`
	Problems []Problem `json:"problems"`
	Notices  []Problem `json:"notices"`
}

// Checked counts the objects that were read and checked.
type Checked struct {
	Keyrings   int `json:"keyrings"`
	Releases   int `json:"releases"`
	Statements int `json:"statements"`
	Bundles    int `json:"bundles"`
	Sources    int `json:"sources"`
	Heads      int `json:"heads"`
	History    int `json:"history"`
	Commits    int `json:"commits"`
	Hosts      int `json:"hosts,omitempty"` // with --fleet
}

// Problem is one finding about one object.
type Problem struct {
	Key  string `json:"key"`
	What string `json:"what"`
	Next string `json:"next"` // what to do; "" in most notices
}

func (p Problem) String() string {
	if p.Next == "" {
		return p.Key + ": " + p.What
	}
	return p.Key + ": " + p.What + "; " + p.Next
}

// OK reports whether there are no problems.
func (r *Report) OK() bool { return len(r.Problems) == 0 }

// The next steps that findings name.
const (
	nextRestore   = "restore it from a backup of the store"
	nextRepublish = "publish the newest commit again with --rollout=now, which repairs heads"
	nextIndex     = "publish the commit again, which writes it anew; it decides nothing"
	nextRemove    = "nothing uses it; remove it when no publisher is running"
	nextWho       = "find out who wrote it, then remove it"
)

// fsck is one check of one store.
type fsck struct {
	st      store.Reader
	report  *Report
	now     time.Time
	trust   manifest.TrustState
	keyring manifest.Keyring
	storeID string

	releases map[uint64]*verified
	epochs   []uint64 // of releases, ascending
	junk     map[uint64]bool
	objects  map[string][]string // object digest → what names it
	heads    map[string]*manifest.View
}

// Fsck reads every object of a store and checks signatures, digests, the chain of releases and all references. It writes nothing. keyring is what a person trusts; nil
// trusts the store's own oldest one, and the report says so. An error means that the check could not be done.
func Fsck(ctx context.Context, st store.Reader, keyring []byte, now time.Time) (*Report, error) {
	return check(ctx, st, keyring, now, nil)
}

// check is Fsck with one more step.
func check(ctx context.Context, st store.Reader, keyring []byte, now time.Time, more func(*fsck) func(context.Context) error) (*Report, error) {
	f := &fsck{
		st: st, now: now, report: &Report{Problems: []Problem{}, Notices: []Problem{}, Keyring: "given"},
		releases: map[uint64]*verified{}, junk: map[uint64]bool{}, objects: map[string][]string{}, heads: map[string]*manifest.View{},
	}
	if err := f.identity(ctx, keyring); err != nil {
		return nil, err
	}
	// Heads before releases, and releases before what they name: what is written meanwhile is then never missed.
	steps := []func(context.Context) error{f.readHeads, f.history, f.readReleases, f.chain, f.headsAgree, f.bundles, f.sources, f.commits, f.strangers}
	if more != nil {
		steps = append(steps, more(f))
	}
	for _, step := range steps {
		if err := step(ctx); err != nil {
			return nil, fmt.Errorf("fsck: %w", err)
		}
	}
	for _, list := range [][]Problem{f.report.Problems, f.report.Notices} {
		slices.SortStableFunc(list, func(a, b Problem) int { return strings.Compare(a.Key, b.Key) })
	}
	return f.report, nil
}

func (f *fsck) problem(key, next, format string, args ...any) {
	f.report.Problems = append(f.report.Problems, Problem{Key: key, What: fmt.Sprintf(format, args...), Next: next})
}

func (f *fsck) notice(key, next, format string, args ...any) {
	f.report.Notices = append(f.report.Notices, Problem{Key: key, What: fmt.Sprintf(format, args...), Next: next})
}

// get reads a small object. ok is false when a finding says why it cannot be used.
func (f *fsck) get(ctx context.Context, key string, limit int64, next string) (data []byte, ok bool, err error) {
	obj, err := f.st.Get(ctx, key, limit)
	switch {
	case errors.Is(err, store.ErrNotFound):
		f.problem(key, next, "is missing")
		return nil, false, nil
	case errors.Is(err, store.ErrTooLarge):
		f.problem(key, next, "is larger than %d bytes", limit)
		return nil, false, nil
	case err != nil:
		return nil, false, f.unreadable(key, err)
	}
	return obj.Data, true, nil
}

// identity reads store.json and the keyrings: without them nothing else can be judged.
func (f *fsck) identity(ctx context.Context, given []byte) error {
	var err error
	if f.storeID, err = readStoreID(ctx, f.st); err != nil {
		if errors.Is(err, store.ErrNotFound) {
			return fmt.Errorf("fsck: no %s: this is not a muster store, or nothing was ever published: %w", manifest.KeyStore, err)
		}
		return fmt.Errorf("fsck: %w", err)
	}
	f.report.Store = f.storeID
	versions, err := keyringVersions(ctx, f.st)
	if err != nil {
		return fmt.Errorf("fsck: %w", err)
	}
	if given == nil {
		if len(versions) == 0 {
			return fmt.Errorf("fsck: store has no keyring, and none was given: give one with --keyring: %w", manifest.ErrKeyring)
		}
		f.report.Keyring = "the store's own"
		obj, err := f.st.Get(ctx, manifest.KeyKeyring(versions[0]), manifest.MaxKeyringBytes)
		if err != nil {
			return fmt.Errorf("fsck: read keyring: %w", err)
		}
		given = obj.Data
	}
	first, err := manifest.VerifyKeyring(given)
	if err != nil {
		return fmt.Errorf("fsck: keyring (%s): %w", f.report.Keyring, err)
	}
	if f.trust, err = manifest.NewTrust(first.Repo, given); err != nil {
		return fmt.Errorf("fsck: keyring (%s): %w", f.report.Keyring, err)
	}
	f.trust.Store = f.storeID
	f.report.Repo = first.Repo
	if !slices.Contains(versions, first.Version) {
		f.problem(manifest.KeyKeyring(first.Version), nextRestore, "is missing")
	}
	for _, v := range versions {
		if err := f.checkKeyring(ctx, v, first.Version, given); err != nil {
			return fmt.Errorf("fsck: %w", err)
		}
	}
	if f.keyring, err = f.trust.Keys(); err != nil {
		return fmt.Errorf("fsck: keyring: %w", err)
	}
	return nil
}

// checkKeyring checks one keyring of the store: those after the trusted one must follow it, those before must at least be whole.
func (f *fsck) checkKeyring(ctx context.Context, version, trusted uint64, given []byte) error {
	key := manifest.KeyKeyring(version)
	data, ok, err := f.get(ctx, key, manifest.MaxKeyringBytes, nextRestore)
	if err != nil || !ok {
		return err
	}
	f.report.Checked.Keyrings++
	switch {
	case version < trusted:
		if kr, err := manifest.VerifyKeyring(data); err != nil {
			f.problem(key, nextRestore, "%v", err)
		} else if kr.Version != version || kr.Repo != f.report.Repo {
			f.problem(key, nextRestore, "is keyring %d of repo %q", kr.Version, kr.Repo)
		}
	case version == trusted:
		if string(data) != string(given) {
			f.problem(key, "find out which one is genuine before anything else", "is another keyring than the one given")
		}
	default:
		next, err := f.trust.AcceptKeyring(data)
		if err != nil {
			f.problem(key, nextRestore, "%v", err)
			return nil
		}
		f.trust = next
	}
	return nil
}

// commits checks the index: every entry must say what the releases say.
func (f *fsck) commits(ctx context.Context) error {
	infos, err := listAll(ctx, f.st, manifest.PrefixCommits)
	if err != nil {
		return err
	}
	indexed, released := map[string]bool{}, map[string]uint64{}
	for _, epoch := range f.epochs { // ascending
		if rel := f.releases[epoch]; rel.Kind == manifest.ReleaseCommit {
			released[rel.Commit] = epoch
		}
	}
	for _, info := range infos {
		data, ok, err := f.get(ctx, info.Key, manifest.MaxSmallBytes, nextIndex)
		if err != nil {
			return err
		}
		if !ok {
			continue
		}
		f.report.Checked.Commits++
		ix, err := manifest.DecodeCommitIndex(data)
		if err != nil {
			f.problem(info.Key, nextIndex, "%v", err)
			continue
		}
		indexed[ix.Commit] = true
		rel, newest := f.releases[ix.Epoch], released[ix.Commit]
		switch {
		case manifest.KeyCommit(ix.Commit) != info.Key:
			f.problem(info.Key, nextIndex, "is about commit %s", ix.Commit)
		case ix.Epoch > f.report.Newest:
			// Published while this ran; a later check sees it whole.
		case ix.Epoch != 0 && (rel == nil || rel.Commit != ix.Commit):
			f.problem(info.Key, nextIndex, "says epoch %d, which is not a release of this commit", ix.Epoch)
		case ix.Epoch == 0 && newest != 0:
			f.notice(info.Key, nextIndex, "says that the commit was refused, and it is released as epoch %d", newest)
		case ix.Epoch < newest:
			f.notice(info.Key, nextIndex, "says epoch %d, and the commit is released as epoch %d too", ix.Epoch, newest)
		}
	}
	for _, epoch := range f.epochs {
		if rel := f.releases[epoch]; rel.Kind == manifest.ReleaseCommit && !indexed[rel.Commit] {
			indexed[rel.Commit] = true
			f.notice(manifest.KeyCommit(rel.Commit), nextIndex, "is missing: release %d is not in the index", epoch)
		}
	}
	return nil
}

// strangers names what no part of muster put there, and checks the documents that nobody signs.
func (f *fsck) strangers(ctx context.Context) error {
	known := []string{manifest.PrefixKeyrings, manifest.PrefixSources, manifest.PrefixBundles, manifest.PrefixReleases, manifest.PrefixCommits, manifest.PrefixCohorts, manifest.PrefixHistory, "deltas/"}
	infos, err := listAll(ctx, f.st, "")
	if err != nil {
		return err
	}
	for _, info := range infos {
		switch {
		case info.Key == manifest.KeyStore:
		case info.Key == manifest.KeyInventory:
			data, ok, err := f.get(ctx, info.Key, manifest.MaxReleaseBytes, "start the collector, which writes it anew")
			if err != nil {
				return err
			}
			if ok && !json.Valid(data) {
				f.problem(info.Key, "start the collector, which writes it anew", "is not JSON")
			}
		case strings.HasPrefix(info.Key, manifest.PrefixKeyrings):
			if _, ok := parseKeyringKey(info.Key); !ok {
				f.problem(info.Key, nextWho, "is not named like a keyring")
			}
		case !slices.ContainsFunc(known, func(p string) bool { return strings.HasPrefix(info.Key, p) }):
			f.notice(info.Key, nextWho, "is not an object of muster")
		}
	}
	return nil
}

// sorted gives the keys of a map in order.
func sorted[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
