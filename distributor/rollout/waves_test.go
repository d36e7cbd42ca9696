package rollout_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/rollout"
	"github.com/muster-config/muster/distributor/verdict"
)

func isWaiting(err error) bool { return errors.Is(err, rollout.ErrStopped) }

// bakeless are waves by percent that go on as soon as they are confirmed.
func bakeless(percents ...float64) (list []manifest.Wave) {
	for _, p := range percents {
		list = append(list, manifest.Wave{Percent: p, Bake: "1m"})
	}
	return list
}

// sizes runs a rollout to its end, and gives how many hosts ran the release at the end of each wave.
func (f *fleet) sizes() (list []int) {
	f.t.Helper()
	waves := len(f.r().Policy.Waves)
	list = make([]int, waves)
	f.until("it ends", 100*time.Hour, func() bool {
		if r := f.r(); r.Target == f.part && r.Wave >= 1 && r.Wave <= waves {
			list[r.Wave-1] = f.running(f.part)
		}
		return f.r().Phase == manifest.PhaseDone && f.r().Target == f.part
	})
	list[waves-1] = f.running(f.part)
	return list
}

func TestB105WaveSizes(t *testing.T) {
	// Hosts that have the release when waves of 1%, 10%, 33%, 50% and 100% are over.
	for n, want := range map[int][]int{
		1: {1, 1, 1, 1, 1}, 2: {1, 1, 1, 1, 2}, 3: {1, 1, 1, 2, 3}, 7: {1, 1, 3, 4, 7}, 10: {1, 1, 4, 5, 10}, 99: {1, 10, 33, 50, 99}, 1000: {10, 100, 330, 500, 1000},
	} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			f := newFleet(t, n, standard(bakeless(1, 10, 33, 50, 100)...))
			f.publish(8, map[string]string{"a": "a8"})
			if diff := cmp.Diff(want, f.sizes()); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if r := f.r(); r.Baseline != 8 || r.Fallback != 7 || len(f.view.Manifest.Assign) != 1 {
				t.Errorf("%+v, %v", r, f.view.Manifest.Assign)
			}
		})
	}
	t.Run("three hosts", func(t *testing.T) {
		f := newFleet(t, 3, standard())
		f.publish(8, map[string]string{"a": "a8"})
		if diff := cmp.Diff([]int{1, 1, 3}, f.sizes()); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
	t.Run("min and count", func(t *testing.T) {
		f := newFleet(t, 40, standard(manifest.Wave{Count: 2, Bake: "1m"}, manifest.Wave{Percent: 5, Min: 5, Bake: "1m"}, manifest.Wave{Percent: 100, Bake: "0s"}))
		f.publish(8, map[string]string{"a": "a8"})
		if diff := cmp.Diff([]int{2, 5, 40}, f.sizes()); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
	t.Run("the last wave is everybody, whatever it says", func(t *testing.T) {
		f := newFleet(t, 10, standard(manifest.Wave{Count: 1, Bake: "1m"}, manifest.Wave{Count: 2, Bake: "0s"}))
		f.publish(8, map[string]string{"a": "a8"})
		if diff := cmp.Diff([]int{1, 10}, f.sizes()); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}

// An empty cohort ends at once, and says that it is empty; one whose hosts are not heard of yet is none.
func TestB105NoHosts(t *testing.T) {
	f := newFleet(t, 0, standard())
	f.publish(8, map[string]string{"a": "a8"})
	f.unseen = "20 more are expected that nobody has heard of"
	if changed, err := f.try(); changed || !isWaiting(err) {
		t.Errorf("%t, %v", changed, err)
	}
	f.unseen = ""
	if !f.next() {
		t.Fatal("it waits for nobody")
	}
	if r := f.r(); r.Phase != manifest.PhaseDone || r.Target != 8 || r.Why != "epoch 8: no hosts; whoever joins the cohort gets it" || r.Fallback != 0 {
		t.Errorf("%+v", r)
	}
	f.hosts = []*member{{Host: rollout.Host{Name: "new", Verdict: verdict.Confirmed}}}
	if f.at(f.view, f.hosts[0]) != 8 {
		t.Error("who joins gets something else")
	}
}

// Hosts that are held, missing, or silent before it began count for nothing, and are waited for by nobody.
func TestEligibleHosts(t *testing.T) {
	f := newFleet(t, 30, standard(bakeless(10, 100)...))
	for i, h := range f.hosts {
		switch {
		case i < 2:
			h.Verdict = verdict.Missing
		case i >= 5 && i < 10:
			h.Verdict, h.Silent = verdict.Silent, now.Add(-time.Hour)
		case i >= 10 && i < 15:
			h.Verdict = verdict.Held
		}
	}
	m := f.view.Manifest
	m.Assign = append([]manifest.Assignment{{Hosts: []string{"h-010", "h-011", "h-012", "h-013", "h-014"}, Epoch: 7, Why: "hold"}}, m.Assign...)
	m.Serial++
	f.put(m)
	f.publish(8, map[string]string{"a": "a8"})
	if diff := cmp.Diff([]int{2, 18}, f.sizes()); diff != "" { // a tenth of 18
		t.Errorf("(-want +got):\n%s", diff)
	}
	if len(f.view.Manifest.Assign) != 2 || f.told(7) != 5 {
		t.Errorf("holds stay: %v", f.view.Manifest.Assign)
	}
}

// A wave is nested in the next one, whoever comes and goes; who joins falls where it belongs without an order.
func TestWavesAreSticky(t *testing.T) {
	f := newFleet(t, 50, standard(bakeless(10, 40, 100)...))
	f.publish(8, map[string]string{"a": "a8"})
	had := map[string]bool{}
	check := func() {
		t.Helper()
		for _, h := range f.hosts {
			if has := f.at(f.view, h) == 8; had[h.Name] && !has {
				t.Fatalf("%s had the release and lost it at wave %d", h.Name, f.r().Wave)
			} else if has {
				had[h.Name] = true
			}
		}
	}
	joined := 0
	f.until("it ends", 10*time.Hour, func() bool {
		check()
		if f.r().Wave == 2 && joined < 60 {
			joined++
			f.hosts = append(f.hosts, &member{Host: rollout.Host{Name: fmt.Sprintf("new-%03d", joined), Verdict: verdict.Confirmed, Running: 7}})
			f.loose = true // who joins under the threshold is told by being there
			f.hosts = slices.Delete(f.hosts, 0, 1)
		}
		return f.r().Phase == manifest.PhaseDone && f.r().Target == 8
	})
	if joined == 0 || len(had) < 50 {
		t.Errorf("%d joined, %d were told", joined, len(had))
	}
}

// A wave by label takes the hosts that have it, a few at a time, and nobody else; the waves after it go on beside it.
func TestWaveByLabel(t *testing.T) {
	match := map[string]string{"canary": "true"}
	for name, waves := range map[string][]manifest.Wave{
		"first":      {{Match: match, Bake: "1m"}, {Percent: 20, Bake: "1m"}, {Percent: 100, Bake: "0s"}},
		"in between": {{Count: 3, Bake: "1m"}, {Match: match, Bake: "1m"}, {Percent: 20, Bake: "1m"}, {Percent: 100, Bake: "0s"}},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFleet(t, 60, standard(waves...))
			labeled := map[string]bool{}
			for i, h := range f.hosts {
				if i%4 == 0 { // 15 hosts
					h.Labels = map[string]string{"canary": "true", "zone": "a"}
					labeled[h.Name] = true
				}
			}
			f.publish(8, map[string]string{"a": "a8"})
			at := slices.IndexFunc(waves, func(w manifest.Wave) bool { return w.Match != nil }) + 1
			orders := 0
			f.until("the wave is told", time.Hour, func() bool {
				if f.r().Wave == at && f.r().Phase == manifest.PhaseAdvancing {
					orders++
				}
				return f.r().Wave == at && f.r().Phase == manifest.PhaseBaking
			})
			others := 0
			for _, h := range f.hosts {
				if runs := h.Running == 8; labeled[h.Name] && !runs {
					t.Errorf("%s has the label and not the release", h.Name)
				} else if runs && !labeled[h.Name] {
					others++
				}
			}
			if most := []int{0, 3}[at-1]; others > most {
				t.Errorf("%d hosts without the label, at most %d", others, most)
			}
			steps := 0
			for _, v := range f.heads {
				if r := v.Manifest.Rollout; r.Wave == at && r.Target == 8 && r.Phase == manifest.PhaseAdvancing {
					steps++
				}
			}
			if steps < 3 { // 15 hosts, 6 at a time
				t.Errorf("told in %d steps", steps)
			}
			f.until("it ends", 5*time.Hour, func() bool { return f.r().Phase == manifest.PhaseDone })
			if f.running(8) != 60 {
				t.Errorf("%d hosts", f.running(8))
			}
		})
	}
}

// A wave by label that chooses too few hosts asks a person, who may pass over it.
func TestWaveByLabelWithoutHosts(t *testing.T) {
	f := newFleet(t, 10, standard(manifest.Wave{Match: map[string]string{"canary": "true"}, Bake: "1m"}, manifest.Wave{Percent: 100, Bake: "0s"}))
	f.publish(8, map[string]string{"a": "a8"})
	f.pass(3 * time.Hour)
	f.stands(manifest.PhasePaused, 1)
	if p := f.r().Pause; p == nil || p.By != rollout.Muster || p.Why != "wave 1 of 2 (canary=true) of epoch 8: 0 hosts have its labels, at least 1 have to" {
		t.Errorf("%+v", p)
	}
	f.must(rollout.Action{Kind: rollout.Resume})
	f.until("it ends", time.Hour, func() bool { return f.r().Phase == manifest.PhaseDone && f.running(8) == 10 })
}

// Going back is stepped as going forward is, wherever the rollout stands, and the control hosts see nothing of it.
func TestGoingBackInSteps(t *testing.T) {
	match := map[string]string{"canary": "true"}
	waves := []manifest.Wave{{Match: match, Bake: "5m"}, {Percent: 50, Bake: "5m"}, {Percent: 100, Bake: "5m"}}
	for wave := 1; wave <= 4; wave++ {
		for _, stop := range []manifest.Phase{manifest.PhaseAdvancing, manifest.PhaseBaking, manifest.PhaseDone} {
			if (wave == 4) != (stop == manifest.PhaseDone) {
				continue
			}
			t.Run(fmt.Sprint(wave, " ", stop), func(t *testing.T) {
				f := newFleet(t, 60, standard(waves...))
				for i, h := range f.hosts {
					if i%3 == 0 {
						h.Labels = map[string]string{"canary": "true"}
					}
				}
				f.publish(8, map[string]string{"a": "a8"})
				for i := 0; f.r().Wave != wave || f.r().Phase != stop || stop == manifest.PhaseAdvancing && f.open() == 0; i++ {
					if i > 1000 {
						t.Fatalf("it never gets there: %+v", f.r())
					}
					f.now = f.now.Add(20 * time.Second)
					if changed, err := f.try(); err != nil {
						t.Fatal(err)
					} else if !changed || f.open() == 0 {
						f.apply()
					}
				}
				swaps := map[string]uint64{}
				for _, h := range f.hosts {
					swaps[h.Name] = f.at(f.view, h)
				}
				begin := len(f.heads)
				f.must(rollout.Action{Kind: rollout.Abort, Why: "too slow"})
				f.until("it is back", time.Hour, func() bool { return f.r().Phase == manifest.PhaseHalted })
				if f.running(7) != 60 || len(f.view.Manifest.Assign) != 1 {
					t.Errorf("%d are back: %v", f.running(7), f.view.Manifest.Assign)
				}
				for _, v := range f.heads[begin:] {
					for _, h := range f.hosts {
						if swaps[h.Name] == 7 && f.at(v, h) != 7 {
							t.Fatalf("%s never had the release, and is told to take it on the way back", h.Name)
						}
					}
				}
				if n := len(f.heads) - begin; wave > 1 && n < 5 {
					t.Errorf("%d orders for all the way back", n)
				}
			})
		}
	}
}
