package eval

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/muster-config/muster/distributor/manifest"
)

// The defaults of Limits.
const (
	defaultWall   = 30 * time.Second
	defaultTotal  = 10 * time.Minute
	defaultMemory = 4 << 30
	defaultOutput = 256 << 20
)

// allOutput is how many times the output of one service all of them may give.
const allOutput = 4

func (l Limits) orDefaults() Limits {
	if l.Wall == 0 {
		l.Wall = defaultWall
	}
	if l.Total == 0 {
		l.Total = defaultTotal
	}
	if l.Memory == 0 {
		l.Memory = defaultMemory
	}
	if l.Output == 0 {
		l.Output = defaultOutput
	}
	return l
}

// Run evaluates req in a child process: this executable started again, which must call Child first thing in main (and in TestMain).
//
// A service that blows a limit has a problem that says so, and all others are answered: what the child has answered is kept, each service that may be
// the culprit is evaluated in a child of its own, and another child goes on with the rest. An error is about the machinery (no child could be started,
// cancelled); what is wrong with the input is in Result.Problems.
func Run(ctx context.Context, req *Request, lim Limits) (*Result, error) {
	if err := read(req.Files); err != nil {
		return nil, fmt.Errorf("evaluation: %w", err)
	}
	s := newSupervisor(req, lim)
	if err := s.run(ctx, nil); err != nil {
		return nil, err
	}
	return s.got.result(req), nil
}

// supervisor has a request evaluated by as many children as it takes.
type supervisor struct {
	req      *Request
	lim      Limits
	got      *answers
	blamed   map[string]bool // those whose answer is that a limit was blown, which is no property of the input alone
	suspects []string        // to be evaluated alone
	pardoned map[string]bool // those that were evaluated when somebody killed the child: once that says nothing of them

	mu     sync.Mutex // suspects are evaluated at the same time: it is held for blamed and output meanwhile
	output int64      // bytes that all children gave
}

func newSupervisor(req *Request, lim Limits) *supervisor {
	return &supervisor{req: req, lim: lim.orDefaults(), got: newAnswers(), blamed: map[string]bool{}, pardoned: map[string]bool{}}
}

// run ends with an answer for the fleet and, unless it failed, for each of names; nil means all that the request selects, empty means none.
func (s *supervisor) run(ctx context.Context, names []string) error {
	total, cancel := context.WithTimeout(ctx, s.lim.Total)
	defer cancel()
	for {
		if err := s.together(ctx, total); err != nil {
			return err
		}
		todo := s.next(names)
		if s.got.policy != nil && len(todo) == 0 {
			return nil
		}
		before := s.got.count()
		end := s.child(total, todo, names != nil && len(names) == 0)
		switch progress := s.got.count() > before; {
		case ctx.Err() != nil:
			return fmt.Errorf("evaluation: %w", context.Cause(ctx))
		case end.reason == "" && end.err == nil && progress:
		case total.Err() != nil:
			s.giveUp(names, "exceeded "+s.lim.Total.String())
			return nil
		case s.output > allOutput*s.lim.Output:
			s.giveUp(names, "gave more than "+size(allOutput*s.lim.Output))
			return nil
		case end.err != nil:
			return end.err
		case end.reason == "":
			return errors.New("evaluation ended without an answer")
		case end.killed && s.pardon(todo):
		case slices.Contains(end.suspects, theFleet):
			s.blameFleet(end.reason + " on the fleet")
			return nil
		case len(todo) == 1:
			s.blame(todo[0], end.reason) // it was alone
		case len(end.suspects) > 0:
			s.suspects = end.suspects
		case !progress:
			return fmt.Errorf("%s before any service was evaluated", end.reason)
		}
	}
}

// together evaluates suspects each in a child of its own, as many at once as a child evaluates services: several that have no end cost the time of one. What
// does not come to an answer or to blame is left to run.
func (s *supervisor) together(ctx, total context.Context) error {
	for len(s.suspects) > 1 {
		some := slices.Clone(s.suspects[:min(len(s.suspects), workers())])
		s.suspects = s.suspects[len(some):]
		ends := make([]ending, len(some))
		var wg sync.WaitGroup
		for i := range some {
			wg.Go(func() { ends[i] = s.child(total, some[i:i+1], false) })
		}
		wg.Wait()
		if ctx.Err() != nil {
			return fmt.Errorf("evaluation: %w", context.Cause(ctx))
		}
		for i, end := range ends {
			switch {
			case s.got.services[some[i]] != nil || end.reason == "" || total.Err() != nil || s.output > allOutput*s.lim.Output:
			case !end.killed || !s.pardon(some[i:i+1]):
				s.blame(some[i], end.reason)
			}
			if end.err != nil && total.Err() == nil {
				return end.err
			}
		}
	}
	return nil
}

// pardon reports whether what was evaluated alone in a child that somebody killed is to be tried once more.
func (s *supervisor) pardon(todo []string) bool {
	alone := theFleet
	if s.got.policy != nil {
		if len(todo) != 1 {
			return false // the suspects are evaluated alone next
		}
		alone = todo[0]
	}
	first := !s.pardoned[alone]
	s.pardoned[alone] = true
	return first
}

// next is what the next child is given: the next suspect alone, or all that is not answered. Before the fleet is known that is nil.
func (s *supervisor) next(names []string) []string {
	if s.got.policy == nil || s.got.policy.failed() {
		return nil
	}
	answered := func(n string) bool { return s.got.services[n] != nil }
	s.suspects = slices.DeleteFunc(s.suspects, answered)
	if len(s.suspects) > 0 {
		return s.suspects[:1]
	}
	return slices.DeleteFunc(s.all(names), answered)
}

func (s *supervisor) all(names []string) []string {
	if names == nil {
		names, _ = selected(s.req, &s.got.policy.Policy)
	}
	return slices.Clone(names)
}

// giveUp ends what is not answered.
func (s *supervisor) giveUp(names []string, why string) {
	why = notEvaluated + "the evaluation of all services " + why
	if s.got.policy == nil {
		s.blameFleet(why)
		return
	}
	for _, name := range s.all(names) {
		if s.got.services[name] == nil {
			s.blame(name, why)
		}
	}
}

func (s *supervisor) blame(service, why string) {
	s.blamed[service] = true
	s.got.service(blame(service, why))
}

func (s *supervisor) blameFleet(why string) {
	s.blamed[theFleet] = true
	s.got.fleet(&fleetAnswer{Problems: []Problem{{Severity: SeverityError, Message: why, SetAt: []Pos{{File: fleetDir}}}}})
}

// blame is the answer of a service that was not evaluated to its end.
func blame(service, why string) *answer {
	return &answer{Service: service, Problems: []Problem{{Severity: SeverityError, Service: service, Message: why, SetAt: []Pos{{File: "services/" + service}}}}}
}

func gave(limit int64) string { return "evaluation gave more than " + size(limit) }

// ending is how a child ended. Without a reason and an error it answered all that it was given.
type ending struct {
	reason   string   // what it died of, when the input is to blame
	suspects []string // what was under way and may be the cause
	err      error    // the machinery
	killed   bool     // the reason is a signal from outside, which need not be about the input
}

// memoryDeaths are what Go's runtime says when it gets no more memory, for the heap or for a thread (with cgo, without). The queue of spans of its garbage collector
// (Go 1.26) does not look whether it got any, and ends with a segmentation violation.
var memoryDeaths = []string{"out of memory", "cannot allocate memory", "pthread_create failed", "failed to create new OS thread", "mSysAlloc", "runtime.(*spanQueue)"}

// child has one child evaluate the services, and gathers what it answers. Before the fleet is known it evaluates the fleet, and unless that is all
// that is wanted all services too.
func (s *supervisor) child(ctx context.Context, services []string, fleetOnly bool) ending {
	failed := func(err error) ending { return ending{err: fmt.Errorf("start the evaluation: %w", err)} }
	j := job{Request: s.req, Output: s.lim.Output, Fleet: fleetOnly}
	if s.got.policy != nil {
		narrow := *s.req
		narrow.Services = services
		j.Request = &narrow
		var err error
		if j.Policy, err = json.Marshal(&s.got.policy.Policy); err != nil {
			return failed(err)
		}
	}
	exe, err := executable()
	if err != nil {
		return failed(err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	cmd := exec.CommandContext(ctx, exe)
	cmd.Args = []string{"muster-evaluation"}
	// Nothing of this process's environment: no HOME, no proxy, no registry.
	cmd.Env = []string{childEnv + "=" + strconv.FormatInt(s.lim.Memory, 10)}
	cmd.WaitDelay = 5 * time.Second
	isolate(cmd)
	stderr := &tail{limit: 64 << 10}
	cmd.Stderr = stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return failed(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return failed(err)
	}
	if err := cmd.Start(); err != nil {
		return failed(err)
	}
	// The request goes out while the answer is awaited: the child may die half-way. Standard input stays open, since the child ends
	// when it closes: no child outlives its parent.
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		_ = writeJob(stdin, &j) // a broken pipe shows in how the child ended
	}()
	under := &underWay{wall: s.lim.Wall, over: cancel}
	err = s.receive(stdout, under)
	suspects, late := under.stop()
	if err != nil {
		kill(cmd)
	}
	stdin.Close()
	<-sent
	waitErr := cmd.Wait()
	text := stderr.String()
	end := ending{suspects: suspects}
	var exit *exec.ExitError
	switch {
	case err == nil && waitErr == nil:
		return ending{}
	case late:
		end.reason = fmt.Sprintf("evaluation exceeded %s", s.lim.Wall)
	case errors.Is(err, errOutput):
		end.reason = gave(s.lim.Output)
	case slices.ContainsFunc(memoryDeaths, func(s string) bool { return strings.Contains(text, s) }):
		end.reason = fmt.Sprintf("evaluation needed more than %s of memory", size(s.lim.Memory))
	case strings.Contains(text, "stack overflow"), strings.Contains(text, "stack exceeds"):
		end.reason = "evaluation overflowed the stack"
	case err != nil && !errors.Is(err, io.EOF):
		end.err = fmt.Errorf("evaluation: %w", err)
	case errors.As(waitErr, &exit) && exit.ExitCode() == exitSetup:
		end.err = fmt.Errorf("start the evaluation: %s", strings.TrimSpace(text))
	case errors.As(waitErr, &exit) && exit.ExitCode() == 2: // a panic of Go; its text may hold values of the repository
		end.reason = crashMessage + ": this is a bug of muster or of CUE"
	default:
		// Not by us: where memory is short the system kills what has much of it.
		end.reason = fmt.Sprintf("evaluation was ended (%v), perhaps for want of memory", waitErr)
		end.killed = errors.As(waitErr, &exit) && exit.ExitCode() == -1
	}
	return end
}

// executable is the file that this process runs. Under Linux it stays that one when an upgrade replaces the file: the child must be the
// same evaluator.
func executable() (string, error) {
	if runtime.GOOS == "linux" {
		const self = "/proc/self/exe"
		if _, err := os.Stat(self); err == nil {
			return self, nil
		}
	}
	return os.Executable()
}

var errOutput = errors.New("too much output")

// receive gathers the child's messages up to their end.
func (s *supervisor) receive(r io.Reader, under *underWay) error {
	in := bufio.NewReaderSize(r, 64<<10)
	for {
		s.mu.Lock()
		most := min(s.lim.Output, allOutput*s.lim.Output-s.output) + 1<<20 // what is not the answer itself is small
		s.mu.Unlock()
		m, size, err := readMessage(in, most)
		s.mu.Lock()
		s.output += size
		all := s.output
		s.mu.Unlock()
		switch {
		case errors.Is(err, errOutput), err == nil && all > allOutput*s.lim.Output:
			return errOutput
		case errors.Is(err, io.EOF):
			return nil
		case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, os.ErrClosed):
			return io.EOF // it died while it wrote
		case err != nil:
			return fmt.Errorf("read the answer: %w", err)
		}
		if err := s.take(&m, under); err != nil {
			return fmt.Errorf("read the answer: %w", err)
		}
	}
}

func (s *supervisor) take(m *message, under *underWay) error {
	switch {
	case m.Begins != nil:
		under.begin(m.Begins)
	case m.Ends != nil:
		under.end(m.Ends)
	case m.Fleet != nil:
		f := &fleetAnswer{}
		if err := json.Unmarshal(m.Fleet, f); err != nil {
			return err
		}
		s.got.fleet(f)
	case m.Answer != nil:
		a, err := decodeAnswer(m.Answer)
		if err != nil {
			return err
		}
		s.mu.Lock()
		s.blamed[a.Service] = m.Blamed
		s.mu.Unlock()
		s.got.service(a)
	}
	return nil
}

// underWay is what a child is at, and ends the child when one of it takes too long.
type underWay struct {
	wall time.Duration
	over func()

	mu     sync.Mutex
	timers map[string]*time.Timer
	began  map[string]time.Time
	late   bool
	done   bool
}

func (u *underWay) begin(names []string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.timers == nil {
		u.timers, u.began = map[string]*time.Timer{}, map[string]time.Time{}
	}
	for _, n := range names {
		u.began[n] = time.Now()
		u.timers[n] = time.AfterFunc(u.wall, func() { u.overtime(n) })
	}
}

func (u *underWay) end(names []string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, n := range names {
		if t := u.timers[n]; t != nil {
			t.Stop()
			delete(u.timers, n)
		}
	}
}

func (u *underWay) overtime(name string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.timers[name] != nil && !u.done {
		u.late = true
		u.over()
	}
}

// stop ends the watch. The suspects are all that was under way; if one was late, only what took more than half of its time: the next one, that is, if several
// have no end.
func (u *underWay) stop() (suspects []string, late bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.done = true
	for _, n := range sorted(u.timers) {
		u.timers[n].Stop()
		if !u.late || time.Since(u.began[n]) > u.wall/2 {
			suspects = append(suspects, n)
		}
	}
	return suspects, u.late
}

func size(n int64) string {
	switch {
	case n >= 1<<30 && n%(1<<30) == 0:
		return fmt.Sprintf("%d GiB", n>>30)
	case n >= 1<<20:
		return fmt.Sprintf("%d MiB", n>>20)
	}
	return fmt.Sprintf("%d bytes", n)
}

// tail keeps the first and so the telling part of what the child's runtime prints when it dies.
type tail struct {
	bytes.Buffer
	limit int
}

func (t *tail) Write(b []byte) (int, error) {
	if room := t.limit - t.Len(); room > 0 {
		t.Buffer.Write(b[:min(len(b), room)])
	}
	return len(b), nil
}

// decodePolicy reads what crossed the border as JSON; nil stays nil.
func decodePolicy(data []byte) (*manifest.Policy, error) {
	if data == nil {
		return nil, nil
	}
	p := &manifest.Policy{}
	return p, json.Unmarshal(data, p)
}
