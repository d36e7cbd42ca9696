package collector

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-config/muster/distributor/api"
	"github.com/muster-config/muster/distributor/keys"
	"github.com/muster-config/muster/distributor/manifest"
)

// D005: what acts is shown, with its age; what it changes is not.
func TestD005OverridesShown(t *testing.T) {
	r := steeredRig(t, nil)
	r.read()
	made := r.now().Add(-90 * time.Minute)
	r.c.mu.Lock()
	co := r.c.cohorts["prod"]
	v := *co.view
	one := manifest.VerifiedOverride{
		Override: manifest.Override{
			ID: "inc-311", Cohort: "prod", Hosts: []string{"web-1"}, Author: "ana", Reason: "INC-311", Created: made, NotAfter: made.Add(2 * time.Hour), Epoch: 4,
			Patches: []manifest.Patch{{Service: "web", Values: `{"password":"SECRET"}`}, {Service: "db", Values: "{}"}},
		},
		First: &manifest.VerifiedStatement{},
	}
	over := one
	over.ID, over.NotAfter = "inc-1", made.Add(time.Hour)
	v.Overrides = []manifest.VerifiedOverride{one, over}
	v.Manifest.Rollout.Endings = []manifest.Ending{{Override: "inc-311", Below: "8000000000000000", Salt: "x", Why: "it ends"}}
	co.view = &v
	r.c.mu.Unlock()
	st, err := r.client.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want := []api.Override{{
		ID: "inc-311", Hosts: []string{"web-1"}, Services: []string{"db", "web"}, Epoch: 4, Author: "ana", Reason: "INC-311", Created: made, NotAfter: made.Add(2 * time.Hour), Ending: true,
	}}
	if d := cmp.Diff(want, st.Cohorts["prod"].Overrides); d != "" {
		t.Error(d)
	}
	_, text, _ := r.page(t, r.server.Client(), "/metrics")
	for _, want := range []string{`muster_overrides{cohort="prod"} 1`, `muster_override_age_seconds{cohort="prod"} 5400`} {
		if !strings.Contains(text, want+"\n") {
			t.Errorf("metrics have no %s", want)
		}
	}
	if strings.Contains(text, "SECRET") {
		t.Error("a patch is told")
	}
}

// An operator key is for overridden statements: a release by which it would change the policy is none, and rollouts go by the one before it.
func TestOverrideReleaseChangesNothingElse(t *testing.T) {
	for name, change := range map[string]func(*manifest.Release){
		"nothing": nil,
		"policy": func(r *manifest.Release) {
			r.Policy.Rollouts = map[string]manifest.RolloutPolicy{"standard": {Waves: []manifest.Wave{{Percent: 100, Bake: "0s"}}, Gates: map[string]manifest.Gate{}, MinReported: 1, MaxInFlight: "100%", Spread: "0s", Timeout: "1h", OnFailure: "halt", Watch: "0s"}}
		},
		// Who stands behind a commit is said by who published it.
		"author":    func(r *manifest.Release) { r.Author.Name = "mallory" },
		"subject":   func(r *manifest.Release) { r.Subject = "harmless" },
		"approvers": func(r *manifest.Release) { r.Approvers = []string{"ana"} },
		"signer":    func(r *manifest.Release) { r.Signer = "ana (verified by github.com)" },
		"commit":    func(r *manifest.Release) { r.Commit = strings.Repeat("ab", 20) },
		"prev":      func(r *manifest.Release) { r.Prev = digest("another") },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.cohort("prod", "web-1")
			w.publish("prod")
			obj, err := w.store.Get(t.Context(), manifest.KeyRelease(1), manifest.MaxReleaseBytes)
			if err != nil {
				t.Fatal(err)
			}
			env, err := manifest.ParseEnvelope(obj.Data)
			if err != nil {
				t.Fatal(err)
			}
			rel, err := manifest.DecodeRelease(env.Payload)
			if err != nil {
				t.Fatal(err)
			}
			end := start.Add(time.Hour)
			rel.Epoch, rel.Kind, rel.Prev, rel.OverrideID, rel.NotAfter = 2, manifest.ReleaseOverride, env.Digest(), "inc-311", &end
			rel.Cohorts["prod"] = manifest.ReleaseCohort{State: manifest.StateHolds, Epoch: 1}
			if change != nil {
				change(rel)
			}
			w.put(manifest.KeyRelease(2), w.encode(w.seal(manifest.KindRelease, *rel, keys.FromSeed(4))))
			r := newRig(t, w, nil)
			r.read()
			newest, err := r.c.Newest(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if taken := newest.Release.Epoch == 2; taken != (change == nil) {
				t.Errorf("taken: %t", taken)
			}
		})
	}
}
