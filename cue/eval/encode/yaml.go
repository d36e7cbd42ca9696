package encode

import (
	"strings"
	"unicode/utf8"
)

// maxSimpleKey is under the 1024 characters after which YAML readers no longer see `key: value` on one line.
const maxSimpleKey = 1000

// yaml writes block style with two-space indent. Strings are bare only where every reader agrees (plainYAML), text of several lines is a
// literal block, everything else is in double quotes.
func (w *writer) yaml(v Value) error {
	w.yamlValue(v, 0)
	return nil
}

// yamlValue writes v and its newline. The cursor stands where an inline value may start; nested lines are indented by depth.
func (w *writer) yamlValue(v Value, depth int) {
	switch v := v.(type) {
	case nil:
		w.buf.WriteString("null\n")
	case bool:
		w.bool(v)
		w.buf.WriteByte('\n')
	case Number:
		w.buf.WriteString(string(v))
		w.buf.WriteByte('\n')
	case string:
		w.yamlString(v, depth)
	case []any:
		if len(v) == 0 {
			w.buf.WriteString("[]\n")
			return
		}
		for i, e := range v {
			if i > 0 {
				w.indent(depth)
			}
			w.buf.WriteString("- ")
			w.yamlValue(e, depth+1) // a nested block starts on this line: its first line is indented by the dash
		}
	case map[string]any:
		if len(v) == 0 {
			w.buf.WriteString("{}\n")
			return
		}
		for i, k := range sortedKeys(v) {
			if i > 0 {
				w.indent(depth)
			}
			w.yamlMember(k, v[k], depth)
		}
	}
}

func (w *writer) yamlMember(key string, v Value, depth int) {
	start := w.buf.Len()
	if plainYAML(key) && !strings.Contains(key, ":") {
		w.buf.WriteString(key)
	} else {
		w.quote(key)
	}
	if w.buf.Len()-start > maxSimpleKey {
		w.buf.Truncate(start)
		w.buf.WriteString("? ")
		w.quote(key)
		w.buf.WriteByte('\n')
		w.indent(depth)
	}
	w.buf.WriteByte(':')
	if nested(v) {
		w.buf.WriteByte('\n')
		w.indent(depth + 1)
	} else {
		w.buf.WriteByte(' ')
	}
	w.yamlValue(v, depth+1)
}

func nested(v Value) bool {
	switch v := v.(type) {
	case []any:
		return len(v) > 0
	case map[string]any:
		return len(v) > 0
	}
	return false
}

func (w *writer) yamlString(s string, depth int) {
	switch {
	case plainYAML(s):
		w.buf.WriteString(s)
	case literalYAML(s):
		body, hasFinal := strings.CutSuffix(s, "\n")
		w.buf.WriteByte('|')
		if !hasFinal {
			w.buf.WriteByte('-')
		}
		for line := range strings.SplitSeq(body, "\n") {
			w.buf.WriteByte('\n')
			if line != "" {
				w.indent(max(depth, 1))
				w.buf.WriteString(line)
			}
		}
	default:
		w.quote(s)
	}
	w.buf.WriteByte('\n')
}

// Where a byte may stand in a text without quotes.
const (
	plainFirst  = 1 << iota // at its beginning
	plainLater              // after that
	afterColon              // behind a ':'
	afterSpace              // behind a space
	plainColon              // it is a ':'
	plainSpace              // it is a space
	plainLetter = plainFirst | plainLater | afterColon | afterSpace
)

var plainBytes = func() (t [256]uint8) {
	set := func(bytes string, where uint8) {
		for i := range len(bytes) {
			t[bytes[i]] |= where
		}
	}
	for c := byte('a'); c <= 'z'; c++ {
		t[c], t[c-'a'+'A'] = plainLetter, plainLetter
	}
	set("/_", plainLetter)
	set("0123456789.", plainLater|afterColon|afterSpace)
	set("@+-", plainLater|afterColon)
	set(",=%;$)", plainLater)
	set("(", plainLater|afterSpace)
	set(":", plainColon)
	set(" ", plainSpace)
	return t
}()

// plainWord reports whether a text starts with a letter, '/' or '_', so that it is no number, date, time, merge key, indicator or directive in any version,
// and holds no '#', no quote, and a ':' only in front of something other than a space.
func plainWord(s string) bool {
	want := uint8(plainFirst)
	for i := range len(s) {
		is := plainBytes[s[i]]
		switch {
		case is&want != 0:
			want = plainLater
		case want != plainLater:
			return false
		case is == plainColon:
			want = afterColon
		case is == plainSpace:
			want = afterSpace
		default:
			return false
		}
	}
	return want == plainLater
}

// yamlWords are the words that YAML 1.1 or 1.2, or a reader known to us, takes for something else than a string. Compared in lower case:
// readers differ on which spellings count.
var yamlWords = map[string]bool{
	"y": true, "n": true,
	"yes": true, "no": true, "on": true, "off": true, "true": true, "false": true,
	"null": true, "nan": true, "inf": true, "infinity": true, "t": true, "f": true,
}

const longestWord = len("infinity")

func plainYAML(s string) bool {
	return plainWord(s) && (len(s) > longestWord || !yamlWords[strings.ToLower(s)])
}

// literalYAML is the readable form of certificates and scripts. Whatever could meet an edge of the indentation or chomping rules, which
// readers do get wrong, is quoted instead.
func literalYAML(s string) bool {
	if !strings.Contains(s, "\n") || strings.HasPrefix(s, "\n") || strings.HasPrefix(s, " ") || strings.HasSuffix(s, "\n\n") {
		return false
	}
	if strings.Contains(s, " \n") || strings.HasSuffix(s, " ") {
		return false
	}
	for _, r := range s {
		if r != '\n' && (needsEscape(r) || r == utf8.RuneError) {
			return false
		}
	}
	return true
}
