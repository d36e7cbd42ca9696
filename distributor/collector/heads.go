package collector

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"time"

	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/store"
)

// readHeads reads the head of every cohort that there is a reason to know.
func (c *Collector) readHeads(ctx context.Context) error {
	c.mu.RLock()
	names := map[string]bool{}
	if c.fleet != nil {
		for name := range c.fleet.Cohorts {
			names[name] = true
		}
	}
	for name, co := range c.cohorts {
		if co.view != nil {
			names[name] = true
		}
	}
	c.mu.RUnlock()
	list := slices.Sorted(maps.Keys(names))
	errs := make([]error, len(list))
	some(len(list), func(i int) { errs[i] = c.readHead(ctx, list[i]) })
	return errors.Join(errs...)
}

func (c *Collector) readHead(ctx context.Context, name string) error {
	err := c.tryHead(ctx, name)
	c.mu.Lock()
	defer c.mu.Unlock()
	if co := c.cohorts[name]; co != nil {
		co.problem = ""
		if err != nil {
			co.problem = err.Error()
		}
	}
	return err
}

func (c *Collector) tryHead(ctx context.Context, name string) error {
	key := manifest.KeyHead(name)
	c.mu.RLock()
	var token store.Token
	if co := c.cohorts[name]; co != nil {
		token = co.token
	}
	c.mu.RUnlock()
	obj, err := c.store.GetIfChanged(ctx, key, token, manifest.MaxHeadBytes)
	lost := false // the whole store, not this one object
	if errors.Is(err, store.ErrNotFound) {
		_, serr := c.store.Get(ctx, manifest.KeyStore, manifest.MaxSmallBytes)
		lost = errors.Is(serr, store.ErrNotFound)
	}
	now := c.now()
	c.mu.Lock()
	defer c.mu.Unlock()
	co := c.cohortOf(name)
	switch {
	case errors.Is(err, store.ErrNotModified):
		if co.token == token { // else one was handed over meanwhile
			co.lastRead = now
		}
		return nil
	case errors.Is(err, store.ErrNotFound) && co.view == nil:
		co.lastRead = now // the store says that there is none
		return nil
	case errors.Is(err, store.ErrNotFound) && lost:
		return fmt.Errorf("%s: the whole store is gone: %s is missing too: %w: bring it back, or correct its address in collector.yaml", key, manifest.KeyStore, store.ErrUnreachable)
	case errors.Is(err, store.ErrNotFound):
		return fmt.Errorf("%s: is gone from the store: somebody deletes objects there; `muster rollout refresh %s` restores its newest copy", key, name)
	case err != nil:
		return err
	}
	if co.view != nil && bytes.Equal(co.raw, obj.Data) {
		co.token, co.lastRead = obj.Token, now
		return nil
	}
	if err := c.accept(name, co, obj.Data, now, false); err != nil {
		return fmt.Errorf("%s: %w", key, err)
	}
	co.token, co.lastRead = obj.Token, now
	return nil
}

// accept makes a head the newest verified one of its cohort, and wakes who waits for it. handed ones must have a higher mark: only the store may take a beat
// back, which nobody signs. Under c.mu.
func (c *Collector) accept(name string, co *cohort, data []byte, now time.Time, handed bool) error {
	next, view, err := c.trust.AcceptHead(name, data, now)
	if err != nil {
		return err
	}
	if handed && co.view != nil && view.Mark().Compare(co.view.Mark()) <= 0 {
		return nil
	}
	before := map[uint64]bool{}
	if co.view != nil {
		for _, a := range co.view.Manifest.Assign {
			before[a.Epoch] = true
		}
	}
	in := map[uint64]bool{}
	for _, st := range view.Statements {
		in[st.Epoch] = true
	}
	for _, a := range view.Manifest.Assign {
		_, had := co.assigned[a.Epoch]
		if !had || co.view != nil && !before[a.Epoch] {
			co.assigned[a.Epoch] = now
			c.dirty.assigned(name, a.Epoch, now)
		}
	}
	for epoch := range co.assigned {
		if !in[epoch] {
			delete(co.assigned, epoch)
		}
	}
	co.note(view, now)
	co.keepLately()
	c.trust = next
	c.dirty.trust = true
	co.view, co.raw = view, bytes.Clone(data)
	c.noteNotices(name, co, now)
	c.count.heads.Add(1)
	if co.moved != nil {
		close(co.moved)
		co.moved = nil
	}
	c.bump()
	wake(c.flushNow)
	c.log.Info("new head", "cohort", name, "mark", view.Mark().String(), "target", view.Manifest.Rollout.Target)
	return nil
}

// PutHead takes a newer head that its writer hands over, so that nobody has to wait for the next poll. It is verified like one from the store; one that is known
// already changes nothing.
func (c *Collector) PutHead(_ context.Context, cohort string, head []byte) error {
	if !manifest.ValidName(cohort) {
		return refuse(http.StatusBadRequest, "", "%.80q is not a cohort name", cohort)
	}
	c.mu.Lock()
	co := c.cohortOf(cohort)
	if bytes.Equal(co.raw, head) {
		c.mu.Unlock()
		return nil
	}
	err := c.accept(cohort, co, head, c.now(), true)
	if err == nil {
		co.token = "" // the next poll compares with what the store really has
	} else if co.view == nil && len(co.hosts) == 0 {
		delete(c.cohorts, cohort) // a refused head leaves no trace
	}
	c.mu.Unlock()
	if err != nil {
		return refuse(http.StatusForbidden, "", "head of cohort %s: %w", cohort, err)
	}
	wake(c.reread) // its release may be new too
	return nil
}
