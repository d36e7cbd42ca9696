package distributor

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/rollout"
	"github.com/muster-config/muster/distributor/store"
	"github.com/muster-config/muster/distributor/wire"
)

// result tells what a release means for each cohort.
func (s *session) result(ctx context.Context, rel *verified) (*Result, error) {
	res := &Result{Epoch: rel.Epoch, Commit: rel.Commit, Changed: []string{}, Cohorts: map[string]CohortResult{}, Newest: rel.Epoch}
	for name, part := range rel.Cohorts {
		c := CohortResult{State: part.State, Epoch: part.Epoch, Reason: part.Reason}
		_, st, err := s.statement(ctx, rel, name)
		if err != nil {
			return nil, err
		}
		if st != nil {
			c.Bundle, c.Content, c.Size = st.Bundle.Object, st.Content, st.Bundle.Size
			if own, err := variants(ctx, s.st, &st.Statement); err != nil {
				res.warn(fmt.Sprintf("the hosts of cohort %s that have bundles of their own cannot be counted: %v", name, err))
			} else {
				c.Variants = len(own)
			}
		}
		res.Cohorts[name] = c
		switch part.State {
		case manifest.StateBuilt:
			res.Changed = append(res.Changed, name)
		case manifest.StateBlocked:
			res.Blocked = append(res.Blocked, name)
		}
	}
	slices.Sort(res.Changed)
	slices.Sort(res.Blocked)
	return res, nil
}

// announce moves every cohort to what the newest release says stands, if assign, and else finds out which cohorts wait for a rollout. It never means "assign my epoch":
// somebody may have published a newer one since. A cohort whose head assigns it already gets no new head.
func (s *session) announce(ctx context.Context, rel *verified, assign bool, res *Result) error {
	newest, _, err := s.newest(ctx)
	switch {
	case err != nil:
		return fmt.Errorf("release %d stands; read the newest release to announce it: %w", rel.Epoch, err)
	case newest == nil || newest.Epoch < rel.Epoch:
		return fmt.Errorf("release %d is gone from store %s: %w; check the store with muster fsck", rel.Epoch, s.cfg.Store.URL(), ErrDamaged)
	}
	res.Newest = newest.Epoch
	var mu sync.Mutex
	var failed []error
	var group errgroup.Group
	group.SetLimit(uploads)
	for _, name := range slices.Sorted(maps.Keys(newest.Cohorts)) {
		if newest.Cohorts[name].Epoch == 0 {
			continue // blocked, and nothing stands
		}
		// Looked up here, not in the goroutine: the session is not made for that.
		env, st, err := s.statement(ctx, newest, name)
		if err != nil {
			failed = append(failed, err)
			continue
		}
		group.Go(func() error {
			wrote, waits, warning, err := s.announceCohort(ctx, newest, name, env, st.Epoch, assign)
			mu.Lock()
			defer mu.Unlock()
			if wrote {
				res.Assigned = append(res.Assigned, name)
			}
			if waits {
				res.Waiting = append(res.Waiting, name)
			}
			if warning != nil {
				res.warn(warning.Error())
			}
			if err != nil {
				failed = append(failed, err)
			}
			return nil // every cohort is tried: one that fails holds back no other
		})
	}
	_ = group.Wait() // the functions return none: see failed
	slices.Sort(res.Assigned)
	slices.Sort(res.Waiting)
	if len(failed) > 0 {
		slices.SortFunc(failed, func(a, b error) int {
			if a.Error() < b.Error() {
				return -1
			}
			return 1
		})
		return fmt.Errorf("release %d stands, but not every cohort could be assigned; publish again to repair: %w", rel.Epoch, errors.Join(failed...))
	}
	return nil
}

func (s *session) announceCohort(ctx context.Context, newest *verified, cohort string, env *manifest.Envelope, epoch uint64, assign bool) (wrote, waits bool, warning, err error) {
	if !assign {
		obj, err := s.cfg.Store.Get(ctx, manifest.KeyHead(cohort), manifest.MaxHeadBytes)
		if errors.Is(err, store.ErrNotFound) {
			return false, true, nil, nil
		}
		if err == nil {
			var view *manifest.View
			if _, view, err = s.trust.AcceptHead(cohort, obj.Data, s.reader.now()); err == nil {
				return false, !rollout.Assigns(view, epoch), nil, nil
			}
		}
		return false, true, fmt.Errorf("head of cohort %s cannot be read: %w", cohort, err), nil
	}
	now := s.reader.now()
	done, err := rollout.Apply(ctx, s.cfg.Store, s.trust, s.cfg.Rollout, cohort, now, func(prev *manifest.View) (manifest.Manifest, bool, error) {
		return rollout.Now(rollout.Input{
			Store: s.storeID, Repo: s.cfg.Repo, Cohort: cohort, Era: s.keyring.Era, Prev: prev, Release: newest.Release, Statement: *env, By: s.cfg.By, Now: now,
		})
	})
	switch {
	case errors.Is(err, rollout.ErrStopped):
		// Somebody stopped it, and that is to hold: not a failure of the publishing.
		return false, true, err, nil
	case errors.Is(err, rollout.ErrBehind):
		// A newer release was published and assigned since ours was read.
		if again, _, readErr := s.Publisher.newestNow(ctx); readErr == nil && again > newest.Epoch {
			return false, false, nil, nil
		}
		return false, true, nil, err
	case err != nil:
		return false, true, nil, err
	}
	return done.Wrote, false, done.History, nil
}

// newestNow reads the newest release's epoch anew.
func (p *Publisher) newestNow(ctx context.Context) (uint64, *verified, error) {
	s, err := p.open(ctx)
	if err != nil {
		return 0, nil, err
	}
	rel, _, err := s.newest(ctx)
	if err != nil || rel == nil {
		return 0, nil, err
	}
	return rel.Epoch, rel, nil
}

// index writes the commit's index: for people and for a quick look, it decides nothing. A refusal never replaces an epoch.
func (s *session) index(ctx context.Context, ix manifest.CommitIndex) error {
	key := manifest.KeyCommit(ix.Commit)
	data, err := wire.Encode(ix)
	if err != nil {
		return fmt.Errorf("encode %s: %w", key, err)
	}
	for try := range 4 {
		if err := pause(ctx, try); err != nil {
			return err
		}
		_, err = s.cfg.Store.Create(ctx, key, data)
		if !errors.Is(err, store.ErrExists) {
			if err == nil || !unknown(err) {
				return err
			}
			continue
		}
		obj, readErr := s.cfg.Store.Get(ctx, key, manifest.MaxSmallBytes)
		if readErr != nil {
			err = readErr
			continue
		}
		if old, err := manifest.DecodeCommitIndex(obj.Data); err == nil && old.Commit == ix.Commit && (old.Epoch >= ix.Epoch && old.Epoch != 0 || old.Epoch == ix.Epoch && old.Reason == ix.Reason) {
			return nil
		}
		if _, err = s.cfg.Store.Replace(ctx, key, data, obj.Token); err == nil {
			return nil
		}
	}
	return err
}
