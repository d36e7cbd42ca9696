// Package verdict says what is true of a host, and when a cohort is green: pure functions, called by collector, CLI and page alike.
package verdict

import (
	"time"

	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/report"
)

// Code is a host's verdict.
type Code string

// The verdicts in their precedence (DESIGN.md section 7). Unknown stands before all of them when the collector's own view is old.
const (
	Unknown    Code = "unknown"
	Retired    Code = "retired"
	Unexpected Code = "unexpected"
	Duplicate  Code = "duplicate"
	Missing    Code = "missing"
	Silent     Code = "silent"
	Failed     Code = "failed"
	RolledBack Code = "rolled back"
	Refused    Code = "refused"
	Drifted    Code = "drifted"
	Held       Code = "held"
	Overridden Code = "overridden"
	Lagging    Code = "lagging"
	Applying   Code = "applying"
	Stale      Code = "stale"
	NotRunning Code = "not running"
	Observing  Code = "observing"
	Confirmed  Code = "confirmed"
)

// Codes are all of them, in their precedence.
var Codes = []Code{
	Unknown, Retired, Unexpected, Duplicate, Missing, Silent, Failed, RolledBack, Refused, Drifted, Held, Overridden, Lagging, Applying, Stale, NotRunning, Observing, Confirmed,
}

// HeldOnHost begins the sentence about a host that is held by a command on the host itself: no order from elsewhere ends that.
const HeldOnHost = "held on the host"

// Input is all that a host's verdict is made of.
type Input struct {
	Host       string
	Cohort     string
	Expected   bool   // in the inventory of the cohort
	ExpectedIn string // cohorts that the inventory has it in, if others
	AlsoIn     string // cohorts that the inventory has it in beside this one
	Retired    bool
	RetiredWhy string         // why, if not by leaving the inventory
	Mismatch   string         // why `match` does not choose it, if that is what makes it unexpected
	Duplicate  bool           // two boots speak
	Accepted   bool           // the identity key is pinned
	View       *manifest.View // the newest verified head; nil if there is none
	ViewAge    time.Duration  // since the collector's last good read of it
	Poll       time.Duration  // the collector's own poll
	Report     *report.Report // the last one; nil if never
	Received   time.Time      // by the collector's clock
	Released   time.Time      // when this host was told to take the assigned release, by the collector's clock; lagging counts from here
	Now        time.Time

	// ViewProblem is why the head in the store could not be taken, "" if it could.
	ViewProblem string
	// SilentFrom: silence counts from here if that is later than Received, since the collector was not listening before.
	SilentFrom time.Time
	// Speakers are the boots that speak as this host, if it is a duplicate.
	Speakers []Speaker
	// Skew is the host's clock minus the collector's, as its last signed report showed it.
	Skew time.Duration
	// Variants is the document that the assigned statement keeps its host variants in, if it does.
	Variants *manifest.Variants
}

// Speaker is one of several agents that speak under one host name.
type Speaker struct {
	Boot     string
	Running  uint64
	Received time.Time // last heard, by the collector's clock
}

// Verdict is a code and the one sentence that says why and what to do.
type Verdict struct {
	Code    Code           `json:"verdict"`
	Why     string         `json:"why"`
	Desired uint64         `json:"desired"`
	Running uint64         `json:"running"`
	Grade   manifest.Grade `json:"grade"`
}

// GreenInput is what green is made of: one cohort.
type GreenInput struct {
	Cohort    string
	Epoch     uint64 // the release asked for
	Standing  uint64 // plain epoch that stands for this cohort after release Epoch (built: Epoch; holds: the earlier one)
	State     manifest.CohortState
	Reason    string          // blocked
	Accept    map[uint64]bool // other epochs that are as good: a later release whose commit contains this one's
	View      *manifest.View
	Hosts     []HostInput
	Published time.Time // of release Epoch: when it was first seen, or what it says itself if that is earlier
	Strict    bool
	Now       time.Time

	// Statements are the payload digests of the cohort's plain statements, as the releases carry them: of Standing and of each epoch in Accept. One that is not there
	// could not be read.
	Statements map[uint64]string
	// Replaced are the releases whose number holds another release by now than it held before.
	Replaced map[uint64]bool

	// Short is how many hosts the inventory expects by number alone (`expect`) beyond those in Hosts.
	Short int
	// Over is how many hosts are there beyond the most that `expect` allows.
	Over int
	// Uncounted is why nobody knows how many hosts the cohort has, "" if they are counted. Unlisted: that may pass, since an inventory could not be read.
	Uncounted string
	Unlisted  bool
}

// HostInput is one expected host with its verdict.
type HostInput struct {
	Input   Input
	Verdict Verdict
}

// Waiting is a host that is not confirmed, and why.
type Waiting struct {
	Host    string `json:"host"`
	Verdict Code   `json:"verdict"`
	Why     string `json:"why"`
}

// Green is the answer for a cohort.
type Green struct {
	Green     bool      `json:"green"`
	Never     bool      `json:"never"` // it will not become green by waiting: zero hosts, held, halted, blocked, rolled back, aborted
	Why       string    `json:"why"`
	Confirmed int       `json:"confirmed"`
	Owed      int       `json:"owed"` // silent since before the release was published
	OwedHosts []Waiting `json:"owed_hosts"`
	Waiting   []Waiting `json:"waiting"`
	// Rollout says where the cohort's rollout stands and what it waits for, as long as it is not over; the collector fills it in.
	Rollout string `json:"rollout,omitempty"`
}
