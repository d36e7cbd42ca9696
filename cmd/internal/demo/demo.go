// Package demo is the whole system on one machine, with a story: a git repository, a store, a publisher that follows the branch, a collector,
// and twelve hosts, each with a real agent and a small process for every service. The first commit is confirmed by all of them; the second
// one meets a process that does not hear.
package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/muster-config/muster/cmd/internal/cli"
)

// Options are how the demo runs.
type Options struct {
	Out        io.Writer
	Executable string // this binary: agents start it as the reload command
	Exit       bool   // end after the story; the error says what was not as expected
	Hearing    bool   // sabotage: the deaf process hears, so the story must fail
	// Call is how the user started the binary, for lines to paste.
	Call string
}

// The process that does not hear, and how long a process has to state the epoch it was told to load.
const (
	deafHost    = "eu-3"
	deafService = "checkout"
	within      = 5 * time.Second
)

// Run plays the story. It leaves nothing behind: neither files nor processes.
func Run(ctx context.Context, opts Options) (err error) {
	dir, err := os.MkdirTemp("", "muster-demo-")
	if err != nil {
		return err
	}
	defer func() {
		if rerr := os.RemoveAll(dir); err == nil && rerr != nil {
			err = fmt.Errorf("remove the demo's directory: %w", rerr)
		}
	}()
	// macOS and others link their temporary directory; agents want the real path.
	if dir, err = filepath.EvalSymlinks(dir); err != nil {
		return err
	}

	ctx, stop := context.WithCancel(ctx)
	defer stop()
	group, gctx := errgroup.WithContext(ctx)
	s := &story{opts: opts, dir: dir, start: time.Now(), refused: make(chan error, 1)}
	group.Go(func() error {
		if err := s.run(gctx, group); err != nil || opts.Exit {
			stop() // everything else ends too
			return err
		}
		return nil
	})
	err = group.Wait()
	if errors.Is(err, context.Canceled) && s.told.Load() {
		return nil // stopped by the user after the story: that is how it ends
	}
	return err
}

// run starts everything in turn and tells what happens.
func (s *story) run(ctx context.Context, group *errgroup.Group) error {
	if err := s.prepare(ctx); err != nil {
		return err
	}
	if err := s.startServer(ctx, group); err != nil {
		return err
	}
	if err := s.startHosts(ctx, group); err != nil {
		return err
	}
	if err := s.everybodyConfirms(ctx); err != nil {
		return err
	}
	if err := s.oneIsDeaf(ctx); err != nil {
		return err
	}
	s.told.Store(true)
	if !s.opts.Exit {
		s.whatToTry()
	}
	return nil
}

// differs is the end of a story that was not as expected.
func differs(format string, args ...any) error {
	return cli.Fail(cli.No, "", "the demo saw something else than expected: "+format, args...)
}
