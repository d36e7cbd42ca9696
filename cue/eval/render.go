package eval

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strconv"
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
	c := &checker{service: r.name, schema: r.pkg, secret: r.hide.isSecret}
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
	r.written = r.layerSource()
	r.epoch = r.pkg.LookupPath(releasePath).Exists() && refersTo(r.inst, "release")
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
	for _, f := range inst.Files {
		ast.Walk(f, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.Field:
				// A label is no reference, unless it is computed.
				if _, plain := n.Label.(*ast.Ident); plain {
					ast.Walk(n.Value, func(n ast.Node) bool { return visit(n, name, &found) }, nil)
					return false
				}
			case *ast.Ident:
				return visit(n, name, &found)
			}
			return true
		}, nil)
	}
	return found
}

func visit(n ast.Node, name string, found *bool) bool {
	switch n := n.(type) {
	case *ast.Field:
		if _, plain := n.Label.(*ast.Ident); plain {
			ast.Walk(n.Value, func(n ast.Node) bool { return visit(n, name, found) }, nil)
			return false
		}
	case *ast.SelectorExpr:
		ast.Walk(n.X, func(n ast.Node) bool { return visit(n, name, found) }, nil)
		return false
	case *ast.Ident:
		*found = *found || n.Name == name
	}
	return true
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
	return &checker{service: r.name, schema: schema, unify: fill, secret: r.hide.isSecret}
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
			case slices.ContainsFunc(p.SetAt, func(at Pos) bool { return known[at.String()] }):
				continue
			default:
				p.Severity = SeverityWarning
			}
			problems = append(problems, p)
		}
	}
	return problems
}

// single is the one file of a service without `files`: named after the service, in base's format.
func (r *serviceRun) single(v encode.Value, n *layer.Node) ([]File, []Problem) {
	format := "json"
	if r.base != nil {
		format = strings.TrimPrefix(path.Ext(r.base.path), ".")
	}
	f := File{Name: r.name + "." + format, Mode: 0o644}
	data, p := r.encode(format, v, nil, n)
	if p != nil {
		return nil, []Problem{*p}
	}
	f.Data = data
	return []File{f}, nil
}

// encode writes a value; prefix is its path in `files`, nil for the values themselves.
func (r *serviceRun) encode(format string, v encode.Value, prefix []string, n *layer.Node) ([]byte, *Problem) {
	if !r.req.FilesToo && format == "text" {
		return nil, nil
	}
	data, err := encode.Encode(format, v)
	if err == nil {
		if !r.req.FilesToo {
			return nil, nil
		}
		return data, nil
	}
	p := &Problem{Severity: SeverityError, Service: r.name, Path: layer.PathText(prefix), Message: err.Error()}
	var e *encode.Error
	if errors.As(err, &e) {
		p.Path, p.Message = layer.PathText(slices.Concat(prefix, e.Path)), fmt.Sprintf("%s cannot hold this: %s", format, e.Msg)
		if at := n.At(e.Path); at != nil && prefix == nil {
			p.SetAt = positions(at.Pos)
		}
	}
	return nil, p
}

// outputs renders `files` of the filled package, and reads `confirm`.
func (r *serviceRun) outputs(u *Unit, pkg cue.Value, values func() (encode.Value, *layer.Error), merged *layer.Node) ([]File, []Problem) {
	if v := pkg.LookupPath(confirmPath); v.Exists() {
		grade, ps := r.confirm(v)
		if len(ps) > 0 {
			return nil, ps
		}
		u.Evidence = grade
	}
	files := pkg.LookupPath(filesPath)
	if !files.Exists() {
		v, err := values()
		if err != nil {
			return nil, fromLayer(r.name, []*layer.Error{err})
		}
		return r.single(v, merged)
	}
	it, err := files.Fields()
	if err != nil {
		c := r.checker(files, nil)
		c.prefix = []string{"files"}
		return nil, c.raw(files, files.Validate(cue.Concrete(true)))
	}
	var out []File
	var problems []Problem
	for it.Next() {
		f, ps := r.file(it.Selector().Unquoted(), it.Value())
		problems = append(problems, ps...)
		if len(ps) == 0 {
			out = append(out, f)
		}
	}
	slices.SortFunc(out, func(a, b File) int { return strings.Compare(a.Name, b.Name) })
	if len(problems) == 0 {
		problems = r.clash(out, files)
	}
	return out, problems
}

func (r *serviceRun) confirm(v cue.Value) (manifest.Grade, []Problem) {
	n, errs := layer.From(r.ctx.BuildExpr(ast.NewStruct()).FillPath(confirmPath, v), true, token.Pos.IsValid)
	if len(errs) > 0 {
		return "", fromLayer(r.name, errs)
	}
	def := r.shipped.LookupPath(cue.ParsePath("#Service"))
	c := r.checker(def, func(n *layer.Node) cue.Value { return def.Unify(r.ctx.BuildExpr(n.AST())) })
	full, ps := c.check(n)
	if len(ps) > 0 {
		return "", ps
	}
	grade, err := full.LookupPath(confirmPath).String()
	if err != nil {
		return "", []Problem{r.errorf(r.cue[0], "confirm has no value")}
	}
	return manifest.Grade(grade), nil
}

// file renders one entry of `files`.
func (r *serviceRun) file(name string, v cue.Value) (File, []Problem) {
	where := []string{"files", name}
	fail := func(at cue.Value, path []string, format string, args ...any) (File, []Problem) {
		return File{}, []Problem{{Severity: SeverityError, Service: r.name, Path: layer.PathText(path), Message: fmt.Sprintf(format, args...), SetAt: positions(at.Pos())}}
	}
	if msg := badName(name); msg != "" {
		return fail(v, where, "%s", msg)
	}
	// The entry without its data, against the shipped schema.
	it, err := v.Fields()
	if err != nil {
		c := r.checker(v, nil)
		c.prefix = where
		return File{}, c.raw(v, v.Validate(cue.Concrete(true)))
	}
	entry := &layer.Node{Kind: layer.Struct, Fields: map[string]*layer.Node{}, Pos: v.Pos(), KeyPos: v.Pos()}
	for it.Next() {
		k := it.Selector().Unquoted()
		if k == "data" {
			continue
		}
		field := r.ctx.BuildExpr(ast.NewStruct()).FillPath(cue.MakePath(cue.Str(k)), it.Value())
		n, errs := layer.From(field, true, token.Pos.IsValid)
		if len(errs) > 0 {
			for _, e := range errs {
				e.Path = slices.Concat(where, e.Path)
			}
			return File{}, fromLayer(r.name, errs)
		}
		if n.Fields[k] != nil {
			n.Fields[k].KeyPos = it.Value().Pos()
			entry.Fields[k] = n.Fields[k]
		}
	}
	def := r.shipped.LookupPath(cue.ParsePath("#File"))
	c := r.checker(def, func(n *layer.Node) cue.Value { return def.Unify(r.ctx.BuildExpr(n.AST())) })
	c.prefix = where
	full, ps := c.check(entry)
	if len(ps) > 0 {
		return File{}, ps
	}
	format, _ := full.LookupPath(cue.ParsePath("format")).String()
	mode, _ := full.LookupPath(cue.ParsePath("mode")).String()
	bits, err := strconv.ParseUint(mode, 8, 32)
	if err != nil {
		return fail(v, where, "no mode")
	}
	f := File{Name: name, Mode: uint32(bits)}
	if entry.Fields["from"] != nil || format == "template" || format == "raw" {
		return fail(v, where, "format %q and `from` are not rendered by this version yet: use text with data", format)
	}
	data := v.LookupPath(cue.ParsePath("data"))
	if !data.Exists() {
		return fail(v, where, "data is missing")
	}
	if err := data.Validate(cue.Concrete(true), cue.Final()); err != nil {
		c := r.checker(data, nil)
		c.prefix = slices.Concat(where, []string{"data"})
		return File{}, c.raw(data, err)
	}
	plain, lerr := layer.Plain(data)
	if lerr != nil {
		lerr.Path = slices.Concat(where, []string{"data"}, lerr.Path)
		return File{}, fromLayer(r.name, []*layer.Error{lerr})
	}
	out, p := r.encode(format, plain, slices.Concat(where, []string{"data"}), nil)
	if p != nil {
		p.SetAt = positions(data.Pos())
		return File{}, []Problem{*p}
	}
	f.Data = out
	return f, nil
}

// badName says what is wrong with the name of a rendered file.
func badName(name string) string {
	switch {
	case name == "" || len(name) > 255:
		return "a file name has 1 to 255 bytes"
	case path.IsAbs(name) || path.Clean(name) != name || name == "." || name == ".." || strings.HasPrefix(name, "../"):
		return "a file name is relative and clean: no /, . or .. where it has no meaning"
	case slices.Contains(strings.Split(name, "/"), ".muster"):
		return ".muster is muster's own"
	case strings.ContainsFunc(name, func(c rune) bool { return c < ' ' || c == 0x7f || c == '\\' || c == '\uFFFD' }):
		return "a file name has no control characters and no backslash"
	}
	return ""
}

// clash finds names that differ only by case, and files that would have to be directories.
func (r *serviceRun) clash(files []File, at cue.Value) []Problem {
	var out []Problem
	fail := func(a, b, why string) {
		out = append(out, Problem{
			Severity: SeverityError, Service: r.name, Path: layer.PathText([]string{"files", a}), Message: fmt.Sprintf(why, b),
			SetAt: positions(at.LookupPath(cue.MakePath(cue.Str(a))).Pos(), at.LookupPath(cue.MakePath(cue.Str(b))).Pos()),
		})
	}
	seen := map[string]string{}
	for _, f := range files {
		if other, ok := seen[strings.ToLower(f.Name)]; ok {
			fail(f.Name, other, "differs from %q only by case")
		}
		seen[strings.ToLower(f.Name)] = f.Name
	}
	for _, f := range files {
		for dir := path.Dir(f.Name); dir != "."; dir = path.Dir(dir) {
			if other, ok := seen[strings.ToLower(dir)]; ok {
				fail(f.Name, other, "lies below %q, which is a file")
			}
		}
	}
	return out
}
