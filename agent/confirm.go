package agent

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/muster-config/muster/agent/probe"
	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/report"
)

// The states of a service in a report.
const (
	stateConfirmed    = "confirmed"
	stateWaiting      = "waiting"
	stateUnreachable  = "not reachable"
	stateReloadFailed = "reload failed"
)

// health is what a service's process last said about itself.
type health struct {
	at    time.Time
	epoch uint64
	ok    bool // it states an epoch under which its installed bytes were installed
	err   error
}

// probeCount sums up a probe since the last report.
type probeCount struct {
	count, failures int
	took            []time.Duration // the newest few
}

const maxTook = 100

func (a *Agent) count(name string, took time.Duration, err error) {
	p := a.probes[name]
	if p == nil {
		p = &probeCount{}
		a.probes[name] = p
	}
	p.count++
	if err != nil {
		p.failures++
	}
	if len(p.took) == maxTook {
		p.took = p.took[1:]
	}
	p.took = append(p.took, took)
}

// askAll asks the processes of services for their epoch, all at once. Services without `confirm` are left out.
func (a *Agent) askAll(ctx context.Context, names []string) map[string]health {
	type reply struct {
		health
		took time.Duration
	}
	replies := make(map[string]*reply, len(names))
	var wg sync.WaitGroup
	for _, name := range names {
		c := a.cfg.Services[name].Confirm
		if c == nil {
			continue
		}
		r := &reply{}
		replies[name] = r
		wg.Go(func() {
			started := time.Now()
			r.epoch, r.err = a.opts.Prober.Ask(ctx, probe.Field{URL: c.HTTP, Path: c.Field})
			r.took = time.Since(started)
		})
	}
	wg.Wait()
	out := make(map[string]health, len(replies))
	for name, r := range replies {
		a.count(name, r.took, r.err)
		r.at = a.now()
		r.ok = r.err == nil && a.st.accepts(name, r.epoch)
		out[name] = r.health
	}
	return out
}

// probeAll asks every process of the release that runs, once.
func (a *Agent) probeAll(ctx context.Context) {
	a.health = map[string]health{}
	if a.cur != nil {
		a.health = a.askAll(ctx, slices.Collect(maps.Keys(a.cur.Services)))
	}
}

// awaitConfirmed asks until every service of the trial whose files changed states its epoch, each for its own `within`. It is an error if one that answered
// before the swap does not answer at the end of that time: the change made it ill. One that answers and states an older epoch is alive and deaf, and that
// is no error. ended is false when the wait was cut short, by the end of ctx or by a head that assigns something else.
func (a *Agent) awaitConfirmed(ctx context.Context, t *trial) (ended bool, err error) {
	a.probeAll(ctx)
	started := a.now()
	pause := a.timing.probe
	asks := 0
	for {
		var open []string
		for _, name := range t.Waits {
			c := a.cfg.Services[name].Confirm
			if _, in := a.cur.Services[name]; !in || c == nil {
				continue
			}
			h := a.health[name]
			if t.Back && h.err == nil || h.ok {
				continue
			}
			if a.now().Sub(started) < c.Within {
				open = append(open, name)
				continue
			}
			if h.err != nil && slices.Contains(t.Well, name) {
				return true, &Fault{Code: CodeUnwell, Err: fmt.Errorf("%s answered before the change and does not after it: %w", name, h.err)}
			}
		}
		if len(open) == 0 {
			return true, nil
		}
		if asks++; asks == 5 {
			a.publish(true) // it takes long enough to be worth a word
		}
		if a.superseded(ctx, t) || !sleep(ctx, pause) {
			return false, nil
		}
		pause = min(pause*2, time.Second)
		maps.Copy(a.health, a.askAll(ctx, open))
	}
}

// required is the grade that the release asks of a service.
func (a *Agent) required(name string) manifest.Grade {
	if t := a.st.Running; t != nil {
		if g := t.Evidence[name]; g != "" {
			return g
		}
	}
	return manifest.GradeProcess
}

// service says where one service of the release that runs stands.
func (a *Agent) service(name string) report.Service {
	cfg := a.cfg.Services[name]
	s := report.Service{Expected: a.cur.Services[name].Epoch, Grade: manifest.GradeDisk, State: stateWaiting}
	h, asked := a.health[name]
	if asked {
		s.Epoch, s.AgeS = h.epoch, a.now().Sub(h.at).Seconds()
	}
	o, owes := a.st.Owed[name]
	switch {
	case owes && o.Tries > 0:
		s.State, s.Reason = stateReloadFailed, o.Reason
	case owes:
		s.Reason = "its reload has not run yet"
	case cfg.Confirm != nil && !asked:
		s.Reason = "its process has not been asked yet"
	case cfg.Confirm != nil && h.err != nil:
		s.State, s.Reason = stateUnreachable, report.CutReason(h.err.Error())
	case cfg.Confirm != nil && !h.ok && h.epoch == 0:
		s.Reason = "process has loaded no release yet"
	case cfg.Confirm != nil && !h.ok && h.epoch > s.Expected:
		s.Reason = fmt.Sprintf("process states epoch %d, which is not installed here", h.epoch)
	case cfg.Confirm != nil && !h.ok:
		s.Reason = fmt.Sprintf("process still states epoch %d", h.epoch)
	case cfg.Confirm != nil:
		s.Grade = manifest.GradeProcess
	case len(cfg.Reload) > 0 && a.st.Services[name].Reloaded:
		s.Grade = manifest.GradeReloaded
	}
	need := a.required(name)
	switch {
	case need.Rank() > 0 && s.Grade.Rank() >= need.Rank() && !owes: // a grade of a later version is never reached by mistake
		s.State = stateConfirmed
	case s.Reason == "":
		s.Reason = fmt.Sprintf("its evidence is %s and %s is required; %s", s.Grade, need, remedy(need))
	}
	return s
}

// remedy says what agent.yaml has to have for a grade.
func remedy(g manifest.Grade) string {
	switch g {
	case manifest.GradeProcess:
		return "give it a `confirm` in agent.yaml"
	case manifest.GradeReloaded:
		return "give it a `reload` in agent.yaml"
	}
	return "this version of muster-agent cannot give it"
}

// waiting lists the services that are not confirmed, those that say why most clearly first.
func (a *Agent) waiting() []WaitingService {
	var list []WaitingService
	if a.cur == nil {
		return nil
	}
	for _, name := range sorted(a.cur.Services) {
		if s := a.service(name); s.State != stateConfirmed {
			list = append(list, WaitingService{Service: name, State: s.State, Reason: s.Reason})
		}
	}
	return list
}

func sorted[V any](m map[string]V) []string {
	return slices.SortedFunc(maps.Keys(m), cmp.Compare[string])
}
