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

// decoder fills Go values from a document in one pass.
type decoder struct {
	scanner
	trail []string // after an error: the steps to its place, the last one first
}

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

func (d *decoder) value(v reflect.Value, p *plan) error {
	switch p.read {
	case formRaw:
		raw, err := d.raw()
		if err == nil {
			v.SetBytes(bytes.Clone(raw))
		}
		return err
	case formIndirect:
		if d.peek() == 'n' {
			return d.word("null")
		}
		v.Set(reflect.New(v.Type().Elem()))
		return d.value(v.Elem(), p.elem)
	case formTime:
		return d.time(v)
	case formJSON:
		if d.peek() == 'n' {
			return d.due("a value")
		}
		raw, err := d.raw()
		if err != nil {
			return err
		}
		return v.Addr().Interface().(json.Unmarshaler).UnmarshalJSON(raw)
	case formText:
		if d.peek() != '"' {
			return d.due("a string")
		}
		text, err := d.text()
		if err != nil {
			return err
		}
		return v.Addr().Interface().(encoding.TextUnmarshaler).UnmarshalText(text)
	case formStruct:
		return d.object(v, p)
	case formMap:
		return d.table(v, p)
	case formBytes:
		return d.base64(v)
	case formSlice, formArray:
		return d.list(v, p)
	case formString:
		if d.peek() != '"' {
			return d.due("a string")
		}
		text, err := d.text()
		v.SetString(string(text))
		return err
	case formBool:
		switch d.peek() {
		case 't':
			v.SetBool(true)
			return d.word("true")
		case 'f':
			return d.word("false")
		}
		return d.due("a boolean")
	case formAny:
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
	if v.CanFloat() {
		f, err := strconv.ParseFloat(string(lit), v.Type().Bits())
		if err != nil {
			return errors.New("number out of range")
		}
		v.SetFloat(f)
		return nil
	}
	if bytes.ContainsAny(lit, ".eE") || string(lit) == "-0" {
		return errors.New("an integer is due, without fraction and exponent")
	}
	switch {
	case v.CanInt():
		n, err := strconv.ParseInt(string(lit), 10, v.Type().Bits())
		if err != nil {
			return errors.New("integer out of range")
		}
		v.SetInt(n)
	case v.CanUint():
		n, err := strconv.ParseUint(string(lit), 10, v.Type().Bits())
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
	*v.Addr().Interface().(*time.Time) = t.UTC()
	return nil
}

var strictBase64 = base64.StdEncoding.Strict()

func (d *decoder) base64(v reflect.Value) error {
	if d.peek() != '"' {
		return d.due("a base64 string")
	}
	// A long one is mostly right: then all of it is known to be plain once it is decoded.
	if n := bytes.IndexByte(d.data[d.pos+1:], '"'); n > 0 {
		if out, ok := unbase64(d.data[d.pos+1 : d.pos+1+n]); ok {
			d.pos += n + 2
			v.SetBytes(out)
			return nil
		}
	}
	text, err := d.text()
	if err != nil {
		return err
	}
	out, ok := unbase64(text)
	if !ok {
		return errors.New("not standard base64")
	}
	v.SetBytes(out)
	return nil
}

// unbase64 decodes standard base64 with padding, without loose bits and line breaks.
func unbase64(text []byte) ([]byte, bool) {
	if len(text)%4 != 0 {
		return nil, false
	}
	out := make([]byte, len(text)/4*3)
	n, err := strictBase64.Decode(out, text)
	// The package skips line breaks, also when it is strict: then there is less than there should be.
	if err != nil || len(out)-n > 2 || len(out)-n != len(text)-len(bytes.TrimRight(text, "=")) {
		return nil, false
	}
	return out[:n], true
}

func (d *decoder) object(v reflect.Value, p *plan) error {
	if d.peek() != '{' {
		return d.due("an object")
	}
	if p.err != nil {
		return p.err
	}
	if err := d.open(); err != nil {
		return err
	}
	list := p.fields.list
	var few [4]uint64
	seen := few[:]
	if len(list) > 64*len(few) {
		seen = make([]uint64, len(list)/64+1)
	}
	next := 0 // mostly fields come in their order
	for more := !d.empty('}'); more; {
		key, err := d.text()
		if err != nil {
			return err
		}
		i := next
		if i >= len(list) || list[i].name != string(key) {
			known := false
			if i, known = p.fields.byName[string(key)]; !known {
				return d.in(key, errors.New("unknown field"))
			}
		}
		next = i + 1
		if seen[i/64]&(1<<(i%64)) != 0 {
			return d.in(key, errors.New("doubled key"))
		}
		seen[i/64] |= 1 << (i % 64)
		if err := d.expect(':'); err != nil {
			return d.in(key, err)
		}
		if err := d.value(list[i].of(v), list[i].plan); err != nil {
			return d.in(key, err)
		}
		if more, err = d.next('}'); err != nil {
			return err
		}
	}
	for i := range list {
		if f := &list[i]; f.required && seen[i/64]&(1<<(i%64)) == 0 {
			return d.in([]byte(f.name), errors.New("missing"))
		}
	}
	d.shut()
	return nil
}

func (d *decoder) table(v reflect.Value, p *plan) error {
	if d.peek() != '{' {
		return d.due("an object")
	}
	t := v.Type()
	if t.Key().Kind() != reflect.String {
		return fmt.Errorf("wire: keys of %s are not strings", t)
	}
	m := reflect.MakeMapWithSize(t, min(d.count(), fewElements))
	if err := d.open(); err != nil {
		return err
	}
	for more := !d.empty('}'); more; {
		text, err := d.text()
		if err != nil {
			return err
		}
		key := reflect.New(t.Key()).Elem()
		key.SetString(string(text))
		elem := reflect.New(t.Elem()).Elem()
		if m.MapIndex(key).IsValid() {
			return d.in(text, errors.New("doubled key"))
		}
		if err := d.expect(':'); err != nil {
			return d.in(text, err)
		}
		if err := d.value(elem, p.elem); err != nil {
			return d.in(text, err)
		}
		m.SetMapIndex(key, elem)
		if more, err = d.next('}'); err != nil {
			return err
		}
	}
	d.shut()
	v.Set(m)
	return nil
}

// fewElements is for how many elements room is made on the word of a document. For more of them room grows with those that were read.
const fewElements = 16

func (d *decoder) list(v reflect.Value, p *plan) error {
	if d.peek() != '[' {
		return d.due("an array")
	}
	out, all := v, v.Len()
	if v.Kind() == reflect.Slice {
		all = d.count()
		out = reflect.MakeSlice(v.Type(), min(all, fewElements), min(all, fewElements))
	}
	if err := d.open(); err != nil {
		return err
	}
	i := 0
	for more := !d.empty(']'); more; i++ {
		if i == out.Len() {
			if v.Kind() == reflect.Array {
				return d.at(i, fmt.Errorf("more than %d elements", v.Len()))
			}
			// The count is right unless the array is broken further on.
			size := max(i+1, min(all, 8*i))
			larger := reflect.MakeSlice(v.Type(), size, size)
			reflect.Copy(larger, out)
			out = larger
		}
		if err := d.value(out.Index(i), p.elem); err != nil {
			return d.at(i, err)
		}
		var err error
		if more, err = d.next(']'); err != nil {
			return err
		}
	}
	if i < out.Len() {
		return fmt.Errorf("%d elements where %d are due", i, out.Len())
	}
	d.shut()
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
	if err := d.value(out, planOf(out.Type())); err != nil {
		return err
	}
	v.Set(out)
	return nil
}
