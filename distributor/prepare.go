package distributor

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/store"
	"github.com/muster-config/muster/distributor/wire"
)

// open reads, or makes, what a store needs before its first release: its identity and the keyring.
func (p *Publisher) open(ctx context.Context) (*session, error) {
	kr, err := manifest.VerifyKeyring(p.cfg.Keyring)
	if err != nil {
		return nil, fmt.Errorf("keyring given: %w", err)
	}
	if kr.Repo != p.cfg.Repo {
		return nil, fmt.Errorf("keyring given is for repo %q, and this is %q: %w", kr.Repo, p.cfg.Repo, manifest.ErrForeign)
	}
	s := &session{p, newReader(p.cfg.Store, p.cfg.Store.URL(), p.cfg.Log, p.now, &p.indexes)}
	if s.trust, err = manifest.NewTrust(p.cfg.Repo, p.cfg.Keyring); err != nil {
		return nil, fmt.Errorf("keyring given: %w", err)
	}
	if err := s.openKeyring(ctx, *kr); err != nil {
		return nil, err
	}
	if s.keyring, err = s.trust.Keys(); err != nil {
		return nil, fmt.Errorf("keyring: %w", err)
	}
	if err := s.keysFit(s.keyring); err != nil {
		return nil, err
	}
	if s.storeID, err = s.openStoreID(ctx); err != nil {
		return nil, err
	}
	s.trust.Store = s.storeID
	return s, nil
}

// now is the time in whole seconds: that is what people and logs compare.
func (p *Publisher) now() time.Time { return p.cfg.Now().UTC().Truncate(time.Second) }

// keysFit checks that the signers given have the roles that they are to sign in.
func (p *Publisher) keysFit(k manifest.Keyring) error {
	if !slices.ContainsFunc(k.Roles.Release, func(r manifest.ReleaseRole) bool { return r.Key == p.cfg.Release.KeyID() }) {
		return fmt.Errorf("release key %.12s… is not a release key of keyring %d: %w", p.cfg.Release.KeyID(), k.Version, manifest.ErrSignature)
	}
	if r := p.cfg.Rollout; r != nil && !slices.Contains(k.Roles.Rollout, r.KeyID()) {
		return fmt.Errorf("rollout key %.12s… is not a rollout key of keyring %d: %w", r.KeyID(), k.Version, manifest.ErrSignature)
	}
	return nil
}

// openKeyring puts the given keyring into an empty store, or checks that the store's begins with it, and follows the store's to the newest.
func (s *session) openKeyring(ctx context.Context, given manifest.Keyring) error {
	st, version := s.cfg.Store, given.Version
	key := manifest.KeyKeyring(version)
	versions, err := keyringVersions(ctx, st)
	if err != nil {
		return err
	}
	if len(versions) == 0 {
		if err := s.keysFit(given); err != nil { // an empty store must not get a keyring that goes with other keys
			return err
		}
		if err := s.neverUsed(ctx, key); err != nil {
			return err
		}
		// One conditional write commits a release: a store that ignores the condition is found out before the first object.
		if err := store.CheckCAS(ctx, st); err != nil {
			return fmt.Errorf("%w; nothing was published", err)
		}
		_, err := st.Create(ctx, key, s.cfg.Keyring)
		if err != nil && !errors.Is(err, store.ErrExists) {
			return fmt.Errorf("put the keyring into the empty store %s: %w", st.URL(), err)
		}
		if versions, err = keyringVersions(ctx, st); err != nil {
			return err
		}
	}
	if newest := versions[len(versions)-1]; newest < version {
		return fmt.Errorf("store %s has keyring %d, and the one given is %d: %w: give the store's own, or put %s there first", st.URL(), newest, version, manifest.ErrKeyring, key)
	}
	if !slices.Contains(versions, version) {
		return fmt.Errorf("store %s has no %s, only later ones: %w; check it with muster fsck", st.URL(), key, manifest.ErrKeyring)
	}
	for _, v := range versions[slices.Index(versions, version):] {
		key := manifest.KeyKeyring(v)
		obj, err := st.Get(ctx, key, manifest.MaxKeyringBytes)
		if err != nil {
			return fmt.Errorf("read keyring: %w", err)
		}
		if v == version {
			if !bytes.Equal(obj.Data, s.cfg.Keyring) {
				return fmt.Errorf("%s in store %s is another keyring than the one given: %w; these are keys of another store", key, st.URL(), manifest.ErrKeyring)
			}
			continue
		}
		if s.trust, err = s.trust.AcceptKeyring(obj.Data); err != nil {
			return fmt.Errorf("%s in store %s: %w", key, st.URL(), err)
		}
	}
	return nil
}

// openStoreID reads store.json, or creates it with a random id. Of many publishers one is first, and all use its id.
func (s *session) openStoreID(ctx context.Context) (string, error) {
	st := s.cfg.Store
	id, err := readStoreID(ctx, st)
	if !errors.Is(err, store.ErrNotFound) {
		return id, err
	}
	if err := s.neverUsed(ctx, manifest.KeyStore); err != nil {
		return "", err
	}
	var random [16]byte
	rand.Read(random[:]) // never fails
	data, err := wire.Encode(manifest.StoreID{V: manifest.Version, ID: hex.EncodeToString(random[:])})
	if err != nil {
		return "", fmt.Errorf("encode %s: %w", manifest.KeyStore, err)
	}
	if _, err := st.Create(ctx, manifest.KeyStore, data); err != nil && !errors.Is(err, store.ErrExists) {
		return "", fmt.Errorf("put the identity into the empty store %s: %w", st.URL(), err)
	}
	return readStoreID(ctx, st) // not ours if somebody was first
}

// neverUsed refuses to begin a store anew that has releases or heads already: what is missing was lost, and hosts have pinned it.
func (s *session) neverUsed(ctx context.Context, missing string) error {
	for _, prefix := range []string{manifest.PrefixReleases, manifest.PrefixCohorts, manifest.PrefixHistory} {
		infos, err := s.cfg.Store.List(ctx, prefix, "", 1)
		if err != nil {
			return fmt.Errorf("list %s: %w", prefix, err)
		}
		if len(infos) == 0 {
			continue
		}
		// Another publisher may have begun the store since we looked.
		if _, err := s.cfg.Store.Get(ctx, missing, manifest.MaxSmallBytes); err == nil {
			return nil
		} else if !errors.Is(err, store.ErrNotFound) {
			return fmt.Errorf("read %s: %w", missing, err)
		}
		return fmt.Errorf("%s is gone from store %s, which has %s: %w; nothing was written: restore it from a backup", missing, s.cfg.Store.URL(), infos[0].Key, ErrDamaged)
	}
	return nil
}
