package distributor

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/store"
)

// reader reads one store, believing only what its keyring vouches for. Not safe for concurrent use.
type reader struct {
	st  store.Reader
	url string
	log *slog.Logger
	now func() time.Time

	storeID  string
	trust    manifest.TrustState
	keyring  manifest.Keyring
	releases map[uint64]*verified // verified ones, by epoch; immutable, so read once
	blocked  map[uint64]bool      // epochs whose key is taken by something that no list shows and nobody can read
	indexes  *indexes
	living   map[string][]manifest.VerifiedOverride // cohort → the overrides that live on it, as lost last read the heads
}

func newReader(st store.Reader, url string, log *slog.Logger, now func() time.Time, known *indexes) *reader {
	return &reader{st: st, url: url, log: log, now: now, releases: map[uint64]*verified{}, blocked: map[uint64]bool{}, indexes: known}
}

// verified is a release that verified, with the digest of its payload.
type verified struct {
	*manifest.Release
	digest string
}

func (r *reader) readIndex(ctx context.Context, commit string) (*manifest.CommitIndex, error) {
	obj, err := r.st.Get(ctx, manifest.KeyCommit(commit), manifest.MaxSmallBytes)
	if err != nil {
		return nil, err
	}
	return manifest.DecodeCommitIndex(obj.Data)
}

// keyringVersions lists the versions of the store's keyrings, ascending. What is not named like a keyring is left to fsck.
func keyringVersions(ctx context.Context, st store.Reader) ([]uint64, error) {
	infos, err := listAll(ctx, st, manifest.PrefixKeyrings)
	if err != nil {
		return nil, err
	}
	var versions []uint64
	for _, info := range infos {
		if v, ok := parseKeyringKey(info.Key); ok {
			versions = append(versions, v)
		}
	}
	slices.Sort(versions)
	return versions, nil
}

func parseKeyringKey(key string) (uint64, bool) {
	name, ok := strings.CutSuffix(strings.TrimPrefix(key, manifest.PrefixKeyrings), ".json")
	v, err := strconv.ParseUint(name, 10, 64)
	return v, ok && err == nil && manifest.KeyKeyring(v) == key
}

func readStoreID(ctx context.Context, st store.Reader) (string, error) {
	obj, err := st.Get(ctx, manifest.KeyStore, manifest.MaxSmallBytes)
	if err != nil {
		return "", fmt.Errorf("read the store's identity: %w", err)
	}
	id, err := manifest.DecodeStoreID(obj.Data)
	if err != nil {
		return "", fmt.Errorf("%s: %w", manifest.KeyStore, err)
	}
	return id.ID, nil
}

// listAll lists everything under prefix.
func listAll(ctx context.Context, st store.Reader, prefix string) ([]store.Info, error) {
	var all []store.Info
	for after := ""; ; {
		page, err := st.List(ctx, prefix, after, pageSize)
		if err != nil {
			return nil, fmt.Errorf("list %q: %w", prefix, err)
		}
		all = append(all, page...)
		if len(page) < pageSize {
			return all, nil
		}
		after = page[len(page)-1].Key
	}
}

// pageSize is what S3 gives at most.
const pageSize = 1000
