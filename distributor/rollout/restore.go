package rollout

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/store"
)

// Restorer is who pauses a cohort whose head was restored from a copy: only a person ends that.
const Restorer = "muster (restored)"

// restored makes the head that takes the place of one that was deleted, or that is behind its copies: the newest genuine copy, signed anew, above every order that hosts may remember. nil: the
// cohort never had one.
//
// The copy of the last head may be missing, since it is written after the head: then what is restored is one order older, which is the best that is known. One serial more is left out for
// that. A halt that was written last would be lost with it, so that nothing goes forward from here before a person looked.
func restored(ctx context.Context, st store.Reader, trust manifest.TrustState, signer manifest.Signer, cohort, why string, now time.Time) ([]byte, *manifest.View, error) {
	floor := trust.Floors[cohort]
	copied, total, err := newestCopy(ctx, st, trust, cohort, now)
	switch {
	case err != nil:
		return nil, nil, err
	case copied == nil && total == 0 && floor.Serial == 0:
		return nil, nil, nil
	case copied == nil && total == 0 && gone(ctx, st):
		return nil, nil, fmt.Errorf("cohort %s: the whole store is gone: neither %s nor the head nor a copy of it is there: %w: bring the store back, or correct its address; nothing was assigned",
			cohort, manifest.KeyStore, store.ErrUnreachable)
	case copied == nil:
		return nil, nil, fmt.Errorf("cohort %s: %s, and none of the %d copies under %s is genuine: %w; hosts would refuse a head that starts anew, so nothing was assigned: restore %s from a backup of the store",
			cohort, why, total, manifest.PrefixHistory+cohort+"/", ErrVanished, manifest.KeyHead(cohort))
	}
	keys, err := trust.Keys()
	if err != nil {
		return nil, nil, err
	}
	m := copied.Manifest
	m.Era, m.Serial = max(m.Era, keys.Era), max(m.Serial+2, floor.Serial+1)
	look(&m, text("%s, and restored from the copy of %s; look before you resume", why, copied.Mark()), now)
	stamp(&m, now)
	return seal(trust, cohort, copied, m, signer, now)
}

// gone says whether a store has lost its identity as well: a bucket or a directory that is not mounted, not an object that somebody deleted.
func gone(ctx context.Context, st store.Reader) bool {
	_, err := st.Get(ctx, manifest.KeyStore, manifest.MaxSmallBytes)
	return errors.Is(err, store.ErrNotFound)
}

// look stops what a restored order would go on with until a person looked. What is done is stopped as well, for the sake of a newer release; it goes on by itself if there is none.
func look(m *manifest.Manifest, why string, now time.Time) {
	r := &m.Rollout
	stop := manifest.Stop{By: Restorer, Why: why, Since: now.UTC()}
	r.By, r.Why = Restorer, why
	switch r.Phase {
	case manifest.PhaseHalted:
	case manifest.PhaseRollingBack:
		if len(r.Halts) == 0 { // else another release would begin by itself
			stop.Epoch = r.Target
			r.Halts = halts(r.Halts, stop)
		}
	case manifest.PhasePaused:
		if p := r.Pause; p == nil || p.By == Muster || p.Until != nil {
			r.Pause = &stop
		}
	case manifest.PhaseDone, manifest.PhaseIdle:
		r.Was = manifest.PhaseDone
		if underWay(m) {
			r.Was = manifest.PhaseAdvancing
		}
		r.Phase, r.Pause = manifest.PhasePaused, &stop
	default:
		r.Was, r.Phase, r.Pause = r.Phase, manifest.PhasePaused, &stop
	}
}

// forNothing says that a restored cohort is paused though nothing was under way.
func forNothing(r *manifest.Rollout) bool {
	return r.Phase == manifest.PhasePaused && r.Was == manifest.PhaseDone && r.Pause != nil && r.Pause.By == Restorer
}

// newestCopy is the newest genuine copy of a cohort's heads, nil if there is none, and how many objects are named like one. What trust remembers of the order does not count: copies are older.
func newestCopy(ctx context.Context, st store.Reader, trust manifest.TrustState, cohort string, now time.Time) (newest *manifest.View, total int, err error) {
	marks, err := copies(ctx, st, cohort, "")
	if err != nil {
		return nil, 0, err
	}
	slices.SortFunc(marks, func(a, b manifest.Mark) int { return b.Compare(a) })
	for _, mark := range marks {
		view, _, err := genuine(ctx, st, trust, cohort, mark, now)
		if err != nil || view != nil {
			return view, len(marks), err
		}
	}
	return nil, len(marks), nil
}

// genuine reads one copy; nil if it is not what its name says: anybody who may write the bucket can put it there.
func genuine(ctx context.Context, st store.Reader, trust manifest.TrustState, cohort string, mark manifest.Mark, now time.Time) (*manifest.View, []byte, error) {
	obj, err := st.Get(ctx, manifest.KeyHistory(cohort, mark), manifest.MaxHeadBytes)
	switch {
	case errors.Is(err, store.ErrTooLarge), errors.Is(err, store.ErrNotFound):
		return nil, nil, nil
	case err != nil:
		return nil, nil, fmt.Errorf("read the history of cohort %s: %w", cohort, err)
	}
	trust.Floors = maps.Clone(trust.Floors)
	delete(trust.Floors, cohort)
	_, view, err := trust.AcceptHead(cohort, obj.Data, now)
	if err != nil || view.Mark() != mark {
		return nil, nil, nil
	}
	return view, obj.Data, nil
}

// copies lists the marks of a cohort's copies whose names begin like that.
func copies(ctx context.Context, st store.Reader, cohort, begin string) (marks []manifest.Mark, err error) {
	prefix := manifest.PrefixHistory + cohort + "/"
	for after := ""; ; {
		page, err := st.List(ctx, prefix+begin, after, 1000)
		if err != nil {
			return nil, fmt.Errorf("list %s: %w", prefix, err)
		}
		for _, info := range page {
			if mark, err := manifest.ParseMark(strings.TrimSuffix(info.Key[len(prefix):], ".json")); err == nil {
				marks = append(marks, mark)
			}
			after = info.Key
		}
		if len(page) < 1000 {
			return marks, nil
		}
	}
}

// taken says whether the order after prev was given already to something else than data: then prev is no newest head, but one that somebody put back.
func taken(ctx context.Context, st store.Reader, trust manifest.TrustState, cohort string, prev, next *manifest.View, data []byte, now time.Time) (bool, error) {
	for _, era := range slices.Compact([]uint64{prev.Manifest.Era, next.Manifest.Era}) {
		marks, err := copies(ctx, st, cohort, fmt.Sprintf("%d-%d-", era, prev.Manifest.Serial+1))
		if err != nil {
			return false, err
		}
		for _, mark := range marks {
			view, raw, err := genuine(ctx, st, trust, cohort, mark, now)
			if err != nil {
				return false, err
			}
			if view != nil && !bytes.Equal(raw, data) {
				return true, nil
			}
		}
	}
	return false, nil
}

// behind is the error for a head that is older than what is known, and what to do about it.
func behind(ctx context.Context, st store.Reader, trust manifest.TrustState, cohort string, now time.Time, err error) error {
	copied, _, _ := newestCopy(ctx, st, trust, cohort, now)
	if copied == nil {
		return err
	}
	return fmt.Errorf("%w; nothing was written: somebody put an older head back; `muster rollout refresh %s` restores the newest genuine copy, %s", err, cohort, manifest.KeyHistory(cohort, copied.Mark()))
}
