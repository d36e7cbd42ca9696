package sim

import (
	"testing"
	"time"
)

// TestInstant: a clock that is set moves what it shows, and not what a process measures.
func TestInstant(t *testing.T) {
	at := time.Date(2026, 12, 1, 3, 0, 0, 123, time.UTC)
	a := instant(at, time.Minute)
	b := instant(at.Add(-time.Hour), 2*time.Minute)
	if !a.Round(0).Equal(at) || !b.Round(0).Equal(at.Add(-time.Hour)) {
		t.Errorf("shows %s and %s, not %s and an hour before", a.Round(0), b.Round(0), at)
	}
	if d := b.Sub(a); d != time.Minute {
		t.Errorf("%s lie between them, and the machine ran for a minute", d)
	}
	if !b.After(a) || b.Round(0).After(a.Round(0)) {
		t.Errorf("%s is to be after %s, and to show less", b, a)
	}
	if next := a.Add(time.Second); next.Sub(a) != time.Second || !next.Round(0).Equal(at.Add(time.Second)) {
		t.Errorf("a second later is %s", next)
	}
}
