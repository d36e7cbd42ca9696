package store

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"
)

// PrefixProbe is where CheckCAS writes and removes its probe.
const PrefixProbe = "probe/"

// CheckCAS finds out whether a store really does conditional writes: some servers take the condition and write all the same. It writes one probe object
// under a random name and removes it. ErrNoCAS if any condition is ignored.
func CheckCAS(ctx context.Context, s Store) error {
	key := PrefixProbe + rand.Text()
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		_ = s.Delete(ctx, key) // a probe that stays is litter for gc, no fault
	}()
	bad := func(what string) error {
		return fmt.Errorf("%s: %s: %w", s.URL(), what, ErrNoCAS)
	}
	first, err := s.Create(ctx, key, []byte("first"))
	if err != nil {
		return fmt.Errorf("check conditional writes: %w", err)
	}
	if _, err := s.Create(ctx, key, []byte("second")); err == nil {
		return bad("an object was created over one that exists")
	} else if !errors.Is(err, ErrExists) {
		return fmt.Errorf("check conditional writes: %w", err)
	}
	third, err := s.Replace(ctx, key, []byte("third"), first)
	if err != nil {
		return fmt.Errorf("check conditional writes: %w", err)
	}
	if _, err := s.Replace(ctx, key, []byte("fourth"), first); err == nil {
		return bad("an object was replaced on an old token")
	} else if !errors.Is(err, ErrConflict) {
		return fmt.Errorf("check conditional writes: %w", err)
	}
	if err := s.Delete(ctx, key); err != nil {
		return fmt.Errorf("check conditional writes: %w", err)
	}
	if _, err := s.Replace(ctx, key, []byte("fifth"), third); err == nil {
		return bad("an object that is gone was replaced")
	} else if !errors.Is(err, ErrConflict) {
		return fmt.Errorf("check conditional writes: %w", err)
	}
	return nil
}
