package layer

import (
	"errors"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/pelletier/go-toml/v2/unstable"

	"cuelang.org/go/cue/token"
)

// toml reads one TOML document (1.0, and what the parser takes of 1.1). The parser gives expressions with their places; the rules of what
// may be defined where are kept here, so that both places of a clash can be named.
//
// Every value, key and table has the position where it stands; a list inside a list has that of the outer one, which is all the parser
// tells. Numbers keep their digits, within TOML's own range of 64-bit integers and floats. Dates and times are refused: no other format
// of ours has them, and what becomes of them is the reader's choice. TOML has no null, so an overlay in TOML deletes nothing: write that
// overlay in YAML, JSON or CUE.
func (r *reader) toml() *Node {
	t := &tomlParser{reader: r, tables: map[*Node]tomlTable{}}
	root := &Node{Kind: Struct, Fields: map[string]*Node{}, Pos: r.at(0)}
	t.tables[root] = tomlHeader
	t.parser.Reset(r.data)
	table, base := root, []string(nil)
	for len(r.errs) <= maxErrors && t.parser.NextExpression() {
		e := t.parser.Expression()
		switch e.Kind {
		case unstable.KeyValue:
			if table != nil {
				t.path = append(t.path[:0], base...)
				t.keyValue(table, e)
			}
		case unstable.Table, unstable.ArrayTable:
			t.path = t.path[:0]
			// nil after an error: what lies below would only be reported once more.
			table = t.header(root, e)
			base = slices.Clone(t.path)
		}
	}
	if err := t.parser.Error(); err != nil && len(r.errs) <= maxErrors {
		t.syntax(err)
	}
	return root
}

// tomlTable says how a table came to be, which decides who may add to it. Inline tables and lists are in no map: nobody may.
type tomlTable int

const (
	tomlImplied tomlTable = iota + 1 // by [a.b]: a. May get its own header once
	tomlHeader                       // [a]
	tomlDotted                       // by a.b = 1: a. Other dotted keys may add to it
	tomlArray                        // [[a]]: the list
)

type tomlParser struct {
	*reader
	parser unstable.Parser
	tables map[*Node]tomlTable
	path   []string // where the parser is, for messages
}

// header finds or makes the table of `[a.b]` or `[[a.b]]`; nil after an error.
func (t *tomlParser) header(n *Node, e *unstable.Node) *Node {
	for it := e.Key(); it.Next(); {
		key, pos := it.Node().Data, t.place(it.Node())
		if !t.enter(string(key), pos) {
			return nil
		}
		child, last := n.Fields[string(key)], it.IsLast()
		switch kind := t.tables[child]; {
		case last && e.Kind == unstable.ArrayTable:
			item := &Node{Kind: Struct, Fields: map[string]*Node{}, Pos: pos}
			if child == nil {
				child = &Node{Kind: List, Pos: pos, KeyPos: pos}
				n.Fields[string(key)] = child
				t.tables[child] = tomlArray
			} else if kind != tomlArray {
				return t.twice(pos, child)
			}
			t.path = append(t.path, strconv.Itoa(len(child.Items)))
			child.Items = append(child.Items, item)
			t.tables[item] = tomlHeader
			return item
		case child == nil:
			child = t.table(n, string(key), pos, tomlImplied)
			if last {
				t.tables[child] = tomlHeader
			}
		case last && kind == tomlImplied:
			t.tables[child], child.Pos, child.KeyPos = tomlHeader, pos, pos
		case last || kind == 0:
			return t.twice(pos, child)
		case kind == tomlArray:
			t.path = append(t.path, strconv.Itoa(len(child.Items)-1))
			child = child.Items[len(child.Items)-1]
		}
		n = child
	}
	return n
}

func (t *tomlParser) table(n *Node, key string, pos token.Pos, kind tomlTable) *Node {
	child := &Node{Kind: Struct, Fields: map[string]*Node{}, Pos: pos, KeyPos: pos}
	n.Fields[key] = child
	t.tables[child] = kind
	return child
}

// keyValue reads `a.b = value` into a table.
func (t *tomlParser) keyValue(n *Node, e *unstable.Node) {
	depth := len(t.path)
	defer func() { t.path = t.path[:depth] }()
	for it := e.Key(); it.Next(); {
		k := it.Node()
		key, pos := string(k.Data), t.place(k)
		if !t.enter(key, pos) {
			return
		}
		child := n.Fields[key]
		switch {
		case it.IsLast() && child == nil:
			if v := t.value(e.Value(), t.valueAt(k)); v != nil {
				v.KeyPos = pos
				n.Fields[key] = v
			}
			return
		case child == nil:
			child = t.table(n, key, pos, tomlDotted)
		case it.IsLast() || t.tables[child] != tomlDotted:
			t.twice(pos, child)
			return
		}
		n = child
	}
}

// value reads a value; at is where it stands if its node does not tell.
func (t *tomlParser) value(v *unstable.Node, at token.Pos) *Node {
	if len(t.errs) > maxErrors {
		return nil
	}
	if v.Raw.Length > 0 {
		at = t.place(v)
	}
	n := &Node{Kind: Scalar, Pos: at}
	msg := ""
	switch v.Kind {
	case unstable.Array:
		n.Kind = List
		for it := v.Children(); it.Next(); {
			if !t.enter(strconv.Itoa(len(n.Items)), at) {
				return nil
			}
			item := t.value(it.Node(), at)
			t.path = t.path[:len(t.path)-1]
			n.Items = append(n.Items, item)
		}
	case unstable.InlineTable:
		n.Kind, n.Fields = Struct, map[string]*Node{}
		for it := v.Children(); it.Next(); {
			t.keyValue(n, it.Node())
		}
	case unstable.String:
		n.Value = string(v.Data)
	case unstable.Bool:
		n.Value = v.Data[0] == 't'
	case unstable.Integer:
		n.Value, msg = tomlInteger(string(v.Data))
	case unstable.Float:
		n.Value, msg = tomlFloat(string(v.Data))
	case unstable.LocalDate, unstable.LocalTime, unstable.LocalDateTime, unstable.DateTime:
		msg = "a date or a time: quote it, so that it is a string"
	default:
		msg = "not a value"
	}
	if msg != "" {
		t.fail(t.path, msg, at)
		return nil
	}
	return n
}

func tomlInteger(text string) (any, string) {
	s := strings.TrimPrefix(strings.ReplaceAll(text, "_", ""), "+")
	i, err := strconv.ParseInt(s, 0, 64) // the parser lets no other prefix pass than 0x, 0o and 0b, and no leading zero
	if err != nil {
		return nil, "an integer beyond TOML's range of 64 bits: quote it, so that it is a string"
	}
	num, err := ParseNumber(strconv.FormatInt(i, 10), true)
	if err != nil {
		return nil, err.Error()
	}
	return num, ""
}

func tomlFloat(text string) (any, string) {
	s := strings.ReplaceAll(text, "_", "")
	f, err := strconv.ParseFloat(s, 64)
	if math.IsNaN(f) || math.IsInf(f, 0) && err == nil {
		return nil, errInf.Error()
	}
	if err != nil {
		return nil, errRange.Error()
	}
	num, err := ParseNumber(s, false)
	if err != nil {
		return nil, err.Error()
	}
	return num, ""
}

// enter goes one level deeper, unless that is too deep.
func (t *tomlParser) enter(key string, at token.Pos) bool {
	if len(t.path) >= maxDepth {
		t.fail(nil, tooDeep, at)
		return false
	}
	t.path = append(t.path, key)
	return true
}

func (t *tomlParser) twice(pos token.Pos, first *Node) *Node {
	t.fail(t.path, setTwice, pos, first.KeyPos)
	return nil
}

func (t *tomlParser) place(n *unstable.Node) token.Pos { return t.at(int(n.Raw.Offset)) }

// valueAt is where the value of a key begins: behind the equals sign. A list's node does not tell.
func (t *tomlParser) valueAt(key *unstable.Node) token.Pos {
	i := int(key.Raw.Offset + key.Raw.Length)
	for i < len(t.data) && strings.IndexByte(" \t=", t.data[i]) >= 0 {
		i++
	}
	return t.at(i)
}

// Reasons of the parser that quote nothing of the input.
var tomlReasons = []string{
	"array is incomplete", "expected key but reached end of input", "expected number after sign", "expected value, not end of input", "inline table is incomplete",
	"expected ',' or ']' after array value", "expected ',' or '}' after inline table key-value", "unexpected comma in inline table",
	"radix prefix must be followed by at least one digit", "sign is not allowed on numbers with a radix prefix", "integers cannot have leading zeroes",
	"invalid hexadecimal digit in unicode escape sequence", "unicode escape sequence is too short", "escape sequence is not a valid unicode code point",
	"number must have at least one digit between underscores", "decimal point must be followed by a digit", "exponent must contain at least one digit",
	"basic strings cannot have control characters", "basic strings cannot have new lines", "literal strings cannot have control characters",
	"literal strings cannot have new lines", "multiline basic strings cannot have control characters", "multiline literal strings cannot have control characters",
	"control characters are not allowed in comments", "carriage returns are not allowed in comments", "carriage returns must be followed by a newline character",
	"strings must be quoted", "unterminated basic string", "unterminated literal string", `multiline basic string not terminated by """`,
	"multiline literal string not terminated by '''", "too many quotes at the end of a multiline basic string", "too many quotes at the end of a multiline literal string",
	"expected '=' after key", "expected ']' to close table name", "expected ']]' to close array table name",
}

// syntax reports a syntax error without the parser's own words, unless they are known to hold nothing of the input.
func (t *tomlParser) syntax(err error) {
	at, msg := t.at(len(t.data)), "not valid TOML"
	if e := (*unstable.ParserError)(nil); errors.As(err, &e) {
		if len(e.Highlight) > 0 {
			at = t.at(int(t.parser.Range(e.Highlight).Offset))
		}
		switch {
		case slices.Contains(tomlReasons, e.Message):
			msg += ": " + e.Message
		case strings.HasPrefix(e.Message, "expected newline"):
			msg += ": something follows the value"
		case strings.HasPrefix(e.Message, "unexpected character"), strings.HasPrefix(e.Message, "expected keyword"):
			msg += ": a value is a number, true, false, a list, a table, or text in quotes"
		case strings.HasPrefix(e.Message, "arrays and inline tables are nested"):
			msg = tooDeep
		}
	}
	t.fail(nil, msg, at)
}
