package wire

import (
	"bytes"
	"encoding"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// Encode writes v as compact JSON with sorted map keys, no HTML escapes and no final newline. Nil slices and maps
// are written empty, times in UTC. Equal values give equal bytes. What Decode would refuse, such as a string that is
// not UTF-8, is an error.
func Encode(v any) ([]byte, error) {
	e := encoder{}
	rv := reflect.ValueOf(v)
	if !rv.IsValid() {
		return []byte("null"), nil
	}
	if err := e.value(rv, 0); err != nil {
		return nil, fmt.Errorf("encode %T: %w", v, err)
	}
	return e.out, nil
}

type encoder struct{ out []byte }

var (
	numberType        = reflect.TypeFor[json.Number]()
	marshalerType     = reflect.TypeFor[json.Marshaler]()
	textMarshalerType = reflect.TypeFor[encoding.TextMarshaler]()
)

func (e *encoder) value(v reflect.Value, depth int) error {
	t := v.Type()
	switch {
	case t.Kind() == reflect.Pointer || t.Kind() == reflect.Interface:
		if v.IsNil() {
			e.out = append(e.out, "null"...)
			return nil
		}
		return e.value(v.Elem(), depth)
	case t == rawMessageType:
		if v.Len() == 0 {
			e.out = append(e.out, "null"...)
			return nil
		}
		return e.raw(v.Bytes(), depth)
	case t == numberType:
		return e.raw([]byte(v.String()), depth)
	case t == timeType:
		text, err := v.Interface().(time.Time).UTC().MarshalText()
		if err != nil {
			return errors.New("a time that RFC 3339 cannot write")
		}
		return e.text(string(text))
	case t.Implements(marshalerType):
		raw, err := v.Interface().(json.Marshaler).MarshalJSON()
		if err != nil {
			return err
		}
		return e.raw(raw, depth)
	case t.Implements(textMarshalerType):
		text, err := v.Interface().(encoding.TextMarshaler).MarshalText()
		if err != nil {
			return err
		}
		return e.text(string(text))
	}
	if k := t.Kind(); depth >= MaxDepth && (k == reflect.Struct || k == reflect.Map || k == reflect.Slice || k == reflect.Array) {
		return fmt.Errorf("nested deeper than %d", MaxDepth)
	}
	switch t.Kind() {
	case reflect.Struct:
		return e.object(v, depth)
	case reflect.Map:
		return e.table(v, depth)
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			e.out = append(e.out, '"')
			e.out = base64.StdEncoding.AppendEncode(e.out, v.Bytes())
			e.out = append(e.out, '"')
			return nil
		}
		return e.list(v, depth)
	case reflect.Array:
		return e.list(v, depth)
	case reflect.String:
		return e.text(v.String())
	case reflect.Bool:
		e.out = strconv.AppendBool(e.out, v.Bool())
		return nil
	}
	switch {
	case v.CanInt():
		e.out = strconv.AppendInt(e.out, v.Int(), 10)
	case v.CanUint():
		e.out = strconv.AppendUint(e.out, v.Uint(), 10)
	case v.CanFloat():
		if f := v.Float(); math.IsNaN(f) || math.IsInf(f, 0) {
			return errors.New("a number that JSON cannot write")
		}
		b, err := json.Marshal(v.Interface())
		if err != nil {
			return err
		}
		e.out = append(e.out, b...)
	default:
		return fmt.Errorf("cannot write %s", t)
	}
	return nil
}

// raw writes JSON that is there already, compact, after it was checked.
func (e *encoder) raw(data []byte, depth int) error {
	s := scanner{data: data, depth: depth}
	err := s.skip()
	if err == nil {
		if s.space(); s.pos < len(data) {
			err = errors.New("data after the document")
		}
	}
	if err == nil && !utf8.Valid(data) {
		err = errors.New("not valid UTF-8")
	}
	if err != nil {
		return err
	}
	b := bytes.NewBuffer(e.out)
	err = json.Compact(b, data)
	e.out = b.Bytes()
	return err
}

func (e *encoder) text(s string) error {
	if !utf8.ValidString(s) {
		return errors.New("a string that is not UTF-8")
	}
	if !strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r == '"' || r == '\\' || r == '\u2028' || r == '\u2029' }) {
		e.out = append(e.out, '"')
		e.out = append(e.out, s...)
		e.out = append(e.out, '"')
		return nil
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(s); err != nil {
		return err
	}
	e.out = append(e.out, bytes.TrimSuffix(b.Bytes(), []byte("\n"))...)
	return nil
}

func (e *encoder) object(v reflect.Value, depth int) error {
	fields, err := fieldsOf(v.Type())
	if err != nil {
		return err
	}
	e.out = append(e.out, '{')
	first := true
	for _, f := range fields.list {
		fv := v.FieldByIndex(f.index)
		if f.omitted(fv) {
			continue
		}
		if !first {
			e.out = append(e.out, ',')
		}
		first = false
		if err := e.text(f.name); err != nil {
			return err
		}
		e.out = append(e.out, ':')
		if err := e.value(fv, depth+1); err != nil {
			return fmt.Errorf("%s: %w", f.name, err)
		}
	}
	e.out = append(e.out, '}')
	return nil
}

func (e *encoder) table(v reflect.Value, depth int) error {
	if v.Type().Key().Kind() != reflect.String {
		return fmt.Errorf("cannot write %s: its keys are not strings", v.Type())
	}
	keys := v.MapKeys()
	slices.SortFunc(keys, func(a, b reflect.Value) int { return strings.Compare(a.String(), b.String()) })
	e.out = append(e.out, '{')
	for i, k := range keys {
		if i > 0 {
			e.out = append(e.out, ',')
		}
		if err := e.text(k.String()); err != nil {
			return err
		}
		e.out = append(e.out, ':')
		if err := e.value(v.MapIndex(k), depth+1); err != nil {
			return fmt.Errorf("%s: %w", clip(k.String()), err)
		}
	}
	e.out = append(e.out, '}')
	return nil
}

func (e *encoder) list(v reflect.Value, depth int) error {
	e.out = append(e.out, '[')
	for i := range v.Len() {
		if i > 0 {
			e.out = append(e.out, ',')
		}
		if err := e.value(v.Index(i), depth+1); err != nil {
			return fmt.Errorf("[%d]: %w", i, err)
		}
	}
	e.out = append(e.out, ']')
	return nil
}
