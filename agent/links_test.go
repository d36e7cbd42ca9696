package agent_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-config/muster/agent"
	"github.com/muster-config/muster/agent/agenttest"
	"github.com/muster-config/muster/agent/install"
	"github.com/muster-config/muster/distributor/report"
)

func (r *rig) linked(path, service, file string) {
	r.t.Helper()
	if to, err := os.Readlink(path); err != nil || to != filepath.Join(r.root, "current", service, file) {
		r.t.Errorf("%s leads to %q, %v", path, to, err)
	}
}

func ls(t *testing.T, dir string) []string {
	t.Helper()
	list, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range list {
		names = append(names, e.Name())
	}
	return names
}

// Links are made, kept, and removed when nothing asks for them any more.
func TestLinks(t *testing.T) {
	r := newRig(t, "checkout")
	etc := t.TempDir()
	path, whole := filepath.Join(etc, "checkout.yaml"), filepath.Join(etc, "all")
	r.edit("checkout", func(s *agent.ServiceConfig) { s.Links = map[string]string{path: "checkout.yaml", whole: "."} })
	r.world.Release(files{"checkout/checkout.yaml": "1"})
	r.world.Assign(1)
	r.confirmed(1)
	r.linked(path, "checkout", "checkout.yaml")
	r.linked(whole, "checkout", "")
	r.world.Release(files{"checkout/checkout.yaml": "2"})
	r.world.Assign(2)
	r.confirmed(2)
	if data, err := os.ReadFile(path); string(data) != "2" {
		t.Errorf("%q, %v", data, err)
	}
	// One that is gone, or leads elsewhere below the root, is put right.
	for _, spoil := range []func() error{
		func() error { return os.Remove(path) },
		func() error { return errors.Join(os.Remove(path), os.Symlink(r.root+"/releases/x", path)) },
	} {
		if err := spoil(); err != nil {
			t.Fatal(err)
		}
		r.confirmed(2)
		r.linked(path, "checkout", "checkout.yaml")
	}
	// The configuration does not ask for one any more; what somebody put at the place of another is not the agent's to remove.
	r.edit("checkout", func(s *agent.ServiceConfig) { s.Links = nil })
	if err := errors.Join(os.Remove(whole), os.WriteFile(whole, []byte("mine"), 0o600)); err != nil {
		t.Fatal(err)
	}
	r.confirmed(2)
	if diff := cmp.Diff([]string{"all"}, ls(t, etc)); diff != "" {
		t.Error(diff)
	}
	// Nor does the release, when the service leaves it.
	if err := os.Remove(whole); err != nil {
		t.Fatal(err)
	}
	r.edit("checkout", func(s *agent.ServiceConfig) { s.Links = map[string]string{path: "checkout.yaml"} })
	r.confirmed(2)
	r.linked(path, "checkout", "checkout.yaml")
	r.world.Release(files{"other/f": "x"}, agenttest.Grade("disk"))
	r.world.Assign(3)
	r.confirmed(3)
	if left := ls(t, etc); len(left) > 0 {
		t.Error(left)
	}
}

// A foreign file at the place of a link: refused before anything changes, said with the way out, and tried again until it is gone; with take_over it is kept.
func TestForeignFile(t *testing.T) {
	r := newRig(t, "checkout")
	etc := t.TempDir()
	path := filepath.Join(etc, "checkout.yaml")
	if err := os.WriteFile(path, []byte("mine"), 0o640); err != nil {
		t.Fatal(err)
	}
	r.edit("checkout", func(s *agent.ServiceConfig) { s.Links = map[string]string{path: "checkout.yaml"} })
	r.world.Release(files{"checkout/checkout.yaml": "1"})
	r.world.Assign(1)
	for range 7 { // more often than a failed release would be tried
		res, err := r.once()
		if err == nil || res.Code != agent.CodeLink || res.Phase != string(report.PhaseRefused) || res.Running != 0 || !strings.Contains(res.Reason, path+" is somebody else's file; move it away, or set take_over: true") {
			t.Fatalf("%+v, %v", res, err)
		}
	}
	if n := len(r.procs["checkout"].Reloads()); n != 0 {
		t.Errorf("%d reloads", n)
	}
	if data, err := os.ReadFile(path); string(data) != "mine" {
		t.Errorf("%q, %v", data, err)
	}
	r.edit("checkout", func(s *agent.ServiceConfig) { s.TakeOver = true })
	r.confirmed(1)
	r.linked(path, "checkout", "checkout.yaml")
	aside := path + ".before-muster"
	if data, err := os.ReadFile(aside); string(data) != "mine" {
		t.Errorf("%q, %v", data, err)
	}
	if info, err := os.Stat(aside); err != nil || info.Mode() != 0o640 {
		t.Errorf("%v, %v", info, err)
	}
	// An editor that writes a new file in place of the link: kept aside too, under a name of its own, and the link is put back.
	if err := errors.Join(os.Remove(path), os.WriteFile(path, []byte("edited"), 0o644)); err != nil {
		t.Fatal(err)
	}
	r.confirmed(1)
	r.linked(path, "checkout", "checkout.yaml")
	if data, err := os.ReadFile(aside + ".2"); string(data) != "edited" {
		t.Errorf("%q, %v", data, err)
	}
	// Without take_over it is said while the host runs on: the service is not confirmed, as it may read that file.
	r.edit("checkout", func(s *agent.ServiceConfig) { s.TakeOver = false })
	if err := errors.Join(os.Remove(path), os.WriteFile(path, []byte("again"), 0o644)); err != nil {
		t.Fatal(err)
	}
	res, err := r.once()
	if err == nil || res.Confirmed || res.Code != agent.CodeLink || len(res.Waiting) != 1 || !strings.Contains(res.Waiting[0].Reason, "somebody else's file") {
		t.Errorf("%+v, %v", res, err)
	}
	// A directory is never replaced, a directory that is not there never made.
	r.edit("checkout", func(s *agent.ServiceConfig) { s.TakeOver = true })
	if err := errors.Join(os.Remove(path), os.Mkdir(path, 0o755)); err != nil {
		t.Fatal(err)
	}
	if res, err := r.once(); err == nil || !strings.Contains(res.Reason, "is neither a file nor a link, which the agent never replaces") {
		t.Errorf("%+v, %v", res, err)
	}
	r.edit("checkout", func(s *agent.ServiceConfig) {
		s.Links = map[string]string{filepath.Join(etc, "no", "x"): "checkout.yaml"}
	})
	if res, err := r.once(); err == nil || !strings.Contains(res.Reason, "there is no directory "+etc+"/no; make it") {
		t.Errorf("%+v, %v", res, err)
	}
	r.edit("checkout", func(s *agent.ServiceConfig) {
		s.Links = map[string]string{filepath.Join(etc, "x"): "no.yaml"}
	})
	r.world.Release(files{"checkout/checkout.yaml": "2"})
	r.world.Assign(2)
	if res, err := r.once(); err == nil || res.Running != 1 || !strings.Contains(res.Reason, "the release has no checkout/no.yaml") {
		t.Errorf("%+v, %v", res, err)
	}
	r.sound(1)
}

// Owner and group of the installed files, by name and by id; a name that this host does not know is refused and changes nothing.
func TestOwner(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: to give files away needs root")
	}
	r := newRig(t, "checkout", "search")
	r.owners = map[string]install.Ownership{"checkout": {Owner: "daemon", Group: "12345"}}
	owned := func(name string, uid, gid uint32) {
		t.Helper()
		info, err := os.Stat(filepath.Join(r.root, "current", name))
		if err != nil {
			t.Fatal(err)
		}
		if st := info.Sys().(*syscall.Stat_t); st.Uid != uid || st.Gid != gid {
			t.Errorf("%s belongs to %d:%d", name, st.Uid, st.Gid)
		}
	}
	r.world.Release(files{"checkout/checkout.yaml@0640": "1", "search/search.yaml": "1"})
	r.world.Assign(1)
	r.confirmed(1)
	owned("checkout/checkout.yaml", 1, 12345)
	owned("checkout", 0, 0)
	owned("search/search.yaml", 0, 0)
	if info, err := os.Stat(filepath.Join(r.root, "current/checkout/checkout.yaml")); err != nil || info.Mode() != 0o640 {
		t.Errorf("%v, %v", info, err)
	}
	// Changed by hand: drift, and put right without a reload.
	if err := os.Chown(filepath.Join(r.root, "current/checkout/checkout.yaml"), 0, 0); err != nil {
		t.Fatal(err)
	}
	if _, _, drift, err := install.VerifyOwned(t.Context(), r.root, r.owners); err != nil || fmt.Sprint(drift) != "[checkout/checkout.yaml]" {
		t.Errorf("%v, %v", drift, err)
	}
	r.confirmed(1)
	owned("checkout/checkout.yaml", 1, 12345)
	// Another owner in the configuration likewise.
	r.owners = map[string]install.Ownership{"checkout": {Owner: "2"}}
	r.confirmed(1)
	owned("checkout/checkout.yaml", 2, 0)
	if n := len(r.procs["checkout"].Reloads()); n != 1 {
		t.Errorf("%d reloads", n)
	}
	r.owners = map[string]install.Ownership{"checkout": {Owner: "nobody-of-that-name"}}
	r.world.Release(files{"checkout/checkout.yaml": "2", "search/search.yaml": "1"})
	r.world.Assign(2)
	res, err := r.once()
	if err == nil || res.Code != agent.CodeOwner || res.Running != 1 || !strings.Contains(res.Reason, "services.checkout.owner: there is no user nobody-of-that-name on this host; create it") {
		t.Errorf("%+v, %v", res, err)
	}
	r.owners = map[string]install.Ownership{"checkout": {Group: "no-such-group"}}
	if res, err := r.once(); err == nil || !strings.Contains(res.Reason, "services.checkout.group: there is no group no-such-group") {
		t.Errorf("%+v, %v", res, err)
	}
	r.sound(1)
	r.owners = nil
	r.confirmed(2)
}

// In mode observe everything is fetched, verified and compared, and nothing on the host changes: not a file, not a link, not a process.
func TestObserve(t *testing.T) {
	r := newRig(t, "checkout", "search")
	c := newCollector(t)
	r.reporter = c
	etc := t.TempDir()
	r.world.Release(files{"checkout/checkout.yaml": "1", "search/search.yaml": "1"})
	r.world.Assign(1)
	r.confirmed(1)
	r.cfg.Mode = agent.ModeObserve
	r.edit("checkout", func(s *agent.ServiceConfig) { s.Links = map[string]string{filepath.Join(etc, "x"): "checkout.yaml"} })
	if res, err := r.once(); err != nil || !res.Confirmed || res.Running != 1 {
		t.Errorf("%+v, %v", res, err)
	}
	r.world.Release(files{"checkout/checkout.yaml": "2", "checkout/new": "x", "search/search.yaml": "1"})
	r.world.Assign(2)
	before := fmt.Sprint(r.names("releases"), r.names(""), r.names("tmp"))
	stop := r.running(r.agent())
	got := c.wait("of what would change", func(r report.Report) bool { return r.Desired == 2 && r.Reason != "" })
	if got.Running != 1 || got.Mode != "observe" || got.Phase != report.PhaseIdle || got.Confirmed || got.Reason != "observes only; release 2 would change checkout (2 files)" {
		t.Errorf("%+v", got)
	}
	stop()
	if after := fmt.Sprint(r.names("releases"), r.names(""), r.names("tmp")); after != before {
		t.Errorf("%s; before: %s", after, before)
	}
	// A change by hand is reported, not repaired.
	if err := os.WriteFile(filepath.Join(r.root, "current/search/search.yaml"), []byte("by hand"), 0o644); err != nil {
		t.Fatal(err)
	}
	res, err := r.once()
	if err != nil || res.Confirmed || r.read("search/search.yaml") != "by hand" {
		t.Errorf("%+v, %v", res, err)
	}
	last := c.reports()[len(c.reports())-1]
	if fmt.Sprint(last.Drift) != "[search/search.yaml]" || last.Reason != "observes only; release 2 would change checkout (2 files), search (1 file)" {
		t.Errorf("%+v", last)
	}
	if n := len(r.procs["checkout"].Reloads()) + len(r.procs["search"].Reloads()); n != 2 {
		t.Errorf("%d reloads", n)
	}
	if left := ls(t, etc); len(left) > 0 {
		t.Errorf("links: %v", left)
	}
	// A bundle that is not what was signed is refused here too.
	r.cfg.Mode = agent.ModeEnforce
	r.edit("checkout", func(s *agent.ServiceConfig) { s.Links = nil })
	r.confirmed(2)
	if got := r.procs["checkout"].Reloads(); len(got) != 2 {
		t.Errorf("reloads: %v", got)
	}
}

// An interrupted change is left as it is in mode observe, and brought to its end when the agent enforces again.
func TestObserveLeavesTrialAlone(t *testing.T) {
	r := newRig(t, "checkout")
	c := newCollector(t)
	r.reporter = c
	r.world.Release(files{"checkout/checkout.yaml": "1"})
	r.world.Assign(1)
	r.confirmed(1)
	r.procs["checkout"].SetDeaf(true)
	r.edit("checkout", func(s *agent.ServiceConfig) { s.Confirm.Within = time.Hour })
	r.world.Release(files{"checkout/checkout.yaml": "2"})
	r.world.Assign(2)
	stop := r.running(r.agent())
	c.wait("on trial", func(r report.Report) bool { return r.Running == 2 && r.Phase == report.PhaseConfirming })
	stop()
	r.procs["checkout"].SetDeaf(false)
	r.cfg.Mode = agent.ModeObserve
	if res, err := r.once(); err != nil || res.Running != 2 {
		t.Errorf("%+v, %v", res, err)
	}
	r.cfg.Mode = agent.ModeEnforce
	r.confirmed(2)
}

// A link whose directory is itself a link into the root is refused: made, it would spoil the release, be taken out as a change by hand, and be made again.
func TestLinkIntoTheRelease(t *testing.T) {
	r := newRig(t, "checkout")
	etc, alias := aliased(t) // by one spelling of the path it is refused with the configuration
	whole := filepath.Join(etc, "all")
	links := func(list map[string]string) { r.edit("checkout", func(s *agent.ServiceConfig) { s.Links = list }) }
	links(map[string]string{whole: "."})
	r.world.Release(files{"checkout/checkout.yaml": "1"})
	r.world.Assign(1)
	r.confirmed(1)
	links(map[string]string{whole: ".", filepath.Join(alias, "all", "more.yaml"): "checkout.yaml"})
	for range 2 {
		res, err := r.once()
		if err == nil || res.Confirmed || len(res.Waiting) != 1 || !strings.Contains(res.Waiting[0].Reason, filepath.Join(alias, "all")+" leads into "+r.root) {
			t.Errorf("%+v, %v", res, err)
		}
		r.sound(1)
	}
	r.world.Release(files{"checkout/checkout.yaml": "2"})
	r.world.Assign(2)
	if res, err := r.once(); err == nil || res.Running != 1 || res.Code != agent.CodeLink {
		t.Errorf("%+v, %v", res, err)
	}
	if n := len(r.procs["checkout"].Reloads()); n != 1 {
		t.Errorf("%d reloads", n)
	}
}
