package distributor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/rollout"
	"github.com/muster-config/muster/distributor/store"
)

// ErrNoRelease says that a store has no such release.
var ErrNoRelease = errors.New("no such release")

// History tells what happened in a store: from its releases and the copies of heads alone, each verified, without a collector. It writes nothing. Not safe for
// concurrent use.
type History struct {
	*reader
	Keyring string // which keyring was trusted: "given" or "the store's own"
	// Skipped are objects that are not what they must be, and were left out: fsck says more.
	Skipped []string
}

// OpenHistory opens a store to look back. keyring is what a person trusts; nil trusts the store's own oldest one.
func OpenHistory(ctx context.Context, st store.ReadStore, keyring []byte, now time.Time) (*History, error) {
	h := &History{reader: newReader(st, st.URL(), slog.New(slog.DiscardHandler), func() time.Time { return now }, &indexes{}), Keyring: "given"}
	var err error
	if h.storeID, err = readStoreID(ctx, st); err != nil {
		if errors.Is(err, store.ErrNotFound) {
			return nil, fmt.Errorf("no %s: this is not a muster store, or nothing was ever published: %w", manifest.KeyStore, err)
		}
		return nil, err
	}
	versions, err := keyringVersions(ctx, st)
	if err != nil {
		return nil, err
	}
	if keyring == nil {
		if len(versions) == 0 {
			return nil, fmt.Errorf("store %s has no keyring, and none was given: %w", st.URL(), manifest.ErrKeyring)
		}
		h.Keyring = "the store's own"
		obj, err := st.Get(ctx, manifest.KeyKeyring(versions[0]), manifest.MaxKeyringBytes)
		if err != nil {
			return nil, fmt.Errorf("read keyring: %w", err)
		}
		keyring = obj.Data
	}
	first, err := manifest.VerifyKeyring(keyring)
	if err != nil {
		return nil, fmt.Errorf("keyring (%s): %w", h.Keyring, err)
	}
	if h.trust, err = manifest.NewTrust(first.Repo, keyring); err != nil {
		return nil, fmt.Errorf("keyring (%s): %w", h.Keyring, err)
	}
	h.trust.Store = h.storeID
	for _, v := range versions {
		if v <= first.Version {
			continue
		}
		obj, err := st.Get(ctx, manifest.KeyKeyring(v), manifest.MaxKeyringBytes)
		if err != nil {
			return nil, fmt.Errorf("read keyring: %w", err)
		}
		if h.trust, err = h.trust.AcceptKeyring(obj.Data); err != nil {
			return nil, fmt.Errorf("%s: %w", manifest.KeyKeyring(v), err)
		}
	}
	h.keyring, err = h.trust.Keys()
	return h, err
}

// Repo is the name of the config repo.
func (h *History) Repo() string { return h.keyring.Repo }

// Newest gives the newest release that verifies, nil if there is none.
func (h *History) Newest(ctx context.Context) (*manifest.Release, error) {
	rel, _, err := h.newest(ctx)
	if err != nil || rel == nil {
		return nil, err
	}
	return rel.Release, nil
}

// Heads are the heads that stand, by cohort. One that is not genuine is left out, and in Skipped.
func (h *History) Heads(ctx context.Context) (map[string]*manifest.View, error) {
	infos, err := listAll(ctx, h.st, manifest.PrefixCohorts)
	if err != nil {
		return nil, err
	}
	views := map[string]*manifest.View{}
	for _, info := range infos {
		name := strings.TrimSuffix(strings.TrimPrefix(info.Key, manifest.PrefixCohorts), ".json")
		if manifest.KeyHead(name) != info.Key {
			continue
		}
		view, err := h.Head(ctx, name)
		if err != nil {
			h.Skipped = append(h.Skipped, err.Error())
			continue
		}
		if view != nil {
			views[name] = view
		}
	}
	return views, nil
}

// Created is when a release was made, zero if it cannot be read.
func (h *History) Created(ctx context.Context, epoch uint64) time.Time {
	rel, err := h.at(ctx, epoch)
	if err != nil {
		return time.Time{}
	}
	return rel.Release.Created
}

// Entry is one thing that happened: a release, a decision about a cohort, or a commit that was refused.
type Entry struct {
	At       time.Time
	Release  *manifest.Release
	Decision *rollout.Decision
	Refused  *Refused
}

// Log gives at most limit entries, the newest first; 0 is all of them. With a cohort only what is about it: releases that changed or blocked it, and its decisions;
// a refused commit is about none.
func (h *History) Log(ctx context.Context, cohort string, limit int) ([]Entry, error) {
	streams := []stream{&releaseStream{h: h, cohort: cohort}}
	heads, err := h.headStreams(ctx, cohort)
	if err != nil {
		return nil, err
	}
	streams = append(streams, heads...)
	refused := &refusals{h: h}
	if cohort == "" {
		if refused, err = h.refusals(ctx); err != nil {
			return nil, err
		}
	}
	entries := []Entry{}
	for limit <= 0 || len(entries) < limit {
		var from stream
		var newest time.Time
		for _, s := range streams {
			at, ok, err := s.peek(ctx)
			if err != nil {
				return nil, err
			}
			// At the same second the decision came after the release.
			if ok && (from == nil || !at.Before(newest)) {
				from, newest = s, at
			}
		}
		// With nothing else left, newest is the beginning of time.
		more, err := refused.after(ctx, newest, max(0, limit-len(entries)))
		if err != nil {
			return nil, err
		}
		entries = append(entries, more...)
		if from == nil {
			break
		}
		got, err := from.take(ctx)
		if err != nil {
			return nil, err
		}
		entries = append(entries, got...)
	}
	if limit > 0 && len(entries) > limit {
		entries = entries[:limit]
	}
	return entries, nil
}

// stream gives entries one by one, the newest first, and reads no more than it must.
type stream interface {
	// peek dates the next one.
	peek(ctx context.Context) (at time.Time, ok bool, err error)
	// take gives what the next one comes to, which may be nothing.
	take(ctx context.Context) ([]Entry, error)
}

type releaseStream struct {
	h      *History
	cohort string
	begun  bool
	epochs []uint64 // of this page, still to be read, ascending
	last   uint64   // read last
	next   *verified
}

func (s *releaseStream) peek(ctx context.Context) (time.Time, bool, error) {
	for s.next == nil {
		epoch, err := s.pop(ctx)
		if err != nil || epoch == 0 {
			return time.Time{}, false, err
		}
		rel, err := s.h.at(ctx, epoch)
		switch {
		case errors.Is(err, errJunk):
			s.h.Skipped = append(s.h.Skipped, err.Error())
			continue
		case err != nil:
			return time.Time{}, false, err
		}
		if part, ok := rel.Cohorts[s.cohort]; s.cohort == "" || ok && part.State != manifest.StateHolds {
			s.next = rel
		}
	}
	return s.next.Created, true, nil
}

// pop gives the next epoch downwards that has an object, 0 at the end.
func (s *releaseStream) pop(ctx context.Context) (epoch uint64, err error) {
	if len(s.epochs) == 0 && !s.begun {
		s.epochs, err = s.h.lastEpochs(ctx)
	} else if len(s.epochs) == 0 && s.last > 1 {
		s.epochs, err = s.h.epochsBefore(ctx, s.last)
	}
	s.begun = true
	if err != nil || len(s.epochs) == 0 {
		return 0, err
	}
	s.last = s.epochs[len(s.epochs)-1]
	s.epochs = s.epochs[:len(s.epochs)-1]
	return s.last, nil
}

func (s *releaseStream) take(context.Context) ([]Entry, error) {
	rel := s.next
	s.next = nil
	return []Entry{{At: rel.Created, Release: rel.Release}}, nil
}

// headStreams are those of a cohort's heads, or of all cohorts'.
func (h *History) headStreams(ctx context.Context, cohort string) ([]stream, error) {
	prefix := manifest.PrefixHistory
	if cohort != "" {
		prefix += cohort + "/"
	}
	infos, err := listAll(ctx, h.st, prefix)
	if err != nil {
		return nil, err
	}
	marks := map[string][]manifest.Mark{}
	for _, info := range infos {
		name, file, _ := strings.Cut(strings.TrimPrefix(info.Key, manifest.PrefixHistory), "/")
		if mark, err := manifest.ParseMark(strings.TrimSuffix(file, ".json")); err == nil && manifest.KeyHistory(name, mark) == info.Key {
			marks[name] = append(marks[name], mark)
		}
	}
	// The copy of the newest head may not be written yet.
	heads, err := listAll(ctx, h.st, manifest.PrefixCohorts)
	if err != nil {
		return nil, err
	}
	current := map[string]bool{}
	for _, info := range heads {
		name := strings.TrimSuffix(strings.TrimPrefix(info.Key, manifest.PrefixCohorts), ".json")
		if manifest.KeyHead(name) == info.Key && manifest.ValidName(name) && (cohort == "" || cohort == name) {
			current[name] = true
			if _, ok := marks[name]; !ok {
				marks[name] = nil // a stream also where there is no copy
			}
		}
	}
	var streams []stream
	for _, name := range sorted(marks) {
		slices.SortFunc(marks[name], func(a, b manifest.Mark) int { return a.Compare(b) })
		s := &headStream{h: h, cohort: name, marks: marks[name]}
		if current[name] {
			if err := s.head(ctx); err != nil {
				return nil, err
			}
		}
		streams = append(streams, s)
	}
	return streams, nil
}

// head begins with the head itself, if it is above its copies.
func (s *headStream) head(ctx context.Context) error {
	key := manifest.KeyHead(s.cohort)
	obj, err := s.h.st.Get(ctx, key, manifest.MaxHeadBytes)
	if err != nil && !errors.Is(err, store.ErrNotFound) && !errors.Is(err, store.ErrTooLarge) {
		return fmt.Errorf("read %s: %w", key, err)
	}
	var view *manifest.View
	if err == nil {
		_, view, err = s.h.trust.AcceptHead(s.cohort, obj.Data, s.h.now())
	}
	switch {
	case err != nil:
		s.h.Skipped = append(s.h.Skipped, fmt.Sprintf("%s: %v", key, err))
	case len(s.marks) == 0 || view.Mark().Compare(s.marks[len(s.marks)-1]) > 0:
		s.next = view
	}
	return nil
}

type headStream struct {
	h      *History
	cohort string
	marks  []manifest.Mark // still to be read, ascending
	next   *manifest.View
	begun  bool
	over   []Entry // what ended by itself after next and before what was told already, the oldest first
}

func (s *headStream) peek(ctx context.Context) (_ time.Time, ok bool, err error) {
	if s.next == nil {
		if s.next, err = s.read(ctx); err != nil || s.next == nil {
			return time.Time{}, false, err
		}
	}
	if !s.begun {
		s.begun, s.over = true, s.ended(s.next, nil)
	}
	if n := len(s.over); n > 0 {
		return s.over[n-1].At, true, nil
	}
	return since(s.next), true, nil
}

// since is when a head was made.
func since(v *manifest.View) time.Time {
	at := v.Manifest.Issued
	for _, o := range v.Overrides { // their heads keep the order that was signed before
		if o.Created.After(at) {
			at = o.Created
		}
		if o.Ended != nil && o.Ended.At.After(at) {
			at = o.Ended.At
		}
	}
	return at
}

// read gives the next copy that is genuine, nil at the end.
func (s *headStream) read(ctx context.Context) (*manifest.View, error) {
	for len(s.marks) > 0 {
		mark := s.marks[len(s.marks)-1]
		s.marks = s.marks[:len(s.marks)-1]
		key := manifest.KeyHistory(s.cohort, mark)
		obj, err := s.h.st.Get(ctx, key, manifest.MaxHeadBytes)
		if err != nil && !errors.Is(err, store.ErrNotFound) && !errors.Is(err, store.ErrTooLarge) {
			return nil, fmt.Errorf("read %s: %w", key, err)
		}
		var view *manifest.View
		if err == nil {
			_, view, err = s.h.trust.AcceptHead(s.cohort, obj.Data, s.h.now())
		}
		if err == nil && view.Mark() != mark {
			err = fmt.Errorf("it is a copy of %s", view.Mark())
		}
		if err != nil {
			s.h.Skipped = append(s.h.Skipped, fmt.Sprintf("%s: %v", key, err))
			continue
		}
		return view, nil
	}
	return nil, nil
}

func (s *headStream) take(ctx context.Context) ([]Entry, error) {
	if n := len(s.over); n > 0 {
		last := s.over[n-1]
		s.over = s.over[:n-1]
		return []Entry{last}, nil
	}
	view := s.next
	before, err := s.read(ctx)
	if err != nil {
		return nil, err
	}
	s.next = before
	if before != nil {
		s.over = s.ended(before, view)
	}
	var entries []Entry
	for _, d := range slices.Backward(rollout.Decisions(before, view)) {
		entries = append(entries, Entry{At: d.At, Decision: &d})
	}
	return entries, nil
}

// ended tells what of a head ended by itself, at its time, before the head after it, nil for none: nobody writes that down, since nothing has to happen for it.
func (s *headStream) ended(v, after *manifest.View) (list []Entry) {
	before := s.h.now()
	if after != nil {
		before = since(after)
	}
	add := func(at time.Time, d rollout.Decision) {
		if at.After(since(v)) && !at.After(before) {
			d.Cohort, d.Mark, d.At = s.cohort, v.Mark(), at
			list = append(list, Entry{At: at, Decision: &d})
		}
	}
	for _, o := range v.Living(since(v)) {
		taken := func(w *manifest.View) bool { // from all hosts, before its time
			return slices.ContainsFunc(w.Manifest.Rollout.Endings, func(e manifest.Ending) bool { return e.Override == o.ID && e.Below == "" })
		}
		if taken(v) || after != nil && slices.ContainsFunc(after.Overrides, func(w manifest.VerifiedOverride) bool {
			return w.ID == o.ID && (w.Ended != nil || w.NotAfter.After(o.NotAfter))
		}) {
			continue
		}
		add(o.NotAfter, rollout.Decision{What: "override " + o.ID + " ended by itself", Epoch: o.Epoch, Why: "its time was over", Hosts: o.Hosts})
	}
	stops := func(what string, stops []manifest.Stop) {
		for _, x := range stops {
			if x.Until != nil {
				add(*x.Until, rollout.Decision{What: what, Why: "its time was over", Hosts: x.Hosts})
			}
		}
	}
	r := &v.Manifest.Rollout
	stops("the freeze ended by itself", r.Freezes)
	stops("the hold ended by itself", r.Holds)
	slices.SortStableFunc(list, func(a, b Entry) int { return a.At.Compare(b.At) })
	return list
}
