package agent

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"time"

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
	Code      string                    `json:"code,omitempty"`
	Tries     int                       `json:"tries,omitempty"`
	Drift     []string                  `json:"drift"`
	Drifted   int                       `json:"drifted"`
	Services  map[string]report.Service `json:"services"`
	Owed      []string                  `json:"owed"` // services that owe a reload
	Sources   []SourceResult            `json:"sources"`
	Probes    map[string]ProbeTotal     `json:"probes,omitempty"` // since the agent started
}

// snapshot is what the deciding goroutine lets others see.
type snapshot struct {
	report  report.Report
	commit  string
	keyring uint64
	owed    []string
	sources []SourceResult
	synced  time.Time
}

// shot takes a snapshot. What it holds is not changed afterwards.
func (a *Agent) shot(r report.Report) {
	s := &snapshot{report: r, owed: sorted(a.st.Owed), sources: a.sources, synced: a.synced}
	if a.cur != nil {
		s.commit = a.cur.Commit
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
		return st
	}
	r := s.report
	st.Seen, st.Desired, st.Running, st.Commit, st.Override, st.Content = r.Seen, r.Desired, r.Running, s.commit, r.Override, r.Content
	st.Phase, st.Grade, st.Confirmed, st.Stale, st.Reason, st.Code, st.Tries = r.Phase, r.Grade, r.Confirmed, r.Stale, r.Reason, r.Code, r.Tries
	st.Drift, st.Drifted, st.Services = append(st.Drift, r.Drift...), r.Drifted, maps.Clone(r.Services)
	st.Owed, st.Sources = append(st.Owed, s.owed...), append(st.Sources, s.sources...)
	st.Keyring, st.LastSync, st.Probes = s.keyring, s.synced, a.counts.all()
	return st
}

// SavedStatus is what an agent that does not run, or is silent, left on disk: the last it knew, and what is current.
func SavedStatus(cfg Config, m interface{ Load(string) ([]byte, error) }, cur *Installed, content string, drift []string, silent string, now time.Time) (*Status, error) {
	st := &Status{
		V: 1, Silent: silent, Root: cfg.Root, Host: cfg.Host, Repo: cfg.Repo, Cohort: cfg.Cohort, Mode: cfg.Mode, Content: content, Drift: append([]string{}, shown(drift)...), Drifted: len(drift),
		Services: map[string]report.Service{}, Owed: []string{}, Sources: []SourceResult{},
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
			if r, err := manifest.Resolve(view, manifest.Host{Name: cfg.Host, Labels: maps.Clone(cfg.Labels)}, now); err == nil {
				st.Desired = r.Epoch()
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
