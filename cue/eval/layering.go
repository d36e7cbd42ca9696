package eval

import (
	"fmt"
	"slices"
	"strings"

	"cuelang.org/go/cue"

	"github.com/muster-config/muster/cue/eval/layer"
)

// layerUse is a layer as some cohort uses it, for the check of each layer alone.
type layerUse struct {
	name string // unique in the service
	node *layer.Node
	pkg  cue.Value

	cohorts []string // that take it; nil is all, or none
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
			if msg, severity := r.misplaced(r.name, label, value); msg != "" {
				out = append(out, Problem{Severity: severity, Service: r.name, Path: layer.PathText([]string{"overlay", label, value}), Message: msg, SetAt: positions(values.Value().Pos())})
			}
		}
	}
	return out
}

// layers are those that apply to a target: base, then the overlays in the order of precedence; of each the file and the CUE spelling.
func (r *serviceRun) layers(pkg cue.Value, t target) (*stack, []Problem) {
	s := &stack{}
	var problems []Problem
	add := func(file *layerFile, path cue.Path, label, value string) {
		name := "base"
		if label != "" {
			name = label + "=" + value
		}
		var n *layer.Node
		if file != nil {
			n = file.node
			r.use(file.path, n, pkg, file.cohorts)
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
				if t.host == "" || strings.HasPrefix(name, "host=") { // the others were seen for the cohort
					r.use(name+" "+t.name(), c, pkg, r.takers(r.name, label, value))
				}
				n = layer.Merge(n, c)
			}
		}
		s.push(name, n)
	}
	add(r.base, basePath, "", "")
	for _, label := range r.policy.Precedence {
		if value, ok := t.value(label); ok {
			add(r.overlays[label][value], cue.MakePath(cue.Str("overlay"), cue.Str(label), cue.Str(value)), label, value)
		}
	}
	problems = append(problems, r.override(s, t)...)
	s.finish()
	return s, problems
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
func (r *serviceRun) use(name string, n *layer.Node, pkg cue.Value, cohorts []string) {
	if n == nil || !r.hasValues || slices.ContainsFunc(r.alone, func(u layerUse) bool { return u.name == name }) {
		return
	}
	r.alone = append(r.alone, layerUse{name: name, node: n, pkg: pkg, cohorts: cohorts})
}

// layersAlone checks each layer by itself, so that what a later one hides is found too: an unknown field is an error; a refused value that no
// merged result showed is a warning, since a bound may depend on a neighbour.
func (r *serviceRun) layersAlone(problems []Problem) []Problem {
	if r.inst != nil && r.hasValues {
		for _, f := range r.files() { // those that no cohort of this request uses
			r.use(f.path, f.node, r.pkg, f.cohorts)
		}
	}
	known := map[string]bool{}
	for _, p := range problems {
		for _, at := range p.SetAt {
			known[at.String()] = true
		}
	}
	for _, u := range r.alone {
		if r.shown(u.node) {
			continue
		}
		node := u.node.Final()
		c := r.checker(u.pkg.LookupPath(valuesPath), func(n *layer.Node) cue.Value {
			return u.pkg.FillPath(valuesPath, r.ctx.BuildExpr(n.AST())).LookupPath(valuesPath)
		})
		c.quick = r.quick(c.schema)
		r.hide.learn(node, c.at)
		found := c.alone(node)
		if len(found) > 0 {
			r.hide.misplaced(node, c.schema)
		}
		for _, p := range found {
			unknown := strings.HasPrefix(p.Message, "unknown field")
			switch {
			case unknown:
				// It is wrong whoever takes the layer, also where a later one hides it.
				p.Cohorts = u.cohorts
				problems = slices.DeleteFunc(problems, func(q Problem) bool {
					return q.Path == p.Path && q.Message == p.Message && slices.Equal(q.SetAt, p.SetAt)
				})
			case strings.HasPrefix(p.Message, "missing:"), slices.ContainsFunc(p.SetAt, func(at Pos) bool { return known[at.String()] }):
				continue // another layer gives it; or a merged result has shown it
			case fixedToo(problems, p):
				continue
			default:
				p.Severity = SeverityWarning
			}
			problems = append(problems, p)
		}
	}
	return problems
}
