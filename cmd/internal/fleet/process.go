package fleet

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path"
	"sync"
	"time"

	"github.com/muster-config/muster/agent"
	"github.com/muster-config/muster/agent/probe"
	"github.com/muster-config/muster/distributor/bundle"
)

// Harm is what a release does to a host that runs it.
type Harm struct {
	After     time.Duration // it begins so long after the process loaded it
	ErrorRate float64       // share of its requests that fail, on top of what fails anyway
	Latency   time.Duration // that each of its answers takes longer
	Ill       bool          // its processes answer nobody who asks how they are
	Refused   error         // the host's own check says this of the files
	Restarts  time.Duration // its processes crash and start anew so often; 0: never
}

// processes are those of one host, one a service. It is the agent's Prober.
type processes struct {
	disk    *disk
	effect  func(epoch uint64, files []bundle.File) Harm
	latency time.Duration
	deaf    bool  // they do not hear reloads
	refuses bool  // the host's check takes nothing but its first release
	faults  error // what a refusing check says

	mu      sync.Mutex
	boot    time.Time
	loaded  map[string]*loaded
	reloads int
	rng     *rand.Rand
}

// loaded is what a process has read.
type loaded struct {
	in      *installed
	at      time.Time
	started time.Time
	harm    Harm
}

var _ agent.Prober = (*processes)(nil)

// Run implements agent.Prober: a check, or a reload.
func (p *processes) Run(_ context.Context, c probe.Command) probe.Result {
	service := c.Env["MUSTER_SERVICE"]
	switch path.Base(c.Argv[0]) {
	case "check":
		return probe.Result{Err: p.check(c.Dir)}
	case "reload":
		p.disk.moved()
		p.load(service)
	}
	return probe.Result{}
}

func (p *processes) check(dir string) error {
	p.disk.mu.Lock()
	in := p.disk.releases[path.Dir(dir)]
	first := p.disk.current == nil
	p.disk.mu.Unlock()
	if in == nil {
		return fmt.Errorf("%s is not there", dir)
	}
	if p.refuses && !first {
		return p.faults
	}
	return p.effect(in.Epoch, in.files).Refused
}

// load has a process read its files.
func (p *processes) load(service string) {
	in := p.disk.runs()
	p.mu.Lock()
	defer p.mu.Unlock()
	if in == nil || p.deaf && p.loaded[service] != nil {
		return
	}
	now := time.Now()
	started := p.boot
	if was := p.loaded[service]; was != nil {
		started = was.started
	}
	p.loaded[service] = &loaded{in: in, at: now, started: started, harm: p.effect(in.Epoch, in.files)}
	p.reloads++
}

// of is what a process has loaded, and the harm that it does now.
func (p *processes) of(service string) (*loaded, Harm) {
	p.mu.Lock()
	defer p.mu.Unlock()
	l := p.loaded[service]
	if l == nil {
		return nil, Harm{}
	}
	return l, l.now()
}

func (l *loaded) now() Harm {
	if time.Since(l.at) < l.harm.After {
		return Harm{}
	}
	return l.harm
}

// worst is the harm that the host's processes do now.
func (p *processes) worst() (h Harm) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, l := range p.loaded {
		n := l.now()
		h.ErrorRate, h.Latency, h.Ill = max(h.ErrorRate, n.ErrorRate), max(h.Latency, n.Latency), h.Ill || n.Ill
	}
	return h
}

// Ask implements agent.Prober. The last part of the URL is the service.
func (p *processes) Ask(ctx context.Context, q probe.Question) (probe.Answer, error) {
	service := path.Base(q.URL)
	l, harm := p.of(service)
	if err := p.answer(ctx, harm); err != nil {
		return probe.Answer{}, err
	}
	if l == nil {
		return probe.Answer{}, nil // it runs, and has loaded nothing
	}
	return probe.Answer{Epoch: l.in.Services[service].Epoch}, nil
}

// Well implements agent.Prober.
func (p *processes) Well(ctx context.Context, h probe.Health) error {
	_, harm := p.of(path.Base(h.URL))
	return p.answer(ctx, harm)
}

// answer takes as long as an answer takes.
func (p *processes) answer(ctx context.Context, harm Harm) error {
	if d := p.latency + harm.Latency; d > 0 {
		p.mu.Lock()
		d = d/2 + time.Duration(p.rng.Int64N(int64(d)+1)) // no two are alike
		p.mu.Unlock()
		t := time.NewTimer(d)
		defer t.Stop()
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-t.C:
		}
	}
	if harm.Ill {
		return errors.New("the process answers 500 Internal Server Error")
	}
	return nil
}

// Unit implements agent.Prober. The unit is named after its service.
func (p *processes) Unit(_ context.Context, name string) (probe.Unit, error) {
	service := name[:max(len(name)-len(".service"), 0)]
	l, harm := p.of(service)
	u := probe.Unit{State: "active"}
	if l != nil {
		p.mu.Lock()
		if harm.Restarts > 0 && time.Since(l.started) >= harm.Restarts {
			l.started = time.Now()
		}
		u.Start = l.started.Format(time.RFC3339Nano)
		p.mu.Unlock()
	}
	return u, nil
}

// Now implements agent.Prober.
func (p *processes) Now() probe.Moment {
	us := time.Since(p.boot).Microseconds() + 1
	return probe.Moment{Wall: time.Now().UTC(), Boot: "simulated", Up: us, Mono: us}
}
