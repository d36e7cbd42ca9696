package eval

import (
	"fmt"
	"reflect"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"
)

// fill sets every field of v, of what it holds too, to something that is not its zero value. An unknown kind of field fails the test.
func fill(t *testing.T, v reflect.Value, n *int) {
	*n++
	switch v.Kind() {
	case reflect.String:
		v.SetString(fmt.Sprintf("text %d", *n))
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int:
		v.SetInt(int64(-*n))
	case reflect.Int64: // none that crosses is below zero
		v.SetInt(int64(*n))
	case reflect.Uint32, reflect.Uint64:
		v.SetUint(uint64(*n))
	case reflect.Uint8:
		v.SetUint(uint64(*n % 256))
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		for i := range 2 {
			fill(t, v.Index(i), n)
		}
	case reflect.Func, reflect.Array: // of a TreeFile: what was not read does not cross
	case reflect.Struct:
		for i := range v.NumField() {
			fill(t, v.Field(i), n)
		}
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(t, v.Elem(), n)
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		for range 2 {
			key, of := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
			fill(t, key, n)
			fill(t, of, n)
			v.SetMapIndex(key, of)
		}
	default:
		t.Fatalf("a field of kind %s: teach the codec and this test", v.Kind())
	}
}

func TestCodecHoldsEveryField(t *testing.T) {
	want, n := &answer{}, 0
	fill(t, reflect.ValueOf(want).Elem(), &n)
	got, err := decodeAnswer(encodeAnswer(want))
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("a field does not come back (-want +got):\n%s", d)
	}
}

func TestCodecTellsNilFromEmpty(t *testing.T) {
	for name, want := range map[string]*answer{
		"nothing": {},
		"empty":   {Units: []Unit{}, Problems: []Problem{}, Schema: []byte{}},
		"inside": {
			Units:    []Unit{{Files: []File{}, Leaves: []Leaf{{}, {Path: []string{}, Shadows: []Setting{}}}}, {Files: []File{{Data: nil}, {Data: []byte{}}}}},
			Problems: []Problem{{Cohorts: []string{}, SetAt: []Pos{}, SchemaAt: []Pos{}}, {}},
		},
	} {
		got, err := decodeAnswer(encodeAnswer(want))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s (-want +got):\n%s", name, d)
		}
	}
}

// Damaged bytes are an error or another answer, and no panic; what is decoded is what encodes to it.
func FuzzDecodeAnswer(f *testing.F) {
	want, n := &answer{}, 0
	fill(&testing.T{}, reflect.ValueOf(want).Elem(), &n)
	f.Add(encodeAnswer(want))
	f.Add(encodeAnswer(&answer{}))
	f.Add([]byte{0x00, 0xff, 0xff, 0xff, 0xff, 0x0f})
	f.Fuzz(func(t *testing.T, data []byte) {
		a, err := decodeAnswer(data)
		if err != nil {
			return
		}
		again, err := decodeAnswer(encodeAnswer(a))
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(a, again); d != "" {
			t.Errorf("(-first +again):\n%s", d)
		}
	})
}

func TestCodecRoundTrip(t *testing.T) {
	gen := rapid.Make[answer]()
	rapid.Check(t, func(t *rapid.T) {
		want := gen.Draw(t, "answer")
		got, err := decodeAnswer(encodeAnswer(&want))
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(&want, got, cmpopts.EquateEmpty()); d != "" {
			t.Fatal(d)
		}
	})
}
