package forge

import (
	"io"
	"unicode/utf8"
)

// Mute is w as a runner may read it: what goes through it is never a workflow command, whoever wrote it. A runner takes for one a line that begins with "::", after white space,
// and "##[" anywhere: https://github.com/actions/runner/blob/main/src/Runner.Common/ActionCommand.cs. Such text is spread by a space; all other bytes stay as they are, so
// that Deaf's random words, which would stand in the log of every command, are not needed.
func Mute(w io.Writer) io.Writer { return &mute{w: w, begin: true} }

type mute struct {
	w      io.Writer
	begin  bool // nothing but what may be white space so far in this line
	colon  bool // and one colon
	hashes int  // that end what was written
}

// Write writes p with spaces between. Its count is of p.
func (m *mute) Write(p []byte) (int, error) {
	out := make([]byte, 0, len(p)+8)
	for _, b := range p {
		if b == ':' && m.colon || b == '[' && m.hashes >= 2 {
			out = append(out, ' ')
		}
		out = append(out, b)
		switch {
		case b == '\n' || b == '\r':
			m.begin, m.colon = true, false
		case b == ':' && m.begin:
			m.begin, m.colon = false, true
		// Of the rest of Unicode some is white space. To take all of it for that costs nothing.
		case b > ' ' && b < utf8.RuneSelf:
			m.begin, m.colon = false, false
		default:
			m.colon = false
		}
		if m.hashes++; b != '#' {
			m.hashes = 0
		}
	}
	if _, err := m.w.Write(out); err != nil {
		return 0, err
	}
	return len(p), nil
}
