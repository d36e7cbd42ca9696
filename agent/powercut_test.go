package agent_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/muster-config/muster/agent/durable"
	"github.com/muster-config/muster/distributor/api"
	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/report"
)

// seen is a collector that keeps the newest order that a report names.
type seen struct{ mark manifest.Mark }

func (s *seen) Report(_ context.Context, item api.ReportItem) (api.ReportResult, error) {
	if item.Signed == nil {
		return api.ReportResult{Accepted: true}, nil
	}
	var r report.Report
	if err := json.Unmarshal(item.Signed.Payload, &r); err != nil {
		return api.ReportResult{}, err
	}
	m, err := manifest.ParseMark(r.Seen)
	m.Beat = 0 // no floor has one
	if err == nil && m.Compare(s.mark) > 0 {
		s.mark = m
	}
	return api.ReportResult{Accepted: true}, nil
}

// unsynced are the names that changed in a directory since it was fsynced: a power cut takes any number of the last ones back, as a file system that keeps the order of names in a
// directory does.
type unsynced struct {
	t    *testing.T
	dir  string
	undo []func() error
}

func (u *unsynced) note(op durable.Op, path string) {
	switch {
	case op == durable.OpSyncDir && filepath.Clean(path) == u.dir:
		u.undo = nil
	case op == durable.OpRename && filepath.Dir(path) == u.dir:
		link, lerr := os.Readlink(path)
		data, derr := os.ReadFile(path)
		u.undo = append(u.undo, func() error {
			err := os.Remove(path)
			switch {
			case errors.Is(err, os.ErrNotExist): // the rename itself was not made
				err = nil
			case err != nil:
				return err
			}
			if lerr == nil {
				return errors.Join(err, os.Symlink(link, path))
			}
			if derr == nil {
				return errors.Join(err, os.WriteFile(path, data, 0o600))
			}
			return err
		})
	}
}

// floor is the order below which the host takes none, as its state on the disk says.
func (r *rig) floor() manifest.Mark {
	r.t.Helper()
	data, err := os.ReadFile(filepath.Join(r.root, "state.json"))
	if err != nil {
		r.t.Fatal(err)
	}
	var s struct {
		Trust map[string]manifest.TrustState `json:"trust"`
	}
	if err := json.Unmarshal(data, &s); err != nil {
		r.t.Fatal(err)
	}
	var highest manifest.Mark
	for _, t := range s.Trust {
		for _, f := range t.Floors {
			if m := (manifest.Mark{Era: f.Era, Serial: f.Serial}); m.Compare(highest) > 0 {
				highest = m
			}
		}
	}
	return highest
}

// B066: a power cut before every single call, that takes back any number of the names that changed last and were not fsynced. The host has the old release or the new one, its floor is
// never below an order that a report named, and the next start gets there.
func TestB066PowerCut(t *testing.T) {
	r, reset := crashRig(t)
	taken := 0
	var do func(op durable.Op, path string) error
	r.disk.Trace = func(op durable.Op, path string) error {
		if do == nil {
			return nil // opening, and what follows the cut
		}
		return do(op, path)
	}
	for at := 1; ; at++ {
		for back := 0; ; back++ {
			reset()
			heard := &seen{}
			r.reporter = heard
			u := &unsynced{t: t, dir: r.root}
			a := r.agent()
			calls, cut := 0, false
			do = func(op durable.Op, path string) error {
				if calls++; calls >= at {
					cut = true
					return syscall.EIO
				}
				u.note(op, path)
				return nil
			}
			before := r.floor()
			_, _ = a.Once(t.Context(), false)
			reported := heard.mark
			do = nil
			if r.open != nil {
				r.open.Close()
				r.open = nil
			}
			n := len(u.undo)
			for i := range min(back, n) {
				if err := u.undo[n-1-i](); err != nil {
					t.Fatal(err)
				}
				taken++
			}
			r.whole()
			if f := r.floor(); f.Compare(reported) < 0 || f.Compare(before) < 0 {
				t.Fatalf("cut %d, %d names back: the floor is %s, a report named %s", at, back, f, reported)
			}
			r.reporter = nil
			if n > 0 || !cut { // a fault before any name changed is another test's
				r.confirmed(2)
				r.linksDone()
			}
			if back >= n {
				if !cut {
					if taken == 0 {
						t.Error("no name was ever taken back")
					}
					return
				}
				break
			}
		}
	}
}
