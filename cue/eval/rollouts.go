package eval

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/rollout/gate"
)

// standard is the rollout of a fleet that declares none: one wave of all hosts. The other values are the schema's defaults.
func standard() manifest.RolloutPolicy {
	return manifest.RolloutPolicy{
		Waves: []manifest.Wave{{Percent: 100, Bake: "0s"}}, Gates: map[string]manifest.Gate{}, MinReported: 0.95, MaxInFlight: "10%", Spread: "0s",
		Timeout: "2h", OnFailure: "rollback", Watch: "30m", ApproveBefore: []int{}, Windows: []string{},
	}
}

// aLeapYear is where the search for a window's first opening begins: the years after it have every day of the calendar.
var aLeapYear = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

// rollout checks what spans the fields of one rollout.
func (r *fleetRules) rollout(name string, d rolloutDoc) manifest.RolloutPolicy {
	in := func(parts ...any) []string { return slices.Concat(at("rollouts", name), at(parts...)) }
	p := d.RolloutPolicy
	switch v := d.MaxInFlight.(type) {
	case string:
		p.MaxInFlight = v
	default:
		text, err := json.Marshal(v)
		if err != nil {
			r.errorf(in("max_in_flight"), "a share such as \"10%%\", or a count")
		}
		p.MaxInFlight = string(text)
	}
	if p.Gates == nil {
		p.Gates = map[string]manifest.Gate{}
	}
	if p.ApproveBefore == nil {
		p.ApproveBefore = []int{}
	}
	p.Windows = orEmpty(p.Windows)
	for i, text := range p.Windows {
		switch _, err := manifest.ParseWindow(text); {
		case err != nil:
			r.errorf(in("windows", i), "%v", err)
		case manifest.NextWindow([]string{text}, aLeapYear).IsZero():
			r.errorf(in("windows", i), "window %.80q: it never opens: no month that it names has such a day", text)
		}
	}
	for key, text := range map[string]string{"timeout": p.Timeout, "watch": p.Watch, "spread": p.Spread} {
		r.short(text, in(key)...)
	}
	spread, errSpread := time.ParseDuration(p.Spread)
	timeout, errTimeout := time.ParseDuration(p.Timeout)
	if errSpread == nil && errTimeout == nil && timeout > 0 && spread >= timeout {
		r.errorf(in("spread"), "hosts wait up to %s for their turn, and a wave has %s (timeout) to confirm: make spread shorter, or timeout longer", p.Spread, p.Timeout)
	}

	var percent float64
	var count int
	for i, w := range p.Waves {
		where, kinds := in("waves", i), 0
		r.short(w.Bake, in("waves", i, "bake")...)
		if w.Percent > 0 {
			kinds++
			if w.Percent <= percent {
				r.errorf(where, "waves must rise: %v%% comes after %v%%", w.Percent, percent)
			}
			percent = w.Percent
		}
		if w.Count > 0 {
			kinds++
			if w.Count <= count {
				r.errorf(where, "waves must rise: %d hosts come after %d", w.Count, count)
			}
			count = w.Count
			if percent > 0 {
				r.errorf(where, "a wave by count must come before the waves by percent")
			}
		}
		if len(w.Match) > 0 {
			kinds++
		}
		if kinds != 1 {
			r.errorf(where, "a wave has one of percent, count and match")
		}
		if last := i == len(p.Waves)-1; last && w.Percent != 100 {
			r.errorf(where, "the last wave must be 100 percent")
		}
	}
	for i, n := range p.ApproveBefore {
		if n > len(p.Waves) {
			r.errorf(in("approve_before", i), "no wave %d: there are %d", n, len(p.Waves))
		}
	}
	names(r, p.Gates, "gate", in("gates")...)
	for _, g := range sorted(p.Gates) {
		if err := gate.Check(p.Gates[g]); err != nil {
			r.errorf(in("gates", g), "%v", err)
			continue
		}
		if gate.Compares(p.Gates[g]) && !slices.ContainsFunc(p.Waves[:max(0, len(p.Waves)-1)], bakes) {
			r.errorf(in("gates", g), "nothing would ever be compared: only the waves before the last have a control group, and none of them has a bake. Give one a bake, or the gate a min or max as well")
		}
		for i, w := range p.Waves {
			bake, err := time.ParseDuration(w.Bake)
			if why := gate.Short(p.Gates[g], bake); err == nil && why != "" {
				r.fail(SeverityWarning, fmt.Sprintf("wave %d cannot pass this gate: %s", i+1, why), in("gates", g))
			}
		}
	}
	return p
}

// longest is the longest time that a step of a rollout may be given: one that takes longer is a slip of the pen, and nobody would live to see its end.
const longest = 30 * 24 * time.Hour

// short refuses a time that is longer. What is no duration the schema refuses.
func (r *fleetRules) short(text string, path ...string) {
	if d, err := time.ParseDuration(text); err == nil && d > longest {
		r.errorf(path, "%s is longer than 30 days (720h)", text)
	}
}

func bakes(w manifest.Wave) bool {
	d, err := time.ParseDuration(w.Bake)
	return err == nil && d > 0
}

func sorted[T any](m map[string]T) []string { return slices.Sorted(maps.Keys(m)) }

// value is a cohort's value of a label or joint label of the precedence; ok is false when it lacks one.
func labelValue(label, cohort string, labels map[string]string) (value string, ok bool) {
	var parts []string
	for l := range strings.SplitSeq(label, "+") {
		v, has := labels[l]
		if l == "cohort" {
			v, has = cohort, true
		}
		if !has {
			return "", false
		}
		parts = append(parts, v)
	}
	return strings.Join(parts, "+"), true
}
