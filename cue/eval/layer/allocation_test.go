package layer

import (
	"fmt"
	"strings"
	"testing"
)

// Large and hostile documents of every format cost what their size says: nothing is quadratic, and nothing that is short unfolds.
func TestAllocation(t *testing.T) {
	size := 10
	if underRace {
		size = 1 // the race detector changes what is allocated, and is slow: only the answers are looked at
	}
	each := func(n int, format string) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, format, i)
		}
		return b.String()
	}
	nines := func(levels int) string { // the alias bomb
		s := "a0: &a0 [x,x,x,x,x,x,x,x,x]\n"
		for i := range levels {
			s += fmt.Sprintf("a%d: &a%d [%s*a%d]\n", i+1, i+1, strings.Repeat(fmt.Sprintf("*a%d,", i), 8), i)
		}
		return s
	}
	const unfolds = "its aliases unfold to more than 100000 values"
	for _, tt := range []struct{ name, file, body, want string }{
		{"keys", "a.yaml", each(4_000*size, "key%d: 1\n"), ""},
		{"keys on a line", "a.yaml", "{" + each(4_000*size, "k%d: 1, ") + "}", ""},
		{"keys", "a.json", "{" + each(4_000*size, "\"k%d\":1,") + "\"z\":1}", ""},
		{"keys", "a.toml", each(4_000*size, "key%d = 1\n"), ""},
		{"keys", "a.env", each(4_000*size, "KEY%d=1\n"), ""},
		{"items on a line", "a.yaml", "a: [" + strings.Repeat("1,", 10_000*size) + "]", ""},
		{"items", "a.yaml", "a:\n" + strings.Repeat("- 1\n", 5_000*size), ""},
		{"items", "a.json", "{\"a\":[" + strings.Repeat("1,", 10_000*size) + "1]}", ""},
		{"items", "a.toml", "a = [" + strings.Repeat("1,", 10_000*size) + "1]", ""},
		{"text", "a.yaml", "a: " + strings.Repeat("x", size<<18), ""},
		{"quoted", "a.yaml", "a: \"" + strings.Repeat("\\u0041 ", 20_000*size) + "\"\n", ""},
		{"literal", "a.yaml", "a: |\n" + strings.Repeat("  xxxxxxxxxxxxxxxxxxxx\n", 5_000*size), ""},
		{"text", "a.json", "{\"a\":\"" + strings.Repeat("x", size<<18) + "\"}", ""},
		{"escapes", "a.json", "{\"a\":\"" + strings.Repeat("\\u0041", 20_000*size) + "\"}", ""},
		{"text", "a.toml", "a = '" + strings.Repeat("x", size<<18) + "'", ""},
		{"escapes", "a.toml", "a = \"" + strings.Repeat("\\u0041", 20_000*size) + "\"", ""},
		{"text", "a.env", "A='" + strings.Repeat("x", size<<18) + "'", ""},
		{"comments", "a.yaml", "a: 1\n" + strings.Repeat("# x\n", 5_000*size), ""},
		{"comments", "a.env", strings.Repeat("#\n", 10_000*size), ""},
		{"deep", "a.yaml", "a: " + strings.Repeat("[", 900) + strings.Repeat("]", 900), ""},
		{"deep", "a.json", "{\"a\":" + strings.Repeat("[", 900) + strings.Repeat("]", 900) + "}", ""},
		{"deep", "a.toml", "a = " + strings.Repeat("[", 900) + strings.Repeat("]", 900), ""},
		{"too deep", "a.yaml", "a: " + strings.Repeat("[", 9000) + strings.Repeat("]", 9000), tooDeep},
		{"too deep", "a.json", strings.Repeat("{\"a\":", 9000) + "1" + strings.Repeat("}", 9000), tooDeep},
		{"far too deep", "a.json", strings.Repeat("{\"a\":", 100_000), tooDeep},
		{"far too deep", "a.yaml", "a: " + strings.Repeat("{a: ", 100_000), "not valid YAML: exceeded max depth of 10000"},
		{"far too deep", "a.toml", "a = " + strings.Repeat("[", 100_000), tooDeep},
		{"a long key", "a.toml", strings.Repeat("a.", 900) + "a = 1", ""},
		{"headers", "a.toml", each(2_000*size, "[a%d]\n"), ""},
		{"sub-tables", "a.toml", each(2_000*size, "[a.b.c%d]\n"), ""},
		{"array of tables", "a.toml", strings.Repeat("[[a]]\n", 2_000*size), ""},
		{"twice", "a.yaml", strings.Repeat("a: 1\n", 4_000*size), setTwice},
		{"twice", "a.json", "{" + strings.Repeat("\"a\":1,", 4_000*size) + "\"z\":1}", setTwice},
		{"twice", "a.toml", strings.Repeat("a = 1\n", 4_000*size), setTwice},
		{"twice", "a.env", strings.Repeat("A=1\n", 4_000*size), setTwice},
		{"aliases", "a.yaml", "a: &a x\nb: [" + strings.Repeat("*a, ", 5_000*size) + "]\n", ""},
		{"merge keys", "a.yaml", "a: &x {k: 1}\n" + each(2_000*size, "k%d: {<<: *x}\n"), ""},
		{"an alias bomb", "a.yaml", nines(9), unfolds},
		{"much in many places", "a.yaml", "a: &a {" + each(1000, "k%d: 1, ") + "}\n" + each(1000, "m%d: {<<: *a}\n"), unfolds},
	} {
		t.Run(tt.name+" "+tt.file, func(t *testing.T) {
			var errs []*Error
			got := allocated(func() { _, errs = Read(tt.file, []byte(tt.body), true) })
			if most := budget([]byte(tt.body)); got > most && !underRace {
				t.Errorf("%d bytes allocated for %d of text: more than %d", got, len(tt.body), most)
			}
			switch {
			case tt.want == "" && len(errs) > 0:
				t.Errorf("refused: %v", errs[0])
			case tt.want != "" && (len(errs) == 0 || errs[0].Msg != tt.want):
				t.Errorf("errors %v, want %s", errs, tt.want)
			case len(errs) > maxErrors+1:
				t.Errorf("%d errors", len(errs))
			}
		})
	}
}
