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

	"golang.org/x/sync/errgroup"

	"github.com/muster-config/muster/distributor/api"
	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/store"
)

const (
	listPage    = 1000
	readAtOnce  = 8
	readTimeout = 30 * time.Second
)

// release is one verified release, without its envelopes.
type release struct {
	api.Release
	policy *manifest.Policy // of the newest only
}

// follow reads the store every poll until ctx ends. What cannot be read is logged when it begins and when it ends; verdicts tell the age of what they rest on.
func (c *Collector) follow(ctx context.Context) {
	for {
		err := c.read(ctx)
		if ctx.Err() != nil {
			return
		}
		c.noteRead(err)
		t := time.NewTimer(c.cfg.Poll)
		select {
		case <-ctx.Done():
			t.Stop()
			return
		case <-c.reread:
			t.Stop()
		case <-t.C:
		}
	}
}

func (c *Collector) noteRead(err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	c.mu.Lock()
	before := c.readErr
	c.readErr = text
	if err == nil {
		c.lastRead = c.now()
	}
	if (text == "") != (before == "") {
		c.bump()
	}
	c.mu.Unlock()
	switch {
	case text != "" && text != before:
		c.log.Warn("store cannot be read in whole", "store", c.store.URL(), "err", err)
	case text == "" && before != "":
		c.log.Info("store is read again", "store", c.store.URL())
	}
}

// read reads the store once: new keyrings, new releases, changed heads.
func (c *Collector) read(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	errKeys := c.readKeyrings(ctx)
	errReleases := c.readReleases(ctx)
	errHeads := c.readHeads(ctx)
	return errors.Join(errKeys, errReleases, errHeads)
}

// readKeyrings takes keyring n+1, n+2 …
func (c *Collector) readKeyrings(ctx context.Context) error {
	for range 100 {
		c.mu.RLock()
		trust := c.trust
		c.mu.RUnlock()
		keys, err := trust.Keys()
		if err != nil {
			return err
		}
		key := manifest.KeyKeyring(keys.Version + 1)
		obj, err := c.store.Get(ctx, key, 2*manifest.MaxKeyringBytes)
		if errors.Is(err, store.ErrNotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		c.mu.Lock()
		next, err := c.trust.AcceptKeyring(obj.Data)
		if err == nil {
			c.trust = next
			c.dirty.trust = true
		}
		c.mu.Unlock()
		if err != nil {
			return fmt.Errorf("%s: %w", key, err)
		}
		wake(c.flushNow)
		c.log.Info("new keyring", "version", keys.Version+1)
	}
	return nil
}

// readReleases takes what was released since. Junk under a release's key is remembered, so that it is read once and hides no later release.
func (c *Collector) readReleases(ctx context.Context) error {
	c.mu.RLock()
	var last uint64
	if n := len(c.releases); n > 0 {
		last = c.releases[n-1].Epoch
	}
	keys, err := c.trust.Keys()
	c.mu.RUnlock()
	if err != nil {
		return err
	}
	after := ""
	if last > 0 {
		after = manifest.KeyRelease(last)
	}
	var found []store.Info
	for {
		page, err := c.store.List(ctx, manifest.PrefixReleases, after, listPage)
		if err != nil {
			return fmt.Errorf("list releases: %w", err)
		}
		for _, info := range page {
			if _, ok := manifest.ParseReleaseKey(info.Key); ok && c.junk[info.Key] != info {
				found = append(found, info)
			}
		}
		if len(found) > 2*maxReleases {
			found = slices.Clone(found[len(found)-maxReleases:])
		}
		if len(page) < listPage {
			break
		}
		after = page[len(page)-1].Key
	}
	if over := len(found) - maxReleases; over > 0 {
		found = found[over:]
	}
	// Read side by side, taken in order. A passing error ends the taking there; the next poll goes on.
	type read struct {
		rel *manifest.Release
		err error
	}
	got := make([]read, len(found))
	group, gctx := errgroup.WithContext(ctx)
	group.SetLimit(readAtOnce)
	for i, info := range found {
		group.Go(func() error {
			epoch, _ := manifest.ParseReleaseKey(info.Key)
			got[i].rel, got[i].err = c.readRelease(gctx, keys, epoch)
			return nil
		})
	}
	group.Wait()
	now := c.now()
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, r := range got {
		switch {
		case r.err == nil:
			c.addRelease(r.rel, now)
		case errors.Is(r.err, errJunk):
			c.log.Warn("release is skipped", "key", found[i].Key, "err", r.err)
			if len(c.junk) < 10*listPage {
				c.junk[found[i].Key] = found[i]
			}
		default:
			return r.err
		}
	}
	return nil
}

var errJunk = errors.New("not a release of this store")

func (c *Collector) readRelease(ctx context.Context, keys manifest.Keyring, epoch uint64) (*manifest.Release, error) {
	key := manifest.KeyRelease(epoch)
	obj, err := c.store.Get(ctx, key, manifest.MaxReleaseBytes)
	switch {
	case errors.Is(err, store.ErrTooLarge), errors.Is(err, store.ErrNotFound):
		return nil, fmt.Errorf("%w: %w", errJunk, err)
	case err != nil:
		return nil, err
	}
	rel, _, err := manifest.VerifyRelease(keys, obj.Data)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errJunk, err)
	}
	c.mu.RLock()
	storeID := c.trust.Store
	c.mu.RUnlock()
	if rel.Epoch != epoch || rel.Repo != c.repo || storeID != "" && rel.Store != storeID {
		return nil, fmt.Errorf("%w: it is release %d of repo %s", errJunk, rel.Epoch, rel.Repo)
	}
	return rel, nil
}

// summary is a release as the API tells it.
func summary(rel *manifest.Release) api.Release {
	r := api.Release{Epoch: rel.Epoch, Commit: rel.Commit, Kind: rel.Kind, Author: rel.Author, Subject: rel.Subject, Created: rel.Created, Cohorts: map[string]api.ReleaseCohort{}}
	for name, rc := range rel.Cohorts {
		r.Cohorts[name] = api.ReleaseCohort{State: rc.State, Epoch: rc.Epoch, Reason: rc.Reason}
	}
	return r
}

// addRelease takes a verified release. Under c.mu.
func (c *Collector) addRelease(rel *manifest.Release, now time.Time) {
	if n := len(c.releases); n > 0 {
		if c.releases[n-1].Epoch >= rel.Epoch {
			return
		}
		c.releases[n-1].policy = nil
	}
	c.releases = append(c.releases, release{summary(rel), &rel.Policy})
	if over := len(c.releases) - maxReleases; over > 0 {
		c.releases = slices.Clone(c.releases[over:])
	}
	if _, ok := c.seen[rel.Epoch]; !ok {
		c.seen[rel.Epoch] = now
		c.dirty.seen[rel.Epoch] = now
	}
	for epoch := range c.seen {
		if epoch < c.releases[0].Epoch {
			delete(c.seen, epoch)
		}
	}
	c.setFleet(&rel.Policy, rel.Epoch)
	c.bump()
	wake(c.flushNow)
}

// setFleet makes a policy the one in force for the inventory. Under c.mu.
func (c *Collector) setFleet(p *manifest.Policy, epoch uint64) {
	c.fleet, c.fleetAt = p, epoch
	c.home = map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(p.Cohorts)) {
		for _, h := range p.Cohorts[name].Hosts.List {
			if _, taken := c.home[h]; !taken {
				c.home[h] = name
			}
		}
	}
	for name, co := range c.cohorts {
		for hostName, h := range co.hosts {
			if c.home[hostName] == name && !h.listed {
				h.listed = true
				c.dirty.host(name, hostName, nil)
			}
		}
	}
}

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
	var group errgroup.Group
	group.SetLimit(readAtOnce)
	for i, name := range list {
		group.Go(func() error {
			errs[i] = c.readHead(ctx, name)
			return nil
		})
	}
	group.Wait()
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
	case errors.Is(err, store.ErrNotFound):
		return fmt.Errorf("%s: is gone from the store: somebody deletes objects there", key)
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
	c.trust = next
	c.dirty.trust = true
	co.view, co.raw = view, bytes.Clone(data)
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
