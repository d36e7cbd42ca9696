package agent

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/report"
)

// StateConfirmed is the state of a service that is confirmed at its required grade.
const StateConfirmed = "confirmed"

// The other states of a service in a report.
const (
	stateConfirmed    = StateConfirmed
	stateWaiting      = "waiting"
	stateUnreachable  = "not reachable"
	stateNotRunning   = "not running"
	stateReloadFailed = "reload failed"
)

// probeAll asks every process of the release that runs, once.
func (a *Agent) probeAll(ctx context.Context) {
	a.health = map[string]health{}
	if a.cur != nil {
		a.health = a.askAll(ctx, slices.Collect(maps.Keys(a.cur.Services)))
	}
}

// awaitConfirmed asks until every service of the trial whose files changed is confirmed, each for its own `within`. It is an error if one that answered
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
			if _, in := a.cur.Services[name]; !in {
				continue
			}
			h, asked := a.health[name]
			failure := h.failure()
			if !asked || t.Back && failure == nil || h.ok() {
				continue
			}
			if a.now().Sub(started) < a.cfg.Services[name].within() {
				open = append(open, name)
				continue
			}
			if failure != nil && slices.Contains(t.Well, name) {
				return true, &Fault{Code: CodeUnwell, Err: fmt.Errorf("%s answered before the change and does not after it: %w", name, failure)}
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
	s := report.Service{Expected: a.cur.Services[name].Epoch, Grade: manifest.GradeDisk, State: stateWaiting, Restarts: a.restarts(name)}
	h, asked := a.health[name]
	voices := cfg.voices()
	a.voiced(&s, cfg, h, asked)
	o, owes := a.st.Owed[name]
	reloaded := len(cfg.Reload) > 0 && a.st.Services[name].Reloaded
	switch {
	case a.linkErrs[name] != nil:
		s.Reason = report.CutReason(a.linkErrs[name].Error())
	case owes && o.Tries > 0:
		s.State, s.Reason = stateReloadFailed, o.Reason
	case owes:
		s.Reason = "its reload has not run yet"
	case h.stopped != "":
		s.State, s.Reason = stateNotRunning, h.stopped
	case len(voices) > 0 && !asked:
		s.Reason = "its process has not been asked yet"
	case len(voices) > 0:
		a.heard(&s, h, reloaded)
	case cfg.Unit != "" && h.started:
		s.Grade = manifest.GradeRestarted
	case reloaded:
		s.Grade = manifest.GradeReloaded
	}
	need := a.required(name)
	switch {
	case need.Rank() > 0 && s.Grade.Rank() >= need.Rank() && !owes && a.linkErrs[name] == nil: // a grade of a later version is never reached by mistake
		s.State = stateConfirmed
	case s.Reason != "":
	case h.unitErr != nil:
		s.Reason = report.CutReason(h.unitErr.Error())
	default:
		s.Reason = fmt.Sprintf("its evidence is %s and %s is required; %s", s.Grade, need, remedy(need))
	}
	if s.Healthy != nil && !*s.Healthy && s.Reason == "" {
		s.Reason = report.CutReason("not healthy: " + h.well.Error())
	}
	return s
}

// voiced fills in what each process said.
func (a *Agent) voiced(s *report.Service, cfg ServiceConfig, h health, asked bool) {
	if !asked {
		return
	}
	s.AgeS = a.now().Sub(h.at).Seconds()
	if cfg.Healthy != nil && h.stopped == "" {
		well := h.well == nil
		s.Healthy = &well
	}
	for _, v := range h.voices {
		if v.instance == "" {
			s.Epoch = v.epoch
			continue
		}
		if s.Instances == nil {
			s.Instances = map[string]report.ServiceInstance{}
		}
		i := report.ServiceInstance{Epoch: v.epoch, State: stateConfirmed, Reason: v.why(s.Expected)}
		switch {
		case v.err != nil:
			i.State = stateUnreachable
		case !v.ok:
			i.State = stateWaiting
		}
		s.Instances[v.instance] = i
		if len(s.Instances) == 1 || v.epoch < s.Epoch {
			s.Epoch = v.epoch // the one that is furthest behind
		}
	}
}

// heard sets grade and state of a service by its processes: the lowest of them.
func (a *Agent) heard(s *report.Service, h health, reloaded bool) {
	grade := manifest.GradeProcess
	for _, v := range h.voices {
		g := manifest.GradeDisk
		switch {
		case v.ok:
			g = v.grade()
		case v.err == nil && v.confirm.startOnly() && reloaded:
			g = manifest.GradeReloaded // that it has not started anew says nothing against the hook
		}
		if g.Rank() < grade.Rank() {
			grade = g
		}
		if v.ok || s.State == stateUnreachable {
			continue
		}
		why := v.why(s.Expected)
		if v.instance != "" {
			why = v.instance + ": " + why
		}
		switch {
		case v.err != nil:
			s.State, s.Reason = stateUnreachable, report.CutReason(why)
		case s.Reason == "":
			s.Reason = report.CutReason(why)
		}
	}
	s.Grade = grade
}

// remedy says what agent.yaml has to have for a grade.
func remedy(g manifest.Grade) string {
	switch g {
	case manifest.GradeProcess:
		return "give it a `confirm` in agent.yaml"
	case manifest.GradeRestarted:
		return "give it a `unit`, or a `confirm` with unit or pid_file, in agent.yaml, and a `reload` that starts its process anew"
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
