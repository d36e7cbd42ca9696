package collector

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"time"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/report"
	"github.com/muster-config/muster/distributor/verdict"
	"github.com/muster-config/muster/distributor/wire"
)

// schemaVersion is PRAGMA user_version.
const schemaVersion = 1

// minPage is SQLite's page size, which the file keeps from its making.
const minPage = 4096

const schema = `
CREATE TABLE meta (name TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE hosts (
	cohort TEXT NOT NULL, host TEXT NOT NULL,
	state TEXT NOT NULL,   -- JSON: order, times, flags
	signed BLOB,           -- envelope of the last signed report
	PRIMARY KEY (cohort, host)
) WITHOUT ROWID;
CREATE TABLE seen (epoch INTEGER PRIMARY KEY, at TEXT NOT NULL);
CREATE TABLE assigned (cohort TEXT NOT NULL, epoch INTEGER NOT NULL, at TEXT NOT NULL, PRIMARY KEY (cohort, epoch)) WITHOUT ROWID;
PRAGMA user_version = 1;
`

// database is the SQLite file. One process has it at a time.
type database struct {
	db   *sql.DB
	path string
}

// hostRow is the state column.
type hostRow struct {
	Key        []byte    `json:"key"`
	Boots      []boot    `json:"boots"`
	Current    int       `json:"current"`
	Received   time.Time `json:"received"`
	SkewS      float64   `json:"skew_s"`
	SilentFrom time.Time `json:"silent_from,omitzero"`
	Conflict   time.Time `json:"conflict,omitzero"`
	Foreign    time.Time `json:"foreign,omitzero"`
	Listed     bool      `json:"listed,omitempty"`
}

// openDatabase opens the file, or makes it. A broken one is set aside under another name, with a message: what it held comes again with the next reports.
func openDatabase(path string, log *slog.Logger, now time.Time) (*database, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return nil, fmt.Errorf("database: %w", err)
	}
	d, err := tryDatabase(path, log)
	if err == nil || !broken(err) {
		return d, err
	}
	aside := path + ".broken-" + now.UTC().Format("20060102T150405Z")
	log.Error("database is broken; it is set aside and made anew, verdicts are right again when every host has reported", "path", path, "aside", aside, "err", err)
	for _, suffix := range []string{"", "-wal", "-shm"} {
		if err := os.Rename(path+suffix, aside+suffix); err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, fmt.Errorf("database: set the broken one aside: %w", err)
		}
	}
	return tryDatabase(path, log)
}

// broken tells a file that is no sound database from one that cannot be had.
func broken(err error) bool {
	var se *sqlite.Error
	if errors.As(err, &se) {
		switch se.Code() & 0xff {
		case sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB:
			return true
		}
		return false
	}
	return errors.Is(err, errUnsound)
}

var errUnsound = errors.New("is not sound")

func tryDatabase(path string, log *slog.Logger) (*database, error) {
	// Made here and not by SQLite, for its mode: it holds the secret of the heartbeats.
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("database: %w", err)
	}
	before, err := f.Seek(0, io.SeekEnd)
	f.Close()
	if err != nil {
		return nil, fmt.Errorf("database: %w", err)
	}
	// FULL: what is committed survives a power cut. EXCLUSIVE: a second collector on one file would undo the first one's work.
	q := url.Values{"_pragma": {"busy_timeout(1000)", "locking_mode(EXCLUSIVE)", "journal_mode(WAL)", "synchronous(FULL)", "journal_size_limit(16777216)"}}
	db, err := sql.Open("sqlite", (&url.URL{Scheme: "file", OmitHost: true, Path: path, RawQuery: q.Encode()}).String())
	if err != nil {
		return nil, fmt.Errorf("database %s: %w", path, err)
	}
	db.SetMaxOpenConns(1)
	d := &database{db, path}
	if err := d.prepare(before, log); err != nil {
		db.Close()
		var se *sqlite.Error
		if errors.As(err, &se) && se.Code()&0xff == sqlite3.SQLITE_BUSY {
			return nil, fmt.Errorf("database %s: another collector has it open: stop that one, or give this one a database of its own", path)
		}
		return nil, fmt.Errorf("database %s: %w", path, err)
	}
	return d, nil
}

// prepare checks the file, which had size bytes, and makes its tables if it has none.
func (d *database) prepare(size int64, log *slog.Logger) error {
	ctx := context.Background()
	var ok string
	if err := d.db.QueryRowContext(ctx, "PRAGMA quick_check(1)").Scan(&ok); err != nil {
		return err
	}
	if ok != "ok" {
		return fmt.Errorf("%w: %s", errUnsound, ok)
	}
	var version int
	if err := d.db.QueryRowContext(ctx, "PRAGMA user_version").Scan(&version); err != nil {
		return err
	}
	switch {
	case version > schemaVersion:
		return fmt.Errorf("was written by a newer muster-collector (version %d, this one knows %d): upgrade this one, or give it another database", version, schemaVersion)
	case version == schemaVersion:
		return nil
	case size%minPage != 0:
		// SQLite takes a file of less than a page for an empty one; it is the rest of another.
		return fmt.Errorf("%w: its %d bytes are no whole pages", errUnsound, size)
	}
	var tables int
	if err := d.db.QueryRowContext(ctx, "SELECT count(*) FROM sqlite_master").Scan(&tables); err != nil {
		return err
	}
	if tables > 0 {
		return errors.New("belongs to another program: give the collector a database of its own")
	}
	log.Info("database is new: hosts are known when they have reported", "path", d.path)
	tx, err := d.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	if _, err := tx.ExecContext(ctx, schema); err != nil {
		return err
	}
	return tx.Commit()
}

func (d *database) close() error { return d.db.Close() }

// dirt is what changed since the last flush. Under Collector.mu.
type dirt struct {
	hosts  map[hostKey]*manifest.Envelope // nil: the report is as before
	seen   map[uint64]time.Time
	assign map[assignKey]time.Time
	trust  bool
	secret bool
}

type hostKey struct{ cohort, host string }

type assignKey struct {
	cohort string
	epoch  uint64
}

func (d *dirt) clear() {
	*d = dirt{hosts: map[hostKey]*manifest.Envelope{}, seen: map[uint64]time.Time{}, assign: map[assignKey]time.Time{}}
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
	return len(d.hosts) == 0 && len(d.seen) == 0 && len(d.assign) == 0 && !d.trust && !d.secret
}

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
	if had, err := saved.Keys(); err != nil || had.Version < given.Version {
		saved.Keyring = c.trust.Keyring // a person brought a newer one
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
	return load("SELECT cohort, epoch, at FROM assigned", func(name string, epoch uint64, at time.Time) { c.cohortOf(name).assigned[epoch] = at })
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
	c.dirty.seen, c.dirty.assign = work.seen, work.assign
	maps.Copy(c.dirty.seen, newer.seen)
	maps.Copy(c.dirty.assign, newer.assign)
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
	for k, at := range work.assign {
		exec("INSERT INTO assigned (cohort, epoch, at) VALUES (?, ?, ?) ON CONFLICT (cohort, epoch) DO UPDATE SET at = excluded.at", k.cohort, k.epoch, at.UTC().Format(time.RFC3339Nano))
		exec("DELETE FROM assigned WHERE cohort = ? AND epoch NOT IN (SELECT epoch FROM assigned WHERE cohort = ? ORDER BY at DESC LIMIT 100)", k.cohort, k.cohort)
	}
	if err != nil {
		return err
	}
	full, err := tx.PrepareContext(ctx, "INSERT INTO hosts (cohort, host, state, signed) VALUES (?, ?, ?, ?) ON CONFLICT (cohort, host) DO UPDATE SET state = excluded.state, signed = excluded.signed")
	if err != nil {
		return err
	}
	defer full.Close()
	part, err := tx.PrepareContext(ctx, "UPDATE hosts SET state = ? WHERE cohort = ? AND host = ?")
	if err != nil {
		return err
	}
	defer part.Close()
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
