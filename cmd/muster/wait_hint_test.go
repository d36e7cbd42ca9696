package main

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/muster-config/muster/cmd/internal/cli"
	"github.com/muster-config/muster/distributor/api"
	"github.com/muster-config/muster/distributor/verdict"
)

// What a person set is ended by the command that ends it, or by itself: nothing has to be published for that.
func TestWaitHint(t *testing.T) {
	host := func(name string, code verdict.Code, why string) verdict.Waiting {
		return verdict.Waiting{Host: name, Verdict: code, Why: why}
	}
	for _, tt := range []struct {
		name   string
		never  bool
		hosts  []verdict.Waiting
		active []api.Active
		want   string
		not    string
	}{
		{"held", true, []verdict.Waiting{host("a", verdict.Held, "held at epoch 5"), host("b", verdict.Held, "held at epoch 5")}, nil, "`muster unhold prod a b --reason …`", "publish"},
		{"held on the host", true, []verdict.Waiting{host("a", verdict.Held, verdict.HeldOnHost+" by ana")}, nil, "`muster-agent unhold` on the host", "publish"},
		{"frozen", false, []verdict.Waiting{host("a", verdict.Confirmed, "is assigned epoch 5")}, []api.Active{{Kind: api.ActiveFreeze}}, "`muster unfreeze prod --reason …`", "publish"},
		{"overridden", false, []verdict.Waiting{host("a", verdict.Overridden, "override inc-2")}, []api.Active{{Kind: api.ActiveOverride, ID: "inc-2"}}, "`muster override end inc-2 --reason …`", "publish"},
		{"an override elsewhere", false, []verdict.Waiting{host("a", verdict.Applying, "swapping")}, []api.Active{{Kind: api.ActiveOverride, ID: "inc-2"}}, "run the command again", "override"},
		{"halted and frozen", true, nil, []api.Active{{Kind: api.ActiveHalt}, {Kind: api.ActiveFreeze}}, "change what stops it, then publish", "unfreeze"},
		{"slow", false, []verdict.Waiting{host("a", verdict.Applying, "swapping")}, nil, "run the command again", "publish"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := waiter{active: map[string][]api.Active{"prod": tt.active}}
			got := w.hint(&api.Wait{Never: tt.never, Waiting: tt.hosts, Cohorts: map[string]verdict.Green{"prod": {Never: tt.never, Waiting: tt.hosts}}})
			if !strings.Contains(got, tt.want) || strings.Contains(got, tt.not) {
				t.Errorf("%s\nwant %q and not %q in it", got, tt.want, tt.not)
			}
		})
	}
}

// A halt that the first line tells of is not told again in full.
func TestWaitSaysAHaltOnce(t *testing.T) {
	const line = "halted by ana since 2026-11-30T12:00:00Z: rolled back to epoch 6: INC-1; git revert and publish what failed, or `muster rollout resume prod --reason …`"
	var out strings.Builder
	w := waiter{epoch: 7, timeout: time.Minute, out: &out, progress: plain(&out), said: []string{"prod: " + line}}
	why := "cohort prod is " + line + "; `muster rollout status prod` says more"
	err := w.verdict(&api.Wait{Epoch: 7, Never: true, Confirmed: 4, Why: "prod: " + why, Cohorts: map[string]verdict.Green{"prod": {Never: true, Confirmed: 4, Why: why, Rollout: line}}})
	if cli.CodeOf(err) != cli.No || !strings.HasSuffix(err.Error(), "0 waiting: cohort prod is halted by ana since 2026-11-30T12:00:00Z") {
		t.Errorf("%v", err)
	}
	if strings.Contains(out.String(), "INC-1") {
		t.Errorf("told again:\n%s", out.String())
	}
	w.said = nil
	if err := w.verdict(&api.Wait{Epoch: 7, Never: true, Cohorts: map[string]verdict.Green{"prod": {Never: true, Why: why}}}); errors.Is(err, nil) || strings.Count(out.String(), "INC-1") != 1 {
		t.Errorf("%v\n%s", err, out.String())
	}
}
