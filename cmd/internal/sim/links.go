package sim

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/muster-config/muster/agent"
	"github.com/muster-config/muster/distributor/api"
	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/store"
	"github.com/muster-config/muster/distributor/store/storetest"
)

var (
	errDead = fmt.Errorf("%w: this process was killed", store.ErrUnreachable)
	errCut  = fmt.Errorf("%w: no answer", store.ErrUnreachable)
)

// link is how one actor reaches the store.
func (w *World) link(a *actor) store.Store {
	return &storetest.Faults{Store: &watched{Store: w.disk, w: w, who: a.name}, Hook: func(op, key string) (bool, error) {
		if strings.HasPrefix(key, store.PrefixProbe) {
			key = store.PrefixProbe // what follows is at random
		}
		if err := a.turn(op, key); err != nil {
			return false, err
		}
		return w.badWeather(a.name, op, key)
	}}
}

// badWeather decides what becomes of a call that reached the store.
func (w *World) badWeather(who, op, key string) (apply bool, err error) {
	now := time.Now()
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.quiet() {
		return true, nil
	}
	for _, s := range w.weather {
		if !s.has(now) || w.roll("weather", s.kind, who, op, key)%1000 >= s.share {
			continue
		}
		write := op == storetest.OpPut || op == storetest.OpCreate || op == storetest.OpReplace
		switch {
		case s.kind == faultLostWrite && write:
			w.census.fault(faultLostWrite)
			return false, store.ErrAmbiguous
		case s.kind == faultLostAnswer && write:
			w.census.fault(faultLostAnswer)
			return true, store.ErrAmbiguous
		case s.kind == faultStoreError:
			w.census.fault(faultStoreError)
			return false, store.ErrUnreachable
		}
	}
	return true, nil
}

// watched is the store, with a look at every head that is written.
type watched struct {
	store.Store
	w   *World
	who string
}

func headOf(key string) (cohort string, ok bool) {
	name, ok := strings.CutPrefix(key, "cohorts/")
	return strings.TrimSuffix(name, ".json"), ok
}

func (s *watched) Create(ctx context.Context, key string, data []byte) (store.Token, error) {
	token, err := s.Store.Create(ctx, key, data)
	s.look(key, data, err)
	return token, err
}

func (s *watched) Replace(ctx context.Context, key string, data []byte, token store.Token) (store.Token, error) {
	next, err := s.Store.Replace(ctx, key, data, token)
	s.look(key, data, err)
	return next, err
}

func (s *watched) look(key string, data []byte, err error) {
	if cohort, ok := headOf(key); ok && err == nil {
		s.w.wrote(s.who, cohort, data)
	}
}

// byStore is a host's own way to the store, where a proxy may give it a head of before.
type byStore struct {
	agent.StoreCarrier
	h *host
	a *actor
}

func (b byStore) Head(ctx context.Context, cohort string) ([]byte, error) {
	w := b.h.w
	data, err := b.StoreCarrier.Head(ctx, cohort)
	if err != nil {
		return nil, err
	}
	w.mu.Lock()
	stale := !w.quiet() && b.h.fleet.before != nil && w.roll("stale", b.a.name)%1000 < 30
	if stale {
		data = b.h.fleet.before
	}
	w.mu.Unlock()
	if stale {
		w.census.fault(faultStaleRead)
	}
	if !w.quiet() && w.roll("forged", b.a.name)%1000 < 4 {
		if bad := w.forged(b.h); bad != nil {
			w.census.fault(faultForged)
			return bad, nil
		}
	}
	b.h.delivered(data)
	return data, nil
}

// byCollector is a host's way over the collector, which also brings hints.
type byCollector struct {
	h *host
	a *actor
}

func (b byCollector) Name() string { return "collector" }

// answer gives the errors of the collector the sentinels that carriers share, as agent/host does.
func answer(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, api.ErrNotFound):
		return store.ErrNotFound
	case errors.Is(err, api.ErrNotModified):
		return store.ErrNotModified
	}
	return fmt.Errorf("%w: %w", store.ErrUnreachable, err)
}

func (b byCollector) Head(ctx context.Context, cohort string) ([]byte, error) {
	if err := b.a.turn("head", "collector"); err != nil {
		return nil, err
	}
	c, err := b.h.w.collector()
	if err != nil {
		return nil, err
	}
	data, _, err := c.GetHead(ctx, cohort, manifest.Mark{}, 0)
	if err == nil {
		b.h.delivered(data)
	}
	return data, answer(err)
}

func (b byCollector) AwaitHead(ctx context.Context, cohort string, after manifest.Mark) ([]byte, error) {
	w := b.h.w
	if err := b.a.turn("await", "collector"); err != nil {
		return nil, err
	}
	c, err := w.collector()
	if err != nil {
		return nil, err
	}
	data, _, err := c.GetHead(ctx, cohort, after, api.MaxWait)
	if err := b.a.turn("awaited", "collector"); err != nil {
		return nil, err
	}
	w.mu.Lock()
	lost := err == nil && !w.quiet() && w.roll("hint", b.a.name)%1000 < 100
	w.mu.Unlock()
	if lost {
		w.census.fault(faultLostHint)
		select {
		case <-ctx.Done():
		case <-time.After(api.MaxWait):
		}
		return nil, errCut
	}
	if err == nil {
		b.h.delivered(data)
	}
	return data, answer(err)
}

func (b byCollector) Object(ctx context.Context, key string) (io.ReadCloser, int64, error) {
	if err := b.a.turn("object", key); err != nil {
		return nil, 0, err
	}
	if _, err := b.h.w.collector(); err != nil {
		return nil, 0, err
	}
	return b.h.w.disk.Open(ctx, key)
}

func (b byCollector) Keyring(ctx context.Context, version uint64) ([]byte, error) {
	if err := b.a.turn("keyring", "collector"); err != nil {
		return nil, err
	}
	o, err := b.h.w.disk.Get(ctx, manifest.KeyKeyring(version), manifest.MaxKeyringBytes)
	return o.Data, err
}

// Report implements agent.Reporter.
func (b byCollector) Report(ctx context.Context, item api.ReportItem) (api.ReportResult, error) {
	w := b.h.w
	if err := b.a.turn("report", "collector"); err != nil {
		return api.ReportResult{}, err
	}
	c, err := w.collector()
	if err != nil {
		return api.ReportResult{}, err
	}
	res, err := c.Report(ctx, item)
	if err == nil && res.Accepted {
		b.h.reported(c)
	}
	if terr := b.a.turn("reported", "collector"); terr != nil {
		return api.ReportResult{}, terr
	}
	return res, err
}
