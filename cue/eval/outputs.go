package eval

import (
	"errors"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"cuelang.org/go/cue"
	"cuelang.org/go/cue/ast"
	"cuelang.org/go/cue/token"
	"golang.org/x/text/cases"
	"golang.org/x/text/unicode/norm"

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
	f := File{Name: r.name + "." + format, Mode: 0o644, Format: format}
	data, p := r.encode(format, v, nil, n)
	if p != nil {
		return nil, []Problem{*p}
	}
	f.Data = data
	return []File{f}, nil
}

// encode writes a value; prefix is its path in `files`, nil for the values themselves.
func (r *serviceRun) encode(format string, v encode.Value, prefix []string, n *layer.Node) ([]byte, *Problem) {
	data, err := encode.Encode(format, v)
	if err == nil {
		return r.kept(data), nil
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

// kept are the bytes of a file that was written, if they are asked for or compared with those of another epoch; what is wrong with them is
// found all the same.
func (r *serviceRun) kept(data []byte) []byte {
	if r.req.FilesToo || r.epoch {
		return data
	}
	return nil
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
	r.asIs = map[string]bool{}
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

// fileEntry is what an entry of `files` says beside its data.
type fileEntry struct {
	format, mode, from string
	hasFrom            bool
	fromAt             cue.Value
}

// entry checks an entry of `files` without its data against the shipped schema.
func (r *serviceRun) entry(where []string, v cue.Value) (fileEntry, []Problem) {
	it, err := v.Fields()
	if err != nil {
		c := r.checker(v, nil)
		c.prefix = where
		return fileEntry{}, c.raw(v, v.Validate(cue.Concrete(true)))
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
			return fileEntry{}, fromLayer(r.name, errs)
		}
		if n.Fields[k] != nil {
			n.Fields[k].KeyPos = it.Value().Pos()
			entry.Fields[k] = n.Fields[k]
		}
	}
	def := r.shipped.LookupPath(fileDefPath)
	c := r.checker(def, func(n *layer.Node) cue.Value { return def.Unify(r.ctx.BuildExpr(n.AST())) })
	c.prefix = where
	full, ps := c.check(entry)
	if len(ps) > 0 {
		return fileEntry{}, ps
	}
	var out fileEntry
	out.format, _ = full.LookupPath(formatPath).String()
	out.mode, _ = full.LookupPath(modePath).String()
	if out.hasFrom = entry.Fields["from"] != nil; out.hasFrom {
		out.fromAt = full.LookupPath(fromPath)
		out.from, _ = out.fromAt.String()
	}
	return out, nil
}

var (
	dataPath    = cue.ParsePath("data")
	formatPath  = cue.ParsePath("format")
	modePath    = cue.ParsePath("mode")
	fromPath    = cue.ParsePath("from")
	fileDefPath = cue.ParsePath("#File")
	plainMode   = regexp.MustCompile(`^0[0-7]{3}$`)
)

// plainEntry reads an entry that is written as nearly all are, strings under the known names, for much less than to unify it with the shipped schema;
// any other is for entry.
func plainEntry(v cue.Value) (fileEntry, bool) {
	out := fileEntry{mode: "0644"}
	it, err := v.Fields()
	if err != nil {
		return out, false
	}
	for it.Next() {
		var err error
		switch it.Selector().Unquoted() {
		case "data":
		case "format":
			out.format, err = it.Value().String()
		case "mode":
			if out.mode, err = it.Value().String(); !plainMode.MatchString(out.mode) {
				return out, false
			}
		case "from":
			out.hasFrom, out.fromAt = true, it.Value()
			out.from, err = it.Value().String()
		default:
			return out, false
		}
		if err != nil {
			return out, false
		}
	}
	return out, out.format == "template" || out.format == "raw" || slices.Contains(encode.Formats, out.format)
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
	says, plain := plainEntry(v)
	if !plain || r.long {
		var ps []Problem
		if says, ps = r.entry(where, v); len(ps) > 0 {
			return File{}, ps
		}
	}
	format := says.format
	bits, err := strconv.ParseUint(says.mode, 8, 32)
	if err != nil {
		return fail(v, where, "no mode")
	}
	if bits&0o400 == 0 {
		return fail(v, where, "mode %s: the file's owner could not read it", says.mode)
	}
	f := File{Name: name, Mode: uint32(bits), Format: format}
	data := v.LookupPath(dataPath)
	if msg := sources(format, data.Exists(), says.hasFrom); msg != "" {
		return fail(v, where, "%s", msg)
	}
	var source treeText
	if says.hasFrom {
		var msg string
		if source, msg = r.from(says.from); msg != "" {
			return fail(says.fromAt, slices.Concat(where, []string{"from"}), "%s", msg)
		}
		if format != "template" {
			p := source.verbatim(format)
			if p != nil {
				p.Service, p.Path = r.name, layer.PathText(where)
				return File{}, []Problem{*p}
			}
			f.Data = r.kept(source.data)
			r.asIs[name] = true
			return f, nil
		}
	}
	if err := data.Validate(cue.Concrete(true), cue.Final()); err != nil {
		c := r.checker(data, nil)
		c.prefix = slices.Concat(where, []string{"data"})
		return File{}, c.raw(data, err)
	}
	value, lerr := layer.Plain(data)
	if lerr != nil {
		lerr.Path = slices.Concat(where, []string{"data"}, lerr.Path)
		return File{}, fromLayer(r.name, []*layer.Error{lerr})
	}
	f.Secret = r.req.LeavesToo && r.hide.holds(value, false)
	if format == "template" {
		out, p := source.execute(value)
		if p != nil {
			p.Service, p.Path = r.name, layer.PathText(where)
			return File{}, []Problem{*p}
		}
		f.Data = r.kept(out)
		return f, nil
	}
	out, p := r.encode(format, value, slices.Concat(where, []string{"data"}), nil)
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
	case strings.ContainsFunc(name, func(c rune) bool {
		return unicode.IsControl(c) || unicode.Is(unicode.Bidi_Control, c) || c == '\\' || c == unicode.ReplacementChar
	}):
		return "a file name has no control characters and no backslash"
	}
	return ""
}

// folded is one text for all names that some file system takes for the same, as packages bundle and source have it.
func folded(name string) string {
	return norm.NFD.String(cases.Fold().String(norm.NFD.String(name)))
}

// clash finds names that differ only by case or Unicode form, and files that would have to be directories.
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
		if other, ok := seen[folded(f.Name)]; ok {
			why := "differs from %q only by case"
			if !strings.EqualFold(f.Name, other) {
				why = "differs from %q only by Unicode form"
			}
			fail(f.Name, other, why)
		}
		seen[folded(f.Name)] = f.Name
	}
	for _, f := range files {
		for dir := path.Dir(f.Name); dir != "."; dir = path.Dir(dir) {
			if other, ok := seen[folded(dir)]; ok {
				fail(f.Name, other, "lies below %q, which is a file")
			}
		}
	}
	return out
}
