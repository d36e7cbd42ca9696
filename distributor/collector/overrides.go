package collector

import (
	"cmp"
	"slices"
	"time"

	"github.com/muster-config/muster/distributor/api"
	"github.com/muster-config/muster/distributor/manifest"
)

// overridesOf are the emergency overrides that act under a head.
func overridesOf(v *manifest.View, now time.Time) []api.Override {
	var list []api.Override
	for _, o := range v.Living(now) {
		services := []string{}
		for _, p := range o.Patches {
			services = append(services, p.Service)
		}
		slices.Sort(services)
		list = append(list, api.Override{
			ID: o.ID, Hosts: append([]string{}, o.Hosts...), Services: slices.Compact(services), Epoch: o.Epoch, Author: o.Author, Reason: o.Reason,
			Created: o.Created.UTC(), NotAfter: o.NotAfter.UTC(),
			Yields: v.Yields(&o.Override, now),
			Ending: slices.ContainsFunc(v.Manifest.Rollout.Endings, func(e manifest.Ending) bool { return e.Override == o.ID }),
		})
	}
	return list
}

// made is when a release was made, zero if it is not remembered. Under c.mu.
func (c *Collector) made(epoch uint64) time.Time {
	if i, ok := slices.BinarySearchFunc(c.releases, epoch, func(r release, e uint64) int { return cmp.Compare(r.Epoch, e) }); ok {
		return c.releases[i].Created
	}
	return time.Time{}
}
