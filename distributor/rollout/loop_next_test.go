package rollout_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/rollout"
	"github.com/muster-config/muster/distributor/verdict"
)

var policy = manifest.RolloutPolicy{Waves: []manifest.Wave{{Percent: 100, Bake: "0s"}}, MinReported: 1, MaxInFlight: "10%", OnFailure: "rollback"}

// standing is a head that gives epoch 7 to everybody.
func standing(change func(*manifest.Manifest)) *manifest.View {
	return prev(func(m *manifest.Manifest) {
		m.Assign = []manifest.Assignment{{Epoch: 7, Why: "baseline"}}
		m.Rollout.Holds, m.Rollout.Policy, m.Rollout.PolicyName = nil, policy, "careful"
		if change != nil {
			change(m)
		}
	})
}

func judged(mark manifest.Mark, n int, change func(i int, h *rollout.Host)) rollout.Observed {
	seen := rollout.Observed{Mark: mark}
	for i := range n {
		h := rollout.Host{Name: fmt.Sprint("h-", i), Verdict: verdict.Confirmed, Running: 7}
		if change != nil {
			change(i, &h)
		}
		seen.Hosts = append(seen.Hosts, h)
	}
	return seen
}

// next is input with the release's policy that of the head.
func next(v *manifest.View, epoch uint64) rollout.Input {
	in := input(v, epoch)
	in.Release.Policy.Rollouts["careful"] = policy
	return in
}

func TestNextStarts(t *testing.T) {
	v := standing(nil)
	mark := v.Mark()
	for name, test := range map[string]struct {
		n       int
		share   string
		change  func(i int, h *rollout.Host)
		want    int
		nothing bool
	}{
		"a tenth":               {200, "10%", nil, 20, false},
		"always one":            {3, "10%", nil, 1, false},
		"a count":               {200, "7", nil, 7, false},
		"never above the share": {19, "10%", nil, 1, false},
		"silent ones do not add": {100, "10%", func(i int, h *rollout.Host) { // those fell silent before
			if i < 50 {
				h.Verdict, h.Silent = verdict.Silent, now.Add(-time.Hour)
			}
		}, 5, false},
		"nobody reports": {10, "10%", func(_ int, h *rollout.Host) { h.Verdict = verdict.Missing }, 0, true},
		"all are held":   {10, "10%", func(_ int, h *rollout.Host) { h.Verdict = verdict.Held }, 0, true},
	} {
		t.Run(name, func(t *testing.T) {
			p := policy
			p.MaxInFlight = test.share
			seen := judged(mark, test.n, test.change)
			m, changed, err := rollout.Next(p, next(v, 8), seen, now)
			if err != nil || changed == test.nothing {
				t.Fatalf("%t, %v", changed, err)
			}
			if test.nothing {
				return
			}
			k := 0
			for _, h := range seen.Hosts {
				if h.Verdict == verdict.Confirmed && fmt.Sprintf("%016x", manifest.Point(m.Assign[0].Salt, h.Name)) < m.Assign[0].Below {
					k++
				}
			}
			if k != test.want || m.Rollout.Phase != manifest.PhaseAdvancing || m.Rollout.Target != 8 || m.Rollout.Baseline != 7 || m.Serial != 5 || len(m.Statements) != 2 {
				t.Errorf("%d told, want %d: %+v", k, test.want, m)
			}
		})
	}
}

func TestNextWaits(t *testing.T) {
	v := standing(nil)
	other := manifest.Mark{Era: 1, Serial: 3}
	if _, changed, err := rollout.Next(policy, next(v, 8), judged(other, 20, nil), now); changed || !errors.Is(err, rollout.ErrUnjudged) {
		t.Errorf("seen under another head: %t, %v", changed, err)
	}
	if _, changed, err := rollout.Next(policy, next(v, 7), rollout.Observed{}, now.Add(59*time.Minute)); changed || err != nil {
		t.Errorf("nothing to do: %t, %v", changed, err)
	}
	m, changed, err := rollout.Next(policy, next(v, 7), rollout.Observed{}, now.Add(time.Hour))
	if !changed || err != nil || !m.FreshUntil.Equal(now.Add(25*time.Hour)) || m.Assign[0].Epoch != 7 {
		t.Errorf("an hour old: %+v, %t, %v", m, changed, err)
	}
	frozen := standing(func(m *manifest.Manifest) { m.Rollout.Freezes = []manifest.Stop{{By: "ana", Why: "INC-1", Since: now}} })
	if _, changed, err := rollout.Next(policy, next(frozen, 8), judged(frozen.Mark(), 20, nil), now); changed || !errors.Is(err, rollout.ErrStopped) || !strings.Contains(err.Error(), "frozen by ana") {
		t.Errorf("frozen: %t, %v", changed, err)
	}
	if m, changed, err := rollout.Next(policy, next(frozen, 8), judged(frozen.Mark(), 20, nil), now.Add(time.Hour)); !changed || err != nil || m.Rollout.Target != 7 {
		t.Errorf("frozen, and kept fresh: %+v, %t, %v", m, changed, err)
	}
	if _, changed, err := rollout.Next(policy, next(v, 6), judged(v.Mark(), 20, nil), now); changed || !errors.Is(err, rollout.ErrBehind) {
		t.Errorf("back: %t, %v", changed, err)
	}
	in := next(v, 7)
	in.Statement = envelope("another")
	if _, _, err := rollout.Next(policy, in, judged(v.Mark(), 20, nil), now); !errors.Is(err, manifest.ErrEquivocation) {
		t.Errorf("one epoch, two contents: %v", err)
	}
	// A changed policy counts from the next rollout on.
	in = next(v, 7)
	in.Release.Policy.Rollouts["careful"] = manifest.RolloutPolicy{MaxInFlight: "50%", OnFailure: "halt"}
	if m, changed, err := rollout.Next(policy, in, rollout.Observed{}, now); !changed || err != nil || m.Rollout.Policy.MaxInFlight != "50%" || m.Rollout.Target != 7 {
		t.Errorf("%+v, %t, %v", m.Rollout, changed, err)
	}
}

// Whatever hosts do, in whatever order they confirm: never more are told and open than the share, the wave only grows, and in the end everybody has it.
func TestNextProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 60).Draw(t, "hosts")
		limit := max(1, n/10)
		running := make([]uint64, n)
		for i := range running {
			running[i] = 7
		}
		v := standing(nil)
		in := next(v, 8)
		in.Release.Policy.Rollouts["careful"] = policy
		statements := []manifest.VerifiedStatement{{Statement: manifest.Statement{Epoch: 7}, Digest: "7"}, {Statement: manifest.Statement{Epoch: 8}, Digest: in.Statement.Digest()}}
		before := 0
		for range 40 * n {
			if v.Manifest.Rollout.Target == 8 && v.Manifest.Rollout.Phase == manifest.PhaseDone {
				break
			}
			assigned := func(i int) uint64 {
				res, err := manifest.Resolve(&manifest.View{Manifest: v.Manifest, Statements: statements}, manifest.Host{Name: fmt.Sprint("h-", i)}, now)
				if err != nil {
					t.Fatal(err)
				}
				return res.Epoch()
			}
			open, toldNow := 0, 0
			var waiting []int
			for i := range n {
				if assigned(i) == 8 {
					toldNow++
					if running[i] != 8 {
						open++
						waiting = append(waiting, i)
					}
				}
			}
			if open > limit || toldNow < before {
				t.Fatalf("%d open of %d, %d told after %d", open, limit, toldNow, before)
			}
			before = toldNow
			if len(waiting) > 0 {
				running[waiting[rapid.IntRange(0, len(waiting)-1).Draw(t, "confirms")]] = 8
			}
			seen := judged(v.Mark(), n, func(i int, h *rollout.Host) {
				h.Running = running[i]
				if assigned(i) != running[i] {
					h.Verdict = verdict.Applying
				}
			})
			in.Prev = v
			m, changed, err := rollout.Next(policy, in, seen, now)
			if err != nil {
				t.Fatal(err)
			}
			if changed {
				v = &manifest.View{Manifest: m}
				for _, e := range m.Statements {
					epoch := uint64(7)
					if e.Digest() == in.Statement.Digest() {
						epoch = 8
					}
					v.Statements = append(v.Statements, manifest.VerifiedStatement{Statement: manifest.Statement{Epoch: epoch}, Digest: e.Digest()})
				}
			}
		}
		if v.Manifest.Rollout.Phase != manifest.PhaseDone || v.Manifest.Rollout.Baseline != 8 || len(v.Manifest.Assign) != 1 {
			t.Fatalf("it does not end: %+v, %+v", v.Manifest.Rollout, v.Manifest.Assign)
		}
	})
}

// A rollout may be over while some hosts still take its release: they count for the next one, which does not come on top of them.
func TestNextCountsThoseOfTheOneBefore(t *testing.T) {
	p := policy
	p.MinReported = 0.9
	v := standing(func(m *manifest.Manifest) { m.Rollout.Policy = p })
	for _, test := range []struct {
		still  int // of 100 hosts
		as     verdict.Code
		free   int
		reason string
	}{
		{10, verdict.Applying, 0, "a tenth is on its way already"},
		{4, verdict.Applying, 6, "those that are left"},
		{4, verdict.Unknown, 6, "who is not known to have done with it is on its way"},
		{10, verdict.Lagging, 10, "who does not get there waits for nothing but its turn"},
		{10, verdict.RolledBack, 10, "nor who went back"},
		{10, verdict.Overridden, 10, "nor who runs something else on purpose"},
	} {
		seen := judged(v.Mark(), 100, func(i int, h *rollout.Host) {
			if i < test.still {
				h.Verdict, h.Running = test.as, 6
			}
		})
		m, changed, err := rollout.Next(p, next(v, 8), seen, now)
		told := 0
		for _, h := range seen.Hosts {
			if changed && m.Assign[0].Below != "" && fmt.Sprintf("%016x", manifest.Point(m.Assign[0].Salt, h.Name)) < m.Assign[0].Below {
				told++
			}
		}
		if err != nil || changed != (test.free > 0) || told != test.free {
			t.Errorf("%d %s: %d told, %v; want %d: %s", test.still, test.as, told, err, test.free, test.reason)
		}
	}
}

// A rollout that everybody was told of is over when as many confirm as the policy asks, and no sooner; one that lags counts as one that failed.
func TestNextEnds(t *testing.T) {
	p := policy
	p.MinReported = 0.9
	v := standing(func(m *manifest.Manifest) {
		m.Rollout.Policy, m.Rollout.Phase, m.Rollout.Baseline = p, manifest.PhaseAdvancing, 6
	})
	for open, done := range map[int]bool{3: false, 2: true, 0: true} {
		seen := judged(v.Mark(), 20, func(i int, h *rollout.Host) {
			if i < open {
				h.Verdict, h.Running = verdict.Applying, 6
			}
		})
		if m, changed, err := rollout.Next(p, next(v, 7), seen, now); err != nil || changed && (m.Rollout.Phase == manifest.PhaseDone) != done || !changed && done {
			t.Errorf("%d of 20 open: %t, %+v, %v", open, changed, m.Rollout, err)
		}
	}
	seen := judged(v.Mark(), 20, func(i int, h *rollout.Host) {
		if i == 5 {
			h.Verdict, h.Running = verdict.Lagging, 6
		}
	})
	if m, changed, err := rollout.Next(p, next(v, 7), seen, now); err != nil || !changed || !strings.Contains(m.Rollout.Why, "epoch 7 waits") || !strings.Contains(m.Rollout.Why, "h-5 lagging") {
		t.Errorf("%t, %+v, %v", changed, m.Rollout, err)
	}
}
