package collector

import (
	"context"
	"encoding/json"
	"time"

	"github.com/jackc/pgx/v5"
)

func (p *postgres) save(ctx context.Context, b *batch) error {
	return p.with(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, "SELECT pg_advisory_xact_lock($1)", int64(pgLock)); err != nil {
				return err
			}
			return pgSave(ctx, tx, b)
		})
	})
}

func pgSave(ctx context.Context, tx pgx.Tx, b *batch) error {
	var queue pgx.Batch
	const setMeta = "INSERT INTO muster_meta (name, value) VALUES ($1, $2) ON CONFLICT (name) DO UPDATE SET value = excluded.value"
	if b.secret != nil {
		// The first collector's stands for all: the others read it when they start.
		queue.Queue("INSERT INTO muster_meta (name, value) VALUES ('secret', $1) ON CONFLICT DO NOTHING", b.secret)
	}
	if b.trust != nil {
		queue.Queue(setMeta, "trust", b.trust)
	}
	if !b.alive.IsZero() {
		queue.Queue(setMeta, "alive", []byte(stamp(b.alive)))
	}
	for epoch, at := range b.seen {
		queue.Queue("INSERT INTO muster_seen (epoch, at) VALUES ($1, $2) ON CONFLICT DO NOTHING", int64(epoch), stamp(at))
	}
	if len(b.seen) > 0 {
		queue.Queue("DELETE FROM muster_seen WHERE epoch <= (SELECT max(epoch) FROM muster_seen) - $1", int64(maxReleases))
	}
	for epoch, digest := range b.digests {
		queue.Queue("INSERT INTO muster_releases (epoch, digest) VALUES ($1, $2) ON CONFLICT DO NOTHING", int64(epoch), digest)
	}
	if len(b.digests) > 0 {
		queue.Queue("DELETE FROM muster_releases WHERE epoch <= (SELECT max(epoch) FROM muster_releases) - $1", int64(maxReleases))
	}
	trim := map[string]bool{}
	for k, at := range b.assigned {
		queue.Queue("INSERT INTO muster_assigned (cohort, epoch, at) VALUES ($1, $2, $3) ON CONFLICT (cohort, epoch) DO UPDATE SET at = excluded.at", k.cohort, int64(k.epoch), stamp(at))
		trim[k.cohort] = true
	}
	for name := range trim {
		queue.Queue("DELETE FROM muster_assigned WHERE cohort = $1 AND epoch NOT IN (SELECT epoch FROM muster_assigned WHERE cohort = $1 ORDER BY at DESC LIMIT $2)", name, maxAssigned)
	}
	for k, r := range b.retired {
		if r == nil {
			queue.Queue("DELETE FROM muster_retired WHERE cohort = $1 AND host = $2", k.cohort, k.host)
			continue
		}
		word, err := json.Marshal(r)
		if err != nil {
			return err
		}
		queue.Queue("INSERT INTO muster_retired (cohort, host, word) VALUES ($1, $2, $3) ON CONFLICT (cohort, host) DO UPDATE SET word = excluded.word", k.cohort, k.host, string(word))
	}
	for name, value := range b.lists {
		queue.Queue("INSERT INTO muster_lists (name, value) VALUES ($1, $2) ON CONFLICT (name) DO UPDATE SET value = excluded.value", name, value)
	}
	for id, value := range b.notices {
		if value == nil {
			queue.Queue("DELETE FROM muster_notices WHERE id = $1", id)
			continue
		}
		queue.Queue("INSERT INTO muster_notices (id, value) VALUES ($1, $2) ON CONFLICT (id) DO UPDATE SET value = excluded.value", id, value)
	}
	for _, k := range b.gone {
		queue.Queue("DELETE FROM muster_hosts WHERE cohort = $1 AND host = $2", k.cohort, k.host)
	}
	pgQueueHosts(&queue, b.hosts)
	if queue.Len() == 0 {
		return nil
	}
	return tx.SendBatch(ctx, &queue).Close()
}

// pgQueueHosts writes hosts in arrays. A row that another collector wrote later stands: it has heard the host since.
func pgQueueHosts(queue *pgx.Batch, hosts []hostRecord) {
	type columns struct {
		cohort, host, state []string
		signed              [][]byte
		received            []time.Time
	}
	var full, part columns
	for _, r := range hosts {
		c := &part
		if r.signed != nil {
			c = &full
			c.signed = append(c.signed, r.signed)
		}
		c.cohort, c.host, c.state, c.received = append(c.cohort, r.cohort), append(c.host, r.host), append(c.state, string(r.state)), append(c.received, r.received)
	}
	if len(full.host) > 0 {
		queue.Queue(`INSERT INTO muster_hosts (cohort, host, state, signed, received, seq)
			SELECT cohort, host, state, signed, received, nextval('muster_host_seq') FROM unnest($1::text[], $2::text[], $3::text[], $4::bytea[], $5::timestamptz[]) AS n (cohort, host, state, signed, received)
			ON CONFLICT (cohort, host) DO UPDATE SET state = excluded.state, signed = excluded.signed, received = excluded.received, seq = excluded.seq WHERE excluded.received >= muster_hosts.received`,
			full.cohort, full.host, full.state, full.signed, full.received)
	}
	if len(part.host) > 0 {
		queue.Queue(`UPDATE muster_hosts AS h SET state = n.state, received = n.received, seq = nextval('muster_host_seq')
			FROM unnest($1::text[], $2::text[], $3::text[], $4::timestamptz[]) AS n (cohort, host, state, received)
			WHERE h.cohort = n.cohort AND h.host = n.host AND n.received >= h.received`,
			part.cohort, part.host, part.state, part.received)
	}
}
