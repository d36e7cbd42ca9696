package rollout

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/store"
	"github.com/muster-config/muster/distributor/wire"
)

// Override puts an operator's envelope, an override or its end, into the head of its cohort by compare-and-swap. The order itself is left as it is: it takes no rollout key. What it
// takes the place of leaves the head, and so does what is past its end; hosts remember. A head is never written that trust would not accept.
func Override(ctx context.Context, st store.Store, trust manifest.TrustState, cohort string, env *manifest.Envelope, now time.Time) (*Applied, error) {
	o, err := manifest.DecodeOverride(env.Payload)
	if err != nil {
		return nil, err
	}
	key := manifest.KeyHead(cohort)
	var written [][]byte // heads of ours whose answer was lost
	for try := range attempts {
		if err := pause(ctx, try); err != nil {
			return nil, err
		}
		obj, err := st.Get(ctx, key, manifest.MaxHeadBytes)
		switch {
		case errors.Is(err, store.ErrNotFound):
			return nil, fmt.Errorf("override of cohort %s: %w: it was never rolled out, so that there is nothing to override", cohort, ErrNothing)
		case err != nil && len(written) > 0 && try+1 < attempts && passing(err):
			continue // what became of our write must be found out
		case err != nil:
			return nil, fmt.Errorf("read the head of cohort %s: %w", cohort, err)
		}
		after, prev, err := trust.AcceptHead(cohort, obj.Data, now)
		if err != nil {
			return nil, fmt.Errorf("head of cohort %s (%s): %w", cohort, key, err)
		}
		in := func(e manifest.Envelope) bool { return e.Digest() == env.Digest() }
		if slices.ContainsFunc(written, func(w []byte) bool { return bytes.Equal(w, obj.Data) }) || slices.ContainsFunc(prev.Head.Overrides, in) {
			return &Applied{Wrote: len(written) > 0, View: prev, History: copyHead(ctx, st, cohort, prev, obj.Data)}, nil
		}
		if why := ending(prev, o); why != "" {
			return nil, fmt.Errorf("override %s of cohort %s cannot last longer: %w: it is taken from its hosts already (%s), and those that are out of it would come back all at once; set it again", o.ID, cohort, ErrUnfit, why)
		}
		head := manifest.Head{Manifest: prev.Head.Manifest, Overrides: append(remaining(prev.Head.Overrides, o, now), *env), Beat: prev.Head.Beat + 1}
		if len(head.Overrides) > manifest.MaxOverrides {
			return nil, fmt.Errorf("override %s: cohort %s has %d overrides and ends of such already, more than %d do not fit: %w; bring what they say into the config repo", o.ID, cohort, len(head.Overrides)-1, manifest.MaxOverrides, ErrUnfit)
		}
		data, err := wire.Encode(head)
		if err != nil {
			return nil, fmt.Errorf("encode the head of cohort %s: %w", cohort, err)
		}
		_, view, err := after.AcceptHead(cohort, data, now)
		if err != nil {
			return nil, fmt.Errorf("override %s of cohort %s would be refused, so it was not written: %w", o.ID, cohort, err)
		}
		_, err = st.Replace(ctx, key, data, obj.Token)
		switch {
		case err == nil:
			return &Applied{Wrote: true, View: view, History: copyHead(ctx, st, cohort, view, data)}, nil
		case errors.Is(err, store.ErrConflict), errors.Is(err, store.ErrNotFound), errors.Is(err, store.ErrExists):
			// Somebody was first: the next read tells.
		case passing(err):
			written = append(written, data)
		default:
			return nil, fmt.Errorf("write the head of cohort %s: %w", cohort, err)
		}
	}
	if len(written) > 0 {
		return nil, fmt.Errorf("write the head of cohort %s: %w after %d tries: it may be in force, look with muster override list", cohort, store.ErrAmbiguous, attempts)
	}
	return nil, fmt.Errorf("write the head of cohort %s: %w, %d times in a row; try again", cohort, store.ErrConflict, attempts)
}

// ending is why an override ends already that an envelope would make last longer, "" if that is not so.
func ending(v *manifest.View, o *manifest.Override) string {
	lasts := func(w manifest.VerifiedOverride) bool { return w.ID == o.ID && !w.NotAfter.Before(o.NotAfter) }
	if o.Ended != nil || slices.ContainsFunc(v.Overrides, lasts) {
		return ""
	}
	for _, e := range v.Manifest.Rollout.Endings {
		if e.Override == o.ID {
			return e.Why
		}
	}
	return ""
}

// remaining are the envelopes that stay beside a new one: not those that it takes the place of, nor what no host needs any more.
func remaining(list []manifest.Envelope, o *manifest.Override, now time.Time) []manifest.Envelope {
	out := []manifest.Envelope{}
	for _, e := range list {
		old, err := manifest.DecodeOverride(e.Payload)
		if err != nil { // accepted with the head: cannot be
			continue
		}
		covers := len(o.Hosts) == 0 || len(old.Hosts) > 0 && !slices.ContainsFunc(old.Hosts, func(h string) bool { return !slices.Contains(o.Hosts, h) })
		switch {
		case !now.Before(old.NotAfter):
		case old.ID == o.ID && (o.Ended != nil || old.Ended == nil && covers && !old.NotAfter.After(o.NotAfter)):
		default:
			out = append(out, e)
		}
	}
	return out
}
