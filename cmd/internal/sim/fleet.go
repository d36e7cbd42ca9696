package sim

import (
	"time"

	"github.com/muster-config/muster/distributor/manifest"
)

// fleet is one cohort: its hosts, the head that is stored, and what is remembered of former ones to judge the next by.
type fleet struct {
	w     *World
	name  string
	order int
	hosts []*host

	// Under w.mu.
	trust  manifest.TrustState
	head   *manifest.View
	raw    []byte
	before []byte                    // the head before: what a stale read gives
	views  map[string]*manifest.View // by the stored bytes
	wrote  time.Time
	orders int

	first    *manifest.VerifiedStatement // of its first head
	begun    time.Time                   // when the first head was written
	waves    map[waveKey]*waveTimes      // of each wave of each rollout
	fallen   map[uint64]time.Time        // releases that failed or were aborted here, and that nobody resumed
	stopped  time.Time                   // when a pause, freeze or failure last stood
	recent   []*manifest.View            // heads of the last while, oldest first
	recentAt []time.Time                 // when each was written
}

type waveKey struct {
	epoch uint64
	wave  int
}

// waveTimes is when a wave was first told, and when its bake began.
type waveTimes struct{ told, baked time.Time }

func newFleet(w *World, name string, order int) *fleet {
	f := &fleet{w: w, name: name, order: order, views: map[string]*manifest.View{}, waves: map[waveKey]*waveTimes{}, fallen: map[uint64]time.Time{}}
	var err error
	f.trust, err = manifest.NewTrust(repo, w.keyring)
	w.must(err)
	return f
}

// view is a stored head, as it was verified when it was written.
func (f *fleet) view(data []byte) *manifest.View {
	f.w.mu.Lock()
	defer f.w.mu.Unlock()
	return f.views[string(data)]
}

func (w *World) fleet(cohort string) *fleet {
	for _, f := range w.cohorts {
		if f.name == cohort {
			return f
		}
	}
	return nil
}

// now is the head that stands; nil before the first.
func (f *fleet) now() *manifest.View {
	f.w.mu.Lock()
	defer f.w.mu.Unlock()
	return f.head
}

// wave is what is remembered of one. Under w.mu.
func (f *fleet) wave(epoch uint64, n int) *waveTimes {
	k := waveKey{epoch, n}
	if f.waves[k] == nil {
		f.waves[k] = &waveTimes{}
	}
	return f.waves[k]
}
