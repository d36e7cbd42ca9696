package distributor

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/muster-config/muster/distributor/bundle"
	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/store"
)

// RefusedCommit says that a commit has no release, and why.
type RefusedCommit struct{ Commit, Reason string }

func (e *RefusedCommit) Error() string {
	return fmt.Sprintf("commit %.12s was refused: %s", e.Commit, e.Reason)
}

// Detail is one release in full.
type Detail struct {
	Release *manifest.Release
	Digest  string   // of its payload: what the next one names as its predecessor
	Keys    []string // ids of the keys that signed it
	Cohorts map[string]CohortDetail
}

// CohortDetail is what a release means for one cohort.
type CohortDetail struct {
	manifest.ReleaseCohort
	Statement *manifest.Statement // the one that stands, with its variants; nil if none does
	Index     *bundle.Index       // of its bundle; nil if there is none, or it is damaged
	Removed   []string            // services that the cohort no longer has; only of a new statement
	Fault     string              // why Index or Removed could not be read
}

// Release gives one release in full, ErrNoRelease if there is none.
func (h *History) Release(ctx context.Context, epoch uint64) (*Detail, error) {
	rel, err := h.at(ctx, epoch)
	switch {
	case errors.Is(err, store.ErrNotFound):
		return nil, fmt.Errorf("epoch %d: %w in store %s", epoch, ErrNoRelease, h.url)
	case err != nil:
		return nil, err
	}
	d := &Detail{Release: rel.Release, Digest: rel.digest, Cohorts: map[string]CohortDetail{}}
	if d.Keys, err = h.signers(ctx, epoch); err != nil {
		return nil, err
	}
	before, err := h.before(ctx, epoch)
	if err != nil {
		return nil, err
	}
	for _, name := range slices.Sorted(maps.Keys(rel.Cohorts)) {
		d.Cohorts[name], err = h.cohort(ctx, rel, before, name)
		if err != nil {
			return nil, err
		}
	}
	return d, nil
}

// cohort reads what stands for a cohort. A damaged bundle is told, and hides nothing else.
func (h *History) cohort(ctx context.Context, rel, before *verified, name string) (CohortDetail, error) {
	c := CohortDetail{ReleaseCohort: rel.Cohorts[name]}
	fault := func(err error) (CohortDetail, error) {
		if errors.Is(err, store.ErrUnreachable) || ctx.Err() != nil {
			return c, err
		}
		c.Fault = err.Error()
		return c, nil
	}
	var err error
	if c.Statement, err = h.stands(rel)(ctx, name); err != nil || c.Statement == nil {
		if err != nil {
			return fault(err)
		}
		return c, nil
	}
	if c.Index, err = h.index0(rel)(ctx, name, ""); err != nil {
		return fault(err)
	}
	if c.State != manifest.StateBuilt || before == nil {
		return c, nil
	}
	old, err := h.index0(before)(ctx, name, "")
	if err != nil {
		return fault(err)
	}
	if old != nil {
		for _, service := range slices.Sorted(maps.Keys(old.Services)) {
			if _, ok := c.Index.Services[service]; !ok {
				c.Removed = append(c.Removed, service)
			}
		}
	}
	return c, nil
}

// before is the newest release below an epoch that verifies, nil if there is none.
func (h *History) before(ctx context.Context, epoch uint64) (*verified, error) {
	s := releaseStream{h: h, begun: true, last: epoch}
	if _, ok, err := s.peek(ctx); err != nil || !ok {
		return nil, err
	}
	return s.next, nil
}

// signers are the ids of the release or operator keys that signed a release.
func (h *History) signers(ctx context.Context, epoch uint64) ([]string, error) {
	obj, err := h.st.Get(ctx, manifest.KeyRelease(epoch), manifest.MaxReleaseBytes)
	if err != nil {
		return nil, fmt.Errorf("read release %d: %w", epoch, err)
	}
	env, err := manifest.ParseEnvelope(obj.Data)
	if err != nil {
		return nil, fmt.Errorf("release %d: %w", epoch, err)
	}
	keys := map[string]ed25519.PublicKey{}
	for id, pub := range h.keyring.Keys {
		keys[id] = pub.Public
	}
	ids, err := env.VerifySignatures(manifest.KindRelease, keys)
	if err != nil {
		return nil, fmt.Errorf("release %d: %w", epoch, err)
	}
	slices.Sort(ids)
	return ids, nil
}

// KeyName is what the keyring calls a key.
func (h *History) KeyName(id string) string { return h.keyring.Keys[id].Name }

// Find gives the newest epoch of a commit. A *RefusedCommit says why there is none; ErrNoRelease that it was never published here.
func (h *History) Find(ctx context.Context, commit string) (uint64, error) {
	ix, err := h.readIndex(ctx, commit)
	if err != nil && !errors.Is(err, store.ErrNotFound) && !errors.Is(err, store.ErrTooLarge) && !errors.Is(err, manifest.ErrMalformed) {
		return 0, fmt.Errorf("read %s: %w", manifest.KeyCommit(commit), err)
	}
	if err == nil && ix.Epoch != 0 {
		if rel, err := h.at(ctx, ix.Epoch); err == nil && rel.Commit == commit {
			return ix.Epoch, nil
		}
	}
	// The index decides nothing, and may be missing or wrong.
	s := releaseStream{h: h}
	for {
		_, ok, perr := s.peek(ctx)
		switch {
		case perr != nil:
			return 0, perr
		case !ok && err == nil && ix.Epoch == 0 && ix.Commit == commit:
			return 0, &RefusedCommit{commit, ix.Reason}
		case !ok:
			return 0, fmt.Errorf("commit %.12s: %w in store %s", commit, ErrNoRelease, h.url)
		case s.next.Commit == commit && s.next.Kind == manifest.ReleaseCommit:
			return s.next.Epoch, nil
		}
		s.next = nil
	}
}
