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
}

// Apply reads the cohort's head, lets decide make the next manifest, signs it and puts it in place by compare-and-swap; then it writes the history copy. When
// somebody else was first, or an answer was lost, it reads and decides again. A head is never written that trust would not accept after the one before it.
func Apply(ctx context.Context, st store.Store, trust manifest.TrustState, signer manifest.Signer, cohort string, now time.Time, decide Decide) (*Applied, error) {
	key := manifest.KeyHead(cohort)
	var seen bool
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
		after := trust
		if there {
			if after, prev, err = trust.AcceptHead(cohort, obj.Data, now); err != nil {
				return nil, fmt.Errorf("head of cohort %s (%s): %w", cohort, key, err)
			}
			if slices.ContainsFunc(written, func(w []byte) bool { return bytes.Equal(w, obj.Data) }) {
				return &Applied{Wrote: true, View: prev, History: copyHead(ctx, st, cohort, prev, obj.Data)}, nil
			}
		}
		next, changed, err := decide(prev)
		if err != nil {
			return nil, err
		}
		if !changed {
			return &Applied{View: prev}, nil
		}
		if !there {
			if err := aboveHistory(ctx, st, trust, cohort, now, &next); err != nil {
				return nil, err
			}
		}
		data, view, err := seal(after, cohort, prev, next, signer, now)
		if err != nil {
			return nil, err
		}
		if there {
			_, err = st.Replace(ctx, key, data, obj.Token)
		} else {
			_, err = st.Create(ctx, key, data)
		}
		switch {
		case err == nil:
			return &Applied{Wrote: true, View: view, History: copyHead(ctx, st, cohort, view, data)}, nil
		case errors.Is(err, store.ErrConflict), errors.Is(err, store.ErrExists):
			// Somebody was first, or the head is gone: the next read tells.
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

func copyHead(ctx context.Context, st store.Store, cohort string, v *manifest.View, data []byte) error {
	key := manifest.KeyHistory(cohort, v.Mark())
	var err error
	for try := range 3 {
		if pause(ctx, try) != nil {
			break
		}
		if err = st.Put(ctx, key, data); err == nil {
			return nil
		}
	}
	return fmt.Errorf("copy the head of cohort %s to %s: %w", cohort, key, err)
}

// aboveHistory raises the order of a first head above every genuine copy of earlier heads: where a head was deleted, agents remember its order and would refuse
// a lower one. One more serial is left out, since the copy of the last head may be missing.
func aboveHistory(ctx context.Context, st store.Reader, trust manifest.TrustState, cohort string, now time.Time, m *manifest.Manifest) error {
	prefix := manifest.PrefixHistory + cohort + "/"
	var marks []manifest.Mark
	for after := ""; ; {
		page, err := st.List(ctx, prefix, after, 1000)
		if err != nil {
			return fmt.Errorf("list %s: %w", prefix, err)
		}
		for _, info := range page {
			name := info.Key[len(prefix):]
			if mark, err := manifest.ParseMark(trimJSON(name)); err == nil {
				marks = append(marks, mark)
			}
			after = info.Key
		}
		if len(page) < 1000 {
			break
		}
	}
	slices.SortFunc(marks, func(a, b manifest.Mark) int { return b.Compare(a) })
	for _, mark := range marks {
		obj, err := st.Get(ctx, manifest.KeyHistory(cohort, mark), manifest.MaxHeadBytes)
		if errors.Is(err, store.ErrTooLarge) || errors.Is(err, store.ErrNotFound) {
			continue
		}
		if err != nil {
			return fmt.Errorf("read the history of cohort %s: %w", cohort, err)
		}
		_, old, err := trust.AcceptHead(cohort, obj.Data, now)
		if err != nil || old.Mark() != mark {
			continue // not genuine: anybody who may write the bucket can put it there
		}
		m.Era, m.Serial = max(m.Era, mark.Era), max(m.Serial, mark.Serial+2)
		return nil
	}
	if len(marks) > 0 {
		return fmt.Errorf("the head of cohort %s is gone, and none of the %d copies under %s is genuine: %w; hosts would refuse a head that starts anew, so nothing was assigned: restore %s from a backup of the store",
			cohort, len(marks), prefix, ErrVanished, manifest.KeyHead(cohort))
	}
	return nil
}

func trimJSON(name string) string {
	if n := len(name) - len(".json"); n > 0 && name[n:] == ".json" {
		return name[:n]
	}
	return name
}
