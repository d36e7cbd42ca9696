package encode

// json writes two-space indent, one member a line, and a final newline. Numbers are the decimal's own digits,
// and < > & stay as they are: these files are read by programs, not put into web pages.
func (w *writer) json(v Value) error {
	w.jsonValue(v, 0)
	w.buf.WriteByte('\n')
	return nil
}

func (w *writer) jsonValue(v Value, depth int) {
	switch v := v.(type) {
	case nil:
		w.buf.WriteString("null")
	case bool:
		w.bool(v)
	case Number:
		w.buf.WriteString(string(v))
	case string:
		w.quote(v)
	case []any:
		if len(v) == 0 {
			w.buf.WriteString("[]")
			return
		}
		w.buf.WriteByte('[')
		for i, e := range v {
			w.jsonNext(i, depth+1)
			w.jsonValue(e, depth+1)
		}
		w.buf.WriteByte('\n')
		w.indent(depth)
		w.buf.WriteByte(']')
	case map[string]any:
		if len(v) == 0 {
			w.buf.WriteString("{}")
			return
		}
		w.buf.WriteByte('{')
		for i, k := range sortedKeys(v) {
			w.jsonNext(i, depth+1)
			w.quote(k)
			w.buf.WriteString(": ")
			w.jsonValue(v[k], depth+1)
		}
		w.buf.WriteByte('\n')
		w.indent(depth)
		w.buf.WriteByte('}')
	}
}

func (w *writer) jsonNext(i, depth int) {
	if i > 0 {
		w.buf.WriteByte(',')
	}
	w.buf.WriteByte('\n')
	w.indent(depth)
}

func (w *writer) bool(b bool) {
	if b {
		w.buf.WriteString("true")
	} else {
		w.buf.WriteString("false")
	}
}
