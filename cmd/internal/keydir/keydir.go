// Package keydir is the directory that `muster keys init` makes: four keys and the keyring that names them.
package keydir

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/muster-config/muster/cmd/internal/cli"
	"github.com/muster-config/muster/distributor/keys"
	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/wire"
)

// The files of a key directory. The root key is to be taken off the machine; nothing but keyrings is signed with it.
const (
	Root     = "root/root.key"
	Release  = "release.key"
	Rollout  = "rollout.key"
	Operator = "operator.key"
	Keyring  = "keyring.json"
)

// Create makes dir, which must be new or empty, with four new keys (0600) and the keyring (0644) of the config repo named repo. It is whole
// or not there.
func Create(dir, repo string, now time.Time) error {
	if !manifest.ValidRepo(repo) {
		return cli.Fail(cli.Usage, "letters, digits, '.', '_' and '-', with '/' between parts, as in acme/config; at most 200 bytes", "%q is not a name of a repo", repo)
	}
	given := dir
	dir, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	if entries, err := os.ReadDir(dir); err == nil && len(entries) > 0 {
		return cli.Fail(cli.Usage, "keys are never overwritten; give a new or an empty directory", "%s is not empty", given)
	} else if errors.Is(err, syscall.ENOTDIR) {
		return cli.Fail(cli.Usage, "give a new or an empty directory", "%s is not a directory", given)
	} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return err
	}
	tmp, err := os.MkdirTemp(filepath.Dir(dir), "."+filepath.Base(dir)+"-*") // 0700
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp) // after the rename there is nothing
	if err := os.Mkdir(filepath.Join(tmp, "root"), 0o700); err != nil {
		return err
	}
	var set keys.Set
	for _, k := range []struct {
		name string
		into *manifest.Signer
	}{{Root, &set.Root}, {Release, &set.Release}, {Rollout, &set.Rollout}, {Operator, &set.Operator}} {
		key, err := keys.Generate()
		if err != nil {
			return err
		}
		if err := key.WriteFile(filepath.Join(tmp, k.name)); err != nil {
			return err
		}
		*k.into = key
	}
	envelope, err := set.Keyring(repo, now.Truncate(time.Second))
	if err != nil {
		return err
	}
	data, err := wire.Encode(envelope)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(tmp, Keyring), append(data, '\n'), 0o644); err != nil {
		return err
	}
	if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.Rename(tmp, dir)
}

// ReadKeyring reads the keyring that a person trusts, and the name of the repo in it.
func ReadKeyring(path string) (data []byte, repo string, err error) {
	data, err = os.ReadFile(path)
	if errors.Is(err, syscall.ENOTDIR) {
		return nil, "", cli.Fail(cli.Usage, "--keys is the directory that `muster keys init` made; a keyring by itself goes with --keyring", "%s is not a directory", filepath.Dir(path))
	}
	if err != nil {
		return nil, "", cli.Fail(cli.Local, "`muster keys init DIR --repo NAME` makes a keyring and its keys", "keyring: %w", err)
	}
	k, err := manifest.VerifyKeyring(data)
	if err != nil {
		return nil, "", cli.Fail(cli.NotTrusted, "take the keyring anew from whoever keeps the root key", "keyring %s: %w", path, err)
	}
	return data, k.Repo, nil
}
