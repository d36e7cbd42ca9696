package distributor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/store"
)

// Refused is a commit that was not published. Nobody signs that: it is what the publisher wrote down for people, and decides nothing.
type Refused struct {
	Commit string
	Why    string
}

// skew is how far the clocks of a store and of publishers may be apart before a refusal is told out of its turn.
const skew = time.Hour

// refusals reads which commits were refused, the newest first, and of the index no more than it must: most of it is about commits that were published.
type refusals struct {
	h     *History
	infos []store.Info // still to be read, the oldest first
	found []Entry      // read and not told yet, the oldest first
}

func (h *History) refusals(ctx context.Context) (*refusals, error) {
	infos, err := listAll(ctx, h.st, manifest.PrefixCommits)
	if err != nil {
		return nil, err
	}
	slices.SortStableFunc(infos, func(a, b store.Info) int {
		switch {
		case a.Modified.IsZero() && b.Modified.IsZero():
			return 0
		case a.Modified.IsZero(): // not known: read at once
			return 1
		case b.Modified.IsZero():
			return -1
		}
		return a.Modified.Compare(b.Modified)
	})
	return &refusals{h: h, infos: infos}, nil
}

// after gives the refusals since t that were not given yet, at most limit of them; 0 is all.
func (r *refusals) after(ctx context.Context, t time.Time, limit int) ([]Entry, error) {
	for len(r.infos) > 0 {
		last := r.infos[len(r.infos)-1]
		if !last.Modified.IsZero() && last.Modified.Before(t.Add(-skew)) {
			break
		}
		// Written in the order in which they were refused, but for the skew of clocks.
		if limit > 0 && !last.Modified.IsZero() && r.newer(last.Modified.Add(skew)) >= limit {
			break
		}
		r.infos = r.infos[:len(r.infos)-1]
		if err := r.read(ctx, last.Key); err != nil {
			return nil, err
		}
	}
	slices.SortStableFunc(r.found, func(a, b Entry) int { return a.At.Compare(b.At) })
	var out []Entry
	for len(r.found) > 0 && !r.found[len(r.found)-1].At.Before(t) && (limit <= 0 || len(out) < limit) {
		out = append(out, r.found[len(r.found)-1])
		r.found = r.found[:len(r.found)-1]
	}
	return out, nil
}

// newer counts what is found and refused after t.
func (r *refusals) newer(t time.Time) (n int) {
	for _, e := range r.found {
		if e.At.After(t) {
			n++
		}
	}
	return n
}

func (r *refusals) read(ctx context.Context, key string) error {
	obj, err := r.h.st.Get(ctx, key, manifest.MaxSmallBytes)
	if err != nil && !errors.Is(err, store.ErrNotFound) && !errors.Is(err, store.ErrTooLarge) {
		return fmt.Errorf("read %s: %w", key, err)
	}
	var ix *manifest.CommitIndex
	if err == nil {
		ix, err = manifest.DecodeCommitIndex(obj.Data)
	}
	if err == nil && manifest.KeyCommit(ix.Commit) != key {
		err = fmt.Errorf("it is about commit %s", ix.Commit)
	}
	switch {
	case err != nil:
		r.h.Skipped = append(r.h.Skipped, fmt.Sprintf("%s: %v", key, err))
	case ix.Epoch == 0:
		r.found = append(r.found, Entry{At: ix.At, Refused: &Refused{Commit: ix.Commit, Why: ix.Reason}})
	}
	return nil
}
