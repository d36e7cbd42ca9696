package layer

import (
	"regexp"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/muster-config/muster/cue/eval/encode"
)

// yamlKey is a key as text: a scalar as it is written, but null.
func yamlKey(k *yaml.Node) (string, bool) {
	if k.Kind == yaml.AliasNode {
		k = k.Alias
	}
	if k.Kind != yaml.ScalarNode {
		return "", false
	}
	quoted := k.Style&(yaml.SingleQuotedStyle|yaml.DoubleQuotedStyle|yaml.LiteralStyle|yaml.FoldedStyle) != 0
	switch tag := k.ShortTag(); {
	case quoted:
		return k.Value, tag == "!!str"
	case tag == "!!null" || k.Value == "":
		return "", false
	case tag == "!!binary" || k.Style&yaml.TaggedStyle != 0 && tag != "!!str":
		return "", false
	}
	return k.Value, true
}

var (
	yamlNull    = regexp.MustCompile(`^(|~|null|Null|NULL)$`)
	yamlBool    = regexp.MustCompile(`^(true|True|TRUE|false|False|FALSE)$`)
	yamlInt     = regexp.MustCompile(`^[-+]?(0[xX][0-9a-fA-F_]+|0[bB][01_]+|0[oO]?[0-7_]+|[0-9][0-9_]*)$`)
	yamlDecimal = regexp.MustCompile(`^[-+]?[0-9]+$`)
	yamlFloat   = regexp.MustCompile(`^[-+]?([0-9][0-9_]*(\.[0-9_]*)?|\.[0-9][0-9_]*)([eE][-+]?[0-9]+)?$`)
	yamlInf     = regexp.MustCompile(`^([-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN))$`)
)

// yamlScalar is the value of a scalar: nil, bool, encode.Number or string; or what is wrong with it.
func yamlScalar(n *yaml.Node) (v any, msg string) {
	text, tag := n.Value, ""
	if n.Style&yaml.TaggedStyle != 0 {
		tag = n.ShortTag()
	}
	plain := n.Style&(yaml.SingleQuotedStyle|yaml.DoubleQuotedStyle|yaml.LiteralStyle|yaml.FoldedStyle) == 0
	kind := tag
	if tag == "" || tag == "!" {
		kind = "!!str"
		if plain && tag == "" {
			kind = plainKind(text)
		}
	}
	switch kind {
	case "!!str":
		return text, ""
	case "!!null":
		if yamlNull.MatchString(text) {
			return nil, ""
		}
	case "!!bool":
		if yamlBool.MatchString(text) {
			return text[0] == 't' || text[0] == 'T', ""
		}
	case "!!int":
		if yamlInt.MatchString(text) {
			return yamlInteger(text)
		}
	case "!!float":
		if yamlInf.MatchString(text) {
			return nil, errInf.Error()
		}
		if yamlFloat.MatchString(text) {
			num, err := ParseNumber(strings.ReplaceAll(text, "_", ""), false)
			if err != nil {
				return nil, err.Error()
			}
			return num, ""
		}
	case "!!binary":
		return nil, "binary data is no value: name a file instead"
	default:
		return nil, unknownTag
	}
	return nil, "the value is not what its tag says"
}

// plainKind is the tag of a plain word.
func plainKind(s string) string {
	switch {
	case yamlNull.MatchString(s):
		return "!!null"
	case yamlBool.MatchString(s):
		return "!!bool"
	case yamlInt.MatchString(s):
		return "!!int"
	case yamlFloat.MatchString(s) || yamlInf.MatchString(s):
		return "!!float"
	}
	return "!!str"
}

func yamlInteger(text string) (any, string) {
	s := strings.TrimPrefix(strings.ReplaceAll(text, "_", ""), "+")
	digits := strings.TrimPrefix(s, "-")
	if len(digits) > 1 && digits[0] == '0' && strings.ContainsAny(digits, "89") && yamlDecimal.MatchString(s) {
		// 08 is no octal number: readers take it for 8, for 8.0 or for a string.
		return nil, "a number with a leading zero: quote it, so that it is a string"
	}
	if len(digits) > 1 && digits[0] == '0' {
		i, ok := bigInt(s)
		if !ok {
			return nil, "not a number"
		}
		s = i
	}
	num, err := ParseNumber(s, true)
	if err != nil {
		return nil, err.Error()
	}
	return num, ""
}

// What names the kind of a scalar, with its article.
func What(v any) string {
	switch v := v.(type) {
	case nil:
		return "null"
	case bool:
		return "a bool"
	case encode.Number:
		if strings.Contains(string(v), ".") {
			return "a float"
		}
		return "an integer"
	}
	return "a string"
}
