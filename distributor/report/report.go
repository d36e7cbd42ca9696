// Package report is what an agent tells the collector about its host.
package report

import (
	"encoding/json"
	"time"

	"github.com/muster-config/muster/distributor/manifest"
)

// Limits.
const (
	MaxReportBytes = 1 << 20 // enough for MaxServices services: the verdict wants to hear of each
	MaxBatch       = 1000
	MaxBatchBytes  = 8 << 20 // so a batch of large reports has to be a short one
	MaxDrift       = 50      // paths; more are cut and counted in Drifted
	MaxReason      = 500
)

// Phase is what the agent is doing with the release it attempts.
type Phase string

// Phases. Idle means: nothing to do, running is what it says.
const (
	PhaseIdle       Phase = "idle"
	PhaseFetching   Phase = "fetching"
	PhaseApplying   Phase = "applying"    // staged, checked, swapping, reloading
	PhaseConfirming Phase = "confirming"  // waiting for processes to state the epoch
	PhaseFailed     Phase = "failed"      // went back and is still ill
	PhaseRolledBack Phase = "rolled back" // went back and is well
	PhaseRefused    Phase = "refused"     // never swapped
	PhaseLeaving    Phase = "leaving"     // shutting down
)

// Report is one host's state. Reports are state, not events: ordered by (Boot, Counter).
type Report struct {
	V          int                        `json:"v"`
	Repo       string                     `json:"repo"`
	Store      string                     `json:"store"`
	Cohort     string                     `json:"cohort"`
	Host       string                     `json:"host"`
	Labels     map[string]string          `json:"labels"`
	Boot       string                     `json:"boot"`               // random id of this start of the agent
	Counter    uint64                     `json:"counter"`            // rises with each report of a boot
	Key        []byte                     `json:"key"`                // identity public key
	Agent      string                     `json:"agent"`              // version
	Reads      int                        `json:"reads"`              // highest format `v` it reads
	At         time.Time                  `json:"at"`                 // host clock; never used for freshness, and for order only to know a start of the agent that is sent again after 32 others
	Seen       string                     `json:"seen"`               // manifest.Mark of the newest verified head; "" before the first
	Desired    uint64                     `json:"desired"`            // epoch that Resolve assigns
	Attempted  uint64                     `json:"attempted"`          // epoch last tried
	Running    uint64                     `json:"running"`            // epoch on disk under current; 0 if none
	Content    string                     `json:"content"`            // content digest found on disk
	Override   string                     `json:"override,omitempty"` // override id of what runs
	Source     string                     `json:"source,omitempty"`   // manifest.Source of Desired
	Mode       string                     `json:"mode"`               // enforce | observe
	Phase      Phase                      `json:"phase"`
	Grade      manifest.Grade             `json:"grade,omitempty"` // lowest grade over all services; "" when nothing is confirmed
	Confirmed  bool                       `json:"confirmed"`       // disk equals Content of Desired and every service has its required grade
	Reason     string                     `json:"reason,omitempty"`
	Code       string                     `json:"code,omitempty"` // refusal code: "digest mismatch", "unsafe path", "signature", "no space", …
	Tries      int                        `json:"tries,omitempty"`
	Stale      bool                       `json:"stale,omitempty"`
	Held       *Hold                      `json:"held,omitempty"`        // somebody on the host holds it as it is
	WaitsUntil *time.Time                 `json:"waits_until,omitempty"` // it takes Desired then: its turn of the rollout's spread
	Drift      []string                   `json:"drift,omitempty"`
	Drifted    int                        `json:"drifted,omitempty"` // count of all drifted paths
	Services   map[string]Service         `json:"services"`
	Probes     map[string]Probe           `json:"probes,omitempty"`
	Poll       float64                    `json:"poll_s"` // seconds between reports that this agent promises
	Ext        map[string]json.RawMessage `json:"ext,omitempty"`
}

// Hold says that somebody on the host keeps it as it is: who, why, since when, until when.
type Hold struct {
	By    string    `json:"by"`
	Why   string    `json:"why"`
	Since time.Time `json:"since"`
	Until time.Time `json:"until"`
}

// Service is one service on the host.
type Service struct {
	State     string                     `json:"state"`    // confirmed | waiting | not running | reload failed | …
	Epoch     uint64                     `json:"epoch"`    // service epoch that its process states (0: none)
	Expected  uint64                     `json:"expected"` // service epoch installed
	Grade     manifest.Grade             `json:"grade,omitempty"`
	Healthy   *bool                      `json:"healthy,omitempty"`
	AgeS      float64                    `json:"age_s"` // seconds since it was last probed
	Reason    string                     `json:"reason,omitempty"`
	Restarts  int                        `json:"restarts,omitempty"` // how often its processes started anew, not for a reload, since the phase of the rollout began that the host knows; where its unit or pid file is known
	Instances map[string]ServiceInstance `json:"instances,omitempty"`
}

// ServiceInstance is one of several processes of a service.
type ServiceInstance struct {
	Epoch  uint64 `json:"epoch"`
	State  string `json:"state"`
	Reason string `json:"reason,omitempty"`
}

// Probe is the count and latency of a probe since the last report.
type Probe struct {
	Count    int     `json:"count"`
	Failures int     `json:"failures"`
	P50MS    float64 `json:"p50_ms"`
	MaxMS    float64 `json:"max_ms"`
}
