package collector

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/muster-config/muster/distributor/inventory"
	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/store"
)

// inventoryEvery is how often inventory.json is written.
const inventoryEvery = 5 * time.Minute

// writeInventory keeps inventory.json in the store up to date until ctx ends, for those who can read only the store. It needs the right to write there; without it says so
// once and tries on: rights may come.
func (c *Collector) writeInventory(ctx context.Context) {
	said := ""
	for {
		// The first reading comes first: an inventory that was written before would be empty.
		c.mu.RLock()
		ready := !c.lastRead.IsZero() && c.fleet != nil
		c.mu.RUnlock()
		next := inventoryEvery
		if !ready {
			next = time.Second
		} else {
			err := c.putInventory(ctx)
			if ctx.Err() != nil {
				return
			}
			switch text := errText(err); {
			case text != "" && said == "":
				c.log.Warn("inventory.json cannot be written; `muster plan` in CI knows only the fleet's own lists", "store", c.store.URL(), "err", err)
				said = text
			case text == "" && said != "":
				c.log.Info("inventory.json is written again", "store", c.store.URL())
				said = ""
			}
		}
		t := time.NewTimer(next)
		select {
		case <-ctx.Done():
			t.Stop()
			return
		case <-t.C:
		}
	}
}

// putInventory writes it once.
func (c *Collector) putInventory(ctx context.Context) error {
	st, ok := c.store.(store.Blobs)
	if !ok {
		return store.ErrReadOnly
	}
	doc := c.Inventory()
	data, err := doc.Encode()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	return st.Put(ctx, manifest.KeyInventory, data)
}

// Inventory is who the collector takes to be of which cohort now.
func (c *Collector) Inventory() *inventory.Document {
	now := c.now()
	c.mu.Lock()
	c.prune(now)
	c.mu.Unlock()
	c.mu.RLock()
	defer c.mu.RUnlock()
	doc := &inventory.Document{V: inventory.Version, Repo: c.repo, At: now.UTC().Truncate(time.Second), Cohorts: map[string]inventory.DocumentCohort{}}
	for _, name := range c.cohortNames(local) {
		if !c.inFleet(name) {
			continue
		}
		hosts := c.judge(name, now)
		out := inventory.DocumentCohort{Hosts: []inventory.DocumentHost{}}
		for _, h := range hosts {
			if !h.Input.Expected || h.Input.Retired {
				continue
			}
			labels := map[string]string{}
			maps.Copy(labels, c.roster.hosts[name][h.Input.Host])
			if h.Input.Report != nil {
				maps.Copy(labels, h.Input.Report.Labels)
			}
			out.Hosts = append(out.Hosts, inventory.DocumentHost{Host: h.Input.Host, Labels: labels})
		}
		slices.SortFunc(out.Hosts, func(a, b inventory.DocumentHost) int { return strings.Compare(a.Host, b.Host) })
		short, _ := c.counted(name, hosts)
		out.Expected = len(out.Hosts) + short
		doc.Cohorts[name] = out
	}
	return doc
}
