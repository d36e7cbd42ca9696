package sim

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/muster-config/muster/distributor/collector"
	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/rollout"
	"github.com/muster-config/muster/distributor/store"
)

// server is one start of the collector. It keeps nothing: one that starts anew has lost all that agents ever said.
type server struct {
	*collector.Collector
	*actor
	cancel context.CancelFunc
	done   chan struct{}
}

const collectorPoll = 5 * time.Second

// serve starts the collector.
func (w *World) serve() {
	ctx, cancel := context.WithCancel(w.ctx)
	s := &server{actor: &actor{w: w, name: "collector"}, cancel: cancel, done: make(chan struct{})}
	var err error
	s.Collector, err = collector.New(collector.Config{Poll: collectorPoll}, collector.Deps{Store: w.link(s.actor), Keyring: w.keyring, Now: s.now})
	w.must(err)
	w.mu.Lock()
	w.server = s
	w.mu.Unlock()
	w.note("collector", "start", "")
	w.wg.Add(1)
	go func() {
		defer w.wg.Done()
		defer close(s.done)
		if err := s.Run(ctx); err != nil {
			w.breach("the collector runs", "%v", err)
		}
	}()
}

// crash ends the collector.
func (w *World) crash() {
	w.mu.Lock()
	s := w.server
	w.server = nil
	w.mu.Unlock()
	if s == nil {
		return
	}
	s.dead.Store(true)
	s.cancel()
	<-s.done
}

// collector is the one that runs.
func (w *World) collector() (*server, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.server == nil {
		return nil, fmt.Errorf("collector: %w: connection refused", store.ErrUnreachable)
	}
	return w.server, nil
}

// eyes are what a controller sees the world with: the collector, over a network.
type eyes struct {
	w *World
	a *actor

	mu   sync.Mutex
	last map[string]glance
}

// glance is what was seen of a cohort, and when.
type glance struct {
	at   time.Time
	view *manifest.View
	seen rollout.Observed
}

func (e *eyes) reach() (*server, error) {
	if e.a.dead.Load() {
		return nil, errDead
	}
	return e.w.collector()
}

func (e *eyes) Newest(ctx context.Context) (rollout.Newest, error) {
	if err := e.a.turn("newest", "collector"); err != nil {
		return rollout.Newest{}, err
	}
	c, err := e.reach()
	if err != nil {
		return rollout.Newest{}, err
	}
	return c.Newest(ctx)
}

func (e *eyes) Statement(ctx context.Context, cohort string, epoch uint64) (*manifest.Envelope, error) {
	c, err := e.reach()
	if err != nil {
		return nil, err
	}
	return c.Statement(ctx, cohort, epoch)
}

func (e *eyes) Services(ctx context.Context, cohort string, epoch uint64) (map[string]string, error) {
	c, err := e.reach()
	if err != nil {
		return nil, err
	}
	return c.Services(ctx, cohort, epoch)
}

// staleFor is how old at most is what a controller is shown in place of what is so.
const staleFor = 20 * time.Second

func (e *eyes) Cohort(ctx context.Context, cohort string) (*manifest.View, rollout.Observed, error) {
	c, err := e.reach()
	if err != nil {
		return nil, rollout.Observed{}, err
	}
	w, now := e.w, time.Now()
	e.mu.Lock()
	old, ok := e.last[cohort]
	e.mu.Unlock()
	if ok && !w.quiet() && now.Sub(old.at) < staleFor && w.roll("glance", e.a.name, cohort)%1000 < 20 {
		w.census.fault(faultStaleSight)
		return old.view, old.seen, nil
	}
	view, seen, err := c.Cohort(ctx, cohort)
	if err == nil {
		e.mu.Lock()
		e.last[cohort] = glance{now, view, seen}
		e.mu.Unlock()
	}
	return view, seen, err
}

func (e *eyes) Changed() <-chan struct{} {
	c, err := e.reach()
	if err != nil {
		return nil // time alone wakes it
	}
	return c.Changed()
}

func (e *eyes) Wrote(cohort string) {
	if c, err := e.reach(); err == nil {
		c.Wrote(cohort)
	}
}

// controller is one start of a rollout controller.
type controller struct {
	*actor
	cancel context.CancelFunc
	done   chan struct{}
}

// steer starts a controller.
func (w *World) steer(name string) {
	ctx, cancel := context.WithCancel(w.ctx)
	a := &actor{w: w, name: name}
	// Machines that steer have a time service; what they disagree by, a bake may be shorter.
	if n := w.fixed("skew", name); n%3 == 0 {
		a.skew = time.Duration(n>>8%uint64(8*time.Second)) - 4*time.Second
		w.census.fault(faultSkew)
	}
	c := &controller{actor: a, cancel: cancel, done: make(chan struct{})}
	w.mu.Lock()
	w.controllers = append(w.controllers, c)
	w.mu.Unlock()
	w.note(name, "start", "")
	ctl := &rollout.Controller{
		Store: w.link(a), Signer: signing.Rollout, Seen: &eyes{w: w, a: a, last: map[string]glance{}}, Gates: &asker{w: w, a: a}, By: name, Now: a.now, Log: slog.New(&journal{w, name}),
		AtOnce: 1, // the same seed is to be the same run
	}
	w.wg.Add(1)
	go func() {
		defer w.wg.Done()
		defer close(c.done)
		if err := ctl.Run(ctx); err != nil {
			w.breach("controllers run", "%s: %v", name, err)
		}
	}()
}

// killController ends one of the controllers; false if there is none.
func (w *World) killController(k int) (string, bool) {
	w.mu.Lock()
	if len(w.controllers) == 0 {
		w.mu.Unlock()
		return "", false
	}
	k %= len(w.controllers)
	c := w.controllers[k]
	w.controllers = append(w.controllers[:k:k], w.controllers[k+1:]...)
	w.mu.Unlock()
	c.dead.Store(true)
	c.frozen.Store(0)
	c.cancel()
	<-c.done
	return c.name, true
}

// journal notes what a controller logs.
type journal struct {
	w    *World
	name string
}

func (j *journal) Enabled(_ context.Context, l slog.Level) bool { return l >= slog.LevelInfo }

func (j *journal) Handle(_ context.Context, r slog.Record) error {
	if r.Message == "order written" {
		return nil
	}
	text := r.Message
	r.Attrs(func(a slog.Attr) bool {
		text += " " + a.String()
		return true
	})
	j.w.note(j.name, "log", "%s", text)
	return nil
}

func (j *journal) WithAttrs([]slog.Attr) slog.Handler { return j }
func (j *journal) WithGroup(string) slog.Handler      { return j }

// acted is when a person last did something, and to which order.
type acted struct {
	at time.Time
	by string
}

// act does what a person asks of a cohort, through the collector as `muster rollout` does.
func (w *World) act(cohort string, a rollout.Action) error {
	hand := &actor{w: w, name: a.By}
	done, err := w.perform(hand, cohort, a)
	switch {
	case err != nil:
		w.note(a.By, string(a.Kind), "%s: %v", cohort, err)
	case done.Changed:
		w.note(a.By, string(a.Kind), "%s: %s", cohort, done.Said)
		w.census.action(string(a.Kind))
	default:
		w.note(a.By, string(a.Kind), "%s, nothing to do: %s", cohort, done.Said)
		w.census.action(string(a.Kind) + " again")
	}
	return err
}

func (w *World) perform(hand *actor, cohort string, a rollout.Action) (*rollout.Performed, error) {
	if err := hand.turn("act", "collector"); err != nil {
		return nil, err
	}
	c, err := w.collector()
	if err != nil {
		return nil, err
	}
	newest, err := c.Newest(w.ctx)
	if err != nil {
		return nil, err
	}
	keys, err := newest.Trust.Keys()
	if err != nil {
		return nil, err
	}
	part := newest.Release.Cohorts[cohort]
	statement := part.Statement
	if statement == nil {
		if statement, err = c.Statement(w.ctx, cohort, part.Epoch); err != nil {
			return nil, err
		}
	}
	in := rollout.Input{Store: newest.Release.Store, Repo: repo, Cohort: cohort, Era: keys.Era, Release: newest.Release, Statement: *statement, By: a.By}
	if err := w.lookBack(c, cohort, &in, &a); err != nil {
		return nil, err
	}
	// The order may be in place though the answer got lost: what a person tried counts as done.
	w.mu.Lock()
	w.acts[cohort+"/"+string(a.Kind)] = acted{time.Now(), a.By}
	if a.Now {
		w.acts[cohort+"/now"] = acted{time.Now(), a.By}
	}
	w.mu.Unlock()
	done, err := rollout.Perform(w.ctx, w.link(hand), newest.Trust, signing.Rollout, in, a, time.Now())
	w.mu.Lock()
	w.acts[cohort+"/"+string(a.Kind)] = acted{time.Now(), a.By}
	w.mu.Unlock()
	if err == nil {
		c.Wrote(cohort)
	}
	return done, err
}

// Released implements rollout.Policies.
func (e *eyes) Released(ctx context.Context, epoch uint64) (*manifest.Release, error) {
	c, err := e.reach()
	if err != nil {
		return nil, err
	}
	return c.Released(ctx, epoch)
}

var _ rollout.Policies = (*eyes)(nil)
