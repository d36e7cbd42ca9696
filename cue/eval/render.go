package eval

import (
	"fmt"
	"slices"

	"cuelang.org/go/cue"
	"cuelang.org/go/cue/build"
	"cuelang.org/go/cue/token"

	"github.com/muster-config/muster/cue/eval/encode"
	"github.com/muster-config/muster/cue/eval/layer"
	"github.com/muster-config/muster/distributor/manifest"
)

// serviceRun evaluates one service for all its cohorts in one context.
type serviceRun struct {
	*evaluation
	*service
	ctx     *cue.Context
	inst    *build.Instance // nil without CUE
	shipped cue.Value       // the shipped #File and #Service
	hide    *secrets
	seen    *seen // by the services of the batch so far

	pkg         cue.Value
	hasValues   bool
	conditional bool            // see whole
	epoch       bool            // the package refers to release
	probing     bool            // a unit is rendered to be compared only
	asIs        map[string]bool // those of the last unit's files that are files of the tree
	lints       lints
	written     func(token.Pos) bool
	alone       []layerUse
	overrides   []overrideLayer

	outputsToo bool                   // there are `files` or `confirm`
	separable  bool                   // see quick.go
	direct     *direct                // nil unless the outputs are that plain
	valid      []map[*layer.Node]bool // what is visible in each unit that validates
}

// seen is what is worth to be remembered from one service of a batch to the next.
type seen struct {
	imports map[*build.Instance]*packageSecrets
	keys    map[string]bool // as in secrets
	shape   *shape
}

func (r *serviceRun) errorf(file string, format string, args ...any) Problem {
	return Problem{Severity: SeverityError, Service: r.name, Message: fmt.Sprintf(format, args...), SetAt: []Pos{{File: file}}}
}

// all gives the units of the service; before are the problems of its layer files.
func (r *serviceRun) all(before []Problem) ([]Unit, []Problem) {
	problems := slices.Clone(before)
	cohorts, carried := r.cohorts(r.name)
	if !carried {
		p := r.errorf(r.dir, "no cohort carries this service: it is checked, and goes nowhere")
		p.Severity = SeverityWarning
		problems = append(problems, p)
	}
	if r.inst != nil {
		if ps := r.tree.broken(r.name, r.dir, r.inst); len(ps) > 0 {
			return nil, append(problems, ps...)
		}
		r.hide.learnPackage(r.inst, r.seen.imports)
	}
	for _, f := range r.files() {
		r.hide.learn(f.node, func([]string) cue.Value { return cue.Value{} })
	}
	problems = append(problems, r.readOverrides()...)
	if r.inst != nil {
		problems = append(problems, r.build(cohorts)...)
		if failedWhole(problems) {
			return nil, problems
		}
		problems = append(problems, r.overlayLabels()...)
	}
	if failedWhole(problems) {
		return nil, problems
	}
	r.lints.service = r.name
	var units []Unit
	bad := map[string]bool{}
	complete := len(r.req.Cohorts) == 0 // what has no effect for some cohorts may have one for the others
	for _, t := range r.targets(cohorts) {
		if r.broken(t) { // told above
			bad[t.cohort], complete = true, false
			continue
		}
		epoch := r.req.Epochs[t.name()][r.name]
		u, layers, ps := r.unit(t, epoch)
		if r.inst != nil {
			r.hostless(t, ps)
		}
		if complete = complete && layers != nil; layers != nil {
			r.lints.add(t, layers)
		}
		if u != nil && r.epoch && epoch == 0 {
			if more := r.branching(t, u); len(more) > 0 {
				u, ps = nil, append(ps, more...)
			}
		}
		for i := range ps {
			ps[i].Cohorts = []string{t.cohort}
		}
		problems = append(problems, ps...)
		bad[t.cohort] = bad[t.cohort] || u == nil
		if u == nil {
			continue
		}
		if !r.req.FilesToo {
			for i := range u.Files {
				u.Files[i].Data = nil
			}
		}
		units = append(units, *u)
		r.valid = append(r.valid, visible(layers.merged))
	}
	// A cohort and its variants are one bundle.
	units = slices.DeleteFunc(units, func(u Unit) bool { return bad[u.Cohort] })
	if r.req.LeavesToo {
		sums := r.hide.sums() // all are learnt by now
		for i := range units {
			units[i].Secrets = sums
		}
		r.hide.cover(units)
		r.hide.cleanPaths(units)
	}
	if !r.mergedOnly {
		problems = r.layersAlone(problems)
	}
	if complete {
		problems = append(problems, r.lints.idle()...)
		if !r.hasValues {
			problems = append(problems, r.lints.unlike()...)
		}
	}
	if r.inst != nil && r.computesInBase() {
		problems = append(problems, r.lints.frozen(r.pkg.LookupPath(basePath))...)
	}
	return units, problems
}

// unit evaluates the service for one target. There is a unit only without errors.
func (r *serviceRun) unit(t target, epoch uint64) (*Unit, *stack, []Problem) {
	pkg := r.inject(t, epoch)
	layers, problems := r.layers(pkg, t)
	if len(problems) > 0 {
		return nil, nil, problems
	}
	u := &Unit{Service: r.name, Cohort: t.cohort, Host: t.host, UsesEpoch: r.epoch, Evidence: manifest.GradeProcess}
	if !r.hasValues {
		var ps []Problem
		if r.inst != nil {
			if ps := r.whole(pkg); len(ps) > 0 {
				return nil, layers, ps
			}
		}
		if r.inst == nil {
			u.Files, ps = r.single(layers.merged.Plain(), layers.merged)
		} else {
			u.Files, ps = r.outputs(u, pkg, func() (encode.Value, *layer.Error) { return layers.merged.Plain(), nil }, layers.merged)
		}
		if r.req.LeavesToo && !r.probing {
			u.Leaves = r.leafWalk(layers, func([]string) cue.Value { return cue.Value{} }).ofTree()
			r.cover(u, layers.merged.Plain())
		}
		return finish(u, layers, ps)
	}
	// The first value that is asked for is the one with all layers, and the package it belongs to.
	var full cue.Value
	fill := func(n *layer.Node) cue.Value {
		v := pkg.FillPath(valuesPath, r.ctx.BuildExpr(n.AST()))
		if !full.Exists() {
			full = v
		}
		return v.LookupPath(valuesPath)
	}
	c := r.checker(pkg.LookupPath(valuesPath), fill)
	c.layers = layers
	switch {
	case !r.outputsToo:
		c.quick, full = r.quick(c.schema), pkg
	case r.direct != nil:
		c.quick = r.quick(c.schema)
	}
	r.hide.learn(layers.merged, c.at)
	v, ps := c.check(layers.merged)
	if len(ps) > 0 {
		r.hide.misplaced(layers.merged, c.schema)
		return nil, layers, ps
	}
	if ps := r.hide.literals(r.name, v, layers.merged, c.at); len(ps) > 0 {
		return nil, layers, ps
	}
	if !full.Exists() { // the quick way was taken
		if files, ok := r.directly(u, pkg, func() (encode.Value, *layer.Error) { return r.plain(v, layers.merged) }); ok {
			u.Files = files
			return finish(u, layers, nil)
		}
		fill(layers.merged)
	}
	if ps := r.whole(full); len(ps) > 0 {
		return nil, layers, ps
	}
	u.Files, ps = r.outputs(u, full, func() (encode.Value, *layer.Error) { return r.plain(v, layers.merged) }, layers.merged)
	if r.req.LeavesToo && !r.probing && !failed(ps) {
		w := r.leafWalk(layers, c.at)
		u.Leaves = w.ofValue(v)
		if plain, err := layer.Plain(v); err == nil {
			r.cover(u, plain)
		}
		ps = append(ps, fromLayer(r.name, w.errs)...)
	}
	return finish(u, layers, ps)
}

// cover marks the files of a unit whose values have secrets: a template or the package may write these in any way.
func (r *serviceRun) cover(u *Unit, values encode.Value) {
	if !r.hide.holds(values, false) {
		return
	}
	for i, f := range u.Files {
		u.Files[i].Secret = f.Secret || !r.asIs[f.Name]
	}
}

func (r *serviceRun) checker(schema cue.Value, fill func(*layer.Node) cue.Value) *checker {
	return &checker{ctx: r.ctx, service: r.name, schema: schema, unify: fill, secret: r.hide.isSecret, within: r.hide.within, home: r.home,
		locate: func(path []string) []Pos { return locate(r.inst, path) }}
}

func finish(u *Unit, layers *stack, problems []Problem) (*Unit, *stack, []Problem) {
	if failed(problems) {
		return nil, layers, problems
	}
	return u, layers, problems
}
