package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/muster-config/muster/agent"
	"github.com/muster-config/muster/agent/agenttest"
	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/store/dir"
)

func TestMain(m *testing.M) {
	if os.Getenv("MUSTER_AGENT_MAIN") == "1" {
		main()
		return
	}
	os.Exit(m.Run())
}

// machine is a host with a configuration file, whose agent is this very program in a process of its own.
type machine struct {
	t      *testing.T
	world  *agenttest.World
	store  string
	root   string
	config string
	proc   *agenttest.Process
	bin    string
}

func newMachine(t *testing.T) *machine {
	t.Helper()
	m := &machine{t: t, store: filepath.Join(t.TempDir(), "store"), root: filepath.Join(t.TempDir(), "root")}
	s, err := dir.Open(m.store)
	if err != nil {
		t.Fatal(err)
	}
	m.world = agenttest.New(t, s)
	m.proc = agenttest.NewProcess(t, m.root, "checkout")
	etc := t.TempDir()
	m.config = filepath.Join(etc, "agent.yaml")
	if err := os.WriteFile(filepath.Join(etc, "keyring.json"), m.world.Keyring, 0o644); err != nil {
		t.Fatal(err)
	}
	m.configure("")
	if m.bin, err = os.Executable(); err != nil {
		t.Fatal(err)
	}
	return m
}

// configure writes the configuration file, with more at its end.
func (m *machine) configure(more string) {
	m.t.Helper()
	hook, err := json.Marshal(m.proc.Hook)
	if err != nil {
		m.t.Fatal(err)
	}
	text := fmt.Sprintf("host: web-17\nrepo: %s\ncohort: %s\nsources: [\"file://%s\"]\nkeyring: %s\nroot: %s\npoll: 1s\nservices:\n  checkout:\n    reload: %s\n    confirm: {http: %q, field: build.config_epoch, within: 2s}\n%s",
		agenttest.Repo, agenttest.Cohort, m.store, filepath.Join(filepath.Dir(m.config), "keyring.json"), m.root, hook, m.proc.URL, more)
	if err := os.WriteFile(m.config, []byte(text), 0o644); err != nil {
		m.t.Fatal(err)
	}
}

// sources configures another source.
func (m *machine) sources(url string) {
	m.t.Helper()
	store := m.store
	defer func() { m.store = store }()
	m.store = "STORE"
	m.configure("")
	data, err := os.ReadFile(m.config)
	if err != nil {
		m.t.Fatal(err)
	}
	if err := os.WriteFile(m.config, bytes.Replace(data, []byte("file://STORE"), []byte(url), 1), 0o644); err != nil {
		m.t.Fatal(err)
	}
}

func (m *machine) command(args ...string) *exec.Cmd {
	cmd := exec.CommandContext(m.t.Context(), m.bin, append(args, "--config", m.config)...)
	cmd.Env = append(os.Environ(), "MUSTER_AGENT_MAIN=1")
	return cmd
}

// call runs the agent and demands its exit code and a text in its error output.
func (m *machine) call(code int, says string, args ...string) string {
	m.t.Helper()
	cmd := m.command(args...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		m.t.Fatal(err)
	}
	if got := cmd.ProcessState.ExitCode(); got != code || !strings.Contains(errs.String(), says) {
		m.t.Errorf("%v: exit %d, want %d and %q\n%s%s", args, got, code, says, out.String(), errs.String())
	}
	return out.String()
}

func TestOnce(t *testing.T) {
	m := newMachine(t)
	m.call(1, "no source knows cohort prod-eu", "once")
	m.sources("https://127.0.0.1:1/prod")
	m.call(5, "no source was reached", "once")
	m.sources("ftp://x/y")
	m.call(2, "sources[0]", "once")
	m.configure("")
	m.world.Release(agenttest.Files{"checkout/checkout.yaml": "1"})
	first := m.world.Assign(1)
	out := m.call(0, "", "once")
	if want := "web-17: epoch 1 installed, changed: checkout\nweb-17: confirmed, grade process\n"; out != want {
		t.Errorf("%q, want %q", out, want)
	}
	var res agent.OnceResult
	if err := json.Unmarshal([]byte(m.call(0, "", "once", "--json")), &res); err != nil || !res.Confirmed || res.Running != 1 || res.Changed == nil || res.Waiting == nil {
		t.Errorf("%+v, %v", res, err)
	}
	m.proc.SetDeaf(true)
	m.world.Release(agenttest.Files{"checkout/checkout.yaml": "2"})
	m.world.Assign(2)
	m.call(1, "muster-agent: error: epoch 2 is not confirmed: checkout: process still states epoch 1\n", "once")
	m.proc.SetDeaf(false)
	m.call(0, "", "once")
	m.world.Put(manifest.KeyHead(agenttest.Cohort), first)
	m.call(4, "no source gave a head that can be believed", "once")
	// For ExecStartPre: the files are in place, and nothing is reloaded or asked.
	m.proc.SetIll(true)
	m.world.Release(agenttest.Files{"checkout/checkout.yaml": "3"})
	m.world.Assign(3)
	before := len(m.proc.Reloads())
	m.call(0, "", "once", "--install")
	if n := len(m.proc.Reloads()); n != before {
		t.Errorf("%d reloads", n-before)
	}
	if data, err := os.ReadFile(filepath.Join(m.root, "current/checkout/checkout.yaml")); string(data) != "3" {
		t.Errorf("%q, %v", data, err)
	}
}

func TestBadInput(t *testing.T) {
	m := newMachine(t)
	m.configure("pol: 5s\n")
	m.call(2, `agent.yaml:12: unknown key "pol" (did you mean "poll"?)`, "once")
	m.configure("")
	m.call(2, "unknown flag: --frob", "once", "--frob")
	m.call(2, `takes no argument, but got "x"`, "run", "x")
	if err := os.Remove(filepath.Join(filepath.Dir(m.config), "keyring.json")); err != nil {
		t.Fatal(err)
	}
	m.call(7, "read the keyring", "once")
	if _, err := os.Stat(m.root); err == nil {
		t.Error("the root was made all the same")
	}
}

func TestB063Verify(t *testing.T) {
	m := newMachine(t)
	m.call(1, "nothing is installed under "+m.root, "verify")
	m.world.Release(agenttest.Files{"checkout/checkout.yaml": "1"})
	m.world.Assign(1)
	m.call(0, "", "once")
	if out := m.call(0, "", "verify"); !strings.Contains(out, "epoch 1, sha256:") {
		t.Errorf("%q", out)
	}
	if err := os.WriteFile(filepath.Join(m.root, "current/checkout/checkout.yaml"), []byte("2"), 0o644); err != nil {
		t.Fatal(err)
	}
	if out := m.call(1, "1 path not as released", "verify"); out != "differs: checkout/checkout.yaml\n" {
		t.Errorf("%q", out)
	}
	var v verified
	if err := json.Unmarshal([]byte(m.call(1, "", "verify", "--json")), &v); err != nil || v.Good || v.Epoch != 1 || len(v.Drift) != 1 || v.Found == v.Content {
		t.Errorf("%+v, %v", v, err)
	}
	m.call(0, "", "once")
	m.call(0, "", "verify")
}

// started is `run` in the background.
type started struct {
	*machine
	cmd  *exec.Cmd
	mu   sync.Mutex
	log  bytes.Buffer
	done chan error
}

func (m *machine) start() *started {
	m.t.Helper()
	s := &started{machine: m, cmd: m.command("run"), done: make(chan error, 1)}
	s.cmd.Stderr = s
	if err := s.cmd.Start(); err != nil {
		m.t.Fatal(err)
	}
	go func() { s.done <- s.cmd.Wait() }()
	m.t.Cleanup(func() {
		s.cmd.Process.Kill()
		if m.t.Failed() {
			m.t.Log(s.text())
		}
	})
	return s
}

func (s *started) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.log.Write(p)
}
func (s *started) text() string { s.mu.Lock(); defer s.mu.Unlock(); return s.log.String() }

// await polls a condition of the other process: there is nothing to be told by.
func await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(20 * time.Second)
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("%s did not come", what)
		}
	}
}

func (s *started) term(code int) {
	s.t.Helper()
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		s.t.Fatal(err)
	}
	select {
	case <-s.done:
	case <-time.After(15 * time.Second):
		s.t.Fatal("TERM did not end it")
	}
	if got := s.cmd.ProcessState.ExitCode(); got != code {
		s.t.Errorf("exit %d, want %d", got, code)
	}
}

// B086: HUP takes a good configuration, keeps the old one for a broken one, and never ends the agent; TERM ends it with 0, also in the middle of an apply, and the
// next start is clean.
func TestB086Signals(t *testing.T) {
	m := newMachine(t)
	m.world.Release(agenttest.Files{"checkout/checkout.yaml": "1"})
	m.world.Assign(1)
	s := m.start()
	await(t, "release 1", func() bool { agenttest.Ask(m.proc); return m.proc.Epoch() == 1 })
	hup := func(says string, n int) {
		t.Helper()
		if err := s.cmd.Process.Signal(syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
		await(t, says, func() bool { return strings.Count(s.text(), says) == n })
	}
	m.configure("pol: 5s\n")
	hup("configuration not taken, going on with the old one", 1)
	m.configure("labels: {role: web}\n")
	hup("configuration read again", 1)
	m.world.Release(agenttest.Files{"checkout/checkout.yaml": "2"})
	m.world.Assign(2)
	await(t, "release 2", func() bool { agenttest.Ask(m.proc); return m.proc.Epoch() == 2 })
	// In the middle of an apply: the reload is at work.
	flag := filepath.Join(t.TempDir(), "at work")
	hook := m.proc.Hook[2]
	m.proc.Hook[2] = "touch '" + flag + "'; sleep 1; " + hook
	m.configure("")
	hup("configuration read again", 2)
	m.world.Release(agenttest.Files{"checkout/checkout.yaml": "3"})
	m.world.Assign(3)
	await(t, "the reload", func() bool { _, err := os.Stat(flag); return err == nil })
	s.term(0)
	agenttest.Ask(m.proc)
	if e := m.proc.Epoch(); e != 3 {
		t.Errorf("the reload was cut off: the process states %d", e)
	}
	before := len(m.proc.Reloads())
	m.call(0, "", "verify")
	m.call(0, "", "once")
	if n := len(m.proc.Reloads()); n != before {
		t.Errorf("%d more reloads", n-before)
	}
}

func TestSecondAgentIsRefused(t *testing.T) {
	m := newMachine(t)
	m.world.Release(agenttest.Files{"checkout/checkout.yaml": "1"})
	m.world.Assign(1)
	s := m.start()
	await(t, "release 1", func() bool { agenttest.Ask(m.proc); return m.proc.Epoch() == 1 })
	works := fmt.Sprintf("another muster-agent (process %d) works on %s", s.cmd.Process.Pid, m.root)
	m.call(7, works+"\nmuster-agent: hint: the agent is running, and its next sync does this", "once")
	m.call(7, works+"\nmuster-agent: hint: stop it, or set root: to another directory\n", "run")
	m.call(0, "", "verify")
	s.term(0)
}

// A unit's ExecStartPre beside a running agent: a service starts with what is installed if that is whole, and with nothing else.
func TestInstallBesideTheAgent(t *testing.T) {
	m := newMachine(t)
	s := m.start() // there is no release yet
	await(t, "the lock", func() bool { _, err := os.Stat(filepath.Join(m.root, "state.json")); return err == nil })
	m.call(7, "and nothing is installed there yet\n", "once", "--install")
	m.world.Release(agenttest.Files{"checkout/checkout.yaml": "1"})
	m.world.Assign(1)
	await(t, "release 1", func() bool { agenttest.Ask(m.proc); return m.proc.Epoch() == 1 })
	if out := m.call(0, "", "once", "--install"); !strings.HasPrefix(out, "web-17: epoch 1 is installed and whole; another muster-agent (process ") {
		t.Errorf("%q", out)
	}
	var res agent.OnceResult
	if err := json.Unmarshal([]byte(m.call(0, "", "once", "--install", "--json")), &res); err != nil || res.Running != 1 || res.Confirmed || res.Host != "web-17" {
		t.Errorf("%+v, %v", res, err)
	}
	// Stopped, so that it repairs nothing, and with the lock in its hands.
	if err := s.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(m.root, "current/checkout/checkout.yaml"), []byte("2"), 0o644); err != nil {
		t.Fatal(err)
	}
	m.call(7, "and 1 path not as released under "+m.root, "once", "--install")
	if err := s.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	await(t, "the repair", func() bool {
		data, err := os.ReadFile(filepath.Join(m.root, "current/checkout/checkout.yaml"))
		return err == nil && string(data) == "1"
	})
	m.call(0, "", "once", "--install")
	s.term(0)
}

// A sync whose floors could not be written does not end with 0, however well the host is.
func TestOnceKeepsItsFloors(t *testing.T) {
	m := newMachine(t)
	m.world.Release(agenttest.Files{"checkout/checkout.yaml": "1"})
	m.world.Assign(1)
	m.call(0, "", "once")
	m.world.Assign(1)
	full := filepath.Join(t.TempDir(), "full")
	if err := os.WriteFile(full, fmt.Appendf(nil, "#!/bin/sh\ntrap '' XFSZ\nulimit -f 0\nexec %s \"$@\"\n", m.bin), 0o755); err != nil {
		t.Fatal(err)
	}
	free := m.bin
	m.bin = full
	m.call(7, "the agent's state is not on disk: write state.json", "once")
	m.call(7, "the agent's state is not on disk: write state.json", "once", "--install")
	m.bin = free
	m.call(0, "", "once")
}

// The agent's own targets: a static binary under 12 MB, and under 20 MB resident when it has nothing to do.
func TestSmall(t *testing.T) {
	m := newMachine(t)
	m.bin = filepath.Join(t.TempDir(), "muster-agent")
	build := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-ldflags", "-s -w", "-o", m.bin, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	info, err := os.Stat(m.bin)
	if err != nil {
		t.Fatal(err)
	}
	if info.Size() >= 12<<20 {
		t.Errorf("the binary has %d bytes", info.Size())
	}
	noise := strings.Repeat("0123456789abcdef", 1<<16) // 1 MiB a file
	m.world.Release(agenttest.Files{"checkout/checkout.yaml": "1", "checkout/a": noise, "checkout/b": noise, "checkout/c": noise, "checkout/d": noise})
	m.world.Assign(1)
	s := m.start()
	await(t, "release 1", func() bool { agenttest.Ask(m.proc); return m.proc.Epoch() == 1 })
	var rss int
	await(t, "rest", func() bool {
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.cmd.Process.Pid))
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(status)) {
			if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
				rss, err = strconv.Atoi(strings.Fields(rest)[0])
				if err != nil {
					t.Fatal(err)
				}
			}
		}
		return rss > 0 && rss < 20<<10
	})
	t.Logf("binary %d bytes, %d kB resident", info.Size(), rss)
	s.term(0)
}
