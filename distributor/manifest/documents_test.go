package manifest_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/muster-config/muster/distributor/keys"
	"github.com/muster-config/muster/distributor/manifest"
)

// The documents below set every field of every type at least once (TestVectorsAreFull), so that the golden vectors pin each of them.

func fullPolicy() manifest.RolloutPolicy {
	return manifest.RolloutPolicy{
		Waves: []manifest.Wave{
			{Match: map[string]string{"canary": "true"}, Bake: "5m"}, {Count: 3, Min: 1, Bake: "10m"}, {Percent: 12.5, Min: 2, Bake: "30m"}, {Percent: 100, Bake: "0s"},
		},
		Gates: map[string]manifest.Gate{
			"errors":   {Prometheus: `rate(errors{cohort="$cohort",epoch="$epoch"}[5m])`, Compare: &manifest.GateCompare{Ratio: 1.5}, Every: "30s", Fails: 1, NoData: "wait"},
			"failures": {Prometheus: `sum(rate(failures[5m]) $canary)`, Of: `sum(rate(requests[5m]) $canary)`, Max: pointer(0.01), Every: "30s", Fails: 1, NoData: "wait"},
			"restarts": {Reported: "restarts", Max: pointer(0.1), Every: "30s", Fails: 1, NoData: "wait"},
			"latency":  {HTTP: "http://127.0.0.1:9090/p99", Min: pointer(0.0), Max: pointer(0.25), Every: "1m", Fails: 3, NoData: "fail"},
		},
		MinReported: 0.95, MaxFailed: 1, MaxInFlight: "10%", Spread: "30s", Timeout: "2h", OnFailure: "rollback", Watch: "30m",
		ApproveBefore: []int{3}, Windows: []string{"* 9-17 * * 1-5"}, Independent: true,
	}
}

func fullStatement(changes ...change[manifest.Statement]) manifest.Statement {
	return statement(1043, append([]change[manifest.Statement]{func(st *manifest.Statement) {
		st.Variants = []manifest.Variant{
			{Host: "db-17", Bundle: object("db-17"), Content: digest("db-17"), Files: 4, Evidence: map[string]manifest.Grade{"checkout": manifest.GradeRestarted}, Content0: digest("db-17 0")},
			{Host: "web-2.example.com", Bundle: object("web-2"), Content: digest("web-2"), Files: 3, Evidence: map[string]manifest.Grade{"checkout": manifest.GradeReloaded}, Content0: digest("web-2 0")},
		}
		st.Ext = manifest.Ext{"later": json.RawMessage(`{"field":null}`)}
	}}, changes...)...)
}

func fullVariants() manifest.Variants {
	return manifest.Variants{V: 1, Variants: fullStatement().Variants, Ext: manifest.Ext{"later": json.RawMessage(`1`)}}
}

func fullKeyring() manifest.Keyring {
	k := baseKeyring()
	k.Ext = manifest.Ext{"later": json.RawMessage(`["x"]`)}
	return k
}

func fullRelease(t testing.TB) manifest.Release {
	return manifest.Release{
		V: 1, Store: storeID, Repo: repo, Epoch: 1043, Prev: digest("release 1042"), Kind: manifest.ReleaseCommit,
		Commit: strings.Repeat("a1", 20), Tree: strings.Repeat("b2", 20), Parents: []string{strings.Repeat("c3", 20), strings.Repeat("d4", 32)},
		Author:    manifest.Person{Name: "Ana Ünal", Email: "ana@example.com", At: issued.Add(-time.Hour)},
		Committer: manifest.Person{Name: "forge", Email: "noreply@example.com", At: issued.Add(-time.Minute)},
		Subject:   "checkout: shorter timeout <5s>", Signer: "SHA256:abc ana@example.com", PullRequest: 17, Proposer: "ana", Approvers: []string{"ben", "cem"},
		Evaluator: "muster 0.1 cue v0.17.1", Settings: digest("settings"), Source: object("source"), Created: issued,
		Policy: manifest.Policy{
			Muster: "0.1", Precedence: []string{"env", "region", "env+region", "cohort", "host"},
			Cohorts: map[string]manifest.CohortPolicy{
				cohort: {
					Description: "production, Europe", Labels: map[string]string{"env": "prod", "region": "eu"}, Services: []string{"checkout", "search"},
					Hosts:   manifest.HostsPolicy{List: []string{"web-1", "web-2"}, Match: map[string][]string{"datacenter": {"fra", "ams"}}, Expect: &manifest.Expect{Min: 1, Max: 120}},
					Rollout: "standard", Order: 100, Ephemeral: true, RetireAfter: "15m", RequireApprovals: 2, Owners: []string{"ana", "acme/payments"},
				},
				"staging":    {Labels: map[string]string{"env": "staging"}, Services: []string{"checkout"}, Hosts: manifest.HostsPolicy{Expect: &manifest.Expect{Min: 2, Max: 2}}, Rollout: "standard", Order: 10},
				"staging-us": {Labels: map[string]string{"env": "staging"}, Services: []string{"checkout"}, Hosts: manifest.HostsPolicy{List: []string{"s-1"}}, Rollout: "standard", Order: 10},
			},
			Inventory: &manifest.Inventory{File: "fleet/hosts.csv", HTTP: "http://127.0.0.1:8000/hosts"},
			Rollouts:  map[string]manifest.RolloutPolicy{"standard": fullPolicy()},
			Ext:       manifest.Ext{"later": json.RawMessage(`true`)},
		},
		Cohorts: map[string]manifest.ReleaseCohort{
			cohort: {
				State: manifest.StateBuilt, Epoch: 1043, Statement: pointer(seal(t, manifest.KindStatement, fullStatement(), releaseKey)),
				Overridden: []manifest.Envelope{seal(t, manifest.KindStatement, overridden(1043, "inc-311"), releaseKey)},
			},
			"staging":    {State: manifest.StateHolds, Epoch: 1040},
			"staging-us": {State: manifest.StateBlocked, Epoch: 1039, Reason: "timeout_ms: \"5s\" is not a number\n\tset at services/checkout/base.yaml:3:12"},
		},
		Ext: manifest.Ext{"later": json.RawMessage(`{}`)},
	}
}

func fullOverrideRelease(t testing.TB) manifest.Release {
	r := fullRelease(t)
	r.Epoch, r.Kind, r.Prev = 1044, manifest.ReleaseOverride, digest("release 1043")
	r.OverrideID, r.NotAfter = "inc-311", pointer(issued.Add(2*time.Hour))
	r.Cohorts = map[string]manifest.ReleaseCohort{
		cohort:    {State: manifest.StateHolds, Epoch: 1043, Overridden: []manifest.Envelope{seal(t, manifest.KindStatement, overridden(1044, "inc-311"), operatorKey)}},
		"staging": {State: manifest.StateHolds, Epoch: 1040},
	}
	return r
}

func fullOverride(t testing.TB) manifest.Override {
	return override(t, "inc-311", 1044, func(o *manifest.Override) {
		o.Over, o.Hosts, o.Ext = 1042, []string{"web-1", "web-2.example.com"}, manifest.Ext{"later": json.RawMessage(`"x"`)}
	})
}

func fullManifest(t testing.TB) manifest.Manifest {
	return order(t, 88, func(m *manifest.Manifest) {
		full := statement(1041, func(st *manifest.Statement) {
			st.VariantsObject = pointer(object("variants"))
		})
		m.Statements = []manifest.Envelope{
			seal(t, manifest.KindStatement, full, releaseKey), seal(t, manifest.KindStatement, statement(1042), releaseKey),
			seal(t, manifest.KindStatement, fullStatement(), releaseKey, strangerKey), seal(t, manifest.KindStatement, overridden(1043, "inc-311"), operatorKey),
		}
		m.Assign = []manifest.Assignment{
			{Hosts: []string{"web-4"}, Epoch: 1041, Why: "hold by ana: INC-300", Until: pointer(issued.Add(3 * time.Hour))},
			{Hosts: []string{"web-5", "web-6"}, Epoch: 1041, Why: "hold by ben: disk"},
			{Match: map[string]string{"canary": "true", "zone": "a"}, Epoch: 1043, Why: "wave 1 of 4 (label)"},
			{Below: "4ccccccccccccccc", Salt: "1043", Epoch: 1043, Why: "wave 3 of 4 (12.5%)"},
			{Epoch: 1042, Why: "baseline"},
		}
		stop := manifest.Stop{By: "ana", Why: "INC-300", Since: issued, Until: pointer(issued.Add(3 * time.Hour)), Epoch: 1041, Hosts: []string{"web-4"}, Halt: "prod-us@2026-11-30T11:59:00Z"}
		m.Rollout = manifest.Rollout{
			PolicyName: "standard", PolicyEpoch: 1042, Policy: fullPolicy(), Target: 1043, Baseline: 1042, Wave: 3, Phase: manifest.PhaseAwaitingApproval, Since: issued,
			Why: "wave 3 of 4 wants approval", By: "controller", Started: pointer(issued.Add(-time.Hour)), Fallback: 1041, Was: manifest.PhaseAwaitingApproval, Told: 13, Extended: 1, Skipped: []string{"latency"},
			Ignored: []string{"staging@2026-11-30T11:00:00Z"}, Verdicts: []manifest.GateVerdict{{
				Gate: "errors", Wave: 2, Outcome: manifest.OutcomePass, Why: "0.4% of 12,000 canary events are bad, 0.5% of 90,000 control events", From: issued.Add(-10 * time.Minute), To: issued,
				Samples: []manifest.GateSample{{At: issued.Add(-time.Minute), Canary: pointer(48.0), Control: pointer(450.0), OfCanary: pointer(12000.0), OfOthers: pointer(90000.0)}, {At: issued}},
			}},
			Approved: []int{3}, Pause: &stop, Halts: []manifest.Stop{stop}, Freezes: []manifest.Stop{stop}, Holds: []manifest.Stop{stop},
			Endings: []manifest.Ending{{Override: "inc-300", Below: "8000000000000000", Salt: "inc-300", Why: "ends at 2026-11-30T12:00:00Z", By: "ana"}},
			Trial:   true,
		}
		m.Ext = manifest.Ext{"later": json.RawMessage(`[null]`)}
	})
}

func fullHead(t testing.TB) manifest.Head {
	everywhere := override(t, "inc-310", 1039, func(o *manifest.Override) { o.Created, o.NotAfter = issued.Add(-2*time.Hour), issued.Add(20*time.Hour) })
	h := head(t, fullManifest(t), fullOverride(t), everywhere, func() manifest.Override {
		e := ended(t, "inc-310", 1039)
		e.NotAfter = everywhere.NotAfter
		return e
	}())
	h.Beat = 5
	return h
}

func fullCommits() []manifest.CommitIndex {
	return []manifest.CommitIndex{
		{V: 1, Commit: strings.Repeat("a1", 20), Epoch: 1043, At: issued},
		{V: 1, Commit: strings.Repeat("e5", 20), Reason: "no cohort can be built", At: issued},
	}
}

// TestVectorsAreFull walks the documents that the golden vectors are made of: a field that none of them sets is a field that nothing pins.
func TestVectorsAreFull(t *testing.T) {
	seen := map[string]bool{} // Type.Field → set in some document
	var walk func(v reflect.Value)
	walk = func(v reflect.Value) {
		switch v.Kind() {
		case reflect.Pointer:
			if !v.IsNil() {
				walk(v.Elem())
			}
		case reflect.Slice:
			for i := range v.Len() {
				walk(v.Index(i))
			}
		case reflect.Map:
			for it := v.MapRange(); it.Next(); {
				walk(it.Value())
			}
		case reflect.Struct:
			if v.Type() == reflect.TypeFor[time.Time]() {
				return
			}
			for i := range v.NumField() {
				name := v.Type().Name() + "." + v.Type().Field(i).Name
				seen[name] = seen[name] || !v.Field(i).IsZero()
				walk(v.Field(i))
			}
		}
	}
	for _, doc := range []any{
		fullKeyring(), fullStatement(), overridden(1043, "inc-311"), fullVariants(), fullRelease(t), fullOverrideRelease(t), fullManifest(t), fullOverride(t), ended(t, "inc-311", 1044), fullHead(t), fullCommits(),
		statement(1041, func(st *manifest.Statement) { st.VariantsObject = pointer(object("variants")) }), manifest.StoreID{V: 1, ID: storeID}, fullTrust(t),
	} {
		walk(reflect.ValueOf(doc))
	}
	for name, set := range seen {
		if !set {
			t.Errorf("no document sets %s", name)
		}
	}
	if len(seen) < 100 {
		t.Errorf("only %d fields were seen", len(seen))
	}
}

func fullTrust(t testing.TB) manifest.TrustState {
	s, _, err := newTrust(t).AcceptHead(cohort, encode(t, fullHead(t)), now)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestVerifyRelease(t *testing.T) {
	k := baseKeyring()
	verify := func(r manifest.Release, by ...*keys.Key) error {
		_, _, err := manifest.VerifyRelease(k, encode(t, seal(t, manifest.KindRelease, r, by...)))
		return err
	}
	good := seal(t, manifest.KindRelease, fullRelease(t), releaseKey)
	r, digest, err := manifest.VerifyRelease(k, encode(t, good))
	if err != nil || digest != good.Digest() || r.Epoch != 1043 {
		t.Fatalf("%+v, %s, %v", r, digest, err)
	}
	if err := verify(fullOverrideRelease(t), operatorKey); err != nil {
		t.Fatal(err)
	}
	with := func(change func(r *manifest.Release, c *manifest.ReleaseCohort)) manifest.Release {
		r := fullRelease(t)
		c := r.Cohorts[cohort]
		change(&r, &c)
		r.Cohorts[cohort] = c
		return r
	}
	overriding := func(change func(r *manifest.Release, c *manifest.ReleaseCohort)) manifest.Release {
		r := fullOverrideRelease(t)
		c := r.Cohorts[cohort]
		change(&r, &c)
		r.Cohorts[cohort] = c
		return r
	}
	stated := func(change change[manifest.Statement], by ...*keys.Key) manifest.Release {
		return with(func(_ *manifest.Release, c *manifest.ReleaseCohort) {
			c.Statement = pointer(seal(t, manifest.KindStatement, fullStatement(change), by...))
		})
	}
	nothing := func(*manifest.Statement) {}
	for name, c := range map[string]struct {
		err  error
		want error
		text string
	}{
		"rollout key":                           {verify(fullRelease(t), rolloutKey), manifest.ErrSignature, ""},
		"operator key on a commit":              {verify(fullRelease(t), operatorKey), manifest.ErrSignature, "kind commit"},
		"retired key":                           {verify(fullRelease(t), oldReleaseKey), manifest.ErrSignature, "not of this epoch"},
		"release key on an override":            {verify(fullOverrideRelease(t), releaseKey), manifest.ErrSignature, "kind override"},
		"release key on an override of nothing": {verify(overriding(func(_ *manifest.Release, c *manifest.ReleaseCohort) { c.Overridden = nil }), releaseKey), manifest.ErrSignature, "kind override"},
		"operator out of its cohorts":           {verify(fullOverrideRelease(t), narrowKey), manifest.ErrSignature, "may not act on cohort prod-eu"},
		"override for too long":                 {verify(overriding(func(r *manifest.Release, _ *manifest.ReleaseCohort) { r.NotAfter = pointer(issued.Add(25 * time.Hour)) }), operatorKey), manifest.ErrSignature, "at most"},
		"override that builds": {verify(overriding(func(_ *manifest.Release, c *manifest.ReleaseCohort) {
			c.State, c.Epoch, c.Statement = manifest.StateBuilt, 1044, pointer(seal(t, manifest.KindStatement, statement(1044), releaseKey))
		}), operatorKey), manifest.ErrMalformed, "holds every plain statement"},
		"override without id":         {verify(overriding(func(r *manifest.Release, _ *manifest.ReleaseCohort) { r.OverrideID = "" }), operatorKey), manifest.ErrMalformed, "override_id"},
		"another repo":                {verify(with(func(r *manifest.Release, _ *manifest.ReleaseCohort) { r.Repo = "evil/config" }), releaseKey), manifest.ErrForeign, "evil/config"},
		"statement by nobody":         {verify(stated(nothing, strangerKey), releaseKey), manifest.ErrSignature, "statement"},
		"statement by an operator":    {verify(stated(nothing, operatorKey), releaseKey), manifest.ErrSignature, "may not sign this one"},
		"statement by a retired key":  {verify(stated(nothing, oldReleaseKey), releaseKey), manifest.ErrSignature, "may not sign this one"},
		"statement of another cohort": {verify(stated(func(st *manifest.Statement) { st.Cohort = "staging" }, releaseKey), releaseKey), manifest.ErrForeign, "cohort staging"},
		"statement of another epoch":  {verify(stated(func(st *manifest.Statement) { st.Epoch = 1042 }, releaseKey), releaseKey), manifest.ErrMalformed, "another epoch"},
		"statement of another commit": {verify(stated(func(st *manifest.Statement) { st.Commit = strings.Repeat("0", 40) }, releaseKey), releaseKey), manifest.ErrMalformed, "another epoch or commit"},
		"overridden one as plain":     {verify(stated(func(st *manifest.Statement) { st.Override = "inc-311" }, releaseKey), releaseKey), manifest.ErrMalformed, "inc-311"},
		"plain one as overridden": {verify(with(func(_ *manifest.Release, c *manifest.ReleaseCohort) { c.Overridden = []manifest.Envelope{*c.Statement} }), releaseKey),
			manifest.ErrMalformed, "names no override"},
		"one override twice": {verify(with(func(_ *manifest.Release, c *manifest.ReleaseCohort) {
			c.Overridden = append(c.Overridden, c.Overridden[0])
		}), releaseKey),
			manifest.ErrMalformed, "that another names"},
		"built without statement": {verify(with(func(_ *manifest.Release, c *manifest.ReleaseCohort) { c.Statement = nil }), releaseKey), manifest.ErrMalformed, "built"},
		"built as another epoch":  {verify(with(func(_ *manifest.Release, c *manifest.ReleaseCohort) { c.Epoch = 1042 }), releaseKey), manifest.ErrMalformed, "built"},
		"holds with a statement":  {verify(with(func(_ *manifest.Release, c *manifest.ReleaseCohort) { c.State = manifest.StateHolds }), releaseKey), manifest.ErrMalformed, "holds"},
		"holds itself":            {verify(with(func(_ *manifest.Release, c *manifest.ReleaseCohort) { c.State, c.Statement = manifest.StateHolds, nil }), releaseKey), manifest.ErrMalformed, "holds"},
		"blocked without reason": {verify(with(func(_ *manifest.Release, c *manifest.ReleaseCohort) {
			*c = manifest.ReleaseCohort{State: manifest.StateBlocked}
		}), releaseKey), manifest.ErrMalformed, "blocked"},
		"unknown state":           {verify(with(func(_ *manifest.Release, c *manifest.ReleaseCohort) { c.State = "odd" }), releaseKey), manifest.ErrMalformed, "state"},
		"commit with an override": {verify(with(func(r *manifest.Release, _ *manifest.ReleaseCohort) { r.OverrideID = "x" }), releaseKey), manifest.ErrMalformed, "override_id"},
		"rollout nobody defined":  {verify(with(func(r *manifest.Release, _ *manifest.ReleaseCohort) { r.Policy.Rollouts = nil }), releaseKey), manifest.ErrMalformed, "is not defined"},
		"commit id in capitals":   {verify(with(func(r *manifest.Release, _ *manifest.ReleaseCohort) { r.Commit = strings.ToUpper(r.Commit) }), releaseKey), manifest.ErrMalformed, "commit"},
		"parent id":               {verify(with(func(r *manifest.Release, _ *manifest.ReleaseCohort) { r.Parents[0] = "HEAD" }), releaseKey), manifest.ErrMalformed, "parents"},
		"source without bytes":    {verify(with(func(r *manifest.Release, _ *manifest.ReleaseCohort) { r.Source.Size = 0 }), releaseKey), manifest.ErrMalformed, "source"},
		"screen-writing author":   {verify(with(func(r *manifest.Release, _ *manifest.ReleaseCohort) { r.Author.Name = "a\x1b]0;x\a" }), releaseKey), manifest.ErrMalformed, "author.name"},
		"oversized": {func() error {
			_, _, err := manifest.VerifyRelease(k, make([]byte, manifest.MaxReleaseBytes+1))
			return err
		}(), manifest.ErrMalformed, "larger"},
	} {
		if !errors.Is(c.err, c.want) || !strings.Contains(fmt.Sprint(c.err), c.text) {
			t.Errorf("%s: %v, want %q, %q", name, c.err, c.want, c.text)
		}
	}
	if _, err := manifest.VerifyStatement(k, nil); !errors.Is(err, manifest.ErrSignature) {
		t.Errorf("no statement: %v", err)
	}
}

// TestNoPrecedence: a fleet without overlays has none, which is the default.
func TestNoPrecedence(t *testing.T) {
	r := fullRelease(t)
	r.Policy.Precedence = []string{}
	if err := r.Policy.Validate(); err != nil {
		t.Error(err)
	}
	r.Policy.Precedence = slices.Repeat([]string{"env"}, 101)
	if err := r.Policy.Validate(); err == nil {
		t.Error("101 labels are taken")
	}
}
