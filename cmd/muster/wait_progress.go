package main

import (
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/term"

	"github.com/muster-config/muster/cmd/internal/cli"
	"github.com/muster-config/muster/distributor/api"
)

// progress shows how the waiting goes.
type progress interface {
	line(text string)        // something that is no answer
	answer(g *api.Wait)      // the newest answer, which is not green
	end()                    // what follows is printed for good; may be called again
	patience() time.Duration // how long to wait for the next answer
}

// progressOn is live on a terminal and plain elsewhere.
func progressOn(w io.Writer) progress {
	if f, ok := w.(*os.File); ok && term.IsTerminal(int(f.Fd())) && os.Getenv("TERM") != "dumb" && escapes(f) {
		return &liveProgress{w: f, start: time.Now(), size: func() (int, int) {
			width, height, err := term.GetSize(int(f.Fd()))
			if err != nil {
				return 80, 24
			}
			return width, height
		}}
	}
	return plain(w)
}

// plainProgress prints a dated line when something changed.
type plainProgress struct {
	w    io.Writer
	last string
}

func plain(w io.Writer) *plainProgress { return &plainProgress{w: w} }

func (p *plainProgress) line(text string) {
	if text = cli.Printable(text); text != p.last {
		fmt.Fprintf(p.w, "%s  %s\n", time.Now().UTC().Format(time.RFC3339), text)
	}
	p.last = text
}

func (p *plainProgress) answer(g *api.Wait) {
	p.line(fmt.Sprintf("epoch %d: %s%s", g.Epoch, tally(g), rollouts(g)))
}
func (p *plainProgress) end() {}
func (p *plainProgress) patience() time.Duration {
	return 25 * time.Second
}

// liveProgress keeps one block at the bottom of a terminal, and draws it again in its place.
type liveProgress struct {
	w     io.Writer
	start time.Time
	size  func() (width, height int)

	drawn int    // lines of the block that are on the screen
	text  string // the newest line that is no answer
	g     *api.Wait
	ended bool
}

func (p *liveProgress) line(text string) {
	text = cli.Printable(text)
	if p.ended {
		fmt.Fprintln(p.w, text)
		return
	}
	p.text = text
	p.draw()
}

func (p *liveProgress) answer(g *api.Wait) {
	p.g, p.text = g, ""
	p.draw()
}

// patience is short: the sentences hold ages, and a person looks on.
func (p *liveProgress) patience() time.Duration { return 2 * time.Second }

func (p *liveProgress) end() {
	p.wipe()
	p.ended = true
}

// wipe takes the block off the screen: up to its first line, and all below is erased.
func (p *liveProgress) wipe() {
	if p.drawn > 0 {
		fmt.Fprintf(p.w, "\x1b[%dA\x1b[J", p.drawn)
	}
	p.drawn = 0
}

func (p *liveProgress) draw() {
	width, height := p.size()
	var b strings.Builder
	lines := p.block(max(20, width), max(4, height-1))
	for _, line := range lines {
		b.WriteString(line + "\n")
	}
	p.wipe()
	io.WriteString(p.w, b.String())
	p.drawn = len(lines)
}

// block is at most height lines, none longer than width: a line that wraps would be two to the terminal and one to us.
func (p *liveProgress) block(width, height int) []string {
	elapsed := cli.Elapsed(time.Since(p.start).Truncate(time.Second))
	head := "waiting"
	var rest []string
	if g := p.g; g != nil {
		head = fmt.Sprintf("epoch %d: %s of %s confirmed%s", g.Epoch, cli.Number(g.Confirmed), cli.Count(g.Confirmed+len(g.Waiting)+g.Owed, "host"), owed(g))
		rest = hostLines(g)
	}
	lines := []string{head + ", " + elapsed}
	if p.text != "" {
		lines = append(lines, "  "+p.text)
	}
	if room := height - len(lines); len(rest) > room {
		more := len(rest) - (room - 1)
		rest = append(rest[:max(0, room-1)], fmt.Sprintf("  … and %s more", cli.Number(more)))
	}
	lines = append(lines, rest...)
	for i, line := range lines {
		lines[i] = cut(line, width-1)
	}
	return lines
}

// hostLines name the hosts that are not confirmed, and why; and each cohort of which no host says why it is not green.
func hostLines(g *api.Wait) []string {
	var whys []string
	for _, name := range slices.Sorted(maps.Keys(g.Cohorts)) {
		c := g.Cohorts[name]
		if !c.Green && len(c.Waiting) == 0 && c.Why != "" {
			whys = append(whys, cli.Printable("  "+name+": "+c.Why))
		}
		if c.Rollout != "" {
			whys = append(whys, cli.Printable("  "+name+": "+c.Rollout))
		}
	}
	var b strings.Builder
	cli.PrintTable(&b, hostRows(g, false))
	return append(whys, strings.FieldsFunc(b.String(), func(r rune) bool { return r == '\n' })...)
}

// rollouts is "; prod-eu: wave 1 of 3 bakes until …" for each cohort whose rollout is under way.
func rollouts(g *api.Wait) string {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(g.Cohorts)) {
		if c := g.Cohorts[name]; c.Rollout != "" {
			b.WriteString("; " + name + ": " + c.Rollout)
		}
	}
	return b.String()
}

// cut shortens a line to a width, in runes.
func cut(s string, width int) string {
	if utf8.RuneCountInString(s) <= width {
		return s
	}
	runes := []rune(s)
	return string(runes[:width-1]) + "…"
}
