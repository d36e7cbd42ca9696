// Package api is the collector's HTTP API: its types, paths and client (DESIGN.md section 7). The server is in distributor/collector.
package api

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"time"

	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/verdict"
)

// Paths. {…} parts are filled by the functions of the client.
const (
	PathReports  = "/v1/reports"
	PathHeads    = "/v1/heads/"   // + cohort; ?after=<mark>&wait=55s. GET long-polls, PUT hands a newer head over
	PathObjects  = "/v1/objects/" // + key
	PathCohorts  = "/v1/cohorts"  // and /v1/cohorts/{c}
	PathHosts    = "/v1/hosts"    // ?cohort=&verdict= and /v1/hosts/{h}
	PathReleases = "/v1/releases" // and /v1/releases/{epoch}
	PathWait     = "/v1/wait/"    // + epoch; ?cohort=&strict=&after=<version>&wait=25s: green, judged by the collector
	PathHealth   = "/healthz"
	PathEvents   = "/v1/events" // server-sent events: a line for each change of a cohort
	PathMetrics  = "/metrics"
	PathReady    = "/readyz"
)

// HeaderHeartbeatKey carries a boot's HMAC key in the answer to its first signed report, over TLS or loopback only.
const HeaderHeartbeatKey = "Muster-Heartbeat-Key"

// HeaderMark carries the mark of a head that GET /v1/heads answers with. The body is the head's own bytes.
const HeaderMark = "Muster-Mark"

// MaxWait bounds a long poll.
const MaxWait = 55 * time.Second

// ReportPost is the body of POST /v1/reports: {"reports":[…]}, each a signed envelope of kind report, or a heartbeat.
type ReportPost struct {
	Reports []ReportItem `json:"reports"`
}

// ReportItem is one report: Signed when the host's state changed or the boot is new, else a Heartbeat.
type ReportItem struct {
	Signed    *manifest.Envelope `json:"signed,omitempty"`
	Heartbeat *Heartbeat         `json:"heartbeat,omitempty"`
}

// Heartbeat says "as in my last signed report" at a higher counter. MAC is HeartbeatMAC.
type Heartbeat struct {
	Repo    string `json:"repo"`
	Cohort  string `json:"cohort"`
	Host    string `json:"host"`
	Boot    string `json:"boot"`
	Counter uint64 `json:"counter"`
	Digest  string `json:"digest"` // payload digest of the last signed report
	MAC     []byte `json:"mac"`
}

// HeartbeatMAC is HMAC-SHA256 with the boot's key over "muster heartbeat\n<repo>\n<cohort>\n<host>\n<boot>\n<counter>\n<digest>". It does not look at h.MAC.
func HeartbeatMAC(key []byte, h Heartbeat) []byte {
	mac := hmac.New(sha256.New, key)
	fmt.Fprintf(mac, "muster heartbeat\n%s\n%s\n%s\n%s\n%d\n%s", h.Repo, h.Cohort, h.Host, h.Boot, h.Counter, h.Digest)
	return mac.Sum(nil)
}

// ReportAnswer answers a ReportPost, one entry a report, in order.
type ReportAnswer struct {
	Results []ReportResult `json:"results"`
}

// ReportResult: Counter is the highest that the collector knows for the host's boot. SendSigned asks for a signed report (unknown boot or digest).
type ReportResult struct {
	Host         string `json:"host"`
	Accepted     bool   `json:"accepted"`
	Counter      uint64 `json:"counter"`
	SendSigned   bool   `json:"send_signed,omitempty"`
	HeartbeatKey []byte `json:"heartbeat_key,omitempty"` // for a boot's first signed report; TLS or loopback only
	Error        string `json:"error,omitempty"`
}

// Error is the body of every answer that is not 2xx.
type Error struct {
	Error  string `json:"error"`
	Hint   string `json:"hint,omitempty"`
	Code   int    `json:"code"`             // exit code of the table
	Reason string `json:"reason,omitempty"` // for programs, where the status alone does not tell
}

// ReasonNoCohort is the Reason of a wait for a cohort that a known release does not have: waiting longer does not help.
const ReasonNoCohort = "unknown cohort"

// Cohort is one cohort in GET /v1/cohorts, and GET /v1/cohorts/{c}.
type Cohort struct {
	Target   uint64               `json:"target"`
	Baseline uint64               `json:"baseline"`
	Phase    manifest.Phase       `json:"phase"`
	Mark     string               `json:"mark"`
	Commit   string               `json:"commit"`
	Subject  string               `json:"subject"`
	Expected int                  `json:"expected"`
	Verdicts map[verdict.Code]int `json:"verdicts"`
	Stale    bool                 `json:"stale"`
	Why      string               `json:"why"`
	// Rollout is where its rollout stands: in GET /v1/cohorts/{c} always once something is assigned; in the list of all cohorts only while it moves, waits or is stopped.
	Rollout *Rollout `json:"rollout,omitempty"`
	// Overrides are the emergency overrides that act on it, the oldest first.
	Overrides []Override `json:"overrides,omitempty"`
	// Active is all that was decided by hand, or by a halt, and acts on it now: overrides too.
	Active []Active `json:"active,omitempty"`
}

// Override is an emergency override that acts on a cohort. What it changes is not told: it may be a secret.
type Override struct {
	ID       string    `json:"id"`
	Hosts    []string  `json:"hosts"` // empty: the whole cohort
	Services []string  `json:"services"`
	Epoch    uint64    `json:"epoch"`
	Author   string    `json:"author"`
	Reason   string    `json:"reason"`
	Created  time.Time `json:"created"`
	NotAfter time.Time `json:"not_after"`
	Ending   bool      `json:"ending,omitempty"` // it is taken from its hosts in steps
	Yields   bool      `json:"yields,omitempty"` // it acts on nobody: the release that it was laid over was taken back
}

// Status is GET /v1/cohorts and `muster status --json`.
type Status struct {
	Cohorts    map[string]Cohort `json:"cohorts"`
	Controller bool              `json:"controller,omitempty"` // this collector takes cohorts to new releases
}

// Host is one host in GET /v1/hosts and `muster hosts --json`.
type Host struct {
	Host    string          `json:"host"`
	Cohort  string          `json:"cohort"`
	Verdict verdict.Code    `json:"verdict"`
	Why     string          `json:"why"`
	Desired uint64          `json:"desired"`
	Running uint64          `json:"running"`
	Grade   manifest.Grade  `json:"grade"`
	Runs    bool            `json:"runs,omitempty"`    // it confirms exactly what it is to run, a hold or an override included
	SeenAt  *time.Time      `json:"seen_at,omitempty"` // collector's clock
	SkewS   float64         `json:"skew_s,omitempty"`  // seconds that the host's clock is ahead of the collector's, as its last signed report showed
	Report  json.RawMessage `json:"report,omitempty"`  // GET /v1/hosts/{h} only: the last signed report's payload
	// Signed is in place of Report with GET /v1/hosts/{h}?signed=true: the report as the host signed it.
	Signed *manifest.Envelope `json:"signed,omitempty"`
}

// What can be done with hosts: POST /v1/hosts/{retire|unretire|accept}, for people with the role operator.
const (
	HostsRetire   = "retire"   // they are gone: they count no more, and an inventory may leave them out
	HostsUnretire = "unretire" // take that back
	HostsAccept   = "accept"   // they were installed anew: the other identity key that speaks as them is theirs
)

// HostsChange is the body of that. All of it is done, or nothing.
type HostsChange struct {
	Cohort string   `json:"cohort,omitempty"` // needed only where a host of that name is in several
	Hosts  []string `json:"hosts"`
	Reason string   `json:"reason,omitempty"`
	By     string   `json:"by,omitempty"` // who does it; a token's own name stands above it
}

// HostsChanged answers it.
type HostsChanged struct {
	Hosts []HostRef `json:"hosts"`
}

// HostRef names a host.
type HostRef struct {
	Cohort string `json:"cohort"`
	Host   string `json:"host"`
}

// Event is the data of one server-sent event of GET /v1/events: a cohort whose target, phase, counts or rollout changed.
type Event struct {
	Cohort   string               `json:"cohort"`
	Target   uint64               `json:"target"`
	Phase    manifest.Phase       `json:"phase"`
	Mark     string               `json:"mark"`
	Expected int                  `json:"expected"`
	Verdicts map[verdict.Code]int `json:"verdicts"`
	// Rollout is as in Cohort, without the hosts that are in a wave.
	Rollout *Rollout `json:"rollout,omitempty"`
}

// Release is one release in GET /v1/releases.
type Release struct {
	Epoch   uint64                   `json:"epoch"`
	Commit  string                   `json:"commit"`
	Kind    manifest.ReleaseKind     `json:"kind"`
	Author  manifest.Person          `json:"author"`
	Subject string                   `json:"subject"`
	Created time.Time                `json:"created"`
	Cohorts map[string]ReleaseCohort `json:"cohorts"`
}

// ReleaseCohort is a cohort's part of a release, without envelopes.
type ReleaseCohort struct {
	State  manifest.CohortState `json:"state"`
	Epoch  uint64               `json:"epoch"`
	Reason string               `json:"reason,omitempty"`
}

// Wait is GET /v1/wait/{epoch} and `muster wait --json`.
type Wait struct {
	Green     bool                     `json:"green"`
	Never     bool                     `json:"never"`
	Epoch     uint64                   `json:"epoch"`
	Confirmed int                      `json:"confirmed"`
	Owed      int                      `json:"owed"`
	Waiting   []verdict.Waiting        `json:"waiting"`
	OwedHosts []verdict.Waiting        `json:"owed_hosts"`
	Why       string                   `json:"why"`
	Cohorts   map[string]verdict.Green `json:"cohorts"`
	Version   uint64                   `json:"version"` // rises with each change; ?after= waits for the next
}
