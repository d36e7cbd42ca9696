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

	var percent float64
	var count int
	for i, w := range p.Waves {
		where, kinds := in("waves", i), 0
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
		for i, w := range p.Waves {
			bake, err := time.ParseDuration(w.Bake)
			if why := gate.Short(p.Gates[g], bake); err == nil && why != "" {
				r.fail(SeverityWarning, fmt.Sprintf("wave %d cannot pass this gate: %s", i+1, why), in("gates", g))
			}
		}
	}
	return p
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
