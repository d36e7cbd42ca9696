package verdict

import (
	"fmt"
	"slices"

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
	never := stopped(in)
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
		case v.Code == Silent && !in.Strict && h.Input.Report != nil && !h.Input.silentSince().After(in.Published):
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
	if never == "" && total == 0 && in.Short == 0 {
		never = fmt.Sprintf("cohort %s has no hosts: nobody can confirm release %d; name them in the fleet's hosts.list", in.Cohort, in.Epoch)
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
	case len(g.Waiting) > 0:
		first := g.Waiting[0]
		g.Why = fmt.Sprintf("%s, %s of %s not: %s %s: %s", tally, number(len(g.Waiting)), count(total, "host"), first.Host, first.Verdict, first.Why)
	case in.Short > 0:
		g.Why = fmt.Sprintf("%s; cohort %s expects %s more that nobody has heard of", tally, in.Cohort, count(in.Short, "host"))
	case g.Confirmed == 0:
		g.Why = tally + ": no host of the cohort is there to confirm it"
	default:
		g.Green, g.Why = true, tally
	}
	g.Why = clean(g.Why)
	return g
}

// good says whether an epoch is as good as the release asked for.
func (in GreenInput) good(epoch uint64) bool {
	return epoch != 0 && (epoch == in.Standing || in.Accept[epoch])
}

func wentBack(c Code) string {
	if c == Failed {
		return "failed"
	}
	return "rolled back"
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
		return fmt.Sprintf("cohort %s is halted by %s since %s: %s; revert what failed, or run `muster rollout resume %s`", in.Cohort, h.By, h.Since.UTC().Format("2006-01-02T15:04:05Z07:00"), orUnsaid(h.Why), in.Cohort)
	case r.Phase == manifest.PhaseHalted:
		return fmt.Sprintf("cohort %s is halted: %s; revert what failed, or run `muster rollout resume %s`", in.Cohort, orUnsaid(r.Why), in.Cohort)
	case r.Phase == manifest.PhaseRollingBack:
		return fmt.Sprintf("cohort %s is rolling back to epoch %d: %s", in.Cohort, r.Baseline, orUnsaid(r.Why))
	}
	return ""
}

// notAssigned says why the head does not assign the release yet.
func notAssigned(in GreenInput) string {
	if in.View == nil {
		return fmt.Sprintf("release %d is published, but nothing is assigned to cohort %s yet: `muster publish --rollout=now` does it", in.Epoch, in.Cohort)
	}
	r := &in.View.Manifest.Rollout
	text := fmt.Sprintf("epoch %d is not assigned to it yet (cohort %s: %s, target %d", in.Standing, in.Cohort, r.Phase, r.Target)
	switch {
	case r.Pause != nil:
		text += fmt.Sprintf(", paused by %s: %s", r.Pause.By, r.Pause.Why)
	case len(r.Freezes) > 0:
		text += fmt.Sprintf(", frozen by %s: %s", r.Freezes[0].By, r.Freezes[0].Why)
	}
	return text + ")"
}
