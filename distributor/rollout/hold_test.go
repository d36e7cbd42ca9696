package rollout_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/rollout"
)

func (f *fleet) names() (list []string) {
	for _, h := range f.hosts {
		list = append(list, h.Name)
	}
	return list
}

// runs is what an observer says that hosts run.
func (f *fleet) runs() map[string]uint64 {
	runs := map[string]uint64{}
	for _, h := range f.hosts {
		runs[h.Name] = h.Running
	}
	return runs
}

func (f *fleet) held() (list []string) {
	for _, h := range f.hosts {
		if f.source(f.view, h) == manifest.FromHold {
			list = append(list, h.Name)
		}
	}
	return list
}

func (f *fleet) host(name string) *member {
	for _, h := range f.hosts {
		if h.Name == name {
			return h
		}
	}
	f.t.Fatalf("no host %s", name)
	return nil
}

func (f *fleet) carries(epoch uint64) bool {
	return slices.ContainsFunc(f.view.Statements, func(st manifest.VerifiedStatement) bool { return st.Epoch == epoch && st.Override == "" })
}

func TestHold(t *testing.T) {
	f := newFleet(t, 20, standard(bakeless(100)...))
	until := f.now.Add(time.Hour)
	hosts := []string{"h-003", "h-001"}
	if said := f.must(rollout.Action{Kind: rollout.Hold, Hosts: hosts, Runs: f.runs(), Why: "INC-7", Until: &until}); said != "h-001, h-003 are held at epoch 7 until 2026-11-30T13:00:00Z: nothing but a person changes what they run before that" {
		t.Error(said)
	}
	if said, changed, err := f.act(rollout.Action{Kind: rollout.Hold, Hosts: hosts, Runs: f.runs(), Why: "INC-7", Until: &until}); changed || err != nil || said != "h-001, h-003 are held like that already" {
		t.Errorf("%q, %t, %v", said, changed, err)
	}
	if h := f.r().Holds; len(h) != 1 || h[0].By != "ana" || h[0].Why != "INC-7" || !h[0].Until.Equal(until) || h[0].Epoch != 7 || !slices.Equal(h[0].Hosts, []string{"h-001", "h-003"}) {
		t.Errorf("%+v", h)
	}
	f.publish(8, map[string]string{"a": "a8"})
	f.pass(30 * time.Minute)
	if f.running(8) != 18 || f.host("h-001").Running != 7 || f.host("h-003").Running != 7 || f.r().Told != 18 {
		t.Fatalf("%d run 8: %v", f.running(8), f.r())
	}
	// Longer, by another person: the new end counts.
	later := f.now.Add(3 * time.Hour)
	f.must(rollout.Action{Kind: rollout.Hold, By: "ben", Hosts: []string{"h-003"}, Runs: f.runs(), Why: "INC-8", Until: &later})
	f.pass(31 * time.Minute)
	if got := f.held(); !slices.Equal(got, []string{"h-003"}) || f.host("h-001").Running != 8 {
		t.Errorf("held %v, h-001 runs %d", got, f.host("h-001").Running)
	}
	if h := f.r().Holds; len(h) != 1 || h[0].By != "ben" {
		t.Errorf("%+v", h)
	}
	if !f.carries(7) {
		t.Error("the statement of 7 is gone")
	}
	// Unheld, it follows.
	if said := f.must(rollout.Action{Kind: rollout.Unhold, Hosts: []string{"h-003"}, Why: "over"}); !strings.HasPrefix(said, "h-003 is held no longer") {
		t.Error(said)
	}
	if said, changed, err := f.act(rollout.Action{Kind: rollout.Unhold, Hosts: []string{"h-003"}}); changed || err != nil || said != "h-003 is let go already, as places of max_in_flight are free" {
		t.Errorf("%q, %t, %v", said, changed, err)
	}
	f.settle()
	if f.running(8) != 20 || len(f.r().Holds) != 0 || len(f.view.Manifest.Assign) != 1 || f.carries(7) {
		t.Errorf("%d run 8: %+v, %v", f.running(8), f.r().Holds, f.view.Manifest.Assign)
	}
	if said, changed, err := f.act(rollout.Action{Kind: rollout.Unhold, Hosts: []string{"h-003"}}); changed || err != nil || said != "h-003 is not held" {
		t.Errorf("%q, %t, %v", said, changed, err)
	}
	var told []string
	for i, v := range f.heads[1:] {
		for _, d := range rollout.Decisions(f.heads[i], v) {
			if strings.Contains(d.What, "held") || strings.Contains(d.What, "hold") {
				told = append(told, fmt.Sprintf("%s %v by %s: %s", d.What, d.Hosts, d.By, d.Why))
			}
		}
	}
	want := []string{"held [h-001 h-003] by ana: INC-7", "held [h-003] by ben: INC-8", "the hold ended [h-003] by : held by ana: INC-7", "the hold ended [h-003] by ana: held by ben: INC-8; let go: over"}
	if !slices.Equal(told, want) {
		t.Errorf("decisions %q", told)
	}
}

// Without a controller holds end by the hosts' own clocks, a few hosts' a minute after the other.
func TestHoldEndsAlone(t *testing.T) {
	f := newFleet(t, 30, standard(bakeless(100)...))
	until := f.now.Add(time.Hour)
	f.must(rollout.Action{Kind: rollout.Hold, Hosts: f.names()[:20], Runs: f.runs(), Why: "INC-7", Until: &until})
	f.now = until.Add(time.Second)
	if n := len(f.held()); n != 20 {
		t.Errorf("%d held at its end", n)
	}
	for last := 20; last > 0; {
		f.now = f.now.Add(time.Minute)
		n := len(f.held())
		if n >= last || n < last-2 {
			t.Fatalf("%d held after %d", n, last)
		}
		last = n
	}
}

func TestHoldRefuses(t *testing.T) {
	f := at(t, "awaiting")
	soon, past := f.now.Add(time.Hour), f.now
	many := make([]string, rollout.MaxHeldHosts+1)
	for i := range many {
		many[i] = fmt.Sprint("h-", i)
	}
	one := []string{"h-001"}
	for want, a := range map[string]rollout.Action{
		"name the hosts":                     {Kind: rollout.Hold, Why: "x", Until: &soon},
		"a hold needs an end that is to":     {Kind: rollout.Hold, Why: "x", Hosts: one, Until: &past},
		"hold needs an end that is to come":  {Kind: rollout.Hold, Why: "x", Hosts: one},
		"a hold needs a reason":              {Kind: rollout.Hold, Hosts: one, Until: &soon},
		`"../x" is not a host name`:          {Kind: rollout.Hold, Why: "x", Hosts: []string{"../x"}, Until: &soon},
		"201 hosts are too many":             {Kind: rollout.Hold, Why: "x", Hosts: many, Until: &soon},
		"nobody knows what h-001 runs; name": {Kind: rollout.Hold, Why: "x", Hosts: one, Until: &soon, Runs: map[string]uint64{"h-002": 7}},
		"no statement of epoch 5":            {Kind: rollout.Hold, Why: "x", Hosts: one, Until: &soon, To: 5},
	} {
		if _, changed, err := f.act(a); changed || !isUnfit(err) || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %t, %v; want %s", a, changed, err, want)
		}
	}
	// By what the head says where nobody looks, but not past a wave by label.
	led := f.at(f.view, f.host("h-001"))
	if said := f.must(rollout.Action{Kind: rollout.Hold, Why: "x", Hosts: one, Until: &soon}); !strings.HasPrefix(said, fmt.Sprintf("h-001 is held at epoch %d until", led)) {
		t.Error(said)
	}
	p := standard(manifest.Wave{Match: map[string]string{"zone": "a"}, Bake: "10m"}, manifest.Wave{Percent: 100, Bake: "0s"})
	g := newFleet(t, 10, p)
	for _, h := range g.hosts[:3] {
		h.Labels = map[string]string{"zone": "a"}
	}
	g.publish(8, map[string]string{"a": "a8"})
	g.to(1, manifest.PhaseBaking)
	if _, changed, err := g.act(rollout.Action{Kind: rollout.Hold, Why: "x", Hosts: one, Until: &soon}); changed || !isUnfit(err) || !strings.Contains(err.Error(), "nobody knows what h-001 runs; name the epoch with --at") {
		t.Errorf("%t, %v", changed, err)
	}
	g.must(rollout.Action{Kind: rollout.Hold, Why: "x", Hosts: one, Until: &soon, To: 7})
}

// Holds end while rollouts go forward and back: whatever happens, no more hosts are on their way than may be, held ones stay what they are, and in the end nothing is left.
func TestHoldProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := standard(manifest.Wave{Percent: float64(rapid.IntRange(1, 60).Draw(t, "first")), Bake: "1m"}, manifest.Wave{Percent: 100, Bake: "0s"})
		p.MaxInFlight = rapid.SampledFrom([]string{"10%", "30%", "1", "3"}).Draw(t, "in flight")
		p.MaxFailed = 40
		p.Watch = "2m"
		f := newFleet(t, rapid.IntRange(1, 40).Draw(t, "hosts"), p)
		epoch := uint64(7)
		for range rapid.IntRange(5, 60).Draw(t, "steps") {
			kept := map[string]uint64{}
			for _, name := range f.held() {
				kept[name] = f.host(name).Running
			}
			switch rapid.IntRange(0, 7).Draw(t, "event") {
			case 0:
				epoch++
				f.publish(epoch, map[string]string{"a": fmt.Sprint("a", epoch)})
			case 1:
				hosts := rapid.SliceOfNDistinct(rapid.SampledFrom(f.names()), 1, len(f.hosts), rapid.ID).Draw(t, "hold")
				until := f.now.Add(rapid.SampledFrom([]time.Duration{time.Second, time.Minute, 10 * time.Minute}).Draw(t, "for"))
				if _, _, err := f.act(rollout.Action{Kind: rollout.Hold, Hosts: hosts, Runs: f.runs(), Why: "x", Until: &until}); err != nil && !strings.Contains(err.Error(), "holds are in force") {
					t.Fatalf("%v", err)
				}
			case 2:
				hosts := rapid.SliceOfNDistinct(rapid.SampledFrom(f.names()), 1, len(f.hosts), rapid.ID).Draw(t, "unhold")
				if _, _, err := f.act(rollout.Action{Kind: rollout.Unhold, Hosts: hosts, Why: "x"}); err != nil {
					t.Fatalf("%v", err)
				}
			case 3:
				kind := rapid.SampledFrom([]rollout.ActionKind{rollout.Rollback, rollout.Abort, rollout.Resume, rollout.Resume, rollout.Pause}).Draw(t, "act")
				if _, _, err := f.act(rollout.Action{Kind: kind, Why: "x"}); err != nil && !isUnfit(err) {
					t.Fatalf("%v", err)
				}
			}
			// Ten seconds, in which a controller looks and hosts do what they are told, again and again.
			f.now = f.now.Add(10 * time.Second)
			f.settle()
			for name, running := range kept {
				if h := f.host(name); h.Running != running && f.source(f.view, h) == manifest.FromHold {
					t.Fatalf("%s was held at %d and runs %d", name, running, h.Running)
				}
			}
		}
		for range 100 {
			if _, _, err := f.act(rollout.Action{Kind: rollout.Resume, Why: "x"}); err != nil && !isUnfit(err) {
				t.Fatalf("%v", err)
			}
			for end := f.now.Add(time.Minute); f.now.Before(end); {
				f.now = f.now.Add(10 * time.Second)
				f.settle()
			}
			if f.r().Phase == manifest.PhaseDone && f.r().Target == f.part && len(f.view.Manifest.Assign) == 1 {
				break
			}
		}
		if f.running(f.part) != len(f.hosts) || len(f.view.Manifest.Assign) != 1 || len(f.r().Holds) != 0 {
			t.Fatalf("%d of %d run %d: %+v, %v", f.running(f.part), len(f.hosts), f.part, f.r(), f.view.Manifest.Assign)
		}
	})
}

// A host under an override is not held by the way: the hold would take the override from it.
func TestHoldUnderOverride(t *testing.T) {
	f := newFleet(t, 3, standard(bakeless(100)...))
	f.override("inc-1", 9, time.Hour)
	soon := f.now.Add(time.Hour)
	a := rollout.Action{Kind: rollout.Hold, Hosts: []string{"h-001"}, Runs: map[string]uint64{"h-001": 9}, Why: "x", Until: &soon}
	if _, _, err := f.act(a); !isUnfit(err) || !strings.Contains(err.Error(), "h-001 runs override inc-1, and a hold goes before overrides") {
		t.Errorf("%v", err)
	}
	a.To = 7
	f.must(a)
	if got := f.at(f.view, f.host("h-001")); got != 7 {
		t.Errorf("led to %d", got)
	}
}

// Hosts that are not known yet are not let go by the way.
func TestHoldWhileUnseen(t *testing.T) {
	f := newFleet(t, 10, standard(bakeless(100)...))
	until := f.now.Add(time.Minute)
	f.must(rollout.Action{Kind: rollout.Hold, Hosts: []string{"h-001"}, Runs: f.runs(), Why: "x", Until: &until})
	f.now = until
	all := f.hosts
	f.hosts, f.settling = nil, "it was started just now"
	if changed, err := f.try(); changed || err != nil && !isWaiting(err) {
		t.Errorf("%t, %v", changed, err)
	}
	f.hosts, f.settling = all, ""
	f.settle()
	if len(f.held()) != 0 || len(f.r().Holds) != 0 {
		t.Errorf("%v", f.held())
	}
}

// A hold that is over comes before a wave takes more hosts. While nothing may go forward, it lets nobody go who would.
func TestHoldOver(t *testing.T) {
	p := standard(bakeless(50, 100)...)
	p.MaxInFlight, p.ApproveBefore = "1", []int{2}
	f := newFleet(t, 20, p)
	f.publish(8, map[string]string{"a": "a8"})
	f.next()
	canary := func(h *member) bool { return manifest.Point("8", h.Name) < 1<<62 } // of the first quarter, more or less: in the first wave
	i := slices.IndexFunc(f.hosts, canary)
	until := f.now.Add(1000 * time.Hour)
	name := f.hosts[i].Name
	f.must(rollout.Action{Kind: rollout.Hold, Hosts: []string{name}, To: 7, Why: "x", Until: &until})
	f.until("the first wave", time.Hour, func() bool { return f.r().Phase == manifest.PhaseAwaitingApproval })
	f.must(rollout.Action{Kind: rollout.Pause, Why: "x"})
	f.must(rollout.Action{Kind: rollout.Unhold, Hosts: []string{name}, Why: "x"})
	if f.settle(); f.at(f.view, f.host(name)) != 7 {
		t.Error("it takes the target while the rollout is paused")
	}
	f.must(rollout.Action{Kind: rollout.Resume, Why: "x"})
	f.must(rollout.Action{Kind: rollout.Hold, Hosts: []string{name}, To: 7, Why: "x", Until: &until})
	f.must(rollout.Action{Kind: rollout.Approve, Why: "x"})
	f.next() // begins, and tells one
	f.must(rollout.Action{Kind: rollout.Unhold, Hosts: []string{name}, Why: "x"})
	told := f.told(8)
	for range 3 {
		f.apply()
		if _, err := f.try(); err != nil && !isWaiting(err) {
			t.Fatal(err)
		}
		if f.source(f.view, f.host(name)) != manifest.FromHold {
			break
		}
	}
	if f.at(f.view, f.host(name)) != 8 || f.told(8) != told+1 {
		t.Errorf("led to %d, %d told after %d", f.at(f.view, f.host(name)), f.told(8), told)
	}
}
