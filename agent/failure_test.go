package agent_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/muster-config/muster/agent"
	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/report"
	"github.com/muster-config/muster/distributor/store"
)

// A check of the host's own runs against the staged files, and what it refuses is never current.
func TestCheckRefuses(t *testing.T) {
	r := newRig(t, "checkout")
	r.edit("checkout", func(s *agent.ServiceConfig) {
		s.Check = []string{"/bin/sh", "-c", "! grep -q broken {dir}/checkout.yaml"}
	})
	r.world.Release(files{"checkout/checkout.yaml": "good"})
	r.world.Assign(1)
	r.confirmed(1)
	r.world.Release(files{"checkout/checkout.yaml": "broken"})
	r.world.Assign(2)
	res, err := r.once()
	if err == nil || res.Code != agent.CodeCheck || res.Phase != string(report.PhaseRefused) || res.Running != 1 || res.Desired != 2 {
		t.Errorf("%+v, %v", res, err)
	}
	if n := len(r.procs["checkout"].Reloads()); n != 1 {
		t.Errorf("reloaded %d times", n)
	}
	r.sound(1)
}

// B069: a reload that fails takes the host back, and the hook runs for the old files; the same release is tried again, and works then.
func TestB069ReloadFailsOnce(t *testing.T) {
	r := newRig(t, "checkout")
	r.world.Release(files{"checkout/checkout.yaml": "1"})
	r.world.Assign(1)
	r.confirmed(1)
	hook := r.procs["checkout"].Hook[2]
	flag := filepath.Join(t.TempDir(), "failed")
	r.edit("checkout", func(s *agent.ServiceConfig) {
		s.Reload = []string{"/bin/sh", "-c", fmt.Sprintf("%s; test -e %s && exit 0; touch %s; exit 3", hook, flag, flag)}
	})
	r.world.Release(files{"checkout/checkout.yaml": "2"})
	r.world.Assign(2)
	res, err := r.once()
	if err == nil || res.Code != agent.CodeReload || res.Phase != string(report.PhaseRolledBack) || res.Running != 1 || !strings.Contains(res.Reason, "reload of checkout: /bin/sh ended with 3") {
		t.Errorf("%+v, %v", res, err)
	}
	r.sound(1)
	if got := r.procs["checkout"].Reloads(); len(got) != 3 || !strings.HasPrefix(got[1], "checkout 2 ") || !strings.HasPrefix(got[2], "checkout 1 ") {
		t.Errorf("reloads: %v", got)
	}
	r.confirmed(2)
}

// B069: a hook that always fails: the release is given up after a few tries, said with its count, over restarts too; a newer release is tried at once.
func TestB069ReloadFailsAlways(t *testing.T) {
	r := newRig(t, "checkout")
	c := newCollector(t)
	r.reporter = c
	r.world.Release(files{"checkout/checkout.yaml": "1"})
	r.world.Assign(1)
	r.confirmed(1)
	hook := r.procs["checkout"].Hook[2]
	r.edit("checkout", func(s *agent.ServiceConfig) {
		s.Reload = []string{"/bin/sh", "-c", hook + `; test "$MUSTER_EPOCH" != 2`}
	})
	r.world.Release(files{"checkout/checkout.yaml": "2"})
	r.world.Assign(2)
	stop := r.running(r.agent())
	c.wait("that gives up", func(r report.Report) bool { return strings.Contains(r.Reason, "given up after 5 tries") })
	stop()
	tries := func() (n int) {
		for _, l := range r.procs["checkout"].Reloads() {
			if strings.HasPrefix(l, "checkout 2 ") {
				n++
			}
		}
		return n
	}
	if n := tries(); n != 5 {
		t.Errorf("%d tries", n)
	}
	seen := len(c.reports())
	stop = r.running(r.agent())
	last := c.wait("of the new start", func(r report.Report) bool { return len(c.reports()) > seen && r.Desired == 2 && r.Tries == 5 })
	if last.Phase != report.PhaseRolledBack || last.Running != 1 || last.Attempted != 2 {
		t.Errorf("%+v", last)
	}
	r.world.Release(files{"checkout/checkout.yaml": "3"})
	r.world.Assign(3)
	c.wait("confirmed at 3", confirmedAt(3))
	stop()
	if n := tries(); n != 5 {
		t.Errorf("%d tries after a restart", n)
	}
	r.sound(3)
}

// A process that answered before the change and is ill after it takes the host back.
func TestIllAfterTheChange(t *testing.T) {
	r := newRig(t, "checkout", "search")
	for name := range r.procs {
		r.edit(name, func(s *agent.ServiceConfig) { s.Confirm.Within = 200 * time.Millisecond })
	}
	r.world.Release(two("1", "1"))
	r.world.Assign(1)
	r.confirmed(1)
	r.world.Release(two("poison", "2"))
	r.world.Assign(2)
	res, err := r.once()
	if err == nil || res.Code != agent.CodeUnwell || res.Phase != string(report.PhaseRolledBack) || res.Running != 1 || len(res.Waiting) != 0 {
		t.Errorf("%+v, %v", res, err)
	}
	r.sound(1)
	if r.procs["search"].Epoch() != 1 || r.procs["checkout"].Epoch() != 1 {
		t.Error("not both processes are back")
	}
}

// What was ill before the change is reported, and is no reason to go back.
func TestIllBeforeTheChange(t *testing.T) {
	r := newRig(t, "checkout")
	r.edit("checkout", func(s *agent.ServiceConfig) { s.Confirm.Within = 100 * time.Millisecond })
	r.world.Release(files{"checkout/checkout.yaml": "1"})
	r.world.Assign(1)
	r.confirmed(1)
	r.procs["checkout"].SetIll(true)
	r.world.Release(files{"checkout/checkout.yaml": "2"})
	r.world.Assign(2)
	res, err := r.once()
	if err != nil || res.Running != 2 || res.Confirmed || len(res.Waiting) != 1 || res.Waiting[0].State != "not reachable" {
		t.Errorf("%+v, %v", res, err)
	}
	r.procs["checkout"].SetIll(false)
	r.confirmed(2)
}

// The first release of a host has no way back: it stays, said as failed, and its reload stays owed.
func TestFirstReleaseFails(t *testing.T) {
	r := newRig(t, "checkout")
	hook := r.procs["checkout"].Hook[2]
	flag := filepath.Join(t.TempDir(), "flag")
	r.edit("checkout", func(s *agent.ServiceConfig) { s.Reload = []string{"/bin/sh", "-c", hook + "; test -e " + flag} })
	r.world.Release(files{"checkout/checkout.yaml": "1"})
	r.world.Assign(1)
	res, err := r.once()
	if err == nil || res.Phase != string(report.PhaseFailed) || res.Running != 1 || !strings.Contains(res.Reason, "no earlier release") {
		t.Errorf("%+v, %v", res, err)
	}
	if err := os.WriteFile(flag, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	r.confirmed(1)
	if n := len(r.procs["checkout"].Reloads()); n != 2 {
		t.Errorf("reloaded %d times", n)
	}
}

// body is an object that a test makes up.
type body struct {
	io.Reader
	closed func()
}

func (b body) Close() error {
	if b.closed != nil {
		b.closed()
	}
	return nil
}

// B063, B059: an object that was cut, changed, emptied or grew, and a transfer that ends early or stalls: refused before anything is unpacked, nothing left
// behind, the old release stays, and the next try works (B053).
func TestB063BadObjects(t *testing.T) {
	for name, tc := range map[string]struct {
		object func(good []byte) (io.ReadCloser, int64, error)
		code   string
	}{
		"a flipped bit": {func(g []byte) (io.ReadCloser, int64, error) {
			b := append([]byte{}, g...)
			b[len(b)/2] ^= 1
			return body{Reader: strings.NewReader(string(b))}, int64(len(b)), nil
		}, agent.CodeDigest},
		"cut": {func(g []byte) (io.ReadCloser, int64, error) {
			return body{Reader: strings.NewReader(string(g[:len(g)-10]))}, int64(len(g) - 10), nil
		}, agent.CodeDigest},
		"cut, with the old size": {func(g []byte) (io.ReadCloser, int64, error) {
			return body{Reader: strings.NewReader(string(g[:len(g)-10]))}, int64(len(g)), nil
		}, agent.CodeDigest},
		"empty": {func([]byte) (io.ReadCloser, int64, error) { return body{Reader: strings.NewReader("")}, 0, nil }, agent.CodeDigest},
		"junk behind it": {func(g []byte) (io.ReadCloser, int64, error) {
			return body{Reader: strings.NewReader(string(g) + "junk")}, -1, nil
		}, agent.CodeDigest},
		"endless": {func(g []byte) (io.ReadCloser, int64, error) { return body{Reader: zeros{}}, -1, nil }, agent.CodeDigest},
		"broken off": {func(g []byte) (io.ReadCloser, int64, error) {
			return body{Reader: io.MultiReader(strings.NewReader(string(g[:len(g)/2])), broken{})}, int64(len(g)), nil
		}, agent.CodeUnreachable},
		"missing": {func([]byte) (io.ReadCloser, int64, error) { return nil, 0, store.ErrNotFound }, agent.CodeNotFound},
		"stalled": {func(g []byte) (io.ReadCloser, int64, error) {
			stop := make(chan struct{})
			return body{Reader: io.MultiReader(strings.NewReader(string(g[:10])), stuck{stop}), closed: func() { close(stop) }}, int64(len(g)), nil
		}, agent.CodeStalled},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, "checkout")
			r.world.Release(files{"checkout/checkout.yaml": "1"})
			r.world.Assign(1)
			r.confirmed(1)
			st := r.world.Release(files{"checkout/checkout.yaml": "2"})
			r.world.Assign(2)
			key := manifest.KeyBundle(st.Bundle.Object)
			o, err := r.world.Store.Get(t.Context(), key, 1<<20)
			if err != nil {
				t.Fatal(err)
			}
			bad := &faulty{Carrier: r.carriers[0], name: "bad"}
			bad.object = func(k string) (io.ReadCloser, int64, error) {
				if k == key {
					return tc.object(o.Data)
				}
				return nil, 0, nil
			}
			if name == "stalled" { // the real one is cut by its context
				bad.object = nil
				r.carriers = []agent.Carrier{&stalling{bad, o.Data[:10]}}
			} else {
				r.carriers = []agent.Carrier{bad}
			}
			res, err := r.once()
			if err == nil || res.Code != tc.code || res.Running != 1 || res.Confirmed {
				t.Errorf("%+v, %v; want code %q", res, err, tc.code)
			}
			r.sound(1)
			if n := len(r.procs["checkout"].Reloads()); n != 1 {
				t.Errorf("reloaded %d times", n)
			}
			// Another carrier behind the bad one is enough, and so is the end of the fault.
			r.carriers = append(r.carriers, bad.Carrier)
			r.confirmed(2)
		})
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

type broken struct{}

func (broken) Read([]byte) (int, error) {
	return 0, fmt.Errorf("connection reset: %w", store.ErrUnreachable)
}

type stuck struct{ stop chan struct{} }

func (s stuck) Read([]byte) (int, error) { <-s.stop; return 0, errors.New("closed") }

// stalling sends a few bytes and then nothing until its context ends, as an HTTP body does.
type stalling struct {
	agent.Carrier
	some []byte
}

func (s *stalling) Object(ctx context.Context, key string) (io.ReadCloser, int64, error) {
	body, size, err := s.Carrier.Object(ctx, key)
	if err != nil {
		return nil, 0, err
	}
	body.Close()
	return io.NopCloser(io.MultiReader(strings.NewReader(string(s.some)), ctxReader{ctx})), size, nil
}

type ctxReader struct{ ctx context.Context }

func (r ctxReader) Read([]byte) (int, error) { <-r.ctx.Done(); return 0, r.ctx.Err() }

// B053: a passing local fault while unpacking is no verdict on the release: no new publish, no restart, and the next try succeeds.
func TestB053LocalFaultPasses(t *testing.T) {
	r := newRig(t, "checkout")
	c := newCollector(t)
	r.reporter = c
	r.world.Release(files{"checkout/checkout.yaml": "1"})
	r.world.Assign(1)
	r.confirmed(1)
	blocked := errors.New("read-only for a moment")
	gate := newGate(blocked)
	r.disk.Trace = gate.trace
	r.world.Release(files{"checkout/checkout.yaml": "2"})
	r.world.Assign(2)
	stop := r.running(r.agent())
	bad := c.wait("of the fault, several tries long", func(r report.Report) bool { return r.Code == agent.CodeLocal && r.Tries > 2 })
	if bad.Running != 1 || bad.Desired != 2 || bad.Phase != report.PhaseRefused {
		t.Errorf("%+v", bad)
	}
	gate.open()
	c.wait("confirmed at 2", confirmedAt(2))
	stop()
	r.sound(2)
}

// B083: what is changed by hand is reported with its path and put right.
func TestB083Drift(t *testing.T) {
	for name, tc := range map[string]struct {
		edit func(cur string) error
		path string
	}{
		"a byte":  {func(cur string) error { return os.WriteFile(cur+"/checkout/checkout.yaml", []byte("2"), 0o644) }, "checkout/checkout.yaml"},
		"emptied": {func(cur string) error { return os.Truncate(cur+"/checkout/checkout.yaml", 0) }, "checkout/checkout.yaml"},
		"a mode":  {func(cur string) error { return os.Chmod(cur+"/checkout/checkout.yaml", 0o600) }, "checkout/checkout.yaml"},
		"setuid": {func(cur string) error {
			return os.Chmod(cur+"/checkout/checkout.yaml", 0o644|os.ModeSetuid)
		}, "checkout/checkout.yaml"},
		"a file more":      {func(cur string) error { return os.WriteFile(cur+"/checkout/x", nil, 0o644) }, "checkout/x"},
		"a directory more": {func(cur string) error { return os.Mkdir(cur+"/y", 0o755) }, "y/"},
		"a file less":      {func(cur string) error { return os.Remove(cur + "/checkout/checkout.yaml") }, "checkout/checkout.yaml"},
		"a link": {func(cur string) error {
			os.Remove(cur + "/checkout/checkout.yaml")
			return os.Symlink("/etc/passwd", cur+"/checkout/checkout.yaml")
		}, "checkout/checkout.yaml"},
		"the record": {func(cur string) error { return os.WriteFile(cur+"/.muster.json", []byte("{}"), 0o644) }, ".muster.json"},
		"the list":   {func(cur string) error { return os.Truncate(cur+"/.muster.files", 0) }, ".muster.files"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, "checkout")
			c := newCollector(t)
			r.reporter = c
			r.world.Release(files{"checkout/checkout.yaml": "1"})
			r.world.Assign(1)
			r.confirmed(1)
			if err := tc.edit(filepath.Join(r.root, "current")); err != nil {
				t.Fatal(err)
			}
			stop := r.running(r.agent())
			drift := c.wait("of the drift", func(r report.Report) bool { return len(r.Drift) > 0 })
			if len(drift.Drift) != 1 || drift.Drift[0] != tc.path || drift.Drifted != 1 || drift.Code != agent.CodeDrift || drift.Confirmed {
				t.Errorf("%+v", drift)
			}
			n := len(c.reports())
			c.wait("confirmed again", func(r report.Report) bool {
				return len(c.reports()) >= n && confirmedAt(1)(r) && len(r.Drift) == 0 && r.Boot == drift.Boot
			})
			stop()
			r.sound(1)
			if got := r.read("checkout/checkout.yaml"); got != "1" {
				t.Errorf("installed %q", got)
			}
		})
	}
}

// B065: the active release is removed under the running agent; it comes back, and current leads to it.
func TestB065ActiveReleaseRemoved(t *testing.T) {
	r := newRig(t, "checkout")
	r.world.Release(files{"checkout/checkout.yaml": "1"})
	r.world.Assign(1)
	r.confirmed(1)
	for _, name := range r.names("releases") {
		if err := os.RemoveAll(filepath.Join(r.root, "releases", name)); err != nil {
			t.Fatal(err)
		}
	}
	r.confirmed(1)
	// A half-removed one too.
	if err := os.RemoveAll(filepath.Join(r.root, "current/checkout")); err != nil {
		t.Fatal(err)
	}
	r.confirmed(1)
}

// B081: many starts of a confirmed host change nothing and reload nothing.
func TestB081ManyStarts(t *testing.T) {
	r := newRig(t, "checkout")
	r.world.Release(files{"checkout/checkout.yaml": "1"})
	r.world.Assign(1)
	r.confirmed(1)
	before := fmt.Sprint(r.names("releases"))
	for range 10 {
		r.confirmed(1)
	}
	if n := len(r.procs["checkout"].Reloads()); n != 1 {
		t.Errorf("reloaded %d times", n)
	}
	if after := fmt.Sprint(r.names("releases")); after != before {
		t.Errorf("releases: %s, before: %s", after, before)
	}
}

// A host without any source goes on with what it has, and says so.
func TestNoSource(t *testing.T) {
	r := newRig(t, "checkout")
	r.world.Release(files{"checkout/checkout.yaml": "1"})
	r.world.Assign(1)
	r.confirmed(1)
	down := &faulty{Carrier: r.carriers[0], name: "down", head: func() ([]byte, error) { return nil, store.ErrUnreachable }}
	r.carriers = []agent.Carrier{down}
	res, err := r.once()
	if err != nil || !res.Confirmed || res.Running != 1 || res.Sources[0].Refused {
		t.Errorf("%+v, %v", res, err)
	}
	fresh := newRig(t, "checkout")
	fresh.carriers = []agent.Carrier{down}
	res, err = fresh.once()
	if err != nil || res.Confirmed || res.Running != 0 || res.Code != agent.CodeUnreachable {
		t.Errorf("%+v, %v", res, err)
	}
}

// A broken state.json is said, not forgotten: it holds the floors.
func TestBrokenState(t *testing.T) {
	r := newRig(t, "checkout")
	r.world.Release(files{"checkout/checkout.yaml": "1"})
	r.world.Assign(1)
	r.confirmed(1)
	if err := os.Truncate(filepath.Join(r.root, "state.json"), 100); err != nil {
		t.Fatal(err)
	}
	if _, err := r.once(); err == nil || !strings.Contains(err.Error(), "state.json is broken") {
		t.Errorf("%v", err)
	}
	// Without it the host is a new one, with its release in place.
	if err := os.Remove(filepath.Join(r.root, "state.json")); err != nil {
		t.Fatal(err)
	}
	r.confirmed(1)
	if n := len(r.procs["checkout"].Reloads()); n != 1 {
		t.Errorf("reloaded %d times", n)
	}
}
