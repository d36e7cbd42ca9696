package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
)

// idleAgent prints the size of the agent's static binary and what it keeps resident when it idles after an apply.
func idleAgent(ctx context.Context, dir string) error {
	bin := filepath.Join(dir, "muster-agent")
	build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags", "-s -w", "-o", bin, "./cmd/muster-agent")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build the agent: %w: %s", err, out)
	}
	info, err := os.Stat(bin)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	group, gctx := errgroup.WithContext(ctx)
	defer group.Wait() //nolint:errcheck // everything ends by cancel
	defer cancel()
	f := &fleet{dir: filepath.Join(dir, "idle")}
	if err := os.MkdirAll(f.dir, 0o755); err != nil {
		return err
	}
	if err := f.start(gctx, group, 0); err != nil {
		return err
	}
	config := filepath.Join(f.dir, "agent.yaml")
	text := fmt.Sprintf("host: idle\nrepo: %s\ncohort: %s\nsources: [%q]\nkeyring: %q\nroot: %q\ncollector: {url: %q}\n",
		repo, cohort, f.collector, filepath.Join(f.dir, "keyring.json"), filepath.Join(f.dir, "root"), f.collector)
	if err := os.WriteFile(config, []byte(text), 0o644); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, bin, "run", "--config", config)
	if err := cmd.Start(); err != nil {
		return err
	}
	defer cmd.Wait() //nolint:errcheck // killed by cancel
	defer cancel()
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		if _, err := os.Stat(filepath.Join(f.dir, "root", "current", service, "a")); err == nil {
			break
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("the agent installed nothing within 30s")
		}
	}
	time.Sleep(5 * time.Second)
	rss, peak, err := memory(cmd.Process.Pid)
	if err != nil {
		return err
	}
	fmt.Printf("\nagent: binary %.1f MB (target 12), resident when idle %.1f MB (target 20), at its peak %.1f MB\n", float64(info.Size())/1e6, rss, peak)
	return nil
}

// memory is VmRSS and VmHWM of a process, in MB (10^6 bytes).
func memory(pid int) (rss, peak float64, err error) {
	file, err := os.Open(filepath.Join("/proc", strconv.Itoa(pid), "status"))
	if err != nil {
		return 0, 0, fmt.Errorf("read the agent's memory (Linux only): %w", err)
	}
	defer file.Close()
	s := bufio.NewScanner(file)
	for s.Scan() {
		name, rest, _ := strings.Cut(s.Text(), ":")
		kb, _ := strconv.ParseFloat(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 64)
		switch name {
		case "VmRSS":
			rss = kb * 1024 / 1e6
		case "VmHWM":
			peak = kb * 1024 / 1e6
		}
	}
	return rss, peak, s.Err()
}
