package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/muster-config/muster/cmd/internal/cli"
	"github.com/muster-config/muster/cmd/internal/publish"
	"github.com/muster-config/muster/cue/eval"
	"github.com/muster-config/muster/distributor"
	"github.com/muster-config/muster/distributor/api"
	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/rollout/standing"
	"github.com/muster-config/muster/pipeline"
	"github.com/muster-config/muster/pipeline/plan"
)

// acting adds to a plan what acts on the fleet now, if a store is given. One that only the environment names need not be reachable: a plan is made on many machines.
func (a *app) acting(ctx context.Context, from reading, p *plan.Plan, head *pipeline.Rendered) error {
	named := from.storeURL != ""
	if !named && os.Getenv("MUSTER_STORE") == "" || p.Refused() {
		return nil
	}
	h, err := from.history(ctx)
	if err == nil {
		var active []plan.Acting
		if active, err = activeUnder(ctx, h, head, time.Now()); err == nil {
			a.noteSkipped(h)
			p.Under(active)
			return nil
		}
	}
	if named || ctx.Err() != nil {
		return err
	}
	p.Notes = append(p.Notes, "the store that MUSTER_STORE names cannot be read, so that overrides, holds and freezes are not known: "+cli.Printable(err.Error()))
	return nil
}

// activeUnder is what acts on the cohorts of a build, as the heads in the store say, and which of them it would block.
func activeUnder(ctx context.Context, h *distributor.History, head *pipeline.Rendered, now time.Time) ([]plan.Acting, error) {
	views, err := h.Heads(ctx)
	if err != nil {
		return nil, err
	}
	made := func(epoch uint64) time.Time { return h.Created(ctx, epoch) }
	var out []plan.Acting
	for _, name := range slices.Sorted(maps.Keys(views)) {
		if _, ok := head.Policy.Cohorts[name]; !ok {
			continue
		}
		view := views[name]
		living := view.Living(now)
		blocked, err := misfits(ctx, head, name, living)
		if err != nil {
			return nil, err
		}
		for _, x := range standing.Active(view, now, made) {
			one := plan.Acting{Active: plan.Active{Kind: x.Kind, ID: x.ID, Cohort: name, Hosts: x.Hosts, By: x.By, Why: x.Why, Since: x.Since, Until: x.Until, Text: standing.Sentence(name, x, now)}}
			if x.Kind == api.ActiveOverride {
				one.Blocked, one.Paths = blocked[x.ID], map[string][]string{}
				for _, o := range living {
					if o.ID != x.ID {
						continue
					}
					for _, patch := range o.Patches {
						if one.Paths[patch.Service], err = eval.PatchPaths(patch.Values); err != nil {
							return nil, fmt.Errorf("override %s: %w", o.ID, err)
						}
					}
				}
			}
			out = append(out, one)
		}
	}
	return out, nil
}

// misfits are the overrides under which a build does not validate, with the reason: the first, as publishing finds it. What is blocked without them is not their fault.
func misfits(ctx context.Context, head *pipeline.Rendered, cohort string, living []manifest.VerifiedOverride) (map[string]string, error) {
	if head.Blocked()[cohort] != "" {
		return nil, nil
	}
	for i := range living {
		err := publish.Fits(ctx, head, cohort, living[:i+1])
		var misfit *publish.Misfit
		if errors.As(err, &misfit) {
			return map[string]string{misfit.ID: misfit.Error()}, nil
		}
		if err != nil {
			return nil, err
		}
	}
	return nil, nil
}
