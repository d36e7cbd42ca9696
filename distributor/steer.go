package distributor

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/rollout"
	"github.com/muster-config/muster/distributor/store"
)

// Steering is what an action about a cohort's rollout looks at beside its head, read from the store and verified, and by which keyring the head is believed. The newest release
// is given too; without one, or if it has nothing for the cohort, the error wraps ErrNoRelease.
func (h *History) Steering(ctx context.Context, cohort string) (rollout.Input, manifest.TrustState, error) {
	rel, _, err := h.newest(ctx)
	if err != nil {
		return rollout.Input{}, h.trust, err
	}
	if rel == nil {
		return rollout.Input{}, h.trust, fmt.Errorf("%w: nothing was published yet", ErrNoRelease)
	}
	env, _, err := h.statement(ctx, rel, cohort)
	if err != nil {
		return rollout.Input{}, h.trust, err
	}
	if env == nil {
		return rollout.Input{Release: rel.Release}, h.trust, fmt.Errorf("%w for cohort %s", ErrNoRelease, cohort)
	}
	return rollout.Input{Store: h.storeID, Repo: h.keyring.Repo, Cohort: cohort, Era: h.keyring.Era, Release: rel.Release, Statement: *env}, h.trust, nil
}

// Plain is the plain statement that stood for a cohort after a release, verified, and its epoch: that of the release, or of the earlier one that it left as it was.
func (h *History) Plain(ctx context.Context, cohort string, epoch uint64) (manifest.Envelope, uint64, error) {
	rel, err := h.at(ctx, epoch)
	switch {
	case errors.Is(err, store.ErrNotFound):
		return manifest.Envelope{}, 0, fmt.Errorf("epoch %d: %w in store %s", epoch, ErrNoRelease, h.url)
	case err != nil:
		return manifest.Envelope{}, 0, err
	}
	env, st, err := h.statement(ctx, rel, cohort)
	if err != nil {
		return manifest.Envelope{}, 0, err
	}
	if env == nil {
		return manifest.Envelope{}, 0, fmt.Errorf("%w of epoch %d for cohort %s", ErrNoRelease, epoch, cohort)
	}
	return *env, st.Epoch, nil
}

// MayOrder says whether the newest keyring lets a key sign orders.
func (h *History) MayOrder(keyID string) bool { return slices.Contains(h.keyring.Roles.Rollout, keyID) }

// maxQueue bounds the releases that Queue gives.
const maxQueue = 100

// Head is the newest head of a cohort, verified; nil if there is none.
func (h *History) Head(ctx context.Context, cohort string) (*manifest.View, error) {
	key := manifest.KeyHead(cohort)
	obj, err := h.st.Get(ctx, key, manifest.MaxHeadBytes)
	if errors.Is(err, store.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the head of cohort %s: %w", cohort, err)
	}
	_, view, err := h.trust.AcceptHead(cohort, obj.Data, h.now())
	if err != nil {
		return nil, fmt.Errorf("head of cohort %s (%s): %w", cohort, key, err)
	}
	return view, nil
}

// Queue gives the releases above an epoch that made something new for a cohort, the oldest first, at most 100 of the newest.
func (h *History) Queue(ctx context.Context, cohort string, above uint64) ([]*manifest.Release, error) {
	epochs, err := h.lastEpochs(ctx)
	if err != nil {
		return nil, err
	}
	var list []*manifest.Release
	for _, epoch := range slices.Backward(epochs) {
		if epoch <= above || len(list) == maxQueue {
			break
		}
		rel, err := h.at(ctx, epoch)
		if errors.Is(err, errJunk) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if rel.Cohorts[cohort].State == manifest.StateBuilt {
			list = append(list, rel.Release)
		}
	}
	slices.Reverse(list)
	return list, nil
}
