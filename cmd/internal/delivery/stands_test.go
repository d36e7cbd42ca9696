package delivery

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-config/muster/distributor/api"
	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/verdict"
	"github.com/muster-config/muster/pipeline/forge"
)

func halted(epoch uint64) api.Event {
	e := wave(1, manifest.PhaseHalted)
	e.Target, e.Rollout.Target = epoch, epoch
	e.Rollout.Halts = []manifest.Stop{{By: "muster", Why: "gate errors", Epoch: epoch}}
	return e
}

// TestB117OutageOnce: an outage is told once, whatever the failing calls say and whichever of them fail, and so is its end; who is away is named.
func TestB117OutageOnce(t *testing.T) {
	s := newSide()
	s.failing = func(n int) error {
		if n%3 == 0 {
			return nil
		}
		return fmt.Errorf("call %d: %w", n, []error{forge.ErrUnreachable, forge.ErrLimited}[n%2])
	}
	live(t, s, func(d *Deliverer, said *[]string) {
		d.Published(7)
		d.Refused(strings.Repeat("9", 40), "not valid: 1 error")
		s.judge(7, verdict.Green{Confirmed: 1, Waiting: waiting(9)}, wave(1, manifest.PhaseAdvancing))
		s.mu.Lock()
		s.failing = func(n int) error { return fmt.Errorf("call %d: %w", n, forge.ErrUnreachable) }
		s.mu.Unlock()
		time.Sleep(time.Hour)
		synctest.Wait()
		if len(*said) != 1 || strings.Count((*said)[0], "\n") != 0 || !strings.HasPrefix((*said)[0], "call ") {
			t.Errorf("said %q", *said)
		}
		s.mu.Lock()
		s.failing = nil
		s.lost = errors.New("connection refused")
		s.mu.Unlock()
		time.Sleep(time.Hour)
		synctest.Wait()
		if n := len(*said); n != 2 || !strings.Contains((*said)[1], "what became of epoch 7: connection refused") {
			t.Errorf("said %q", *said)
		}
		s.mu.Lock()
		s.lost = nil
		s.mu.Unlock()
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		if n := len(*said); n != 4 || (*said)[2] != "GitHub answers again" || (*said)[3] != "the collector answers again" {
			t.Errorf("said %q", *said)
		}
	})
}

// A success is told once. What hosts do after it, come back, fall silent, join, is no word about the release, neither while it is watched nor to who starts again.
func TestSuccessStands(t *testing.T) {
	s := newSide()
	watched := wave(3, manifest.PhaseDone)
	watched.Rollout.Fallback = 5
	live(t, s, func(d *Deliverer, said *[]string) {
		s.judge(7, verdict.Green{Green: true, Confirmed: 8, Owed: 2}, watched)
		synctest.Wait() // it is heard before
		d.Published(7)
		expect(t, s, "77 prod success: 8 confirmed, 2 owed", "77 success: epoch 7: prod: 8 confirmed, 2 owed")
		for n := range 3 {
			s.judge(7, verdict.Green{Green: true, Confirmed: 9 + n}, watched)
			synctest.Wait()
			s.judge(7, verdict.Green{Confirmed: 7, Waiting: waiting(n + 1)}, watched)
			synctest.Wait()
		}
		expect(t, s)
	})
	s.releases, s.begin = []api.Release{{Epoch: 7, Kind: manifest.ReleaseCommit}}, []api.Event{withCohort(watched)}
	live(t, s, func(d *Deliverer, said *[]string) {
		time.Sleep(time.Minute)
		expect(t, s)
		s.judge(7, verdict.Green{Never: true, Waiting: waiting(10)}, halted(7)) // but a failure is
		expect(t, s, "77 prod failure: eu is halted: gate errors", "77 failure: epoch 7: prod: eu is halted: gate errors", "revert muster/revert-7-7777777 55..77")
	})
}

// A failure is no success because what reverts it is one, also for who starts after that.
func TestFailureStands(t *testing.T) {
	s := newSide()
	live(t, s, func(d *Deliverer, said *[]string) {
		s.judge(7, verdict.Green{Never: true, Waiting: waiting(10)}, halted(7))
		synctest.Wait() // it is heard before
		d.Published(7)
		synctest.Wait()
		s.wrote()
	})
	green := verdict.Green{Green: true, Confirmed: 10}
	s.waits[7] = &api.Wait{Cohorts: map[string]verdict.Green{"eu": green}} // epoch 8 contains it
	s.waits[8] = s.waits[7]
	s.releases = []api.Release{{Epoch: 8, Kind: manifest.ReleaseCommit}, {Epoch: 7, Kind: manifest.ReleaseCommit}}
	done := api.Event{Cohort: "eu", Target: 8, Phase: manifest.PhaseDone}
	for _, begin := range [][]api.Event{{done}, nil} { // also while nothing is heard
		s.begin = begin
		live(t, s, func(d *Deliverer, said *[]string) {
			time.Sleep(time.Minute)
			synctest.Wait()
			for _, line := range s.wrote() {
				if !strings.HasPrefix(line, "88 ") {
					t.Error(line)
				}
			}
		})
	}
}

// While it is not known how the cohorts stand, nothing is told over what was said before: what was taken back would seem to be under way again.
func TestNotHeardYet(t *testing.T) {
	s := newSide()
	live(t, s, func(d *Deliverer, said *[]string) {
		s.judge(7, verdict.Green{Never: true, Waiting: waiting(10)}, halted(7))
		synctest.Wait() // it is heard before
		d.Published(7)
		synctest.Wait()
		s.wrote()
	})
	s.releases = []api.Release{{Epoch: 7, Kind: manifest.ReleaseCommit}}
	live(t, s, func(d *Deliverer, said *[]string) {
		time.Sleep(time.Minute)
		expect(t, s)
		s.judge(7, verdict.Green{Waiting: waiting(10)}, wave(1, manifest.PhaseAdvancing)) // a person resumed it
		expect(t, s, "77 prod in_progress: 0 of 10 confirmed; eu: wave 1 of 2", "77 pending: epoch 7: prod: 0 of 10 confirmed; eu: wave 1 of 2")
	})
}

// A revert takes back what changed the cohort that failed, and not what came to others since that cohort's baseline.
func TestRevertLeavesOthers(t *testing.T) {
	s := newSide()
	s.others = map[uint64]string{6: "us"}
	s.unread = map[uint64]bool{}
	live(t, s, func(d *Deliverer, said *[]string) {
		s.judge(7, verdict.Green{Never: true, Waiting: waiting(10)}, halted(7))
		synctest.Wait() // it is heard before
		d.Published(7)
		synctest.Wait()
		if got := s.wrote(); len(got) != 3 || got[2] != "revert muster/revert-7-7777777 66..77" {
			t.Errorf("%q", got)
		}
		if body := s.reverts[0].Body; !strings.Contains(body, "went back to epoch 5:") || !strings.Contains(body, "all that came after epoch 6 (commit 66") {
			t.Error(body)
		}
	})
	// A number that holds no release is passed over, and where two failed it is good for both.
	s = newSide()
	s.others, s.unread = map[uint64]string{5: "us", 6: "us"}, map[uint64]bool{6: true}
	d := New(Config{Load: s.load})
	of := map[string]said{"a": {backs: []back{{cohort: "us", baseline: 6}, {cohort: "eu", baseline: 5}}}}
	s.unread = map[uint64]bool{7: true}
	good, b, err := d.before(t.Context(), &tracked{Release: Release{Epoch: 8}}, of)
	if err != nil || good.Epoch != 6 || b.cohort != "us" {
		t.Errorf("%+v %+v %v", good, b, err)
	}
	of["b"] = said{backs: []back{{cohort: "us", baseline: 5}}}
	if good, b, err = d.before(t.Context(), &tracked{Release: Release{Epoch: 8}}, of); err != nil || good.Epoch != 5 || b.baseline != 5 {
		t.Errorf("%+v %+v %v", good, b, err)
	}
}
