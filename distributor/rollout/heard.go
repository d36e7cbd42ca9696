package rollout

import (
	"fmt"
	"slices"

	"github.com/muster-config/muster/distributor/manifest"
)

// neverHeard is told and passed over by a person's resume like a gate, and then for the whole rollout: too many expected hosts were never heard.
const neverHeard = "never_heard"

// neverHeard says that so many expected hosts were never heard here that nothing goes forward. Who looks at a part of the hosts only takes waves and steps for smaller than they are: a threshold
// tells the others too.
func (s *step) neverHeard() string {
	c := &s.count
	n := len(c.missing)
	if n <= max(1, c.expected/10) || slices.Contains(s.prev.Rollout.Skipped, neverHeard) {
		return ""
	}
	return fmt.Sprintf("%d of %d expected hosts were never heard here (%s): start their agents, or `muster hosts retire` those that are gone", n, c.expected, some(c.missing))
}

// waitsForHosts says that nothing goes forward for want of hosts that were heard.
func (s *step) waitsForHosts() bool {
	why := s.neverHeard()
	if why != "" {
		s.stop("nothing goes forward: %s", why)
	}
	return why != ""
}

func (s *step) neverHeardOf(why string) manifest.GateVerdict {
	r := &s.prev.Rollout
	return manifest.GateVerdict{Gate: neverHeard, Wave: r.Wave, Outcome: manifest.OutcomeInconclusive, Why: why, From: r.Since, To: s.now.UTC()}
}

// neverHeardBefore holds the next rollout before it begins, when hosts had the time of a wave to be heard; it ends by itself when they are.
func (s *step) neverHeardBefore() bool {
	r := &s.prev.Rollout
	held := r.Phase == manifest.PhasePaused && r.Pause != nil && r.Pause.By == Muster && r.Pause.Halt == "" && slices.ContainsFunc(r.Verdicts, func(v manifest.GateVerdict) bool { return v.Gate == neverHeard })
	why := s.neverHeard()
	if held && (why != "" || s.seen.Settling != "") {
		s.wait = stopped(*r, s.in.Cohort, s.now)
		return true
	}
	since := r.Since
	if made := s.in.Release.Created; made.After(since) {
		since = made
	}
	limit := duration(s.policy.Timeout)
	if why == "" || s.seen.Settling != "" || len(s.count.hosts) == 0 || limit == 0 || s.now.Sub(since) < limit {
		return false
	}
	s.resting([]manifest.GateVerdict{s.neverHeardOf(why)})
	s.notBegun(text("epoch %d does not begin: %s", s.part.Epoch, why), "")
	return true
}
