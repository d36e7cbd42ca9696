package eval

import (
	"bytes"
	"context"
	"encoding/gob"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// childEnv starts this executable as the evaluation child; its value is the limit of memory in bytes.
const childEnv = "MUSTER_EVALUATION_CHILD"

// The defaults of Limits.
const (
	defaultWall   = 60 * time.Second
	defaultMemory = 4 << 30
	defaultOutput = 512 << 20
)

// message is what the child writes: progress, and at last the answer.
type message struct {
	Begins, Ends string // "the fleet", or a service
	Answer       *answer
}

// answer is a Result on the wire. The policy is JSON: gob drops a pointer to zero, which is a bound of a gate.
type answer struct {
	Policy   []byte
	Units    []Unit
	Problems []Problem
}

// memoryDeaths are what Go's runtime says when it gets no more memory, for the heap or for a thread (with cgo, without).
var memoryDeaths = []string{"out of memory", "cannot allocate memory", "pthread_create failed", "failed to create new OS thread", "mSysAlloc"}

var (
	errOutput = errors.New("too much output")
	errEnded  = errors.New("the child ended without an answer")
)

// Run evaluates req in a child process: this executable started again, which must call Child first thing in main (and in TestMain).
// An error is about the machinery (limit, crash, cancelled); what is wrong with the input is in Result.Problems.
func Run(ctx context.Context, req *Request, lim Limits) (*Result, error) {
	if lim.Wall == 0 {
		lim.Wall = defaultWall
	}
	if lim.Memory == 0 {
		lim.Memory = defaultMemory
	}
	if lim.Output == 0 {
		lim.Output = defaultOutput
	}
	exe, err := executable()
	if err != nil {
		return nil, fmt.Errorf("start the evaluation: %w", err)
	}
	timed, cancel := context.WithTimeout(ctx, lim.Wall)
	defer cancel()
	cmd := exec.CommandContext(timed, exe)
	cmd.Args = []string{"muster-evaluation"}
	// Nothing of this process's environment: no HOME, no proxy, no registry.
	cmd.Env = []string{childEnv + "=" + strconv.FormatInt(lim.Memory, 10)}
	cmd.WaitDelay = 5 * time.Second
	isolate(cmd)
	stderr := &tail{limit: 64 << 10}
	cmd.Stderr = stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("start the evaluation: %w", err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("start the evaluation: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the evaluation: %w", err)
	}
	// The request goes out while the answer is awaited: the child may die half-way. Standard input stays open, since the child ends
	// when it closes: no child outlives its parent.
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		_ = gob.NewEncoder(stdin).Encode(req) // a broken pipe shows in how the child ended
	}()
	res, under, err := receive(stdout, lim.Output)
	if err != nil {
		kill(cmd)
	}
	stdin.Close()
	<-sent
	waitErr := cmd.Wait()
	switch {
	case ctx.Err() != nil:
		return nil, fmt.Errorf("evaluation: %w", context.Cause(ctx))
	case err == nil:
		return res, nil
	case timed.Err() != nil:
		return nil, fmt.Errorf("evaluation exceeded %s%s", lim.Wall, on(under))
	case errors.Is(err, errOutput):
		return nil, fmt.Errorf("evaluation gave more than %s of output%s", size(lim.Output), on(under))
	}
	text := stderr.String()
	switch {
	case slices.ContainsFunc(memoryDeaths, func(s string) bool { return strings.Contains(text, s) }):
		return nil, fmt.Errorf("evaluation needed more than %s of memory%s", size(lim.Memory), on(under))
	case strings.Contains(text, "stack overflow"), strings.Contains(text, "stack exceeds"):
		return nil, fmt.Errorf("evaluation overflowed the stack%s", on(under))
	case errors.Is(err, errEnded) && waitErr != nil:
		return nil, fmt.Errorf("evaluation crashed%s (%w)", on(under), waitErr)
	}
	return nil, fmt.Errorf("evaluation%s: %w", on(under), err)
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

// receive reads the child's messages up to the answer, and says what was under way when they end early.
func receive(r io.Reader, limit int64) (*Result, []string, error) {
	bounded := &io.LimitedReader{R: r, N: limit}
	dec := gob.NewDecoder(bounded)
	var under []string
	for {
		var m message
		if err := dec.Decode(&m); err != nil {
			switch {
			case bounded.N <= 0:
				err = errOutput
			case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, os.ErrClosed):
				err = errEnded
			}
			return nil, under, err
		}
		switch {
		case m.Begins != "":
			under = append(under, m.Begins)
		case m.Ends != "":
			under = slices.DeleteFunc(under, func(s string) bool { return s == m.Ends })
		case m.Answer != nil:
			res := &Result{Units: m.Answer.Units, Problems: m.Answer.Problems}
			if err := json.Unmarshal(m.Answer.Policy, &res.Policy); err != nil {
				return nil, under, fmt.Errorf("read the answer: %w", err)
			}
			return res, under, nil
		}
	}
}

// on names what was under way.
func on(under []string) string {
	var names []string
	for _, u := range under {
		if u == "the fleet" {
			return " on the fleet"
		}
		names = append(names, strconv.Quote(u))
	}
	switch len(names) {
	case 0:
		return ""
	case 1:
		return " on service " + names[0]
	}
	if n := len(names); n > 5 {
		names = append(names[:5], fmt.Sprintf("and %d more", n-5))
	}
	return " on one of the services " + strings.Join(names, ", ")
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

// Child serves as the evaluation child and exits if this process was started as one; else it returns at once.
func Child() {
	limit, ok := os.LookupEnv(childEnv)
	if !ok {
		return
	}
	memory, err := strconv.ParseInt(limit, 10, 64)
	if err != nil || memory <= 0 {
		fmt.Fprintf(os.Stderr, "%s is set by muster itself\n", childEnv)
		os.Exit(2)
	}
	// Throughput before size, until size is near its limit.
	debug.SetGCPercent(400)
	debug.SetMemoryLimit(memory / 10 * 7)
	if err := limitMemory(memory); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	if err := serve(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

func serve(in io.Reader, out io.Writer) error {
	req := new(Request)
	if err := gob.NewDecoder(in).Decode(req); err != nil {
		return fmt.Errorf("read the request: %w", err)
	}
	go func() {
		// The parent says nothing more: this ends when the parent does.
		_, _ = io.Copy(io.Discard, in)
		os.Exit(3)
	}()
	var mu sync.Mutex
	enc := gob.NewEncoder(out)
	send := func(m message) error {
		mu.Lock()
		defer mu.Unlock()
		return enc.Encode(m)
	}
	res := evaluate(req, min(maxWorkers, runtime.GOMAXPROCS(0)), func(what string, begins bool) {
		m := message{Ends: what}
		if begins {
			m = message{Begins: what}
		}
		_ = send(m) // a parent that is gone ends this process
	})
	policy, err := json.Marshal(&res.Policy)
	if err != nil {
		return fmt.Errorf("write the policy: %w", err)
	}
	return send(message{Answer: &answer{Policy: policy, Units: res.Units, Problems: res.Problems}})
}
