// Package control is the operator's socket: a running agent answers there what it knows, to its own user and to root.
//
// The socket is <root>/control.sock, mode 0600. A connection carries one JSON request on one line and one JSON answer; both are bounded, in size and in time.
package control

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/muster-config/muster/agent"
	"github.com/muster-config/muster/agent/durable"
	"github.com/muster-config/muster/distributor/report"
	"github.com/muster-config/muster/distributor/wire"
)

// Name of the socket below the root.
const Name = "control.sock"

// Limits.
const (
	MaxRequest = 16 << 10
	MaxAnswer  = 8 << 20
	maxOpen    = 8               // connections at a time; more wait in the kernel's queue
	ask        = time.Second     // for the request line: who connects and says nothing is in the way of others
	limit      = 5 * time.Second // for the answer
	patience   = 2 * time.Second // of who asks
	applies    = time.Hour       // for a change to come to its end: checks, reloads and confirmations have limits of their own

	acceptPause = 100 * time.Millisecond // after a connection could not be taken
)

// What can be asked for.
const (
	OpStatus = "status"
	OpHold   = "hold"
	OpUnhold = "unhold"
	OpApply  = "apply"
	OpHead   = "head"
)

// Request asks the agent for something.
type Request struct {
	V    int              `json:"v"`
	Op   string           `json:"op"`
	Hold *agent.HoldOrder `json:"hold,omitempty"` // hold, apply; unhold: who and why
	From string           `json:"from,omitempty"` // apply: URL of a store, or absolute path of a file
}

// Answer is what it says.
type Answer struct {
	V      int               `json:"v"`
	Error  string            `json:"error,omitempty"`
	Code   string            `json:"code,omitempty"` // of the error: agent.CodeOf
	Status *agent.Status     `json:"status,omitempty"`
	Hold   *report.Hold      `json:"hold,omitempty"`   // that came, or went
	Result *agent.OnceResult `json:"result,omitempty"` // apply: also beside an error
	Head   []byte            `json:"head,omitempty"`
}

// Agent is who answers. All of it is safe beside the agent's own work.
type Agent interface {
	Status() *agent.Status
	// Head is the newest verified head as it came, nil if there is none.
	Head() []byte
	Hold(o agent.HoldOrder) (report.Hold, error)
	Unhold(by, why string) (report.Hold, error)
	// ApplyFrom takes what a store or a file brings, and answers when that is over.
	ApplyFrom(ctx context.Context, from string, hold agent.HoldOrder) (agent.OnceResult, error)
}

// Refused is what the agent said no to. errors.Is tells what it is.
type Refused struct{ Text, Code string }

func (e *Refused) Error() string { return e.Text }

// Is says whether the agent's error was target.
func (e *Refused) Is(target error) bool {
	is := agent.ErrorOf(e.Code)
	return is != nil && is == target
}

// ErrNoAgent means that no agent listens there.
var ErrNoAgent = errors.New("no agent runs")

// ErrSilent means that one does, and does not answer in time.
var ErrSilent = errors.New("the agent does not answer")

// Server answers.
type Server struct {
	path string
	ln   *net.UnixListener
}

// Listen opens the socket. The caller holds the root's lock, so that a socket that is there is one of an agent that has died, and is replaced. It comes into
// being in a directory that is the owner's only, and gets its name when nobody else may connect any more.
func Listen(root string) (*Server, error) {
	path := filepath.Join(root, Name)
	switch info, err := os.Lstat(path); {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, fmt.Errorf("control socket: %w", err)
	case info.Mode()&fs.ModeSocket == 0:
		return nil, fmt.Errorf("control socket: %s is there and is no socket; move it away", path)
	}
	tmp := filepath.Join(root, "tmp", durable.TempName())
	addr, done, err := address(tmp)
	if err != nil {
		return nil, fmt.Errorf("control socket: %w", err)
	}
	ln, err := net.ListenUnix("unix", addr)
	done()
	if err != nil {
		return nil, fmt.Errorf("control socket: %w", err)
	}
	ln.SetUnlinkOnClose(false)
	err = os.Chmod(tmp, 0o600)
	if err == nil {
		err = os.Rename(tmp, path)
	}
	if err != nil {
		ln.Close()
		os.Remove(tmp)
		return nil, fmt.Errorf("control socket: %w", err)
	}
	return &Server{path, ln}, nil
}

// address is a socket's address. Linux takes no more than 107 bytes of it; a longer path is reached through its directory.
func address(path string) (addr *net.UnixAddr, done func(), err error) {
	if len(path) <= 100 {
		return &net.UnixAddr{Name: path, Net: "unix"}, func() {}, nil
	}
	d, err := os.Open(filepath.Dir(path))
	if err != nil {
		return nil, nil, err
	}
	return &net.UnixAddr{Name: fmt.Sprintf("/proc/self/fd/%d/%s", d.Fd(), filepath.Base(path)), Net: "unix"}, func() { d.Close() }, nil
}

// Serve answers until ctx ends, and takes the socket away.
func (s *Server) Serve(ctx context.Context, a Agent) error {
	defer os.Remove(s.path)
	stop := context.AfterFunc(ctx, func() { s.ln.Close() })
	defer stop()
	var wg sync.WaitGroup
	defer wg.Wait()
	slots := make(chan struct{}, maxOpen)
	for {
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
			return nil
		}
		conn, err := s.ln.AcceptUnix()
		switch {
		case ctx.Err() != nil:
			if err == nil {
				_ = conn.Close()
			}
			return nil
		case errors.Is(err, net.ErrClosed):
			return fmt.Errorf("control socket: %w", err)
		case err != nil: // too few files for now, say: who asks waits, and the socket stays
			<-slots
			select {
			case <-ctx.Done():
			case <-time.After(acceptPause):
			}
			continue
		}
		wg.Go(func() {
			defer func() { <-slots }()
			defer func() { _ = conn.Close() }()
			end := context.AfterFunc(ctx, func() { _ = conn.Close() })
			defer end()
			answer(ctx, conn, a)
		})
	}
}

func answer(ctx context.Context, conn net.Conn, by Agent) {
	if err := conn.SetReadDeadline(time.Now().Add(ask)); err != nil {
		return
	}
	a := Answer{V: 1}
	var req Request
	line, err := bufio.NewReader(io.LimitReader(conn, MaxRequest)).ReadBytes('\n')
	if err == nil {
		err = wire.Decode(line, &req)
	}
	switch {
	case err != nil:
		a.Error = "the request is not one line of JSON that is understood here"
	case req.V != 1 || !a.do(ctx, by, &req):
		a.Error = fmt.Sprintf("version %d, %.40q: not known to this agent", req.V, req.Op)
	}
	if err := conn.SetWriteDeadline(time.Now().Add(limit)); err != nil {
		return
	}
	data, err := wire.Encode(a)
	if err != nil {
		data = []byte(`{"v":1,"error":"the answer cannot be written"}`)
	}
	conn.Write(append(data, '\n')) //nolint:errcheck // who asked has gone
}

// do does what is asked for; false: it is not known here.
func (a *Answer) do(ctx context.Context, by Agent, req *Request) bool {
	var order agent.HoldOrder
	if req.Hold != nil {
		order = *req.Hold
	}
	var err error
	var hold report.Hold
	switch req.Op {
	case OpStatus:
		a.Status = by.Status()
	case OpHead:
		a.Head = by.Head()
	case OpHold:
		if hold, err = by.Hold(order); err == nil {
			a.Hold = &hold
		}
	case OpUnhold:
		if hold, err = by.Unhold(order.By, order.Why); err == nil {
			a.Hold = &hold
		}
	case OpApply:
		var res agent.OnceResult
		if res, err = by.ApplyFrom(ctx, req.From, order); res.Host != "" {
			a.Result = &res
		}
	default:
		return false
	}
	if err != nil {
		a.Error, a.Code = err.Error(), agent.CodeOf(err)
	}
	return true
}

// Status asks the agent of a root.
func Status(ctx context.Context, root string) (*agent.Status, error) {
	a, err := Ask(ctx, root, Request{Op: OpStatus})
	switch {
	case err != nil:
		return nil, err
	case a.Status == nil:
		return nil, fmt.Errorf("ask the agent: it says %q; is it of another version?", a.Error)
	}
	return a.Status, nil
}

// Ask asks the agent of a root. What it refuses is *Refused, with the answer beside it.
func Ask(ctx context.Context, root string, req Request) (*Answer, error) {
	req.V = 1
	addr, done, err := address(filepath.Join(root, Name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w on %s", ErrNoAgent, root)
	}
	if err != nil {
		return nil, fmt.Errorf("ask the agent: %w", err)
	}
	defer done()
	caller := ctx
	wait := patience
	if req.Op == OpApply {
		wait = applies
	}
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", addr.Name)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED): // none, or one that a dead agent left
		return nil, fmt.Errorf("%w on %s", ErrNoAgent, root)
	case errors.Is(err, fs.ErrPermission):
		return nil, fmt.Errorf("ask the agent: %s is its user's and root's only: %w", filepath.Join(root, Name), fs.ErrPermission)
	case err != nil:
		return nil, silent(caller, ctx, wait, err)
	}
	defer func() { _ = conn.Close() }()
	end := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer end()
	line, err := wire.Encode(req)
	if err != nil {
		return nil, fmt.Errorf("ask the agent: %w", err)
	}
	if _, err := conn.Write(append(line, '\n')); err != nil {
		return nil, silent(caller, ctx, wait, err)
	}
	data, err := io.ReadAll(io.LimitReader(conn, MaxAnswer+1))
	switch {
	case err != nil:
		return nil, silent(caller, ctx, wait, err)
	case len(data) == 0:
		return nil, silent(caller, ctx, wait, io.ErrUnexpectedEOF)
	case len(data) > MaxAnswer:
		return nil, fmt.Errorf("ask the agent: more than %d bytes", MaxAnswer)
	}
	var a Answer
	if err := wire.Decode(data, &a); err != nil {
		return nil, fmt.Errorf("ask the agent: its answer is not understood (%w); is it of another version?", err)
	}
	switch {
	case a.Error != "" && a.Code == "":
		return nil, fmt.Errorf("ask the agent: it says %q; is it of another version?", a.Error)
	case a.Error != "":
		return &a, &Refused{a.Error, a.Code}
	}
	return &a, nil
}

// silent is why a connection brought nothing; the caller's own end is none of the agent's.
func silent(caller, ctx context.Context, wait time.Duration, err error) error {
	switch {
	case caller.Err() != nil:
		return fmt.Errorf("ask the agent: no answer yet: %w", caller.Err())
	case ctx.Err() != nil, errors.Is(err, syscall.EAGAIN): // the latter: its queue is full
		return fmt.Errorf("%w within %s", ErrSilent, wait)
	}
	return fmt.Errorf("%w: %w", ErrSilent, err)
}
