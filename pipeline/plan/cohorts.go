package plan

import (
	"maps"
	"slices"
	"strings"

	"github.com/muster-config/muster/distributor/manifest"
)

// State of a cohort in a plan.
type State string

// States.
const (
	StateChanged   State = "changed"
	StateUnchanged State = "unchanged"
	StateAdded     State = "added"
	StateRemoved   State = "removed"
	StateBlocked   State = "blocked"      // head does not validate there: its hosts keep what they have
	StateUnknown   State = "not compared" // base does not validate there
)

// Cohort is what becomes of one cohort.
type Cohort struct {
	Name     string   `json:"name"`
	State    State    `json:"state"`
	Why      string   `json:"why"` // of one that is blocked, or not compared
	Hosts    Count    `json:"hosts"`
	Affected Count    `json:"affected"` // hosts whose files or evidence change
	Services []string `json:"services"` // that change
	Content0 string   `json:"content0"` // of head; "" when there is none
	Rollout  string   `json:"rollout"`  // the policy in force: base's
	Waves    []Wave   `json:"waves"`    // empty when nothing changes
}

// cohorts decides the state of each cohort, and pairs the units that can be compared.
func (c *comparison) cohorts() {
	union := slices.Concat(slices.Collect(maps.Keys(c.base.Policy.Cohorts)), slices.Collect(maps.Keys(c.head.Policy.Cohorts)))
	slices.Sort(union)
	for _, name := range slices.Compact(union) {
		co := Cohort{Name: name, Hosts: c.hosts[name].Count, Affected: Count{Unknown: []string{}}, Services: []string{}, Waves: []Wave{}}
		_, inBase := c.base.Policy.Cohorts[name]
		_, inHead := c.head.Policy.Cohorts[name]
		if c.head.has(name) {
			co.Content0 = c.head.content0(name, "")
		}
		switch {
		case c.head.Refused:
			co.State, co.Why = StateBlocked, c.head.Blocked[name]
			if co.Why == "" {
				co.Why = "nothing of " + c.head.Name + " can be published"
			}
		case !inHead:
			co.State, co.Affected = StateRemoved, co.Hosts
			co.Services = keys(c.base.units[name])
		case c.head.Blocked[name] != "":
			co.State, co.Why = StateBlocked, c.head.Blocked[name]
		case !inBase && len(c.base.Policy.Cohorts) == 0:
			co.State, co.Why = StateUnknown, c.base.Name+" has no fleet that can be read"
			co.Affected = co.Hosts
			c.missing("", name)
		case !inBase:
			co.State, co.Affected = StateAdded, co.Hosts
			co.Services = keys(c.head.units[name])
		default:
			c.compareCohort(&co)
		}
		if co.State == StateChanged || co.State == StateAdded || co.State == StateUnknown {
			c.waves(&co)
		}
		c.Cohorts = append(c.Cohorts, co)
	}
}

// compareCohort pairs the units of a cohort that both sides have.
func (c *comparison) compareCohort(co *Cohort) {
	pairs := c.compared(co.Name)
	c.pairs = append(c.pairs, pairs...)
	differ := map[string]bool{} // host → something of it differs
	services := map[string]bool{}
	for _, p := range pairs {
		if p.differs() {
			differ[p.host] = true
			services[p.service] = true
		}
	}
	// A host that has its own files of one service gets the cohort's of all others.
	variants := map[string]map[string]pair{}
	for _, p := range pairs {
		if p.host != "" {
			if variants[p.host] == nil {
				variants[p.host] = map[string]pair{}
			}
			variants[p.host][p.service] = p
		}
	}
	affected := func(host string) bool {
		for _, p := range pairs {
			if p.host != "" {
				continue
			}
			if own, ok := variants[host][p.service]; ok {
				p = own
			}
			if p.differs() {
				return true
			}
		}
		return false
	}
	co.Services = keys(services)
	if differ[""] {
		spared := 0
		for host := range variants {
			if !affected(host) {
				spared++
			}
		}
		co.Affected = co.Hosts.without(spared)
	} else {
		delete(differ, "")
		co.Affected = Count{len(differ), len(differ), []string{}}
	}
	blocked := c.base.Blocked[co.Name]
	switch {
	// What its hosts run is an older release, or nothing: nobody can say that they stay as they are.
	case blocked != "":
		co.State, co.Why, co.Affected = StateUnknown, "it is blocked in "+c.base.Name+": "+blocked, co.Hosts
	case c.base.Refused:
		co.State, co.Why, co.Affected = StateUnknown, "nothing of "+c.base.Name+" can be published", co.Hosts
	case len(services) > 0:
		co.State = StateChanged
	default:
		co.State = StateUnchanged
	}
}

// differs reports whether a host sees a change: a file, its mode, or the evidence asked for.
func (p pair) differs() bool {
	switch {
	case p.before == nil || p.after == nil:
		return p.before != p.after
	case p.before.Evidence != p.after.Evidence || len(p.before.Files) != len(p.after.Files) || p.before.UsesEpoch != p.after.UsesEpoch:
		return true
	}
	before := filesByName(p.before)
	for _, f := range p.after.Files {
		old, ok := before[f.Name]
		if !ok || old.Mode != f.Mode || string(old.Data) != string(f.Data) {
			return true
		}
	}
	return false
}

// waves fills in how the cohort takes the release: under the policy of what it runs now; a changed policy counts from the next release on.
func (c *comparison) waves(co *Cohort) {
	policy, ok := c.base.Policy.Cohorts[co.Name]
	rollouts := c.base.Policy.Rollouts
	if !ok {
		policy, rollouts = c.head.Policy.Cohorts[co.Name], c.head.Policy.Rollouts
	}
	co.Rollout = policy.Rollout
	var rollout manifest.RolloutPolicy
	if rollout, ok = rollouts[policy.Rollout]; ok {
		co.Waves = waves(co.Name, rollout, c.hosts[co.Name])
	}
}

// services notes those that come to a cohort or leave it. Of a cohort that is added or removed itself the cohort's line tells it.
func (c *comparison) services() {
	all := c.comparedAt()
	var groups places[Service]
	for _, p := range c.pairs {
		unit, kind := p.after, Added
		switch {
		case p.host != "":
			continue
		case p.before == nil && p.after != nil:
		case p.before != nil && p.after == nil:
			unit, kind = p.before, Removed
		default:
			continue
		}
		groups.add(p.service+"\x00"+string(kind), p.place, func() Service {
			return Service{Service: p.service, Kind: kind}
		}, func(s *Service) {
			s.Values, s.Files = max(s.Values, len(unit.Leaves)), max(s.Files, len(unit.Files))
		})
	}
	for _, key := range groups.order {
		g := groups.by[key]
		g.what.In = c.where(g.at, all[g.what.Service])
		c.Services = append(c.Services, g.what)
	}
	slices.SortStableFunc(c.Services, func(a, b Service) int { return strings.Compare(a.Service, b.Service) })
}

// evidence notes the services that ask for another proof.
func (c *comparison) evidence() {
	all := c.comparedAt()
	var groups places[Evidence]
	for _, p := range c.pairs {
		if p.before == nil || p.after == nil || p.before.Evidence == p.after.Evidence {
			continue
		}
		e := Evidence{Service: p.service, Before: p.before.Evidence, After: p.after.Evidence}
		groups.add(strings.Join([]string{e.Service, string(e.Before), string(e.After)}, "\x00"), p.place, func() Evidence { return e }, nil)
	}
	for _, key := range groups.order {
		g := groups.by[key]
		g.what.In = c.where(g.at, all[g.what.Service])
		c.Evidence = append(c.Evidence, g.what)
	}
	slices.SortStableFunc(c.Evidence, func(a, b Evidence) int { return strings.Compare(a.Service, b.Service) })
}

// variants notes hosts that begin or cease to have files of their own: an overlay that comes to the same as its cohort makes none.
func (c *comparison) variants() {
	for _, p := range c.pairs {
		if p.host == "" {
			continue
		}
		own := func(x *sideIndex) bool {
			units := x.units[p.cohort][p.service]
			return units[p.host] != nil && pair{before: units[""], after: units[p.host]}.differs()
		}
		before, after := own(c.base), own(c.head)
		v := Variant{Cohort: p.cohort, Host: p.host, Service: p.service, Kind: Added}
		switch {
		case before == after:
			continue
		case before:
			v.Kind = Removed
		}
		c.Variants = append(c.Variants, v)
	}
}
