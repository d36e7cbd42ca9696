package rollout

import (
	"context"
	"fmt"
	"time"

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
