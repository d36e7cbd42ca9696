// Package through is a store seen through a collector: for operators who hold an operator key and a token, and have no rights on the bucket.
// It reads all that the store holds, and writes what an operator key signs: bundles, and the releases of overrides. The collector holds that to the rules.
package through

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/muster-config/muster/distributor/api"
	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/rollout"
	"github.com/muster-config/muster/distributor/store"
)

// Store is a store.Store over a collector's API. Safe for concurrent use.
type Store struct{ client *api.Client }

// New sees the store through a collector.
func New(client *api.Client) *Store { return &Store{client} }

// Close closes idle connections.
func (s *Store) Close() { s.client.Close() }

// URL is the collector's.
func (s *Store) URL() string { return s.client.URL() }

// fate gives an error of the client the meaning that it has for a store.
func fate(err error) error {
	switch {
	case errors.Is(err, api.ErrNotFound):
		return fmt.Errorf("%w: %w", store.ErrNotFound, err)
	case errors.Is(err, api.ErrUnreachable), errors.Is(err, api.ErrBusy):
		return fmt.Errorf("%w: %w", store.ErrUnreachable, err)
	case errors.Is(err, api.ErrFull):
		return fmt.Errorf("%w: %w", store.ErrFull, err)
	}
	return err
}

// Get reads an object.
func (s *Store) Get(ctx context.Context, key string, limit int64) (store.Object, error) {
	body, size, err := s.Open(ctx, key)
	if err != nil {
		return store.Object{}, err
	}
	defer body.Close()
	if size > limit {
		return store.Object{}, fmt.Errorf("read %s: %w: %d bytes", key, store.ErrTooLarge, size)
	}
	data, err := io.ReadAll(io.LimitReader(body, size+1))
	if err != nil {
		return store.Object{}, fmt.Errorf("read %s: %w: %w", key, store.ErrUnreachable, err)
	}
	if int64(len(data)) != size {
		return store.Object{}, fmt.Errorf("read %s: %w: %d bytes of %d", key, store.ErrUnreachable, len(data), size)
	}
	return store.Object{Data: data}, nil
}

// GetIfChanged is Get: the API has no tokens.
func (s *Store) GetIfChanged(ctx context.Context, key string, _ store.Token, limit int64) (store.Object, error) {
	return s.Get(ctx, key, limit)
}

// Open streams an object.
func (s *Store) Open(ctx context.Context, key string) (io.ReadCloser, int64, error) {
	body, size, err := s.client.Object(ctx, key)
	if err != nil {
		return nil, 0, fmt.Errorf("read %s: %w", key, fate(err))
	}
	return body, size, nil
}

// List lists objects.
func (s *Store) List(ctx context.Context, prefix, after string, most int) ([]store.Info, error) {
	list, err := s.client.ListObjects(ctx, prefix, after, most)
	if err != nil {
		return nil, fate(err)
	}
	infos := make([]store.Info, len(list))
	for i, o := range list {
		infos[i] = store.Info{Key: o.Key, Size: o.Size, Modified: o.Modified}
	}
	return infos, nil
}

// Put stores a bundle.
func (s *Store) Put(ctx context.Context, key string, data []byte) error {
	if len(data) > api.MaxPutObject {
		return fmt.Errorf("%s is %d bytes: %w: through a collector at most %d go; give --store", key, len(data), store.ErrTooLarge, api.MaxPutObject)
	}
	return fate(s.client.PutObject(ctx, key, data))
}

// Create makes the release of an override.
func (s *Store) Create(ctx context.Context, key string, data []byte) (store.Token, error) {
	if !strings.HasPrefix(key, manifest.PrefixReleases) {
		return "", fmt.Errorf("write %s: %w through a collector", key, store.ErrReadOnly)
	}
	env, err := manifest.ParseEnvelope(data)
	if err != nil {
		return "", err
	}
	_, err = s.client.PostOverride(ctx, api.OverridePost{Release: env})
	var refused *api.StatusError
	if errors.As(err, &refused) && refused.Code == 3 {
		return "", fmt.Errorf("%w: %w", store.ErrExists, err)
	}
	return "", fate(err)
}

// Replace is nobody's here: heads are changed by Put-ting an override.
func (s *Store) Replace(_ context.Context, key string, _ []byte, _ store.Token) (store.Token, error) {
	return "", fmt.Errorf("write %s: %w through a collector", key, store.ErrReadOnly)
}

// Delete is nobody's here.
func (s *Store) Delete(_ context.Context, key string) error {
	return fmt.Errorf("delete %s: %w through a collector", key, store.ErrReadOnly)
}

// PutOverride has the collector put an envelope into the head of its cohort.
func (s *Store) PutOverride(ctx context.Context, cohort string, env *manifest.Envelope) (*rollout.Applied, error) {
	got, err := s.client.PostOverride(ctx, api.OverridePost{Override: env})
	if err != nil {
		return nil, fmt.Errorf("override of cohort %s: %w", cohort, fate(err))
	}
	done := &rollout.Applied{Wrote: true}
	if got.Warning != "" {
		done.History = errors.New(got.Warning)
	}
	return done, nil
}
