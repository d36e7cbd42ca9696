package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"github.com/muster-config/muster/agent/probe"
	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/report"
)

// A service has a voice for each of its processes that is asked: one, or one an instance.
type voice struct {
	instance string // "" for the one of a service without instances
	confirm  *ConfirmConfig
}

func (s ServiceConfig) voices() []voice {
	if s.Confirm != nil {
		return []voice{{"", s.Confirm}}
	}
	list := make([]voice, len(s.Instances))
	for i, in := range s.Instances {
		list[i] = voice{in.Name, in.Confirm}
	}
	return list
}

// within is how long a change of the service may take to be confirmed.
func (s ServiceConfig) within() time.Duration {
	var most time.Duration
	for _, v := range s.voices() {
		most = max(most, v.confirm.Within)
	}
	return cmp.Or(most, DefaultWithin)
}

// timed says whether times of processes or files are compared with that of the swap.
func (s ServiceConfig) timed() bool {
	for _, v := range s.voices() {
		if v.confirm.startOnly() || v.confirm.File != "" {
			return true
		}
	}
	return s.Unit != ""
}

func (c *ConfirmConfig) startOnly() bool {
	return c.HTTP == "" && c.File == "" && len(c.Command) == 0
}

// heard is what one voice said.
type heard struct {
	voice
	epoch uint64
	ok    bool   // it states an epoch under which its installed bytes were installed, or has started since they were
	stale string // it said something that is older than what is installed
	start string // names the start of its process, where that is known
	err   error  // it is ill, not there, or not ours
}

// why says in one sentence why the voice does not confirm expected.
func (h heard) why(expected uint64) string {
	switch {
	case h.ok:
		return ""
	case h.err != nil:
		return report.CutReason(h.err.Error())
	case h.stale != "":
		return h.stale
	case h.confirm.startOnly():
		return fmt.Sprintf("process started before epoch %d was installed", expected)
	case h.epoch == 0:
		return "process has loaded no release yet"
	case h.epoch > expected:
		return fmt.Sprintf("process states epoch %d, which is not installed here", h.epoch)
	}
	return fmt.Sprintf("process still states epoch %d", h.epoch)
}

func (h heard) grade() manifest.Grade {
	if h.confirm.startOnly() {
		return manifest.GradeRestarted
	}
	return manifest.GradeProcess
}

// health is what a service's processes last said about themselves.
type health struct {
	at      time.Time
	voices  []heard
	stopped string // its unit is not running: how it is
	started bool   // its unit has started since the bytes were installed
	start   string // names this start of its unit
	unitErr error  // systemd did not say
	well    error  // what `healthy` came to
}

// ok says whether every process confirms.
func (h health) ok() bool {
	for _, v := range h.voices {
		if !v.ok {
			return false
		}
	}
	return h.stopped == ""
}

// failure is the first process that is ill or not there. One that is alive and has not loaded what is installed is none.
func (h health) failure() error {
	if h.stopped != "" {
		return errors.New(h.stopped)
	}
	for _, v := range h.voices {
		switch {
		case v.err != nil && v.instance != "":
			return fmt.Errorf("%s: %w", v.instance, v.err)
		case v.err != nil:
			return v.err
		}
	}
	return nil
}

// maxAsks bounds how many questions are open at once.
const maxAsks = 32

// askAll asks the processes of services, all at once: their units first, then what they state, and whether they are well. Those that have nothing to be
// asked by are left out, and what a stopped unit would say is not asked.
func (a *Agent) askAll(ctx context.Context, names []string) map[string]health {
	type reply struct {
		health
		took    []time.Duration
		wellIn  time.Duration
		askWell bool
	}
	replies := make(map[string]*reply, len(names))
	slots := make(chan struct{}, maxAsks)
	var wg sync.WaitGroup
	ask := func(f func()) time.Duration {
		slots <- struct{}{}
		defer func() { <-slots }()
		started := time.Now()
		f()
		return time.Since(started)
	}
	for _, name := range names {
		cfg := a.cfg.Services[name]
		voices := cfg.voices()
		if len(voices) == 0 && cfg.Unit == "" && cfg.Healthy == nil {
			continue
		}
		since := a.st.Services[name].Since
		r := &reply{health: health{voices: make([]heard, len(voices))}, took: make([]time.Duration, len(voices)), askWell: cfg.Healthy != nil}
		replies[name] = r
		wg.Go(func() {
			if cfg.Unit != "" {
				ask(func() {
					var u probe.Unit
					u, r.stopped, r.unitErr = a.askUnit(ctx, cfg.Unit)
					r.started, r.start = u.StartedAfter(since), u.Start
				})
			}
			if r.stopped != "" {
				r.voices, r.askWell = nil, false
				return
			}
			var each sync.WaitGroup
			for i, v := range voices {
				each.Go(func() { r.took[i] = ask(func() { r.voices[i] = a.askVoice(ctx, name, v, since) }) })
			}
			if cfg.Healthy != nil {
				r.wellIn = ask(func() {
					r.well = a.opts.Prober.Well(ctx, probe.Health{URL: cfg.Healthy.HTTP, Status: cfg.Healthy.Status})
				})
			}
			each.Wait()
		})
	}
	wg.Wait()
	out := make(map[string]health, len(replies))
	for name, r := range replies {
		for i, v := range r.voices {
			probeName := name
			if v.instance != "" {
				probeName += "/" + v.instance
			}
			a.count(probeName, r.took[i], v.err)
			if r.start == "" {
				a.sawStart(name, probeName, v.start)
			}
			r.voices[i].ok = v.err == nil && (v.ok || v.stale == "" && !v.confirm.startOnly() && a.st.accepts(name, v.epoch))
		}
		if r.askWell {
			a.count(name+" healthy", r.wellIn, r.well)
		}
		a.sawStart(name, name, r.start)
		r.at = a.now()
		out[name] = r.health
	}
	return out
}

// askUnit: a unit that systemd says nothing about is taken to run, so that its processes are asked.
func (a *Agent) askUnit(ctx context.Context, unit string) (u probe.Unit, stopped string, err error) {
	u, err = a.opts.Prober.Unit(ctx, unit)
	if err == nil && !u.Running() {
		stopped = fmt.Sprintf("unit %s is %s", unit, u.State)
	}
	return u, stopped, err
}

func (a *Agent) askVoice(ctx context.Context, name string, v voice, since probe.Moment) heard {
	c := v.confirm
	q := probe.Question{URL: c.HTTP, Field: c.Field, File: c.File, Unit: c.Unit, PIDFile: c.PIDFile, Since: since}
	if len(c.Command) > 0 {
		dir := ""
		if a.cur != nil {
			dir = filepath.Join(a.cur.Dir, name)
		}
		env := map[string]string{"MUSTER_SERVICE": name, "MUSTER_DIR": dir}
		if v.instance != "" {
			env["MUSTER_INSTANCE"] = v.instance
		}
		q.Command = &probe.Command{Argv: c.Command, Dir: dir, Env: env}
	}
	answer, err := a.opts.Prober.Ask(ctx, q)
	h := heard{voice: v, epoch: answer.Epoch, ok: answer.Started, start: answer.Start, err: err}
	var stale *probe.StaleError
	if errors.As(err, &stale) {
		h.stale, h.err = stale.Error(), nil
	}
	return h
}
