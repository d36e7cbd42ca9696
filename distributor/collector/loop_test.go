package collector

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-config/muster/distributor/api"
	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/report"
	"github.com/muster-config/muster/distributor/rollout"
	"github.com/muster-config/muster/distributor/store"
	"github.com/muster-config/muster/distributor/verdict"
)

// fleet is simulated hosts over a store that a controller writes and a collector reads. It lives in a synctest bubble: its time is not ours.
type fleet struct {
	*world
	c        *Collector
	applying atomic.Int64
	most     atomic.Int64
	fail     func(host string, epoch uint64) bool // goes back
	mute     func(host string, epoch uint64) bool // falls silent as soon as it took the epoch
	slow     time.Duration                        // that a host takes more to apply
	hosts    []*agent
	leave    context.CancelFunc // ends the hosts
	trust    manifest.TrustState
	wg       sync.WaitGroup
}

func newFleet(t *testing.T, n int) *fleet {
	w := newWorld(t)
	w.clock = time.Now().UTC()
	var names []string
	for i := range n {
		names = append(names, fmt.Sprintf("h-%03d", i))
	}
	w.cohort("prod", names...)
	f := &fleet{world: w, fail: func(string, uint64) bool { return false }, mute: func(string, uint64) bool { return false }}
	var err error
	if f.trust, err = manifest.NewTrust("", w.keyring); err != nil {
		t.Fatal(err)
	}
	if f.c, err = New(Config{Poll: time.Second}, Deps{Store: w.store, Keyring: w.keyring, Now: func() time.Time { return time.Now().UTC() }}); err != nil {
		t.Fatal(err)
	}
	r := &rig{world: w, c: f.c}
	for _, name := range names {
		a := r.agent("prod", name)
		a.report.Poll = 30
		f.hosts = append(f.hosts, a)
	}
	return f
}

// run starts collector and hosts; they end with ctx.
func (f *fleet) run(ctx context.Context) {
	f.wg.Go(func() { _ = f.c.Run(ctx) })
	hosts, leave := context.WithCancel(ctx)
	f.leave = leave
	for i, a := range f.hosts {
		f.wg.Go(func() { f.host(hosts, a, rand.New(rand.NewPCG(1, uint64(i)))) })
	}
}

// host is one agent: it takes what the head in the store says after a while, and then says so.
func (f *fleet) host(ctx context.Context, a *agent, r *rand.Rand) {
	pause := func(d time.Duration) bool {
		t := time.NewTimer(d)
		defer t.Stop()
		select {
		case <-ctx.Done():
			return false
		case <-t.C:
			return true
		}
	}
	say := func() {
		a.counter++
		a.report.Counter, a.report.At = a.counter, time.Now().UTC()
		e, err := manifest.Seal(manifest.KindReport, a.report, a.key)
		if err == nil {
			_, err = f.c.Report(ctx, api.ReportItem{Signed: e})
		}
		if err != nil && ctx.Err() == nil {
			f.t.Errorf("report of %s: %v", a.report.Host, err)
		}
	}
	var failed uint64
	var token store.Token
	var view *manifest.View
	var said time.Time
	for pause(500*time.Millisecond + time.Duration(r.Int64N(int64(time.Second)))) {
		obj, err := f.store.GetIfChanged(ctx, manifest.KeyHead("prod"), token, manifest.MaxHeadBytes)
		switch {
		case err == nil:
			if _, view, err = f.trust.AcceptHead("prod", obj.Data, time.Now()); err != nil {
				f.t.Errorf("head: %v", err)
				return
			}
			token = obj.Token
		case view != nil:
			if time.Since(said) < 20*time.Second {
				continue // nothing new, and nothing to say yet
			}
		default:
			say()
			said = time.Now()
			continue
		}
		res, err := manifest.Resolve(view, manifest.Host{Name: a.report.Host}, time.Now())
		if err != nil {
			f.t.Errorf("resolve: %v", err)
			return
		}
		a.report.Seen = view.Mark().String()
		epoch, before := res.Epoch(), a.report.Running
		if epoch == before && failed != 0 {
			failed, a.report.Phase = 0, report.PhaseIdle
			a.runs(epoch)
		}
		if epoch != before && epoch != failed {
			if before > 0 {
				f.enter(1)
			}
			if !pause(f.slow + time.Second + time.Duration(r.Int64N(int64(4*time.Second)))) {
				return
			}
			if before > 0 {
				f.enter(-1)
			}
			if f.mute(a.report.Host, epoch) {
				return
			}
			a.runs(epoch)
			if f.fail(a.report.Host, epoch) {
				failed = epoch
				a.runs(before)
				a.report.Desired, a.report.Attempted, a.report.Phase, a.report.Confirmed, a.report.Reason = epoch, epoch, report.PhaseRolledBack, false, "does not start"
			} else {
				a.report.Phase = report.PhaseIdle
			}
		}
		say()
		said = time.Now()
	}
}

// enter counts who applies now, and the most that ever did.
func (f *fleet) enter(n int64) {
	now := f.applying.Add(n)
	for most := f.most.Load(); now > most && !f.most.CompareAndSwap(most, now); most = f.most.Load() {
	}
}

func (f *fleet) controller(name string) *rollout.Controller {
	return &rollout.Controller{Store: f.store, Signer: rolloutKey, Seen: f.c, By: name, Now: func() time.Time { return time.Now().UTC() }}
}

// until waits in the bubble's time.
func (f *fleet) until(what string, limit time.Duration, done func() bool) {
	f.t.Helper()
	for end := time.Now().Add(limit); !done(); time.Sleep(time.Second) {
		if time.Now().After(end) {
			s, _ := f.c.Status(context.Background())
			f.t.Fatalf("not within %s: %s\n%+v", limit, what, s.Cohorts["prod"])
		}
	}
}

func (f *fleet) confirmed(epoch uint64) int {
	hosts, _ := f.c.Hosts(context.Background(), "prod", string(verdict.Confirmed))
	n := 0
	for _, h := range hosts {
		if h.Running == epoch {
			n++
		}
	}
	return n
}

func (f *fleet) rollout() manifest.Rollout {
	obj, err := f.store.Get(context.Background(), manifest.KeyHead("prod"), manifest.MaxHeadBytes)
	if err != nil {
		f.t.Fatal(err)
	}
	_, view, err := f.trust.AcceptHead("prod", obj.Data, time.Now())
	if err != nil {
		f.t.Fatal(err)
	}
	return view.Manifest.Rollout
}

// Two controllers, one killed in the middle and another started: every host gets the release, and never more than a tenth at once.
func TestRolloutInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 200
		f := newFleet(t, n)
		ctx, cancel := context.WithCancel(context.Background())
		defer func() { cancel(); f.wg.Wait() }()
		one := f.publish("prod")
		f.run(ctx)
		first, kill := context.WithCancel(ctx)
		f.wg.Go(func() { _ = f.controller("one").Run(first) })
		f.wg.Go(func() { _ = f.controller("two").Run(ctx) })
		f.until("the first release everywhere", time.Minute, func() bool { return f.confirmed(one) == n })
		if r := f.rollout(); r.Target != one || r.Phase != manifest.PhaseDone {
			t.Errorf("%+v", r)
		}
		if f.most.Load() != 0 {
			t.Error("the first one is no move")
		}
		two := f.publish("prod")
		f.until("some have the second", time.Minute, func() bool { return f.confirmed(two) > n/4 })
		kill()
		f.wg.Go(func() { _ = f.controller("three").Run(ctx) })
		f.until("the second release everywhere", 10*time.Minute, func() bool { return f.confirmed(two) == n && f.rollout().Phase == manifest.PhaseDone })
		if r := f.rollout(); r.Target != two || r.Baseline != two {
			t.Errorf("%+v", r)
		}
		if most := f.most.Load(); most > n/10 || most < n/20 {
			t.Errorf("%d hosts were applying at once", most)
		}
		// Nothing moves, and yet the order stays fresh.
		f.leave() // what they say takes our time
		issued := f.head0().Manifest.Issued
		time.Sleep(150 * time.Minute)
		h := f.head0()
		if age := time.Since(h.Manifest.Issued); age > rollout.RefreshEvery+time.Minute || !h.Manifest.Issued.After(issued.Add(time.Hour)) || time.Until(h.Manifest.FreshUntil) < 22*time.Hour {
			t.Errorf("issued %s ago", age)
		}
		if r := h.Manifest.Rollout; r.Target != two || h.Manifest.Serial > 60 {
			t.Errorf("serial %d, %+v", h.Manifest.Serial, r)
		}
	})
}

func (f *fleet) head0() *manifest.View {
	obj, err := f.store.Get(context.Background(), manifest.KeyHead("prod"), manifest.MaxHeadBytes)
	if err != nil {
		f.t.Fatal(err)
	}
	_, view, err := f.trust.AcceptHead("prod", obj.Data, time.Now())
	if err != nil {
		f.t.Fatal(err)
	}
	return view
}

// resume is what an operator says.
func (f *fleet) resume(cohort string) {
	f.t.Helper()
	newest, err := f.c.Newest(context.Background())
	if err != nil {
		f.t.Fatal(err)
	}
	in := rollout.Input{Store: newest.Release.Store, Repo: newest.Release.Repo, Cohort: cohort, Era: 0, Release: newest.Release, By: "ana"}
	if done, err := rollout.Perform(context.Background(), f.store, newest.Trust, rolloutKey, in, rollout.Action{Kind: rollout.Resume, By: "ana", Why: "corrected"}, time.Now()); err != nil || !done.Changed {
		f.t.Fatalf("%+v, %v", done, err)
	}
}

// A release that hosts cannot take goes back after the first few, and halts the cohort; a newer one waits until a person says that it corrects that.
func TestRolloutHaltsAndIsResumed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 50
		f := newFleet(t, n)
		one := f.publish("prod")
		two := one + 1
		f.fail = func(_ string, epoch uint64) bool { return epoch == two }
		ctx, cancel := context.WithCancel(context.Background())
		defer func() { cancel(); f.wg.Wait() }()
		f.run(ctx)
		f.wg.Go(func() { _ = f.controller("one").Run(ctx) })
		f.until("the first release everywhere", time.Minute, func() bool { return f.confirmed(one) == n })
		f.publish("prod")
		f.until("it is halted", 5*time.Minute, func() bool { return f.rollout().Phase == manifest.PhaseHalted })
		if r := f.rollout(); len(r.Halts) != 1 || r.Halts[0].Epoch != two || !strings.Contains(r.Why, "rolled back, at most 0 may") {
			t.Errorf("%+v", r)
		}
		f.green(one, two)
		three := f.publish("prod")
		time.Sleep(10 * time.Minute)
		if f.rollout().Phase != manifest.PhaseHalted || f.confirmed(one) != n {
			t.Errorf("%d run the first one again: %+v", f.confirmed(one), f.rollout())
		}
		serial := f.head0().Manifest.Serial
		f.resume("prod")
		f.until("the third release everywhere", 10*time.Minute, func() bool { return f.confirmed(three) == n && f.rollout().Phase == manifest.PhaseDone })
		if now := f.head0().Manifest.Serial; now > serial+100 {
			t.Errorf("%d orders for one rollout", now-serial)
		}
		if most := f.most.Load(); most > n/10 {
			t.Errorf("%d hosts were applying at once", most)
		}
	})
}

// green waits until all hosts are back at one release, and asks whether that one is green and the one that was taken back is not.
func (f *fleet) green(back, taken uint64) {
	f.t.Helper()
	ask := func(epoch uint64) *api.Wait {
		w, err := f.c.Wait(context.Background(), epoch, api.WaitQuery{})
		if err != nil {
			f.t.Fatal(err)
		}
		return w
	}
	f.until("all hosts are back", 5*time.Minute, func() bool { return f.confirmed(back) == len(f.hosts) })
	f.until("it is green", time.Minute, func() bool { return ask(back).Green })
	if w := ask(taken); w.Green || !w.Never {
		f.t.Errorf("epoch %d, which was taken back: %+v", taken, w)
	}
}

// What a person aborts or takes back leaves the release before it green.
func TestWaitAfterGoingBack(t *testing.T) {
	for _, kind := range []rollout.ActionKind{rollout.Abort, rollout.Rollback} {
		t.Run(string(kind), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const n = 20
				f := newFleet(t, n)
				one := f.publish("prod")
				ctx, cancel := context.WithCancel(context.Background())
				defer func() { cancel(); f.wg.Wait() }()
				f.run(ctx)
				f.wg.Go(func() { _ = f.controller("one").Run(ctx) })
				f.until("the first release everywhere", time.Minute, func() bool { return f.confirmed(one) == n })
				two := f.publish("prod")
				f.until("a host has the second", 5*time.Minute, func() bool { return f.confirmed(two) > 0 })
				newest, err := f.c.Newest(ctx)
				if err != nil {
					t.Fatal(err)
				}
				made := f.made[fmt.Sprint("prod/", one)]
				st, err := manifest.DecodeStatement(made.Payload)
				if err != nil {
					t.Fatal(err)
				}
				f.put(manifest.KeyBundle(st.Bundle.Object), make([]byte, st.Bundle.Size))
				in := rollout.Input{
					Store: newest.Release.Store, Repo: newest.Release.Repo, Cohort: "prod", Release: newest.Release, By: "ana",
					Statement: f.made[fmt.Sprint("prod/", two)], Named: map[uint64]manifest.Envelope{one: made},
				}
				if done, err := rollout.Perform(ctx, f.store, newest.Trust, rolloutKey, in, rollout.Action{Kind: kind, By: "ana", Why: "INC-1"}, time.Now()); err != nil || !done.Changed {
					t.Fatalf("%+v, %v", done, err)
				}
				f.until("it is halted", 5*time.Minute, func() bool { return f.rollout().Phase == manifest.PhaseHalted })
				f.green(one, two)
			})
		})
	}
}

// Hosts that a release silences stop it as failed ones do. Hosts that were silent before hold up nothing.
func TestRolloutSilentHosts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 40
		f := newFleet(t, n)
		one := f.publish("prod")
		f.mute = func(host string, epoch uint64) bool { return epoch == 2 && host <= "h-003" || epoch == 3 }
		ctx, cancel := context.WithCancel(context.Background())
		defer func() { cancel(); f.wg.Wait() }()
		f.run(ctx)
		f.wg.Go(func() { _ = f.controller("one").Run(ctx) })
		f.until("the first release everywhere", time.Minute, func() bool { return f.confirmed(one) == n })
		f.publish("prod")
		halted := func() bool { return f.rollout().Phase == manifest.PhaseHalted }
		f.until("it is halted for the silent ones", 20*time.Minute, halted)
		if r := f.rollout(); !strings.Contains(r.Why, "fell silent with it: h-00") {
			t.Errorf("%+v", r)
		}
		// The next one silences everybody who takes it: it gets no further than a tenth.
		f.publish("prod")
		f.resume("prod")
		time.Sleep(10 * time.Minute)
		f.until("it is halted again", 20*time.Minute, halted)
		time.Sleep(30 * time.Minute)
		silent, err := f.c.Hosts(ctx, "prod", string(verdict.Silent))
		if err != nil || len(silent) == 0 || len(silent) > 4+n/10 {
			t.Errorf("%d silent, %v", len(silent), err)
		}
	})
}

// A controller that knows nothing of the hosts moves nothing.
func TestRolloutNeedsSight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 20)
		one := f.publish("prod")
		ctx, cancel := context.WithCancel(context.Background())
		defer func() { cancel(); f.wg.Wait() }()
		f.wg.Go(func() { _ = f.c.Run(ctx) })
		f.wg.Go(func() { _ = f.controller("one").Run(ctx) })
		f.until("the first release is assigned", time.Minute, func() bool {
			_, err := f.store.Get(ctx, manifest.KeyHead("prod"), manifest.MaxHeadBytes)
			return err == nil
		})
		f.publish("prod")
		time.Sleep(30 * time.Minute)
		if r := f.rollout(); r.Target != one {
			t.Errorf("an empty collector is not all well: %+v", r)
		}
	})
}

// A rollout that takes long is no trouble: each host has its time from when it was told, and nobody is said to lag who was told just now.
func TestRolloutSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 40
		f := newFleet(t, n)
		f.slow = time.Minute
		one := f.publish("prod")
		ctx, cancel := context.WithCancel(context.Background())
		defer func() { cancel(); f.wg.Wait() }()
		f.run(ctx)
		f.wg.Go(func() { _ = f.controller("one").Run(ctx) })
		f.until("the first release everywhere", 10*time.Minute, func() bool { return f.confirmed(one) == n && f.rollout().Phase == manifest.PhaseDone })
		two := f.publish("prod")
		begin := time.Now()
		f.until("the second release everywhere", time.Hour, func() bool {
			if late, _ := f.c.Hosts(ctx, "prod", string(verdict.Lagging)); len(late) > 0 {
				t.Fatalf("%s: %s", late[0].Host, late[0].Why)
			}
			if why := f.rollout().Why; strings.Contains(why, "waits") {
				t.Fatal(why)
			}
			return f.confirmed(two) == n
		})
		if took := time.Since(begin); took < 2*verdict.LagAfter {
			t.Errorf("it took %s: too short to show anything", took)
		}
	})
}
