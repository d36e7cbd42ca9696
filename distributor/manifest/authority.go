package manifest

import (
	"crypto/ed25519"
	"errors"
	"fmt"
	"path"
	"slices"
	"time"
)

// NewTrust starts from a bootstrap keyring (the file on the host): its signatures are checked against its own root keys. With repo "" it is any repo's.
func NewTrust(repo string, keyring []byte) (TrustState, error) {
	e, k, err := openKeyring(keyring)
	if err != nil {
		return TrustState{}, err
	}
	if repo != "" && k.Repo != repo {
		return TrustState{}, fmt.Errorf("keyring: %w: it is of repo %s, not %s", ErrForeign, k.Repo, repo)
	}
	return TrustState{Repo: k.Repo, Keyring: e}, nil
}

// VerifyKeyring verifies a keyring by itself (its own root threshold); for the one a person hands over.
func VerifyKeyring(data []byte) (*Keyring, error) {
	_, k, err := openKeyring(data)
	return k, err
}

func openKeyring(data []byte) (*Envelope, *Keyring, error) {
	e, err := parseEnvelope(KindKeyring, data, MaxKeyringBytes)
	if err != nil {
		return nil, nil, err
	}
	// A keyring says itself which keys sign it, so this one payload is decoded before its signatures are checked.
	k, err := DecodeKeyring(e.Payload)
	if err != nil {
		return nil, nil, err
	}
	if err := k.signedByRoots(e); err != nil {
		return nil, nil, err
	}
	return e, k, nil
}

// Keys gives the newest accepted keyring, decoded.
func (s TrustState) Keys() (Keyring, error) {
	if s.Keyring == nil {
		return Keyring{}, fmt.Errorf("%w: none was accepted yet", ErrKeyring)
	}
	return keyringOf(s.Keyring.Payload)
}

// AcceptKeyring takes keyring n+1, signed by n's root keys and by its own, or refuses with ErrKeyring. The same version again, equal bytes, is no change.
func (s TrustState) AcceptKeyring(data []byte) (TrustState, error) {
	old, err := s.Keys()
	if err != nil {
		return s, err
	}
	e, err := s.nextKeyring(&old, data)
	if err != nil {
		if !errors.Is(err, ErrKeyring) {
			err = fmt.Errorf("%w after version %d: %w", ErrKeyring, old.Version, err)
		}
		return s, err
	}
	s.Keyring = e
	return s, nil
}

func (s TrustState) nextKeyring(old *Keyring, data []byte) (*Envelope, error) {
	e, err := parseEnvelope(KindKeyring, data, MaxKeyringBytes)
	if err != nil {
		return nil, err
	}
	if err := old.signedByRoots(e); err != nil {
		return nil, err
	}
	if e.Digest() == s.Keyring.Digest() {
		return s.Keyring, nil
	}
	_, k, err := openKeyring(data)
	switch {
	case err != nil:
		return nil, err
	case k.Repo != old.Repo:
		return nil, fmt.Errorf("%w: it is of repo %s, not %s", ErrForeign, k.Repo, old.Repo)
	case k.Version == old.Version:
		return nil, fmt.Errorf("%w: version %d has two contents", ErrKeyring, k.Version)
	case k.Version != old.Version+1:
		return nil, fmt.Errorf("%w: version %d after %d", ErrKeyring, k.Version, old.Version)
	case k.Era < old.Era:
		return nil, fmt.Errorf("%w: era %d after %d", ErrKeyring, k.Era, old.Era)
	}
	return e, nil
}

// signedByRoots demands the root threshold of k on e.
func (k *Keyring) signedByRoots(e *Envelope) error {
	ids, err := e.VerifySignatures(KindKeyring, k.publics(k.Roles.Root.Keys))
	if err != nil {
		return err
	}
	if len(ids) < k.Roles.Root.Threshold {
		return fmt.Errorf("keyring: %w: %d of the %d root signatures that version %d demands", ErrSignature, len(ids), k.Roles.Root.Threshold, k.Version)
	}
	return nil
}

func (k *Keyring) publics(ids []string) map[string]ed25519.PublicKey {
	m := make(map[string]ed25519.PublicKey, len(ids))
	for _, id := range ids {
		if pub, ok := k.Keys[id]; ok {
			m[id] = pub.Public
		}
	}
	return m
}

// releaseKeys are the keys that may sign releases and statements of an epoch; of any epoch for 0.
func (k *Keyring) releaseKeys(epoch uint64) []string {
	var ids []string
	for _, r := range k.Roles.Release {
		if epoch == 0 || r.LastEpoch == 0 || epoch <= r.LastEpoch {
			ids = append(ids, r.Key)
		}
	}
	return ids
}

func (k *Keyring) operatorKeys() []string {
	var ids []string
	for _, r := range k.Roles.Operator {
		ids = append(ids, r.Key)
	}
	return ids
}

// operator gives the first of ids that may act on a cohort for so long.
func (k *Keyring) operator(ids []string, cohort string, ttl time.Duration) (string, error) {
	err := fmt.Errorf("%w: no operator key signed it", ErrSignature)
	for _, r := range k.Roles.Operator {
		if !slices.Contains(ids, r.Key) {
			continue
		}
		longest, bad := time.ParseDuration(r.MaxTTL)
		switch {
		case !r.actsOn(cohort):
			err = fmt.Errorf("%w: operator key %.12s… may not act on cohort %s", ErrSignature, r.Key, cohort)
		case bad != nil || ttl > longest:
			err = fmt.Errorf("%w: operator key %.12s… may act for %s at most, not for %s", ErrSignature, r.Key, r.MaxTTL, ttl)
		default:
			return r.Key, nil
		}
	}
	return "", err
}

func (r OperatorRole) actsOn(cohort string) bool {
	return slices.ContainsFunc(r.Cohorts, func(glob string) bool {
		ok, err := path.Match(glob, cohort)
		return ok && err == nil
	})
}
