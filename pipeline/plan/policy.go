package plan

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"github.com/muster-config/muster/cue/eval/layer"
	"github.com/muster-config/muster/distributor/manifest"
)

// policyChanges compares the fleets setting by setting. What services a cohort carries is told by the services, and a cohort that comes or goes by the cohort.
func policyChanges(base, head Side) []Setting {
	out := []Setting{}
	if len(base.Policy.Cohorts) == 0 || len(head.Policy.Cohorts) == 0 {
		return out // one of them does not read
	}
	before, after := flatPolicy(base.Policy, head.Policy), flatPolicy(head.Policy, base.Policy)
	for _, path := range slices.Sorted(maps.Keys(union(before, after))) {
		was, hadIt := before[path]
		is, hasIt := after[path]
		s := Setting{Path: path, Before: was, After: is, Kind: Changed}
		switch {
		case was == is:
			continue
		case !hadIt:
			s.Kind = Added
		case !hasIt:
			s.Kind = Removed
		}
		out = append(out, s)
	}
	return out
}

// flatPolicy are the settings of a fleet by path, as JSON. Lists stay whole, but for host names, of which there are many: each is a setting of its own.
func flatPolicy(p, other manifest.Policy) map[string]string {
	p.Cohorts = maps.Clone(p.Cohorts)
	for name, c := range p.Cohorts {
		if _, ok := other.Cohorts[name]; !ok {
			delete(p.Cohorts, name)
			continue
		}
		c.Services = nil
		p.Cohorts[name] = c
	}
	data, err := json.Marshal(p)
	if err != nil {
		panic("plan: " + err.Error()) // plain data always encodes
	}
	var tree any
	d := json.NewDecoder(strings.NewReader(string(data)))
	d.UseNumber()
	if err := d.Decode(&tree); err != nil {
		panic("plan: " + err.Error())
	}
	flat := map[string]string{}
	flatten(flat, nil, tree)
	return flat
}

func flatten(into map[string]string, path []string, v any) {
	switch v := v.(type) {
	case map[string]any:
		for k, sub := range v {
			flatten(into, append(slices.Clip(path), k), sub)
		}
		return
	case []any:
		if n := len(path); n > 1 && path[n-2] == "hosts" && path[n-1] == "list" {
			for _, host := range v {
				if name, ok := host.(string); ok {
					into[layer.PathText(append(slices.Clip(path), name))] = "true"
				}
			}
			return
		}
	case nil:
		return
	}
	text, err := json.Marshal(v)
	if err != nil {
		panic("plan: " + err.Error())
	}
	into[layer.PathText(path)] = secretURL.ReplaceAllString(string(text), "://"+secretText+"@")
}
