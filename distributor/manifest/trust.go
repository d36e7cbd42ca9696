package manifest

import (
	"errors"
	"fmt"
	"maps"
	"strconv"
	"time"
)

// Refusals of the trust state machine; test with errors.Is. Every one is exit code 4 and a `refused` report.
var (
	ErrSignature    = errors.New("not signed by a trusted key")
	ErrOrder        = errors.New("order went back") // (era, serial) below the floor
	ErrForeign      = errors.New("belongs to another store, repo or cohort")
	ErrEquivocation = errors.New("one epoch, two contents")
	ErrMalformed    = errors.New("malformed")
	ErrKeyring      = errors.New("keyring does not follow")
	ErrNoAssignment = errors.New("assigns nothing to this host")
)

// Floor is the highest order accepted for a cohort, and the manifest that had it.
type Floor struct {
	Era      uint64 `json:"era"`
	Serial   uint64 `json:"serial"`
	Manifest string `json:"manifest"` // payload digest: one order, one manifest
}

// TrustState is what an agent, collector or CLI remembers between heads. It is plain data: the agent keeps it in
// state.json, apart from every cache, and it survives expiry, rollback and a lost cache (B130). Its methods never
// change it: they return the next one.
type TrustState struct {
	Store     string                       `json:"store,omitempty"` // pinned at first sight
	Repo      string                       `json:"repo"`
	Keyring   *Envelope                    `json:"keyring,omitempty"`   // the newest accepted
	Floors    map[string]Floor             `json:"floors,omitempty"`    // cohort → floor
	Contents  map[string]map[string]string `json:"contents,omitempty"`  // cohort → epoch ("1043", "1043/<override id>") → statement payload digest; bounded, oldest dropped
	Overrides map[string][]Envelope        `json:"overrides,omitempty"` // cohort → accepted and living, and the ends of those: whoever owns the bucket can neither strip nor revive them
}

// View is a verified head: only Trust makes one.
type View struct {
	Head       Head
	Manifest   Manifest
	Statements []VerifiedStatement // plain and overridden, in the order of the manifest's
	Overrides  []VerifiedOverride  // living and ended; kept ones included
	Stale      bool                // now is past fresh_until: an alarm, never an outage
}

// Mark is the head's change mark.
func (v *View) Mark() Mark { return Mark{v.Manifest.Era, v.Manifest.Serial, v.Head.Beat} }

// VerifiedStatement is a statement whose envelope was verified.
type VerifiedStatement struct {
	Statement
	Digest string // of its payload
}

// key names what a statement speaks for in TrustState.Contents.
func (st *VerifiedStatement) key() string {
	k := strconv.FormatUint(st.Epoch, 10)
	if st.Override != "" {
		k += "/" + st.Override
	}
	return k
}

// VerifiedOverride is an override whose envelope, cohort and TTL were verified against the keyring.
type VerifiedOverride struct {
	Override
	KeyID string
	First *VerifiedStatement // its own statement; nil in an end
}

// AcceptHead verifies a head of cohort as read from a carrier at time now and returns the next state. A head equal to the floor is
// accepted again if its manifest is the same; a refused one leaves the state as it was. An empty Store accepts any and pins it (first sight).
func (s TrustState) AcceptHead(cohort string, data []byte, now time.Time) (TrustState, *View, error) {
	k, err := s.Keys()
	if err != nil {
		return s, nil, err
	}
	next, view, err := s.acceptHead(&k, cohort, data, now)
	if err != nil {
		return s, nil, fmt.Errorf("head of cohort %s: %w", cohort, err)
	}
	return next, view, nil
}

func (s TrustState) acceptHead(k *Keyring, cohort string, data []byte, now time.Time) (TrustState, *View, error) {
	o, err := openHead(k, s.Keyring.Payload, data)
	if err != nil {
		return s, nil, err
	}
	m := o.manifest
	if err := ours("manifest", origin{m.Store, m.Repo, m.Cohort}, origin{s.Store, s.Repo, cohort}); err != nil {
		return s, nil, err
	}
	floor := Floor{m.Era, m.Serial, o.digest}
	if err := floor.follows(s.Floors[cohort], k); err != nil {
		return s, nil, err
	}
	v := &View{Head: *o.head, Manifest: *m, Stale: now.After(m.FreshUntil)}
	known := contents{past: s.Contents[cohort], now: map[string]string{}}
	if err := v.statements(k, o, &known); err != nil {
		return s, nil, err
	}
	kept, err := v.overrides(k, &known, s.Overrides[cohort], now)
	if err != nil {
		return s, nil, err
	}
	next := s
	next.Store = m.Store
	next.Floors = with(s.Floors, cohort, floor)
	next.Contents = with(s.Contents, cohort, known.bounded())
	next.Overrides = with(s.Overrides, cohort, kept)
	if len(kept) == 0 {
		delete(next.Overrides, cohort)
	}
	return next, v, nil
}

// opened is a head whose manifest was signed by a rollout key.
type opened struct {
	head     *Head
	manifest *Manifest
	digest   string          // of the manifest's payload
	known    statementsKnown //nolint:unused // see once.go
}

// readHead decodes a head and verifies its manifest.
func readHead(k *Keyring, data []byte) (*opened, error) {
	head, err := DecodeHead(data)
	if err != nil {
		return nil, err
	}
	if _, err := head.Manifest.VerifySignatures(KindManifest, k.publics(k.Roles.Rollout)); err != nil {
		return nil, err
	}
	m, err := DecodeManifest(head.Manifest.Payload)
	if err != nil {
		return nil, err
	}
	return &opened{head: head, manifest: m, digest: head.Manifest.Digest()}, nil
}

// origin is where a document belongs.
type origin struct{ store, repo, cohort string }

// ours demands that a document belongs where it was found; an empty store in want is any.
func ours(what string, has, want origin) error {
	for _, c := range []struct{ name, has, want string }{{"store", has.store, want.store}, {"repo", has.repo, want.repo}, {"cohort", has.cohort, want.cohort}} {
		if c.has != c.want && (c.name != "store" || c.want != "") {
			return fmt.Errorf("%s: %w: it is of %s %s, not %s", what, ErrForeign, c.name, c.has, c.want)
		}
	}
	return nil
}

// follows holds the order: never below what was accepted before, and one order has one manifest. The era is the keyring's: a head of a lower one may be signed by a
// rollout key that was withdrawn, and if higher ones were taken, such a key could lift the floor above everything that will ever be signed again.
func (f Floor) follows(floor Floor, k *Keyring) error {
	order, old := Mark{Era: f.Era, Serial: f.Serial}, Mark{Era: floor.Era, Serial: floor.Serial}
	switch c := order.Compare(old); {
	case c < 0:
		return fmt.Errorf("%w: manifest %d-%d after %d-%d", ErrOrder, f.Era, f.Serial, floor.Era, floor.Serial)
	case f.Era < k.Era:
		return fmt.Errorf("%w: manifest of era %d, and keyring %d began era %d", ErrOrder, f.Era, k.Version, k.Era)
	case f.Era > k.Era:
		return fmt.Errorf("%w: manifest of era %d, and keyring %d is of era %d: read keyring %d first", ErrKeyring, f.Era, k.Version, k.Era, k.Version+1)
	case c == 0 && floor.Manifest != "" && f.Manifest != floor.Manifest:
		return fmt.Errorf("%w: two manifests %d-%d, %.19s… and now %.19s…", ErrEquivocation, f.Era, f.Serial, floor.Manifest, f.Manifest)
	}
	return nil
}

// statements verifies those of the manifest, and that each assignment has its own.
func (v *View) statements(k *Keyring, o *opened, known *contents) error {
	m := &v.Manifest
	for i := range m.Statements {
		st, err := o.statement(k, i)
		if err != nil {
			return fmt.Errorf("statements[%d]: %w", i, err)
		}
		if err := ours(fmt.Sprintf("statement of epoch %d", st.Epoch), origin{st.Store, st.Repo, st.Cohort}, origin{m.Store, m.Repo, m.Cohort}); err != nil {
			return err
		}
		if err := known.add(st); err != nil {
			return err
		}
		v.Statements = append(v.Statements, *st)
	}
	for i, a := range m.Assign {
		if v.statement(a.Epoch, "") == nil {
			return fmt.Errorf("%w manifest: assign[%d]: there is no statement of epoch %d", ErrMalformed, i, a.Epoch)
		}
	}
	return nil
}

// with is m with one entry replaced; m itself is left alone.
func with[V any](m map[string]V, k string, v V) map[string]V {
	out := maps.Clone(m)
	if out == nil {
		out = map[string]V{}
	}
	out[k] = v
	return out
}
