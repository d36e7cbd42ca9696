package collector

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"

	"github.com/muster-config/muster/distributor/manifest"
)

// variantsOf are the objects that hold host variants of the statements of a head. Under c.mu.
func variantsOf(v *manifest.View) []manifest.Object {
	var list []manifest.Object
	add := func(o *manifest.Object) {
		if o != nil && !slices.Contains(list, *o) {
			list = append(list, *o)
		}
	}
	if v != nil {
		for i := range v.Statements {
			add(v.Statements[i].VariantsObject)
		}
		for i := range v.Overrides {
			if f := v.Overrides[i].First; f != nil {
				add(f.VariantsObject)
			}
		}
	}
	return list
}

// readVariants reads the documents that hold the host variants of what heads assign, once each.
func (c *Collector) readVariants(ctx context.Context) error {
	type open struct {
		cohort string
		object manifest.Object
	}
	var missing []open
	c.mu.Lock()
	for name, co := range c.cohorts {
		wanted := variantsOf(co.view)
		for digest := range co.variants {
			if !slices.ContainsFunc(wanted, func(o manifest.Object) bool { return o.Object == digest }) {
				delete(co.variants, digest)
			}
		}
		for _, o := range wanted {
			if co.variants[o.Object] == nil {
				missing = append(missing, open{name, o})
			}
		}
	}
	c.mu.Unlock()
	for _, m := range missing {
		doc, err := c.readVariantsObject(ctx, m.object)
		if err != nil {
			return fmt.Errorf("host variants of cohort %s: %w", m.cohort, err)
		}
		c.mu.Lock()
		co := c.cohortOf(m.cohort)
		if co.variants == nil {
			co.variants = map[string]*manifest.Variants{}
		}
		co.variants[m.object.Object] = doc
		c.bump()
		c.mu.Unlock()
	}
	return nil
}

func (c *Collector) readVariantsObject(ctx context.Context, o manifest.Object) (*manifest.Variants, error) {
	key := manifest.KeyBundle(o.Object)
	obj, err := c.store.Get(ctx, key, manifest.MaxVariantsBytes)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", key, err)
	}
	if sum := sha256.Sum256(obj.Data); "sha256:"+hex.EncodeToString(sum[:]) != o.Object {
		return nil, fmt.Errorf("%s: %w", key, errDamaged)
	}
	doc, err := manifest.DecodeVariants(obj.Data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", key, err)
	}
	return doc, nil
}
