package delivery

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-config/muster/distributor/api"
	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/verdict"
	"github.com/muster-config/muster/pipeline/forge"
)

var (
	allGreen = verdict.Green{Green: true, Confirmed: 10}
	baking   = verdict.Green{Confirmed: 1, Waiting: waiting(9)}
	isBack   = verdict.Green{Never: true, Waiting: waiting(10)}
)

func goesBack(epoch uint64) api.Event {
	e := wave(1, manifest.PhaseRollingBack)
	e.Target, e.Rollout.Target, e.Rollout.Why = epoch, epoch, "gate errors"
	return e
}

func isDone(epoch uint64) api.Event {
	e := wave(2, manifest.PhaseDone)
	e.Target, e.Rollout.Target, e.Rollout.Baseline = epoch, epoch, epoch
	return e
}

// replace sets what the collector says of an epoch, without a word about it.
func (s *side) replace(epoch uint64, g verdict.Green) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waits[epoch] = &api.Wait{Epoch: epoch, Cohorts: map[string]verdict.Green{"eu": g}}
}

func (s *side) away(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.down = err
}

// What was rolled back while the forge was away is told as a failure, although the newer release that contains it is green by then; it asks for nothing to be taken back.
func TestRolledBackWhileAway(t *testing.T) {
	for _, tt := range []struct {
		halts []manifest.Stop
		why   string
	}{
		{nil, "eu goes back to epoch 5: gate errors"},
		{[]manifest.Stop{{By: "muster", Why: "gate errors", Epoch: 7}}, "eu is halted: gate errors"},
	} {
		s := newSide()
		live(t, s, func(d *Deliverer, said *[]string) {
			d.Published(7)
			s.judge(7, baking, wave(1, manifest.PhaseBaking))
			synctest.Wait()
			s.wrote()
			s.away(forge.ErrUnreachable)
			time.Sleep(time.Minute)
			s.judge(7, isBack, goesBack(7))
			d.Published(8)
			e := isDone(8)
			e.Rollout.Halts = tt.halts
			s.replace(7, allGreen)
			s.judge(8, allGreen, e) // both are heard before anything is told
			time.Sleep(time.Hour)
			s.away(nil)
			time.Sleep(time.Hour)
			expect(t, s, "77 prod failure: "+tt.why, "77 failure: epoch 7: prod: "+tt.why, "88 prod success: 10 confirmed", "88 success: epoch 8: prod: 10 confirmed")
			if !slices.ContainsFunc(*said, func(text string) bool { return strings.HasPrefix(text, "epoch 7 is told on GitHub") }) {
				t.Errorf("it is not over: %q", *said)
			}
		})
	}
}

// What a person resumed to its end while the forge was away is a success, also by a newer release.
func TestResumedWhileAway(t *testing.T) {
	s := newSide()
	live(t, s, func(d *Deliverer, said *[]string) {
		d.Published(7)
		s.judge(7, isBack, halted(7))
		synctest.Wait()
		s.away(forge.ErrUnreachable)
		s.wrote()
		time.Sleep(time.Minute)
		s.judge(7, baking, wave(1, manifest.PhaseAdvancing))
		s.judge(7, allGreen, isDone(7))
		s.judge(8, allGreen, isDone(8))
		synctest.Wait()
		d.mu.Lock()
		got := d.ends["eu"][7]
		d.mu.Unlock()
		if got != (end{done: true}) {
			t.Errorf("%+v", got)
		}
		s.away(nil)
		time.Sleep(time.Hour)
		expect(t, s, "77 prod success: 10 confirmed", "77 success: epoch 7: prod: 10 confirmed")
	})
}

// Who was stopped meanwhile does not know how a release ended that a newer one has replaced: that is no success, and is told once.
func TestReplacedWhileStopped(t *testing.T) {
	s := newSide()
	live(t, s, func(d *Deliverer, said *[]string) {
		d.Published(7)
		s.judge(7, baking, wave(1, manifest.PhaseBaking))
		synctest.Wait()
		s.wrote()
	})
	s.begin = []api.Event{withCohort(isDone(8))}
	s.releases = []api.Release{{Epoch: 8, Kind: manifest.ReleaseCommit}, {Epoch: 7, Kind: manifest.ReleaseCommit}}
	s.replace(7, allGreen)
	s.replace(8, allGreen)
	live(t, s, func(d *Deliverer, said *[]string) {
		time.Sleep(time.Hour)
		expect(t, s, "77 prod inactive: replaced by epoch 8; how it ended before that was not heard", "88 prod success: 10 confirmed", "88 success: epoch 8: prod: 10 confirmed")
	})
	live(t, s, func(d *Deliverer, said *[]string) {
		time.Sleep(time.Hour)
		expect(t, s)
	})
	// What the newer one began from was done.
	s = newSide()
	e := wave(1, manifest.PhaseBaking)
	e.Target, e.Rollout.Target, e.Rollout.Baseline = 8, 8, 7
	s.begin = []api.Event{withCohort(e)}
	s.releases = []api.Release{{Epoch: 7, Kind: manifest.ReleaseCommit}}
	s.replace(7, allGreen)
	live(t, s, func(d *Deliverer, said *[]string) {
		expect(t, s, "77 prod success: 10 confirmed", "77 success: epoch 7: prod: 10 confirmed")
	})
}

// However much is merged while a release bakes, it is followed: here twice as much as is followed at all.
func TestMergedWhileBaking(t *testing.T) {
	s := newSide()
	live(t, s, func(d *Deliverer, said *[]string) {
		d.Published(7)
		s.judge(7, baking, wave(1, manifest.PhaseBaking))
		synctest.Wait()
		const last = 7 + 2*maxActive
		for e := uint64(8); e <= last; e++ {
			s.judge(e, verdict.Green{Waiting: waiting(10)}, wave(1, manifest.PhaseBaking))
			d.Published(e)
			synctest.Wait()
		}
		s.wrote()
		s.judge(7, isBack, goesBack(7))
		synctest.Wait()
		got := s.wrote()
		for _, want := range []string{"77 prod failure: eu goes back to epoch 5: gate errors", "revert muster/revert-7-7777777 55..77"} {
			if !slices.Contains(got, want) {
				t.Errorf("not told: %s\n%q", want, got)
			}
		}
		want := fmt.Sprintf("what becomes of epoch 8 is not told on GitHub any more: more than %d releases are under way", maxActive)
		if n := len(*said); n < maxActive+1 || (*said)[0] != want { // those, and the revert
			t.Errorf("said %d: %.200q", n, *said)
		}
	})
}

// What is told goes before what is not.
func TestBoundDropsTold(t *testing.T) {
	var said []string
	d := New(Config{Say: func(text string) { said = append(said, text) }})
	for e := uint64(1); e <= maxActive+2; e++ {
		d.active = append(d.active, &tracked{Release: Release{Epoch: e}})
	}
	d.rollouts["eu"] = goesBack(1)
	d.active[0].status, d.active[9].status = &forge.Status{State: forge.Bad}, &forge.Status{State: forge.Bad} // the first is halted yet
	d.active[11].done = true
	d.bound()
	if len(d.active) != maxActive || slices.ContainsFunc(d.active, func(t *tracked) bool { return t.Epoch == 10 || t.Epoch == 12 }) {
		t.Errorf("%d are left", len(d.active))
	}
	if len(said) != 1 || !strings.Contains(said[0], "epoch 10 ") {
		t.Errorf("said %q", said)
	}
}

// A commit that was released twice is told by its newest release alone, from the beginning; a failure of that is no reason to revert the commit to itself.
func TestSameCommitTwice(t *testing.T) {
	s := newSide()
	again := map[uint64]bool{7: true}
	load := func(ctx context.Context, epoch uint64) (*manifest.Release, error) {
		r, err := s.load(ctx, epoch)
		if err == nil && again[epoch] {
			r.Commit = strings.Repeat("5", 40)
		}
		return r, err
	}
	run := func(f func(d *Deliverer)) {
		live(t, s, func(*Deliverer, *[]string) {
			d := New(Config{Forge: s, Collector: s, Load: load, Branch: "main", Revert: true, Say: func(string) {}})
			f(d)
		})
	}
	step := func(d *Deliverer, e api.Event, g verdict.Green) {
		e.Cohort = "eu"
		d.mu.Lock()
		d.rollouts["eu"] = e
		d.ends.note(e)
		d.mu.Unlock()
		s.replace(e.Target, g)
		if errs := d.turn(t.Context()); len(errs) > 0 {
			t.Error(errs)
		}
	}
	run(func(d *Deliverer) {
		d.Published(5)
		step(d, isDone(5), allGreen)
		expect(t, s, "55 prod success: 10 confirmed", "55 success: epoch 5: prod: 10 confirmed")
		d.Published(7)
		step(d, wave(1, manifest.PhaseBaking), baking)
		expect(t, s, "55 prod in_progress: 1 of 10 confirmed; eu: wave 1 of 2, baking", "55 pending: epoch 7: prod: 1 of 10 confirmed; eu: wave 1 of 2, baking")
		step(d, goesBack(7), isBack)
		expect(t, s, "55 prod failure: eu goes back to epoch 5: gate errors", "55 failure: epoch 7: prod: eu goes back to epoch 5: gate errors")
		if len(s.reverts) != 0 || len(s.deployments) != 2 {
			t.Errorf("%d reverts, %d deployments", len(s.reverts), len(s.deployments))
		}
	})
	run(func(d *Deliverer) { // started again, it hears of both, the newest first
		d.Published(7)
		d.Published(5)
		step(d, goesBack(7), isBack)
		expect(t, s)
		if len(d.active) != 1 || d.active[0].Epoch != 7 {
			t.Errorf("%d are followed", len(d.active))
		}
	})
}

// A refusal that the forge does not take now, for what is not about its commit, is told later, and holds up no other.
func TestRefusedLater(t *testing.T) {
	for _, kind := range []error{forge.ErrNotFound, forge.ErrInvalid, forge.ErrDenied} {
		s := newSide()
		s.down = fmt.Errorf("find the app's installation: %w", kind)
		live(t, s, func(d *Deliverer, said *[]string) {
			d.Refused(strings.Repeat("7", 40), "not valid: 1 error")
			d.Refused(strings.Repeat("8", 40), "not valid: 2 errors")
			time.Sleep(time.Minute)
			s.away(nil)
			time.Sleep(time.Hour)
			synctest.Wait()
			got := s.wrote()
			slices.Sort(got)
			if want := []string{"77 failure: refused: not valid: 1 error", "88 failure: refused: not valid: 2 errors"}; !slices.Equal(got, want) {
				t.Errorf("%v: %q", kind, got)
			}
			if len(*said) != 1 {
				t.Errorf("said %q", *said)
			}
		})
	}
	var said []string
	d := New(Config{Say: func(text string) { said = append(said, text) }})
	for n := range maxRefused + 1 {
		d.Refused(fmt.Sprintf("%040d", n), "x")
		d.Refused(fmt.Sprintf("%040d", n), "x")
	}
	if len(d.refused) != maxRefused || len(said) != 1 || !strings.HasPrefix(said[0], "that commit 000000000000 was refused is not told on GitHub") {
		t.Errorf("%d are left, said %q", len(d.refused), said)
	}
}

// The forge says itself whether it is about the commit.
func TestNoCommitIsInvalid(t *testing.T) {
	if !errors.Is(forge.ErrNoCommit, forge.ErrInvalid) {
		t.Error("who asks for an invalid request does not find it")
	}
}
