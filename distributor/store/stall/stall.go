// Package stall is an HTTP transport without a limit on the whole exchange, but with one on standing still: a large body at a steady low rate goes through,
// a silent one and one that drips do not.
package stall

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/muster-config/muster/distributor/store"
)

// Defaults of a Transport.
const (
	DefaultWindow = 30 * time.Second
	DefaultLeast  = 4 << 10
)

// Transport gives up on an exchange in which less than Least bytes moved within Window while we waited for the other side. A caller that takes
// its time with the body is not the other side's fault.
type Transport struct {
	Base   http.RoundTripper
	Window time.Duration // default DefaultWindow
	Least  int64         // default DefaultLeast
}

// RoundTrip implements http.RoundTripper.
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	window, least := t.Window, t.Least
	if window <= 0 {
		window = DefaultWindow
	}
	if least <= 0 {
		least = DefaultLeast
	}
	ctx, cancel := context.WithCancelCause(req.Context())
	w := &watch{window: window, least: least, cancel: cancel}
	w.wait(true) // for the header
	w.start()
	out := req.Clone(ctx)
	if req.Body != nil && req.Body != http.NoBody {
		out.Body = &sent{ReadCloser: req.Body, w: w}
	}
	resp, err := t.Base.RoundTrip(out)
	if err != nil {
		w.stop()
		return nil, w.cause(ctx, err)
	}
	w.wait(false)
	w.moved.Add(least) // the header came
	resp.Body = &received{ReadCloser: resp.Body, w: w, ctx: ctx}
	return resp, nil
}

type watch struct {
	window time.Duration
	least  int64
	cancel context.CancelCauseFunc
	moved  atomic.Int64

	mu      sync.Mutex
	since   time.Time     // when the waiting for the other side that goes on began; zero: we do not wait
	waited  time.Duration // of this window, without what goes on
	timer   *time.Timer
	stopped bool
}

func (w *watch) start() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.timer = time.AfterFunc(w.window, w.look)
}

// wait says that we begin, or end, to wait for the other side.
func (w *watch) wait(begin bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if begin {
		w.since = time.Now()
		return
	}
	w.waited += time.Since(w.since)
	w.since = time.Time{}
}

// look ends a window. It counts against the other side only if we waited for most of it: a reader who comes back just now has waited for nothing.
func (w *watch) look() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stopped {
		return
	}
	waited := w.waited
	if !w.since.IsZero() {
		waited += time.Since(w.since)
		w.since = time.Now()
	}
	w.waited = 0
	if moved := w.moved.Swap(0); moved < w.least && waited > w.window/2 {
		w.cancel(fmt.Errorf("%d bytes within %v, given up: %w", moved, w.window, store.ErrUnreachable))
		return
	}
	w.timer.Reset(w.window)
}

func (w *watch) stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stopped = true
	w.timer.Stop()
	w.cancel(context.Canceled)
}

// cause is the reason why the exchange was cut, if it was we who cut it.
func (w *watch) cause(ctx context.Context, err error) error {
	if c := context.Cause(ctx); c != nil && errors.Is(c, store.ErrUnreachable) {
		return c
	}
	return err
}

// sent counts the request's body. The transport reads it when the connection takes more.
type sent struct {
	io.ReadCloser
	w *watch
}

func (s *sent) Read(p []byte) (int, error) {
	n, err := s.ReadCloser.Read(p)
	s.w.moved.Add(int64(n))
	if errors.Is(err, io.EOF) {
		s.w.moved.Add(s.w.least) // all is sent: a new window for the answer
	}
	return n, err
}

type received struct {
	io.ReadCloser
	w   *watch
	ctx context.Context // the exchange's own, to tell who cut it
}

func (r *received) Read(p []byte) (int, error) {
	r.w.wait(true)
	n, err := r.ReadCloser.Read(p)
	r.w.wait(false)
	r.w.moved.Add(int64(n))
	if err != nil {
		cause := r.w.cause(r.ctx, err)
		r.w.stop()
		return n, cause
	}
	return n, nil
}

func (r *received) Close() error {
	r.w.stop()
	return r.ReadCloser.Close()
}
