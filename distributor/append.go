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
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

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
	b, err := build(ctx, BuildInput{Epoch: epoch, Standing: s.standing(newest), Stands: s.stands(ctx, newest)})
	if err != nil {
		return nil, fmt.Errorf("build commit %.12s: %w", commit.ID, err)
	}
	if b.Commit.ID != commit.ID || b.Settings != opts.Settings {
		return nil, fmt.Errorf("build of commit %.12s answered with commit %.12q and other settings: this is a bug", commit.ID, b.Commit.ID)
	}
	if err := removed(newest, b, opts.RemoveCohorts); err != nil {
		return nil, err
	}
	rel := manifest.Release{
		V: manifest.Version, Store: s.storeID, Repo: s.cfg.Repo, Epoch: epoch, Kind: manifest.ReleaseCommit,
		Commit: b.Commit.ID, Tree: b.Commit.Tree, Parents: append([]string{}, b.Commit.Parents...),
		Author: person(b.Commit.Author), Committer: person(b.Commit.Committer), Subject: line(b.Commit.Subject),
		Evaluator: b.Evaluator, Settings: b.Settings, Created: s.now(), Policy: b.Policy,
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

// stands looks up statements for a build. It reads at most the releases in which they were made.
func (s *session) stands(ctx context.Context, newest *verified) func(string) *manifest.Statement {
	return func(cohort string) *manifest.Statement {
		if newest == nil {
			return nil
		}
		_, st, err := s.statement(ctx, newest, cohort)
		if err != nil || st == nil {
			return nil // Standing, which every build asks, says what is wrong
		}
		return &st.Statement
	}
}

// standing answers a build: is this what stands, and if not, which service epochs does the standing bundle have. The bundle comes from the store, so it is
// believed only as far as the signed statement vouches for it.
func (s *session) standing(newest *verified) func(context.Context, string, string) (*bundle.Index, bool, error) {
	return func(ctx context.Context, cohort, content0 string) (*bundle.Index, bool, error) {
		if newest == nil {
			return nil, false, nil
		}
		_, st, err := s.statement(ctx, newest, cohort)
		if err != nil || st == nil {
			return nil, false, err
		}
		if st.Content0 == content0 {
			return nil, true, nil
		}
		plan, err := scan(ctx, s.cfg.Store, manifest.KeyBundle(st.Bundle.Object))
		if err == nil {
			err = agrees(plan, &st.Statement)
		}
		if err != nil {
			return nil, false, fmt.Errorf("standing bundle of cohort %s, epoch %d: %w", cohort, st.Epoch, err)
		}
		return &plan.Index, false, nil
	}
}

// scan reads and checks a bundle of the store.
func scan(ctx context.Context, st store.Reader, key string) (*bundle.Plan, error) {
	r, size, err := st.Open(ctx, key)
	if err != nil {
		return nil, fmt.Errorf("%s: %w; hosts that do not have it cannot fetch it: restore it from a backup", key, err)
	}
	defer r.Close()
	if size > bundle.MaxCompressed {
		return nil, fmt.Errorf("%s: %w: %d bytes", key, ErrDamaged, size)
	}
	plan, err := bundle.Scan(io.LimitReader(r, bundle.MaxCompressed+1))
	if err != nil {
		return nil, fmt.Errorf("%s: %w: %w; restore it from a backup", key, ErrDamaged, err)
	}
	return plan, nil
}

// agrees compares a scanned bundle with the statement that names it.
func agrees(p *bundle.Plan, st *manifest.Statement) error {
	key := manifest.KeyBundle(st.Bundle.Object)
	differs := func(what string, has, want any) error {
		return fmt.Errorf("%s: %w: %s is %v, and the signed statement says %v; restore it from a backup", key, ErrDamaged, what, has, want)
	}
	switch {
	case p.Object != st.Bundle.Object:
		return differs("digest", p.Object, st.Bundle.Object)
	case p.Size != st.Bundle.Size:
		return differs("size", p.Size, st.Bundle.Size)
	case p.Tar != st.Bundle.Tar || p.TarSize != st.Bundle.TarSize:
		return differs("tar digest", p.Tar, st.Bundle.Tar)
	case p.Content != st.Content:
		return differs("content digest", p.Content, st.Content)
	case len(p.Entries) != st.Files:
		return differs("number of files", len(p.Entries), st.Files)
	case p.Index.Repo != st.Repo || p.Index.Cohort != st.Cohort || p.Index.Epoch != st.Epoch || p.Index.Commit != st.Commit:
		return differs("origin", fmt.Sprintf("%s %s epoch %d", p.Index.Repo, p.Index.Cohort, p.Index.Epoch), fmt.Sprintf("%s %s epoch %d", st.Repo, st.Cohort, st.Epoch))
	}
	return nil
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

// cohorts stores the bundles and makes every cohort's part of the release.
func (s *session) cohorts(ctx context.Context, newest *verified, epoch uint64, b *Build) (map[string]manifest.ReleaseCohort, error) {
	for name := range b.Cohorts {
		if _, ok := b.Policy.Cohorts[name]; !ok {
			return nil, fmt.Errorf("build of commit %.12s has cohort %q, which its policy does not declare: this is a bug", b.Commit.ID, name)
		}
	}
	parts := map[string]manifest.ReleaseCohort{}
	var mu sync.Mutex
	group, gctx := errgroup.WithContext(ctx)
	group.SetLimit(uploads)
	usable := len(b.Policy.Cohorts) == 0
	for name := range b.Policy.Cohorts {
		built, ok := b.Cohorts[name]
		if !ok {
			return nil, fmt.Errorf("build of commit %.12s lacks cohort %s: this is a bug", b.Commit.ID, name)
		}
		var stood uint64
		if newest != nil {
			stood = newest.Cohorts[name].Epoch
		}
		switch {
		case built.Blocked != "":
			mu.Lock()
			parts[name] = manifest.ReleaseCohort{State: manifest.StateBlocked, Epoch: stood, Reason: line(built.Blocked)}
			mu.Unlock()
			continue
		case built.Same && stood == 0:
			return nil, fmt.Errorf("build of commit %.12s says that cohort %s did not change, and nothing stands: this is a bug", b.Commit.ID, name)
		case built.Same:
			mu.Lock()
			parts[name] = manifest.ReleaseCohort{State: manifest.StateHolds, Epoch: stood}
			mu.Unlock()
			usable = true
			continue
		}
		usable = true
		group.Go(func() error {
			env, err := s.build(gctx, name, epoch, b, built)
			if err != nil {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			parts[name] = manifest.ReleaseCohort{State: manifest.StateBuilt, Epoch: epoch, Statement: env}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	if !usable {
		return nil, fmt.Errorf("commit %.12s: %w: every cohort is blocked", b.Commit.ID, ErrRefused)
	}
	return parts, nil
}

// build stores one cohort's bundle and signs its statement.
func (s *session) build(ctx context.Context, cohort string, epoch uint64, b *Build, c CohortBuild) (*manifest.Envelope, error) {
	if len(c.Variants) > 0 {
		return nil, fmt.Errorf("cohort %s: %w: files for single hosts cannot be published by this version", cohort, ErrRefused)
	}
	index := c.Index
	index.V, index.Repo, index.Cohort, index.Host, index.Epoch, index.Commit = manifest.Version, s.cfg.Repo, cohort, "", epoch, b.Commit.ID
	packed, err := bundle.Pack(index, c.Files)
	if err != nil {
		return nil, fmt.Errorf("pack cohort %s of commit %.12s: %w: %w", cohort, b.Commit.ID, ErrRefused, err)
	}
	object, err := s.put(ctx, manifest.KeyBundle(packed.Object), packed)
	if err != nil {
		return nil, err
	}
	env, err := manifest.Seal(manifest.KindStatement, manifest.Statement{
		V: manifest.Version, Store: s.storeID, Repo: s.cfg.Repo, Cohort: cohort, Epoch: epoch, Commit: b.Commit.ID,
		Bundle: object, Content: packed.Content, Files: packed.Files, Evidence: c.Evidence, Inputs: c.Inputs, Content0: c.Content0,
	}, s.cfg.Release)
	if err != nil {
		return nil, fmt.Errorf("sign the statement of cohort %s: %w", cohort, err)
	}
	return env, nil
}
