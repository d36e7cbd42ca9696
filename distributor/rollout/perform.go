package rollout

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/store"
)

// Performed is what became of what a person asked.
type Performed struct {
	Said    string // in a sentence
	Changed bool   // false: it was so already
	View    *manifest.View
	History error // why the copy of the head could not be written; the head itself is in force
}

// fetchable checks that what a new order leads back to can be fetched, before anybody is led there: the baseline of a rollback, and what hosts are held at that the order before did not lead to.
func fetchable(ctx context.Context, st store.Reader, kind ActionKind, m *manifest.Manifest, prev *manifest.View) error {
	epochs := map[uint64]bool{}
	if kind == Rollback {
		epochs[m.Rollout.Baseline] = true
	} else {
		for _, a := range m.Assign {
			epochs[a.Epoch] = true
		}
		for _, a := range prev.Manifest.Assign {
			delete(epochs, a.Epoch)
		}
	}
	for _, env := range m.Statements {
		s, err := manifest.DecodeStatement(env.Payload)
		if err != nil || s.Override != "" || !epochs[s.Epoch] {
			continue
		}
		if err := Fetchable(ctx, st, s); errors.Is(err, store.ErrNotFound) {
			return fmt.Errorf("%s cohort %s: %w: epoch %d: %w: hosts could not fetch it; nothing was changed", kind, m.Cohort, ErrUnfit, s.Epoch, err)
		} else if err != nil {
			return err
		}
	}
	return nil
}

// Fetchable checks that the bundles of a statement are in the store, whole by their size: the cohort's and every host variant's. ErrNotFound if one is not.
func Fetchable(ctx context.Context, st store.Reader, s *manifest.Statement) error {
	list := append([]manifest.Variant{{Bundle: s.Bundle}}, s.Variants...)
	if o := s.VariantsObject; o != nil {
		obj, err := st.Get(ctx, manifest.KeyBundle(o.Object), manifest.MaxVariantsBytes)
		if err != nil {
			return fmt.Errorf("%s: %w", manifest.KeyBundle(o.Object), err)
		}
		doc, err := manifest.DecodeVariants(obj.Data)
		if err != nil {
			return fmt.Errorf("%s: %w", manifest.KeyBundle(o.Object), err)
		}
		list = append(list, doc.Variants...)
	}
	seen := map[string]bool{}
	var looks errgroup.Group
	looks.SetLimit(atOnce)
	for _, v := range list {
		if seen[v.Bundle.Object] {
			continue
		}
		seen[v.Bundle.Object] = true
		looks.Go(func() error {
			key := manifest.KeyBundle(v.Bundle.Object)
			found, err := st.List(ctx, key, "", 1)
			switch {
			case err != nil:
				return fmt.Errorf("look for %s: %w", key, err)
			case len(found) == 0 || found[0].Key != key || found[0].Size != v.Bundle.Size:
				return fmt.Errorf("%s: %w, or not whole", key, store.ErrNotFound)
			}
			return nil
		})
	}
	return looks.Wait()
}

// Perform does what a person asks of a cohort, by compare-and-swap. The input needs no head: the one that stands is read, and read again when somebody else was first.
// Refresh also restores a head that is behind its copies.
func Perform(ctx context.Context, st store.Store, trust manifest.TrustState, signer manifest.Signer, in Input, a Action, now time.Time) (*Performed, error) {
	var said string
	done, err := apply(ctx, st, trust, signer, in.Cohort, now, a.Kind == Refresh, func(prev *manifest.View) (manifest.Manifest, bool, error) {
		if prev == nil {
			return manifest.Manifest{}, false, fmt.Errorf("%s: %w: nothing is assigned to cohort %s yet", a.Kind, ErrUnfit, in.Cohort)
		}
		at := in
		at.Prev, at.Now = prev, now
		m, text, changed, err := Act(at, a, now)
		said = text
		if err == nil && changed && (a.Kind == Rollback || a.Kind == Hold) {
			err = fetchable(ctx, st, a.Kind, &m, prev)
		}
		return m, changed, err
	})
	if err != nil {
		return nil, err
	}
	if done.Restored {
		said = "the head was restored from its newest copy, look before you resume; " + said
	}
	return &Performed{Said: said, Changed: done.Wrote, View: done.View, History: done.History}, nil
}
