package collector

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// The tables of a collector in PostgreSQL. Several collectors share them: a row says by seq when it was written last, and writers go one after the other (the lock in save), so
// that a reader who has seen one seq has seen all before it.
const pgSchema = `
CREATE TABLE IF NOT EXISTS muster_meta (name text PRIMARY KEY, value bytea NOT NULL);
CREATE SEQUENCE IF NOT EXISTS muster_host_seq;
CREATE TABLE IF NOT EXISTS muster_hosts (
	cohort text NOT NULL, host text NOT NULL,
	state text NOT NULL, signed bytea NOT NULL,
	received timestamptz NOT NULL, seq bigint NOT NULL,
	PRIMARY KEY (cohort, host)
);
CREATE INDEX IF NOT EXISTS muster_hosts_seq ON muster_hosts (seq);
CREATE TABLE IF NOT EXISTS muster_seen (epoch bigint PRIMARY KEY, at text NOT NULL);
CREATE TABLE IF NOT EXISTS muster_releases (epoch bigint PRIMARY KEY, digest text NOT NULL);
CREATE TABLE IF NOT EXISTS muster_assigned (cohort text NOT NULL, epoch bigint NOT NULL, at text NOT NULL, PRIMARY KEY (cohort, epoch));
CREATE TABLE IF NOT EXISTS muster_retired (cohort text NOT NULL, host text NOT NULL, word text NOT NULL, PRIMARY KEY (cohort, host));
CREATE TABLE IF NOT EXISTS muster_lists (name text PRIMARY KEY, value bytea NOT NULL);
CREATE TABLE IF NOT EXISTS muster_notices (id text PRIMARY KEY, value bytea NOT NULL);
`

// pgLock is the advisory lock of all that writes: any number that nobody else in this database uses.
const pgLock = 0x6d757374_6572 // "muster"

const pgTimeout = 15 * time.Second

// postgres is a database that several collectors share. It holds one connection, and makes another when that one is lost.
type postgres struct {
	config *pgx.ConnConfig
	label  string

	mu   sync.Mutex
	conn *pgx.Conn // nil: lost
}

func openPostgres(ctx context.Context, raw string) (*postgres, error) {
	config, err := pgx.ParseConfig(raw)
	if err != nil {
		return nil, fmt.Errorf("database: not a postgres:// URL that can be used: %w", err) // pgx takes the password out
	}
	if config.RuntimeParams["application_name"] == "" {
		config.RuntimeParams["application_name"] = "muster-collector"
	}
	if config.ConnectTimeout == 0 {
		config.ConnectTimeout = 5 * time.Second
	}
	p := &postgres{config: config, label: "postgres"}
	if u, err := url.Parse(raw); err == nil {
		u.User, u.RawQuery = nil, ""
		p.label = u.String()
	}
	err = p.with(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, "SELECT pg_advisory_xact_lock($1)", int64(pgLock)); err != nil {
				return err
			}
			if _, err := tx.Exec(ctx, pgSchema); err != nil {
				return err
			}
			if _, err := tx.Exec(ctx, "INSERT INTO muster_meta (name, value) VALUES ('version', $1) ON CONFLICT DO NOTHING", []byte(strconv.Itoa(schemaVersion))); err != nil {
				return err
			}
			var text []byte
			if err := tx.QueryRow(ctx, "SELECT value FROM muster_meta WHERE name = 'version'").Scan(&text); err != nil {
				return err
			}
			version, err := strconv.Atoi(string(text))
			if err != nil || version > schemaVersion {
				return fmt.Errorf("was written by a newer muster-collector (version %.20q, this one knows %d): upgrade this one, or give it another database", text, schemaVersion)
			}
			return nil
		})
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("database %s: %w", p.label, err), p.close())
	}
	return p, nil
}

// with calls do with a connection that works. It tries once more on a new one when the old one turned out to be lost before anything could have been done over it.
func (p *postgres) with(ctx context.Context, do func(ctx context.Context, conn *pgx.Conn) error) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, pgTimeout)
	defer cancel()
	for try := 0; ; try++ {
		if p.conn != nil && p.conn.IsClosed() {
			p.conn = nil
		}
		fresh := p.conn == nil
		if fresh {
			conn, err := pgx.ConnectConfig(ctx, p.config)
			if err != nil {
				return err
			}
			p.conn = conn
		}
		err := do(ctx, p.conn)
		var said *pgconn.PgError
		if err == nil || errors.As(err, &said) && !p.conn.IsClosed() {
			return err // the server's word: the connection is well
		}
		_ = p.conn.Close(ctx) // what is lost cannot be closed better
		p.conn = nil
		// All that is written is written whole or not at all, and may be written twice.
		if fresh || try > 0 || ctx.Err() != nil {
			return err
		}
	}
}

func (p *postgres) name() string { return p.label }

func (p *postgres) shared() bool { return true }

func (p *postgres) close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.conn == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	err := p.conn.Close(ctx)
	p.conn = nil
	return err
}

func (p *postgres) load(ctx context.Context, each func(hostRecord) error) (*remembered, error) {
	var m *remembered
	err := p.with(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		m = &remembered{seen: map[uint64]time.Time{}, digests: map[uint64]string{}, assigned: map[assignKey]time.Time{}, retired: map[hostKey]retirement{}, lists: map[string][]byte{}, notices: map[string][]byte{}}
		return pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
			var name, text string
			var value []byte
			var epoch int64
			var k hostKey
			err := pgRows(ctx, tx, "SELECT name, value FROM muster_meta", []any{&name, &value}, func() error { m.meta(name, value); return nil })
			if err != nil {
				return err
			}
			err = pgRows(ctx, tx, "SELECT epoch, at FROM muster_seen", []any{&epoch, &text}, func() error {
				if at, err := time.Parse(timeForm, text); err == nil {
					m.seen[uint64(epoch)] = at
				}
				return nil
			})
			if err != nil {
				return err
			}
			if err := pgRows(ctx, tx, "SELECT epoch, digest FROM muster_releases", []any{&epoch, &text}, func() error { m.digests[uint64(epoch)] = text; return nil }); err != nil {
				return err
			}
			err = pgRows(ctx, tx, "SELECT cohort, epoch, at FROM muster_assigned", []any{&name, &epoch, &text}, func() error {
				if at, err := time.Parse(timeForm, text); err == nil {
					m.assigned[assignKey{name, uint64(epoch)}] = at
				}
				return nil
			})
			if err != nil {
				return err
			}
			if err := pgRows(ctx, tx, "SELECT name, value FROM muster_lists", []any{&name, &value}, func() error { m.lists[name] = value; return nil }); err != nil {
				return err
			}
			if err := pgRows(ctx, tx, "SELECT id, value FROM muster_notices", []any{&name, &value}, func() error { m.notices[name] = value; return nil }); err != nil {
				return err
			}
			if err := pgRows(ctx, tx, pgRetired, []any{&k.cohort, &k.host, &text}, func() error { return retiredInto(m.retired, k, text) }); err != nil {
				return err
			}
			m.mark, err = pgHosts(ctx, tx, 0, each)
			return err
		})
	})
	return m, err
}

const pgRetired = "SELECT cohort, host, word FROM muster_retired"

func retiredInto(to map[hostKey]retirement, k hostKey, word string) error {
	var r retirement
	if json.Unmarshal([]byte(word), &r) == nil {
		to[k] = r
	}
	return nil
}

// pgRows scans every row of a query into to, and calls take for each. A []byte of to is a new one each time.
func pgRows(ctx context.Context, tx pgx.Tx, query string, to []any, take func() error, args ...any) error {
	rows, err := tx.Query(ctx, query, args...)
	if err != nil {
		return err
	}
	_, err = pgx.ForEachRow(rows, to, take)
	return err
}

// pgHosts gives the hosts written after a mark, and the mark of the last of them.
func pgHosts(ctx context.Context, tx pgx.Tx, after uint64, each func(hostRecord) error) (uint64, error) {
	var r hostRecord
	var state string
	var seq int64
	last := after
	err := pgRows(ctx, tx, "SELECT cohort, host, state, signed, received, seq FROM muster_hosts WHERE seq > $1 ORDER BY seq", []any{&r.cohort, &r.host, &state, &r.signed, &r.received, &seq}, func() error {
		r.state = []byte(state)
		last = uint64(seq)
		return each(r)
	}, int64(after))
	return last, err
}

func (p *postgres) since(ctx context.Context, mark uint64, each func(hostRecord) error) (*news, error) {
	n := &news{}
	err := p.with(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		n.retired = map[hostKey]retirement{}
		return pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) (err error) {
			var k hostKey
			var word string
			if err := pgRows(ctx, tx, pgRetired, []any{&k.cohort, &k.host, &word}, func() error { return retiredInto(n.retired, k, word) }); err != nil {
				return err
			}
			n.mark, err = pgHosts(ctx, tx, mark, each)
			return err
		})
	})
	return n, err
}

func (p *postgres) signed(ctx context.Context, k hostKey) (data []byte, err error) {
	err = p.with(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		err := conn.QueryRow(ctx, "SELECT signed FROM muster_hosts WHERE cohort = $1 AND host = $2", k.cohort, k.host).Scan(&data)
		if errors.Is(err, pgx.ErrNoRows) {
			return nil
		}
		return err
	})
	return data, err
}

func (p *postgres) forget(ctx context.Context, host string) (n int64, err error) {
	err = p.with(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		tag, err := conn.Exec(ctx, "DELETE FROM muster_hosts WHERE host = $1", host)
		n = tag.RowsAffected()
		return err
	})
	return n, err
}
