// Command bench measures muster beside a peer on the same machine, in one run, and prints ratios. A figure alone means little: machines are noisy.
//
//	go run ./cmd/internal/bench [-only publish|drill|evaluation] [-n 200] [-rounds 10] [-peers ../shared/peers] [-services 50,500,2000] [-turns 5]
//
// It measures publish → every one of n real agents confirmed. All agents are in this process, each with a directory, an identity key and connections
// of its own; signatures are on; every file and directory of an apply is fsynced; evaluation is prepared. The peer is an embedded etcd with as many
// watchers: plain (one file, fsync, rename) and durable (the same durable apply as here). The runs alternate.
//
// It measures the emergency: muster override set --now → every one of n real agents confirmed.
//
// And it measures validation: whole, beside a loop of the bare library and the stock cue command, and after a change of one service.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime/pprof"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/muster-config/muster/cue/eval"
)

func main() {
	eval.Child()
	play()
	only := flag.String("only", "", "publish (fleet: without its peers), drill, or evaluation; all if left out")
	services := flag.String("services", "50,500,2000", "sizes of the repositories that are validated")
	turns := flag.Int("turns", 5, "validations of each side and size")
	n := flag.Int("n", 200, "hosts")
	rounds := flag.Int("rounds", 10, "releases in each run")
	profile := flag.String("profile", "", "write a CPU profile of the publish part to this file")
	peers := flag.String("peers", "../shared/peers", "directory with the peer etcd; without it nothing is compared")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	sizes, err := numbers(*services)
	if err == nil && (*only == "" || *only == "evaluation") {
		err = evaluation(ctx, sizes, *turns)
	}
	if err == nil && (*only == "" || *only == "drill") {
		err = drill(ctx, *n, 5)
	}
	if err == nil && (*only == "" || *only == "publish" || *only == "fleet") {
		if *profile != "" {
			f, ferr := os.Create(*profile)
			if ferr != nil {
				fmt.Fprintln(os.Stderr, "bench:", ferr)
				os.Exit(1)
			}
			defer f.Close()
			if ferr := pprof.StartCPUProfile(f); ferr != nil {
				fmt.Fprintln(os.Stderr, "bench:", ferr)
				os.Exit(1)
			}
			defer pprof.StopCPUProfile()
			if m, err := os.Create(*profile + ".mem"); err == nil {
				defer pprof.Lookup("allocs").WriteTo(m, 0) //nolint:errcheck // a profile for whoever asked
			}
		}
		if *only == "fleet" {
			err = alone(ctx, *n, *rounds)
		} else {
			err = run(ctx, *n, *rounds, *peers)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// alone measures muster by itself, for a profile.
func alone(ctx context.Context, n, rounds int) error {
	phases := map[string][]time.Duration{}
	took, err := runFleet(ctx, nil, n, rounds, false, phases)
	if err != nil {
		return err
	}
	row("muster, reload by a call in the process", took)
	printPhases(phases)
	return nil
}

func printPhases(phases map[string][]time.Duration) {
	fmt.Printf("\nwhere the time goes (after the start of publish; median over rounds of the median and of the last host)\n\n")
	fmt.Printf("  %-24s %10s %10s\n", "step done", "half", "all")
	for _, s := range append([]string{"published"}, append(steps, "green")...) {
		if half := phases[s+"/half"]; len(half) > 0 {
			fmt.Printf("  %-24s %10s %10s\n", s, round(median(half)), round(median(phases[s+"/all"])))
		}
	}
	if cpu, fsyncs := phases["cpu"], phases["fsyncs"]; len(cpu) > 0 && len(fsyncs) > 0 {
		fmt.Printf("\n  muster: %s of processor time a round, %.1f fsyncs a host and release (5 files, 3 directories, the state, the swap; the state once more two seconds later, unless the next release is there before)\n",
			round(median(cpu)), median(fsyncs).Seconds())
	}
}

func run(ctx context.Context, n, rounds int, peers string) error {
	dir, err := os.MkdirTemp("", "muster-bench")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	peer, err := buildPeer(ctx, filepath.Join(peers, "etcd"), dir)
	if err != nil {
		fmt.Printf("no peer: %v; only muster is measured\n", err)
	}
	var muster, execs, plain, durable []time.Duration
	phases := map[string][]time.Duration{}
	for range 2 { // A/B/A/B
		if peer != "" {
			if plain, err = runPeer(ctx, plain, peer, n, rounds); err != nil {
				return err
			}
		}
		if muster, err = runFleet(ctx, muster, n, rounds, false, phases); err != nil {
			return err
		}
		if peer != "" {
			if durable, err = runPeer(ctx, durable, peer, n, rounds, "-durable"); err != nil {
				return err
			}
		}
		if execs, err = runFleet(ctx, execs, n, rounds, true, nil); err != nil {
			return err
		}
	}
	fmt.Printf("\npublish → %d real agents confirmed, medians of %d rounds\n\n", n, 2*rounds)
	fmt.Printf("  %-46s %10s %10s %10s\n", "", "median", "min", "max")
	row("muster, reload by a call in the process", muster)
	row("muster, reload by a program (one exec a host)", execs)
	if peer != "" {
		row("etcd put → watchers applied durably → acks", durable)
		row("etcd put → watchers wrote one file → acks", plain)
		fmt.Printf("\n  ratio to etcd durable: %.2f (target 1.3); with an exec a host: %.2f\n", ratio(muster, durable), ratio(execs, durable))
		fmt.Printf("  ratio to etcd plain:   %.2f; with an exec a host: %.2f\n", ratio(muster, plain), ratio(execs, plain))
	}
	printPhases(phases)
	return idleAgent(ctx, dir)
}

func row(name string, d []time.Duration) {
	fmt.Printf("  %-46s %10s %10s %10s\n", name, round(median(d)), round(slices.Min(d)), round(slices.Max(d)))
}

func median(d []time.Duration) time.Duration {
	s := slices.Sorted(slices.Values(d))
	return s[len(s)/2]
}

func round(d time.Duration) time.Duration { return d.Round(100 * time.Microsecond) }

func ratio(a, b []time.Duration) float64 { return float64(median(a)) / float64(median(b)) }

// runFleet starts a fleet, publishes rounds times, and adds what each took.
func runFleet(ctx context.Context, sum []time.Duration, n, rounds int, exec bool, phases map[string][]time.Duration) ([]time.Duration, error) {
	dir, err := os.MkdirTemp("", "muster-bench-fleet")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	ctx, cancel := context.WithCancel(ctx)
	group, ctx := errgroup.WithContext(ctx)
	defer group.Wait() //nolint:errcheck // the error that counts is returned below
	defer cancel()
	f := &fleet{dir: dir, exec: exec}
	if err := f.start(ctx, group, n); err != nil {
		return nil, err
	}
	names := hostNames(n)
	if err := f.green(ctx, 1, 2*time.Minute); err != nil {
		return nil, fmt.Errorf("first release: %w", err)
	}
	fsyncs := f.fsyncs.Load()
	defer func() {
		if phases != nil {
			phases["fsyncs"] = append(phases["fsyncs"], time.Duration(f.fsyncs.Load()-fsyncs)*time.Second/time.Duration(n*rounds))
		}
	}()
	for range rounds {
		cpu := spent(syscall.RUSAGE_SELF) + spent(syscall.RUSAGE_CHILDREN)
		started := time.Now()
		epoch, err := f.publish(ctx, names, 4096)
		if err != nil {
			return nil, err
		}
		published := time.Since(started)
		if err := f.green(ctx, epoch, time.Minute); err != nil {
			return nil, err
		}
		took := time.Since(started)
		sum = append(sum, took)
		if phases == nil {
			continue
		}
		note := func(step string, half, all time.Duration) {
			phases[step+"/half"] = append(phases[step+"/half"], half)
			phases[step+"/all"] = append(phases[step+"/all"], all)
		}
		note("published", published, published)
		note("green", took, took)
		phases["cpu"] = append(phases["cpu"], spent(syscall.RUSAGE_SELF)+spent(syscall.RUSAGE_CHILDREN)-cpu)
		for _, s := range steps {
			var at []time.Duration
			for _, h := range f.hosts {
				h.mu.Lock()
				at = append(at, h.at[s].Sub(started))
				h.mu.Unlock()
			}
			note(s, median(at), slices.Max(at))
		}
	}
	kind := "call"
	if exec {
		kind = "exec"
	}
	fmt.Printf("muster (%s): median %s\n", kind, round(median(sum)))
	return sum, nil
}

// buildPeer builds the peer in a copy: its directory may be read-only.
func buildPeer(ctx context.Context, from, dir string) (string, error) {
	if _, err := os.Stat(filepath.Join(from, "main.go")); err != nil {
		return "", fmt.Errorf("%s has no peer", from)
	}
	src := filepath.Join(dir, "etcd")
	if err := os.MkdirAll(src, 0o755); err != nil {
		return "", err
	}
	for _, name := range []string{"main.go", "go.mod", "go.sum"} {
		data, err := os.ReadFile(filepath.Join(from, name))
		if err != nil {
			return "", err
		}
		if err := os.WriteFile(filepath.Join(src, name), data, 0o644); err != nil {
			return "", err
		}
	}
	cmd := exec.CommandContext(ctx, "go", "build", "-o", "etcdpeer", ".")
	cmd.Dir = src
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the peer: %w: %s", err, out)
	}
	return filepath.Join(src, "etcdpeer"), nil
}

var peerLine = regexp.MustCompile(`median=(\S+) min=(\S+) max=(\S+)`)

// runPeer adds the peer's median, minimum and maximum of one run.
func runPeer(ctx context.Context, sum []time.Duration, bin string, n, rounds int, args ...string) ([]time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, bin, append([]string{"-n", strconv.Itoa(n), "-rounds", strconv.Itoa(rounds)}, args...)...)
	out, err := cmd.Output()
	m := peerLine.FindStringSubmatch(string(out))
	if m == nil {
		return nil, fmt.Errorf("the peer said nothing: %w", err)
	}
	fmt.Printf("etcd %-9s: median %s; at most %s of processor time a round, its start included; 7 fsyncs a host and round with -durable (4 files, 3 directories), else 1\n",
		strings.Join(args, " "), m[1], round((cmd.ProcessState.UserTime()+cmd.ProcessState.SystemTime())/time.Duration(rounds)))
	for _, s := range m[1:] {
		d, err := time.ParseDuration(s)
		if err != nil {
			return nil, err
		}
		sum = append(sum, d)
	}
	return sum, nil
}
