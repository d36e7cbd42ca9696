package standing

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/muster-config/muster/distributor/api"
	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/rollout"
	"github.com/muster-config/muster/distributor/verdict"
)

// Command is the command line by which a person steers a cohort.
func Command(act, cohort string) string {
	switch act {
	case "freeze":
		return fmt.Sprintf("`muster freeze %s --until TIME --reason …`", cohort)
	case "unfreeze":
		return fmt.Sprintf("`muster unfreeze %s --reason …`", cohort)
	}
	return fmt.Sprintf("`muster rollout %s %s --reason …`", act, cohort)
}

// waits says what the rollout waits for and what ends that, "" if it waits for nothing, and whether a person has let it wait for too long.
func (in Input) waits(out *api.Rollout, told []Host) (text string, overdue bool) {
	r := &in.View.Manifest.Rollout
	long := func(since time.Time) bool { return in.Now.Sub(since) >= api.OverdueAfter }
	switch {
	case len(r.Halts) > 0:
		h := r.Halts[len(r.Halts)-1]
		text = fmt.Sprintf("halted by %s since %s%s; ", h.By, point(h.Since), reason(h.Why))
		if r.Phase == manifest.PhaseRollingBack {
			text += in.back(out) + "; then "
		}
		if r.Phase == manifest.PhaseHalted && strings.Contains(in.Said, rollout.NotRestored) {
			return in.Said, false // the same, and what is left to revert
		}
		return text + "git revert and publish what failed, or " + Command("resume", in.Cohort), false
	case r.Phase == manifest.PhaseHalted:
		return fmt.Sprintf("halted since %s%s; git revert and publish what failed, or %s", point(r.Since), reason(r.Why), Command("resume", in.Cohort)), false
	case r.Phase == manifest.PhaseRollingBack:
		return in.back(out), false
	case r.Pause != nil && (r.Pause.Until == nil || in.Now.Before(*r.Pause.Until)):
		p := r.Pause
		if NotBegun(r) { // there is nothing to go back from
			next := Command("resume", in.Cohort) + " goes on"
			if slices.ContainsFunc(r.Verdicts, func(v manifest.GateVerdict) bool { return v.Outcome == manifest.OutcomeBroken }) {
				next = "publish a release that repairs the gate, or " + Command("resume", in.Cohort) + " begins without it"
			}
			return fmt.Sprintf("paused by %s since %s%s%s; %s", p.By, point(p.Since), until(p.Until), reason(p.Why), next), long(p.Since)
		}
		return fmt.Sprintf("paused at %s by %s since %s%s%s; %s goes on, %s goes back", Step(r), p.By, point(p.Since), until(p.Until), reason(p.Why), Command("resume", in.Cohort), Command("abort", in.Cohort)),
			long(p.Since)
	case r.Phase == manifest.PhasePaused:
		return fmt.Sprintf("paused at %s since %s%s; %s goes on", Step(r), point(r.Since), reason(r.Why), Command("resume", in.Cohort)), long(r.Since)
	case r.Phase == manifest.PhaseAwaitingApproval:
		if slices.Contains(r.Approved, r.Wave) && in.Said != "" {
			return in.Said, false
		}
		return fmt.Sprintf("wave %d of %d waits for a person since %s: %s", r.Wave, len(r.Policy.Waves), point(r.Since), Command("approve", in.Cohort)), long(r.Since)
	}
	if len(out.Freezes) > 0 {
		f := out.Freezes[0]
		return fmt.Sprintf("frozen by %s since %s%s%s; %s", f.By, point(f.Since), until(f.Until), reason(f.Why), Command("unfreeze", in.Cohort)), false
	}
	if in.Said != "" {
		return in.Said, false
	}
	switch r.Phase {
	case manifest.PhaseAdvancing:
		var open []string
		for _, h := range told {
			if h.Verdict != verdict.Confirmed || h.Running != out.Target {
				open = append(open, h.Name+" "+string(h.Verdict))
			}
		}
		if len(open) > 0 {
			return fmt.Sprintf("%d of %d hosts that were told have not confirmed: %s", len(open), len(told), some(open)), false
		}
	case manifest.PhaseBaking:
		for _, v := range verdictsOf(out) {
			if v.Outcome != manifest.OutcomePass {
				return fmt.Sprintf("gate %s is %s: %s", v.Gate, v.Outcome, v.Why), false
			}
		}
		return "the bake is not over", false
	case manifest.PhaseDone:
		if out.Until != nil {
			return fmt.Sprintf("done, and watched until %s: a failure until then goes back to epoch %d", point(*out.Until), r.Fallback), false
		}
		if in.Blocked != "" {
			return "the newest release is blocked for it: " + in.Blocked, false
		}
		if len(in.Queue) > 0 {
			return fmt.Sprintf("epoch %d is released and not begun", in.Queue[len(in.Queue)-1].Epoch), false
		}
	}
	return "", false
}

// NotBegun says whether a cohort is paused while nothing is under way: before its next rollout begins.
func NotBegun(r *manifest.Rollout) bool {
	return r.Phase == manifest.PhasePaused && r.Was == manifest.PhaseDone && r.Fallback == 0
}

// Step names the step at which a rollout stands: "wave 2 of 3, gate errors".
func Step(r *manifest.Rollout) string {
	text := fmt.Sprintf("wave %d of %d", r.Wave, len(r.Policy.Waves))
	switch {
	case r.Wave == 0:
		text = "its beginning"
	case r.Wave > len(r.Policy.Waves):
		text = "its end, while it is watched"
	}
	var gates []string
	for _, v := range r.Verdicts {
		if v.Outcome != manifest.OutcomePass && !slices.Contains(r.Skipped, v.Gate) {
			gates = append(gates, v.Gate)
		}
	}
	if len(gates) > 0 {
		text += ", gate " + strings.Join(gates, ", ")
	}
	return text
}

// back says how far the way back is.
func (in Input) back(out *api.Rollout) string {
	text := fmt.Sprintf("goes back to epoch %d", out.Baseline)
	if in.Hosts != nil {
		text += fmt.Sprintf(", %d hosts are still told to run epoch %d", out.Told, out.Target)
	}
	return text
}

func verdictsOf(out *api.Rollout) (list []manifest.GateVerdict) {
	for _, g := range out.Gates {
		if g.Verdict != nil {
			list = append(list, *g.Verdict)
		}
	}
	return list
}

func point(t time.Time) string { return t.UTC().Format(time.RFC3339) }

func until(t *time.Time) string {
	if t == nil {
		return ""
	}
	return " until " + point(*t)
}

func reason(why string) string {
	if why == "" {
		return ""
	}
	return ": " + why
}

// some names the first of a list.
func some(list []string) string {
	if len(list) > 3 {
		return fmt.Sprintf("%s and %d more", strings.Join(list[:3], ", "), len(list)-3)
	}
	return strings.Join(list, ", ")
}

// Line is one sentence for those who wait for a release: where the rollout stands, and what it waits for; "" for one that is over, or that never began.
func Line(r *api.Rollout) string {
	if r == nil || r.Phase == manifest.PhaseIdle || r.Phase == manifest.PhaseDone && len(r.Queue)+len(r.Freezes) == 0 && r.Fallback == 0 {
		return ""
	}
	if Stopped(r) {
		return r.Waits
	}
	text := fmt.Sprintf("epoch %d is %s", r.Target, r.Phase)
	if n := len(r.Waves); r.Phase != manifest.PhaseDone && r.Wave > 0 && r.Wave <= n {
		text += fmt.Sprintf(", wave %d of %d", r.Wave, n)
	}
	if r.Until != nil && r.Phase == manifest.PhaseBaking {
		text += until(r.Until)
	}
	if r.Waits != "" {
		text += "; " + r.Waits
	}
	return text
}

// Stopped says whether somebody or something stopped the rollout, or a person has to do something for it to go on.
func Stopped(r *api.Rollout) bool {
	if r == nil || r.Waits == "" {
		return false
	}
	switch r.Phase {
	case manifest.PhaseHalted, manifest.PhasePaused, manifest.PhaseAwaitingApproval, manifest.PhaseRollingBack:
		return true
	}
	return len(r.Halts)+len(r.Freezes) > 0 || r.Pause != nil
}
