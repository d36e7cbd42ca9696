package control_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/muster-config/muster/agent"
	"github.com/muster-config/muster/agent/control"
	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/report"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func status() *agent.Status {
	yes := true
	return &agent.Status{
		V: 1, Daemon: true, Version: "test", PID: 42, Started: time.Date(2026, 11, 30, 9, 0, 0, 0, time.UTC), Root: "/r", Host: "web-17", Repo: "acme/config", Cohort: "prod-eu",
		Mode: "enforce", Keyring: 1, Running: 7, Desired: 8, Drift: []string{}, Owed: []string{"checkout"}, Sources: []agent.SourceResult{{Name: "s3://b", Error: "no \"answer\""}},
		Services: map[string]report.Service{"checkout": {State: "waiting", Healthy: &yes, Instances: map[string]report.ServiceInstance{"a": {State: "x"}}}},
	}
}

func serve(t *testing.T, root string) (stop func()) {
	t.Helper()
	if err := os.MkdirAll(filepath.Join(root, "tmp"), 0o700); err != nil {
		t.Fatal(err)
	}
	s, err := control.Listen(root)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx, &control.Fake{Says: status()}) }()
	return func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

func TestStatus(t *testing.T) {
	for name, root := range map[string]string{"short": t.TempDir(), "long": filepath.Join(t.TempDir(), strings.Repeat("long/", 40))} {
		t.Run(name, func(t *testing.T) {
			if _, err := control.Status(t.Context(), root); !errors.Is(err, control.ErrNoAgent) {
				t.Errorf("without a root: %v", err)
			}
			stop := serve(t, root)
			got, err := control.Status(t.Context(), root)
			if diff := cmp.Diff(status(), got); err != nil || diff != "" {
				t.Errorf("%v\n%s", err, diff)
			}
			info, err := os.Lstat(filepath.Join(root, control.Name))
			if err != nil || info.Mode() != fs.ModeSocket|0o600 {
				t.Errorf("%v, %v", info.Mode(), err)
			}
			if left, err := os.ReadDir(filepath.Join(root, "tmp")); len(left) > 0 || err != nil {
				t.Errorf("%v, %v", left, err)
			}
			stop()
			if _, err := control.Status(t.Context(), root); !errors.Is(err, control.ErrNoAgent) {
				t.Errorf("after the end: %v", err)
			}
		})
	}
}

// A socket that a dead agent left is nobody's, and is replaced; a file that is none stays.
func TestStale(t *testing.T) {
	root := t.TempDir()
	path := filepath.Join(root, control.Name)
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	ln.SetUnlinkOnClose(false)
	ln.Close()
	if _, err := control.Status(t.Context(), root); !errors.Is(err, control.ErrNoAgent) {
		t.Error(err)
	}
	stop := serve(t, root)
	if _, err := control.Status(t.Context(), root); err != nil {
		t.Error(err)
	}
	stop()
	if err := os.WriteFile(path, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := control.Listen(root); err == nil || !strings.Contains(err.Error(), "is there and is no socket; move it away") {
		t.Error(err)
	}
	if data, err := os.ReadFile(path); string(data) != "mine" {
		t.Errorf("%q, %v", data, err)
	}
}

// Junk gets an answer that says so; who says nothing, or too much, holds nobody up.
func TestBadRequests(t *testing.T) {
	root := t.TempDir()
	defer serve(t, root)()
	dial := func() net.Conn {
		t.Helper()
		c, err := (&net.Dialer{}).DialContext(t.Context(), "unix", filepath.Join(root, control.Name))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	for range 4 {
		dial() // and says nothing
	}
	for req, want := range map[string]string{
		"junk\n":                              "not one line of JSON",
		`{"v": 1}` + "\n":                     "not one line of JSON",
		`{"v": 1, "op": "status", "x": 1}`:    "not one line of JSON",
		`{"v": 2, "op": "status"}` + "\n":     "version 2",
		`{"v": 1, "op": "frob"}` + "\n":       `"frob": not known`,
		strings.Repeat("x", 5000):             "not one line of JSON",
		`{"v": 1, "op": "status"}` + "\nrest": "",
	} {
		c := dial()
		if _, err := c.Write([]byte(req)); err != nil {
			t.Fatal(err)
		}
		c.(*net.UnixConn).CloseWrite()
		line, err := bufio.NewReader(c).ReadString('\n')
		var a control.Answer
		if jerr := json.Unmarshal([]byte(line), &a); jerr != nil || err != nil || !strings.Contains(a.Error, want) || (want == "") != (a.Status != nil) {
			t.Errorf("%q: %q, %v", req, line, err)
		}
	}
}

// An agent that takes the question and never answers is said, not waited for.
func TestNoAnswer(t *testing.T) {
	root := t.TempDir()
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(root, control.Name), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := control.Status(ctx, root); err == nil || !strings.Contains(err.Error(), "no answer") {
		t.Error(err)
	}
	if _, err := control.Status(t.Context(), root); !errors.Is(err, control.ErrSilent) {
		t.Error(err)
	}
	// One that hangs up without a word is silent too.
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			conn.Close()
		}
	}()
	defer func() { ln.Close(); <-done }()
	if _, err := control.Status(t.Context(), root); !errors.Is(err, control.ErrSilent) {
		t.Error(err)
	}
}

// Connections that say nothing, as many as are taken at a time, are in the way of others for a moment only.
func TestSilentConnections(t *testing.T) {
	root := t.TempDir()
	defer serve(t, root)()
	for range control.MaxOpen {
		c, err := (&net.Dialer{}).DialContext(t.Context(), "unix", filepath.Join(root, control.Name))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
	if s, err := control.Status(t.Context(), root); err != nil || s.PID != 42 {
		t.Errorf("%+v, %v", s, err)
	}
}

// What a running agent is told to do: it gets all of the order, and what it says no to is the same error on this side.
func TestOrders(t *testing.T) {
	root := t.TempDir()
	if err := os.MkdirAll(filepath.Join(root, "tmp"), 0o700); err != nil {
		t.Fatal(err)
	}
	s, err := control.Listen(root)
	if err != nil {
		t.Fatal(err)
	}
	fake := &control.Fake{Says: status()}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx, fake) }()
	order := agent.HoldOrder{By: "ana", Why: "INC-311", For: time.Hour}
	a, err := control.Ask(t.Context(), root, control.Request{Op: control.OpHold, Hold: &order})
	if err != nil || a.Hold == nil || a.Hold.Why != "INC-311" || fake.Order != order {
		t.Errorf("hold: %+v, %v, %+v", a, err, fake.Order)
	}
	if a, err = control.Ask(t.Context(), root, control.Request{Op: control.OpHead}); err != nil || string(a.Head) != "head" {
		t.Errorf("head: %+v, %v", a, err)
	}
	fake.Fails = fmt.Errorf("file: %w", manifest.ErrOrder)
	a, err = control.Ask(t.Context(), root, control.Request{Op: control.OpApply, From: "/x", Hold: &order})
	if !errors.Is(err, manifest.ErrOrder) || errors.Is(err, manifest.ErrSignature) || a == nil || a.Result == nil || a.Result.Host != "web-17" || fake.From != "/x" {
		t.Errorf("apply: %+v, %v, %q", a, err, fake.From)
	}
	fake.Fails = agent.ErrNoHold
	if _, err = control.Ask(t.Context(), root, control.Request{Op: control.OpUnhold}); !errors.Is(err, agent.ErrNoHold) {
		t.Errorf("unhold: %v", err)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func FuzzAnswer(f *testing.F) {
	f.Add(`{"v":1,"op":"status"}`)
	f.Add(`{"v":1,"op":"hold","hold":{"by":"ana","why":"x","for":60000000000}}`)
	f.Add(`{"v":1,"op":"apply","from":"/x"}`)
	f.Fuzz(func(t *testing.T, text string) {
		here, there := net.Pipe()
		go func() { there.Write([]byte(text + "\n")) }()
		done := make(chan []byte, 1)
		go func() {
			line, _ := bufio.NewReader(there).ReadBytes('\n')
			done <- line
			there.Close()
		}()
		control.AnswerTo(t.Context(), here, &control.Fake{Says: status()})
		here.Close()
		var a control.Answer
		if line := <-done; json.Unmarshal(line, &a) != nil || a.V != 1 || (a.Error == "") == (a.Status == nil && a.Hold == nil && a.Result == nil && a.Head == nil) {
			t.Errorf("%q", line)
		}
	})
}
