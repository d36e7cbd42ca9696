package agent

import (
	"context"
	"maps"
	"time"
)

// Once does one full sync: every source is asked, pauses and limits after failures do not count, and the report is sent before it returns. With install it
// ends after the swap: the service that is about to start loads the new files by itself.
func (a *Agent) Once(ctx context.Context, install bool) (OnceResult, error) {
	a.hurry()
	if err := a.start(ctx); err != nil {
		return OnceResult{}, err
	}
	if !install && a.cfg.Mode == ModeEnforce {
		if err := a.resume(ctx); err != nil {
			a.log.Warn("a change that was interrupted did not end well", "err", err)
		}
	}
	before := a.services()
	sources := a.resync(ctx)
	how := once
	if install {
		how = onceInstall
	}
	err := a.settle(ctx, how)
	if rerr := a.out.sendOnce(ctx); rerr != nil {
		a.log.Warn("report not delivered", "err", rerr)
	}
	return a.result(sources, before), err
}

// Waits of Once, for what a source or the collector may take to begin its answer, and for what a body may stall.
const (
	onceAsk   = 5 * time.Second
	onceStall = 8 * time.Second
)

func (a *Agent) services() map[string]string {
	m := map[string]string{}
	if a.cur != nil {
		for name, s := range a.cur.Services {
			m[name] = s.Digest
		}
	}
	return m
}

func (a *Agent) result(sources []SourceResult, before map[string]string) OnceResult {
	r := a.report()
	res := OnceResult{
		Host: r.Host, Cohort: r.Cohort, Seen: r.Seen, Desired: r.Desired, Running: r.Running, Content: r.Content, Phase: string(r.Phase), Grade: r.Grade,
		Confirmed: r.Confirmed, Reason: r.Reason, Code: r.Code, Held: r.Held, Override: r.Override, Sources: sources, Changed: []string{}, Waiting: []WaitingService{},
	}
	res.Installed = a.want != nil && a.want.is(a.cur) && len(a.drift) == 0
	after := a.services()
	all := maps.Clone(before)
	maps.Copy(all, after)
	for _, name := range sorted(all) {
		if before[name] != after[name] {
			res.Changed = append(res.Changed, name)
		}
	}
	for _, name := range sorted(r.Services) {
		if s := r.Services[name]; s.State != stateConfirmed {
			res.Waiting = append(res.Waiting, WaitingService{Service: name, State: s.State, Reason: s.Reason})
		}
	}
	return res
}
