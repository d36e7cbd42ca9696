package rollout

import (
	"errors"
	"time"

	"github.com/muster-config/muster/distributor/manifest"
)

// ActionKind is what a person asks of a cohort's rollout.
type ActionKind string

// The actions of persons.
const (
	Pause     ActionKind = "pause"     // the rollout under way stops where it is; going back is never stopped
	Resume    ActionKind = "resume"    // ends a pause, passes once over the gates that were inconclusive, ends a halt, passes over a sibling's halt
	Approve   ActionKind = "approve"   // the wave that waits for it, or Wave
	Abort     ActionKind = "abort"     // hosts go back to the baseline, the cohort is halted
	Supersede ActionKind = "supersede" // the newest release takes the place of the one under way now
	Refresh   ActionKind = "refresh"   // the same order, signed anew
	Freeze    ActionKind = "freeze"    // no forward moves until Until
	Unfreeze  ActionKind = "unfreeze"
)

// Action is what a person asks, who and why.
type Action struct {
	Kind  ActionKind
	By    string
	Why   string
	Wave  int        // approve: which; 0: the one that waits
	Epoch uint64     // 0, or the target that the person looked at: another one refuses
	Until *time.Time // freeze: its end, required
}

// ErrUnfit refuses an action that does not fit where the rollout stands: an approval of what was rolled back, say. The error says where it stands.
var ErrUnfit = errors.New("does not fit the rollout")

// Act makes the order that does what a person asks. Not changed: it is so already; said tells that in a sentence in either case.
// Pure, like Next; who calls it puts the result in place with Apply.
func Act(in Input, a Action, now time.Time) (m manifest.Manifest, said string, changed bool, err error) {
	panic("rollout.Act: to be written")
}
