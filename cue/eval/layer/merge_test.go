package layer

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"cuelang.org/go/cue/token"

	"github.com/muster-config/muster/cue/eval/encode"
)

// trees draws an overlay: few keys, so that the layers meet, and nulls and changes between struct and scalar at every level.
func trees(depth int) *rapid.Generator[*Node] {
	return rapid.Custom(func(t *rapid.T) *Node {
		kind := Struct
		if depth < 3 {
			kind = rapid.SampledFrom([]Kind{Scalar, List, Struct, Struct, Struct, Delete}).Draw(t, "kind")
		}
		n := &Node{Kind: kind}
		switch kind {
		case Scalar:
			n.Value = encode.Number(rapid.SampledFrom([]string{"1", "2", "3"}).Draw(t, "scalar"))
		case List:
			n.Items = []*Node{{Value: rapid.SampledFrom([]string{"x", "y"}).Draw(t, "item")}}
		case Struct:
			n.Fields = map[string]*Node{}
			if depth > 0 {
				for _, k := range rapid.SliceOfDistinct(rapid.SampledFrom([]string{"a", "b", "c"}), rapid.ID).Draw(t, "keys") {
					n.Fields[k] = trees(depth-1).Draw(t, k)
				}
			}
		}
		return n
	})
}

var sameTree = cmp.Options{cmpopts.IgnoreTypes(token.Pos{}), cmpopts.EquateEmpty()}

func TestMergeIsAssociative(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b, c := trees(3).Draw(t, "a"), trees(3).Draw(t, "b"), trees(3).Draw(t, "c")
		left, right := Merge(Merge(a, b), c), Merge(a, Merge(b, c))
		if d := cmp.Diff(left, right, sameTree); d != "" {
			t.Fatalf("(a·b)·c and a·(b·c) differ:\n%s", d)
		}
		if d := cmp.Diff(left.Final(), right.Final(), sameTree); d != "" {
			t.Fatalf("the final trees differ:\n%s", d)
		}
	})
}

// The reference: what a reader of the rules expects, on plain values, one layer after the other.
func TestMergeMeansTheRules(t *testing.T) {
	var apply func(below any, n *Node) (any, bool)
	apply = func(below any, n *Node) (any, bool) {
		switch n.Kind {
		case Delete:
			return nil, false
		case Struct:
			out := map[string]any{}
			if m, ok := below.(map[string]any); ok {
				for k, v := range m {
					out[k] = v
				}
			}
			for k, f := range n.Fields {
				if v, ok := apply(out[k], f); ok {
					out[k] = v
				} else {
					delete(out, k)
				}
			}
			return out, true
		}
		return n.Plain(), true
	}
	rapid.Check(t, func(t *rapid.T) {
		layers := rapid.SliceOfN(trees(3), 1, 4).Draw(t, "layers")
		want := any(map[string]any{})
		var merged *Node
		for _, l := range layers {
			want, _ = apply(want, l)
			merged = Merge(merged, l)
		}
		if d := cmp.Diff(want, merged.Final().Plain(), cmpopts.EquateEmpty()); d != "" {
			t.Fatalf("merged values (-rules +got):\n%s", d)
		}
	})
}

func TestMerge(t *testing.T) {
	for _, tt := range []struct{ name, base, over, want string }{
		{"structs merge", `{"a":{"x":1,"y":2}}`, `{"a":{"y":3}}`, `{"a":{"x":1,"y":3}}`},
		{"lists replace", `{"a":[1,2]}`, `{"a":[3]}`, `{"a":[3]}`},
		{"null deletes", `{"a":1,"b":2}`, `{"a":null}`, `{"b":2}`},
		{"null in base stays", `{"a":null}`, `{}`, `{"a":null}`},
		{"null in a list stays", `{"a":[1]}`, `{"a":[null]}`, `{"a":[null]}`},
		{"null of nothing", `{}`, `{"a":null,"b":{"c":null}}`, `{"b":{}}`},
		{"struct over scalar", `{"a":1}`, `{"a":{"x":null,"y":1}}`, `{"a":{"y":1}}`},
		{"scalar over struct", `{"a":{"x":1}}`, `{"a":"s"}`, `{"a":"s"}`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			base, over := mustJSON(t, tt.base, true), mustJSON(t, tt.over, false)
			got, err := encode.Encode("json", Merge(base, over).Final().Plain())
			if err != nil {
				t.Fatal(err)
			}
			want, err := encode.Encode("json", mustJSON(t, tt.want, true).Plain())
			if err != nil {
				t.Fatal(err)
			}
			if string(got) != string(want) {
				t.Errorf("got %swant %s", got, want)
			}
		})
	}
}

func mustJSON(t *testing.T, s string, base bool) *Node {
	t.Helper()
	n, errs := Read("t.json", []byte(s), base)
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	return n
}

func TestOverlap(t *testing.T) {
	a := mustJSON(t, `{"a":{"x":1,"y":2},"b":1,"c":{"z":1}}`, true)
	b := mustJSON(t, `{"a":{"y":3,"q":1},"b":{"k":1},"d":1}`, true)
	var got []string
	Overlap(a, b, func(p []string, _, _ *Node) { got = append(got, strings.Join(p, ".")) })
	if want := []string{"a.y", "b"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestWithout(t *testing.T) {
	n := mustJSON(t, `{"a":{"x":1,"y":[{"p":1,"q":2},3]},"b":1}`, true)
	before, _ := encode.Encode("json", n.Plain())
	cut := n.Without([]string{"a", "y", "0", "p"}).Without([]string{"b"}).Without([]string{"no", "such"})
	want := mustJSON(t, `{"a":{"x":1,"y":[{"q":2},3]}}`, true)
	if d := cmp.Diff(want, cut, sameTree); d != "" {
		t.Error(d)
	}
	if after, _ := encode.Encode("json", n.Plain()); string(after) != string(before) {
		t.Error("the original changed")
	}
}
