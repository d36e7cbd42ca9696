package agent

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/report"
)

// timing is every wait of the agent that the configuration does not give.
type timing struct {
	full   time.Duration // between full re-syncs while the long poll works
	ask    time.Duration // for one carrier's head or keyring
	grace  time.Duration // for the other carriers, once one has answered
	stall  time.Duration // window in which a body must get on
	retry  time.Duration // first pause after a fetch, a long poll or a report that did not work
	again  time.Duration // first pause before a failed release is tried again
	most   time.Duration // longest pause before a failed release is tried again
	probe  time.Duration // first pause between two questions while a confirmation is awaited
	lazy   time.Duration // age at which a passing phase is worth a report
	post   time.Duration // for one report
	leave  time.Duration // for the last one
	quiet  time.Duration // after a change, until what is left of older ones is removed
	settle time.Duration // how long a report of drift may hold up the repair
	note   time.Duration // after a change that ended well, until the state says so too; see later
}

func defaultTiming() *timing {
	return &timing{
		full: 10 * time.Minute, ask: 15 * time.Second, grace: 3 * time.Second, stall: stallWindow, retry: time.Second, again: 10 * time.Second, most: 10 * time.Minute,
		probe: 20 * time.Millisecond, lazy: time.Second, post: 10 * time.Second, leave: 2 * time.Second, quiet: 10 * time.Second, settle: 2 * time.Second, note: 2 * time.Second,
	}
}

// maxTries is how often a release that failed on this host is tried. A failure to fetch or verify it is none of them (B053).
const maxTries = 5

// Agent keeps one host right. Run and Once are for one goroutine, one of them at a time.
type Agent struct {
	opts   Options
	cfg    Config
	log    *slog.Logger
	now    func() time.Time
	timing *timing
	boot   string
	id     *identity
	out    *reports

	// What the deciding goroutine knows.
	st    *state
	dirty bool // st holds what is not on disk yet
	over  bool // of that is new only how the change ended that the state on disk tells of
	// later is when that is written, unless something else is before it: a fleet that applies at once has better things to do. Who is killed before goes on with
	// the change from its notes at the next start, reloads once more, and comes to the same end.
	later    time.Time
	started  bool
	view     *manifest.View
	seen     string  // its mark, once it is on disk
	moved    bool    // a head was taken while a confirmation was awaited, and settle has not gone by it yet
	distrust error   // no source gave a head that can be believed, and one gave another
	want     *target // what Resolve assigned last
	why      string  // the source of want
	told     *target // want, once the head that assigns it is on disk
	toldWhy  string
	cur      *Installed
	content  string           // as last found on disk
	drift    []string         // paths that differ from the record
	linkErrs map[string]error // service → why a link of it is not as it should be
	observed observed
	sweepDue bool            // releases may lie about that nothing needs
	unswept  int             // settles since the last sweep
	silent   map[string]bool // carriers that did not answer in time in this re-sync: asked last, and not for more
	sources  []SourceResult  // of the last full re-sync
	synced   time.Time       // end of it
	since    time.Time       // start of the agent
	shown    atomic.Pointer[snapshot]
	phase    report.Phase
	reason   string
	code     string
	tries    int
	attempt  uint64
	health   map[string]health
	counts   *counts
	starts   starts
	said     map[string]string // source → what was last logged about it
	fetches  int               // failures to fetch or verify in a row
	fetchAt  time.Time         // not before
	fetchKey string
	waits    int // probes in a row that found a service waiting
	lack     lack

	hints     chan hint
	listening atomic.Bool // the long poll works
	changed   chan struct{}

	held   *holds
	nudge  chan struct{}   // a hold came or went
	byHand chan *handOrder // what somebody applies by hand
	handed bool            // such an order is being looked at: what it brought acts
}

// hint is a head that the long poll brought. The loop answers whether it moved the mark.
type hint struct {
	data  []byte
	moved chan manifest.Mark // the newest verified mark; closed without one if the head was refused
}

// Run keeps the host right until ctx ends. A change that is past its swap is brought to a safe end first: the reloads run, and a confirmation that is
// still awaited goes on at the next start.
func (a *Agent) Run(ctx context.Context) error {
	if err := a.start(ctx); err != nil {
		return err
	}
	// The reports live a little longer than the rest: the last one says that the agent leaves.
	reporting, stop := context.WithCancel(context.WithoutCancel(ctx))
	var wg sync.WaitGroup
	wg.Go(func() { a.out.run(reporting) })
	defer func() {
		_ = a.writeLate(a.later)
		if !errors.Is(context.Cause(ctx), ErrReconfigured) {
			a.phase = report.PhaseLeaving
			a.publish(false)
			a.out.flush(context.WithoutCancel(ctx), a.timing.leave)
		}
		stop()
		wg.Wait()
	}()
	var after manifest.Mark
	if a.view != nil {
		after = a.view.Mark()
	}
	for _, c := range a.opts.Carriers {
		if h, ok := c.(Hinter); ok {
			wg.Go(func() { a.listen(ctx, h, after) })
			break
		}
	}
	if a.cfg.Mode == ModeEnforce {
		if err := a.resume(ctx); err != nil {
			a.log.Warn("a change that was interrupted did not end well", "err", err)
		}
	}
	var fullAt, tickAt time.Time // both due at once
	for ctx.Err() == nil {
		now := a.now()
		switch {
		case !now.Before(fullAt):
			a.resync(ctx)
			_ = a.settle(ctx, full) // reported and logged; the next look tries again
			fullAt = a.now().Add(jitter(a.fullEvery()))
			tickAt = a.nextTick()
		case !now.Before(tickAt):
			_ = a.settle(ctx, tick)
			tickAt = a.nextTick()
		}
		next := fullAt
		if tickAt.Before(next) {
			next = tickAt
		}
		if a.writeLate(a.now()) {
			tickAt = a.now() // and says so
			continue
		}
		if !a.later.IsZero() && a.later.Before(next) {
			next = a.later
		}
		timer := time.NewTimer(max(next.Sub(a.now()), 0))
		select {
		case <-ctx.Done():
		case <-timer.C:
		case <-a.changed:
			// The long poll came or went. Each reconnect begins with a full read; without it a full read comes every poll.
			if a.listening.Load() {
				fullAt = time.Time{}
			} else if at := a.now().Add(jitter(a.cfg.Poll)); at.Before(fullAt) {
				fullAt = at
			}
		case h := <-a.hints:
			if a.hinted(ctx, h) {
				_ = a.settle(ctx, hinted)
				tickAt = a.nextTick()
			}
		case <-a.nudge:
			_ = a.settle(ctx, hinted)
			tickAt = a.nextTick()
		case o := <-a.byHand:
			o.res, o.err = a.applyFrom(ctx, o.from, o.hold)
			close(o.done)
			tickAt = a.nextTick()
		}
		timer.Stop()
	}
	return nil
}

// fullEvery is the time between two full re-syncs.
func (a *Agent) fullEvery() time.Duration {
	if a.listening.Load() {
		return max(a.timing.full, a.cfg.Poll)
	}
	return a.cfg.Poll
}

// nextTick is when to look at the host again without asking a source: at each poll, when a pause is over, and soon while a service has not confirmed.
func (a *Agent) nextTick() time.Time {
	now := a.now()
	next := now.Add(jitter(min(a.cfg.Poll, time.Minute)))
	// What is due already and was not done by the look that has just ended waits for something else: it is looked at again soon, never at once and for ever.
	sooner := func(t time.Time) {
		if !t.After(now) {
			t = now.Add(a.timing.retry)
		}
		if t.Before(next) {
			next = t
		}
	}
	if a.moved {
		return now
	}
	if a.fetches > 0 {
		sooner(a.fetchAt)
	}
	if a.lack.text != "" {
		sooner(a.lack.at)
	}
	if a.want != nil {
		if f, ok := a.st.Failed[a.want.key()]; ok && f.Tries < maxTries && !a.want.is(a.cur) {
			sooner(f.Next)
		}
	}
	if t := a.st.Turn; t != nil && a.want != nil && t.Key == a.want.key() && !a.want.is(a.cur) && t.At.After(now) {
		sooner(t.At)
	}
	for _, o := range a.st.Owed {
		if o.Tries < maxTries {
			sooner(o.Next)
		}
	}
	if doc := a.holding(); doc != nil && doc.Span != (span{}) { // one that cannot be read has none
		sooner(doc.Span.end(now, a.opts.Prober.Now()))
	}
	if a.sweepDue {
		sooner(now.Add(jitter(a.timing.quiet)))
	}
	if a.waits > 0 {
		sooner(now.Add(backoff(a.waits-1, a.timing.retry, a.cfg.Poll)))
	}
	return next
}
