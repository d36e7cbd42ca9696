package probe_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/muster-config/muster/agent/probe"
)

// pid1 is the agent's part of a container: process 1 of a process namespace, which runs hooks that leave children behind.
func pid1() int {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go probe.Reap(ctx)
	p := probe.New()
	for i := range 100 {
		limit, script := 10*time.Second, "(setsid sh -c 'exit 3' &) ; (sleep 0.01 &) ; exit 0"
		if i%10 == 0 { // and some that are killed with children in other groups
			limit, script = 20*time.Millisecond, "(setsid sleep 0.05 &) ; sleep 600"
		}
		res := p.Run(ctx, probe.Command{Argv: []string{"/bin/sh", "-c", script}, Limit: limit})
		if (res.Err != nil) != (i%10 == 0) {
			fmt.Println("hook", i, res.Err)
			return 1
		}
	}
	files, err := os.ReadDir("/proc/self/fd")
	fmt.Println("done", os.Getpid(), len(files), err)
	io.Copy(io.Discard, os.Stdin) //nolint:errcheck // until the test lets go
	return 0
}

// B071: as process 1, the agent reaps what its commands leave behind: no zombies after 100 hooks that fork twice, some of them past their limit, and no more
// open files than it needs; and never the children that it waits for itself.
func TestB071NoZombies(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: a process namespace of its own needs root")
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), exe)
	cmd.Env = append(os.Environ(), "MUSTER_TEST_PID1=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	said, err := bufio.NewReader(stdout).ReadString('\n')
	var pid, files int
	if n, _ := fmt.Sscanf(said, "done %d %d", &pid, &files); n != 2 || pid != 1 || files > 40 {
		t.Errorf("%q, %v", said, err)
	}
	// The last ones end a moment after their hook.
	deadline := time.Now().Add(10 * time.Second)
	for {
		left, zombies := childrenOf(t, cmd.Process.Pid)
		if left == 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Errorf("%d children, %d of them zombies", left, zombies)
			break
		}
		time.Sleep(5 * time.Millisecond) // there is nothing to be told by: they are another process's
	}
	stdin.Close()
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}

func childrenOf(t *testing.T, parent int) (all, zombies int) {
	t.Helper()
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range stats {
		data, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		fields := strings.Fields(string(data[strings.LastIndexByte(string(data), ')')+1:]))
		if len(fields) > 1 && fields[1] == fmt.Sprint(parent) {
			all++
			if fields[0] == "Z" {
				zombies++
			}
		}
	}
	return all, zombies
}
