// Package plan says what a change of the config repo does before anybody runs it: two builds in, a Plan out. It is pure; what it prints of other people's text
// can neither steer a terminal nor break out of a comment, and no secret is in it.
package plan

import (
	"maps"
	"slices"
	"strings"

	"github.com/muster-config/muster/cue/eval"
	"github.com/muster-config/muster/distributor/bundle"
	"github.com/muster-config/muster/distributor/inventory"
	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/pipeline"
)

// Side is one of the two builds, evaluated with leaves and files.
type Side struct {
	Name     string // "commit 1f2e3d4c5b6a", "work tree"
	Commit   string // full id; of a work tree that of HEAD
	WorkTree bool
	Policy   manifest.Policy
	Units    []eval.Unit
	Problems []eval.Problem
	Source   []bundle.File     // the evaluated tree
	Refused  bool              // nothing of it can be published
	Blocked  map[string]string // cohort → the reason in one line
}

// SideOf is what a plan needs of a build.
func SideOf(r *pipeline.Rendered) Side {
	s := Side{
		Name: "work tree", Commit: r.Identity.Commit, WorkTree: r.Identity.WorkTree,
		Policy: r.Policy, Units: r.Units(), Problems: r.Problems, Source: r.Source, Refused: r.Refused(), Blocked: r.Blocked(),
	}
	if !s.WorkTree && s.Commit != "" {
		s.Name = "commit " + s.Commit[:min(12, len(s.Commit))]
	}
	return s
}

// Options of Of. The zero value is right where nothing else is known.
type Options struct {
	// Inventory, if not nil, is used in place of the fleet's own inventory file.
	Inventory []inventory.Host
	// Expected are cohorts of which more hosts are expected than Inventory names.
	Expected map[string]int
}

// Kind of a change.
type Kind string

// Kinds.
const (
	Added   Kind = "added"
	Removed Kind = "removed"
	Changed Kind = "changed"
)

// Plan is what changes from base to head. All lists are sorted and never nil.
type Plan struct {
	Base Ref `json:"base"`
	Head Ref `json:"head"`
	// Changes says whether publishing head after base changes anything: on a host, or how the fleet is steered.
	Changes bool   `json:"changes"`
	Tally   Tally  `json:"tally"`
	Summary string `json:"summary"` // the tally in one line
	// Digest is over what epoch 0 renders for every cohort that can be published: lines of cohort (or cohort/host), a space, and its content0, sorted. It tells
	// whether what is published is what was reviewed. Empty when nothing can be published.
	Digest string `json:"digest"`

	Cohorts     []Cohort     `json:"cohorts"` // of either side
	Services    []Service    `json:"services"`
	Values      []Value      `json:"values"`
	Files       []File       `json:"files"`
	Evidence    []Evidence   `json:"evidence"`
	Variants    []Variant    `json:"variants"`
	Policy      []Setting    `json:"policy"`
	Shadowed    []Shadowed   `json:"shadowed"`
	Unrendered  []Unrendered `json:"unrendered"`
	NotCompared []Missing    `json:"not_compared"`
	Problems    []Problem    `json:"problems"`
	Active      []Active     `json:"active"`
	Notes       []string     `json:"notes"` // about the plan itself: an inventory that does not read, say
}

// Ref names a side.
type Ref struct {
	Name   string `json:"name"`
	Commit string `json:"commit"`
	Valid  bool   `json:"valid"`
}

// Where is on which hosts a change takes place.
type Where struct {
	Cohorts []string `json:"cohorts"`
	// Hosts are single hosts, as cohort/host, beside the cohorts; Except are hosts of the cohorts whose own files do not change so.
	Hosts  []string `json:"hosts"`
	Except []string `json:"except"`
	Count  Count    `json:"count"`
}

// Set is what gave a value: a layer, the package or the schema.
type Set struct {
	Origin eval.Origin `json:"origin"`
	Layer  string      `json:"layer"` // "" for computed values and defaults
	At     eval.Pos    `json:"at"`
}

// Value is a value that differs, the same way on all hosts of In. Before and After are canonical JSON in one line, empty for a secret or where there is none.
type Value struct {
	Service string `json:"service"`
	Path    string `json:"path"`
	Kind    Kind   `json:"kind"`
	Before  string `json:"before"`
	After   string `json:"after"`
	Secret  bool   `json:"secret"`
	Set     []Set  `json:"set"` // by what the value, or its absence, is as it is now; empty when a line is gone
	Was     []Set  `json:"was"` // by what it was as it was
	In      Where  `json:"in"`
}

// File is a rendered file that differs. Diff is a short unified diff, only where values do not tell it, without secrets.
type File struct {
	Service string `json:"service"`
	Name    string `json:"name"`
	Kind    Kind   `json:"kind"`
	Mode    string `json:"mode"` // "0644 → 0600"; empty if it stays
	Diff    string `json:"diff"`
	In      Where  `json:"in"`
}

// Evidence is a service that asks for another proof of its hosts.
type Evidence struct {
	Service string         `json:"service"`
	Before  manifest.Grade `json:"before"`
	After   manifest.Grade `json:"after"`
	In      Where          `json:"in"`
}

// Service comes to cohorts, or leaves them.
type Service struct {
	Service string `json:"service"`
	Kind    Kind   `json:"kind"` // added or removed
	Values  int    `json:"values"`
	Files   int    `json:"files"`
	In      Where  `json:"in"`
}

// Variant is a host that begins, or ceases, to have files of its own.
type Variant struct {
	Cohort  string `json:"cohort"`
	Host    string `json:"host"`
	Service string `json:"service"`
	Kind    Kind   `json:"kind"` // added or removed
}

// Setting is a setting of the fleet that differs, as JSON.
type Setting struct {
	Path   string `json:"path"`
	Kind   Kind   `json:"kind"`
	Before string `json:"before"`
	After  string `json:"after"`
}

// Shadowed is an edit that changes nothing in these cohorts, because a later layer sets the same value.
type Shadowed struct {
	Service string `json:"service"`
	Path    string `json:"path"`
	Kind    Kind   `json:"kind"`
	Edit    Set    `json:"edit"` // where the edit is; where the line was, if it is gone
	By      Set    `json:"by"`
	In      Where  `json:"in"`
}

// Unrendered is a service whose source changed while nothing of it that is rendered did; Service is "" for what is not one service's.
type Unrendered struct {
	Service string   `json:"service"`
	Files   []string `json:"files"`
}

// Missing is a service that cannot be compared, because the base does not validate there; Service is "" for all.
type Missing struct {
	Service string   `json:"service"`
	Cohorts []string `json:"cohorts"`
}

// Problem is a finding of head; New when base does not have it.
type Problem struct {
	eval.Problem
	New bool `json:"new"`
}

// Refused reports whether nothing of head can be published: then only its problems are to be told.
func (p *Plan) Refused() bool {
	return !p.Head.Valid && !slices.ContainsFunc(p.Cohorts, func(c Cohort) bool { return c.State != StateBlocked })
}

// Of compares two builds.
func Of(base, head Side, opts Options) Plan {
	p := Plan{
		Base: ref(base), Head: ref(head),
		Cohorts: []Cohort{}, Services: []Service{}, Values: []Value{}, Files: []File{}, Evidence: []Evidence{}, Variants: []Variant{}, Policy: []Setting{},
		Shadowed: []Shadowed{}, Unrendered: []Unrendered{}, NotCompared: []Missing{}, Problems: problems(base, head), Active: []Active{}, Notes: []string{},
	}
	c := comparison{Plan: &p, base: index(base), head: index(head)}
	c.fleetHosts(opts)
	c.cohorts()
	if head.Refused {
		p.tally(&c)
		p.Summary = p.refusal()
		return p
	}
	p.Digest = c.head.digest()
	c.services()
	c.values()
	c.files()
	c.evidence()
	c.variants()
	p.Policy = append(policyChanges(base, head), c.moved()...)
	slices.SortStableFunc(p.Policy, func(a, b Setting) int { return strings.Compare(a.Path, b.Path) })
	c.unrendered()
	p.tally(&c)
	return p
}

func ref(s Side) Ref {
	valid := !slices.ContainsFunc(s.Problems, func(p eval.Problem) bool { return p.Severity == eval.SeverityError })
	return Ref{Name: s.Name, Commit: s.Commit, Valid: valid && !s.Refused}
}

// problems are head's, errors first; those that base has too, wherever their lines went, are not new.
func problems(base, head Side) []Problem {
	type key struct {
		severity               eval.Severity
		service, path, message string
	}
	of := func(p eval.Problem) key { return key{p.Severity, p.Service, p.Path, p.Message} }
	had := map[key][]string{}
	for _, p := range base.Problems {
		had[of(p)] = append(had[of(p)], p.Cohorts...)
	}
	out := []Problem{}
	for _, severity := range []eval.Severity{eval.SeverityError, eval.SeverityWarning, eval.SeverityNotice} {
		for _, p := range head.Problems {
			if p.Severity != severity {
				continue
			}
			cohorts, ok := had[of(p)]
			isNew := !ok || slices.ContainsFunc(p.Cohorts, func(c string) bool { return len(cohorts) > 0 && !slices.Contains(cohorts, c) })
			// Empty lists print as [].
			p.Cohorts, p.SetAt, p.SchemaAt = append([]string{}, p.Cohorts...), append([]eval.Pos{}, p.SetAt...), append([]eval.Pos{}, p.SchemaAt...)
			out = append(out, Problem{Problem: p, New: isNew})
		}
	}
	return out
}

// comparison is a plan being made.
type comparison struct {
	*Plan
	base, head *sideIndex
	hosts      map[string]fleetHosts // by cohort of either side
	pairs      []pair
}

// pair is one service on the same hosts on both sides. One of the units may be nil.
type pair struct {
	place
	service       string
	before, after *eval.Unit
}

// place is a cohort, or a host of it whose files differ.
type place struct{ cohort, host string }

func (p place) String() string {
	if p.host == "" {
		return p.cohort
	}
	return p.cohort + "/" + p.host
}

// compared are the pairs of a cohort: for the cohort itself, and for each host that has a variant of the service on either side. What base could not render is
// left out, and noted.
func (c *comparison) compared(cohort string) []pair {
	names := slices.Concat(slices.Collect(maps.Keys(c.base.units[cohort])), slices.Collect(maps.Keys(c.head.units[cohort])))
	slices.Sort(names)
	var out []pair
	for _, service := range slices.Compact(names) {
		before, after := c.base.units[cohort][service], c.head.units[cohort][service]
		if before[""] == nil && slices.Contains(c.base.Policy.Cohorts[cohort].Services, service) {
			c.missing(service, cohort)
			continue
		}
		hosts := slices.Concat(slices.Collect(maps.Keys(before)), slices.Collect(maps.Keys(after)), []string{""})
		slices.Sort(hosts)
		for _, host := range slices.Compact(hosts) {
			out = append(out, pair{place{cohort, host}, service, before.of(host), after.of(host)})
		}
	}
	return out
}

func (c *comparison) missing(service, cohort string) {
	for i, m := range c.NotCompared {
		if m.Service == service {
			c.NotCompared[i].Cohorts = append(m.Cohorts, cohort)
			return
		}
	}
	c.NotCompared = append(c.NotCompared, Missing{service, []string{cohort}})
}
