package manifest

import (
	"crypto/ed25519"
	"fmt"
	"maps"
	"slices"
	"time"
)

// VerifyRelease verifies one release envelope against a keyring: signature by a release key that is good for its epoch (or an operator key
// for kind override), every embedded statement, and that cohort entries agree with them. Limits are checked before decoding. It returns the payload's digest.
func VerifyRelease(k Keyring, data []byte) (*Release, string, error) {
	e, err := parseEnvelope(KindRelease, data, MaxReleaseBytes)
	if err != nil {
		return nil, "", err
	}
	ids, err := e.VerifySignatures(KindRelease, k.publics(append(k.releaseKeys(0), k.operatorKeys()...)))
	if err != nil {
		return nil, "", err
	}
	r, err := DecodeRelease(e.Payload)
	if err != nil {
		return nil, "", err
	}
	if err := verifyRelease(&k, r, ids); err != nil {
		return nil, "", fmt.Errorf("release %d: %w", r.Epoch, err)
	}
	return r, e.Digest(), nil
}

func verifyRelease(k *Keyring, r *Release, ids []string) error {
	if r.Repo != k.Repo {
		return fmt.Errorf("%w: it is of repo %s, not %s", ErrForeign, r.Repo, k.Repo)
	}
	may := k.releaseKeys(r.Epoch)
	if r.Kind == ReleaseOverride {
		may = k.operatorKeys()
	}
	if !common(ids, may) {
		return fmt.Errorf("%w: a key that signed it may not sign releases of kind %s, or not of this epoch", ErrSignature, r.Kind)
	}
	for _, name := range slices.Sorted(maps.Keys(r.Cohorts)) {
		part := r.Cohorts[name]
		if r.Kind == ReleaseOverride {
			if part.State == StateBuilt {
				return fmt.Errorf("cohort %s: %w: an override holds every plain statement", name, ErrMalformed)
			}
			if len(part.Overridden) > 0 {
				if _, err := k.operator(ids, name, r.NotAfter.Sub(r.Created)); err != nil {
					return fmt.Errorf("cohort %s: %w", name, err)
				}
			}
		}
		if err := verifyPart(k, r, name, &part); err != nil {
			return fmt.Errorf("cohort %s: %w", name, err)
		}
	}
	return nil
}

// verifyPart verifies the statements of one cohort, and that they are this release's.
func verifyPart(k *Keyring, r *Release, name string, part *ReleaseCohort) error {
	agrees := func(st *VerifiedStatement) error {
		if err := ours("statement", origin{st.Store, st.Repo, st.Cohort}, origin{r.Store, r.Repo, name}); err != nil {
			return err
		}
		switch {
		case st.Epoch == r.Epoch && st.Commit == r.Commit:
		case st.Override != "" && st.Epoch < r.Epoch:
			// Carried along: a release that leaves the cohort as it is leaves its overrides as they are.
		case st.Override != "" && st.Epoch == r.Epoch && r.Kind == ReleaseOverride:
			// An override is laid over what its cohort runs, which may be an older commit than the newest one.
		default:
			return fmt.Errorf("%w: its statement is of another epoch or commit", ErrMalformed)
		}
		return nil
	}
	if part.Statement != nil {
		st, err := VerifyStatement(*k, part.Statement)
		if err == nil {
			err = agrees(st)
		}
		if err != nil {
			return err
		}
	}
	seen := map[string]bool{}
	for i := range part.Overridden {
		st, err := verifyAnyStatement(k, &part.Overridden[i])
		if err == nil {
			err = agrees(st)
		}
		if err == nil && (st.Override == "" || seen[st.Override]) {
			err = fmt.Errorf("%w: it names no override, or one that another names", ErrMalformed)
		}
		if err != nil {
			return fmt.Errorf("overridden[%d]: %w", i, err)
		}
		seen[st.Override] = true
	}
	return nil
}

// VerifyStatement verifies one plain statement's envelope: a release key that is good for its epoch.
func VerifyStatement(k Keyring, e *Envelope) (*VerifiedStatement, error) {
	st, err := verifyAnyStatement(&k, e)
	if err != nil {
		return nil, err
	}
	if st.Override != "" {
		return nil, fmt.Errorf("%w statement: it is the one of override %s", ErrMalformed, st.Override)
	}
	return st, nil
}

// verifyAnyStatement verifies a statement by the keys of its kind: a plain one by release keys. An overridden one, which every release carries while its override
// lives, is built by the publisher or by the operator: a release key, or an operator key that may act on its cohort. It takes effect only under its override, which an
// operator signed, and only in an epoch that the waves assign.
func verifyAnyStatement(k *Keyring, e *Envelope) (*VerifiedStatement, error) {
	st, ids, err := statementBy(k.publics(append(k.releaseKeys(0), k.operatorKeys()...)), e)
	if err != nil {
		return nil, err
	}
	may := k.releaseKeys(st.Epoch)
	if st.Override != "" {
		for _, r := range k.Roles.Operator {
			if r.actsOn(st.Cohort) {
				may = append(may, r.Key)
			}
		}
	}
	if !common(ids, may) {
		return nil, fmt.Errorf("statement of cohort %s, epoch %d: %w: the key that signed it may not sign this one", st.Cohort, st.Epoch, ErrSignature)
	}
	return st, nil
}

// statementBy verifies with exactly the given keys, and says which of them signed.
func statementBy(keys map[string]ed25519.PublicKey, e *Envelope) (*VerifiedStatement, []string, error) {
	ids, err := e.VerifySignatures(KindStatement, keys)
	if err != nil {
		return nil, nil, err
	}
	st, err := DecodeStatement(e.Payload)
	if err != nil {
		return nil, nil, err
	}
	return &VerifiedStatement{Statement: *st, Digest: e.Digest()}, ids, nil
}

func common(a, b []string) bool {
	return slices.ContainsFunc(a, func(s string) bool { return slices.Contains(b, s) })
}

// skew is how far the clock of a host may be behind the one that dated an override.
const skew = 15 * time.Minute

// inForce reports whether an override acts at a time. Before it was created it does not: the longest TTL counts from there, and an override dated years ahead would
// otherwise act for years.
func (o *VerifiedOverride) inForce(now time.Time) bool {
	return o.First != nil && now.Before(o.NotAfter) && !now.Before(o.Created.Add(-skew))
}
