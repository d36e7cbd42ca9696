package delivery

import (
	"fmt"
	"maps"
	"slices"

	"github.com/muster-config/muster/distributor/api"
	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/pipeline/forge"
)

// maxEnds are kept of a cohort.
const maxEnds = 2 * maxActive

// end is how a rollout ended, as it was heard at that time.
type end struct {
	failed bool
	why    string
	done   bool // all its waves are over
}

// ends are kept by cohort and epoch. Of a cohort's rollouts the collector tells the last one alone, and of a release that was taken back it says green as soon as a newer one,
// which contains it, is confirmed.
type ends map[string]map[uint64]end

// note keeps what an event says.
func (k ends) note(e api.Event) {
	of := k[e.Cohort]
	if of == nil {
		of = map[uint64]end{}
		k[e.Cohort] = of
	}
	epoch := e.Target
	if s := e.Rollout; s != nil {
		epoch = s.Target
		for _, good := range []uint64{s.Baseline, s.Fallback} { // only what was done becomes one
			if _, known := of[good]; !known && good != 0 && good != s.Target {
				of[good] = end{done: true}
			}
		}
		for _, h := range s.Halts {
			if h.Epoch != 0 {
				of[h.Epoch] = end{failed: true, why: e.Cohort + " is halted: " + h.Why}
			}
		}
	}
	switch failed, why := (Release{Epoch: epoch}).failed(e.Cohort, e); {
	case epoch == 0:
	case failed:
		of[epoch] = end{failed: true, why: why}
	case e.Phase == manifest.PhaseDone:
		of[epoch] = end{done: true}
	case e.Phase == manifest.PhaseAdvancing || e.Phase == manifest.PhaseBaking:
		delete(of, epoch) // a person has resumed it
	}
	for len(of) > maxEnds {
		delete(of, slices.Min(slices.Collect(maps.Keys(of))))
	}
}

func (k ends) clone() ends {
	out := ends{}
	for name, of := range k {
		out[name] = maps.Clone(of)
	}
	return out
}

// unseen takes back what is told of a release that was there at the start as good by a newer one alone: it may have been taken back while nobody listened.
func (t *tracked) unseen(of map[string]said, kept *said) {
	if !t.missed {
		return
	}
	for env, s := range of {
		if s.state == forge.Success && s.since > 0 {
			s.state, s.text = forge.Inactive, replaced(s.since)
			of[env] = s
		}
	}
	if kept.state == forge.Success && kept.since > 0 {
		kept.state, kept.text = forge.Inactive, "what it keeps was "+replaced(kept.since)
	}
}

// passed reports whether nothing new can be heard: a newer release stands in the place of this one, and there is nothing to take back.
func (t *tracked) passed(of map[string]said, kept said) bool {
	any := false
	for _, s := range slices.AppendSeq([]said{kept}, maps.Values(of)) {
		if s.state == forge.Queued || s.state == forge.InProgress || len(s.backs) > 0 {
			return false
		}
		any = any || s.state == forge.Inactive || s.gone
	}
	return any
}

func replaced(by uint64) string {
	return fmt.Sprintf("replaced by epoch %d; how it ended before that was not heard", by)
}
