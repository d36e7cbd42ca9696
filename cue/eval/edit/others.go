package edit

import (
	"bytes"
	"encoding/json"
	"regexp"
	"strings"

	"github.com/muster-config/muster/cue/eval/layer"
)

// jsonEnd is the end of the JSON value at i.
func jsonEnd(data []byte, i int) int {
	dec := json.NewDecoder(bytes.NewReader(data[i:]))
	var raw json.RawMessage
	if dec.Decode(&raw) != nil {
		return -1
	}
	return i + int(dec.InputOffset())
}

func setJSON(data []byte, root *layer.Node, base bool, s setting) ([]byte, error) {
	n, depth := place(root, s.path)
	if len(bytes.TrimSpace(data)) == 0 {
		return []byte("{}\n"), ErrCannot
	}
	from := n.Pos.Offset()
	if n == root {
		from = bytes.IndexByte(data, '{')
	}
	end := jsonEnd(data, from)
	if end < 0 {
		return nil, ErrCannot
	}
	switch {
	case s.remove && base && depth < len(s.path):
		return data, nil
	case s.remove && base:
		return cutJSON(data, n, end)
	case depth == len(s.path) || n.Kind != layer.Struct:
		return splice(data, from, end, jsonText(nested(s.path[depth:], s.value))), nil
	}
	text := jsonText(s.path[depth]) + ": " + jsonText(nested(s.path[depth+1:], s.value))
	last := lastField(n)
	if last == nil {
		return splice(data, from, end, "{"+text+"}"), nil
	}
	at := jsonEnd(data, last.Pos.Offset())
	if at < 0 {
		return nil, ErrCannot
	}
	space := string(data[from+1 : firstField(n).KeyPos.Offset()]) // as the first one is set apart
	if strings.TrimSpace(space) != "" {
		return nil, ErrCannot
	}
	if space == "" {
		space = " "
	}
	return splice(data, at, at, ","+space+text), nil
}

func cutJSON(data []byte, n *layer.Node, end int) ([]byte, error) {
	key := n.KeyPos.Offset()
	before := bytes.TrimRight(data[:key], " \t\r\n")
	if before[len(before)-1] == ',' {
		return splice(data, len(before)-1, end, ""), nil
	}
	after := bytes.TrimLeft(data[end:], " \t\r\n")
	if len(after) > 0 && after[0] == ',' {
		rest := bytes.TrimLeft(after[1:], " \t\r\n")
		return splice(data, key, len(data)-len(rest), ""), nil
	}
	return splice(data, len(before), end, ""), nil
}

var (
	bareKey    = regexp.MustCompile(`^[A-Za-z0-9_-]+$`)
	tomlHeader = regexp.MustCompile(`^[ \t]*\[`)
)

func keyTOML(keys []string) string {
	parts := make([]string, len(keys))
	for i, k := range keys {
		if parts[i] = k; !bareKey.MatchString(k) {
			parts[i] = jsonText(k)
		}
	}
	return strings.Join(parts, ".")
}

// textTOML is a value in TOML; ok is false for null.
func textTOML(v any) (text string, ok bool) {
	switch v := v.(type) {
	case nil:
		return "", false
	case []any:
		var parts []string
		for _, x := range v {
			t, ok := textTOML(x)
			if !ok {
				return "", false
			}
			parts = append(parts, t)
		}
		return "[" + strings.Join(parts, ", ") + "]", true
	case map[string]any:
		var parts []string
		for k, x := range v {
			t, ok := textTOML(x)
			if !ok {
				return "", false
			}
			parts = append(parts, keyTOML([]string{k})+" = "+t)
		}
		return "{" + strings.Join(parts, ", ") + "}", len(v) < 2 // more have no order here
	}
	return jsonText(v), true
}

func setTOML(data []byte, root *layer.Node, base bool, s setting) ([]byte, error) {
	n, depth := place(root, s.path)
	whole := depth == len(s.path)
	if s.remove {
		switch {
		case !base:
			return nil, ErrCannot // TOML has no null
		case !whole:
			return data, nil
		}
		key := n.KeyPos.Offset()
		if n.Kind == layer.Struct || len(bytes.Trim(data[lineStart(data, key):key], " \t")) > 0 {
			return nil, ErrCannot
		}
		return splice(data, lineStart(data, key), min(lineEnd(data, key)+1, len(data)), ""), nil
	}
	text, ok := textTOML(nested(s.path[depth:], s.value))
	if !ok {
		return nil, ErrCannot
	}
	if whole && n.Kind != layer.Struct {
		from, to := tomlValue(data, n)
		if to < 0 {
			return nil, ErrCannot
		}
		return splice(data, from, to, text), nil
	}
	if whole || n.Kind != layer.Struct {
		return nil, ErrCannot
	}
	text, _ = textTOML(s.value)
	// The table of the longest header that leads there, else what stands before the first header.
	for d := depth; d >= 0; d-- {
		if at := tableEnd(data, s.path[:d]); at >= 0 {
			line := keyTOML(s.path[d:]) + " = " + text + "\n"
			head := withBreak(data[:at:at])
			return append(append(head, line...), data[at:]...), nil
		}
	}
	return nil, ErrCannot
}

// tomlValue is where a value stands. Lists have no position of their own.
func tomlValue(data []byte, n *layer.Node) (from, to int) {
	from = n.Pos.Offset()
	if n.Kind == layer.List {
		i := bytes.IndexByte(data[n.KeyPos.Offset():], '=')
		if i < 0 {
			return 0, -1
		}
		from = n.KeyPos.Offset() + i + 1
		for from < len(data) && (data[from] == ' ' || data[from] == '\t') {
			from++
		}
	}
	switch {
	case from >= len(data):
		return 0, -1
	case bytes.HasPrefix(data[from:], []byte(`"""`)), bytes.HasPrefix(data[from:], []byte("'''")):
		return 0, -1
	case strings.IndexByte(`"'[{`, data[from]) >= 0:
		return from, flowEnd(data, from)
	}
	i := bytes.IndexAny(data[from:], " \t\r\n,]}#")
	if i < 0 {
		return from, len(data)
	}
	return from, from + i
}

// tableEnd is where a key is added to a table: after its last line that says something; -1 if no header names it.
func tableEnd(data []byte, path []string) int {
	want, in, end := "["+keyTOML(path)+"]", len(path) == 0, -1
	if in {
		end = 0
	}
	for at := 0; at < len(data); {
		next := min(lineEnd(data, at)+1, len(data))
		line := bytes.TrimSpace(data[at:next])
		if tomlHeader.Match(data[at:next]) && !bytes.HasSuffix(line, []byte(",")) {
			if in {
				break
			}
			head, _, _ := bytes.Cut(line, []byte("#"))
			if in = strings.ReplaceAll(string(bytes.TrimSpace(head)), " ", "") == want; in {
				end = next
			}
		} else if in && len(line) > 0 && line[0] != '#' {
			end = next
		}
		at = next
	}
	return end
}

var bareValue = regexp.MustCompile(`^[A-Za-z0-9_./:@%+,-]*$`)

func setEnv(data []byte, root *layer.Node, base bool, s setting) ([]byte, error) {
	if len(s.path) != 1 {
		return nil, ErrCannot
	}
	f := root.Fields[s.path[0]]
	if s.remove {
		switch {
		case !base:
			return nil, ErrCannot // .env has no null
		case f == nil:
			return data, nil
		}
		at := lineStart(data, f.KeyPos.Offset())
		return splice(data, at, min(lineEnd(data, at)+1, len(data)), ""), nil
	}
	text, ok := s.value.(string)
	if !ok {
		text = jsonText(s.value)
	}
	if !bareValue.MatchString(text) {
		text = jsonText(text)
	}
	line := s.path[0] + "=" + text
	if f == nil {
		return append(withBreak(data), line+"\n"...), nil
	}
	at := f.KeyPos.Offset()
	return splice(data, at, lineEnd(data, at), line), nil
}
