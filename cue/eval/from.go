package eval

import (
	"bytes"
	"errors"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"text/template"
	"unicode/utf8"

	"github.com/muster-config/muster/cue/eval/encode"
	"github.com/muster-config/muster/cue/eval/layer"
	"github.com/muster-config/muster/distributor/bundle"
)

// A file's bytes come from `data`, from a file of the tree, or from both:
//
//	json yaml toml env   data, written canonically
//	text                 data, a string; or from, taken as it is, which must be UTF-8
//	template             from, a text/template, executed with data
//	raw                  from, byte by byte

// sources says what a format lacks, or cannot take.
func sources(format string, data, from bool) string {
	switch {
	case format == "raw" && data:
		return "format raw is a file of the tree as it is: it takes `from`, and no data"
	case format == "raw" && !from:
		return "from is missing: the file of the service's directory, or below lib/, whose bytes are taken"
	case format == "template" && !from:
		return "from is missing: the template, a file of the service's directory or below lib/"
	case format == "template" && !data:
		return "data is missing: what the template is executed with, such as `data: values`"
	case format == "text" && data && from:
		return "text takes data or from, one of them (a template takes both)"
	case format == "text" && !data && !from:
		return "data is missing: a string; or from, a file"
	case format != "text" && format != "template" && format != "raw" && from:
		return fmt.Sprintf("format %s is written from data: `from` is for text, template and raw", format)
	case format != "raw" && format != "text" && !data:
		return "data is missing"
	}
	return ""
}

// treeText is a file that `from` names.
type treeText struct {
	name string // from the root
	data []byte
}

// from finds a file of the service's directory or, with lib/ in front, of the tree's lib. Nothing else can be reached.
func (r *serviceRun) from(name string) (treeText, string) {
	if name == "" || path.IsAbs(name) || path.Clean(name) != name || name == "." || name == ".." || strings.HasPrefix(name, "../") {
		return treeText{}, fmt.Sprintf("%q is no path inside %s or lib: it is relative and clean", name, r.dir)
	}
	full := path.Join(r.dir, name)
	if strings.HasPrefix(name, "lib/") {
		full = name
	}
	data, ok := r.tree.files[full]
	if ok {
		return treeText{full, data}, ""
	}
	msg := fmt.Sprintf("no file %s", full)
	if _, dir := r.tree.dirs[full]; dir {
		return treeText{}, msg + ": it is a directory"
	}
	var have []string
	for _, f := range r.tree.under(path.Dir(full)) {
		have = append(have, strings.TrimPrefix(f, r.dir+"/"))
	}
	if near := nearest(name, have); near != "" {
		msg += fmt.Sprintf(" (did you mean %q?)", near)
	}
	return treeText{}, msg
}

func (s treeText) problem(line, col int, format string, args ...any) *Problem {
	return &Problem{Severity: SeverityError, Message: fmt.Sprintf(format, args...), SetAt: []Pos{{File: s.name, Line: line, Col: col}}}
}

// verbatim checks a file that is taken as it is.
func (s treeText) verbatim(format string) *Problem {
	if len(s.data) > bundle.MaxFile {
		return s.problem(0, 0, "larger than %d MiB, the most that a bundle carries in one file", bundle.MaxFile>>20)
	}
	if format == "text" && !utf8.Valid(s.data) {
		line := 1
		for i, l := range bytes.Split(s.data, []byte("\n")) {
			if !utf8.Valid(l) {
				line = i + 1
				break
			}
		}
		return s.problem(line, 0, "not UTF-8: format text is text; raw takes any bytes")
	}
	return nil
}

// null stands for a null in a template's data. It is false to if, and has no text: `<no value>` in a file is never meant. It has length 0, and
// keeps its path in the room behind.
type null []string

func (n null) String() string { return nullMark + layer.PathText(n[:cap(n)]) + nullMark }

// nullMark cannot be in a template, whose text is checked for it, and is in no data by accident.
const nullMark = "\x00muster null\x00"

// templateData is a value as templates take it: integers compare as integers; what has more digits, and decimals, keep their exact text.
func templateData(path []string, v encode.Value) any {
	switch v := v.(type) {
	case nil:
		return null(slices.Clip(slices.Clone(path)))[:0]
	case encode.Number:
		if i, err := strconv.ParseInt(string(v), 10, 64); err == nil {
			return i
		}
		return string(v)
	case []any:
		out := make([]any, len(v))
		for i, e := range v {
			out[i] = templateData(append(path, strconv.Itoa(i)), e)
		}
		return out
	case map[string]any:
		out := make(map[string]any, len(v))
		for k, e := range v {
			out[k] = templateData(append(path, k), e)
		}
		return out
	}
	return v
}

var errTooLong = errors.New("too long")

// limited is a buffer that refuses to grow beyond what a bundle carries.
type limited struct{ bytes.Buffer }

func (l *limited) Write(b []byte) (int, error) {
	if l.Len()+len(b) > bundle.MaxFile {
		return 0, errTooLong
	}
	return l.Buffer.Write(b)
}

// templateError is "template: NAME:LINE:COL: text"; the column counts from 0 and may be missing.
var templateError = regexp.MustCompile(`^template: .*?:(\d+)(?::(\d+))?: (?s:(.*))$`)

// goWords says in the words of data what text/template says in Go's.
var goWords = strings.NewReplacer("map[string]interface {}", "a struct", "[]interface {}", "a list", "interface {}", "a value", "int64", "an integer",
	"eval.null", "null", "map has no entry for key", "the data has no key")

// execute runs a template with the functions of text/template, which reach nothing outside.
func (s treeText) execute(data encode.Value) ([]byte, *Problem) {
	if !utf8.Valid(s.data) || bytes.Contains(s.data, []byte(nullMark)) {
		return nil, s.problem(0, 0, "not UTF-8: a template is text")
	}
	t, err := template.New("t").Option("missingkey=error").Parse(string(s.data))
	var out limited
	if err == nil {
		err = t.Execute(&out, templateData(nil, data))
	}
	switch {
	case errors.Is(err, errTooLong):
		return nil, s.problem(0, 0, "the template gives more than %d MiB, the most that a bundle carries in one file", bundle.MaxFile>>20)
	case err != nil:
		m := templateError.FindStringSubmatch(err.Error())
		if m == nil {
			return nil, s.problem(0, 0, "the template fails")
		}
		line, _ := strconv.Atoi(m[1])
		col := 0
		if m[2] != "" {
			col, _ = strconv.Atoi(m[2])
			col++
		}
		text := strings.Join(strings.Fields(goWords.Replace(strings.TrimPrefix(m[3], `executing "t" `))), " ")
		return nil, s.problem(line, col, "%s", cut(text, 3*maxShown))
	}
	if before, rest, found := bytes.Cut(out.Bytes(), []byte(nullMark)); found {
		what, _, _ := bytes.Cut(rest, []byte(nullMark))
		return nil, s.problem(0, 0, "line %d of the result would hold null (data.%s): leave it out with {{with}}, or give a value", 1+bytes.Count(before, []byte("\n")), what)
	}
	return out.Bytes(), nil
}
