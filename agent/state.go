package agent

import (
	"errors"
	"fmt"
	"io/fs"
	"sort"
	"time"

	"github.com/muster-config/muster/agent/probe"
	"github.com/muster-config/muster/distributor/bundle"
	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/wire"
)

// stateName is the document that the agent's memory is in.
const stateName = "state.json"

// state is what the agent remembers over a restart. It is plain data and small; it is written before anything is done that it speaks of.
type state struct {
	V     int                            `json:"v"`
	Trust map[string]manifest.TrustState `json:"trust"` // repo → keyring, floors, pinned store
	// Head is the newest verified head, per "<repo>/<cohort>": what an agent that reaches no source goes by, ends of overrides and holds included.
	Head map[string][]byte `json:"head"`
	// Running is what lies under current, as its statement said: enough to repair it when no head names it any more.
	Running *target `json:"running,omitempty"`
	// Trial is the change under way: swapped, or about to be, and without a verdict yet.
	Trial    *trial             `json:"trial,omitempty"`
	Owed     map[string]owed    `json:"owed"`     // service → the reload it has not had
	Services map[string]service `json:"services"` // service → the bytes that are installed
	Failed   map[string]failed  `json:"failed"`   // target key → a release that did not work here
	// Links are the paths outside the root at which the agent keeps a link, or is about to make one → service.
	Links map[string]string `json:"links,omitempty"`
	// KeyringFile is the digest of the host's own keyring file when it was last looked at.
	KeyringFile string `json:"keyring_file,omitempty"`
	Previous    string `json:"previous,omitempty"`
	// Good is the last known good: directory of the last plain release that was confirmed here and that the cohort rolled out to its end.
	Good       string  `json:"good,omitempty"`
	GoodTarget *target `json:"good_target,omitempty"`
	Turn       *turn   `json:"turn,omitempty"`
	// Standby is what the host goes to when the override on it ends, on the disk already.
	Standby []standby `json:"standby,omitempty"`
	// Spans count the running time of overrides: see span.
	Spans map[string]span `json:"spans,omitempty"`
	// ByHand are the overrides that came by hand and that no source of this host has said, by spanKey; true: those of the newest such order. See byHandActs.
	ByHand map[string]bool `json:"by_hand,omitempty"`
}

// target is a release as far as this host is concerned.
type target struct {
	Store    string                    `json:"store"`
	Repo     string                    `json:"repo"`
	Cohort   string                    `json:"cohort"`
	Epoch    uint64                    `json:"epoch"`
	Commit   string                    `json:"commit"`
	Override string                    `json:"override,omitempty"`
	Bundle   manifest.Object           `json:"bundle"`
	Content  string                    `json:"content"`
	Files    int                       `json:"files"`
	Evidence map[string]manifest.Grade `json:"evidence"`
}

func targetOf(r manifest.Resolution) target {
	evidence := r.Evidence
	if evidence == nil {
		evidence = map[string]manifest.Grade{}
	}
	return target{
		Store: r.Statement.Store, Repo: r.Statement.Repo, Cohort: r.Statement.Cohort, Epoch: r.Epoch(), Commit: r.Statement.Commit,
		Override: r.Override, Bundle: r.Bundle, Content: r.Content, Files: r.Files, Evidence: evidence,
	}
}

// resolution is the part of a Resolution that an Installer looks at.
func (t target) resolution() manifest.Resolution {
	r := manifest.Resolution{Override: t.Override, Bundle: t.Bundle, Content: t.Content, Files: t.Files, Evidence: t.Evidence}
	r.Statement.Store, r.Statement.Repo, r.Statement.Cohort = t.Store, t.Repo, t.Cohort
	r.Statement.Epoch, r.Statement.Commit = t.Epoch, t.Commit
	return r
}

func (t target) key() string { return fmt.Sprintf("%d/%s/%s", t.Epoch, t.Content, t.Override) }

// is says whether what is installed is this target, by its record.
func (t target) is(in *Installed) bool {
	return in != nil && in.Repo == t.Repo && in.Cohort == t.Cohort && in.Epoch == t.Epoch && in.Content == t.Content && in.Override == t.Override
}

// trial is a change without a verdict. After a crash its window starts again from the beginning, once a start; it never counts against the release.
type trial struct {
	From    string   `json:"from"` // directory that was current before, and where a failure goes back to; "": nowhere
	Was     *target  `json:"was,omitempty"`
	Base    uint64   `json:"base,omitempty"` // epoch to which the order that brought the target sends its hosts back; 0: not known
	To      string   `json:"to"`
	Target  *target  `json:"target,omitempty"`
	Waits   []string `json:"waits"`             // services that get the whole window to confirm: their files changed
	Well    []string `json:"well"`              // those of them whose process answered before the swap
	Healthy []string `json:"healthy,omitempty"` // services whose files changed and that were healthy before the swap
	// At is before the swap. After a start of the machine it tells that every process is younger than the files.
	At probe.Moment `json:"at,omitzero"`
	// Files are the files that differ between From and To, for the reloads of the way back.
	Files map[string]Change `json:"files"`
	// Back: this is the way back from a release that failed.
	Back bool `json:"back,omitempty"`
}

// owed is a reload that a service has not had yet.
type owed struct {
	Dir    string `json:"dir"` // release for which it is owed
	Change Change `json:"change"`
	// Of the tries that did not work. After maxTries only the next change of the host's files, or muster-agent once, tries again.
	Tries  int       `json:"tries,omitempty"`
	Next   time.Time `json:"next,omitzero"` // not before
	Reason string    `json:"reason,omitempty"`
	// Before: it was owed before the change to Dir began, so it is owed also if that never happened.
	Before bool `json:"before,omitempty"`
}

// service remembers the installed bytes of one service.
type service struct {
	Digest string `json:"digest"`
	// Epochs are those under which this agent installed these very bytes since they last changed; a process may state any of them.
	Epochs   []uint64 `json:"epochs"`
	Reloaded bool     `json:"reloaded"` // the hook returned 0 for these bytes
	// Since is after the swap by which these bytes came. A process that is older, or wrote what it states before, has not loaded them.
	Since probe.Moment `json:"since,omitzero"`
}

// maxEpochs bounds service.Epochs; the oldest go first.
const maxEpochs = 64

// failed counts the tries of a release that was taken back, or refused by a check.
type failed struct {
	Tries  int       `json:"tries"`
	Next   time.Time `json:"next"` // not before
	Reason string    `json:"reason"`
	Code   string    `json:"code"`
	Phase  string    `json:"phase"`
}

// maxFailed bounds state.Failed.
const maxFailed = 16

func newState() *state {
	return &state{
		V: 1, Trust: map[string]manifest.TrustState{}, Head: map[string][]byte{}, Owed: map[string]owed{},
		Services: map[string]service{}, Failed: map[string]failed{},
	}
}

// loadState reads the state, or starts a new one on a host that has none. A broken one is an error: it holds the floors, and to forget them silently
// would let an old manifest in.
func loadState(m Memory) (*state, error) {
	data, err := m.Load(stateName)
	if errors.Is(err, fs.ErrNotExist) {
		return newState(), nil
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", stateName, err)
	}
	return decodeState(data)
}

func decodeState(data []byte) (*state, error) {
	s := newState()
	if err := wire.Decode(data, s); err != nil {
		return nil, fmt.Errorf("%s is broken (%w): restore it, or remove it to start as a new host would, without the floors it holds", stateName, err)
	}
	if s.V != 1 {
		return nil, fmt.Errorf("%s has version %d and was written by a newer muster-agent; this one reads 1", stateName, s.V)
	}
	return s, nil
}

func (s *state) save(write func(name string, data []byte) error) error {
	data, err := wire.Encode(s)
	if err != nil {
		return fmt.Errorf("encode %s: %w", stateName, err)
	}
	if err := write(stateName, data); err != nil {
		return fmt.Errorf("write %s: %w", stateName, err)
	}
	return nil
}

// reconcile brings the memory of each service's bytes in line with what is current now: the same bytes again add an epoch, other bytes start anew, at a
// moment that is not before they came.
func (s *state) reconcile(now map[string]bundle.Service, at func() probe.Moment) {
	var moment probe.Moment
	since := func() probe.Moment {
		if moment.IsZero() {
			moment = at()
		}
		return moment
	}
	for name := range s.Services {
		if _, ok := now[name]; !ok {
			delete(s.Services, name)
		}
	}
	for name, in := range now {
		had, ok := s.Services[name]
		if !ok || had.Digest != in.Digest {
			s.Services[name] = service{Digest: in.Digest, Epochs: []uint64{in.Epoch}, Since: since()}
			continue
		}
		known := false
		for _, e := range had.Epochs {
			known = known || e == in.Epoch
		}
		if !known {
			had.Epochs = append(had.Epochs, in.Epoch)
			if over := len(had.Epochs) - maxEpochs; over > 0 {
				had.Epochs = had.Epochs[over:]
			}
			s.Services[name] = had
		}
	}
}

// accepts says whether a process that states epoch runs the installed bytes of the service.
func (s *state) accepts(name string, epoch uint64) bool {
	for _, e := range s.Services[name].Epochs {
		if e == epoch {
			return true
		}
	}
	return false
}

// fail counts a try of a release that did not work here, and sets the time of the next one.
func (s *state) fail(key string, f failed) {
	s.Failed[key] = f
	if len(s.Failed) <= maxFailed {
		return
	}
	keys := make([]string, 0, len(s.Failed))
	for k := range s.Failed {
		if k != key {
			keys = append(keys, k)
		}
	}
	sort.Slice(keys, func(i, j int) bool { return s.Failed[keys[i]].Next.Before(s.Failed[keys[j]].Next) })
	for _, k := range keys[:len(s.Failed)-maxFailed] {
		delete(s.Failed, k)
	}
}
