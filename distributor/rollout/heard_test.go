package rollout_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/rollout"
	"github.com/muster-config/muster/distributor/verdict"
)

func (f *fleet) miss(n int) {
	for i, h := range f.hosts {
		h.Verdict = verdict.Confirmed
		if i < n {
			h.Verdict = verdict.Missing
		}
	}
}

// A controller that most hosts cannot reach knows too few of them to tell anybody: wherever a rollout stands it waits, then a person is asked, and may pass over it.
func TestNeverHeard(t *testing.T) {
	for _, c := range []struct {
		hosts, missing int
		waits          bool
	}{{1, 0, false}, {3, 1, false}, {3, 2, true}, {40, 4, false}, {40, 5, true}, {40, 39, true}} {
		for _, stands := range []manifest.Phase{manifest.PhaseDone, manifest.PhaseAdvancing, manifest.PhaseBaking, manifest.PhaseAwaitingApproval} {
			t.Run(fmt.Sprintf("%d of %d, %s", c.missing, c.hosts, stands), func(t *testing.T) {
				p := standard(manifest.Wave{Percent: 50, Bake: "10m"}, manifest.Wave{Percent: 100, Bake: "10m"})
				if stands == manifest.PhaseAwaitingApproval {
					p.ApproveBefore = []int{1}
				}
				f := newFleet(t, c.hosts, p)
				f.loose = true // of who is missing nobody knows
				f.publish(8, map[string]string{"a": "a8"})
				if stands != manifest.PhaseDone {
					for range 1000 {
						if f.r().Target == 8 && f.r().Phase == stands {
							break
						}
						f.now = f.now.Add(time.Second)
						f.next()
						if stands != manifest.PhaseAdvancing {
							f.apply()
						}
					}
				}
				if f.r().Phase != stands {
					t.Fatalf("%+v", f.r())
				}
				f.miss(c.missing)
				if stands == manifest.PhaseAwaitingApproval {
					f.must(rollout.Action{Kind: rollout.Approve})
				}
				before, wave := slices.Clone(f.view.Manifest.Assign), f.r().Wave
				f.pass(5 * time.Hour)
				r := f.r()
				if !c.waits {
					if r.Target != 8 || r.Phase != manifest.PhaseDone {
						t.Fatalf("it waits: %+v", r)
					}
					return
				}
				if !slices.EqualFunc(before, f.view.Manifest.Assign, func(a, b manifest.Assignment) bool { return a.Epoch == b.Epoch && a.Below == b.Below }) || r.Wave != wave {
					t.Fatalf("it told more: %+v", r)
				}
				text := fmt.Sprintf("%d of %d expected hosts were never heard here (h-000, h-001", c.missing, c.hosts)
				if stands == manifest.PhaseAwaitingApproval {
					if _, err := f.try(); err == nil || !strings.Contains(err.Error(), text) {
						t.Errorf("%v", err)
					}
					return
				}
				if r.Phase != manifest.PhasePaused || r.Pause == nil || r.Pause.By != rollout.Muster || !strings.Contains(r.Pause.Why, text) || len(r.Halts) > 0 {
					t.Fatalf("%+v", r)
				}
				f.must(rollout.Action{Kind: rollout.Resume, Why: "they are being rebuilt"})
				f.until("it goes on for all waves", 5*time.Hour, func() bool { return f.r().Target == 8 && f.r().Phase == manifest.PhaseDone })
			})
		}
	}
	// Before it begins, it ends by itself when they are heard.
	f := newFleet(t, 40, standard(bakeless(10, 100)...))
	f.publish(8, map[string]string{"a": "a8"})
	f.miss(20)
	f.pass(5 * time.Hour)
	f.stands(manifest.PhasePaused, 0)
	f.miss(0)
	f.done(8)
}
