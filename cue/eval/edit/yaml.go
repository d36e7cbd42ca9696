package edit

import (
	"bytes"
	"fmt"
	"regexp"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/muster-config/muster/cue/eval/layer"
)

func setYAML(data []byte, root *layer.Node, base bool, s setting) ([]byte, error) {
	n, depth := place(root, s.path)
	switch {
	case s.remove && base && depth < len(s.path):
		return data, nil // it is not there
	case s.remove && base:
		return cutYAML(data, n)
	case depth == len(s.path) || n.Kind != layer.Struct: // there is something at the path, or on the way to it
		return replaceYAML(data, n, nested(s.path[depth:], s.value))
	case n == root && len(root.Fields) == 0:
		return append(withBreak(data), blockYAML("", 2, s.path[depth:], s.value)...), nil
	}
	return insertYAML(data, n, s.path[depth:], s.value)
}

// replaceYAML puts another value in the place of one.
func replaceYAML(data []byte, n *layer.Node, v any) ([]byte, error) {
	if !n.KeyPos.IsValid() {
		return nil, ErrCannot
	}
	from := n.Pos.Offset()
	key := n.KeyPos.Offset()
	if (n.Kind == layer.List || n.Kind == layer.Struct) && data[from] != '[' && data[from] != '{' {
		// A block: all of it gives way to a value beside the key.
		colon := yamlColon(data, key)
		if colon < 0 {
			return nil, ErrCannot
		}
		end := blockEnd(data, key, column(data, key), n.Kind == layer.List)
		return splice(data, colon, end, ": "+flowYAML(v)+"\n"), nil
	}
	to := -1
	switch c := data[from]; {
	case from == key: // null, written as nothing
		return nil, ErrCannot
	case c == '"' || c == '\'' || c == '[' || c == '{':
		to = flowEnd(data, from)
	case strings.IndexByte("|>&*!%@`", c) >= 0:
	default:
		to = lineEnd(data, from)
		if i := bytes.Index(data[from:to], []byte(" #")); i >= 0 {
			to = from + i
		}
		if i := bytes.IndexAny(data[from:to], ",]}"); i >= 0 && inFlow(data, from) {
			to = from + i
		}
		to = from + len(bytes.TrimRight(data[from:to], " \t\r"))
	}
	if to < 0 {
		return nil, ErrCannot
	}
	return splice(data, from, to, flowYAML(v)), nil
}

// inFlow guesses whether a value on a line stands in brackets. A wrong guess is found out by reading the result.
func inFlow(data []byte, at int) bool {
	line := data[lineStart(data, at):at]
	return bytes.ContainsAny(line, "[{")
}

// yamlColon is the colon after the key at i.
func yamlColon(data []byte, i int) int {
	if data[i] == '"' || data[i] == '\'' {
		if i = quoteEnd(data, i); i < 0 {
			return -1
		}
	}
	for ; i < len(data) && data[i] != '\n'; i++ {
		if data[i] == ':' && (i+1 == len(data) || strings.IndexByte(" \t\r\n", data[i+1]) >= 0) {
			return i
		}
	}
	return -1
}

func column(data []byte, i int) int { return i - lineStart(data, i) }

// blockEnd is where the entry of a block mapping ends whose key is at i in a column: after its last line that is neither blank nor a comment.
func blockEnd(data []byte, i, col int, list bool) int {
	end := min(lineEnd(data, i)+1, len(data))
	for at := end; at < len(data); {
		next := min(lineEnd(data, at)+1, len(data))
		line := bytes.TrimRight(data[at:next], "\r\n")
		text := bytes.TrimLeft(line, " ")
		indent := len(line) - len(text)
		switch {
		case len(text) == 0 || text[0] == '#':
		case indent > col || indent == col && list && (text[0] == '-'):
			end = next
		default:
			return end
		}
		at = next
	}
	return end
}

// insertYAML adds keys at the end of a mapping.
func insertYAML(data []byte, n *layer.Node, keys []string, v any) ([]byte, error) {
	if at := n.Pos.Offset(); n.KeyPos.IsValid() && data[at] == '{' {
		end := flowEnd(data, at)
		if end < 0 {
			return nil, ErrCannot
		}
		last := at + 1 + len(bytes.TrimRight(data[at+1:end-1], " \t\r\n"))
		text := keyYAML(keys[0]) + ": " + flowYAML(nested(keys[1:], v))
		if len(n.Fields) > 0 {
			text = ", " + text
		}
		return splice(data, last, last, text), nil
	}
	last := lastField(n)
	if last == nil {
		return nil, ErrCannot
	}
	key := last.KeyPos.Offset()
	col := column(data, key)
	if len(bytes.Trim(data[lineStart(data, key):key], " ")) > 0 {
		return nil, ErrCannot // a mapping that begins in a list's line, or in brackets
	}
	end := blockEnd(data, key, col, last.Kind == layer.List)
	step := 2
	if len(n.KeyPos.Filename()) > 0 && n.KeyPos.IsValid() {
		if d := col - column(data, n.KeyPos.Offset()); d > 0 {
			step = d
		}
	}
	head := withBreak(data[:end:end])
	return append(append(head, blockYAML(strings.Repeat(" ", col), step, keys, v)...), data[end:]...), nil
}

// withBreak ends the last line.
func withBreak(data []byte) []byte {
	if len(data) > 0 && data[len(data)-1] != '\n' {
		return append(data[:len(data):len(data)], '\n')
	}
	return data[:len(data):len(data)]
}

// blockYAML is keys below each other, the last with its value.
func blockYAML(indent string, step int, keys []string, v any) string {
	var b strings.Builder
	for i, k := range keys {
		b.WriteString(indent + strings.Repeat(" ", i*step) + keyYAML(k) + ":")
		if i == len(keys)-1 {
			b.WriteString(" " + flowYAML(v))
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// cutYAML takes an entry of a block mapping out.
func cutYAML(data []byte, n *layer.Node) ([]byte, error) {
	if !n.KeyPos.IsValid() {
		return nil, ErrCannot
	}
	key := n.KeyPos.Offset()
	from := lineStart(data, key)
	if len(bytes.Trim(data[from:key], " ")) > 0 {
		return nil, ErrCannot
	}
	return splice(data, from, blockEnd(data, key, key-from, n.Kind == layer.List), ""), nil
}

func keyYAML(k string) string { return flowYAML(k) }

// flowYAML is a value in one line.
func flowYAML(v any) string {
	text := jsonText(v)
	var n yaml.Node
	if err := yaml.Unmarshal([]byte(text), &n); err != nil || len(n.Content) != 1 {
		return text // JSON is YAML
	}
	plain(n.Content[0])
	out, err := yaml.Marshal(n.Content[0])
	line := strings.TrimSuffix(string(out), "\n")
	if err != nil || strings.Contains(line, "\n") {
		return text
	}
	return line
}

// misread are texts that readers of another YAML version take for something else.
var misread = regexp.MustCompile(`^(?i:y|n|yes|no|on|off|true|false|null|~|=|<<|)$|^[0-9+.-][0-9a-fA-FxoeE:._+-]*$`)

// plain lets texts stand without quotes where every YAML lets them.
func plain(n *yaml.Node) {
	n.Style = 0
	switch {
	case n.Kind != yaml.ScalarNode:
		n.Style = yaml.FlowStyle
	case n.Tag == "!!str" && misread.MatchString(n.Value):
		n.Style = yaml.DoubleQuotedStyle
	}
	for _, c := range n.Content {
		plain(c)
	}
}

// yamlAnew sets values by way of YAML's own tree: comments and order stay, blank lines and other layout do not.
func yamlAnew(data []byte, base bool, settings []setting) ([]byte, error) {
	var doc yaml.Node
	if err := yaml.Unmarshal(data, &doc); err != nil {
		return nil, err
	}
	if doc.Kind != yaml.DocumentNode || len(doc.Content) != 1 {
		return nil, ErrCannot
	}
	for _, s := range settings {
		if err := setNode(doc.Content[0], s, base); err != nil {
			return nil, err
		}
	}
	var b bytes.Buffer
	e := yaml.NewEncoder(&b)
	e.SetIndent(2)
	if err := e.Encode(&doc); err != nil {
		return nil, fmt.Errorf("write YAML: %w", err)
	}
	return b.Bytes(), e.Close()
}

func setNode(n *yaml.Node, s setting, base bool) error {
	for i, k := range s.path {
		if n.Kind != yaml.MappingNode {
			return ErrCannot
		}
		at := -1
		for j := 0; j+1 < len(n.Content); j += 2 {
			if n.Content[j].Value == k {
				at = j
			}
		}
		last := i == len(s.path)-1
		if last && s.remove && base {
			if at >= 0 {
				n.Content = append(n.Content[:at:at], n.Content[at+2:]...)
			}
			return nil
		}
		if at < 0 || last || n.Content[at+1].Kind != yaml.MappingNode {
			var v yaml.Node
			if err := yaml.Unmarshal([]byte(jsonText(nested(s.path[i+1:], s.value))), &v); err != nil || len(v.Content) != 1 {
				return ErrCannot
			}
			plain(v.Content[0])
			if at < 0 {
				n.Content = append(n.Content, &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: k}, v.Content[0])
			} else {
				v.Content[0].LineComment, v.Content[0].HeadComment, v.Content[0].FootComment = n.Content[at+1].LineComment, n.Content[at+1].HeadComment, n.Content[at+1].FootComment
				n.Content[at+1] = v.Content[0]
			}
			return nil
		}
		n = n.Content[at+1]
	}
	return nil
}
