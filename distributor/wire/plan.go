package wire

import (
	"encoding"
	"encoding/json"
	"reflect"
	"sync"
	"time"
)

// plan is how values of a type are written and read: found out once a type.
type plan struct {
	write, read form
	elem        *plan        // of a pointer, slice, array or map
	many        reflect.Type // of a map: a slice of its elements
	fields      *structFields
	err         error // why fields cannot be had
}

// form is one of the ways to write or read a value.
type form uint8

const (
	formNone form = iota // not at all
	formIndirect
	formRaw
	formNumber // json.Number
	formTime
	formJSON // it has a method for that
	formText // likewise
	formStruct
	formMap
	formBytes
	formSlice
	formArray
	formString
	formBool
	formInt
	formUint
	formFloat
	formAny
)

var (
	timeType          = reflect.TypeFor[time.Time]()
	numberType        = reflect.TypeFor[json.Number]()
	rawMessageType    = reflect.TypeFor[json.RawMessage]()
	marshalerType     = reflect.TypeFor[json.Marshaler]()
	textMarshalerType = reflect.TypeFor[encoding.TextMarshaler]()
	unmarshalerType   = reflect.TypeFor[json.Unmarshaler]()
	textType          = reflect.TypeFor[encoding.TextUnmarshaler]()
)

var plans sync.Map // reflect.Type → *plan

func planOf(t reflect.Type) *plan {
	if p, ok := plans.Load(t); ok {
		return p.(*plan)
	}
	made := map[reflect.Type]*plan{}
	p := makePlan(t, made)
	for t, p := range made {
		plans.LoadOrStore(t, p)
	}
	return p
}

// makePlan plans a type and all that it consists of; made are those that were begun, since a type may contain itself.
func makePlan(t reflect.Type, made map[reflect.Type]*plan) *plan {
	if p, ok := made[t]; ok {
		return p
	}
	p := &plan{write: formToWrite(t), read: formToRead(t)}
	made[t] = p
	switch t.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Array, reflect.Map:
		p.elem = makePlan(t.Elem(), made)
		if t.Kind() == reflect.Map {
			p.many = reflect.SliceOf(t.Elem())
		}
	case reflect.Struct:
		if p.write != formStruct && p.read != formStruct {
			break // its fields are its own business
		}
		if p.fields, p.err = fieldsOf(t); p.err == nil {
			for i := range p.fields.list {
				f := &p.fields.list[i]
				f.plan = makePlan(t.FieldByIndex(f.index).Type, made)
			}
		}
	}
	return p
}

func formToWrite(t reflect.Type) form {
	switch {
	case t.Kind() == reflect.Pointer || t.Kind() == reflect.Interface:
		return formIndirect
	case t == rawMessageType:
		return formRaw
	case t == numberType:
		return formNumber
	case t == timeType:
		return formTime
	case t.Implements(marshalerType):
		return formJSON
	case t.Implements(textMarshalerType):
		return formText
	}
	return formOfKind(t)
}

func formToRead(t reflect.Type) form {
	switch {
	case t == rawMessageType:
		return formRaw
	case t.Kind() == reflect.Pointer:
		return formIndirect
	case t == timeType:
		return formTime
	case reflect.PointerTo(t).Implements(unmarshalerType):
		return formJSON
	case reflect.PointerTo(t).Implements(textType):
		return formText
	case t.Kind() == reflect.Interface:
		return formAny
	}
	return formOfKind(t)
}

func formOfKind(t reflect.Type) form {
	switch t.Kind() {
	case reflect.Struct:
		return formStruct
	case reflect.Map:
		return formMap
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			return formBytes
		}
		return formSlice
	case reflect.Array:
		return formArray
	case reflect.String:
		return formString
	case reflect.Bool:
		return formBool
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return formInt
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64, reflect.Uintptr:
		return formUint
	case reflect.Float32, reflect.Float64:
		return formFloat
	}
	return formNone
}
