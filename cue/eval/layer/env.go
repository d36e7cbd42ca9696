package layer

import (
	"bytes"
	"strings"
	"unicode"
)

// env reads lines NAME=value. There is no standard for such files, and shells, systemd, docker and the dotenv libraries differ; so only
// what all of them read alike is accepted, and the rest is refused with its place:
//
//	file    = lines, ended by LF or CRLF
//	line    = blank | blank "#" anything | blank ["export" blank] NAME "=" value blank
//	NAME    = a letter or _, then letters, digits and _ (ASCII)
//	value   = bare | "'" text "'" | '"' text '"'
//	bare    = any characters but space, controls, and # ' " \ $ ` ; & | < > ( ) ~ ; it may be empty
//	'text'  = any characters of one line but ' and \
//	"text"  = any characters of one line; \" \\ \$ \` stand for the second character, and these four stand for themselves in no other way
//
// Nothing is interpolated: a $ that a shell would expand is refused, in single quotes it is a $. There are no comments behind a value, no
// spaces around the equals sign, no text over several lines. A name may be set once.
//
// Every value is a string: `PORT=8080` is "8080". A schema for an .env layer takes strings (`PORT: =~"^[0-9]+$"`) and computes other
// types from them (`port: strconv.Atoi(PORT)`). There is no null either, so an overlay in this format deletes nothing: `NAME=` sets the
// empty string; write an overlay that deletes in YAML, JSON or CUE.
func (r *reader) env() *Node {
	root := &Node{Kind: Struct, Fields: map[string]*Node{}, Pos: r.at(0)}
	for offset := 0; offset < len(r.data) && len(r.errs) <= maxErrors; {
		line, next := r.data[offset:], len(r.data)
		if i := bytes.IndexByte(line, '\n'); i >= 0 {
			line, next = line[:i], offset+i+1
			line = bytes.TrimSuffix(line, []byte("\r"))
		}
		r.envLine(root, line, offset)
		offset = next
	}
	return root
}

// envSpecial are the characters that some reader does not take for themselves when they are bare.
const envSpecial = "#'\"\\$`;&|<>()~"

func (r *reader) envLine(root *Node, line []byte, offset int) {
	text := string(line)
	skip := func() {
		rest := strings.TrimLeft(text, " \t")
		offset, text = offset+len(text)-len(rest), rest
	}
	skip()
	if text == "" || text[0] == '#' {
		return
	}
	if rest, ok := strings.CutPrefix(text, "export"); ok && strings.TrimLeft(rest, " \t") != rest {
		offset, text = offset+len("export"), rest
		skip()
	}
	end := 0
	for end < len(text) && envNameByte(text[end], end) {
		end++
	}
	name, keyPos := text[:end], r.at(offset)
	switch {
	case end == 0:
		r.fail(nil, "not a line of an .env file: it is NAME=value, and a name has letters, digits and _ only, not first a digit", keyPos)
		return
	case end == len(text):
		r.fail([]string{name}, "a name without a value: write NAME=value, or NAME= for the empty string", keyPos)
		return
	case text[end] != '=':
		msg := "a name has letters, digits and _ only"
		if c := text[end]; c == ' ' || c == '\t' {
			msg = "a space behind the name: write NAME=value"
		}
		r.fail([]string{name}, msg, r.at(offset+end))
		return
	}
	offset, text = offset+end+1, text[end+1:]
	value, n, msg := envValue(text)
	if msg != "" {
		r.fail([]string{name}, msg, r.at(offset+n))
		return
	}
	r.put(nil, root, name, &Node{Kind: Scalar, Value: value, Pos: r.at(offset)}, keyPos)
}

func envNameByte(c byte, i int) bool {
	return c == '_' || c >= 'A' && c <= 'Z' || c >= 'a' && c <= 'z' || i > 0 && c >= '0' && c <= '9'
}

// envValue is the value at the beginning of text, up to its end. With a message n is the offset of what is wrong.
func envValue(text string) (value string, n int, msg string) {
	if i := strings.IndexFunc(text, func(c rune) bool { return c < ' ' && c != '\t' || c == 0x7f }); i >= 0 {
		return "", i, "a control character does not fit into an .env file"
	}
	if text == "" || text[0] != '"' && text[0] != '\'' {
		bare := strings.TrimRight(text, " \t")
		for i, c := range bare {
			switch {
			case i == 0 && unicode.IsSpace(c):
				return "", i, "a space before the value: write NAME=value"
			case c == '#', unicode.IsSpace(c) && strings.HasPrefix(strings.TrimLeft(bare[i:], " \t"), "#"):
				return "", i, "a # in a value without quotes: readers differ, so quote the value, and write a comment on its own line"
			case c == '$' || c == '`':
				return "", i, "nothing is interpolated here, but a shell would: put the value into single quotes"
			case unicode.IsSpace(c):
				return "", i, "a space in a value without quotes: quote the value"
			case strings.ContainsRune(envSpecial, c):
				return "", i, "a character that needs quotes: quote the value"
			}
		}
		return bare, 0, ""
	}
	var out strings.Builder
	quote := text[0]
	for i := 1; i < len(text); i++ {
		c := text[i]
		switch {
		case c == quote:
			if rest := strings.TrimRight(text[i+1:], " \t"); rest != "" {
				return "", i + 1, "something follows the closing quote: a comment has its own line"
			}
			return out.String(), 0, ""
		case c == '\\' && quote == '\'':
			return "", i, "a backslash in single quotes: readers differ, so write it as \\\\ in double quotes"
		case c == '\\':
			if i++; i == len(text) || !strings.ContainsRune("\"\\$`", rune(text[i])) {
				return "", i - 1, "a backslash in double quotes stands before \" \\ $ or ` only: write a backslash as \\\\"
			}
			out.WriteByte(text[i])
		case (c == '$' || c == '`') && quote == '"':
			return "", i, "nothing is interpolated here, but a shell would: put the value into single quotes, or a backslash before it"
		default:
			out.WriteByte(c)
		}
	}
	return "", 0, "the quote does not end on its line: a value is one line"
}
