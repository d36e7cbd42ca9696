package rollout

import (
	"time"

	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/rollout/gate"
)

// blindFor is how long a controller that cannot ask a gate leaves what rests on that gate to others. When nobody decides in that time, there is no other.
const blindFor = 2 * time.Minute

// unasked are the gates that this controller cannot ask at all: it was not told where.
func unasked(list []manifest.GateVerdict) (found []manifest.GateVerdict) {
	for _, v := range list {
		if v.Outcome == manifest.OutcomeInconclusive && gate.Unasked(v) {
			found = append(found, v)
		}
	}
	return found
}

// leaves says that a decision that is due since a time is left to a controller that can ask the gates.
func (s *step) leaves(blind []manifest.GateVerdict, due time.Time) bool {
	if len(blind) == 0 {
		return false
	}
	if s.prev.Issued.After(due) {
		due = s.prev.Issued
	}
	until := due.Add(blindFor)
	if !s.now.Before(until) {
		return false
	}
	s.stop("%s; another controller may, and else it is paused at %s", sayings(blind), until.UTC().Format(time.RFC3339))
	return true
}
