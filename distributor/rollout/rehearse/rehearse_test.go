package rehearse_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/rollout/rehearse"
)

func policy() manifest.RolloutPolicy {
	return manifest.RolloutPolicy{
		Waves: []manifest.Wave{{Percent: 5, Bake: "10m"}, {Percent: 25, Bake: "10m"}, {Percent: 100, Bake: "5m"}}, Gates: map[string]manifest.Gate{},
		MinReported: 0.99, MaxFailed: 0, MaxInFlight: "10%", Spread: "0s", Timeout: "1h", OnFailure: "rollback", Watch: "30m",
	}
}

func hosts(n int) []rehearse.Host {
	list := make([]rehearse.Host, n)
	for i := range list {
		list[i] = rehearse.Host{Name: fmt.Sprintf("web-%04d", i), Labels: map[string]string{"canary": fmt.Sprint(i < 3)}}
	}
	return list
}

var begin = time.Date(2026, 11, 30, 9, 0, 0, 0, time.UTC)

func TestRun(t *testing.T) {
	in := rehearse.Input{Cohort: "prod", Policy: policy(), Hosts: hosts(200), Begin: begin, Apply: 10 * time.Second}
	got, err := rehearse.Run(in)
	if err != nil {
		t.Fatal(err)
	}
	if got.End != rehearse.Done || got.Touched != 200 || len(got.Waves) != 3 {
		t.Fatalf("%+v", got)
	}
	for i, want := range []int{10, 50, 200} {
		if w := got.Waves[i]; w.Hosts != want || w.Wave != i+1 || w.Over < w.Told || w.Told < w.Begins {
			t.Errorf("wave %d: %+v, want %d hosts", i+1, w, want)
		}
	}
	// The bakes are in it, and not much else.
	if got.Took < 25*time.Minute || got.Took > 32*time.Minute {
		t.Errorf("took %s", got.Took)
	}
	again, err := rehearse.Run(in)
	if err != nil || fmt.Sprintf("%+v", again) != fmt.Sprintf("%+v", got) {
		t.Errorf("another time it is another: %+v, %v", again, err)
	}
}

func TestRunFails(t *testing.T) {
	in := rehearse.Input{Cohort: "prod", Policy: policy(), Hosts: hosts(200), Begin: begin, Apply: 10 * time.Second, Refuse: 0.5, Seed: 7}
	got, err := rehearse.Run(in)
	if err != nil {
		t.Fatal(err)
	}
	if got.End != rehearse.RolledBack || got.Wave != 1 || got.Touched > 10 || got.Took > time.Minute || got.Why == "" {
		t.Errorf("%+v", got)
	}
	in.Policy.OnFailure = "halt"
	if got, err = rehearse.Run(in); err != nil || got.End != rehearse.Halted || got.Wave != 1 {
		t.Errorf("%+v, %v", got, err)
	}
}

// Labels, counts, approvals and small fleets: three hosts make 1, 1, 3.
func TestRunShapes(t *testing.T) {
	in := rehearse.Input{Cohort: "prod", Policy: policy(), Hosts: hosts(3), Begin: begin, Apply: time.Second}
	got, err := rehearse.Run(in)
	if err != nil || got.End != rehearse.Done || len(got.Waves) != 3 || got.Waves[0].Hosts != 1 || got.Waves[1].Hosts != 1 || got.Waves[2].Hosts != 3 {
		t.Errorf("B105: %+v, %v", got, err)
	}
	in.Hosts = hosts(20)
	in.Policy.Waves = []manifest.Wave{{Match: map[string]string{"canary": "true"}, Bake: "1m"}, {Count: 7, Bake: "0s"}, {Percent: 100, Bake: "0s"}}
	in.Policy.ApproveBefore = []int{2}
	got, err = rehearse.Run(in)
	if err != nil || got.End != rehearse.Done || len(got.Waves) != 3 || got.Waves[0].Hosts != 3 || got.Waves[0].Takes != "canary=true" || got.Waves[2].Hosts != 20 {
		t.Errorf("%+v, %v", got, err)
	}
}

// Hosts that wait for their turn are not late: a healthy release gets to all of them, however long its spread; one that a host never confirms still comes to an end.
func TestRunSpread(t *testing.T) {
	for name, c := range map[string]struct {
		hosts         int
		spread        string
		inFlight      string
		least, atMost time.Duration
	}{
		"default":       {200, "30m", "10%", time.Hour, 10 * time.Hour},
		"one at a time": {30, "20m", "1", 3 * time.Hour, 12 * time.Hour},
		"all at once":   {200, "90m", "100%", 3 * time.Hour, 5 * time.Hour},
		"none":          {200, "0s", "10%", 15 * time.Minute, 30 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			p := manifest.RolloutPolicy{
				Waves: []manifest.Wave{{Percent: 5, Bake: "10m"}, {Percent: 25, Bake: "5m"}, {Percent: 100, Bake: "0s"}}, Gates: map[string]manifest.Gate{}, MinReported: 0.95,
				MaxInFlight: c.inFlight, Spread: c.spread, Timeout: "2h", OnFailure: "rollback", Watch: "30m",
			}
			got, err := rehearse.Run(rehearse.Input{Cohort: "prod", Policy: p, Hosts: hosts(c.hosts), Begin: begin, Apply: 10 * time.Second})
			if err != nil || got.End != rehearse.Done || got.Touched != c.hosts || got.Took < c.least || got.Took > c.atMost {
				t.Errorf("%+v, %v", got, err)
			}
		})
	}
}

// What never ends is said so, soon: a window that never opens, and a bake that nobody would see the end of.
func TestRunEnds(t *testing.T) {
	never, long := policy(), policy()
	never.Windows = []string{"0 0 30 2 *"}
	long.Waves[0].Bake = "2562047h"
	for name, p := range map[string]manifest.RolloutPolicy{"window": never, "bake": long} {
		got, err := rehearse.Run(rehearse.Input{Cohort: "prod", Policy: p, Hosts: hosts(1000), Begin: begin, Apply: 10 * time.Second})
		if err != nil || got.End != rehearse.Stuck || got.Orders > 100 {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
	// One that opens days later is waited for.
	later := policy()
	later.Windows = []string{"* 9-16 * * fri"}
	got, err := rehearse.Run(rehearse.Input{Cohort: "prod", Policy: later, Hosts: hosts(1000), Begin: begin, Apply: 10 * time.Second})
	if err != nil || got.End != rehearse.Done || got.Waves[0].Begins < 4*24*time.Hour-time.Minute || got.Waves[0].Begins > 4*24*time.Hour+time.Minute {
		t.Errorf("%+v, %v", got, err)
	}
}
