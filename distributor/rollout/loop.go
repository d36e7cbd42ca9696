package rollout

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"time"

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

	said map[string]string // cohort → last trouble, so that it is logged once
}

const (
	lookEvery = 5 * time.Second        // time alone decides too: an order's age, a freeze's end
	restEvery = 100 * time.Millisecond // at most ten looks a second, however much is reported
)

// Run steers until ctx ends.
func (c *Controller) Run(ctx context.Context) error {
	for {
		changed := c.Seen.Changed()
		begin := time.Now()
		c.Step(ctx)
		// Looking costs at most a fifth of a core.
		if !sleep(ctx, max(restEvery, 4*time.Since(begin)), nil) || !sleep(ctx, lookEvery, changed) {
			return nil
		}
	}
}

// sleep waits for a time, or until wake is closed; false when ctx ends first.
func sleep(ctx context.Context, d time.Duration, wake <-chan struct{}) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-wake:
	case <-t.C:
	}
	return true
}

// Step looks at every cohort once, and writes what is to be written. One that fails holds back no other; why is logged once.
func (c *Controller) Step(ctx context.Context) {
	newest, err := c.Seen.Newest(ctx)
	c.tell("", err)
	if err != nil {
		return
	}
	for _, name := range slices.Sorted(maps.Keys(newest.Release.Cohorts)) {
		if newest.Release.Cohorts[name].Epoch == 0 || ctx.Err() != nil {
			continue // nothing stands there yet
		}
		c.tell(name, c.cohort(ctx, newest, name))
	}
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
	decide := func(prev *manifest.View) (manifest.Manifest, bool, error) {
		policy := newest.Release.Policy.Rollouts[newest.Release.Policy.Cohorts[name].Rollout]
		if prev != nil {
			policy = prev.Manifest.Rollout.Policy
		}
		in := Input{Store: newest.Release.Store, Repo: newest.Release.Repo, Cohort: name, Era: keys.Era, Prev: prev, Release: newest.Release, Statement: *statement, By: c.By}
		return Next(policy, in, seen, now)
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

// statement is the plain statement that stands for a cohort after a release.
func (c *Controller) statement(ctx context.Context, rel *manifest.Release, name string, epoch uint64) (*manifest.Envelope, error) {
	if epoch == rel.Epoch && rel.Cohorts[name].Statement != nil {
		return rel.Cohorts[name].Statement, nil
	}
	return c.Seen.Statement(ctx, name, epoch)
}

// tell logs what troubles a cohort when that changes.
func (c *Controller) tell(cohort string, err error) {
	text := ""
	if err != nil && !errors.Is(err, context.Canceled) {
		text = err.Error()
	}
	if c.said == nil {
		c.said = map[string]string{}
	}
	if text == c.said[cohort] {
		return
	}
	c.said[cohort] = text
	switch {
	case text == "":
		c.log().Info("rollout goes on", "cohort", cohort)
	case errors.Is(err, ErrStopped), errors.Is(err, ErrUnjudged):
		c.log().Info("rollout waits", "cohort", cohort, "err", err)
	default:
		c.log().Warn("rollout cannot go on", "cohort", cohort, "err", err)
	}
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
