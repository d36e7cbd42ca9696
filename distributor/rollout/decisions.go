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
	Cohort string
	Mark   manifest.Mark // of the head that says it first
	At     time.Time     // when that head was signed
	What   string        // "epoch 7 to all hosts", "frozen", …
	Epoch  uint64        // the release it is about; 0 for none
	By     string        // "" if the head does not say
	Why    string
	Hosts  []string   // the hosts it is about; empty for the whole cohort
	Until  *time.Time // its end
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
	d.stops("held", "the hold ended", was.Holds, is.Holds)
	d.overrides(prev.Overrides, next.Overrides)
	if movedOn(prev.Manifest, next.Manifest) {
		if what := whereStands(is); what != "" || len(d.found) == 0 {
			d.add(Decision{What: orText(what, fmt.Sprintf("epoch %d: %s", is.Target, is.Phase)), Epoch: is.Target, By: is.By, Why: is.Why})
		}
	}
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

// movedOn reports whether hosts are sent elsewhere, or the rollout stands elsewhere.
func movedOn(a, b manifest.Manifest) bool {
	if a.Rollout.Target != b.Rollout.Target || a.Rollout.Wave != b.Rollout.Wave || a.Rollout.Phase != b.Rollout.Phase || a.Rollout.Baseline != b.Rollout.Baseline || a.Era != b.Era {
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

// whereStands says where a rollout stands. It is "" where a stop says it already.
func whereStands(r manifest.Rollout) string {
	wave := fmt.Sprintf("epoch %d: wave %d of %d", r.Target, r.Wave, len(r.Policy.Waves))
	switch r.Phase {
	case manifest.PhaseDone:
		return fmt.Sprintf("epoch %d to all hosts", r.Target)
	case manifest.PhaseAdvancing:
		return wave
	case manifest.PhaseBaking:
		return wave + " bakes"
	case manifest.PhaseAwaitingApproval:
		return wave + " waits for approval"
	case manifest.PhaseRollingBack:
		return fmt.Sprintf("back to epoch %d", r.Baseline)
	}
	return ""
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
	for _, s := range was {
		if !in(s, is) && !past(s.Until, d.next.Manifest.Issued) {
			d.add(Decision{What: ended, Epoch: s.Epoch, Why: fmt.Sprintf("%s by %s: %s", word, s.By, orText(s.Why, "no reason given")), Hosts: s.Hosts})
		}
	}
}

func (d *decisions) overrides(was, is []manifest.VerifiedOverride) {
	in := func(o manifest.VerifiedOverride) bool {
		return slices.ContainsFunc(was, func(w manifest.VerifiedOverride) bool {
			return w.ID == o.ID && (w.Ended == nil) == (o.Ended == nil) && w.NotAfter.Equal(o.NotAfter)
		})
	}
	for _, o := range is {
		switch {
		case in(o):
		case o.Ended != nil:
			d.add(Decision{What: "override " + o.ID + " ended", Epoch: o.Epoch, By: o.Ended.By, Why: o.Ended.Reason, Hosts: o.Hosts})
		default:
			services := make([]string, len(o.Patches))
			for i, p := range o.Patches {
				services[i] = p.Service
			}
			what := strings.TrimSpace("override " + o.ID + " of " + strings.Join(services, ", "))
			d.add(Decision{What: what, Epoch: o.Epoch, By: o.Author, Why: o.Reason, Hosts: o.Hosts, Until: &o.NotAfter})
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
