package rollout

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/verdict"
)

// rollback sends every host back to the baseline, or to an earlier epoch, and halts the cohort. It makes no release: the assignment alone goes back. One host goes first, and the
// others when it confirms; with Now all go at once.
func (d *act) rollback() error {
	r := &d.m.Rollout
	to := d.To
	if to == 0 {
		to = baselineOf(r)
	}
	runs, everywhere := assignedTo(*d.prev) // the highest that anybody is led to
	going := r.Phase == manifest.PhaseRollingBack && len(r.Halts) > 0
	stopped := going || r.Phase == manifest.PhaseHalted
	switch {
	case d.Why == "":
		return d.unfit("a rollback needs a reason")
	case to == 0:
		return d.unfit("it has no baseline: nothing was rolled out to it before epoch %d", r.Target)
	case to > runs:
		return d.unfit("epoch %d is newer than epoch %d, which it runs: a rollback goes back; what goes forward is published", to, runs)
	case everywhere && runs == to && stopped:
		return d.already("every host is led to epoch %d already: %s", to, d.stands())
	case everywhere && runs == to && !underWay(d.prev):
		return d.unfit("every host is led to epoch %d already, and nothing is under way; name an earlier one with --to: `muster log %s` lists them", to, d.in.Cohort)
	case !everywhere && to == runs:
		return d.unfit("epoch %d is the one that it leaves or takes just now (%s): name the baseline, or an earlier one", to, d.stands())
	case going && to == r.Baseline && !d.Now:
		return d.already("epoch %d goes back already: %s", r.Target, d.stands())
	case !everywhere && to != baselineOf(r) && !d.Now:
		return d.unfit("hosts run epoch %d and epoch %d now (%s), and a third one beside them is too much: `muster rollback %s --to baseline --reason …` first, and when it is there --to %d; or --now, which sends all of them at once",
			runs, baselineOf(r), d.stands(), d.in.Cohort, to)
	}
	if names := unreached(d.in.Prev, to, d.now); len(names) > 0 && !d.DropOverrides {
		return d.unfit("override %s was laid over a newer release than epoch %d, and there is none of it for that one: its hosts would go back without it; --drop-overrides says that this is meant",
			strings.Join(names, ", "), to)
	}
	if err := d.carry(to); err != nil {
		return err
	}
	from, target := r.Target, r.Target // what is halted, and what hosts leave
	if everywhere && runs > to {
		target = runs
		if !underWay(d.prev) {
			from = runs
		}
	}
	halt := d.stop()
	halt.Epoch, halt.Why = from, text("rolled back to epoch %d%s: %s", to, atOnceText(d.Now), d.Why)
	r.Halts = halts(r.Halts, halt)
	returnsTo(r)
	r.Target, r.Baseline, r.Since = target, to, d.now.UTC()
	dropped := ""
	if d.DropOverrides {
		dropped = d.dropOverrides()
	}
	if d.Now {
		r.Phase, r.Told = manifest.PhaseHalted, 0
		d.m.Assign = append(byName(d.m.Assign, d.now), manifest.Assignment{Epoch: to, Why: text("rollback by %s, all hosts at once", d.By)})
	} else {
		r.Phase, r.Trial = manifest.PhaseRollingBack, true
	}
	d.prune()
	how := "one host first, then the others"
	if d.Now {
		how = "all at once (--now)"
	}
	d.do("epoch %d goes back to epoch %d, %s, and the cohort is halted%s", from, to, how, dropped)
	return nil
}

func atOnceText(now bool) string {
	if now {
		return ", all hosts at once (--now)"
	}
	return ""
}

// unreached are the overrides that act now and would not on hosts that are led to an epoch: they were laid over a newer release, and none of them was built for that one.
func unreached(v *manifest.View, epoch uint64, now time.Time) (names []string) {
	for _, o := range v.Living(now) {
		gone := func(e manifest.Ending) bool { return e.Override == o.ID && e.Below == "" }
		if !v.Reaches(&o.Override, epoch) && !v.Yields(&o.Override, now) && !slices.ContainsFunc(v.Manifest.Rollout.Endings, gone) {
			names = append(names, o.ID)
		}
	}
	return names
}

// without says which overrides hosts leave with the way back to an epoch, as the end of a sentence.
func without(v *manifest.View, epoch uint64, now time.Time) string {
	names := unreached(v, epoch, now)
	if len(names) == 0 {
		return ""
	}
	return fmt.Sprintf("; override %s was laid over a newer release, and does not go back with them", strings.Join(names, ", "))
}

// byName are the assignments by name that are in force.
func byName(assign []manifest.Assignment, now time.Time) (list []manifest.Assignment) {
	for _, a := range assign {
		if len(a.Hosts) > 0 && !past(a.Until, now) {
			list = append(list, a)
		}
	}
	return list
}

// dropOverrides begins to take every override that acts from its hosts: in steps, or at once with Now. Their signed ends are the operators' own.
func (d *act) dropOverrides() string {
	r := &d.m.Rollout
	var names []string
	for _, o := range d.in.Prev.Living(d.now) {
		list := slices.DeleteFunc(slices.Clone(r.Endings), func(e manifest.Ending) bool { return e.Override == o.ID })
		e := manifest.Ending{Override: o.ID, Why: text("dropped with a rollback by %s: %s", d.By, d.Why), By: d.By}
		if !d.Now {
			e.Below, e.Salt = hex(0), o.ID // nobody yet
			for _, was := range r.Endings {
				if was.Override == o.ID {
					e.Below, e.Salt = was.Below, was.Salt // who is out already stays out
				}
			}
		}
		r.Endings = append(list, e)
		names = append(names, o.ID)
	}
	if len(names) == 0 {
		return ""
	}
	return fmt.Sprintf("; override %s is taken from its hosts", strings.Join(names, ", "))
}

// tried says whether the way back may take more hosts than the first one: after a person's rollback it waits until that one confirms. When none is on its way, one more goes first.
func (s *step) tried() (ready, first bool) {
	r := &s.prev.Rollout
	if !r.Trial {
		return true, false
	}
	rest := s.forwardPart()
	able, onWay, refused := false, "", ""
	for i := range s.count.hosts {
		h := &s.count.hosts[i]
		switch {
		case h.at != r.Baseline:
			able = able || s.canTry(h)
			continue
		case rest != nil && tells(rest, h.Host, s.now) == r.Baseline:
			continue // it never had the target
		}
		switch h.Verdict {
		case verdict.Confirmed, verdict.Stale:
			if h.Running == r.Baseline {
				return true, false
			}
			onWay = h.Name
		case verdict.Failed, verdict.RolledBack, verdict.Refused:
			if h.Attempted == r.Baseline && h.Running != r.Baseline {
				refused = h.Name + " " + string(h.Verdict)
			} else if h.Running != r.Baseline {
				onWay = h.Name
			}
		case verdict.Overridden:
			if !s.overridden(h.Host) {
				onWay = h.Name
			}
		case verdict.Applying, verdict.Lagging, verdict.Unknown:
			onWay = h.Name
		}
	}
	switch {
	case refused != "":
		s.stop("going back to epoch %d waits: the host that went first does not take it (%s): look at it; `muster rollback %s --to %d --now --reason …` sends all the others too", r.Baseline, refused, s.in.Cohort, r.Baseline)
		return false, false
	case onWay != "":
		s.stop("one host goes back to epoch %d first: %s is to confirm it", r.Baseline, onWay)
		return false, false
	}
	return !able, able // nobody is left who could show anything
}

// canTry says whether a host that is sent back can show that it went well. One under an override that stays on it cannot.
func (s *step) canTry(h *one) bool {
	switch h.Verdict {
	case verdict.Silent, verdict.Observing, verdict.NotRunning:
		return false
	case verdict.Overridden:
		back := *s.in.Prev
		back.Manifest.Assign = []manifest.Assignment{{Epoch: s.prev.Rollout.Baseline}}
		res, err := manifest.Resolve(&back, manifest.Host{Name: h.Name, Labels: h.Labels}, s.now)
		return err == nil && res.Source != manifest.FromOverride
	}
	return true
}
