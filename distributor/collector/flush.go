package collector

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"time"

	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/wire"
)

// dirt is what changed since the last flush. Under Collector.mu.
type dirt struct {
	hosts  map[hostKey]*manifest.Envelope // nil: the report is as before
	seen   map[uint64]time.Time
	assign map[assignKey]time.Time
	digest map[uint64]string
	trust  bool
	secret bool
}

type hostKey struct{ cohort, host string }

type assignKey struct {
	cohort string
	epoch  uint64
}

func (d *dirt) clear() {
	*d = dirt{hosts: map[hostKey]*manifest.Envelope{}, seen: map[uint64]time.Time{}, assign: map[assignKey]time.Time{}, digest: map[uint64]string{}}
}

func (d *dirt) host(cohort, name string, e *manifest.Envelope) {
	k := hostKey{cohort, name}
	if e != nil || d.hosts[k] == nil {
		d.hosts[k] = e
	}
}

func (d *dirt) assigned(cohort string, epoch uint64, at time.Time) {
	d.assign[assignKey{cohort, epoch}] = at
}

// none is for the writer to be idle.
func (d *dirt) none() bool {
	return len(d.hosts) == 0 && len(d.seen) == 0 && len(d.assign) == 0 && len(d.digest) == 0 && !d.trust && !d.secret
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
		stamp := c.now()
		if stamp.Sub(alive) < aliveEvery {
			stamp = time.Time{}
		}
		err := c.flush(context.WithoutCancel(ctx), stamp)
		if err == nil && !stamp.IsZero() {
			alive = stamp
		}
		switch text := errText(err); {
		case text != "" && text != said:
			c.log.Error("database cannot be written; reports are kept in memory and written later", "path", c.db.path, "err", err)
			said = text
		case text == "" && said != "":
			c.log.Info("database is written again", "path", c.db.path)
			said = ""
		}
		c.mu.Lock()
		c.dbErr = said
		c.mu.Unlock()
		if ctx.Err() != nil {
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
	trust := c.trust
	states := make(map[hostKey]hostRow, len(work.hosts))
	for k := range work.hosts {
		if h := c.cohorts[k.cohort].hosts[k.host]; h != nil && h.report != nil {
			states[k] = hostRow{
				Key: h.key, Boots: slices.Clone(h.boots), Current: h.current, Received: h.received, SkewS: h.skew.Seconds(), SilentFrom: h.silentFrom,
				Conflict: h.conflict, Foreign: h.foreign, Listed: h.listed,
			}
		}
	}
	c.mu.Unlock()
	err := c.db.save(ctx, work, states, trust, c.secret, alive)
	if err == nil {
		return nil
	}
	// Put back what was not written, under what came since.
	c.mu.Lock()
	defer c.mu.Unlock()
	for k, e := range work.hosts {
		if c.dirty.hosts[k] == nil {
			c.dirty.hosts[k] = e
		}
	}
	newer := c.dirty
	c.dirty.seen, c.dirty.assign, c.dirty.digest = work.seen, work.assign, work.digest
	maps.Copy(c.dirty.seen, newer.seen)
	maps.Copy(c.dirty.assign, newer.assign)
	maps.Copy(c.dirty.digest, newer.digest)
	c.dirty.trust = c.dirty.trust || work.trust
	c.dirty.secret = c.dirty.secret || work.secret
	return err
}

func (d *database) save(ctx context.Context, work dirt, states map[hostKey]hostRow, trust manifest.TrustState, secret []byte, alive time.Time) error {
	tx, err := d.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	exec := func(query string, args ...any) {
		if err == nil {
			_, err = tx.ExecContext(ctx, query, args...)
		}
	}
	const setMeta = "INSERT INTO meta (name, value) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value"
	if work.secret {
		exec(setMeta, "secret", secret)
	}
	if work.trust {
		data, encErr := wire.Encode(trust)
		if encErr != nil {
			return encErr
		}
		exec(setMeta, "trust", data)
	}
	if !alive.IsZero() {
		exec(setMeta, "alive", []byte(alive.UTC().Format(time.RFC3339Nano)))
	}
	for epoch, at := range work.seen {
		exec("INSERT INTO seen (epoch, at) VALUES (?, ?) ON CONFLICT (epoch) DO NOTHING", epoch, at.UTC().Format(time.RFC3339Nano))
	}
	if len(work.seen) > 0 {
		exec("DELETE FROM seen WHERE epoch <= (SELECT max(epoch) FROM seen) - ?", maxReleases)
	}
	for epoch, digest := range work.digest {
		exec("INSERT INTO releases (epoch, digest) VALUES (?, ?) ON CONFLICT (epoch) DO NOTHING", epoch, digest)
	}
	if len(work.digest) > 0 {
		exec("DELETE FROM releases WHERE epoch <= (SELECT max(epoch) FROM releases) - ?", maxReleases)
	}
	trim := map[string]bool{}
	for k, at := range work.assign {
		exec("INSERT INTO assigned (cohort, epoch, at) VALUES (?, ?, ?) ON CONFLICT (cohort, epoch) DO UPDATE SET at = excluded.at", k.cohort, k.epoch, at.UTC().Format(time.RFC3339Nano))
		trim[k.cohort] = true
	}
	for name := range trim {
		exec("DELETE FROM assigned WHERE cohort = ? AND epoch NOT IN (SELECT epoch FROM assigned WHERE cohort = ? ORDER BY at DESC LIMIT 100)", name, name)
	}
	if err != nil {
		return err
	}
	full, err := tx.PrepareContext(ctx, "INSERT INTO hosts (cohort, host, state, signed) VALUES (?, ?, ?, ?) ON CONFLICT (cohort, host) DO UPDATE SET state = excluded.state, signed = excluded.signed")
	if err != nil {
		return err
	}
	defer func() { _ = full.Close() }()
	part, err := tx.PrepareContext(ctx, "UPDATE hosts SET state = ? WHERE cohort = ? AND host = ?")
	if err != nil {
		return err
	}
	defer func() { _ = part.Close() }()
	for k, row := range states {
		state, err := json.Marshal(row)
		if err != nil {
			return err
		}
		if e := work.hosts[k]; e != nil {
			data, encErr := wire.Encode(e)
			if encErr != nil {
				return encErr
			}
			_, err = full.ExecContext(ctx, k.cohort, k.host, state, data)
		} else {
			_, err = part.ExecContext(ctx, state, k.cohort, k.host)
		}
		if err != nil {
			return err
		}
	}
	return tx.Commit()
}
