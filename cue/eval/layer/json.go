package layer

import (
	"bytes"
	"encoding/json"
	"errors"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// json reads one JSON document. The standard decoder's tokens keep their offsets, so that every value has its place.
func (r *reader) json() *Node {
	if len(bytes.TrimSpace(r.data)) == 0 {
		return nil
	}
	var raw json.RawMessage
	if err := json.Unmarshal(r.data, &raw); err != nil {
		// The text of a syntax error names a character, which may be one of a secret: say only where.
		at := r.at(len(r.data))
		msg := "not valid JSON"
		if e := (*json.SyntaxError)(nil); errors.As(err, &e) {
			at = r.at(int(e.Offset) - 1)
			switch {
			case strings.Contains(err.Error(), "unexpected end"):
				msg, at = "not valid JSON: it ends too early", r.at(len(r.data))
			case strings.Contains(err.Error(), "after top-level value"):
				msg = "not valid JSON: something follows the document"
			case strings.Contains(err.Error(), "exceeded max depth"):
				msg = "nested too deep"
			}
		}
		r.fail(nil, msg, at)
		return nil
	}
	d := json.NewDecoder(bytes.NewReader(r.data))
	d.UseNumber()
	p := &jsonParser{reader: r, dec: d}
	return p.value(nil, false, 0)
}

type jsonParser struct {
	*reader
	dec *json.Decoder
}

// next gives the next token and the offsets of its text.
func (p *jsonParser) next() (tok json.Token, from, to int) {
	from = int(p.dec.InputOffset())
	tok, err := p.dec.Token()
	to = int(p.dec.InputOffset())
	if err != nil {
		return nil, from, to // cannot happen: the document is valid
	}
	for from < to && strings.IndexByte(" \t\r\n,:", p.data[from]) >= 0 {
		from++
	}
	return tok, from, to
}

func (p *jsonParser) value(path []string, inList bool, depth int) *Node {
	tok, from, to := p.next()
	pos := p.at(from)
	if depth > maxDepth {
		if len(p.errs) == 0 {
			p.fail(nil, "nested deeper than "+strconv.Itoa(maxDepth)+" levels", pos)
		}
		return nil
	}
	switch tok := tok.(type) {
	case nil:
		return p.null(inList, pos)
	case json.Delim:
		if tok == '[' {
			n := &Node{Kind: List, Pos: pos}
			for len(p.errs) == 0 && p.dec.More() {
				n.Items = append(n.Items, p.value(slices.Concat(path, []string{strconv.Itoa(len(n.Items))}), true, depth+1))
			}
			p.next()
			return n
		}
		n := &Node{Kind: Struct, Fields: map[string]*Node{}, Pos: pos}
		for len(p.errs) == 0 && p.dec.More() {
			k, kf, kt := p.next()
			key, _ := k.(string)
			at := slices.Concat(path, []string{key})
			if lossy(key, p.data[kf:kt]) {
				p.fail(path, "a key has half of a surrogate pair (\\ud800 to \\udfff)", p.at(kf))
			}
			p.put(path, n, key, p.value(at, false, depth+1), p.at(kf))
		}
		p.next()
		return n
	case json.Number:
		v, err := ParseNumber(tok.String(), !strings.ContainsAny(tok.String(), ".eE"))
		if err != nil {
			p.fail(path, err.Error(), pos)
			return nil
		}
		return &Node{Kind: Scalar, Value: v, Pos: pos}
	case string:
		if lossy(tok, p.data[from:to]) {
			p.fail(path, "half of a surrogate pair (\\ud800 to \\udfff)", pos)
			return nil
		}
		return &Node{Kind: Scalar, Value: tok, Pos: pos}
	}
	return &Node{Kind: Scalar, Value: tok, Pos: pos} // bool
}

// lossy reports whether the decoder replaced something: it turns a lone surrogate into U+FFFD without a word.
func lossy(s string, raw []byte) bool {
	if !strings.ContainsRune(s, utf8.RuneError) {
		return false
	}
	written := bytes.Count(raw, []byte("\uFFFD")) + strings.Count(strings.ToLower(string(raw)), `\ufffd`)
	return strings.Count(s, "\uFFFD") > written
}
