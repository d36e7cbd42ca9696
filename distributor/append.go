package distributor

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"github.com/muster-config/muster/distributor/bundle"
	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/store"
	"github.com/muster-config/muster/distributor/wire"
)

// errLost says that another release holds the epoch.
var errLost = errors.New("lost the race for an epoch")

// uploads at a time.
const uploads = 8

// append builds the commit as epoch on top of newest and commits it by one conditional write. All that the release names is stored, and read back, before.
func (s *session) append(ctx context.Context, newest *verified, epoch uint64, commit Commit, build BuildFunc, opts PublishOptions) (*verified, error) {
	in := BuildInput{Epoch: epoch, Stands: s.stands(newest), Index: s.index0(newest), Overrides: s.overrides(newest)}
	if newest != nil {
		in.Newest = newest.Release
	}
	b, err := build(ctx, in)
	if err != nil {
		return nil, fmt.Errorf("build commit %.12s: %w", commit.ID, err)
	}
	if b.Commit.ID != commit.ID || b.Settings != opts.Settings {
		return nil, fmt.Errorf("build of commit %.12s answered with commit %.12q and other settings: this is a bug", commit.ID, b.Commit.ID)
	}
	if newest != nil && newest.is(commit, opts.Settings) && !b.news(newest) {
		return newest, nil // what was blocked is blocked still
	}
	if err := removed(newest, b, opts.RemoveCohorts); err != nil {
		return nil, err
	}
	rel := manifest.Release{
		V: manifest.Version, Store: s.storeID, Repo: s.cfg.Repo, Epoch: epoch, Kind: manifest.ReleaseCommit,
		Commit: b.Commit.ID, Tree: b.Commit.Tree, Parents: append([]string{}, b.Commit.Parents...),
		Author: person(b.Commit.Author), Committer: person(b.Commit.Committer), Subject: line(b.Commit.Subject),
		Signer: line(b.Commit.Signer), PullRequest: b.Commit.PullRequest, Proposer: line(b.Commit.Proposer), Approvers: slices.Clone(b.Commit.Approvers),
		Evaluator: b.Evaluator, Settings: b.Settings, Created: s.reader.now(), Policy: b.Policy,
	}
	if newest != nil {
		rel.Prev = newest.digest
	}
	if rel.Source, err = s.putSource(ctx, b); err != nil {
		return nil, err
	}
	if rel.Cohorts, err = s.cohorts(ctx, newest, epoch, b); err != nil {
		return nil, err
	}
	env, err := manifest.Seal(manifest.KindRelease, rel, s.cfg.Release)
	if err != nil {
		return nil, fmt.Errorf("sign release %d: %w", epoch, err)
	}
	data, err := wire.Encode(env)
	if err != nil {
		return nil, fmt.Errorf("encode release %d: %w", epoch, err)
	}
	if n := min(manifest.MaxReleaseBytes, store.MaxRegister); len(data) > n {
		return nil, fmt.Errorf("release of commit %.12s is %d bytes, at most %d allowed: %w: the fleet has too many cohorts or too long a policy", commit.ID, len(data), n, ErrRefused)
	}
	checked, err := checkRelease(s.keyring, s.storeID, epoch, data)
	if err != nil {
		return nil, fmt.Errorf("release %d of commit %.12s would not be believed, so it was not written: %w", epoch, commit.ID, err)
	}
	if err := s.create(ctx, epoch, commit, data); err != nil {
		return nil, err
	}
	s.releases[epoch] = checked
	return checked, nil
}

// removed refuses a fleet that lost a cohort: its hosts would keep what they have and never hear of it.
func removed(newest *verified, b *Build, allowed []string) error {
	if newest == nil {
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(newest.Cohorts)) {
		if _, ok := b.Policy.Cohorts[name]; !ok && !slices.Contains(allowed, name) {
			return fmt.Errorf("commit %.12s: %w: cohort %s is gone from the fleet, its hosts would keep what they have for ever; put it back, or publish with --remove-cohort %s", b.Commit.ID, ErrRefused, name, name)
		}
	}
	return nil
}

// create is the commit point. After an answer that got lost the object is read back before anything else is written, and only the same bytes are put again: an earlier
// attempt that lands late then changes nothing.
func (s *session) create(ctx context.Context, epoch uint64, commit Commit, data []byte) error {
	key := manifest.KeyRelease(epoch)
	_, err := s.cfg.Store.Create(ctx, key, data)
	if err == nil {
		return nil
	}
	if errors.Is(err, store.ErrExists) {
		return fmt.Errorf("epoch %d: %w", epoch, errLost)
	}
	if !unknown(err) {
		return fmt.Errorf("write release %d of commit %.12s: %w; nothing was published", epoch, commit.ID, err)
	}
	// Also when ctx has ended meanwhile: whether something was published must be found out.
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	for try := range 8 {
		if pause(grace, try) != nil {
			break
		}
		obj, readErr := s.cfg.Store.Get(grace, key, manifest.MaxReleaseBytes)
		switch {
		case readErr == nil && bytes.Equal(obj.Data, data):
			return nil
		case readErr == nil, errors.Is(readErr, store.ErrTooLarge):
			return fmt.Errorf("epoch %d: %w", epoch, errLost)
		case errors.Is(readErr, store.ErrNotFound) && ctx.Err() == nil:
			_, again := s.cfg.Store.Create(grace, key, data)
			if again == nil {
				return nil
			}
			if errors.Is(again, store.ErrExists) {
				return fmt.Errorf("epoch %d: %w", epoch, errLost)
			}
		}
	}
	return fmt.Errorf("commit %.12s %w as epoch %d: the answer of %s was lost and it could not be read back; publish it again, that finds out: %w", commit.ID, ErrMaybePublished, epoch, s.cfg.Store.URL(), err)
}

// putSource stores the evaluated tree.
func (s *session) putSource(ctx context.Context, b *Build) (manifest.Object, error) {
	packed, err := bundle.PackTree(b.Source)
	if err != nil {
		return manifest.Object{}, fmt.Errorf("pack the sources of commit %.12s: %w: %w", b.Commit.ID, ErrRefused, err)
	}
	return s.put(ctx, manifest.KeySource(b.Commit.Tree), packed)
}

// put stores a packed object and reads it back: a store that keeps other bytes than it was given must be found out before the release that names them is written.
// It is put also when it is there, so that gc sees it young.
func (s *session) put(ctx context.Context, key string, p *bundle.Packed) (manifest.Object, error) {
	if err := s.cfg.Store.Put(ctx, key, p.Data); err != nil {
		return manifest.Object{}, fmt.Errorf("upload %s: %w; nothing was published", key, err)
	}
	object, size, err := digestObject(ctx, s.cfg.Store, key, int64(len(p.Data)))
	if err != nil {
		return manifest.Object{}, fmt.Errorf("read back %s: %w; nothing was published", key, err)
	}
	if object != p.Object {
		return manifest.Object{}, fmt.Errorf("read back %s: %w: store %s gives other bytes (%d, put were %d); nothing was published", key, ErrDamaged, s.cfg.Store.URL(), size, len(p.Data))
	}
	return manifest.Object{Object: p.Object, Size: int64(len(p.Data)), Tar: p.Tar, TarSize: p.TarSize}, nil
}

// digestObject hashes a stored object, up to a byte over limit.
func digestObject(ctx context.Context, st store.Reader, key string, limit int64) (digest string, size int64, err error) {
	r, _, err := st.Open(ctx, key)
	if err != nil {
		return "", 0, err
	}
	defer r.Close()
	h := sha256.New()
	size, err = io.Copy(h, io.LimitReader(r, limit+1))
	if err != nil {
		return "", size, err
	}
	return "sha256:" + hex.EncodeToString(h.Sum(nil)), size, nil
}
