package wire

import (
	"fmt"
	"reflect"
	"strings"
)

// field is one JSON field of a struct.
type field struct {
	name      string
	key       string // as it is written, with the colon; "" if it cannot be
	index     []int
	plan      *plan
	required  bool
	omitEmpty bool
	omitZero  bool
	asks      bool // its type says itself when it is zero
}

// of is the field's value in a struct.
func (f *field) of(v reflect.Value) reflect.Value {
	if len(f.index) == 1 {
		return v.Field(f.index[0])
	}
	return v.FieldByIndex(f.index)
}

// structFields are the fields of a struct in their order, those of embedded structs in the place of the embedding.
type structFields struct {
	list   []field
	byName map[string]int
}

func fieldsOf(t reflect.Type) (*structFields, error) {
	f := &structFields{byName: map[string]int{}}
	if err := f.add(t, nil); err != nil {
		return nil, err
	}
	return f, nil
}

type zeroer interface{ IsZero() bool }

// add collects fields. What encoding/json would decide quietly (shadowing, pointers to embedded structs, ",string") is no part of our formats, so it is an error.
func (f *structFields) add(t reflect.Type, at []int) error {
	for i := range t.NumField() {
		sf := t.Field(i)
		name, opts, _ := strings.Cut(sf.Tag.Get("json"), ",")
		index := append(append([]int{}, at...), i)
		switch {
		case name == "-" && opts == "":
			continue
		case sf.Anonymous && name == "" && sf.Type.Kind() == reflect.Struct:
			if err := f.add(sf.Type, index); err != nil {
				return err
			}
			continue
		case !sf.IsExported():
			continue
		case sf.Anonymous && name == "":
			return fmt.Errorf("wire: %s embeds %s, which is no struct", t, sf.Type)
		}
		if name == "" {
			name = sf.Name
		}
		add := field{name: name, index: index, required: true, asks: sf.Type.Implements(reflect.TypeFor[zeroer]())}
		for opt := range strings.SplitSeq(opts, ",") {
			switch opt {
			case "":
			case "omitempty":
				add.omitEmpty, add.required = true, false
			case "omitzero":
				add.omitZero, add.required = true, false
			default:
				return fmt.Errorf("wire: %s.%s has the unknown option %q", t, sf.Name, opt)
			}
		}
		if _, twice := f.byName[name]; twice {
			return fmt.Errorf("wire: %s has two fields %q", t, name)
		}
		var e encoder
		if e.text(name) == nil {
			add.key = string(e.out) + ":"
		}
		f.byName[name] = len(f.list)
		f.list = append(f.list, add)
	}
	return nil
}

// omitted reports whether a field's value is left out when it is written.
func (f *field) omitted(v reflect.Value) bool {
	switch {
	case f.omitZero && f.plan.write == formTime:
		return timeOf(v).IsZero()
	case f.omitZero && (f.asks || v.Kind() == reflect.Interface):
		if z, ok := v.Interface().(zeroer); ok && (v.Kind() != reflect.Pointer || !v.IsNil()) {
			return z.IsZero()
		}
		return v.IsZero()
	case f.omitZero:
		return v.IsZero()
	case !f.omitEmpty:
		return false
	}
	switch v.Kind() {
	case reflect.Array, reflect.Map, reflect.Slice, reflect.String:
		return v.Len() == 0
	case reflect.Struct:
		return false
	}
	return v.IsZero()
}
