package jsonschema

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"cuelang.org/go/cue"
	"cuelang.org/go/cue/cuecontext"
)

const sample = `
// How much is logged.
#Level: *"info" | "debug"
#Up: {host!: string, weight: int | *1}
#Tree: {name!: string, kids: [...#Tree]}
#Config: {
	// Where it listens.
	listen!:    string
	timeout_ms: int & >=50 & <=30_000
	two:        >=1 & >=2 & <9
	retries:    *3 | int & >=0 & <=10
	log_level:  #Level
	ups!: [...#Up]
	limits!: {
		workers!: int & >=1
		pool:     int | *(workers * 4)
	}
	flags: [string]:   bool
	marked: [=~"^x-"]: int
	odd: [=~"(?i)x"]:  int
	opt?:  =~"^a" & !="abc"
	re:    =~"(?i)x"
	maybe: null | string
	union: {a!: 1} | {b!: 2}
	port:  uint16
	ratio: number
	pair: [int, ...string]
	fixed: [int, int]
	most: [...string] | *["a"]
	any:    _
	open: {x: int, ...}
	copied:  limits.workers
	url:     "http://\(listen)"
	bounded: int & >retries
	tree:    #Tree
	one:     "only"
	cond: {x: bool, if x {y!: int}}
	nested: deep: {must!: string, may?: string}
	given:   int
	on:      bool | *false
	token:   string | *"x" @secret()
}
`

// What the schema says of a secret that is a value stays out of it.
func TestSecrets(t *testing.T) {
	doc := write(t, `#Config: {
	dsn:     string | *"MARKER-1"
	token:   "MARKER-2" | "MARKER-3" @secret()
	nested: dsn: {a: *"MARKER-4" | string, b: "MARKER-5", c: !="MARKER-6"}
	list: [...{dsn: *"MARKER-7" | string & =~"^x", n: *3 | int & >=1}]
	maybe: null | *"shown" | string
}`)
	all, err := json.Marshal(doc)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(all), "MARKER") {
		t.Errorf("%s", all)
	}
	for _, want := range []string{`"shown"`, `"dsn":{"type":"string"}`, `"token":{"type":"string"}`, `"n":{"default":3,"minimum":1,"type":"integer"}`} {
		if !strings.Contains(string(all), want) {
			t.Errorf("no %s in %s", want, all)
		}
	}
}

func write(t *testing.T, source string) map[string]any {
	t.Helper()
	v := cuecontext.New().CompileString(source)
	if v.Err() != nil {
		t.Fatal(v.Err())
	}
	out := Write("s", v.LookupPath(cue.ParsePath("#Config")), func(path []string) bool { return slices.Equal(path, []string{"given"}) }, func(name string) bool { return name == "dsn" })
	if again := Write("s", v.LookupPath(cue.ParsePath("#Config")), func(path []string) bool { return slices.Equal(path, []string{"given"}) }, func(name string) bool { return name == "dsn" }); !bytes.Equal(out, again) {
		t.Error("written twice it differs")
	}
	var doc map[string]any
	d := json.NewDecoder(bytes.NewReader(out))
	d.UseNumber()
	if err := d.Decode(&doc); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return doc
}

// lines writes a schema's properties one a line.
func lines(t *testing.T, schema any) string {
	t.Helper()
	s := schema.(map[string]any)
	var out []string
	for k, v := range s["properties"].(map[string]any) {
		j, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, fmt.Sprintf("%s %s\n", k, j))
	}
	slices.Sort(out)
	return strings.Join(out, "") + fmt.Sprintf("required %v, others %v\n", s["required"], s["additionalProperties"])
}

func TestWrite(t *testing.T) {
	doc := write(t, sample)
	defs := doc["$defs"].(map[string]any)
	const base = `any {}
bounded {"type":"integer"}
cond {}
copied {}
fixed {"items":false,"minItems":2,"prefixItems":[{"type":"integer"},{"type":"integer"}],"type":"array"}
flags {"additionalProperties":{"type":"boolean"},"type":"object"}
given {"type":"integer"}
limits {"additionalProperties":false,"properties":{"pool":{"type":"integer"},"workers":{"minimum":1,"type":"integer"}},"required":["workers"],"type":"object"}
listen {"description":"Where it listens.","type":"string"}
log_level {"default":"info","description":"How much is logged.","enum":["info","debug"]}
marked {"additionalProperties":false,"patternProperties":{"^x-":{"type":"integer"}},"type":"object"}
maybe {"anyOf":[{"type":"null"},{"type":"string"}]}
most {"items":{"type":"string"},"type":"array"}
nested {"additionalProperties":false,"properties":{"deep":{"additionalProperties":false,"properties":{"may":{"type":"string"},"must":{"type":"string"}},"required":["must"],"type":"object"}},"required":["deep"],"type":"object"}
odd {"type":"object"}
on {"default":false,"type":"boolean"}
one {"const":"only"}
open {"properties":{"x":{"type":"integer"}},"required":["x"],"type":"object"}
opt {"not":{"const":"abc"},"pattern":"^a","type":"string"}
pair {"items":{"type":"string"},"minItems":1,"prefixItems":[{"type":"integer"}],"type":"array"}
port {"maximum":65535,"minimum":0,"type":"integer"}
ratio {"type":"number"}
re {"type":"string"}
retries {"default":3,"maximum":10,"minimum":0,"type":"integer"}
timeout_ms {"maximum":30000,"minimum":50,"type":"integer"}
token {"type":"string"}
tree {"$ref":"#/$defs/Tree.1"}
two {"allOf":[{"minimum":2}],"exclusiveMaximum":9,"minimum":1,"type":"number"}
union {"anyOf":[{"properties":{"a":{"const":1}},"required":["a"],"type":"object"},{"properties":{"b":{"const":2}},"required":["b"],"type":"object"}]}
ups {"items":{"additionalProperties":false,"properties":{"host":{"type":"string"},"weight":{"default":1,"type":"integer"}},"required":["host"],"type":"object"},"type":"array"}
url {"type":"string"}
required [any bounded limits listen maybe nested open ratio re timeout_ms tree two union ups], others false
`
	if d := cmp.Diff(base, lines(t, defs["base"])); d != "" {
		t.Errorf("base (-want +got):\n%s", d)
	}
	overlay := lines(t, defs["overlay"])
	for _, want := range []string{
		"flags {\"additionalProperties\":{\"type\":[\"boolean\",\"null\"]},\"type\":[\"object\",\"null\"]}\n",
		"log_level {\"description\":\"How much is logged.\",\"enum\":[\"info\",\"debug\",null]}\n",
		"limits {\"additionalProperties\":false,\"properties\":{\"pool\":{\"type\":[\"integer\",\"null\"]},\"workers\":{\"minimum\":1,\"type\":[\"integer\",\"null\"]}},\"type\":[\"object\",\"null\"]}\n",
		"maybe {\"anyOf\":[{\"type\":\"null\"},{\"type\":\"string\"}]}\n",
		"one {\"enum\":[\"only\",null]}\n",
		"ups {\"items\":{\"additionalProperties\":false,\"properties\":{\"host\":{\"type\":\"string\"},\"weight\":{\"default\":1,\"type\":\"integer\"}},\"required\":[\"host\"],\"type\":\"object\"},\"type\":[\"array\",\"null\"]}\n",
		"required <nil>, others false\n",
	} {
		if !strings.Contains(overlay, want) {
			t.Errorf("the overlay has no %sit is:\n%s", want, overlay)
		}
	}
	if doc["$schema"] != draft || doc["$ref"] != "#/$defs/base" || defs["Tree.1"] == nil {
		t.Errorf("document: %v", doc["$schema"])
	}
}

func TestPortable(t *testing.T) {
	for _, re := range []string{`^[a-z]+$`, `^(?:a|b)\.c$`, `\d{1,3}`, `^[^@]+@[^@]+$`} {
		if !portable(re) {
			t.Errorf("%s is portable", re)
		}
	}
	for _, re := range []string{`(?i)a`, `\Aa\z`, `[[:alpha:]]`, `\pL`, `(?P<n>a)`, `(`, `\x{10FFFF}`} {
		if portable(re) {
			t.Errorf("%s is not portable", re)
		}
	}
}

// What unfolds without end is cut, not followed.
func TestBounded(t *testing.T) {
	var b strings.Builder
	b.WriteString("#T0: x: int\n")
	for i := range 30 {
		fmt.Fprintf(&b, "#T%d: {a: #T%d, b: #T%d}\n", i+1, i, i)
	}
	b.WriteString("#Config: top?: #T12\n")
	v := cuecontext.New().CompileString(b.String())
	out := Write("s", v.LookupPath(cue.ParsePath("#Config")), func([]string) bool { return false }, func(name string) bool { return name == "dsn" })
	if len(out) == 0 || len(out) > 20<<20 {
		t.Errorf("%d bytes", len(out))
	}
}

func TestOverlay(t *testing.T) {
	want := "{\n  \"$ref\": \"s.schema.json#/$defs/overlay\",\n  \"$schema\": \"https://json-schema.org/draft/2020-12/schema\"\n}\n"
	if got := string(Overlay("s.schema.json")); got != want {
		t.Errorf("got %s", got)
	}
}
