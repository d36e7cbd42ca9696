package eval

import (
	"fmt"
	"slices"
	"strings"

	"cuelang.org/go/cue"
	"cuelang.org/go/cue/ast"
	"cuelang.org/go/cue/build"
	"cuelang.org/go/cue/token"

	"github.com/muster-config/muster/cue/eval/layer"
)

// build compiles the package, and checks what does not depend on a cohort, before these cohorts are evaluated.
func (r *serviceRun) build(cohorts []string) []Problem {
	r.pkg = r.ctx.BuildInstance(r.inst)
	c := r.checker(r.pkg, nil)
	r.conditional = conditional(r.inst)
	// The check of each cohort says better what is wrong with what it takes, and is about no other one.
	below := func(p Problem, path string) bool { return p.Path == path || strings.HasPrefix(p.Path, path+".") }
	taken := func(p Problem) bool {
		return slices.ContainsFunc(r.overlaysTaken(cohorts), func(path string) bool { return below(p, path) })
	}
	if err := r.pkg.Err(); err != nil && !r.conditional {
		if ps := slices.DeleteFunc(r.injected(c.raw(r.pkg, err)), taken); len(ps) > 0 {
			return ps
		}
	}
	if err := r.pkg.Validate(); err != nil {
		ps := slices.DeleteFunc(r.injected(c.raw(r.pkg, err)), func(p Problem) bool { return taken(p) || len(cohorts) > 0 && below(p, "values") })
		if r.conditional { // its `if` may have no value yet: see whole
			ps = slices.DeleteFunc(ps, func(p Problem) bool { return p.Path == "" })
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
	r.outputsToo = r.conditional || r.pkg.LookupPath(filesPath).Exists() || r.pkg.LookupPath(confirmPath).Exists()
	r.separable = separable(r.inst)
	if r.outputsToo && r.separable {
		r.direct = rendersDirectly(r.inst)
	}
	r.epoch = r.pkg.LookupPath(releasePath).Exists() && refersTo(r.inst, "release")
	return problems
}

// overlaysTaken are the paths of the package's overlays that one of the cohorts takes.
func (r *serviceRun) overlaysTaken(cohorts []string) []string {
	var out []string
	for _, t := range r.targets(cohorts) {
		for _, label := range r.policy.Precedence {
			if value, ok := t.value(label); ok {
				out = append(out, layer.PathText([]string{"overlay", label, value}))
			}
		}
	}
	return out
}

// conditional reports whether the package itself has an `if` or a `for`: what it looks at may be there only once a cohort's values are filled in.
func conditional(inst *build.Instance) bool {
	return slices.ContainsFunc(inst.Files, func(f *ast.File) bool {
		return slices.ContainsFunc(f.Decls, func(d ast.Decl) bool {
			if e, ok := d.(*ast.EmbedDecl); ok {
				_, ok = e.Expr.(*ast.Comprehension)
				return ok
			}
			_, ok := d.(*ast.Comprehension)
			return ok
		})
	})
}

// whole judges a package that is conditional once all is filled in.
func (r *serviceRun) whole(full cue.Value) []Problem {
	if !r.conditional {
		return nil
	}
	err := full.Err()
	if err == nil {
		err = full.Validate()
	}
	if err == nil {
		return nil
	}
	ps := r.injected(r.checker(full, nil).raw(full, err))
	for i := range ps {
		if len(ps[i].SetAt) == 0 {
			ps[i].SetAt = []Pos{{File: r.cue[0]}}
		}
	}
	return ps
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
		if p.Path == "" && strings.HasPrefix(p.Message, "non-concrete value") {
			ps[i].Message += ": an `if` of the package itself has no value to look at; put it inside `files: {…}` or #Config, which are computed for each cohort"
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
	uses(inst, name, func(*ast.Ident) bool {
		found = true
		return false
	})
	return found
}

// uses calls f for each use of a name, until it returns false.
func uses(inst *build.Instance, name string, f func(*ast.Ident) bool) {
	more := true
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
			if more && n.Name == name {
				more = f(n)
			}
		}
		return more
	}
	for _, file := range inst.Files {
		ast.Walk(file, visit, nil)
	}
}
