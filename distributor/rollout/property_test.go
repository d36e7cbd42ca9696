package rollout_test

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/rollout"
	"github.com/muster-config/muster/distributor/rollout/gate"
	"github.com/muster-config/muster/distributor/verdict"
)

// Whatever hosts, gates, publishers and operators do, in whatever order: what put checks holds after every order (two contents, statements to go back with, max_in_flight forward and
// back, serials and targets), hosts that were told nothing never swap, an order that was made is not made again, and when everything is well it ends.
func TestNextProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var waves []manifest.Wave
		for range rapid.IntRange(0, 3).Draw(t, "waves") {
			w := manifest.Wave{Bake: rapid.SampledFrom([]string{"0s", "5m"}).Draw(t, "bake")}
			switch rapid.IntRange(0, 2).Draw(t, "kind") {
			case 0:
				w.Percent = float64(rapid.IntRange(1, 90).Draw(t, "percent"))
			case 1:
				w.Count = rapid.IntRange(1, 20).Draw(t, "count")
			default:
				w.Match = map[string]string{"zone": rapid.SampledFrom([]string{"a", "b"}).Draw(t, "zone")}
			}
			waves = append(waves, w)
		}
		p := gated(standard(append(waves, manifest.Wave{Percent: 100, Bake: "0s"})...), "errors")
		p.MaxInFlight = rapid.SampledFrom([]string{"10%", "30%", "1", "7"}).Draw(t, "in flight")
		p.MaxFailed = rapid.IntRange(0, 2).Draw(t, "failed")
		p.MinReported = rapid.SampledFrom([]float64{0.5, 0.95, 1}).Draw(t, "reported")
		p.OnFailure = rapid.SampledFrom([]string{"rollback", "rollback", "halt"}).Draw(t, "on failure")
		if rapid.Bool().Draw(t, "approve") {
			p.ApproveBefore = []int{len(waves) + 1}
		}
		n := rapid.IntRange(1, 40).Draw(t, "hosts")
		f := newFleet(t, n, p)
		for i, h := range f.hosts {
			h.Labels = map[string]string{"zone": []string{"a", "b", "c"}[i%3]}
		}
		outcome := manifest.OutcomePass
		f.gates = func(q gate.Question) []manifest.GateVerdict {
			if q.Wave == 0 {
				return say1(q, manifest.OutcomePass, "it can be asked")
			}
			return say1(q, outcome, "so it is")
		}
		epoch := uint64(7)
		step := func() {
			before := map[string]uint64{}
			was := f.view
			for _, h := range f.hosts {
				before[h.Name] = f.at(f.view, h)
			}
			changed, err := f.try()
			if err != nil && !isWaiting(err) {
				t.Fatalf("%v", err)
			}
			if !changed {
				return
			}
			// An order moves hosts to the target, or back to the baseline, never both.
			to := map[uint64]bool{}
			for _, h := range f.hosts {
				if at := f.at(f.view, h); at != before[h.Name] {
					to[at] = true
				}
			}
			if len(to) > 1 {
				t.Fatalf("one order moves hosts to %v: %s", to, f.r().Why)
			}
			if to[f.r().Target] && f.r().Target != f.r().Baseline && (was.Manifest.Rollout.Phase == manifest.PhaseHalted || was.Manifest.Rollout.Pause != nil && was.Manifest.Rollout.Pause.By != rollout.Muster) {
				t.Fatalf("hosts are told while it is %s", was.Manifest.Rollout.Phase)
			}
			// With nothing new it comes to rest at once.
			for i := 0; ; i++ {
				again, err := f.try()
				if err != nil && !isWaiting(err) {
					t.Fatalf("%v", err)
				}
				if !again {
					break
				}
				if i > 5 {
					t.Fatalf("it moves on and on with nothing new: %s", f.r().Why)
				}
			}
		}
		for range rapid.IntRange(10, 120).Draw(t, "steps") {
			switch rapid.IntRange(0, 11).Draw(t, "event") {
			case 0:
				if epoch < 20 {
					epoch++
					change := fmt.Sprint("a", epoch)
					if rapid.Bool().Draw(t, "revert") {
						change = f.services[f.r().Baseline]["a"]
					}
					f.publish(epoch, map[string]string{"a": change})
				}
			case 1:
				outcome = rapid.SampledFrom([]manifest.Outcome{manifest.OutcomePass, manifest.OutcomePass, manifest.OutcomeFail, manifest.OutcomeInconclusive}).Draw(t, "gate")
			case 2:
				h := rapid.SampledFrom(f.hosts).Draw(t, "host")
				code := rapid.SampledFrom([]verdict.Code{"", "", verdict.RolledBack, verdict.Failed, verdict.Refused}).Draw(t, "goes")
				if h.Attempted == f.at(f.view, h) && h.Running != h.Attempted {
					continue // it went wrong there, and stays so
				}
				bad := epoch
				h.bad = func(e uint64) verdict.Code {
					if e == bad && e != f.r().Baseline {
						return code
					}
					return ""
				}
			case 3:
				kind := rapid.SampledFrom([]rollout.ActionKind{rollout.Pause, rollout.Resume, rollout.Resume, rollout.Approve, rollout.Abort, rollout.Supersede, rollout.Refresh, rollout.Freeze, rollout.Unfreeze, rollout.Rollback, rollout.Rollback, rollout.Hold}).Draw(t, "act")
				until := f.now.Add(time.Hour)
				a := rollout.Action{Kind: kind, Why: "so", Until: &until}
				switch kind {
				case rollout.Rollback:
					a.To = rapid.SampledFrom([]uint64{0, 0, 7, epoch - 1}).Draw(t, "to")
					a.Now = rapid.IntRange(0, 3).Draw(t, "now") == 0
				case rollout.Hold:
					until = f.now.Add(1000 * time.Hour)
					h := rapid.SampledFrom(f.hosts).Draw(t, "held")
					a.Hosts, a.Runs = []string{h.Name}, f.runs()
				}
				if _, changed, err := f.act(a); err != nil && !isUnfit(err) {
					t.Fatalf("%v", err)
				} else if changed {
					if _, twice, err := f.act(a); twice || err != nil {
						t.Fatalf("%s twice: %t, %v", kind, twice, err)
					}
				}
			case 4, 5:
				f.now = f.now.Add(rapid.SampledFrom([]time.Duration{time.Second, time.Minute, 6 * time.Minute, 31 * time.Minute}).Draw(t, "passes"))
			case 6, 7:
				f.applyOne(rapid.SampledFrom(f.hosts).Draw(t, "applies"))
			case 8:
				f.apply()
			default:
				step()
			}
		}
		// Everything is well again, and somebody looks after it.
		outcome = manifest.OutcomePass
		f.loose = true // those that went wrong and were passed over try again, beside others
		for _, h := range f.hosts {
			h.bad = nil
		}
		for range 200 {
			if _, _, err := f.act(rollout.Action{Kind: rollout.Unhold, Hosts: f.names(), Why: "over"}); err != nil {
				t.Fatalf("%v", err)
			}
			for _, kind := range []rollout.ActionKind{rollout.Unfreeze, rollout.Resume, rollout.Approve} {
				if _, _, err := f.act(rollout.Action{Kind: kind}); err != nil && !isUnfit(err) {
					t.Fatalf("%v", err)
				}
			}
			f.now = f.now.Add(7 * time.Minute)
			f.settle()
			if f.r().Phase == manifest.PhaseDone && f.r().Target == f.part && f.r().Fallback == 0 {
				break
			}
		}
		if f.r().Phase != manifest.PhaseDone || f.r().Target != f.part || f.running(f.part) != n || len(f.view.Manifest.Assign) != 1 {
			t.Fatalf("it does not end: %d of %d run %d, %+v, %v", f.running(f.part), n, f.part, f.r(), f.view.Manifest.Assign)
		}
	})
}
