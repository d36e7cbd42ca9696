package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/muster-config/muster/distributor/api"
	"github.com/muster-config/muster/distributor/rollout/standing"
	"github.com/muster-config/muster/distributor/verdict"
)

// heldHint is what ends that a release cannot be confirmed, where something that a person set keeps hosts off it: holds, freezes and overrides have an end, and a command that brings it
// about. "" where there is none of them.
func (w *waiter) heldHint(g *api.Wait) string {
	var ends []string
	add := func(end string) {
		if !slices.Contains(ends, end) {
			ends = append(ends, end)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(g.Cohorts)) {
		c := g.Cohorts[name]
		if c.Green {
			continue
		}
		var held []string
		overridden, here := false, false
		for _, h := range c.Waiting {
			switch h.Verdict {
			case verdict.Held:
				if strings.HasPrefix(h.Why, verdict.HeldOnHost) {
					here = true
				} else {
					held = append(held, h.Host)
				}
			case verdict.Overridden:
				overridden = true
			}
		}
		if len(held) > 0 {
			more := ""
			if len(held) > 3 {
				held, more = held[:3], " …"
			}
			add(fmt.Sprintf("`muster unhold %s %s%s --reason …`", name, strings.Join(held, " "), more))
		}
		if here {
			add("`muster-agent unhold` on the host")
		}
		for _, a := range w.active[name] {
			switch {
			case a.Kind == api.ActiveFreeze:
				add(standing.Command("unfreeze", name))
			case a.Kind == api.ActiveOverride && overridden:
				add(fmt.Sprintf("`muster override end %s --reason …`", a.ID))
			}
		}
	}
	if len(ends) == 0 {
		return ""
	}
	const most = 4
	if len(ends) > most {
		ends = append(ends[:most], fmt.Sprintf("%d more", len(ends)-most))
	}
	return "wait for its end (`muster status` says when that is), or end it now: " + strings.Join(ends, ", ")
}

// hint is the next step where a release is not confirmed.
func (w *waiter) hint(g *api.Wait) string {
	held := w.heldHint(g)
	// A halt is what a release does not get past, whatever else acts there.
	halted := false
	for name, c := range g.Cohorts {
		for _, a := range w.active[name] {
			halted = halted || !c.Green && a.Kind == api.ActiveHalt
		}
	}
	switch {
	case held != "" && !halted:
		return held
	case g.Never:
		return "waiting does not help: change what stops it, then publish"
	}
	return "`muster hosts` shows every host; run the command again to wait longer"
}

// saidAlready reports whether what stops a cohort stands among the lines above already, which tell who stopped it, since when and why.
func (w *waiter) saidAlready(name, why string) bool {
	text := name + ": " + strings.TrimPrefix(why, "cohort "+name+" is ")
	if stop, _, ok := strings.Cut(text, "; git revert"); ok {
		text = stop
	}
	return slices.ContainsFunc(w.said, func(line string) bool { return strings.HasPrefix(line, text) })
}

// activeOf is what acts on each cohort.
func activeOf(st *api.Status) map[string][]api.Active {
	all := map[string][]api.Active{}
	for name, c := range st.Cohorts {
		all[name] = c.Active
	}
	return all
}
