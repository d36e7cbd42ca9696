package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/muster-config/muster/agent"
	"github.com/muster-config/muster/agent/agenttest"
)

func (m *machine) status() agent.Status {
	m.t.Helper()
	var s agent.Status
	if err := json.Unmarshal([]byte(m.call(0, "", "status", "--json")), &s); err != nil {
		m.t.Fatal(err)
	}
	return s
}

// status says what a running agent knows; after its end, also a hard one, what is on disk, and that no agent runs.
func TestStatus(t *testing.T) {
	m := newMachine(t)
	if out := m.call(0, "", "status"); !strings.Contains(out, "web-17: no agent runs; this is what is on disk under "+m.root) || !strings.Contains(out, "web-17: nothing installed") {
		t.Errorf("%q", out)
	}
	if s := m.status(); s.Daemon || s.Reason != "no agent has worked here yet" || s.Drift == nil || s.Owed == nil || s.Sources == nil {
		t.Errorf("%+v", s)
	}
	m.world.Release(agenttest.Files{"checkout/checkout.yaml": "1"})
	m.world.Assign(1)
	run := m.start()
	await(t, "confirmed", func() bool { s := m.status(); return s.Daemon && s.Confirmed && s.Running == 1 && len(s.Sources) == 1 })
	s := m.status()
	if s.PID != run.cmd.Process.Pid || s.Host != "web-17" || s.Keyring != 1 || s.Seen != "1-1-0" || s.Services["checkout"].State != "confirmed" || s.LastSync.IsZero() {
		t.Errorf("%+v", s)
	}
	out := m.call(0, "", "status")
	for _, want := range []string{fmt.Sprintf("process %d, up ", s.PID), "web-17: epoch 1, commit 000000000000\n", "web-17: confirmed, grade process\n", "checkout  confirmed  1       1          process\n"} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is not in\n%s", want, out)
		}
	}
	m.proc.SetDeaf(true)
	m.world.Release(agenttest.Files{"checkout/checkout.yaml": "2"})
	m.world.Assign(2)
	await(t, "the deaf one is named", func() bool {
		return strings.Contains(m.call(0, "", "status"), "checkout  waiting  1       2          disk   process still states epoch 1\n")
	})
	if err := run.cmd.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-run.done
	if _, err := os.Lstat(filepath.Join(m.root, "control.sock")); err != nil {
		t.Errorf("the test needs a socket that was left: %v", err)
	}
	s = m.status()
	if s.Daemon || s.Running != 2 || s.Desired != 2 || s.Seen != "1-2-0" || s.Confirmed || s.Services["checkout"].State != "not asked" || s.Keyring != 1 {
		t.Errorf("%+v", s)
	}
	if err := os.WriteFile(filepath.Join(m.root, "current/checkout/checkout.yaml"), []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	if out := m.call(0, "", "status"); !strings.Contains(out, "differs: checkout/checkout.yaml\n") {
		t.Errorf("%q", out)
	}
	// The socket that was left is in nobody's way.
	run = m.start()
	await(t, "the next agent answers", func() bool { return m.status().Daemon })
	run.term(0)
	if _, err := os.Lstat(filepath.Join(m.root, "control.sock")); !os.IsNotExist(err) {
		t.Errorf("the socket is there after the end: %v", err)
	}
	if err := os.WriteFile(filepath.Join(m.root, "state.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	m.call(7, "state.json is broken", "status")
}

// Metrics are where the configuration says, and a port that is taken keeps no host from its configuration.
func TestMetrics(t *testing.T) {
	m := newMachine(t)
	ln, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := ln.Addr().String()
	m.configure("metrics: " + addr + "\n")
	m.world.Release(agenttest.Files{"checkout/checkout.yaml": "1"})
	m.world.Assign(1)
	run := m.start()
	await(t, "confirmed", func() bool { return m.status().Confirmed })
	await(t, "said", func() bool { return strings.Contains(run.text(), "no metrics; check metrics: in the configuration") })
	run.term(0)
	ln.Close()
	run = m.start()
	get := func() string {
		resp, err := http.Get("http://" + addr + "/metrics")
		if err != nil {
			return ""
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			return ""
		}
		return string(body)
	}
	await(t, "metrics", func() bool {
		text := get()
		return strings.Contains(text, "\nmuster_host_confirmed 1\n") && strings.Contains(text, `muster_service_confirmed{service="checkout",state="confirmed",grade="process"} 1`)
	})
	run.term(0)
}

// verify looks at links too.
func TestVerifyLinks(t *testing.T) {
	m := newMachine(t)
	link := filepath.Join(t.TempDir(), "checkout.yaml")
	data, err := os.ReadFile(m.config)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(m.config, []byte(strings.Replace(string(data), "  checkout:\n", "  checkout:\n    links: {"+link+": checkout.yaml}\n", 1)), 0o644); err != nil {
		t.Fatal(err)
	}
	m.world.Release(agenttest.Files{"checkout/checkout.yaml": "1"})
	m.world.Assign(1)
	m.call(0, "", "once")
	m.call(0, "", "verify")
	if err := os.Remove(link); err != nil {
		t.Fatal(err)
	}
	if out := m.call(1, "1 path not as released", "verify"); out != "link: "+link+": the link is missing\n" {
		t.Errorf("%q", out)
	}
	m.call(0, "", "once")
	m.call(0, "", "verify")
}

// A collector that takes the connection and never answers costs `once` seconds: the other source is there.
func TestOnceBesideHangingCollector(t *testing.T) {
	m := newMachine(t)
	ln, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	m.configure(fmt.Sprintf("collector: {url: \"http://%s\"}\n", ln.Addr()))
	data, err := os.ReadFile(m.config)
	if err != nil {
		t.Fatal(err)
	}
	text := strings.Replace(string(data), "sources: [", fmt.Sprintf("sources: [\"http://%s\", ", ln.Addr()), 1)
	if err := os.WriteFile(m.config, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	m.world.Release(agenttest.Files{"checkout/checkout.yaml": "1"})
	m.world.Assign(1)
	started := time.Now()
	m.call(0, "", "once")
	if took := time.Since(started); took > 20*time.Second {
		t.Errorf("%s", took)
	}
	// Also where it is the only one.
	if err := os.WriteFile(m.config, []byte(strings.Replace(text, ", \"file://"+m.store+"\"", "", 1)), 0o644); err != nil {
		t.Fatal(err)
	}
	started = time.Now()
	m.call(5, "no source was reached", "once")
	if took := time.Since(started); took > 20*time.Second {
		t.Errorf("%s", took)
	}
}

// An agent that does not answer its socket, for all those who connect and say nothing, keeps nobody from what is on disk; and that is said.
func TestStatusOfSilentAgent(t *testing.T) {
	m := newMachine(t)
	m.world.Release(agenttest.Files{"checkout/checkout.yaml": "1"})
	m.world.Assign(1)
	m.call(0, "", "once")
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(m.root, "control.sock"), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	started := time.Now()
	s := m.status()
	if s.Daemon || s.Running != 1 || s.Silent != "the agent does not answer within 2s" || s.Services["checkout"].Reason != s.Silent+", so what its process says is not known" {
		t.Errorf("%+v", s)
	}
	if took := time.Since(started); took > 8*time.Second {
		t.Errorf("%s", took)
	}
	if out := m.call(0, "", "status"); !strings.Contains(out, "web-17: the agent does not answer within 2s; this is what is on disk under "+m.root+"\nweb-17: epoch 1,") {
		t.Errorf("%q", out)
	}
}
