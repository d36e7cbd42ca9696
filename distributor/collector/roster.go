package collector

import (
	"maps"
	"slices"
	"strings"

	"github.com/muster-config/muster/distributor/inventory"
	"github.com/muster-config/muster/distributor/manifest"
)

// roster is who is expected where by name. It is made anew when the fleet or a list changes, and never altered.
type roster struct {
	hosts  map[string]map[string]map[string]string // cohort → host → labels of the lists; shared, read only
	home   map[string]string                       // host → the first cohort that has it
	also   map[string][]string                     // host → the others that have it; only hosts that have some
	listed map[string]bool                         // cohorts whose hosts are named: another one is out of place there
}

// makeRoster brings the fleet's own lists and those of all sources together. Whoever stands in one of them is expected; `match` chooses among the rows of an inventory.
func makeRoster(p *manifest.Policy, lists []*hostList) *roster {
	r := &roster{hosts: map[string]map[string]map[string]string{}, home: map[string]string{}, also: map[string][]string{}, listed: map[string]bool{}}
	if p == nil {
		return r
	}
	none := map[string]string{}
	words := map[string]map[string]string{}
	labelsOf := func(m map[string]string) map[string]string {
		if len(m) == 0 {
			return none
		}
		var b strings.Builder
		for _, k := range slices.Sorted(maps.Keys(m)) {
			b.WriteString(k + "\x00" + m[k] + "\x00")
		}
		kept, ok := words[b.String()]
		if !ok {
			kept = m
			words[b.String()] = m
		}
		return kept
	}
	add := func(cohort, host string, labels map[string]string) {
		if r.hosts[cohort] == nil {
			r.hosts[cohort] = map[string]map[string]string{}
		}
		if len(labels) > 0 || r.hosts[cohort][host] == nil {
			r.hosts[cohort][host] = labelsOf(labels)
		}
		switch home := r.home[host]; {
		case home == "":
			r.home[host] = cohort
		case home != cohort && !slices.Contains(r.also[host], cohort):
			r.also[host] = append(r.also[host], cohort)
		}
		r.listed[cohort] = true
	}
	for _, name := range slices.Sorted(maps.Keys(p.Cohorts)) {
		for _, h := range p.Cohorts[name].Hosts.List {
			add(name, h, nil)
		}
	}
	for _, l := range lists {
		if l.cohort != "" && !l.at.IsZero() {
			r.listed[l.cohort] = true
		}
		for _, h := range l.hosts {
			co, ok := p.Cohorts[h.Cohort]
			if !ok || len(co.Hosts.Match) > 0 && !inventory.Matches(co.Hosts.Match, h.Labels) {
				continue
			}
			add(h.Cohort, h.Name, h.Labels)
		}
	}
	return r
}

// homes are the cohorts that have a host, but for one, for a sentence; "" if no other has.
func (r *roster) homes(host, but string) string {
	list := r.also[host]
	if len(list) == 0 && r.home[host] == but {
		return "" // as nearly always
	}
	if home := r.home[host]; home != "" && home != but {
		list = append([]string{home}, list...)
	}
	if slices.Contains(list, but) {
		list = slices.DeleteFunc(slices.Clone(list), func(c string) bool { return c == but })
	}
	if len(list) < 2 {
		return strings.Join(list, "")
	}
	return strings.Join(list[:len(list)-1], ", ") + " and " + list[len(list)-1]
}

func (r *roster) has(cohort, host string) bool {
	_, ok := r.hosts[cohort][host]
	return ok
}

// setRoster makes the roster anew, and marks who is listed by it: leaving it later retires a host. Under c.mu.
func (c *Collector) setRoster() {
	var lists []*hostList
	for _, name := range slices.Sorted(maps.Keys(c.lists)) {
		lists = append(lists, c.lists[name])
	}
	c.roster = makeRoster(c.fleet, lists)
	for name, co := range c.cohorts {
		for hostName, h := range co.hosts {
			if !h.listed && c.roster.has(name, hostName) {
				h.listed = true
				c.dirty.host(name, hostName, nil)
			}
		}
	}
	c.bump()
}
