package collector

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/store"
)

// immutable says whether a key names an object that may be read through the collector: one that never changes. Heads have their own path, and the evaluated
// trees under sources/ are for operators. Releases are for people: they tell of all cohorts.
func immutable(key string) bool {
	if store.CheckKey(key) != nil {
		return false
	}
	for _, prefix := range []string{manifest.PrefixBundles, manifest.PrefixKeyrings, manifest.PrefixReleases} {
		if strings.HasPrefix(key, prefix) {
			return true
		}
	}
	return false
}

// register reads what hosts do not read here, for those who may read the store whole: as it is now, from no cache.
func (c *Collector) register(ctx context.Context, key string) (io.ReadCloser, int64, error) {
	if err := store.CheckKey(key); err != nil {
		return nil, 0, refuse(http.StatusBadRequest, "", "%w", err)
	}
	select {
	case c.streams <- struct{}{}:
	default:
		return nil, 0, errBusy
	}
	body, size, err := c.store.Open(ctx, key)
	if err != nil {
		<-c.streams
		return nil, 0, err
	}
	return &stream{body, func() { <-c.streams }}, size, nil
}

// errBusy says to come back later.
var errBusy = refuse(http.StatusServiceUnavailable, "", "too many requests at once")

// Object reads an immutable object through to the store. Small ones come from a cache; many who ask for one at the same time cost the store one read.
func (c *Collector) Object(ctx context.Context, key string) (io.ReadCloser, int64, error) {
	if !immutable(key) {
		return nil, 0, refuse(http.StatusForbidden, "", "%.200q is not an object that hosts read", key)
	}
	if data, ok := c.objects.get(key); ok {
		return io.NopCloser(bytes.NewReader(data)), int64(len(data)), nil
	}
	// The first who asks reads for all; that one leaving must not fail the others.
	got, err, _ := c.loads.Do(key, func() (any, error) { return c.loadObject(context.WithoutCancel(ctx), key) })
	if err != nil {
		return nil, 0, err
	}
	if data := got.([]byte); data != nil {
		return io.NopCloser(bytes.NewReader(data)), int64(len(data)), nil
	}
	// Too large for the cache: streamed, a few at a time.
	select {
	case c.streams <- struct{}{}:
	default:
		return nil, 0, errBusy
	}
	body, size, err := c.store.Open(ctx, key)
	if err != nil {
		<-c.streams
		return nil, 0, err
	}
	return &stream{body, func() { <-c.streams }}, size, nil
}

type stream struct {
	io.ReadCloser
	done func()
}

func (s *stream) Close() error {
	err := s.ReadCloser.Close()
	if s.done != nil {
		s.done()
		s.done = nil
	}
	return err
}

// loadObject reads an object into the cache; nil if it is too large for that.
func (c *Collector) loadObject(ctx context.Context, key string) ([]byte, error) {
	if data, ok := c.objects.get(key); ok {
		return data, nil
	}
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	obj, err := c.store.Get(ctx, key, cacheMaxObject)
	if errors.Is(err, store.ErrTooLarge) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	// A bundle is named by its bytes. A damaged one is not kept, so that it is right again as soon as the store is.
	if name, ok := strings.CutPrefix(key, manifest.PrefixBundles); ok {
		sum := sha256.Sum256(obj.Data)
		if !strings.Contains(name, hex.EncodeToString(sum[:])) {
			return nil, fmt.Errorf("%s: the store holds other bytes under this name: %w", key, errDamaged)
		}
		c.objects.put(key, obj.Data) // nothing else is: what nobody verified must not outlive its correction
	}
	return obj.Data, nil
}

var errDamaged = errors.New("object is damaged")
