package sim

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
)

// traceShown is how much of the trace a failure shows; traceKept how much is kept.
const (
	traceShown = 120
	traceKept  = 4000
)

// trace is what happened. Its sum does not depend on the order in which two things of one instant were noted.
type trace struct {
	mu    sync.Mutex
	total uint64
	lines []string
}

// note adds an event.
func (w *World) note(who, what, format string, args ...any) {
	line := fmt.Sprintf(format, args...)
	at := time.Since(w.start)
	w.trace.mu.Lock()
	defer w.trace.mu.Unlock()
	w.trace.total += mix(text(who, what, line) ^ uint64(at))
	w.trace.lines = append(w.trace.lines, fmt.Sprintf("%12.6f %-10s %-12s %s", at.Seconds(), who, what, line))
	if n := len(w.trace.lines); n > 2*traceKept {
		w.trace.lines = append([]string{}, w.trace.lines[n-traceKept:]...)
	}
}

func (t *trace) sum() uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.total
}

// end gives the last lines, those of logs apart.
func (t *trace) end(n int) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	lines := slices.DeleteFunc(slices.Clone(t.lines), func(s string) bool { return strings.Contains(s[13:], " log ") })
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
