package amend

import (
	"cmp"
	"iter"
	"maps"
	"slices"
	"strings"

	"github.com/muster-config/muster/distributor/manifest"
)

// spot is a layer that could get values: base, or the overlay of a label's value.
type spot struct {
	label, value string // "" is base
	rank         int    // in the order of precedence: the least specific first
	values       string
	covers       []string // cohorts, or cohort/host, that it is for, sorted
}

func (s spot) name() string {
	if s.label == "" {
		return "base"
	}
	return s.label + "=" + s.value
}

// sets gives sets of layers in the order in which they are to be tried: one layer before two, the less specific before the more specific.
func (s *search) sets() iter.Seq[[]spot] {
	return func(yield func([]spot) bool) {
		values := map[string]bool{}
		var cohorts []string // overridden as a whole
		var hosts []spot
		for _, p := range s.parts {
			values[p.Values] = true
			if len(p.Hosts) == 0 {
				cohorts = append(cohorts, p.Cohort)
			}
			for _, h := range p.Hosts {
				hosts = append(hosts, spot{label: "host", value: h, values: p.Values})
			}
		}
		if len(hosts) > 0 && !slices.Contains(s.built.Policy.Precedence, "host") {
			s.why = `single hosts have a layer of their own only with "host" in the fleet's precedence`
			return
		}
		if len(values) > 1 { // one override says one thing; several parts of it may come from several changes
			s.why = "the cohorts do not all get the same values"
			return
		}
		slices.Sort(cohorts)
		text := s.parts[0].Values
		all := s.spots(text)
		give := func(set []spot) bool { return yield(slices.Concat(set, hosts)) }
		if len(cohorts) == 0 {
			give(nil)
			return
		}
		// One that is for all of them, and may be for others, on whom it may have no effect: a layer above hides it.
		for _, one := range all {
			if contains(one.covers, cohorts) && !give([]spot{one}) {
				return
			}
		}
		// Several that are for nobody else, as few as possible.
		within := slices.DeleteFunc(slices.Clone(all), func(o spot) bool { return len(o.covers) == 0 || !contains(cohorts, o.covers) })
		if len(within) > maxSpots { // too many to look at all sets
			if !give(largest(within, cohorts)) {
				return
			}
			within = nil
		}
		for size := 2; size <= min(maxTaken, len(within)); size++ {
			if !choose(within, size, nil, func(set []spot) bool {
				return !covered(set, cohorts) || give(set)
			}) {
				return
			}
		}
		// Each cohort by itself, in its most specific layer.
		var each []spot
		for _, name := range cohorts {
			own := slices.DeleteFunc(slices.Clone(all), func(o spot) bool { return !slices.Equal(o.covers, []string{name}) })
			if len(own) == 0 {
				if s.why == "" {
					s.why = "cohort " + name + ` has no layer for itself alone: "cohort" is not in the fleet's precedence`
				}
				return
			}
			each = append(each, own[len(own)-1])
		}
		give(each)
	}
}

// maxSpots are the layers of which all small sets are looked at.
const maxSpots = 20

// largest covers cohorts by what covers most of what is left, again and again.
func largest(list []spot, cohorts []string) (set []spot) {
	left := slices.Clone(cohorts)
	for len(left) > 0 {
		best, n := -1, 0
		for i, o := range list {
			fresh := 0
			for _, c := range o.covers {
				if slices.Contains(left, c) {
					fresh++
				}
			}
			if fresh > n {
				best, n = i, fresh
			}
		}
		if best < 0 {
			return nil
		}
		set = append(set, list[best])
		left = slices.DeleteFunc(left, func(c string) bool { return slices.Contains(list[best].covers, c) })
	}
	return set
}

// spots are the layers that cohorts of the service use, or could use, the least specific first.
func (s *search) spots(values string) []spot {
	var carrying []string
	for name, c := range s.built.Policy.Cohorts {
		if slices.Contains(c.Services, s.service) {
			carrying = append(carrying, name)
		}
	}
	slices.Sort(carrying)
	list := []spot{{values: values, covers: carrying}}
	for i, label := range s.built.Policy.Precedence {
		found := map[string][]string{}
		for _, name := range carrying {
			if v, ok := labelValue(label, name, s.built.Policy.Cohorts[name]); ok {
				found[v] = append(found[v], name)
			}
		}
		for _, v := range slices.Sorted(maps.Keys(found)) {
			list = append(list, spot{label: label, value: v, rank: i + 1, values: values, covers: found[v]})
		}
	}
	slices.SortStableFunc(list, func(a, b spot) int { return cmp.Compare(a.rank, b.rank) })
	return list
}

// labelValue is a cohort's value of a label, or of a joint one.
func labelValue(label, cohort string, c manifest.CohortPolicy) (string, bool) {
	var parts []string
	for l := range strings.SplitSeq(label, "+") {
		v, ok := c.Labels[l]
		if l == "cohort" {
			v, ok = cohort, true
		}
		if l == "host" || !ok {
			return "", false
		}
		parts = append(parts, v)
	}
	return strings.Join(parts, "+"), true
}

// choose gives the subsets of a size, in order; false when it was told to stop.
func choose(list []spot, size int, chosen []spot, each func([]spot) bool) bool {
	if size == 0 {
		return each(slices.Clone(chosen))
	}
	for i := 0; i+size <= len(list); i++ {
		if !choose(list[i+1:], size-1, append(chosen[:len(chosen):len(chosen)], list[i]), each) {
			return false
		}
	}
	return true
}

func contains(all, part []string) bool {
	return !slices.ContainsFunc(part, func(s string) bool { return !slices.Contains(all, s) })
}

// covered reports whether a set is for all of some cohorts, with none of it in vain.
func covered(set []spot, cohorts []string) bool {
	for i := range set {
		var others []string
		for j, o := range set {
			if j != i {
				others = append(others, o.covers...)
			}
		}
		if contains(others, set[i].covers) {
			return false
		}
	}
	var all []string
	for _, o := range set {
		all = append(all, o.covers...)
	}
	return contains(all, cohorts)
}
