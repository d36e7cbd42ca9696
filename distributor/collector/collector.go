// Package collector is the fleet's memory: agents report to it, it reads the store by itself, and it says what is true of each host (distributor/verdict)
// and when a release is confirmed everywhere. It is never in the way: without it hosts still get their configuration from the store.
//
// State lives in memory and is written behind to SQLite or PostgreSQL within a second. Reports are state, not events: what is lost comes again with the next report.
package collector

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/muster-config/muster/distributor/api"
	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/store"
)

// Limits of a collector.
const (
	maxHosts        = 250_000
	maxReleases     = 1000   // remembered; older ones are read when they are asked for
	maxParallel     = 256    // requests that are not long polls
	maxLongPolls    = 20_000 // waiting requests
	maxStreams      = 64     // objects read through at once, past the cache
	maxPuts         = 2      // bundles taken at once
	flushEvery      = 200 * time.Millisecond
	aliveEvery      = 5 * time.Second
	heartbeatSecret = 32
)

// Deps are what a collector is made of.
type Deps struct {
	Store   store.ReadStore
	Keyring []byte  // where trust begins
	Tokens  *Tokens // nil: anybody who reaches it may do everything, so it must listen on loopback only; read again from Config.TokensFile
	Now     func() time.Time
	Log     *slog.Logger // nil: silent
	// Steering lets persons steer rollouts through the API; nil: they cannot.
	Steering *Steering
	// Aside is one that runs beside another collector and only reads the store: inventory.json is the other's.
	Aside bool
}

// Collector is one collector. New starts nothing; Run does the work.
type Collector struct {
	cfg    Config
	store  store.ReadStore
	tokens atomic.Pointer[Tokens]
	now    func() time.Time
	log    *slog.Logger
	db     storage // nil: nothing is remembered
	repo   string
	secret []byte // heartbeat keys are derived from it

	steering  *Steering // nil: there is no rollout key here
	aside     bool      // see Deps
	outbox    *outbox
	overheard overheard

	parallel  chan struct{}
	longPolls chan struct{}
	streams   chan struct{}
	puts      chan struct{} // bundles on their way to the store, each whole in memory
	objects   *cache
	loads     singleflight.Group
	ended     chan struct{} // closed when Run ends: nobody waits any longer
	flushNow  chan struct{} // wakes the writer
	reread    chan struct{} // wakes the reader
	relist    chan struct{} // wakes the reader of inventories
	retoken   chan struct{} // wakes the reader of the tokens file
	count     counts

	staying  staying
	known    releaseMemory
	logins   logins
	bearers  logins            // requests with a token that nobody has
	bumps    atomic.Uint64     // how often a verdict may have changed
	streamed sync.Mutex        // guards statuses
	statuses map[string]shared // of event streams, by what they may see

	mu         sync.RWMutex
	trust      manifest.TrustState
	cohorts    map[string]*cohort
	fleet      *manifest.Policy     // of the newest release; nil before the first
	fleetAt    uint64               // its epoch
	roster     *roster              // who is expected where by name
	lists      map[string]*hostList // the last good list of each inventory
	retired    map[hostKey]retirement
	shapes     *shapes
	synced     uint64            // mark of what other collectors of this database wrote
	releases   []release         // ascending; at most maxReleases
	newest     *manifest.Release // whole, of the last of them; never changed
	seen       map[uint64]time.Time
	digests    map[uint64]string            // of the payload that a release's number held first, as far back as seen
	replaced   map[uint64]bool              // releases whose number holds another one by now
	older      map[uint64]map[string]string // statements of releases that are not remembered: epoch → cohort → payload digest
	junk       map[string]store.Info        // release keys that hold no release of ours
	hosts      int
	lastRead   time.Time // last complete reading of the store
	headsAgain time.Time // when heads were last read for somebody who asked for what none of them names
	started    time.Time
	awake      time.Time     // when Run last noted that it runs; zero: it does not
	changed    chan struct{} // closed and renewed when a verdict may have changed; nil while nobody waits
	waits      map[waitQuery]waitState
	versions   uint64
	dirty      dirt
	readErr    string // last trouble with the store, "" when it is well
	dbErr      string // last trouble with the database
}

// cohort is what is known of one cohort.
type cohort struct {
	hosts    map[string]*host
	view     *manifest.View // newest verified head
	raw      []byte         // its stored bytes
	token    store.Token
	lastRead time.Time
	problem  string                        // why the head in the store is not taken
	variants map[string]*manifest.Variants // of the head's statements, by object digest
	assigned map[uint64]time.Time          // epoch → when it was first assigned to any of its hosts
	lately   map[string]bool               // digests of objects that former orders named
	moves    []move                        // newest last
	moved    chan struct{}                 // closed and renewed with each new head; nil while nobody waits
}

// New opens the database and loads what was remembered. The caller calls Run, or Close.
func New(cfg Config, deps Deps) (*Collector, error) {
	if cfg.Poll == 0 {
		cfg.Poll = DefaultPoll
	}
	trust, err := manifest.NewTrust("", deps.Keyring)
	if err != nil {
		return nil, fmt.Errorf("keyring: %w", err)
	}
	c := &Collector{
		cfg: cfg, store: deps.Store, now: deps.Now, log: deps.Log, repo: trust.Repo, steering: deps.Steering, aside: deps.Aside, outbox: newOutbox(len(cfg.Notify)),
		parallel: make(chan struct{}, maxParallel), longPolls: make(chan struct{}, maxLongPolls), streams: make(chan struct{}, maxStreams), puts: make(chan struct{}, maxPuts),
		objects: newCache(cacheBytes), ended: make(chan struct{}), flushNow: make(chan struct{}, 1), reread: make(chan struct{}, 1),
		digests: map[uint64]string{}, replaced: map[uint64]bool{}, older: map[uint64]map[string]string{},
		relist: make(chan struct{}, 1), retoken: make(chan struct{}, 1), roster: makeRoster(nil, nil), lists: map[string]*hostList{}, retired: map[hostKey]retirement{}, shapes: newShapes(),
		trust: trust, cohorts: map[string]*cohort{}, seen: map[uint64]time.Time{}, junk: map[string]store.Info{}, waits: map[waitQuery]waitState{},
	}
	c.tokens.Store(deps.Tokens)
	if c.now == nil {
		c.now = time.Now
	}
	if c.log == nil {
		c.log = slog.New(slog.DiscardHandler)
	}
	c.started = c.now()
	c.versions = uint64(max(c.started.UnixMilli(), 1)) // rises over a restart
	c.dirty.clear()
	if cfg.Database != "" {
		if c.db, err = openStorage(context.Background(), cfg.Database, c.log, c.started); err != nil {
			return nil, err
		}
		if err := c.load(context.Background()); err != nil {
			return nil, errors.Join(err, c.db.close())
		}
	}
	if c.secret == nil {
		c.secret = make([]byte, heartbeatSecret)
		if _, err := rand.Read(c.secret); err != nil {
			return nil, fmt.Errorf("make the heartbeat secret: %w", err)
		}
		c.dirty.secret = true
		if err := c.shareSecret(context.Background()); err != nil {
			return nil, errors.Join(err, c.db.close())
		}
	}
	return c, nil
}

// Repo is the config repo that the collector serves: that of its keyring.
func (c *Collector) Repo() string { return c.repo }

// Run reads the store and writes the database until ctx ends, and then returns nil: what was accepted is written. It is called once.
func (c *Collector) Run(ctx context.Context) error {
	var work sync.WaitGroup
	work.Go(func() { c.follow(ctx) })
	work.Go(func() { c.write(ctx) })
	work.Go(func() { c.followLists(ctx) })
	work.Go(func() { c.followOthers(ctx) })
	work.Go(func() { c.stayAwake(ctx) })
	if !c.aside {
		work.Go(func() { c.writeInventory(ctx) })
	}
	work.Go(func() { c.followTokens(ctx) })
	work.Go(func() { c.sendNotices(ctx) })
	work.Wait()
	close(c.ended)
	return c.Close()
}

// Close lets the database go; Run does it by itself.
func (c *Collector) Close() error {
	if c.db == nil {
		return nil
	}
	return c.db.close()
}

// errEnding answers what waits when the collector stops.
var errEnding = errors.New("the collector is stopping")

// cohortOf is the entry of a cohort, made if there is none. Under c.mu.
func (c *Collector) cohortOf(name string) *cohort {
	co := c.cohorts[name]
	if co == nil {
		co = &cohort{hosts: map[string]*host{}, assigned: map[uint64]time.Time{}}
		c.cohorts[name] = co
	}
	return co
}

// bump says that a verdict may have changed. Under c.mu.
func (c *Collector) bump() {
	c.bumps.Add(1)
	if c.changed != nil {
		close(c.changed)
		c.changed = nil
	}
}

// onChange is closed at the next bump.
func (c *Collector) onChange() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.changed == nil {
		c.changed = make(chan struct{})
	}
	return c.changed
}

// wake fills a channel of size one.
func wake(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

// GetHead is the long poll in the same process: see api.Client.
func (c *Collector) GetHead(ctx context.Context, cohort string, after manifest.Mark, wait time.Duration) ([]byte, manifest.Mark, error) {
	deadline := time.NewTimer(min(max(wait, 0), api.MaxWait))
	defer deadline.Stop()
	for {
		c.mu.Lock()
		co := c.cohorts[cohort]
		if co != nil && co.view != nil && co.view.Mark() != after {
			raw, mark := co.raw, co.view.Mark()
			c.mu.Unlock()
			return raw, mark, nil
		}
		known := co != nil && co.view != nil
		var moved <-chan struct{}
		if wait > 0 {
			// A cohort that nobody has heard of is waited for too, without an entry for each name that somebody asks for.
			moved = c.movedLocked(co)
		}
		c.mu.Unlock()
		select {
		case <-moved:
			continue
		case <-ctx.Done():
			return nil, manifest.Mark{}, ctx.Err()
		case <-c.ended:
			return nil, manifest.Mark{}, errEnding
		case <-deadline.C:
		}
		if !known {
			return nil, manifest.Mark{}, api.ErrNotFound
		}
		return nil, after, api.ErrNotModified
	}
}

// movedLocked is closed when the cohort gets another head. Under c.mu.
func (c *Collector) movedLocked(co *cohort) <-chan struct{} {
	if co == nil {
		if c.changed == nil {
			c.changed = make(chan struct{})
		}
		return c.changed
	}
	if co.moved == nil {
		co.moved = make(chan struct{})
	}
	return co.moved
}
