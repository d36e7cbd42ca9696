package layer

import (
	"bytes"
	"errors"
	"io"
	"regexp"
	"slices"
	"strconv"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"

	"cuelang.org/go/cue/token"
)

// maxUnfolded bounds what aliases and merge keys may add to what is written ("billion laughs").
const maxUnfolded = 100_000

const unknownTag = "a YAML tag that is not known"

// breaks are characters that break a line for a YAML 1.1 reader and not for one of 1.2.
const breaks = "\u0085\u2028\u2029"

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
	if i := bytes.IndexAny(r.data, breaks); i >= 0 {
		r.fail(nil, "an invisible line break (U+0085, U+2028 or U+2029), which YAML readers take differently: write it as an escape in double quotes", r.at(i))
		return nil
	}
	y := &yamlParser{reader: r, anchors: map[*yaml.Node]yamlAnchor{}, lines: yamlLines(r.data)}
	dec := yaml.NewDecoder(bytes.NewReader(r.data))
	var doc, more yaml.Node
	if err := dec.Decode(&doc); err != nil {
		y.syntax(err)
		return nil
	}
	switch err := dec.Decode(&more); {
	case errors.Is(err, io.EOF):
	case err != nil:
		y.syntax(err)
		return nil
	default:
		r.fail(nil, "more than one YAML document: a layer is one", y.pos(&more))
		return nil
	}
	if doc.Kind != yaml.DocumentNode || len(doc.Content) != 1 {
		r.fail(nil, "not valid YAML", r.at(0))
		return nil
	}
	root = y.value(doc.Content[0], true)
	if root != nil && root.Kind == Scalar && root.Value == nil && doc.Content[0].Value == "" {
		return nil // `--- # nothing`
	}
	if root != nil {
		root.Shared = y.unfold > 0
	}
	return root
}

type yamlParser struct {
	*reader
	path    []string // where the parser is, for messages
	values  int      // how many there are, those of aliases counted at each use
	unfold  int      // how many of them aliases and << added
	anchors map[*yaml.Node]yamlAnchor
	lines   []int // the offset of each line
	cursor  struct{ line, column, offset int }
	stopped bool
}

// yamlAnchor is what an alias stands for. Nodes are immutable, so all its uses share one.
type yamlAnchor struct {
	node   *Node
	values int
	open   bool // being read
}

// lineBreaks are the line breaks that YAML has beside LF and CR LF.
var lineBreaks = regexp.MustCompile("\r\n?|\n")

// yamlLines gives the offset of each line as the library counts them: a lone CR ends one too.
func yamlLines(data []byte) []int {
	lines := []int{0}
	for _, m := range lineBreaks.FindAllIndex(data, -1) {
		lines = append(lines, m[1])
	}
	return lines
}

// pos turns the library's line and column (in characters) into a position. Nodes come mostly in the order of the text, so a long line is
// not read from its beginning each time.
func (y *yamlParser) pos(n *yaml.Node) token.Pos {
	if n.Line < 1 || n.Line > len(y.lines) {
		return y.at(0)
	}
	c := &y.cursor
	if n.Line != c.line || n.Column < c.column {
		c.line, c.column, c.offset = n.Line, 1, y.lines[n.Line-1]
	}
	for c.column < n.Column && c.offset < len(y.data) && y.data[c.offset] != '\n' {
		_, size := utf8.DecodeRune(y.data[c.offset:])
		c.offset += size
		c.column++
	}
	return y.at(c.offset)
}

// value reads a node.
func (y *yamlParser) value(n *yaml.Node, inList bool) *Node {
	if y.stopped || len(y.errs) > maxErrors {
		return nil
	}
	if len(y.path) > maxDepth {
		y.stop(tooDeep, n)
		return nil
	}
	if n.Kind == yaml.AliasNode {
		return y.alias(n, inList)
	}
	if n.Anchor == "" {
		return y.written(n, inList)
	}
	return y.anchored(n, inList)
}

// anchored reads a node and remembers it for its aliases.
func (y *yamlParser) anchored(n *yaml.Node, inList bool) *Node {
	before := y.values
	y.anchors[n] = yamlAnchor{open: true}
	out := y.written(n, inList)
	y.anchors[n] = yamlAnchor{node: out, values: y.values - before}
	return out
}

func (y *yamlParser) alias(n *yaml.Node, inList bool) *Node {
	target := n.Alias
	a, known := y.anchors[target]
	switch {
	case a.open:
		y.fail(y.path, "an alias inside its own anchor", y.pos(n))
		return nil
	case !known:
		y.anchored(target, inList)
		return y.alias(n, inList)
	case a.node == nil:
		return nil // told where the anchor is
	}
	y.added(a.values, n)
	out := *a.node // it gets a key of its own
	if out.Kind == Delete || out.Kind == Scalar && out.Value == nil {
		return y.null(inList, out.Pos) // which is one thing in a list and another in a struct
	}
	return &out
}

// added counts what an alias or a merge key unfolds to.
func (y *yamlParser) added(values int, at *yaml.Node) {
	y.values += values
	if y.unfold += values; y.unfold > maxUnfolded {
		y.stop("its aliases unfold to more than "+strconv.Itoa(maxUnfolded)+" values", at)
	}
}

// stop ends the reading: what follows would only tell the same again.
func (y *yamlParser) stop(msg string, at *yaml.Node) {
	if !y.stopped {
		y.stopped = true
		y.fail(nil, msg, y.pos(at))
	}
}

// written reads what stands at a node itself.
func (y *yamlParser) written(n *yaml.Node, inList bool) *Node {
	y.values++
	pos := y.pos(n)
	switch n.Kind {
	case yaml.MappingNode:
		if n.ShortTag() != "!!map" {
			y.fail(y.path, unknownTag, pos)
			return nil
		}
		return y.mapping(n, pos)
	case yaml.SequenceNode:
		if n.ShortTag() != "!!seq" {
			y.fail(y.path, unknownTag, pos)
			return nil
		}
		out := &Node{Kind: List, Pos: pos, Items: make([]*Node, 0, len(n.Content))}
		for i, c := range n.Content {
			y.path = append(y.path, strconv.Itoa(i))
			out.Items = append(out.Items, y.value(c, true))
			y.path = y.path[:len(y.path)-1]
		}
		return out
	case yaml.ScalarNode:
		v, msg := yamlScalar(n)
		if msg != "" {
			y.fail(y.path, msg, pos)
			return nil
		}
		if v == nil {
			return y.null(inList, pos)
		}
		return &Node{Kind: Scalar, Value: v, Pos: pos}
	}
	y.fail(y.path, "not valid YAML", pos)
	return nil
}

func (y *yamlParser) mapping(n *yaml.Node, pos token.Pos) *Node {
	out := &Node{Kind: Struct, Fields: make(map[string]*Node, len(n.Content)/2), Pos: pos}
	var merged []*Node
	var first *yaml.Node // the merge key
	for i := 0; i+1 < len(n.Content) && !y.stopped && len(y.errs) <= maxErrors; i += 2 {
		k, v := n.Content[i], n.Content[i+1]
		if k.Kind == yaml.ScalarNode && k.Value == "<<" && k.Style&(yaml.SingleQuotedStyle|yaml.DoubleQuotedStyle) == 0 && (k.Tag == "" || k.ShortTag() == "!!merge") {
			if first != nil {
				y.fail(slices.Concat(y.path, []string{"<<"}), setTwice, y.pos(k), y.pos(first))
			}
			first = k
			merged = append(merged, y.merge(v, true)...)
			continue
		}
		keyPos := y.pos(k)
		key, ok := yamlKey(k)
		if !ok {
			y.fail(y.path, "a key must be a plain word or a string", keyPos)
			continue
		}
		y.path = append(y.path, key)
		f := y.value(v, false)
		y.path = y.path[:len(y.path)-1]
		y.put(y.path, out, key, f, keyPos)
	}
	// The mapping's own keys win, then the first merged mapping that has the key.
	for _, m := range merged {
		y.added(len(m.Fields), first)
		if y.stopped {
			break
		}
		for k, f := range m.Fields {
			if _, ok := out.Fields[k]; !ok {
				out.Fields[k] = f
			}
		}
	}
	return out
}

// merge gives the mappings of `<<: *a` or `<<: [*a, *b]`.
func (y *yamlParser) merge(v *yaml.Node, listToo bool) []*Node {
	target := v
	if target.Kind == yaml.AliasNode {
		target = target.Alias
	}
	if target.Kind == yaml.SequenceNode && listToo {
		var out []*Node
		for _, c := range target.Content {
			out = append(out, y.merge(c, false)...)
			if y.stopped || len(y.errs) > 0 {
				break
			}
		}
		return out
	}
	errs := len(y.errs)
	m := y.value(v, false)
	switch {
	case m == nil:
		return nil
	case m.Kind != Struct && len(y.errs) == errs:
		y.fail(y.path, "<< takes a mapping, or a list of them", y.pos(v))
		return nil
	}
	return []*Node{m}
}
