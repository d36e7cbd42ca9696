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
func (c *Collector) load(ctx context.Context) error {
	fail := func(err error) error { return fmt.Errorf("database %s: %w", c.db.name(), err) }
	var hosts []*kept
	dropped := 0
	m, err := c.db.load(ctx, func(r hostRecord) error {
		h, err := restore(r)
		if err != nil {
			// The host reports again; nothing is lost but the order of its past reports.
			dropped++
			c.log.Warn("a remembered host is dropped", "cohort", r.cohort, "host", r.host, "err", err)
			return nil
		}
		if h.report != nil {
			h.probed = probedOf(h.report)
			h.report = c.shapes.share(h.report)
		}
		hosts = append(hosts, &kept{r.hostKey, h})
		return nil
	})
	if err != nil {
		return fail(err)
	}
	if dropped > 0 {
		c.log.Warn("remembered hosts were dropped; they are known again when they report", "count", dropped)
	}
	if m.trust != nil {
		if err := c.loadTrust(m.trust); err != nil {
			return fail(err)
		}
	}
	if len(m.secret) == heartbeatSecret {
		c.secret = m.secret
	}
	for _, k := range hosts {
		c.resume(k, m.alive)
		c.cohortOf(k.cohort).hosts[k.name] = k.host
		c.hosts++
	}
	c.seen, c.digests, c.retired, c.synced = m.seen, m.digests, m.retired, m.mark
	for k, at := range m.assigned {
		c.cohortOf(k.cohort).assigned[k.epoch] = at
	}
	c.loadLists(m.lists)
	c.loadLetters(m.notices)
	return nil
}

type kept struct {
	hostKey
	*host
}

// resume lets silence count only while somebody listens: a host that was not silent when the collector stopped gets its time again.
func (c *Collector) resume(k *kept, alive time.Time) {
	from := k.received
	if k.silentFrom.After(from) {
		from = k.silentFrom
	}
	if alive.Sub(from) <= verdict.MissedReports*k.promised() {
		k.silentFrom = c.started
		c.dirty.host(k.cohort, k.name, nil)
	}
}

// shareSecret makes the secret of the first of several collectors that of all.
func (c *Collector) shareSecret(ctx context.Context) error {
	if c.db == nil || !c.db.shared() {
		return nil
	}
	if err := c.db.save(ctx, &batch{secret: c.secret}); err != nil {
		return fmt.Errorf("database %s: %w", c.db.name(), err)
	}
	m, err := c.db.load(ctx, func(hostRecord) error { return nil })
	if err != nil {
		return fmt.Errorf("database %s: %w", c.db.name(), err)
	}
	if len(m.secret) != heartbeatSecret {
		return fmt.Errorf("database %s: the heartbeat secret in it is not readable: delete the row secret of muster_meta", c.db.name())
	}
	c.secret, c.dirty.secret = m.secret, false
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

// restore makes a host of its row.
func restore(r hostRecord) (*host, error) {
	var row hostRow
	if err := wire.Decode(r.state, &row); err != nil {
		return nil, fmt.Errorf("state: %w", err)
	}
	h := &host{
		name: r.host, key: row.Key, boots: row.Boots, current: row.Current, received: row.Received, skew: time.Duration(row.SkewS * float64(time.Second)),
		silentFrom: row.SilentFrom, conflict: row.Conflict, foreign: row.Foreign, foreignKey: row.ForeignKey, listed: row.Listed, pinned: row.Pinned, floor: row.Floor,
	}
	if len(row.Boots) == 0 && !row.Pinned.IsZero() {
		return h, nil // a key was accepted, and has not spoken since: the report beside it is the former one's
	}
	if len(row.Boots) == 0 || row.Current < 0 || row.Current >= len(row.Boots) {
		return nil, errors.New("state: no boot")
	}
	e, err := manifest.ParseEnvelope(r.signed)
	if err != nil {
		return nil, err
	}
	if h.report, err = report.Decode(e.Payload); err != nil {
		return nil, err
	}
	h.digest = sum(e.Digest())
	return h, nil
}
