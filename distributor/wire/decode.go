package wire

import (
	"bytes"
	"encoding"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"time"
)

// decoder fills Go values from a document in one pass. After an error its path is where it was.
type decoder struct {
	scanner
	path []byte
}

var (
	timeType        = reflect.TypeFor[time.Time]()
	rawMessageType  = reflect.TypeFor[json.RawMessage]()
	unmarshalerType = reflect.TypeFor[json.Unmarshaler]()
	textType        = reflect.TypeFor[encoding.TextUnmarshaler]()
)

// kindOf names what a document has where v's type wants something else.
func (d *decoder) kindOf() string {
	switch c := d.peek(); {
	case c == '{':
		return "an object"
	case c == '[':
		return "an array"
	case c == '"':
		return "a string"
	case c == 't' || c == 'f':
		return "a boolean"
	case c == 'n':
		return "null"
	case c == '-' || c >= '0' && c <= '9':
		return "a number"
	}
	return ""
}

// due refuses a value of another kind than wanted.
func (d *decoder) due(wanted string) error {
	has := d.kindOf()
	if has == "" {
		return d.syntax("a value")
	}
	return fmt.Errorf("%s where %s is due", has, wanted)
}

func (d *decoder) value(v reflect.Value) error {
	t := v.Type()
	switch {
	case t == rawMessageType:
		raw, err := d.raw()
		if err == nil {
			v.SetBytes(bytes.Clone(raw))
		}
		return err
	case t.Kind() == reflect.Pointer:
		if d.peek() == 'n' {
			return d.word("null")
		}
		v.Set(reflect.New(t.Elem()))
		return d.value(v.Elem())
	case t == timeType:
		return d.time(v)
	case reflect.PointerTo(t).Implements(unmarshalerType):
		if d.peek() == 'n' {
			return d.due("a value")
		}
		raw, err := d.raw()
		if err != nil {
			return err
		}
		return v.Addr().Interface().(json.Unmarshaler).UnmarshalJSON(raw)
	case reflect.PointerTo(t).Implements(textType):
		if d.peek() != '"' {
			return d.due("a string")
		}
		text, err := d.text()
		if err != nil {
			return err
		}
		return v.Addr().Interface().(encoding.TextUnmarshaler).UnmarshalText(text)
	}
	switch t.Kind() {
	case reflect.Struct:
		return d.object(v)
	case reflect.Map:
		return d.table(v)
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			return d.base64(v)
		}
		return d.list(v)
	case reflect.Array:
		return d.list(v)
	case reflect.String:
		if d.peek() != '"' {
			return d.due("a string")
		}
		text, err := d.text()
		v.SetString(string(text))
		return err
	case reflect.Bool:
		switch d.peek() {
		case 't':
			v.SetBool(true)
			return d.word("true")
		case 'f':
			return d.word("false")
		}
		return d.due("a boolean")
	case reflect.Interface:
		return d.any(v)
	}
	return d.numeric(v)
}

func (d *decoder) numeric(v reflect.Value) error {
	if c := d.peek(); c != '-' && (c < '0' || c > '9') {
		return d.due("a number")
	}
	lit, err := d.number()
	if err != nil {
		return err
	}
	text := string(lit)
	if v.CanFloat() {
		f, err := strconv.ParseFloat(text, v.Type().Bits())
		if err != nil {
			return errors.New("number out of range")
		}
		v.SetFloat(f)
		return nil
	}
	if bytes.ContainsAny(lit, ".eE") || text == "-0" {
		return errors.New("an integer is due, without fraction and exponent")
	}
	switch {
	case v.CanInt():
		n, err := strconv.ParseInt(text, 10, v.Type().Bits())
		if err != nil {
			return errors.New("integer out of range")
		}
		v.SetInt(n)
	case v.CanUint():
		n, err := strconv.ParseUint(text, 10, v.Type().Bits())
		if err != nil {
			return errors.New("integer out of range")
		}
		v.SetUint(n)
	default:
		return fmt.Errorf("wire: cannot read into %s", v.Type())
	}
	return nil
}

func (d *decoder) time(v reflect.Value) error {
	if d.peek() != '"' {
		return d.due("a time")
	}
	text, err := d.text()
	if err != nil {
		return err
	}
	var t time.Time
	if t.UnmarshalText(text) != nil { // strict RFC 3339
		return errors.New("not an RFC 3339 time")
	}
	v.Set(reflect.ValueOf(t.UTC()))
	return nil
}

func (d *decoder) base64(v reflect.Value) error {
	if d.peek() != '"' {
		return d.due("a base64 string")
	}
	text, err := d.text()
	if err != nil {
		return err
	}
	// The package skips line breaks, also when it is strict.
	out := make([]byte, base64.StdEncoding.DecodedLen(len(text)))
	n, err := base64.StdEncoding.Strict().Decode(out, text)
	if err != nil || bytes.ContainsAny(text, "\r\n") {
		return errors.New("not standard base64")
	}
	v.SetBytes(out[:n])
	return nil
}

func (d *decoder) object(v reflect.Value) error {
	if d.peek() != '{' {
		return d.due("an object")
	}
	fields, err := fieldsOf(v.Type())
	if err != nil {
		return err
	}
	if err := d.open(); err != nil {
		return err
	}
	defer d.shut()
	seen := make([]bool, len(fields.list))
	for more := !d.empty('}'); more; {
		key, err := d.text()
		if err != nil {
			return err
		}
		n := d.enter(key)
		i, known := fields.byName[string(key)]
		switch {
		case !known:
			return errors.New("unknown field")
		case seen[i]:
			return errors.New("doubled key")
		}
		seen[i] = true
		if err := d.expect(':'); err != nil {
			return err
		}
		if err := d.value(v.FieldByIndex(fields.list[i].index)); err != nil {
			return err
		}
		d.path = d.path[:n]
		if more, err = d.next('}'); err != nil {
			return err
		}
	}
	for i, f := range fields.list {
		if f.required && !seen[i] {
			d.enter([]byte(f.name))
			return errors.New("missing")
		}
	}
	return nil
}

func (d *decoder) table(v reflect.Value) error {
	if d.peek() != '{' {
		return d.due("an object")
	}
	t := v.Type()
	if t.Key().Kind() != reflect.String {
		return fmt.Errorf("wire: keys of %s are not strings", t)
	}
	m := reflect.MakeMapWithSize(t, d.count())
	if err := d.open(); err != nil {
		return err
	}
	defer d.shut()
	for more := !d.empty('}'); more; {
		text, err := d.text()
		if err != nil {
			return err
		}
		n := d.enter(text)
		key := reflect.New(t.Key()).Elem()
		key.SetString(string(text))
		if m.MapIndex(key).IsValid() {
			return errors.New("doubled key")
		}
		if err := d.expect(':'); err != nil {
			return err
		}
		elem := reflect.New(t.Elem()).Elem()
		if err := d.value(elem); err != nil {
			return err
		}
		m.SetMapIndex(key, elem)
		d.path = d.path[:n]
		if more, err = d.next('}'); err != nil {
			return err
		}
	}
	v.Set(m)
	return nil
}

func (d *decoder) list(v reflect.Value) error {
	if d.peek() != '[' {
		return d.due("an array")
	}
	out := v
	if v.Kind() == reflect.Slice {
		size := d.count()
		out = reflect.MakeSlice(v.Type(), size, size)
	}
	if err := d.open(); err != nil {
		return err
	}
	defer d.shut()
	i := 0
	for more := !d.empty(']'); more; i++ {
		n := d.enterIndex(i)
		var elem reflect.Value
		switch {
		case i < out.Len():
			elem = out.Index(i)
		case v.Kind() == reflect.Array:
			return fmt.Errorf("more than %d elements", v.Len())
		default: // the array is broken further on: read up to there
			elem = reflect.New(v.Type().Elem()).Elem()
		}
		if err := d.value(elem); err != nil {
			return err
		}
		d.path = d.path[:n]
		var err error
		if more, err = d.next(']'); err != nil {
			return err
		}
	}
	if i < out.Len() {
		return fmt.Errorf("%d elements where %d are due", i, out.Len())
	}
	if v.Kind() == reflect.Slice {
		v.Set(out)
	}
	return nil
}

// any reads a value without a type: map[string]any, []any, string, bool, nil, and json.Number, which loses no digit.
func (d *decoder) any(v reflect.Value) error {
	if v.NumMethod() != 0 {
		return fmt.Errorf("wire: cannot read into %s", v.Type())
	}
	var out reflect.Value
	switch d.peek() {
	case '{':
		out = reflect.New(reflect.TypeFor[map[string]any]()).Elem()
	case '[':
		out = reflect.New(reflect.TypeFor[[]any]()).Elem()
	case '"':
		out = reflect.New(reflect.TypeFor[string]()).Elem()
	case 't', 'f':
		out = reflect.New(reflect.TypeFor[bool]()).Elem()
	case 'n':
		return d.word("null")
	default:
		if d.kindOf() == "" {
			return d.syntax("a value")
		}
		lit, err := d.number()
		if err == nil {
			v.Set(reflect.ValueOf(json.Number(lit)))
		}
		return err
	}
	if err := d.value(out); err != nil {
		return err
	}
	v.Set(out)
	return nil
}
