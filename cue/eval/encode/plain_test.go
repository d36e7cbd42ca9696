package encode

import (
	"regexp"
	"testing"

	"pgregory.net/rapid"
)

// What is written byte by byte for speed is what these say.
var (
	plainPattern  = regexp.MustCompile(`^[A-Za-z/_](?:[A-Za-z0-9_./@+,=%;()$-]|:[A-Za-z0-9_./@+-]| [A-Za-z0-9_./(])*$`)
	numberPattern = regexp.MustCompile(`^-?(0|[1-9][0-9]*)(\.[0-9]+)?$`)
)

func TestPlainWord(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := rapid.OneOf(rapid.String(), rapid.StringMatching(`[a-zA-Z/_ :][a-z:0-9 _./@+,=%;()$#"'\n-]{0,6}`)).Draw(t, "text")
		if got, want := plainWord(s), plainPattern.MatchString(s); got != want {
			t.Errorf("%q: %t, want %t", s, got, want)
		}
	})
	for a := range 256 { // each byte first, behind a letter, a colon and a space
		for _, s := range []string{string([]byte{byte(a)}), "a" + string([]byte{byte(a)}), "a:" + string([]byte{byte(a)}), "a " + string([]byte{byte(a)})} {
			if got, want := plainWord(s), plainPattern.MatchString(s); got != want {
				t.Errorf("%q: %t, want %t", s, got, want)
			}
		}
	}
	for word := range yamlWords {
		if len(word) > longestWord {
			t.Errorf("%q is longer than longestWord", word)
		}
	}
}

func TestDecimal(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := rapid.OneOf(rapid.String(), rapid.StringMatching(`-?[0-9]{0,3}\.?[0-9]{0,3}`), rapid.StringMatching(`[-+0-9.eE]{0,5}`)).Draw(t, "number")
		if got, want := decimal(Number(s)), numberPattern.MatchString(s); got != want {
			t.Errorf("%q: %t, want %t", s, got, want)
		}
	})
}

func TestSoundIsCheckWithoutAPath(t *testing.T) {
	deep := Value("x")
	for range maxDepth + 2 {
		deep = []any{deep}
	}
	for _, v := range []Value{nil, true, Number("1"), Number("01"), "a", "\xff", map[string]any{"\xff": nil}, map[string]any{"a": []any{"\xff"}}, []any{}, map[string]any{}, 1, deep, []any{map[string]any{"a": Number("x")}}} {
		if got, want := sound(v, 0), (&writer{}).check(v, 0) == nil; got != want {
			t.Errorf("%.40v: %t, want %t", v, got, want)
		}
	}
}
