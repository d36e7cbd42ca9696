package manifest

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"time"
)

// maxKeptOverrides bounds the envelopes that a state keeps for a cohort.
const maxKeptOverrides = 2 * MaxOverrides

// overrides verifies those of the head, adds those accepted earlier that the head leaves out, and returns what is to be kept: an override lives until not_after or its
// signed end, so whoever owns the bucket cannot strip it. All envelopes of an id are kept as long as one of them could live: the end too, or an older head would
// bring back what was ended.
func (v *View) overrides(k *Keyring, known *contents, earlier []Envelope, now time.Time) ([]Envelope, error) {
	type entry struct {
		Envelope
		id string
	}
	var all []entry
	seen, until := map[string]bool{}, map[string]time.Time{}
	add := func(e Envelope) error {
		digest := e.Digest()
		if seen[digest] {
			return nil
		}
		o, err := verifyOverride(k, &e)
		if err != nil {
			return err
		}
		m := &v.Manifest
		if err := ours("override "+o.ID, origin{o.Store, o.Repo, o.Cohort}, origin{m.Store, m.Repo, m.Cohort}); err != nil {
			return err
		}
		if o.First != nil {
			if err := known.add(o.First); err != nil {
				return err
			}
		}
		seen[digest] = true
		v.Overrides = append(v.Overrides, *o)
		all = append(all, entry{e, o.ID})
		if o.NotAfter.After(until[o.ID]) {
			until[o.ID] = o.NotAfter
		}
		return nil
	}
	for i, e := range v.Head.Overrides {
		if err := add(e); err != nil {
			return nil, fmt.Errorf("overrides[%d]: %w", i, err)
		}
	}
	for _, e := range earlier {
		// One that was accepted and is no longer good ends here: its key was withdrawn, or lost the cohort.
		_ = add(e)
	}
	kept := []Envelope{}
	for i, e := range all {
		if now.Before(until[e.id]) && !v.contained(i) {
			kept = append(kept, e.Envelope)
		}
	}
	if len(kept) > maxKeptOverrides {
		return nil, fmt.Errorf("%w head: more than %d living overrides", ErrMalformed, maxKeptOverrides)
	}
	return kept, nil
}

// contained reports whether all that an override says another one of its id says too: one that goes to a host first and then to more leaves an envelope at each step.
func (v *View) contained(i int) bool {
	o := &v.Overrides[i]
	for j := range v.Overrides {
		w := &v.Overrides[j]
		if j == i || w.ID != o.ID || w.Epoch != o.Epoch || o.Ended != nil || w.Ended != nil || w.Created.After(o.Created) || w.NotAfter.Before(o.NotAfter) {
			continue
		}
		missing := func(h string) bool { return !slices.Contains(w.Hosts, h) }
		if len(w.Hosts) > 0 && (len(o.Hosts) == 0 || slices.ContainsFunc(o.Hosts, missing)) {
			continue
		}
		// Of two that say the same the first one stays.
		if len(w.Hosts) != len(o.Hosts) || !w.Created.Equal(o.Created) || !w.NotAfter.Equal(o.NotAfter) || j < i {
			return true
		}
	}
	return false
}

// readOverride checks an override's signature by an operator key, that key's cohorts and its longest TTL, and its statement, which the same key signed.
// An end has no TTL of its own: whoever may act on the cohort may end.
func readOverride(k *Keyring, e *Envelope) (*VerifiedOverride, error) {
	ids, err := e.VerifySignatures(KindOverride, k.publics(k.operatorKeys()))
	if err != nil {
		return nil, err
	}
	o, err := DecodeOverride(e.Payload)
	if err != nil {
		return nil, err
	}
	var ttl time.Duration
	if o.Ended == nil {
		ttl = o.NotAfter.Sub(o.Created)
	}
	id, err := k.operator(ids, o.Cohort, ttl)
	if err != nil {
		return nil, fmt.Errorf("override %s: %w", o.ID, err)
	}
	v := &VerifiedOverride{Override: *o, KeyID: id}
	if o.Statement == nil {
		return v, nil
	}
	st, by, err := statementBy(k.publics(k.operatorKeys()), o.Statement)
	switch {
	case err != nil:
	case !slices.Contains(by, id):
		err = fmt.Errorf("%w: its statement is signed by another key than %.12s…", ErrSignature, id)
	case st.Override != o.ID || st.Epoch != o.Epoch || st.Cohort != o.Cohort || st.Store != o.Store || st.Repo != o.Repo:
		err = fmt.Errorf("%w: its statement is of another override, epoch, cohort, store or repo", ErrMalformed)
	}
	if err != nil {
		return nil, fmt.Errorf("override %s: %w", o.ID, err)
	}
	v.First = st
	return v, nil
}

// published is what a release says of the commit, of who stands behind it, and of how it is rolled out.
func published(rel *Release) Release {
	r := *rel
	r.V, r.Epoch, r.Prev, r.Kind, r.Created, r.Cohorts, r.OverrideID, r.NotAfter, r.Ext = 0, 0, "", "", time.Time{}, nil, "", nil, nil
	return r
}

// OnlyOverrides refuses a release of kind override that says something else than the genuine one before it, its overridden statements apart: an operator key is for these, and not
// for what is published or how it is rolled out. digest is that of before's payload; before is nil if there is none. Releases of other kinds pass.
func OnlyOverrides(rel, before *Release, digest string) error {
	switch {
	case rel.Kind != ReleaseOverride:
		return nil
	case before == nil:
		return fmt.Errorf("%w: release %d is an override, and nothing was released before it", ErrMalformed, rel.Epoch)
	case rel.Prev != digest || !reflect.DeepEqual(published(rel), published(before)) ||
		!slices.Equal(slices.Sorted(maps.Keys(rel.Cohorts)), slices.Sorted(maps.Keys(before.Cohorts))):
		return fmt.Errorf("%w: release %d is an override, and changes more than an override may", ErrMalformed, rel.Epoch)
	}
	for name, part := range rel.Cohorts {
		if was := before.Cohorts[name]; part.Epoch != was.Epoch || (part.State == StateBlocked) != (was.State == StateBlocked) {
			return fmt.Errorf("%w: release %d is an override, and says that epoch %d stands for cohort %s, not %d", ErrMalformed, rel.Epoch, part.Epoch, name, was.Epoch)
		}
	}
	return nil
}
