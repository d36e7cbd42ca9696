package collector

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

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
	policy     *manifest.Policy  // of the newest only
	token      store.Token       // of its object, as it was read
	tree       string            // of its commit
	source     manifest.Object   // of the tree, in the store
	statements map[string]string // cohort → payload digest of the plain statement that it made
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
		c.count.storeErrors.Add(1)
		c.log.Warn("store cannot be read in whole", "store", c.store.URL(), "err", err)
	case text == "" && before != "":
		c.log.Info("store is read again", "store", c.store.URL())
	}
}

// read reads the store once: new keyrings, new releases, changed heads. Without the newest keyring nothing else can be judged, so it stops there.
func (c *Collector) read(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	if err := c.readKeyrings(ctx); err != nil {
		return err
	}
	errReleases := c.readReleases(ctx)
	return errors.Join(errReleases, c.readNewestAgain(ctx), c.readFleetList(ctx), c.readHeads(ctx), c.readVariants(ctx))
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
			clear(c.junk) // what it signed was junk before
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

// MayOrder says whether the newest keyring lets a key sign orders. An error is why there may be newer keyrings than those that it knows.
func (c *Collector) MayOrder(ctx context.Context, keyID string) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	err := c.readKeyrings(ctx)
	c.mu.RLock()
	defer c.mu.RUnlock()
	keys, kerr := c.trust.Keys()
	return kerr == nil && slices.Contains(keys.Roles.Rollout, keyID), errors.Join(err, kerr)
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
		rel *stored
		err error
	}
	got := make([]read, len(found))
	some(len(found), func(i int) {
		epoch, _ := manifest.ParseReleaseKey(found[i].Key)
		got[i].rel, got[i].err = c.readRelease(ctx, keys, epoch, "")
	})
	for i := range got {
		if got[i].err == nil && got[i].rel.Kind == manifest.ReleaseOverride {
			got[i].err = c.onlyOverrides(ctx, keys, got[i].rel)
		}
	}
	now := c.now()
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, r := range got {
		switch {
		case r.err == nil:
			c.addRelease(r.rel, now)
		case errors.Is(r.err, errJunk) && !errors.Is(r.err, store.ErrNotFound):
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

// onlyOverrides holds a release that an operator signed, and those of its kind before it, to what an operator may say: else such a key could change the policy that rollouts go by.
// Epochs between them that hold no release are burnt.
func (c *Collector) onlyOverrides(ctx context.Context, keys manifest.Keyring, rel *stored) error {
	for epoch := rel.Epoch - 1; rel.Kind == manifest.ReleaseOverride; epoch-- {
		if epoch == 0 {
			return fmt.Errorf("%w: %w", errJunk, manifest.OnlyOverrides(rel.Release, nil, ""))
		}
		before, err := c.readRelease(ctx, keys, epoch, "")
		if errors.Is(err, errJunk) {
			continue
		}
		if err != nil {
			return err
		}
		if err := manifest.OnlyOverrides(rel.Release, before.Release, before.digest); err != nil {
			return fmt.Errorf("%w: %w", errJunk, err)
		}
		rel = before
	}
	return nil
}

// some calls do for 0 to n-1, a few at once, and waits for all of them.
func some(n int, do func(i int)) {
	var work sync.WaitGroup
	slots := make(chan struct{}, readAtOnce)
	for i := range n {
		slots <- struct{}{}
		work.Go(func() {
			defer func() { <-slots }()
			do(i)
		})
	}
	work.Wait()
}

var errJunk = errors.New("not a release of this store")

// stored is a verified release as the store has it.
type stored struct {
	*manifest.Release
	digest string // of its payload
	token  store.Token
}

// readRelease reads and verifies a release; store.ErrNotModified if its object still has token.
func (c *Collector) readRelease(ctx context.Context, keys manifest.Keyring, epoch uint64, token store.Token) (*stored, error) {
	key := manifest.KeyRelease(epoch)
	var obj store.Object
	var err error
	if token == "" {
		obj, err = c.store.Get(ctx, key, manifest.MaxReleaseBytes)
	} else {
		obj, err = c.store.GetIfChanged(ctx, key, token, manifest.MaxReleaseBytes)
	}
	switch {
	case errors.Is(err, store.ErrTooLarge), errors.Is(err, store.ErrNotFound):
		return nil, fmt.Errorf("%w: %w", errJunk, err)
	case err != nil:
		return nil, err
	}
	rel, digest, err := manifest.VerifyRelease(keys, obj.Data)
	if err != nil && !errors.Is(err, manifest.ErrForeign) && !errors.Is(err, manifest.ErrSignature) && signed(keys, obj.Data, epoch) {
		return nil, fmt.Errorf("%s is signed by a release key, but cannot be read: %w: this collector may be older than the publisher: upgrade it", key, err)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errJunk, err)
	}
	c.mu.RLock()
	storeID := c.trust.Store
	c.mu.RUnlock()
	if rel.Epoch != epoch || rel.Repo != c.repo || storeID != "" && rel.Store != storeID {
		return nil, fmt.Errorf("%w: it is release %d of repo %s", errJunk, rel.Epoch, rel.Repo)
	}
	return &stored{rel, digest, obj.Token}, nil
}

// signed says whether a key made this release that may make one of this epoch. Such a one is never junk, and hides behind no later one.
func signed(keys manifest.Keyring, data []byte, epoch uint64) bool {
	e, err := manifest.ParseEnvelope(data)
	if err != nil {
		return false
	}
	may := map[string]ed25519.PublicKey{}
	for _, r := range keys.Roles.Release {
		if r.LastEpoch == 0 || epoch <= r.LastEpoch {
			may[r.Key] = keys.Keys[r.Key].Public
		}
	}
	_, err = e.VerifySignatures(manifest.KindRelease, may)
	return err == nil
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
func (c *Collector) addRelease(rel *stored, now time.Time) {
	if n := len(c.releases); n > 0 {
		if c.releases[n-1].Epoch >= rel.Epoch {
			return
		}
		c.releases[n-1].policy = nil
	}
	c.releases = append(c.releases, release{summary(rel.Release), &rel.Policy, rel.token, rel.Tree, rel.Source, statements(rel.Release)})
	if over := len(c.releases) - maxReleases; over > 0 {
		c.releases = slices.Clone(c.releases[over:])
	}
	c.newest = rel.Release
	if _, ok := c.seen[rel.Epoch]; !ok {
		c.seen[rel.Epoch] = now
		c.dirty.seen[rel.Epoch] = now
	}
	for epoch := range c.seen {
		if epoch < c.releases[0].Epoch {
			delete(c.seen, epoch)
		}
	}
	c.compare(rel)
	for epoch := range c.digests {
		if epoch < c.releases[0].Epoch {
			delete(c.digests, epoch)
			delete(c.replaced, epoch)
		}
	}
	c.setFleet(&rel.Policy, rel.Epoch)
	c.bump()
	wake(c.flushNow)
}

// setFleet makes a policy the one in force for the inventory. Under c.mu.
func (c *Collector) setFleet(p *manifest.Policy, epoch uint64) {
	had := c.fleet != nil && c.fleet.Inventory != nil && c.fleet.Inventory.HTTP != ""
	c.fleet, c.fleetAt = p, epoch
	if has := p.Inventory != nil && p.Inventory.HTTP != ""; has && !had {
		wake(c.relist)
	}
	c.setRoster()
}
