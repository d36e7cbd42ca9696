package probe

import (
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

func TestParseStat(t *testing.T) {
	for name, tc := range map[string]struct {
		text  string
		state string
		ticks int64
		bad   bool
	}{
		"plain":       {"42 (cat) R 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 1553497 20 21", "R", 1553497, false},
		"odd name":    {"42 (a) b) (c\n) Z 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 7 20", "Z", 7, false},
		"short":       {"42 (cat) R 1 2", "", 0, true},
		"empty":       {"", "", 0, true},
		"no number":   {"42 (cat) R 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 x 20", "", 0, true},
		"below zero":  {"42 (cat) R 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 -1 20", "", 0, true},
		"out of time": {"42 (cat) R 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 9223372036854775807 20", "", 0, true},
	} {
		t.Run(name, func(t *testing.T) {
			state, ticks, err := parseStat([]byte(tc.text))
			if (err != nil) != tc.bad || !tc.bad && (state != tc.state || ticks != tc.ticks) {
				t.Errorf("%q %d %v", state, ticks, err)
			}
		})
	}
}

func FuzzParse(f *testing.F) {
	f.Add("42 (a) b) (c\n) Z 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 7 20", "a.b")
	f.Add("LoadState=loaded\nActiveState=active\nMainPID=1\nExecMainStartTimestampMonotonic=5\n", "")
	f.Add(`{"a": {"b": "7"}}`, "a.b")
	f.Fuzz(func(t *testing.T, text, field string) {
		if _, ticks, err := parseStat([]byte(text)); err == nil && ticks < 0 {
			t.Error(ticks)
		}
		if u, err := parseUnit("x.service", text); err == nil && u.State == "" {
			t.Error("no state and no error")
		}
		if n, err := epochIn([]byte(text), field, "it"); err == nil && n > 1<<53-1 {
			t.Error(n)
		}
	})
}

func TestParseUnit(t *testing.T) {
	for name, tc := range map[string]struct {
		text, state string
		running     bool
		after       int64 // it started after this, µs since the start of the machine, and not after one more
		want        string
	}{
		"active":      {"LoadState=loaded\nActiveState=active\nMainPID=42\nExecMainStartTimestampMonotonic=500\nActiveEnterTimestampMonotonic=900\n", "active", true, 500, ""},
		"no main pid": {"LoadState=loaded\nActiveState=active\nMainPID=0\nExecMainStartTimestampMonotonic=500\nActiveEnterTimestampMonotonic=900\n", "active", true, 900, ""},
		"reloading":   {"LoadState=loaded\nActiveState=reloading\nMainPID=42\nExecMainStartTimestampMonotonic=500\n", "reloading", true, 500, ""},
		"starting":    {"LoadState=loaded\nActiveState=activating\nMainPID=0\nActiveEnterTimestampMonotonic=0\n", "activating", true, 0, ""},
		"stopped":     {"LoadState=loaded\nActiveState=inactive\nMainPID=0\nActiveEnterTimestampMonotonic=900\n", "inactive", false, -1, ""},
		"failed":      {"LoadState=loaded\nActiveState=failed\nMainPID=0\n", "failed", false, -1, ""},
		"unknown":     {"LoadState=not-found\nActiveState=inactive\n", "", false, 0, "systemd knows no unit x.service; check unit:"},
		"nothing":     {"", "", false, 0, "does not say whether the unit is active"},
	} {
		t.Run(name, func(t *testing.T) {
			u, err := parseUnit("x.service", tc.text)
			if tc.want != "" {
				if err == nil || !strings.Contains(err.Error(), tc.want) {
					t.Errorf("%v", err)
				}
				return
			}
			if err != nil || u.State != tc.state || u.Running() != tc.running {
				t.Fatalf("%+v, %v", u, err)
			}
			at := now(0)
			at.Mono = max(tc.after, 0)
			if got := u.StartedAfter(at); got != (tc.after >= 0) {
				t.Errorf("started after %d: %v", at.Mono, got)
			}
			if at.Mono++; u.StartedAfter(at) {
				t.Errorf("started after %d too", at.Mono)
			}
			// Before the machine was last started is before everything; at an unknown time is never.
			at.Boot = "another"
			if u.StartedAfter(at) != tc.running || u.StartedAfter(Moment{}) {
				t.Error("the start of the machine does not count")
			}
		})
	}
}

// A process is told from one that started a moment later, by the very tick: as often as one looks.
func TestStartsAreToldApart(t *testing.T) {
	start := func() *exec.Cmd {
		cmd := exec.Command("sleep", "1000")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
		return cmd
	}
	for range 10 {
		before := start()
		swap := New().Now()
		time.Sleep(swap.Until())
		after := start()
		for cmd, want := range map[*exec.Cmd]bool{before: true, after: false} {
			s, err := startOfPID(cmd.Process.Pid)
			if err != nil || s.Before(swap) != want {
				t.Errorf("%+v, %v: before %+v is not %v", s, err, swap, want)
			}
			if off := time.Since(s.Wall); off < -Tick || off > 10*time.Second {
				t.Errorf("its start is %s ago", off)
			}
		}
	}
	gone := start()
	gone.Process.Kill()
	gone.Wait()
	if _, err := startOfPID(gone.Process.Pid); err == nil || !strings.Contains(err.Error(), "is gone") {
		t.Error(err)
	}
	zombie := start()
	zombie.Process.Kill()
	for deadline := time.Now().Add(5 * time.Second); ; {
		if _, err := startOfPID(zombie.Process.Pid); err != nil && strings.Contains(err.Error(), "has ended") {
			break
		} else if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
	if _, err := readPID(os.DevNull); err == nil {
		t.Error("a device is no pid file")
	}
}
