package layer

import (
	"bytes"
	"encoding/json"
	"errors"
	"strconv"
	"strings"
	"unicode/utf8"
)

// json reads one JSON document. The standard library judges it; what is valid is then walked here, so that every value and key has its place
// and both of a duplicate can be named.
func (r *reader) json() *Node {
	if len(bytes.TrimSpace(r.data)) == 0 {
		return nil
	}
	if !json.Valid(r.data) {
		r.invalidJSON()
		return nil
	}
	p := &jsonParser{reader: r}
	return p.value(false)
}

func (r *reader) invalidJSON() {
	// The text of a syntax error names a character, which may be one of a secret: say only where.
	at, msg := r.at(len(r.data)), "not valid JSON"
	var raw json.RawMessage
	err := json.Unmarshal(r.data, &raw)
	if e := (*json.SyntaxError)(nil); errors.As(err, &e) {
		at = r.at(int(e.Offset) - 1)
		switch {
		case strings.Contains(err.Error(), "unexpected end"):
			msg, at = "not valid JSON: it ends too early", r.at(len(r.data))
		case strings.Contains(err.Error(), "after top-level value"):
			msg = "not valid JSON: something follows the document"
		case strings.Contains(err.Error(), "exceeded max depth"):
			msg = tooDeep
		}
	}
	r.fail(nil, msg, at)
}

// jsonParser walks valid JSON: it need not look for errors of syntax.
type jsonParser struct {
	*reader
	i       int      // the next byte
	path    []string // where the parser is, for messages
	stopped bool
}

// next skips space and the separators, and gives the byte that follows.
func (p *jsonParser) next() byte {
	for strings.IndexByte(" \t\r\n,:", p.data[p.i]) >= 0 {
		p.i++
	}
	return p.data[p.i]
}

func (p *jsonParser) value(inList bool) *Node {
	c := p.next()
	pos := p.at(p.i)
	if len(p.path) > maxDepth {
		p.fail(nil, tooDeep, pos)
		p.stopped = true
		return nil
	}
	switch c {
	case '[':
		n := &Node{Kind: List, Pos: pos}
		p.i++
		for p.next() != ']' {
			p.path = append(p.path, strconv.Itoa(len(n.Items)))
			n.Items = append(n.Items, p.value(true))
			p.path = p.path[:len(p.path)-1]
			if p.stopped || len(p.errs) > maxErrors {
				return nil
			}
		}
		p.i++
		return n
	case '{':
		n := &Node{Kind: Struct, Fields: map[string]*Node{}, Pos: pos}
		p.i++
		for p.next() != '}' {
			p.member(n)
			if p.stopped || len(p.errs) > maxErrors {
				return nil
			}
		}
		p.i++
		return n
	case '"':
		s, ok := p.text()
		if !ok {
			p.fail(p.path, "half of a surrogate pair (\\ud800 to \\udfff)", pos)
			return nil
		}
		return &Node{Kind: Scalar, Value: s, Pos: pos}
	case 'n':
		p.i += len("null")
		return p.null(inList, pos)
	case 't':
		p.i += len("true")
		return &Node{Kind: Scalar, Value: true, Pos: pos}
	case 'f':
		p.i += len("false")
		return &Node{Kind: Scalar, Value: false, Pos: pos}
	}
	from := p.i
	for p.i < len(p.data) && strings.IndexByte("+-.0123456789eE", p.data[p.i]) >= 0 {
		p.i++
	}
	text := string(p.data[from:p.i])
	v, err := ParseNumber(text, !strings.ContainsAny(text, ".eE"))
	if err != nil {
		p.fail(p.path, err.Error(), pos)
		return nil
	}
	return &Node{Kind: Scalar, Value: v, Pos: pos}
}

// member reads `"key": value` into n.
func (p *jsonParser) member(n *Node) {
	keyPos := p.at(p.i)
	key, ok := p.text()
	if !ok {
		p.fail(p.path, "a key has half of a surrogate pair (\\ud800 to \\udfff)", keyPos)
	}
	p.path = append(p.path, key)
	v := p.value(false)
	p.path = p.path[:len(p.path)-1]
	p.put(p.path, n, key, v, keyPos)
}

// text reads a string. It is not ok if the decoder replaced something: it turns a lone surrogate into U+FFFD without a word.
func (p *jsonParser) text() (s string, ok bool) {
	from := p.i
	escaped := false
	for p.i++; p.data[p.i] != '"'; p.i++ {
		if p.data[p.i] == '\\' {
			escaped = true
			p.i++
		}
	}
	p.i++
	raw := p.data[from:p.i]
	if !escaped {
		return string(raw[1 : len(raw)-1]), true
	}
	if err := json.Unmarshal(raw, &s); err != nil {
		return "", false // cannot happen: the document is valid
	}
	if !strings.ContainsRune(s, utf8.RuneError) {
		return s, true
	}
	written := bytes.Count(raw, []byte("\uFFFD")) + strings.Count(strings.ToLower(string(raw)), `\ufffd`)
	return s, strings.Count(s, "\uFFFD") <= written
}
