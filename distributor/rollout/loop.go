package rollout

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/rollout/gate"
	"github.com/muster-config/muster/distributor/store"
)

// Newest is what is released, as far as it was verified.
type Newest struct {
	Trust   manifest.TrustState
	Release *manifest.Release // never changed
}

// Observations is what a controller knows of the world. The collector is one. Safe for concurrent use.
type Observations interface {
	// Newest is the newest verified release; an error if it is not known which that is.
	Newest(ctx context.Context) (Newest, error)
	// Statement is the plain statement that a release made for a cohort.
	Statement(ctx context.Context, cohort string, epoch uint64) (*manifest.Envelope, error)
	// Cohort is the newest verified head of a cohort, nil if there is none, and its hosts as judged under it.
	Cohort(ctx context.Context, cohort string) (*manifest.View, Observed, error)
	// Services is what Observed.Services holds for one epoch of a cohort; nothing about it changes ever.
	Services(ctx context.Context, cohort string, epoch uint64) (map[string]string, error)
	// Changed is closed when any of this may have changed.
	Changed() <-chan struct{}
	// Wrote says that a cohort has a new head.
	Wrote(cohort string)
}

// Controller takes cohorts to the newest release that nothing holds back. It keeps nothing: all intent is in the heads, each replaced by compare-and-swap, so that any number of
// controllers may run, and each be killed at any point.
type Controller struct {
	Store  store.Store
	Signer manifest.Signer
	Seen   Observations
	Gates  gate.Asker       // nil: gates are inconclusive for ever
	By     string           // who decides, for people
	Now    func() time.Time // nil: time.Now
	Log    *slog.Logger     // nil: silent
	// Waits is told after each look what a cohort waits for, nil for nothing; nil: nobody wants to know.
	// It is called from several goroutines.
	Waits func(cohort string, why error)
	// AtOnce is how many cohorts are looked at at the same time; 0: 8.
	AtOnce int

	mu     sync.Mutex
	said   map[string]string    // cohort → last trouble, so that it is logged once
	failed map[string]time.Time // cohort → when Run last failed with it
}

// Policies is what observations may know beside: a whole release, whose policy is the one for what comes after it.
type Policies interface {
	Released(ctx context.Context, epoch uint64) (*manifest.Release, error)
}

// goodFor is how long a look is good for: a process that stood still between looking and writing looks again.
const goodFor = 30 * time.Second

const (
	lookEvery = 5 * time.Second        // time alone decides too: an order's age, a freeze's end
	restEvery = 100 * time.Millisecond // at most ten looks a second, however much is reported
	mostRest  = 10 * time.Second
	// failedRest is how long a cohort rests with which something failed, such as a disk that is full: hosts report all the time, and each report is a reason to look.
	failedRest = 4 * time.Second
)

// Run steers until ctx ends.
func (c *Controller) Run(ctx context.Context) error {
	for {
		changed := c.Seen.Changed()
		var heard <-chan struct{}
		if c.Gates != nil {
			heard = c.Gates.Changed()
		}
		begin := time.Now()
		c.step(ctx, c.rests)
		// Looking costs at most a fifth of a core. A look that stood still, as the machine did or a store, does not cost that: it is no reason to rest for long.
		if !sleep(ctx, min(max(restEvery, 4*time.Since(begin)), mostRest), nil, nil) || !sleep(ctx, lookEvery, changed, heard) {
			return nil
		}
	}
}

// sleep waits for a time, or until one of the others is closed; false when ctx ends first.
func sleep(ctx context.Context, d time.Duration, wake, heard <-chan struct{}) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-wake:
	case <-heard:
	case <-t.C:
	}
	return true
}

const (
	atOnce = 8
	// lookFor is how long a look at one cohort may take: what was seen is good for no longer.
	lookFor = goodFor
)

// Step looks at every cohort once, and writes what is to be written. One that fails, or for which the store is slow, holds back no other; why is logged once.
func (c *Controller) Step(ctx context.Context) {
	c.step(ctx, func(string) bool { return false })
}

// rests says whether a cohort failed a moment ago.
func (c *Controller) rests(cohort string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	at, ok := c.failed[cohort]
	return ok && time.Since(at) < failedRest
}

// noteFailed remembers that something failed with a cohort. To wait is no failure, and to have lost a race is not either.
func (c *Controller) noteFailed(cohort string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err == nil || errors.Is(err, ErrStopped) || errors.Is(err, ErrUnjudged) || errors.Is(err, store.ErrConflict) {
		delete(c.failed, cohort)
		return
	}
	if c.failed == nil {
		c.failed = map[string]time.Time{}
	}
	c.failed[cohort] = time.Now()
}

func (c *Controller) step(ctx context.Context, rests func(cohort string) bool) {
	newest, err := c.Seen.Newest(ctx)
	c.tell("", err)
	if err != nil {
		return
	}
	var looks errgroup.Group
	looks.SetLimit(atOnce)
	if c.AtOnce > 0 {
		looks.SetLimit(c.AtOnce)
	}
	for _, name := range slices.Sorted(maps.Keys(newest.Release.Cohorts)) {
		if newest.Release.Cohorts[name].Epoch == 0 || ctx.Err() != nil {
			continue // nothing stands there yet
		}
		if rests(name) {
			continue
		}
		looks.Go(func() error {
			bounded, cancel := context.WithTimeout(ctx, lookFor)
			defer cancel()
			err := c.cohort(bounded, newest, name)
			c.tell(name, err)
			c.noteFailed(name, err)
			if c.Waits != nil && ctx.Err() == nil {
				c.Waits(name, err)
			}
			return nil
		})
	}
	_ = looks.Wait() // none has an error that is not told
}

func (c *Controller) cohort(ctx context.Context, newest Newest, name string) error {
	view, seen, err := c.Seen.Cohort(ctx, name)
	if err != nil {
		return err
	}
	keys, err := newest.Trust.Keys()
	if err != nil {
		return err
	}
	epoch := newest.Release.Cohorts[name].Epoch
	statement, err := c.statement(ctx, newest.Release, name, epoch)
	if err != nil {
		return err
	}
	now := c.now()
	in := Input{Store: newest.Release.Store, Repo: newest.Release.Repo, Cohort: name, Era: keys.Era, Prev: view, Release: newest.Release, Statement: *statement, By: c.By, Now: now}
	if view != nil {
		c.look(ctx, &in, &seen, now)
	}
	decide := func(prev *manifest.View) (manifest.Manifest, bool, error) {
		policy := newest.Release.Policy.Rollouts[newest.Release.Policy.Cohorts[name].Rollout]
		if prev != nil {
			policy = prev.Manifest.Rollout.Policy
		}
		if age := c.now().Sub(now); age > goodFor || age < -goodFor {
			return manifest.Manifest{}, false, fmt.Errorf("cohort %s: %w: this process stood still for %s", name, ErrUnjudged, age)
		}
		at := in
		at.Prev = prev
		return Next(policy, at, seen, now)
	}
	// First under the head that is known: most of the time there is nothing to do, and nothing to read.
	if view != nil {
		if _, changed, err := decide(view); err != nil || !changed {
			return err
		}
	}
	done, err := Apply(ctx, c.Store, newest.Trust, c.Signer, name, now, decide)
	switch {
	case errors.Is(err, ErrUnjudged):
		c.Seen.Wrote(name) // somebody else did: read it
		return nil
	case err != nil:
		return err
	}
	if done.Wrote {
		r := done.View.Manifest.Rollout
		c.log().Info("order written", "cohort", name, "mark", done.View.Mark().String(), "target", r.Target, "phase", string(r.Phase), "why", r.Why)
	}
	if done.History != nil {
		c.log().Warn("the copy of the order could not be written; the order is in force", "cohort", name, "err", done.History)
	}
	if done.Wrote || view == nil || done.View != nil && done.View.Mark() != view.Mark() {
		c.Seen.Wrote(name)
	}
	return nil
}

// look adds what a decision needs beside the hosts: what the gates say, what the releases that matter change, and the policy of the one that stands.
func (c *Controller) look(ctx context.Context, in *Input, seen *Observed, now time.Time) {
	r := &in.Prev.Manifest.Rollout
	standing := in.Release.Cohorts[in.Cohort].Epoch
	if c.Gates != nil {
		if q, ok := Question(*in, *seen, now); ok {
			seen.Gates = c.Gates.Judge(ctx, q)
		}
	}
	if standing <= r.Target {
		return
	}
	if (r.Phase == manifest.PhaseDone || r.Phase == manifest.PhasePaused && r.Was == manifest.PhaseDone) && r.Fallback == 0 {
		if p, ok := c.Seen.(Policies); ok && r.PolicyEpoch < r.Target {
			base, err := p.Released(ctx, r.Target)
			if c.trouble("policy of the baseline", in.Cohort, err); err == nil {
				in.Base = base
			}
		}
		return
	}
	// Is the newest release a revert?
	epochs := []uint64{r.Target, r.Baseline, r.Fallback, standing}
	for _, h := range r.Halts {
		epochs = append(epochs, h.Epoch)
	}
	seen.Services = map[uint64]map[string]string{}
	var trouble error
	for _, epoch := range epochs {
		if epoch == 0 || seen.Services[epoch] != nil {
			continue
		}
		services, err := c.Seen.Services(ctx, in.Cohort, epoch)
		if err != nil {
			trouble = errors.Join(trouble, err)
			continue
		}
		seen.Services[epoch] = services
	}
	c.trouble("what the newest release takes back", in.Cohort, trouble)
}

// statement is the plain statement that stands for a cohort after a release.
func (c *Controller) statement(ctx context.Context, rel *manifest.Release, name string, epoch uint64) (*manifest.Envelope, error) {
	if epoch == rel.Epoch && rel.Cohorts[name].Statement != nil {
		return rel.Cohorts[name].Statement, nil
	}
	return c.Seen.Statement(ctx, name, epoch)
}

// tell logs what troubles a cohort when that changes.
func (c *Controller) tell(cohort string, err error) {
	switch text, news := c.news(cohort, err); {
	case !news:
	case text == "":
		c.log().Info("rollout goes on", "cohort", cohort)
	case errors.Is(err, ErrStopped), errors.Is(err, ErrUnjudged):
		c.log().Info("rollout waits", "cohort", cohort, "err", err)
	default:
		c.log().Warn("rollout cannot go on", "cohort", cohort, "err", err)
	}
}

// trouble logs what could not be read, without which a rollout goes on more carefully, when that changes.
func (c *Controller) trouble(what, cohort string, err error) {
	switch text, news := c.news(what+" of "+cohort, err); {
	case !news:
	case text == "":
		c.log().Info("can be read again", "what", what, "cohort", cohort)
	default:
		c.log().Warn("cannot be read", "what", what, "cohort", cohort, "err", err)
	}
}

// news says what is to be said of something, and whether that is new.
func (c *Controller) news(of string, err error) (text string, news bool) {
	if err != nil && !errors.Is(err, context.Canceled) {
		text = err.Error()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.said == nil {
		c.said = map[string]string{}
	}
	news = text != c.said[of]
	c.said[of] = text
	return text, news
}

func (c *Controller) now() time.Time {
	if c.Now != nil {
		return c.Now()
	}
	return time.Now()
}

func (c *Controller) log() *slog.Logger {
	if c.Log != nil {
		return c.Log
	}
	return slog.New(slog.DiscardHandler)
}
