package rollout_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/muster-config/muster/distributor/keys"
	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/rollout"
	"github.com/muster-config/muster/distributor/rollout/gate"
	"github.com/muster-config/muster/distributor/store"
	"github.com/muster-config/muster/distributor/store/mem"
	"github.com/muster-config/muster/distributor/verdict"
	"github.com/muster-config/muster/distributor/wire"
)

var rolloutKey, releaseKey = keys.FromSeed(3), keys.FromSeed(2)

// site is a store with one cohort, and hosts that do at once what its head says. It is what controllers observe.
type site struct {
	t     *testing.T
	store store.Store
	trust manifest.TrustState

	mu      sync.Mutex
	now     time.Time
	release *manifest.Release
	made    map[uint64]manifest.Envelope
	running map[string]uint64
	stale   *manifest.View // what an observer sees that reads an old head
	reads   int
}

func newSite(t *testing.T, n int, p manifest.RolloutPolicy) *site {
	s := &site{t: t, store: mem.New(), now: now, made: map[uint64]manifest.Envelope{}, running: map[string]uint64{}}
	k := keys.NewKeyring("acme/config", now, keys.FromSeed(1).Public(), releaseKey.Public(), rolloutKey.Public(), keys.FromSeed(4).Public())
	e, err := manifest.Seal(manifest.KindKeyring, k, keys.FromSeed(1))
	if err != nil {
		t.Fatal(err)
	}
	data, err := wire.Encode(e)
	if err != nil {
		t.Fatal(err)
	}
	if s.trust, err = manifest.NewTrust("acme/config", data); err != nil {
		t.Fatal(err)
	}
	for i := range n {
		s.running[fmt.Sprintf("h-%03d", i)] = 0
	}
	s.publish(7, p)
	return s
}

func (s *site) publish(epoch uint64, p manifest.RolloutPolicy) {
	digest := (&manifest.Envelope{Payload: fmt.Append(nil, epoch)}).Digest()
	object := manifest.Object{Object: digest, Size: 1, Tar: digest, TarSize: 1024}
	st := manifest.Statement{
		V: 1, Store: strings.Repeat("0a", 16), Repo: "acme/config", Cohort: "prod", Epoch: epoch, Commit: fmt.Sprintf("%040x", epoch), Bundle: object, Content: digest,
		Evidence: map[string]manifest.Grade{}, Inputs: digest, Content0: digest,
	}
	e, err := manifest.Seal(manifest.KindStatement, st, releaseKey)
	if err != nil {
		s.t.Fatal(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.made[epoch] = *e
	s.release = &manifest.Release{
		Store: st.Store, Repo: st.Repo, Epoch: epoch, Created: s.now.Add(-time.Hour),
		Policy:  manifest.Policy{Cohorts: map[string]manifest.CohortPolicy{"prod": {Rollout: "standard"}}, Rollouts: map[string]manifest.RolloutPolicy{"standard": p}},
		Cohorts: map[string]manifest.ReleaseCohort{"prod": {State: manifest.StateBuilt, Epoch: epoch, Statement: e}},
	}
}

func (s *site) clock() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.now
}

func (s *site) pass(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now = s.now.Add(d)
}

func (s *site) head() *manifest.View {
	obj, err := s.store.Get(context.Background(), manifest.KeyHead("prod"), manifest.MaxHeadBytes)
	if errors.Is(err, store.ErrNotFound) {
		return nil
	}
	if err != nil {
		s.t.Error(err)
		return nil
	}
	_, v, err := s.trust.AcceptHead("prod", obj.Data, s.clock())
	if err != nil {
		s.t.Error(err)
	}
	return v
}

// apply has hosts do what the head says.
func (s *site) apply() {
	v := s.head()
	s.mu.Lock()
	defer s.mu.Unlock()
	for name := range s.running {
		res, err := manifest.Resolve(v, manifest.Host{Name: name}, s.now)
		if err != nil {
			s.t.Fatal(err)
		}
		s.running[name] = res.Epoch()
	}
}

func (s *site) Newest(context.Context) (rollout.Newest, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return rollout.Newest{Trust: s.trust, Release: s.release}, nil
}

func (s *site) Statement(_ context.Context, _ string, epoch uint64) (*manifest.Envelope, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.made[epoch]
	return &e, nil
}

func (s *site) Cohort(context.Context, string) (*manifest.View, rollout.Observed, error) {
	v := s.stale
	if v == nil {
		v = s.head()
	}
	if v == nil {
		return nil, rollout.Observed{}, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reads++
	seen := rollout.Observed{Mark: v.Mark()}
	for name, running := range s.running {
		h := rollout.Host{Name: name, Verdict: verdict.Confirmed, Running: running}
		if res, err := manifest.Resolve(v, manifest.Host{Name: name}, s.now); err != nil || res.Epoch() != running {
			h.Verdict = verdict.Applying
		}
		seen.Hosts = append(seen.Hosts, h)
	}
	return v, seen, nil
}

func (s *site) Services(context.Context, string, uint64) (map[string]string, error) {
	return nil, errors.New("the store does not answer")
}
func (s *site) Changed() <-chan struct{} { return nil }
func (s *site) Wrote(string)             {}

// controller is a new one: it knows nothing.
func (s *site) controller(st store.Store) *rollout.Controller {
	return &rollout.Controller{Store: st, Signer: rolloutKey, Seen: s, Gates: wellAsked{}, By: "controller", Now: s.clock}
}

// wellAsked has every gate pass.
type wellAsked struct{}

func (wellAsked) Judge(_ context.Context, q gate.Question) []manifest.GateVerdict {
	return say1(q, manifest.OutcomePass, "well")
}
func (wellAsked) Changed() <-chan struct{} { return nil }

// broken is a store whose writes go wrong as told.
type broken struct {
	store.Store
	writes int
	fault  func(n int) string // "lost": nothing is written; "unanswered": it is, and nobody hears of it
}

func (b *broken) Replace(ctx context.Context, key string, data []byte, token store.Token) (store.Token, error) {
	b.writes++
	switch b.fault(b.writes) {
	case "lost":
		return "", fmt.Errorf("replace: %w", store.ErrUnreachable)
	case "unanswered":
		if _, err := b.Store.Replace(ctx, key, data, token); err != nil {
			return "", err
		}
		return "", fmt.Errorf("replace: %w", store.ErrAmbiguous)
	}
	return b.Store.Replace(ctx, key, data, token)
}

// steps checks the history of a rollout: each wave begins once and bakes once, serials have no gap, and a bake's begin does not move.
func (s *site) steps(epoch uint64, waves int) {
	s.t.Helper()
	page, err := s.store.List(context.Background(), manifest.PrefixHistory+"prod/", "", 1000)
	if err != nil {
		s.t.Fatal(err)
	}
	var views []*manifest.View
	for _, info := range page {
		obj, err := s.store.Get(context.Background(), info.Key, manifest.MaxHeadBytes)
		if err != nil {
			s.t.Fatal(err)
		}
		_, v, err := s.trust.AcceptHead("prod", obj.Data, s.clock())
		if err != nil {
			s.t.Fatal(err)
		}
		views = append(views, v)
	}
	slices.SortFunc(views, func(a, b *manifest.View) int { return a.Mark().Compare(b.Mark()) })
	begun, baked := map[int]int{}, map[int]time.Time{}
	for i, v := range views {
		if i > 0 && v.Manifest.Serial != views[i-1].Manifest.Serial+1 {
			s.t.Errorf("serial %d after %d", v.Manifest.Serial, views[i-1].Manifest.Serial)
		}
		r := v.Manifest.Rollout
		if r.Target != epoch {
			continue
		}
		if r.Phase == manifest.PhaseAdvancing && (i == 0 || views[i-1].Manifest.Rollout.Wave != r.Wave || views[i-1].Manifest.Rollout.Target != epoch) {
			begun[r.Wave]++
		}
		if r.Phase == manifest.PhaseBaking {
			if since, ok := baked[r.Wave]; ok && !since.Equal(r.Since) {
				s.t.Errorf("wave %d bakes since %s, and since %s", r.Wave, since, r.Since)
			}
			baked[r.Wave] = r.Since
		}
	}
	for wave := 1; wave <= waves; wave++ {
		if begun[wave] != 1 {
			s.t.Errorf("wave %d began %d times", wave, begun[wave])
		}
	}
}

// Controllers that are killed after each write, in the middle of one, or that run side by side: each step is taken once, and a bake keeps its begin.
func TestB109ControllersAreKilled(t *testing.T) {
	for name, fault := range map[string]func(n int) string{
		"after each write":          func(int) string { return "" },
		"before it is written":      func(n int) string { return []string{"lost", ""}[n%2] },
		"after it, and unanswered":  func(n int) string { return []string{"unanswered", ""}[n%2] },
		"one of three goes through": func(n int) string { return []string{"", "lost", "unanswered"}[n%3] },
	} {
		for _, side := range []int{1, 3} {
			t.Run(fmt.Sprint(name, ", ", side, " side by side"), func(t *testing.T) {
				p := gated(standard(bakeless(10, 50, 100)...), "errors")
				s := newSite(t, 20, p)
				s.controller(s.store).Step(t.Context())
				s.apply()
				s.publish(8, p)
				st := make([]*broken, side)
				for i := range st {
					st[i] = &broken{Store: s.store, fault: fault}
				}
				for range 400 {
					var work sync.WaitGroup
					for i := range st {
						// A try is cut off, so that what an answer was lost for is left to the next controller.
						ctx, kill := context.WithCancel(t.Context())
						work.Go(func() {
							defer kill()
							s.controller(st[i]).Step(ctx)
						})
					}
					work.Wait()
					s.apply()
					s.pass(20 * time.Second)
					if r := s.head().Manifest.Rollout; r.Target == 8 && r.Phase == manifest.PhaseDone && r.Fallback == 0 {
						break
					}
				}
				if r := s.head().Manifest.Rollout; r.Target != 8 || r.Phase != manifest.PhaseDone {
					t.Fatalf("it does not end: %+v", r)
				}
				s.steps(8, 3)
			})
		}
	}
}

// A controller that stood still for an hour, between looking and writing or before it looked again, does nothing that is out of date.
func TestB109ControllerStoodStill(t *testing.T) {
	p := standard(bakeless(10, 100)...)
	s := newSite(t, 20, p)
	s.controller(s.store).Step(t.Context())
	s.apply()
	s.publish(8, p)
	// Between looking and writing: the clock jumps.
	c := s.controller(s.store)
	asked := 0
	c.Now = func() time.Time {
		if asked++; asked > 1 {
			return s.clock().Add(time.Hour)
		}
		return s.clock()
	}
	before := s.head().Mark()
	c.Step(t.Context())
	if s.head().Mark() != before {
		t.Error("an order rests on what was true an hour ago")
	}
	// It looked at a head that others have replaced since: its decision is for another one.
	s.controller(s.store).Step(t.Context())
	old := s.head()
	s.apply()
	s.controller(s.store).Step(t.Context())
	in := rollout.Input{Store: s.release.Store, Repo: s.release.Repo, Cohort: "prod", Era: 0, Release: s.release, By: "ana"}
	if _, err := rollout.Perform(t.Context(), s.store, s.trust, rolloutKey, in, rollout.Action{Kind: rollout.Abort, By: "ana", Why: "no"}, s.clock()); err != nil {
		t.Fatal(err)
	}
	s.stale = old
	before = s.head().Mark()
	s.controller(s.store).Step(t.Context())
	if s.head().Mark() != before {
		t.Errorf("a stale look wrote an order: %+v", s.head().Manifest.Rollout)
	}
	s.stale = nil
	for range 10 {
		s.apply()
		s.controller(s.store).Step(t.Context())
		s.pass(time.Minute)
	}
	if r := s.head().Manifest.Rollout; r.Phase != manifest.PhaseHalted {
		t.Errorf("%+v", r)
	}
}
