package agent

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/muster-config/muster/agent/probe"
	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/report"
)

// Status is what is known about a host at the host itself, for its operator.
type Status struct {
	V         int                       `json:"v"`
	Daemon    bool                      `json:"daemon"`           // a running agent says it; false: read from disk, and no process was asked
	Silent    string                    `json:"silent,omitempty"` // read from disk although an agent runs: what is wrong with it
	Version   string                    `json:"version,omitempty"`
	PID       int                       `json:"pid,omitempty"`
	Started   time.Time                 `json:"started,omitzero"`
	LastSync  time.Time                 `json:"last_sync,omitzero"` // end of the last full re-sync
	Root      string                    `json:"root"`
	Host      string                    `json:"host"`
	Repo      string                    `json:"repo"`
	Cohort    string                    `json:"cohort"`
	Mode      string                    `json:"mode"`
	Keyring   uint64                    `json:"keyring"` // version in use; 0: none yet
	Seen      string                    `json:"seen"`
	Desired   uint64                    `json:"desired"`
	Running   uint64                    `json:"running"`
	Commit    string                    `json:"commit,omitempty"`
	Override  string                    `json:"override,omitempty"`
	Content   string                    `json:"content"`
	Phase     report.Phase              `json:"phase,omitempty"`
	Grade     manifest.Grade            `json:"grade,omitempty"`
	Confirmed bool                      `json:"confirmed"`
	Stale     bool                      `json:"stale"`
	Reason    string                    `json:"reason,omitempty"`
	Held      *report.Hold              `json:"held,omitempty"`   // somebody holds this host as it is
	Beside    uint64                    `json:"beside,omitempty"` // held at what came by hand: the epoch that its order assigns besides, and that it goes to when the hold ends
	Code      string                    `json:"code,omitempty"`
	Tries     int                       `json:"tries,omitempty"`
	Drift     []string                  `json:"drift"`
	Drifted   int                       `json:"drifted"`
	Services  map[string]report.Service `json:"services"`
	Owed      []string                  `json:"owed"` // services that owe a reload
	Sources   []SourceResult            `json:"sources"`
	Warnings  []string                  `json:"warnings,omitempty"` // what works now and may not later
	Probes    map[string]ProbeTotal     `json:"probes,omitempty"`   // since the agent started
}

// snapshot is what the deciding goroutine lets others see.
type snapshot struct {
	report  report.Report
	commit  string
	keyring uint64
	owed    []string
	sources []SourceResult
	synced  time.Time
	lacks   string
	beside  uint64
	head    []byte // never changed
}

// shot takes a snapshot. What it holds is not changed afterwards.
func (a *Agent) shot(r report.Report) {
	s := &snapshot{report: r, owed: sorted(a.st.Owed), sources: a.sources, synced: a.synced, lacks: a.lack.text, head: a.st.Head[a.headKey()]}
	if a.cur != nil {
		s.commit = a.cur.Commit
	}
	if a.view != nil && len(a.st.ByHand) > 0 {
		s.beside = a.st.beside(a.view, manifest.Host{Name: a.cfg.Host, Labels: maps.Clone(a.cfg.Labels)}, a.now())
	}
	if keys, err := a.trust().Keys(); err == nil {
		s.keyring = keys.Version
	}
	a.shown.Store(s)
}

// Status is safe beside Run.
func (a *Agent) Status() *Status {
	st := &Status{
		V: 1, Daemon: true, Version: a.opts.Version, PID: os.Getpid(), Started: a.since, Root: a.cfg.Root, Host: a.cfg.Host, Repo: a.cfg.Repo, Cohort: a.cfg.Cohort, Mode: a.cfg.Mode,
		Drift: []string{}, Services: map[string]report.Service{}, Owed: []string{}, Sources: []SourceResult{}, Reason: "the agent has just started",
	}
	s := a.shown.Load()
	if s == nil {
		st.Held = a.held.peek()
		return st
	}
	r := s.report
	st.Seen, st.Desired, st.Running, st.Commit, st.Override, st.Content = r.Seen, r.Desired, r.Running, s.commit, r.Override, r.Content
	st.Phase, st.Grade, st.Confirmed, st.Stale, st.Reason, st.Code, st.Tries = r.Phase, r.Grade, r.Confirmed, r.Stale, r.Reason, r.Code, r.Tries
	st.Drift, st.Drifted, st.Services, st.Held = append(st.Drift, r.Drift...), r.Drifted, maps.Clone(r.Services), a.held.peek() // in force, and said, at once: also by an agent that leaves
	if st.Held != nil {
		st.Beside = s.beside
	}
	st.Owed, st.Sources = append(st.Owed, s.owed...), append(st.Sources, s.sources...)
	if s.lacks != "" {
		st.Warnings = append(st.Warnings, s.lacks)
	}
	st.Keyring, st.LastSync, st.Probes = s.keyring, s.synced, a.counts.all()
	return st
}

// SavedStatus is what an agent that does not run, or is silent, left on disk: the last it knew, and what is current.
func SavedStatus(cfg Config, m interface{ Load(string) ([]byte, error) }, cur *Installed, content string, drift []string, silent string, now time.Time, moment probe.Moment) (*Status, error) {
	st := &Status{
		V: 1, Silent: silent, Root: cfg.Root, Host: cfg.Host, Repo: cfg.Repo, Cohort: cfg.Cohort, Mode: cfg.Mode, Content: content, Drift: append([]string{}, shown(drift)...), Drifted: len(drift),
		Services: map[string]report.Service{}, Owed: []string{}, Sources: []SourceResult{},
	}
	byHand := false
	switch data, err := m.Load(holdName); {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, fmt.Errorf("read %s: %w", holdName, err)
	default:
		doc, err := decodeHold(data)
		if err != nil {
			return nil, err
		}
		if doc.Hold != nil && !doc.Span.over(now, moment) {
			st.Held, byHand = doc.Hold, doc.Target != ""
			if !byHand {
				st.Code = CodeHeld
			}
		}
	}
	data, err := m.Load(stateName)
	if errors.Is(err, fs.ErrNotExist) {
		st.Reason = "no agent has worked here yet"
		return st, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", stateName, err)
	}
	s, err := decodeState(data)
	if err != nil {
		return nil, err
	}
	trust := s.Trust[cfg.Repo]
	if keys, err := trust.Keys(); err == nil {
		st.Keyring = keys.Version
	}
	if head := s.Head[cfg.Repo+"/"+cfg.Cohort]; head != nil {
		if _, view, err := trust.AcceptHead(cfg.Cohort, head, now); err == nil {
			st.Seen, st.Stale = view.Mark().String(), now.After(view.Manifest.FreshUntil)
			host := manifest.Host{Name: cfg.Host, Labels: maps.Clone(cfg.Labels)}
			if st.Held != nil {
				st.Beside = s.beside(view, host, now)
			}
			view.Overrides = slices.DeleteFunc(view.Overrides, func(o manifest.VerifiedOverride) bool { return s.laidDown(&o, byHand) })
			if r, err := manifest.Resolve(view, host, now); err == nil {
				st.Desired = r.Epoch()
			}
			for _, r := range beneath(view, host, now) {
				if s.standby(r) == nil && cfg.Mode != ModeObserve {
					st.Warnings = append(st.Warnings, lackText(r, nil))
				}
			}
		}
	}
	why := "no agent runs that would ask its process"
	if silent != "" {
		why = silent + ", so what its process says is not known"
	}
	if cur != nil {
		st.Running, st.Commit, st.Override = cur.Epoch, cur.Commit, cur.Override
		for name, svc := range cur.Services {
			st.Services[name] = report.Service{State: "not asked", Expected: svc.Epoch, Reason: why}
		}
	}
	st.Owed = append(st.Owed, sorted(s.Owed)...)
	if f, ok := s.Failed[failedKey(s, st.Desired)]; ok {
		st.Phase, st.Reason, st.Code, st.Tries = report.Phase(f.Phase), f.Reason, f.Code, f.Tries
	}
	return st, nil
}

// failedKey finds the entry of a release that did not work here.
func failedKey(s *state, epoch uint64) string {
	for _, key := range sorted(s.Failed) {
		var e uint64
		if _, err := fmt.Sscanf(key, "%d/", &e); err == nil && e == epoch {
			return key
		}
	}
	return ""
}

// Head is the newest verified head as it came, nil if there is none. Safe beside Run.
func (a *Agent) Head() []byte {
	if s := a.shown.Load(); s != nil {
		return s.head
	}
	return nil
}

// SavedHead is the newest verified head that an agent left on disk, judged once more; nil if there is none.
func SavedHead(cfg Config, m interface{ Load(string) ([]byte, error) }, now time.Time) ([]byte, error) {
	data, err := m.Load(stateName)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", stateName, err)
	}
	s, err := decodeState(data)
	if err != nil {
		return nil, err
	}
	head := s.Head[cfg.Repo+"/"+cfg.Cohort]
	if head == nil {
		return nil, nil
	}
	_, _, err = s.Trust[cfg.Repo].AcceptHead(cfg.Cohort, head, now)
	return head, err
}
