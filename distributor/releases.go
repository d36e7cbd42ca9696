package distributor

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"maps"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/store"
)

// newest reads the newest release that verifies, nil if there is none, and the epoch that comes next. An epoch held by junk is burnt: anybody who may write
// the bucket can put it there, so it must neither stop publishing nor be taken for a release.
func (r *reader) newest(ctx context.Context) (newest *verified, next uint64, err error) {
	epochs, err := r.lastEpochs(ctx)
	if err != nil {
		return nil, 0, err
	}
	burnt := maps.Clone(r.blocked)
	for i := len(epochs) - 1; i >= 0; i-- {
		rel, err := r.at(ctx, epochs[i])
		if err == nil {
			err = r.onlyOverrides(ctx, rel)
		}
		if err == nil {
			newest = rel
			break
		}
		if !errors.Is(err, errJunk) {
			return nil, 0, err
		}
		r.log.Warn("epoch is held by junk and skipped", "epoch", epochs[i], "err", err)
		burnt[epochs[i]] = true
		if i == 0 && epochs[0] > 1 {
			// All of the last page is junk: go on with what comes before it.
			earlier, err := r.epochsBefore(ctx, epochs[0])
			if err != nil {
				return nil, 0, err
			}
			epochs, i = earlier, len(earlier)
		}
	}
	next = 1
	if newest != nil {
		next = newest.Epoch + 1
	}
	for burnt[next] {
		next++
	}
	if next > manifest.MaxCounter {
		return nil, 0, fmt.Errorf("store %s has no epoch left", r.url)
	}
	return newest, next, nil
}

// lastEpochs gives the last epochs that have an object, ascending: at most a page. Names have a fixed width, so a long list is not read but searched.
func (r *reader) lastEpochs(ctx context.Context) ([]uint64, error) {
	page, stray, full, err := r.epochsAfter(ctx, 0)
	switch {
	case err != nil || !full:
		return page, err
	case stray:
		return r.allEpochsBefore(ctx, manifest.MaxCounter+1)
	}
	return r.epochsBefore(ctx, manifest.MaxCounter+1)
}

// epochsBefore gives, ascending, the epochs with an object in the page's worth of numbers that ends with the last one before bound. Junk may hold numbers far
// above the genuine ones, so the last one is found by halving: 53 short lists at most. Names that are no release mislead the halving; then all names are read.
func (r *reader) epochsBefore(ctx context.Context, bound uint64) ([]uint64, error) {
	lo, hi := uint64(0), bound-1 // the last one is in (lo, hi], or there is none
	for hi-lo > 1 {
		mid := lo + (hi-lo)/2
		first, err := r.st.List(ctx, manifest.PrefixReleases, manifest.KeyRelease(mid), 1)
		if err != nil {
			return nil, fmt.Errorf("list releases: %w", err)
		}
		if len(first) > 0 {
			if _, ok := manifest.ParseReleaseKey(first[0].Key); !ok {
				return r.allEpochsBefore(ctx, bound)
			}
		}
		if len(first) > 0 && first[0].Key < manifest.KeyRelease(bound) {
			lo = mid
		} else {
			hi = mid
		}
	}
	page, stray, full, err := r.epochsAfter(ctx, hi-min(hi, pageSize))
	if err != nil {
		return nil, err
	}
	if stray && full {
		return r.allEpochsBefore(ctx, bound)
	}
	for len(page) > 0 && page[len(page)-1] >= bound {
		page = page[:len(page)-1]
	}
	return page, nil
}

// allEpochsBefore reads every name and gives the last page of epochs before bound.
func (r *reader) allEpochsBefore(ctx context.Context, bound uint64) ([]uint64, error) {
	infos, err := listAll(ctx, r.st, manifest.PrefixReleases)
	if err != nil {
		return nil, err
	}
	var epochs []uint64
	for _, info := range infos {
		if e, ok := manifest.ParseReleaseKey(info.Key); ok && e < bound {
			epochs = append(epochs, e)
		}
	}
	return epochs[max(0, len(epochs)-pageSize):], nil
}

// epochsAfter reads one page of names: the epochs in it, whether there were names that are no release, and whether the page was full, so that more may follow.
func (r *reader) epochsAfter(ctx context.Context, epoch uint64) (epochs []uint64, stray, full bool, err error) {
	after := ""
	if epoch > 0 {
		after = manifest.KeyRelease(epoch)
	}
	infos, err := r.st.List(ctx, manifest.PrefixReleases, after, pageSize)
	if err != nil {
		return nil, false, false, fmt.Errorf("list releases: %w", err)
	}
	for _, info := range infos {
		if e, ok := manifest.ParseReleaseKey(info.Key); ok {
			epochs = append(epochs, e)
		} else {
			stray = true
		}
	}
	return epochs, stray, len(infos) == pageSize, nil
}

// headReaders bounds how many heads are read at once.
const headReaders = 16

// lost refuses to go on when a genuine head names a release above the newest that is there: releases are never deleted, so the store has lost some. To number anew
// from what is left would give one epoch two contents, and hosts that run the lost one would seem to confirm the new one.
func (r *reader) lost(ctx context.Context, newest *verified) error {
	have := uint64(0)
	if newest != nil {
		have = newest.Epoch
	}
	infos, err := listAll(ctx, r.st, manifest.PrefixCohorts)
	if err != nil {
		return err
	}
	named := make([]uint64, len(infos))
	living := make([][]manifest.VerifiedOverride, len(infos))
	group, gctx := errgroup.WithContext(ctx)
	group.SetLimit(headReaders)
	for i, info := range infos {
		group.Go(func() error {
			obj, err := r.st.Get(gctx, info.Key, manifest.MaxHeadBytes)
			if errors.Is(err, store.ErrNotFound) || errors.Is(err, store.ErrTooLarge) {
				return nil
			}
			if err != nil {
				return fmt.Errorf("read %s: %w", info.Key, err)
			}
			cohort := strings.TrimSuffix(strings.TrimPrefix(info.Key, manifest.PrefixCohorts), ".json")
			if _, view, err := r.trust.AcceptHead(cohort, obj.Data, r.now()); err == nil { // what is not genuine says nothing
				for _, st := range view.Statements {
					named[i] = max(named[i], st.Epoch)
				}
				living[i] = stillOn(view, r.now())
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	r.living = map[string][]manifest.VerifiedOverride{}
	for i, info := range infos {
		r.living[strings.TrimSuffix(strings.TrimPrefix(info.Key, manifest.PrefixCohorts), ".json")] = living[i]
	}
	for i, epoch := range named {
		if epoch <= have {
			continue
		}
		if _, err := r.at(ctx, epoch); err == nil {
			continue // published since ours was read
		} else if !errors.Is(err, store.ErrNotFound) && !errors.Is(err, errJunk) {
			return err
		}
		return fmt.Errorf("%s names release %d, and %s does not hold it: %w: the store lost releases; nothing was published: restore them from a backup, an epoch is never given out twice",
			infos[i].Key, epoch, manifest.KeyRelease(epoch), ErrDamaged)
	}
	return nil
}

// errJunk says that what holds an epoch is not a release of this store.
var errJunk = errors.New("not a release of this store")

// at reads the release of an epoch. errJunk if no release key of the keyring signed it for this place; a signed one that cannot be read is an error, since to
// go on without it would build on an older state.
func (r *reader) at(ctx context.Context, epoch uint64) (*verified, error) {
	if rel, ok := r.releases[epoch]; ok {
		return rel, nil
	}
	key := manifest.KeyRelease(epoch)
	obj, err := r.st.Get(ctx, key, manifest.MaxReleaseBytes)
	switch {
	case errors.Is(err, store.ErrTooLarge):
		return nil, fmt.Errorf("%s: %w: %w", key, errJunk, err)
	case err != nil:
		return nil, fmt.Errorf("read release %d: %w", epoch, err)
	}
	rel, err := checkRelease(r.keyring, r.storeID, epoch, obj.Data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", key, err)
	}
	r.releases[epoch] = rel
	return rel, nil
}

// checkRelease verifies the bytes that hold an epoch.
func checkRelease(k manifest.Keyring, storeID string, epoch uint64, data []byte) (*verified, error) {
	rel, digest, err := manifest.VerifyRelease(k, data)
	if err != nil {
		if signed(k, data) {
			return nil, fmt.Errorf("signed by a release key, but cannot be read: %w; it may be from a newer muster: upgrade, or check the store with muster fsck", err)
		}
		return nil, fmt.Errorf("%w: %w", errJunk, err)
	}
	switch {
	case rel.Store != storeID || rel.Repo != k.Repo:
		return nil, fmt.Errorf("%w: it is release %d of another store or repo: %w", errJunk, rel.Epoch, manifest.ErrForeign)
	case rel.Epoch != epoch:
		return nil, fmt.Errorf("%w: it is a copy of release %d", errJunk, rel.Epoch)
	}
	return &verified{rel, digest}, nil
}

// signed reports whether a release key of the keyring made a valid signature on data, whatever it says.
func signed(k manifest.Keyring, data []byte) bool {
	env, err := manifest.ParseEnvelope(data)
	if err != nil {
		return false
	}
	keys := map[string]ed25519.PublicKey{}
	for _, r := range k.Roles.Release {
		if pub, ok := k.Keys[r.Key]; ok && len(pub.Public) == ed25519.PublicKeySize && r.LastEpoch == 0 {
			keys[r.Key] = pub.Public
		}
	}
	_, err = env.VerifySignatures(manifest.KindRelease, keys)
	return err == nil
}

// statement gives the plain statement that stands for a cohort after rel, with its envelope; nil if there is none.
func (r *reader) statement(ctx context.Context, rel *verified, cohort string) (*manifest.Envelope, *manifest.VerifiedStatement, error) {
	part, ok := rel.Cohorts[cohort]
	if !ok || part.Epoch == 0 {
		return nil, nil, nil
	}
	in := rel
	if part.Epoch != rel.Epoch {
		var err error
		if in, err = r.at(ctx, part.Epoch); err != nil {
			return nil, nil, fmt.Errorf("release %d, which stands for cohort %s: %w; check the store with muster fsck", part.Epoch, cohort, err)
		}
	}
	env := in.Cohorts[cohort].Statement
	if env == nil {
		return nil, nil, fmt.Errorf("release %d has no statement for cohort %s, which release %d says stands: %w; check the store with muster fsck", part.Epoch, cohort, rel.Epoch, ErrDamaged)
	}
	st, err := manifest.VerifyStatement(r.keyring, env)
	if err != nil {
		return nil, nil, fmt.Errorf("statement of cohort %s in release %d: %w", cohort, part.Epoch, err)
	}
	return env, st, nil
}
