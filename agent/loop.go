package agent

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/report"
	"github.com/muster-config/muster/distributor/store"
)

// timing is every wait of the agent that the configuration does not give.
type timing struct {
	full   time.Duration // between full re-syncs while the long poll works
	ask    time.Duration // for one carrier's head or keyring
	stall  time.Duration // window in which a body must get on
	retry  time.Duration // first pause after a fetch, a long poll or a report that did not work
	again  time.Duration // first pause before a failed release is tried again
	most   time.Duration // longest pause before a failed release is tried again
	probe  time.Duration // first pause between two questions while a confirmation is awaited
	lazy   time.Duration // age at which a passing phase is worth a report
	post   time.Duration // for one report
	leave  time.Duration // for the last one
	settle time.Duration // how long a report of drift may hold up the repair
}

func defaultTiming() *timing {
	return &timing{
		full: 10 * time.Minute, ask: 15 * time.Second, stall: stallWindow, retry: time.Second, again: 10 * time.Second, most: 10 * time.Minute,
		probe: 20 * time.Millisecond, lazy: time.Second, post: 10 * time.Second, leave: 2 * time.Second, settle: 2 * time.Second,
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
	st       *state
	dirty    bool // st holds what is not on disk yet
	started  bool
	view     *manifest.View
	seen     string  // its mark, once it is on disk
	distrust error   // no source gave a head that can be believed, and one gave another
	want     *target // what Resolve assigned last
	why      string  // the source of want
	cur      *Installed
	content  string   // as last found on disk
	drift    []string // paths that differ from the record
	phase    report.Phase
	reason   string
	code     string
	tries    int
	attempt  uint64
	health   map[string]health
	probes   map[string]*probeCount
	said     map[string]string // source → what was last logged about it
	fetches  int               // failures to fetch or verify in a row
	fetchAt  time.Time         // not before
	fetchKey string
	waits    int // probes in a row that found a service waiting

	hints     chan hint
	listening atomic.Bool // the long poll works
	changed   chan struct{}
}

// hint is a head that the long poll brought. The loop answers whether it moved the mark.
type hint struct {
	data  []byte
	moved chan manifest.Mark // the newest verified mark; closed without one if the head was refused
}

// New puts an agent together. It reads nothing and starts nothing.
func New(o Options) (*Agent, error) {
	o.Config = o.Config.WithDefaults()
	if err := o.Config.Validate(); err != nil {
		return nil, err
	}
	switch {
	case len(o.Carriers) == 0:
		return nil, errors.New("agent: no carrier")
	case o.Installer == nil || o.Memory == nil || o.Prober == nil:
		return nil, errors.New("agent: Installer, Memory and Prober are needed")
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Version == "" {
		o.Version = "unknown"
	}
	a := &Agent{
		opts: o, cfg: o.Config, now: o.Now, timing: o.timing, phase: report.PhaseIdle,
		log:    o.Logger.With("host", o.Config.Host, "cohort", o.Config.Cohort),
		health: map[string]health{}, probes: map[string]*probeCount{}, said: map[string]string{},
		hints: make(chan hint, 1), changed: make(chan struct{}, 1),
	}
	if a.timing == nil {
		a.timing = defaultTiming()
	}
	var boot [16]byte
	rand.Read(boot[:])
	a.boot = hex.EncodeToString(boot[:])
	return a, nil
}

// start reads what the last run left, and ends what it left open: a change without a verdict, and reloads that are owed.
func (a *Agent) start(ctx context.Context) error {
	if a.started {
		return nil
	}
	var err error
	if a.st, err = loadState(a.opts.Memory); err != nil {
		return err
	}
	if a.id, err = loadIdentity(a.opts.Memory, a.opts.MachineID); err != nil {
		return err
	}
	a.out = newReports(a.opts.Reporter, a.id, a.cfg.Poll, a.now, a.log, a.timing)
	if err := a.bootstrap(); err != nil {
		return err
	}
	if data := a.st.Head[a.headKey()]; data != nil {
		if err := a.take(data); err != nil {
			a.log.Warn("the head in state.json is not valid any more", "err", err)
		}
	}
	if a.cur, err = a.opts.Installer.Current(ctx); err != nil {
		return err
	}
	if a.cur != nil {
		a.content = a.cur.Content
		if a.st.Trial == nil && a.cur.Content != "" {
			a.st.reconcile(a.cur.Services) // no change on a host whose state was not lost
		}
	}
	a.started = true
	return nil
}

// bootstrap begins trust with the host's own keyring, or goes on with the one that was reached from it. A newer one in the file is the will of whoever
// runs this host and is taken, with the floors as they are.
func (a *Agent) bootstrap() error {
	fresh, err := manifest.NewTrust(a.cfg.Repo, a.opts.Keyring)
	if err != nil {
		return fmt.Errorf("keyring %s: %w", a.cfg.Keyring, err)
	}
	had, ok := a.st.Trust[a.cfg.Repo]
	if ok {
		mine, err := fresh.Keys()
		if err != nil {
			return fmt.Errorf("keyring %s: %w", a.cfg.Keyring, err)
		}
		if keys, err := had.Keys(); err == nil && keys.Version >= mine.Version {
			return nil
		}
		had.Keyring = fresh.Keyring
		fresh = had
		a.log.Info("keyring taken from the file", "version", mine.Version)
	}
	a.st.Trust[a.cfg.Repo] = fresh
	a.dirty = true
	return nil
}

// persist writes the state if it changed. It comes before every act that follows from it: floors are on disk before a head is acted on or reported.
func (a *Agent) persist() error {
	if !a.dirty && a.view == nil {
		return nil
	}
	if !a.dirty {
		a.seen = a.view.Mark().String()
		return nil
	}
	if err := a.st.save(a.opts.Memory); err != nil {
		return err
	}
	a.dirty = false
	a.seen = ""
	if a.view != nil {
		a.seen = a.view.Mark().String()
	}
	return nil
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
		if !errors.Is(context.Cause(ctx), ErrReconfigured) {
			a.phase = report.PhaseLeaving
			a.publish(false)
			a.out.flush(context.WithoutCancel(ctx), a.timing.leave)
		}
		stop()
		wg.Wait()
	}()
	for _, c := range a.opts.Carriers {
		if h, ok := c.(Hinter); ok {
			wg.Go(func() { a.listen(ctx, h) })
			break
		}
	}
	if err := a.resume(ctx); err != nil {
		a.log.Warn("a change that was interrupted did not end well", "err", err)
	}
	var fullAt, tickAt time.Time // both due at once
	for ctx.Err() == nil {
		now := a.now()
		switch {
		case !now.Before(fullAt):
			a.resync(ctx)
			a.settle(ctx, full)
			fullAt = a.now().Add(jitter(a.fullEvery()))
			tickAt = a.nextTick()
		case !now.Before(tickAt):
			a.settle(ctx, tick)
			tickAt = a.nextTick()
		}
		timer := time.NewTimer(max(min(fullAt.Sub(a.now()), tickAt.Sub(a.now())), 0))
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
				a.settle(ctx, tick)
				tickAt = a.nextTick()
			}
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
	sooner := func(t time.Time) {
		if t.Before(next) {
			next = t
		}
	}
	if a.fetches > 0 {
		sooner(a.fetchAt)
	}
	if a.want != nil {
		if f, ok := a.st.Failed[a.want.key()]; ok && f.Tries < maxTries && !a.want.is(a.cur) {
			sooner(f.Next)
		}
	}
	for _, o := range a.st.Owed {
		if o.Tries < maxTries {
			sooner(o.Next)
		}
	}
	if a.waits > 0 {
		sooner(now.Add(backoff(a.waits-1, a.timing.retry, a.cfg.Poll)))
	}
	return next
}

// listen is the long poll. The mark it waits behind is that of the newest head which the loop verified, never of one that was merely announced: what the
// loop refuses is asked for again, after a pause (B094).
func (a *Agent) listen(ctx context.Context, h Hinter) {
	fails := 0
	var after manifest.Mark
	for ctx.Err() == nil {
		asked := time.Now()
		data, err := h.AwaitHead(ctx, a.cfg.Cohort, after)
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			mark, ok := a.offer(ctx, data)
			if ok {
				after = mark
				fails = 0
			} else {
				fails++
			}
			a.setListening(ok || fails < 3)
		case errors.Is(err, store.ErrNotModified):
			fails = 0
			a.setListening(true)
			if rest := a.timing.retry - time.Since(asked); rest > 0 {
				sleep(ctx, rest) // a server that does not wait is no reason for a hot loop
			}
		default:
			fails++
			a.log.Debug("long poll", "err", err)
			a.setListening(false)
		}
		if fails > 0 {
			sleep(ctx, backoff(fails-1, a.timing.retry, a.cfg.Poll))
		}
	}
}

// offer hands a head to the loop and waits for its answer: the newest verified mark.
func (a *Agent) offer(ctx context.Context, data []byte) (manifest.Mark, bool) {
	h := hint{data: data, moved: make(chan manifest.Mark, 1)}
	select {
	case a.hints <- h:
	case <-ctx.Done():
		return manifest.Mark{}, false
	}
	select {
	case m, ok := <-h.moved:
		return m, ok
	case <-ctx.Done():
		return manifest.Mark{}, false
	}
}

func (a *Agent) setListening(on bool) {
	if a.listening.Swap(on) == on {
		return
	}
	select {
	case a.changed <- struct{}{}:
	default:
	}
}

// hinted takes a head from the long poll. It says whether there is a newer head now.
func (a *Agent) hinted(ctx context.Context, h hint) bool {
	defer close(h.moved)
	before := a.view
	err := a.take(h.data)
	if errors.Is(err, manifest.ErrSignature) {
		a.followKeyrings(ctx) // it may be signed by a key that the next keyring brings
		err = a.take(h.data)
	}
	if err != nil {
		a.log.Warn("the long poll brought a head that is not to be believed", "err", err)
		return false
	}
	h.moved <- a.view.Mark()
	return before == nil || before.Mark().Compare(a.view.Mark()) != 0
}

// newer says whether a head waits that the loop has not looked at.
func (a *Agent) newer() bool { return len(a.hints) > 0 }

// Once does one full sync: every source is asked, pauses and limits after failures do not count, and the report is sent before it returns. With install it
// ends after the swap: the service that is about to start loads the new files by itself.
func (a *Agent) Once(ctx context.Context, install bool) (OnceResult, error) {
	if err := a.start(ctx); err != nil {
		return OnceResult{}, err
	}
	if !install {
		if err := a.resume(ctx); err != nil {
			a.log.Warn("a change that was interrupted did not end well", "err", err)
		}
	}
	before := a.services()
	sources := a.resync(ctx)
	how := once
	if install {
		how = onceInstall
	}
	err := a.settle(ctx, how)
	if rerr := a.out.sendOnce(ctx); rerr != nil {
		a.log.Warn("report not delivered", "err", rerr)
	}
	return a.result(sources, before), err
}

func (a *Agent) services() map[string]string {
	m := map[string]string{}
	if a.cur != nil {
		for name, s := range a.cur.Services {
			m[name] = s.Digest
		}
	}
	return m
}

func (a *Agent) result(sources []SourceResult, before map[string]string) OnceResult {
	r := a.report()
	res := OnceResult{
		Host: r.Host, Cohort: r.Cohort, Seen: r.Seen, Desired: r.Desired, Running: r.Running, Content: r.Content, Phase: string(r.Phase), Grade: r.Grade,
		Confirmed: r.Confirmed, Reason: r.Reason, Code: r.Code, Sources: sources, Changed: []string{}, Waiting: []WaitingService{},
	}
	res.Installed = a.want != nil && a.want.is(a.cur) && len(a.drift) == 0
	after := a.services()
	all := maps.Clone(before)
	maps.Copy(all, after)
	for _, name := range sorted(all) {
		if before[name] != after[name] {
			res.Changed = append(res.Changed, name)
		}
	}
	for _, name := range sorted(r.Services) {
		if s := r.Services[name]; s.State != stateConfirmed {
			res.Waiting = append(res.Waiting, WaitingService{Service: name, State: s.State, Reason: s.Reason})
		}
	}
	return res
}
