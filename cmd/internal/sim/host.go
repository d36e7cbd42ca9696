package sim

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"strconv"
	"sync"
	"time"

	"github.com/muster-config/muster/agent"
	"github.com/muster-config/muster/agent/probe"
	"github.com/muster-config/muster/distributor/manifest"
)

// hostPoll is the `poll` of every agent. Longer than the default, so that hours cost less.
const hostPoll = 2 * time.Minute

// host is a machine with a disk, processes and, while it is up, an agent.
type host struct {
	w      *World
	fleet  *fleet
	name   string
	labels map[string]string
	clock  clock // under mu

	mu       sync.Mutex
	life     *life // the agent that runs; nil: none
	starts   int
	disk     disk
	procs    map[string]*process
	views    []seen               // heads that reached it, the newest last
	heard    time.Time            // when the collector last accepted a report of it
	by       *server              // which start of it that was
	booted   time.Time            // when its agent last started
	landed   time.Time            // when what is current came to be
	stumbled time.Time            // when it last reported that it cannot take what it was told, and yet tries again
	bad      []badness            // times in which its users saw errors
	downs    []span               // times in which it had no traffic
	rightAt  map[string]time.Time // content → when all its processes last ran it
	assigned string               // content that the head in the store assigns; see orders
	since    time.Time            // since when
	failed   map[string]bool      // contents that this host cannot run
	pocket   pocket
}

// seen is a head as it reached a host.
type seen struct {
	at   time.Time
	mark manifest.Mark
	view *manifest.View
}

// assigns says whether a head assigns a content to a host, or did a moment ago: holds and overrides end.
func (s seen) assigns(h *host, content string, now time.Time, grace time.Duration) bool {
	for _, v := range []*manifest.View{s.view, h.with(s.view), h.unspent(s.view, now)} {
		for _, t := range h.readings(now, grace) {
			if r, err := manifest.Resolve(v, manifest.Host{Name: h.name, Labels: h.labels}, t); err == nil && r.Content == content {
				return true
			}
		}
	}
	return false
}

// badness is a time in which a host answers its users with errors.
type badness struct {
	service string
	span
}

// life is one start of an agent.
type life struct {
	*actor        // its way to the store
	over   *actor // and to the collector
	status func() string
	cancel context.CancelFunc
	done   chan struct{}
}

func newHost(w *World, f *fleet, name string, k int) *host {
	h := &host{w: w, fleet: f, name: name, labels: map[string]string{"zone": "abc"[k%3 : k%3+1]}, procs: map[string]*process{}, rightAt: map[string]time.Time{}, failed: map[string]bool{}}
	if k%9 == 1 {
		h.labels["canary"] = "true"
	}
	// Most clocks are right, some are off by minutes.
	if n := w.fixed("skew", name); n%8 == 0 {
		h.clock.first = time.Duration(n>>8%uint64(20*time.Minute)) - 10*time.Minute
		h.clock.off = h.clock.first
	}
	for _, s := range services {
		h.procs[s] = &process{}
	}
	h.clock.up = w.start
	h.disk = disk{memory: map[string][]byte{}, releases: map[string]*installed{}}
	return h
}

var confirmAt = map[string]string{"app": "http://app.sim/", "web": "http://web.sim/"}

// boot starts the host's agent.
func (h *host) boot() {
	w := h.w
	h.mu.Lock()
	if h.life != nil {
		h.mu.Unlock()
		return
	}
	h.starts++
	h.booted = time.Now()
	off := h.clock.off
	ctx, cancel := context.WithCancel(w.ctx)
	l := &life{
		actor: &actor{w: w, name: h.name}, over: &actor{w: w, name: h.name + "+"}, cancel: cancel, done: make(chan struct{}),
	}
	h.life = l
	starts := h.starts
	h.mu.Unlock()
	if off != 0 {
		w.census.fault(faultSkew)
	}
	svc := map[string]agent.ServiceConfig{}
	for name, url := range confirmAt {
		svc[name] = agent.ServiceConfig{
			Check: []string{"check"}, Reload: []string{"reload"}, Confirm: &agent.ConfirmConfig{HTTP: url, Field: "epoch", Within: 20 * time.Second},
		}
	}
	by := byCollector{h, l.over}
	a, err := agent.New(agent.Options{
		Config: agent.Config{
			Host: h.name, Repo: repo, Cohort: h.fleet.name, Labels: maps.Clone(h.labels), Sources: []string{"mem:"}, Root: "/sim", Poll: hostPoll, Services: svc,
		},
		Keyring: w.keyring, Carriers: []agent.Carrier{by, byStore{agent.StoreCarrier{Store: w.link(l.actor)}, h, l.actor}},
		Installer: &installer{h, l}, Memory: &memory{h, l}, Prober: &prober{h, l}, Reporter: by, Now: h.now, Version: "sim",
	})
	w.must(err)
	h.mu.Lock()
	l.status = func() string { return fmt.Sprintf("%+v", a.Status()) }
	h.mu.Unlock()
	w.note(h.name, "boot", "%d", starts)
	w.wg.Add(1)
	go func() {
		defer w.wg.Done()
		defer close(l.done)
		if err := a.Run(ctx); err != nil && !l.dead.Load() && ctx.Err() == nil {
			w.breach("agents run", "%s: %v", h.name, err)
		}
	}()
}

// kill ends the agent as a power cut does: nothing that it does from now on has any effect.
func (h *host) kill() {
	h.mu.Lock()
	l := h.life
	h.life = nil
	h.mu.Unlock()
	if l == nil {
		return
	}
	l.dead.Store(true)
	l.over.dead.Store(true)
	l.cancel()
	<-l.done
}

// down takes the whole machine down: agent and processes.
func (h *host) down() {
	h.kill()
	h.mu.Lock()
	defer h.mu.Unlock()
	now := time.Now()
	for _, p := range h.procs {
		p.up = false
	}
	h.downs = append(h.downs, span{from: now, to: now.Add(1000 * time.Hour)})
}

// up starts the machine: its processes load what is on disk.
func (h *host) up() {
	h.mu.Lock()
	h.disk.boots++
	h.clock.up = time.Now()
	if n := len(h.downs); n > 0 && h.downs[n-1].has(time.Now()) {
		h.downs[n-1].to = time.Now()
		h.wasOff(time.Since(h.downs[n-1].from))
	}
	for _, s := range services {
		h.load(s)
	}
	h.mu.Unlock()
	h.boot()
}

func (h *host) alive() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.life != nil
}

// delivered notes that a head reached the host.
func (h *host) delivered(data []byte) {
	v := h.fleet.view(data)
	if v == nil {
		return
	}
	now := time.Now()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.learn(v, now)
	if n := len(h.views); n > 0 && h.views[n-1].mark == v.Mark() {
		return
	}
	s := seen{at: now, mark: v.Mark(), view: v}
	h.views = append(h.views, s)
	if len(h.views) > 64 {
		h.views = append([]seen{}, h.views[32:]...)
	}
}

// told says whether a head that the host may go by now assigned a content to it: the newest that reached it, or one that was the newest a moment ago.
func (h *host) told(content string, grace time.Duration) bool {
	now := time.Now()
	var newest manifest.Mark
	until := now // of the time in which the head looked at was the newest
	// From the newest mark down: each was in force until the next one came.
	views := append([]seen{}, h.views...)
	for {
		best := -1
		for i, v := range views {
			if best < 0 || v.mark.Compare(views[best].mark) > 0 || v.mark == views[best].mark && v.at.Before(views[best].at) {
				best = i
			}
		}
		if best < 0 || until.Before(now.Add(-grace)) {
			return false
		}
		v := views[best]
		if v.mark != newest {
			newest = v.mark
			if v.assigns(h, content, now, grace) {
				return true
			}
			// What came just before the machine went down may not have been on its disk yet: then it is as if it had not come.
			if v.at.Before(until) && !h.mayBeLost(v.at) {
				until = v.at
			}
		}
		views = append(views[:best:best], views[best+1:]...)
	}
}

// mayBeLost says whether what reached the host at a time may not have outlived its next stop. Under h.mu.
func (h *host) mayBeLost(at time.Time) bool {
	const writes = 5 * time.Second // within which an agent has what it heard on its disk
	for _, d := range h.downs {
		if !at.After(d.from) && at.After(d.from.Add(-writes)) {
			return true
		}
	}
	return false
}

// reported notes that the collector took a report.
func (h *host) reported(by *server) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.heard, h.by = time.Now(), by
}

// right notes when all processes run what is on disk.
func (h *host) right() {
	if h.disk.current == nil {
		return
	}
	for _, s := range services {
		if p := h.procs[s]; !p.up || p.ill || p.text != h.disk.current.texts[s] {
			return
		}
	}
	h.rightAt[h.disk.current.Content] = time.Now()
}

// process is a service's process.
type process struct {
	up    bool
	ill   bool // answers with errors whatever it is asked
	deaf  bool // does not hear that it is to load anew
	epoch uint64
	text  string
}

// load makes a process load what is on disk. Under h.mu.
func (h *host) load(name string) {
	p := h.procs[name]
	now := time.Now()
	for i := range h.bad {
		if h.bad[i].service == name && h.bad[i].to.After(now) {
			h.bad[i].to = now
		}
	}
	p.up, p.ill = true, false
	cur := h.disk.current
	if cur == nil {
		return
	}
	p.epoch, p.text = cur.Services[name].Epoch, cur.texts[name]
	switch t := h.w.trait(p.text); {
	case !t.hits(h, p.text):
	case t.kind == traitIll:
		p.ill = true
	case t.kind == traitErrors || t.kind == traitLate:
		h.bad = append(h.bad, badness{name, span{now.Add(t.delay), now.Add(1000 * time.Hour)}})
	case t.kind == traitMute && !h.w.quiet():
		h.w.census.fault(faultMute)
		// The machine goes down a moment later, and is not up again for a long time.
		h.w.wg.Add(1)
		go func() {
			defer h.w.wg.Done()
			if h.w.pause(time.Second+time.Duration(h.w.roll("mute", h.name)%uint64(5*time.Second))) && !h.w.quiet() {
				h.w.note(h.name, "mute", "")
				h.down()
			}
		}()
	}
}

// errorsAt says whether the host's users saw errors at a time, and whether there was any traffic. Under h.mu.
func (h *host) errorsAt(t time.Time) (bad, any bool) {
	for _, d := range h.downs {
		if d.has(t) {
			return false, false
		}
	}
	for _, b := range h.bad {
		if b.has(t) {
			return true, true
		}
	}
	return false, true
}

// memory is the agent's own documents.
type memory struct {
	h *host
	l *life
}

func (m *memory) Load(name string) ([]byte, error) {
	m.h.mu.Lock()
	defer m.h.mu.Unlock()
	data, ok := m.h.disk.memory[name]
	if !ok {
		return nil, fs.ErrNotExist
	}
	return bytes.Clone(data), nil
}

func (m *memory) Save(name string, data []byte) error {
	time.Sleep(time.Millisecond + time.Duration(m.h.w.roll("save", m.h.name, name)%uint64(2*time.Millisecond)))
	m.h.mu.Lock()
	defer m.h.mu.Unlock()
	if m.l.dead.Load() {
		return errDead
	}
	m.h.disk.memory[name] = bytes.Clone(data)
	return nil
}

// prober runs the host's commands and asks its processes.
type prober struct {
	h *host
	l *life
}

func (p *prober) Run(ctx context.Context, c probe.Command) probe.Result {
	took := 50*time.Millisecond + time.Duration(p.h.w.roll("run", p.h.name, c.Argv[0], c.Env["MUSTER_SERVICE"])%uint64(400*time.Millisecond))
	time.Sleep(took)
	return probe.Result{Err: p.run(c), Elapsed: took}
}

var (
	errRefused = errors.New("exit status 1: this value is not allowed")
	errReload  = errors.New("exit status 1: reload failed")
	errIll     = errors.New("the process answers 500 Internal Server Error")
	errNoProc  = errors.New("the process does not answer: connection refused")
)

func (p *prober) run(c probe.Command) error {
	h, name := p.h, c.Env["MUSTER_SERVICE"]
	h.mu.Lock()
	defer h.mu.Unlock()
	if p.l.dead.Load() {
		return errDead
	}
	switch c.Argv[0] {
	case "check":
		in := h.disk.at(c.Env["MUSTER_DIR"], name)
		if in == nil {
			return errRefused
		}
		if t := h.w.trait(in.texts[name]); t.kind == traitRefused && t.hits(h, in.texts[name]) {
			h.failed[in.Content] = true
			return errRefused
		}
		return nil
	default:
		cur := h.disk.current
		proc := h.procs[name]
		if t := h.w.trait(cur.texts[name]); t.kind == traitReload && t.hits(h, cur.texts[name]) {
			h.failed[cur.Content] = true
			return errReload
		} else if t.kind == traitDeaf && t.hits(h, cur.texts[name]) && proc.text != cur.texts[name] {
			h.w.census.fault(faultDeaf)
			return nil
		}
		if proc.deaf {
			return nil
		}
		if proc.ill && proc.text == cur.texts[name] {
			return nil
		}
		h.load(name)
		if proc.ill {
			h.failed[cur.Content] = true
		}
		h.right()
		return nil
	}
}

func (p *prober) Ask(_ context.Context, q probe.Question) (probe.Answer, error) {
	h := p.h
	h.mu.Lock()
	defer h.mu.Unlock()
	for name, url := range confirmAt {
		if url != q.URL {
			continue
		}
		switch proc := h.procs[name]; {
		case p.l.dead.Load() || !proc.up:
			return probe.Answer{}, errNoProc
		case proc.ill:
			return probe.Answer{}, errIll
		default:
			h.right()
			return probe.Answer{Epoch: proc.epoch}, nil
		}
	}
	return probe.Answer{}, errNoProc
}

func (p *prober) Well(context.Context, probe.Health) error { return nil }

func (p *prober) Unit(context.Context, string) (probe.Unit, error) { return probe.Unit{}, nil }

func (p *prober) Now() probe.Moment {
	p.h.mu.Lock()
	defer p.h.mu.Unlock()
	return probe.Moment{Wall: time.Now().UTC(), Boot: "start-" + strconv.Itoa(p.h.disk.boots), Up: time.Since(p.h.clock.up).Microseconds() + 1, Mono: time.Since(p.h.clock.up).Microseconds() + 1}
}
