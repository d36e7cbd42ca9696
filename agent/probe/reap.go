package probe

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"os/signal"
	"sync"

	"golang.org/x/sys/unix"
)

// brood are the children that this package started and still waits for.
type brood struct {
	mu    sync.Mutex
	own   map[int]bool
	ended chan struct{} // of size one: a child was waited for
}

var children = &brood{own: map[int]bool{}, ended: make(chan struct{}, 1)}

// start starts a command. No child is ever seen by Reap before it is known here.
func (b *brood) start(cmd *exec.Cmd) (end func(), err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	pid := cmd.Process.Pid
	b.own[pid] = true
	return func() {
		b.mu.Lock()
		delete(b.own, pid)
		b.mu.Unlock()
		select {
		case b.ended <- struct{}{}:
		default:
		}
	}, nil
}

// Reap collects the children of others that a process gets as process 1 of a container, where nobody else does: what a command left behind becomes a
// child of it. It returns at the end of ctx, and at once in a process that is not process 1.
func Reap(ctx context.Context) {
	if os.Getpid() != 1 {
		return
	}
	died := make(chan os.Signal, 1)
	signal.Notify(died, unix.SIGCHLD)
	defer signal.Stop(died)
	for {
		children.reap()
		select {
		case <-ctx.Done():
			return
		case <-died:
		case <-children.ended:
		}
	}
}

// reap collects what has ended and is not our own. One of our own that its Wait has not collected yet hides the rest; its end wakes Reap again.
func (b *brood) reap() {
	for {
		b.mu.Lock()
		pid, err := peek()
		strange := err == nil && pid > 0 && !b.own[pid]
		if strange {
			_, err = unix.Wait4(pid, nil, unix.WNOHANG, nil)
		}
		b.mu.Unlock()
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if !strange || err != nil {
			return
		}
	}
}
