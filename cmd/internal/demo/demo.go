// Package demo is the whole system on one machine, with a story: a git repository, a store, a publisher that follows the branch, a collector,
// and twenty-four hosts, each with a real agent and a small process for every service. The first commit is confirmed by all of them. A file that
// somebody edits by hand is seen and repaired. The second commit meets a process that does not hear, a host that is down, and one that is cut off
// from the collector: the late ones converge, and the deaf one is named. The third holds a value that does harm: it goes to one host, comes back, and the one
// that was meant goes everywhere.
package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/muster-config/muster/cmd/internal/cli"
)

// Options are how the demo runs.
type Options struct {
	Out        io.Writer
	Executable string // this binary: agents start it as the reload command
	Exit       bool   // end after the story; the error says what was not as expected
	Sabotage   string // takes one fault out of the story, which must then end with an error
	Repo       string // a config repo of the user's own: its hosts confirm HEAD, and its commits are followed; no story
	Listen     string // host:port of the collector and its page; a free port if it is taken, or if empty
	// Call is how the user started the binary, for lines to paste.
	Call string
}

// What Sabotage may be.
const (
	Hearing = "hearing" // the deaf process hears
	Healed  = "healed"  // the host that is down is up
	NoCut   = "nocut"   // the host that is cut off is not
	NoEdit  = "noedit"  // nobody edits a file
	// NoCanary: the value that is to do harm is the right one.
	NoCanary = "nocanary"
)

// Sabotages are all of them.
var Sabotages = []string{Hearing, Healed, NoCut, NoEdit, NoCanary}

// How long a process has to state the epoch it was told to load, and how often an agent looks when nobody tells it anything.
const (
	within = 3 * time.Second
	poll   = 2 * time.Second
)

// Run plays the story. It leaves nothing behind: neither files nor processes, also after Ctrl-C and when nobody reads its output any more.
func Run(ctx context.Context, opts Options) error {
	if err := local(opts.Listen); err != nil {
		return err
	}
	// Go ends a process that writes to a closed standard output, unless it asks to hear of that.
	hear := make(chan os.Signal, 1)
	signal.Notify(hear, syscall.SIGPIPE)
	defer signal.Stop(hear)
	outer := ctx
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	out := opts.Out
	opts.Out = &output{w: out, failed: cancel}

	err := play(ctx, opts)
	if cause := context.Cause(ctx); outer.Err() == nil && cause != nil {
		return cli.Fail(cli.Local, "", "write what happens: %w", cause)
	}
	if err == nil && opts.Exit && opts.Repo != "" {
		_, err = fmt.Fprintln(out, "\nended, as --exit asks: every host confirmed; nothing is left")
	}
	if err == nil && outer.Err() != nil && !opts.Exit {
		_, err = fmt.Fprintln(out, "\nstopped; nothing is left")
	}
	return err
}

// output ends the demo when it cannot be written to.
type output struct {
	w      io.Writer
	failed context.CancelCauseFunc
}

func (o *output) Write(p []byte) (int, error) {
	n, err := o.w.Write(p)
	if err != nil {
		o.failed(err)
	}
	return n, err
}

func play(ctx context.Context, opts Options) (err error) {
	dir, err := os.MkdirTemp("", "muster-demo-")
	if err != nil {
		return err
	}
	defer func() {
		rerr := os.RemoveAll(dir)
		if rerr != nil {
			rerr = os.RemoveAll(dir) // something was written while it went through
		}
		if err == nil && rerr != nil {
			err = fmt.Errorf("remove the demo's directory: %w", rerr)
		}
	}()
	// macOS and others link their temporary directory; agents want the real path.
	if dir, err = filepath.EvalSymlinks(dir); err != nil {
		return err
	}

	s := &story{opts: opts, dir: dir, start: time.Now(), refused: make(chan error, 1)}
	// Agents end first, while there is still a collector to say goodbye to.
	serverCtx, stopServers := context.WithCancel(context.WithoutCancel(ctx))
	defer stopServers()
	agentCtx, stopAgents := context.WithCancel(ctx)
	defer stopAgents()
	servers, serverCtx := errgroup.WithContext(serverCtx)
	agents, agentCtx := errgroup.WithContext(agentCtx)
	defer context.AfterFunc(serverCtx, stopAgents)()
	marked := make(chan struct{})
	context.AfterFunc(agentCtx, func() {
		defer close(marked)
		_ = os.WriteFile(s.ending(), nil, 0o644) // without it the end takes longer
	})

	err = s.tell(agentCtx, agents, serverCtx, servers)
	if err == nil && !opts.Exit {
		<-agentCtx.Done()
	}
	stopAgents()
	<-marked
	agentErr := agents.Wait()
	stopServers()
	serverErr := servers.Wait()
	// What broke something off is the cause, not that it was broken off.
	for _, cause := range []error{agentErr, serverErr} {
		if cause != nil && (err == nil || errors.Is(err, context.Canceled)) {
			err = cause
		}
	}
	return err
}

// tell starts everything in turn and tells what happens.
func (s *story) tell(agentCtx context.Context, agents *errgroup.Group, serverCtx context.Context, servers *errgroup.Group) error {
	if err := s.prepare(agentCtx); err != nil {
		return err
	}
	if err := s.startServers(serverCtx, servers); err != nil {
		return err
	}
	if err := s.startProcesses(serverCtx, servers); err != nil {
		return err
	}
	if err := s.startAgents(agentCtx, agents); err != nil {
		return err
	}
	if err := s.everybodyConfirms(agentCtx); err != nil {
		return err
	}
	if !s.own() {
		if err := s.oneIsEdited(agentCtx); err != nil {
			return err
		}
		if err := s.oneIsDeaf(agentCtx, agents); err != nil {
			return err
		}
		if err := s.oneGoesFirst(agentCtx); err != nil {
			return err
		}
	}
	s.told.Store(true)
	if !s.opts.Exit {
		s.whatToTry()
	}
	return nil
}

// own reports whether this is the user's repository.
func (s *story) own() bool { return s.opts.Repo != "" }

// differs is the end of a story that was not as expected.
func differs(format string, args ...any) error {
	return cli.Fail(cli.No, "", "the demo saw something else than expected: "+format, args...)
}
