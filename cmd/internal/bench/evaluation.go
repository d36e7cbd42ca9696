package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
)

// evaluation measures validation: whole, beside a loop of the bare library over the same merged units (A/B/A/B), beside the stock cue command, and
// after a change of one service, from the cache. Two processors at most, on both sides. The loop runs in a new process each time, as validation does, of
// which only the loop is timed; and once more where it has run before, which no validation has.
func evaluation(ctx context.Context, sizes []int, rounds int) error {
	if err := os.Setenv("GOMAXPROCS", "2"); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "muster-bench-eval")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	cue, err := stockCUE(ctx)
	if err != nil {
		fmt.Printf("no stock cue: %v; it is not compared\n", err)
	}
	fmt.Printf("\nvalidation, four cohorts, two processors, medians of %d rounds in turn\n", rounds)
	for _, n := range sizes {
		if err := evaluate(ctx, filepath.Join(dir, strconv.Itoa(n)), n, rounds, cue); err != nil {
			return fmt.Errorf("%d services: %w", n, err)
		}
	}
	return nil
}

func evaluate(ctx context.Context, dir string, n, rounds int, cue string) error {
	if err := generate(ctx, dir, n); err != nil {
		return err
	}
	yardstick, err := startBare(ctx, dir)
	if err != nil {
		return err
	}
	defer yardstick.end()
	if _, err := yardstick.ask("save"); err != nil {
		return err
	}
	var whole, bare, ready, alone, warm, wholeCPU, bareCPU, readyCPU, aloneCPU, warmCPU []time.Duration
	var last, loop, cached outcome
	for range rounds {
		if loop, err = runRole(ctx, "loop", dir); err != nil {
			return err
		}
		bare, bareCPU = append(bare, loop.Took), append(bareCPU, loop.CPU)
		if last, err = runRole(ctx, "validate", dir); err != nil {
			return err
		}
		whole, wholeCPU = append(whole, last.Took), append(wholeCPU, last.CPU)
		again, err := yardstick.ask("loop")
		if err != nil {
			return err
		}
		ready, readyCPU = append(ready, again.Took), append(readyCPU, again.CPU)
		with, err := yardstick.ask("whole")
		if err != nil {
			return err
		}
		without, err := yardstick.ask("merged")
		if err != nil {
			return err
		}
		alone, aloneCPU = append(alone, with.Took-without.Took), append(aloneCPU, with.CPU-without.CPU)
	}
	fmt.Printf("\n%d services, %d units\n\n", n, last.Units)
	fmt.Printf("  %-52s %10s %10s %10s\n", "", "median", "min", "max")
	row("whole validation (work tree, child, checks, files)", whole)
	row("bare loop, once in a new process", bare)
	row("bare loop, in a process that ran it before", ready)
	row("of the whole: to check layers alone", alone)
	fmt.Printf("  ratio: whole / bare %.2f, (whole - layers alone) / bare %.2f (target 1.2); to the loop that ran before %.2f\n", ratio(whole, bare), less(whole, alone, bare), ratio(whole, ready))
	fmt.Printf("  by processor time: whole / bare %.2f, (whole - layers alone) / bare %.2f (%s and %s; the loop %s); to the loop that ran before %.2f (%s)\n",
		ratio(wholeCPU, bareCPU), less(wholeCPU, aloneCPU, bareCPU), round(median(wholeCPU)), round(median(aloneCPU)), round(median(bareCPU)), ratio(wholeCPU, readyCPU), round(median(readyCPU)))
	fmt.Printf("  peak memory: %d MiB the child, %d MiB the parent, %d MiB the bare loop\n", last.Child>>10, last.Parent>>10, loop.Parent>>10)

	if _, err := runRole(ctx, "cached", dir); err != nil { // fills the cache
		return err
	}
	var read []time.Duration
	for i := range max(5, rounds) {
		if err := changeOne(dir, i, n); err != nil {
			return err
		}
		if cached, err = runRole(ctx, "cached", dir); err != nil {
			return err
		}
		warm, warmCPU, read = append(warm, cached.Took), append(warmCPU, cached.CPU), append(read, cached.Tree)
	}
	fmt.Println()
	row("after a change of one service, from the cache", warm)
	row("the same by processor time, parent and child", warmCPU)
	fmt.Printf("  %.1f%% of the whole (target 2%%; under 300ms), by processor time %.1f%%; of it %s reading the work tree; peak memory %d MiB the parent\n", 100*ratio(warm, whole), 100*ratio(warmCPU, wholeCPU), round(median(read)), cached.Parent>>10)

	if cue == "" {
		return nil
	}
	per, sampled, err := exports(ctx, yardstick, cue, dir+".units")
	if err != nil {
		return err
	}
	all := per * time.Duration(last.Units)
	fmt.Printf("  stock cue export, two at a time: %s a unit (%d of %d units run, the rest extrapolated): %s; %.1f times the whole validation (target 5)\n",
		per.Round(10*time.Microsecond), sampled, last.Units, all.Round(time.Millisecond), float64(all)/float64(median(whole)))
	return nil
}

// less is the ratio of a without a part of it to b.
func less(a, part, b []time.Duration) float64 {
	return float64(median(a)-median(part)) / float64(median(b))
}

// runRole runs this program as one side.
func runRole(ctx context.Context, role, dir string) (outcome, error) {
	var out outcome
	exe, err := os.Executable()
	if err != nil {
		return out, err
	}
	cmd := exec.CommandContext(ctx, exe)
	cmd.Env = append(os.Environ(), roleEnv+"="+role+" "+dir)
	cmd.Stderr = os.Stderr
	data, err := cmd.Output()
	if err != nil {
		return out, fmt.Errorf("%s: %w", role, err)
	}
	return out, json.Unmarshal(data, &out)
}

// side is a process that does one run for each line.
type side struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

func startBare(ctx context.Context, dir string) (*side, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	s := &side{cmd: exec.CommandContext(ctx, exe)}
	s.cmd.Env = append(os.Environ(), roleEnv+"=bare "+dir)
	s.cmd.Stderr = os.Stderr
	if s.in, err = s.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	s.out = bufio.NewReader(out)
	return s, s.cmd.Start()
}

func (s *side) ask(line string) (outcome, error) {
	var out outcome
	if _, err := fmt.Fprintln(s.in, line); err != nil {
		return out, err
	}
	data, err := s.out.ReadBytes('\n')
	if err != nil {
		return out, err
	}
	return out, json.Unmarshal(data, &out)
}

func (s *side) end() {
	s.in.Close()
	_ = s.cmd.Wait() // its answers are what counts
}

// stockCUE is the cue command of the library's version, installed once.
func stockCUE(ctx context.Context) (string, error) {
	version := ""
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, m := range info.Deps {
			if m.Path == "cuelang.org/go" {
				version = m.Version
			}
		}
	}
	if version == "" {
		return "", errors.New("this program does not say which version of CUE it has")
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(cache, "muster-bench", "cue-"+version)
	exe := filepath.Join(dir, "cue")
	if _, err := os.Stat(exe); err == nil {
		return exe, nil
	}
	ctx, cancel := context.WithTimeout(ctx, 15*time.Minute)
	defer cancel()
	fmt.Printf("installing cue %s …\n", version)
	cmd := exec.CommandContext(ctx, "go", "install", "cuelang.org/go/cmd/cue@"+version)
	cmd.Env = append(os.Environ(), "GOBIN="+dir)
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("install cue: %w: %s", err, bytes.TrimSpace(out))
	}
	return exe, nil
}

// exports runs the stock command for some units, two at a time, and says how long each took of the wall clock.
func exports(ctx context.Context, from *side, cue, dir string) (per time.Duration, n int, err error) {
	out, err := from.ask(fmt.Sprintf("sample %s %d", dir, 60))
	if err != nil {
		return 0, 0, err
	}
	start := time.Now()
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(2)
	for i := range out.Units {
		group.Go(func() error {
			cmd := exec.CommandContext(ctx, cue, "export", fmt.Sprintf("./u%03d", i), "-e", "values")
			cmd.Dir = dir
			cmd.Env = append(os.Environ(), "CUE_REGISTRY=none")
			if out, err := cmd.CombinedOutput(); err != nil {
				return fmt.Errorf("cue export: %w: %s", err, bytes.TrimSpace(out))
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return 0, 0, err
	}
	return time.Since(start) / time.Duration(out.Units), out.Units, nil
}

// numbers reads "50,500,2000".
func numbers(text string) ([]int, error) {
	var out []int
	for part := range strings.SplitSeq(text, ",") {
		n, err := strconv.Atoi(strings.TrimSpace(part))
		if err != nil || n < 1 {
			return nil, fmt.Errorf("%q is no list of numbers such as 50,500,2000", text)
		}
		out = append(out, n)
	}
	return out, nil
}
