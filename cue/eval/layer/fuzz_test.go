package layer

import (
	"bytes"
	"fmt"
	"path"
	"reflect"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-config/muster/cue/eval/encode"
)

// allocated is how many bytes f takes from the heap in all, whether they are freed again or not.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// budget is what a reader may allocate for a text: 8 bytes a byte, 1 MiB, and 640 bytes for each value, key or line that may be written there.
// The last is what a value costs at least with its place and its entry in a map; two bytes of text can be one, so no bound in bytes of
// text alone could hold. Merge keys may repeat a mapping's entries up to their limit.
func budget(data []byte) uint64 {
	marks := 0
	for _, c := range data {
		if strings.IndexByte(",:[{=-.?*&\n\r", c) >= 0 {
			marks++
		}
	}
	most := uint64(8*len(data) + 1<<20 + 640*marks)
	if bytes.Contains(data, []byte("<<")) {
		most += 96 * maxUnfolded
	}
	return most
}

// What is read must come out of the encoder and be read again as the same.
func fuzz(t *testing.T, name string, data []byte) {
	var n *Node
	var errs []*Error
	if got, most := allocated(func() { n, errs = Read(name, data, true) }), budget(data); got > most && !underRace {
		t.Fatalf("%d bytes allocated for %d of text: more than %d", got, len(data), most)
	}
	if len(errs) > 0 {
		for _, e := range errs {
			if e.Msg == "" || strings.Contains(e.Msg, "\n") {
				t.Fatalf("error without one line of text: %q", e.Msg)
			}
			for _, at := range e.At {
				if at.Filename != name || at.Line < 0 || at.Column < 0 {
					t.Fatalf("position %v", at)
				}
			}
		}
		return
	}
	n.Walk(func(path []string, n *Node) {
		if p := n.Pos.Position(); len(path) > 0 && (p.Line < 1 || p.Column < 1) {
			t.Fatalf("%q has no position", path)
		}
	})
	formats := []string{"yaml", "json"}
	if own := strings.TrimPrefix(path.Ext(name), "."); own == "toml" || own == "env" {
		formats = append(formats, own) // the others may hold what these cannot
	}
	for _, format := range formats {
		out, err := encode.Encode(format, n.Plain())
		if err != nil {
			t.Fatalf("what was read cannot be written as %s: %v", format, err)
		}
		again, errs := Read("again."+format, out, true)
		if len(errs) > 0 {
			t.Fatalf("what was written as %s cannot be read: %v\n%s", format, errs, out)
		}
		if !reflect.DeepEqual(n.Plain(), again.Plain()) {
			t.Fatalf("%s reads back differently:\n%s", format, cmp.Diff(n.Plain(), again.Plain()))
		}
	}
}

func FuzzYAML(f *testing.F) {
	for _, s := range []string{"", "a: 1\nb: [x, {c: d}]\n", "a: &x {b: 1}\nc: {<<: *x}\n", "a: |\n  x\n y: >-\n", "{a: !!str 1, ? b : c}", "--- a: b\n...\n", "a: 0o17\nb: 1_0\nc: .5e3\n", "a: \"\\u2028\\x85\"\n"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) { fuzz(t, "f.yaml", data) })
}

func FuzzJSON(f *testing.F) {
	for _, s := range []string{"", `{"a":[1,2.5e3,null,{"b":"\u00e9\ud83d\ude00"}]}`, `{"a":1,"a":2}`, "{\"\ufffd\":\"\\ufffd\"}", `{"a":{}}x`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) { fuzz(t, "f.json", data) })
}

func FuzzTOML(f *testing.F) {
	for _, s := range []string{"", "a = 1\nb.c = [1.5e3, 'x', {d = true}]\n", "[a]\n[a.b]\nc = \"\\u00e9\"\n[[l]]\n[[l]]\n", "a = 1\na = 2", "d = 2024-01-01\ni = inf", "x = \"\"\"\\\n  y\r\n\"\"\"\nz = '''\nq'''", "a = 0xF_F\nb = -0.0"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) { fuzz(t, "f.toml", data) })
}

func FuzzEnv(f *testing.F) {
	for _, s := range []string{"", "# c\nA=1\nexport B='x y'\r\n", `C="\$\"\\"`, "A=1\nA=2", "D=$x", "E=é\u2028", "F='\u0085\t'"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) { fuzz(t, "f.env", data) })
}

func FuzzNumber(f *testing.F) {
	for _, s := range []string{"0", "-0.0", "1e3", "123.4500", "9e400", "1e-400", "nan"} {
		f.Add(s, true)
		f.Add(s, false)
	}
	f.Fuzz(func(t *testing.T, s string, integer bool) {
		n, err := ParseNumber(s, integer)
		if err != nil {
			return
		}
		again, err := ParseNumber(string(n), !strings.Contains(string(n), "."))
		if err != nil || again != n {
			t.Fatalf("%q is %q, and that is %q, %v", s, n, again, err)
		}
		if strings.ContainsAny(fmt.Sprint(n), "eE+") {
			t.Fatalf("%q has an exponent", n)
		}
	})
}
