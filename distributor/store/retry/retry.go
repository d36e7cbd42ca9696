// Package retry is the one policy by which stores on a network try again. Nothing above a store repeats a call at once: loops come back at their next tick.
package retry

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/muster-config/muster/distributor/store"
)

// Policy bounds the tries. The zero value is the default.
type Policy struct {
	Tries int           // in all; default 4
	First time.Duration // pause after the first try, doubled after each; default 100 ms
	Most  time.Duration // the longest pause; default 2 s
}

func (p Policy) norm() Policy {
	if p.Tries <= 0 {
		p.Tries = 4
	}
	if p.First <= 0 {
		p.First = 100 * time.Millisecond
	}
	if p.Most <= 0 {
		p.Most = 2 * time.Second
	}
	return p
}

// Do calls f until it succeeds, fails for good or the tries are used up. Only store.ErrUnreachable passes by itself, and of that not a wrong clock.
func Do(ctx context.Context, p Policy, f func() error) error {
	p = p.norm()
	for try := 1; ; try++ {
		err := f()
		var skew *store.SkewError
		if err == nil || ctx.Err() != nil || !errors.Is(err, store.ErrUnreachable) || errors.As(err, &skew) {
			return err
		}
		if try == p.Tries {
			return fmt.Errorf("%w (%d tries)", err, try)
		}
		if cerr := p.Pause(ctx, try); cerr != nil {
			return err
		}
	}
}

// Pause waits after the given try, counted from 1: half the time for certain, half by chance. It fails when ctx ends.
func (p Policy) Pause(ctx context.Context, try int) error {
	p = p.norm()
	d := p.Most
	if shift := try - 1; shift < 20 {
		d = min(p.First<<shift, p.Most)
	}
	t := time.NewTimer(d/2 + rand.N(d/2+1))
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}
