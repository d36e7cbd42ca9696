package agent

import (
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/report"
)

// ProbeTotal sums up a probe since the agent started.
type ProbeTotal struct {
	Count    int     `json:"count"`
	Failures int     `json:"failures"`
	Seconds  float64 `json:"seconds"` // that all of them took together
}

// probeCount sums up a probe since the last report that said so.
type probeCount struct {
	count, failures int
	took            []time.Duration // the newest few
}

// maxTook bounds what a median is made of.
const maxTook = 100

// counts are what the probes came to: since the start for who looks at this host, and since the last report that told it for the collector. A report that never arrives, or is replaced by a newer
// one before it was sent, takes nothing with it.
type counts struct {
	mu     sync.Mutex
	totals map[string]ProbeTotal
	since  map[string]*probeCount
}

func newCounts() *counts {
	return &counts{totals: map[string]ProbeTotal{}, since: map[string]*probeCount{}}
}

func (c *counts) add(name string, took time.Duration, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	t, p := c.totals[name], c.since[name]
	if p == nil {
		p = &probeCount{}
		c.since[name] = p
	}
	t.Count++
	p.count++
	if err != nil {
		t.Failures++
		p.failures++
	}
	t.Seconds += took.Seconds()
	c.totals[name] = t
	if len(p.took) == maxTook {
		p.took = p.took[1:]
	}
	p.took = append(p.took, took)
}

// all is a copy of the sums since the start.
func (c *counts) all() map[string]ProbeTotal {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.totals)
}

// untold is what no report has told yet.
func (c *counts) untold() map[string]report.Probe {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.since) == 0 {
		return nil
	}
	list := make(map[string]report.Probe, len(c.since))
	for name, p := range c.since {
		took := slices.Sorted(slices.Values(p.took))
		list[name] = report.Probe{Count: p.count, Failures: p.failures, P50MS: millis(took[len(took)/2]), MaxMS: millis(took[len(took)-1])}
	}
	return list
}

// told takes off what a report has told.
func (c *counts) told(list map[string]report.Probe) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for name, t := range list {
		p := c.since[name]
		if p == nil {
			continue
		}
		p.count, p.failures = p.count-t.Count, p.failures-t.Failures
		if p.count <= 0 {
			delete(c.since, name)
			continue
		}
		p.took = p.took[max(len(p.took)-p.count, 0):]
	}
}

func (a *Agent) count(name string, took time.Duration, err error) { a.counts.add(name, took, err) }

// watched says whether somebody judges this host by its probes now: then every report tells them, and is no mere sign of life.
func (a *Agent) watched() bool {
	if a.view == nil {
		return false
	}
	ro := a.view.Manifest.Rollout
	if ro.Baseline == ro.Target && ro.Fallback == 0 {
		return false
	}
	for _, g := range ro.Policy.Gates {
		if g.Reported == "probe_failures" || g.Reported == "probe_latency" {
			return true
		}
	}
	return false
}

// starts are how the processes of services were last seen to have started, and how often they started anew since the phase of the rollout began: of what the host did before, the release that
// is on trial is not to blame.
type starts struct {
	phase time.Time         // begin of the phase
	last  map[string]string // service, or service/instance → what names the start of its process
	again map[string]int    // service → restarts
}

// sawStart notes how a process has started. A start during a change, or after a reload, is wanted.
func (a *Agent) sawStart(service, process, start string) {
	if start == "" {
		return
	}
	was, known := a.starts.last[process]
	a.starts.last[process] = start
	if known && was != start && a.st.Trial == nil {
		a.newPhase()
		a.starts.again[service]++
	}
}

// reloaded forgets how the processes of a service had started: its reload may start them anew.
func (a *Agent) reloaded(service string) {
	maps.DeleteFunc(a.starts.last, func(process, _ string) bool { return process == service || strings.HasPrefix(process, service+"/") })
}

// newPhase begins to count anew when the rollout has.
func (a *Agent) newPhase() {
	var ro manifest.Rollout
	if a.view != nil {
		ro = a.view.Manifest.Rollout
	}
	if !ro.Since.Equal(a.starts.phase) {
		a.starts.phase = ro.Since
		clear(a.starts.again)
	}
}

func (a *Agent) restarts(service string) int {
	a.newPhase()
	return a.starts.again[service]
}
