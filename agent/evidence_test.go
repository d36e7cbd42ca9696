package agent_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/muster-config/muster/agent"
	"github.com/muster-config/muster/agent/agenttest"
	"github.com/muster-config/muster/agent/probe"
	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/report"
)

// sh is a command of the shell.
func sh(format string, args ...any) []string {
	return []string{"/bin/sh", "-c", fmt.Sprintf(format, args...)}
}

// stateEpoch is a shell command that states the service epoch of what is current, as a process that has just loaded it would.
func (r *rig) stateEpoch(service string) string {
	return fmt.Sprintf(`sed -n 's/.*"%s":{"epoch":\([0-9]*\).*/\1/p' %s/current/.muster.json`, service, r.root)
}

// A process may state its epoch in a file, or by a command.
func TestConfirmByFileAndCommand(t *testing.T) {
	for _, kind := range []string{"file", "command", "file with field", "command with field"} {
		t.Run(kind, func(t *testing.T) {
			r := newRig(t)
			said := filepath.Join(t.TempDir(), "epoch")
			confirm := &agent.ConfirmConfig{Within: 2 * time.Second}
			write := r.stateEpoch("checkout")
			if strings.Contains(kind, "field") {
				confirm.Field = "build.epoch"
				write = fmt.Sprintf(`printf '{"build": {"epoch": %%s}}' $(%s)`, write)
			}
			if strings.HasPrefix(kind, "file") {
				confirm.File = said
			} else {
				confirm.Command = sh("echo to stderr >&2; cat %s", said)
			}
			r.cfg.Services["checkout"] = agent.ServiceConfig{Reload: sh("%s > %s.new && mv %s.new %s", write, said, said, said), Confirm: confirm}
			r.world.Release(files{"checkout/checkout.yaml": "1"})
			r.world.Assign(1)
			if res := r.confirmed(1); res.Grade != manifest.GradeProcess {
				t.Errorf("%+v", res)
			}
			r.world.Release(files{"checkout/checkout.yaml": "2"})
			r.world.Assign(2)
			r.confirmed(2)
			r.confirmed(2) // and it still proves that at the next start
			// A process that does not hear any more still states the old one.
			r.edit("checkout", func(s *agent.ServiceConfig) { s.Reload = []string{"true"}; s.Confirm.Within = 20 * time.Millisecond })
			r.world.Release(files{"checkout/checkout.yaml": "3"})
			r.world.Assign(3)
			res, err := r.once()
			if err != nil || res.Confirmed || res.Running != 3 || len(res.Waiting) != 1 || res.Phase != string(report.PhaseConfirming) {
				t.Fatalf("%+v, %v", res, err)
			}
			want := "process still states epoch 2"
			if confirm.File != "" {
				want = "was written before the files were installed"
			}
			if !strings.Contains(res.Waiting[0].Reason, want) {
				t.Errorf("%q, want %q", res.Waiting[0].Reason, want)
			}
			r.sound(3)
			// One that was well before and says nothing that can be understood is ill, and the change goes back.
			r.edit("checkout", func(s *agent.ServiceConfig) {
				s.Reload = sh(`case $MUSTER_EPOCH in 4) echo broken > %s;; *) %s > %s;; esac`, said, write, said)
			})
			r.confirmed3(t, said, write)
			r.world.Release(files{"checkout/checkout.yaml": "4"})
			r.world.Assign(4)
			res, err = r.once()
			if err == nil || res.Code != agent.CodeUnwell || res.Running != 3 {
				t.Errorf("%+v, %v", res, err)
			}
			r.sound(3)
		})
	}
}

// confirmed3 has the process load release 3 by itself.
func (r *rig) confirmed3(t *testing.T, said, write string) {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), "/bin/sh", "-c", write+" > "+said).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	r.confirmed(3)
}

// A file that is there already and states the right number proves nothing: it was written before the files came, or by a process that is gone.
func TestFileMustBeFresh(t *testing.T) {
	r := newRig(t)
	said, pid := filepath.Join(t.TempDir(), "epoch"), filepath.Join(t.TempDir(), "pid")
	r.cfg.Services["checkout"] = agent.ServiceConfig{Confirm: &agent.ConfirmConfig{File: said, PIDFile: pid, Within: 10 * time.Millisecond}}
	put := func(path, text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	start := startProcess(t, pid)
	start()
	put(said, "1\n") // as if it knew what will come
	r.world.Release(files{"checkout/checkout.yaml": "1"})
	r.world.Assign(1)
	waits := func(want string) {
		t.Helper()
		res, err := r.once()
		if err != nil || res.Confirmed || len(res.Waiting) != 1 || !strings.Contains(res.Waiting[0].Reason, want) {
			t.Errorf("%+v, %v; want %q", res, err, want)
		}
	}
	waits("was written before the files were installed")
	put(said, "1\n")
	r.confirmed(1)
	// It starts anew, and the file of the one before is still there.
	awaitTick(t)
	awaitTick(t)
	start()
	waits("was written before the process started")
	put(said, "1\n")
	r.confirmed(1)
	put(pid, "none\n")
	waits("holds no process id")
	put(pid, strconv.Itoa(1<<22+1))
	waits("the process is not running")
	if err := os.Remove(said); err != nil {
		t.Fatal(err)
	}
	waits("has not written")
}

// awaitTick waits until the clocks of the kernel have ticked: what follows is stamped later than what came before.
func awaitTick(t *testing.T) {
	t.Helper()
	until := probe.New().Now()
	for until.Until() > 0 {
		time.Sleep(until.Until())
	}
}

// startProcess gives a function that ends the process of a pid file and starts another, as a service manager would.
func startProcess(t *testing.T, pidFile string) func() {
	t.Helper()
	var running *exec.Cmd
	end := func() {
		if running != nil {
			running.Process.Kill()
			running.Wait()
		}
	}
	t.Cleanup(end)
	return func() {
		t.Helper()
		end()
		running = exec.Command("sleep", "1000")
		if err := running.Start(); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(pidFile, fmt.Appendf(nil, "%d\n", running.Process.Pid), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// A process that can state nothing is known by its start: `restarted` is reached by one that started after the swap, and by no other.
func TestRestartedByPIDFile(t *testing.T) {
	r := newRig(t)
	dir := t.TempDir()
	pid := filepath.Join(dir, "pid")
	t.Cleanup(func() { exec.Command("/bin/sh", "-c", "kill -9 $(cat "+pid+")").Run() })
	restart := sh("kill -9 $(cat %s 2>/dev/null) 2>/dev/null; sleep 1000 >/dev/null 2>&1 & echo $! > %s", pid, pid)
	r.cfg.Services["checkout"] = agent.ServiceConfig{Reload: restart, Confirm: &agent.ConfirmConfig{PIDFile: pid, Within: 50 * time.Millisecond}}
	r.world.Release(files{"checkout/checkout.yaml": "1"}, agenttest.Grade(manifest.GradeRestarted))
	r.world.Assign(1)
	if res := r.confirmed(1); res.Grade != manifest.GradeRestarted {
		t.Errorf("%+v", res)
	}
	r.confirmed(1) // restarted once, and not again
	r.edit("checkout", func(s *agent.ServiceConfig) { s.Reload = []string{"true"} })
	r.world.Release(files{"checkout/checkout.yaml": "2"}, agenttest.Grade(manifest.GradeRestarted))
	r.world.Assign(2)
	res, err := r.once()
	if err != nil || res.Confirmed || len(res.Waiting) != 1 || res.Waiting[0].Reason != "process started before epoch 2 was installed" {
		t.Errorf("%+v, %v", res, err)
	}
	// The hook has returned 0 all the same, where that is enough.
	r.world.Release(files{"checkout/checkout.yaml": "3"}, agenttest.Grade(manifest.GradeReloaded))
	r.world.Assign(3)
	if res := r.confirmed(3); res.Grade != manifest.GradeReloaded {
		t.Errorf("%+v", res)
	}
	// Required is more than a start can say.
	r.edit("checkout", func(s *agent.ServiceConfig) { s.Reload = restart })
	r.world.Release(files{"checkout/checkout.yaml": "4"})
	r.world.Assign(4)
	res, err = r.once()
	if err != nil || res.Confirmed || res.Grade != manifest.GradeRestarted || !strings.Contains(res.Waiting[0].Reason, "its evidence is restarted and process is required") {
		t.Errorf("%+v, %v", res, err)
	}
}

// Each instance is confirmed on its own, and the service is as good as the one that is furthest behind.
func TestInstances(t *testing.T) {
	r := newRig(t)
	c := newCollector(t)
	r.reporter = c
	a, b := agenttest.NewProcess(t, r.root, "checkout"), agenttest.NewProcess(t, r.root, "checkout")
	confirm := func(p *agenttest.Process) *agent.ConfirmConfig {
		return &agent.ConfirmConfig{HTTP: p.URL, Field: "build.config_epoch", Within: 200 * time.Millisecond}
	}
	r.cfg.Services["checkout"] = agent.ServiceConfig{
		Reload:    sh("%s; %s", a.Hook[2], b.Hook[2]),
		Instances: []agent.InstanceConfig{{Name: "a", Confirm: confirm(a)}, {Name: "b", Confirm: confirm(b)}},
	}
	r.world.Release(files{"checkout/checkout.yaml": "1"})
	r.world.Assign(1)
	r.confirmed(1)
	b.SetDeaf(true)
	r.world.Release(files{"checkout/checkout.yaml": "2"})
	r.world.Assign(2)
	res, err := r.once()
	if err != nil || res.Confirmed || len(res.Waiting) != 1 || res.Waiting[0].Reason != "b: process still states epoch 1" {
		t.Fatalf("%+v, %v", res, err)
	}
	last := c.reports()[len(c.reports())-1].Services["checkout"]
	if last.Epoch != 1 || last.Expected != 2 || last.Grade != manifest.GradeDisk || last.Instances["a"] != (report.ServiceInstance{Epoch: 2, State: "confirmed"}) ||
		last.Instances["b"] != (report.ServiceInstance{Epoch: 1, State: "waiting", Reason: "process still states epoch 1"}) {
		t.Errorf("%+v", last)
	}
	b.SetDeaf(false)
	r.confirmed(2)
	// One that answered before and does not after the change makes the whole go back.
	r.world.Release(files{"checkout/checkout.yaml": "poison"})
	r.world.Assign(3)
	res, err = r.once()
	if err == nil || res.Code != agent.CodeUnwell || res.Running != 2 {
		t.Errorf("%+v, %v", res, err)
	}
}

// units stands for systemd: a program that answers `systemctl show` from a file for each unit.
type units struct {
	t   *testing.T
	dir string
}

func newUnits(t *testing.T) *units {
	t.Helper()
	u := &units{t, t.TempDir()}
	script := fmt.Sprintf("#!/bin/sh\ntest \"$1\" = show && test \"$3\" = -- || exit 9\ncat %s/$4.state 2>/dev/null || echo 'LoadState=not-found\nActiveState=inactive'\n", u.dir)
	if err := os.WriteFile(filepath.Join(u.dir, "systemctl"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", u.dir+":"+os.Getenv("PATH"))
	return u
}

// set says what a unit is, and since when: µs since the start of the machine.
func (u *units) set(name, state string, since int64) {
	u.t.Helper()
	pid := 0
	if state == "active" {
		pid = 42
	}
	text := fmt.Sprintf("LoadState=loaded\nActiveState=%s\nMainPID=%d\nExecMainStartTimestampMonotonic=%d\nActiveEnterTimestampMonotonic=%d\n", state, pid, since, since)
	if err := os.WriteFile(filepath.Join(u.dir, name+".state"), []byte(text), 0o644); err != nil {
		u.t.Fatal(err)
	}
}

// A stopped unit: the files are installed, nothing is reloaded and nothing asked, and the host says `not running`. When it starts, it has the new files.
func TestUnitStopped(t *testing.T) {
	u := newUnits(t)
	r := newRig(t, "checkout")
	c := newCollector(t)
	r.reporter = c
	r.edit("checkout", func(s *agent.ServiceConfig) { s.Unit = "checkout.service" })
	u.set("checkout.service", "active", 1)
	r.world.Release(files{"checkout/checkout.yaml": "1"})
	r.world.Assign(1)
	r.confirmed(1)
	u.set("checkout.service", "inactive", 1)
	r.procs["checkout"].SetIll(true)
	r.world.Release(files{"checkout/checkout.yaml": "2"})
	r.world.Assign(2)
	for range 2 {
		res, err := r.once()
		if err != nil || res.Confirmed || res.Running != 2 || len(res.Waiting) != 1 || res.Waiting[0].State != "not running" || res.Waiting[0].Reason != "unit checkout.service is inactive" {
			t.Errorf("%+v, %v", res, err)
		}
	}
	if n := len(r.procs["checkout"].Reloads()); n != 1 {
		t.Errorf("reloaded %d times", n)
	}
	r.sound(2)
	r.procs["checkout"].SetIll(false)
	if err := r.procs["checkout"].Load(); err != nil {
		t.Fatal(err)
	}
	u.set("checkout.service", "active", 1)
	r.confirmed(2)
	if n := len(r.procs["checkout"].Reloads()); n != 1 {
		t.Errorf("reloaded %d times", n)
	}
}

// A unit that was up before the change and is not after it was taken down by it: the change goes back.
func TestUnitDiesOfTheChange(t *testing.T) {
	u := newUnits(t)
	r := newRig(t)
	r.cfg.Services["checkout"] = agent.ServiceConfig{
		Unit: "checkout.service",
		Reload: sh(`case $MUSTER_EPOCH in 2) s=failed;; *) s=active;; esac; printf 'LoadState=loaded\nActiveState=%%s\nMainPID=42\nExecMainStartTimestampMonotonic=9000000000000\n' $s > %s/checkout.service.state`,
			u.dir),
	}
	u.set("checkout.service", "active", 1)
	r.world.Release(files{"checkout/checkout.yaml": "1"}, agenttest.Grade(manifest.GradeRestarted))
	r.world.Assign(1)
	if res := r.confirmed(1); res.Grade != manifest.GradeRestarted {
		t.Errorf("%+v", res)
	}
	r.edit("checkout", func(s *agent.ServiceConfig) {
		s.Confirm = &agent.ConfirmConfig{Unit: "checkout.service", Within: 20 * time.Millisecond}
	})
	r.confirmed(1)
	r.world.Release(files{"checkout/checkout.yaml": "2"}, agenttest.Grade(manifest.GradeRestarted))
	r.world.Assign(2)
	res, err := r.once()
	if err == nil || res.Code != agent.CodeUnwell || res.Running != 1 || !strings.Contains(res.Reason, "unit checkout.service is failed") {
		t.Errorf("%+v, %v", res, err)
	}
	r.sound(1)
	if data, err := os.ReadFile(filepath.Join(u.dir, "checkout.service.state")); !strings.Contains(string(data), "ActiveState=active") {
		t.Errorf("the way back did not bring it up again: %s, %v", data, err)
	}
	// systemd does not know it, or does not answer: said, and no reason to leave a reload out.
	r.edit("checkout", func(s *agent.ServiceConfig) { s.Unit = "other.service"; s.Confirm.Unit = "other.service" })
	res, err = r.once()
	if err != nil || res.Confirmed || !strings.Contains(fmt.Sprint(res.Waiting), "systemd knows no unit other.service") {
		t.Errorf("%+v, %v", res, err)
	}
}

// A start of the agent checks everything anew and reloads nothing: counted, for services with every kind of evidence.
func TestStartReloadsNothing(t *testing.T) {
	r := newRig(t, "checkout", "search")
	dir := t.TempDir()
	ran := filepath.Join(dir, "ran")
	r.cfg.Services["byfile"] = agent.ServiceConfig{
		Reload:  sh("echo x >> %s; %s > %s/epoch", ran, r.stateEpoch("byfile"), dir),
		Confirm: &agent.ConfirmConfig{File: filepath.Join(dir, "epoch"), Within: time.Second},
		Links:   map[string]string{filepath.Join(dir, "link"): "f"},
	}
	r.cfg.Services["bycommand"] = agent.ServiceConfig{Reload: sh("echo x >> %s", ran), Confirm: &agent.ConfirmConfig{Command: sh("%s", r.stateEpoch("bycommand")), Within: time.Second}}
	r.world.Release(files{"checkout/checkout.yaml": "1", "search/search.yaml": "1", "byfile/f": "1", "bycommand/f": "1"})
	r.world.Assign(1)
	r.confirmed(1)
	for range 5 {
		r.confirmed(1)
		data, err := os.ReadFile(ran)
		if n := len(r.procs["checkout"].Reloads()) + len(r.procs["search"].Reloads()) + strings.Count(string(data), "x"); n != 4 || err != nil {
			t.Fatalf("%d reloads, %v", n, err)
		}
	}
	// What a start checks is not only said: a process that has gone back to an older epoch is seen by it.
	if err := os.WriteFile(filepath.Join(dir, "epoch"), []byte("0"), 0o644); err != nil {
		t.Fatal(err)
	}
	if res, err := r.once(); err != nil || res.Confirmed {
		t.Errorf("%+v, %v", res, err)
	}
}
