// Package wire is muster's strict JSON: one way to write a document and one way to read it.
//
// Decode refuses what encoding/json lets pass: an unknown or a doubled key, a key in another case, a missing
// required field, a null where a value is due, an integer with a fraction or an exponent, base64 with line breaks
// or loose bits, half a surrogate pair, trailing data, depth over MaxDepth. A struct field without omitempty (or
// omitzero) is required. The content of a field of type map[string]json.RawMessage, tagged `json:"ext,omitempty"`,
// is kept and not looked into, so that a later version can add there.
//
// Each refusal is about something that two readers could read in two ways, and a signature vouches for one reading
// only. Errors say where and what, and never repeat a value: it may be a secret.
package wire

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// MaxDepth is how deep objects and arrays may nest.
const MaxDepth = 64

// maxPath bounds the path in an error: a key comes from whoever wrote the document.
const maxPath = 200

// Decode reads exactly one JSON document into v, a pointer. What v held before is gone; after an error it is
// untouched. Errors name the path: "rollout.wave: missing". Times come out in UTC. Memory is bounded by the size of
// the input, since elements are counted before they are made room for.
func Decode(data []byte, v any) error {
	p := reflect.ValueOf(v)
	if p.Kind() != reflect.Pointer || p.IsNil() {
		return fmt.Errorf("wire: decode into %T, which is no pointer", v)
	}
	if !utf8.Valid(data) {
		return errors.New("not valid UTF-8")
	}
	d := decoder{scanner: scanner{data: data}}
	out := reflect.New(p.Type().Elem()).Elem()
	err := d.value(out, planOf(out.Type()))
	if err == nil {
		if d.space(); d.pos < len(d.data) {
			err = errors.New("data after the document")
		}
	}
	if err != nil {
		if len(d.trail) == 0 {
			return err
		}
		return fmt.Errorf("%s: %w", clip(d.path()), err)
	}
	p.Elem().Set(out)
	return nil
}

// clip cuts a path in the middle: its two ends say most.
func clip(s string) string {
	if len(s) <= maxPath {
		return s
	}
	return s[:maxPath/2] + "…" + s[len(s)-maxPath/2:]
}

// plainKey reports whether a key can stand in a path as it is.
func plainKey(key []byte) bool {
	for _, c := range key {
		if c <= ' ' || c == '.' || c == '[' || c == '"' || c >= 0x7f {
			return false
		}
	}
	return len(key) > 0
}

// in notes on the way back from an error under which key it was.
func (d *decoder) in(key []byte, err error) error {
	step := string(key)
	if !plainKey(key) {
		step = strconv.Quote(step)
	}
	d.trail = append(d.trail, step)
	return err
}

// at likewise notes an index.
func (d *decoder) at(i int, err error) error {
	d.trail = append(d.trail, "["+strconv.Itoa(i)+"]")
	return err
}

// path is where the error was: "rollout.waves[2].bake".
func (d *decoder) path() string {
	var b strings.Builder
	for i, step := range slices.Backward(d.trail) {
		if i < len(d.trail)-1 && step[0] != '[' {
			b.WriteByte('.')
		}
		b.WriteString(step)
	}
	return b.String()
}
