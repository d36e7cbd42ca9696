package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/parcel"
	"github.com/muster-config/muster/distributor/store"
)

// handOrder asks the deciding goroutine to apply what a carrier brings.
type handOrder struct {
	from Carrier
	hold HoldOrder
	done chan struct{}
	res  OnceResult
	err  error
}

// ErrNeedsHold says that what was brought is not what this host's sources say, so that it would not stay.
var ErrNeedsHold = errors.New("this is not what the sources of this host say now, so that it must be held: give the reason and how long")

// ErrHeld says that somebody holds the host already.
var ErrHeld = errors.New("this host is held")

// ErrNotForHost says that a file was made for other hosts than this one.
var ErrNotForHost = errors.New("not for this host")

// ErrNotRun says that the agent does not run, or ends.
var ErrNotRun = errors.New("the agent ends")

// Apply takes what a carrier brings, by the hand of somebody on the host: the same as any sync with every check of one, but this carrier's head alone counts. Then the host is held at what
// it got, so that its sources do not take it away again; an override ends that hold with itself. Without a hold only what a source of the host says as well is taken. What is refused leaves
// the host as it was. Safe beside Run, which does it; for an agent that does not run see ApplyOnce.
func (a *Agent) Apply(ctx context.Context, from Carrier, hold HoldOrder) (OnceResult, error) {
	o := &handOrder{from: from, hold: hold, done: make(chan struct{})}
	select {
	case a.byHand <- o:
	case <-ctx.Done():
		return OnceResult{}, fmt.Errorf("%w before it came to this", ErrNotRun)
	}
	select {
	case <-o.done:
		return o.res, o.err
	case <-ctx.Done():
		return OnceResult{}, fmt.Errorf("%w before this was over; muster-agent status says what became of it", ErrNotRun)
	}
}

// ApplyOnce is Apply for an agent that does not run.
func (a *Agent) ApplyOnce(ctx context.Context, from Carrier, hold HoldOrder) (OnceResult, error) {
	a.hurry()
	if err := a.start(ctx); err != nil {
		return OnceResult{}, err
	}
	if a.cfg.Mode == ModeEnforce {
		if err := a.resume(ctx); err != nil {
			a.log.Warn("a change that was interrupted did not end well", "err", err)
		}
	}
	res, err := a.applyFrom(ctx, from, hold)
	if rerr := a.out.sendOnce(ctx); rerr != nil {
		a.log.Warn("report not delivered", "err", rerr)
	}
	return res, err
}

func (a *Agent) applyFrom(ctx context.Context, from Carrier, order HoldOrder) (OnceResult, error) {
	if a.cfg.Mode == ModeObserve {
		return OnceResult{}, errors.New("mode: observe: this agent changes nothing; set mode: enforce in its configuration")
	}
	if !order.IsZero() {
		if _, err := order.end(a.now()); err != nil {
			return OnceResult{}, err
		}
	}
	// Its keyrings and its head are the only ones that are asked for; objects are named by their digests, so that the host's own sources may help out.
	own, silent := a.opts.Carriers, a.silent
	defer func() { a.opts.Carriers, a.silent = own, silent }()
	a.opts.Carriers, a.silent = []Carrier{from}, map[string]bool{}
	data, view, err := a.brought(ctx, from)
	if err != nil {
		return a.refusedByHand(from, err), err
	}
	earlier := a.holding()
	if order.IsZero() {
		if earlier != nil {
			return OnceResult{}, fmt.Errorf("%w by %s until %s: %s", ErrHeld, earlier.Hold.By, earlier.Hold.Until.UTC().Format(time.RFC3339), earlier.Hold.Why)
		}
		if !a.alsoSaid(ctx, own, data) {
			return OnceResult{}, ErrNeedsHold
		}
	}
	a.opts.Carriers = append([]Carrier{from}, own...)
	before := a.services()
	fresh := a.onlyByHand(view)
	if err := a.forThisHost(view, fresh); err != nil {
		err = fmt.Errorf("%s: %w", from.Name(), err)
		return a.refusedByHand(from, err), err
	}
	if err := a.take(data); err != nil {
		return a.refusedByHand(from, err), err
	}
	was := a.st.ByHand
	if order.IsZero() {
		a.saidBySource(view)
	} else {
		a.bringByHand(fresh)
	}
	a.handed = !order.IsZero()
	r, err := a.resolve(ctx)
	a.handed = false
	if err != nil {
		a.layDown(was)
		return a.refusedByHand(from, err), err
	}
	var mine *heldDoc
	if !order.IsZero() {
		// On disk before the change: whatever becomes of this agent, the host is taken to this release and to no other.
		var limit time.Time
		if r.Source == manifest.FromOverride && r.Until != nil {
			limit = *r.Until
		}
		if mine, err = a.held.set(order, targetOf(r).key(), limit); err != nil {
			a.layDown(was)
			return OnceResult{}, err
		}
	}
	a.log.Warn("applied by hand", "source", from.Name(), "mark", view.Mark(), "epoch", r.Epoch(), "override", r.Override, "by", order.By, "why", order.Why)
	err = a.settle(ctx, once)
	res := a.result([]SourceResult{{Name: from.Name(), Mark: view.Mark().String()}}, before)
	if !order.IsZero() && !res.Installed {
		// It did not work here, and the host is back at what it had: that is no reason to hold it at something else.
		a.layDown(was)
		if perr := a.held.restore(mine, earlier); perr != nil {
			err = errors.Join(err, perr)
		}
		if perr := a.persist(); perr != nil {
			err = errors.Join(err, fmt.Errorf("%w: %w", ErrNotKept, perr))
		}
		a.publish(false)
		a.wake() // to what is wanted instead
		res.Held = nil
	}
	return res, err
}

// told are the overrides of a view that its head itself says, without those that were kept from earlier ones.
func told(v *manifest.View) []manifest.VerifiedOverride {
	own := map[string]bool{}
	for i := range v.Head.Overrides {
		own[v.Head.Overrides[i].Digest()] = true
	}
	return v.Overrides[:min(len(own), len(v.Overrides))]
}

// onlyByHand are the living overrides of a brought head that were made apart from the store, and that no source of this host has said.
func (a *Agent) onlyByHand(v *manifest.View) []manifest.VerifiedOverride {
	said := map[string]bool{}
	if a.view != nil {
		for i := range a.view.Overrides {
			said[spanKey(&a.view.Overrides[i])] = true
		}
	}
	var list []manifest.VerifiedOverride
	for _, o := range told(v) {
		key := spanKey(&o)
		_, hand := a.st.ByHand[key]
		if o.Ended == nil && o.Epoch >= parcel.FirstApart && a.now().Before(o.NotAfter) && (hand || !said[key]) {
			list = append(list, o)
		}
	}
	return list
}

// forThisHost refuses what was made by hand for others.
func (a *Agent) forThisHost(v *manifest.View, fresh []manifest.VerifiedOverride) error {
	if len(fresh) == 0 {
		return nil
	}
	r, err := manifest.Resolve(v, manifest.Host{Name: a.cfg.Host, Labels: maps.Clone(a.cfg.Labels)}, a.now())
	if err != nil {
		return err
	}
	for i := range fresh {
		if fresh[i].ID == r.Override {
			return nil
		}
	}
	o := &fresh[len(fresh)-1]
	switch {
	case len(o.Hosts) > 0 && !slices.Contains(o.Hosts, a.cfg.Host):
		list := strings.Join(head(o.Hosts, 5), ", ")
		if n := len(o.Hosts) - 5; n > 0 {
			list += fmt.Sprintf(" and %d more", n)
		}
		return fmt.Errorf("%w: override %s in it is for %s, and this is %s", ErrNotForHost, o.ID, list, a.cfg.Host)
	case r.Source == manifest.FromHold:
		return fmt.Errorf("%w: override %s in it does not reach %s, which its order holds at epoch %d: %s", ErrNotForHost, o.ID, a.cfg.Host, r.Epoch(), r.Why)
	}
	return fmt.Errorf("%w: override %s in it does not act on %s, whose order leads it to epoch %d", ErrNotForHost, o.ID, a.cfg.Host, r.Epoch())
}

// bringByHand makes overrides those that the newest order by hand brought.
func (a *Agent) bringByHand(fresh []manifest.VerifiedOverride) {
	next := map[string]bool{}
	for i := range a.view.Overrides { // what is over is forgotten
		if key := spanKey(&a.view.Overrides[i]); hasKey(a.st.ByHand, key) {
			next[key] = false
		}
	}
	for i := range fresh {
		next[spanKey(&fresh[i])] = true
	}
	a.st.ByHand, a.dirty = next, true
}

// layDown takes an order by hand back: what it brought acts no more, and what was brought before does as it did.
func (a *Agent) layDown(was map[string]bool) {
	next := map[string]bool{}
	for key := range a.st.ByHand {
		next[key] = was[key]
	}
	a.st.ByHand, a.dirty = next, true
}

// saidBySource notes that a source of the host says overrides: from now on they are as any other, and nobody on the host can lay them down.
func (a *Agent) saidBySource(v *manifest.View) {
	for _, o := range told(v) {
		if key := spanKey(&o); hasKey(a.st.ByHand, key) {
			next := maps.Clone(a.st.ByHand)
			delete(next, key)
			a.st.ByHand, a.dirty = next, true
		}
	}
}

func hasKey(m map[string]bool, key string) bool {
	_, ok := m[key]
	return ok
}

// byHandActs says whether what came by hand acts: as long as the hold lasts with which it came. After it the newest head decides as if it had not come. It stays among what is kept of
// the overrides, so that nothing is lost of trust, and once a source says it, it acts as any other.
func (a *Agent) byHandActs() bool {
	if a.handed || len(a.st.ByHand) == 0 {
		return true
	}
	doc := a.holding()
	return doc != nil && doc.Target != ""
}

// laidDown says whether an override came by hand and acts no more.
func (s *state) laidDown(o *manifest.VerifiedOverride, acts bool) bool {
	newest, byHand := s.ByHand[spanKey(o)]
	return byHand && o.Ended == nil && !(acts && newest)
}

// beside is the epoch that a head assigns to a host without what came to it by hand, 0 if nothing did.
func (s *state) beside(v *manifest.View, host manifest.Host, now time.Time) uint64 {
	w := *v
	w.Overrides = slices.DeleteFunc(slices.Clone(v.Overrides), func(o manifest.VerifiedOverride) bool { return s.laidDown(&o, false) })
	r, err := manifest.Resolve(&w, host, now)
	if err != nil || len(w.Overrides) == len(v.Overrides) {
		return 0
	}
	return r.Epoch()
}

// alsoSaid says whether a source of the host gives the very same head.
func (a *Agent) alsoSaid(ctx context.Context, own []Carrier, data []byte) bool {
	a.opts.Carriers, a.silent = own, map[string]bool{}
	for _, ans := range a.ask(ctx) {
		if ans.err == nil && bytes.Equal(ans.data, data) {
			return true
		}
	}
	return false
}

// brought reads the head that a carrier brings, and the keyrings that it may need, and judges it. Nothing is done because of it yet.
func (a *Agent) brought(ctx context.Context, from Carrier) ([]byte, *manifest.View, error) {
	a.followKeyrings(ctx)
	answers := a.ask(ctx)
	if err := answers[0].err; err != nil {
		if errors.Is(err, store.ErrNotFound) {
			err = fmt.Errorf("it has no head of cohort %s, which this host is in: %w", a.cfg.Cohort, err)
		}
		return nil, nil, fmt.Errorf("%s: %w", from.Name(), err)
	}
	_, view, err := a.trust().AcceptHead(a.cfg.Cohort, answers[0].data, a.now())
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", from.Name(), err)
	}
	return answers[0].data, view, nil
}

// refusedByHand is the result of what was not taken.
func (a *Agent) refusedByHand(from Carrier, err error) OnceResult {
	res := a.result([]SourceResult{{Name: from.Name(), Err: err, Error: err.Error(), Refused: refusal(err)}}, a.services())
	res.Code = codeOf(err)
	return res
}

// hurry is for who waits: a source or collector that takes the connection and says nothing costs seconds, not minutes.
func (a *Agent) hurry() {
	quick := *a.timing
	quick.ask, quick.stall, quick.post = min(quick.ask, onceAsk), min(quick.stall, onceStall), min(quick.post, onceAsk)
	a.timing = &quick
}
