package verdict_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/report"
	"github.com/muster-config/muster/distributor/verdict"
)

func host(name string, change func(*verdict.Input)) verdict.HostInput {
	in := confirmed()
	in.Host, in.Report.Host = name, name
	if change != nil {
		change(&in)
	}
	return verdict.HostInput{Input: in, Verdict: verdict.Of(in)}
}

func released() map[uint64]string {
	return map[uint64]string{5: statement(5), 6: statement(6), 7: statement(7)}
}

func green(hosts ...verdict.HostInput) verdict.GreenInput {
	return verdict.GreenInput{Statements: released(), Cohort: "prod-eu", Epoch: 7, Standing: 7, State: manifest.StateBuilt, View: view(7), Hosts: hosts, Published: now.Add(-2 * time.Minute), Now: now}
}

func TestIsGreen(t *testing.T) {
	long := func(in *verdict.Input) { // silent since 57 minutes ago
		behind(in)
		in.Received, in.Report.Desired, in.Report.Attempted = now.Add(-time.Hour), 6, 6
	}
	just := func(in *verdict.Input) { in.Received = now.Add(-4 * time.Minute) }
	for name, tt := range map[string]struct {
		in         func() verdict.GreenInput
		green      bool
		never      bool
		ok, owed   int
		waiting    string // hosts
		why        string
		waitingWhy string
	}{
		"all": {in: func() verdict.GreenInput { return green(host("a", nil), host("b", nil)) }, green: true, ok: 2, why: "2 confirmed"},
		"one waits": {in: func() verdict.GreenInput { return green(host("b", behind), host("a", nil)) }, ok: 1, waiting: "b",
			why: "1 confirmed, 1 of 2 hosts not: b applying: is to run epoch 7, runs epoch 6"},
		"silent since before: owed": {in: func() verdict.GreenInput { return green(host("a", nil), host("b", long)) }, green: true, ok: 1, owed: 1,
			why: "1 confirmed, 1 owed (silent since before the release was published)"},
		"strict counts it in": {in: func() verdict.GreenInput { in := green(host("a", nil), host("b", long)); in.Strict = true; return in }, ok: 1, waiting: "b"},
		"fell silent since":   {in: func() verdict.GreenInput { return green(host("a", nil), host("b", just)) }, ok: 1, waiting: "b"},
		"silenced by the release: it knew it": {in: func() verdict.GreenInput {
			return green(host("a", nil), host("b", func(in *verdict.Input) { long(in); in.Report.Attempted = 7 }))
		}, ok: 1, waiting: "b"},
		"stopped before: owed at once": {in: func() verdict.GreenInput {
			return green(host("a", nil), host("b", func(in *verdict.Input) {
				long(in)
				in.Report.Phase, in.Received = report.PhaseLeaving, now.Add(-2*time.Minute)
			}))
		}, green: true, ok: 1, owed: 1},
		"stopped since": {in: func() verdict.GreenInput {
			return green(host("a", nil), host("b", func(in *verdict.Input) {
				long(in)
				in.Report.Phase, in.Received = report.PhaseLeaving, now.Add(-2*time.Minute+time.Second)
			}))
		}, ok: 1, waiting: "b", why: "b silent: its agent said that it stops, 1m59s ago"},
		"chosen by match alone": {in: func() verdict.GreenInput {
			in := green(host("a", nil))
			in.Uncounted = "nobody counts the hosts of prod, which match chooses"
			return in
		}, never: true, ok: 1,
			why: "nobody counts the hosts of prod, which match chooses"},
		"an inventory cannot be read": {in: func() verdict.GreenInput {
			in := green(host("a", nil))
			in.Uncounted, in.Unlisted = "the inventory csv /x cannot be read", true
			return in
		}, ok: 1, why: "the inventory csv /x cannot be read"},
		"more than expected": {in: func() verdict.GreenInput { in := green(host("a", nil)); in.Over = 2; return in }, ok: 1,
			why: "cohort prod-eu has 2 hosts more than hosts.expect allows"},
		"nobody but owed": {in: func() verdict.GreenInput { return green(host("b", long)) }, owed: 1, why: "no host of the cohort is there to confirm it"},
		"missing": {in: func() verdict.GreenInput {
			return green(host("a", nil), host("b", func(in *verdict.Input) { in.Report = nil }))
		}, ok: 1, waiting: "b"},
		"zero hosts":       {in: func() verdict.GreenInput { return green() }, never: true, why: "has no hosts"},
		"unexpected alone": {in: func() verdict.GreenInput { return green(host("a", func(in *verdict.Input) { in.Expected = false })) }, never: true, why: "has no hosts"},
		"blocked": {in: func() verdict.GreenInput {
			in := green(host("a", nil))
			in.State, in.Reason = manifest.StateBlocked, "services/checkout/base.yaml:3:1: no such field"
			return in
		}, never: true, why: "is blocked in release 7: services/checkout/base.yaml:3:1"},
		"held": {in: func() verdict.GreenInput {
			return green(host("a", nil), host("b", func(in *verdict.Input) {
				in.View.Manifest.Assign = append([]manifest.Assignment{{Hosts: []string{"b"}, Epoch: 5, Why: "hold by ana: x"}}, in.View.Manifest.Assign...)
			}))
		}, never: true, ok: 1, waiting: "b", why: "host b is held: held at epoch 5"},
		"halted": {in: func() verdict.GreenInput {
			in := green(host("a", nil))
			in.View.Manifest.Rollout.Halts = []manifest.Stop{{By: "controller", Why: "2 hosts failed", Since: now, Epoch: 7}}
			return in
		}, never: true, ok: 1, why: "halted by controller since 2026-11-30T12:00:00Z: 2 hosts failed; git revert and publish what failed, or `muster rollout resume prod-eu --reason …`"},
		"halted for an older one, just published": {in: func() verdict.GreenInput {
			in := green(host("a", nil))
			in.View = view(6)
			in.View.Manifest.Rollout.Halts = []manifest.Stop{{By: "controller", Why: "2 hosts failed", Since: now, Epoch: 6}}
			in.Published = now.Add(-10 * time.Second)
			return in
		}, ok: 1, why: "1 confirmed, but epoch 7 is not assigned to it yet (cohort prod-eu: done, target 6, halted by controller: 2 hosts failed; a release that reverts what failed ends that)"},
		"halted for an older one, and published long ago": {in: func() verdict.GreenInput {
			in := green(host("a", nil))
			in.View = view(6)
			in.View.Manifest.Rollout.Halts = []manifest.Stop{{By: "controller", Why: "2 hosts failed", Since: now, Epoch: 6}}
			in.Published = now.Add(-time.Minute)
			return in
		}, ok: 1, never: true, why: "halted by controller"},
		"back at it after another failed": {in: func() verdict.GreenInput {
			in := green(host("a", nil))
			in.View.Manifest.Rollout.Phase, in.View.Manifest.Rollout.Target = manifest.PhaseHalted, 8
			in.View.Manifest.Rollout.Halts = []manifest.Stop{{By: "controller", Why: "2 hosts failed", Since: now, Epoch: 8}}
			return in
		}, green: true, ok: 1},
		"back at it after a later commit failed, which contains it": {in: func() verdict.GreenInput {
			in := green(host("a", nil))
			in.Accept = map[uint64]bool{8: true}
			in.View.Manifest.Rollout.Phase, in.View.Manifest.Rollout.Target = manifest.PhaseHalted, 8
			in.View.Manifest.Rollout.Halts = []manifest.Stop{{By: "controller", Why: "2 hosts failed", Since: now, Epoch: 8}}
			return in
		}, green: true, ok: 1},
		"halted at a later commit, where it stands": {in: func() verdict.GreenInput {
			in := green(host("a", nil))
			in.Accept = map[uint64]bool{8: true}
			in.View.Manifest.Rollout.Phase, in.View.Manifest.Rollout.Target = manifest.PhaseHalted, 8
			in.View.Manifest.Rollout.Halts = []manifest.Stop{{By: "controller", Why: "2 hosts failed", Since: now, Epoch: 8}}
			in.View.Manifest.Assign = append([]manifest.Assignment{{Match: map[string]string{"zone": "b"}, Epoch: 8}}, in.View.Manifest.Assign...)
			return in
		}, never: true, ok: 1, why: "halted by controller"},
		"some of it is not back yet": {in: func() verdict.GreenInput {
			in := green(host("a", nil))
			in.View.Manifest.Rollout.Phase, in.View.Manifest.Rollout.Target = manifest.PhaseHalted, 8
			in.View.Manifest.Rollout.Halts = []manifest.Stop{{By: "controller", Why: "2 hosts failed", Since: now, Epoch: 8}}
			in.View.Manifest.Assign = append([]manifest.Assignment{{Match: map[string]string{"zone": "b"}, Epoch: 8}}, in.View.Manifest.Assign...)
			return in
		}, never: true, ok: 1, why: "halted by controller"},
		"halted phase": {in: func() verdict.GreenInput {
			in := green(host("a", nil))
			in.View.Manifest.Rollout.Phase = manifest.PhaseHalted
			return in
		}, never: true, ok: 1, why: "is halted"},
		"rolling back": {in: func() verdict.GreenInput {
			in := green(host("a", nil))
			in.View.Manifest.Rollout.Phase = manifest.PhaseRollingBack
			return in
		}, never: true, ok: 1, why: "is rolling back to epoch 7"},
		"host went back": {in: func() verdict.GreenInput { return green(host("a", nil), host("b", cases[7].change)) }, never: true, ok: 1, waiting: "b", why: "host b rolled back: epoch 7 failed here"},
		"went back from another": {in: func() verdict.GreenInput {
			return green(host("a", nil), host("b", func(in *verdict.Input) { cases[7].change(in); in.Report.Attempted = 6 }))
		}, ok: 1, waiting: "b"},
		"no head": {in: func() verdict.GreenInput { in := green(host("a", nil)); in.View = nil; return in }, ok: 1, why: "nothing is assigned to cohort prod-eu yet"},
		"older is assigned": {in: func() verdict.GreenInput {
			in := green(host("a", func(in *verdict.Input) {
				in.View = view(6)
				behind(in)
				in.Report.Confirmed, in.Report.Desired = true, 6
			}))
			in.View = view(6)
			in.View.Manifest.Rollout.Pause = &manifest.Stop{By: "ana", Why: "lunch"}
			return in
		}, waiting: "a", waitingWhy: "epoch 7 is not assigned to it yet (cohort prod-eu: done, target 6, paused by ana: lunch; `muster rollout resume prod-eu --reason …` goes on)"},
		"holds: the earlier epoch": {in: func() verdict.GreenInput {
			in := green(host("a", nil))
			in.Epoch, in.State = 9, manifest.StateHolds
			return in
		}, green: true, ok: 1},
		"superseded by a later one": {in: func() verdict.GreenInput {
			in := green(host("a", nil))
			in.Epoch, in.Standing, in.Accept = 6, 6, map[uint64]bool{7: true}
			return in
		}, green: true, ok: 1},
		"rolled out something else": {in: func() verdict.GreenInput { in := green(host("a", nil)); in.Epoch, in.Standing = 6, 6; return in }, waiting: "a"},
		"expects more by number":    {in: func() verdict.GreenInput { in := green(host("a", nil)); in.Short = 2; return in }, ok: 1, why: "expects 2 hosts more that nobody has heard of"},
		"none of the number yet":    {in: func() verdict.GreenInput { in := green(); in.Short = 2; return in }, why: "expects 2 hosts more"},
		"another statement of the number": {in: func() verdict.GreenInput { in := green(host("a", nil)); in.Statements[7] = statement(70); return in }, never: true, ok: 1,
			why: "the head of cohort prod-eu carries another statement of epoch 7 than release 7; check the store with muster fsck"},
		"holds, another statement": {in: func() verdict.GreenInput {
			in := green(host("a", nil))
			in.Epoch, in.State, in.Statements[7] = 9, manifest.StateHolds, statement(70)
			return in
		}, never: true, ok: 1, why: "carries another statement of epoch 7 than release 7"},
		"another statement of the later one": {in: func() verdict.GreenInput {
			in := green(host("a", nil))
			in.Epoch, in.Standing, in.Accept, in.Statements[7] = 6, 6, map[uint64]bool{7: true}, statement(70)
			return in
		}, never: true, ok: 1, why: "carries another statement of epoch 7 than release 7"},
		"another statement of what does not count": {in: func() verdict.GreenInput { in := green(host("a", nil)); in.Statements[6] = statement(60); return in }, green: true, ok: 1},
		"an overridden statement is another one": {in: func() verdict.GreenInput {
			in := green(host("a", nil))
			in.View.Statements = append(in.View.Statements, manifest.VerifiedStatement{Digest: statement(70), Statement: manifest.Statement{Epoch: 7, Override: "inc-1"}})
			return in
		}, green: true, ok: 1},
		"its release cannot be read": {in: func() verdict.GreenInput { in := green(host("a", nil)); delete(in.Statements, 7); return in }, ok: 1,
			why: "release 7, whose statement the head of cohort prod-eu carries, cannot be read"},
		"its number was given out again": {in: func() verdict.GreenInput {
			in := green(host("a", nil))
			in.Replaced = map[uint64]bool{7: true}
			return in
		}, never: true, ok: 1,
			why: "the store holds another release 7 than it did before; check the store with muster fsck"},
		"holds what was given out again": {in: func() verdict.GreenInput {
			in := green(host("a", nil))
			in.Epoch, in.State, in.Replaced = 9, manifest.StateHolds, map[uint64]bool{7: true}
			return in
		}, never: true, ok: 1, why: "holds another release 7"},
		"another number was given out again": {in: func() verdict.GreenInput {
			in := green(host("a", nil))
			in.Replaced = map[uint64]bool{6: true}
			return in
		}, green: true, ok: 1},
		"blind collector": {in: func() verdict.GreenInput {
			return green(host("a", func(in *verdict.Input) { in.ViewAge = time.Minute }))
		}, waiting: "a", why: "unknown"},
	} {
		t.Run(name, func(t *testing.T) {
			in := tt.in()
			g := verdict.IsGreen(in)
			var waiting []string
			for _, w := range g.Waiting {
				waiting = append(waiting, w.Host)
				if !strings.Contains(w.Why, tt.waitingWhy) {
					t.Errorf("waiting: %s", w.Why)
				}
			}
			if g.Green != tt.green || g.Never != tt.never || g.Confirmed != tt.ok || g.Owed != tt.owed || len(g.OwedHosts) != tt.owed || strings.Join(waiting, " ") != tt.waiting || !strings.Contains(g.Why, tt.why) {
				t.Errorf("got %+v", g)
			}
			if g.Green && g.Never {
				t.Error("green and never")
			}
		})
	}
}

// runs is the oracle, written from the words of the rule: the host's fresh report confirms exactly what is assigned, at the required grade.
func runs(in verdict.Input, epoch uint64) bool {
	r := in.Report
	if r == nil || r.Phase == report.PhaseLeaving || in.Now.Sub(in.Received) > time.Duration(3*r.Poll*float64(time.Second)) {
		return false
	}
	return in.Accepted && !in.Duplicate && in.ViewAge <= 2*in.Poll && r.Running == epoch && r.Content == content(epoch) && r.Confirmed && len(r.Drift) == 0 && r.Override == "" &&
		r.Services["checkout"].Grade == manifest.GradeProcess && r.Services["search"].Grade != ""
}

// Green is never said while an expected host is neither confirmed nor owed.
func TestGreenProperty(t *testing.T) {
	greens := 0
	// A green cohort is rare among random ones: as many rounds as it takes to meet one.
	for round := 0; round < 20 && greens == 0; round++ {
		rapid.Check(t, func(t *rapid.T) {
			assigned := rapid.Uint64Range(5, 7).Draw(t, "assigned")
			asked := rapid.Uint64Range(5, 7).Draw(t, "asked")
			accept := map[uint64]bool{}
			if rapid.Bool().Draw(t, "later too") {
				for e := asked + 1; e <= 7; e++ {
					accept[e] = true
				}
			}
			v := view(assigned)
			if rapid.IntRange(0, 4).Draw(t, "wave") == 0 {
				v.Manifest.Assign = append([]manifest.Assignment{{Below: "8000000000000000", Salt: "7", Epoch: 7}}, v.Manifest.Assign...)
			}
			if rapid.IntRange(0, 9).Draw(t, "halt") == 0 {
				v.Manifest.Rollout.Halts = []manifest.Stop{{Why: "x"}}
			}
			gin := verdict.GreenInput{Statements: released(), Cohort: "prod-eu", Epoch: asked, Standing: asked, Accept: accept, State: manifest.StateBuilt, View: v, Published: now.Add(-2 * time.Minute),
				Strict: rapid.Bool().Draw(t, "strict"), Now: now}
			for i := range rapid.IntRange(0, 4).Draw(t, "hosts") {
				in := confirmed()
				in.Host, in.View = fmt.Sprintf("h%d", i), v
				r := in.Report
				running := rapid.SampledFrom([]uint64{assigned, assigned, assigned, 5, 6, 7}).Draw(t, "running")
				r.Running, r.Desired, r.Attempted, r.Content = running, running, running, content(running)
				for range rapid.IntRange(0, 2).Draw(t, "faults") {
					if in.Report == nil {
						break
					}
					switch rapid.IntRange(0, 15).Draw(t, "fault") {
					case 0:
						in.Report = nil
					case 1:
						in.Received = now.Add(-time.Duration(rapid.IntRange(0, 900).Draw(t, "age")) * time.Second)
					case 2:
						in.Duplicate = true
					case 3:
						in.Accepted = false
					case 4:
						in.ViewAge = time.Minute
					case 5:
						r.Confirmed = false
					case 6:
						r.Services["checkout"] = report.Service{State: rapid.SampledFrom([]string{"waiting", "not running"}).Draw(t, "state"), Grade: rapid.SampledFrom([]manifest.Grade{"", "disk", "restarted"}).Draw(t, "grade")}
					case 7:
						r.Content = content(1)
					case 8:
						r.Phase = rapid.SampledFrom([]report.Phase{"failed", "rolled back", "refused", "leaving", "applying"}).Draw(t, "phase")
					case 9:
						r.Drift = []string{"x"}
					case 10:
						r.Mode = report.ModeObserve
					case 11:
						r.Stale = true
					case 12:
						r.Seen = "1-21-0"
					case 13:
						in.SilentFrom = now.Add(-time.Duration(rapid.IntRange(0, 900).Draw(t, "from")) * time.Second)
					case 14:
						r.Override = "inc-1"
					case 15:
						in.Expected = false
					}
				}
				gin.Hosts = append(gin.Hosts, verdict.HostInput{Input: in, Verdict: verdict.Of(in)})
			}
			g := verdict.IsGreen(gin)
			expected := 0
			for _, h := range gin.Hosts {
				if !h.Input.Expected {
					continue
				}
				expected++
				if !g.Green {
					continue
				}
				res, err := manifest.Resolve(v, manifest.Host{Name: h.Input.Host}, now)
				if err != nil {
					t.Fatal(err)
				}
				good := (res.Epoch() == asked || accept[res.Epoch()]) && runs(h.Input, res.Epoch())
				in := h.Input
				owed := !gin.Strict && in.Report != nil && max(in.Report.Desired, in.Report.Attempted, in.Report.Running) < asked
				if in.Report != nil && in.Report.Phase == report.PhaseLeaving {
					owed = owed && !in.Received.After(gin.Published)
				} else {
					owed = owed && !in.Received.Add(180*time.Second).After(gin.Published) && !in.SilentFrom.Add(180*time.Second).After(gin.Published)
				}
				if !good && !owed {
					t.Fatalf("green, but %s is %s: %s", in.Host, h.Verdict.Code, h.Verdict.Why)
				}
			}
			if g.Confirmed+g.Owed+len(g.Waiting) != expected {
				t.Fatalf("%d expected hosts are counted as %+v", expected, g)
			}
			if g.Green && (g.Confirmed == 0 || g.Never || len(v.Manifest.Rollout.Halts) > 0) {
				t.Fatalf("green: %+v", g)
			}
			if g.Green {
				greens++
			}
		})
	}
	if greens == 0 {
		t.Error("the property never met a green cohort")
	}
}
