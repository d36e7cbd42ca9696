package encode_test

import (
	"regexp"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/muster-config/muster/cue/eval/encode"
)

// resolves lists the patterns by which readers give a bare scalar a type other than string: the YAML 1.1 type repository
// (https://yaml.org/type/, one page a type) and the core schema of YAML 1.2.2 (chapter 10.3.2). An independent statement of the rules:
// the encoder does not use it.
var resolves = map[string]*regexp.Regexp{
	"1.1 null":  whole(`~|null|Null|NULL|`),
	"1.1 bool":  whole(`y|Y|yes|Yes|YES|n|N|no|No|NO|true|True|TRUE|false|False|FALSE|on|On|ON|off|Off|OFF`),
	"1.1 int":   whole(`[-+]?0b[0-1_]+|[-+]?0[0-7_]+|[-+]?(0|[1-9][0-9_]*)|[-+]?0x[0-9a-fA-F_]+|[-+]?[1-9][0-9_]*(:[0-5]?[0-9])+`),
	"1.1 float": whole(`[-+]?([0-9][0-9_]*)?\.[0-9.]*([eE][-+][0-9]+)?|[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+\.[0-9_]*|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)`),
	"1.1 time": whole(`[0-9]{4}-[0-9]{2}-[0-9]{2}|[0-9]{4}-[0-9][0-9]?-[0-9][0-9]?([Tt]|[ \t]+)[0-9][0-9]?:[0-9]{2}:[0-9]{2}(\.[0-9]*)?` +
		`(([ \t]*)Z|([ \t]*)[-+][0-9][0-9]?(:[0-9]{2})?)?`),
	"1.1 merge": whole(`<<`),
	"1.1 value": whole(`=`),
	"1.2 null":  whole(`null|Null|NULL|~|`),
	"1.2 bool":  whole(`true|True|TRUE|false|False|FALSE`),
	"1.2 int":   whole(`[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+`),
	"1.2 float": whole(`[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?(\.inf|\.Inf|\.INF)|\.nan|\.NaN|\.NAN`),
	// Beyond the specifications: readers that take digits as soon as they see them.
	"lenient number": whole(`[-+]?[0-9][0-9_.,:eExXoObB+-]*`),
	// What may not begin, or stand in, a bare scalar at all (YAML 1.1 section 9.1.3, indicators; trailing and leading white space).
	"syntax": regexp.MustCompile("^[-?:,\\[\\]{}#&*!|>'\"%@`~]|^\\s|\\s$|: |:$| #|[\\x00-\\x1f\\x7f-\\xa0\\x{2028}\\x{2029}\\x{feff}]|^---|^\\.\\.\\."),
}

func whole(p string) *regexp.Regexp { return regexp.MustCompile(`^(?:` + p + `)$`) }

// misread names the rule by which some reader takes the bare text s for something else than the string s; "" if none does.
func misread(s string) string {
	for name, re := range resolves {
		if re.MatchString(s) {
			return name
		}
	}
	return ""
}

// traps are strings that change their type, or break the file, when written bare.
var traps = []string{
	"", " ", "~", "null", "Null", "NULL", "y", "Y", "n", "N", "yes", "Yes", "YES", "no", "No", "NO", "on", "On", "ON", "off", "Off", "OFF",
	"true", "True", "TRUE", "false", "False", "FALSE", "nO", "oN", "010", "0o17", "0x1F", "0b101", "1_000", "2222:22", "22:22", "190:20:30.15",
	"2001-01-01", "2001-1-1", "2001-12-14t21:59:43.10-05:00", "2001-12-14 21:59:43.10 -5", "3.10", "1e3", "1E+3", "1e", "+1", "-1", "-", "--", "---", "...",
	".", "..", ".5", "._", "1.", "+.inf", ".inf", "-.INF", ".nan", ".NaN", "nan", "inf", "Infinity", "=", "<<", "<", ">", "|", "|-", ">-", "?", "? a", ":", "a:", "a: b",
	"a :b", ": a", "#", "a #b", "a#b", "&a", "*a", "!a", "!!str a", "%TAG", "@a", "`a`", "'a'", "\"a\"", "[a]", "{a}", "{}", "[]", ",a", "- a",
	" lead", "trail ", "\ttab", "tab\t", "a\tb", "new\nline", "\n", "\n\n", "a\n", "a\n\n", "\na", " a\nb", "a \nb", "a\n b", "a\n\n\nb", "a\r\nb", "\r", "a\n#b", "a\n---\nb", "a\n...\nb",
	"nel\u0085x", "ls\u2028x", "ps\u2029x", "\ufeffbom", "nb\u00a0sp", "nul\x00", "\x07", "\x7f", "\u202eevil", "\u200b", "é", "日本", "😀", "\U000e0001", "\ue000",
	"C:\\x", `\n`, `"`, "'", "http://a:1/b", "a:b", "key=value", "0", "00", "-0", "09", "0.0", "12e03", "1,000", "0x", "0o8", "1__0", "_1", "60:00", "1:2:3", "t", "f", "none",
}

func TestB025(t *testing.T) {
	for _, s := range traps {
		out, err := encode.Encode("yaml", object{"k": s, "list": list{s}})
		if err != nil {
			t.Fatal(err)
		}
		first, _, _ := strings.Cut(string(out), "\n")
		bare := strings.TrimPrefix(first, "k: ")
		if !strings.HasPrefix(bare, `"`) && !strings.HasPrefix(bare, "|") {
			if why := misread(bare); why != "" {
				t.Errorf("%q is written bare: misread by %s", s, why)
			}
		}
		readBack(t, "yaml", object{"k": s, "list": list{s}}, out)
		readVersions(t, object{"k": s, "list": list{s}}, out)
		out, err = encode.Encode("yaml", object{s: "v", "outer": object{s: num("1")}, "l": list{object{s: s}}})
		if err != nil {
			t.Fatal(err)
		}
		readBack(t, "yaml", object{s: "v", "outer": object{s: num("1")}, "l": list{object{s: s}}}, out)
		readVersions(t, object{s: "v", "outer": object{s: num("1")}, "l": list{object{s: s}}}, out)
	}
	for _, s := range []string{"0", "-12", "0.25", "1000", "3.10", "1000000000000000000000", "0.0000000000000000000001"} {
		out, err := encode.Encode("yaml", num(s))
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.TrimSpace(string(out)); got != s {
			t.Errorf("number %s is written %s", s, got)
		}
		want := "1.1 int"
		if strings.Contains(s, ".") {
			want = "1.1 float"
		}
		if !resolves[want].MatchString(s) || resolves["1.1 time"].MatchString(s) {
			t.Errorf("number %s is no %s", s, want)
		}
	}
}

// TestPlainWords keeps the files readable: quotes only where they are needed.
func TestPlainWords(t *testing.T) {
	for _, s := range []string{"info", "eu-west-1", "/var/lib/x", "http://db:5432/x", "two words", "a@b.example", "nobody", "yesterday", "_x", "a,b"} {
		out, err := encode.Encode("yaml", s)
		if err != nil {
			t.Fatal(err)
		}
		if string(out) != s+"\n" {
			t.Errorf("%q is written %s", s, out)
		}
	}
}

func TestLongKey(t *testing.T) {
	for _, n := range []int{990, 1000, 1001, 1030, 70000} {
		k := strings.Repeat("k", n)
		v := list{object{k: object{"a": list{"x", object{k: "y"}}}}}
		out, err := encode.Encode("yaml", v)
		if err != nil {
			t.Fatal(err)
		}
		var node yaml.Node
		if err := yaml.Unmarshal(out, &node); err != nil {
			t.Fatalf("%d: %v", n, err)
		}
		readBack(t, "yaml", v, out)
	}
}
