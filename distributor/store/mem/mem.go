// Package mem is a store in memory: for tests, simulations and the demo.
package mem

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/muster-config/muster/distributor/store"
)

// Store is a store in memory. The zero value is not ready: use New.
type Store struct {
	mu      sync.RWMutex
	objects map[string]object
	writes  uint64 // counts writes: the tokens
}

type object struct {
	data     []byte // never changed after it is stored
	token    store.Token
	modified time.Time
}

var _ store.Store = (*Store)(nil)

// New makes an empty store.
func New() *Store { return &Store{objects: map[string]object{}} }

// URL is "mem:".
func (s *Store) URL() string { return "mem:" }

// Get reads an object.
func (s *Store) Get(ctx context.Context, key string, limit int64) (store.Object, error) {
	return s.GetIfChanged(ctx, key, "", limit)
}

// GetIfChanged reads an object unless it still has token.
func (s *Store) GetIfChanged(ctx context.Context, key string, token store.Token, limit int64) (store.Object, error) {
	o, err := s.find(ctx, key)
	switch {
	case err != nil:
		return store.Object{}, fmt.Errorf("get %s: %w", key, err)
	case token != "" && token == o.token:
		return store.Object{}, store.ErrNotModified
	case int64(len(o.data)) > limit:
		return store.Object{}, fmt.Errorf("get %s: %d bytes, at most %d allowed: %w", key, len(o.data), limit, store.ErrTooLarge)
	}
	return store.Object{Data: bytes.Clone(o.data), Token: o.token}, nil
}

// Open streams an object.
func (s *Store) Open(ctx context.Context, key string) (io.ReadCloser, int64, error) {
	o, err := s.find(ctx, key)
	if err != nil {
		return nil, 0, fmt.Errorf("open %s: %w", key, err)
	}
	return io.NopCloser(bytes.NewReader(o.data)), int64(len(o.data)), nil
}

func (s *Store) find(ctx context.Context, key string) (object, error) {
	if err := ctx.Err(); err != nil {
		return object{}, err
	}
	if err := store.CheckKey(key); err != nil {
		return object{}, err
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	o, ok := s.objects[key]
	if !ok {
		return object{}, store.ErrNotFound
	}
	return o, nil
}

// List lists in byte order.
func (s *Store) List(ctx context.Context, prefix, after string, limit int) ([]store.Info, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("list %s: %w", prefix, err)
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	var infos []store.Info
	for _, key := range slices.Sorted(maps.Keys(s.objects)) {
		if len(infos) >= limit {
			break
		}
		if strings.HasPrefix(key, prefix) && key > after {
			o := s.objects[key]
			infos = append(infos, store.Info{Key: key, Size: int64(len(o.data)), Modified: o.modified})
		}
	}
	return infos, nil
}

// Put stores a blob.
func (s *Store) Put(ctx context.Context, key string, data []byte) error {
	_, err := s.write(ctx, "put", key, data, func(object, bool) error { return nil })
	return err
}

// Create makes a register.
func (s *Store) Create(ctx context.Context, key string, data []byte) (store.Token, error) {
	return s.write(ctx, "create", key, data, func(_ object, there bool) error {
		if there {
			return store.ErrExists
		}
		return register(data)
	})
}

// Replace overwrites a register.
func (s *Store) Replace(ctx context.Context, key string, data []byte, token store.Token) (store.Token, error) {
	return s.write(ctx, "replace", key, data, func(o object, there bool) error {
		if !there || o.token != token {
			return store.ErrConflict
		}
		return register(data)
	})
}

func register(data []byte) error {
	if len(data) > store.MaxRegister {
		return fmt.Errorf("%d bytes, at most %d allowed: %w", len(data), store.MaxRegister, store.ErrTooLarge)
	}
	return nil
}

// write stores data if allowed says so. Refused with equal bytes in place is success, as after an answer that got lost.
func (s *Store) write(ctx context.Context, op, key string, data []byte, allowed func(object, bool) error) (store.Token, error) {
	if err := ctx.Err(); err != nil {
		return "", fmt.Errorf("%s %s: %w", op, key, err)
	}
	if err := store.CheckKey(key); err != nil {
		return "", fmt.Errorf("%s: %w", op, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	o, there := s.objects[key]
	if err := allowed(o, there); err != nil {
		if there && bytes.Equal(o.data, data) {
			return o.token, nil
		}
		return "", fmt.Errorf("%s %s: %w", op, key, err)
	}
	s.writes++
	o = object{data: bytes.Clone(data), token: store.Token(strconv.FormatUint(s.writes, 10)), modified: time.Now().UTC()}
	s.objects[key] = o
	return o.token, nil
}

// Delete removes an object.
func (s *Store) Delete(ctx context.Context, key string) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("delete %s: %w", key, err)
	}
	if err := store.CheckKey(key); err != nil {
		return fmt.Errorf("delete: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.objects, key)
	return nil
}
