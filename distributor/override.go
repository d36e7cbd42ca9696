package distributor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"path"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/muster-config/muster/distributor/bundle"
	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/rollout"
	"github.com/muster-config/muster/distributor/store"
	"github.com/muster-config/muster/distributor/wire"
)

// Operator makes emergency overrides: with an operator key and a store, and nothing else. Not safe for concurrent use.
type Operator struct {
	*History
	session *session // to write

	// Putter puts an envelope into the head of its cohort in place of this process, if set: a collector does, for who has no rights on the bucket.
	Putter func(ctx context.Context, cohort string, env *manifest.Envelope) (*rollout.Applied, error)
}

// OpenOperator opens a store to change it with an operator key. keyring is what a person trusts.
func OpenOperator(ctx context.Context, st store.Store, keyring []byte, signer manifest.Signer, now func() time.Time) (*Operator, error) {
	h, err := OpenHistory(ctx, st, keyring, now().UTC().Truncate(time.Second))
	if err != nil {
		return nil, err
	}
	p := &Publisher{cfg: Config{Store: st, Repo: h.keyring.Repo, Release: signer, Keyring: keyring, Now: now, Log: h.log}}
	h.reader.now = p.now
	o := &Operator{History: h, session: &session{p, h.reader}}
	if o.role() == nil {
		return nil, fmt.Errorf("operator key %.12s… is not in the role operator of keyring %d: hosts would refuse what it signs: %w", signer.KeyID(), h.keyring.Version, manifest.ErrSignature)
	}
	return o, nil
}

func (o *Operator) role() *manifest.OperatorRole {
	for i := range o.keyring.Roles.Operator {
		if r := &o.keyring.Roles.Operator[i]; r.Key == o.session.cfg.Release.KeyID() {
			return r
		}
	}
	return nil
}

// May says whether the key may act on a cohort for so long.
func (o *Operator) May(cohort string, ttl time.Duration) error {
	r := o.role()
	if !slices.ContainsFunc(r.Cohorts, func(glob string) bool { ok, err := path.Match(glob, cohort); return ok && err == nil }) {
		return mayNot(fmt.Sprintf("the operator key may act on %s, not on cohort %s", strings.Join(r.Cohorts, ", "), cohort))
	}
	if longest, err := time.ParseDuration(r.MaxTTL); err != nil || ttl > longest {
		return mayNot(fmt.Sprintf("the operator key may act for %s at most, not for %s", r.MaxTTL, ttl))
	}
	return nil
}

// mayNot refuses what hosts would refuse as not signed by a key that may.
type mayNot string

func (m mayNot) Error() string        { return string(m) }
func (m mayNot) Is(target error) bool { return target == manifest.ErrSignature }

// Base is what an override of a cohort is laid over.
type Base struct {
	Cohort  string
	Release *manifest.Release  // whose commit the cohort runs
	Plain   manifest.Statement // with its variants
	View    *manifest.View     // the head that stands
	Living  []manifest.VerifiedOverride
}

// Base is the release that a cohort runs everywhere; while a rollout is under way, or was stopped, its baseline: an override must not take a release to hosts that it was kept from.
func (o *Operator) Base(ctx context.Context, cohort string) (*Base, error) {
	view, err := o.Head(ctx, cohort)
	if err != nil {
		return nil, err
	}
	if view == nil {
		return nil, fmt.Errorf("cohort %s: %w: it was never rolled out, so that there is nothing to override", cohort, rollout.ErrNothing)
	}
	epoch := runs(view)
	rel, err := o.at(ctx, epoch)
	if err != nil {
		return nil, fmt.Errorf("release %d, which cohort %s runs: %w; check the store with muster fsck", epoch, cohort, err)
	}
	_, st, err := o.statement(ctx, rel, cohort)
	if err != nil {
		return nil, err
	}
	if st == nil {
		return nil, fmt.Errorf("release %d has nothing for cohort %s: %w", epoch, cohort, rollout.ErrNothing)
	}
	b := &Base{Cohort: cohort, Release: rel.Release, Plain: st.Statement, View: view, Living: stillOn(view, o.now())}
	if b.Plain.Variants, err = variants(ctx, o.st, &st.Statement); err != nil {
		return nil, fmt.Errorf("variants of cohort %s, epoch %d: %w", cohort, st.Epoch, err)
	}
	return b, nil
}

// runs is the epoch that an override of a cohort is laid over: see Base.
func runs(view *manifest.View) uint64 {
	r := view.Manifest.Rollout
	if r.Baseline == 0 || rollout.Assigns(view, r.Target) {
		return r.Target
	}
	return r.Baseline
}

// Index reads the index of the bundle that a base gives a host, or its cohort for "".
func (o *Operator) Index(b *Base) func(context.Context, string) (*bundle.Index, error) {
	return func(ctx context.Context, host string) (*bundle.Index, error) {
		return o.indexOf(ctx, &b.Plain, host)
	}
}

// Source reads the tree of a release from the store.
func (o *Operator) Source(ctx context.Context, rel *manifest.Release) ([]bundle.File, error) {
	key := manifest.KeySource(rel.Tree)
	object, _, err := digestObject(ctx, o.session.cfg.Store, key, rel.Source.Size)
	if err == nil && object != rel.Source.Object {
		err = fmt.Errorf("%w: its bytes are not what release %d says; restore it from a backup", ErrDamaged, rel.Epoch)
	}
	if err != nil {
		return nil, fmt.Errorf("sources of release %d, %s: %w", rel.Epoch, key, err)
	}
	r, _, err := o.session.cfg.Store.Open(ctx, key)
	if err != nil {
		return nil, fmt.Errorf("sources of release %d, %s: %w", rel.Epoch, key, err)
	}
	defer r.Close()
	files, err := bundle.ReadTree(io.LimitReader(r, rel.Source.Size))
	if err != nil {
		return nil, fmt.Errorf("sources of release %d, %s: %w", rel.Epoch, key, err)
	}
	return files, nil
}

// Change is one override of some cohorts.
type Change struct {
	ID, Author, Reason string
	TTL                time.Duration
	Cohorts            map[string]ChangeOf
}

// ChangeOf is what it is for one cohort.
type ChangeOf struct {
	Hosts   []string // sorted; empty: the whole cohort
	Patches []manifest.Patch
	Commit  string // that it is laid over
	Over    uint64 // and its epoch
}

// Taken is an override of an id of which hosts still keep something under a head: it acts, or it was ended before its time. Until that is over, another of the same id would act nowhere,
// since whatever ends an id ends all of it; nil if the id is free.
func Taken(v *manifest.View, id string, now time.Time) *manifest.VerifiedOverride {
	var last *manifest.VerifiedOverride
	for i := range v.Overrides {
		if o := &v.Overrides[i]; o.ID == id && now.Before(o.NotAfter) && (last == nil || last.Ended == nil) {
			last = o
		}
	}
	return last
}

// Spent reports whether an override of an id is over, and its order still takes hosts out of it by that id, as one that ended in steps: another of the same id would act on none of them.
func Spent(v *manifest.View, id string, now time.Time) bool {
	lives := slices.ContainsFunc(v.Living(now), func(o manifest.VerifiedOverride) bool { return o.ID == id })
	return !lives && slices.ContainsFunc(v.Manifest.Rollout.Endings, func(e manifest.Ending) bool { return e.Override == id })
}

// taken refuses an id that is taken on a cohort.
func (o *Operator) taken(ctx context.Context, cohort, id string) error {
	view, err := o.Head(ctx, cohort)
	if err != nil || view == nil {
		return err
	}
	if t := Taken(view, id, o.now()); t != nil {
		return fmt.Errorf("override %s of cohort %s is one already, and hosts keep it until %s: %w; take another id", id, cohort, t.NotAfter.UTC().Format(time.RFC3339), rollout.ErrUnfit)
	}
	if Spent(view, id, o.now()) {
		return fmt.Errorf("override %s of cohort %s was used before, and would act on no host that its end took out: %w; take another id", id, cohort, rollout.ErrUnfit)
	}
	return nil
}

// Made is an override whose release is written: no host hears of it before Put.
type Made struct {
	Epoch    uint64
	Created  time.Time
	NotAfter time.Time
	change   Change
	first    map[string]*manifest.Envelope
}

// Make builds an override as the next epoch and releases it: one override, one epoch, any number of cohorts. build is called again with another epoch if somebody else was first.
func (o *Operator) Make(ctx context.Context, c Change, build func(ctx context.Context, epoch uint64) (map[string]CohortBuild, error)) (*Made, error) {
	for name := range c.Cohorts {
		if err := o.May(name, c.TTL); err != nil {
			return nil, err
		}
		if err := o.taken(ctx, name, c.ID); err != nil {
			return nil, err
		}
	}
	for race := range races {
		if err := pause(ctx, race); err != nil {
			return nil, err
		}
		newest, next, err := o.newest(ctx)
		if err != nil {
			return nil, err
		}
		if newest == nil {
			return nil, fmt.Errorf("%w: nothing was published yet", ErrNoRelease)
		}
		if err := o.lost(ctx, newest); err != nil {
			return nil, err
		}
		builds, err := build(ctx, next)
		if err != nil {
			return nil, err
		}
		made, err := o.make(ctx, c, newest, next, builds)
		if errors.Is(err, errLost) {
			continue
		}
		return made, err
	}
	return nil, fmt.Errorf("override %s: %w %d times in a row; nothing was changed, try again", c.ID, ErrContended, races)
}

func (o *Operator) make(ctx context.Context, c Change, newest *verified, epoch uint64, builds map[string]CohortBuild) (*Made, error) {
	names := slices.Sorted(maps.Keys(c.Cohorts))
	var all []whole
	for _, name := range names {
		b, ok := builds[name]
		if !ok || b.Blocked != "" || b.Same {
			return nil, fmt.Errorf("override %s: the build of cohort %s is not one to be released: this is a bug", c.ID, name)
		}
		all = append(all, whole{cohort: name, override: c.ID, commit: c.Cohorts[name].Commit, build: b})
	}
	envs, err := o.session.states(ctx, epoch, all)
	if err != nil {
		return nil, err
	}
	rel := *newest.Release
	made := &Made{Epoch: epoch, Created: o.now(), change: c, first: map[string]*manifest.Envelope{}}
	made.NotAfter = made.Created.Add(c.TTL)
	rel.V, rel.Epoch, rel.Prev, rel.Kind, rel.Created, rel.OverrideID, rel.NotAfter, rel.Ext = manifest.Version, epoch, newest.digest, manifest.ReleaseOverride, made.Created, c.ID, &made.NotAfter, nil
	rel.Cohorts = map[string]manifest.ReleaseCohort{}
	for name, was := range newest.Cohorts {
		part := manifest.ReleaseCohort{State: manifest.StateHolds, Epoch: was.Epoch}
		if was.State == manifest.StateBlocked {
			part.State, part.Reason = was.State, was.Reason
		}
		if part.Overridden, err = o.carried(ctx, newest, name); err != nil {
			return nil, err
		}
		rel.Cohorts[name] = part
	}
	for i, name := range names {
		part, ok := rel.Cohorts[name]
		if !ok {
			return nil, fmt.Errorf("cohort %s: the newest release, %d, no longer has it: %w", name, newest.Epoch, rollout.ErrNothing)
		}
		part.Overridden = append(part.Overridden, *envs[i])
		rel.Cohorts[name], made.first[name] = part, envs[i]
	}
	env, err := manifest.Seal(manifest.KindRelease, rel, o.session.cfg.Release)
	if err != nil {
		return nil, fmt.Errorf("sign release %d: %w", epoch, err)
	}
	data, err := wire.Encode(env)
	if err != nil {
		return nil, fmt.Errorf("encode release %d: %w", epoch, err)
	}
	checked, err := checkRelease(o.keyring, o.storeID, epoch, data)
	if err != nil {
		return nil, fmt.Errorf("release %d of override %s would not be believed, so it was not written: %w", epoch, c.ID, err)
	}
	if err := o.session.create(ctx, epoch, Commit{ID: rel.Commit}, data); err != nil {
		return nil, err
	}
	o.releases[epoch] = checked
	return made, nil
}

// Envelope is what the head of a cohort gets: the override for some of its hosts, or as it was asked for with none given.
func (o *Operator) Envelope(m *Made, cohort string, hosts []string) (*manifest.Envelope, error) {
	of := m.change.Cohorts[cohort]
	if len(hosts) == 0 {
		hosts = of.Hosts
	}
	return o.seal(manifest.Override{
		Cohort: cohort, Hosts: hosts, ID: m.change.ID, Author: m.change.Author, Reason: m.change.Reason, Created: m.Created, NotAfter: m.NotAfter,
		Epoch: m.Epoch, Over: of.Over, Patches: of.Patches, Statement: m.first[cohort],
	})
}

func (o *Operator) seal(doc manifest.Override) (*manifest.Envelope, error) {
	doc.V, doc.Store, doc.Repo = manifest.Version, o.storeID, o.session.cfg.Repo
	slices.Sort(doc.Hosts)
	env, err := manifest.Seal(manifest.KindOverride, doc, o.session.cfg.Release)
	if err != nil {
		return nil, fmt.Errorf("sign override %s: %w", doc.ID, err)
	}
	return env, nil
}

// Put puts it into the head of its cohort: from then on hosts hear of it.
func (o *Operator) Put(ctx context.Context, cohort string, env *manifest.Envelope) (*rollout.Applied, error) {
	if o.Putter != nil {
		return o.Putter(ctx, cohort, env)
	}
	return rollout.Override(ctx, o.session.cfg.Store, o.trust, cohort, env, o.now())
}

// Found is an override that lives, on one cohort.
type Found struct {
	Cohort string
	manifest.VerifiedOverride
	View *manifest.View
}

// Overrides are those that live, by cohort, the oldest first; of all cohorts that have a head.
func (h *History) Overrides(ctx context.Context) ([]Found, error) {
	views, err := h.Heads(ctx)
	if err != nil {
		return nil, err
	}
	list := []Found{}
	for _, name := range sorted(views) {
		for _, o := range views[name].Living(h.now()) {
			list = append(list, Found{name, o, views[name]})
		}
	}
	return list, nil
}

// Extend makes a living override last for ttl from now. One that lasts longer already is left alone: it is ended, not shortened.
func (o *Operator) Extend(ctx context.Context, f Found, ttl time.Duration, by, reason string) (*rollout.Applied, error) {
	now := o.now()
	if err := o.May(f.Cohort, ttl); err != nil {
		return nil, err
	}
	doc := f.Override
	doc.Created, doc.NotAfter, doc.Author, doc.Reason, doc.Ext = now, now.Add(ttl), by, longer(f.Reason, reason), nil
	if !doc.NotAfter.After(f.NotAfter) {
		return nil, fmt.Errorf("override %s on cohort %s lasts until %s already: %w; to shorten it, end it", f.ID, f.Cohort, f.NotAfter.UTC().Format(time.RFC3339), rollout.ErrUnfit)
	}
	// Its statement must be signed by the key that signs the envelope.
	st := f.First.Statement
	own, err := manifest.Seal(manifest.KindStatement, st, o.session.cfg.Release)
	if err != nil {
		return nil, fmt.Errorf("sign the statement of override %s: %w", f.ID, err)
	}
	if own.Digest() != f.First.Digest {
		return nil, fmt.Errorf("override %s was made by another version of muster, whose statement this one cannot sign: set a new one in its place", f.ID)
	}
	doc.Statement = own
	env, err := o.seal(doc)
	if err != nil {
		return nil, err
	}
	return o.Put(ctx, f.Cohort, env)
}

// extended stands between why an override was made, and why it lasts longer.
const extended = " (extended: "

// longer is the reason of an override that is extended: the first one, by which people know it, and the newest for its length.
func longer(first, why string) string {
	if i := strings.LastIndex(first, extended); i >= 0 && strings.HasSuffix(first, ")") {
		first = first[:i]
	}
	most := manifest.MaxTextBytes/2 - len(extended)
	return cut(first, most) + extended + cut(why, most) + ")"
}

// cut is the begin of a text, of so many bytes at most, at the end of a letter.
func cut(s string, most int) string {
	if len(s) <= most {
		return s
	}
	for most > 0 && !utf8.RuneStart(s[most]) {
		most--
	}
	return s[:most]
}

// End ends a living override now.
func (o *Operator) End(ctx context.Context, f Found, by, reason string) (*rollout.Applied, error) {
	if err := o.May(f.Cohort, 0); err != nil {
		return nil, err
	}
	now := o.now()
	created := f.Created
	doc := manifest.Override{
		Cohort: f.Cohort, Hosts: f.Hosts, ID: f.ID, Author: f.Author, Reason: f.Reason, Created: created, NotAfter: f.NotAfter, Epoch: f.Epoch,
		Ended: &manifest.OverrideEnd{By: by, Reason: reason, At: now},
	}
	env, err := o.seal(doc)
	if err != nil {
		return nil, err
	}
	return o.Put(ctx, f.Cohort, env)
}
