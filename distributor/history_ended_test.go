package distributor_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// D005: the log tells how an override lived: set, extended, ended by a person or by itself. What ends by itself nobody writes down, and it stands at its time all the same.
func TestD005LogOfOverrides(t *testing.T) {
	h, p := &history{}, newPlace(t, nil)
	at := func(d time.Duration) { p.now = start.Add(d) }
	one := h.commit("", "eu/web=one ", "us/web=one ")
	p.mustPublish(h.job(one), true)
	at(time.Minute)
	for i, ttl := range []time.Duration{10 * time.Minute, 90 * time.Minute, 2 * time.Hour} {
		if _, err := p.set(h, fmt.Sprintf("inc-%d", i+1), "x", ttl); err != nil {
			t.Fatal(err)
		}
		at(time.Duration(i+2) * time.Minute)
	}
	at(5 * time.Minute)
	change := func(id string, do func(i int) error) {
		t.Helper()
		found, err := p.operator(operatorKey).Overrides(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for i := range found {
			if found[i].ID == id {
				if err := do(i); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	change("inc-2", func(i int) error {
		o := p.operator(operatorKey)
		found, err := o.Overrides(t.Context())
		if err == nil {
			_, err = o.Extend(t.Context(), found[i], 2*time.Hour, "bo", "still on it")
		}
		return err
	})
	at(20 * time.Minute)
	two := h.commit(one, "eu/web=two ", "us/web=one ")
	p.mustPublish(h.job(two), true)
	at(30 * time.Minute)
	change("inc-3", func(i int) error {
		o := p.operator(operatorKey)
		found, err := o.Overrides(t.Context())
		if err == nil {
			_, err = o.End(t.Context(), found[i], "cy", "over")
		}
		return err
	})
	at(10 * time.Hour)
	entries, err := p.history().Log(t.Context(), "eu", 0)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range entries {
		if d := e.Decision; d != nil && strings.HasPrefix(d.What, "override ") {
			line := fmt.Sprintf("%s %s by %q: %s", e.At.Sub(start), d.What, d.By, d.Why)
			if d.Until != nil {
				line += " until " + d.Until.Sub(start).String()
			}
			got = append(got, line)
		}
	}
	slices.Reverse(got)
	want := []string{
		`1m0s override inc-1 of web by "ana": INC until 11m0s`,
		`2m0s override inc-2 of web by "ana": INC until 1h32m0s`,
		`3m0s override inc-3 of web by "ana": INC until 2h3m0s`,
		`5m0s override inc-2 extended by "bo": INC (extended: still on it) until 2h5m0s`,
		`11m0s override inc-1 ended by itself by "": its time was over`,
		`30m0s override inc-3 ended by "cy": over`,
		`2h5m0s override inc-2 ended by itself by "": its time was over`,
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	// The newest first, and no line is older than the one after it.
	for i := 1; i < len(entries); i++ {
		if entries[i].At.After(entries[i-1].At) {
			t.Errorf("%s before %s", entries[i-1].At, entries[i].At)
		}
	}
}
