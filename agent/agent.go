// Package agent is the loop that keeps one host right: hint or tick, fetch, verify, install, confirm, report. It takes its disk (Installer, Memory), its
// processes (Prober) and its carriers as interfaces, so that simulated hosts are this very code without a disk. agent/host puts a real one together.
//
// One goroutine decides (Run, or Once). The long poll and the reports have a goroutine each, owned by Run; they hand over by channels of size one and
// never hold up an apply.
package agent

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"time"

	"github.com/muster-config/muster/agent/probe"
	"github.com/muster-config/muster/distributor/api"
	"github.com/muster-config/muster/distributor/bundle"
	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/report"
)

// Carrier is one source of heads and objects: the store itself, or the collector.
type Carrier interface {
	Name() string
	// Head reads the cohort's head as stored bytes.
	Head(ctx context.Context, cohort string) ([]byte, error)
	// Object streams an immutable object.
	Object(ctx context.Context, key string) (io.ReadCloser, int64, error)
	// Keyring reads keyring version, or store.ErrNotFound.
	Keyring(ctx context.Context, version uint64) ([]byte, error)
}

// Hinter is a carrier that can wait for a newer head (long poll).
type Hinter interface {
	// AwaitHead returns the head's bytes when its mark is no longer `after`, or store.ErrNotModified when nothing came in time.
	AwaitHead(ctx context.Context, cohort string, after manifest.Mark) ([]byte, error)
}

// Installer owns the target directory. agent/install is the real one.
type Installer interface {
	// Current is the release under `current`, as its record says; nil if there is none. Verify says whether the record is still true.
	Current(ctx context.Context) (*Installed, error)
	// Stage fetches and unpacks a release beside the others, fsynced, and says which services differ from what lies under current. It leaves current
	// untouched. A release that is there already and proves good is used again, without open being called.
	Stage(ctx context.Context, r manifest.Resolution, open func(ctx context.Context) (io.ReadCloser, error)) (*Staged, error)
	// VerifyStaged recomputes the content digest of a staged release and lists the paths that differ from its record.
	VerifyStaged(ctx context.Context, s *Staged) (content string, drift []string, err error)
	// Swap makes the staged release current: rename of a link, fsync of the directory.
	Swap(ctx context.Context, s *Staged) error
	// SwapBack makes an earlier release current again.
	SwapBack(ctx context.Context, to *Installed) error
	// Verify recomputes the content digest of current and lists the paths that differ from its record.
	Verify(ctx context.Context) (content string, drift []string, err error)
	// Sweep removes left-overs and releases that nothing needs; keep names directories to keep (current is always kept).
	Sweep(ctx context.Context, keep ...string) error
}

// Memory keeps the agent's few small documents (state.json, identity.json) durably. Each is only ever replaced whole.
type Memory interface {
	// Load reads a document, or fs.ErrNotExist.
	Load(name string) ([]byte, error)
	// Save replaces it; when it returns nil, the document survives a power cut. Only the owner can read it.
	Save(name string, data []byte) error
}

// QuickMemory is a Memory that an Installer has in its own directory.
type QuickMemory interface {
	Memory
	// SaveUnsynced is Save, except that until the next Swap or Save a power cut may bring the old document back; whatever else happens, it does not.
	SaveUnsynced(name string, data []byte) error
}

// Prober runs the host's own commands and asks its processes. agent/probe is the real one.
type Prober interface {
	Run(ctx context.Context, c probe.Command) probe.Result
	// Ask asks one process what it has loaded.
	Ask(ctx context.Context, q probe.Question) (probe.Answer, error)
	// Well asks one process whether it is well.
	Well(ctx context.Context, h probe.Health) error
	// Unit asks systemd about a unit.
	Unit(ctx context.Context, name string) (probe.Unit, error)
	// Now is the moment from which on files and processes are told from those before; see probe.Moment.
	Now() probe.Moment
}

// Reporter carries one report to the collector.
type Reporter interface {
	Report(ctx context.Context, item api.ReportItem) (api.ReportResult, error)
}

// Installed is a release on disk.
type Installed struct {
	Dir      string // its directory, absolute
	Repo     string
	Cohort   string
	Epoch    uint64
	Commit   string
	Content  string
	Override string
	Services map[string]bundle.Service
}

// Staged is an unpacked release that is not current yet.
type Staged struct {
	Installed
	Changed []string          // services whose files differ from what lies under current, removed ones included; sorted
	Files   map[string]Change // service → which of its files differ; one entry for each of Changed
	Reused  bool              // it was there already
}

// Change names the files of a service that differ, relative to the service's directory, sorted.
type Change struct {
	Added   []string `json:"added,omitempty"`
	Changed []string `json:"changed,omitempty"` // other bytes or another mode
	Removed []string `json:"removed,omitempty"`
}

// Options is what an agent is made of.
type Options struct {
	Config    Config
	Keyring   []byte    // the host's own keyring file: where trust begins
	Carriers  []Carrier // at least one; asked in this order for objects. The first that is a Hinter is polled
	Installer Installer
	Linker    Linker // needed if the configuration has links
	Memory    Memory
	Prober    Prober
	Reporter  Reporter // nil: there is no collector
	Now       func() time.Time
	Logger    *slog.Logger // nil: silent
	Version   string       // of the agent, for reports
	MachineID string       // the identity key is made anew when it changes: a cloned disk is another host
	Applied   func()       // nil, or called after each change of the files, when the memory it took can go

	timing *timing // tests: shorter waits
}

// ErrReconfigured is the cause to cancel Run with when the agent goes on at once under another configuration: it does not say that it is leaving.
var ErrReconfigured = errors.New("configuration changed")

// ErrNotKept is a sync whose outcome, the floors of trust among it, is not sure to survive the end of the agent.
var ErrNotKept = errors.New("the agent's state is not on disk")

// OnceResult is what one full sync came to.
type OnceResult struct {
	Host      string           `json:"host"`
	Cohort    string           `json:"cohort"`
	Seen      string           `json:"seen"`    // mark of the newest verified head, "" if none
	Desired   uint64           `json:"desired"` // epoch
	Running   uint64           `json:"running"`
	Content   string           `json:"content"`
	Changed   []string         `json:"changed"` // services whose files changed in this sync
	Phase     string           `json:"phase"`
	Grade     manifest.Grade   `json:"grade"`
	Installed bool             `json:"installed"` // what Resolve assigns lies under current
	Confirmed bool             `json:"confirmed"` // and every service is confirmed at its required grade
	Reason    string           `json:"reason,omitempty"`
	Code      string           `json:"code,omitempty"`
	Override  string           `json:"override,omitempty"` // of what runs
	Held      *report.Hold     `json:"held,omitempty"`     // somebody holds this host as it is
	Sources   []SourceResult   `json:"sources"`
	Waiting   []WaitingService `json:"waiting"` // services that are not confirmed
}

// SourceResult is what one carrier said.
type SourceResult struct {
	Name    string `json:"name"`
	Mark    string `json:"mark,omitempty"`
	Error   string `json:"error,omitempty"`
	Refused bool   `json:"refused,omitempty"` // it answered, and what it said is not to be believed
	Err     error  `json:"-"`
}

// WaitingService is a service that is not confirmed, and why.
type WaitingService struct {
	Service string `json:"service"`
	State   string `json:"state"`
	Reason  string `json:"reason,omitempty"`
}
