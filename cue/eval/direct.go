package eval

import (
	"slices"
	"strconv"
	"strings"

	"cuelang.org/go/cue"
	"cuelang.org/go/cue/ast"
	"cuelang.org/go/cue/build"
	"cuelang.org/go/cue/literal"
	"cuelang.org/go/cue/token"

	"github.com/muster-config/muster/cue/eval/encode"
	"github.com/muster-config/muster/cue/eval/layer"
)

// direct is `files` and `confirm` of a package that say nothing but what is written there: plain literals and references to `values` and to what is
// injected. Such a package need not be filled in again to be rendered; for most services that is half of the work.
type direct struct {
	files   []directFile
	confirm string
}

type directFile struct {
	name, format string
	mode         uint32
	data         directValue
}

// directValue is one of: a reference, a literal, a struct, a list.
type directValue struct {
	root    string   // of a reference
	path    []string // below root
	literal encode.Value
	fields  map[string]directValue
	items   []directValue
}

// rendersDirectly reads the package's syntax. It gives nil for all that is not as plain as that.
func rendersDirectly(inst *build.Instance) *direct {
	out := &direct{}
	for _, f := range inst.Files {
		for _, d := range f.Decls {
			switch d := d.(type) {
			case *ast.Package, *ast.ImportDecl, *ast.CommentGroup, *ast.LetClause:
			case *ast.Field:
				if !out.decl(d) {
					return nil
				}
			default:
				return nil // what is embedded may say something of files too
			}
		}
	}
	return out
}

func (o *direct) decl(d *ast.Field) bool {
	name, ok := directLabel(d)
	switch {
	case name != "files" && name != "confirm":
		return true
	case !ok:
		return false
	case name == "confirm":
		grade, ok := directText(d.Value)
		ok = ok && grade != "" && o.confirm == ""
		o.confirm = grade
		return ok
	}
	entries, ok := directFields(d.Value)
	for _, e := range entries {
		if !ok || !o.file(e) {
			return false
		}
	}
	return ok
}

func (o *direct) file(e *ast.Field) bool {
	name, _ := directLabel(e)
	fields, ok := directFields(e.Value)
	if !ok || badName(name) != "" || slices.ContainsFunc(o.files, func(f directFile) bool { return f.name == name }) {
		return false
	}
	f := directFile{name: name, mode: 0o644}
	hasData := false
	for _, field := range fields {
		switch label, _ := directLabel(field); label {
		case "format":
			f.format, ok = directText(field.Value)
			ok = ok && slices.Contains(encode.Formats, f.format)
		case "mode":
			var mode string
			mode, ok = directText(field.Value)
			bits, err := strconv.ParseUint(mode, 8, 32)
			f.mode = uint32(bits)
			ok = ok && err == nil && plainMode.MatchString(mode)
		case "data":
			f.data, ok = directData(field.Value)
			hasData = true
		default:
			ok = false
		}
		if !ok {
			return false
		}
	}
	o.files = append(o.files, f)
	return hasData && f.format != ""
}

// directFields are the fields of a struct that has nothing else, each name once.
func directFields(x ast.Expr) ([]*ast.Field, bool) {
	s, ok := x.(*ast.StructLit)
	if !ok {
		return nil, false
	}
	var out []*ast.Field
	seen := map[string]bool{}
	for _, d := range s.Elts {
		if _, comment := d.(*ast.CommentGroup); comment {
			continue
		}
		f, ok := d.(*ast.Field)
		if !ok {
			return nil, false
		}
		name, ok := directLabel(f)
		if !ok || seen[name] || slices.Contains(directRoots, name) {
			return nil, false // inside the struct the name of a root would mean this field
		}
		seen[name] = true
		out = append(out, f)
	}
	return out, true
}

var directRoots = []string{"values", "cohort", "host", "release"}

// directLabel is the name of a regular field, and whether there is nothing else about it.
func directLabel(f *ast.Field) (string, bool) {
	ok := f.Alias == nil && f.Constraint == token.ILLEGAL && len(f.Attrs) == 0
	switch l := f.Label.(type) {
	case *ast.Ident:
		return l.Name, ok && !strings.HasPrefix(l.Name, "_") && !strings.HasPrefix(l.Name, "#")
	case *ast.BasicLit:
		text, plain := directText(l)
		return text, ok && plain
	}
	return "", false
}

func directText(x ast.Node) (string, bool) {
	lit, ok := x.(*ast.BasicLit)
	if !ok || lit.Kind != token.STRING || !strings.HasPrefix(lit.Value, `"`) {
		return "", false
	}
	text, err := literal.Unquote(lit.Value)
	return text, err == nil
}

func directData(x ast.Expr) (v directValue, ok bool) {
	switch x := x.(type) {
	case *ast.BasicLit:
		switch x.Kind {
		case token.TRUE, token.FALSE:
			return directValue{literal: x.Kind == token.TRUE}, true
		case token.STRING:
			text, ok := directText(x)
			return directValue{literal: text}, ok
		}
	case *ast.Ident:
		return directValue{root: x.Name}, directRoot(x)
	case *ast.SelectorExpr:
		v, ok := directData(x.X)
		if !ok || v.root == "" {
			return v, false
		}
		name, ok := "", false
		switch l := x.Sel.(type) {
		case *ast.Ident:
			name, ok = l.Name, !strings.HasPrefix(l.Name, "_") && !strings.HasPrefix(l.Name, "#")
		case *ast.BasicLit:
			name, ok = directText(l)
		}
		v.path = append(v.path, name)
		return v, ok
	case *ast.StructLit:
		fields, ok := directFields(x)
		v := directValue{fields: make(map[string]directValue, len(fields))}
		for _, f := range fields {
			name, _ := directLabel(f)
			below, plain := directData(f.Value)
			ok = ok && plain
			v.fields[name] = below
		}
		return v, ok
	case *ast.ListLit:
		v := directValue{items: make([]directValue, len(x.Elts))}
		for i, e := range x.Elts {
			if v.items[i], ok = directData(e); !ok {
				return v, false
			}
		}
		return v, true
	}
	return v, false
}

// directRoot reports whether a name means the package's own field.
func directRoot(id *ast.Ident) bool {
	switch id.Node.(type) {
	case *ast.ImportSpec, *ast.LetClause, *ast.Alias:
		return false
	}
	return slices.Contains(directRoots, id.Name)
}

// directly renders the files of a unit from its values; ok is false where the long way must tell what is wrong.
func (r *serviceRun) directly(u *Unit, pkg cue.Value, values func() (encode.Value, *layer.Error)) (files []File, ok bool) {
	if v := pkg.LookupPath(confirmPath); v.Exists() {
		grade, ps := r.confirm(v)
		if len(ps) > 0 {
			return nil, false
		}
		u.Evidence = grade
	}
	roots := map[string]encode.Value{}
	for _, f := range r.direct.files {
		v, ok := f.data.of(roots, pkg, values)
		if !ok {
			return nil, false
		}
		data, p := r.encode(f.format, v, nil, nil)
		if p != nil {
			return nil, false
		}
		files = append(files, File{Name: f.name, Mode: f.mode, Format: f.format, Data: data})
	}
	slices.SortFunc(files, func(a, b File) int { return strings.Compare(a.Name, b.Name) })
	return files, len(files) > 0 && len(r.clash(files, cue.Value{})) == 0
}

// of is the value for one unit. Each root is read once; what is not there or has no value is for the long way.
func (d *directValue) of(roots map[string]encode.Value, pkg cue.Value, values func() (encode.Value, *layer.Error)) (encode.Value, bool) {
	switch {
	case d.root != "":
		at, known := roots[d.root]
		if !known {
			read := values
			if d.root != "values" {
				v := pkg.LookupPath(cue.MakePath(cue.Str(d.root)))
				if v.Validate(cue.Concrete(true), cue.Final()) != nil {
					return nil, false
				}
				read = func() (encode.Value, *layer.Error) { return layer.Plain(v) }
			}
			var err *layer.Error
			if at, err = read(); err != nil {
				return nil, false
			}
			roots[d.root] = at
		}
		for _, name := range d.path {
			m, ok := at.(map[string]any)
			if !ok {
				return nil, false
			}
			if at, ok = m[name]; !ok {
				return nil, false
			}
		}
		return at, true
	case d.fields != nil:
		m := make(map[string]any, len(d.fields))
		for name, f := range d.fields {
			v, ok := f.of(roots, pkg, values)
			if !ok {
				return nil, false
			}
			m[name] = v
		}
		return m, true
	case d.items != nil:
		l := make([]any, len(d.items))
		for i := range d.items {
			v, ok := d.items[i].of(roots, pkg, values)
			if !ok {
				return nil, false
			}
			l[i] = v
		}
		return l, true
	}
	return d.literal, true
}
