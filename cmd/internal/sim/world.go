// Package sim runs a whole fleet in one process on a clock of its own: the real publisher, controllers, collector and agents over a store in memory, with simulated disks, processes
// and traffic. Everything that can go wrong does, drawn from a seed, while invariants are checked at every order that is written, every file that is swapped and every time somebody
// says green. The same seed gives the same run: nothing is drawn from a stream, but from the seed, the simulated instant and what it is about; and no two actors act at one instant.
package sim

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-config/muster/distributor"
	"github.com/muster-config/muster/distributor/keys"
	"github.com/muster-config/muster/distributor/rollout"
	"github.com/muster-config/muster/distributor/store/mem"
	"github.com/muster-config/muster/distributor/wire"
)

const repo = "acme/config"

// signing keys are those of every world: making them costs something.
var signing = keys.Set{Root: keys.FromSeed(1), Release: keys.FromSeed(2), Rollout: keys.FromSeed(3), Operator: keys.FromSeed(4)}

// World is one simulated fleet.
type World struct {
	t      testing.TB
	seed   uint64
	start  time.Time
	disk   *mem.Store // what is stored, in truth
	ctx    context.Context
	stop   context.CancelFunc
	wg     sync.WaitGroup
	census *Census
	trace  trace

	keyring   []byte
	publisher *distributor.Publisher
	cohorts   []*fleet // in their order
	hosts     []*host

	calm atomic.Bool // faults are over

	mu          sync.Mutex
	failed      bool
	first       string               // what was broken first
	gone        map[string]time.Time // actor → partitioned until
	weather     []storm
	blackouts   []span // metrics are not to be had
	commits     []commit
	wellFrom    time.Time        // since when controllers can do their work
	traits      sync.Map         // text of a service → trait
	plans       map[string]*plan // bundle object → what is in it
	server      *server
	controllers []*controller
	acts        map[string]acted // cohort/kind → last time that a person did it
	asked       map[askKey]*said
	ops         operations
}

// span is a time during which something is so.
type span struct{ from, to time.Time }

func (s span) has(t time.Time) bool { return !t.Before(s.from) && t.Before(s.to) }

// storm is a time in which the store answers badly.
type storm struct {
	span
	kind  string // see faults
	share uint64 // of calls, in a thousand
}

// Outcome is what became of one seed.
type Outcome struct {
	Seed   uint64
	Hosts  int
	Failed string        // the invariant that was broken; "" for none
	Trace  uint64        // the same seed has the same
	Lines  string        // the end of it
	Spent  time.Duration // simulated
	Census *Census
}

// Run plays one seed with a number of hosts, and gives what became of it to done. A broken invariant fails t, with the end of the trace.
func Run(t *testing.T, seed uint64, hosts int, done func(Outcome)) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, seed, hosts)
		defer func() {
			w.stop()
			w.wg.Wait()
			done(Outcome{Seed: seed, Hosts: hosts, Failed: w.first, Trace: w.trace.sum(), Lines: w.trace.end(traceKept), Spent: time.Since(w.start), Census: w.census})
		}()
		w.play()
	})
}

func newWorld(t testing.TB, seed uint64, hosts int) *World {
	w := &World{
		t: t, seed: seed, census: NewCensus(), disk: mem.New(), gone: map[string]time.Time{}, plans: map[string]*plan{}, acts: map[string]acted{}, asked: map[askKey]*said{}, ops: newOperations(),
	}
	// Instants differ between seeds, and with them everything that is drawn from them.
	time.Sleep(time.Duration(mix(seed) % uint64(time.Minute)))
	w.start = time.Now()
	w.ctx, w.stop = context.WithCancel(context.Background())
	env, err := ring(w.start.Add(-time.Hour).UTC())
	w.must(err)
	w.keyring, err = wire.Encode(env)
	w.must(err)
	w.publisher, err = distributor.NewPublisher(distributor.Config{
		Store: w.link(&actor{w: w, name: "ci"}), Repo: repo, Release: signing.Release, Rollout: signing.Rollout, Keyring: w.keyring, By: "ci", Now: time.Now,
	})
	w.must(err)
	w.settle(hosts)
	return w
}

// settle makes the cohorts and hosts: one of three, where waves are 1, 1 and 3; a large one; and a third that comes after both.
func (w *World) settle(n int) {
	small := 3
	large := (n - small) * 2 / 3
	for i, c := range []struct {
		name string
		n    int
	}{{"alpha", small}, {"eu", large}, {"us", n - small - large}} {
		f := newFleet(w, c.name, i)
		for k := range c.n {
			h := newHost(w, f, fmt.Sprintf("%s-%03d", c.name, k), k)
			f.hosts = append(f.hosts, h)
			w.hosts = append(w.hosts, h)
		}
		w.cohorts = append(w.cohorts, f)
	}
}

func (w *World) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// quiet says whether faults are over.
func (w *World) quiet() bool { return w.calm.Load() }

// breach fails the run. It ends at the first one: what follows is of no interest.
func (w *World) breach(rule, format string, args ...any) {
	w.mu.Lock()
	first := !w.failed
	text := fmt.Sprintf(format, args...)
	if first {
		w.failed, w.first = true, rule+": "+text
	}
	w.mu.Unlock()
	if !first {
		return
	}
	w.note("breach", rule, "%s", text)
	w.t.Errorf("seed %d, after %s: %s: %s\n%s", w.seed, time.Since(w.start).Round(time.Millisecond), rule, text, w.trace.end(traceShown))
	w.stop()
}

// pause lets simulated time pass; false when the run is over.
func (w *World) pause(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-w.ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// actor is whoever reaches the store or the collector: it can be slow, cut off, paused and killed.
type actor struct {
	w      *World
	name   string
	dead   atomic.Bool
	frozen atomic.Int64 // UnixNano until which it does not run
	skew   time.Duration
}

func (a *actor) now() time.Time { return time.Now().Add(a.skew) }

// turn is the way to somewhere: it takes a while, and may lead nowhere. Its end is an instant of this actor's alone.
func (a *actor) turn(op, to string) error {
	w := a.w
	time.Sleep(time.Millisecond + time.Duration(w.roll("turn", a.name, op, to)%uint64(40*time.Millisecond)))
	for until := a.frozen.Load(); until > time.Now().UnixNano() && !a.dead.Load(); until = a.frozen.Load() {
		time.Sleep(min(10*time.Second, time.Duration(until-time.Now().UnixNano())))
	}
	if a.dead.Load() {
		return errDead
	}
	w.mu.Lock()
	cut := time.Now().Before(w.gone[a.name])
	w.mu.Unlock()
	if cut {
		// As a network that drops what is sent: nothing comes until somebody gives up.
		time.Sleep(3*time.Second + time.Duration(w.roll("cut", a.name, op, to)%uint64(time.Second)))
		return errCut
	}
	return nil
}

// names lists hosts.
func names(list []*host) []string {
	out := make([]string, len(list))
	for i, h := range list {
		out[i] = h.name
	}
	slices.Sort(out)
	return out
}

var _ rollout.Observations = (*eyes)(nil)
