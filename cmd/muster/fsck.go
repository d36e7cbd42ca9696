package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/muster-config/muster/cmd/internal/cli"
	"github.com/muster-config/muster/cmd/internal/keydir"
	"github.com/muster-config/muster/distributor"
	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/store"
	"github.com/muster-config/muster/distributor/store/open"
)

func (a *app) fsckCmd() *cobra.Command {
	var storeURL, dir, keyringPath string
	cmd := &cobra.Command{
		Use:   "fsck",
		Short: "check every object, signature and reference in a store",
		Long: `Reads every object of a store and checks signatures, digests, the chain of
releases and all references. It writes nothing. The keyring of --keys or
--keyring is trusted; without one, the store's own, and the output says so.

Exit codes: 0 no fault; 1 faults; 4 the keyring given is not this store's; 5 there
is no store at the address, or it does not answer.`,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			url, err := envOr("store", storeURL, "MUSTER_STORE")
			if err != nil {
				return err
			}
			if dir != "" && keyringPath != "" {
				return cli.Fail(cli.Usage, "", "--keys and --keyring exclude each other")
			}
			if dir == "" && keyringPath == "" {
				dir = os.Getenv("MUSTER_KEYS")
			}
			if keyringPath == "" && dir != "" {
				keyringPath = filepath.Join(dir, keydir.Keyring)
			}
			var keyring []byte
			if keyringPath != "" {
				if keyring, _, err = keydir.ReadKeyring(keyringPath); err != nil {
					return err
				}
			}
			st, err := open.OpenRead(cmd.Context(), url)
			if err != nil {
				return cli.Fail(codeOr(err, cli.Usage), "", "%w", err)
			}
			if err := sameKeyring(cmd.Context(), st, keyring, st.URL()); err != nil {
				return err
			}
			r, err := distributor.Fsck(cmd.Context(), st, keyring, time.Now())
			if errors.Is(err, store.ErrNotFound) {
				return cli.Fail(cli.Unreachable, "check the address given with --store", "there is no store at %s: %w", st.URL(), err)
			}
			if err != nil {
				return err
			}
			if a.json {
				if err := cli.PrintJSON(a.out, r); err != nil {
					return err
				}
			} else {
				a.printFsck(r)
			}
			if !r.OK() {
				return cli.Fail(cli.No, "each line says what to do next", "the store has %s", cli.Count(len(r.Problems), "fault"))
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&storeURL, "store", "", "the store's URL [MUSTER_STORE]")
	cmd.Flags().StringVar(&dir, "keys", "", "directory with the keyring.json to trust [MUSTER_KEYS]")
	cmd.Flags().StringVar(&keyringPath, "keyring", "", "the keyring to trust")
	return cmd
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

func (a *app) printFsck(r *distributor.Report) {
	for _, p := range r.Problems {
		fmt.Fprintf(a.out, "fault:  %s\n", cli.Printable(p.String()))
	}
	for _, p := range r.Notices {
		fmt.Fprintf(a.out, "notice: %s\n", cli.Printable(p.String()))
	}
	trusted := "the keyring given"
	if r.Keyring != "given" {
		trusted = "the store's own keyring, since none was given: this proves that the store agrees with itself, not whose it is"
	}
	c := r.Checked
	fmt.Fprintf(a.out, "store %s of repo %s, newest release %d\n", r.Store, r.Repo, r.Newest)
	fmt.Fprintf(a.out, "checked %s, %s, %s, %s, %s, %s\n", cli.Count(c.Releases, "release"), cli.Count(c.Statements, "statement"),
		cli.Count(c.Bundles, "bundle"), cli.Count(c.Sources, "source tree"), cli.Count(c.Heads, "head"), cli.Count(c.Keyrings, "keyring"))
	fmt.Fprintf(a.out, "trusted: %s\n", trusted)
	if r.OK() {
		fmt.Fprintln(a.out, "no fault")
	}
}
