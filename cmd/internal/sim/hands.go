package sim

import (
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/rollout"
)

// lookBack adds what a hold or a rollback looks at, as the collector does: what hosts run, and the statements of epochs that it may lead to.
func (w *World) lookBack(c *server, cohort string, in *rollout.Input, a *rollout.Action) error {
	if a.Kind != rollout.Hold && a.Kind != rollout.Rollback {
		return nil
	}
	epochs := map[uint64]bool{}
	if a.Kind == rollout.Hold {
		hosts, err := c.Hosts(w.ctx, cohort, "")
		if err != nil {
			return err
		}
		a.Runs = map[string]uint64{}
		for _, h := range hosts {
			if slices.Contains(a.Hosts, h.Host) {
				a.Runs[h.Host] = h.Running
				epochs[h.Running] = true
			}
		}
	}
	if a.To != 0 {
		rel, err := c.Released(w.ctx, a.To)
		if err != nil {
			return err
		}
		a.To = rel.Cohorts[cohort].Epoch // the one that the release left as it was
		if a.To == 0 {
			return errors.New("nothing stood there then")
		}
		epochs[a.To] = true
	}
	in.Named = map[uint64]manifest.Envelope{}
	for epoch := range epochs {
		if epoch == 0 {
			continue
		}
		st, err := c.Statement(w.ctx, cohort, epoch)
		if err != nil && epoch == a.To {
			return err
		}
		if err == nil {
			in.Named[epoch] = *st
		}
	}
	return nil
}

// strike is what persons do beside steering: hosts are held and let go, and cohorts rolled back.
func (w *World) strike(d *draw, f *fleet) {
	a := rollout.Action{By: pick(d, []string{"ana", "ben", "cleo"}), Why: "INC-311"}
	switch n := d.n(10); {
	case n < 4:
		a.Kind = rollout.Hold
		for range 1 + d.n(3) {
			a.Hosts = append(a.Hosts, pick(d, f.hosts).name)
		}
		until := time.Now().Add(d.between(time.Minute, 20*time.Minute)).UTC().Truncate(time.Second)
		a.Until = &until
	case n < 6:
		v := f.now()
		if v == nil || len(v.Manifest.Rollout.Holds) == 0 {
			return
		}
		a.Kind, a.Hosts = rollout.Unhold, pick(d, v.Manifest.Rollout.Holds).Hosts
		if len(a.Hosts) == 0 {
			return
		}
	default:
		a.Kind, a.Now, a.DropOverrides = rollout.Rollback, d.percent(30), d.percent(30)
		if v := f.now(); d.percent(40) && v != nil {
			w.mu.Lock()
			a.To = uint64(1 + d.n(max(1, int(v.Manifest.Rollout.Target))))
			if w.ops.epochs[a.To] == 0 {
				a.To = 0
			}
			w.mu.Unlock()
		}
	}
	frozen, covered := w.frozenOrCovered(f)
	if w.act(f.name, a) != nil {
		return
	}
	switch {
	case a.Kind == rollout.Hold:
		w.census.fault(faultHold)
	case a.Kind == rollout.Rollback && frozen:
		w.census.fault(faultBackFrozen)
	}
	if a.Kind == rollout.Rollback && covered {
		w.census.fault(faultBackUnder)
	}
}

// frozenOrCovered says whether a freeze is in force in a cohort, and whether an override is.
func (w *World) frozenOrCovered(f *fleet) (frozen, covered bool) {
	v, now := f.now(), time.Now()
	if v == nil {
		return false, false
	}
	return slices.ContainsFunc(v.Manifest.Rollout.Freezes, func(s manifest.Stop) bool { return !past(s.Until, now) }), len(v.Living(now)) > 0
}

// heldUntil is when the holds of a host end, as persons said; zero if it is not held.
func heldUntil(v *manifest.View, host string) (end time.Time) {
	for _, s := range v.Manifest.Rollout.Holds {
		if slices.Contains(s.Hosts, host) && s.Until != nil {
			end = later(end, *s.Until)
		}
	}
	return end
}

// byController says whether a controller wrote a head.
func (c *check) byController() bool { return strings.HasPrefix(c.who, "ctl-") }
