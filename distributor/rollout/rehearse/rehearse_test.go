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
