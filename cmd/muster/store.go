package main

import (
	"bytes"
	"context"
	"errors"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/muster-config/muster/cmd/internal/cli"
	"github.com/muster-config/muster/cmd/internal/keydir"
	"github.com/muster-config/muster/distributor"
	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/store"
	"github.com/muster-config/muster/distributor/store/open"
)

// reading is how a command that only reads finds its store, and the keyring to trust.
type reading struct{ storeURL, dir, keyring string }

func (r *reading) flags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&r.storeURL, "store", "", "the store's URL [MUSTER_STORE]")
	cmd.Flags().StringVar(&r.dir, "keys", "", "directory with the keyring.json to trust [MUSTER_KEYS]")
	cmd.Flags().StringVar(&r.keyring, "keyring", "", "the keyring to trust")
}

// open opens the store; keyring is nil if none was given. One that is not the store's is refused: nothing could be judged by it.
func (r *reading) open(ctx context.Context) (st store.ReadStore, keyring []byte, err error) {
	at, err := envOr("store", r.storeURL, "MUSTER_STORE")
	if err != nil {
		return nil, nil, err
	}
	dir, path := r.dir, r.keyring
	if dir != "" && path != "" {
		return nil, nil, cli.Fail(cli.Usage, "", "--keys and --keyring exclude each other")
	}
	if dir == "" && path == "" {
		dir = os.Getenv("MUSTER_KEYS")
	}
	if path == "" && dir != "" {
		path = filepath.Join(dir, keydir.Keyring)
	}
	if path != "" {
		if keyring, _, err = keydir.ReadKeyring(path); err != nil {
			return nil, nil, err
		}
	}
	if st, err = open.OpenRead(ctx, at); err != nil {
		return nil, nil, cli.Fail(codeOr(err, cli.Usage), storeHint(at), "%w", err)
	}
	return st, keyring, sameKeyring(ctx, st, keyring, st.URL())
}

// storeHint is how a path is written as a store, "" for what looks like a URL.
func storeHint(given string) string {
	if given == "" || strings.Contains(given, "://") {
		return ""
	}
	abs, err := filepath.Abs(given)
	if err != nil {
		return ""
	}
	u := url.URL{Scheme: "file", Path: filepath.ToSlash(abs)}
	return "a directory is given as " + u.String()
}

// history opens the store to look back.
func (r *reading) history(ctx context.Context) (*distributor.History, error) {
	st, keyring, err := r.open(ctx)
	if err != nil {
		return nil, err
	}
	h, err := distributor.OpenHistory(ctx, st, keyring, time.Now())
	if errors.Is(err, store.ErrNotFound) {
		return nil, noStoreAt(st.URL(), err)
	}
	return h, err
}

func noStoreAt(url string, err error) error {
	return cli.Fail(cli.Unreachable, "check the address given with --store", "there is no store at %s: %w", url, err)
}

// sameKeyring refuses a keyring that is not the store's: nothing in the store could be judged by it, and everything would look foreign.
func sameKeyring(ctx context.Context, st store.Reader, given []byte, url string) error {
	if given == nil {
		return nil
	}
	k, err := manifest.VerifyKeyring(given)
	if err != nil {
		return err
	}
	key := manifest.KeyKeyring(k.Version)
	obj, err := st.Get(ctx, key, manifest.MaxKeyringBytes)
	if errors.Is(err, store.ErrNotFound) || errors.Is(err, store.ErrTooLarge) {
		return nil // the check itself says so
	}
	if err != nil {
		return err
	}
	if !bytes.Equal(obj.Data, given) {
		return cli.Fail(cli.NotTrusted, "give the keyring of this store; if this is it, find out who replaced the store's before anything else",
			"%s in store %s is another keyring than the one given; nothing else was checked", key, url)
	}
	return nil
}

// trusted says by which keyring something was believed.
func trusted(keyring string) string {
	if keyring == "given" {
		return "the keyring given"
	}
	return "the store's own keyring, since none was given: this proves that the store agrees with itself, not whose it is"
}
