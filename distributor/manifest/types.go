package manifest

import "time"

// Version is the format version `v` that this release writes for every payload; it reads 1 to Version.
const Version = 1

// Digest strings are "sha256:" and 64 lower-case hex digits. Epochs and serials are below 2^53.

// Grade is how well a process is known to run what is on disk, weakest first: disk, reloaded, restarted, process.
type Grade string

// The grades of evidence.
const (
	GradeDisk      Grade = "disk"      // the files are in place
	GradeReloaded  Grade = "reloaded"  // the reload hook returned 0
	GradeRestarted Grade = "restarted" // the process started after the swap
	GradeProcess   Grade = "process"   // the process states the service epoch it loaded
)

// Object names immutable stored bytes.
type Object struct {
	Object  string `json:"object"`   // digest of the stored (compressed) bytes; KeyBundle and so on derive the key
	Size    int64  `json:"size"`     // bytes as stored
	Tar     string `json:"tar"`      // digest of the uncompressed tar
	TarSize int64  `json:"tar_size"` // bytes of the uncompressed tar
}

// Statement says what one cohort's bundle of one release is. Signed by the release key; an overridden one by an operator key, or by the release key
// when a publisher built it anew.
type Statement struct {
	V        int              `json:"v"`
	Store    string           `json:"store"`
	Repo     string           `json:"repo"`
	Cohort   string           `json:"cohort"`
	Epoch    uint64           `json:"epoch"`
	Commit   string           `json:"commit"` // 40 or 64 hex digits
	Bundle   Object           `json:"bundle"`
	Content  string           `json:"content"`            // content digest
	Files    int              `json:"files"`              // count, without .muster/
	Evidence map[string]Grade `json:"evidence"`           // service → grade required
	Inputs   string           `json:"inputs"`             // digest of tree, evaluator, settings, overrides
	Content0 string           `json:"content0"`           // content digest of the epoch-0 render
	Override string           `json:"override,omitempty"` // override id: this is the overridden statement
	// Variants are the hosts whose bundle differs; over MaxVariants they move to VariantsObject (a Variants document).
	Variants       []Variant `json:"variants,omitempty"`
	VariantsObject *Object   `json:"variants_object,omitempty"`
	Ext            Ext       `json:"ext,omitempty"`
}

// Variant is a host's own bundle of a cohort's statement.
type Variant struct {
	Host     string           `json:"host"`
	Bundle   Object           `json:"bundle"`
	Content  string           `json:"content"`
	Files    int              `json:"files"`
	Evidence map[string]Grade `json:"evidence"`
	Content0 string           `json:"content0"`
}

// Variants is the stored document that VariantsObject names.
type Variants struct {
	V        int       `json:"v"`
	Variants []Variant `json:"variants"`
	Ext      Ext       `json:"ext,omitempty"`
}

// Person is a git author or committer.
type Person struct {
	Name  string    `json:"name"`
	Email string    `json:"email"`
	At    time.Time `json:"at"`
}

// ReleaseKind is why a release exists.
type ReleaseKind string

// The kinds of release.
const (
	ReleaseCommit   ReleaseKind = "commit"
	ReleaseOverride ReleaseKind = "override"
)

// Release is one published commit or one emergency change; its number is the epoch. Immutable.
type Release struct {
	V           int                      `json:"v"`
	Store       string                   `json:"store"`
	Repo        string                   `json:"repo"`
	Epoch       uint64                   `json:"epoch"`
	Prev        string                   `json:"prev,omitempty"` // digest of the predecessor's payload; absent in the first
	Kind        ReleaseKind              `json:"kind"`
	Commit      string                   `json:"commit"`
	Tree        string                   `json:"tree"`
	Parents     []string                 `json:"parents"`
	Author      Person                   `json:"author"`
	Committer   Person                   `json:"committer"`
	Subject     string                   `json:"subject"`
	Signer      string                   `json:"signer,omitempty"` // who signed the commit, as verified
	PullRequest int                      `json:"pull_request,omitempty"`
	Proposer    string                   `json:"proposer,omitempty"` // login of who opened the pull request
	Approvers   []string                 `json:"approvers,omitempty"`
	Evaluator   string                   `json:"evaluator"` // "muster 0.1.0 cue v0.17.1"
	Settings    string                   `json:"settings"`  // digest of the publisher's own settings: part of the skip key (B021)
	Source      Object                   `json:"source"`    // sources/<tree>.tar.zst
	Created     time.Time                `json:"created"`
	Policy      Policy                   `json:"policy"`
	Cohorts     map[string]ReleaseCohort `json:"cohorts"`
	OverrideID  string                   `json:"override_id,omitempty"` // kind override: which
	NotAfter    *time.Time               `json:"not_after,omitempty"`   // kind override: latest end
	Ext         Ext                      `json:"ext,omitempty"`
}

// CohortState is what a release does to a cohort.
type CohortState string

// The states of a cohort in a release.
const (
	StateBuilt   CohortState = "built"
	StateHolds   CohortState = "holds"
	StateBlocked CohortState = "blocked"
)

// ReleaseCohort is one cohort's part of a release.
type ReleaseCohort struct {
	State      CohortState `json:"state"`
	Epoch      uint64      `json:"epoch"`                // epoch of the plain statement that stands after this release; 0 if there is none
	Statement  *Envelope   `json:"statement,omitempty"`  // built: the new plain statement
	Overridden []Envelope  `json:"overridden,omitempty"` // one per living override of the cohort
	Reason     string      `json:"reason,omitempty"`     // blocked
}

// Assignment gives an epoch to the hosts it matches. Exactly one of Hosts, Below (with Salt), Match is set, or none in the last one.
type Assignment struct {
	Hosts []string          `json:"hosts,omitempty"`
	Below string            `json:"below,omitempty"` // 16 hex digits; 8 bytes of SHA-256(salt, 0x00, host) strictly less than it
	Salt  string            `json:"salt,omitempty"`
	Match map[string]string `json:"match,omitempty"` // labels of the host's own agent.yaml, all must be equal
	Epoch uint64            `json:"epoch"`
	Why   string            `json:"why"`
	Until *time.Time        `json:"until,omitempty"` // from then on it matches nothing
}

// Phase is where a cohort's rollout stands.
type Phase string

// The phases of a rollout.
const (
	PhaseIdle             Phase = "idle"
	PhaseAdvancing        Phase = "advancing"
	PhaseBaking           Phase = "baking"
	PhaseDone             Phase = "done"
	PhaseAwaitingApproval Phase = "awaiting approval"
	PhasePaused           Phase = "paused"
	PhaseRollingBack      Phase = "rolling back"
	PhaseHalted           Phase = "halted"
)

// Stop is a halt, pause, freeze or hold: who stopped what, why, since when, until when.
type Stop struct {
	By    string     `json:"by"`
	Why   string     `json:"why"`
	Since time.Time  `json:"since"`
	Until *time.Time `json:"until,omitempty"`
	Epoch uint64     `json:"epoch,omitempty"` // halt: the release that failed
	Hosts []string   `json:"hosts,omitempty"` // hold: which hosts
	Halt  string     `json:"halt,omitempty"`  // pause: the halt of another cohort that it follows, "cohort@RFC 3339"
}

// Rollout is the state of a cohort's rollout, carried in its manifest.
type Rollout struct {
	PolicyName  string        `json:"policy_name"`
	PolicyEpoch uint64        `json:"policy_epoch"` // release whose policy is in force
	Policy      RolloutPolicy `json:"policy"`
	Target      uint64        `json:"target"`   // epoch being rolled out, or fully rolled out
	Baseline    uint64        `json:"baseline"` // last epoch fully rolled out; 0 before the first
	Wave        int           `json:"wave"`     // 1-based; 0 when idle
	Phase       Phase         `json:"phase"`
	Since       time.Time     `json:"since"`
	Why         string        `json:"why"`
	By          string        `json:"by"`
	Started     *time.Time    `json:"started,omitempty"`  // when this rollout began: hosts that were silent before are no part of it
	Fallback    uint64        `json:"fallback,omitempty"` // while a done rollout is watched: the baseline before it, where a late failure returns
	Was         Phase         `json:"was,omitempty"`      // phase paused: where it goes on
	Told        int           `json:"told,omitempty"`     // hosts that were told to take the target, holds apart
	Extended    int           `json:"extended,omitempty"` // how often this wave's bake was extended for want of data
	Skipped     []string      `json:"skipped,omitempty"`  // gates that a person's resume passes over in this wave
	Ignored     []string      `json:"ignored,omitempty"`  // "cohort@RFC 3339": halts of other cohorts that a person's resume passes over
	Verdicts    []GateVerdict `json:"verdicts,omitempty"` // what the last decision of this rollout rests on
	Approved    []int         `json:"approved,omitempty"` // waves that a person approved
	Pause       *Stop         `json:"pause,omitempty"`
	Halts       []Stop        `json:"halts,omitempty"`
	Freezes     []Stop        `json:"freezes,omitempty"`
	Holds       []Stop        `json:"holds,omitempty"`
	Endings     []Ending      `json:"endings,omitempty"` // overrides that end in steps, before their own end
	Trial       bool          `json:"trial,omitempty"`   // rolling back by a person's word: one host goes first, and the others when it confirms
}

// Ending takes hosts out of an override: those whose Point under Salt is strictly less than Below, all of them without it.
type Ending struct {
	Override string `json:"override"`
	Below    string `json:"below,omitempty"` // 16 hex digits
	Salt     string `json:"salt,omitempty"`
	Why      string `json:"why"`
	By       string `json:"by,omitempty"` // who ended it with a rollback: then it does not wait for its time
}

// Outcome is what a gate says.
type Outcome string

// The outcomes of a gate. No data is inconclusive, never a pass. Broken means that it can never say anything: a query that does not parse, say.
const (
	OutcomePass         Outcome = "pass"
	OutcomeFail         Outcome = "fail"
	OutcomeInconclusive Outcome = "inconclusive"
	OutcomeBroken       Outcome = "broken"
)

// GateVerdict is what a gate says of a wave, and the samples behind it.
type GateVerdict struct {
	Gate    string       `json:"gate"`
	Wave    int          `json:"wave"` // 1-based; one above the last wave: while it is watched
	Outcome Outcome      `json:"outcome"`
	Why     string       `json:"why"` // one sentence with value, bound and unit
	From    time.Time    `json:"from"`
	To      time.Time    `json:"to"`
	Samples []GateSample `json:"samples,omitempty"` // KeptGateSamples at most; more are thinned evenly, the bad ones kept first
}

// GateSample is one look of a gate. A number that was not there, was no number or not finite is absent.
type GateSample struct {
	At       time.Time `json:"at"`
	Canary   *float64  `json:"canary,omitempty"`
	Control  *float64  `json:"control,omitempty"`    // compare: the same of the hosts that keep the baseline
	OfCanary *float64  `json:"of_canary,omitempty"`  // counts: all events, of which Canary were bad
	OfOthers *float64  `json:"of_control,omitempty"` // the same of the control hosts
}

// Manifest says for one cohort which hosts run which release now. Signed by the rollout key. Ordered by (Era, Serial).
type Manifest struct {
	V          int          `json:"v"`
	Store      string       `json:"store"`
	Repo       string       `json:"repo"`
	Cohort     string       `json:"cohort"`
	Era        uint64       `json:"era"`
	Serial     uint64       `json:"serial"`
	Issued     time.Time    `json:"issued"`
	FreshUntil time.Time    `json:"fresh_until"`
	Statements []Envelope   `json:"statements"` // every plain and overridden statement that Assign can lead to
	Rollout    Rollout      `json:"rollout"`
	Assign     []Assignment `json:"assign"` // first match wins; the last one is unconditional
	Ext        Ext          `json:"ext,omitempty"`
}

// Override is an operator's signed change of one cohort, or of some of its hosts; or, with Ended, its signed end.
type Override struct {
	V        int       `json:"v"`
	Store    string    `json:"store"`
	Repo     string    `json:"repo"`
	Cohort   string    `json:"cohort"`
	Hosts    []string  `json:"hosts,omitempty"` // empty: the whole cohort
	ID       string    `json:"id"`
	Author   string    `json:"author"`
	Reason   string    `json:"reason"`
	Created  time.Time `json:"created"`
	NotAfter time.Time `json:"not_after"`
	Epoch    uint64    `json:"epoch"` // the override's release
	// Over is the epoch that the first statement was laid over; 0 if nobody said. Hosts that are led to an older one do not get that statement.
	Over      uint64       `json:"over,omitempty"`
	Patches   []Patch      `json:"patches,omitempty"`
	Statement *Envelope    `json:"statement,omitempty"` // the first statement built with it; absent in an end
	Ended     *OverrideEnd `json:"ended,omitempty"`
	Ext       Ext          `json:"ext,omitempty"`
}

// Patch is the top layer that an override adds to one service: a JSON document, null deletes.
type Patch struct {
	Service string `json:"service"`
	Values  string `json:"values"` // JSON text of an object, kept as written
}

// OverrideEnd is the signed end of an override.
type OverrideEnd struct {
	By     string    `json:"by"`
	Reason string    `json:"reason"`
	At     time.Time `json:"at"`
}

// Head is the document at KeyHead(cohort): a cohort's one record of intent, replaced by compare-and-swap.
type Head struct {
	Manifest  Envelope   `json:"manifest"`
	Overrides []Envelope `json:"overrides"`
	Beat      uint64     `json:"beat"` // unsigned; change detection only
}

// StoreID is the document store.json.
type StoreID struct {
	V  int    `json:"v"`
	ID string `json:"id"` // 32 hex digits, random, created once
}

// CommitIndex is the document at KeyCommit; it can be rebuilt and decides nothing.
type CommitIndex struct {
	V      int       `json:"v"`
	Commit string    `json:"commit"`
	Epoch  uint64    `json:"epoch,omitempty"`
	Reason string    `json:"reason,omitempty"` // why it was refused
	At     time.Time `json:"at"`
}
