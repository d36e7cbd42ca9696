package collector

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/muster-config/muster/distributor/bundle"
	"github.com/muster-config/muster/distributor/manifest"
)

// maxKnown bounds what is remembered of releases.
const maxKnown = 1024

// releaseMemory remembers what releases made for cohorts. Nothing about it changes ever. Safe for concurrent use.
type releaseMemory struct {
	mu   sync.Mutex
	made map[madeFor]known
}

// madeFor names what a release made for a cohort; a number that holds another release by now has another digest.
type madeFor struct {
	cohort  string
	epoch   uint64
	release string
}

// known is what is remembered: the statement, and what Services gives.
type known struct {
	statement *manifest.Envelope
	services  map[string]string
}

func (r *releaseMemory) statement(of madeFor) *manifest.Envelope {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.made[of].statement
}

func (r *releaseMemory) services(of madeFor) map[string]string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.made[of].services
}

func (r *releaseMemory) put(of madeFor, k known) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.made == nil || len(r.made) >= maxKnown {
		r.made = map[madeFor]known{}
	}
	r.made[of] = k
}

// stated names what a release made for a cohort, as far back as the collector remembers what the number held.
func (c *Collector) stated(cohort string, epoch uint64) madeFor {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return madeFor{cohort, epoch, c.digests[epoch]}
}

// Services gives the digest of each service's files in a release of a cohort, as rendered with epoch 0; of a host with a variant of its own under "service@host". It is read from the
// bundles, which are believed as far as the signed statement vouches for them. A cohort with so many variants that they have an object of their own has one entry a host, "*@host", the
// digest of all its files.
func (c *Collector) Services(ctx context.Context, cohort string, epoch uint64) (map[string]string, error) {
	of := c.stated(cohort, epoch)
	if m := c.known.services(of); m != nil {
		return m, nil
	}
	e, err := c.Statement(ctx, cohort, epoch)
	if err != nil {
		return nil, err
	}
	c.mu.RLock()
	keys, err := c.trust.Keys()
	c.mu.RUnlock()
	if err != nil {
		return nil, err
	}
	st, err := manifest.VerifyStatement(keys, e)
	if err != nil {
		return nil, fmt.Errorf("release %d: %w", epoch, err)
	}
	m := map[string]string{}
	if err := c.bundleServices(ctx, &st.Statement, "", st.Bundle, st.Content, m); err != nil {
		return nil, err
	}
	for _, v := range st.Variants {
		if err := c.bundleServices(ctx, &st.Statement, v.Host, v.Bundle, v.Content, m); err != nil {
			return nil, err
		}
	}
	if st.VariantsObject != nil {
		doc, err := c.readVariantsObject(ctx, *st.VariantsObject)
		if err != nil {
			return nil, fmt.Errorf("host variants of release %d: %w", epoch, err)
		}
		for _, v := range doc.Variants {
			m["*@"+v.Host] = v.Content0
		}
	}
	c.known.put(of, known{statement: e, services: m})
	return m, nil
}

// bundleServices adds what a bundle's index says. The whole bundle is read and compared with its digest: who owns the store could write another index.
func (c *Collector) bundleServices(ctx context.Context, st *manifest.Statement, host string, o manifest.Object, content string, m map[string]string) error {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	key := manifest.KeyBundle(o.Object)
	body, _, err := c.store.Open(ctx, key)
	if err != nil {
		return fmt.Errorf("read %s of release %d: %w", key, st.Epoch, err)
	}
	plan, err := bundle.Scan(io.LimitReader(body, bundle.MaxCompressed+1))
	if err = errors.Join(err, body.Close()); err != nil {
		return fmt.Errorf("read %s of release %d: %w", key, st.Epoch, err)
	}
	ix := &plan.Index
	switch {
	case plan.Tar != o.Tar || plan.Content != content:
		return fmt.Errorf("%s of release %d: %w", key, st.Epoch, errDamaged)
	case ix.Repo != st.Repo || ix.Cohort != st.Cohort || ix.Host != host || ix.Epoch != st.Epoch:
		return fmt.Errorf("%s of release %d is the bundle of cohort %s, host %q, epoch %d: check the store with muster fsck", key, st.Epoch, ix.Cohort, ix.Host, ix.Epoch)
	}
	for name, s := range ix.Services {
		if host != "" {
			name += "@" + host
		}
		m[name] = s.Digest0
	}
	return nil
}
