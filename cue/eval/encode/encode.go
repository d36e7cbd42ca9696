// Package encode writes plain values as canonical files: json, yaml, toml, env, text. Sorted keys, exact numbers, no exponents, and strings that any YAML 1.1 or 1.2
// reader reads back as the same strings. Equal values give equal bytes.
//
// The writers are our own and small, because released bytes are compared for years: a library's line folding, float format or choice of
// quotes may change with an upgrade and would then restart every service. (go-toml turns decimals into float64; yaml.v3 leaves `=` bare.)
package encode

import (
	"bytes"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// Value is nil, bool, Number, string, []any or map[string]any, all the way down.
type Value = any

// Number is an exact decimal as plain text: "-12", "0.25", never an exponent. Without '.' it is an integer.
type Number string

// Error is a value that the format cannot hold: null in TOML, an integer beyond its range, a newline in .env.
type Error struct {
	Path []string // keys and list indexes from the root
	Msg  string   // never contains the value
}

func (e *Error) Error() string {
	if len(e.Path) == 0 {
		return e.Msg
	}
	parts := make([]string, len(e.Path))
	for i, p := range e.Path {
		parts[i] = p
		if !pathWord.MatchString(p) {
			parts[i] = strconv.Quote(p)
		}
	}
	return strings.Join(parts, ".") + ": " + e.Msg
}

var pathWord = regexp.MustCompile(`^[A-Za-z0-9_-]+$`)

// Formats that Encode knows.
var Formats = []string{"json", "yaml", "toml", "env", "text"}

// maxDepth bounds nesting, so that no input can exhaust the stack and every reader of ours (encoding/json: 10,000) can follow.
const maxDepth = 1000

// Encode writes v in the format; text takes a string as it is. A value that the format cannot hold is an *Error.
func Encode(format string, v Value) ([]byte, error) {
	w := &writer{format: format}
	var write func(Value) error
	switch format {
	case "json":
		write = w.json
	case "yaml":
		write = w.yaml
	case "toml":
		write = w.toml
	case "env":
		write = w.env
	case "text":
		write = w.text
	default:
		return nil, fmt.Errorf("encode: unknown format %q: one of %s", format, strings.Join(Formats, ", "))
	}
	if !sound(v, 0) {
		if err := w.check(v, 0); err != nil {
			return nil, err
		}
	}
	w.buf.Grow(512)
	if err := write(v); err != nil {
		return nil, err
	}
	return w.buf.Bytes(), nil
}

// writer is one Encode call: the output, and where in the value it is.
type writer struct {
	format string
	buf    bytes.Buffer
	path   []string
}

func (w *writer) errorf(format string, args ...any) error {
	return &Error{Path: slices.Clone(w.path), Msg: fmt.Sprintf(format, args...)}
}

// at runs f one level deeper in the path.
func (w *writer) at(key string, f func() error) error {
	w.path = append(w.path, key)
	err := f()
	w.path = w.path[:len(w.path)-1]
	return err
}

// decimal reports whether n is an optional minus, digits without leading zeros, and perhaps a point with digits after it.
func decimal(n Number) bool {
	s := strings.TrimPrefix(string(n), "-")
	whole, part, point := strings.Cut(s, ".")
	return digits(whole) && (len(whole) == 1 || whole[0] != '0') && (!point || digits(part))
}

func digits(s string) bool {
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return false
		}
	}
	return s != ""
}

// sound reports whether check has nothing to say, for less: it keeps no path and visits keys in any order.
func sound(v Value, depth int) bool {
	if depth > maxDepth {
		return false
	}
	switch v := v.(type) {
	case nil, bool:
	case Number:
		return decimal(v)
	case string:
		return utf8.ValidString(v)
	case []any:
		for _, e := range v {
			if !sound(e, depth+1) {
				return false
			}
		}
	case map[string]any:
		for k, e := range v {
			if !utf8.ValidString(k) || !sound(e, depth+1) {
				return false
			}
		}
	default:
		return false
	}
	return true
}

// check refuses what no format can hold, so that the writers need not.
func (w *writer) check(v Value, depth int) error {
	if depth > maxDepth {
		return w.errorf("nested deeper than %d levels", maxDepth)
	}
	switch v := v.(type) {
	case nil, bool:
	case Number:
		if !decimal(v) {
			return w.errorf("not a plain decimal number")
		}
	case string:
		if !utf8.ValidString(v) {
			return w.errorf("text is not valid UTF-8")
		}
	case []any:
		for i, e := range v {
			if err := w.at(strconv.Itoa(i), func() error { return w.check(e, depth+1) }); err != nil {
				return err
			}
		}
	case map[string]any:
		for _, k := range sortedKeys(v) {
			err := w.at(k, func() error {
				if !utf8.ValidString(k) {
					return w.errorf("key is not valid UTF-8")
				}
				return w.check(v[k], depth+1)
			})
			if err != nil {
				return err
			}
		}
	default:
		return w.errorf("not a plain value: Go type %T", v)
	}
	return nil
}

func (w *writer) text(v Value) error {
	s, ok := v.(string)
	if !ok {
		return w.errorf("format text takes a string, not %s", kind(v))
	}
	w.buf.WriteString(s)
	return nil
}

func sortedKeys(m map[string]any) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// kind names a value's type for messages.
func kind(v Value) string {
	switch v := v.(type) {
	case nil:
		return "null"
	case bool:
		return "a bool"
	case Number:
		if strings.Contains(string(v), ".") {
			return "a decimal"
		}
		return "an integer"
	case string:
		return "a string"
	case []any:
		return "a list"
	}
	return "a struct"
}

// needsEscape tells what is written as an escape inside quotes: controls, and characters that are invisible, break lines or turn the
// direction of text. The ranges are fixed here, not taken from Go's Unicode tables, which grow with each release.
func needsEscape(r rune) bool {
	switch {
	case r < 0x20, r >= 0x7f && r <= 0xa0, r == 0xad,
		r == 0x61c, r == 0x180e,
		r >= 0x2000 && r <= 0x200f, // spaces of odd widths, zero width, direction marks
		r >= 0x2028 && r <= 0x202f, // line and paragraph separators, embeddings
		r >= 0x205f && r <= 0x206f, // isolates, invisible operators
		r == 0x3000, r == 0xfeff,
		r >= 0xe000 && r <= 0xf8ff, // private use
		r >= 0xfff0 && r <= 0xffff && r != utf8.RuneError,
		r >= 0xe0000: // tags, private planes
		return true
	}
	return false
}

// quote writes s in double quotes. All escapes used are common to YAML 1.1, YAML 1.2 and TOML 1.0; JSON has no \U and takes surrogates.
func (w *writer) quote(s string) {
	w.buf.WriteByte('"')
	defer w.buf.WriteByte('"')
	if bare(s) {
		w.buf.WriteString(s)
		return
	}
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			w.buf.WriteByte('\\')
			w.buf.WriteRune(r)
		case r == '\n':
			w.buf.WriteString(`\n`)
		case r == '\t':
			w.buf.WriteString(`\t`)
		case r == '\r':
			w.buf.WriteString(`\r`)
		case !needsEscape(r):
			w.buf.WriteRune(r)
		case r <= 0xffff:
			fmt.Fprintf(&w.buf, `\u%04X`, r)
		case w.format == "json":
			hi, lo := utf16.EncodeRune(r)
			fmt.Fprintf(&w.buf, `\u%04X\u%04X`, hi, lo)
		default:
			fmt.Fprintf(&w.buf, `\U%08X`, r)
		}
	}
}

// bare reports whether s is printable ASCII without a quote or a backslash, as nearly all texts are.
func bare(s string) bool {
	for i := range len(s) {
		if c := s[i]; c < 0x20 || c > 0x7e || c == '"' || c == '\\' {
			return false
		}
	}
	return true
}

func (w *writer) indent(n int) {
	for range n {
		w.buf.WriteString("  ")
	}
}
