package api

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/verdict"
	"github.com/muster-config/muster/distributor/wire"
)

// Acts are what POST /v1/cohorts/{c}/{act} takes, for people with the role operator.
var Acts = []string{"pause", "resume", "approve", "abort", "supersede", "refresh", "freeze", "unfreeze", "hold", "unhold", "rollback"}

// Act is the body of that.
type Act struct {
	Reason string     `json:"reason"`
	Epoch  uint64     `json:"epoch,omitempty"` // the target that the person looked at: with another one under way it is refused
	Wave   int        `json:"wave,omitempty"`  // approve: which; 0: the one that waits
	Until  *time.Time `json:"until,omitempty"` // freeze, hold: its end
	By     string     `json:"by,omitempty"`    // who does it; a token's own name stands above it

	Hosts         []string `json:"hosts,omitempty"`          // hold, unhold
	To            uint64   `json:"to,omitempty"`             // rollback: the epoch, 0: the baseline; hold: the epoch, 0: what each host runs
	Now           bool     `json:"now,omitempty"`            // rollback: all hosts at once
	DropOverrides bool     `json:"drop_overrides,omitempty"` // rollback: overrides are taken from their hosts as well
	Aborted       bool     `json:"aborted,omitempty"`        // resume: also what another person aborted or rolled back
}

// Acted answers it.
type Acted struct {
	Cohort  string         `json:"cohort"`
	Changed bool           `json:"changed"` // false: it was so already
	Said    string         `json:"said"`    // what was done, or that it is so already
	Mark    string         `json:"mark"`    // of the order that stands now
	Target  uint64         `json:"target"`
	Phase   manifest.Phase `json:"phase"`
	Warning string         `json:"warning,omitempty"` // it is done, and something beside it went wrong
}

// Rollout is where a cohort's rollout stands, as people look at it. Times are points, not spans: who shows it knows what time it is.
type Rollout struct {
	Cohort      string         `json:"cohort"`
	Target      uint64         `json:"target"`
	Baseline    uint64         `json:"baseline"`
	Fallback    uint64         `json:"fallback,omitempty"` // while a done rollout is watched: where a late failure returns
	Phase       manifest.Phase `json:"phase"`
	Was         manifest.Phase `json:"was,omitempty"` // paused: where it goes on
	Wave        int            `json:"wave"`          // 1-based; 0: none; one above the last while it is watched
	Since       time.Time      `json:"since"`
	Until       *time.Time     `json:"until,omitempty"` // when the bake, the watch or the time to confirm is over
	By          string         `json:"by"`
	Why         string         `json:"why"`
	Waits       string         `json:"waits,omitempty"` // what it waits for, and what ends that; empty: for nothing
	Policy      string         `json:"policy"`
	PolicyEpoch uint64         `json:"policy_epoch"`

	Eligible  int           `json:"eligible"`  // hosts that can be told: expected, reporting, not held
	Told      int           `json:"told"`      // of those, told to run the target
	Confirmed int           `json:"confirmed"` // of those told, confirmed
	Waves     []RolloutWave `json:"waves"`
	Gates     []RolloutGate `json:"gates"`
	Queue     []Queued      `json:"queue"` // newer releases that wait, the oldest first

	Pause   *manifest.Stop  `json:"pause,omitempty"`
	Halts   []manifest.Stop `json:"halts"`
	Freezes []manifest.Stop `json:"freezes"`
	Skipped []string        `json:"skipped"`           // gates that a person's resume passes over in this wave
	Overdue bool            `json:"overdue,omitempty"` // it has waited for a person for longer than OverdueAfter
}

// OverdueAfter is how long a rollout may wait for a person before that is an alert of its own.
const OverdueAfter = time.Hour

// What a wave is to a rollout.
const (
	WaveDone = "done" // it passed
	WaveNow  = "now"  // it is under way
	WaveNext = "next" // it comes
	// WaveFailed is the one that a failure ended.
	WaveFailed = "failed"
)

// RolloutWave is one wave.
type RolloutWave struct {
	Wave     int    `json:"wave"`
	Takes    string `json:"takes"`    // "5%", "3 hosts", "canary=true"
	Hosts    int    `json:"hosts"`    // that have the target when it is over, the waves before it included
	Bake     string `json:"bake"`     // Go duration
	Approval bool   `json:"approval"` // a person approves it before it begins
	Approved bool   `json:"approved"`
	State    string `json:"state"`
	// In are the hosts told so far, of the wave under way, or that failed, only: those that are not confirmed first, at most MaxWaveHosts. More counts the others.
	In   []WaveHost `json:"in"`
	More int        `json:"more,omitempty"`
}

// MaxWaveHosts bounds RolloutWave.In.
const MaxWaveHosts = 50

// WaveHost is a host that was told.
type WaveHost struct {
	Host    string       `json:"host"`
	Verdict verdict.Code `json:"verdict"`
	Why     string       `json:"why"`
}

// RolloutGate is a gate of the policy in force and what it says now.
type RolloutGate struct {
	Gate    string                `json:"gate"`
	Asks    string                `json:"asks"`              // what it compares with what, in words
	Verdict *manifest.GateVerdict `json:"verdict,omitempty"` // none: nothing was asked yet
	Live    bool                  `json:"live"`              // what is heard now; else what the last order rests on
}

// Queued is a release that waits for the rollout under way.
type Queued struct {
	Epoch   uint64    `json:"epoch"`
	Commit  string    `json:"commit"`
	Subject string    `json:"subject"`
	Author  string    `json:"author"`
	Created time.Time `json:"created"`
}

// Observed is GET /v1/cohorts/{c}/observed: what a rollout controller elsewhere needs to know of the hosts. Under another head than that of Mark it says nothing.
type Observed struct {
	Mark   string         `json:"mark"`
	Hosts  []ObservedHost `json:"hosts"`
	Unseen string         `json:"unseen,omitempty"` // why there may be hosts that nobody has heard of
	// Settling is why hosts that report may not be known yet: nothing goes forward until that is over.
	Settling string `json:"settling,omitempty"`
}

// ObservedHost is one expected host.
type ObservedHost struct {
	Name      string            `json:"name"`
	Labels    map[string]string `json:"labels"`
	Verdict   verdict.Code      `json:"verdict"`
	Running   uint64            `json:"running"`
	Attempted uint64            `json:"attempted"`
	Silent    time.Time         `json:"silent"`          // since when, if Verdict is silent
	Left      bool              `json:"left,omitempty"`  // silent because its agent said that it stops
	Told      time.Time         `json:"told"`            // when it was told what it is to run
	Waits     *time.Time        `json:"waits,omitempty"` // by the host's clock: until then it waits for its turn of the spread

	At         time.Time `json:"at"` // of its last report
	Refused    bool      `json:"refused,omitempty"`
	RolledBack bool      `json:"rolled_back,omitempty"`
	Drifted    bool      `json:"drifted,omitempty"`
	Restarts   int       `json:"restarts,omitempty"`
	Probes     int       `json:"probes,omitempty"`
	Failures   int       `json:"failures,omitempty"`
	LatencyMS  float64   `json:"latency_ms,omitempty"`
}

// Act does something about a cohort's rollout: one of Acts.
func (c *Client) Act(ctx context.Context, cohort, act string, q Act) (*Acted, error) {
	body, err := wire.Encode(q)
	if err != nil {
		return nil, fmt.Errorf("encode the request: %w", err)
	}
	var out Acted
	if err := c.ask(ctx, http.MethodPost, PathCohorts+"/"+url.PathEscape(cohort)+"/"+url.PathEscape(act), nil, body, requestTimeout, &out); err != nil {
		return nil, err
	}
	return &out, nil
}

// Cohort is one cohort, with where its rollout stands; ErrNotFound if there is none.
func (c *Client) Cohort(ctx context.Context, cohort string) (*Cohort, error) {
	var out Cohort
	if err := c.ask(ctx, http.MethodGet, PathCohorts+"/"+url.PathEscape(cohort), nil, nil, requestTimeout, &out); err != nil {
		return nil, err
	}
	return &out, nil
}

// Observed is what a controller needs of a cohort's hosts.
func (c *Client) Observed(ctx context.Context, cohort string) (*Observed, error) {
	var out Observed
	if err := c.ask(ctx, http.MethodGet, PathCohorts+"/"+url.PathEscape(cohort)+"/observed", nil, nil, requestTimeout, &out); err != nil {
		return nil, err
	}
	return &out, nil
}

// Events of a Notice.
const (
	NoticeHalted         = "halted"          // a rollout failed, or a person aborted it: the cohort is halted
	NoticeRolledBack     = "rolled_back"     // hosts go back to the baseline
	NoticeApproval       = "approval"        // a wave waits for a person
	NoticePaused         = "paused"          // a person paused the rollout, or a gate could not say anything
	NoticeOverrideEnding = "override_ending" // an override ends within 30 minutes
)

// NoticeEvents are all events.
var NoticeEvents = []string{NoticeHalted, NoticeRolledBack, NoticeApproval, NoticePaused, NoticeOverrideEnding}

// Headers of a notice. The signature is "sha256=" and the hex HMAC-SHA256, with the receiver's secret, over the timestamp, a full stop and the body. A receiver refuses what is
// not signed, or whose timestamp is minutes away from its own clock, and drops an id that it has had.
const (
	HeaderNoticeID        = "Muster-Notice-Id"
	HeaderNoticeEvent     = "Muster-Notice-Event"
	HeaderNoticeTimestamp = "Muster-Notice-Timestamp" // seconds since 1970, of this try
	HeaderNoticeSignature = "Muster-Notice-Signature"
)

// NoticeSignature is the value of HeaderNoticeSignature.
func NoticeSignature(secret []byte, timestamp string, body []byte) string {
	mac := hmac.New(sha256.New, secret)
	mac.Write([]byte(timestamp))
	mac.Write([]byte("."))
	mac.Write(body)
	return "sha256=" + hex.EncodeToString(mac.Sum(nil))
}

// Notice is the body that a webhook of `notify` in collector.yaml gets, by POST. It comes at least once: one that comes again has the same ID.
type Notice struct {
	V        int            `json:"v"`
	ID       string         `json:"id"`
	Event    string         `json:"event"`
	Repo     string         `json:"repo"`
	Cohort   string         `json:"cohort"`
	At       time.Time      `json:"at"` // when what it tells of began
	Epoch    uint64         `json:"epoch"`
	Baseline uint64         `json:"baseline"`
	Commit   string         `json:"commit"`
	Subject  string         `json:"subject"`
	Author   string         `json:"author"`
	Phase    manifest.Phase `json:"phase"`
	Step     string         `json:"step"` // where the rollout stands: "wave 2 of 3, gate errors"
	By       string         `json:"by"`
	Why      string         `json:"why"`
	Next     string         `json:"next"`            // what a person can do
	Overdue  bool           `json:"overdue"`         // it was told before, and nobody did anything for an hour, or a day, …
	Until    *time.Time     `json:"until,omitempty"` // override_ending: its end
	Queue    []Queued       `json:"queue"`           // releases that wait behind it
}
