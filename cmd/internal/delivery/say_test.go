package delivery

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-config/muster/distributor/api"
	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/verdict"
	"github.com/muster-config/muster/pipeline/forge"
)

func waiting(n int) []verdict.Waiting { return make([]verdict.Waiting, n) }

func TestTell(t *testing.T) {
	r := Release{Epoch: 7, Cohorts: map[string]Cohort{
		"eu": {Env: "prod", State: manifest.StateBuilt}, "us": {Env: "prod", State: manifest.StateBuilt}, "bad": {Env: "prod", State: manifest.StateBlocked, Reason: "web: not valid"},
	}}
	two := []api.RolloutWave{{Wave: 1}, {Wave: 2}}
	at := func(target uint64, phase manifest.Phase, wave int) api.Event {
		return api.Event{Target: target, Phase: phase, Rollout: &api.Rollout{Target: target, Baseline: 5, Phase: phase, Wave: wave, Waves: two, Why: "errors 0.2 above 0.01"}}
	}
	halted := at(7, manifest.PhaseHalted, 1)
	halted.Rollout.Halts = []manifest.Stop{{By: "muster", Why: "gate errors", Epoch: 7}}
	elder := at(6, manifest.PhaseHalted, 1)
	elder.Rollout.Halts = []manifest.Stop{{By: "muster", Why: "gate errors", Epoch: 6}}
	green := verdict.Green{Green: true, Confirmed: 2491, Owed: 9}
	for _, tt := range []struct {
		name    string
		cohorts string
		w       map[string]verdict.Green
		events  map[string]api.Event
		want    string
	}{
		{"nothing assigned", "eu us", nil, nil, "queued: eu waits for its rollout; us waits for its rollout"},
		{"an older one runs", "eu", map[string]verdict.Green{"eu": {Waiting: waiting(3)}}, map[string]api.Event{"eu": at(6, manifest.PhaseDone, 0)}, "queued: eu waits for its rollout"},
		{"an older one is halted", "eu", map[string]verdict.Green{"eu": {Never: true, Waiting: waiting(3)}}, map[string]api.Event{"eu": elder}, "queued: eu waits for its rollout"},
		{"first wave", "eu us", map[string]verdict.Green{"eu": {Confirmed: 120, Waiting: waiting(2380)}, "us": {Waiting: waiting(2500)}}, map[string]api.Event{"eu": at(7, manifest.PhaseBaking, 1)}, "in_progress: 120 of 5,000 confirmed; eu: wave 1 of 2, baking; us waits for its rollout"},
		{"approval", "eu", map[string]verdict.Green{"eu": {Confirmed: 1, Waiting: waiting(1)}}, map[string]api.Event{"eu": at(7, manifest.PhaseAwaitingApproval, 1)}, "in_progress: 1 of 2 confirmed; eu: wave 1 of 2, waits for an approval"},
		{"at once", "eu", map[string]verdict.Green{"eu": {Confirmed: 1, Waiting: waiting(1)}}, map[string]api.Event{"eu": {Target: 7}}, "in_progress: 1 of 2 confirmed"},
		{"held", "eu", map[string]verdict.Green{"eu": {Confirmed: 1, Never: true, Why: "host a is held: INC-1", Waiting: waiting(1)}}, map[string]api.Event{"eu": {Target: 7}}, "in_progress: 1 of 2 confirmed; host a is held: INC-1"},
		{"one green", "eu us", map[string]verdict.Green{"eu": green, "us": {Waiting: waiting(2500)}}, nil, "in_progress: 2,491 of 5,000 confirmed; us waits for its rollout"},
		{"green", "eu us", map[string]verdict.Green{"eu": green, "us": green}, nil, "success: 4,982 confirmed, 18 owed"},
		{"green by a later one", "eu", map[string]verdict.Green{"eu": green}, map[string]api.Event{"eu": at(8, manifest.PhaseDone, 2)}, "success: 2,491 confirmed, 9 owed"},
		{"going back", "eu us", map[string]verdict.Green{"us": green}, map[string]api.Event{"eu": at(7, manifest.PhaseRollingBack, 1)}, "failure: eu goes back to epoch 5: errors 0.2 above 0.01 (back to 5)"},
		{"halted", "eu", nil, map[string]api.Event{"eu": halted}, "failure: eu is halted: gate errors (back to 5)"},
		{"halted, and then resumed to the end", "eu", map[string]verdict.Green{"eu": green}, map[string]api.Event{"eu": halted}, "success: 2,491 confirmed, 9 owed"},
		{"blocked", "bad eu", map[string]verdict.Green{"eu": green}, nil, "failure: bad is blocked: web: not valid"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := r.tell(strings.Fields(tt.cohorts), &api.Wait{Cohorts: tt.w}, tt.events, nil)
			got := string(s.state) + ": " + s.text
			for _, b := range s.backs {
				got += fmt.Sprintf(" (back to %d)", b.baseline)
			}
			if got != tt.want {
				t.Errorf("got  %s\nwant %s", got, tt.want)
			}
		})
	}
}

func TestEnvironments(t *testing.T) {
	r := Release{Cohorts: map[string]Cohort{
		"eu": {Env: "prod", State: manifest.StateBuilt}, "us": {Env: "prod", State: manifest.StateBlocked}, "lab": {State: manifest.StateBuilt}, "same": {Env: "dev", State: manifest.StateHolds},
	}}
	for per, want := range map[Per]map[string][]string{
		PerEnv:    {"prod": {"eu", "us"}, "lab": {"lab"}},
		PerCohort: {"eu": {"eu"}, "us": {"us"}, "lab": {"lab"}},
	} {
		if d := cmp.Diff(want, r.environments(per)); d != "" {
			t.Errorf("%s: %s", per, d)
		}
	}
}

func TestWhole(t *testing.T) {
	r := Release{Epoch: 7}
	good, slow, bad := said{state: forge.Success}, said{state: forge.InProgress, text: "eu keeps epoch 6, which is not confirmed yet"}, said{state: forge.Failure, text: "eu is halted"}
	two := map[string]said{"a": {state: forge.Success, text: "1 confirmed"}}
	for _, tt := range []struct {
		of    map[string]said
		state forge.Verdict
		text  string
		kept  said
	}{
		{nil, forge.Pending, "epoch 7: nothing changes on any host; eu keeps epoch 6, which is not confirmed yet", slow},
		{nil, forge.Bad, "epoch 7: eu is halted; nothing changes on any host", bad},
		{two, forge.Good, "epoch 7: a: 1 confirmed", good},
		{two, forge.Pending, "epoch 7: a: 1 confirmed; eu keeps epoch 6, which is not confirmed yet", slow},
		{two, forge.Bad, "epoch 7: eu is halted; a: 1 confirmed", bad},
		{nil, forge.Good, "epoch 7: nothing changes on any host", good},
		{map[string]said{"b": {state: forge.Success, text: "2 confirmed"}, "a": {state: forge.Queued, text: "a waits"}}, forge.Pending, "epoch 7: a: a waits; b: 2 confirmed", good},
		{map[string]said{"b": {state: forge.Success, text: "2 confirmed"}, "a": {state: forge.Success, text: "1 confirmed"}}, forge.Good, "epoch 7: a: 1 confirmed; b: 2 confirmed", good},
		{map[string]said{"b": {state: forge.Failure, text: "halted"}, "a": {state: forge.InProgress, text: "1 of 2"}}, forge.Bad, "epoch 7: b: halted; a: 1 of 2", good},
	} {
		if got := r.whole(tt.of, tt.kept); got.State != tt.state || got.Description != tt.text || got.Context != "muster / delivered" {
			t.Errorf("%+v", got)
		}
	}
}

// What a release leaves in place counts too: it is told of the commit while that is not confirmed, or was halted.
func TestKeeps(t *testing.T) {
	r := Release{Epoch: 7, Cohorts: map[string]Cohort{"eu": {Env: "prod", State: manifest.StateHolds, Epoch: 6}, "us": {Env: "prod", State: manifest.StateHolds, Epoch: 5}, "new": {State: manifest.StateHolds}, "lab": {State: manifest.StateBuilt, Epoch: 7}}}
	halted := map[string]api.Event{"eu": {Target: 6, Phase: manifest.PhaseHalted, Rollout: &api.Rollout{Target: 6, Baseline: 5, Phase: manifest.PhaseHalted, Halts: []manifest.Stop{{Why: "gate errors", Epoch: 6}}}}}
	green := verdict.Green{Green: true}
	for _, tt := range []struct {
		w      map[string]verdict.Green
		events map[string]api.Event
		want   string
	}{
		{map[string]verdict.Green{"eu": green, "us": green}, nil, "success: "},
		{map[string]verdict.Green{"eu": {}, "us": green}, nil, "in_progress: eu keeps epoch 6, which is not confirmed yet"},
		{map[string]verdict.Green{"us": green}, nil, "success: "}, // eu is there no more
		{nil, nil, "in_progress: eu keeps epoch 6, which is not confirmed yet; us keeps epoch 5, which is not confirmed yet"},
		{map[string]verdict.Green{"eu": {}, "us": {}}, halted, "failure: epoch 6, which stays: eu is halted: gate errors; us keeps epoch 5, which is not confirmed yet"},
		{map[string]verdict.Green{"eu": green, "us": green}, halted, "success: "}, // resumed to the end
	} {
		s := r.keeps(&api.Wait{Cohorts: tt.w}, tt.events, nil)
		if got := string(s.state) + ": " + s.text; got != tt.want || len(s.backs) > 0 {
			t.Errorf("got  %s\nwant %s", got, tt.want)
		}
	}
}

// A success is watched while its own rollout is, and while what was heard of a cohort is older than what the collector answers: the two come by different ways.
func TestWatched(t *testing.T) {
	r := Release{Epoch: 7, Cohorts: map[string]Cohort{"eu": {State: manifest.StateBuilt, Epoch: 7}, "us": {State: manifest.StateHolds, Epoch: 5}, "new": {State: manifest.StateHolds}}}
	all := &api.Wait{Cohorts: map[string]verdict.Green{"eu": {Green: true}, "us": {Green: true}, "new": {}}}
	eu := func(target, fallback uint64) api.Event {
		return api.Event{Target: target, Rollout: &api.Rollout{Target: target, Fallback: fallback}}
	}
	for name, tt := range map[string]struct {
		events map[string]api.Event
		want   bool
	}{
		"nothing heard":    {nil, true},
		"an older word":    {map[string]api.Event{"eu": eu(6, 0), "us": eu(5, 0)}, true},
		"watched":          {map[string]api.Event{"eu": eu(7, 6), "us": eu(5, 0)}, true},
		"what stays is":    {map[string]api.Event{"eu": eu(7, 0), "us": eu(5, 4)}, true},
		"over":             {map[string]api.Event{"eu": eu(7, 0), "us": eu(5, 0)}, false},
		"a newer one's is": {map[string]api.Event{"eu": eu(8, 7), "us": eu(5, 0)}, false},
	} {
		if got := r.watchedBy(all, tt.events); got != tt.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}
