package api

import "time"

// What somebody decided about a cohort and that acts now.
const (
	ActiveHalt     = "halt"
	ActivePause    = "pause"
	ActiveFreeze   = "freeze"
	ActiveHold     = "hold"
	ActiveOverride = "override"
)

// ActiveKinds are all of them, what stops most first.
var ActiveKinds = []string{ActiveHalt, ActivePause, ActiveFreeze, ActiveHold, ActiveOverride}

// OldAfter is the age from which on what was done by hand is no emergency any more, and is nagged about.
const OldAfter = 24 * time.Hour

// OverrideWarning is how long before its end an override is warned of.
const OverrideWarning = 30 * time.Minute

// Active is one thing that was decided by hand, or by a halt, and that acts on a cohort now. What an override changes is not told: it may be a secret.
type Active struct {
	Kind     string     `json:"kind"`
	ID       string     `json:"id,omitempty"`       // override
	Hosts    []string   `json:"hosts"`              // empty: the whole cohort
	Services []string   `json:"services,omitempty"` // override
	Epoch    uint64     `json:"epoch,omitempty"`    // override: its release; halt: the release that failed
	By       string     `json:"by"`
	Why      string     `json:"why"`
	Since    time.Time  `json:"since"`
	Until    *time.Time `json:"until,omitempty"`
	Ending   bool       `json:"ending,omitempty"` // override: it is taken from its hosts in steps
	Yields   bool       `json:"yields,omitempty"` // override: it acts on nobody, since the release that it was laid over was taken back
}
