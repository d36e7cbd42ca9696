package collector

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/muster-config/muster/distributor/api"
	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/rollout"
	"github.com/muster-config/muster/distributor/rollout/gate"
	"github.com/muster-config/muster/distributor/rollout/standing"
)

// maxQueue bounds the releases that are listed as waiting.
const maxQueue = 100

// overheard is what a controller in this process hears, and says: for the page and the API, which decide nothing by it. Its lock comes after Collector.mu.
type overheard struct {
	mu    sync.Mutex
	gates map[string]gatesSaid
	waits map[string]string
}

type gatesSaid struct {
	epoch uint64
	wave  int
	list  []manifest.GateVerdict
}

// listening is an asker whose answers are overheard.
type listening struct {
	gate.Asker
	c *Collector
}

// Overhear gives the asker to a controller in this process in such a way that the API and the page show what its gates say now, and not only what the last order rests on.
func (c *Collector) Overhear(a gate.Asker) gate.Asker { return listening{a, c} }

func (l listening) Judge(ctx context.Context, q gate.Question) []manifest.GateVerdict {
	list := l.Asker.Judge(ctx, q)
	o := &l.c.overheard
	o.mu.Lock()
	before := o.gates[q.Cohort]
	if o.gates == nil {
		o.gates = map[string]gatesSaid{}
	}
	o.gates[q.Cohort] = gatesSaid{q.Epoch, q.Wave, list}
	o.mu.Unlock()
	if !slices.EqualFunc(before.list, list, func(a, b manifest.GateVerdict) bool {
		return a.Gate == b.Gate && a.Outcome == b.Outcome && a.Why == b.Why && len(a.Samples) == len(b.Samples)
	}) {
		l.c.mu.Lock()
		l.c.bump()
		l.c.mu.Unlock()
	}
	return list
}

// Waits takes down what a controller in this process waits for with a cohort; nil for nothing.
func (c *Collector) Waits(cohort string, err error) {
	why := ""
	if err != nil && !errors.Is(err, rollout.ErrUnjudged) { // that passes within a look
		why = err.Error()
		if _, after, ok := strings.Cut(why, rollout.ErrStopped.Error()+": "); ok {
			why = after
		}
	}
	o := &c.overheard
	o.mu.Lock()
	if o.waits == nil {
		o.waits = map[string]string{}
	}
	changed := o.waits[cohort] != why
	o.waits[cohort] = why
	o.mu.Unlock()
	if changed {
		c.mu.Lock()
		c.bump()
		c.mu.Unlock()
	}
}

// of is what is overheard of a cohort, as far as it is about the rollout that the head names.
func (o *overheard) of(cohort string, r *manifest.Rollout) (list []manifest.GateVerdict, live bool, waits string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	said, ok := o.gates[cohort]
	live = ok && said.epoch == r.Target && said.wave == r.Wave && said.wave > 0 && r.Phase != manifest.PhaseHalted && r.Phase != manifest.PhaseRollingBack
	if live {
		list = said.list
	}
	return list, live, o.waits[cohort]
}

// rolloutOf says where a cohort's rollout stands; nil before its first head. hosts are all of the cohort; without whole they are not counted for one that
// is at rest. Under c.mu.
func (c *Collector) rolloutOf(name string, hosts []judged, now time.Time, whole bool) *api.Rollout {
	co := c.cohorts[name]
	if co == nil || co.view == nil {
		return nil
	}
	in := standing.Input{Cohort: name, View: co.view, Now: now}
	in.Queue, in.Blocked = c.queue(name, &co.view.Manifest.Rollout)
	in.Gates, in.Live, in.Said = c.overheard.of(name, &co.view.Manifest.Rollout)
	if r := standing.Of(in); hosts == nil && !whole || !whole && atRest(r) {
		return r // nobody looks at hosts that only run what they are to run
	}
	in.Hosts = make([]standing.Host, 0, len(hosts))
	for _, h := range hosts {
		if !h.Input.Expected || h.Input.Retired {
			continue
		}
		s := standing.Host{Name: h.Input.Host, Verdict: h.Verdict.Code, Why: h.Verdict.Why, Running: h.Verdict.Running}
		if h.Input.Report != nil {
			s.Labels = h.Input.Report.Labels
		}
		in.Hosts = append(in.Hosts, s)
	}
	return standing.Of(in)
}

// queue are the releases above the target that carry something for a cohort, the oldest first; and why the newest has nothing for it. Under c.mu.
func (c *Collector) queue(name string, r *manifest.Rollout) (list []api.Queued, blocked string) {
	for i, rel := range slices.Backward(c.releases) {
		if rel.Epoch <= r.Target || len(list) == maxQueue {
			break
		}
		rc := rel.Cohorts[name]
		switch rc.State {
		case manifest.StateBuilt:
			list = append(list, api.Queued{Epoch: rel.Epoch, Commit: rel.Commit, Subject: rel.Subject, Author: rel.Author.Name, Created: rel.Created})
		case manifest.StateBlocked:
			if i == len(c.releases)-1 {
				blocked = rc.Reason
			}
		}
	}
	slices.Reverse(list)
	return list, blocked
}

// atRest says that there is nothing to say of a rollout but that it is done.
func atRest(r *api.Rollout) bool {
	return r.Phase == manifest.PhaseDone && r.Fallback == 0 && len(r.Queue)+len(r.Halts)+len(r.Freezes) == 0 && r.Pause == nil
}

// Rollout says where a cohort's rollout stands; nil before its first head.
func (c *Collector) Rollout(_ context.Context, cohort string) (*api.Rollout, error) {
	now := c.now()
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.rolloutOf(cohort, c.judge(cohort, now), now, true), nil
}

func (c *Collector) getCohort(w http.ResponseWriter, r *http.Request, who caller) error {
	name := r.PathValue("cohort")
	co, ok := c.status(who).Cohorts[name]
	if !ok {
		return refuse(http.StatusNotFound, "`muster status` lists them", "no cohort %.80q", name)
	}
	var err error
	if co.Rollout, err = c.Rollout(r.Context(), name); err != nil {
		return err
	}
	return answer(w, co)
}
