package pipeline

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/muster-config/muster/cue/eval"
	"github.com/muster-config/muster/distributor/manifest"
)

// Override is a cohort of this build under overrides, the oldest first: only the services that they change are evaluated again, the others are this build's. What
// does not validate is in its problems, and blocks the cohort. The build may be narrowed to cohorts, not to services. Overrides of other cohorts are an error, and so
// is a service that the cohort does not carry.
func (r *Rendered) Override(ctx context.Context, cohortName string, overrides []eval.Override) (*Rendered, error) {
	plain, ok := r.cohorts[cohortName]
	if !ok {
		return nil, fmt.Errorf("cohort %q: %w", cohortName, ErrUnknownCohort)
	}
	policy := r.Policy.Cohorts[cohortName]
	out := &Rendered{Identity: r.Identity, Policy: r.Policy, Source: r.Source, opts: r.opts, request: r.request}
	out.Policy.Cohorts = map[string]manifest.CohortPolicy{cohortName: policy}
	out.opts.Services, out.opts.Cohorts = nil, nil
	out.request.Overrides, out.request.Services, out.request.Cohorts = overrides, nil, []string{cohortName}
	for _, o := range overrides {
		if o.Cohort != cohortName {
			return nil, fmt.Errorf("override %s is of cohort %s, not %s", o.ID, o.Cohort, cohortName)
		}
		if !slices.Contains(policy.Services, o.Service) {
			// A commit may have taken the service away: then there is nothing to lay the override over.
			out.cohorts = map[string]*cohort{cohortName: plain}
			out.result = &eval.Result{Policy: out.Policy}
			out.refuse(o.Service, []string{cohortName}, "the cohort does not carry the service that the override changes")
			out.Problems[len(out.Problems)-1].SetAt = []eval.Pos{{File: "override " + o.ID}}
			return out, nil
		}
		out.request.Services = append(out.request.Services, o.Service)
	}
	slices.Sort(out.request.Services)
	out.request.Services = slices.Compact(out.request.Services)
	out.cohorts = map[string]*cohort{cohortName: plain.without(out.request.Services)}
	if len(overrides) == 0 {
		out.cohorts[cohortName], out.result = plain, &eval.Result{Policy: out.Policy}
		return out, nil
	}
	result, err := r.opts.Evaluate(ctx, &out.request, r.opts.Limits)
	if err != nil {
		return nil, fmt.Errorf("evaluate %s with override %s: %w", r.name(), overrides[len(overrides)-1].ID, err)
	}
	out.result = result
	// What is wrong with the other services of this cohort stays wrong.
	for _, p := range r.Problems {
		if p.Service != "" && !slices.Contains(out.request.Services, p.Service) && (len(p.Cohorts) == 0 || slices.Contains(p.Cohorts, cohortName)) {
			out.Problems = append(out.Problems, p)
		}
	}
	out.Problems = append(out.Problems, result.Problems...)
	c := out.cohorts[cohortName]
	for _, u := range result.Units {
		switch {
		case u.Cohort != cohortName:
		case len(u.Files) == 0:
			out.refuse(u.Service, []string{cohortName}, "renders no file under the override: nothing would be left of it on its hosts")
		case u.Host != "":
			if c.hosts[u.Host] == nil {
				c.hosts[u.Host] = map[string]service{}
			}
			c.hosts[u.Host][u.Service] = newService(u, false)
		default:
			c.services[u.Service] = newService(u, false)
		}
	}
	return out, nil
}

// without is a copy without some services.
func (c *cohort) without(names []string) *cohort {
	named := func(name string, _ service) bool { return slices.Contains(names, name) }
	out := &cohort{services: maps.Clone(c.services), hosts: map[string]map[string]service{}}
	maps.DeleteFunc(out.services, named)
	for host, own := range c.hosts {
		own = maps.Clone(own)
		if maps.DeleteFunc(own, named); len(own) > 0 {
			out.hosts[host] = own
		}
	}
	return out
}

// overridden are the digests of the overrides that decided what was rendered.
func (r *Rendered) overridden() []string {
	list := []string{}
	for _, o := range r.request.Overrides {
		list = append(list, digestOf(struct {
			ID      string   `json:"id"`
			Hosts   []string `json:"hosts"`
			Service string   `json:"service"`
			Values  string   `json:"values"`
		}{o.ID, append([]string{}, o.Hosts...), o.Service, o.Values}))
	}
	return list
}
