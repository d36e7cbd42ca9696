package collector

import (
	"context"
	"fmt"
	"log/slog"
	"net/url"
	"path/filepath"
	"strings"
	"time"
)

// storage keeps what a collector must not lose over a restart. What is saved is durable when save returns. Safe for concurrent use.
type storage interface {
	// load gives all that is remembered; each is called for every host.
	load(ctx context.Context, each func(hostRecord) error) (*remembered, error)
	// save writes a batch in one transaction: all of it or, with an error, nothing.
	save(ctx context.Context, b *batch) error
	// since gives the hosts that any collector saved after a mark that load or since gave, and the retirements that stand. A storage that one collector has for itself
	// has no news.
	since(ctx context.Context, mark uint64, each func(hostRecord) error) (*news, error)
	// signed is the envelope of a host's last signed report; nil if there is none.
	signed(ctx context.Context, k hostKey) ([]byte, error)
	// forget takes a host out of every cohort, and says out of how many.
	forget(ctx context.Context, host string) (int64, error)
	// shared says whether several collectors may have it.
	shared() bool
	// name is for messages: a path, or a URL without its password.
	name() string
	close() error
}

type hostKey struct{ cohort, host string }

type assignKey struct {
	cohort string
	epoch  uint64
}

// hostRecord is one host as it is stored. In a batch a nil signed means: the report is as before.
type hostRecord struct {
	hostKey
	state    []byte // a hostRow in JSON: order, times, flags
	signed   []byte // envelope of the last signed report
	received time.Time
}

// retirement is a person's word that a host is gone.
type retirement struct {
	By  string    `json:"by"`
	Why string    `json:"why"`
	At  time.Time `json:"at"`
}

// batch is what changed.
type batch struct {
	secret, trust []byte    // nil: as before
	alive         time.Time // zero: as before
	hosts         []hostRecord
	gone          []hostKey
	seen          map[uint64]time.Time
	digests       map[uint64]string
	assigned      map[assignKey]time.Time
	retired       map[hostKey]*retirement // nil: not any more
	lists         map[string][]byte       // last good list of a source
	notices       map[string][]byte       // letters by id; nil: not any more
}

// remembered is all but the hosts.
type remembered struct {
	secret, trust []byte
	alive         time.Time
	seen          map[uint64]time.Time
	digests       map[uint64]string
	assigned      map[assignKey]time.Time
	retired       map[hostKey]retirement
	lists         map[string][]byte
	notices       map[string][]byte
	mark          uint64
}

// news is what other collectors wrote.
type news struct {
	mark    uint64
	retired map[hostKey]retirement
}

// maxAssigned is how many assignments of a cohort are remembered.
const maxAssigned = 100

// openStorage opens what a database URL names.
func openStorage(ctx context.Context, raw string, log *slog.Logger, now time.Time) (storage, error) {
	if isPostgres(raw) {
		return openPostgres(ctx, raw)
	}
	path, err := sqlitePath(raw)
	if err != nil {
		return nil, err
	}
	return openSQLite(path, log, now)
}

func isPostgres(raw string) bool {
	return strings.HasPrefix(raw, "postgres://") || strings.HasPrefix(raw, "postgresql://")
}

const databaseForms = "use sqlite:///var/lib/muster-collector/state.db or postgres://user@host/database"

// checkDatabase checks a database URL without opening it.
func checkDatabase(raw string) error {
	if !isPostgres(raw) {
		_, err := sqlitePath(raw)
		return err
	}
	u, err := url.Parse(raw)
	if err != nil || strings.Trim(u.Path, "/") == "" {
		return fmt.Errorf("database: not a URL that names a database; %s", databaseForms) // never the URL itself: it may hold a password
	}
	return nil
}

// sqlitePath is the file of a database URL.
func sqlitePath(s string) (string, error) {
	path, ok := strings.CutPrefix(s, "sqlite://")
	if !ok || !filepath.IsAbs(path) || strings.ContainsAny(path, "?#\x00") {
		return "", fmt.Errorf("database: missing or not sqlite:///absolute/path; %s", databaseForms)
	}
	return filepath.Clean(path), nil
}

const timeForm = time.RFC3339Nano

func stamp(t time.Time) string { return t.UTC().Format(timeForm) }
