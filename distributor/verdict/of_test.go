package verdict_test

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/report"
	"github.com/muster-config/muster/distributor/verdict"
	"github.com/muster-config/muster/distributor/wire"
)

var now = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

// statement is the payload digest of an epoch's plain statement.
func statement(epoch uint64) string { return fmt.Sprintf("sha256:%064x", epoch+1000) }

func content(epoch uint64) string { return fmt.Sprintf("sha256:%064x", epoch) }

// view assigns epoch to everybody and knows epochs 5, 6 and 7; checkout requires process, search disk.
func view(epoch uint64) *manifest.View {
	v := &manifest.View{}
	v.Manifest = manifest.Manifest{Era: 1, Serial: 20, Cohort: "prod-eu", Issued: now.Add(-time.Hour), FreshUntil: now.Add(23 * time.Hour),
		Rollout: manifest.Rollout{Target: epoch, Baseline: epoch, Phase: manifest.PhaseDone}, Assign: []manifest.Assignment{{Epoch: epoch, Why: "baseline"}}}
	for e := uint64(5); e <= 7; e++ {
		v.Statements = append(v.Statements, manifest.VerifiedStatement{Digest: statement(e), Statement: manifest.Statement{Epoch: e, Content: content(e),
			Evidence: map[string]manifest.Grade{"checkout": manifest.GradeProcess, "search": manifest.GradeDisk}}})
	}
	return v
}

// confirmed is a host that runs what view(7) assigns.
func confirmed() verdict.Input {
	return verdict.Input{
		Host: "web-1", Cohort: "prod-eu", Expected: true, Accepted: true, View: view(7), ViewAge: time.Second, Poll: 10 * time.Second,
		Received: now.Add(-30 * time.Second), Released: now.Add(-time.Minute), Now: now,
		Report: &report.Report{V: 1, Repo: "acme/config", Cohort: "prod-eu", Host: "web-1", Boot: "b1", Counter: 3, Seen: "1-20-0", Desired: 7, Attempted: 7, Running: 7,
			Content: content(7), Mode: report.ModeEnforce, Phase: report.PhaseIdle, Grade: manifest.GradeDisk, Confirmed: true, Poll: 60,
			Services: map[string]report.Service{
				"checkout": {State: "confirmed", Epoch: 6, Expected: 6, Grade: manifest.GradeProcess},
				"search":   {State: "confirmed", Grade: manifest.GradeDisk},
			}},
	}
}

func behind(in *verdict.Input) {
	in.Report.Running, in.Report.Content, in.Report.Confirmed = 6, content(6), false
}

// cases are one for each code, in precedence; change makes a confirmed host one of them.
var cases = []struct {
	code   verdict.Code
	change func(*verdict.Input)
	why    string
}{
	{verdict.Unknown, func(in *verdict.Input) { in.ViewAge = 21 * time.Second }, "could not read the store for 21s"},
	{verdict.Retired, func(in *verdict.Input) { in.Retired, in.Expected = true, false }, "left the inventory of cohort prod-eu"},
	{verdict.Unexpected, func(in *verdict.Input) { in.Expected, in.ExpectedIn = false, "prod-us" }, "reports in cohort prod-eu, but the inventory has it in prod-us"},
	{verdict.Duplicate, func(in *verdict.Input) {
		in.Duplicate = true
		in.Speakers = []verdict.Speaker{{Boot: "b1", Running: 7, Received: now.Add(-time.Second)}, {Boot: "b2", Running: 5, Received: now.Add(-3 * time.Second)}}
	}, "2 agents speak as web-1 (boot b1 with epoch 7, heard 1s ago; boot b2 with epoch 5, heard 3s ago)"},
	{verdict.Missing, func(in *verdict.Input) { in.Report = nil }, "has never reported"},
	{verdict.Silent, func(in *verdict.Input) { in.Received = now.Add(-181 * time.Second) }, "last heard 3m1s ago, though it promised a report every 1m0s"},
	{verdict.Failed, func(in *verdict.Input) {
		in.Report.Phase, in.Report.Reason = report.PhaseFailed, "checkout: reload: exit status 1"
		behind(in)
	}, "epoch 7 failed here, the host went back to epoch 6 and is still ill: checkout: reload: exit status 1"},
	{verdict.RolledBack, func(in *verdict.Input) {
		in.Report.Phase, in.Report.Reason, in.Report.Tries = report.PhaseRolledBack, "checkout: process still states epoch 6", 2
		behind(in)
	}, "epoch 7 failed here and the host went back to epoch 6 after 2 tries: checkout: process still states epoch 6"},
	{verdict.Refused, func(in *verdict.Input) {
		in.Report.Phase, in.Report.Code, in.Report.Reason = report.PhaseRefused, "digest mismatch", "bundle has other bytes"
		behind(in)
	}, "refused epoch 7 (digest mismatch) and keeps epoch 6: bundle has other bytes"},
	{verdict.Drifted, func(in *verdict.Input) {
		in.Report.Drift, in.Report.Drifted, in.Report.Confirmed = []string{"a/x", "a/y", "b/z", "b/q"}, 60, false
	}, "60 files were changed by hand on the host: a/x; a/y; b/z and 57 more"},
	{verdict.Held, func(in *verdict.Input) {
		in.View.Manifest.Assign = append([]manifest.Assignment{{Hosts: []string{"web-1"}, Epoch: 5, Why: "hold by ana: INC-311", Until: ptr(now.Add(time.Hour))}}, in.View.Manifest.Assign...)
	}, "held at epoch 5 until 2026-11-30T13:00:00Z (hold by ana: INC-311) and does not confirm it yet"},
	{verdict.Overridden, func(in *verdict.Input) {
		first := in.View.Statements[2]
		first.Override, first.Content = "inc-311", content(99)
		in.View.Overrides = []manifest.VerifiedOverride{{Override: manifest.Override{ID: "inc-311", Author: "ana", Reason: "INC-311", NotAfter: now.Add(time.Hour), Epoch: 7}, First: &first}}
	}, "override inc-311 by ana: INC-311 until 2026-11-30T13:00:00Z; the host does not confirm it yet"},
	{verdict.Lagging, func(in *verdict.Input) {
		behind(in)
		in.Released = now.Add(-5*time.Minute - time.Second)
		in.Report.Phase = report.PhaseConfirming
	}, "epoch 7 was assigned 5m1s ago; is to run epoch 7, runs epoch 6"},
	{verdict.Applying, func(in *verdict.Input) {
		in.Report.Confirmed, in.Report.Phase = false, report.PhaseConfirming
		in.Report.Services["checkout"] = report.Service{State: "waiting", Epoch: 6, Expected: 7, Reason: "process still states epoch 6"}
	}, "epoch 7 is installed, not confirmed: checkout: process still states epoch 6"},
	{verdict.Stale, func(in *verdict.Input) { in.View.Manifest.FreshUntil = now.Add(-time.Hour) }, "order 1-20-0 should have been renewed by 2026-11-30T11:00:00Z, 1h0m0s ago: the host keeps what it runs"},
	{verdict.NotRunning, func(in *verdict.Input) {
		in.Report.Confirmed = false
		in.Report.Services["checkout"] = report.Service{State: "not running", Expected: 6}
	}, "epoch 7 is installed, but checkout: not running"},
	{verdict.Observing, func(in *verdict.Input) {
		in.Report.Mode = report.ModeObserve
	}, "observes only and would change nothing"},
	{verdict.Confirmed, func(*verdict.Input) {}, "runs epoch 7, known by disk"},
}

func ptr[T any](v T) *T { return &v }

func TestEachVerdict(t *testing.T) {
	for _, tt := range cases {
		t.Run(string(tt.code), func(t *testing.T) {
			in := confirmed()
			tt.change(&in)
			got := verdict.Of(in)
			if got.Code != tt.code || !strings.Contains(got.Why, tt.why) {
				t.Fatalf("got %q: %q\nwant %q: %q", got.Code, got.Why, tt.code, tt.why)
			}
			if in.Report != nil && tt.code != verdict.Held && got.Desired != 7 {
				t.Errorf("desired %d", got.Desired)
			}
		})
	}
}

// Whatever else is true of a host, the code that comes first in the precedence is the verdict.
func TestPrecedence(t *testing.T) {
	exclusive := map[[2]verdict.Code]bool{
		// One that only observes is not on its way anywhere.
		{verdict.Lagging, verdict.Observing}: true, {verdict.Applying, verdict.Observing}: true,
	}
	for i, first := range cases {
		for _, second := range cases[i+1:] {
			if exclusive[[2]verdict.Code{first.code, second.code}] {
				continue
			}
			in := confirmed()
			second.change(&in)
			if in.Report == nil && first.code != verdict.Unknown && first.code != verdict.Retired && first.code != verdict.Unexpected && first.code != verdict.Duplicate {
				t.Fatalf("%s before %s", second.code, first.code)
			}
			first.change(&in)
			if got := verdict.Of(in); got.Code != first.code {
				t.Errorf("%s and %s: got %s: %s", first.code, second.code, got.Code, got.Why)
			}
		}
	}
}

func TestOfDetails(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*verdict.Input)
		code   verdict.Code
		why    string
	}{
		"view is two polls old: still good":  {func(in *verdict.Input) { in.ViewAge = 20 * time.Second }, verdict.Confirmed, ""},
		"host has seen a newer serial":       {func(in *verdict.Input) { in.Report.Seen = "1-21-0" }, verdict.Unknown, "has seen order 1-21-0"},
		"host has seen a newer beat":         {func(in *verdict.Input) { in.Report.Seen = "1-20-1" }, verdict.Unknown, "has seen order 1-20-1"},
		"host has seen an older order":       {func(in *verdict.Input) { in.Report.Seen = "1-3-0" }, verdict.Confirmed, ""},
		"no head at all":                     {func(in *verdict.Input) { in.View, in.Report.Seen = nil, "" }, verdict.Unknown, "has no head in the store yet"},
		"no head, never seen":                {func(in *verdict.Input) { in.View, in.Report = nil, nil }, verdict.Missing, ""},
		"unexpected everywhere":              {func(in *verdict.Input) { in.Expected = false }, verdict.Unexpected, "whose inventory does not have it"},
		"another key":                        {func(in *verdict.Input) { in.Accepted = false }, verdict.Duplicate, "another identity key speaks as web-1"},
		"three promised reports, not missed": {func(in *verdict.Input) { in.Received = now.Add(-180 * time.Second) }, verdict.Confirmed, ""},
		"it promised less often":             {func(in *verdict.Input) { in.Received, in.Report.Poll = now.Add(-time.Hour), 3600 }, verdict.Confirmed, ""},
		"said that it leaves":                {func(in *verdict.Input) { in.Received, in.Report.Phase = now.Add(-time.Hour), report.PhaseLeaving }, verdict.Silent, "said that it stops"},
		"said so just now":                   {func(in *verdict.Input) { in.Received, in.Report.Phase = now.Add(-time.Second), report.PhaseLeaving }, verdict.Silent, "its agent said that it stops, 1s ago"},
		"held without an end": {func(in *verdict.Input) {
			in.View.Manifest.Assign = append([]manifest.Assignment{{Hosts: []string{"web-1"}, Epoch: 5}}, in.View.Manifest.Assign...)
		}, verdict.Held, "`muster unhold prod-eu web-1 --reason …` ends it"},
		"held until": {func(in *verdict.Input) {
			in.View.Manifest.Assign = append([]manifest.Assignment{{Hosts: []string{"web-1"}, Epoch: 5, Until: ptr(now.Add(time.Hour))}}, in.View.Manifest.Assign...)
		}, verdict.Held, "until 2026-11-30T13:00:00Z and does not confirm it yet: it ends by itself then"},
		"installed anew": {func(in *verdict.Input) { in.Accepted = false }, verdict.Duplicate, "if the host was installed anew, `muster hosts accept web-1` makes the new key count"},
		"held by hand, on an older one": {func(in *verdict.Input) {
			behind(in)
			in.Report.Held = &report.Hold{By: "ana", Why: "INC-311", Since: now, Until: now.Add(time.Hour)}
		}, verdict.Held, "held on the host by ana until 2026-11-30T13:00:00Z (INC-311): it keeps epoch 6, and is to run epoch 7: it ends by itself then, or with `muster-agent unhold` there"},
		"held by hand, on what is assigned": {func(in *verdict.Input) {
			in.Report.Held = &report.Hold{By: "ana", Why: "INC-311", Since: now, Until: now.Add(time.Hour)}
		}, verdict.Held, "it keeps epoch 7, which is what it is to run"},
		"held by hand, with an override of its own": {func(in *verdict.Input) {
			in.Report.Running, in.Report.Override = 4503599627370496, "inc-311"
			in.Report.Held = &report.Hold{By: "ana", Why: "INC-311", Since: now, Until: now.Add(time.Hour)}
		}, verdict.Held, "it keeps epoch 4503599627370496 with override inc-311, and is to run epoch 7"},
		"held by hand, and changed": {func(in *verdict.Input) {
			in.Report.Drift, in.Report.Drifted = []string{"checkout/x"}, 1
			in.Report.Held = &report.Hold{By: "ana", Why: "INC-311", Since: now, Until: now.Add(time.Hour)}
		}, verdict.Drifted, "the host is held by ana until 2026-11-30T13:00:00Z (INC-311), and the agent restores what is released when that is over"},
		"order runs out":                {func(in *verdict.Input) { in.View.Manifest.FreshUntil = now.Add(-time.Hour) }, verdict.Stale, "renew it with `muster rollout refresh prod-eu`"},
		"the collector was away":        {func(in *verdict.Input) { in.Received, in.SilentFrom = now.Add(-time.Hour), now.Add(-time.Minute) }, verdict.Unknown, "was not listening"},
		"the collector is long back":    {func(in *verdict.Input) { in.Received, in.SilentFrom = now.Add(-time.Hour), now.Add(-4*time.Minute) }, verdict.Silent, "1h0m0s ago"},
		"epoch right, content not":      {func(in *verdict.Input) { in.Report.Content = content(6) }, verdict.Applying, "something else"},
		"host says it is not confirmed": {func(in *verdict.Input) { in.Report.Confirmed = false }, verdict.Applying, "installed, not confirmed"},
		"a service was not reported":    {func(in *verdict.Input) { delete(in.Report.Services, "checkout") }, verdict.Applying, "checkout: not reported"},
		"grade too low": {func(in *verdict.Input) {
			in.Report.Services["checkout"] = report.Service{State: "confirmed", Grade: manifest.GradeReloaded}
		}, verdict.Applying, `checkout: is known to run it only by "reloaded", and "process" is required`},
		"state without a reason": {func(in *verdict.Input) {
			in.Report.Services["checkout"] = report.Service{State: "waiting", Epoch: 6, Expected: 7}
		}, verdict.Applying, "checkout: process still states epoch 6"},
		"an instance": {func(in *verdict.Input) {
			in.Report.Services["checkout"] = report.Service{State: "waiting", Instances: map[string]report.ServiceInstance{"b": {Reason: "no answer"}, "a": {}}}
		}, verdict.Applying, "checkout: b: no answer"},
		"stopped service and one that waits": {func(in *verdict.Input) {
			in.Report.Services = map[string]report.Service{"checkout": {State: "waiting", Reason: "no answer"}, "search": {State: "not running"}}
		}, verdict.Applying, "checkout: no answer; search: not running"},
		"runs an override that is over":  {func(in *verdict.Input) { in.Report.Override = "inc-1" }, verdict.Applying, ""},
		"does not know the new order":    {func(in *verdict.Input) { behind(in); in.Report.Desired, in.Report.Attempted = 6, 6 }, verdict.Applying, "has not said yet that it knows"},
		"fetching":                       {func(in *verdict.Input) { behind(in); in.Report.Phase = report.PhaseFetching }, verdict.Applying, "is fetching epoch 7, runs epoch 6"},
		"no first assignment is known":   {func(in *verdict.Input) { behind(in); in.Released = time.Time{} }, verdict.Applying, ""},
		"B131 the host's view is frozen": {func(in *verdict.Input) { in.Report.Stale, in.Report.Seen = true, "1-9-0" }, verdict.Stale, "sees only an expired order (1-9-0; the newest is 1-20-0)"},
		"B131 a clock a day ahead":       {func(in *verdict.Input) { in.Report.Stale, in.Skew = true, 24*time.Hour }, verdict.Stale, "its clock is wrong (24h0m0s ahead)"},
		"observing":                      {func(in *verdict.Input) { in.Report.Mode = report.ModeObserve; behind(in) }, verdict.Observing, "would go from epoch 6 to 7"},
		"odd text": {func(in *verdict.Input) {
			in.Report.Phase, in.Report.Reason = report.PhaseRefused, "a\n\x1b[31mb\u202ec\x00"+strings.Repeat("€", 400)
		}, verdict.Refused, "a [31mb?c €"},
		"variants cannot be read": {func(in *verdict.Input) { in.View.Statements[2].VariantsObject = &manifest.Object{} }, verdict.Unknown, "host variants"},
		"its own variant": {func(in *verdict.Input) {
			in.View.Statements[2].Variants = []manifest.Variant{{Host: "web-1", Content: content(70)}}
		}, verdict.Applying, "something else"},
	} {
		t.Run(name, func(t *testing.T) {
			in := confirmed()
			tt.change(&in)
			got := verdict.Of(in)
			if got.Code != tt.code || !strings.Contains(got.Why, tt.why) {
				t.Fatalf("got %q: %q\nwant %q: %q", got.Code, got.Why, tt.code, tt.why)
			}
			if strings.ContainsFunc(got.Why, unicode.IsControl) || len(got.Why) > 600 {
				t.Errorf("not one line of text: %q", got.Why)
			}
		})
	}
}

// A host with as many services as a report may hold can be confirmed: its report fits, with every service by name.
func TestManyServices(t *testing.T) {
	in := confirmed()
	healthy, evidence := true, map[string]manifest.Grade{}
	in.Report.Store, in.Report.Key, in.Report.Agent, in.Report.Reads, in.Report.At = strings.Repeat("0a", 16), bytes.Repeat([]byte{7}, 32), "0.1.0", 1, now
	in.Report.Services, in.Report.Probes = map[string]report.Service{}, map[string]report.Probe{}
	for i := range report.MaxServices {
		name := fmt.Sprintf("service-with-quite-a-long-name-%04d", i)
		evidence[name] = manifest.GradeProcess
		in.Report.Services[name] = report.Service{State: "confirmed", Epoch: 1 << 40, Expected: 1 << 40, Grade: manifest.GradeProcess, Healthy: &healthy, AgeS: 12.345678}
		in.Report.Probes[name] = report.Probe{Count: 12345, Failures: 1234, P50MS: 12.345678, MaxMS: 1234.5678}
	}
	in.View.Statements[2].Evidence = evidence
	data, err := wire.Encode(in.Report)
	if err != nil {
		t.Fatal(err)
	}
	if in.Report, err = report.Decode(data); err != nil {
		t.Fatal(err)
	}
	if v := verdict.Of(in); v.Code != verdict.Confirmed {
		t.Errorf("%s: %s", v.Code, v.Why)
	}
	delete(in.Report.Services, "service-with-quite-a-long-name-1234")
	if v := verdict.Of(in); v.Code != verdict.Applying || !strings.Contains(v.Why, "service-with-quite-a-long-name-1234: not reported") {
		t.Errorf("one is left out: %s: %s", v.Code, v.Why)
	}
}

// No sentence sends anybody to a command that this version does not have.
func TestCommandsExist(t *testing.T) {
	exists := []string{"muster publish --rollout=now", "muster rollout refresh prod-eu", "muster rollout resume prod-eu --reason …", "muster rollout status prod-eu", "systemctl status muster-agent", "cohort", "sources", "mode: enforce", "muster hosts accept web-1", "muster hosts unretire web-1", "muster unhold prod-eu web-1 --reason …"}
	check := func(text string) {
		t.Helper()
		for i, part := range strings.Split(text, "`") {
			if i%2 == 1 && !slices.Contains(exists, part) {
				t.Errorf("%q names `%s`", text, part)
			}
		}
	}
	for _, tt := range cases {
		in := confirmed()
		tt.change(&in)
		check(verdict.Of(in).Why)
	}
	for _, change := range []func(*manifest.Rollout){
		func(r *manifest.Rollout) { r.Halts = []manifest.Stop{{By: "ana", Since: now}} },
		func(r *manifest.Rollout) { r.Phase = manifest.PhaseHalted },
		func(r *manifest.Rollout) { r.Phase = manifest.PhaseRollingBack },
	} {
		in := green(host("a", nil))
		change(&in.View.Manifest.Rollout)
		check(verdict.IsGreen(in).Why)
	}
	other := confirmed()
	other.Accepted = false
	check(verdict.Of(other).Why)
	none := green(host("a", nil))
	none.View = nil
	check(verdict.IsGreen(none).Why)
}

// However many agents speak as one host, the sentence names those that spoke last.
func TestDuplicateNamesAFew(t *testing.T) {
	in := confirmed()
	in.Duplicate = true
	for i := range 8 {
		in.Speakers = append(in.Speakers, verdict.Speaker{Boot: fmt.Sprintf("b%d", i), Running: 7, Received: now.Add(-time.Duration(8-i) * time.Second)})
	}
	const want = "8 agents speak as web-1 (boot b7 with epoch 7, heard 1s ago; boot b6 with epoch 7, heard 2s ago; boot b5 with epoch 7, heard 3s ago; and 5 more)"
	if got := verdict.Of(in); got.Code != verdict.Duplicate || !strings.Contains(got.Why, want) {
		t.Errorf("%s: %s", got.Code, got.Why)
	}
}

// A host that waits for its turn within a rollout's spread does not lag.
func TestSpreadIsNoLag(t *testing.T) {
	for _, tt := range []struct {
		change func(*manifest.Rollout)
		after  time.Duration
		want   verdict.Code
	}{
		{func(r *manifest.Rollout) { r.Baseline = 1 }, 14 * time.Minute, verdict.Applying},
		{func(r *manifest.Rollout) { r.Baseline = 1 }, 16 * time.Minute, verdict.Lagging},
		{func(*manifest.Rollout) {}, 6 * time.Minute, verdict.Lagging}, // done: nobody waits any more
		{func(r *manifest.Rollout) { r.Fallback = 1 }, 14 * time.Minute, verdict.Applying},
		{func(r *manifest.Rollout) { r.Baseline = 0 }, 6 * time.Minute, verdict.Lagging}, // the first release spreads nobody
	} {
		in := confirmed()
		behind(&in)
		in.View.Manifest.Rollout.Policy.Spread = "10m"
		tt.change(&in.View.Manifest.Rollout)
		in.Released = in.Now.Add(-tt.after)
		if got := verdict.Of(in); got.Code != tt.want {
			t.Errorf("%+v after %s: %s, want %s: %s", in.View.Manifest.Rollout, tt.after, got.Code, tt.want, got.Why)
		}
	}
}
