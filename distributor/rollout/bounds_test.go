package rollout_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/rollout"
	"github.com/muster-config/muster/distributor/rollout/gate"
)

// An order that every host reads holds so many freezes and halts, and no more; the same freeze twice is one, and those that are over make room.
func TestFreezesAreBounded(t *testing.T) {
	f := newFleet(t, 3, standard())
	freeze := func(i int, d time.Duration) (string, bool, error) {
		until := f.now.Add(d)
		return f.act(rollout.Action{Kind: rollout.Freeze, Why: strings.Repeat("x", 2000) + fmt.Sprint(i), By: fmt.Sprint("ana-", i), Until: &until})
	}
	for i := range manifest.MaxStops {
		if _, changed, err := freeze(i, time.Hour); err != nil || !changed {
			t.Fatalf("%d: %t, %v", i, changed, err)
		}
	}
	if said, changed, err := freeze(3, time.Hour); err != nil || changed || said != "is frozen like that already" {
		t.Errorf("the same again: %q, %t, %v", said, changed, err)
	}
	_, changed, err := freeze(99, time.Hour)
	if changed || !errors.Is(err, rollout.ErrUnfit) || !strings.Contains(err.Error(), "32 freezes are in force, and no more fit; `muster unfreeze prod --reason …` ends them all") {
		t.Errorf("one more: %t, %v", changed, err)
	}
	f.now = f.now.Add(2 * time.Hour)
	if _, changed, err := freeze(99, time.Hour); err != nil || !changed || len(f.r().Freezes) != 1 {
		t.Errorf("when they are over: %t, %v, %d", changed, err, len(f.r().Freezes))
	}
	r := *f.r()
	r.Halts = make([]manifest.Stop, manifest.MaxStops+1)
	for i := range r.Halts {
		r.Halts[i] = manifest.Stop{By: "ana", Why: "x", Since: f.now, Epoch: 7}
	}
	if err := r.Validate(); err == nil || !strings.Contains(err.Error(), "more than 32") {
		t.Errorf("halts: %v", err)
	}
}

// The samples behind a verdict stay with the order that rests on them. The ones that are signed later say in words what they came to.
func TestSamplesEnd(t *testing.T) {
	f := newFleet(t, 10, gated(standard(bakeless(10, 100)...), "errors"))
	f.gates = func(q gate.Question) []manifest.GateVerdict {
		list := say1(q, manifest.OutcomePass, "well")
		list[0].Samples = []manifest.GateSample{{At: f.now}}
		return list
	}
	f.publish(8, map[string]string{"a": "a8"})
	f.until("it is over", 10*time.Hour, func() bool { return f.r().Phase == manifest.PhaseDone && f.r().Target == 8 && f.r().Fallback == 0 })
	over := f.view
	if v := over.Manifest.Rollout.Verdicts; len(v) != 1 || len(v[0].Samples) != 1 {
		t.Fatalf("the order that ends it: %+v", v)
	}
	f.now = f.now.Add(rollout.RefreshEvery)
	if !f.next() {
		t.Fatal("it is not signed anew")
	}
	if v := f.r().Verdicts; len(v) != 1 || v[0].Samples != nil || v[0].Why != "well" {
		t.Errorf("signed anew: %+v", v)
	}
	if len(over.Manifest.Rollout.Verdicts[0].Samples) != 1 {
		t.Error("the order before lost them too")
	}
	if list := rollout.Decisions(over, f.view); len(list) != 0 {
		t.Errorf("a renewal decides something: %+v", list)
	}
}

// slow is a world in which looking at one cohort takes until another one was looked at.
type slow struct {
	*site
	other chan struct{}
	err   error
}

func (s *slow) Cohort(ctx context.Context, name string) (*manifest.View, rollout.Observed, error) {
	if name != "a-slow-one" {
		defer close(s.other)
		return s.site.Cohort(ctx, name)
	}
	select {
	case <-s.other:
		return nil, rollout.Observed{}, errors.New("at last")
	case <-ctx.Done():
		s.err = ctx.Err()
		return nil, rollout.Observed{}, ctx.Err()
	}
}

// A cohort for which the store is slow holds back no other one.
func TestSlowCohort(t *testing.T) {
	s := &slow{site: newSite(t, 3, standard()), other: make(chan struct{})}
	s.release.Cohorts["a-slow-one"] = s.release.Cohorts["prod"]
	c := s.controller(s.store)
	c.Seen = s
	c.Step(t.Context())
	if s.err != nil {
		t.Errorf("the others waited for it: %v", s.err)
	}
	if s.head() == nil {
		t.Error("no order was written")
	}
}
