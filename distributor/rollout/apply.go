package rollout

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/muster-config/muster/distributor/chance"
	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/store"
	"github.com/muster-config/muster/distributor/wire"
)

// ErrVanished says that a head was there and is gone: somebody deletes objects in this store.
var ErrVanished = errors.New("head vanished")

// attempts bound how often a decision is made anew because somebody else was first, or an answer got lost.
const attempts = 24

// Decide makes the next manifest from the head that stands, nil if there is none. Not changed means: leave it.
type Decide func(prev *manifest.View) (next manifest.Manifest, changed bool, err error)

// Applied is what Apply left behind.
type Applied struct {
	Wrote bool
	View  *manifest.View // the head that stands now; nil if there is none
	// History is why the copy of the head could not be written. The head itself is in force: this is a warning.
	History error
	// Restored says that the head was deleted, or put back, and was restored from its newest copy before anything was decided.
	Restored bool
}

// Apply reads the cohort's head, lets decide make the next manifest, signs it and puts it in place by compare-and-swap; then it writes the history copy. When
// somebody else was first, or an answer was lost, it reads and decides again. A head is never written that trust would not accept after the one before it. A head that was deleted is restored
// from its newest genuine copy first, so that nothing is ever decided anew that a cohort had once; one that is behind its copies is refused.
func Apply(ctx context.Context, st store.Store, trust manifest.TrustState, signer manifest.Signer, cohort string, now time.Time, decide Decide) (*Applied, error) {
	return apply(ctx, st, trust, signer, cohort, now, false, decide)
}

// apply with back also restores a head that is behind its copies.
func apply(ctx context.Context, st store.Store, trust manifest.TrustState, signer manifest.Signer, cohort string, now time.Time, back bool, decide Decide) (*Applied, error) {
	key := manifest.KeyHead(cohort)
	var seen, anew bool
	var written [][]byte // heads of ours whose answer was lost
	for try := range attempts {
		if err := pause(ctx, try); err != nil {
			return nil, err
		}
		obj, err := st.Get(ctx, key, manifest.MaxHeadBytes)
		there := err == nil
		switch {
		case errors.Is(err, store.ErrNotFound) && seen:
			return nil, fmt.Errorf("replace %s: %w between reading and writing it: somebody deletes objects in %s; nothing was assigned, see who, then publish again", key, ErrVanished, st.URL())
		case err != nil && !errors.Is(err, store.ErrNotFound):
			if len(written) > 0 && try+1 < attempts && passing(err) {
				continue // what became of our write must be found out
			}
			return nil, fmt.Errorf("read the head of cohort %s: %w", cohort, err)
		}
		seen = seen || there
		var prev *manifest.View
		after, why := trust, "" // why the head is to be restored
		if there {
			after, prev, err = trust.AcceptHead(cohort, obj.Data, now)
			switch {
			case errors.Is(err, manifest.ErrOrder) && back:
				why = "the head was put back to an older one"
			case errors.Is(err, manifest.ErrOrder):
				return nil, behind(ctx, st, trust, cohort, now, fmt.Errorf("head of cohort %s (%s): %w", cohort, key, err))
			case err != nil:
				return nil, fmt.Errorf("head of cohort %s (%s): %w", cohort, key, err)
			case slices.ContainsFunc(written, func(w []byte) bool { return bytes.Equal(w, obj.Data) }):
				return &Applied{Wrote: true, View: prev, History: copyHead(ctx, st, cohort, prev, obj.Data), Restored: anew}, nil
			case back && !anew:
				newest, _, err := newestCopy(ctx, st, trust, cohort, now)
				if err != nil {
					return nil, err
				}
				if newest != nil && newest.Manifest.Serial > prev.Manifest.Serial {
					why = "the head was put back to an older one"
				}
			}
		} else {
			why = "the head was deleted"
		}
		var data []byte
		var view *manifest.View
		if why != "" {
			if data, view, err = restored(ctx, st, trust, signer, cohort, why, now); err != nil {
				return nil, err
			}
		}
		restores := view != nil
		if !restores {
			next, changed, err := decide(prev)
			if err != nil {
				return nil, err
			}
			if !changed {
				return &Applied{Wrote: anew, View: prev, Restored: anew}, nil
			}
			if data, view, err = seal(after, cohort, prev, next, signer, now); err != nil {
				return nil, err
			}
			if there {
				old, err := taken(ctx, st, trust, cohort, prev, view, data, now)
				if err != nil {
					return nil, err
				}
				if old {
					// Copies are written after heads: if the head is still the one that was read, it is not that somebody was first.
					again, err := st.Get(ctx, key, manifest.MaxHeadBytes)
					if err != nil || again.Token != obj.Token {
						continue
					}
					return nil, behind(ctx, st, trust, cohort, now, fmt.Errorf("head of cohort %s (%s) is %s: %w: a later one was given already", cohort, key, prev.Mark(), manifest.ErrOrder))
				}
			}
		}
		if there {
			_, err = st.Replace(ctx, key, data, obj.Token)
		} else {
			_, err = st.Create(ctx, key, data)
		}
		if err == nil && restores {
			anew = true
			if err := copyHead(ctx, st, cohort, view, data); err != nil {
				return nil, err // what follows would leave a gap
			}
			continue // decided is on what stands now
		}
		switch {
		case err == nil:
			return &Applied{Wrote: true, View: view, History: copyHead(ctx, st, cohort, view, data), Restored: anew}, nil
		case errors.Is(err, store.ErrConflict), errors.Is(err, store.ErrExists):
			// Somebody was first, or the head is gone: the next read tells.
		case passing(err) && restores:
			anew = true
		case passing(err):
			written = append(written, data)
		default:
			return nil, fmt.Errorf("write the head of cohort %s: %w", cohort, err)
		}
	}
	if len(written) > 0 {
		return nil, fmt.Errorf("write the head of cohort %s: %w after %d tries: it may be in force, look with muster status", cohort, store.ErrAmbiguous, attempts)
	}
	return nil, fmt.Errorf("write the head of cohort %s: %w, %d times in a row; try again", cohort, store.ErrConflict, attempts)
}

// passing reports whether the store may answer better the next time.
func passing(err error) bool {
	return errors.Is(err, store.ErrUnreachable) || errors.Is(err, store.ErrAmbiguous)
}

// pause waits before a further try: up to 20 ms, 40 ms, … 1 s, at random, so that writers who met do not meet again.
func pause(ctx context.Context, try int) error {
	if try == 0 {
		return ctx.Err()
	}
	t := time.NewTimer(chance.N(min(10*time.Millisecond<<min(try, 10), time.Second)))
	defer t.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-t.C:
		return nil
	}
}

// seal makes the head document and has it accepted by trust, as every agent will.
func seal(trust manifest.TrustState, cohort string, prev *manifest.View, m manifest.Manifest, signer manifest.Signer, now time.Time) ([]byte, *manifest.View, error) {
	env, err := manifest.Seal(manifest.KindManifest, m, signer)
	if err != nil {
		return nil, nil, fmt.Errorf("sign the manifest of cohort %s: %w", cohort, err)
	}
	head := manifest.Head{Manifest: *env, Overrides: []manifest.Envelope{}}
	if prev != nil {
		head.Overrides, head.Beat = prev.Head.Overrides, prev.Head.Beat
	}
	data, err := wire.Encode(head)
	if err != nil {
		return nil, nil, fmt.Errorf("encode the head of cohort %s: %w", cohort, err)
	}
	_, view, err := trust.AcceptHead(cohort, data, now)
	if err != nil {
		return nil, nil, fmt.Errorf("new head of cohort %s would be refused, so it was not written: %w", cohort, err)
	}
	return data, view, nil
}

// copyHead writes the history copy of a head. What is there already stays: a copy never changes.
func copyHead(ctx context.Context, st store.Store, cohort string, v *manifest.View, data []byte) error {
	key := manifest.KeyHistory(cohort, v.Mark())
	var err error
	for try := range 3 {
		if pause(ctx, try) != nil {
			break
		}
		if _, err = st.Create(ctx, key, data); err == nil {
			return nil
		}
		if errors.Is(err, store.ErrExists) {
			obj, readErr := st.Get(ctx, key, manifest.MaxHeadBytes)
			switch {
			case readErr == nil && bytes.Equal(obj.Data, data):
				return nil
			case readErr == nil, errors.Is(readErr, store.ErrTooLarge):
				return fmt.Errorf("copy the head of cohort %s to %s: something else is there: %w; it was left, check the store with muster fsck", cohort, key, store.ErrExists)
			}
		}
	}
	return fmt.Errorf("copy the head of cohort %s to %s: %w", cohort, key, err)
}
