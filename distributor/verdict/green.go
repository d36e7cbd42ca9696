package verdict

import (
	"fmt"
	"slices"
	"time"

	"github.com/muster-config/muster/distributor/manifest"
)

// IsGreen judges one cohort for one release. It never says green while an expected host is neither confirmed nor owed, and never for a cohort without a
// confirmed host.
func IsGreen(in GreenInput) Green {
	g := Green{OwedHosts: []Waiting{}, Waiting: []Waiting{}}
	if in.State == manifest.StateBlocked {
		g.Never = true
		g.Why = clean(fmt.Sprintf("cohort %s is blocked in release %d: %s", in.Cohort, in.Epoch, orUnsaid(in.Reason)))
		return g
	}
	never := replaced(in)
	if never == "" {
		never = stopped(in)
	}
	unread := in.unread()
	for _, h := range in.Hosts {
		if !h.Input.Expected || h.Input.Retired {
			continue // not of the inventory: the verdict says so, and it holds nothing up
		}
		v := h.Verdict
		w := Waiting{Host: h.Input.Host, Verdict: v.Code, Why: v.Why}
		switch {
		case v.Code == Confirmed && in.good(v.Desired) && v.Running == v.Desired:
			g.Confirmed++
			continue
		case v.Code == Silent && !in.Strict && in.owes(h.Input):
			g.Owed++
			g.OwedHosts = append(g.OwedHosts, w)
			continue
		case v.Code == Confirmed:
			w.Why = clean(fmt.Sprintf("is assigned epoch %d, and runs it; %s", v.Desired, notAssigned(in)))
		case v.Code == Held && never == "":
			never = fmt.Sprintf("host %s is held: %s", w.Host, v.Why)
		case (v.Code == RolledBack || v.Code == Failed) && h.Input.Report != nil && in.good(h.Input.Report.Attempted) && never == "":
			never = fmt.Sprintf("host %s %s: %s", w.Host, wentBack(v.Code), v.Why)
		}
		g.Waiting = append(g.Waiting, w)
	}
	byHost := func(a, b Waiting) int {
		if a.Host < b.Host {
			return -1
		}
		return 1
	}
	slices.SortFunc(g.Waiting, byHost)
	slices.SortFunc(g.OwedHosts, byHost)
	total := g.Confirmed + g.Owed + len(g.Waiting)
	if never == "" && total == 0 && in.Short == 0 && in.Uncounted == "" {
		never = fmt.Sprintf("cohort %s has no hosts: nobody can confirm release %d; name them in the fleet's hosts.list", in.Cohort, in.Epoch)
	}
	if never == "" && in.Uncounted != "" && !in.Unlisted {
		never = in.Uncounted
	}
	tally := number(g.Confirmed) + " confirmed"
	if g.Owed > 0 {
		tally += fmt.Sprintf(", %s owed (silent since before the release was published)", number(g.Owed))
	}
	switch {
	case never != "":
		g.Never, g.Why = true, never
	case in.View == nil:
		g.Why = notAssigned(in)
	case unread != 0:
		g.Why = fmt.Sprintf("release %d, whose statement the head of cohort %s carries, cannot be read: check the store with muster fsck", unread, in.Cohort)
	case in.Uncounted != "":
		g.Why = in.Uncounted
	case len(g.Waiting) > 0:
		first := g.Waiting[0]
		g.Why = fmt.Sprintf("%s, %s of %s not: %s %s: %s", tally, number(len(g.Waiting)), count(total, "host"), first.Host, first.Verdict, first.Why)
	case in.Short > 0:
		g.Why = fmt.Sprintf("%s; cohort %s expects %s more that nobody has heard of", tally, in.Cohort, count(in.Short, "host"))
	case in.Over > 0:
		g.Why = fmt.Sprintf("%s, but cohort %s has %s more than hosts.expect allows: raise it, or `muster hosts retire` those that are gone", tally, in.Cohort, count(in.Over, "host"))
	case (len(in.View.Manifest.Rollout.Halts) > 0 || in.View.Manifest.Rollout.Phase == manifest.PhaseRollingBack) && !in.backAt():
		g.Why = fmt.Sprintf("%s, but %s", tally, notAssigned(in)) // see correction
	case g.Confirmed == 0:
		g.Why = tally + ": no host of the cohort is there to confirm it"
	default:
		g.Green, g.Why = true, tally
	}
	g.Why = clean(g.Why)
	return g
}

// owes says whether a host fell silent before the release was published. One that knew the release did not, whatever the clocks say: it may have been the release
// that silenced it.
func (in GreenInput) owes(h Input) bool {
	r := h.Report
	return r != nil && max(r.Desired, r.Attempted, r.Running) < in.Epoch && !h.silentSince().After(in.Published)
}

// good says whether an epoch is as good as the release asked for.
func (in GreenInput) good(epoch uint64) bool {
	return epoch != 0 && (epoch == in.Standing || in.Accept[epoch])
}

// carried are the plain statements in the head that would count for the release asked for.
func (in GreenInput) carried(yield func(st *manifest.VerifiedStatement) bool) {
	if in.View == nil {
		return
	}
	for i := range in.View.Statements {
		if st := &in.View.Statements[i]; st.Override == "" && in.good(st.Epoch) && !yield(st) {
			return
		}
	}
}

// replaced says which number stands for two things, or "". A store that lost a release may give its number out again, and hosts that run the lost one would seem to
// confirm the new one.
func replaced(in GreenInput) string {
	for _, epoch := range []uint64{in.Epoch, in.Standing} {
		if in.Replaced[epoch] {
			return again(epoch)
		}
	}
	for st := range in.carried {
		if known := in.Statements[st.Epoch]; known != "" && known != st.Digest {
			return fmt.Sprintf("the head of cohort %s carries another statement of epoch %d than release %d; check the store with muster fsck", in.Cohort, st.Epoch, st.Epoch)
		}
		if in.Replaced[st.Epoch] {
			return again(st.Epoch)
		}
	}
	return ""
}

func again(epoch uint64) string {
	return fmt.Sprintf("the store holds another release %d than it did before; check the store with muster fsck", epoch)
}

// unread is the epoch of a statement in the head that no release could be compared with, or 0.
func (in GreenInput) unread() uint64 {
	for st := range in.carried {
		if in.Statements[st.Epoch] == "" {
			return st.Epoch
		}
	}
	return 0
}

func wentBack(c Code) string {
	if c == Failed {
		return "failed"
	}
	return "rolled back"
}

// endHalt is the next step after a halt.
func endHalt(cohort string) string {
	return fmt.Sprintf("git revert and publish what failed, or `muster rollout resume %s --reason …`; `muster rollout status %s` says more", cohort, cohort)
}

// stopped says why a cohort will not get there by waiting, or "".
func stopped(in GreenInput) string {
	if in.View == nil {
		return ""
	}
	r := &in.View.Manifest.Rollout
	switch {
	case len(r.Halts) > 0:
		h := r.Halts[len(r.Halts)-1]
		if in.correction(h.Epoch) || in.backAt() {
			return ""
		}
		return fmt.Sprintf("cohort %s is halted by %s since %s: %s; %s", in.Cohort, h.By, h.Since.UTC().Format("2006-01-02T15:04:05Z07:00"), orUnsaid(h.Why), endHalt(in.Cohort))
	case r.Phase == manifest.PhaseHalted && !in.backAt():
		return fmt.Sprintf("cohort %s is halted: %s; %s", in.Cohort, orUnsaid(r.Why), endHalt(in.Cohort))
	case r.Phase == manifest.PhaseRollingBack && !in.correction(r.Target):
		return fmt.Sprintf("cohort %s is rolling back to epoch %d: %s; %s", in.Cohort, r.Baseline, orUnsaid(r.Why), endHalt(in.Cohort))
	}
	return ""
}

// backAt says that the cohort is halted for other releases than the one asked for, which every host is assigned again: the halt says nothing against that one. A later
// release that failed is no reason against it either, though it would count for it where it ran; no host may be led to it.
func (in GreenInput) backAt() bool {
	r := &in.View.Manifest.Rollout
	if r.Phase != manifest.PhaseHalted || len(r.Halts) == 0 {
		return false
	}
	failed := map[uint64]bool{}
	for _, h := range r.Halts {
		if h.Epoch == 0 || h.Epoch == in.Epoch || h.Epoch == in.Standing {
			return false
		}
		failed[h.Epoch] = true
	}
	for _, a := range in.View.Manifest.Assign {
		if !in.good(a.Epoch) || failed[a.Epoch] {
			return false
		}
	}
	return len(in.View.Manifest.Assign) > 0
}

// correctionTime is how long a controller has to see whether a release corrects what a cohort is halted for.
const correctionTime = 30 * time.Second

// correction says whether the release asked for came after the one that failed, and so lately that it may yet end the halt: a revert does.
func (in GreenInput) correction(failed uint64) bool {
	return failed != 0 && in.Standing > failed && in.Now.Sub(in.Published) < correctionTime
}

// notAssigned says why the head does not assign the release yet.
func notAssigned(in GreenInput) string {
	if in.View == nil {
		return fmt.Sprintf("release %d is published, but nothing is assigned to cohort %s yet: a rollout controller does it, or `muster publish --rollout=now`", in.Epoch, in.Cohort)
	}
	r := &in.View.Manifest.Rollout
	text := fmt.Sprintf("epoch %d is not assigned to it yet (cohort %s: %s, target %d", in.Standing, in.Cohort, r.Phase, r.Target)
	switch {
	case len(r.Halts) > 0:
		text += fmt.Sprintf(", halted by %s: %s; a release that reverts what failed ends that", r.Halts[len(r.Halts)-1].By, orUnsaid(r.Halts[len(r.Halts)-1].Why))
	case r.Pause != nil:
		text += fmt.Sprintf(", paused by %s: %s; `muster rollout resume %s --reason …` goes on", r.Pause.By, orUnsaid(r.Pause.Why), in.Cohort)
	case len(r.Freezes) > 0:
		text += fmt.Sprintf(", frozen by %s%s: %s; `muster unfreeze %s --reason …` ends it", r.Freezes[0].By, until(r.Freezes[0].Until), orUnsaid(r.Freezes[0].Why), in.Cohort)
	case r.Phase == manifest.PhaseAwaitingApproval:
		text += fmt.Sprintf("; `muster rollout approve %s --reason …` goes on", in.Cohort)
	}
	return text + ")"
}
