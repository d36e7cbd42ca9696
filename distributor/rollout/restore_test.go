package rollout_test

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/rollout"
	"github.com/muster-config/muster/distributor/store"
)

// at gives a site whose second release stands somewhere.
func (s *site) at(what string) {
	s.t.Helper()
	s.controller(s.store).Step(s.t.Context())
	s.apply()
	p := s.release.Policy.Rollouts["standard"]
	s.publish(8, p)
	s.pass(time.Minute)
	if what == "not begun" {
		return
	}
	s.controller(s.store).Step(s.t.Context())
	s.apply()
	switch what {
	case "advancing":
	case "baking":
		s.pass(time.Minute)
		s.controller(s.store).Step(s.t.Context())
	case "halted", "rolling back":
		s.perform(rollout.Abort)
		for range 10 {
			if what == "rolling back" {
				break
			}
			s.apply()
			s.pass(time.Minute)
			s.controller(s.store).Step(s.t.Context())
		}
	case "paused":
		s.perform(rollout.Pause)
	}
	if got := string(s.head().Manifest.Rollout.Phase); got != what {
		s.t.Fatalf("it is %s, not %s", got, what)
	}
}

func (s *site) input() rollout.Input {
	return rollout.Input{Store: s.release.Store, Repo: s.release.Repo, Cohort: "prod", Release: s.release, Statement: s.made[s.release.Epoch], By: "ana"}
}

func (s *site) perform(kind rollout.ActionKind) *rollout.Performed {
	s.t.Helper()
	done, err := rollout.Perform(s.t.Context(), s.store, s.trust, rolloutKey, s.input(), rollout.Action{Kind: kind, By: "ana", Why: "looked"}, s.clock())
	if err != nil {
		s.t.Fatal(err)
	}
	return done
}

// remember has trust know the order that stands.
func (s *site) remember() {
	s.t.Helper()
	obj, err := s.store.Get(s.t.Context(), manifest.KeyHead("prod"), manifest.MaxHeadBytes)
	if err != nil {
		s.t.Fatal(err)
	}
	if s.trust, _, err = s.trust.AcceptHead("prod", obj.Data, s.clock()); err != nil {
		s.t.Fatal(err)
	}
}

// A head that is deleted is no new beginning: whatever was stopped stays stopped, and what was under way is paused, also where its last copy is missing.
func TestB046HeadDeleted(t *testing.T) {
	for _, what := range []string{"not begun", "advancing", "baking", "paused", "rolling back", "halted"} {
		for _, knows := range []string{"nothing", "the order", "an old head"} {
			for _, lost := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s, controller knows %s, last copy missing %t", what, knows, lost), func(t *testing.T) {
					s := newSite(t, 20, standard(manifest.Wave{Percent: 10, Bake: "30m"}, manifest.Wave{Percent: 100, Bake: "0s"}))
					s.at(what)
					old := s.head()
					if knows != "nothing" {
						s.remember()
					}
					if knows == "an old head" {
						s.stale = old
						s.pass(2 * time.Hour) // its order is due
					}
					if lost && what != "not begun" {
						if err := s.store.Delete(t.Context(), manifest.KeyHistory("prod", old.Mark())); err != nil {
							t.Fatal(err)
						}
					}
					if err := s.store.Delete(t.Context(), manifest.KeyHead("prod")); err != nil {
						t.Fatal(err)
					}
					s.controller(s.store).Step(t.Context())
					s.stale = nil
					for range 5 {
						s.controller(s.store).Step(t.Context())
						s.pass(10 * time.Minute)
					}
					v := s.head()
					r := v.Manifest.Rollout
					if v.Manifest.Serial <= old.Manifest.Serial {
						t.Errorf("serial %d after %d", v.Manifest.Serial, old.Manifest.Serial)
					}
					stopped := r.Phase == manifest.PhasePaused && r.Pause != nil || r.Phase == manifest.PhaseHalted || r.Phase == manifest.PhaseRollingBack && len(r.Halts) > 0
					if !stopped || rollout.Assigns(v, 8) {
						t.Fatalf("%+v %+v", r, v.Manifest.Assign)
					}
					if !lost && what != "rolling back" && !reflect.DeepEqual(v.Manifest.Assign, old.Manifest.Assign) {
						t.Errorf("it tells %+v, not %+v", v.Manifest.Assign, old.Manifest.Assign)
					}
					if what != "paused" && r.Phase == manifest.PhasePaused && (r.Pause.By != rollout.Restorer || !strings.Contains(r.Pause.Why, "the head was deleted, and restored from the copy of")) {
						t.Errorf("%+v", r.Pause)
					}
					// To all hosts at once neither.
					in := s.input()
					_, err := rollout.Apply(t.Context(), s.store, s.trust, rolloutKey, "prod", s.clock(), func(prev *manifest.View) (manifest.Manifest, bool, error) {
						at := in
						at.Prev, at.Now = prev, s.clock()
						return rollout.Now(at)
					})
					if !errors.Is(err, rollout.ErrStopped) {
						t.Errorf("%v", err)
					}
					if r.Phase == manifest.PhasePaused {
						s.perform(rollout.Resume)
						s.controller(s.store).Step(t.Context())
						if r := s.head().Manifest.Rollout; r.Target != 8 || r.Phase == manifest.PhasePaused {
							t.Errorf("it does not go on: %+v", r)
						}
					}
				})
			}
		}
	}
}

// Where nothing waits, the restored head goes on by itself.
func TestHeadDeletedAtRest(t *testing.T) {
	s := newSite(t, 5, standard())
	s.controller(s.store).Step(t.Context())
	s.apply()
	if err := s.store.Delete(t.Context(), manifest.KeyHead("prod")); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		s.controller(s.store).Step(t.Context())
	}
	if r := s.head().Manifest.Rollout; r.Target != 7 || r.Phase != manifest.PhaseDone || r.Pause != nil {
		t.Errorf("%+v", r)
	}
}

// What is remembered of a cohort without any copy is no new beginning either.
func TestHeadAndCopiesDeleted(t *testing.T) {
	s := newSite(t, 5, standard())
	s.controller(s.store).Step(t.Context())
	s.remember()
	old := s.head().Mark()
	if _, err := s.store.Create(t.Context(), manifest.KeyStore, []byte("{}")); err != nil && !errors.Is(err, store.ErrExists) {
		t.Fatal(err)
	}
	for _, key := range []string{manifest.KeyHead("prod"), manifest.KeyHistory("prod", old)} {
		if err := s.store.Delete(t.Context(), key); err != nil {
			t.Fatal(err)
		}
	}
	_, err := rollout.Apply(t.Context(), s.store, s.trust, rolloutKey, "prod", s.clock(), func(*manifest.View) (manifest.Manifest, bool, error) {
		t.Error("it decides")
		return manifest.Manifest{}, false, nil
	})
	if !errors.Is(err, rollout.ErrVanished) || s.head() != nil {
		t.Errorf("%v", err)
	}
	// Without the store's identity it is not one object that is missing: the store is not there.
	if err := s.store.Delete(t.Context(), manifest.KeyStore); err != nil {
		t.Fatal(err)
	}
	_, err = rollout.Apply(t.Context(), s.store, s.trust, rolloutKey, "prod", s.clock(), func(*manifest.View) (manifest.Manifest, bool, error) {
		t.Error("it decides")
		return manifest.Manifest{}, false, nil
	})
	if !errors.Is(err, store.ErrUnreachable) || errors.Is(err, rollout.ErrVanished) || s.head() != nil {
		t.Errorf("the store is gone: %v", err)
	}
}

// An older head that somebody put back is no base for an order: hosts would refuse it, and its copy would take the place of another one. A person's refresh restores what was newest.
func TestHeadPutBack(t *testing.T) {
	for _, knows := range []bool{false, true} {
		t.Run(fmt.Sprint("knows the order: ", knows), func(t *testing.T) {
			s := newSite(t, 20, standard(manifest.Wave{Percent: 10, Bake: "30m"}, manifest.Wave{Percent: 100, Bake: "0s"}))
			s.at("advancing")
			old, err := s.store.Get(t.Context(), manifest.KeyHead("prod"), manifest.MaxHeadBytes)
			if err != nil {
				t.Fatal(err)
			}
			s.pass(time.Minute)
			s.controller(s.store).Step(t.Context()) // it bakes
			newest := s.head()
			if newest.Manifest.Rollout.Phase != manifest.PhaseBaking {
				t.Fatalf("%+v", newest.Manifest.Rollout)
			}
			kept, err := s.store.Get(t.Context(), manifest.KeyHistory("prod", newest.Mark()), manifest.MaxHeadBytes)
			if err != nil {
				t.Fatal(err)
			}
			if knows {
				s.remember()
			}
			if err := s.store.Put(t.Context(), manifest.KeyHead("prod"), old.Data); err != nil {
				t.Fatal(err)
			}
			s.pass(time.Minute)
			_, err = rollout.Perform(t.Context(), s.store, s.trust, rolloutKey, s.input(), rollout.Action{Kind: rollout.Abort, By: "ana", Why: "no"}, s.clock())
			for _, want := range []string{"`muster rollout refresh prod`", manifest.KeyHistory("prod", newest.Mark())} {
				if !errors.Is(err, manifest.ErrOrder) || !strings.Contains(err.Error(), want) {
					t.Errorf("%v", err)
				}
			}
			if obj, err := s.store.Get(t.Context(), manifest.KeyHistory("prod", newest.Mark()), manifest.MaxHeadBytes); err != nil || !bytes.Equal(obj.Data, kept.Data) {
				t.Errorf("the copy changed: %v", err)
			}
			done := s.perform(rollout.Refresh)
			r := s.head().Manifest.Rollout
			if !done.Changed || !strings.Contains(done.Said, "restored") || s.head().Manifest.Serial <= newest.Manifest.Serial || r.Phase != manifest.PhasePaused || r.Was != manifest.PhaseBaking || r.Pause.By != rollout.Restorer {
				t.Errorf("%+v %+v", done, r)
			}
			s.perform(rollout.Abort)
		})
	}
}
