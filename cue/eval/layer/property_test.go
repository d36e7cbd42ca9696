package layer

import (
	"reflect"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"cuelang.org/go/cue/token"

	"github.com/muster-config/muster/cue/eval/encode"
)

// placed draws an overlay over few keys, so that layers meet, with every kind of value at every level: nulls, structs over scalars, scalars
// over structs. Every node has a place of its own, so that it can be told from its equals.
func placed(depth int) *rapid.Generator[*Node] {
	return rapid.Custom(func(t *rapid.T) *Node {
		n := trees(depth).Draw(t, "tree")
		file := token.NewFile("layer", -1, 1<<20)
		next := 0
		n.Walk(func(_ []string, n *Node) {
			next++
			n.Pos = file.Pos(next, token.NoRelPos)
			n.KeyPos = file.Pos(next, token.NoRelPos)
		})
		return n
	})
}

func root(t *rapid.T, name string) *Node {
	n := placed(3).Draw(t, name)
	if n.Kind != Struct {
		t.Fatalf("the root is %s", n.What())
	}
	return n
}

// The generator makes what the other properties are about; without that they would say little.
func TestTreesMeet(t *testing.T) {
	names := map[Kind]string{Scalar: "scalar", List: "list", Struct: "struct", Delete: "null"}
	seen := map[string]bool{}
	for seed := range 400 {
		Overlap(trees(3).Example(seed), trees(3).Example(seed+1000), func(_ []string, lo, hi *Node) {
			seen[names[hi.Kind]+" over "+names[lo.Kind]] = true
		})
	}
	for _, hi := range names {
		for _, lo := range names {
			if want := hi + " over " + lo; want != "struct over struct" && !seen[want] {
				t.Errorf("never drawn: %s", want)
			}
		}
	}
}

func TestMergeIdentity(t *testing.T) {
	empty := &Node{Kind: Struct, Fields: map[string]*Node{}}
	rapid.Check(t, func(t *rapid.T) {
		a := root(t, "a")
		if Merge(nil, a) != a || Merge(a, nil) != a {
			t.Fatal("nothing is not neutral")
		}
		for _, m := range []*Node{Merge(empty, a), Merge(a, empty), Merge(a, a)} {
			if d := cmp.Diff(a, m, sameTree); d != "" {
				t.Fatalf("an empty layer, or the same layer again, changes something:\n%s", d)
			}
		}
	})
}

// Merging shares nodes, so it may change none.
func TestMergeChangesNoLayer(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b, c := root(t, "a"), root(t, "b"), root(t, "c")
		before := []string{a.dump(), b.dump(), c.dump()}
		ab := Merge(a, b)
		abDump := ab.dump()
		_, _ = Merge(ab, c), Merge(ab, a).Final()
		_ = ab.Without([]string{"a"})
		if !slices.Equal(before, []string{a.dump(), b.dump(), c.dump()}) || ab.dump() != abDump {
			t.Fatal("a layer changed")
		}
	})
}

// dump writes everything of a tree.
func (n *Node) dump() string {
	out := ""
	n.Walk(func(path []string, n *Node) {
		out += PathText(path) + " " + n.What() + " " + n.Pos.String() + " " + n.KeyPos.String()
		if n.Replaces {
			out += " replaces"
		}
		if s, ok := n.Value.(encode.Number); ok {
			out += " " + string(s)
		}
		out += "\n"
	})
	return out
}

// Each value of the result is the highest layer's that speaks there, with that layer's place, and no layer above took it away.
func TestMergeKeepsPlaces(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		files := []*Node{root(t, "a"), root(t, "b"), root(t, "c")}
		var merged *Node
		for _, l := range files {
			merged = Merge(merged, l)
		}
		merged.Final().Walk(func(path []string, n *Node) {
			if n.Kind == Struct || len(path) == 0 {
				return
			}
			// From the top down, the first layer that has something at the path or cuts it off above.
			for _, l := range slices.Backward(files) {
				at, cut := l.At(path), false
				for i := range path {
					if up := l.At(path[:i]); up != nil && up.Kind != Struct && up.Kind != List {
						cut = true
					}
				}
				if cut {
					t.Fatalf("%q is there, and a layer took it away", path)
				}
				if at == nil {
					continue
				}
				if at.Pos != n.Pos || at.KeyPos != n.KeyPos || at.Kind != n.Kind || !reflect.DeepEqual(at.Value, n.Value) {
					t.Fatalf("%q is not what the highest layer says", path)
				}
				return
			}
			t.Fatalf("%q comes from nowhere", path)
		})
	})
}

func TestNullDeletes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := root(t, "a"), root(t, "b")
		merged := Merge(a, b).Final()
		b.Walk(func(path []string, n *Node) {
			if n.Kind == Delete && merged.At(path) != nil {
				t.Fatalf("%q is deleted and there", path)
			}
		})
		// And a layer above may set it again, as if nothing had been below.
		c := root(t, "c")
		again := Merge(Merge(a, b), c).Final()
		b.Walk(func(path []string, n *Node) {
			if n.Kind != Delete {
				return
			}
			want := c.At(path)
			if want != nil && want.Kind == Delete {
				want = nil
			}
			// Something above the path may have been replaced by c, and then the path has nothing in either.
			if d := cmp.Diff(want.Final(), again.At(path), sameTree); d != "" {
				t.Fatalf("%q after its deletion (-want +got):\n%s", path, d)
			}
		})
	})
}

func TestFinal(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := root(t, "a"), root(t, "b")
		f := Merge(a, b).Final()
		f.Walk(func(path []string, n *Node) {
			if n.Kind == Delete || n.Replaces {
				t.Fatalf("%q is left in a final tree", path)
			}
		})
		if !reflect.DeepEqual(f, f.Final()) {
			t.Fatal("final twice is another thing")
		}
		// What is final may be a base: the layers below it and above it meet it like a file.
		if d := cmp.Diff(Merge(f, b).Final(), f, sameTree); d != "" {
			t.Fatalf("the last layer laid again over the result:\n%s", d)
		}
	})
}

// Two spellings of one layer overlap exactly where merging them in one or the other order differs, or where both say the same.
func TestOverlapIsWhereOrderMatters(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := root(t, "a"), root(t, "b")
		var paths []string
		Overlap(a, b, func(path []string, x, y *Node) {
			if a.At(path) != x || b.At(path) != y {
				t.Fatalf("%q: not the nodes at the path", path)
			}
			if x.Kind == Struct && y.Kind == Struct {
				t.Fatalf("%q: two structs merge", path)
			}
			paths = append(paths, PathText(path))
		})
		var back []string
		Overlap(b, a, func(path []string, _, _ *Node) { back = append(back, PathText(path)) })
		if !slices.Equal(paths, back) {
			t.Fatalf("overlap is not symmetric: %q and %q", paths, back)
		}
		if len(paths) == 0 {
			if d := cmp.Diff(Merge(a, b), Merge(b, a), sameTree); d != "" {
				t.Fatalf("no overlap, and the order matters:\n%s", d)
			}
		}
	})
}
