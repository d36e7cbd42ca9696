package encode

import (
	"regexp"
	"strings"
)

var (
	envName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
	envBare = regexp.MustCompile(`^[A-Za-z0-9_./:@%+,=-]*$`)
)

// env writes NAME=value lines that a shell, systemd's EnvironmentFile and the common dotenv readers take alike: bare where nothing needs
// quoting, else in single quotes, which nothing expands, and in double quotes with escapes if the text has a single quote or a backslash.
// (docker --env-file knows no quotes: give it bare values only.)
func (w *writer) env(v Value) error {
	m, ok := v.(map[string]any)
	if !ok {
		return w.errorf("an .env file is a struct of names, not %s", kind(v))
	}
	for _, k := range sortedKeys(m) {
		if err := w.at(k, func() error { return w.envLine(k, m[k]) }); err != nil {
			return err
		}
	}
	return nil
}

func (w *writer) envLine(name string, v Value) error {
	if !envName.MatchString(name) {
		return w.errorf("not a name for an .env file: letters, digits and _ only, not first a digit")
	}
	w.buf.WriteString(name)
	w.buf.WriteByte('=')
	switch v := v.(type) {
	case bool:
		w.bool(v)
	case Number:
		w.buf.WriteString(string(v))
	case string:
		if err := w.envString(v); err != nil {
			return err
		}
	case nil:
		return w.errorf("an .env file has no null: leave the name out, or use an empty string")
	default:
		return w.errorf("an .env file holds only names and single values, not %s", kind(v))
	}
	w.buf.WriteByte('\n')
	return nil
}

func (w *writer) envString(s string) error {
	for _, r := range s {
		switch {
		case r == '\n' || r == '\r':
			return w.errorf("a line break does not fit into an .env file: use another format, or a raw file")
		case r < 0x20 && r != '\t', r == 0x7f:
			return w.errorf("a control character does not fit into an .env file")
		}
	}
	switch {
	case envBare.MatchString(s):
		w.buf.WriteString(s)
	case !strings.ContainsAny(s, `'\`):
		w.buf.WriteString("'" + s + "'")
	default:
		w.buf.WriteByte('"')
		for _, r := range s {
			if strings.ContainsRune("\"\\$`", r) {
				w.buf.WriteByte('\\')
			}
			w.buf.WriteRune(r)
		}
		w.buf.WriteByte('"')
	}
	return nil
}
