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
	path, err := databasePath(cfg.Database)
	if err != nil {
		return 0, err
	}
	if _, err := os.Stat(path); err != nil {
		return 0, fmt.Errorf("database: %w", err) // opening would make a new one
	}
	db, err := tryDatabase(path, slog.New(slog.DiscardHandler))
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, db.close()) }()
	res, err := db.db.ExecContext(ctx, "DELETE FROM hosts WHERE host = ?", host)
	if err != nil {
		return 0, fmt.Errorf("database %s: %w", path, err)
	}
	return res.RowsAffected()
}
