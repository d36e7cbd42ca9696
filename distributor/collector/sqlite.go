package collector

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"
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

// addition came later; a version that does not know it leaves it alone.
const addition = `
CREATE TABLE IF NOT EXISTS releases (epoch INTEGER PRIMARY KEY, digest TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS retired (cohort TEXT NOT NULL, host TEXT NOT NULL, word TEXT NOT NULL, PRIMARY KEY (cohort, host)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS lists (name TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS notices (id TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
`

// sqliteFile is the SQLite file. One process has it at a time.
type sqliteFile struct {
	db   *sql.DB
	path string
}

// openSQLite opens the file, or makes it. A broken one is set aside under another name, with a message: what it held comes again with the next reports.
func openSQLite(path string, log *slog.Logger, now time.Time) (*sqliteFile, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return nil, fmt.Errorf("database: %w", err)
	}
	d, err := trySQLite(path, log)
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
	return trySQLite(path, log)
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

func trySQLite(path string, log *slog.Logger) (*sqliteFile, error) {
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
	d := &sqliteFile{db, path}
	if err := d.prepare(before, log); err != nil {
		err = errors.Join(err, db.Close())
		var se *sqlite.Error
		if errors.As(err, &se) && se.Code()&0xff == sqlite3.SQLITE_BUSY {
			return nil, fmt.Errorf("database %s: another collector has it open: stop that one, or give this one a database of its own", path)
		}
		return nil, fmt.Errorf("database %s: %w", path, err)
	}
	return d, nil
}

// prepare checks the file, which had size bytes, and makes its tables if it has none.
func (d *sqliteFile) prepare(size int64, log *slog.Logger) error {
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
		_, err := d.db.ExecContext(ctx, addition)
		return err
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
	for _, part := range []string{schema, addition} {
		if _, err := tx.ExecContext(ctx, part); err != nil {
			return err
		}
	}
	return tx.Commit()
}

func (d *sqliteFile) close() error { return d.db.Close() }

func (d *sqliteFile) name() string { return d.path }

func (d *sqliteFile) shared() bool { return false }
