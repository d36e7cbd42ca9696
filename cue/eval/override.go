package eval

import (
	"slices"
	"strings"

	"cuelang.org/go/cue"

	"github.com/muster-config/muster/cue/eval/layer"
)

// Override is what an emergency override says of one service: a layer above all others, for a cohort or for some of its hosts. It is validated as every layer is.
type Override struct {
	ID      string
	Cohort  string
	Hosts   []string // sorted; empty: the whole cohort
	Service string
	Values  string // JSON text of an object; null deletes
}

// overridePlace is where a value of an override is written, in messages: its id is all that a reader can look up.
const overridePlace = "override "

// covers reports whether an override is for a target. One for some hosts is not for the cohort itself.
func (o *Override) covers(t target) bool {
	return o.Cohort == t.cohort && (len(o.Hosts) == 0 || t.host != "" && slices.Contains(o.Hosts, t.host))
}

func overridesOf(all []Override, service string) (own []Override) {
	for _, o := range all {
		if o.Service == service {
			own = append(own, o)
		}
	}
	return own
}

type overrideLayer struct {
	Override
	node *layer.Node
}

// readOverrides reads those of the service. What is wrong with one is a problem of its cohort.
func (r *serviceRun) readOverrides() (problems []Problem) {
	for _, o := range overridesOf(r.req.Overrides, r.name) {
		n, errs := layer.ReadAs(".json", overridePlace+o.ID, []byte(o.Values), false)
		found := fromLayer(r.name, errs)
		for i := range found {
			found[i].Cohorts = []string{o.Cohort}
		}
		problems = append(problems, found...)
		r.hide.learn(n, func([]string) cue.Value { return cue.Value{} })
		r.overrides = append(r.overrides, overrideLayer{o, n})
	}
	return problems
}

// override puts the overrides of a target on top of its layers, the oldest first: of two on one path the newer wins.
func (r *serviceRun) override(s *stack, t target) (problems []Problem) {
	for _, o := range r.overrides {
		if !o.covers(t) {
			continue
		}
		if r.inst != nil && !r.hasValues {
			problems = append(problems, Problem{
				Severity: SeverityError, Service: r.name, SetAt: []Pos{{File: overridePlace + o.ID}},
				Message: "this service has no #Config and no values that a layer could change: change its package in the config repo",
			})
			continue
		}
		s.push("override="+o.ID, o.node)
	}
	return problems
}

// overriddenHosts are hosts, and those of the cohort that have an override of their own on this service.
func (r *serviceRun) overriddenHosts(cohort string, hosts []string) []string {
	all := slices.Clone(hosts)
	for _, o := range r.overrides {
		if o.Cohort == cohort {
			all = append(all, o.Hosts...)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// overridePlaces leaves out line and column of what an override says: it is no file that anybody has open.
func overridePlaces(problems []Problem, units []Unit) {
	plain := func(at *Pos) {
		if strings.HasPrefix(at.File, overridePlace) {
			at.Line, at.Col = 0, 0
		}
	}
	for i := range problems {
		p := &problems[i]
		for j := range p.SetAt {
			plain(&p.SetAt[j])
		}
		p.SetAt = distinct(p.SetAt)
	}
	for _, u := range units {
		for i := range u.Leaves {
			l := &u.Leaves[i]
			plain(&l.At)
			for j := range l.Shadows {
				plain(&l.Shadows[j].At)
			}
		}
	}
}

func putOverride(e *encoder, o *Override) {
	e.string(o.ID)
	e.string(o.Cohort)
	list(e, o.Hosts, putString)
	e.string(o.Service)
	e.string(o.Values)
}

func getOverride(d *decoder, o *Override) {
	o.ID, o.Cohort, o.Hosts, o.Service, o.Values = d.string(), d.string(), unlist(d, getString), d.string(), d.string()
}
