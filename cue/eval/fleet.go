package eval

import (
	"bytes"
	"encoding/json"
	"fmt"
	"path"
	"slices"
	"strings"

	"cuelang.org/go/cue"
	"cuelang.org/go/cue/build"
	"cuelang.org/go/cue/cuecontext"
	"cuelang.org/go/cue/token"

	"github.com/muster-config/muster/cue/eval/encode"
	"github.com/muster-config/muster/cue/eval/layer"
	"github.com/muster-config/muster/cue/schema"
	"github.com/muster-config/muster/distributor/manifest"
)

const fleetDir = "fleet"

// line is the evaluator line that a fleet may demand: the second word of EvaluatorVersion.
func line() string { return strings.Fields(EvaluatorVersion)[1] }

// fleetDoc is the fleet as CUE gives it back, with the schema's defaults.
type fleetDoc struct {
	Muster     string                `json:"muster"`
	Precedence []string              `json:"precedence"`
	Cohorts    map[string]cohortDoc  `json:"cohorts"`
	Inventory  *manifest.Inventory   `json:"inventory"`
	Rollouts   map[string]rolloutDoc `json:"rollouts"`
}

type cohortDoc struct {
	Description string            `json:"description"`
	Labels      map[string]string `json:"labels"`
	Services    *[]string         `json:"services"`
	Hosts       struct {
		List   []string        `json:"list"`
		Match  map[string]any  `json:"match"`
		Expect json.RawMessage `json:"expect"`
	} `json:"hosts"`
	Rollout     string `json:"rollout"`
	Order       int    `json:"order"`
	Ephemeral   bool   `json:"ephemeral"`
	RetireAfter string `json:"retire_after"`

	RequireApprovals int      `json:"require_approvals"`
	Owners           []string `json:"owners"`
}

type rolloutDoc struct {
	manifest.RolloutPolicy
	MaxInFlight any `json:"max_in_flight"` // "10%" or a count
}

// fleet evaluates the package in fleet/ and gives the policy with all defaults.
func (t *tree) fleet() (manifest.Policy, []Problem) {
	if len(t.cueFiles(fleetDir)) == 0 {
		return manifest.Policy{}, []Problem{{
			Severity: SeverityError, SetAt: []Pos{{File: fleetDir + "/fleet.cue"}},
			Message: "not there: a config repo declares its cohorts in it (`muster init` writes one)",
		}}
	}
	inst := t.load(fleetDir)[fleetDir]
	if ps := t.broken("", fleetDir, inst); len(ps) > 0 {
		return manifest.Policy{}, ps
	}
	hide := newSecrets()
	hide.learnPackage(inst, map[*build.Instance]*packageSecrets{})
	ctx := cuecontext.New()
	def := ctx.CompileString(schema.Fleet+"\nvalues: #Fleet\n", cue.Filename(builtin+"fleet.cue"))
	c := &checker{
		ctx:    ctx,
		schema: def.LookupPath(valuesPath),
		unify: func(n *layer.Node) cue.Value {
			return def.FillPath(valuesPath, ctx.BuildExpr(n.AST())).LookupPath(valuesPath)
		},
		secret: hide.isSecret,
	}
	v := ctx.BuildInstance(inst)
	err := v.Err()
	if err == nil {
		err = v.Validate()
	}
	if err != nil {
		ps := c.raw(v, err)
		hide.scrub(ps)
		return manifest.Policy{}, ps
	}
	n, errs := layer.From(v, true, token.Pos.IsValid)
	if len(errs) > 0 {
		return manifest.Policy{}, fromLayer("", errs)
	}
	hide.learn(n, c.at)
	full, ps := c.check(n)
	hide.scrub(ps)
	if len(ps) > 0 {
		return manifest.Policy{}, ps
	}
	var doc fleetDoc
	if err := decode(full, &doc); err != nil {
		return manifest.Policy{}, []Problem{{Severity: SeverityError, Message: "the fleet: " + err.Error(), SetAt: []Pos{{File: fleetDir}}}}
	}
	r := &fleetRules{doc: doc, node: n, tree: t, services: t.services()}
	policy := r.policy()
	return policy, r.problems
}

// decode reads a validated value into a Go struct, strictly.
func decode(v cue.Value, into any) error {
	plain, lerr := layer.Plain(v)
	if lerr != nil {
		return lerr
	}
	data, err := encode.Encode("json", plain)
	if err != nil {
		return err
	}
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	return d.Decode(into)
}

// fleetRules are the rules that span fields.
type fleetRules struct {
	doc      fleetDoc
	node     *layer.Node // for positions
	tree     *tree
	services []string
	problems []Problem
}

func (r *fleetRules) fail(severity Severity, msg string, at ...[]string) {
	p := Problem{Severity: severity, Message: msg}
	for i, path := range at {
		if i == 0 {
			p.Path = layer.PathText(path)
		}
		p.SetAt = append(p.SetAt, r.pos(path)...)
	}
	r.problems = append(r.problems, p)
}

// pos is the place of a path, or the nearest above it that was written: a default has none.
func (r *fleetRules) pos(path []string) []Pos {
	for l := len(path); l > 0; l-- {
		if n := r.node.At(path[:l]); n != nil {
			if n.Kind == layer.Struct && n.KeyPos.IsValid() {
				return positions(n.KeyPos)
			}
			return positions(n.Pos)
		}
	}
	return nil
}

func (r *fleetRules) errorf(at []string, format string, args ...any) {
	r.fail(SeverityError, fmt.Sprintf(format, args...), at)
}

// at is a path; numbers are list indexes.
func at(parts ...any) []string {
	out := make([]string, len(parts))
	for i, p := range parts {
		out[i] = fmt.Sprint(p)
	}
	return out
}

func pathText(parts ...any) string { return layer.PathText(at(parts...)) }

// names checks the keys of a map that name things.
func names[T any](r *fleetRules, m map[string]T, what string, where ...string) {
	for _, k := range sorted(m) {
		if !manifest.ValidName(k) {
			r.errorf(slices.Concat(where, []string{k}), "no name for a %s: it takes 1 to 63 of a-z, 0-9, - and _, and begins and ends with a letter or digit", what)
		}
	}
}

func (r *fleetRules) policy() manifest.Policy {
	d := &r.doc
	p := manifest.Policy{Muster: d.Muster, Precedence: orEmpty(d.Precedence), Cohorts: map[string]manifest.CohortPolicy{}, Inventory: d.Inventory, Rollouts: map[string]manifest.RolloutPolicy{}}
	if d.Muster != "" && d.Muster != line() {
		r.errorf(at("muster"), "this fleet wants evaluator %s, and this is %s: take that version of muster, or change the line in a commit of its own", d.Muster, line())
	}
	r.precedence()
	for _, s := range r.services {
		if !manifest.ValidName(s) {
			r.problems = append(r.problems, Problem{
				Severity: SeverityError, SetAt: []Pos{{File: "services/" + s}},
				Message: "no name for a service: it takes 1 to 63 of a-z, 0-9, - and _, and begins and ends with a letter or digit",
			})
		}
	}
	for _, e := range r.tree.dirs["services"] {
		if name := e.Name(); !e.IsDir() && name != ".gitkeep" && !slices.Contains([]string{".md", ".cue"}, path.Ext(name)) {
			r.problems = append(r.problems, Problem{
				Severity: SeverityWarning, SetAt: []Pos{{File: "services/" + name}},
				Message: "not read: a service is a directory below services, with a base or a CUE package",
			})
		}
	}
	if len(d.Cohorts) == 0 {
		r.errorf(at("cohorts"), "no cohort: nothing would be configured")
	}
	if i := d.Inventory; i != nil && (i.File == "") == (i.HTTP == "") {
		r.errorf(at("inventory"), "give file or http, one of them")
	}
	names(r, d.Rollouts, "rollout", "rollouts")
	for _, name := range sorted(d.Rollouts) {
		p.Rollouts[name] = r.rollout(name, d.Rollouts[name])
	}
	if _, ok := p.Rollouts["standard"]; !ok {
		p.Rollouts["standard"] = standard()
	}
	names(r, d.Cohorts, "cohort", "cohorts")
	for _, name := range sorted(d.Cohorts) {
		p.Cohorts[name] = r.cohort(name, d.Cohorts[name], p.Rollouts)
	}
	r.twice(p, r.inventory(&p))
	r.carried(p)
	return p
}

// carried finds what the messages above do not know and a release cannot carry: then publishing would refuse it, and later.
func (r *fleetRules) carried(p manifest.Policy) {
	if failed(r.problems) {
		return
	}
	if len(p.Precedence) == 0 {
		p.Precedence = []string{"cohort"} // no overlays: not what is looked for here
	}
	if err := p.Validate(); err != nil {
		r.problems = append(r.problems, Problem{Severity: SeverityError, Message: "a release cannot carry this fleet: " + err.Error(), SetAt: []Pos{{File: fleetDir}}})
	}
}

// precedence: each label once, joint labels of known order, host last.
func (r *fleetRules) precedence() {
	first := map[string]int{}
	for i, label := range r.doc.Precedence {
		where := at("precedence", i)
		parts := strings.Split(label, "+")
		for _, part := range parts {
			if !manifest.ValidName(part) {
				r.errorf(where, "%q is no label or joint label (env+region)", label)
			}
			if part == "host" && len(parts) > 1 {
				r.errorf(where, "host cannot be part of a joint label")
			}
		}
		slices.Sort(parts)
		key := strings.Join(parts, "+")
		if j, ok := first[key]; ok {
			r.fail(SeverityError, fmt.Sprintf("%q is in the order already", label), where, at("precedence", j))
		}
		first[key] = i
		if len(slices.Compact(parts)) < strings.Count(label, "+")+1 {
			r.errorf(where, "%q names one label twice", label)
		}
		if label == "host" && i != len(r.doc.Precedence)-1 {
			r.errorf(where, "host must be the last label")
		}
	}
}

func (r *fleetRules) cohort(name string, d cohortDoc, rollouts map[string]manifest.RolloutPolicy) manifest.CohortPolicy {
	where := at("cohorts", name)
	in := func(parts ...any) []string { return slices.Concat(where, at(parts...)) }
	c := manifest.CohortPolicy{
		Description: d.Description, Labels: d.Labels, Services: []string{}, Rollout: d.Rollout, Order: d.Order, Ephemeral: d.Ephemeral,
		Hosts:            manifest.HostsPolicy{List: d.Hosts.List},
		RequireApprovals: d.RequireApprovals, Owners: d.Owners,
	}
	if c.Labels == nil {
		c.Labels = map[string]string{}
	}
	names(r, c.Labels, "label", in("labels")...)
	for _, l := range []string{"cohort", "host"} {
		if _, ok := c.Labels[l]; ok {
			r.errorf(in("labels", l), "the label %q is set by muster", l)
		}
	}
	if d.Ephemeral {
		c.RetireAfter = d.RetireAfter
	}
	if _, ok := rollouts[d.Rollout]; !ok {
		msg := fmt.Sprintf("no rollout %q", d.Rollout)
		if near := nearest(d.Rollout, sorted(rollouts)); near != "" {
			msg += fmt.Sprintf(" (did you mean %q?)", near)
		}
		r.errorf(in("rollout"), "%s", msg)
	}
	if d.Services == nil {
		c.Services = slices.Clone(r.services)
	} else {
		for i, glob := range *d.Services {
			c.Services = append(c.Services, r.expand(glob, in("services", i))...)
		}
	}
	slices.Sort(c.Services)
	c.Services = orEmpty(slices.Compact(c.Services))

	for i, h := range d.Hosts.List {
		if j := slices.Index(d.Hosts.List, h); j < i {
			r.fail(SeverityError, fmt.Sprintf("%q is in the list twice", h), in("hosts", "list", i), in("hosts", "list", j))
		}
	}
	for _, label := range sorted(d.Hosts.Match) {
		if c.Hosts.Match == nil {
			c.Hosts.Match = map[string][]string{}
		}
		switch v := d.Hosts.Match[label].(type) {
		case string:
			c.Hosts.Match[label] = []string{v}
		case []any:
			for _, e := range v {
				c.Hosts.Match[label] = append(c.Hosts.Match[label], fmt.Sprint(e))
			}
		}
	}
	if len(d.Hosts.Expect) > 0 {
		c.Hosts.Expect = &manifest.Expect{}
		if err := json.Unmarshal(d.Hosts.Expect, &c.Hosts.Expect.Min); err == nil {
			c.Hosts.Expect.Max = c.Hosts.Expect.Min
		} else if err := json.Unmarshal(d.Hosts.Expect, c.Hosts.Expect); err != nil {
			r.errorf(in("hosts", "expect"), "a number, or {min, max}")
		}
		if c.Hosts.Expect.Max < c.Hosts.Expect.Min {
			r.errorf(in("hosts", "expect"), "max is below min")
		}
	}
	if len(c.Hosts.List) == 0 && len(c.Hosts.Match) == 0 && c.Hosts.Expect == nil {
		r.errorf(in("hosts"), "says nothing of who is expected: give list, match or expect")
	}
	return c
}

// expand gives the services that a name or glob means.
func (r *fleetRules) expand(glob string, where []string) []string {
	var out []string
	for _, s := range r.services {
		ok, err := path.Match(glob, s)
		if err != nil {
			r.errorf(where, "%q is no pattern", glob)
			return nil
		}
		if ok {
			out = append(out, s)
		}
	}
	switch {
	case len(out) > 0:
	case strings.ContainsAny(glob, "*?["):
		r.fail(SeverityWarning, fmt.Sprintf("no service matches %q", glob), where)
	default:
		msg := fmt.Sprintf("no service %q", glob)
		if near := nearest(glob, r.services); near != "" {
			msg += fmt.Sprintf(" (did you mean %q?)", near)
		}
		r.errorf(where, "%s", msg)
	}
	return out
}

func orEmpty(s []string) []string {
	if s == nil {
		return []string{}
	}
	return s
}
