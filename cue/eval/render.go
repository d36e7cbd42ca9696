package eval

import (
	"fmt"
	"slices"
	"strings"

	"cuelang.org/go/cue"
	"cuelang.org/go/cue/ast"
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

	pkg       cue.Value
	hasValues bool
	epoch     bool // the package refers to release
	written   func(token.Pos) bool
	alone     []layerUse
}

// layerUse is a layer as some cohort uses it, for the check of each layer alone.
type layerUse struct {
	name   string // unique in the service
	node   *layer.Node
	schema cue.Value
	fill   func(*layer.Node) cue.Value
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
		r.hide.learnPackage(r.inst)
	}
	for _, f := range r.files() {
		r.hide.learn(f.node, func([]string) cue.Value { return cue.Value{} })
	}
	if r.inst != nil {
		if ps := r.build(len(cohorts) > 0); len(ps) > 0 {
			return nil, append(problems, ps...)
		}
		problems = append(problems, r.overlayLabels()...)
	}
	if slices.ContainsFunc(problems, func(p Problem) bool { return p.Severity == SeverityError }) {
		return nil, problems
	}
	var units []Unit
	for _, name := range cohorts {
		u, ps := r.cohort(name)
		for i := range ps {
			ps[i].Cohorts = []string{name}
		}
		problems = append(problems, ps...)
		if u != nil {
			units = append(units, *u)
		}
	}
	return units, r.layersAlone(problems)
}

// build compiles the package, and checks what does not depend on a cohort.
func (r *serviceRun) build(willEvaluate bool) []Problem {
	r.pkg = r.ctx.BuildInstance(r.inst)
	c := &checker{ctx: r.ctx, service: r.name, schema: r.pkg, secret: r.hide.isSecret}
	if err := r.pkg.Err(); err != nil {
		return r.injected(c.raw(r.pkg, err))
	}
	if err := r.pkg.Validate(); err != nil {
		ps := r.injected(c.raw(r.pkg, err))
		if willEvaluate { // the check of each cohort says it better
			ps = slices.DeleteFunc(ps, func(p Problem) bool { return p.Path == "values" || strings.HasPrefix(p.Path, "values.") })
		}
		if len(ps) > 0 {
			return ps
		}
	}
	values, config := r.pkg.LookupPath(valuesPath), r.pkg.LookupPath(configPath)
	r.hasValues = values.Exists()
	layers := len(r.files()) > 0 || r.pkg.LookupPath(basePath).Exists()
	var problems []Problem
	switch {
	case config.Exists() && !r.hasValues:
		p := r.errorf("", "#Config is declared and nothing is checked against it: add `values: #Config`")
		p.SetAt = positions(config.Pos())
		problems = append(problems, p)
	case config.Exists() && config.IsClosed() && !values.IsClosed():
		p := r.errorf("", "`values` is not closed by #Config, so typos would pass: write `values: #Config`")
		p.Path, p.SetAt = "values", positions(values.Pos())
		problems = append(problems, p)
	case layers && !r.hasValues:
		p := r.errorf(r.cue[0], "the package has no `values`, so no schema applies to the layers: declare #Config and add `values: #Config`")
		p.Severity = SeverityWarning
		problems = append(problems, p)
	}
	problems = append(problems, r.misspelt()...)
	r.written = r.layerSource()
	r.epoch = r.pkg.LookupPath(releasePath).Exists() && refersTo(r.inst, "release")
	return problems
}

// packageFields are the fields of a service's package that mean something here. Others are the engineers' own.
var packageFields = []string{"base", "overlay", "values", "files", "confirm", "cohort", "host", "release"}

// misspelt warns of fields of the package that nobody reads and that look like one of packageFields: `confrim: "disk"` would leave the default in force.
func (r *serviceRun) misspelt() []Problem {
	fields, err := r.pkg.Fields()
	if err != nil {
		return nil // told elsewhere
	}
	var problems []Problem
	for fields.Next() {
		name := fields.Selector().Unquoted()
		if slices.Contains(packageFields, name) || refersTo(r.inst, name) {
			continue
		}
		if near := nearest(name, packageFields); near != "" {
			p := r.errorf("", "nothing reads this field (did you mean %q?)", near)
			p.Severity, p.Path, p.SetAt = SeverityWarning, name, positions(fields.Value().Pos())
			problems = append(problems, p)
		}
	}
	return problems
}

// injected adds to CUE's "reference not found" what the writer has to do.
func (r *serviceRun) injected(ps []Problem) []Problem {
	shapes := map[string]string{
		"cohort":  "cohort: {name: string, labels: [string]: string}",
		"release": "release: epoch: int",
		"host":    "host: {name: string, labels: [string]: string}",
		"values":  "values: #Config",
	}
	for i, p := range ps {
		for name, shape := range shapes {
			if p.Message == fmt.Sprintf("reference %q not found", name) {
				ps[i].Message += fmt.Sprintf(": declare its shape in this package, `%s`", shape)
			}
		}
	}
	return ps
}

// layerSource tells whether a position lies in a `base` or `overlay` of the package's own files.
func (r *serviceRun) layerSource() func(token.Pos) bool {
	type span struct {
		file     string
		from, to int
	}
	var spans []span
	for _, f := range r.inst.Files {
		for _, d := range f.Decls {
			field, ok := d.(*ast.Field)
			if !ok {
				continue
			}
			if name, _, _ := ast.LabelName(field.Label); name == "base" || name == "overlay" {
				spans = append(spans, span{field.Pos().Filename(), field.Pos().Offset(), field.End().Offset()})
			}
		}
	}
	return func(p token.Pos) bool {
		return p.IsValid() && slices.ContainsFunc(spans, func(s span) bool {
			return p.Filename() == s.file && s.from <= p.Offset() && p.Offset() <= s.to
		})
	}
}

// refersTo reports whether the package uses a top-level field of its own. Imports cannot see it.
func refersTo(inst *build.Instance, name string) bool {
	found := false
	var visit func(n ast.Node) bool
	visit = func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.Field:
			if _, plain := n.Label.(*ast.Ident); plain { // a label is no reference, unless it is computed
				ast.Walk(n.Value, visit, nil)
				return false
			}
		case *ast.SelectorExpr:
			ast.Walk(n.X, visit, nil)
			return false
		case *ast.Ident:
			found = found || n.Name == name
		}
		return true
	}
	for _, f := range inst.Files {
		ast.Walk(f, visit, nil)
	}
	return found
}

// overlayLabels checks where the overlays written in CUE are.
func (r *serviceRun) overlayLabels() []Problem {
	var out []Problem
	labels, err := r.pkg.LookupPath(overlayPath).Fields()
	if err != nil {
		return nil
	}
	for labels.Next() {
		label := labels.Selector().Unquoted()
		values, err := labels.Value().Fields()
		if err != nil {
			continue
		}
		for values.Next() {
			value := values.Selector().Unquoted()
			if msg, severity := r.misplaced(label, value, r.policy); msg != "" {
				out = append(out, Problem{Severity: severity, Service: r.name, Path: layer.PathText([]string{"overlay", label, value}), Message: msg, SetAt: positions(values.Value().Pos())})
			}
		}
	}
	return out
}

// cohort evaluates the service for one cohort. There is a unit only without errors.
func (r *serviceRun) cohort(name string) (*Unit, []Problem) {
	epoch := r.req.Epochs[name][r.name]
	pkg := r.pkg
	labels := r.policy.Cohorts[name].Labels
	if r.inst != nil {
		for _, in := range []struct {
			path  cue.Path
			value any
		}{
			{cohortPath, map[string]any{"name": name, "labels": labels}},
			{releasePath, map[string]any{"epoch": epoch}},
		} {
			if pkg.LookupPath(in.path).Exists() {
				pkg = pkg.FillPath(in.path, in.value)
			}
		}
	}
	merged, problems := r.layers(pkg, name, labels)
	if len(problems) > 0 {
		return nil, problems
	}
	u := &Unit{Service: r.name, Cohort: name, UsesEpoch: r.epoch, Evidence: manifest.GradeProcess}
	if r.inst == nil {
		files, ps := r.single(merged.Plain(), merged)
		u.Files = files
		return finish(u, ps)
	}
	if !r.hasValues {
		files, ps := r.outputs(u, pkg, func() (encode.Value, *layer.Error) { return merged.Plain(), nil }, merged)
		u.Files = files
		return finish(u, ps)
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
	r.hide.learn(merged, c.at)
	v, ps := c.check(merged)
	if len(ps) > 0 {
		return nil, ps
	}
	if ps := r.hide.literals(r.name, v, merged); len(ps) > 0 {
		return nil, ps
	}
	files, ps := r.outputs(u, full, func() (encode.Value, *layer.Error) { return layer.Plain(v) }, merged)
	u.Files = files
	return finish(u, ps)
}

func (r *serviceRun) checker(schema cue.Value, fill func(*layer.Node) cue.Value) *checker {
	return &checker{ctx: r.ctx, service: r.name, schema: schema, unify: fill, secret: r.hide.isSecret}
}

func finish(u *Unit, problems []Problem) (*Unit, []Problem) {
	if slices.ContainsFunc(problems, func(p Problem) bool { return p.Severity == SeverityError }) {
		return nil, problems
	}
	return u, problems
}

// layers merges what applies to a cohort: base, then the overlays in the order of precedence; of each the file and the CUE spelling.
func (r *serviceRun) layers(pkg cue.Value, cohort string, labels map[string]string) (*layer.Node, []Problem) {
	var merged *layer.Node
	var problems []Problem
	add := func(file *layerFile, path cue.Path, name string) {
		var n *layer.Node
		if file != nil {
			n = file.node
			r.use(file.path, n, pkg)
		}
		if r.inst != nil {
			if v := pkg.LookupPath(path); v.Exists() {
				c, ps := r.fromCUE(v, name == "base")
				problems = append(problems, ps...)
				layer.Overlap(n, c, func(path []string, a, b *layer.Node) {
					problems = append(problems, Problem{
						Severity: SeverityError, Service: r.name, Path: layer.PathText(path), SetAt: positions(a.Pos, b.Pos),
						Message: fmt.Sprintf("set twice in one layer (%s): in the file and in CUE", name),
					})
				})
				r.use(name+" "+cohort, c, pkg)
				n = layer.Merge(n, c)
			}
		}
		merged = layer.Merge(merged, n)
	}
	add(r.base, basePath, "base")
	for _, label := range r.policy.Precedence {
		value, ok := labelValue(label, cohort, labels)
		if !ok || label == "host" {
			continue
		}
		add(r.overlays[label][value], cue.MakePath(cue.Str("overlay"), cue.Str(label), cue.Str(value)), label+"="+value)
	}
	if merged == nil {
		merged = &layer.Node{Kind: layer.Struct, Fields: map[string]*layer.Node{}}
	}
	return merged.Final(), problems
}

// fromCUE takes a layer out of the package.
func (r *serviceRun) fromCUE(v cue.Value, base bool) (*layer.Node, []Problem) {
	if err := v.Validate(); err != nil {
		c := r.checker(v, nil)
		for _, s := range v.Path().Selectors() {
			c.prefix = append(c.prefix, s.Unquoted())
		}
		return nil, c.raw(v, err)
	}
	n, errs := layer.From(v, base, r.written)
	return n, fromLayer(r.name, errs)
}

// use remembers a layer for the check of each alone, once.
func (r *serviceRun) use(name string, n *layer.Node, pkg cue.Value) {
	if n == nil || !r.hasValues || slices.ContainsFunc(r.alone, func(u layerUse) bool { return u.name == name }) {
		return
	}
	r.alone = append(r.alone, layerUse{name: name, node: n.Final(), schema: pkg.LookupPath(valuesPath), fill: func(n *layer.Node) cue.Value {
		return pkg.FillPath(valuesPath, r.ctx.BuildExpr(n.AST())).LookupPath(valuesPath)
	}})
}

// layersAlone checks each layer by itself, so that what a later one hides is found too: an unknown field is an error; a refused value that no
// merged result showed is a warning, since a bound may depend on a neighbour.
func (r *serviceRun) layersAlone(problems []Problem) []Problem {
	if r.inst != nil && r.hasValues {
		for _, f := range r.files() { // those that no cohort of this request uses
			r.use(f.path, f.node, r.pkg)
		}
	}
	known := map[string]bool{}
	for _, p := range problems {
		for _, at := range p.SetAt {
			known[at.String()] = true
		}
	}
	for _, u := range r.alone {
		if u.node == nil {
			continue
		}
		c := r.checker(u.schema, u.fill)
		r.hide.learn(u.node, c.at)
		found, _ := c.partial(u.node)
		for _, p := range found {
			unknown := strings.HasPrefix(p.Message, "unknown field")
			switch {
			case unknown:
				// It is wrong whoever uses the layer: not a matter of cohorts.
				problems = slices.DeleteFunc(problems, func(q Problem) bool {
					return q.Path == p.Path && q.Message == p.Message && slices.Equal(q.SetAt, p.SetAt)
				})
			case strings.HasPrefix(p.Message, "missing:"), slices.ContainsFunc(p.SetAt, func(at Pos) bool { return known[at.String()] }):
				continue // another layer gives it; or a merged result has shown it
			default:
				p.Severity = SeverityWarning
			}
			problems = append(problems, p)
		}
	}
	return problems
}
