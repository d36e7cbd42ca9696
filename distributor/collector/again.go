package collector

import (
	"context"
	"errors"
	"slices"

	"github.com/muster-config/muster/distributor/api"
	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/store"
)

// A release is never changed. But a store can lose one, a restored or emptied one for instance, and a publisher that knows only what is left gives its number out
// again. Two releases of one number must not pass for each other.

// statements are the payload digests of the plain statements that a release made.
func statements(rel *manifest.Release) map[string]string {
	made := map[string]string{}
	for name, rc := range rel.Cohorts {
		if rc.Statement != nil {
			made[name] = rc.Statement.Digest()
		}
	}
	return made
}

// find is the remembered release of an epoch, or nil. Under c.mu.
func (c *Collector) find(epoch uint64) *release {
	i, ok := slices.BinarySearchFunc(c.releases, epoch, func(r release, e uint64) int { return int(r.Epoch) - int(e) })
	if !ok {
		return nil
	}
	return &c.releases[i]
}

// statementsOf are the statements that a release made, if it is known. Under c.mu.
func (c *Collector) statementsOf(epoch uint64) (map[string]string, bool) {
	if r := c.find(epoch); r != nil {
		return r.statements, true
	}
	made, ok := c.older[epoch]
	return made, ok
}

// compare remembers what a release's number holds, and says so once when that is another release than before. Under c.mu.
func (c *Collector) compare(rel *stored) {
	before, ok := c.digests[rel.Epoch]
	switch {
	case !ok:
		c.digests[rel.Epoch] = rel.digest
		c.dirty.digest[rel.Epoch] = rel.digest
		wake(c.flushNow)
	case before != rel.digest && !c.replaced[rel.Epoch]:
		c.replaced[rel.Epoch] = true
		c.log.Error("the store holds another release than before under one number: it is never green; check the store with muster fsck",
			"key", manifest.KeyRelease(rel.Epoch), "before", before, "now", rel.digest)
		c.bump()
	case before == rel.digest && c.replaced[rel.Epoch]:
		delete(c.replaced, rel.Epoch)
		c.log.Info("the store holds the release again that it held before", "key", manifest.KeyRelease(rel.Epoch))
		c.bump()
	}
}

// readNewestAgain looks whether the newest release is still what it was: its number is the first that is given out again.
func (c *Collector) readNewestAgain(ctx context.Context) error {
	c.mu.RLock()
	var epoch uint64
	if n := len(c.releases); n > 0 {
		epoch = c.releases[n-1].Epoch
	}
	c.mu.RUnlock()
	return c.compareStored(ctx, epoch)
}

// readAgain compares a release that somebody waits for, and those whose statements stand after it, with the store. What cannot be read is judged as remembered: how
// old that may be, the verdicts bound.
func (c *Collector) readAgain(ctx context.Context, epoch uint64) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	list := []uint64{epoch}
	c.mu.RLock()
	if r := c.find(epoch); r != nil {
		for _, rc := range r.Cohorts {
			list = append(list, rc.Epoch)
		}
	}
	c.mu.RUnlock()
	slices.Sort(list)
	list = slices.Compact(list)
	some(len(list), func(i int) { _ = c.compareStored(ctx, list[i]) })
}

// compareStored compares a remembered release with what the store holds under its number. One that is gone, or is no release, is none of another content: the
// remembered one stands.
func (c *Collector) compareStored(ctx context.Context, epoch uint64) error {
	c.mu.RLock()
	r := c.find(epoch)
	if r == nil {
		c.mu.RUnlock()
		return nil
	}
	token := r.token
	keys, err := c.trust.Keys()
	c.mu.RUnlock()
	if err != nil {
		return err
	}
	rel, err := c.readRelease(ctx, keys, epoch, token)
	switch {
	case errors.Is(err, store.ErrNotModified), errors.Is(err, errJunk):
		return nil
	case err != nil:
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.compare(rel)
	if r = c.find(epoch); r == nil {
		return nil
	}
	r.token = rel.token
	if !c.replaced[epoch] {
		// This collector may have been started over the other one.
		r.Release, r.statements, r.tree, r.source = summary(rel.Release), statements(rel.Release), rel.Tree, rel.Source
		if r.policy != nil {
			r.policy, c.newest = &rel.Policy, rel.Release
			c.setFleet(r.policy, epoch)
		}
	}
	return nil
}

// learn reads the releases that made the statements which count for a release, where they are older than what is remembered. One that cannot be read stays unknown.
func (c *Collector) learn(ctx context.Context, rel *api.Release, names []string) {
	c.mu.RLock()
	var unknown []uint64
	note := func(epoch uint64) {
		if _, ok := c.statementsOf(epoch); !ok && epoch > 0 && !slices.Contains(unknown, epoch) {
			unknown = append(unknown, epoch)
		}
	}
	for _, name := range names {
		note(rel.Cohorts[name].Epoch)
		for epoch := range c.later(name, rel) {
			note(epoch)
		}
	}
	keys, err := c.trust.Keys()
	c.mu.RUnlock()
	if err != nil {
		return // without a keyring there is no head either
	}
	some(len(unknown), func(i int) {
		rel, err := c.readRelease(ctx, keys, unknown[i], "")
		if err != nil {
			return
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		if len(c.older) >= maxReleases {
			clear(c.older)
		}
		c.older[rel.Epoch] = statements(rel.Release)
	})
}
