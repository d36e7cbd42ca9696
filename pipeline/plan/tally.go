package plan

import (
	"fmt"
	"strings"
)

// Tally counts what changes.
type Tally struct {
	Values   int   `json:"values"`   // paths that differ somewhere
	Services int   `json:"services"` // of which something differs
	Valued   int   `json:"valued"`   // services of which a value differs
	Files    int   `json:"files"`
	Added    int   `json:"added"`    // services that come to a cohort
	Removed  int   `json:"removed"`  // services that leave one
	Settings int   `json:"settings"` // of the fleet
	Cohorts  int   `json:"cohorts"`  // that get something else
	Of       int   `json:"of"`       // cohorts there are after the change
	Blocked  int   `json:"blocked"`  // cohorts
	Hosts    Count `json:"hosts"`    // that get something else
	Stay     Count `json:"stay"`     // that do not
}

// tally counts, and says it in one line.
func (p *Plan) tally(c *comparison) {
	values, valued, services, files := map[string]bool{}, map[string]bool{}, map[string]bool{}, map[string]bool{}
	for _, v := range p.Values {
		values[v.Service+"\x00"+v.Path] = true
		valued[v.Service] = true
	}
	for _, f := range p.Files {
		files[f.Service+"\x00"+f.Name] = true
	}
	moved := map[Kind]map[string]bool{Added: {}, Removed: {}}
	for _, s := range p.Services {
		moved[s.Kind][s.Service] = true
	}
	t := Tally{Added: len(moved[Added]), Removed: len(moved[Removed]), Values: len(values), Files: len(files), Settings: len(p.Policy), Hosts: Count{Unknown: []string{}}, Stay: Count{Unknown: []string{}}}
	for _, co := range p.Cohorts {
		if _, ok := c.head.Policy.Cohorts[co.Name]; ok {
			t.Of++
		}
		switch co.State {
		case StateBlocked:
			t.Blocked++
			t.Stay.add(co.Hosts)
			continue
		case StateUnchanged:
			t.Stay.add(co.Hosts)
			continue
		}
		t.Cohorts++
		t.Hosts.add(co.Affected)
		for _, s := range co.Services {
			services[s] = true
		}
		// Files of a cohort that comes or goes are no line of their own, but they count.
		for _, x := range []*sideIndex{c.base, c.head} {
			if co.State != StateAdded && co.State != StateRemoved {
				break
			}
			for s, units := range x.units[co.Name] {
				for name := range filesByName(units[""]) {
					files[s+"\x00"+name] = true
				}
			}
		}
	}
	t.Services, t.Valued, t.Files = len(services), len(valued), len(files)
	p.Tally = t
	p.Changes = t.Cohorts > 0 || t.Settings > 0
	p.Summary = t.line()
}

func (t Tally) line() string {
	blocked := ""
	if t.Blocked > 0 {
		blocked = "; " + count(t.Blocked, "cohort") + " blocked by errors"
	}
	if t.Cohorts == 0 {
		s := "nothing changes on any host"
		if t.Settings > 0 {
			s = fmt.Sprintf("%s of the fleet, and nothing changes on any host", count(t.Settings, "setting"))
		}
		return s + ": " + count(t.Of, "cohort") + ", " + t.Stay.String() + blocked
	}
	var parts []string
	switch {
	case t.Values > 0:
		parts = append(parts, count(t.Values, "value")+" in "+count(t.Valued, "service"))
	case t.Services > 0 && t.Added+t.Removed == 0:
		parts = append(parts, count(t.Services, "service"))
	}
	if t.Added > 0 {
		parts = append(parts, count(t.Added, "service")+" added")
	}
	if t.Removed > 0 {
		parts = append(parts, count(t.Removed, "service")+" removed")
	}
	if t.Files > 0 {
		parts = append(parts, count(t.Files, "file"))
	}
	if t.Settings > 0 {
		parts = append(parts, count(t.Settings, "setting")+" of the fleet")
	}
	of := fmt.Sprintf("%s of %s", number(t.Cohorts), count(t.Of, "cohort"))
	if t.Cohorts > t.Of { // some are removed
		of = count(t.Cohorts, "cohort")
	}
	return strings.Join(append(parts, of, t.Hosts.String()), ", ") + blocked
}
