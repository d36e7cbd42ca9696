package sim

import (
	"flag"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-config/muster/distributor/chance"
)

var (
	seeds = flag.Int("sim.seeds", 0, "how many seeds to play; 0: as many as a test may take")
	first = flag.Uint64("sim.first", 1, "the first of them")
	size  = flag.Int("sim.hosts", 50, "hosts of each")
	quick = flag.Bool("sim.quick", false, "end after the first seed that fails")
	trail = flag.Bool("sim.trace", false, "print all that happens")
)

// zeroRule is the number of seeds from which on everything must have occurred.
const zeroRule = 500

var total struct {
	mu     sync.Mutex
	census *Census
	played int
	failed []uint64
	spent  time.Duration
	begin  time.Time
}

func TestMain(m *testing.M) {
	flag.Parse()
	chance.Replace(pace)
	remember()
	debug.SetGCPercent(400)
	total.census, total.begin = NewCensus(), time.Now()
	code := m.Run()
	if *seeds > 0 {
		code = summary(code)
	}
	os.Exit(code)
}

// summary prints what occurred, and as its last line what it came to.
func summary(code int) int {
	fmt.Print(total.census)
	if zeros := total.census.Zeros(); len(zeros) > 0 && total.played >= zeroRule {
		fmt.Printf("never seen in %d seeds: %q\n", total.played, zeros)
		code = 1
	}
	verdict := "ok"
	if code != 0 {
		verdict = fmt.Sprintf("FAILED: seeds %v; play one again with make sim SEEDS=1 FIRST=<seed>", total.failed)
	}
	took := time.Since(total.begin)
	fmt.Printf("sim: %d seeds from %d at %d hosts, %s simulated in %s (%s a seed and core): %s\n", total.played, *first, *size, total.spent.Round(time.Minute), took.Round(time.Second),
		(took * time.Duration(runtime.GOMAXPROCS(0)) / time.Duration(max(total.played, 1))).Round(time.Millisecond), verdict)
	return code
}

// TestSeeds plays one seed after the other.
func TestSeeds(t *testing.T) {
	n := *seeds
	if n == 0 {
		n = inTests
	}
	for i := range n {
		seed := *first + uint64(i)
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
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
}

// TestReplay plays seeds twice: the same seed is the same run.
func TestReplay(t *testing.T) {
	for _, seed := range []uint64{3, 4} {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			var a, b Outcome
			hosts := min(*size, 25)
			Run(t, seed, hosts, func(o Outcome) { a = o })
			Run(t, seed, hosts, func(o Outcome) { b = o })
			if a.Trace != b.Trace {
				t.Errorf("seed %d: trace %x and then %x\n%s", seed, a.Trace, b.Trace, cmp.Diff(a.Lines, b.Lines))
			}
		})
	}
}
