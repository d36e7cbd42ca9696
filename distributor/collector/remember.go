package collector

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/report"
	"github.com/muster-config/muster/distributor/verdict"
	"github.com/muster-config/muster/distributor/wire"
)

// load brings back what was remembered.
func (c *Collector) load() error {
	ctx := context.Background()
	fail := func(err error) error { return fmt.Errorf("database %s: %w", c.db.path, err) }
	meta := map[string][]byte{}
	rows, err := c.db.db.QueryContext(ctx, "SELECT name, value FROM meta")
	if err != nil {
		return fail(err)
	}
	for rows.Next() {
		var name string
		var value []byte
		if err := rows.Scan(&name, &value); err != nil {
			return fail(errors.Join(err, rows.Close()))
		}
		meta[name] = value
	}
	if err := errors.Join(rows.Err(), rows.Close()); err != nil {
		return fail(err)
	}
	if data, ok := meta["trust"]; ok {
		if err := c.loadTrust(data); err != nil {
			return fail(err)
		}
	}
	if s := meta["secret"]; len(s) == heartbeatSecret {
		c.secret = s
	}
	var alive time.Time
	if data, ok := meta["alive"]; ok {
		alive, _ = time.Parse(time.RFC3339Nano, string(data))
	}
	if err := c.loadHosts(ctx, alive); err != nil {
		return fail(err)
	}
	if err := c.loadTimes(ctx); err != nil {
		return fail(err)
	}
	return nil
}

func (c *Collector) loadTrust(data []byte) error {
	var saved manifest.TrustState
	if err := wire.Decode(data, &saved); err != nil {
		return fmt.Errorf("remembered trust: %w", err)
	}
	if saved.Repo != c.repo {
		return fmt.Errorf("belongs to repo %s, and the keyring to %s: give this collector a database of its own", saved.Repo, c.repo)
	}
	given, err := c.trust.Keys()
	if err != nil {
		return err
	}
	had, err := saved.Keys()
	switch {
	case err != nil || had.Version < given.Version:
		saved.Keyring = c.trust.Keyring // a person brought a newer one
	case had.Version == given.Version && saved.Keyring.Digest() != c.trust.Keyring.Digest():
		return fmt.Errorf("remembers another keyring of version %d than %s holds: find out which is right, and correct the file, or move the database away if that is of another fleet", had.Version, cmp.Or(c.cfg.Keyring, "the given one"))
	}
	c.trust = saved
	return nil
}

func (c *Collector) loadHosts(ctx context.Context, alive time.Time) error {
	rows, err := c.db.db.QueryContext(ctx, "SELECT cohort, host, state, signed FROM hosts")
	if err != nil {
		return err
	}
	defer rows.Close()
	dropped := 0
	for rows.Next() {
		var cohortName, name string
		var state, signed []byte
		if err := rows.Scan(&cohortName, &name, &state, &signed); err != nil {
			return err
		}
		h, err := restore(name, state, signed)
		if err != nil {
			// The host reports again; nothing is lost but the order of its past reports.
			dropped++
			c.log.Warn("a remembered host is dropped", "cohort", cohortName, "host", name, "err", err)
			continue
		}
		// Silence counts only while somebody listens: a host that was not silent when the collector stopped gets its time again.
		if h.report != nil {
			from := h.received
			if h.silentFrom.After(from) {
				from = h.silentFrom
			}
			if alive.Sub(from) <= verdict.MissedReports*h.promised() {
				h.silentFrom = c.started
				c.dirty.host(cohortName, name, nil)
			}
		}
		c.cohortOf(cohortName).hosts[name] = h
		c.hosts++
	}
	if dropped > 0 {
		c.log.Warn("remembered hosts were dropped; they are known again when they report", "count", dropped)
	}
	return rows.Err()
}

func restore(name string, state, signed []byte) (*host, error) {
	var row hostRow
	if err := wire.Decode(state, &row); err != nil {
		return nil, fmt.Errorf("state: %w", err)
	}
	h := &host{
		name: name, key: row.Key, boots: row.Boots, current: row.Current, received: row.Received, skew: time.Duration(row.SkewS * float64(time.Second)),
		silentFrom: row.SilentFrom, conflict: row.Conflict, foreign: row.Foreign, listed: row.Listed,
	}
	if len(row.Boots) == 0 || row.Current < 0 || row.Current >= len(row.Boots) {
		return nil, errors.New("state: no boot")
	}
	e, err := manifest.ParseEnvelope(signed)
	if err != nil {
		return nil, err
	}
	if h.report, err = report.Decode(e.Payload); err != nil {
		return nil, err
	}
	h.digest = e.Digest()
	return h, nil
}

func (c *Collector) loadTimes(ctx context.Context) error {
	load := func(query string, take func(cohort string, epoch uint64, at time.Time)) error {
		rows, err := c.db.db.QueryContext(ctx, query)
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			var name, text string
			var epoch uint64
			if err := rows.Scan(&name, &epoch, &text); err != nil {
				return err
			}
			if at, err := time.Parse(time.RFC3339Nano, text); err == nil {
				take(name, epoch, at)
			}
		}
		return rows.Err()
	}
	err := load("SELECT '', epoch, at FROM seen", func(_ string, epoch uint64, at time.Time) { c.seen[epoch] = at })
	if err != nil {
		return err
	}
	rows, err := c.db.db.QueryContext(ctx, "SELECT epoch, digest FROM releases")
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var epoch uint64
		var digest string
		if err := rows.Scan(&epoch, &digest); err != nil {
			return err
		}
		c.digests[epoch] = digest
	}
	if err := errors.Join(rows.Err(), rows.Close()); err != nil { // before the next question: there is one connection
		return err
	}
	return load("SELECT cohort, epoch, at FROM assigned", func(name string, epoch uint64, at time.Time) { c.cohortOf(name).assigned[epoch] = at })
}
