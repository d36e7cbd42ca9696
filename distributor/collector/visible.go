package collector

import (
	"context"
	"net/http"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/muster-config/muster/distributor/manifest"
)

// A token that is limited to some cohorts reads what these run and nothing else: bundles that an order of theirs names, now or lately, and no whole release, as that tells of all
// cohorts.

// maxLately is about how many objects of former orders of a cohort are remembered: who read the order before the last one still fetches what it names.
const maxLately = 1000

// mayRead says why a caller may not read an object, or nil.
func (c *Collector) mayRead(ctx context.Context, who caller, key string) error {
	if who.all() || strings.HasPrefix(key, manifest.PrefixKeyrings) {
		return nil
	}
	if strings.HasPrefix(key, manifest.PrefixReleases) {
		return refuse(http.StatusForbidden, "`muster status` and /v1/releases tell of its cohorts", "whole releases need a token for all cohorts")
	}
	if c.named(who, key) {
		return nil
	}
	// It may have read an order from the store which this collector has not read yet.
	if c.readHeadsAgain(ctx); c.named(who, key) {
		return nil
	}
	return refuse(http.StatusForbidden, "hosts then read it from the next of their sources", "no cohort that this token may see has an order that names %.200q", key)
}

// readHeadsAgain reads the heads, once for all who ask for it, and at most once a second.
func (c *Collector) readHeadsAgain(ctx context.Context) {
	_, _, _ = c.loads.Do("heads", func() (any, error) {
		c.mu.RLock()
		soon := c.now().Sub(c.headsAgain) < time.Second
		c.mu.RUnlock()
		if soon {
			return nil, nil
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), readTimeout)
		defer cancel()
		err := c.readHeads(ctx)
		if err == nil {
			err = c.readVariants(ctx)
		}
		c.mu.Lock()
		c.headsAgain = c.now()
		c.mu.Unlock()
		return nil, err // the reader of the store says what is wrong with it
	})
}

// named says whether an order of a cohort that the caller may see names an object.
func (c *Collector) named(who caller, key string) bool {
	digest := "sha256:" + strings.TrimSuffix(path.Base(key), ".tar.zst")
	if manifest.KeyBundle(digest) != key {
		return false
	}
	c.mu.RLock()
	defer c.mu.RUnlock()
	for name, co := range c.cohorts {
		if !who.may(name) {
			continue
		}
		found := co.lately[digest]
		co.eachObject(func(o manifest.Object) bool {
			found = found || o.Object == digest
			return !found
		})
		if found {
			return true
		}
	}
	return false
}

// eachObject calls each for the objects that the cohort's order names, until it says false. Under c.mu.
func (co *cohort) eachObject(each func(manifest.Object) bool) {
	if co.view == nil {
		return
	}
	variants := func(list []manifest.Variant) bool {
		return !slices.ContainsFunc(list, func(v manifest.Variant) bool { return !each(v.Bundle) })
	}
	statement := func(st *manifest.Statement) bool {
		if !each(st.Bundle) || !variants(st.Variants) {
			return false
		}
		if st.VariantsObject == nil {
			return true
		}
		doc := co.variants[st.VariantsObject.Object]
		return each(*st.VariantsObject) && (doc == nil || variants(doc.Variants))
	}
	for i := range co.view.Statements {
		if !statement(&co.view.Statements[i].Statement) {
			return
		}
	}
	for i := range co.view.Overrides {
		if first := co.view.Overrides[i].First; first != nil && !statement(&first.Statement) {
			return
		}
	}
}

// keepLately remembers what an order names that another one follows. Under c.mu.
func (co *cohort) keepLately() {
	if co.lately == nil || len(co.lately) >= maxLately {
		co.lately = map[string]bool{}
	}
	co.eachObject(func(o manifest.Object) bool {
		co.lately[o.Object] = true
		return true
	})
}
