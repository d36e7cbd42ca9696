package collector

import (
	"context"
	"errors"
	"fmt"

	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/rollout"
	"github.com/muster-config/muster/distributor/verdict"
)

var _ rollout.Observations = (*Collector)(nil)

// Newest is the newest release for a rollout controller; an error while nobody can say which it is.
func (c *Collector) Newest(context.Context) (rollout.Newest, error) {
	now := c.now()
	c.mu.RLock()
	defer c.mu.RUnlock()
	n := len(c.releases)
	switch {
	case n == 0 && c.lastRead.IsZero():
		return rollout.Newest{}, errors.New("the store was not read yet")
	case n == 0:
		return rollout.Newest{}, errors.New("nothing is released yet")
	case c.replaced[c.releases[n-1].Epoch]:
		return rollout.Newest{}, fmt.Errorf("the store holds another release %d than it did before; check the store with muster fsck", c.releases[n-1].Epoch)
	case now.Sub(c.lastRead) > 2*c.cfg.Poll && c.readErr != "":
		return rollout.Newest{}, fmt.Errorf("the store cannot be read in whole: %s", c.readErr)
	}
	return rollout.Newest{Trust: c.trust, Release: c.newest}, nil
}

// Statement is the plain statement that a release made for a cohort, read from the store.
func (c *Collector) Statement(ctx context.Context, cohort string, epoch uint64) (*manifest.Envelope, error) {
	c.mu.RLock()
	keys, err := c.trust.Keys()
	known, seen := c.digests[epoch]
	c.mu.RUnlock()
	if err != nil {
		return nil, err
	}
	rel, err := c.readRelease(ctx, keys, epoch, "")
	if err != nil {
		return nil, err
	}
	if seen && known != rel.digest {
		return nil, fmt.Errorf("the store holds another release %d than it did before; check the store with muster fsck", epoch)
	}
	st := rel.Cohorts[cohort].Statement
	if st == nil {
		return nil, fmt.Errorf("release %d made no statement for cohort %s; check the store with muster fsck", epoch, cohort)
	}
	return st, nil
}

// Cohort is what a rollout controller looks at.
func (c *Collector) Cohort(_ context.Context, name string) (*manifest.View, rollout.Observed, error) {
	now := c.now()
	c.mu.RLock()
	defer c.mu.RUnlock()
	co := c.cohorts[name]
	if co == nil || co.view == nil {
		if co == nil || co.lastRead.IsZero() {
			return nil, rollout.Observed{}, errors.New("its head was not read yet")
		}
		return nil, rollout.Observed{}, nil
	}
	seen := rollout.Observed{Mark: co.view.Mark()}
	r := &co.view.Manifest.Rollout
	if r.Phase == manifest.PhaseDone && c.newest != nil && c.newest.Cohorts[name].Epoch == r.Target {
		return co.view, seen, nil // nothing moves: no host need be looked at
	}
	for _, h := range c.judge(name, now) {
		if !h.Input.Expected || h.Input.Retired {
			continue
		}
		o := rollout.Host{Name: h.Input.Host, Verdict: h.Verdict.Code, Running: h.Verdict.Running}
		if rep := h.Input.Report; rep != nil {
			o.Labels, o.Attempted = rep.Labels, rep.Attempted
			if o.Verdict == verdict.Silent {
				o.Silent = verdict.SilentSince(h.Input)
			}
		}
		seen.Hosts = append(seen.Hosts, o)
	}
	return co.view, seen, nil
}

// Services is to be written.
func (c *Collector) Services(context.Context, string, uint64) (map[string]string, error) {
	return nil, errors.New("to be written")
}

// Changed is closed when a verdict, a head or the releases may have changed.
func (c *Collector) Changed() <-chan struct{} { return c.onChange() }

// Wrote has the store read at once.
func (c *Collector) Wrote(string) { wake(c.reread) }
