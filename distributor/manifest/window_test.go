package manifest_test

import (
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/muster-config/muster/distributor/manifest"
)

func TestWindow(t *testing.T) {
	monday := time.Date(2026, 11, 30, 0, 0, 0, 0, time.UTC)
	for window, times := range map[string]map[time.Duration]bool{
		"* * * * *":            {0: true, 90 * time.Minute: true},
		"* 9-16 * * 1-5":       {9 * time.Hour: true, 16*time.Hour + 59*time.Minute + 59*time.Second: true, 17 * time.Hour: false, 8*time.Hour + 59*time.Minute: false, 5*24*time.Hour + 10*time.Hour: false},
		"* 9-16 * * mon-FRI":   {9 * time.Hour: true, 17 * time.Hour: false, 6*24*time.Hour + 10*time.Hour: false},
		"*/15 10 * * *":        {10 * time.Hour: true, 10*time.Hour + 15*time.Minute: true, 10*time.Hour + 16*time.Minute: false, 11 * time.Hour: false},
		"0,30 8-12/2 * nov *":  {8 * time.Hour: true, 9 * time.Hour: false, 12*time.Hour + 30*time.Minute: true, 24*time.Hour + 8*time.Hour: false}, // December begins
		"* * * * 0":            {6 * 24 * time.Hour: true, 0: false},
		"* * * * 7":            {6 * 24 * time.Hour: true, 0: false},
		"* * 1 * 1":            {0: true, 24 * time.Hour: true, 48 * time.Hour: false}, // Monday, or the first of the month
		"* * */2 * 1":          {0: false, 24 * time.Hour: false, 7 * 24 * time.Hour: true},
		"5/20 0 * * *":         {5 * time.Minute: true, 25 * time.Minute: true, 45 * time.Minute: true, 0: false, 6 * time.Minute: false},
		"  *   9 *  *  1-5   ": {9 * time.Hour: true},
	} {
		w, err := manifest.ParseWindow(window)
		if err != nil {
			t.Errorf("%s: %v", window, err)
			continue
		}
		for after, want := range times {
			at := monday.Add(after)
			if got := w.Contains(at); got != want {
				t.Errorf("%s at %s: %t", window, at.Format(time.RFC3339), got)
			}
			if zone := at.In(time.FixedZone("east", 5*3600)); w.Contains(zone) != want {
				t.Errorf("%s: another zone, another answer", window)
			}
		}
	}
	for window, want := range map[string]string{
		"":                 "0 fields, not 5",
		"* * * *":          "4 fields, not 5",
		"60 * * * *":       `minute: "60" is not from 0 to 59`,
		"* 24 * * *":       "hour:",
		"* * 0 * *":        "day:",
		"* * * 13 *":       "month:",
		"* * * * 8":        "weekday:",
		"* 17-9 * * *":     `"17-9" runs backwards: write it as two`,
		"*/0 * * * *":      `"0" is no step`,
		"1- * * * *":       "minute:",
		"+1 * * * *":       "minute:",
		"1,,2 * * * *":     "minute:",
		"* * * * mon-fri/": "weekday:",
		"* 9-5pm * * *":    `"5pm" is not from 0 to 23`,
	} {
		if _, err := manifest.ParseWindow(window); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", window, err, want)
		}
	}
}

func TestNextWindow(t *testing.T) {
	at := time.Date(2026, 11, 30, 12, 0, 30, 0, time.UTC) // a Monday
	for _, test := range []struct {
		windows []string
		want    string
	}{
		{[]string{"* * * * *"}, "2026-11-30T12:00:00Z"},
		{[]string{"30 14 * * *", "* 9 * * *"}, "2026-11-30T14:30:00Z"},
		{[]string{"* 9-11 * * 1-5"}, "2026-12-01T09:00:00Z"},
		{[]string{"0 0 29 2 *"}, "2028-02-29T00:00:00Z"},
		{[]string{"0 0 30 2 *"}, "0001-01-01T00:00:00Z"},
		{[]string{"nonsense"}, "0001-01-01T00:00:00Z"},
		{nil, "0001-01-01T00:00:00Z"},
	} {
		if got := manifest.NextWindow(test.windows, at).Format(time.RFC3339); got != test.want {
			t.Errorf("%v: %s, want %s", test.windows, got, test.want)
		}
	}
}

// The next opening is open, and nothing between now and then is.
func TestNextWindowProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		field := func(name string, lo, hi int) string {
			return rapid.OneOf(rapid.Just("*"), rapid.StringMatching(`[0-9]`)).Filter(func(s string) bool { return s == "*" || int(s[0]-'0') >= lo && int(s[0]-'0') <= hi }).Draw(t, name)
		}
		text := field("minute", 0, 9) + " " + field("hour", 0, 9) + " " + field("day", 1, 9) + " * " + field("weekday", 0, 7)
		w, err := manifest.ParseWindow(text)
		if err != nil {
			t.Fatal(err)
		}
		at := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC).Add(time.Duration(rapid.IntRange(0, 60*24*60).Draw(t, "at")) * time.Minute)
		next := manifest.NextWindow([]string{text}, at)
		if next.IsZero() || next.Before(at) || !w.Contains(next) {
			t.Fatalf("%s at %s: %s", text, at, next)
		}
		for m := at; m.Before(next); m = m.Add(time.Minute) {
			if w.Contains(m) {
				t.Fatalf("%s at %s: %s, and %s is open", text, at, next, m)
			}
		}
	})
}
