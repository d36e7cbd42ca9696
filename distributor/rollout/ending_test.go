package rollout_test

import (
	"testing"
	"time"

	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/verdict"
)

// under is the override that acts on a host.
func (f *fleet) under(h *member) string {
	res, err := manifest.Resolve(f.view, manifest.Host{Name: h.Name, Labels: h.Labels}, f.now)
	if err != nil {
		f.t.Fatalf("%s: %v", h.Name, err)
	}
	return res.Override
}

// override puts one over the whole cohort, or some hosts, and lets them take it.
func (f *fleet) override(id string, epoch uint64, ttl time.Duration, hosts ...string) {
	f.loose = true // an override with --now goes to all at once
	f.view.Overrides = append(f.view.Overrides, manifest.VerifiedOverride{
		Override: manifest.Override{ID: id, Epoch: epoch, Created: f.now, NotAfter: f.now.Add(ttl), Hosts: hosts},
		First:    &manifest.VerifiedStatement{Statement: manifest.Statement{Epoch: epoch, Override: id}},
	})
	f.apply()
	f.loose = false
}

func (f *fleet) overridden(id string) (n int) {
	for _, h := range f.hosts {
		if f.under(h) == id {
			n++
		}
	}
	return n
}

// D005: the controller ends an override before not_after, in steps of max_in_flight; put checks how many are on their way.
func TestD005EndsInSteps(t *testing.T) {
	f := newFleet(t, 40, standard())
	f.override("inc-311", 8, 2*time.Hour)
	if n := f.running(8); n != 40 {
		t.Fatalf("%d hosts run the override", n)
	}
	f.pass(108 * time.Minute) // ten steps of a minute, and a minute
	if n := f.overridden("inc-311"); n != 40 {
		t.Fatalf("it ends already: on %d hosts", n)
	}
	last := 40
	for range 10 {
		f.pass(time.Minute)
		n := f.overridden("inc-311")
		if n > last || last-n > 8 {
			t.Errorf("%s before its end: %d hosts after %d", 2*time.Hour-f.now.Sub(now), n, last)
		}
		last = n
	}
	f.pass(time.Minute)
	if n := f.overridden("inc-311"); n != 0 || f.running(7) != 40 || !f.now.Before(now.Add(2*time.Hour)) {
		t.Errorf("a minute before its end it acts on %d hosts, %d run the baseline", n, f.running(7))
	}
	f.pass(5 * time.Minute)
	if heads := len(f.heads); heads > 12 {
		t.Errorf("%d heads for one end", heads)
	}
}

// Extended when it ends already, by somebody else's program: those that are out of it do not come back, all at once, and the others leave it at its new end.
func TestD005Extended(t *testing.T) {
	f := newFleet(t, 20, standard())
	f.loose = true
	f.override("inc-311", 8, 2*time.Hour)
	f.loose = true
	f.pass(115 * time.Minute)
	before := f.overridden("inc-311")
	if before == 0 || before == 20 {
		t.Fatalf("on %d hosts", before)
	}
	f.view.Overrides[0].NotAfter = f.view.Overrides[0].NotAfter.Add(time.Hour)
	f.pass(2 * time.Minute)
	if n := f.overridden("inc-311"); n != before {
		t.Errorf("on %d hosts after %d, %+v", n, before, f.r().Endings)
	}
	f.pass(61 * time.Minute)
	if n := f.overridden("inc-311"); n >= before {
		t.Errorf("on %d hosts after %d shortly before its new end, %+v", n, before, f.r().Endings)
	}
}

// Two controllers whose clocks differ do not undo each other's steps: hosts would leave it and come back with each.
func TestD005ClockBehind(t *testing.T) {
	f := newFleet(t, 20, standard())
	f.override("inc-311", 8, 2*time.Hour)
	f.pass(110*time.Minute + time.Second)
	n := f.overridden("inc-311")
	if n == 20 {
		t.Fatal("no step was taken")
	}
	f.now = f.now.Add(-4 * time.Second)
	if f.next() || f.overridden("inc-311") != n {
		t.Errorf("on %d hosts after %d, for a clock that is behind: %+v", f.overridden("inc-311"), n, f.r().Endings)
	}
}

// A collector that was just started knows few hosts: they are not all that an override acts on.
func TestD005EndWaitsForWhoIsNotHeardYet(t *testing.T) {
	f := newFleet(t, 20, standard())
	f.override("inc-311", 8, 2*time.Hour)
	for _, h := range f.hosts[2:] {
		h.Verdict = verdict.Missing
	}
	f.settling = "the collector was just started"
	f.pass(115 * time.Minute)
	if n := f.overridden("inc-311"); n != 20 {
		t.Errorf("on %d hosts, and 18 of them are not heard of yet", n)
	}
}

// Who leaves an override for an older one below it is on its way as well.
func TestD005EndsOverAnother(t *testing.T) {
	f := newFleet(t, 20, standard())
	f.override("inc-311", 8, 12*time.Hour)
	f.override("inc-312", 9, 2*time.Hour)
	if n := f.running(9); n != 20 {
		t.Fatalf("%d hosts run the newer override", n)
	}
	for _, h := range f.hosts {
		h.stuck = true
	}
	f.pass(119 * time.Minute)
	if n := f.overridden("inc-312"); n != 18 {
		t.Errorf("on %d hosts, though the two places are taken", n)
	}
}

// A host that is stuck on its way out takes a place: others wait, and end by their own clocks.
func TestD005EndWaitsForPlaces(t *testing.T) {
	f := newFleet(t, 20, standard())
	f.override("inc-311", 8, 2*time.Hour)
	for _, h := range f.hosts {
		h.stuck = true
	}
	f.pass(119 * time.Minute)
	if n := f.overridden("inc-311"); n != 18 {
		t.Errorf("on %d hosts, though the two places are taken", n)
	}
	f.loose = true
	f.pass(2 * time.Minute)
	if n := f.overridden("inc-311"); n != 0 {
		t.Errorf("past its end on %d hosts", n)
	}
}

// When the config repo says the same, it ends itself: in steps, since its services' epochs are others.
func TestD005SaysTheSame(t *testing.T) {
	f := newFleet(t, 20, standard())
	f.override("inc-311", 8, 12*time.Hour)
	same := func(content string) {
		for i := range f.view.Statements {
			f.view.Statements[i].Content = "plain"
		}
		f.view.Statements = append(f.view.Statements[:1:1], manifest.VerifiedStatement{Statement: manifest.Statement{Epoch: 7, Override: "inc-311", Content: content}})
	}
	same("other")
	f.apply()
	if f.next() || f.overridden("inc-311") != 20 {
		t.Errorf("it ended: %+v", f.r().Endings)
	}
	f.loose = true // put knows no overridden statement of the manifest
	last := 20
	for range 40 {
		same("plain")
		f.next()
		same("plain")
		if n := f.overridden("inc-311"); last-n > 2 {
			t.Errorf("%d hosts after %d: more than max_in_flight", n, last)
		} else {
			last = n
		}
		f.apply()
	}
	if n := f.overridden("inc-311"); n != 0 || f.now != now {
		t.Errorf("it acts on %d hosts: %+v", n, f.r().Endings)
	}
}

// Of two overrides the newer one ends: its hosts go to the older, and only its own are counted.
func TestD005EndOfOneHost(t *testing.T) {
	f := newFleet(t, 20, standard())
	f.override("inc-311", 8, 12*time.Hour)
	f.override("inc-312", 9, time.Hour, "h-003", "h-004")
	f.pass(59*time.Minute + 30*time.Second)
	if f.overridden("inc-312") != 0 || f.overridden("inc-311") != 20 {
		t.Errorf("%d, %d: %+v", f.overridden("inc-312"), f.overridden("inc-311"), f.r().Endings)
	}
}
