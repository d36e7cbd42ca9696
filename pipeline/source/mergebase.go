package source

import (
	"context"
	"errors"
	"fmt"

	"github.com/go-git/go-git/v5/plumbing"
)

// ErrUnrelated: two commits have no common ancestor.
var ErrUnrelated = errors.New("no common history")

// MergeBase gives the best common ancestor of two revisions: where the branch a left the branch b. Of several, which a criss-cross of merges makes, it is the
// youngest. ErrShallow when history ends where a better one might be, ErrUnrelated when there is none.
func (r *Repo) MergeBase(ctx context.Context, a, b string) (string, error) {
	base, err := r.mergeBase(ctx, a, b)
	if err != nil {
		return "", fmt.Errorf("repository %s: merge base of %q and %q: %w", r.name, a, b, err)
	}
	return base, nil
}

func (r *Repo) mergeBase(ctx context.Context, a, b string) (string, error) {
	one, err := r.resolve(a)
	if err != nil {
		return "", err
	}
	two, err := r.resolve(b)
	if err != nil {
		return "", err
	}
	cut, err := r.shallow()
	if err != nil {
		return "", err
	}
	ofOne, err := r.ancestors(ctx, one.Hash, cut)
	if err != nil {
		return "", err
	}
	ofTwo, err := r.ancestors(ctx, two.Hash, cut)
	if err != nil {
		return "", err
	}
	// All ancestors of a common one are common: so the best are those without a common child.
	common := map[plumbing.Hash]*graphNode{}
	for h, n := range ofOne {
		if ofTwo[h] != nil {
			common[h] = n
		}
	}
	hasChild := map[plumbing.Hash]bool{}
	for h, n := range common {
		if !cut[h] {
			for _, p := range n.parents {
				hasChild[p] = true
			}
		}
	}
	// What lies beyond a cut in the common part is older than what was found. Beyond any other cut there may be a way to something better.
	for h := range cut {
		if (ofOne[h] != nil || ofTwo[h] != nil) && common[h] == nil {
			return "", fmt.Errorf("%w: it ends at %.10s; run git fetch --unshallow", ErrShallow, h)
		}
	}
	best := plumbing.ZeroHash
	for h, n := range common {
		if hasChild[h] {
			continue
		}
		if best.IsZero() || n.when > common[best].when || n.when == common[best].when && h.String() < best.String() {
			best = h
		}
	}
	if best.IsZero() {
		return "", ErrUnrelated
	}
	return best.String(), nil
}

// ancestors gives a commit and all its ancestors, as far as a shallow clone has them.
func (r *Repo) ancestors(ctx context.Context, from plumbing.Hash, cut map[plumbing.Hash]bool) (map[plumbing.Hash]*graphNode, error) {
	seen := map[plumbing.Hash]*graphNode{}
	queue := []plumbing.Hash{from}
	for len(queue) > 0 {
		h := queue[len(queue)-1]
		queue = queue[:len(queue)-1]
		if seen[h] != nil {
			continue
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		n, err := r.graph(h)
		if err != nil {
			return nil, err
		}
		seen[h] = n
		if !cut[h] {
			queue = append(queue, n.parents...)
		}
	}
	return seen, nil
}
