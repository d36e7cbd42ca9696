package agent_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-config/muster/agent"
	"github.com/muster-config/muster/agent/agenttest"
	"github.com/muster-config/muster/agent/install"
	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/report"
)

type files = agenttest.Files

func two(checkout, search string) files {
	return files{"checkout/checkout.yaml": checkout, "search/search.yaml": search}
}

func TestOnceInstallsAndConfirms(t *testing.T) {
	r := newRig(t, "checkout", "search")
	r.world.Release(two("a: 1\n", "b: 1\n"))
	r.world.Assign(1)
	res := r.confirmed(1)
	if diff := cmp.Diff([]string{"checkout", "search"}, res.Changed); diff != "" {
		t.Error(diff)
	}
	if got := r.read("checkout/checkout.yaml"); got != "a: 1\n" {
		t.Errorf("installed %q", got)
	}
	if res.Grade != manifest.GradeProcess {
		t.Errorf("grade %s", res.Grade)
	}

	// One service changes: only that one is reloaded, and the other goes on stating its older epoch.
	r.world.Release(two("a: 2\n", "b: 1\n"))
	r.world.Assign(2)
	res = r.confirmed(2)
	if diff := cmp.Diff([]string{"checkout"}, res.Changed); diff != "" {
		t.Error(diff)
	}
	if n := len(r.procs["search"].Reloads()); n != 1 {
		t.Errorf("search was reloaded %d times", n)
	}
	if r.procs["checkout"].Epoch() != 2 || r.procs["search"].Epoch() != 1 {
		t.Errorf("stated: %d, %d", r.procs["checkout"].Epoch(), r.procs["search"].Epoch())
	}

	// Nothing changes but the epoch: nothing is reloaded, and the host is confirmed at the new one.
	r.world.Release(two("a: 2\n", "b: 1\n"))
	r.world.Assign(3)
	if res = r.confirmed(3); len(res.Changed) != 0 {
		t.Errorf("changed: %v", res.Changed)
	}
	if n := len(r.procs["checkout"].Reloads()); n != 2 {
		t.Errorf("checkout was reloaded %d times", n)
	}

	// Back to the first release by a newer order: that is a rollback, and is taken.
	r.world.Assign(1)
	r.confirmed(1)
	if got := r.read("checkout/checkout.yaml"); got != "a: 1\n" {
		t.Errorf("installed %q", got)
	}
}

// The same bytes again under a newer epoch: a process may state any epoch under which they were installed since they last changed, and no other.
func TestEarlierEpochOfTheSameBytes(t *testing.T) {
	r := newRig(t, "checkout")
	r.world.Release(files{"checkout/checkout.yaml": "a"})
	r.world.Assign(1)
	r.confirmed(1)
	r.world.Release(files{"checkout/checkout.yaml": "b"})
	r.world.Release(files{"checkout/checkout.yaml": "a"}) // service epoch 3, the bytes of 1
	r.world.Assign(3)
	if res := r.confirmed(3); len(res.Changed) != 0 {
		t.Errorf("changed: %v", res.Changed)
	}
	if e := r.procs["checkout"].Epoch(); e != 1 {
		t.Fatalf("the process states %d", e)
	}
	r.world.Assign(2)
	r.confirmed(2)
	r.procs["checkout"].SetDeaf(true)
	r.world.Release(files{"checkout/checkout.yaml": "c"})
	r.world.Assign(4)
	r.edit("checkout", func(s *agent.ServiceConfig) { s.Confirm.Within = 50 * time.Millisecond })
	if res, _ := r.once(); res.Confirmed {
		t.Error("an epoch from before the bytes changed is taken for confirmation")
	}
}

// A process that is alive and did not hear is named with what it states; the files stay, and nothing goes back.
func TestDeafProcess(t *testing.T) {
	r := newRig(t, "checkout", "search")
	c := newCollector(t)
	r.reporter = c
	r.world.Release(two("a: 1\n", "b: 1\n"))
	r.world.Assign(1)
	r.confirmed(1)
	r.procs["checkout"].SetDeaf(true)
	r.edit("checkout", func(s *agent.ServiceConfig) { s.Confirm.Within = 100 * time.Millisecond })
	r.world.Release(two("a: 2\n", "b: 2\n"))
	r.world.Assign(2)
	res, err := r.once()
	if err != nil || res.Confirmed || !res.Installed || res.Running != 2 {
		t.Fatalf("%+v, %v", res, err)
	}
	want := []agent.WaitingService{{Service: "checkout", State: "waiting", Reason: "process still states epoch 1"}}
	if diff := cmp.Diff(want, res.Waiting); diff != "" {
		t.Error(diff)
	}
	last := c.reports()[len(c.reports())-1]
	if last.Phase != report.PhaseConfirming || last.Reason != "checkout: process still states epoch 1" || last.Running != 2 || last.Confirmed || last.Grade != manifest.GradeDisk {
		t.Errorf("report: %+v", last)
	}
	r.sound(2)
	// Once it hears, it is confirmed without another reload.
	r.procs["checkout"].SetDeaf(false)
	r.confirmed(2)
	if n := len(r.procs["checkout"].Reloads()); n != 2 {
		t.Errorf("reloaded %d times", n)
	}
}

func TestGrades(t *testing.T) {
	for _, tc := range []struct {
		name     string
		required manifest.Grade
		service  agent.ServiceConfig
		want     manifest.Grade
		waiting  string
	}{
		{"nothing configured", manifest.GradeProcess, agent.ServiceConfig{}, manifest.GradeDisk, "its evidence is disk and process is required; give it a `confirm` in agent.yaml"},
		{"disk is enough", manifest.GradeDisk, agent.ServiceConfig{}, manifest.GradeDisk, ""},
		{"a hook", manifest.GradeReloaded, agent.ServiceConfig{Reload: []string{"true"}}, manifest.GradeReloaded, ""},
		{"a hook is not a process", manifest.GradeProcess, agent.ServiceConfig{Reload: []string{"true"}}, manifest.GradeReloaded, "its evidence is reloaded and process is required; give it a `confirm` in agent.yaml"},
		{"restarted", manifest.GradeRestarted, agent.ServiceConfig{Reload: []string{"true"}}, manifest.GradeReloaded, "its evidence is reloaded and restarted is required; give it a `unit`, or a `confirm` with unit or pid_file, in agent.yaml, and a `reload` that starts its process anew"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newRig(t)
			r.cfg.Services["checkout"] = tc.service
			r.world.Release(files{"checkout/checkout.yaml": "a"}, agenttest.Grade(tc.required))
			r.world.Assign(1)
			for range 2 { // and again by a new start
				res, err := r.once()
				if err != nil || res.Grade != tc.want || res.Confirmed != (tc.waiting == "") {
					t.Errorf("%+v, %v", res, err)
				}
				if !res.Confirmed && (len(res.Waiting) != 1 || res.Waiting[0].Reason != tc.waiting) {
					t.Errorf("waiting: %+v", res.Waiting)
				}
			}
		})
	}
}

// B088: the hook is told which files came, changed and went.
func TestB088HookIsToldOfRemovals(t *testing.T) {
	r := newRig(t, "checkout")
	r.world.Release(files{"checkout/checkout.yaml": "a", "checkout/list/one": "[1]", "checkout/list/two": "[2]", "checkout/list/three": "[3]"})
	r.world.Assign(1)
	r.confirmed(1)
	r.world.Release(files{"checkout/checkout.yaml": "a", "checkout/list/two": "[]", "checkout/list/three": "[3]", "checkout/new": "x"})
	r.world.Assign(2)
	r.confirmed(2)
	want := []string{
		"checkout 1 a=checkout.yaml list/one list/three list/two c=checkout.yaml list/one list/three list/two r=",
		"checkout 2 a=new c=list/two new r=list/one",
	}
	if diff := cmp.Diff(want, r.procs["checkout"].Reloads()); diff != "" {
		t.Error(diff)
	}
}

// B084: an empty file is a file; a service that left the bundle leaves the disk with the swap; a release without any file is refused.
func TestB084Empty(t *testing.T) {
	r := newRig(t, "checkout", "search")
	r.world.Release(files{"checkout/checkout.yaml": "a", "checkout/empty": "", "search/search.yaml": "b"})
	r.world.Assign(1)
	r.confirmed(1)
	if info, err := os.Stat(filepath.Join(r.root, "current/checkout/empty")); err != nil || info.Size() != 0 {
		t.Errorf("%v, %v", info, err)
	}
	r.world.Release(files{"checkout/checkout.yaml": "a", "checkout/empty": ""})
	r.world.Assign(2)
	if res := r.confirmed(2); !cmp.Equal(res.Changed, []string{"search"}) {
		t.Errorf("changed %v", res.Changed)
	}
	r.world.Release(files{})
	r.world.Assign(3)
	res, err := r.once()
	if err == nil || res.Code != agent.CodeEmpty || res.Running != 2 {
		t.Errorf("%+v, %v", res, err)
	}
	r.sound(2)
}

// B074: modes are those of the release whatever the umask, and no directory shuts a service out.
func TestB074Modes(t *testing.T) {
	for _, umask := range []int{0o077, 0o000, 0o777} {
		t.Run(fmt.Sprintf("%03o", umask), func(t *testing.T) {
			r := newRig(t)
			r.world.Release(files{"checkout/open@0644": "a", "checkout/secret@0400": "b", "checkout/sub/run@0755": "c", "checkout/all@0777": "d"}, agenttest.Grade(manifest.GradeDisk))
			r.world.Assign(1)
			defer setUmask(setUmask(umask))
			for range 2 {
				r.confirmed(1)
				for path, mode := range map[string]os.FileMode{
					"": 0o755, "current/checkout/open": 0o644, "current/checkout/secret": 0o400, "current/checkout/sub/run": 0o755, "current/checkout/all": 0o777,
					"current/checkout": 0o755, "current/checkout/sub": 0o755, "releases": 0o755, "current/.muster.json": 0o644, "tmp": 0o700,
				} {
					if info, err := os.Stat(filepath.Join(r.root, path)); err != nil || info.Mode().Perm() != mode || info.Mode()&^(os.ModePerm|os.ModeDir) != 0 {
						t.Errorf("%s: %v, %v; want %s", path, info.Mode(), err, mode)
					}
				}
			}
		})
	}
}

// B130: a well signed older head is refused, whatever was lost or restarted in between; a lower epoch by a newer order is taken.
func TestB130Replay(t *testing.T) {
	r := newRig(t, "checkout")
	c := newCollector(t)
	r.reporter = c
	r.world.Release(files{"checkout/checkout.yaml": "1"})
	r.world.Release(files{"checkout/checkout.yaml": "2"})
	old := r.world.Assign(1)
	r.world.Assign(2)
	r.confirmed(2)

	r.world.Put(manifest.KeyHead(agenttest.Cohort), old)
	for _, between := range []func(){
		func() {},
		func() {
			os.RemoveAll(filepath.Join(r.root, "releases"))
			os.MkdirAll(filepath.Join(r.root, "releases"), 0o755)
		},
		func() { os.Remove(filepath.Join(r.root, "current")) },
	} {
		between()
		res, _ := r.once()
		if len(res.Sources) != 1 || !res.Sources[0].Refused || !errors.Is(res.Sources[0].Err, manifest.ErrOrder) {
			t.Errorf("sources: %+v", res.Sources)
		}
		if res.Desired != 2 || res.Running != 2 {
			t.Errorf("%+v", res)
		}
		if last := c.reports()[len(c.reports())-1]; last.Code != agent.CodeOrder || last.Running != 2 || last.Seen != "1-2-0" {
			t.Errorf("report: %+v", last)
		}
	}
	r.world.Assign(1)
	r.confirmed(1)
}

// A carrier that is behind is named, and costs nothing: the highest valid head counts.
func TestHighestHeadCounts(t *testing.T) {
	r := newRig(t, "checkout")
	r.world.Release(files{"checkout/checkout.yaml": "1"})
	r.world.Release(files{"checkout/checkout.yaml": "2"})
	old := r.world.Assign(1)
	r.world.Assign(2)
	lagging := &faulty{Carrier: r.carriers[0], name: "lagging", head: func() ([]byte, error) { return old, nil }}
	r.carriers = []agent.Carrier{lagging, r.carriers[0]}
	res := r.confirmed(2)
	if res.Sources[0].Mark == res.Sources[1].Mark {
		t.Errorf("sources: %+v", res.Sources)
	}
	if !strings.Contains(r.logs.String(), `msg="source: behind" host=web-17 cohort=prod-eu source=lagging`) {
		t.Error("the lagging source is not named in the log")
	}
}

// Heads that are not for this host, or not from a trusted key, change nothing.
func TestForeignHead(t *testing.T) {
	r := newRig(t, "checkout")
	r.world.Release(files{"checkout/checkout.yaml": "1"})
	good := r.world.Assign(1)
	r.confirmed(1)
	for name, tc := range map[string]struct {
		head []byte
		want error
	}{
		"another repo":   {r.world.Head(1, func(m *manifest.Manifest) { m.Repo = "acme/other" }), manifest.ErrForeign},
		"another cohort": {r.world.Head(1, func(m *manifest.Manifest) { m.Cohort = "staging" }), manifest.ErrForeign},
		"another store":  {r.world.Head(1, func(m *manifest.Manifest) { m.Store = strings.Repeat("00", 16) }), manifest.ErrForeign},
		"unsigned":       {[]byte(strings.Replace(string(good), `"sig":"`, `"sig":"AAAA`, 1)), nil},
		"junk":           {[]byte("{}"), manifest.ErrMalformed},
	} {
		r.world.Put(manifest.KeyHead(agenttest.Cohort), tc.head)
		res, err := r.once()
		if !res.Sources[0].Refused || tc.want != nil && !errors.Is(res.Sources[0].Err, tc.want) || res.Running != 1 || err != nil {
			t.Errorf("%s: %+v, %v", name, res, err)
		}
		r.sound(1)
	}
}

// An override is installed, and ends by the host's own clock without any source.
func TestOverrideEndsByItself(t *testing.T) {
	r := newRig(t, "checkout")
	r.world.Release(files{"checkout/checkout.yaml": "1"})
	r.world.Assign(1)
	r.confirmed(1)
	r.world.Override(1, files{"checkout/checkout.yaml": "emergency"}, time.Now().Add(time.Hour))
	res := r.confirmed(2)
	if got := r.read("checkout/checkout.yaml"); got != "emergency" {
		t.Errorf("installed %q, %+v", got, res)
	}
	ended := r.agent()
	agent.SetNow(ended, func() time.Time { return time.Now().Add(2 * time.Hour) })
	res, err := ended.Once(t.Context(), false)
	if err != nil || res.Running != 1 || !res.Confirmed {
		t.Errorf("%+v, %v", res, err)
	}
}

// B076: a root that cannot be written is said at the start, with the path and the right that is missing.
func TestB076RootNotWritable(t *testing.T) {
	root := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(root, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := install.Open(root); err == nil || !strings.Contains(err.Error(), root) {
		t.Errorf("%v", err)
	}
}
