package sim

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
)

// The faults.
const (
	faultLostHint   = "hint lost"
	faultCutHost    = "host cut off"
	faultCutCtl     = "controller cut off"
	faultCutServer  = "collector cut off"
	faultKillAgent  = "agent killed"
	faultDownHost   = "host down"
	faultKillCtl    = "controller killed"
	faultKillServer = "collector killed"
	faultDuplicate  = "controllers at once"
	faultHour       = "controller paused for an hour"
	faultSkew       = "clock wrong"
	faultStaleRead  = "stale read"
	faultStaleSight = "stale sight"
	faultStoreError = "store error"
	faultLostWrite  = "write lost"
	faultLostAnswer = "answer lost"
	faultDeaf       = "deaf process"
	faultIll        = "ill process"
	faultMute       = "release silences its host"
	faultDisk       = "disk full"
	faultBlackout   = "no metrics"
	faultHold       = "host held"
	faultBad        = "bad commit"
	faultLate       = "late failure"
	faultRevert     = "revert"
	faultNoop       = "commit that changes nothing"
	faultPolicy     = "policy change"
	faultMiddle     = "commit in the middle"
)

var faults = []string{
	faultLostHint, faultCutHost, faultCutCtl, faultCutServer, faultKillAgent, faultDownHost, faultKillCtl, faultKillServer, faultDuplicate, faultHour, faultSkew, faultStaleRead, faultStaleSight,
	faultStoreError, faultLostWrite, faultLostAnswer, faultDeaf, faultIll, faultMute, faultDisk, faultBlackout, faultHold, faultBad, faultLate, faultRevert, faultNoop, faultPolicy, faultMiddle,
}

// Census counts what occurred.
type Census struct {
	mu sync.Mutex
	n  map[string]int // "fault host down", "phase baking", "transition baking > advancing", "action pause", "gate pass"
}

// NewCensus makes an empty one.
func NewCensus() *Census { return &Census{n: map[string]int{}} }

func (c *Census) add(key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.n[key]++
}

func (c *Census) fault(f string)             { c.add("fault " + f) }
func (c *Census) action(a string)            { c.add("action " + a) }
func (c *Census) gate(o string)              { c.add("gate " + o) }
func (c *Census) phase(p string)             { c.add("phase " + p) }
func (c *Census) transition(from, to string) { c.add("transition " + from + " > " + to) }

// Add takes another one's counts in.
func (c *Census) Add(o *Census) {
	o.mu.Lock()
	defer o.mu.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	for k, n := range o.n {
		c.n[k] += n
	}
}

// Zeros lists what never occurred and should have.
func (c *Census) Zeros() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var zeros []string
	for _, k := range expected() {
		if c.n[k] == 0 {
			zeros = append(zeros, k)
		}
	}
	slices.Sort(zeros)
	return zeros
}

// String lists the counts, those of the expected ones that are 0 included.
func (c *Census) String() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	keys := map[string]bool{}
	for k := range c.n {
		keys[k] = true
	}
	for _, k := range expected() {
		keys[k] = true
	}
	var b strings.Builder
	for _, k := range slices.Sorted(maps.Keys(keys)) {
		fmt.Fprintf(&b, "%10d  %s\n", c.n[k], k)
	}
	return b.String()
}

// The phases, and how a rollout goes from one to another.
var (
	phases      = []string{"advancing", "baking", "awaiting approval", "paused", "done", "rolling back", "halted"}
	transitions = []string{
		"done > advancing", "advancing > baking", "advancing > done", "baking > advancing", "baking > awaiting approval", "awaiting approval > advancing", "baking > done",
		"advancing > rolling back", "baking > rolling back", "awaiting approval > rolling back", "paused > rolling back", "done > rolling back", "rolling back > halted", "rolling back > done",
		"advancing > halted", "baking > halted", "halted > done", "halted > rolling back", "halted > advancing",
		"advancing > paused", "baking > paused", "awaiting approval > paused", "done > paused", "paused > advancing", "paused > baking", "paused > awaiting approval", "paused > done",
	}
	actions  = []string{"pause", "resume", "approve", "abort", "supersede", "refresh", "freeze", "unfreeze", "hold", "unhold", "rollback", "pause again", "resume again", "abort again", "supersede again", "unfreeze again"}
	outcomes = []string{"pass", "fail", "inconclusive"}
	harms    = []string{traitRefused, traitReload, traitIll, traitDeaf, traitMute, traitErrors, traitLate}
)

// expected is what a long run must have seen.
func expected() []string {
	list := []string{"green"}
	for word, of := range map[string][]string{"fault": slices.Concat(faults, operatorFaults), "phase": phases, "transition": transitions, "action": actions, "gate": outcomes, "bad": harms} {
		for _, x := range of {
			list = append(list, word+" "+x)
		}
	}
	return list
}
