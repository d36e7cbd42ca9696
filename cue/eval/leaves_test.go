package eval

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/muster-config/muster/cue/eval/layer"
)

// leafText is the leaves of a unit as the tests compare them, one line each, what it shadows indented below.
func leafText(res *Result, service, cohort, host string) string {
	var b strings.Builder
	line := func(s Setting) string {
		v := s.Value
		if s.Secret {
			v = "(secret)" + v
		}
		return strings.TrimSpace(fmt.Sprintf("%s %s", v, strings.TrimSpace(s.Layer+" "+strings.TrimPrefix(s.At.String(), "services/"+service+"/"))))
	}
	for _, u := range res.Units {
		if u.Service != service || u.Cohort != cohort || u.Host != host {
			continue
		}
		for _, l := range u.Leaves {
			fmt.Fprintf(&b, "%s %s: %s\n", l.Origin, layer.PathText(l.Path), line(l.Setting))
			for _, s := range l.Shadows {
				fmt.Fprintf(&b, "  %s\n", line(s))
			}
		}
	}
	return b.String()
}

func leavesOf(t *testing.T, files, service, cohort string) string {
	t.Helper()
	req := repo(files)
	req.LeavesToo = true
	res := Evaluate(req)
	if res.Failed() {
		t.Fatalf("problems:\n%s", Format(res.Problems))
	}
	return leafText(res, service, cohort, "")
}

func TestLeavesOfLayers(t *testing.T) {
	const files = threeCohorts + `
-- services/s/base.yaml --
port: 1
list: [1, 2]
gone: {a: 1, b: {c: 2}}
part: {a: 1, b: 2}
kind: {a: 1}
flat: 5
empty: {}
none: null
password: hunter2
db: {dsn: x, name: n}
-- services/s/overlays/env/prod.yaml --
port: 2
list: [3]
gone: null
part: {a: null}
kind: text
flat: {x: 1}
absent: null
-- services/s/overlays/region/eu.json --
{"port": 3, "gone": {"b": {"d": 4}}, "password": "hunter3"}
`
	const want = `layer db.dsn: (secret) base base.yaml:10:11
layer db.name: "n" base base.yaml:10:20
layer empty: {} base base.yaml:7:1
layer flat.x: 1 env=prod overlays/env/prod.yaml:6:11
  5 base base.yaml:6:7
removed gone.a: null env=prod overlays/env/prod.yaml:3:7
  1 base base.yaml:3:11
removed gone.b.c: null env=prod overlays/env/prod.yaml:3:7
  2 base base.yaml:3:21
layer gone.b.d: 4 region=eu overlays/region/eu.json:1:33
  null env=prod overlays/env/prod.yaml:3:7
layer kind: "text" env=prod overlays/env/prod.yaml:5:7
  {"a":1} base base.yaml:5:1
layer list: [3] env=prod overlays/env/prod.yaml:2:7
  [1,2] base base.yaml:2:7
layer none: null base base.yaml:8:7
removed part.a: null env=prod overlays/env/prod.yaml:4:11
  1 base base.yaml:4:11
layer part.b: 2 base base.yaml:4:17
layer password: (secret) region=eu overlays/region/eu.json:1:50
  (secret) base base.yaml:9:11
layer port: 3 region=eu overlays/region/eu.json:1:10
  2 env=prod overlays/env/prod.yaml:1:7
  1 base base.yaml:1:7
`
	if d := cmp.Diff(want, leavesOf(t, files, "s", "prod-eu")); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

func TestLeavesOfSchema(t *testing.T) {
	const files = threeCohorts + `
-- services/s/s.cue --
package s

import "list"

cohort: {name: string, labels: [string]: string}
#Port: *7 | int
#Config: {
	workers!: int
	lit:      *3 | int & >=1
	pool:     int | *(workers * 4)
	calc:     workers * 4
	named:    "v1"
	where:    cohort.labels.region
	tags: [...string]
	flags: [string]: bool
	sub: {d: *1 | int, e?: int}
	port:  #Port
	lst:   list.Concat([[1], [workers]])
	mode:  *"a" | "b"
	kind:  *{t: "x"} | {u: int}
	ups: [...{host!: string, weight: *1 | int}]
	key!:   string @secret()
	keys?: [...{pin!: string @secret()}]
	url:    "https://user:\(key)@host"
	low:    int & >=0
	if workers > 3 {big: true}
}
values: #Config & {low: 5}
-- services/s/base.yaml --
workers: 8
ups: [{host: a}]
key: /run/credentials/key
keys: [{pin: /run/pin}]
mode: b
-- services/s/overlays/env/prod.yaml --
mode: null
`
	const want = `computed big: true s.cue:26:23
computed calc: 32 s.cue:11:12
default flags: {} s.cue:15:2
layer key: (secret) base base.yaml:3:6
layer keys: (secret) base base.yaml:4:7
default kind.t: "x" s.cue:20:14
default lit: 3 s.cue:9:13
computed low: 5 s.cue:28:25
computed lst: [1,8] s.cue:18:9
default mode: "a" s.cue:19:10
  null env=prod overlays/env/prod.yaml:1:7
  "b" base base.yaml:5:7
computed named: "v1" s.cue:12:12
computed pool: 32 s.cue:10:19
default port: 7 s.cue:6:9
default sub.d: 1 s.cue:16:12
default tags: [] s.cue:14:2
layer ups: [{"host":"a","weight":1}] base base.yaml:2:6
computed url: (secret) s.cue:24:10
computed where: "eu" s.cue:13:12
layer workers: 8 base base.yaml:1:10
`
	if d := cmp.Diff(want, leavesOf(t, files, "s", "prod-eu")); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

// The leaves are the values: put together again they give the tree, what was removed is not in it, and the digests are of the values.
func TestLeavesAreTheValues(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		files := &Request{LeavesToo: true, FilesToo: true, Files: repo(threeCohorts).Files}
		for _, name := range []string{"base.json", "overlays/env/prod.json", "overlays/region/eu.json"} {
			data, err := json.Marshal(map[string]any{"r": anyTree(3).Draw(t, name), "s": anyTree(2).Draw(t, name)})
			if err != nil {
				t.Fatal(err)
			}
			files.Files = append(files.Files, TreeFile{Path: "services/s/" + name, Data: data})
		}
		res := Evaluate(files)
		if res.Failed() {
			t.Fatal(Format(res.Problems))
		}
		for _, u := range res.Units {
			got := map[string]any{}
			for _, l := range u.Leaves {
				if l.Origin == OriginRemoved {
					continue
				}
				var v any
				if err := json.Unmarshal([]byte(l.Value), &v); err != nil {
					t.Fatal(err)
				}
				at := got
				for _, p := range l.Path[:len(l.Path)-1] {
					if at[p] == nil {
						at[p] = map[string]any{}
					}
					at = at[p].(map[string]any)
				}
				at[l.Path[len(l.Path)-1]] = v
			}
			for _, l := range u.Leaves {
				if l.Origin == OriginRemoved && len(l.Shadows) == 0 {
					t.Errorf("%q was removed from nothing", l.Path)
				}
			}
			var want map[string]any
			if err := json.Unmarshal(u.Files[0].Data, &want); err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(want, got); d != "" {
				t.Fatalf("%s (-file +leaves):\n%s", u.Cohort, d)
			}
		}
	})
}

func anyTree(depth int) *rapid.Generator[any] {
	return rapid.Custom(func(t *rapid.T) any {
		kinds := []string{"null", "number", "list", "struct", "struct"}
		if depth == 0 {
			kinds = kinds[:3]
		}
		switch rapid.SampledFrom(kinds).Draw(t, "kind") {
		case "number":
			return rapid.IntRange(0, 2).Draw(t, "number")
		case "list":
			return []any{1}
		case "struct":
			m := map[string]any{}
			for _, k := range rapid.SliceOfDistinct(rapid.SampledFrom([]string{"a", "b", "c"}), rapid.ID).Draw(t, "keys") {
				m[k] = anyTree(depth-1).Draw(t, k)
			}
			return m
		}
		return nil
	})
}
