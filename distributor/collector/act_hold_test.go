package collector

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/muster-config/muster/distributor/api"
	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/rollout"
	"github.com/muster-config/muster/distributor/verdict"
)

// fetchable puts something of the right size where the statements of prod's releases have their bundles.
func (r *rig) fetchable(epochs ...string) {
	for _, epoch := range epochs {
		env := r.made["prod/"+epoch]
		st, err := manifest.DecodeStatement(env.Payload)
		if err != nil {
			r.t.Fatal(err)
		}
		r.put(manifest.KeyBundle(st.Bundle.Object), make([]byte, st.Bundle.Size))
	}
}

func TestActHold(t *testing.T) {
	r := steeredRig(t, nil)
	until := start.Add(72 * time.Hour)
	got, err := r.client.Act(t.Context(), "prod", "hold", api.Act{By: "ana", Reason: "INC-7", Hosts: []string{canary()}, Until: &until})
	if err != nil || !got.Changed || !strings.HasPrefix(got.Said, canary()+" is held at epoch 2 until 2026-12-03T") {
		t.Fatalf("%+v, %v", got, err)
	}
	r.is(canary(), verdict.Held, "held at epoch 2 until 2026-12-03T12:00:00Z (hold by ana: INC-7)")
	co, err := r.client.Cohort(t.Context(), "prod")
	if err != nil || co.Rollout.Eligible != 2 {
		t.Errorf("%+v, %v", co.Rollout, err)
	}
	// Nothing that a hold is not for, and nobody who is not known.
	for want, q := range map[string]api.Act{
		"hosts: name 1 to 200":                    {Reason: "x", Until: &until},
		"until: a hold has an end":                {Reason: "x", Hosts: []string{"a"}},
		"is past, or more than 2160h0m0s away":    {Reason: "x", Hosts: []string{"a"}, Until: &start},
		`no host "zz" of cohort prod is known he`: {Reason: "x", Hosts: []string{"zz"}, Until: &until},
		"there is no epoch 77 of cohort prod":     {Reason: "x", Hosts: []string{"a"}, Until: &until, To: 77},
		"now, drop_overrides: go with rollback":   {Reason: "x", Hosts: []string{"a"}, Until: &until, Now: true},
		"aborted: goes with resume":               {Reason: "x", Hosts: []string{"a"}, Until: &until, Aborted: true},
	} {
		q.By = "ana"
		if _, err := r.client.Act(t.Context(), "prod", "hold", q); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %s", q, err, want)
		}
	}
	if _, err := r.client.Act(t.Context(), "prod", "pause", api.Act{By: "ana", Reason: "x", Hosts: []string{"a"}}); err == nil || !strings.Contains(err.Error(), "hosts: goes with hold and unhold") {
		t.Errorf("%v", err)
	}
	// An epoch that the head does not carry needs its bundle in the store.
	other := "a"
	if canary() == "a" {
		other = "b"
	}
	q := api.Act{By: "ana", Reason: "x", Hosts: []string{other}, Until: &until, To: 3}
	var refused *api.StatusError
	if _, err := r.client.Act(t.Context(), "prod", "hold", q); !errors.As(err, &refused) || refused.Code != 1 || !strings.Contains(err.Error(), "hosts could not fetch it; nothing was changed") {
		t.Errorf("%v", err)
	}
	r.fetchable("3")
	if got, err := r.client.Act(t.Context(), "prod", "hold", q); err != nil || !got.Changed {
		t.Errorf("%+v, %v", got, err)
	}
	if got, err := r.client.Act(t.Context(), "prod", "unhold", api.Act{By: "ben", Reason: "over", Hosts: []string{canary(), other}}); err != nil || !got.Changed {
		t.Errorf("%+v, %v", got, err)
	}
	r.is(canary(), verdict.Held, "it is let go as places of max_in_flight are free")
}

// At rest a controller sees the hosts all the same while some are on hold, or else their hold would never end.
func TestHeldAtRest(t *testing.T) {
	w := newWorld(t)
	w.cohort("prod", "a", "b")
	r := newRig(t, w, nil)
	w.publish("prod")
	w.assign("prod", 1)
	r.read()
	for _, h := range []string{"a", "b"} {
		if res, err := r.c.Report(t.Context(), r.agent("prod", h).runs(1).signed()); err != nil || !res.Accepted {
			t.Fatalf("%+v, %v", res, err)
		}
	}
	r.c.steering = &Steering{Store: w.store, Signer: rolloutKey}
	if _, seen, err := r.c.Cohort(t.Context(), "prod"); err != nil || len(seen.Hosts) != 0 {
		t.Fatalf("%+v, %v", seen, err) // nothing moves: no host need be looked at
	}
	until := start.Add(time.Hour)
	if _, err := r.client.Act(t.Context(), "prod", "hold", api.Act{By: "ana", Reason: "x", Hosts: []string{"a"}, Until: &until}); err != nil {
		t.Fatal(err)
	}
	_, seen, err := r.c.Cohort(t.Context(), "prod")
	if err != nil || len(seen.Hosts) != 2 || !slices.ContainsFunc(seen.Hosts, func(h rollout.Host) bool { return h.Name == "a" && h.Verdict == verdict.Held }) {
		t.Errorf("%+v, %v", seen, err)
	}
}

func TestActRollback(t *testing.T) {
	r := steeredRig(t, nil)
	var refused *api.StatusError
	if _, err := r.client.Act(t.Context(), "prod", "rollback", api.Act{By: "ana", Reason: "INC-311"}); !errors.As(err, &refused) || refused.Code != 1 || !strings.Contains(err.Error(), "epoch 1: bundles/") {
		t.Fatalf("%v", err)
	}
	r.fetchable("1")
	if _, err := r.client.Act(t.Context(), "prod", "rollback", api.Act{By: "ana", Reason: "x", To: 77}); err == nil || !strings.Contains(err.Error(), "there is no epoch 77 of cohort prod") {
		t.Errorf("%v", err)
	}
	got, err := r.client.Act(t.Context(), "prod", "rollback", api.Act{By: "ana", Reason: "INC-311"})
	if err != nil || !got.Changed || got.Phase != manifest.PhaseRollingBack {
		t.Fatalf("%+v, %v", got, err)
	}
	co, err := r.client.Cohort(t.Context(), "prod")
	if err != nil || len(co.Rollout.Halts) != 1 || co.Rollout.Halts[0].By != "ana" || co.Rollout.Halts[0].Why != "rolled back to epoch 1: INC-311" {
		t.Errorf("%+v, %v", co.Rollout, err)
	}
	if !strings.Contains(r.log.String(), `msg="rollout changed by hand" act=rollback cohort=prod by=ana reason=INC-311`) {
		t.Error("the log does not say it")
	}
	got, err = r.client.Act(t.Context(), "prod", "rollback", api.Act{By: "ben", Reason: "faster", Now: true})
	if err != nil || !got.Changed || got.Phase != manifest.PhaseHalted {
		t.Fatalf("%+v, %v", got, err)
	}
	if _, err := r.client.Act(t.Context(), "prod", "resume", api.Act{By: "cleo", Reason: "x"}); !errors.As(err, &refused) || refused.Code != 1 || !strings.Contains(err.Error(), "INC-311") && !strings.Contains(err.Error(), "faster") {
		t.Errorf("%v", err)
	}
	if got, err := r.client.Act(t.Context(), "prod", "resume", api.Act{By: "cleo", Reason: "asked both", Aborted: true}); err != nil || !got.Changed {
		t.Errorf("%+v, %v", got, err)
	}
}
