package demo

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/muster-config/muster/agent"
)

// Ctrl-C in the middle of git is an interruption and no failure of git, and what git started is gone with it.
func TestGitIsEnded(t *testing.T) {
	dir := t.TempDir()
	r := &repo{dir: dir}
	group, err := r.git(t.Context(), "-c", "alias.group=!cut -d' ' -f5 /proc/$$/stat", "group")
	if err != nil {
		t.Fatal(err)
	}
	if n, err := strconv.Atoi(group); err != nil || n == syscall.Getpgrp() {
		t.Errorf("git runs in the group %q, and so does this: %v", group, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := r.git(ctx, "-c", "alias.stay=!echo $$ > pid.new && mv pid.new pid && sleep 60; true", "stay")
		done <- err
	}()
	var pid int
	for pid == 0 {
		if data, err := os.ReadFile(filepath.Join(dir, "pid")); err == nil {
			if pid, err = strconv.Atoi(string(data[:len(data)-1])); err != nil {
				t.Fatal(err)
			}
		}
		select {
		case err := <-done:
			t.Fatalf("git ended: %v", err)
		case <-time.After(5 * time.Millisecond):
		}
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("git was broken off: %v", err)
	}
	for deadline := time.Now().Add(10 * time.Second); syscall.Kill(pid, 0) == nil; time.Sleep(5 * time.Millisecond) {
		if data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat"); err != nil || len(data) == 0 || zombie(data) {
			break // nobody waits for it where process 1 does not
		}
		if time.Now().After(deadline) {
			t.Fatal("what git started runs on")
		}
	}
}

func zombie(stat []byte) bool {
	for i := range stat {
		if stat[i] == ')' && i+2 < len(stat) {
			return stat[i+2] == 'Z'
		}
	}
	return false
}

// While the demo runs a reload reaches the process; once it ends, what agents still owe takes no time.
func TestReloadsWhileEnding(t *testing.T) {
	dir := t.TempDir()
	program := filepath.Join(dir, "program")
	if err := os.WriteFile(program, []byte("#!/bin/sh\necho \"$@\" >> "+dir+"/ran\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	s := &story{dir: dir, store: "file://" + dir + "/store", opts: Options{Executable: program}}
	h := &host{name: "web-1", cohort: "prod", root: filepath.Join(dir, "root"), config: filepath.Join(dir, "agent.yaml"), collector: "http://127.0.0.1:1", processes: map[string]*process{"checkout": {url: "http://127.0.0.1:2"}}}
	if err := os.WriteFile(h.config, []byte(s.agentYAML(h)), 0o644); err != nil {
		t.Fatal(err)
	}
	cfg, err := agent.LoadConfig(h.config)
	if err != nil {
		t.Fatal(err)
	}
	argv := cfg.Services["checkout"].Reload
	for range 2 {
		if out, err := exec.CommandContext(t.Context(), argv[0], argv[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		ran, err := os.ReadFile(filepath.Join(dir, "ran"))
		if err != nil || string(ran) != "demo-reload http://127.0.0.1:2/reload\n" {
			t.Errorf("%q, %v", ran, err)
		}
		if err := os.WriteFile(s.ending(), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}
