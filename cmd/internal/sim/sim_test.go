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

	"github.com/muster-config/muster/distributor/bundle"
	"github.com/muster-config/muster/distributor/chance"
)

var (
	seeds = flag.Int("sim.seeds", 0, "how many seeds to play; 0: as many as a test may take")
	first = flag.Uint64("sim.first", 1, "the first of them")
	size  = flag.Int("sim.hosts", 50, "hosts of each")
	quick = flag.Bool("sim.quick", false, "end after the first seed that fails")
	trail = flag.Bool("sim.trace", false, "print all that happens")
	procs = flag.Int("sim.procs", runtime.NumCPU(), "processes that play at once; 0: this one plays itself")

	toFile = flag.String("sim.result", "", "of a process that plays for another one: where what came of it goes")
)

// zeroRule is the number of seeds from which on everything must have occurred.
const zeroRule = 500

var total struct {
	mu     sync.Mutex
	census *Census
	played int
	failed []uint64
	spent  time.Duration
	used   time.Duration // of processors
	begin  time.Time
}

func TestMain(m *testing.M) {
	flag.Parse()
	chance.Replace(pace)
	bundle.Alone()
	remember()
	debug.SetGCPercent(400)
	total.census, total.begin = NewCensus(), time.Now()
	if *toFile != "" {
		go endWithParent()
	}
	code := m.Run()
	switch {
	case *toFile != "":
		code = hand(*toFile, code)
	case *seeds > 0:
		code = summary(code)
	}
	os.Exit(code)
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
