package rollout_test

import (
	"strings"
	"testing"
	"time"

	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/rollout"
	"github.com/muster-config/muster/distributor/rollout/gate"
	"github.com/muster-config/muster/distributor/verdict"
)

// overrideOver is override for one that was laid over an epoch.
func (f *fleet) overrideOver(over uint64, id string, epoch uint64, ttl time.Duration, hosts ...string) {
	f.loose = true
	f.override(id, epoch, ttl, hosts...)
	f.view.Overrides[len(f.view.Overrides)-1].Over = over
}

// allBack lets single steps be taken until nothing moves, and demands of each that no more than so many hosts leave an override, and none for the release that is left.
func (f *fleet) allBack(id string, left uint64, most int) {
	f.t.Helper()
	last := f.overridden(id)
	for range 200 {
		f.now = f.now.Add(time.Second)
		if _, err := f.try(); err != nil && !isWaiting(err) {
			f.t.Fatalf("%v", err)
		}
		n := f.overridden(id)
		if last-n > most {
			f.t.Errorf("%d hosts are under it after %d", n, last)
		}
		last = n
		for _, h := range f.hosts {
			if f.under(h) == "" && f.at(f.view, h) == left {
				f.t.Fatalf("%s is led to epoch %d, which was to be left: %+v", h.Name, left, f.r())
			}
		}
		f.apply()
	}
}

// A failure takes hosts back from a release also where an override was laid over it: the first statement of that is the failed release with something on top.
func TestFailureUnderAnOverride(t *testing.T) {
	for _, how := range []string{"gate", "abort"} {
		f := newFleet(t, 40, gated(standard(bakeless(100)...), "errors"))
		f.publish(8, map[string]string{"a": "a8"})
		f.done(8)
		f.overrideOver(8, "inc-1", 9, 10*time.Hour)
		if n := f.running(9); n != 40 {
			t.Fatalf("%d hosts run the override", n)
		}
		if how == "gate" {
			f.gates = func(q gate.Question) []manifest.GateVerdict { return say1(q, manifest.OutcomeFail, "5% errors") }
			f.next()
		} else if said := f.must(rollout.Action{Kind: rollout.Abort, Why: "x"}); !strings.Contains(said, "override inc-1") {
			t.Errorf("%q", said)
		}
		if why := f.r().Why; f.r().Phase != manifest.PhaseRollingBack || !strings.Contains(why, "override inc-1 was laid over a newer release, and does not go back with them") {
			t.Errorf("%s: %s", how, why)
		}
		f.allBack("inc-1", 8, 4)
		if n := f.running(7); n != 40 || f.r().Phase != manifest.PhaseHalted {
			t.Errorf("%s: %d of 40 hosts are back: %+v", how, n, f.r())
		}
		// Nobody ended it: when the release goes out again, so does it.
		f.gates = nil
		f.must(rollout.Action{Kind: rollout.Resume, Why: "it was something else", Aborted: true})
		f.until("out again", 3*time.Hour, func() bool { return f.overridden("inc-1") == 40 })
	}
}

// One that was laid over an older release stays on hosts that are taken back, and so does one that was built for it.
func TestBackWithAnOverride(t *testing.T) {
	for _, built := range []bool{false, true} {
		f := rolledOut(t, 10, standard(bakeless(100)...))
		if built {
			f.overrideOver(9, "inc-1", 10, 10*time.Hour)
			f.view.Statements = append(f.view.Statements, manifest.VerifiedStatement{Statement: manifest.Statement{Epoch: 8, Override: "inc-1"}})
			f.view.Manifest.Statements = append(f.view.Manifest.Statements, manifest.Envelope{})
		} else {
			f.overrideOver(8, "inc-1", 10, 10*time.Hour)
		}
		if said, changed, err := f.act(rollout.Action{Kind: rollout.Rollback, To: 8, Why: "x", Now: true}); err != nil || !changed || strings.Contains(said, "inc-1") {
			t.Errorf("built %t: %q, %t, %v", built, said, changed, err)
		}
		if n := f.overridden("inc-1"); !built && n != 10 {
			t.Errorf("it acts on %d hosts", n)
		}
	}
}

// A person's rollback drops no override by the way. With --drop-overrides hosts go straight back, one first.
func TestRollbackUnderAnOverride(t *testing.T) {
	for _, now := range []bool{false, true} {
		f := rolledOut(t, 40, standard(bakeless(100)...))
		f.overrideOver(9, "inc-1", 10, 10*time.Hour)
		a := rollout.Action{Kind: rollout.Rollback, To: 8, Why: "x", Now: now}
		if _, changed, err := f.act(a); changed || !isUnfit(err) || !strings.Contains(err.Error(), "override inc-1 was laid over a newer release than epoch 8") || !strings.Contains(err.Error(), "--drop-overrides") {
			t.Errorf("%t, %v", changed, err)
		}
		a.DropOverrides = true
		f.must(a)
		if now {
			if n := f.overridden("inc-1"); n != 0 || f.told(8) != 40 {
				t.Errorf("%d hosts are under it, %d are sent back", n, f.told(8))
			}
			continue
		}
		f.next()
		if n := f.overridden("inc-1"); n != 39 || f.told(8) != 1 {
			t.Errorf("one goes first: %d are under it, %d are sent back", n, f.told(8))
		}
		f.allBack("inc-1", 9, 4)
		if n := f.running(8); n != 40 || f.r().Phase != manifest.PhaseHalted {
			t.Errorf("%d of 40 hosts are back: %+v", n, f.r())
		}
		if e := f.r().Endings; len(e) != 1 || e[0].Below != "" || e[0].By != "ana" {
			t.Errorf("%+v", e)
		}
	}
}

// An override of hosts that are not there is dropped as well: they would take it again when they come back.
func TestDroppedOverrideOfNobody(t *testing.T) {
	f := rolledOut(t, 10, standard(bakeless(100)...))
	f.override("inc-1", 10, 10*time.Hour, "h-003")
	f.host("h-003").Verdict, f.host("h-003").Silent = verdict.Silent, f.now.Add(-time.Hour)
	f.must(rollout.Action{Kind: rollout.Rollback, To: 8, Why: "x", DropOverrides: true})
	f.settle()
	f.stands(manifest.PhaseHalted, 0)
	if n := f.overridden("inc-1"); n != 0 {
		t.Errorf("it acts on %d hosts: %+v", n, f.r().Endings)
	}
}

// One that ended since git said the same does not come back when git says something else, all at once.
func TestOvertakenOverrideStaysOut(t *testing.T) {
	f := newFleet(t, 20, standard())
	f.override("inc-311", 8, 12*time.Hour)
	f.view.Statements[0].Content, f.view.Statements[0].Content0 = "plain", "plain"
	f.view.Statements = append(f.view.Statements[:1:1], manifest.VerifiedStatement{Statement: manifest.Statement{Epoch: 7, Override: "inc-311", Content: "plain", Content0: "plain"}})
	f.apply()
	f.loose = true
	if !f.next() || f.overridden("inc-311") != 18 {
		t.Fatalf("on %d hosts: %+v", f.overridden("inc-311"), f.r().Endings)
	}
	// From here on nobody says that it is the same: put knows no overridden statement of the manifest.
	f.until("it ended", time.Hour, func() bool {
		f.apply()
		return f.overridden("inc-311") == 0
	})
	f.publish(9, map[string]string{"a": "a9"})
	f.to(1, manifest.PhaseBaking)
	if n := f.overridden("inc-311"); n != 0 {
		t.Errorf("it is on %d hosts again: %+v", n, f.r().Endings)
	}
}

// A host that does not get to an override any more takes no place at its end: it may be why the override is dropped.
func TestDroppedOverrideThatAHostCannotTake(t *testing.T) {
	f := rolledOut(t, 3, standard(bakeless(100)...))
	for _, h := range f.hosts {
		h.bad = func(epoch uint64) verdict.Code {
			if epoch == 10 {
				return verdict.Overridden // and does not say that it runs it
			}
			return ""
		}
	}
	f.override("inc-1", 10, 10*time.Hour)
	for _, h := range f.hosts {
		h.Told = f.now
		if h.Running == 10 {
			t.Fatalf("%s takes it", h.Name)
		}
	}
	f.must(rollout.Action{Kind: rollout.Rollback, To: 8, Why: "x", DropOverrides: true})
	f.pass(4 * time.Minute)
	if n := f.overridden("inc-1"); n != 3 {
		t.Errorf("on %d hosts, and each may be on its way to it", n)
	}
	f.pass(10 * time.Minute)
	if n := f.overridden("inc-1"); n != 0 || f.running(8) != 3 {
		t.Errorf("on %d hosts, %d are back: %+v", n, f.running(8), f.r())
	}
}
