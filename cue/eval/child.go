package eval

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"strconv"
)

// childEnv starts this executable as the evaluation child; its value is the limit of memory in bytes.
const childEnv = "MUSTER_EVALUATION_CHILD"

// Exit codes of the child beside Go's own 2. Another message than these on standard error may hold values of the repository.
const (
	exitParent = 3 // the parent is gone
	exitSetup  = 4 // what is on standard error is ours
)

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
	if err := limitMemory(memory); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(exitSetup)
	}
	Hasten(memory / 32)
	debug.SetMemoryLimit(memory / 10 * 7) // size counts once it is near the limit
	if err := serve(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// Hasten sets up a process that lives shortly, and makes much of which it keeps little: it prefers speed to size. The heap is thought to come to that many
// bytes.
func Hasten(heap int64) {
	debug.SetGCPercent(-1)
	adviseLargePages(min(128<<20, heap))
	debug.SetGCPercent(400)
}

func serve(in io.Reader, out io.Writer) error {
	j, err := readJob(in)
	if err != nil {
		return fmt.Errorf("read the request: %w", err)
	}
	known, err := decodePolicy(j.Policy)
	if err != nil {
		return fmt.Errorf("read the policy: %w", err)
	}
	go func() {
		// The parent says nothing more: this ends when the parent does.
		_, _ = io.Copy(io.Discard, in)
		os.Exit(exitParent)
	}()
	to := &wire{out: out, limit: j.Output}
	end := to.run()
	if j.Fleet {
		evaluateFleet(newTree(j.Request.Files), to)
	} else {
		evaluate(j.Request, known, workers(), to)
	}
	return end()
}

func (w *wire) fleet(f *fleetAnswer) {
	data, err := json.Marshal(f)
	if err != nil {
		panic("eval: " + err.Error()) // plain data always encodes
	}
	w.put(kindFleet, data, false)
}
