package main

import (
	"bufio"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// demoCommand is `muster demo` with a temporary directory of its own, so that what it leaves behind is seen.
func demoCommand(t *testing.T, args ...string) (cmd *exec.Cmd, tmp string) {
	t.Helper()
	bin, err := binaries()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	t.Cleanup(cancel)
	tmp = t.TempDir()
	cmd = exec.CommandContext(ctx, filepath.Join(bin, "muster"), append([]string{"demo"}, args...)...)
	cmd.Env = append(os.Environ(), "TMPDIR="+tmp)
	return cmd, tmp
}

func leftNothing(t *testing.T, tmp string) {
	t.Helper()
	entries, err := os.ReadDir(tmp)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		t.Errorf("the demo left %s behind", e.Name())
	}
}

func TestDemo(t *testing.T) {
	for _, tt := range []struct {
		args  []string
		code  int
		wants []string
	}{
		{[]string{"--exit"}, 0, []string{
			"24/24 hosts confirm epoch 1", "eu-7  drifted: 1 file was changed by hand", "the file is as released again",
			"21/24 hosts confirm epoch 2", "eu-5  silent", "us-2  silent", "eu-5 runs epoch 2 all the same",
			"23/24 hosts confirm epoch 2", "eu-3  applying: epoch 2 is installed, not confirmed: checkout: process still states epoch 1",
			"reloaded: checkout on 24 hosts, once each; search and mailer nowhere",
			"24/24 hosts confirm epoch 2. From now on", "of staging takes it and confirms, and no other host has it", "its checkouts fail: 502 Bad Gateway: no such host: tax.intrnal",
			"epoch 3 failed at wave 1 of 2 (1 host), back to epoch 2: gate checkouts: ", "is back at epoch 2 and sells again; the other 23 hosts never had it: no reload there",
			"24/24 hosts confirm what epoch 4 says for them",
		}},
		// The story must notice when one of its faults is not there.
		{[]string{"--exit", "--sabotage=hearing"}, 1, []string{"24/24 hosts confirm epoch 1", "something else than expected: epoch 2: 22 of 24 hosts confirm, not 21"}},
		{[]string{"--exit", "--sabotage=healed"}, 1, []string{"24/24 hosts confirm epoch 1", "something else than expected: epoch 2: 22 of 24 hosts confirm, not 21"}},
		{[]string{"--exit", "--sabotage=nocut"}, 1, []string{"24/24 hosts confirm epoch 1", "something else than expected: epoch 2: 22 of 24 hosts confirm, not 21"}},
		{[]string{"--exit", "--sabotage=nocanary"}, 1, []string{"23/24 hosts confirm epoch 2", "something else than expected: epoch 3 was to do harm on stage-", ", and to be stopped: staging is "}},
		{[]string{"--exit", "--sabotage=noedit"}, 1, []string{"24/24 hosts confirm epoch 1", "something else than expected: eu-7 is \"confirmed\""}},
	} {
		t.Run(strings.Join(tt.args, " "), func(t *testing.T) {
			if !raceEnabled {
				t.Parallel() // they mostly wait; beside the race detector each needs the machine
			}
			cmd, tmp := demoCommand(t, tt.args...)
			out, err := cmd.CombinedOutput()
			code := 0
			var exit *exec.ExitError
			if errors.As(err, &exit) {
				code = exit.ExitCode()
			} else if err != nil {
				t.Fatal(err)
			}
			if code != tt.code {
				t.Errorf("exit code %d, want %d", code, tt.code)
			}
			for _, want := range tt.wants {
				if !strings.Contains(string(out), want) {
					t.Errorf("no %q", want)
				}
			}
			if t.Failed() {
				t.Logf("%s", out)
			}
			leftNothing(t, tmp)
		})
	}
}

// TestDemoClosedOutput is `muster demo | head -1`: nothing is left there either.
func TestDemoClosedOutput(t *testing.T) {
	cmd, tmp := demoCommand(t)
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var said strings.Builder
	cmd.Stderr = &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := bufio.NewReader(stdout).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	if err := stdout.Close(); err != nil {
		t.Fatal(err)
	}
	err = cmd.Wait()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 7 || !strings.Contains(said.String(), "broken pipe") {
		t.Errorf("it ends with %v and says %q", err, said.String())
	}
	leftNothing(t, tmp)
}

// TestDemoCtrlC tries what the demo tells its user to try, and then ends it.
func TestDemoCtrlC(t *testing.T) {
	cmd, tmp := demoCommand(t)
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var script, printed strings.Builder
	lines := bufio.NewReader(stdout)
	for {
		line, err := lines.ReadString('\n')
		if err != nil {
			break
		}
		line = strings.TrimSuffix(line, "\n")
		printed.WriteString(line + "\n")
		if !strings.Contains(printed.String(), "In another terminal:") {
			continue
		}
		if call, ok := strings.CutPrefix(line, "  "); ok && !strings.HasPrefix(call, " ") {
			if strings.Contains(call, " validate") {
				call = "! " + call // the typo
			}
			script.WriteString(call + "\n")
		}
		if strings.Contains(line, " fsck --keyring ") {
			break
		}
	}
	sh := exec.CommandContext(t.Context(), "sh", "-eu", "-c", script.String())
	sh.Env = append(os.Environ(), gitEnv...)
	out, err := sh.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "epoch 5 is confirmed by 4 hosts") || !strings.Contains(string(out), "no fault") {
		t.Errorf("what to try: %v\n%s\n%s", err, script.String(), out)
	}
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	rest, err := io.ReadAll(lines)
	if err != nil || !strings.HasSuffix(string(rest), "\nstopped; nothing is left\n") {
		t.Errorf("after Ctrl-C it prints %q, %v", rest, err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("after Ctrl-C: %v", err)
	}
	if t.Failed() {
		t.Logf("%s", printed.String())
	}
	leftNothing(t, tmp)
}

// TestDemoRefuses: what it cannot run on is said in its own words, before anything is made.
func TestDemoRefuses(t *testing.T) {
	empty := t.TempDir()
	if out, err := exec.CommandContext(t.Context(), "git", "init", "-q", empty).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, tt := range []struct {
		args  []string
		error string
		hint  string
	}{
		{[]string{"--listen", "0.0.0.0:0"}, "--listen 0.0.0.0:0 is not on loopback", "such as 127.0.0.1:7070 or [::1]:7070"},
		{[]string{"--listen", ":7070"}, "--listen :7070 is not on loopback", "such as 127.0.0.1:7070"},
		{[]string{"--listen", "[::]:7070"}, "is not on loopback", "such as 127.0.0.1:7070"},
		{[]string{"--listen", "192.0.2.1:7070"}, "is not on loopback", "such as 127.0.0.1:7070"},
		{[]string{"--listen", "127.0.0.1"}, "--listen: address 127.0.0.1: missing port", "such as 127.0.0.1:7070"},
		{[]string{"--listen", "127.0.0.1:http"}, `"http" is no port`, "such as 127.0.0.1:7070"},
		{[]string{"--repo", t.TempDir()}, "--repo: ", "give --repo a config repo"},
		{[]string{"--repo", empty}, "--repo: ", "commit first"},
	} {
		t.Run(strings.Join(tt.args, " "), func(t *testing.T) {
			cmd, tmp := demoCommand(t, append([]string{"--exit"}, tt.args...)...)
			out, err := cmd.CombinedOutput()
			var exit *exec.ExitError
			if !errors.As(err, &exit) || exit.ExitCode() != 2 || !strings.Contains(string(out), tt.error) || !strings.Contains(string(out), tt.hint) || strings.Contains(string(out), "-C") {
				t.Errorf("%v\n%s", err, out)
			}
			if tt.args[0] == "--listen" && !strings.HasPrefix(string(out), "muster: error: ") {
				t.Errorf("something was begun:\n%s", out)
			}
			leftNothing(t, tmp)
		})
	}
}

// TestDemoOwnRepo runs the system on a repository of the user's, which stays as it is.
func TestDemoOwnRepo(t *testing.T) {
	dir := t.TempDir()
	bin, err := binaries()
	if err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{filepath.Join(bin, "muster"), "init", dir}, {"git", "-C", dir, "init", "-q"}, {"git", "-C", dir, "add", "-A"}, {"git", "-C", dir, "commit", "-qm", "start"},
	} {
		cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
		cmd.Env = append(os.Environ(), gitEnv...)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", args, err, out)
		}
	}
	cmd, tmp := demoCommand(t, "--exit", "--repo", dir, "--listen", "[::1]:0")
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "hosts confirm epoch 1: every process states") || !strings.Contains(string(out), "collector at http://[::1]:") ||
		!strings.HasSuffix(string(out), "\nended, as --exit asks: every host confirmed; nothing is left\n") {
		t.Errorf("%v\n%s", err, out)
	}
	leftNothing(t, tmp)
	status, err := exec.CommandContext(t.Context(), "git", "-C", dir, "status", "--porcelain").Output()
	if err != nil || len(status) > 0 {
		t.Errorf("the repository is touched: %s, %v", status, err)
	}
}
