package probe

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Command is one command of the host's own configuration.
type Command struct {
	Argv  []string          // program and arguments; no shell. "{dir}" is replaced by Dir
	Dir   string            // directory of the service's files
	Env   map[string]string // added to the few variables of the agent's environment that are passed on
	Limit time.Duration     // 0: DefaultLimit
}

// Result is what became of a command.
type Result struct {
	Err     error  // nil: it ended with 0
	Output  string // the end of stdout and stderr; for the local log only, as a program may print what must not leave the host
	Elapsed time.Duration
}

// passed are the variables of the agent's own environment that commands get. Everything else (tokens, credentials) stays with the agent.
var passed = []string{"PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "TZ", "XDG_RUNTIME_DIR", "DBUS_SESSION_BUS_ADDRESS"}

// maxEnv bounds one variable: Linux refuses a program with one over 128 KiB.
const maxEnv = 64 << 10

// List joins paths with newlines for a variable; "*" stands for a list that is too long for one.
func List(paths []string) string {
	s := strings.Join(paths, "\n")
	if len(s) > maxEnv {
		return "*"
	}
	return s
}

// Run runs a command: closed standard input, its own process group, bounded output. At the limit or at the end of ctx the whole group gets TERM and,
// after Grace, KILL. A child that was left behind with the output open does not keep it waiting.
func (p *Prober) Run(ctx context.Context, c Command) Result {
	started := time.Now()
	out := &tail{}
	err := run(ctx, c, out, out)
	return Result{Err: err, Output: out.String(), Elapsed: time.Since(started)}
}

func run(ctx context.Context, c Command, out, errs io.Writer) error {
	if len(c.Argv) == 0 {
		return errors.New("no command")
	}
	argv := make([]string, len(c.Argv))
	for i, a := range c.Argv {
		argv[i] = strings.ReplaceAll(a, "{dir}", c.Dir)
	}
	cmd := exec.Command(argv[0], argv[1:]...) //nolint:noctx // ended by group, below
	cmd.Env = environment(c.Env)
	cmd.Stdout, cmd.Stderr = out, errs
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	// Once the program itself has ended, a grandchild may hold the pipe for this long and no longer.
	cmd.WaitDelay = 100 * time.Millisecond
	end, err := children.start(cmd)
	if err != nil {
		return fmt.Errorf("start %s: %w", argv[0], err)
	}
	done := make(chan error, 1)
	go func() {
		err := cmd.Wait()
		end()
		done <- err
	}()

	limit := c.Limit
	if limit <= 0 {
		limit = DefaultLimit
	}
	timer := time.NewTimer(limit)
	defer timer.Stop()
	var why error
	select {
	case err := <-done:
		return verdict(argv[0], cmd, err)
	case <-timer.C:
		why = fmt.Errorf("%s did not end within %s and was killed", argv[0], limit)
	case <-ctx.Done():
		why = fmt.Errorf("%s was stopped: %w", argv[0], context.Cause(ctx))
	}
	// An error means that the group is gone already, which is what is wanted.
	_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM)
	grace := time.NewTimer(Grace)
	defer grace.Stop()
	select {
	case <-done: //nolint:errcheck // how it ended after TERM does not matter
		// A polite end; members of the group that ignored TERM go too.
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	case <-grace.C:
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		<-done //nolint:errcheck // likewise
	}
	return why
}

func verdict(name string, cmd *exec.Cmd, err error) error {
	var exit *exec.ExitError
	switch {
	case err == nil, errors.Is(err, exec.ErrWaitDelay) && cmd.ProcessState.Success():
		return nil
	case errors.As(err, &exit):
		if ws, ok := exit.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
			return fmt.Errorf("%s was killed by signal %s", name, ws.Signal())
		}
		return fmt.Errorf("%s ended with %d", name, exit.ExitCode())
	}
	return fmt.Errorf("run %s: %w", name, err)
}

func environment(add map[string]string) []string {
	var env []string
	for _, k := range passed {
		if v, ok := os.LookupEnv(k); ok {
			env = append(env, k+"="+v)
		}
	}
	for k, v := range add {
		env = append(env, k+"="+v)
	}
	return env
}

// tail keeps the last MaxOutput bytes that were written to it.
type tail struct {
	mu  sync.Mutex
	buf []byte
	cut bool
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf = append(t.buf, p...)
	if over := len(t.buf) - MaxOutput; over > 0 {
		t.buf = append(t.buf[:0], t.buf[over:]...)
		t.cut = true
	}
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := strings.ToValidUTF8(strings.TrimSpace(string(t.buf)), "?")
	if t.cut {
		return "… " + s
	}
	return s
}
