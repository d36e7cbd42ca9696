package distributor

import (
	"context"
	"fmt"
	"time"

	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/parcel"
	"github.com/muster-config/muster/distributor/rollout"
	"github.com/muster-config/muster/distributor/store/mem"
	"github.com/muster-config/muster/distributor/wire"
)

// firstApart is the lowest epoch of overrides that are made apart from their store, which gives its epochs out from 1: none of theirs is ever one of the store's, so that nothing that a
// process states can mean two things. Above it they are in the order of time.
const firstApart = parcel.FirstApart

// MadeApart reports whether an epoch is one of an override that was made apart from its store.
func MadeApart(epoch uint64) bool { return epoch >= firstApart }

// OpenApart is OpenOperator where there is no store: all that there is of it is a head of the cohort, as a host or the collector has it. It is believed by the keyring alone, and nothing says
// that it is the newest: hosts that have seen a newer one refuse what is built on it.
func OpenApart(ctx context.Context, cohort string, head, keyring []byte, signer manifest.Signer, now func() time.Time) (*Operator, error) {
	k, err := manifest.VerifyKeyring(keyring)
	if err != nil {
		return nil, fmt.Errorf("keyring: %w", err)
	}
	trust, err := manifest.NewTrust(k.Repo, keyring)
	if err != nil {
		return nil, fmt.Errorf("keyring: %w", err)
	}
	_, view, err := trust.AcceptHead(cohort, head, now())
	if err != nil {
		return nil, err
	}
	id, err := wire.Encode(manifest.StoreID{V: manifest.Version, ID: view.Manifest.Store})
	if err != nil {
		return nil, fmt.Errorf("encode the store's identity: %w", err)
	}
	st := mem.New()
	for key, data := range map[string][]byte{manifest.KeyStore: id, manifest.KeyKeyring(k.Version): keyring, manifest.KeyHead(cohort): head} {
		if err := st.Put(ctx, key, data); err != nil {
			return nil, err
		}
	}
	return OpenOperator(ctx, st, keyring, signer, now)
}

// BaseApart is Base as far as a head alone tells: Release is nil. The statement of what the cohort runs is in it, signed.
func (o *Operator) BaseApart(ctx context.Context, cohort string) (*Base, error) {
	view, err := o.Head(ctx, cohort)
	if err != nil {
		return nil, err
	}
	if view == nil {
		return nil, fmt.Errorf("cohort %s: %w: there is no head of it", cohort, rollout.ErrNothing)
	}
	epoch := runs(view)
	for _, st := range view.Statements {
		if st.Epoch == epoch && st.Override == "" {
			return &Base{Cohort: cohort, Plain: st.Statement, View: view, Living: stillOn(view, o.now())}, nil
		}
	}
	return nil, fmt.Errorf("the head of cohort %s has no statement of epoch %d, which the cohort runs: %w", cohort, epoch, rollout.ErrNothing)
}

// MakeApart builds an override of one cohort, signs it, and gives all that a host needs to take it, by key: keyring, head and bundles. The head is the one that the operator was opened with,
// its beat too: nobody who steers wrote another one. What hosts would refuse is refused here.
func (o *Operator) MakeApart(ctx context.Context, cohort string, c Change, build func(ctx context.Context, epoch uint64) (*CohortBuild, error)) (*Made, map[string][]byte, error) {
	if err := o.May(cohort, c.TTL); err != nil {
		return nil, nil, err
	}
	if err := o.taken(ctx, cohort, c.ID); err != nil {
		return nil, nil, err
	}
	base, err := o.BaseApart(ctx, cohort)
	if err != nil {
		return nil, nil, err
	}
	epoch := firstApart + uint64(o.session.cfg.Now().UnixMicro())
	b, err := build(ctx, epoch)
	if err != nil {
		return nil, nil, err
	}
	envs, err := o.session.states(ctx, epoch, []whole{{cohort: cohort, override: c.ID, commit: base.Plain.Commit, build: *b}})
	if err != nil {
		return nil, nil, err
	}
	made := &Made{Epoch: epoch, Created: o.now(), change: c, first: map[string]*manifest.Envelope{cohort: envs[0]}}
	made.NotAfter = made.Created.Add(c.TTL)
	env, err := o.Envelope(made, cohort, nil)
	if err != nil {
		return nil, nil, err
	}
	head := base.View.Head
	head.Overrides = append(append([]manifest.Envelope{}, head.Overrides...), *env)
	data, err := wire.Encode(head)
	if err != nil {
		return nil, nil, fmt.Errorf("encode the head of cohort %s: %w", cohort, err)
	}
	if _, _, err := o.trust.AcceptHead(cohort, data, o.now()); err != nil {
		return nil, nil, fmt.Errorf("override %s of cohort %s would be refused, so it was not written: %w", c.ID, cohort, err)
	}
	objects := map[string][]byte{manifest.KeyHead(cohort): data, manifest.KeyKeyring(o.keyring.Version): o.session.cfg.Keyring}
	infos, err := listAll(ctx, o.st, manifest.PrefixBundles)
	if err != nil {
		return nil, nil, err
	}
	for _, info := range infos {
		obj, err := o.st.Get(ctx, info.Key, info.Size)
		if err != nil {
			return nil, nil, fmt.Errorf("read %s: %w", info.Key, err)
		}
		objects[info.Key] = obj.Data
	}
	return made, objects, nil
}
