package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/store"
)

// StoreCarrier carries from a store.
type StoreCarrier struct{ Store store.ReadStore }

// Name implements Carrier.
func (c StoreCarrier) Name() string { return c.Store.URL() }

// Head implements Carrier.
func (c StoreCarrier) Head(ctx context.Context, cohort string) ([]byte, error) {
	o, err := c.Store.Get(ctx, manifest.KeyHead(cohort), manifest.MaxHeadBytes)
	return o.Data, err
}

// Keyring implements Carrier.
func (c StoreCarrier) Keyring(ctx context.Context, version uint64) ([]byte, error) {
	o, err := c.Store.Get(ctx, manifest.KeyKeyring(version), manifest.MaxKeyringBytes)
	return o.Data, err
}

// Object implements Carrier.
func (c StoreCarrier) Object(ctx context.Context, key string) (io.ReadCloser, int64, error) {
	return c.Store.Open(ctx, key)
}

// The least that a body must bring in each window. A big bundle at a low but steady rate is fine for hours; a body that has stalled is not.
const (
	stallWindow = 30 * time.Second
	stallBytes  = 4 << 10
)

// openSteady opens an object for an Installer: the size must be the signed one, and a body that does not get on is cut.
func openSteady(ctx context.Context, c Carrier, o manifest.Object, window time.Duration) (io.ReadCloser, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	s := &steady{cancel: cancel, window: window, stop: make(chan struct{})}
	s.left.Store(o.Size)
	// The watch begins before the answer: a server that takes the connection and says nothing stalls too.
	s.wait.Add(1)
	go s.watch()
	body, size, err := c.Object(ctx, manifest.KeyBundle(o.Object))
	if err == nil && size >= 0 && size != o.Size {
		body.Close()
		err = &Fault{Code: CodeDigest, Err: fmt.Errorf("%s has %d bytes, not the %d that were signed", manifest.KeyBundle(o.Object), size, o.Size)}
	}
	if err != nil {
		err = s.explain(err)
		s.end()
		if codeOf(err) == CodeLocal {
			err = &Fault{Code: CodeUnreachable, Err: err} // whatever is wrong is wrong there, not on this host: the next carrier may help
		}
		return nil, fmt.Errorf("%s: %w", c.Name(), err)
	}
	s.body, s.from = body, c.Name()
	return s, nil
}

type steady struct {
	body   io.ReadCloser
	from   string
	cancel context.CancelCauseFunc
	window time.Duration
	read   atomic.Int64
	left   atomic.Int64
	cut    atomic.Bool
	stop   chan struct{}
	once   sync.Once
	wait   sync.WaitGroup
}

var errStalled = errors.New("the body has stalled")

func (s *steady) watch() {
	defer s.wait.Done()
	tick := time.NewTicker(s.window)
	defer tick.Stop()
	for last := int64(0); ; {
		select {
		case <-s.stop:
			return
		case <-tick.C:
		}
		now := s.read.Load()
		if now-last < min(stallBytes, max(s.left.Load(), 1)) {
			s.cut.Store(true)
			s.cancel(errStalled)
			return
		}
		last = now
	}
}

func (s *steady) explain(err error) error {
	if s.cut.Load() {
		return &Fault{Code: CodeStalled, Err: fmt.Errorf("%w: under %d bytes in %s", errStalled, stallBytes, s.window)}
	}
	return err
}

func (s *steady) end() {
	s.once.Do(func() { close(s.stop) })
	s.wait.Wait()
	s.cancel(context.Canceled)
}

func (s *steady) Read(p []byte) (int, error) {
	n, err := s.body.Read(p)
	s.read.Add(int64(n))
	s.left.Add(-int64(n))
	if err != nil && !errors.Is(err, io.EOF) {
		err = fmt.Errorf("%s: %w", s.from, s.explain(err))
		if codeOf(err) == CodeLocal {
			err = &Fault{Code: CodeUnreachable, Err: err}
		}
	}
	return n, err
}

func (s *steady) Close() error {
	err := s.body.Close()
	s.end()
	return err
}
