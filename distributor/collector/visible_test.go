package collector

import (
	"errors"
	"fmt"
	"testing"

	"github.com/muster-config/muster/distributor/api"
	"github.com/muster-config/muster/distributor/manifest"
)

// Who is limited to some cohorts reads what these run, and of the others neither bundles nor releases.
func TestLimitedTokensReadTheirOwn(t *testing.T) {
	w := newWorld(t)
	w.cohort("prod-eu", "eu-1")
	w.cohort("prod-us", "us-1")
	tokens := &Tokens{
		Agents: []AgentToken{{digestOf("agent-eu"), []string{"prod-eu"}}, {digestOf("agent-all"), []string{"*"}}},
		People: []PersonToken{{"ana", digestOf("ana"), RoleViewer, []string{"prod-eu"}}, {"eve", digestOf("eve"), RoleViewer, []string{"*"}}},
	}
	r := newRig(t, w, tokens)
	for _, cohort := range []string{"prod-eu", "prod-us"} {
		for epoch := range 4 {
			text := fmt.Sprint("bundle ", cohort, epoch+1)
			w.put(manifest.KeyBundle(digest(text)), []byte(text))
		}
	}
	w.put(manifest.KeyKeyring(1), w.keyring)
	one := w.publish("prod-eu", "prod-us")
	w.assign("prod-eu", one)
	w.assign("prod-us", one)
	r.read()
	reads := func(token, key string) error {
		t.Helper()
		body, _, err := r.as(token).Object(t.Context(), key)
		if err == nil {
			body.Close()
		}
		return err
	}
	check := func(token, what, key string, want error) {
		t.Helper()
		if err := reads(token, key); !errors.Is(err, want) || want == nil && err != nil {
			t.Errorf("%s reads %s: %v, want %v", token, what, err, want)
		}
	}
	bundle := func(cohort string, epoch uint64) string {
		return manifest.KeyBundle(digest(fmt.Sprint("bundle ", cohort, epoch)))
	}
	for _, token := range []string{"agent-eu", "ana"} {
		check(token, "its bundle", bundle("prod-eu", one), nil)
		check(token, "another cohort's bundle", bundle("prod-us", one), api.ErrDenied)
		check(token, "what is not there", manifest.KeyBundle(digest("none")), api.ErrDenied)
		check(token, "a release", manifest.KeyRelease(one), api.ErrDenied)
		check(token, "a keyring", manifest.KeyKeyring(1), nil)
	}
	check("agent-all", "a bundle", bundle("prod-us", one), nil)
	check("eve", "a release", manifest.KeyRelease(one), nil)

	// An order that this collector has not read yet: the agent read it from the store.
	two := w.publish("prod-us")
	three := w.publish("prod-eu", "prod-us")
	w.assign("prod-eu", three)
	w.assign("prod-us", three)
	w.advance(2e9)
	check("agent-eu", "a bundle of the newest order", bundle("prod-eu", three), nil)
	check("agent-eu", "a bundle of the order before", bundle("prod-eu", one), nil)
	check("agent-eu", "another cohort's newest bundle", bundle("prod-us", three), api.ErrDenied)
	r.read()

	// The release that leaves her cohort as it is tells nothing of what somebody did elsewhere.
	list, err := r.as("ana").Releases(t.Context())
	if err != nil || len(list) != 3 {
		t.Fatalf("%+v, %v", list, err)
	}
	for _, rel := range list {
		if _, foreign := rel.Cohorts["prod-us"]; foreign || len(rel.Cohorts) != 1 {
			t.Errorf("%+v", rel)
		}
		if hidden := rel.Subject == "" && rel.Author.Name == ""; hidden != (rel.Epoch == two) {
			t.Errorf("release %d: %q by %q", rel.Epoch, rel.Subject, rel.Author.Name)
		}
	}
	delete(w.policy.Cohorts, "prod-eu")
	four := w.publish("prod-us")
	r.read()
	if list, err = r.as("ana").Releases(t.Context()); err != nil || len(list) != 3 || list[0].Epoch != three {
		t.Errorf("%+v, %v", list, err)
	}
	if _, err := r.as("ana").Release(t.Context(), four); !errors.Is(err, api.ErrNotFound) {
		t.Errorf("a release of others: %v", err)
	}
	if list, err = r.as("eve").Releases(t.Context()); err != nil || len(list) != 4 {
		t.Errorf("%+v, %v", list, err)
	}
}
