package rollout

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/muster-config/muster/distributor/manifest"
)

// Decision is what a person or a program decided about a cohort.
type Decision struct {
	Cohort   string
	Mark     manifest.Mark // of the head that says it first
	At       time.Time     // when that head was signed
	What     string        // "epoch 7 to all hosts", "frozen", …
	Epoch    uint64        // the release it is about; 0 for none
	By       string        // "" if the head does not say
	Why      string
	Hosts    []string               // the hosts it is about; empty for the whole cohort
	Until    *time.Time             // its end
	Verdicts []manifest.GateVerdict // of gates, if it rests on them
}

// Decisions says what a head decides that the one before it did not, prev being nil for the first. A head that only renews its date decides nothing.
func Decisions(prev, next *manifest.View) []Decision {
	if prev == nil {
		prev = &manifest.View{}
	}
	d := decisions{next: next}
	was, is := prev.Manifest.Rollout, next.Manifest.Rollout
	d.stops("halted", "the halt ended", was.Halts, is.Halts)
	d.stops("paused", "the pause ended", stopList(was.Pause), stopList(is.Pause))
	d.stops("frozen", "the freeze ended", was.Freezes, is.Freezes)
	d.holds(was.Holds, is.Holds)
	d.overrides(prev.Overrides, next.Overrides)
	d.endings(was.Endings, is.Endings)
	d.approvals(&was, &is)
	d.rollout(prev.Manifest, next.Manifest)
	return d.found
}

type decisions struct {
	next  *manifest.View
	found []Decision
}

func (d *decisions) add(x Decision) {
	x.Cohort, x.Mark, x.At = d.next.Manifest.Cohort, d.next.Mark(), d.next.Manifest.Issued
	d.found = append(d.found, x)
}

// addAt is add for what does not date from when the order was signed: an override takes a new head, and no new order.
func (d *decisions) addAt(at time.Time, x Decision) {
	d.add(x)
	d.found[len(d.found)-1].At = at
}

// rollout tells where the rollout went, if it went anywhere.
func (d *decisions) rollout(a, b manifest.Manifest) {
	was, is := a.Rollout, b.Rollout
	x := Decision{Epoch: is.Target, By: is.By, Why: is.Why}
	same := func(a, b manifest.GateVerdict) bool { return reflect.DeepEqual(a, b) }
	if !slices.EqualFunc(was.Verdicts, is.Verdicts, same) && !slices.EqualFunc(withoutSamples(was.Verdicts), is.Verdicts, same) {
		x.Verdicts = is.Verdicts
	}
	switch {
	case a.Era == 0 && a.Serial == 0, movedOn(a, b):
		x.What = whereStands(&was, &is)
		if x.What == "" && len(d.found) > 0 {
			d.found[0].Verdicts = x.Verdicts // a stop says it already
			return
		}
		x.What = orText(x.What, fmt.Sprintf("epoch %d: %s", is.Target, is.Phase))
	case is.Extended > was.Extended && is.Phase == manifest.PhaseDone:
		x.What = fmt.Sprintf("epoch %d is watched longer", is.Target)
	case is.Extended > was.Extended:
		x.What = fmt.Sprintf("epoch %d: %s bakes longer", is.Target, waveName(&is.Policy, is.Wave))
	case is.Policy.Gates != nil && !samePolicy(was.Policy, is.Policy):
		x.What, x.By, x.Why = fmt.Sprintf("policy %s of release %d for what comes next", is.PolicyName, is.PolicyEpoch), "", ""
	case !slices.Equal(was.Skipped, is.Skipped) && len(is.Skipped) > 0:
		x.What = "passed over: gate " + strings.Join(is.Skipped, ", ")
	default:
		return
	}
	d.add(x)
}

// movedOn reports whether hosts are sent elsewhere, or the rollout stands elsewhere.
func movedOn(a, b manifest.Manifest) bool {
	was, is := a.Rollout, b.Rollout
	if was.Target != is.Target || was.Wave != is.Wave || was.Phase != is.Phase || was.Baseline != is.Baseline || was.Fallback != is.Fallback || a.Era != b.Era {
		return true
	}
	aimed := func(m manifest.Manifest) (list []manifest.Assignment) {
		for _, a := range m.Assign {
			if len(a.Hosts) == 0 { // the others are holds
				a.Why = ""
				list = append(list, a)
			}
		}
		return list
	}
	return !reflect.DeepEqual(aimed(a), aimed(b))
}

// whereStands says where a rollout went. It is "" where a stop says it already.
func whereStands(was, is *manifest.Rollout) string {
	wave := fmt.Sprintf("epoch %d: %s", is.Target, waveName(&is.Policy, is.Wave))
	switch is.Phase {
	case manifest.PhaseDone:
		switch {
		case was.Phase == manifest.PhaseDone && was.Fallback != 0 && is.Fallback == 0 && was.Target == is.Target:
			return fmt.Sprintf("epoch %d is watched no longer", is.Target)
		case was.Phase == manifest.PhaseRollingBack || was.Phase == manifest.PhaseHalted:
			return fmt.Sprintf("epoch %d again on all hosts", is.Target)
		case was.Phase == manifest.PhasePaused && was.Was == manifest.PhaseDone:
			return ""
		}
		return fmt.Sprintf("epoch %d to all hosts", is.Target)
	case manifest.PhaseAdvancing:
		if is.Told > 0 && was.Phase == is.Phase && was.Wave == is.Wave && was.Target == is.Target {
			return fmt.Sprintf("%s, %d hosts told", wave, is.Told)
		}
		return wave
	case manifest.PhaseBaking:
		return wave + " bakes"
	case manifest.PhaseAwaitingApproval:
		return wave + " waits for approval"
	case manifest.PhaseRollingBack:
		if was.Phase == is.Phase {
			if is.Told == 1 {
				return fmt.Sprintf("back to epoch %d, 1 host left", is.Baseline)
			}
			return fmt.Sprintf("back to epoch %d, %d hosts left", is.Baseline, is.Told)
		}
		return fmt.Sprintf("back to epoch %d", is.Baseline)
	case manifest.PhaseHalted:
		if was.Phase == manifest.PhaseRollingBack {
			return fmt.Sprintf("back at epoch %d, halted", is.Baseline)
		}
	}
	return ""
}

// approvals tells which waves a person approved.
func (d *decisions) approvals(was, is *manifest.Rollout) {
	for _, wave := range is.Approved {
		if !slices.Contains(was.Approved, wave) && was.Target == is.Target {
			d.add(Decision{What: fmt.Sprintf("epoch %d: wave %d approved", is.Target, wave), Epoch: is.Target, By: is.By, Why: is.Why})
		}
	}
}

// stops tells those that are new, and those that are gone before their time.
func (d *decisions) stops(word, ended string, was, is []manifest.Stop) {
	in := func(s manifest.Stop, list []manifest.Stop) bool {
		return slices.ContainsFunc(list, func(o manifest.Stop) bool {
			return o.By == s.By && o.Why == s.Why && o.Since.Equal(s.Since) && slices.Equal(o.Hosts, s.Hosts) && sameTime(o.Until, s.Until)
		})
	}
	for _, s := range is {
		if !in(s, was) {
			d.add(Decision{What: word, Epoch: s.Epoch, By: s.By, Why: s.Why, Hosts: s.Hosts, Until: s.Until})
		}
	}
	r := &d.next.Manifest.Rollout
	for _, s := range was {
		if !in(s, is) && !past(s.Until, d.next.Manifest.Issued) {
			x := Decision{What: ended, Epoch: s.Epoch, Why: fmt.Sprintf("%s by %s: %s", word, s.By, orText(s.Why, "no reason given")), Hosts: s.Hosts}
			switch word {
			case "halted", "paused":
				x.By = r.By // whoever made this order ended it
			case "frozen":
				x.By = r.By
				x.Why += "; " + r.Why
			}
			d.add(x)
		}
	}
}

// holds tells which hosts are held anew, and which no longer. One that ended at its time is not told, as with the other stops.
func (d *decisions) holds(was, is []manifest.Stop) {
	issued := d.next.Manifest.Issued
	in := func(s manifest.Stop, host string, list []manifest.Stop) bool {
		return slices.ContainsFunc(list, func(o manifest.Stop) bool {
			return o.By == s.By && o.Why == s.Why && o.Since.Equal(s.Since) && sameTime(o.Until, s.Until) && slices.Contains(o.Hosts, host)
		})
	}
	missing := func(s manifest.Stop, list []manifest.Stop) []string {
		return slices.DeleteFunc(slices.Clone(s.Hosts), func(h string) bool { return in(s, h, list) })
	}
	for _, s := range is {
		if hosts := missing(s, was); len(hosts) > 0 && !past(s.Until, issued) {
			d.add(Decision{What: "held", Epoch: s.Epoch, By: s.By, Why: s.Why, Hosts: hosts, Until: s.Until})
		}
	}
	for _, s := range was {
		hosts := missing(s, is)
		if len(hosts) == 0 || past(s.Until, issued) {
			continue
		}
		x := Decision{What: "the hold ended", Epoch: s.Epoch, Why: fmt.Sprintf("held by %s: %s", s.By, orText(s.Why, "no reason given")), Hosts: hosts}
		for _, o := range is { // what an unhold leaves until the hosts are let go
			if past(o.Until, issued) && !o.Since.Before(s.Since) && slices.ContainsFunc(hosts, func(h string) bool { return slices.Contains(o.Hosts, h) }) {
				x.By = o.By
				x.Why += "; let go" + orNothing(": ", o.Why)
			}
		}
		d.add(x)
	}
}

func (d *decisions) overrides(was, is []manifest.VerifiedOverride) {
	in := func(o manifest.VerifiedOverride) bool {
		return slices.ContainsFunc(was, func(w manifest.VerifiedOverride) bool {
			return w.ID == o.ID && (w.Ended == nil) == (o.Ended == nil) && w.NotAfter.Equal(o.NotAfter) && slices.Equal(w.Hosts, o.Hosts)
		})
	}
	for _, o := range is {
		switch {
		case in(o):
		case o.Ended != nil:
			d.addAt(o.Ended.At, Decision{What: "override " + o.ID + " ended", Epoch: o.Epoch, By: o.Ended.By, Why: o.Ended.Reason, Hosts: o.Hosts})
		default:
			services := make([]string, len(o.Patches))
			for i, p := range o.Patches {
				services[i] = p.Service
			}
			what := strings.TrimSpace("override " + o.ID + " of " + strings.Join(services, ", "))
			switch i := slices.IndexFunc(was, func(w manifest.VerifiedOverride) bool { return w.ID == o.ID && w.Ended == nil }); {
			case i < 0:
			case o.NotAfter.After(was[i].NotAfter):
				what = "override " + o.ID + " extended"
			case !slices.Equal(was[i].Hosts, o.Hosts):
				what = "override " + o.ID + " goes on to"
				if len(o.Hosts) == 0 {
					what = "override " + o.ID + " on the whole cohort"
				}
			}
			d.addAt(o.Created, Decision{What: what, Epoch: o.Epoch, By: o.Author, Why: o.Reason, Hosts: o.Hosts, Until: &o.NotAfter})
		}
	}
}

// endings tells which overrides begin to end.
func (d *decisions) endings(was, is []manifest.Ending) {
	in := func(e manifest.Ending, list []manifest.Ending) bool {
		return slices.ContainsFunc(list, func(o manifest.Ending) bool { return o.Override == e.Override })
	}
	for _, e := range is {
		if !in(e, was) {
			d.add(Decision{What: "override " + e.Override + " is taken from its hosts in steps", By: orText(e.By, Muster), Why: e.Why})
		}
	}
}

func stopList(s *manifest.Stop) []manifest.Stop {
	if s == nil {
		return nil
	}
	return []manifest.Stop{*s}
}

func sameTime(a, b *time.Time) bool {
	return (a == nil) == (b == nil) && (a == nil || a.Equal(*b))
}

func orText(s, other string) string {
	if s == "" {
		return other
	}
	return s
}
