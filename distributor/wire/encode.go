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
	"sync"
	"time"
	"unicode/utf8"
)

// Encode writes v as compact JSON with sorted map keys, no HTML escapes and no final newline. Nil slices and maps
// are written empty, times in UTC. Equal values give equal bytes. What Decode would refuse, such as a string that is
// not UTF-8, is an error.
func Encode(v any) ([]byte, error) {
	rv := reflect.ValueOf(v)
	if !rv.IsValid() {
		return []byte("null"), nil
	}
	e := encoders.Get().(*encoder)
	defer e.free()
	if err := e.value(rv, planOf(rv.Type()), 0); err != nil {
		return nil, fmt.Errorf("encode %T: %w", v, err)
	}
	return bytes.Clone(e.out), nil
}

type encoder struct{ out []byte }

// encoders are at rest, with the memory of what they wrote before.
var encoders = sync.Pool{New: func() any { return &encoder{out: make([]byte, 0, 4096)} }}

// keepAtMost is how much memory an encoder at rest may hold.
const keepAtMost = 64 << 10

func (e *encoder) free() {
	if cap(e.out) > keepAtMost {
		return
	}
	e.out = e.out[:0]
	encoders.Put(e)
}

func (e *encoder) value(v reflect.Value, p *plan, depth int) error {
	switch p.write {
	case formIndirect:
		if v.IsNil() {
			e.out = append(e.out, "null"...)
			return nil
		}
		v = v.Elem()
		if p = p.elem; p == nil { // an interface
			p = planOf(v.Type())
		}
		return e.value(v, p, depth)
	case formRaw:
		if v.Len() == 0 {
			e.out = append(e.out, "null"...)
			return nil
		}
		return e.raw(v.Bytes(), depth)
	case formNumber:
		return e.raw([]byte(v.String()), depth)
	case formTime:
		return e.time(timeOf(v))
	case formJSON:
		raw, err := v.Interface().(json.Marshaler).MarshalJSON()
		if err != nil {
			return err
		}
		return e.raw(raw, depth)
	case formText:
		text, err := v.Interface().(encoding.TextMarshaler).MarshalText()
		if err != nil {
			return err
		}
		return e.text(string(text))
	case formString:
		return e.text(v.String())
	case formBool:
		e.out = strconv.AppendBool(e.out, v.Bool())
		return nil
	case formInt:
		e.out = strconv.AppendInt(e.out, v.Int(), 10)
		return nil
	case formUint:
		e.out = strconv.AppendUint(e.out, v.Uint(), 10)
		return nil
	case formFloat:
		return e.float(v.Float(), v.Type().Bits())
	case formNone:
		return fmt.Errorf("cannot write %s", v.Type())
	}
	if depth >= MaxDepth {
		return fmt.Errorf("nested deeper than %d", MaxDepth)
	}
	switch p.write {
	case formStruct:
		return e.object(v, p, depth)
	case formMap:
		return e.table(v, p, depth)
	case formBytes:
		e.out = append(e.out, '"')
		e.out = base64.StdEncoding.AppendEncode(e.out, v.Bytes())
		e.out = append(e.out, '"')
		return nil
	}
	return e.list(v, p, depth)
}

// timeOf is a time in a value.
func timeOf(v reflect.Value) time.Time {
	if v.CanAddr() {
		return *v.Addr().Interface().(*time.Time) // copies nothing to the heap
	}
	return v.Interface().(time.Time)
}

func (e *encoder) time(t time.Time) error {
	n := len(e.out)
	e.out = append(e.out, '"')
	out, err := t.UTC().AppendText(e.out) // no byte of it needs an escape
	if err != nil {
		e.out = e.out[:n]
		return errors.New("a time that RFC 3339 cannot write")
	}
	e.out = append(out, '"')
	return nil
}

// float writes a number as encoding/json does.
func (e *encoder) float(f float64, bits int) error {
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return errors.New("a number that JSON cannot write")
	}
	if f == math.Trunc(f) && math.Abs(f) < 1<<53 && (f != 0 || !math.Signbit(f)) && bits == 64 {
		e.out = strconv.AppendInt(e.out, int64(f), 10)
		return nil
	}
	var b []byte
	var err error
	if bits == 32 {
		b, err = json.Marshal(float32(f))
	} else {
		b, err = json.Marshal(f)
	}
	e.out = append(e.out, b...)
	return err
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

// plain reports whether a string stands between quotes as it is, and has nothing but ASCII.
func plain(s string) bool {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c == '"' || c == '\\' || c >= utf8.RuneSelf {
			return false
		}
	}
	return true
}

func (e *encoder) quoted(s string) {
	e.out = append(e.out, '"')
	e.out = append(e.out, s...)
	e.out = append(e.out, '"')
}

func (e *encoder) text(s string) error {
	if plain(s) {
		e.quoted(s)
		return nil
	}
	if !utf8.ValidString(s) {
		return errors.New("a string that is not UTF-8")
	}
	if !strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r == '"' || r == '\\' || r == '\u2028' || r == '\u2029' }) {
		e.quoted(s)
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

func (e *encoder) object(v reflect.Value, p *plan, depth int) error {
	if p.err != nil {
		return p.err
	}
	e.out = append(e.out, '{')
	first := true
	for i := range p.fields.list {
		f := &p.fields.list[i]
		fv := f.of(v)
		if f.omitted(fv) {
			continue
		}
		if !first {
			e.out = append(e.out, ',')
		}
		first = false
		if f.key == "" {
			return e.text(f.name) // says why
		}
		e.out = append(e.out, f.key...)
		if err := e.value(fv, f.plan, depth+1); err != nil {
			return fmt.Errorf("%s: %w", f.name, err)
		}
	}
	e.out = append(e.out, '}')
	return nil
}

func (e *encoder) table(v reflect.Value, p *plan, depth int) error {
	if v.Type().Key().Kind() != reflect.String {
		return fmt.Errorf("cannot write %s: its keys are not strings", v.Type())
	}
	if v.Len() == 0 {
		e.out = append(e.out, "{}"...)
		return nil
	}
	type member struct {
		key string
		at  int
	}
	members := make([]member, 0, v.Len())
	values := reflect.MakeSlice(p.many, v.Len(), v.Len())
	for it := v.MapRange(); it.Next() && len(members) < v.Len(); {
		values.Index(len(members)).SetIterValue(it)
		members = append(members, member{it.Key().String(), len(members)})
	}
	slices.SortFunc(members, func(a, b member) int { return strings.Compare(a.key, b.key) })
	e.out = append(e.out, '{')
	for i, m := range members {
		if i > 0 {
			e.out = append(e.out, ',')
		}
		if err := e.text(m.key); err != nil {
			return err
		}
		e.out = append(e.out, ':')
		if err := e.value(values.Index(m.at), p.elem, depth+1); err != nil {
			return fmt.Errorf("%s: %w", clip(m.key), err)
		}
	}
	e.out = append(e.out, '}')
	return nil
}

func (e *encoder) list(v reflect.Value, p *plan, depth int) error {
	e.out = append(e.out, '[')
	for i := range v.Len() {
		if i > 0 {
			e.out = append(e.out, ',')
		}
		if err := e.value(v.Index(i), p.elem, depth+1); err != nil {
			return fmt.Errorf("[%d]: %w", i, err)
		}
	}
	e.out = append(e.out, ']')
	return nil
}
