package eval

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"cuelang.org/go/cue"
	"cuelang.org/go/cue/ast"
	"cuelang.org/go/cue/errors"
	"cuelang.org/go/cue/token"

	"github.com/muster-config/muster/cue/eval/layer"
)

// checker checks data against a schema and says what is wrong in our own words. CUE reports in waves (a bad value hides the unknown fields
// of the same struct, any error hides what is missing) and prints values; so once CUE has refused, three passes look for unknown fields,
// refused values and missing fields, each on what the one before left.
type checker struct {
	ctx     *cue.Context
	service string
	prefix  []string                      // where the schema's root is, for display
	schema  cue.Value                     // the constraints alone
	unify   func(n *layer.Node) cue.Value // the data under the schema
	quick   func(n *layer.Node) cue.Value // the same for less, where what it says of good data is as good; may be nil
	secret  func(path []string, s cue.Value) bool
	within  func(s cue.Value) bool    // whether a schema has a secret somewhere in it; may be nil
	locate  func(path []string) []Pos // where the syntax has a path, for errors that CUE gives no place; may be nil
	layers  *stack                    // what the data was merged from; may be nil
	home    func() string             // the file where a missing value goes; may be nil
	full    cue.Value                 // the value that misses something
}

// check returns the value of n under the schema, and what is wrong with it.
func (c *checker) check(n *layer.Node) (cue.Value, []Problem) {
	if c.quick != nil {
		if v := c.quick(n); v.Validate(cue.Concrete(true), cue.Final()) == nil {
			return v, nil
		}
	}
	v := c.unify(n)
	err := v.Validate(cue.Concrete(true), cue.Final())
	if err == nil {
		return v, nil
	}
	problems, rest := c.partial(n)
	bad := make(map[string]bool, len(problems))
	for _, p := range problems {
		bad[p.Path] = true
	}
	// Pass 3: what is missing, now that nothing else hides it.
	left := c.unify(rest.tree)
	c.full = left
	missing := c.groups(left, left.Validate(cue.Concrete(true), cue.Final(), cue.All()))
	// The fields that are missing or refused themselves: what is computed from one of them follows and is not reported.
	causes := map[string]bool{}
	for _, cut := range rest.cut {
		if len(cut) > 0 {
			causes[cut[len(cut)-1]] = true
		}
	}
	for _, g := range missing {
		if len(g.path) > 0 {
			causes[g.path[len(g.path)-1]] = true
		}
	}
	for _, g := range missing {
		if slices.ContainsFunc(rest.cut, func(cut []string) bool { return hasPrefix(g.path, cut) || hasPrefix(cut, g.path) }) {
			continue
		}
		if slices.ContainsFunc(rest.meant, func(path []string) bool { return slices.Equal(path, g.path) }) {
			continue // it is there under a misspelt name: one mistake
		}
		s := c.at(g.path)
		if !g.has("required but not present") && refers(s, causes) {
			continue
		}
		p := c.problem(g, n, s)
		if !bad[p.Path] {
			problems = append(problems, p)
		}
	}
	if len(problems) == 0 {
		problems = c.raw(v, err)
	}
	return v, problems
}

// remains is data without what was refused, and the paths that were cut out of it.
type remains struct {
	tree  *layer.Node
	cut   [][]string
	meant [][]string // the fields that unknown ones probably stand for
}

// partial runs the passes that hold for incomplete data too: unknown fields, then refused values. A layer alone is checked with it.
func (c *checker) partial(n *layer.Node) ([]Problem, remains) {
	rest := remains{tree: n}
	problems := c.unknown(nil, n, c.schema, &rest)
	v := c.unify(rest.tree)
	for _, g := range c.groups(v, v.Validate(cue.All())) {
		ps := c.refused(g, n)
		problems = append(problems, ps...)
		cut := toList(n, g.path)
		rest.cut = append(rest.cut, cut)
		if len(cut) > 0 {
			rest.tree = rest.tree.Without(cut)
		}
	}
	return problems, rest
}

// alone runs the passes of partial, unless CUE finds nothing to say: then there is nothing unknown either.
func (c *checker) alone(n *layer.Node) []Problem {
	unify := c.unify
	if c.quick != nil {
		unify = c.quick
	}
	if unify(n).Validate() == nil {
		return nil
	}
	problems, _ := c.partial(n)
	return problems
}

// unknown finds the fields of n that the schema does not allow, and cuts them out.
func (c *checker) unknown(path []string, n *layer.Node, s cue.Value, rest *remains) []Problem {
	var out []Problem
	if n == nil || !s.Exists() {
		return nil
	}
	switch n.Kind {
	case layer.List:
		for i, e := range n.Items {
			out = append(out, c.unknown(slices.Concat(path, []string{strconv.Itoa(i)}), e, index(s, i), rest)...)
		}
	case layer.Struct:
		if s.IncompleteKind() != cue.StructKind || alternatives(s) != nil {
			return nil // no struct, or a choice of them: the next pass tells
		}
		for _, k := range n.Keys() {
			p, f := slices.Concat(path, []string{k}), n.Fields[k]
			if f.Kind == layer.Delete {
				continue
			}
			if s.Allows(cue.Str(k)) {
				out = append(out, c.unknown(p, f, field(s, k), rest)...)
				continue
			}
			msg := "unknown field"
			if near := nearest(k, fieldNames(s)); near != "" {
				msg += fmt.Sprintf(" (did you mean %q?)", near)
				rest.meant = append(rest.meant, slices.Concat(path, []string{near}))
			}
			out = append(out, Problem{Severity: SeverityError, Service: c.service, Path: c.text(p), Message: msg, SetAt: positions(f.KeyPos)})
			rest.tree, rest.cut = rest.tree.Without(toList(rest.tree, p)), append(rest.cut, p)
		}
	}
	return out
}

// toList shortens a path at the first list on its way: without one of its items the others would have other names.
func toList(n *layer.Node, path []string) []string {
	for i := range path {
		if at := n.At(path[:i]); at != nil && at.Kind == layer.List {
			return path[:i]
		}
	}
	return path
}

// group is all that CUE says about one path.
type group struct {
	path []string
	errs []errors.Error
}

func (g group) has(text string) bool {
	return slices.ContainsFunc(g.errs, func(e errors.Error) bool {
		format, args := e.Msg()
		return strings.Contains(fmt.Sprintf(format, args...), text)
	})
}

const emptyDisjunction = "errors in empty disjunction"

// groups sorts CUE's errors about v by path. A path whose fields failed is no failure itself; the branches of a choice belong to the choice.
func (c *checker) groups(v cue.Value, err error) []group {
	var out []group
	var root []string
	for _, s := range v.Path().Selectors() {
		root = append(root, strings.TrimRight(s.String(), "?!"))
	}
	for _, e := range errors.Errors(err) {
		path := unquote(e.Path())
		if hasPrefix(path, unquote(root)) {
			path = path[len(root):]
		}
		i := slices.IndexFunc(out, func(g group) bool { return slices.Equal(g.path, path) })
		if i < 0 {
			i, out = len(out), append(out, group{path: path})
		}
		out[i].errs = append(out[i].errs, e)
	}
	slices.SortFunc(out, func(a, b group) int { return slices.Compare(a.path, b.path) })
	choice := func(g group) bool { return g.has(emptyDisjunction) && alternatives(c.at(g.path)) != nil }
	return slices.DeleteFunc(slices.Clone(out), func(g group) bool {
		return slices.ContainsFunc(out, func(o group) bool {
			switch {
			case len(o.path) < len(g.path) && hasPrefix(g.path, o.path):
				return choice(o)
			case len(o.path) > len(g.path) && hasPrefix(o.path, g.path):
				return !choice(g)
			}
			return false
		})
	})
}

// refused explains a path that CUE refused. In a choice of structs the one that the data means is looked for.
func (c *checker) refused(g group, n *layer.Node) []Problem {
	s := c.at(g.path)
	at := n.At(g.path)
	alts := alternatives(s)
	if at == nil || at.Kind != layer.Struct || alts == nil {
		return []Problem{c.problem(g, n, s)}
	}
	var meant []cue.Value
	var tags []string // what the alternatives want in the field that tells them apart
	var tag string
	for _, a := range alts {
		fits := a.IncompleteKind() == cue.StructKind
		for _, k := range at.Keys() {
			want := field(a, k)
			if f := at.Fields[k]; f.Kind == layer.Scalar && want.Exists() && want.IsConcrete() && want.IncompleteKind() != cue.StructKind {
				if plain, err := layer.Plain(want); err == nil && plain != f.Value {
					fits, tag = false, k
					tags = append(tags, showPlain(plain))
				}
			}
		}
		if fits {
			meant = append(meant, a)
		}
	}
	switch {
	case len(meant) == 1:
		alt := meant[0]
		sub := *c
		sub.prefix, sub.schema = slices.Concat(c.prefix, g.path), alt
		sub.unify = func(n *layer.Node) cue.Value { return alt.Unify(c.ctx.BuildExpr(n.AST())) }
		if _, ps := sub.check(at); len(ps) > 0 {
			return ps
		}
	case len(meant) == 0 && len(tags) == len(alts):
		p := slices.Concat(g.path, []string{tag})
		f := at.Fields[tag]
		slices.Sort(tags)
		return []Problem{{
			Severity: SeverityError, Service: c.service, Path: c.text(p), SetAt: positions(f.Pos), SchemaAt: positions(s.Pos()),
			Message: c.show(p, f, s) + " is not one of " + strings.Join(slices.Compact(tags), ", "),
		}}
	}
	return []Problem{{
		Severity: SeverityError, Service: c.service, Path: c.text(g.path), SetAt: positions(at.Pos), SchemaAt: positions(s.Pos()),
		Message: fmt.Sprintf("fits none of the %d forms that the schema gives", len(alts)),
	}}
}

// problem explains one group without looking into choices.
func (c *checker) problem(g group, n *layer.Node, s cue.Value) Problem {
	at := n.At(g.path)
	p := Problem{Severity: SeverityError, Service: c.service, Path: c.text(g.path), SchemaAt: positions(s.Pos())}
	if at == nil && (g.has("required but not present") || g.has("incomplete value")) {
		return c.missing(g, n, s)
	}
	if at != nil {
		p.SetAt = positions(at.Pos)
	} else {
		p.SetAt = inputs(g.errs[len(g.errs)-1])
	}
	p.Message = c.reason(g, at, s)
	return p
}

// raw is the last resort: CUE's own words.
func (c *checker) raw(v cue.Value, err error) []Problem {
	var out []Problem
	for _, g := range c.groups(v, err) {
		p := Problem{Severity: SeverityError, Service: c.service, Path: c.text(g.path), Message: c.own(g, c.at(g.path)), SetAt: inputs(g.errs[0])}
		if len(p.SetAt) == 0 && c.locate != nil {
			p.SetAt = c.locate(slices.Concat(c.prefix, g.path))
		}
		out = append(out, p)
	}
	return out
}

// inputs are the positions of a CUE error, not more than help.
func inputs(e errors.Error) []Pos {
	at := positions(append([]token.Pos{e.Position()}, e.InputPositions()...)...)
	return at[:min(len(at), 3)]
}

// hidden reports whether the value at path must not be shown: for itself, or for something that it lies in.
func (c *checker) hidden(path []string, s cue.Value) bool {
	if c.secret(path, s) {
		return true
	}
	for i := 1; i < len(path); i++ {
		if c.secret(nil, c.at(path[:i])) {
			return true
		}
	}
	return false
}

func (c *checker) text(path []string) string {
	return layer.PathText(slices.Concat(c.prefix, path))
}

// at is the schema of a path; it may not exist.
func (c *checker) at(path []string) cue.Value {
	v := c.schema
	for _, p := range path {
		if i, err := strconv.Atoi(p); err == nil && v.IncompleteKind()&cue.ListKind != 0 {
			v = index(v, i)
		} else {
			v = field(v, p)
		}
	}
	return v
}

// field is the constraint that a struct puts on a field, given, optional, required or by pattern.
func field(v cue.Value, name string) cue.Value {
	s := cue.Str(name)
	for _, sel := range []cue.Selector{s, s.Required(), s.Optional()} {
		if f := v.LookupPath(cue.MakePath(sel)); f.Exists() {
			return f
		}
	}
	if v.IncompleteKind() != cue.StructKind || !v.Allows(s) {
		return cue.Value{}
	}
	p := cue.MakePath(s)
	return v.FillPath(p, ast.NewIdent("_")).LookupPath(p)
}

// index is the constraint that a list puts on an item.
func index(v cue.Value, i int) cue.Value {
	if f := v.LookupPath(cue.MakePath(cue.Index(i))); f.Exists() {
		return f
	}
	return v.LookupPath(cue.MakePath(cue.AnyIndex))
}

func fieldNames(v cue.Value) []string {
	it, err := v.Fields(cue.Optional(true))
	if err != nil {
		return nil
	}
	var out []string
	for it.Next() {
		out = append(out, it.Selector().Unquoted())
	}
	return out
}

// alternatives are the forms of a choice that has structs or lists among them; nil for anything else.
func alternatives(v cue.Value) []cue.Value {
	op, args := expr(v)
	if op != cue.OrOp || !slices.ContainsFunc(args, func(a cue.Value) bool { return a.IncompleteKind()&(cue.StructKind|cue.ListKind) != 0 }) {
		return nil
	}
	var out []cue.Value
	for _, a := range args {
		if sub := alternatives(a); sub != nil {
			out = append(out, sub...)
		} else {
			out = append(out, a)
		}
	}
	return out
}

// refers reports whether a field's constraint is computed from another field of one of these names.
func refers(v cue.Value, names map[string]bool) bool {
	f, ok := v.Source().(*ast.Field)
	if !ok {
		return false
	}
	own, _, _ := ast.LabelName(f.Label)
	found := false
	ast.Walk(f.Value, func(n ast.Node) bool {
		if id, ok := n.(*ast.Ident); ok && id.Name != own && names[id.Name] {
			found = true
		}
		return !found
	}, nil)
	return found
}

func hasPrefix(path, prefix []string) bool {
	return len(path) >= len(prefix) && slices.Equal(path[:len(prefix)], prefix)
}

// unquote takes the quotes off CUE's labels.
func unquote(path []string) []string {
	out := make([]string, len(path))
	for i, p := range path {
		out[i] = p
		if strings.HasPrefix(p, `"`) {
			if s, err := strconv.Unquote(p); err == nil {
				out[i] = s
			}
		}
	}
	return out
}
