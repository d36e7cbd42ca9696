package sim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// TestSeeds plays one seed after the other. A world is one bubble whose goroutines mostly wait for one another, so that a process with one processor plays it with the least work: there is a
// process for each processor, and each plays a few seeds.
func TestSeeds(t *testing.T) {
	n := *seeds
	if n == 0 {
		n = inTests
	}
	if *procs == 0 || *toFile != "" || n == 1 {
		for i := range n {
			playHere(t, *first+uint64(i))
		}
		return
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	const most = 10 // to begin a process costs something as well
	chunk := max(1, min(most, n/(4**procs)))
	next := make(chan uint64)
	var wg sync.WaitGroup
	for range *procs {
		wg.Go(func() {
			for from := range next {
				out, err := playThere(ctx, t.TempDir(), from, min(chunk, n-int(from-*first)))
				if err == nil || ctx.Err() != nil {
					continue
				}
				t.Errorf("seeds from %d: %v\n%s", from, err, out)
				if *quick {
					stop()
				}
			}
		})
	}
	for i := 0; i < n && ctx.Err() == nil; i += chunk {
		next <- *first + uint64(i)
	}
	close(next)
	wg.Wait()
}

// playHere plays a seed in this process.
func playHere(t *testing.T, seed uint64) {
	t.Run(fmt.Sprint(seed), func(t *testing.T) {
		total.mu.Lock()
		enough := *quick && len(total.failed) > 0
		total.mu.Unlock()
		if enough {
			return
		}
		Run(t, seed, *size, func(out Outcome) {
			if *trail {
				fmt.Println(out.Lines)
			}
			total.mu.Lock()
			defer total.mu.Unlock()
			total.played++
			total.spent += out.Spent
			total.census.Add(out.Census)
			if out.Failed != "" {
				total.failed = append(total.failed, seed)
				fmt.Printf("seed %d: %s\n", seed, out.Failed)
			}
		})
	})
}

// endWithParent ends this process when the one is gone that it plays for, which holds the other end of its input.
func endWithParent() {
	_, _ = io.Copy(io.Discard, os.Stdin)
	os.Exit(1)
}

// result is what a process hands back that played for another one.
type result struct {
	Played int            `json:"played"`
	Failed []uint64       `json:"failed"`
	Spent  time.Duration  `json:"spent"`
	Census map[string]int `json:"census"`
}

// hand writes what came of the seeds that were played here.
func hand(file string, code int) int {
	data, err := json.Marshal(result{total.played, total.failed, total.spent, total.census.n})
	if err == nil {
		err = os.WriteFile(file, data, 0o600)
	}
	if err != nil {
		fmt.Println(err)
		return 1
	}
	return code
}

// playThere plays seeds in a process of its own, and gives what it printed.
func playThere(ctx context.Context, dir string, from uint64, n int) (string, error) {
	file := filepath.Join(dir, "result.json")
	cmd := exec.CommandContext(ctx, os.Args[0], "-test.run=^TestSeeds$", "-test.timeout=0", fmt.Sprint("-sim.seeds=", n), fmt.Sprint("-sim.first=", from), fmt.Sprint("-sim.hosts=", *size),
		fmt.Sprint("-sim.quick=", *quick), fmt.Sprint("-sim.trace=", *trail), "-sim.result="+file)
	cmd.Env = append(os.Environ(), "GOMAXPROCS=1")
	life, end, err := os.Pipe()
	if err != nil {
		return "", fmt.Errorf("start a process: %w", err)
	}
	cmd.Stdin = life
	out, err := cmd.CombinedOutput()
	_, _ = life.Close(), end.Close()
	var r result
	data, bad := os.ReadFile(file)
	if bad == nil {
		bad = json.Unmarshal(data, &r)
	}
	if err == nil && bad == nil && r.Played != n {
		bad = fmt.Errorf("%d seeds were played of %d", r.Played, n)
	}
	total.mu.Lock()
	defer total.mu.Unlock()
	total.played += r.Played
	total.failed = append(total.failed, r.Failed...)
	total.spent += r.Spent
	total.census.Add(&Census{n: r.Census})
	if s := cmd.ProcessState; s != nil {
		total.used += s.UserTime() + s.SystemTime()
	}
	for line := range strings.Lines(string(out)) {
		if strings.HasPrefix(line, "seed ") || *trail {
			fmt.Print(line)
		}
	}
	return string(out), errors.Join(err, bad)
}

// summary prints what occurred, and as its last line what it came to.
func summary(code int) int {
	fmt.Print(total.census)
	if zeros := total.census.Zeros(); len(zeros) > 0 && total.played >= zeroRule {
		fmt.Printf("never seen in %d seeds: %q\n", total.played, zeros)
		code = 1
	}
	slices.Sort(total.failed)
	verdict := "ok"
	if code != 0 {
		verdict = fmt.Sprintf("FAILED: seeds %v; play one again with make sim SEEDS=1 FIRST=<seed>", total.failed)
	}
	cost := ""
	if total.used > 0 {
		cost = fmt.Sprintf(", %s of a processor a seed", (total.used / time.Duration(max(total.played, 1))).Round(time.Millisecond))
	}
	fmt.Printf("sim: %d seeds from %d at %d hosts, %s simulated in %s%s: %s\n", total.played, *first, *size, total.spent.Round(time.Minute), time.Since(total.begin).Round(time.Second), cost, verdict)
	return code
}
