// Package delivery says on the forge what becomes of releases: a deployment for each environment, a status of the commit, a pull request that takes back what failed.
// It follows the collector, and nothing waits for it: whatever it could not say it says later.
package delivery

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/muster-config/muster/distributor/api"
	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/pipeline/forge"
)

// Context of the commit status.
const Context = "muster / delivered"

// Times.
const (
	defaultEvery = 30 * time.Second // between two words about the same deployment in the same state and wave
	lookAgain    = 15 * time.Second // without an event: greens come with time too
	firstPause   = 5 * time.Second
	longestPause = 5 * time.Minute
	firstWord    = 10 * time.Second // that the collector has to say how all cohorts stand
	maxActive    = 64               // releases followed at a time
	maxUnread    = 8                // releases tried again that could not be read; of older ones the newer tell
	maxRefused   = 100              // commits that wait for the forge to be told of
	adopted      = 8                // releases looked after at the start: who was away, or whom the forge was, says how they ended
)

// Forge is where it is said. *forge.Client is one.
type Forge interface {
	Deploy(ctx context.Context, d forge.Deployment) (*forge.Deployment, error)
	Progress(ctx context.Context, d *forge.Deployment, s forge.DeploymentStatus) error
	Status(ctx context.Context, commit string, s forge.Status) error
	Said(ctx context.Context, commit, context string) (forge.Status, error)
	Revert(ctx context.Context, r forge.Revert) (*forge.Pull, bool, error)
	Calls() forge.Calls
}

// Collector is who knows. *api.Client is one.
type Collector interface {
	Events(ctx context.Context, got func(api.Event)) error
	Wait(ctx context.Context, epoch uint64, query api.WaitQuery) (*api.Wait, error)
	Releases(ctx context.Context) ([]api.Release, error)
}

// Config of a Deliverer.
type Config struct {
	Forge     Forge
	Collector Collector
	Load      func(ctx context.Context, epoch uint64) (*manifest.Release, error) // from the store, verified
	Branch    string                                                             // that reverts go to
	Per       Per                                                                // default PerEnv
	Revert    bool
	URL       string        // of where to read more; http or https, or ""
	Every     time.Duration // default 30s
	Say       func(text string)
}

// Deliverer follows releases. Published and Refused may be called from anywhere and never wait; Run does the work.
type Deliverer struct {
	cfg  Config
	wake chan struct{}

	once  sync.Once
	heard chan struct{} // closed by the first event

	mu       sync.Mutex
	fresh    []uint64 // epochs
	refused  []refused
	rollouts map[string]api.Event
	ends     ends

	active  []*tracked // of Run alone, by epoch; so are these
	unread  map[uint64]*unread
	refusal map[thing]*refusal
	missed  map[uint64]bool // epochs that were there at the start: what became of them before that was not heard
}

// unread is a release that could not be read.
type unread struct {
	epoch uint64
	next  time.Time
	pause time.Duration
}

type refused struct{ commit, why string }

// tracked is a release under way.
type tracked struct {
	Release
	deployments map[string]*forge.Deployment
	told        map[string]said
	at          map[string]time.Time
	status      *forge.Status // said last; nil: not known
	reverted    bool
	watched     bool // a late failure would take it back yet
	missed      bool // see Deliverer
	over        bool // nothing more can be heard of it: a newer one stands in its place
	done        bool
	before      forge.Calls
}

// New makes a Deliverer.
func New(cfg Config) *Deliverer {
	if cfg.Per == "" {
		cfg.Per = PerEnv
	}
	if cfg.Every <= 0 {
		cfg.Every = defaultEvery
	}
	return &Deliverer{cfg: cfg, wake: make(chan struct{}, 1), heard: make(chan struct{}), rollouts: map[string]api.Event{}, ends: ends{}, missed: map[uint64]bool{}, unread: map[uint64]*unread{}, refusal: map[thing]*refusal{}}
}

// Published takes up a release.
func (d *Deliverer) Published(epoch uint64) {
	d.mu.Lock()
	d.fresh = append(d.fresh, epoch)
	d.mu.Unlock()
	d.poke()
}

// Refused takes up a commit that was not published.
func (d *Deliverer) Refused(commit, why string) {
	d.mu.Lock()
	had, r := "", refused{commit, why}
	if !slices.Contains(d.refused, r) {
		d.refused = append(d.refused, r)
	}
	if len(d.refused) > maxRefused { // the forge is away for long: the newest matter
		had, d.refused = d.refused[0].commit, d.refused[1:]
	}
	d.mu.Unlock()
	if had != "" {
		d.cfg.Say(fmt.Sprintf("that commit %.12s was refused is not told on GitHub: %d newer ones wait to be told", had, maxRefused))
	}
	d.poke()
}

func (d *Deliverer) poke() {
	select {
	case d.wake <- struct{}{}:
	default:
	}
}

// Run says what there is to say until ctx ends. It never ends by itself.
func (d *Deliverer) Run(ctx context.Context) {
	var events sync.WaitGroup
	defer events.Wait()
	events.Go(func() { d.listen(ctx) })
	d.begin(ctx)
	known := false
	trouble, pause := map[string]bool{}, firstPause
	for ctx.Err() == nil {
		known = known || d.adopt(ctx)
		errs := d.turn(ctx)
		if ctx.Err() != nil {
			return
		}
		wait := lookAgain
		for _, who := range slices.Sorted(maps.Keys(errs)) { // of an outage the first word is enough: the next calls fail in other words
			if !trouble[who] {
				trouble[who] = true
				d.cfg.Say(errs[who].Error() + "; what is missing is written later")
			}
			wait = pause
		}
		var e *forge.Error
		if errors.As(errs[theForge], &e) && !e.Until.IsZero() {
			wait = max(wait, time.Until(e.Until))
		}
		if len(errs) == 0 {
			pause = firstPause
			for _, who := range slices.Sorted(maps.Keys(trouble)) {
				d.cfg.Say(who + " answers again")
			}
			clear(trouble)
		} else {
			pause = min(2*pause, longestPause)
		}
		if !d.rest(ctx, wait, len(errs) > 0) {
			return
		}
	}
}

// Who may be away.
const (
	theForge  = "GitHub"
	collector = "the collector"
	theStore  = "the store"
)

// away is an error of another than the forge.
type away struct {
	who string
	err error
}

func (a *away) Error() string { return a.err.Error() }
func (a *away) Unwrap() error { return a.err }

// begin waits until it is known how the cohorts stand: without that a release that was rolled back would seem to be under way. The collector says it all at once.
func (d *Deliverer) begin(ctx context.Context) {
	t := time.NewTimer(firstWord)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return
	case <-t.C:
		return
	case <-d.heard:
	}
	d.rest(ctx, time.Second, true)
}

// rest waits for news; after trouble for the time alone.
func (d *Deliverer) rest(ctx context.Context, wait time.Duration, alone bool) bool {
	t := time.NewTimer(wait)
	defer t.Stop()
	wake := d.wake
	if alone {
		wake = nil
	}
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
	case <-wake:
	}
	return true
}

// listen follows the collector's events. A stream that ended, however it did, is taken up again after a pause: longer each time, unless it said something.
func (d *Deliverer) listen(ctx context.Context) {
	pause := time.Second
	for ctx.Err() == nil {
		_ = d.cfg.Collector.Events(ctx, func(e api.Event) {
			d.mu.Lock()
			d.rollouts[e.Cohort] = e
			d.ends.note(e) // here, and not when it is told: GitHub may be away while a failure comes and goes
			d.mu.Unlock()
			d.once.Do(func() { close(d.heard) })
			pause = time.Second
			d.poke()
		})
		t := time.NewTimer(pause)
		select {
		case <-ctx.Done():
		case <-t.C:
		}
		t.Stop()
		pause = min(2*pause, time.Minute)
	}
}

// adopt takes up the newest releases: who was away while they were delivered says how they ended. What is published meanwhile is followed also while the collector is away.
func (d *Deliverer) adopt(ctx context.Context) (done bool) {
	list, err := d.cfg.Collector.Releases(ctx)
	if err != nil {
		return false
	}
	n := 0
	for _, r := range list { // the newest first
		if r.Kind != manifest.ReleaseCommit {
			continue
		}
		if n++; n > adopted {
			break
		}
		d.missed[r.Epoch] = !slices.ContainsFunc(d.active, func(t *tracked) bool { return t.Epoch == r.Epoch })
		d.mu.Lock()
		d.fresh = append(d.fresh, r.Epoch)
		d.mu.Unlock()
	}
	return true
}

// turn says all that is new. What fails is tried again in the next one; of each who is away it gives the first error.
func (d *Deliverer) turn(ctx context.Context) map[string]error {
	d.take(ctx)
	errs := map[string]error{}
	if err := d.allowed(thing{0, "refused"}, func() error { return d.sayRefused(ctx) }); err != nil {
		errs[theForge] = err
		return errs
	}
	for _, t := range d.active {
		if t.done {
			continue
		}
		err := d.deliver(ctx, t)
		who := theForge
		var other *away
		if errors.As(err, &other) {
			who = other.who
		}
		if err != nil && errs[who] == nil {
			errs[who] = err
		}
		if errs[theForge] != nil {
			break // the others would fare no better
		}
	}
	d.settle()
	return errs
}

// take moves what was published into the list. A release is in it once. One that cannot be read holds up no other: it is tried again later, each time after a longer pause.
func (d *Deliverer) take(ctx context.Context) {
	d.mu.Lock()
	fresh := d.fresh
	d.fresh = nil
	d.mu.Unlock()
	for _, u := range d.unread {
		if !slices.Contains(fresh, u.epoch) {
			fresh = append(fresh, u.epoch)
		}
	}
	for _, epoch := range fresh {
		if !slices.ContainsFunc(d.active, func(t *tracked) bool { return t.Epoch == epoch }) {
			u := d.unread[epoch]
			if u != nil && time.Now().Before(u.next) {
				continue
			}
			rel, err := d.cfg.Load(ctx, epoch)
			if err != nil {
				if ctx.Err() == nil {
					d.later(epoch, u, err)
				}
				continue
			}
			delete(d.unread, epoch)
			if slices.ContainsFunc(d.active, func(t *tracked) bool { return t.Commit == rel.Commit && t.Epoch > epoch }) {
				continue // built once more since: on the commit only one of the two can be told
			}
			d.active = slices.DeleteFunc(d.active, func(t *tracked) bool { return t.Commit == rel.Commit })
			d.active = append(d.active, &tracked{Release: Of(rel), missed: d.missed[epoch], deployments: map[string]*forge.Deployment{}, told: map[string]said{}, at: map[string]time.Time{}, before: d.cfg.Forge.Calls()})
		}
	}
	slices.SortFunc(d.active, func(a, b *tracked) int { return int(int64(a.Epoch) - int64(b.Epoch)) })
	d.bound()
}

// bound lets go of releases when there are too many: of those that are told first, then of those that no rollout names, always the oldest.
func (d *Deliverer) bound() {
	if len(d.active) <= maxActive {
		return
	}
	named := map[uint64]bool{}
	d.mu.Lock()
	for _, e := range d.rollouts {
		named[e.Target] = true
		if e.Rollout != nil {
			named[e.Rollout.Target] = true
			for _, h := range e.Rollout.Halts {
				named[h.Epoch] = true
			}
		}
	}
	d.mu.Unlock()
	for len(d.active) > maxActive {
		older := d.active[:len(d.active)-1]
		at := slices.IndexFunc(older, func(t *tracked) bool { return t.ended() && !named[t.Epoch] })
		if at < 0 {
			at = slices.IndexFunc(older, func(t *tracked) bool { return !named[t.Epoch] })
		}
		t := older[max(at, 0)]
		if !t.done {
			d.cfg.Say(fmt.Sprintf("what becomes of epoch %d is not told on GitHub any more: more than %d releases are under way", t.Epoch, maxActive))
		}
		d.active = slices.Delete(d.active, max(at, 0), max(at, 0)+1)
	}
}

// ended reports whether it was said how it ended.
func (t *tracked) ended() bool {
	return t.done || t.status != nil && (t.status.State == forge.Good || t.status.State == forge.Bad)
}

// later remembers a release that cannot be read now, and says so once. Of many the oldest is let go: newer ones tell of it.
func (d *Deliverer) later(epoch uint64, u *unread, err error) {
	if u == nil {
		d.cfg.Say(fmt.Sprintf("what becomes of epoch %d is not told for now: read the release: %v", epoch, err))
		u = &unread{epoch: epoch, pause: firstPause}
		d.unread[epoch] = u
		if len(d.unread) > maxUnread {
			delete(d.unread, slices.Min(slices.Collect(maps.Keys(d.unread))))
		}
	}
	u.next = time.Now().Add(u.pause)
	u.pause = min(2*u.pause, longestPause)
}

// settle forgets what is over: a success when nobody watches it any more, a failure when a newer release has come.
func (d *Deliverer) settle() {
	newest := uint64(0)
	for _, t := range d.active {
		newest = max(newest, t.Epoch)
	}
	for _, t := range d.active {
		if t.status != nil && !t.done && (t.status.State == forge.Good && !t.watched || t.Epoch < newest && (t.over || t.status.State == forge.Bad && (t.reverted || !d.cfg.Revert))) {
			t.done = true
			d.cfg.Say(fmt.Sprintf("epoch %d is told on GitHub (%s): %s", t.Epoch, t.status.Description, d.cfg.Forge.Calls().Sub(t.before)))
		}
	}
	maps.DeleteFunc(d.refusal, func(of thing, _ *refusal) bool {
		return of.epoch > 0 && !slices.ContainsFunc(d.active, func(t *tracked) bool { return t.Epoch == of.epoch && !t.done })
	})
	// The newest stays: it keeps its number from being taken up again.
	d.active = slices.DeleteFunc(d.active, func(t *tracked) bool { return t.done && t.Epoch < newest })
}
