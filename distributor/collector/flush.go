package collector

import (
	"context"
	"encoding/json"
	"maps"
	"time"

	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/wire"
)

// dirt is what changed since the last flush. Under Collector.mu.
type dirt struct {
	hosts   map[hostKey]*manifest.Envelope // nil: the report is as before
	gone    map[hostKey]bool               // hosts that are known no more
	seen    map[uint64]time.Time
	assign  map[assignKey]time.Time
	digest  map[uint64]string
	retired map[hostKey]bool // see Collector.retired
	lists   map[string]bool  // see Collector.lists
	notices map[string][]byte
	trust   bool
	secret  bool
}

func (d *dirt) clear() {
	*d = dirt{
		hosts: map[hostKey]*manifest.Envelope{}, gone: map[hostKey]bool{}, seen: map[uint64]time.Time{}, assign: map[assignKey]time.Time{}, digest: map[uint64]string{},
		retired: map[hostKey]bool{}, lists: map[string]bool{}, notices: map[string][]byte{},
	}
}

func (d *dirt) host(cohort, name string, e *manifest.Envelope) {
	k := hostKey{cohort, name}
	delete(d.gone, k)
	if e != nil || d.hosts[k] == nil {
		d.hosts[k] = e
	}
}

func (d *dirt) lost(k hostKey) {
	delete(d.hosts, k)
	d.gone[k] = true
}

func (d *dirt) assigned(cohort string, epoch uint64, at time.Time) {
	d.assign[assignKey{cohort, epoch}] = at
}

// none is for the writer to be idle.
func (d *dirt) none() bool {
	return len(d.hosts) == 0 && len(d.gone) == 0 && len(d.seen) == 0 && len(d.assign) == 0 && len(d.digest) == 0 && len(d.retired) == 0 && len(d.lists) == 0 && len(d.notices) == 0 && !d.trust && !d.secret
}

// write writes what changed, in one transaction at a time, until ctx ends; then once more.
func (c *Collector) write(ctx context.Context) {
	if c.db == nil {
		<-ctx.Done()
		return
	}
	said := ""
	var alive time.Time
	for {
		last := ctx.Err() != nil // asked before the flush: what came until then is in it
		now := c.now()
		if now.Sub(alive) < aliveEvery {
			now = time.Time{}
		}
		err := c.flush(context.WithoutCancel(ctx), now)
		if err == nil && !now.IsZero() {
			alive = now
		}
		switch text := errText(err); {
		case text != "" && text != said:
			c.log.Error("database cannot be written; reports are kept in memory and written later", "path", c.db.name(), "err", err)
			said = text
		case text == "" && said != "":
			c.log.Info("database is written again", "path", c.db.name())
			said = ""
		}
		if err != nil {
			c.count.databaseErrors.Add(1)
		}
		c.mu.Lock()
		c.dbErr = said
		c.mu.Unlock()
		if last {
			return
		}
		// Reports that come in the meantime go together: group commit.
		t := time.NewTimer(flushEvery)
		select {
		case <-ctx.Done():
		case <-t.C:
			t.Reset(aliveEvery)
			select {
			case <-ctx.Done():
			case <-c.flushNow:
			case <-t.C:
			}
		}
		t.Stop()
	}
}

func errText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// flush writes what changed. On failure it stays to be written.
func (c *Collector) flush(ctx context.Context, alive time.Time) error {
	c.mu.Lock()
	work := c.dirty
	if work.none() && alive.IsZero() {
		c.mu.Unlock()
		return nil
	}
	c.dirty.clear()
	b, rows, err := c.gather(&work, alive)
	c.mu.Unlock()
	if err == nil {
		err = b.fill(rows, work.hosts)
	}
	if err == nil {
		err = c.db.save(ctx, b)
	}
	if err == nil {
		return nil
	}
	c.putBack(work)
	return err
}

// gather is the batch of what changed but for the hosts, whose rows are encoded without the lock. Under c.mu.
func (c *Collector) gather(work *dirt, alive time.Time) (*batch, map[hostKey]hostRow, error) {
	b := &batch{alive: alive, seen: work.seen, digests: work.digest, assigned: work.assign, retired: map[hostKey]*retirement{}, lists: map[string][]byte{}, notices: work.notices}
	if work.secret {
		b.secret = c.secret
	}
	var err error
	if work.trust {
		if b.trust, err = wire.Encode(c.trust); err != nil {
			return nil, nil, err
		}
	}
	for k := range work.retired {
		b.retired[k] = nil
		if r, ok := c.retired[k]; ok {
			b.retired[k] = &r
		}
	}
	for name := range work.lists {
		if l := c.lists[name]; l != nil {
			if b.lists[name], err = encodeList(l); err != nil {
				return nil, nil, err
			}
		}
	}
	for k := range work.gone {
		b.gone = append(b.gone, k)
	}
	rows := make(map[hostKey]hostRow, len(work.hosts))
	for k := range work.hosts {
		if h := c.cohorts[k.cohort].hosts[k.host]; h != nil && (h.report != nil || !h.pinned.IsZero()) {
			rows[k] = h.row()
		}
	}
	return b, rows, nil
}

// fill adds the hosts.
func (b *batch) fill(rows map[hostKey]hostRow, signed map[hostKey]*manifest.Envelope) error {
	for k, row := range rows {
		state, err := json.Marshal(row)
		if err != nil {
			return err
		}
		r := hostRecord{hostKey: k, state: state, received: row.Received}
		if row.Pinned.After(r.received) {
			r.received = row.Pinned // a person's word is newer than what the former key said
		}
		if e := signed[k]; e != nil {
			if r.signed, err = wire.Encode(e); err != nil {
				return err
			}
		}
		b.hosts = append(b.hosts, r)
	}
	return nil
}

// putBack makes what was not written dirty again, under what came since.
func (c *Collector) putBack(work dirt) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for k, e := range work.hosts {
		if c.dirty.hosts[k] == nil && !c.dirty.gone[k] {
			c.dirty.hosts[k] = e
		}
	}
	newer := c.dirty
	for k := range work.gone {
		if _, back := newer.hosts[k]; !back {
			c.dirty.gone[k] = true
		}
	}
	c.dirty.seen, c.dirty.assign, c.dirty.digest, c.dirty.notices = work.seen, work.assign, work.digest, work.notices
	maps.Copy(c.dirty.seen, newer.seen)
	maps.Copy(c.dirty.assign, newer.assign)
	maps.Copy(c.dirty.digest, newer.digest)
	maps.Copy(c.dirty.notices, newer.notices)
	maps.Copy(c.dirty.retired, work.retired)
	maps.Copy(c.dirty.lists, work.lists)
	c.dirty.trust = c.dirty.trust || work.trust
	c.dirty.secret = c.dirty.secret || work.secret
}
