package rollout_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/rollout"
)

var now = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

func envelope(name string) manifest.Envelope { return manifest.Envelope{Payload: []byte(name)} }

// prev is a head of serial 4 that assigns epoch 7, with db-1 held at 5 and db-2 held at 3 until yesterday.
func prev(change func(*manifest.Manifest)) *manifest.View {
	ended := now.Add(-24 * time.Hour)
	seven := envelope("7")
	v := &manifest.View{
		Manifest: manifest.Manifest{
			V: 1, Store: "s", Repo: "r", Cohort: "prod", Era: 1, Serial: 4, Issued: now, FreshUntil: now.Add(24 * time.Hour),
			Statements: []manifest.Envelope{envelope("7"), envelope("5"), envelope("3")},
			Assign: []manifest.Assignment{
				{Hosts: []string{"db-1"}, Epoch: 5, Why: "hold"},
				{Hosts: []string{"db-2"}, Epoch: 3, Why: "hold", Until: &ended},
				{Epoch: 7, Why: "baseline"},
			},
			Rollout: manifest.Rollout{PolicyName: "standard", Target: 7, Baseline: 7, Phase: manifest.PhaseDone, Holds: []manifest.Stop{{By: "ana", Hosts: []string{"db-1"}}, {By: "ben", Hosts: []string{"db-2"}, Until: &ended}}},
		},
		Statements: []manifest.VerifiedStatement{{Statement: manifest.Statement{Epoch: 7}, Digest: seven.Digest()}, {Statement: manifest.Statement{Epoch: 5}}, {Statement: manifest.Statement{Epoch: 3}}},
	}
	if change != nil {
		change(&v.Manifest)
	}
	return v
}

func input(v *manifest.View, epoch uint64) rollout.Input {
	statement := envelope("new")
	if epoch == 7 {
		statement = envelope("7")
	}
	return rollout.Input{
		Store: "s", Repo: "r", Cohort: "prod", Era: 1, Prev: v, By: "ana", Now: now, Statement: statement,
		Release: &manifest.Release{
			Epoch: 9, Policy: manifest.Policy{Cohorts: map[string]manifest.CohortPolicy{"prod": {Rollout: "careful"}}, Rollouts: map[string]manifest.RolloutPolicy{"careful": {Timeout: "1h"}}},
			Cohorts: map[string]manifest.ReleaseCohort{"prod": {Epoch: epoch}},
		},
	}
}

func TestNow(t *testing.T) {
	t.Run("first", func(t *testing.T) {
		m, changed, err := rollout.Now(input(nil, 8))
		if err != nil || !changed || m.Serial != 1 || m.Era != 1 || len(m.Assign) != 1 || m.Assign[0].Epoch != 8 || !m.FreshUntil.Equal(now.Add(manifest.MaxFreshFor)) {
			t.Errorf("%+v, %t, %v", m, changed, err)
		}
		want := manifest.Rollout{PolicyName: "careful", PolicyEpoch: 9, Policy: manifest.RolloutPolicy{Timeout: "1h"}, Target: 8, Baseline: 8, Phase: manifest.PhaseDone, Since: now, Why: "epoch 8 to all hosts at once", By: "ana"}
		if diff := cmp.Diff(want, m.Rollout); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
	t.Run("one epoch, two contents", func(t *testing.T) {
		in := input(prev(nil), 7)
		in.Statement = envelope("another")
		if m, changed, err := rollout.Now(in); !errors.Is(err, manifest.ErrEquivocation) || changed {
			t.Errorf("%+v, %t, %v", m, changed, err)
		}
	})
	t.Run("next keeps living holds", func(t *testing.T) {
		m, changed, err := rollout.Now(input(prev(nil), 8))
		if err != nil || !changed || m.Serial != 5 {
			t.Fatalf("%+v, %t, %v", m, changed, err)
		}
		if len(m.Assign) != 2 || m.Assign[0].Hosts[0] != "db-1" || m.Assign[1].Epoch != 8 || len(m.Rollout.Holds) != 1 {
			t.Errorf("assign %+v, holds %+v", m.Assign, m.Rollout.Holds)
		}
		if diff := cmp.Diff([]manifest.Envelope{envelope("new"), envelope("5")}, m.Statements); diff != "" {
			t.Errorf("statements (-want +got):\n%s", diff)
		}
	})
	t.Run("already assigned", func(t *testing.T) {
		if _, changed, err := rollout.Now(input(prev(nil), 7)); changed || err != nil {
			t.Errorf("%t, %v", changed, err)
		}
	})
	t.Run("past half of its freshness", func(t *testing.T) {
		v := prev(func(m *manifest.Manifest) { m.FreshUntil = now.Add(manifest.MaxFreshFor/2 - time.Second) })
		m, changed, err := rollout.Now(input(v, 7))
		if err != nil || !changed || m.Serial != 5 || !m.FreshUntil.Equal(now.Add(manifest.MaxFreshFor)) {
			t.Errorf("%+v, %t, %v", m, changed, err)
		}
		if diff := cmp.Diff(v.Manifest.Assign, m.Assign); diff != "" {
			t.Errorf("assign (-want +got):\n%s", diff)
		}
	})
	t.Run("newer era", func(t *testing.T) {
		in := input(prev(nil), 7)
		in.Era = 2
		if m, changed, err := rollout.Now(in); err != nil || !changed || m.Era != 2 {
			t.Errorf("%+v, %t, %v", m, changed, err)
		}
	})
	t.Run("waves under way end", func(t *testing.T) {
		v := prev(func(m *manifest.Manifest) {
			m.Assign = append([]manifest.Assignment{{Below: "0ccccccccccccccc", Salt: "8", Epoch: 8}}, m.Assign...)
		})
		if m, changed, err := rollout.Now(input(v, 8)); err != nil || !changed || len(m.Assign) != 2 {
			t.Errorf("%+v, %t, %v", m, changed, err)
		}
	})
	t.Run("never back", func(t *testing.T) {
		if _, changed, err := rollout.Now(input(prev(nil), 6)); changed || !errors.Is(err, rollout.ErrBehind) {
			t.Errorf("%t, %v", changed, err)
		}
	})
	t.Run("blocked with nothing standing", func(t *testing.T) {
		if _, changed, err := rollout.Now(input(nil, 0)); changed || !errors.Is(err, rollout.ErrNothing) {
			t.Errorf("%t, %v", changed, err)
		}
	})
}

func TestNowStopped(t *testing.T) {
	stop := manifest.Stop{By: "ana", Why: "INC-311", Since: now}
	ended := stop
	before := now.Add(-time.Minute)
	ended.Until = &before
	for name, test := range map[string]struct {
		change func(*manifest.Rollout)
		want   string
	}{
		"halted":        {func(r *manifest.Rollout) { r.Halts = []manifest.Stop{stop} }, "halted by ana"},
		"phase halted":  {func(r *manifest.Rollout) { r.Phase = manifest.PhaseHalted }, "halted since"},
		"rolling back":  {func(r *manifest.Rollout) { r.Phase = manifest.PhaseRollingBack }, "rolling back since"},
		"paused":        {func(r *manifest.Rollout) { r.Pause = &stop }, "paused by ana"},
		"frozen":        {func(r *manifest.Rollout) { r.Freezes = []manifest.Stop{ended, stop} }, "frozen by ana"},
		"freeze ended":  {func(r *manifest.Rollout) { r.Freezes = []manifest.Stop{ended} }, ""},
		"nothing stops": {func(*manifest.Rollout) {}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			v := prev(func(m *manifest.Manifest) { test.change(&m.Rollout) })
			m, changed, err := rollout.Now(input(v, 8))
			if test.want == "" {
				if err != nil || !changed || len(m.Rollout.Freezes) != 0 {
					t.Errorf("%+v, %t, %v", m, changed, err)
				}
				return
			}
			if changed || !errors.Is(err, rollout.ErrStopped) || !strings.Contains(err.Error(), test.want) {
				t.Errorf("%t, %v", changed, err)
			}
			if _, changed, err := rollout.Now(input(v, 7)); changed || err != nil {
				t.Errorf("nothing to move: %t, %v", changed, err)
			}
			v.Manifest.FreshUntil = now
			if m, changed, err := rollout.Now(input(v, 7)); !changed || err != nil || m.Assign[len(m.Assign)-1].Epoch != 7 {
				t.Errorf("kept fresh: %t, %v", changed, err)
			}
		})
	}
}
