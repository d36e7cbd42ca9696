package layer

import (
	"bytes"
	"errors"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"cuelang.org/go/cue/token"
)

// The library's error of syntax, which names a line or none. It may be the line where the construct begins that is broken, and that of a parser's error is
// one too low; the first line is none.
var yamlLine = regexp.MustCompile(`^yaml: (?:line (\d+): )?(.*)$`)

const (
	yamlColon = "mapping values are not allowed in this context"
	yamlToken = "found character that cannot start any token"

	yamlDepth   = "exceeded max depth of 10000"
	yamlControl = "control characters are not allowed"
)

// Reasons of the scanner that quote nothing of the input.
var yamlScanner = []string{
	yamlToken, "could not find expected ':'", yamlColon,
	"block sequence entries are not allowed in this context", "mapping keys are not allowed in this context", "found unexpected end of stream",
	"found unknown escape character", "did not find expected hexdecimal number", "found a tab character that violates indentation",
	"found a tab character where an indentation space is expected", "did not find expected alphabetic or numeric character",
	"did not find expected comment or line break", "found unexpected document indicator", yamlDepth, yamlControl,
	"did not find expected whitespace or line break", "found an indentation indicator equal to 0", "found invalid Unicode character escape code",
}

// Reasons of the parser that quote nothing of the input.
var yamlParsing = []string{
	"did not find expected key", "did not find expected node content", "did not find expected '-' indicator", "did not find expected ',' or ']'",
	"did not find expected ',' or '}'", "found undefined tag handle", "did not find expected <document start>",
}

// yamlReason splits an error of the library; the reason is "" if it may quote the input, the line 0 if there is none.
func yamlReason(err error) (line int, reason string) {
	m := yamlLine.FindStringSubmatch(strings.SplitN(err.Error(), "\n", 2)[0])
	if m == nil {
		return 0, ""
	}
	line, _ = strconv.Atoi(m[1])
	suffix := func(r string) bool { return strings.HasSuffix(m[2], r) }
	if i := slices.IndexFunc(yamlScanner, suffix); i >= 0 {
		if reason := yamlScanner[i]; reason != yamlDepth && reason != yamlControl {
			return max(1, line), reason
		}
		return line, yamlScanner[i] // these have no place
	}
	if i := slices.IndexFunc(yamlParsing, suffix); i >= 0 {
		return line + 1, yamlParsing[i]
	}
	if strings.HasPrefix(m[2], "unknown anchor") {
		return line, "an alias of an anchor that is not there"
	}
	return line, ""
}

// syntax reports a syntax error without the library's own words, unless they are known to hold nothing of the input.
func (y *yamlParser) syntax(err error) {
	line, reason := yamlReason(err)
	at := token.Position{Filename: y.name}
	if line > 0 {
		at.Line = y.at(y.lines[min(line, len(y.lines))-1]).Line()
	}
	msg := "not valid YAML"
	if reason != "" {
		msg += ": " + reason
	}
	switch {
	case strings.Contains(reason, "tab") || reason == yamlToken:
		if i := y.tab(reason); i >= 0 {
			msg, at = "not valid YAML: a tab: YAML indents with spaces", y.at(i).Position()
		}
	case reason == yamlColon:
		if i, second := y.colon(max(1, line)); i >= 0 {
			msg, at = `not valid YAML: a ": " inside a value: wrong indentation, or the value needs quotes`, y.at(i).Position()
			if second {
				msg = `not valid YAML: a second ": " in one line: quote the value, or begin a new line`
			}
		}
	}
	y.errs = append(y.errs, &Error{Msg: msg, At: []token.Position{at}})
}

// maxLooks bounds how many beginnings of a broken text are read to find where it breaks.
const maxLooks = 50

// breaks reports whether a text that ends after offset end is broken for this very reason.
func (y *yamlParser) breaks(end int, reason string) bool {
	dec := yaml.NewDecoder(bytes.NewReader(y.data[:end]))
	for {
		var doc yaml.Node
		err := dec.Decode(&doc)
		if err != nil {
			_, r := yamlReason(err)
			return !errors.Is(err, io.EOF) && r == reason
		}
	}
}

// tab is the offset of the tab in an indentation that breaks the text; -1 if none does.
func (y *yamlParser) tab(reason string) int {
	looks := 0
	for l, from := range y.lines {
		end := len(y.data)
		if l+1 < len(y.lines) {
			end = y.lines[l+1]
		}
		line := y.data[from:end]
		rest := bytes.TrimLeft(line, " \t-?:")
		i := bytes.IndexByte(line[:len(line)-len(rest)], '\t')
		if i < 0 || len(bytes.TrimSpace(rest)) == 0 {
			continue
		}
		if looks++; looks > maxLooks {
			break
		}
		if y.breaks(end, reason) {
			return from + i
		}
	}
	return -1
}

// colon is the offset of the colon in a line that no key can end at, and whether there is another one before it; -1 if it is not found.
func (y *yamlParser) colon(line int) (offset int, second bool) {
	if line > len(y.lines) {
		return -1, false
	}
	looks := 0
	for i := y.lines[line-1]; i < len(y.data) && y.data[i] != '\n' && looks < maxLooks; i++ {
		if y.data[i] != ':' || i+1 < len(y.data) && !bytes.ContainsRune([]byte(" \t\r\n"), rune(y.data[i+1])) {
			continue
		}
		if looks++; y.breaks(i+1, yamlColon) {
			return i, looks > 1
		}
	}
	return -1, false
}
