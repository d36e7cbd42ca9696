package encode

import (
	"math"
	"regexp"
	"strconv"
	"strings"
)

// toml writes TOML 1.0: in each table first the plain keys, then the sub-tables, both sorted. A list of structs is an array of tables.
func (w *writer) toml(v Value) error {
	m, ok := v.(map[string]any)
	if !ok {
		return w.errorf("a TOML file is a struct of keys, not %s", kind(v))
	}
	return w.tomlTable(m, "")
}

// tomlTable writes the keys of a table whose header, if it needs one, is written already.
func (w *writer) tomlTable(m map[string]any, name string) error {
	keys := sortedKeys(m)
	for _, k := range keys {
		if isTable(m[k]) || isTables(m[k]) {
			continue
		}
		err := w.at(k, func() error {
			w.tomlKey(k)
			w.buf.WriteString(" = ")
			if err := w.tomlValue(m[k]); err != nil {
				return err
			}
			w.buf.WriteByte('\n')
			return nil
		})
		if err != nil {
			return err
		}
	}
	for _, k := range keys {
		err := w.at(k, func() error {
			full := tomlName(name, k)
			switch {
			case isTable(m[k]):
				sub := m[k].(map[string]any)
				if needsHeader(sub) {
					w.tomlHeader("[" + full + "]")
				}
				return w.tomlTable(sub, full)
			case isTables(m[k]):
				for i, e := range m[k].([]any) {
					w.tomlHeader("[[" + full + "]]")
					err := w.at(strconv.Itoa(i), func() error { return w.tomlTable(e.(map[string]any), full) })
					if err != nil {
						return err
					}
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func isTable(v Value) bool { _, ok := v.(map[string]any); return ok }

// isTables reports a list of structs only; an empty or mixed list is written inline.
func isTables(v Value) bool {
	list, ok := v.([]any)
	if !ok || len(list) == 0 {
		return false
	}
	for _, e := range list {
		if !isTable(e) {
			return false
		}
	}
	return true
}

// needsHeader is false for a table that only holds tables: their headers imply it.
func needsHeader(m map[string]any) bool {
	for _, v := range m {
		if !isTable(v) && !isTables(v) {
			return true
		}
	}
	return len(m) == 0
}

func (w *writer) tomlHeader(h string) {
	if w.buf.Len() > 0 {
		w.buf.WriteByte('\n')
	}
	w.buf.WriteString(h)
	w.buf.WriteByte('\n')
}

func (w *writer) tomlValue(v Value) error {
	switch v := v.(type) {
	case nil:
		return w.errorf("TOML has no null: leave the key out, or delete it in an overlay")
	case bool:
		w.bool(v)
	case Number:
		return w.tomlNumber(v)
	case string:
		w.quote(v)
	case []any:
		w.buf.WriteByte('[')
		for i, e := range v {
			if i > 0 {
				w.buf.WriteString(", ")
			}
			if err := w.at(strconv.Itoa(i), func() error { return w.tomlValue(e) }); err != nil {
				return err
			}
		}
		w.buf.WriteByte(']')
	case map[string]any:
		if len(v) == 0 {
			w.buf.WriteString("{}")
			return nil
		}
		w.buf.WriteString("{ ")
		for i, k := range sortedKeys(v) {
			if i > 0 {
				w.buf.WriteString(", ")
			}
			w.tomlKey(k)
			w.buf.WriteString(" = ")
			if err := w.at(k, func() error { return w.tomlValue(v[k]) }); err != nil {
				return err
			}
		}
		w.buf.WriteString(" }")
	}
	return nil
}

// tomlNumber keeps the digits. TOML's integers are 64-bit and its floats IEEE doubles: what lies outside would change silently in the reader.
func (w *writer) tomlNumber(n Number) error {
	if !strings.Contains(string(n), ".") {
		if _, err := strconv.ParseInt(string(n), 10, 64); err != nil {
			return w.errorf("integer beyond TOML's range of 64 bits: write it as a string")
		}
	} else if f, err := strconv.ParseFloat(string(n), 64); err != nil || math.IsInf(f, 0) {
		return w.errorf("decimal beyond TOML's range of 64-bit floats: write it as a string")
	}
	w.buf.WriteString(string(n))
	return nil
}

var tomlBareKey = regexp.MustCompile(`^[A-Za-z0-9_-]+$`)

func (w *writer) tomlKey(k string) {
	if tomlBareKey.MatchString(k) {
		w.buf.WriteString(k)
	} else {
		w.quote(k)
	}
}

func tomlName(parent, k string) string {
	var w writer
	w.tomlKey(k)
	if parent == "" {
		return w.buf.String()
	}
	return parent + "." + w.buf.String()
}
