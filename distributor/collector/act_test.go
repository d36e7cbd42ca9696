package collector

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/muster-config/muster/distributor/api"
	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/rollout"
	"github.com/muster-config/muster/distributor/store"
	"github.com/muster-config/muster/distributor/verdict"
)

// underWay has the rollout of epoch 2 stand at a wave of prod: one host of three has it.
func underWay(w *world, target, baseline uint64, changes ...func(r *manifest.Rollout)) func(*manifest.Manifest) {
	return func(m *manifest.Manifest) {
		p := w.policy.Rollouts["standard"]
		p.Waves = []manifest.Wave{{Count: 1, Bake: "10m"}, {Percent: 50, Bake: "10m"}, {Percent: 100, Bake: "0s"}}
		p.ApproveBefore = []int{2}
		most := 500.0
		p.Gates = map[string]manifest.Gate{"errors": {Reported: "probe_failures", Max: &most, Every: "30s", Fails: 2, NoData: "wait"}}
		m.Rollout = manifest.Rollout{
			PolicyName: "standard", PolicyEpoch: baseline, Policy: p, Target: target, Baseline: baseline, Wave: 1, Phase: manifest.PhaseBaking, Since: w.now(), Why: "1 of 1 hosts confirm it", By: "muster",
		}
		for _, change := range changes {
			change(&m.Rollout)
		}
		m.Statements = []manifest.Envelope{w.made["prod/1"], w.made["prod/2"]}
		below, _ := manifest.Threshold("2", []string{"a", "b", "c"}, 1)
		m.Assign = []manifest.Assignment{{Below: below, Salt: "2", Epoch: target, Why: "wave 1"}, {Epoch: baseline, Why: "baseline"}}
		if m.Rollout.Phase == manifest.PhaseDone {
			m.Assign = m.Assign[1:]
			m.Assign[0].Epoch = target
		}
	}
}

// canary is which of prod's three hosts has epoch 2.
func canary() string {
	below, _ := manifest.Threshold("2", []string{"a", "b", "c"}, 1)
	for _, h := range []string{"a", "b", "c"} {
		if left, all := manifest.Threshold("2", []string{h, "zz"}, 1); left != "" && !all && pointUnder(h, below) {
			return h
		}
	}
	return ""
}

func pointUnder(host, below string) bool {
	v := manifest.View{Manifest: manifest.Manifest{Assign: []manifest.Assignment{{Below: below, Salt: "2", Epoch: 2}, {Epoch: 1}}}, Statements: []manifest.VerifiedStatement{{Statement: manifest.Statement{Epoch: 1}}, {Statement: manifest.Statement{Epoch: 2}}}}
	res, err := manifest.Resolve(&v, manifest.Host{Name: host}, start)
	return err == nil && res.Epoch() == 2
}

// steeredRig is prod under way to epoch 2, with a collector that may steer, and epoch 3 waiting behind it.
func steeredRig(t *testing.T, tokens *Tokens, changes ...func(r *manifest.Rollout)) *rig {
	w := newWorld(t)
	w.cohort("prod", "a", "b", "c")
	w.cohort("other", "x")
	r := newRig(t, w, tokens)
	w.publish("prod", "other")
	w.publish("prod")
	w.publish("prod")
	w.assign("prod", 2, underWay(w, 2, 1, changes...))
	r.read()
	for _, h := range []string{"a", "b", "c"} {
		epoch := uint64(1)
		if h == canary() {
			epoch = 2
		}
		if res, err := r.c.Report(t.Context(), r.agent("prod", h).runs(epoch).signed()); err != nil || !res.Accepted {
			t.Fatalf("%+v, %v", res, err)
		}
	}
	r.c.steering = &Steering{Store: w.store, Signer: rolloutKey}
	return r
}

func TestActs(t *testing.T) {
	r := steeredRig(t, nil)
	act := func(act string, q api.Act) (*api.Acted, error) {
		q.By = "ana@desk"
		return r.client.Act(t.Context(), "prod", act, q)
	}
	got, err := act("pause", api.Act{Reason: "INC-7", Epoch: 2})
	if err != nil || !got.Changed || got.Phase != manifest.PhasePaused || got.Target != 2 || got.Mark != "1-2-0" {
		t.Fatalf("%+v, %v", got, err)
	}
	// It is in the head, with who and why; the API says it at once, with what ends it, and what waits behind it.
	co, err := r.client.Cohort(t.Context(), "prod")
	if err != nil {
		t.Fatal(err)
	}
	ro := co.Rollout
	if ro.Pause == nil || ro.Pause.By != "ana@desk" || ro.Pause.Why != "INC-7" || ro.Was != manifest.PhaseBaking {
		t.Errorf("%+v", ro.Pause)
	}
	if want := "paused at wave 1 of 3 by ana@desk since 2026-11-30T12:00:00Z: INC-7; `muster rollout resume prod --reason …` goes on, `muster rollout abort prod --reason …` goes back"; ro.Waits != want || ro.Overdue {
		t.Errorf("waits %q\nwant  %q", ro.Waits, want)
	}
	if len(ro.Queue) != 1 || ro.Queue[0].Epoch != 3 || ro.Queue[0].Subject != "change 3" || ro.Queue[0].Author != "Ana" {
		t.Errorf("queue %+v", ro.Queue)
	}
	if ro.Told != 1 || ro.Eligible != 3 || ro.Confirmed != 1 || len(ro.Waves) != 3 || ro.Waves[0].Hosts != 1 || ro.Waves[1].Hosts != 2 || ro.Waves[2].Hosts != 3 || !ro.Waves[1].Approval {
		t.Errorf("%+v", ro)
	}
	if in := ro.Waves[0].In; len(in) != 1 || in[0].Host != canary() || in[0].Verdict != verdict.Confirmed {
		t.Errorf("in wave 1: %+v", in)
	}
	// Once more is no news, and no head.
	if got, err := act("pause", api.Act{Reason: "again"}); err != nil || got.Changed || !strings.Contains(got.Said, "already") || got.Mark != "1-2-0" {
		t.Errorf("again: %+v, %v", got, err)
	}
	if got, err := act("resume", api.Act{Reason: "fine"}); err != nil || !got.Changed || got.Phase != manifest.PhaseBaking {
		t.Errorf("resume: %+v, %v", got, err)
	}
	until := start.Add(time.Hour)
	if got, err := act("freeze", api.Act{Reason: "holidays", Until: &until}); err != nil || !got.Changed {
		t.Errorf("freeze: %+v, %v", got, err)
	}
	if got, err := act("unfreeze", api.Act{Reason: "over"}); err != nil || !got.Changed {
		t.Errorf("unfreeze: %+v, %v", got, err)
	}
	if !strings.Contains(r.log.String(), `msg="rollout changed by hand" act=pause cohort=prod by=ana@desk reason=INC-7`) {
		t.Errorf("the log does not say it:\n%s", r.log)
	}
	for _, tt := range []struct {
		what, act string
		q         api.Act
		status    int
		code      int
		says      string
	}{
		{"another epoch", "abort", api.Act{Reason: "x", Epoch: 9}, 409, 1, "its target is epoch 2 by now, not 9"},
		{"no reason", "abort", api.Act{}, 400, 2, "reason: say why"},
		{"a long reason", "abort", api.Act{Reason: strings.Repeat("x", 501)}, 400, 2, "reason: longer"},
		{"a reason of lines", "abort", api.Act{Reason: "a\nb"}, 400, 2, "control character"},
		{"a wave", "abort", api.Act{Reason: "x", Wave: 1}, 400, 2, "wave: goes with approve"},
		{"an end", "pause", api.Act{Reason: "x", Until: &until}, 400, 2, "until: goes with freeze"},
		{"no end", "freeze", api.Act{Reason: "x"}, 400, 2, "a freeze has an end"},
		{"a past end", "freeze", api.Act{Reason: "x", Until: &start}, 400, 2, "is past"},
		{"nothing that is there", "explode", api.Act{Reason: "x"}, 404, 1, "there are pause, resume"},
		{"what does not wait", "approve", api.Act{Reason: "x"}, 409, 1, "does not fit the rollout"},
	} {
		_, err := act(tt.act, tt.q)
		var se *api.StatusError
		if !errors.As(err, &se) || se.Status != tt.status || se.Code != tt.code || !strings.Contains(se.Message+se.Next, tt.says) {
			t.Errorf("%s: %+v, want %d %d %q", tt.what, se, tt.status, tt.code, tt.says)
		}
	}
	// Strictly: a key that this version does not know is refused.
	resp, err := http.Post(r.server.URL+"/v1/cohorts/prod/abort", "application/json", strings.NewReader(`{"reason":"x","force":true}`))
	if err != nil {
		t.Fatal(err)
	}
	body, _ := io.ReadAll(resp.Body)
	resp.Body.Close()
	if resp.StatusCode != 400 || !strings.Contains(string(body), "force") {
		t.Errorf("an unknown key: %d %s", resp.StatusCode, body)
	}
	r.c.steering = nil
	var se *api.StatusError
	if _, err := act("abort", api.Act{Reason: "x"}); !errors.As(err, &se) || se.Status != 409 || se.Code != 1 || !strings.Contains(se.Message, "no rollout key") || !strings.Contains(se.Next, "--store") {
		t.Errorf("without a key: %+v", se)
	}
}

// Only a person with the role operator, and only for the token's cohorts; the token's name is what stands in the head.
func TestActsRoles(t *testing.T) {
	r := steeredRig(t, &Tokens{
		Agents: []AgentToken{{digestOf("agent"), []string{"*"}}},
		People: []PersonToken{{"ben", digestOf("ben"), RoleViewer, []string{"*"}}, {"cleo", digestOf("cleo"), RoleOperator, []string{"other"}}, {"ana", digestOf("ana"), RoleOperator, []string{"prod"}}},
	})
	for token, want := range map[string]int{"": 401, "agent": 403, "ben": 403, "cleo": 403} {
		_, err := r.as(token).Act(t.Context(), "prod", "pause", api.Act{Reason: "x", By: "ana"})
		var se *api.StatusError
		if !errors.As(err, &se) || se.Status != want {
			t.Errorf("token %q: %v, want %d", token, err, want)
		}
	}
	if _, err := r.as("cleo").Observed(t.Context(), "prod"); !errors.Is(err, api.ErrNotFound) {
		t.Errorf("hosts of another cohort: %v", err)
	}
	got, err := r.as("ana").Act(t.Context(), "prod", "pause", api.Act{Reason: "x", By: "somebody else"})
	if err != nil || !got.Changed {
		t.Fatalf("%+v, %v", got, err)
	}
	co, err := r.as("ben").Cohort(t.Context(), "prod")
	if err != nil || co.Rollout.Pause.By != "ana" {
		t.Errorf("%+v, %v", co, err)
	}
	seen, err := r.as("ben").Observed(t.Context(), "prod")
	if err != nil || seen.Mark != got.Mark || len(seen.Hosts) != 3 {
		t.Errorf("%+v, %v", seen, err)
	}
	for _, h := range seen.Hosts {
		if h.Name == canary() && (h.Running != 2 || h.Verdict != verdict.Confirmed) {
			t.Errorf("%+v", h)
		}
	}
}

// Somebody was first in the store, and the collector has not read it yet: the action is about what stands there.
func TestActOnTheNewestHead(t *testing.T) {
	r := steeredRig(t, nil)
	r.assign("prod", 2, underWay(r.world, 2, 1, func(ro *manifest.Rollout) {
		ro.Phase, ro.Wave, ro.Approved, ro.Since = manifest.PhaseAwaitingApproval, 2, nil, r.now()
	}))
	got, err := r.c.Act(context.Background(), "prod", "approve", api.Act{Reason: "fine", By: "ana"})
	if err != nil || !got.Changed || got.Mark != "1-3-0" {
		t.Fatalf("%+v, %v", got, err)
	}
	if ro, err := r.c.Rollout(t.Context(), "prod"); err != nil || len(ro.Waves) != 3 || !ro.Waves[1].Approved {
		t.Errorf("%+v, %v", ro, err)
	}
}

// A head that somebody deletes or puts back is told with the command that restores it, also when the collector has seen that for a while; and that command works.
func TestActsRestoreHeads(t *testing.T) {
	for _, how := range []string{"deleted", "put back"} {
		t.Run(how, func(t *testing.T) {
			r := steeredRig(t, nil)
			first, err := r.store.Get(t.Context(), manifest.KeyHead("prod"), manifest.MaxHeadBytes)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := r.c.Act(t.Context(), "prod", "pause", api.Act{Reason: "wait", By: "ana"}); err != nil {
				t.Fatal(err)
			}
			if how == "deleted" {
				err = r.store.Delete(t.Context(), manifest.KeyHead("prod"))
			} else {
				err = r.store.Put(t.Context(), manifest.KeyHead("prod"), first.Data)
			}
			if err != nil {
				t.Fatal(err)
			}
			r.advance(time.Hour)
			r.c.noteRead(r.c.read(t.Context()))
			if how == "put back" {
				_, err = r.c.Act(t.Context(), "prod", "abort", api.Act{Reason: "ill", By: "ana"})
				var refused *requestError
				if !errors.As(err, &refused) || refused.code != 4 || !strings.Contains(err.Error(), "`muster rollout refresh prod` restores") {
					t.Fatalf("%v", err)
				}
			}
			got, err := r.c.Act(t.Context(), "prod", "refresh", api.Act{By: "ana"})
			if err != nil || !got.Changed || got.Phase != manifest.PhasePaused || !strings.Contains(got.Said, "restored") {
				t.Fatalf("%+v, %v", got, err)
			}
			if _, err := r.c.Act(t.Context(), "prod", "abort", api.Act{Reason: "ill", By: "ana"}); err != nil {
				t.Error(err)
			}
		})
	}
}

// A collector that is started again while the head of a cohort that was aborted is deleted: its controller restores it, and sends nobody the aborted release.
func TestB046RestartWithoutHead(t *testing.T) {
	r := steeredRig(t, nil)
	if _, err := r.c.Act(t.Context(), "prod", "abort", api.Act{Reason: "ill", By: "ana"}); err != nil {
		t.Fatal(err)
	}
	r.flush()
	if err := r.store.Delete(t.Context(), manifest.KeyHead("prod")); err != nil {
		t.Fatal(err)
	}
	r.restart()
	if err := r.c.read(t.Context()); err != nil {
		t.Fatal(err)
	}
	c := &rollout.Controller{Store: r.store, Signer: rolloutKey, Seen: r.c, By: "controller", Now: r.now}
	for range 5 {
		c.Step(t.Context())
		if err := r.c.read(t.Context()); err != nil {
			t.Fatal(err)
		}
		r.advance(time.Minute)
	}
	got, err := r.c.Rollout(t.Context(), "prod")
	if err != nil || got.Target != 2 || got.Baseline != 1 || got.Phase != manifest.PhaseHalted && got.Phase != manifest.PhaseRollingBack {
		t.Errorf("%+v, %v", got, err)
	}
}

// full is a store without space.
type full struct{ store.Store }

func (f full) Replace(context.Context, string, []byte, store.Token) (store.Token, error) {
	return "", fmt.Errorf("replace: %w", store.ErrFull)
}

// A store without space is told as that, not as a collector that is not there.
func TestActStoreFull(t *testing.T) {
	r := steeredRig(t, nil)
	r.c.steering.Store = full{r.c.steering.Store}
	_, err := r.client.Act(t.Context(), "prod", "abort", api.Act{By: "ana", Reason: "INC-7"})
	var said *api.StatusError
	if !errors.As(err, &said) || said.ExitCode() != 7 || said.Status != http.StatusInsufficientStorage || !errors.Is(err, api.ErrFull) || errors.Is(err, api.ErrUnreachable) || !strings.Contains(err.Error(), "the disk is full") {
		t.Errorf("%v", err)
	}
}
