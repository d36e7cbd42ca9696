package collector

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/muster-config/muster/distributor"
	"github.com/muster-config/muster/distributor/api"
	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/rollout"
	"github.com/muster-config/muster/distributor/store"
	"github.com/muster-config/muster/distributor/wire"
)

// An operator without rights on the bucket writes through the collector what an operator key signed: bundles, the release of an override, and what heads get. The collector signs
// nothing of it and evaluates nothing: it holds all that to what the key, the token and the store say.

const (
	maxListed    = 1000
	maxPost      = manifest.MaxReleaseBytes + manifest.MaxReleaseBytes/2 // base64 is larger than what it holds
	clocksApart  = 10 * time.Minute                                      // how far the operator's clock may be off
	maxBurnt     = 1000                                                  // numbers held by junk between two releases
	putTimeLimit = 5 * time.Minute
	putTurn      = 2 * time.Minute // of it, until a bundle's turn has come
)

// overlord reports whether a caller may read the store in whole: a person who may act on every cohort.
func (c caller) overlord() bool { return c.hand && c.all() }

// listObjects lists the store, for those who may read it whole.
func (c *Collector) listObjects(w http.ResponseWriter, r *http.Request, who caller) error {
	if !who.overlord() {
		return refuse(http.StatusForbidden, "", "listing the store needs the token of a person with the role %s for all cohorts", RoleOperator)
	}
	q := r.URL.Query()
	most := maxListed
	if s := q.Get("max"); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil || n < 1 {
			return refuse(http.StatusBadRequest, "", "max: %.20q is not a number", s)
		}
		most = min(n, maxListed)
	}
	infos, err := c.store.List(r.Context(), q.Get("prefix"), q.Get("after"), most)
	if err != nil {
		return fmt.Errorf("list %.200q: %w", q.Get("prefix"), err)
	}
	list := []api.ListedObject{}
	for _, i := range infos {
		list = append(list, api.ListedObject{Key: i.Key, Size: i.Size, Modified: i.Modified.UTC()})
	}
	return answer(w, list)
}

// writable is the store to write to.
func (c *Collector) writable() (store.Store, error) {
	if st, ok := c.store.(store.Store); ok {
		return st, nil
	}
	return nil, conflict(1, "give the command --store with rights on the bucket", "this collector can only read its store")
}

// putObject stores an object that is named by its own bytes: it can take the place of none, and what nothing names, gc removes.
func (c *Collector) putObject(w http.ResponseWriter, r *http.Request, _ caller) error {
	key := r.PathValue("key")
	digest := "sha256:" + strings.TrimSuffix(key[strings.LastIndexByte(key, '/')+1:], ".tar.zst")
	if manifest.KeyBundle(digest) != key {
		return refuse(http.StatusForbidden, "", "%.200q is not a bundle's name: only bundles are stored so", key)
	}
	st, err := c.writable()
	if err != nil {
		return err
	}
	if err := linger(w, putTimeLimit); err != nil {
		return err
	}
	// Who writes several at once waits for its turn: nothing of a body is read before.
	turn, cancel := context.WithTimeout(r.Context(), putTurn)
	defer cancel()
	select {
	case c.puts <- struct{}{}:
		defer func() { <-c.puts }()
	case <-turn.Done():
		return errBusy
	}
	data, err := body(w, r, api.MaxPutObject)
	if err != nil {
		return err
	}
	if sum := sha256.Sum256(data); "sha256:"+hex.EncodeToString(sum[:]) != digest {
		return refuse(http.StatusBadRequest, "send it again", "%s: the body has another digest than its name", key)
	}
	if err := st.Put(r.Context(), key, data); err != nil {
		return fmt.Errorf("store %s: %w", key, err)
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// postOverride takes the release of an override, or what a head gets.
func (c *Collector) postOverride(w http.ResponseWriter, r *http.Request, who caller) error {
	data, err := body(w, r, maxPost)
	if err != nil {
		return err
	}
	var post api.OverridePost
	if err := wire.Decode(data, &post); err != nil {
		return refuse(http.StatusBadRequest, "", "%w", err)
	}
	if (post.Release == nil) == (post.Override == nil) {
		return refuse(http.StatusBadRequest, "", "release or override: exactly one of both")
	}
	st, err := c.writable()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(r.Context(), actTime)
	defer cancel()
	if err := c.readKeyrings(ctx); err != nil {
		return err
	}
	if err := c.readReleases(ctx); err != nil {
		return err
	}
	newest, err := c.newestRead(true)
	if err != nil {
		return refuse(http.StatusServiceUnavailable, "run the command again in a moment", "%w", err)
	}
	keys, err := newest.Trust.Keys()
	if err != nil {
		return err
	}
	p := &overridePost{Collector: c, st: st, who: who, keys: keys, newest: newest, now: c.now()}
	var got *api.OverridePosted
	if post.Release != nil {
		got, err = p.release(ctx, post.Release)
	} else {
		got, err = p.override(ctx, post.Override)
	}
	if err != nil {
		return err
	}
	return answer(w, got)
}

// overridePost is one such request.
type overridePost struct {
	*Collector
	st     store.Store
	who    caller
	keys   manifest.Keyring
	newest rollout.Newest
	now    time.Time
}

// unfit refuses what an operator may not do, or what does not fit what stands.
func unfit(format string, args ...any) error {
	return conflict(1, "look with `muster status` and `muster override list`, then make it anew", format, args...)
}

// untrusted refuses what is not signed as it must be.
func untrusted(err error) error {
	return conflict(4, "take the key of somebody who may, and the newest keyring", "%w", err)
}

func (p *overridePost) inTime(what string, created, end time.Time) error {
	switch off := created.Sub(p.now); {
	case off > clocksApart || off < -clocksApart:
		return unfit("%s says that it was made at %s, which is %s off: set the clock of that machine", what, created.UTC().Format(time.RFC3339), off.Round(time.Second))
	case !end.After(p.now):
		return unfit("%s ended at %s already", what, end.UTC().Format(time.RFC3339))
	}
	return nil
}

// release creates the release of an override: as the publisher and every agent will look at it, and with all that it names in the store.
func (p *overridePost) release(ctx context.Context, env *manifest.Envelope) (*api.OverridePosted, error) {
	data, err := wire.Encode(env)
	if err != nil {
		return nil, fmt.Errorf("encode the release: %w", err)
	}
	rel, digest, err := manifest.VerifyRelease(p.keys, data)
	switch {
	case err != nil:
		return nil, untrusted(err)
	case rel.Kind != manifest.ReleaseOverride:
		return nil, untrusted(fmt.Errorf("%w: release %d is of kind %s: only overrides are taken so", manifest.ErrSignature, rel.Epoch, rel.Kind))
	case rel.Store != p.newest.Release.Store || rel.Repo != p.newest.Release.Repo:
		return nil, untrusted(fmt.Errorf("release %d: %w", rel.Epoch, manifest.ErrForeign))
	case !manifest.ValidName(rel.OverrideID) || rel.NotAfter == nil:
		return nil, unfit("release %d does not say which override it is, and until when", rel.Epoch)
	}
	for name, part := range rel.Cohorts { // before anything is answered: also that it is there already is for those who may make it
		if !p.who.may(name) && slices.ContainsFunc(part.Overridden, func(e manifest.Envelope) bool {
			st, err := manifest.DecodeStatement(e.Payload) // verified with its release
			return err != nil || st.Override == rel.OverrideID
		}) {
			return nil, refuse(http.StatusForbidden, "", "this token is not for cohort %s", name)
		}
	}
	out := &api.OverridePosted{ID: rel.OverrideID, Epoch: rel.Epoch}
	if there, err := p.readRelease(ctx, p.keys, rel.Epoch, ""); err == nil && there.digest == digest {
		return out, nil // an answer got lost
	}
	if err := p.inTime("override "+rel.OverrideID, rel.Created, *rel.NotAfter); err != nil {
		return nil, err
	}
	if err := p.next(ctx, rel.Epoch); err != nil {
		return nil, err
	}
	if err := p.onlyOverrides(ctx, p.keys, &stored{Release: rel, digest: digest}); err != nil {
		return nil, conflict(3, "run the command again", "%w", err)
	}
	if err := p.statements(ctx, rel); err != nil {
		return nil, err
	}
	_, err = p.st.Create(ctx, manifest.KeyRelease(rel.Epoch), data)
	switch {
	case errors.Is(err, store.ErrExists):
		return nil, conflict(3, "run the command again", "somebody else released epoch %d meanwhile", rel.Epoch)
	case err != nil:
		return nil, fmt.Errorf("write release %d: %w", rel.Epoch, err)
	}
	p.log.Info("override released", "override", rel.OverrideID, "epoch", rel.Epoch, "token", p.who.name)
	if err := p.readReleases(ctx); err != nil {
		p.log.Debug("read the new release", "epoch", rel.Epoch, "err", err) // the next poll does
	}
	return out, nil
}

// next refuses an epoch that is not the next free one: numbers never come back. What lies between holds junk, and is burnt.
func (p *overridePost) next(ctx context.Context, epoch uint64) error {
	newest := p.newest.Release.Epoch
	if epoch <= newest || epoch > newest+maxBurnt {
		return conflict(3, "run the command again", "epoch %d does not follow the newest release, %d", epoch, newest)
	}
	for e := newest + 1; e < epoch; e++ {
		if _, err := p.st.Get(ctx, manifest.KeyRelease(e), manifest.MaxReleaseBytes); errors.Is(err, store.ErrNotFound) {
			return conflict(3, "run the command again", "epoch %d leaves out %d, which is free", epoch, e)
		} else if err != nil && !errors.Is(err, store.ErrTooLarge) {
			return err
		}
	}
	return nil
}

// statements looks at what the release adds, and that it loses nothing of what acts.
func (p *overridePost) statements(ctx context.Context, rel *manifest.Release) error {
	added := 0
	for name, part := range rel.Cohorts {
		has := map[string]bool{}
		for i := range part.Overridden {
			st, err := manifest.DecodeStatement(part.Overridden[i].Payload) // verified with its release
			if err != nil {
				return err
			}
			has[st.Override] = true
			if st.Override != rel.OverrideID {
				if !p.stands(name, st.Override, part.Overridden[i].Digest()) {
					return unfit("release %d carries an override %s of cohort %s that does not stand so", rel.Epoch, st.Override, name)
				}
				continue
			}
			added++
			if err := p.stored(ctx, st); err != nil {
				return err
			}
		}
		if has[rel.OverrideID] {
			if t := p.taken(name, rel.OverrideID); t != nil {
				return t
			}
		}
		for _, o := range p.living(name) {
			switch {
			case o.ID == rel.OverrideID:
				return unfit("override %s acts on cohort %s already, by %s: %s", o.ID, name, o.Author, o.Reason)
			case !has[o.ID] && p.carried(name, o.ID) != "":
				return conflict(3, "run the command again", "release %d leaves out override %s, which acts on cohort %s", rel.Epoch, o.ID, name)
			}
		}
	}
	if added == 0 {
		return unfit("release %d has no statement of override %s", rel.Epoch, rel.OverrideID)
	}
	return nil
}

// living are the overrides that act on a cohort, as the collector read its head.
func (p *overridePost) living(cohort string) []manifest.VerifiedOverride {
	p.mu.RLock()
	defer p.mu.RUnlock()
	if co := p.cohorts[cohort]; co != nil && co.view != nil {
		return co.view.Living(p.now)
	}
	return nil
}

// taken refuses the id of an override that was ended before its time: hosts keep that end, and would keep whatever has its id from acting.
func (p *overridePost) taken(cohort, id string) error {
	p.mu.RLock()
	defer p.mu.RUnlock()
	co := p.cohorts[cohort]
	if co == nil || co.view == nil {
		return nil
	}
	if t := distributor.Taken(co.view, id, p.now); t != nil && t.Ended != nil {
		return unfit("override %s of cohort %s was ended, and hosts keep that until %s: take another id", id, cohort, t.NotAfter.UTC().Format(time.RFC3339))
	}
	if distributor.Spent(co.view, id, p.now) {
		return unfit("override %s of cohort %s was used before: take another id", id, cohort)
	}
	return nil
}

// mayEnd refuses the end of an override that says more than that: heads and hosts keep it until its not_after, and there is room for few. Of one that hosts got by hand no head tells;
// that its end lasts no longer than any key may act is all that can be said of it.
func (p *overridePost) mayEnd(o *manifest.Override, living *manifest.VerifiedOverride) error {
	switch {
	case living != nil && o.NotAfter.After(living.NotAfter):
		return unfit("the end of override %s lasts longer than the override itself, until %s", o.ID, o.NotAfter.UTC().Format(time.RFC3339))
	case living != nil:
		return nil
	case !distributor.MadeApart(o.Epoch):
		return unfit("no override %s acts on cohort %s", o.ID, o.Cohort)
	}
	var longest time.Duration
	for _, r := range p.keys.Roles.Operator {
		if d, err := time.ParseDuration(r.MaxTTL); err == nil {
			longest = max(longest, d)
		}
	}
	if o.Created.After(p.now.Add(clocksApart)) || o.NotAfter.Sub(o.Created) > longest || !o.NotAfter.After(p.now) {
		return unfit("the end of override %s, from %s until %s, is over already, or lasts longer than any key may act", o.ID, o.Created.UTC().Format(time.RFC3339), o.NotAfter.UTC().Format(time.RFC3339))
	}
	return nil
}

// carried is the digest of what the newest release says of an override, "" if nothing.
func (p *overridePost) carried(cohort, id string) string {
	for i := range p.newest.Release.Cohorts[cohort].Overridden {
		env := &p.newest.Release.Cohorts[cohort].Overridden[i]
		if st, err := manifest.DecodeStatement(env.Payload); err == nil && st.Override == id {
			return env.Digest()
		}
	}
	return ""
}

// stands reports whether a statement of another override is what stands: the newest release's, or the one that it came with.
func (p *overridePost) stands(cohort, id, digest string) bool {
	if p.carried(cohort, id) == digest {
		return true
	}
	return slices.ContainsFunc(p.living(cohort), func(o manifest.VerifiedOverride) bool {
		return o.ID == id && o.First != nil && o.First.Digest == digest
	})
}

// stored demands that all that a statement names is in the store: no host must be sent after what is not there.
func (p *overridePost) stored(ctx context.Context, st *manifest.Statement) error {
	objects := []manifest.Object{st.Bundle}
	variants := st.Variants
	if v := st.VariantsObject; v != nil {
		obj, err := p.st.Get(ctx, manifest.KeyBundle(v.Object), manifest.MaxVariantsBytes)
		if err != nil {
			return unfit("the list of variants of cohort %s is not stored: %v", st.Cohort, err)
		}
		doc, err := manifest.DecodeVariants(obj.Data)
		if err != nil {
			return unfit("the list of variants of cohort %s: %v", st.Cohort, err)
		}
		variants = doc.Variants
	}
	for _, v := range variants {
		objects = append(objects, v.Bundle)
	}
	for _, o := range objects {
		body, size, err := p.st.Open(ctx, manifest.KeyBundle(o.Object))
		if errors.Is(err, store.ErrNotFound) {
			return unfit("%s, which the statement of cohort %s names, is not stored", manifest.KeyBundle(o.Object), st.Cohort)
		}
		if err != nil {
			return err
		}
		if err := body.Close(); err != nil {
			return err
		}
		if size != o.Size {
			return unfit("%s has %d bytes, and the statement of cohort %s says %d", manifest.KeyBundle(o.Object), size, st.Cohort, o.Size)
		}
	}
	return nil
}

// override puts an override, one that lasts longer, or an end into the head of its cohort.
func (p *overridePost) override(ctx context.Context, env *manifest.Envelope) (*api.OverridePosted, error) {
	o, err := manifest.DecodeOverride(env.Payload)
	switch {
	case err != nil:
		return nil, refuse(http.StatusBadRequest, "", "%w", err)
	case !p.who.may(o.Cohort):
		return nil, refuse(http.StatusForbidden, "", "this token is not for cohort %s", o.Cohort)
	}
	if err := p.readHead(ctx, o.Cohort); err != nil {
		return nil, err
	}
	living := p.living(o.Cohort)
	i := slices.IndexFunc(living, func(l manifest.VerifiedOverride) bool { return l.ID == o.ID })
	switch {
	case p.has(o.Cohort, env.Digest()):
	case o.Ended != nil:
		var it *manifest.VerifiedOverride
		if i >= 0 {
			it = &living[i]
		}
		if err := p.mayEnd(o, it); err != nil {
			return nil, err
		}
	case i >= 0 && (living[i].Epoch != o.Epoch || !reflect.DeepEqual(living[i].Patches, o.Patches) || living[i].First == nil || o.Statement == nil || living[i].First.Digest != o.Statement.Digest()):
		return nil, unfit("override %s acts on cohort %s already, and says something else: end that one first", o.ID, o.Cohort)
	default:
		if i < 0 {
			if err := p.taken(o.Cohort, o.ID); err != nil {
				return nil, err
			}
		}
		if err := p.inTime("override "+o.ID, o.Created, o.NotAfter); i >= 0 && err != nil { // one on its way from host to host keeps the time of its release
			if !living[i].NotAfter.Equal(o.NotAfter) {
				return nil, err
			}
		} else if err != nil && !o.NotAfter.After(p.now) {
			return nil, err
		}
		if err := p.ofRelease(ctx, o, i >= 0); err != nil {
			return nil, err
		}
	}
	done, err := rollout.Override(ctx, p.st, p.newest.Trust, o.Cohort, env, p.now)
	if err != nil {
		return nil, refusal(err)
	}
	out := &api.OverridePosted{ID: o.ID, Epoch: o.Epoch, Cohort: o.Cohort, Mark: done.View.Mark().String()}
	p.log.Info("override put", "override", o.ID, "cohort", o.Cohort, "hosts", len(o.Hosts), "ended", o.Ended != nil, "by", o.Author, "reason", o.Reason, "until", o.NotAfter, "token", p.who.name, "mark", out.Mark)
	if done.History != nil {
		out.Warning = "the copy of the order could not be written; the order is in force"
		p.log.Warn("the copy of the order could not be written; the order is in force", "cohort", o.Cohort, "err", done.History)
	}
	if err := p.readHead(ctx, o.Cohort); err != nil {
		p.log.Debug("read the new head", "cohort", o.Cohort, "err", err) // the next poll does
	}
	p.Wrote(o.Cohort)
	return out, nil
}

// has reports whether a head has an envelope already: an answer got lost.
func (p *overridePost) has(cohort, digest string) bool {
	p.mu.RLock()
	defer p.mu.RUnlock()
	co := p.cohorts[cohort]
	return co != nil && co.view != nil && slices.ContainsFunc(co.view.Head.Overrides, func(e manifest.Envelope) bool { return e.Digest() == digest })
}

// ofRelease demands that an override is that of its release: what was released, and no longer than that unless it lives already and is made to last longer.
func (p *overridePost) ofRelease(ctx context.Context, o *manifest.Override, lives bool) error {
	rel, err := p.readRelease(ctx, p.keys, o.Epoch, "")
	if errors.Is(err, errJunk) {
		return unfit("override %s names release %d, which is not there", o.ID, o.Epoch)
	}
	if err != nil {
		return err
	}
	if rel.Kind != manifest.ReleaseOverride || rel.OverrideID != o.ID {
		return unfit("override %s names release %d, which is not its own", o.ID, o.Epoch)
	}
	if err := p.onlyOverrides(ctx, p.keys, rel); err != nil {
		return untrusted(err)
	}
	if o.Statement == nil || !slices.ContainsFunc(rel.Cohorts[o.Cohort].Overridden, func(e manifest.Envelope) bool { return e.Digest() == o.Statement.Digest() }) {
		return unfit("override %s of cohort %s has another statement than its release %d", o.ID, o.Cohort, o.Epoch)
	}
	if !lives && (rel.NotAfter == nil || o.NotAfter.After(*rel.NotAfter)) {
		return unfit("override %s lasts longer than its release %d says", o.ID, o.Epoch)
	}
	return nil
}
