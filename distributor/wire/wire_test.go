package wire_test

import (
	"bytes"
	"encoding/json"
	"math"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-config/muster/distributor/wire"
)

type inner struct {
	Wave  int    `json:"wave"`
	Extra string `json:"extra,omitempty"`
}

type embedded struct {
	Store string `json:"store"`
}

type doc struct {
	embedded
	V       int                        `json:"v"`
	Epoch   uint64                     `json:"epoch"`
	Small   int8                       `json:"small,omitempty"`
	Ratio   float64                    `json:"ratio,omitempty"`
	Rollout inner                      `json:"rollout"`
	List    []inner                    `json:"list"`
	Pair    [2]int                     `json:"pair,omitzero"`
	Table   map[string]inner           `json:"table"`
	Names   map[string]string          `json:"names,omitempty"`
	Bytes   []byte                     `json:"bytes,omitempty"`
	At      time.Time                  `json:"at"`
	Until   *time.Time                 `json:"until,omitempty"`
	Maybe   *inner                     `json:"maybe,omitempty"`
	Due     *inner                     `json:"due"`
	Raw     json.RawMessage            `json:"raw,omitempty"`
	On      bool                       `json:"on,omitempty"`
	Any     any                        `json:"any,omitempty"`
	Hidden  string                     `json:"-"`
	Ext     map[string]json.RawMessage `json:"ext,omitempty"`
}

const good = `{"store":"s","v":1,"epoch":9007199254740993,"rollout":{"wave":2},"list":[{"wave":1},{"wave":2,"extra":"x"}],"table":{"a":{"wave":3}},"at":"2026-11-30T10:00:00Z","due":null}`

// with is the good document with one member set, or replaced, as a test that compares text needs it.
func with(t *testing.T, key, value string) string {
	t.Helper()
	var m map[string]json.RawMessage
	if err := json.Unmarshal([]byte(good), &m); err != nil {
		t.Fatal(err)
	}
	if value == "" {
		delete(m, key)
	} else {
		m[key] = json.RawMessage(value)
	}
	var b strings.Builder
	sep := "{"
	for k, v := range m {
		b.WriteString(sep + `"` + k + `":` + string(v))
		sep = ","
	}
	return b.String() + "}"
}

func TestDecodeGood(t *testing.T) {
	var got doc
	got.Hidden, got.Names = "left over", map[string]string{"left": "over"}
	if err := wire.Decode([]byte(" "+good+"\n"), &got); err != nil {
		t.Fatal(err)
	}
	want := doc{
		embedded: embedded{"s"}, V: 1, Epoch: 9007199254740993, Rollout: inner{Wave: 2},
		List: []inner{{Wave: 1}, {Wave: 2, Extra: "x"}}, Table: map[string]inner{"a": {Wave: 3}},
		At: time.Date(2026, 11, 30, 10, 0, 0, 0, time.UTC),
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(doc{})); diff != "" {
		t.Error(diff)
	}
	out, err := wire.Encode(got)
	if err != nil || string(out) != good {
		t.Errorf("encoded again: %s, %v", out, err)
	}
}

func TestDecodeValues(t *testing.T) {
	var d doc
	for key, value := range map[string]string{
		"ratio": `-0.5e+3`, "names": `{"":"\u00e9\ud83d\ude00\/\n","b":"ü"}`, "bytes": `"AAECAw=="`, "pair": `[1,2]`,
		"until": `"2026-11-30T12:00:00.5+02:00"`, "maybe": `null`, "raw": `{"a":1,"a":[null,tr` + `ue]}`, "any": `{"a":[1.50,"x",null,true]}`,
		"ext": `{"later":{"x":null},"other":null}`, "on": `true`, "small": `-128`,
	} {
		if err := wire.Decode([]byte(with(t, key, value)), &d); err != nil {
			t.Errorf("%s: %v", key, err)
			continue
		}
		var got any
		switch key {
		case "ratio":
			got = d.Ratio == -500
		case "names":
			got = d.Names[""] == "é😀/\n" && d.Names["b"] == "ü"
		case "bytes":
			got = bytes.Equal(d.Bytes, []byte{0, 1, 2, 3})
		case "until":
			got = d.Until.Equal(time.Date(2026, 11, 30, 10, 0, 0, 5e8, time.UTC)) && d.Until.Location() == time.UTC
		case "any":
			got = cmp.Equal(d.Any, map[string]any{"a": []any{json.Number("1.50"), "x", nil, true}})
		case "ext":
			got = string(d.Ext["later"]) == `{"x":null}` && string(d.Ext["other"]) == "null"
		default:
			continue
		}
		if got != true {
			t.Errorf("%s: decoded to %+v", key, d)
		}
	}
}

func TestDecodeRefuses(t *testing.T) {
	for name, c := range map[string]struct{ doc, want string }{
		"empty":                  {"", "ends in the middle"},
		"blank":                  {" ", "ends in the middle"},
		"null":                   {"null", "null where an object is due"},
		"array":                  {"[]", "an array where an object is due"},
		"trailing data":          {good + "{}", "data after the document"},
		"trailing comma":         {strings.TrimSuffix(good, "}") + ",}", "a string is due"},
		"byte order mark":        {"\ufeff" + good, "not JSON at byte 0"},
		"not UTF-8":              {strings.Replace(good, `"x"`, "\"\xff\"", 1), "not valid UTF-8"},
		"cut":                    {good[:len(good)-1], "ends in the middle"},
		"cut in a list":          {good[:strings.Index(good, `,"extra"`)], "list[1]: ends in the middle"},
		"unknown field":          {with(t, "later", `1`), "later: unknown field"},
		"unknown field inside":   {with(t, "rollout", `{"wave":1,"wav":2}`), "rollout.wav: unknown field"},
		"other case":             {with(t, "Raw", `1`), "Raw: unknown field"},
		"hidden field":           {with(t, "Hidden", `"x"`), "Hidden: unknown field"},
		"doubled key":            {strings.Replace(good, `"v":1`, `"v":1,"v":1`, 1), "v: doubled key"},
		"doubled by escape":      {strings.Replace(good, `"v":1`, `"v":1,"\u0076":1`, 1), "v: doubled key"},
		"doubled in a map":       {with(t, "names", `{"a":"1","a":"2"}`), "names.a: doubled key"},
		"doubled in a list":      {with(t, "list", `[{"wave":1},{"wave":1,"wave":2}]`), "list[1].wave: doubled key"},
		"doubled in ext":         {with(t, "ext", `{"a":1,"a":2}`), "ext.a: doubled key"},
		"missing":                {with(t, "v", ""), "v: missing"},
		"missing embedded":       {with(t, "store", ""), "store: missing"},
		"missing inside":         {with(t, "rollout", `{}`), "rollout.wave: missing"},
		"missing pointer":        {with(t, "due", ""), "due: missing"},
		"null string":            {with(t, "store", `null`), "store: null where a string is due"},
		"null number":            {with(t, "v", `null`), "v: null where a number is due"},
		"null list":              {with(t, "list", `null`), "list: null where an array is due"},
		"null map":               {with(t, "table", `null`), "table: null where an object is due"},
		"null struct":            {with(t, "rollout", `null`), "rollout: null where an object is due"},
		"null time":              {with(t, "at", `null`), "at: null where a time is due"},
		"null bytes":             {with(t, "bytes", `null`), "bytes: null where a base64 string is due"},
		"null in a map":          {with(t, "names", `{"a.b":null}`), `names."a.b": null where a string is due`},
		"string for number":      {with(t, "v", `"1"`), "v: a string where a number is due"},
		"number for string":      {with(t, "store", `1`), "store: a number where a string is due"},
		"number for boolean":     {with(t, "on", `1`), "on: a number where a boolean is due"},
		"exponent":               {with(t, "epoch", `1e3`), "epoch: an integer is due"},
		"fraction":               {with(t, "epoch", `1.0`), "epoch: an integer is due"},
		"minus zero":             {with(t, "v", `-0`), "v: an integer is due"},
		"negative unsigned":      {with(t, "epoch", `-1`), "epoch: integer out of range"},
		"over 64 bit":            {with(t, "epoch", `18446744073709551616`), "epoch: integer out of range"},
		"over 8 bit":             {with(t, "small", `128`), "small: integer out of range"},
		"leading zero":           {with(t, "v", `01`), "not JSON"},
		"plus":                   {with(t, "v", `+1`), "a value is due"},
		"bare point":             {with(t, "ratio", `1.`), "a digit is due"},
		"infinite":               {with(t, "ratio", `1e999`), "ratio: number out of range"},
		"not a number":           {with(t, "ratio", `NaN`), "a value is due"},
		"cut word":               {with(t, "on", `tru`), "a value is due"},
		"base64 line break":      {with(t, "bytes", `"AAEC\nAw=="`), "bytes: not standard base64"},
		"base64 loose bits":      {with(t, "bytes", `"AAECAx=="`), "bytes: not standard base64"},
		"base64 no padding":      {with(t, "bytes", `"AAECAw"`), "bytes: not standard base64"},
		"base64 for URLs":        {with(t, "bytes", `"-_-_"`), "bytes: not standard base64"},
		"bytes as a list":        {with(t, "bytes", `[1]`), "bytes: an array where a base64 string is due"},
		"not a time":             {with(t, "at", `"2026-11-30 10:00:00Z"`), "at: not an RFC 3339 time"},
		"time as number":         {with(t, "at", `1`), "at: a number where a time is due"},
		"half surrogate":         {with(t, "store", `"\ud800"`), "half a surrogate pair"},
		"surrogates turned":      {with(t, "store", `"\ude00\ud83d"`), "half a surrogate pair"},
		"bad escape":             {with(t, "store", `"\x41"`), "no such escape"},
		"bad hex":                {with(t, "store", `"\u00g0"`), "four hex digits"},
		"control character":      {with(t, "store", "\"a\tb\""), "control character"},
		"short array":            {with(t, "pair", `[1]`), "pair: 1 elements where 2 are due"},
		"long array":             {with(t, "pair", `[1,2,3]`), "pair[2]: more than 2 elements"},
		"broken list, good head": {with(t, "list", `[{"wave":1},{"wave":2}`), "list"},
		"raw is still JSON":      {with(t, "raw", `{"a":01}`), "raw: not JSON"},
		"deep raw":               {with(t, "raw", strings.Repeat("[", 64)+strings.Repeat("]", 64)), "raw: nested deeper than 64"},
		"deep ext":               {with(t, "ext", `{"x":`+strings.Repeat(`{"a":`, 63)+"1"+strings.Repeat("}", 64)), "ext.x: nested deeper than 64"},
		"deep and endless":       {with(t, "any", strings.Repeat("[", 1<<20)), "nested deeper than 64"},
	} {
		d := doc{Hidden: "as before"}
		err := wire.Decode([]byte(c.doc), &d)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want %q", name, err, c.want)
		}
		if !cmp.Equal(d, doc{Hidden: "as before"}, cmp.AllowUnexported(doc{})) {
			t.Errorf("%s: the value was touched", name)
		}
	}
	if err := wire.Decode([]byte(with(t, "raw", strings.Repeat("[", 63)+strings.Repeat("]", 63))), new(doc)); err != nil {
		t.Errorf("depth 64: %v", err)
	}
	if wire.Decode([]byte(good), doc{}) == nil || wire.Decode([]byte(good), (*doc)(nil)) == nil {
		t.Error("decoded into nothing")
	}
}

// A value may be a secret, and a key may be as long as its writer likes: neither fills a message.
func TestDecodeErrorsAreShortAndKeepSecrets(t *testing.T) {
	for _, c := range []string{
		with(t, "epoch", `"hunter2hunter2"`), with(t, "names", `{"a":"hunter2","a":"hunter2"}`), with(t, "at", `"hunter2"`),
		with(t, "bytes", `"hunter2!"`), with(t, "store", `"hunter2\x"`), with(t, strings.Repeat("long", 10_000), `"hunter2"`),
	} {
		err := wire.Decode([]byte(c), new(doc))
		if err == nil || strings.Contains(err.Error(), "hunter2") || len(err.Error()) > 300 {
			t.Errorf("%.300v", err)
		}
	}
}

func TestEncode(t *testing.T) {
	plus2 := time.FixedZone("", 2*3600)
	at := time.Date(2026, 11, 30, 12, 0, 0, 0, plus2)
	type odd struct {
		Weird chan int `json:"weird"`
	}
	type twice struct {
		embedded
		Store string `json:"store"`
	}
	type quoted struct {
		N int `json:"n,string"`
	}
	for name, c := range map[string]struct {
		in   any
		want string
	}{
		"nil": {nil, `null`},
		"nils are empty": {struct {
			A []int
			B map[string]int
			C []byte
			D *int
			E json.RawMessage
		}{}, `{"A":[],"B":{},"C":"","D":null,"E":null}`},
		"sorted":         {map[string]int{"b": 1, "a": 2, "": 3}, `{"":3,"a":2,"b":1}`},
		"no HTML":        {"<a href=\"x\">&\u2028\t", `"<a href=\"x\">&\u2028\t"`},
		"UTC":            {struct{ At time.Time }{at}, `{"At":"2026-11-30T10:00:00Z"}`},
		"floats":         {[]float64{1, 0.1, 1e30}, `[1,0.1,1e+30]`},
		"raw is compact": {json.RawMessage(" { \"a\" : [ 1 ] }\n"), `{"a":[1]}`},
		"big":            {uint64(math.MaxUint64), `18446744073709551615`},
		"omitted":        {inner{}, `{"wave":0}`},
		"any":            {map[string]any{"a": []any{nil, true, json.Number("1.50")}}, `{"a":[null,true,1.50]}`},
	} {
		got, err := wire.Encode(c.in)
		if err != nil || string(got) != c.want {
			t.Errorf("%s: %s, %v", name, got, err)
		}
	}
	for name, in := range map[string]any{
		"not UTF-8": "\xff", "not UTF-8 key": map[string]int{"\xff": 1}, "raw not UTF-8": json.RawMessage("\"\xff\""), "raw not JSON": json.RawMessage(`{"a":}`), "raw trailing": json.RawMessage(`1 2`),
		"NaN": math.NaN(), "infinite": math.Inf(1), "year 10000": time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC), "channel": odd{}, "integer keys": map[int]int{1: 1},
		"two fields of a name": twice{}, "string option": quoted{}, "raw too deep": []json.RawMessage{json.RawMessage(strings.Repeat("[", 64) + strings.Repeat("]", 64))},
	} {
		if got, err := wire.Encode(in); err == nil {
			t.Errorf("%s: encoded as %s", name, got)
		}
	}
	deep := any(1)
	for range wire.MaxDepth {
		deep = []any{deep}
	}
	if _, err := wire.Encode(deep); err != nil {
		t.Errorf("depth 64: %v", err)
	}
	if _, err := wire.Encode([]any{deep}); err == nil {
		t.Error("depth 65: encoded")
	}
}

// A document can ask for no more memory than about eight times its size.
func TestDecodeMemory(t *testing.T) {
	for name, text := range map[string]string{
		"list of small structs":  `{"list":[` + strings.Repeat(`{"wave":1},`, 100_000) + `{"wave":1}],"words":[],"names":{}}`,
		"list of empty strings":  `{"words":[` + strings.Repeat(`"",`, 300_000) + `""],"list":[],"names":{}}`,
		"broken after long list": `{"words":[` + strings.Repeat(`"",`, 300_000),
		"unknown and long":       `{"` + strings.Repeat("x", 1<<20) + `":1}`,
		"deep":                   strings.Repeat("[", 1<<20),
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_ = wire.Decode([]byte(text), &struct {
			List  []inner           `json:"list"`
			Words []string          `json:"words"`
			Names map[string]string `json:"names"`
		}{})
		runtime.ReadMemStats(&after)
		if got, most := after.TotalAlloc-before.TotalAlloc, uint64(9*len(text)+1<<20); got > most {
			t.Errorf("%s: %d bytes for %d", name, got, len(text))
		}
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(good))
	f.Add([]byte(`{"store":"\ud83d\ude00","v":-1,"epoch":0,"rollout":{"wave":0},"list":[],"table":{},"at":"2026-11-30T10:00:00.123+02:00","due":{"wave":1},"raw":[{"a":null}],"ext":{"x":{}},"any":[1e5,{}],"bytes":"AA=="}`))
	f.Add([]byte(`{"names":{"a":"b","a":"b"}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		var d doc
		if wire.Decode(data, &d) != nil {
			return
		}
		if !json.Valid(data) {
			t.Fatal("accepted what is not JSON")
		}
		once, err := wire.Encode(d)
		if err != nil {
			t.Fatalf("decoded, but does not encode: %v", err)
		}
		var again doc
		if err := wire.Decode(once, &again); err != nil {
			t.Fatalf("encoded, but does not decode: %v\n%s", err, once)
		}
		twice, err := wire.Encode(again)
		if err != nil || !bytes.Equal(once, twice) {
			t.Fatalf("not stable: %v\n%s\n%s", err, once, twice)
		}
	})
}
