package layer

import (
	"bytes"
	"errors"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"cuelang.org/go/cue/token"

	"github.com/muster-config/muster/cue/eval/encode"
)

// maxYAMLNodes bounds what aliases may unfold to ("billion laughs").
const maxYAMLNodes = 1_000_000

// yaml reads one YAML document. Plain words are read as CUE reads them, whatever the YAML version:
//
//	null Null NULL ~ and nothing         null
//	true True TRUE false False FALSE     bool
//	12 +12 1_000 0x1f 0o17 0b11 017      integer (017 is octal: 15)
//	1.5 .5 1e3                           float
//	everything else                      string: yes no on off y n, dates, 22:22, =
//
// Keys are strings, as written. Infinities, binary data and tags other than the core ones are refused.
func (r *reader) yaml() (root *Node) {
	if blank(r.data) {
		if n := bytes.Count(r.data, []byte("\n---")); n > 1 || n == 1 && bytes.HasPrefix(r.data, []byte("---")) {
			r.fail(nil, "more than one YAML document: a layer is one", r.at(bytes.LastIndex(r.data, []byte("\n---"))+1))
		}
		return nil
	}
	defer func() {
		if recover() != nil {
			// The library panics on some broken input; its text may hold values.
			r.fail(nil, "not valid YAML", r.at(0))
			root = nil
		}
	}()
	dec := yaml.NewDecoder(bytes.NewReader(r.data))
	var doc, more yaml.Node
	if err := dec.Decode(&doc); err != nil {
		r.syntax(err)
		return nil
	}
	switch err := dec.Decode(&more); {
	case errors.Is(err, io.EOF):
	case err != nil:
		r.syntax(err)
		return nil
	default:
		r.fail(nil, "more than one YAML document: a layer is one", r.pos(&more))
		return nil
	}
	if doc.Kind != yaml.DocumentNode || len(doc.Content) != 1 {
		r.fail(nil, "not valid YAML", r.at(0))
		return nil
	}
	y := &yamlParser{reader: r, open: map[*yaml.Node]bool{}}
	root = y.value(nil, doc.Content[0], true, 0)
	if root != nil && root.Kind == Scalar && root.Value == nil && doc.Content[0].Value == "" {
		return nil // `--- # nothing`
	}
	return root
}

var yamlLine = regexp.MustCompile(`^yaml: (?:line (\d+): )?(.*)$`)

// Reasons of the scanner and parser that quote nothing of the input.
var yamlReasons = []string{
	"found character that cannot start any token", "could not find expected ':'", "did not find expected key", "did not find expected node content",
	"did not find expected '-' indicator", "did not find expected ',' or ']'", "did not find expected ',' or '}'", "mapping values are not allowed in this context",
	"block sequence entries are not allowed in this context", "mapping keys are not allowed in this context", "found unexpected end of stream",
	"found unknown escape character", "did not find expected hexdecimal number", "found a tab character that violates indentation",
	"found a tab character where an indentation space is expected", "did not find expected alphabetic or numeric character",
	"did not find expected comment or line break", "found unexpected document indicator", "exceeded max depth of 10000", "control characters are not allowed",
	"found undefined tag handle", "did not find expected whitespace or line break", "found an indentation indicator equal to 0",
	"did not find expected <document start>", "found invalid Unicode character escape code",
}

// syntax reports a syntax error without the library's own words, unless they are known to hold nothing of the input.
func (r *reader) syntax(err error) {
	e := &Error{Msg: "not valid YAML", At: []token.Position{{Filename: r.name}}}
	m := yamlLine.FindStringSubmatch(strings.SplitN(err.Error(), "\n", 2)[0])
	if m != nil {
		if line, err := strconv.Atoi(m[1]); err == nil {
			e.At[0].Line = max(1, min(line, r.file.LineCount()))
		}
		for _, reason := range yamlReasons {
			if strings.HasSuffix(m[2], reason) {
				e.Msg += ": " + reason
			}
		}
		if strings.HasPrefix(m[2], "unknown anchor") {
			e.Msg += ": an alias of an anchor that is not there"
		}
	}
	r.errs = append(r.errs, e)
}

type yamlParser struct {
	*reader
	nodes int
	open  map[*yaml.Node]bool // anchors being unfolded
}

// pos turns the library's line and column (in characters) into a position.
func (r *reader) pos(n *yaml.Node) token.Pos {
	lines := r.file.Lines()
	if n.Line < 1 || n.Line > len(lines) {
		return r.at(0)
	}
	offset := lines[n.Line-1]
	rest := r.data[offset:]
	if i := bytes.IndexByte(rest, '\n'); i >= 0 {
		rest = rest[:i]
	}
	col := 1
	for i := range string(rest) {
		if col == n.Column {
			return r.at(offset + i)
		}
		col++
	}
	return r.at(offset + len(rest))
}

func (y *yamlParser) value(path []string, n *yaml.Node, inList bool, depth int) *Node {
	if len(y.errs) > 20 {
		return nil
	}
	if y.nodes++; y.nodes > maxYAMLNodes {
		if y.nodes == maxYAMLNodes+1 {
			y.fail(nil, "its aliases unfold to more than a million values", y.pos(n))
		}
		return nil
	}
	if depth > maxDepth {
		y.fail(nil, "nested deeper than "+strconv.Itoa(maxDepth)+" levels", y.pos(n))
		return nil
	}
	switch n.Kind {
	case yaml.AliasNode:
		if y.open[n.Alias] {
			y.fail(path, "an alias inside its own anchor", y.pos(n))
			return nil
		}
		y.open[n.Alias] = true
		defer delete(y.open, n.Alias)
		return y.value(path, n.Alias, inList, depth+1)
	case yaml.MappingNode:
		if t := n.ShortTag(); t != "!!map" {
			y.fail(path, "a YAML tag that is not known", y.pos(n))
			return nil
		}
		return y.mapping(path, n, depth)
	case yaml.SequenceNode:
		if t := n.ShortTag(); t != "!!seq" {
			y.fail(path, "a YAML tag that is not known", y.pos(n))
			return nil
		}
		out := &Node{Kind: List, Pos: y.pos(n)}
		for i, c := range n.Content {
			out.Items = append(out.Items, y.value(slices.Concat(path, []string{strconv.Itoa(i)}), c, true, depth+1))
		}
		return out
	case yaml.ScalarNode:
		v, msg := yamlScalar(n)
		if msg != "" {
			y.fail(path, msg, y.pos(n))
			return nil
		}
		if v == nil {
			return y.null(inList, y.pos(n))
		}
		return &Node{Kind: Scalar, Value: v, Pos: y.pos(n)}
	}
	y.fail(path, "not valid YAML", y.pos(n))
	return nil
}

func (y *yamlParser) mapping(path []string, n *yaml.Node, depth int) *Node {
	out := &Node{Kind: Struct, Fields: map[string]*Node{}, Pos: y.pos(n)}
	var merged []*Node
	merges := 0
	for i := 0; i+1 < len(n.Content); i += 2 {
		k, v := n.Content[i], n.Content[i+1]
		if k.Kind == yaml.ScalarNode && k.Value == "<<" && k.Style&(yaml.SingleQuotedStyle|yaml.DoubleQuotedStyle) == 0 && (k.Tag == "" || k.ShortTag() == "!!merge") {
			if merges++; merges > 1 {
				y.fail(slices.Concat(path, []string{"<<"}), "set twice in one file", y.pos(k))
			}
			merged = append(merged, y.merge(path, v, depth)...)
			continue
		}
		key, ok := yamlKey(k)
		if !ok {
			y.fail(path, "a key must be a plain word or a string", y.pos(k))
			continue
		}
		y.put(path, out, key, y.value(slices.Concat(path, []string{key}), v, false, depth+1), y.pos(k))
	}
	// The mapping's own keys win, then the first merged mapping that has the key.
	for _, m := range merged {
		for _, k := range m.Keys() {
			if _, ok := out.Fields[k]; !ok {
				out.Fields[k] = m.Fields[k]
			}
		}
	}
	return out
}

// merge gives the mappings of `<<: *a` or `<<: [*a, *b]`.
func (y *yamlParser) merge(path []string, v *yaml.Node, depth int) []*Node {
	target := v
	if target.Kind == yaml.AliasNode {
		target = target.Alias
	}
	if target.Kind == yaml.SequenceNode {
		var out []*Node
		for _, c := range target.Content {
			out = append(out, y.merge(path, c, depth+1)...)
			if depth > maxDepth || len(y.errs) > 0 {
				break
			}
		}
		return out
	}
	m := y.value(path, v, false, depth+1)
	if m == nil {
		return nil
	}
	if m.Kind != Struct {
		y.fail(path, "<< takes a mapping, or a list of them", y.pos(v))
		return nil
	}
	return []*Node{m}
}

// yamlKey is a key as text: a scalar as it is written, but null.
func yamlKey(k *yaml.Node) (string, bool) {
	if k.Kind == yaml.AliasNode {
		k = k.Alias
	}
	if k.Kind != yaml.ScalarNode {
		return "", false
	}
	quoted := k.Style&(yaml.SingleQuotedStyle|yaml.DoubleQuotedStyle|yaml.LiteralStyle|yaml.FoldedStyle) != 0
	switch tag := k.ShortTag(); {
	case quoted:
		return k.Value, tag == "!!str"
	case tag == "!!null" || k.Value == "":
		return "", false
	case tag == "!!binary" || k.Style&yaml.TaggedStyle != 0 && tag != "!!str":
		return "", false
	}
	return k.Value, true
}

var (
	yamlNull    = regexp.MustCompile(`^(|~|null|Null|NULL)$`)
	yamlBool    = regexp.MustCompile(`^(true|True|TRUE|false|False|FALSE)$`)
	yamlInt     = regexp.MustCompile(`^[-+]?(0[xX][0-9a-fA-F_]+|0[bB][01_]+|0[oO]?[0-7_]+|[0-9][0-9_]*)$`)
	yamlDecimal = regexp.MustCompile(`^[-+]?[0-9]+$`)
	yamlFloat   = regexp.MustCompile(`^[-+]?([0-9][0-9_]*(\.[0-9_]*)?|\.[0-9][0-9_]*)([eE][-+]?[0-9]+)?$`)
	yamlInf     = regexp.MustCompile(`^([-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN))$`)
)

// yamlScalar is the value of a scalar: nil, bool, encode.Number or string; or what is wrong with it.
func yamlScalar(n *yaml.Node) (v any, msg string) {
	text, tag := n.Value, ""
	if n.Style&yaml.TaggedStyle != 0 {
		tag = n.ShortTag()
	}
	plain := n.Style&(yaml.SingleQuotedStyle|yaml.DoubleQuotedStyle|yaml.LiteralStyle|yaml.FoldedStyle) == 0
	kind := tag
	if tag == "" || tag == "!" {
		kind = "!!str"
		if plain && tag == "" {
			kind = plainKind(text)
		}
	}
	switch kind {
	case "!!str":
		return text, ""
	case "!!null":
		if yamlNull.MatchString(text) {
			return nil, ""
		}
	case "!!bool":
		if yamlBool.MatchString(text) {
			return text[0] == 't' || text[0] == 'T', ""
		}
	case "!!int":
		if yamlInt.MatchString(text) {
			return yamlInteger(text)
		}
	case "!!float":
		if yamlInf.MatchString(text) {
			return nil, errInf.Error()
		}
		if yamlFloat.MatchString(text) {
			num, err := ParseNumber(strings.ReplaceAll(text, "_", ""), false)
			if err != nil {
				return nil, err.Error()
			}
			return num, ""
		}
	case "!!binary":
		return nil, "binary data is no value: name a file instead"
	default:
		return nil, "a YAML tag that is not known"
	}
	return nil, "the value is not what its tag says"
}

// plainKind is the tag of a plain word.
func plainKind(s string) string {
	switch {
	case yamlNull.MatchString(s):
		return "!!null"
	case yamlBool.MatchString(s):
		return "!!bool"
	case yamlInt.MatchString(s):
		return "!!int"
	case yamlFloat.MatchString(s) || yamlInf.MatchString(s):
		return "!!float"
	}
	return "!!str"
}

func yamlInteger(text string) (any, string) {
	s := strings.TrimPrefix(strings.ReplaceAll(text, "_", ""), "+")
	digits := strings.TrimPrefix(s, "-")
	if len(digits) > 1 && digits[0] == '0' && strings.ContainsAny(digits, "89") && yamlDecimal.MatchString(s) {
		// 08 is no octal number: readers take it for 8, for 8.0 or for a string.
		return nil, "a number with a leading zero: quote it, so that it is a string"
	}
	if len(digits) > 1 && digits[0] == '0' {
		i, ok := bigInt(s)
		if !ok {
			return nil, "not a number"
		}
		s = i
	}
	num, err := ParseNumber(s, true)
	if err != nil {
		return nil, err.Error()
	}
	return num, ""
}

// What names the kind of a scalar, with its article.
func What(v any) string {
	switch v := v.(type) {
	case nil:
		return "null"
	case bool:
		return "a bool"
	case encode.Number:
		if strings.Contains(string(v), ".") {
			return "a float"
		}
		return "an integer"
	}
	return "a string"
}
