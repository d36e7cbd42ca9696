package s3

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/muster-config/muster/distributor/store"
)

// Answers to a conditional PUT that say nothing certain; born in classify.
var (
	errPrecondition = errors.New("precondition failed")
	errBusy         = errors.New("conflicting conditional request")
	errNotSent      = errors.New("not sent") // beside ErrUnreachable: the request cannot have arrived
)

// Create makes a register.
func (s *Store) Create(ctx context.Context, key string, data []byte) (store.Token, error) {
	token, err := s.swap(ctx, key, data, condition{absent: true})
	return token, s.fail("create", key, err)
}

// Replace overwrites a register.
func (s *Store) Replace(ctx context.Context, key string, data []byte, token store.Token) (store.Token, error) {
	if strings.HasPrefix(string(token), digestPrefix) {
		return "", s.fail("replace", key, fmt.Errorf("the server gives no ETag: %w", store.ErrNoCAS))
	}
	if token == "" {
		// A condition that nothing can meet; equal bytes in place are success all the same.
		got, err := s.settle(ctx, key, data, condition{})
		if err == nil && got == "" {
			err = store.ErrConflict
		}
		return got, s.fail("replace", key, err)
	}
	got, err := s.swap(ctx, key, data, condition{token: token})
	return got, s.fail("replace", key, err)
}

// swap is a conditional PUT with all doubts removed. Sending it again is always safe: should an earlier one still arrive, the later one is refused, and
// equal bytes are then found in place.
func (s *Store) swap(ctx context.Context, key string, data []byte, cond condition) (store.Token, error) {
	if err := store.CheckKey(key); err != nil {
		return "", err
	}
	if len(data) > store.MaxRegister {
		return "", fmt.Errorf("%d bytes, at most %d allowed: %w", len(data), store.MaxRegister, store.ErrTooLarge)
	}
	if err := ctx.Err(); err != nil {
		return "", err
	}
	sent := false // some request may have arrived
	tries := s.retry.Tries
	if tries <= 0 {
		tries = 4
	}
	for try := 1; ; try++ {
		token, err := s.put(ctx, key, data, cond)
		if err == nil {
			return token, nil
		}
		refused := errors.Is(err, errPrecondition) || errors.Is(err, store.ErrNotFound)
		var skew *store.SkewError
		switch {
		case ctx.Err() != nil && !sent && errors.Is(err, errNotSent):
			return "", err
		case refused, errors.Is(err, errBusy):
		case errors.As(err, &skew):
			return "", err
		case errors.Is(err, store.ErrUnreachable), ctx.Err() != nil:
			sent = sent || !errors.Is(err, errNotSent)
		default:
			return "", err // a definite no: rights, a wrong region, a missing bucket
		}
		// Read and compare, but not a server that cannot be reached at all.
		if refused || errors.Is(err, errBusy) || sent {
			token, serr := s.settle(ctx, key, data, cond)
			switch {
			case serr == nil && token != "":
				return token, nil
			case serr == nil && refused && !cond.absent:
				return "", fmt.Errorf("the server refuses its own ETag %s, perhaps a proxy changes it: %w", cond.token, store.ErrNoCAS)
			case errors.Is(serr, store.ErrExists), errors.Is(serr, store.ErrConflict):
				return "", serr
			case serr != nil && sent:
				return "", fmt.Errorf("%w: %w; then reading it back: %w", store.ErrAmbiguous, err, serr)
			case serr != nil:
				return "", serr
			}
		}
		if try >= tries || s.retry.Pause(ctx, try) != nil {
			switch {
			case sent:
				return "", fmt.Errorf("%w (%d tries): %w", store.ErrAmbiguous, try, err)
			case refused, errors.Is(err, errBusy):
				return "", fmt.Errorf("%w: nothing was written, the server answers only: %w (%d tries)", store.ErrUnreachable, err, try)
			}
			return "", fmt.Errorf("%w (%d tries)", err, try)
		}
	}
}

// settle reads what is there after a doubtful answer. A token: our bytes are in place. ErrExists or ErrConflict: somebody else's. Neither: as if nothing
// had been sent, so the PUT may go out again.
func (s *Store) settle(ctx context.Context, key string, data []byte, cond condition) (store.Token, error) {
	lost := store.ErrConflict
	if cond.absent {
		lost = store.ErrExists
	}
	now, err := s.get(ctx, key, "", store.MaxRegister)
	switch {
	case errors.Is(err, store.ErrNotFound) && cond.absent:
		return "", nil
	case errors.Is(err, store.ErrNotFound):
		return "", fmt.Errorf("it is gone: %w", store.ErrConflict)
	case errors.Is(err, store.ErrTooLarge):
		return "", lost
	case err != nil:
		return "", err
	case bytes.Equal(now.Data, data):
		return now.Token, nil
	case cond.token != "" && same(now.Token, cond.token):
		return "", nil
	}
	return "", lost
}
