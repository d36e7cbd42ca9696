package collector

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"time"
)

// rows calls take for each row of a query. There is one connection: the rows end before the next question.
func (d *sqliteFile) rows(ctx context.Context, query string, take func(scan func(...any) error) error) error {
	rows, err := d.db.QueryContext(ctx, query)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := take(rows.Scan); err != nil {
			return err
		}
	}
	return rows.Err()
}

func (d *sqliteFile) load(ctx context.Context, each func(hostRecord) error) (*remembered, error) {
	m := &remembered{seen: map[uint64]time.Time{}, digests: map[uint64]string{}, assigned: map[assignKey]time.Time{}, retired: map[hostKey]retirement{}, lists: map[string][]byte{}, notices: map[string][]byte{}}
	err := errors.Join(
		d.rows(ctx, "SELECT name, value FROM meta", func(scan func(...any) error) error {
			var name string
			var value []byte
			if err := scan(&name, &value); err != nil {
				return err
			}
			m.meta(name, value)
			return nil
		}),
		d.rows(ctx, "SELECT cohort, host, state, signed FROM hosts", func(scan func(...any) error) error {
			var r hostRecord
			if err := scan(&r.cohort, &r.host, &r.state, &r.signed); err != nil {
				return err
			}
			return each(r)
		}),
		d.rows(ctx, "SELECT epoch, at FROM seen", func(scan func(...any) error) error {
			var epoch uint64
			var at string
			if err := scan(&epoch, &at); err != nil {
				return err
			}
			if t, err := time.Parse(timeForm, at); err == nil {
				m.seen[epoch] = t
			}
			return nil
		}),
		d.rows(ctx, "SELECT epoch, digest FROM releases", func(scan func(...any) error) error {
			var epoch uint64
			var digest string
			err := scan(&epoch, &digest)
			m.digests[epoch] = digest
			return err
		}),
		d.rows(ctx, "SELECT cohort, epoch, at FROM assigned", func(scan func(...any) error) error {
			var k assignKey
			var at string
			if err := scan(&k.cohort, &k.epoch, &at); err != nil {
				return err
			}
			if t, err := time.Parse(timeForm, at); err == nil {
				m.assigned[k] = t
			}
			return nil
		}),
		d.rows(ctx, "SELECT cohort, host, word FROM retired", func(scan func(...any) error) error {
			var k hostKey
			var word []byte
			if err := scan(&k.cohort, &k.host, &word); err != nil {
				return err
			}
			var r retirement
			if json.Unmarshal(word, &r) == nil {
				m.retired[k] = r
			}
			return nil
		}),
		d.rows(ctx, "SELECT name, value FROM lists", func(scan func(...any) error) error {
			var name string
			var value []byte
			err := scan(&name, &value)
			m.lists[name] = value
			return err
		}),
		d.rows(ctx, "SELECT id, value FROM notices", func(scan func(...any) error) error {
			var id string
			var value []byte
			err := scan(&id, &value)
			m.notices[id] = value
			return err
		}),
	)
	return m, err
}

func (m *remembered) meta(name string, value []byte) {
	switch name {
	case "secret":
		m.secret = value
	case "trust":
		m.trust = value
	case "alive":
		m.alive, _ = time.Parse(timeForm, string(value)) // none: nobody knows how long nobody listened
	}
}

func (d *sqliteFile) save(ctx context.Context, b *batch) error {
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
	if b.secret != nil {
		exec(setMeta, "secret", b.secret)
	}
	if b.trust != nil {
		exec(setMeta, "trust", b.trust)
	}
	if !b.alive.IsZero() {
		exec(setMeta, "alive", []byte(stamp(b.alive)))
	}
	for epoch, at := range b.seen {
		exec("INSERT INTO seen (epoch, at) VALUES (?, ?) ON CONFLICT (epoch) DO NOTHING", epoch, stamp(at))
	}
	if len(b.seen) > 0 {
		exec("DELETE FROM seen WHERE epoch <= (SELECT max(epoch) FROM seen) - ?", maxReleases)
	}
	for epoch, digest := range b.digests {
		exec("INSERT INTO releases (epoch, digest) VALUES (?, ?) ON CONFLICT (epoch) DO NOTHING", epoch, digest)
	}
	if len(b.digests) > 0 {
		exec("DELETE FROM releases WHERE epoch <= (SELECT max(epoch) FROM releases) - ?", maxReleases)
	}
	trim := map[string]bool{}
	for k, at := range b.assigned {
		exec("INSERT INTO assigned (cohort, epoch, at) VALUES (?, ?, ?) ON CONFLICT (cohort, epoch) DO UPDATE SET at = excluded.at", k.cohort, k.epoch, stamp(at))
		trim[k.cohort] = true
	}
	for name := range trim {
		exec("DELETE FROM assigned WHERE cohort = ? AND epoch NOT IN (SELECT epoch FROM assigned WHERE cohort = ? ORDER BY at DESC LIMIT ?)", name, name, maxAssigned)
	}
	for k, r := range b.retired {
		if r == nil {
			exec("DELETE FROM retired WHERE cohort = ? AND host = ?", k.cohort, k.host)
			continue
		}
		word, encErr := json.Marshal(r)
		if encErr != nil {
			return encErr
		}
		exec("INSERT INTO retired (cohort, host, word) VALUES (?, ?, ?) ON CONFLICT (cohort, host) DO UPDATE SET word = excluded.word", k.cohort, k.host, word)
	}
	for name, value := range b.lists {
		exec("INSERT INTO lists (name, value) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value", name, value)
	}
	for id, value := range b.notices {
		if value == nil {
			exec("DELETE FROM notices WHERE id = ?", id)
			continue
		}
		exec("INSERT INTO notices (id, value) VALUES (?, ?) ON CONFLICT (id) DO UPDATE SET value = excluded.value", id, value)
	}
	for _, k := range b.gone {
		exec("DELETE FROM hosts WHERE cohort = ? AND host = ?", k.cohort, k.host)
	}
	if err != nil {
		return err
	}
	if err := saveHosts(ctx, tx, b.hosts); err != nil {
		return err
	}
	return tx.Commit()
}

func saveHosts(ctx context.Context, tx *sql.Tx, hosts []hostRecord) error {
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
	for _, r := range hosts {
		if r.signed != nil {
			_, err = full.ExecContext(ctx, r.cohort, r.host, r.state, r.signed)
		} else {
			_, err = part.ExecContext(ctx, r.state, r.cohort, r.host)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// since: nobody else writes this file.
func (d *sqliteFile) since(context.Context, uint64, func(hostRecord) error) (*news, error) {
	return &news{}, nil
}

func (d *sqliteFile) signed(ctx context.Context, k hostKey) ([]byte, error) {
	var data []byte
	err := d.db.QueryRowContext(ctx, "SELECT signed FROM hosts WHERE cohort = ? AND host = ?", k.cohort, k.host).Scan(&data)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil
	}
	return data, err
}

func (d *sqliteFile) forget(ctx context.Context, host string) (int64, error) {
	res, err := d.db.ExecContext(ctx, "DELETE FROM hosts WHERE host = ?", host)
	if err != nil {
		return 0, err
	}
	return res.RowsAffected()
}
