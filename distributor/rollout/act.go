package rollout

import (
	"errors"
	"fmt"
	"slices"
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
	Hold      ActionKind = "hold"     // named hosts stay at what they run, or at To, until Until
	Unhold    ActionKind = "unhold"   // named hosts are let go
	Rollback  ActionKind = "rollback" // every host goes back to the baseline, or to To; the cohort is halted
)

// Action is what a person asks, who and why.
type Action struct {
	Kind  ActionKind
	By    string
	Why   string
	Wave  int        // approve: which; 0: the one that waits
	Epoch uint64     // 0, or the target that the person looked at: another one refuses
	Until *time.Time // freeze, hold: its end, required

	Hosts         []string          // hold, unhold
	To            uint64            // rollback: the epoch, 0: the baseline; hold: the epoch, 0: what each host runs
	Runs          map[string]uint64 // hold: what the hosts run, as an observer says; nil: nobody looks, and what the head leads them to counts
	Now           bool              // rollback: all hosts at once
	DropOverrides bool              // rollback: overrides are taken from their hosts as well
	Aborted       bool              // resume: also what another person aborted or rolled back
}

// ErrUnfit refuses an action that does not fit where the rollout stands: an approval of what was rolled back, say. The error says where it stands.
var ErrUnfit = errors.New("does not fit the rollout")

// Act makes the order that does what a person asks. Not changed: it is so already; said tells that in a sentence in either case.
// Pure, like Next; who calls it puts the result in place with Apply.
func Act(in Input, a Action, now time.Time) (m manifest.Manifest, said string, changed bool, err error) {
	if in.Prev == nil {
		return m, "", false, fmt.Errorf("%s: %w: nothing is assigned to cohort %s yet", a.Kind, ErrUnfit, in.Cohort)
	}
	d := &act{in: in, Action: a, now: now, prev: &in.Prev.Manifest, m: successor(in)}
	do, ok := map[ActionKind]func() error{
		Pause: d.pause, Resume: d.resume, Approve: d.approve, Abort: d.abort, Supersede: d.supersede, Refresh: d.refresh, Freeze: d.freeze, Unfreeze: d.unfreeze,
		Hold: d.hold, Unhold: d.unhold, Rollback: d.rollback,
	}[a.Kind]
	r := &d.prev.Rollout
	switch {
	case !ok:
		return m, "", false, fmt.Errorf("%.40q is nothing that can be done with a rollout: %w", string(a.Kind), ErrUnfit)
	case a.By == "":
		return m, "", false, fmt.Errorf("%s cohort %s: %w: say who does it", a.Kind, in.Cohort, ErrUnfit)
	case a.Epoch != 0 && a.Epoch != r.Target && a.Kind == Supersede:
		return m, "", false, d.unfit("the epoch to name is the one under way, whose place is taken: that is epoch %d, not %d", r.Target, a.Epoch)
	case a.Epoch != 0 && a.Epoch != r.Target:
		return m, "", false, d.unfit("its target is epoch %d by now, not %d: look again", r.Target, a.Epoch)
	}
	if err := do(); err != nil {
		return manifest.Manifest{}, "", false, err
	}
	if !d.changed {
		return manifest.Manifest{}, d.said, false, nil
	}
	stamp(&d.m, now)
	return d.m, d.said, true, nil
}

// act is one call of Act.
type act struct {
	Action
	in      Input
	now     time.Time
	prev    *manifest.Manifest
	m       manifest.Manifest
	said    string
	changed bool
}

// do says what was done, and notes who did it in the order.
func (d *act) do(format string, args ...any) {
	r := &d.m.Rollout
	d.said = fmt.Sprintf(format, args...)
	r.By, r.Why = d.By, text("%s by %s%s", d.said, d.By, orNothing(": ", d.Why))
	d.changed = true
}

// already says that it is so.
func (d *act) already(format string, args ...any) error {
	d.said = fmt.Sprintf(format, args...)
	return nil
}

func (d *act) unfit(format string, args ...any) error {
	return fmt.Errorf("%s cohort %s: %w: %s", d.Kind, d.in.Cohort, ErrUnfit, fmt.Sprintf(format, args...))
}

// stands says where the rollout stands, as the end of a refusal.
func (d *act) stands() string { return Stands(&d.prev.Rollout) }

func (d *act) stop() manifest.Stop {
	return manifest.Stop{By: d.By, Why: text("%s", d.Why), Since: d.now.UTC()}
}

func (d *act) pause() error {
	r := &d.m.Rollout
	switch {
	case r.Phase == manifest.PhasePaused && r.Was != manifest.PhaseDone:
		if p := r.Pause; p != nil && (p.By != Muster || p.Halt == "") {
			return d.already("is paused already, by %s since %s%s", p.By, p.Since.UTC().Format(time.RFC3339), orNothing(": ", p.Why))
		}
	case r.Phase == manifest.PhaseRollingBack, r.Phase == manifest.PhaseHalted, !underWay(d.prev):
		return d.unfit("%s; a pause stops a rollout under way, `muster freeze %s --until 48h --reason …` stops those to come", d.stands(), d.in.Cohort)
	default:
		r.Was = r.Phase
	}
	if r.Was == manifest.PhaseDone || r.Was == manifest.PhaseIdle {
		r.Was = manifest.PhaseAdvancing
	}
	stop := d.stop()
	r.Phase, r.Pause = manifest.PhasePaused, &stop
	d.do("epoch %d paused at %s", r.Target, waveName(&r.Policy, r.Wave))
	return nil
}

func (d *act) resume() error {
	r := &d.m.Rollout
	switch {
	case r.Phase == manifest.PhasePaused:
		d.resumePaused()
	case r.Phase == manifest.PhaseHalted:
		if h := d.anothers(); h != nil && !d.Aborted {
			return d.unfit("epoch %d was %s by %s at %s, and that is not yours to end by the way: ask, then add --aborted", h.Epoch, h.Why, h.By, h.Since.UTC().Format(time.RFC3339))
		}
		d.resumeHalted()
	case r.Phase == manifest.PhaseRollingBack && len(r.Halts) == 0:
		return d.already("nothing is halted: %s", d.stands())
	case r.Phase == manifest.PhaseRollingBack:
		return d.unfit("%s; resume it when it is there", d.stands())
	default:
		return d.already("nothing is paused or halted: %s", d.stands())
	}
	return nil
}

// anothers is a halt that another person made, by an abort or a rollback.
func (d *act) anothers() *manifest.Stop {
	for i, h := range slices.Backward(d.prev.Rollout.Halts) {
		if h.By != Muster && h.By != Restorer && h.By != d.By {
			return &d.prev.Rollout.Halts[i]
		}
	}
	return nil
}

func (d *act) resumePaused() {
	r := &d.m.Rollout
	if p := r.Pause; p != nil && p.By == Muster {
		if p.Halt != "" {
			r.Ignored = append(slices.Clone(r.Ignored), p.Halt)
			r.Ignored = r.Ignored[max(0, len(r.Ignored)-100):]
		} else {
			r.Skipped = slices.Clone(r.Skipped)
			for _, v := range r.Verdicts {
				if v.Outcome != manifest.OutcomePass && v.Outcome != manifest.OutcomeFail && !slices.Contains(r.Skipped, v.Gate) {
					r.Skipped = append(r.Skipped, v.Gate)
				}
			}
		}
	}
	notBegun := r.Was == manifest.PhaseDone
	goOn(r, d.now)
	switch {
	case notBegun:
		d.do("what held the next release back is passed over")
	case len(r.Skipped) > 0:
		d.do("epoch %d resumed at %s, passing over what was inconclusive there", r.Target, waveName(&r.Policy, r.Wave))
	default:
		d.do("epoch %d resumed at %s", r.Target, waveName(&r.Policy, r.Wave))
	}
}

// resumeHalted ends a halt. The release starts again from its first wave, or a newer one takes its place.
func (d *act) resumeHalted() {
	r := &d.m.Rollout
	target, newest := r.Target, d.in.Release.Cohorts[d.in.Cohort].Epoch
	r.Halts, r.Since, r.Verdicts, r.Skipped, r.Extended, r.Approved = nil, d.now.UTC(), nil, nil, 0, nil
	switch {
	case everywhere(d.prev, r.Baseline):
		r.Phase, r.Target, r.Wave, r.Told, r.Started = manifest.PhaseDone, r.Baseline, 0, 0, nil
		d.do("the halt of epoch %d ended, epoch %d begins from wave 1", target, max(target, newest))
	case newest > target:
		r.Phase = manifest.PhaseRollingBack
		d.do("the halt of epoch %d ended, hosts go back to epoch %d, then epoch %d begins", target, r.Baseline, newest)
	default:
		began := d.now.UTC()
		r.Phase, r.Wave, r.Started = manifest.PhaseAdvancing, 1, &began
		d.do("the halt of epoch %d ended, it begins again from wave 1", target)
	}
}

func (d *act) approve() error {
	r := &d.m.Rollout
	waits := r.Phase == manifest.PhaseAwaitingApproval || r.Phase == manifest.PhasePaused && r.Was == manifest.PhaseAwaitingApproval
	wave := d.Wave
	switch {
	case !underWay(d.prev):
		return d.unfit("%s", d.stands())
	case wave == 0 && (waits || slices.Contains(r.Approved, r.Wave)):
		wave = r.Wave
	case wave == 0:
		return d.unfit("no wave waits for approval: %s; --wave N approves one ahead", d.stands())
	}
	switch {
	case wave < 1 || wave > len(r.Policy.Waves):
		return d.unfit("there is no wave %d, it has %d", wave, len(r.Policy.Waves))
	case slices.Contains(r.Approved, wave):
		return d.already("wave %d of epoch %d is approved already", wave, r.Target)
	case !slices.Contains(r.Policy.ApproveBefore, wave):
		return d.unfit("wave %d wants no approval: %s", wave, d.stands())
	case wave < r.Wave || wave == r.Wave && !waits:
		return d.unfit("wave %d began already: %s", wave, d.stands())
	}
	r.Approved = append(slices.Clone(r.Approved), wave)
	slices.Sort(r.Approved)
	d.do("wave %d of epoch %d approved", wave, r.Target)
	return nil
}

func (d *act) abort() error {
	r := &d.m.Rollout
	back := everywhere(d.prev, baselineOf(r))
	switch {
	case r.Phase == manifest.PhaseHalted && back:
		return d.already("epoch %d was taken back already: %s", r.Target, d.stands())
	case r.Phase == manifest.PhaseRollingBack && len(r.Halts) > 0:
		return d.already("epoch %d goes back already: %s", r.Target, d.stands())
	case r.Phase == manifest.PhaseRollingBack, r.Phase == manifest.PhaseHalted, underWay(d.prev), r.Phase == manifest.PhaseDone && r.Fallback != 0:
	default:
		return d.unfit("nothing is under way: %s", d.stands())
	}
	halt := d.stop()
	halt.Epoch, halt.Why = r.Target, text("aborted%s", orNothing(": ", d.Why))
	r.Halts = halts(r.Halts, halt)
	returnsTo(r)
	r.Phase, r.Since = manifest.PhaseRollingBack, d.now.UTC()
	d.do("epoch %d aborted, hosts go back to epoch %d%s", r.Target, r.Baseline, without(d.in.Prev, r.Baseline, d.now))
	return nil
}

func (d *act) supersede() error {
	r := &d.m.Rollout
	newest := d.in.Release.Cohorts[d.in.Cohort].Epoch
	switch {
	case r.Phase == manifest.PhaseRollingBack && len(r.Halts) == 0:
		return d.already("epoch %d goes back already, then epoch %d begins", r.Target, newest)
	case r.Phase == manifest.PhaseRollingBack || r.Phase == manifest.PhaseHalted:
		return d.unfit("%s; `muster rollout resume %s --reason …` ends the halt", d.stands(), d.in.Cohort)
	case newest <= r.Target:
		return d.unfit("there is no newer release for it than epoch %d", r.Target)
	case r.Phase == manifest.PhaseDone && r.Fallback != 0:
		r.Fallback, r.Wave, r.Started = 0, 0, nil
		d.do("epoch %d is watched no longer, epoch %d begins", r.Target, newest)
		return nil
	case !underWay(d.prev):
		return d.already("nothing is under way, epoch %d begins by itself: %s", newest, d.stands())
	}
	target := r.Target
	returnsTo(r)
	r.Phase, r.Since = manifest.PhaseRollingBack, d.now.UTC()
	d.do("epoch %d goes back to epoch %d, then epoch %d begins%s", target, r.Baseline, newest, without(d.in.Prev, r.Baseline, d.now))
	return nil
}

func (d *act) refresh() error {
	if d.prev.Issued.Equal(d.now.UTC().Truncate(time.Second)) && d.prev.Era >= d.in.Era {
		return d.already("the order was signed just now")
	}
	d.said, d.changed = "the order is signed anew, and good for another "+manifest.MaxFreshFor.String(), true
	return nil
}

func (d *act) freeze() error {
	r := &d.m.Rollout
	switch {
	case d.Until == nil || !d.Until.After(d.now):
		return d.unfit("a freeze needs an end that is to come")
	case d.Why == "":
		return d.unfit("a freeze needs a reason")
	}
	until := d.Until.UTC()
	stop := d.stop()
	stop.Until = &until
	r.Freezes = living(r.Freezes, d.now) // the new one ends later than those that are over
	for _, f := range r.Freezes {
		if f.By == stop.By && f.Why == stop.Why && f.Until != nil && f.Until.Equal(until) {
			return d.already("is frozen like that already")
		}
	}
	if len(r.Freezes) >= manifest.MaxStops {
		return d.unfit("%d freezes are in force, and no more fit; `muster unfreeze %s --reason …` ends them all", len(r.Freezes), d.in.Cohort)
	}
	r.Freezes = append(r.Freezes, stop)
	d.said, d.changed = fmt.Sprintf("frozen until %s: nothing moves forward, going back does", until.Format(time.RFC3339)), true
	return nil
}

func (d *act) unfreeze() error {
	r := &d.m.Rollout
	if frozen(r, d.now) == nil {
		return d.already("is not frozen")
	}
	// Those that ended by themselves stay for the time of the wave, as does what is left of these.
	r.Freezes = slices.DeleteFunc(slices.Clone(r.Freezes), func(f manifest.Stop) bool { return !past(f.Until, d.now) })
	if r.Phase == manifest.PhaseAdvancing {
		r.Since = d.now.UTC()
	}
	d.do("frozen no longer")
	return nil
}

// Stands says in a few words where a rollout stands.
func Stands(r *manifest.Rollout) string {
	at := waveName(&r.Policy, r.Wave)
	switch r.Phase {
	case manifest.PhaseDone:
		if r.Fallback != 0 {
			return fmt.Sprintf("epoch %d is done, and watched", r.Target)
		}
		return fmt.Sprintf("epoch %d is done", r.Target)
	case manifest.PhaseRollingBack:
		return fmt.Sprintf("epoch %d goes back to epoch %d since %s: %s", r.Target, r.Baseline, r.Since.UTC().Format(time.RFC3339), r.Why)
	case manifest.PhaseHalted:
		return fmt.Sprintf("epoch %d is halted since %s: %s", r.Target, r.Since.UTC().Format(time.RFC3339), r.Why)
	case manifest.PhasePaused:
		if r.Was == manifest.PhaseDone {
			return r.Why
		}
		return fmt.Sprintf("epoch %d is paused at %s", r.Target, at)
	case manifest.PhaseAwaitingApproval:
		return fmt.Sprintf("epoch %d waits for the approval of %s", r.Target, at)
	}
	return fmt.Sprintf("epoch %d is %s %s", r.Target, r.Phase, at)
}
