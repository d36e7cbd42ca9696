package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/muster-config/muster/cmd/internal/cli"
	"github.com/muster-config/muster/cmd/internal/publish"
	"github.com/muster-config/muster/cue/eval"
	"github.com/muster-config/muster/distributor"
	"github.com/muster-config/muster/distributor/api"
	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/rollout"
	"github.com/muster-config/muster/distributor/store"
	"github.com/muster-config/muster/distributor/verdict"
	"github.com/muster-config/muster/pipeline"
	"github.com/muster-config/muster/pipeline/plan"
)

// layerOver evaluates what the cohorts run, and the override over it. What does not validate is printed as validate does.
func (a *app) layerOver(ctx context.Context, s *overrideSet, o *distributor.Operator, hosts map[string][]string, patches []manifest.Patch) (map[string]*layered, error) {
	eval.Hasten(64 << 20)
	groups := map[uint64][]*layered{} // by the release that the cohorts run
	out := map[string]*layered{}
	for _, name := range slices.Sorted(maps.Keys(hosts)) {
		base, err := o.Base(ctx, name)
		if errors.Is(err, rollout.ErrNothing) {
			return nil, cli.Fail(cli.No, "leave it out, or roll a release out to it first", "%w", err)
		}
		if err != nil {
			return nil, err
		}
		carried := base.Release.Policy.Cohorts[name].Services
		for _, p := range patches {
			if !slices.Contains(carried, p.Service) {
				return nil, cli.Fail(cli.Usage, strings.TrimSpace(cli.Suggest(p.Service, carried)+" it carries "+cli.Names(carried, 10)), "cohort %s does not carry service %q", name, p.Service)
			}
		}
		l := &layered{base: base, patches: patches, hosts: hosts[name]}
		l.stack = append(slices.Clone(base.Living), manifest.VerifiedOverride{Override: manifest.Override{ID: s.id, Cohort: name, Hosts: hosts[name], Patches: patches}})
		out[name] = l
		groups[base.Release.Epoch] = append(groups[base.Release.Epoch], l)
	}
	for _, group := range groups {
		rel := group[0].base.Release
		files, err := o.Source(ctx, rel)
		if err != nil {
			return nil, err
		}
		var cohorts []string
		for _, l := range group {
			cohorts = append(cohorts, l.base.Cohort)
		}
		r, err := a.evaluate(ctx, publish.Stored(rel, files), s.evaluation, pipeline.Options{Cohorts: cohorts, Leaves: true})
		if err != nil {
			return nil, err
		}
		for _, l := range group {
			l.rendered = r
			under, err := r.Override(ctx, l.base.Cohort, publish.Layers(l.base.Cohort, l.stack))
			if err != nil {
				return nil, err
			}
			if under.Failed() {
				printProblems(a.out, onlyErrors(under.Problems))
				return nil, cli.Fail(cli.No, "correct the values; what does not validate reaches no host", "the override is not valid for cohort %s: nothing was changed", l.base.Cohort)
			}
		}
	}
	return out, nil
}

// units are those of a cohort's services with overrides laid over them.
func (l *layered) units(ctx context.Context, overrides []manifest.VerifiedOverride) ([]eval.Unit, error) {
	concerned := func(service string) bool {
		return slices.ContainsFunc(l.stack, func(o manifest.VerifiedOverride) bool { return slices.Contains(servicesOf(o.Patches), service) })
	}
	var layers []eval.Override
	for _, o := range overrides {
		for _, p := range o.Patches {
			layers = append(layers, eval.Override{ID: o.ID, Cohort: l.base.Cohort, Hosts: o.Hosts, Service: p.Service, Values: p.Values})
		}
	}
	under, err := l.rendered.Override(ctx, l.base.Cohort, layers)
	if err != nil {
		return nil, err
	}
	list := slices.Clone(under.Units())
	for _, u := range l.rendered.Units() {
		if u.Cohort == l.base.Cohort && concerned(u.Service) && !slices.ContainsFunc(layers, func(o eval.Override) bool { return o.Service == u.Service }) {
			list = append(list, u)
		}
	}
	return list, nil
}

// showOverride prints what changes, where, and for how long.
func (a *app) showOverride(ctx context.Context, layers map[string]*layered, s *overrideSet, ttl time.Duration) error {
	if a.json {
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(layers)) {
		l := layers[name]
		was, err := l.units(ctx, l.base.Living)
		if err != nil {
			return err
		}
		is, err := l.units(ctx, l.stack)
		if err != nil {
			return err
		}
		policy := l.base.Release.Policy
		one := policy.Cohorts[name]
		one.Services = servicesOf(slices.Concat(patchesOf(l.stack)...))
		policy.Cohorts = map[string]manifest.CohortPolicy{name: one}
		side := func(name string, units []eval.Unit) plan.Side {
			return plan.Side{Name: name, Commit: l.base.Release.Commit, Policy: policy, Units: units, Source: l.rendered.Source}
		}
		p := plan.Of(side(fmt.Sprintf("what %s runs (epoch %d)", name, l.base.Release.Epoch), was), side("override "+s.id, is), plan.Options{})
		if err := p.Text(a.out, plan.TextOptions{Colour: coloured(a.out)}); err != nil {
			return err
		}
		for _, older := range l.base.Living {
			fmt.Fprintf(a.out, "override %s by %s acts here too, below this one: %s\n", older.ID, cli.Printable(older.Author), cli.Printable(older.Reason))
		}
		fmt.Fprintln(a.out)
	}
	fmt.Fprintf(a.out, "for %s, by %s: %s\n", ttl, cli.Printable(whoami()), cli.Printable(s.reason))
	return nil
}

func patchesOf(stack []manifest.VerifiedOverride) (list [][]manifest.Patch) {
	for _, o := range stack {
		list = append(list, o.Patches)
	}
	return list
}

// spreading is an override on its way to the hosts.
type spreading struct {
	*overrideSet
	app   *app
	o     *distributor.Operator
	store store.Store
	made  *distributor.Made
	done  overrideDone
}

// steps are the hosts of a cohort in the order in which they get it: those that report, and are well.
func (s *overrideSet) steps(ctx context.Context, l *layered) ([]string, error) {
	if s.now {
		return nil, nil
	}
	c, err := s.conn.open()
	if err != nil {
		return nil, err
	}
	defer c.Close()
	hosts, err := c.Hosts(ctx, l.base.Cohort, "")
	if err != nil {
		return nil, err
	}
	var names []string
	for _, h := range hosts {
		switch h.Verdict {
		case verdict.Confirmed, verdict.Stale, verdict.Overridden, verdict.Applying, verdict.Lagging, verdict.Drifted:
			if len(l.hosts) == 0 || slices.Contains(l.hosts, h.Host) {
				names = append(names, h.Host)
			}
		}
	}
	if len(names) == 0 {
		return nil, cli.Fail(cli.No, "`muster hosts --cohort "+l.base.Cohort+"` says why; --now sets it without trying it first", "no host of cohort %s that it is for reports and is well: it cannot be tried", l.base.Cohort)
	}
	slices.SortFunc(names, func(x, y string) int {
		if manifest.Point(s.id, x) < manifest.Point(s.id, y) {
			return -1
		}
		return 1
	})
	return names, nil
}

// mostNamed bounds the hosts that an override names: after so many the others get it together.
const mostNamed = 5000

// spreadOverride takes a made override to the hosts: the first, then the others in steps, cohort after cohort.
func (a *app) spreadOverride(ctx context.Context, s *overrideSet, o *distributor.Operator, st store.Store, made *distributor.Made, layers map[string]*layered, order map[string][]string) error {
	x := &spreading{overrideSet: s, app: a, o: o, store: st, made: made, done: overrideDone{ID: s.id, Epoch: made.Epoch, NotAfter: made.NotAfter.UTC(), Cohorts: map[string]overrideDoneCohort{}}}
	names := slices.Sorted(maps.Keys(layers))
	for _, name := range names {
		x.done.Cohorts[name] = overrideDoneCohort{State: "not begun", Hosts: append([]string{}, layers[name].hosts...)}
	}
	var err error
	for _, name := range names {
		if err = x.cohort(ctx, name, layers[name], order[name]); err != nil {
			break
		}
	}
	if a.json {
		if perr := cli.PrintJSON(a.out, x.done); perr != nil {
			return perr
		}
	}
	return err
}

func (x *spreading) say(format string, args ...any) {
	if !x.app.json {
		fmt.Fprintln(x.app.out, cli.Printable(fmt.Sprintf(format, args...)))
	}
}

// put gives it to some hosts of a cohort, or to all that it is for.
func (x *spreading) put(ctx context.Context, cohort string, hosts []string) error {
	env, err := x.o.Envelope(x.made, cohort, hosts)
	if err != nil {
		return err
	}
	done, err := x.o.Put(ctx, cohort, env)
	if err != nil {
		return err
	}
	if done.History != nil {
		fmt.Fprintf(x.app.errOut, "muster: warning: %s\n", cli.Printable(done.History.Error()))
	}
	x.told(ctx, x.app, x.store, []string{cohort})
	return nil
}

func (x *spreading) cohort(ctx context.Context, name string, l *layered, order []string) error {
	state := x.done.Cohorts[name]
	defer func() { x.done.Cohorts[name] = state }()
	step := rollout.InFlight(l.base.View.Manifest.Rollout.Policy.MaxInFlight, len(order))
	for told := 0; told < len(order); {
		next := min(len(order), told+step)
		if told == 0 {
			next = 1
		}
		if next >= mostNamed {
			next = len(order)
		}
		hosts := slices.Clone(order[:next])
		if next == len(order) {
			hosts = nil // the last step: as it was asked for, for those too that do not report now
		}
		state.State = "stopped"
		if err := x.put(ctx, name, hosts); err != nil {
			return x.stopped(name, &state, err)
		}
		x.say("%s: on %s of %s", name, cli.Count(next, "host"), cli.Number(len(order)))
		began := time.Now()
		if err := x.confirmed(ctx, name, order[:next], &state); err != nil {
			return err
		}
		x.say("%s: confirmed by %s after %s", name, cli.Count(next, "host"), cli.Elapsed(time.Since(began)))
		told = next
	}
	if len(order) == 0 {
		if err := x.put(ctx, name, nil); err != nil {
			return x.stopped(name, &state, err)
		}
	}
	state.State = "in force"
	where := "the whole cohort"
	if len(l.hosts) > 0 {
		where = cli.Names(l.hosts, 5)
	}
	x.say("%s: override %s is in force on %s until %s (epoch %d)", name, x.id, where, x.made.NotAfter.UTC().Format(time.RFC3339), x.made.Epoch)
	return nil
}

// stopped says what is left behind.
func (x *spreading) stopped(name string, state *overrideDoneCohort, err error) error {
	state.Why = err.Error()
	fmt.Fprintf(x.app.errOut, "muster: note: override %s of epoch %d did not get further in cohort %s; `muster override list` shows who has it, `muster override end %s --reason …` ends it\n", x.id, x.made.Epoch, name, x.id)
	return err
}

// confirmed waits until hosts confirm it. One that refuses it or goes back ends it, everywhere.
func (x *spreading) confirmed(ctx context.Context, name string, hosts []string, state *overrideDoneCohort) error {
	c, err := x.conn.open()
	if err != nil {
		return err
	}
	defer c.Close()
	wait, cancel := context.WithTimeoutCause(ctx, x.timeout, errSlow)
	defer cancel()
	var open []string
	for {
		list, err := c.Hosts(wait, name, "")
		if err == nil {
			open = nil
			state.Confirmed = 0
			for _, h := range list {
				if !slices.Contains(hosts, h.Host) {
					continue
				}
				switch {
				case h.Verdict == verdict.Failed || h.Verdict == verdict.RolledBack || h.Verdict == verdict.Refused:
					return x.refused(ctx, name, h, state)
				case h.Runs && h.Verdict == verdict.Overridden && h.Desired >= x.made.Epoch:
					state.Confirmed++
				default:
					open = append(open, h.Host+": "+h.Why)
				}
			}
			if state.Confirmed == len(hosts) {
				return nil
			}
		}
		select {
		case <-wait.Done():
			if !errors.Is(context.Cause(wait), errSlow) {
				return x.stopped(name, state, context.Cause(wait))
			}
			why := cli.Names(open, 3)
			if err != nil {
				why = err.Error()
			}
			return x.stopped(name, state, cli.Fail(cli.No, "look at these hosts; then end it, or set it again with --now", "not confirmed within %s: %s", x.timeout, why))
		case <-time.After(200 * time.Millisecond):
		}
	}
}

var errSlow = errors.New("not confirmed in time")

// refused ends an override that a host does not take.
func (x *spreading) refused(ctx context.Context, name string, h api.Host, state *overrideDoneCohort) error {
	state.State, state.Why = "ended", h.Host+": "+h.Why
	found, err := x.o.Overrides(ctx)
	if err != nil {
		return x.stopped(name, state, err)
	}
	var names []string
	for _, f := range found {
		if f.ID != x.id {
			continue
		}
		if _, err := x.o.End(ctx, f, whoami(), fmt.Sprintf("host %s %s", h.Host, h.Verdict)); err != nil {
			return x.stopped(name, state, err)
		}
		names = append(names, f.Cohort)
	}
	x.told(ctx, x.app, x.store, names)
	return cli.Fail(cli.No, "look at the service on that host, then set it again with other values", "host %s did not take it (%s), so it was ended: %s", h.Host, h.Verdict, h.Why)
}
