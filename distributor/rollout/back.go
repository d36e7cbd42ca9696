package rollout

import (
	"cmp"
	"math"
	"slices"

	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/verdict"
)

// returning is a host that goes back to the baseline, by its place on the ring; h is nil for one that was never heard: it may run the target.
type returning struct {
	point uint64
	h     *one
}

// goBackSteps makes the assignments that send as many more hosts back to the baseline as there are places free. It says whether any changed.
func (s *step) goBackSteps() bool {
	r := &s.m.Rollout
	limit := s.limit(len(s.count.hosts))
	places := s.count.busy
	if places > limit {
		return false // as in tell: who looks at the hosts is blind, and in a moment nothing is done at all
	}
	ready, first := s.tried()
	if !ready && !first {
		return false
	}
	rest := s.forwardPart()
	places = min(limit, places+s.unsure(rest))
	left := s.toReturn()
	// Who is not heard of yet may run the target: it stays where it is until more is known.
	end := uint64(math.MaxUint64)
	for _, name := range s.count.unheard {
		end = min(end, manifest.Point(saltOf(s.prev), name))
	}
	more, cost := 0, 0
	for _, x := range left {
		if x.point >= end {
			break
		}
		moves := x.h == nil || x.h.Running != r.Baseline && !x.h.busy && x.h.Verdict != verdict.Observing
		if moves && places+cost >= limit {
			break
		}
		if moves {
			cost++
		}
		more++
		if first && x.h != nil && s.canTry(x.h) && (x.h.busy || x.h.Running != r.Baseline) {
			break
		}
	}
	complete := more == len(left) && len(s.count.unheard) == 0
	if len(rest) == 0 || !complete && more == 0 {
		return false
	}
	if !complete && !first && cost > 0 && cost < batch(limit) && places > 0 {
		return false
	}
	s.m.Assign = append(s.holds(), manifest.Assignment{Epoch: r.Baseline, Why: "back"})
	if !complete {
		z := after(left[more-1].point)
		s.m.Assign = append(append(s.holds(), manifest.Assignment{Below: hex(z), Salt: saltOf(s.prev), Epoch: r.Baseline, Why: "back"}), rest...)
	}
	r.Trial = r.Trial && !ready
	s.counted(0)
	return true
}

// toReturn are the hosts that were not sent back yet, by their place on the ring.
func (s *step) toReturn() (left []returning) {
	for i := range s.count.hosts {
		if h := &s.count.hosts[i]; h.at != s.m.Rollout.Baseline {
			left = append(left, returning{h.point, h})
		}
	}
	for _, name := range s.count.missing {
		if s.seen.Settling == "" && s.mayLead(s.prev.Assign, name) {
			left = append(left, returning{manifest.Point(saltOf(s.prev), name), nil})
		}
	}
	slices.SortStableFunc(left, func(a, b returning) int { return cmp.Compare(a.point, b.point) })
	return left
}

// mayLead says whether assignments may lead a host of unknown labels elsewhere than to the baseline.
func (s *step) mayLead(list []manifest.Assignment, name string) bool {
	for i := range list {
		switch a := &list[i]; {
		case len(a.Hosts) > 0 || past(a.Until, s.now):
		case a.Below != "":
			if under(a, name) {
				return a.Epoch != s.m.Rollout.Baseline
			}
		case len(a.Match) > 0:
			if a.Epoch != s.m.Rollout.Baseline {
				return true
			}
		default:
			return a.Epoch != s.m.Rollout.Baseline
		}
	}
	return false
}

// unsure is how many hosts that were never heard may be on their way back: those that the order of less than a minute ago may have sent. Nobody will say when they are there.
func (s *step) unsure(rest []manifest.Assignment) (n int) {
	if s.seen.Settling != "" || !s.now.Before(s.prev.Issued.Add(endingStep)) || s.prev.Rollout.Phase != manifest.PhaseRollingBack {
		return 0
	}
	for _, name := range s.count.missing {
		if !s.mayLead(s.prev.Assign, name) && s.mayLead(rest, name) {
			n++
		}
	}
	return n
}

// forwardPart are the assignments that lead hosts to the target: without holds, and without the way back in front of them. None: everybody was sent back.
func (s *step) forwardPart() (list []manifest.Assignment) {
	r := &s.m.Rollout
	for _, a := range s.prev.Assign {
		if len(a.Hosts) == 0 {
			list = append(list, a)
		}
	}
	if len(list) > 0 && list[0].Epoch == r.Baseline {
		list = list[1:] // the way back, or that everybody was
	}
	if !slices.ContainsFunc(list, func(a manifest.Assignment) bool { return a.Epoch != r.Baseline }) {
		return nil
	}
	return list
}
