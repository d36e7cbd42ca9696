package collector

import (
	"context"
	"time"
)

// syncEvery is how often a collector reads what others of its database heard.
const syncEvery = time.Second

// followOthers takes over what other collectors of the same database heard, until ctx ends.
func (c *Collector) followOthers(ctx context.Context) {
	if c.db == nil || !c.db.shared() {
		return
	}
	said := ""
	for {
		err := c.sync(ctx)
		if ctx.Err() != nil {
			return
		}
		if text := errText(err); text != said {
			if said = text; text != "" {
				c.log.Error("what other collectors heard cannot be read", "database", c.db.name(), "err", err)
			}
		}
		t := time.NewTimer(syncEvery)
		select {
		case <-ctx.Done():
			t.Stop()
			return
		case <-t.C:
		}
	}
}

// sync takes over once.
func (c *Collector) sync(ctx context.Context) error {
	c.mu.RLock()
	mark := c.synced
	c.mu.RUnlock()
	var rows []kept
	n, err := c.db.since(ctx, mark, func(r hostRecord) error {
		h, err := restore(r)
		if err != nil {
			c.log.Warn("a host that another collector wrote cannot be read", "cohort", r.cohort, "host", r.host, "err", err)
			return nil
		}
		rows = append(rows, kept{r.hostKey, h})
		return nil
	})
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.synced = max(c.synced, n.mark)
	changed := false
	for _, k := range rows {
		changed = c.adopt(k) || changed
	}
	for k, r := range n.retired {
		if had, ok := c.retired[k]; !c.dirty.retired[k] && (!ok || had != r) {
			c.retired[k] = r
			changed = true
		}
	}
	for k := range c.retired {
		if _, still := n.retired[k]; !still && !c.dirty.retired[k] {
			delete(c.retired, k)
			changed = true
		}
	}
	if changed {
		c.bump()
	}
	return nil
}

// adopt takes over what another collector knows of a host, as far as it is newer. Under c.mu.
func (c *Collector) adopt(k kept) bool {
	co := c.cohortOf(k.cohort)
	h := co.hosts[k.hostKey.host]
	if h == nil || k.pinned.After(h.pinned) { // a key that a person accepted there is the host's own here too
		if k.host.report != nil {
			k.host.probed = probedOf(k.host.report)
			k.host.report = c.shapes.share(k.host.report)
		}
		if h == nil {
			c.hosts++
		} else {
			c.shapes.drop(h.report)
			k.host.listed = k.host.listed || h.listed
		}
		co.hosts[k.hostKey.host] = k.host
		return true
	}
	if k.host.report == nil || h.pinned.After(k.pinned) {
		return false // what the former key said does not come back
	}
	changed := false
	speaking, theirs := h.boots, k.boots[k.current]
	newer := k.received.After(h.received)
	if len(speaking) > 0 && speaking[h.current].ID == theirs.ID {
		newer = theirs.Counter > speaking[h.current].Counter
	}
	// What each boot has said counts on both sides.
	boots := k.boots
	for _, b := range h.boots {
		at := -1
		for i := range boots {
			if boots[i].ID == b.ID {
				at = i
			}
		}
		switch {
		case at < 0 && len(boots) < maxBoots:
			boots = append(boots, b)
		case at < 0:
			h.raise(b.At)
		case at >= 0 && b.Counter > boots[at].Counter:
			boots[at].Counter, boots[at].Heard, boots[at].Running, boots[at].At = b.Counter, b.Heard, b.Running, later(b.At, boots[at].At)
		}
	}
	if newer {
		changed = h.digest != k.digest || h.report == nil || h.wasSilent(c.now())
		before := h.report
		h.probed = probedOf(k.host.report)
		h.report, h.digest, h.received, h.skew = c.shapes.swap(before, k.host.report), k.digest, k.received, k.skew
		h.key, h.boots, h.current = k.key, boots, k.current
	} else if len(speaking) > 0 {
		id := speaking[h.current].ID
		for i := range boots {
			if boots[i].ID == id {
				h.boots, h.current = boots, i
			}
		}
	}
	if k.conflict.After(h.conflict) {
		h.conflict, changed = k.conflict, true
	}
	if k.foreign.After(h.foreign) {
		h.foreign, h.foreignKey, changed = k.foreign, k.foreignKey, true
	}
	if k.silentFrom.After(h.silentFrom) {
		h.silentFrom = k.silentFrom
	}
	h.listed = h.listed || k.listed
	h.raise(k.floor)
	return changed
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
