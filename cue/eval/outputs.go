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
	"cuelang.org/go/cue/token"

	"github.com/muster-config/muster/cue/eval/encode"
	"github.com/muster-config/muster/cue/eval/layer"
	"github.com/muster-config/muster/distributor/manifest"
)

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
