package main

import (
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-config/muster/distributor/api"
	"github.com/muster-config/muster/distributor/verdict"
)

// screen is a terminal of a width: what is on it after what was written.
type screen struct {
	t     *testing.T
	width int
	lines []string // above the cursor, which is always at the beginning of a line
}

func (s *screen) Write(data []byte) (int, error) {
	text := string(data)
	for text != "" {
		if rest, ok := strings.CutPrefix(text, "\x1b["); ok {
			var n int
			if _, err := fmt.Sscanf(rest, "%dA\x1b[J", &n); err != nil || n > len(s.lines) {
				s.t.Errorf("escape %.12q with %d lines on the screen", rest, len(s.lines))
			}
			s.lines = s.lines[:len(s.lines)-n]
			_, text, _ = strings.Cut(rest, "\x1b[J")
			continue
		}
		line, rest, ok := strings.Cut(text, "\n")
		if !ok {
			s.t.Errorf("no whole line: %q", text)
		}
		if n := len([]rune(line)); n >= s.width {
			s.t.Errorf("a line of %d wraps on a screen of %d: %q", n, s.width, line)
		}
		s.lines = append(s.lines, line)
		text = rest
	}
	return len(data), nil
}

func (s *screen) text() string { return strings.Join(s.lines, "\n") }

func answerOf(confirmed int, hosts ...string) *api.Wait {
	c := verdict.Green{Confirmed: confirmed}
	for _, h := range hosts {
		c.Waiting = append(c.Waiting, verdict.Waiting{Host: h, Verdict: verdict.Applying, Why: "epoch 7 is installed, not confirmed: checkout: process still states epoch 6"})
	}
	return &api.Wait{Epoch: 7, Confirmed: confirmed, Waiting: c.Waiting, Cohorts: map[string]verdict.Green{"prod": c}}
}

// One block is drawn again in its place, never wider or higher than the terminal, and nothing is left of it in the end.
func TestLiveProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &screen{t: t, width: 100}
		p := &liveProgress{w: s, start: time.Now(), size: func() (int, int) { return s.width, 6 }}
		p.line("commit c0ffee is not released yet")
		if got := s.text(); got != "waiting, 0s\n  commit c0ffee is not released yet" {
			t.Errorf("%s", got)
		}
		time.Sleep(3 * time.Second)
		p.answer(answerOf(1, "eu-1", "eu-2\x1b[2J"))
		want := `epoch 7: 1 of 3 hosts confirmed, 3s
  eu-1      prod  applying  epoch 7 is installed, not confirmed: checkout: process still states ep…
  eu-2?[2J  prod  applying  epoch 7 is installed, not confirmed: checkout: process still states ep…`
		if got := s.text(); got != want {
			t.Errorf("got\n%s\nwant\n%s", got, want)
		}
		p.answer(answerOf(1, "a", "b", "c", "d", "e", "f", "g"))
		if len(s.lines) != 2 || !strings.HasPrefix(s.lines[1], "  7 hosts  prod  applying  epoch 7 is installed") {
			t.Errorf("%s", s.text())
		}
		many := answerOf(1, "a", "b", "c", "d", "e", "f", "g")
		for i := range many.Cohorts["prod"].Waiting {
			many.Cohorts["prod"].Waiting[i].Why = fmt.Sprintf("reason %d", i)
		}
		p.answer(many)
		if len(s.lines) != 5 || s.lines[4] != "  … and 4 more" || !strings.HasPrefix(s.lines[3], "  c ") {
			t.Errorf("%s", s.text())
		}
		s.width = 40 // the window shrinks
		p.answer(answerOf(2, "a"))
		p.line("the collector does not answer, trying on: collector is not reachable")
		if len(s.lines) != 3 || !strings.HasPrefix(s.lines[1], "  the collector does not answer") {
			t.Errorf("%s", s.text())
		}
		p.answer(&api.Wait{Epoch: 7, Cohorts: map[string]verdict.Green{"prod": {Why: "nothing is assigned yet"}}})
		if got := s.text(); got != "epoch 7: 0 of 0 hosts confirmed, 3s\n  prod: nothing is assigned yet" {
			t.Errorf("%s", got)
		}
		p.end()
		p.end()
		p.line("epoch 7 is confirmed by 3 hosts")
		if got := s.text(); got != "epoch 7 is confirmed by 3 hosts" {
			t.Errorf("%s", got)
		}
	})
}

// What is no terminal gets plain lines, each only when something changed.
func TestPlainProgress(t *testing.T) {
	var b strings.Builder
	if p, ok := progressOn(&b).(*plainProgress); !ok || p.w != io.Writer(&b) {
		t.Error("not plain")
	}
	p := plain(&b)
	p.answer(answerOf(1, "eu-1"))
	p.answer(answerOf(1, "eu-1"))
	p.answer(answerOf(2))
	p.end()
	got := strings.Split(strings.TrimSpace(b.String()), "\n")
	if len(got) != 2 || !strings.HasSuffix(got[0], "Z  epoch 7: 1 confirmed, 1 waiting (eu-1 applying)") || !strings.HasSuffix(got[1], "epoch 7: 2 confirmed, 0 waiting") {
		t.Errorf("%q", got)
	}
}
