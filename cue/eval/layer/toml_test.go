package layer

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-config/muster/cue/eval/encode"
)

// places lists "path key-position value-position" of every node but the root.
func places(n *Node) string {
	var b strings.Builder
	n.Walk(func(path []string, n *Node) {
		if len(path) == 0 {
			return
		}
		key, at := "-", n.Pos.Position()
		if n.KeyPos.IsValid() {
			p := n.KeyPos.Position()
			key = fmt.Sprintf("%d:%d", p.Line, p.Column)
		}
		fmt.Fprintf(&b, "%s %s %d:%d\n", PathText(path), key, at.Line, at.Column)
	})
	return b.String()
}

func TestTOML(t *testing.T) {
	num := func(s string) any { return encode.Number(s) }
	type m = map[string]any
	for _, tt := range []struct {
		name, body string
		want       m
		places     string
	}{
		{"blank", "", m{}, ""},
		{"comment only", "# nothing\n\r\n", m{}, ""},
		{"byte order mark", "\ufeffa = 1", m{"a": num("1")}, "a 1:1 1:5\n"},
		{"scalars", "i = +1_000\nx=0x1F\no = 0o17\nb = 0b11\nf = 2.50\ne = 1e3\nz = -0.0\nt = true\ns = 'C:\\x'\n\"k \\\"q\" = \"a\\u00e9\\n\"\nm = \"\"\"\none\ntwo\"\"\"\n",
			m{"i": num("1000"), "x": num("31"), "o": num("15"), "b": num("3"), "f": num("2.5"), "e": num("1000.0"), "z": num("0.0"), "t": true, "s": `C:\x`, `k "q`: "aé\n", "m": "one\ntwo"},
			"b 4:1 4:5\ne 6:1 6:5\nf 5:1 5:5\ni 1:1 1:5\n\"k \\\"q\" 10:1 10:11\nm 11:1 11:5\no 3:1 3:5\ns 9:1 9:5\nt 8:1 8:5\nx 2:1 2:3\nz 7:1 7:5\n"},
		{"lists", "a = [1, [2], {k = 3}, # c\n 'x']\nd.e = []\n", m{"a": []any{num("1"), []any{num("2")}, m{"k": num("3")}, "x"}, "d": m{"e": []any{}}},
			"a 1:1 1:5\na.0 - 1:6\na.1 - 1:5\na.1.0 - 1:10\na.2 - 1:14\na.2.k 1:15 1:19\na.3 - 2:2\nd 3:1 3:1\nd.e 3:3 3:7\n"},
		{"tables", "a.b = 1\na.\"c d\" = 2\n[t]\nx = 1\n[t.u.v]\ny = 2\n[t.u]\nz = {p.q = 1, p.r = 2}\n",
			m{"a": m{"b": num("1"), "c d": num("2")}, "t": m{"x": num("1"), "u": m{"v": m{"y": num("2")}, "z": m{"p": m{"q": num("1"), "r": num("2")}}}}},
			"a 1:1 1:1\na.b 1:3 1:7\na.\"c d\" 2:3 2:11\nt 3:2 3:2\nt.u 7:4 7:4\nt.u.v 5:6 5:6\nt.u.v.y 6:1 6:5\nt.u.z 8:1 8:5\nt.u.z.p 8:6 8:6\nt.u.z.p.q 8:8 8:12\nt.u.z.p.r 8:17 8:21\nt.x 4:1 4:5\n"},
		{"a sub-table before its table", "[a.b]\nx = 1\n[a]\ny = 2\n", m{"a": m{"b": m{"x": num("1")}, "y": num("2")}}, "a 3:2 3:2\na.b 1:4 1:4\na.b.x 2:1 2:5\na.y 4:1 4:5\n"},
		{"arrays of tables", "[[s]]\nn = 1\n[s.in]\nm = 2\n[[s]]\n[[s.in]]\n", m{"s": []any{m{"n": num("1"), "in": m{"m": num("2")}}, m{"in": []any{m{}}}}},
			"s 1:3 1:3\ns.0 - 1:3\ns.0.in 3:4 3:4\ns.0.in.m 4:1 4:5\ns.0.n 2:1 2:5\ns.1 - 5:3\ns.1.in 6:5 6:5\ns.1.in.0 - 6:5\n"},
		{"a table below a dotted one", "[f]\na.c = 1\n[f.a.t]\ns = 2\n", m{"f": m{"a": m{"c": num("1"), "t": m{"s": num("2")}}}}, "f 1:2 1:2\nf.a 2:1 2:1\nf.a.c 2:3 2:7\nf.a.t 3:6 3:6\nf.a.t.s 4:1 4:5\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n, errs := Read("a.toml", []byte(tt.body), true)
			if len(errs) > 0 {
				t.Fatal(errs)
			}
			if d := cmp.Diff(any(tt.want), n.Plain()); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
			if d := cmp.Diff(tt.places, places(n)); d != "" {
				t.Errorf("places (-want +got):\n%s", d)
			}
		})
	}
}

func TestTOMLRefuses(t *testing.T) {
	for _, tt := range []struct{ name, body, want string }{
		{"date", "[a]\nd = 2024-01-02\n", "a.toml:2:5: a.d: a date or a time: quote it, so that it is a string"},
		{"time", "d = [07:32:00]\n", "a.toml:1:6: d.0: a date or a time: quote it, so that it is a string"},
		{"date and time", "d = 1979-05-27 07:32:00Z\n", "a.toml:1:5: d: a date or a time: quote it, so that it is a string"},
		{"infinity", "a.b = -inf\n", "a.toml:1:7: a.b: infinity and not-a-number are not values"},
		{"not a number", "a = nan\n", "a.toml:1:5: a: infinity and not-a-number are not values"},
		{"beyond 64 bits", "a = 9223372036854775808\n", "a.toml:1:5: a: an integer beyond TOML's range of 64 bits: quote it, so that it is a string"},
		{"hexadecimal beyond 64 bits", "a = 0xFFFFFFFFFFFFFFFF\n", "a.toml:1:5: a: an integer beyond TOML's range of 64 bits: quote it, so that it is a string"},
		{"float out of range", "a = 1e309\n", "a.toml:1:5: a: the number is out of range"},
		{"too many digits", "a = 0.12345678901234567890123456789012345\n", "a.toml:1:5: a: a number of more than 34 digits would be rounded: quote it, so that it is a string"},
		{"no value", "a =\n", "a.toml:1:4: not valid TOML: a value is a number, true, false, a list, a table, or text in quotes"},
		{"bare word", "a = yes\n", "a.toml:1:5: not valid TOML: a value is a number, true, false, a list, a table, or text in quotes"},
		{"null", "a = null\n", "a.toml:1:5: not valid TOML: a value is a number, true, false, a list, a table, or text in quotes"},
		{"no end", "a = [1,\n", "a.toml:1:8: not valid TOML: array is incomplete"},
		{"two on a line", "a = 1 b = 2\n", "a.toml:1:7: not valid TOML: something follows the value"},
		{"yaml", "a: 1\n", "a.toml:1:2: not valid TOML: expected '=' after key"},
		{"leading zero", "zip = 08123\n", "a.toml:1:7: not valid TOML: integers cannot have leading zeroes"},
		{"utf-16", "\xfe\xff\x00a", "a.toml:1:1: UTF-16 or UTF-32, but a layer is UTF-8"},
		{"too deep", "a = " + strings.Repeat("[", 1500) + strings.Repeat("]", 1500), "a.toml:1:5: nested deeper than 1000 levels"},
		{"far too deep", "a = " + strings.Repeat("[", 50000), "a.toml:1:10005: nested deeper than 1000 levels"},
		{"too long a key", strings.Repeat("a.", 1200) + "a = 1", "a.toml:1:2001: nested deeper than 1000 levels"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, errs := Read("a.toml", []byte(tt.body), true)
			if len(errs) == 0 {
				t.Fatal("it is read")
			}
			if got := errs[0].Error(); got != tt.want {
				t.Errorf("got  %s\nwant %s", got, tt.want)
			}
		})
	}
}

// What the specification forbids to define again, with both places.
func TestB024TOML(t *testing.T) {
	for _, tt := range []struct{ name, body, want string }{
		{"key", "a = 1\na = 1\n", "a 2:1 1:1"},
		{"key in a table", "[t]\na = 1\n\n'a' = 2\n", "t.a 4:1 2:1"},
		{"key in an inline table", "t = {a = 1, a = 2}\n", "t.a 1:13 1:6"},
		{"table", "[a]\n[b]\n[a]\n", "a 3:2 1:2"},
		{"table over a value", "a = 1\n[a]\n", "a 2:2 1:1"},
		{"table below a value", "a.b = 1\n[a.b.c]\n", "a.b 2:4 1:3"},
		{"table over a dotted key", "[f]\na.b = 1\n[f.a]\n", "f.a 3:4 2:1"},
		{"dotted key over a table", "[a.b]\nx = 1\n[a]\nb.y = 2\n", "a.b 4:1 1:4"},
		{"dotted key over an inline table", "a = {}\na.b = 1\n", "a 2:1 1:1"},
		{"dotted key over a value", "a = 1\na.b = 1\n", "a 2:1 1:1"},
		{"header over an inline table", "a = {b = {}}\n[a.b.c]\n", "a 2:2 1:1"},
		{"array of tables over a list", "a = []\n[[a]]\n", "a 2:3 1:1"},
		{"array of tables over a table", "[a]\n[[a]]\n", "a 2:3 1:2"},
		{"table over an array of tables", "[[a]]\n[a]\n", "a 2:2 1:3"},
		{"value over an array of tables", "[[t.a]]\n[t]\na = 1\n", "t.a 3:1 1:5"},
		{"key in the second item", "[[a]]\nx = 1\n[[a]]\nx = 1\nx = 2\n", "a.1.x 5:1 4:1"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, errs := Read("a.toml", []byte(tt.body), true)
			if len(errs) != 1 || errs[0].Msg != "set twice in one file" {
				t.Fatalf("errors: %v", errs)
			}
			got := PathText(errs[0].Path)
			for _, at := range errs[0].At {
				got += fmt.Sprintf(" %d:%d", at.Line, at.Column)
			}
			if got != tt.want {
				t.Errorf("got %s, want %s", got, tt.want)
			}
		})
	}
}

// All that is wrong is told at once.
func TestTOMLTellsAll(t *testing.T) {
	_, errs := Read("a.toml", []byte("a = inf\nb = [2020-01-01, nan]\n[c]\na = 1\na = 2\nx =\n"), true)
	var got []string
	for _, e := range errs {
		got = append(got, e.Error())
	}
	want := []string{
		"a.toml:1:5: a: infinity and not-a-number are not values",
		"a.toml:2:6: b.0: a date or a time: quote it, so that it is a string",
		"a.toml:2:18: b.1: infinity and not-a-number are not values",
		"a.toml:5:1: c.a: set twice in one file",
		"a.toml:6:4: not valid TOML: a value is a number, true, false, a list, a table, or text in quotes",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}
