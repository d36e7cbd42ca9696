package agent

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/store"
)

// listen is the long poll. The mark it waits behind is that of the newest head which the loop verified, never of one that was merely announced: what the
// loop refuses is asked for again, after a pause (B094).
func (a *Agent) listen(ctx context.Context, h Hinter, after manifest.Mark) {
	fails := 0
	for ctx.Err() == nil {
		asked := time.Now()
		data, err := h.AwaitHead(ctx, a.cfg.Cohort, after)
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			mark, ok := a.offer(ctx, data)
			if ok {
				after = mark
				fails = 0
			} else {
				fails++
			}
			a.setListening(ok || fails < 3)
		case errors.Is(err, store.ErrNotModified):
			fails = 0
			a.setListening(true)
			if rest := a.timing.retry - time.Since(asked); rest > 0 {
				sleep(ctx, rest) // a server that does not wait is no reason for a hot loop
			}
		default:
			fails++
			a.log.Debug("long poll", "err", err)
			a.setListening(false)
		}
		if fails > 0 {
			sleep(ctx, backoff(fails-1, a.timing.retry, a.cfg.Poll))
		}
	}
}

// offer hands a head to the loop and waits for its answer: the newest verified mark.
func (a *Agent) offer(ctx context.Context, data []byte) (manifest.Mark, bool) {
	h := hint{data: data, moved: make(chan manifest.Mark, 1)}
	select {
	case a.hints <- h:
	case <-ctx.Done():
		return manifest.Mark{}, false
	}
	select {
	case m, ok := <-h.moved:
		return m, ok
	case <-ctx.Done():
		return manifest.Mark{}, false
	}
}

func (a *Agent) setListening(on bool) {
	if a.listening.Swap(on) == on {
		return
	}
	select {
	case a.changed <- struct{}{}:
	default:
	}
}

// hinted takes a head from the long poll. It says whether there is a newer head now.
func (a *Agent) hinted(ctx context.Context, h hint) bool {
	defer close(h.moved)
	before := a.view
	err := a.take(h.data)
	if errors.Is(err, manifest.ErrSignature) || errors.Is(err, manifest.ErrKeyring) {
		a.followKeyrings(ctx) // it may be signed by a key, or be of an era, that the next keyring brings
		err = a.take(h.data)
	}
	if err != nil {
		a.log.Warn("the long poll brought a head that is not to be believed", "err", err)
		return false
	}
	a.saidBySource(a.view)
	h.moved <- a.view.Mark()
	// The beat is not signed, and what came by hand may have the mark of what a source says now.
	return before == nil || before.Mark().Compare(a.view.Mark()) != 0 || !slices.EqualFunc(before.Head.Overrides, a.view.Head.Overrides, func(x, y manifest.Envelope) bool { return x.Digest() == y.Digest() })
}

// superseded takes the head that waits, if there is one, and says whether it assigns to this host another release than the one on trial. Junk, and a head
// that was only signed anew, end no trial: its way back would be lost. Nor does a release that is not tried now, as the one that a way back comes from.
func (a *Agent) superseded(ctx context.Context, t *trial) bool {
	select {
	case h := <-a.hints:
		if !a.hinted(ctx, h) {
			return false
		}
	default:
		return false
	}
	a.moved = true
	r, err := a.resolve(ctx)
	if err != nil {
		return false // the settle that follows says it
	}
	next := targetOf(r)
	for _, known := range []*target{t.Target, a.want} {
		if known != nil && next.key() == known.key() {
			return false
		}
	}
	return a.due(next, tick) && !a.early(r, next, tick)
}
