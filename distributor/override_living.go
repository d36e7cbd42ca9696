package distributor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/muster-config/muster/distributor/bundle"
	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/store"
)

// stillOn are the overrides that live under a head and are not ended for all hosts already.
func stillOn(v *manifest.View, now time.Time) []manifest.VerifiedOverride {
	return slices.DeleteFunc(v.Living(now), func(o manifest.VerifiedOverride) bool {
		return slices.ContainsFunc(v.Manifest.Rollout.Endings, func(e manifest.Ending) bool { return e.Override == o.ID && e.Below == "" })
	})
}

// overrides tells a build what lives on a cohort.
func (r *reader) overrides(newest *verified) func(context.Context, string) ([]Living, error) {
	return func(ctx context.Context, cohort string) ([]Living, error) {
		var list []Living
		for _, o := range r.living[cohort] {
			_, st, err := r.under(newest, cohort, &o)
			if err != nil {
				return nil, err
			}
			if st.Variants, err = variants(ctx, r.st, st); err != nil {
				return nil, fmt.Errorf("variants of override %s: %w", o.ID, err)
			}
			list = append(list, Living{VerifiedOverride: o, Stands: *st, Index: func(ctx context.Context, host string) (*bundle.Index, error) { return r.indexOf(ctx, st, host) }})
		}
		return list, nil
	}
}

// under is the statement that stands under an override: the newest release's, or else the one that the override came with, if a release was made between its own and its head.
func (r *reader) under(newest *verified, cohort string, o *manifest.VerifiedOverride) (*manifest.Envelope, *manifest.Statement, error) {
	if newest != nil {
		for i := range newest.Cohorts[cohort].Overridden {
			env := &newest.Cohorts[cohort].Overridden[i]
			st, err := manifest.DecodeStatement(env.Payload) // verified with its release
			if err != nil {
				return nil, nil, fmt.Errorf("statement of override %s in release %d: %w", o.ID, newest.Epoch, err)
			}
			if st.Override == o.ID {
				return env, st, nil
			}
		}
	}
	st := o.First.Statement
	return o.Statement, &st, nil
}

// carried are the overridden statements of a cohort that a release leaves as it is.
func (r *reader) carried(_ context.Context, newest *verified, cohort string) (list []manifest.Envelope, err error) {
	for _, o := range r.living[cohort] {
		env, _, err := r.under(newest, cohort, &o)
		if err != nil {
			return nil, err
		}
		list = append(list, *env)
	}
	return list, nil
}

// onlyOverrides holds a release of kind override, and those before it, to what an operator key may say.
func (r *reader) onlyOverrides(ctx context.Context, rel *verified) error {
	for rel.Kind == manifest.ReleaseOverride {
		before, err := r.before(ctx, rel.Epoch)
		if err != nil {
			return err
		}
		if before == nil {
			return fmt.Errorf("%w: %w", errJunk, manifest.OnlyOverrides(rel.Release, nil, ""))
		}
		if err := manifest.OnlyOverrides(rel.Release, before.Release, before.digest); err != nil {
			return fmt.Errorf("%w: %w", errJunk, err)
		}
		rel = before
	}
	return nil
}

// before is the last genuine release before an epoch, nil if there is none. Epochs between them are burnt.
func (r *reader) before(ctx context.Context, epoch uint64) (*verified, error) {
	for e := epoch - 1; e > 0 && epoch-e < pageSize; e-- {
		rel, err := r.at(ctx, e)
		if err == nil {
			return rel, nil
		}
		if !errors.Is(err, errJunk) && !errors.Is(err, store.ErrNotFound) {
			return nil, err
		}
	}
	return nil, nil
}
