package collector

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
)

// Forget takes a host out of the database of a collector that does not run: the next identity key that speaks as it is its own. It gives the number of cohorts
// that the host was known in.
func Forget(ctx context.Context, cfg Config, host string) (n int64, err error) {
	if !isPostgres(cfg.Database) {
		path, err := sqlitePath(cfg.Database)
		if err != nil {
			return 0, err
		}
		if _, err := os.Stat(path); err != nil {
			return 0, fmt.Errorf("database: %w", err) // opening would make a new one
		}
	}
	db, err := openForget(ctx, cfg.Database)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, db.close()) }()
	if n, err = db.forget(ctx, host); err != nil {
		return 0, fmt.Errorf("database %s: %w", db.name(), err)
	}
	return n, nil
}

// openForget opens a database without setting a broken one aside: this is no collector.
func openForget(ctx context.Context, raw string) (storage, error) {
	if isPostgres(raw) {
		return openPostgres(ctx, raw)
	}
	path, err := sqlitePath(raw)
	if err != nil {
		return nil, err
	}
	return trySQLite(path, slog.New(slog.DiscardHandler))
}
