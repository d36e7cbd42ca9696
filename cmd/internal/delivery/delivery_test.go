package delivery

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-config/muster/distributor/api"
	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/verdict"
	"github.com/muster-config/muster/pipeline/forge"
)

// side is a forge, a collector and a store in one, under a lock.
type side struct {
	mu          sync.Mutex
	down        error // of the forge
	deployments []*forge.Deployment
	statuses    map[string][]forge.Status
	lines       []string // what was written on the forge
	reverts     []forge.Revert
	n           int

	releases []api.Release
	waits    map[uint64]*api.Wait
	events   chan api.Event
	begin    []api.Event       // how the cohorts stand when the stream begins
	holds    map[uint64]uint64 // epochs that change nothing, and what they keep
	unread   map[uint64]bool   // epochs that the store does not give
	ends     bool              // the stream of events ends at once
	streams  int
	refuses  []string          // of the forge: see denied
	blind    bool              // the collector lists nothing
	failing  func(n int) error // of the forge: what its nth call gives, if not nil
	lost     error             // of the collector: what it answers when it is asked about a release
	others   map[uint64]string // epochs that change this cohort instead, and hold in eu what the epoch before them holds
}

func newSide() *side {
	return &side{statuses: map[string][]forge.Status{}, waits: map[uint64]*api.Wait{}, events: make(chan api.Event, 100)}
}

func (s *side) do(what string, f func() error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.n++
	if s.down != nil {
		return s.down
	}
	if s.failing != nil {
		if err := s.failing(s.n); err != nil {
			return err
		}
	}
	if slices.Contains(s.refuses, what) {
		return errDenied
	}
	return f()
}

func (s *side) Deploy(_ context.Context, d forge.Deployment) (*forge.Deployment, error) {
	err := s.do("deploy", func() error {
		for _, have := range s.deployments {
			if have.Commit == d.Commit && have.Environment == d.Environment && strings.HasPrefix(have.Description, d.Mark) {
				d = *have
				return nil
			}
		}
		d.ID = int64(len(s.deployments) + 1)
		s.deployments = append(s.deployments, &d)
		return nil
	})
	return &d, err
}

func (s *side) Progress(_ context.Context, d *forge.Deployment, st forge.DeploymentStatus) error {
	if d.Last == st {
		return nil
	}
	return s.do("deploy", func() error {
		d.Last = st
		s.deployments[d.ID-1].Last = st
		s.lines = append(s.lines, fmt.Sprintf("%s %s %s: %s", d.Commit[:2], d.Environment, st.State, st.Description))
		return nil
	})
}

func (s *side) Status(_ context.Context, commit string, st forge.Status) error {
	return s.do("status", func() error {
		s.statuses[commit] = append(s.statuses[commit], st)
		s.lines = append(s.lines, fmt.Sprintf("%s %s: %s", commit[:2], st.State, st.Description))
		return nil
	})
}

func (s *side) Said(_ context.Context, commit, _ string) (st forge.Status, err error) {
	err = s.do("status", func() error {
		if l := s.statuses[commit]; len(l) > 0 {
			st = l[len(l)-1]
		}
		return nil
	})
	return st, err
}

func (s *side) Revert(_ context.Context, r forge.Revert) (p *forge.Pull, made bool, err error) {
	err = s.do("revert", func() error {
		made = !slices.ContainsFunc(s.reverts, func(h forge.Revert) bool { return h.Name == r.Name })
		if made {
			s.reverts = append(s.reverts, r)
			s.lines = append(s.lines, "revert "+r.Name+" "+r.Good[:2]+".."+r.Bad[:2])
		}
		p = &forge.Pull{Number: len(s.reverts)}
		return nil
	})
	return p, made, err
}

func (s *side) Calls() forge.Calls {
	s.mu.Lock()
	defer s.mu.Unlock()
	return forge.Calls{Requests: s.n}
}

func (s *side) Events(ctx context.Context, got func(api.Event)) error {
	s.mu.Lock()
	s.streams++
	ends := s.ends
	s.mu.Unlock()
	if ends {
		return nil
	}
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case e := <-s.events:
			got(e)
		}
	}
}

func (s *side) Wait(_ context.Context, epoch uint64, _ api.WaitQuery) (*api.Wait, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lost != nil {
		return nil, s.lost
	}
	if w := s.waits[epoch]; w != nil {
		return w, nil
	}
	return nil, api.ErrNotFound
}

func (s *side) Releases(context.Context) ([]api.Release, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.blind {
		return nil, errors.New("the collector is away")
	}
	return s.releases, nil
}

// load is the store: epoch n is commit nnnn…, of one cohort in the environment prod.
func (s *side) load(_ context.Context, epoch uint64) (*manifest.Release, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.unread[epoch] {
		return nil, errors.New("there is no such release")
	}
	if name := s.others[epoch]; name != "" {
		return &manifest.Release{
			Epoch: epoch, Kind: manifest.ReleaseCommit, Commit: strings.Repeat(fmt.Sprint(epoch), 40),
			Cohorts: map[string]manifest.ReleaseCohort{"eu": {State: manifest.StateHolds, Epoch: 5}, name: {State: manifest.StateBuilt, Epoch: epoch}},
		}, nil
	}
	if held := s.holds[epoch]; held != 0 {
		return &manifest.Release{
			Epoch: epoch, Commit: strings.Repeat(fmt.Sprint(epoch), 40), Subject: "words", Cohorts: map[string]manifest.ReleaseCohort{"eu": {State: manifest.StateHolds, Epoch: held}},
			Policy: manifest.Policy{Cohorts: map[string]manifest.CohortPolicy{"eu": {Labels: map[string]string{"env": "prod"}}}},
		}, nil
	}
	return &manifest.Release{
		Epoch: epoch, Commit: strings.Repeat(fmt.Sprint(epoch), 40), Subject: fmt.Sprint("change ", epoch), Cohorts: map[string]manifest.ReleaseCohort{"eu": {State: manifest.StateBuilt, Epoch: epoch}},
		Policy: manifest.Policy{Cohorts: map[string]manifest.CohortPolicy{"eu": {Labels: map[string]string{"env": "prod"}}}},
	}, nil
}

// judge sets what the collector says of an epoch, and lets it be known.
func (s *side) judge(epoch uint64, g verdict.Green, e api.Event) {
	s.mu.Lock()
	s.waits[epoch] = &api.Wait{Epoch: epoch, Cohorts: map[string]verdict.Green{"eu": g}}
	s.mu.Unlock()
	e.Cohort = "eu"
	s.events <- e
}

func (s *side) wrote() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := s.lines
	s.lines = nil
	return out
}

// live runs a Deliverer in a bubble of its own time.
func live(t *testing.T, s *side, f func(d *Deliverer, said *[]string)) {
	synctest.Test(t, func(t *testing.T) {
		s.events = make(chan api.Event, 100)
		var said []string
		var mu sync.Mutex
		d := New(Config{Forge: s, Collector: s, Load: s.load, Branch: "main", Revert: true, Say: func(text string) {
			mu.Lock()
			defer mu.Unlock()
			said = append(said, text)
		}})
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { d.Run(ctx) })
		s.events <- api.Event{Cohort: "elsewhere"}
		for _, e := range s.begin {
			s.events <- e
		}
		time.Sleep(1100 * time.Millisecond)
		synctest.Wait()
		f(d, &said)
		cancel()
		wg.Wait()
	})
}

func expect(t *testing.T, s *side, want ...string) {
	t.Helper()
	synctest.Wait()
	if got := s.wrote(); !slices.Equal(got, want) {
		t.Errorf("wrote\n  %s\nwant\n  %s", strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
}

func wave(n int, phase manifest.Phase) api.Event {
	return api.Event{Target: 7, Phase: phase, Rollout: &api.Rollout{Target: 7, Baseline: 5, Phase: phase, Wave: n, Waves: []api.RolloutWave{{Wave: 1}, {Wave: 2}}}}
}

func TestDelivered(t *testing.T) {
	s := newSide()
	live(t, s, func(d *Deliverer, said *[]string) {
		d.Published(7)
		expect(t, s, "77 prod queued: eu waits for its rollout", "77 pending: epoch 7: prod: eu waits for its rollout")
		s.judge(7, verdict.Green{Confirmed: 1, Waiting: waiting(99)}, wave(1, manifest.PhaseAdvancing))
		expect(t, s, "77 prod in_progress: 1 of 100 confirmed; eu: wave 1 of 2")
		// Counts alone are told twice a minute at most; a wave is told at once.
		for n := 2; n < 50; n++ {
			s.judge(7, verdict.Green{Confirmed: n, Waiting: waiting(100 - n)}, wave(1, manifest.PhaseAdvancing))
			time.Sleep(time.Second)
		}
		synctest.Wait()
		if got := s.wrote(); len(got) != 1 {
			t.Errorf("told %d times in 48 seconds: %v", len(got), got)
		}
		s.judge(7, verdict.Green{Confirmed: 50, Waiting: waiting(50)}, wave(2, manifest.PhaseAdvancing))
		expect(t, s, "77 prod in_progress: 50 of 100 confirmed; eu: wave 2 of 2")
		s.judge(7, verdict.Green{Green: true, Confirmed: 98, Owed: 2}, api.Event{Target: 7, Phase: manifest.PhaseDone})
		expect(t, s, "77 prod success: 98 confirmed, 2 owed", "77 success: epoch 7: prod: 98 confirmed, 2 owed")
		if len(*said) != 1 || !strings.HasPrefix((*said)[0], "epoch 7 is told on GitHub (epoch 7: prod: 98 confirmed, 2 owed): 9 requests") {
			t.Errorf("said %q", *said)
		}
	})
}

// TestB117Delivery: a forge that is away holds up nothing, is asked ever less often, and hears the end of it later.
func TestB117Delivery(t *testing.T) {
	s := newSide()
	s.down = fmt.Errorf("make the deployment: %w", forge.ErrUnreachable)
	live(t, s, func(d *Deliverer, said *[]string) {
		begin := time.Now()
		for range 1000 {
			d.Published(7)
			d.Refused(strings.Repeat("9", 40), "not valid: 1 error")
		}
		if time.Since(begin) != 0 {
			t.Error("publishing waited")
		}
		s.judge(7, verdict.Green{Confirmed: 1, Waiting: waiting(9)}, wave(1, manifest.PhaseAdvancing))
		time.Sleep(time.Hour)
		synctest.Wait()
		if n := s.Calls().Requests; n > 20 {
			t.Errorf("asked %d times in an hour", n)
		}
		if len(*said) != 1 {
			t.Errorf("said %q", *said)
		}
		s.mu.Lock()
		s.down, s.n = nil, 0
		s.mu.Unlock()
		s.judge(7, verdict.Green{Green: true, Confirmed: 10}, api.Event{Target: 7, Phase: manifest.PhaseDone})
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		got := s.wrote()
		if n := len(got); n < 3 || got[n-2] != "77 prod success: 10 confirmed" || got[n-1] != "77 success: epoch 7: prod: 10 confirmed" || got[0] != "99 failure: refused: not valid: 1 error" {
			t.Errorf("%v", got)
		}
	})
}

// A rolled back release is a failure with the reason, and is asked to be taken back once, by whoever is there; the revert is a success of its own.
func TestRolledBack(t *testing.T) {
	s := newSide()
	back := wave(1, manifest.PhaseRollingBack)
	back.Rollout.Why = "gate errors: 0.2 is above 0.01"
	halted := wave(1, manifest.PhaseHalted)
	halted.Rollout.Halts = []manifest.Stop{{By: "muster", Why: "gate errors: 0.2 is above 0.01", Epoch: 7}}
	live(t, s, func(d *Deliverer, said *[]string) {
		d.Published(7)
		s.judge(7, verdict.Green{Confirmed: 1, Waiting: waiting(9)}, wave(1, manifest.PhaseBaking))
		synctest.Wait()
		s.wrote()
		s.judge(7, verdict.Green{Never: true, Waiting: waiting(10)}, back)
		expect(t, s, "77 prod failure: eu goes back to epoch 5: gate errors: 0.2 is above 0.01", "77 failure: epoch 7: prod: eu goes back to epoch 5: gate errors: 0.2 is above 0.01", "revert muster/revert-7-7777777 55..77")
		s.judge(7, verdict.Green{Never: true, Waiting: waiting(10)}, halted)
		expect(t, s, "77 prod failure: eu is halted: gate errors: 0.2 is above 0.01")
		time.Sleep(time.Hour)
		expect(t, s)
		body := s.reverts[0].Body
		if !strings.Contains(body, "gate errors") || !strings.Contains(body, strings.Repeat("5", 40)) {
			t.Error(body)
		}
	})
	// Another publisher, or this one again, says none of it twice.
	s.releases, s.begin = []api.Release{{Epoch: 7, Kind: manifest.ReleaseCommit}}, []api.Event{withCohort(halted)}
	live(t, s, func(d *Deliverer, said *[]string) {
		time.Sleep(time.Minute)
		synctest.Wait()
		expect(t, s)
		s.judge(8, verdict.Green{Green: true, Confirmed: 10}, api.Event{Target: 8, Phase: manifest.PhaseDone})
		d.Published(8)
		synctest.Wait()
		if got := s.wrote(); len(got) != 2 || got[0] != "88 prod success: 10 confirmed" {
			t.Errorf("%v", got)
		}
	})
}

func withCohort(e api.Event) api.Event { e.Cohort = "eu"; return e }

// A success can still fail while it is watched; then that is told.
func TestLateFailure(t *testing.T) {
	s := newSide()
	watched := wave(3, manifest.PhaseDone)
	watched.Rollout.Fallback = 5
	live(t, s, func(d *Deliverer, said *[]string) {
		d.Published(7)
		s.judge(7, verdict.Green{Green: true, Confirmed: 10}, watched)
		synctest.Wait()
		s.wrote()
		halted := wave(3, manifest.PhaseHalted)
		halted.Rollout.Halts = []manifest.Stop{{By: "muster", Why: "late", Epoch: 7}}
		s.judge(7, verdict.Green{Never: true, Waiting: waiting(10)}, halted)
		expect(t, s, "77 prod failure: eu is halted: late", "77 failure: epoch 7: prod: eu is halted: late", "revert muster/revert-7-7777777 55..77")
	})
}

// Who comes back says how what it left ended, and nothing that was said.
func TestTakenUpAgain(t *testing.T) {
	s := newSide()
	s.releases = []api.Release{{Epoch: 7, Kind: manifest.ReleaseCommit}, {Epoch: 6, Kind: manifest.ReleaseOverride}, {Epoch: 5, Kind: manifest.ReleaseCommit}}
	s.waits[7] = &api.Wait{Cohorts: map[string]verdict.Green{"eu": {Green: true, Confirmed: 10}}}
	s.waits[5] = s.waits[7]
	live(t, s, func(d *Deliverer, said *[]string) {
		expect(t, s, "55 prod success: 10 confirmed", "55 success: epoch 5: prod: 10 confirmed", "77 prod success: 10 confirmed", "77 success: epoch 7: prod: 10 confirmed")
	})
	live(t, s, func(d *Deliverer, said *[]string) { expect(t, s) })
}

// A commit that the forge does not have is not told there, and holds up nothing.
func TestRefusedElsewhere(t *testing.T) {
	s := newSide()
	s.down = &noCommit{}
	live(t, s, func(d *Deliverer, said *[]string) {
		d.Refused(strings.Repeat("9", 40), "x")
		synctest.Wait()
		s.mu.Lock()
		s.down = nil
		s.mu.Unlock()
		d.Published(7)
		expect(t, s, "77 prod queued: eu waits for its rollout", "77 pending: epoch 7: prod: eu waits for its rollout")
		if len(*said) != 1 || (*said)[0] != "that commit 999999999999 was refused is not told on GitHub: no commit found" {
			t.Errorf("%q", *said)
		}
	})
}

type noCommit struct{}

func (*noCommit) Error() string        { return "no commit found" }
func (*noCommit) Is(target error) bool { return target == forge.ErrNoCommit }

// A release that changes nothing is delivered when what it keeps is: before that it is neither a success nor a deployment.
func TestNothingChangesWhileHalted(t *testing.T) {
	s := newSide()
	s.holds = map[uint64]uint64{8: 7}
	live(t, s, func(d *Deliverer, said *[]string) {
		halted := wave(1, manifest.PhaseHalted)
		halted.Rollout.Halts = []manifest.Stop{{By: "muster", Why: "gate errors", Epoch: 7}}
		s.judge(8, verdict.Green{Waiting: waiting(1)}, halted)
		synctest.Wait()
		d.Published(8)
		expect(t, s, "88 failure: epoch 8: epoch 7, which stays: eu is halted: gate errors; nothing changes on any host")
		s.judge(8, verdict.Green{Waiting: waiting(1)}, wave(1, manifest.PhaseAdvancing))
		expect(t, s, "88 pending: epoch 8: nothing changes on any host; eu keeps epoch 7, which is not confirmed yet")
		s.judge(8, verdict.Green{Green: true, Confirmed: 1}, wave(2, manifest.PhaseDone))
		expect(t, s, "88 success: epoch 8: nothing changes on any host")
	})
}

// A release that cannot be read holds up no other, is said once, and is told when it can be read.
func TestUnreadRelease(t *testing.T) {
	s := newSide()
	s.unread = map[uint64]bool{7: true}
	s.holds = map[uint64]uint64{8: 6}
	live(t, s, func(d *Deliverer, said *[]string) {
		s.judge(8, verdict.Green{Green: true, Confirmed: 1}, wave(2, manifest.PhaseDone))
		synctest.Wait()
		d.Published(7)
		d.Published(8)
		expect(t, s, "88 success: epoch 8: nothing changes on any host")
		time.Sleep(20 * time.Minute)
		synctest.Wait()
		n := 0
		for _, text := range *said {
			if strings.Contains(text, "epoch 7 is not told for now: read the release: there is no such release") {
				n++
			}
		}
		if n != 1 {
			t.Errorf("said %d times: %q", n, *said)
		}
		s.mu.Lock()
		s.unread = nil
		s.mu.Unlock()
		s.judge(7, verdict.Green{Green: true, Confirmed: 1}, wave(2, manifest.PhaseDone))
		time.Sleep(6 * time.Minute)
		expect(t, s, "77 prod success: 1 confirmed", "77 success: epoch 7: prod: 1 confirmed")
	})
}

// A stream that ends at once, and without an error, is asked for again after a pause that grows.
func TestListenPauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSide()
		s.ends = true
		d := New(Config{Forge: s, Collector: s, Load: s.load, Say: func(string) {}})
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
		defer cancel()
		d.listen(ctx)
		if s.streams > 17 {
			t.Errorf("%d streams in ten minutes", s.streams)
		}
	})
}
