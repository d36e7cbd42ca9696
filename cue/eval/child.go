package eval

import (
	"encoding/gob"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"strconv"
	"sync"
)

// childEnv starts this executable as the evaluation child; its value is the limit of memory in bytes.
const childEnv = "MUSTER_EVALUATION_CHILD"

// Exit codes of the child beside Go's own 2. Another message than these on standard error may hold values of the repository.
const (
	exitParent = 3 // the parent is gone
	exitSetup  = 4 // what is on standard error is ours
)

// job is what the child is given.
type job struct {
	Request *Request
	Policy  []byte // JSON of the fleet's policy; nil: evaluate the fleet first. gob drops a pointer to zero, which is a bound of a gate
	Output  int64  // limit of one service's answer
	Fleet   bool   // the fleet and no service
}

// message is what the child writes, one for each thing that begins or ends.
type message struct {
	Begins, Ends []string
	Fleet        []byte // JSON of a fleetAnswer
	Answer       []byte // of encodeAnswer
	Blamed       bool   // the answer is that a limit was blown
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
		os.Exit(exitSetup)
	}
	// Throughput before size, until size is near its limit.
	debug.SetGCPercent(400)
	debug.SetMemoryLimit(memory / 10 * 7)
	if err := limitMemory(memory); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(exitSetup)
	}
	if err := serve(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

func serve(in io.Reader, out io.Writer) error {
	var j job
	if err := gob.NewDecoder(in).Decode(&j); err != nil {
		return fmt.Errorf("read the request: %w", err)
	}
	to := &wire{out: gob.NewEncoder(out), limit: j.Output}
	known, err := decodePolicy(j.Policy)
	if err != nil {
		return fmt.Errorf("read the policy: %w", err)
	}
	go func() {
		// The parent says nothing more: this ends when the parent does.
		_, _ = io.Copy(io.Discard, in)
		os.Exit(exitParent)
	}()
	if j.Fleet {
		evaluateFleet(newTree(j.Request.Files), to)
		return to.err
	}
	evaluate(j.Request, known, workers(), to)
	return to.err
}

// wire is the sink that leads to the parent.
type wire struct {
	limit int64

	mu  sync.Mutex
	out *gob.Encoder
	err error // the first; a parent that is gone ends this process anyway
}

func (w *wire) send(m message) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.out.Encode(m); err != nil && w.err == nil {
		w.err = fmt.Errorf("write the answer: %w", err)
	}
}

func (w *wire) begins(what ...string) { w.send(message{Begins: what}) }
func (w *wire) ends(what ...string)   { w.send(message{Ends: what}) }

func (w *wire) fleet(f *fleetAnswer) {
	data, err := json.Marshal(f)
	if err != nil {
		panic("eval: " + err.Error()) // plain data always encodes
	}
	w.send(message{Fleet: data})
}

func (w *wire) service(a *answer) {
	m := message{Answer: encodeAnswer(a)}
	if int64(len(m.Answer)) > w.limit {
		m.Answer, m.Blamed = encodeAnswer(blame(a.Service, gave(w.limit))), true
	}
	w.send(m)
}
