package layer

import (
	"bytes"
	"path"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"cuelang.org/go/cue/token"
)

// Extensions of the formats that can be layers.
var Extensions = []string{".yaml", ".json", ".toml", ".env"}

// extensions lists them for messages.
func extensions() string {
	last := len(Extensions) - 1
	return strings.Join(Extensions[:last], ", ") + " or " + Extensions[last]
}

// IsLayer reports whether a file of this name can be a layer.
func IsLayer(name string) bool { return slices.Contains(Extensions, path.Ext(name)) }

// setTwice is the message of a duplicate; both places are given with it.
const setTwice = "set twice in one file"

// tooDeep is the message of what is nested deeper than maxDepth.
var tooDeep = "nested deeper than " + strconv.Itoa(maxDepth) + " levels"

// maxErrors is how many findings of one file are collected before reading ends.
const maxErrors = 20

// Read parses one layer file; name is its path from the root, whose extension gives the format. A blank file is an empty layer. In an
// overlay (base is false) null deletes; TOML and .env have no null.
//
// Every value but the root of a blank file has the position where it is written, and so has every key. What a format says twice, and what
// would not come out as it was written (dates, infinities, rounded numbers), is an error at that path.
func Read(name string, data []byte, base bool) (*Node, []*Error) {
	return ReadAs(path.Ext(name), name, data, base)
}

// ReadAs is Read for what has its format from elsewhere: ext is the extension of a layer of that format, name only says where it is.
func ReadAs(ext, name string, data []byte, base bool) (*Node, []*Error) {
	r := &reader{name: name, data: data, base: base}
	if err := r.encoding(); err != nil {
		return nil, []*Error{err}
	}
	r.file = token.NewFile(name, -1, len(r.data))
	r.file.SetLinesForContent(r.data)
	var root *Node
	switch ext {
	case ".yaml":
		root = r.yaml()
	case ".json":
		root = r.json()
	case ".toml":
		root = r.toml()
	case ".env":
		root = r.env()
	case ".yml":
		return nil, []*Error{{Msg: "not a layer: rename it to end in .yaml", At: []token.Position{{Filename: name}}}}
	default:
		return nil, []*Error{{Msg: "not a layer: its name must end in " + extensions(), At: []token.Position{{Filename: name}}}}
	}
	if len(r.errs) > 0 {
		if at, ok := r.conflict(); ok {
			return nil, []*Error{{Msg: "a git conflict marker: the merge is not finished; keep one of the sides", At: []token.Position{at}}}
		}
		return nil, r.errs
	}
	if root == nil {
		root = &Node{Kind: Struct, Fields: map[string]*Node{}, Pos: r.at(0)}
	}
	if root.Kind != Struct {
		return nil, []*Error{{Msg: "a layer is a struct (key: value), not " + root.What(), At: []token.Position{root.Pos.Position()}}}
	}
	if errs := withNUL(root); len(errs) > 0 {
		return nil, errs
	}
	return root, nil
}

// noNUL is the message of a text with a NUL in it. The formats can spell one, and what reads the files ends there.
const noNUL = "a NUL character (\\0, \\u0000): a value is text"

func anyNUL(n *Node) bool {
	if text, ok := n.Value.(string); ok && strings.Contains(text, "\x00") || slices.ContainsFunc(n.Items, anyNUL) {
		return true
	}
	for k, c := range n.Fields {
		if strings.Contains(k, "\x00") || anyNUL(c) {
			return true
		}
	}
	return false
}

// withNUL finds the texts and keys that have one.
func withNUL(root *Node) []*Error {
	var errs []*Error
	if !anyNUL(root) {
		return nil
	}
	root.Walk(func(path []string, n *Node) {
		if text, ok := n.Value.(string); ok && strings.Contains(text, "\x00") {
			errs = append(errs, &Error{Path: path, Msg: noNUL, At: []token.Position{n.Pos.Position()}})
		}
		for _, k := range n.Keys() {
			if strings.Contains(k, "\x00") {
				errs = append(errs, &Error{Path: path, Msg: "a key with " + noNUL, At: []token.Position{n.Fields[k].KeyPos.Position()}})
			}
		}
	})
	return errs[:min(len(errs), maxErrors)]
}

// conflict finds the first line that git leaves in a text it could not merge. It is asked for what could not be read only: a text may hold such lines.
func (r *reader) conflict() (at token.Position, ok bool) {
	offset, first := 0, -1
	for line := range strings.Lines(string(r.data)) {
		text := strings.TrimRight(line, "\r\n")
		for _, mark := range []string{"<<<<<<<", "|||||||", "=======", ">>>>>>>"} {
			rest, found := strings.CutPrefix(text, mark)
			if !found || rest != "" && rest[0] != ' ' {
				continue
			}
			if first < 0 {
				first = offset
			}
			ok = ok || mark[0] == '<' || mark[0] == '>' // the others underline headings too
		}
		offset += len(line)
	}
	return r.at(first).Position(), ok
}

// What names the kind of a value, with its article.
func (n *Node) What() string {
	switch n.Kind {
	case Struct:
		return "a struct"
	case List:
		return "a list"
	case Delete:
		return "null"
	}
	return What(n.Value)
}

type reader struct {
	name string
	data []byte
	base bool
	file *token.File
	errs []*Error
}

var (
	bom8  = []byte("\xef\xbb\xbf")
	bom16 = [][]byte{{0xfe, 0xff}, {0xff, 0xfe}}
)

// encoding lets nothing pass but UTF-8 text; a byte order mark is skipped (positions count without it).
func (r *reader) encoding() *Error {
	at := func(offset int) []token.Position {
		line := 1 + bytes.Count(r.data[:offset], []byte("\n"))
		return []token.Position{{Filename: r.name, Line: line, Column: offset - bytes.LastIndexByte(r.data[:offset], '\n')}}
	}
	r.data = bytes.TrimPrefix(r.data, bom8)
	for _, bom := range bom16 {
		if bytes.HasPrefix(r.data, bom) {
			return &Error{Msg: "UTF-16 or UTF-32, but a layer is UTF-8", At: at(0)}
		}
	}
	if i := bytes.IndexByte(r.data, 0); i >= 0 {
		return &Error{Msg: "a NUL byte: a layer is UTF-8 text", At: at(i)}
	}
	if !utf8.Valid(r.data) {
		i := 0
		for i < len(r.data) {
			c, n := utf8.DecodeRune(r.data[i:])
			if c == utf8.RuneError && n <= 1 {
				break
			}
			i += n
		}
		return &Error{Msg: "not UTF-8", At: at(i)}
	}
	return nil
}

// at is the position of a byte offset.
func (r *reader) at(offset int) token.Pos {
	return r.file.Pos(max(0, min(offset, len(r.data))), token.NoRelPos)
}

func (r *reader) fail(path []string, msg string, at ...token.Pos) {
	e := &Error{Path: slices.Clone(path), Msg: msg}
	for _, p := range at {
		e.At = append(e.At, p.Position())
	}
	r.errs = append(r.errs, e)
}

// null is what a null is here: a value in base and in lists, a deletion in an overlay's struct.
func (r *reader) null(inList bool, pos token.Pos) *Node {
	if r.base || inList {
		return &Node{Kind: Scalar, Pos: pos}
	}
	return &Node{Kind: Delete, Pos: pos}
}

// put adds a field and refuses a second one of the same name, equal or not.
func (r *reader) put(path []string, n *Node, key string, f *Node, keyPos token.Pos) {
	if first, ok := n.Fields[key]; ok {
		r.fail(slices.Concat(path, []string{key}), setTwice, keyPos, first.KeyPos)
		return
	}
	if f != nil {
		f.KeyPos = keyPos
		n.Fields[key] = f
	}
}

// blank reports whether text has nothing but space, comments and document markers.
func blank(data []byte) bool {
	for line := range strings.Lines(string(data)) {
		line = strings.TrimSpace(line)
		if line != "" && line != "---" && line != "..." && line[0] != '#' {
			return false
		}
	}
	return true
}
