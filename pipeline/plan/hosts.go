package plan

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/muster-config/muster/distributor/inventory"
	"github.com/muster-config/muster/distributor/manifest"
)

// Count is a number of hosts: exact when Min is Max. Unknown are cohorts that do not say how many they have.
type Count struct {
	Min     int      `json:"min"`
	Max     int      `json:"max"`
	Unknown []string `json:"unknown"`
}

func (c Count) String() string {
	var s string
	if c.Min == c.Max {
		s = count(c.Max, "host")
	} else {
		s = number(c.Min) + " to " + count(c.Max, "host")
	}
	switch {
	case len(c.Unknown) == 0:
		return s
	case c.Max == 0:
		return "hosts unknown"
	}
	return s + ", unknown in " + names(c.Unknown, 3)
}

func (c *Count) add(other Count) {
	c.Min, c.Max = c.Min+other.Min, c.Max+other.Max
	c.Unknown = append(c.Unknown, other.Unknown...)
	slices.Sort(c.Unknown)
	c.Unknown = slices.Compact(c.Unknown)
}

// fleetHosts is who runs a cohort, as far as the fleet says.
type fleetHosts struct {
	Count
	named []manifest.Host // nil when only a number is known
}

// fleetHosts finds who runs each cohort: as head says, and as base says of cohorts that head no longer has.
func (c *comparison) fleetHosts(opts Options) {
	c.hosts = map[string]fleetHosts{}
	for _, x := range []*sideIndex{c.head, c.base} {
		list := opts.Inventory
		if list == nil {
			var note string
			if list, note = x.inventory(); note != "" && x == c.head {
				c.Notes = append(c.Notes, note)
			}
		}
		x.listed = map[string]fleetHosts{}
		for name, policy := range x.Policy.Cohorts {
			x.listed[name] = hostsOf(name, policy.Hosts, list)
			if n, known := opts.Expected[name], x.listed[name]; n > known.Max && len(known.named) > 0 {
				known.Count = Count{n, n, []string{}}
				x.listed[name] = known
			}
			if _, ok := c.hosts[name]; !ok {
				c.hosts[name] = x.listed[name]
			}
		}
	}
}

// moved notes the hosts that the inventory file brings to cohorts, or takes from them. Those of the fleet's own lists are settings already.
func (c *comparison) moved() []Setting {
	var out []Setting
	for _, name := range slices.Sorted(maps.Keys(c.head.Policy.Cohorts)) {
		was, ok := c.base.listed[name]
		is := c.head.listed[name]
		if !ok {
			continue
		}
		before, after := map[string]bool{}, map[string]bool{}
		for _, h := range was.named {
			before[h.Name] = true
		}
		for _, h := range is.named {
			after[h.Name] = true
		}
		path := "inventory." + name
		unlisted := func(hosts []string, side *sideIndex) []string {
			return slices.DeleteFunc(hosts, func(h string) bool { return slices.Contains(side.Policy.Cohorts[name].Hosts.List, h) })
		}
		if gone := unlisted(difference(before, after), c.base); len(gone) > 0 {
			out = append(out, Setting{Path: path, Kind: Removed, Before: quote(gone)})
		}
		if come := unlisted(difference(after, before), c.head); len(come) > 0 {
			out = append(out, Setting{Path: path, Kind: Added, After: quote(come)})
		}
	}
	return out
}

func difference(a, b map[string]bool) []string {
	var out []string
	for name := range a {
		if !b[name] {
			out = append(out, name)
		}
	}
	return out
}

func quote(hosts []string) string { return fmt.Sprintf("%q", names(hosts, 20)) }

// inventory reads the fleet's inventory file. The note says why there is none although the fleet names one.
func (x *sideIndex) inventory() (list []inventory.Host, note string) {
	if x.Policy.Inventory == nil || x.Policy.Inventory.File == "" {
		return nil, ""
	}
	name := path.Clean(x.Policy.Inventory.File) // as evaluation reads it
	data, ok := x.sources()[name]
	if !ok {
		return nil, fmt.Sprintf("the inventory %s is not there: hosts are counted without it", name)
	}
	list, err := inventory.ParseCSV(data)
	if err != nil {
		return nil, fmt.Sprintf("the inventory %s does not read: %v: hosts are counted without it", name, err)
	}
	return list, ""
}

// hostsOf takes those of the fleet's list and of the inventory's rows of the cohort (where the fleet matches, those that match), as the collector does; without
// any, the expected number.
func hostsOf(cohort string, policy manifest.HostsPolicy, list []inventory.Host) fleetHosts {
	var named []manifest.Host
	known := map[string]bool{}
	for _, h := range list {
		if h.Cohort == cohort && (len(policy.Match) == 0 || inventory.Matches(policy.Match, h.Labels)) {
			named = append(named, manifest.Host{Name: h.Name, Labels: h.Labels})
			known[h.Name] = true
		}
	}
	for _, name := range policy.List {
		if !known[name] {
			named = append(named, manifest.Host{Name: name})
		}
	}
	switch {
	case len(named) > 0:
		return fleetHosts{Count{len(named), len(named), []string{}}, named}
	case policy.Expect != nil:
		return fleetHosts{Count{policy.Expect.Min, policy.Expect.Max, []string{}}, nil}
	}
	return fleetHosts{Count{0, 0, []string{cohort}}, nil}
}

// without is the count of a cohort without n of its hosts.
func (c Count) without(n int) Count {
	c.Min, c.Max = max(0, c.Min-n), max(0, c.Max-n)
	c.Unknown = slices.Clone(c.Unknown)
	return c
}

// where turns the places of one change into cohorts, hosts beside them, and hosts left out. all are the places at which the service was compared.
func (c *comparison) where(at map[place]bool, all []place) Where {
	w := Where{Cohorts: []string{}, Hosts: []string{}, Except: []string{}, Count: Count{Unknown: []string{}}}
	without := map[string]int{}
	for p := range at {
		switch {
		case p.host == "":
			w.Cohorts = append(w.Cohorts, p.cohort)
		case !at[place{p.cohort, ""}]:
			w.Hosts = append(w.Hosts, p.String())
		}
	}
	for _, p := range all {
		if p.host != "" && at[place{p.cohort, ""}] && !at[p] {
			w.Except = append(w.Except, p.String())
			without[p.cohort]++
		}
	}
	for _, list := range [][]string{w.Cohorts, w.Hosts, w.Except} {
		slices.Sort(list)
	}
	w.Except = slices.Compact(w.Except)
	for _, cohort := range w.Cohorts {
		w.Count.add(c.hosts[cohort].without(without[cohort]))
	}
	w.Count.add(Count{Min: len(w.Hosts), Max: len(w.Hosts)})
	return w
}

// places groups the places of equal changes, in the order in which they are first met.
type places[T any] struct {
	order []string
	by    map[string]*group[T]
}

type group[T any] struct {
	what T
	at   map[place]bool
}

// add puts one place to what is found under key; merge is called with what is there.
func (g *places[T]) add(key string, at place, fresh func() T, merge func(*T)) {
	if g.by == nil {
		g.by = map[string]*group[T]{}
	}
	found := g.by[key]
	if found == nil {
		found = &group[T]{what: fresh(), at: map[place]bool{}}
		g.by[key] = found
		g.order = append(g.order, key)
	}
	found.at[at] = true
	if merge != nil {
		merge(&found.what)
	}
}

// comparedAt are the places of each service, for where.
func (c *comparison) comparedAt() map[string][]place {
	all := map[string][]place{}
	for _, p := range c.pairs {
		all[p.service] = append(all[p.service], p.place)
	}
	return all
}

func (w Where) String() string {
	parts := slices.Clone(w.Cohorts)
	parts = append(parts, w.Hosts...)
	s := names(parts, 6)
	if len(w.Except) > 0 {
		s += " except " + names(w.Except, 3)
	}
	return s + " (" + w.Count.String() + ")"
}

// Wave is a step of a rollout. Hosts counts all that have the release once the wave is done, where that is known.
type Wave struct {
	What    string `json:"what"` // "5%", "3 hosts", "canary=true"
	Hosts   Count  `json:"hosts"`
	Bake    string `json:"bake"`
	Approve bool   `json:"approve"` // somebody approves it first
}

// waves are the steps in which a cohort takes the release.
func waves(cohort string, policy manifest.RolloutPolicy, hosts fleetHosts) []Wave {
	out := []Wave{}
	var before Count
	for i, w := range policy.Waves {
		step := Wave{Bake: w.Bake, Approve: slices.Contains(policy.ApproveBefore, i+1), Hosts: Count{Unknown: []string{}}}
		size := func(n int) int { return 0 }
		switch {
		case len(w.Match) > 0:
			step.What = labels(w.Match)
			if hosts.named == nil {
				step.Hosts.Unknown = []string{cohort}
				break
			}
			n := 0
			for _, h := range hosts.named {
				if contains(h.Labels, w.Match) {
					n++
				}
			}
			size = func(int) int { return n }
		case w.Count > 0:
			step.What = count(w.Count, "host")
			size = func(n int) int { return min(w.Count, n) }
		default:
			step.What = fmt.Sprintf("%v%%", w.Percent)
			size = func(n int) int { return manifest.WaveSize(w.Percent, n) }
		}
		if len(hosts.Unknown) > 0 {
			step.Hosts.Unknown = []string{cohort}
		}
		// A later wave never has fewer, and Min asks for some more.
		at := func(n, prev int) int { return min(n, max(size(n), w.Min, prev)) }
		if len(step.Hosts.Unknown) == 0 {
			step.Hosts.Min, step.Hosts.Max = at(hosts.Min, before.Min), at(hosts.Max, before.Max)
			before = step.Hosts
		}
		out = append(out, step)
	}
	return out
}

func labels(m map[string]string) string {
	var parts []string
	for _, k := range slices.Sorted(maps.Keys(m)) {
		parts = append(parts, k+"="+m[k])
	}
	return strings.Join(parts, ",")
}

func contains(have, want map[string]string) bool {
	for k, v := range want {
		if have[k] != v {
			return false
		}
	}
	return true
}
