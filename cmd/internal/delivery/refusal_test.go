package delivery

import (
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

// denied is the forge that refuses some things: "deploy", "status", "revert".
func (s *side) denied(things ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refuses = things
}

// What the forge refuses, for want of a right, is said once, holds up nothing else, and is done soon after the right is given.
func TestRightIsMissing(t *testing.T) {
	s := newSide()
	live(t, s, func(d *Deliverer, said *[]string) {
		back := wave(1, manifest.PhaseHalted)
		back.Rollout.Halts = []manifest.Stop{{By: "muster", Why: "gate errors", Epoch: 7}}
		s.denied("revert")
		s.judge(7, verdict.Green{Never: true, Waiting: waiting(10)}, back)
		synctest.Wait() // it is heard before
		d.Published(7)
		expect(t, s, "77 prod failure: eu is halted: gate errors", "77 failure: epoch 7: prod: eu is halted: gate errors")
		// The next release is told as if nothing were.
		d.Published(8)
		s.judge(8, verdict.Green{Waiting: waiting(10)}, back)
		expect(t, s, "88 prod queued: eu waits for its rollout", "88 pending: epoch 8: prod: eu waits for its rollout")
		s.mu.Lock()
		s.n = 0
		s.mu.Unlock()
		time.Sleep(time.Hour)
		synctest.Wait()
		if n := s.Calls().Requests; n > 12 {
			t.Errorf("asked %d times in an hour", n)
		}
		complaints := 0
		for _, text := range *said {
			if strings.Contains(text, "revert: GitHub does not allow it") {
				complaints++
			}
		}
		if complaints != 1 {
			t.Errorf("said %d times: %q", complaints, *said)
		}
		s.denied()
		time.Sleep(longestRefusal + time.Minute)
		expect(t, s, "revert muster/revert-7-7777777 55..77")
	})
}

// Each thing by itself: without the right to deployments the status is told, and the other way round; a refused commit that cannot be told holds up no release.
func TestRightsOneByOne(t *testing.T) {
	for _, tt := range []struct {
		without string
		want    []string
	}{
		{"deploy", []string{"77 success: epoch 7: prod: 10 confirmed"}},
		{"status", []string{"77 prod success: 10 confirmed"}},
	} {
		s := newSide()
		live(t, s, func(d *Deliverer, said *[]string) {
			s.denied(tt.without)
			d.Refused(strings.Repeat("9", 40), "not valid: 1 error")
			s.judge(7, verdict.Green{Green: true, Confirmed: 10}, wave(3, manifest.PhaseDone))
			synctest.Wait() // it is heard before
			d.Published(7)
			synctest.Wait()
			var got []string
			for _, line := range s.wrote() {
				if !strings.HasPrefix(line, "99 ") {
					got = append(got, line)
				}
			}
			if fmt.Sprint(got) != fmt.Sprint(tt.want) {
				t.Errorf("without %s: %q", tt.without, got)
			}
		})
	}
}

// Who starts while the collector is away takes up what it missed once that is back.
func TestTakenUpLater(t *testing.T) {
	s := newSide()
	s.blind = true
	s.releases = []api.Release{{Epoch: 7, Kind: manifest.ReleaseCommit}}
	s.waits[7] = &api.Wait{Cohorts: map[string]verdict.Green{"eu": {Green: true, Confirmed: 10}}}
	live(t, s, func(d *Deliverer, said *[]string) {
		expect(t, s)
		s.mu.Lock()
		s.blind = false
		s.mu.Unlock()
		time.Sleep(time.Minute)
		expect(t, s, "77 prod success: 10 confirmed", "77 success: epoch 7: prod: 10 confirmed")
	})
}

// The forge was away while several releases were published, and the publisher was restarted meanwhile: each is told how it ended.
func TestManyTakenUp(t *testing.T) {
	s := newSide()
	for epoch := uint64(9); epoch > 1; epoch-- {
		s.releases = append(s.releases, api.Release{Epoch: epoch, Kind: manifest.ReleaseCommit})
		s.waits[epoch] = &api.Wait{Cohorts: map[string]verdict.Green{"eu": {Green: true, Confirmed: 10}}}
	}
	live(t, s, func(d *Deliverer, said *[]string) {
		time.Sleep(time.Minute)
		synctest.Wait()
		got := strings.Join(s.wrote(), "\n")
		for epoch := 2; epoch <= 9; epoch++ {
			if want := fmt.Sprintf("%d%d success: epoch %d: prod: 10 confirmed", epoch, epoch, epoch); !strings.Contains(got, want) {
				t.Errorf("not told: %s\n%s", want, got)
			}
		}
	})
}

// The words of a subject do nothing when they stand in a pull request and a commit of ours.
func TestRevertIsPlain(t *testing.T) {
	r := revertOf(Release{Epoch: 7, Commit: strings.Repeat("7", 40), Subject: "fixes #12 [skip ci] [no ci] ***NO_CI*** for @acme/all, see https://x.test <b>\n\nskip-checks: true"}, "main", &manifest.Release{Epoch: 5, Commit: strings.Repeat("5", 40)}, back{"eu", 5, "why"})
	for _, bad := range []string{"#", "[", "]", "***", "@", "://", "\n"} {
		if strings.Contains(r.Title, bad) {
			t.Errorf("%q is in %q", bad, r.Title)
		}
	}
	if want := "Revert epoch 7: fixes no. 12 (skip ci)"; !strings.HasPrefix(r.Title, want) {
		t.Errorf("title %q, want %q", r.Title, want)
	}
}

var errDenied = fmt.Errorf("revert: GitHub does not allow it: %w", forge.ErrDenied)
