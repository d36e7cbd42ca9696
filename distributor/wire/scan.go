package wire

import (
	"errors"
	"fmt"
	"unicode/utf16"
	"unicode/utf8"
)

// scanner goes over the bytes of a document (RFC 8259), which are known to be valid UTF-8.
type scanner struct {
	data  []byte
	pos   int
	depth int
}

var errEnd = errors.New("ends in the middle")

func (s *scanner) space() {
	for s.pos < len(s.data) {
		switch s.data[s.pos] {
		case ' ', '\t', '\n', '\r':
			s.pos++
		default:
			return
		}
	}
}

// peek gives the first byte of what comes next, 0 at the end.
func (s *scanner) peek() byte {
	s.space()
	if s.pos < len(s.data) {
		return s.data[s.pos]
	}
	return 0
}

func (s *scanner) syntax(due string) error {
	if s.pos >= len(s.data) {
		return errEnd
	}
	return fmt.Errorf("not JSON at byte %d: %s is due", s.pos, due)
}

// expect consumes one punctuation byte.
func (s *scanner) expect(c byte) error {
	if s.peek() != c {
		return s.syntax(string(rune(c)))
	}
	s.pos++
	return nil
}

// open consumes the first byte of a container; each return of it is paired with a shut.
func (s *scanner) open() error {
	s.pos++
	if s.depth++; s.depth > MaxDepth {
		return fmt.Errorf("nested deeper than %d", MaxDepth)
	}
	return nil
}

func (s *scanner) shut() { s.depth-- }

// next consumes what follows a member or an element: a comma (another one comes) or the closing byte.
func (s *scanner) next(closing byte) (more bool, err error) {
	switch s.peek() {
	case ',':
		s.pos++
		return true, nil
	case closing:
		s.pos++
		return false, nil
	}
	return false, s.syntax("',' or '" + string(rune(closing)) + "'")
}

// empty consumes the closing byte of a container that has nothing in it.
func (s *scanner) empty(closing byte) bool {
	if s.peek() == closing {
		s.pos++
		return true
	}
	return false
}

// skip goes over one value of any kind and checks nothing but its syntax and depth.
func (s *scanner) skip() error {
	switch c := s.peek(); {
	case c == '{':
		if err := s.open(); err != nil {
			return err
		}
		defer s.shut()
		for more := !s.empty('}'); more; {
			err := s.skipString()
			if err == nil {
				err = s.expect(':')
			}
			if err == nil {
				err = s.skip()
			}
			if err == nil {
				more, err = s.next('}')
			}
			if err != nil {
				return err
			}
		}
		return nil
	case c == '[':
		if err := s.open(); err != nil {
			return err
		}
		defer s.shut()
		for more := !s.empty(']'); more; {
			err := s.skip()
			if err == nil {
				more, err = s.next(']')
			}
			if err != nil {
				return err
			}
		}
		return nil
	case c == '"':
		return s.skipString()
	case c == '-' || c >= '0' && c <= '9':
		_, err := s.number()
		return err
	case c == 't':
		return s.word("true")
	case c == 'f':
		return s.word("false")
	case c == 'n':
		return s.word("null")
	}
	return s.syntax("a value")
}

// raw goes over one value and gives its bytes.
func (s *scanner) raw() ([]byte, error) {
	s.space()
	from := s.pos
	if err := s.skip(); err != nil {
		return nil, err
	}
	return s.data[from:s.pos], nil
}

// count tells how many members the container that starts here has. It looks for no more than commas and brackets: of one that is broken it tells anything up to its length.
func (s *scanner) count() int {
	data := s.data[s.pos+1:]
	depth, members, any := 0, 0, false
	for i := 0; i < len(data); i++ {
		switch data[i] {
		case '"':
			any = true
			for i++; i < len(data) && data[i] != '"'; i++ {
				if data[i] == '\\' {
					i++
				}
			}
		case '{', '[':
			any = true
			depth++
		case '}', ']':
			if depth == 0 {
				i = len(data)
			}
			depth--
		case ',':
			if depth == 0 {
				members++
			}
		case ' ', '\t', '\n', '\r':
		default:
			any = true
		}
	}
	if any {
		members++
	}
	return members
}

func (s *scanner) word(w string) error {
	if len(s.data)-s.pos < len(w) || string(s.data[s.pos:s.pos+len(w)]) != w {
		return s.syntax("a value")
	}
	s.pos += len(w)
	return nil
}

// number consumes a number and gives its bytes.
func (s *scanner) number() ([]byte, error) {
	from := s.pos
	digits := func() bool {
		start := s.pos
		for s.pos < len(s.data) && s.data[s.pos] >= '0' && s.data[s.pos] <= '9' {
			s.pos++
		}
		return s.pos > start
	}
	is := func(set string) bool {
		for i := range len(set) {
			if s.pos < len(s.data) && s.data[s.pos] == set[i] {
				s.pos++
				return true
			}
		}
		return false
	}
	is("-")
	if !is("0") && !digits() {
		return nil, s.syntax("a digit")
	}
	if is(".") && !digits() {
		return nil, s.syntax("a digit")
	}
	if is("eE") {
		is("+-")
		if !digits() {
			return nil, s.syntax("a digit")
		}
	}
	return s.data[from:s.pos], nil
}

// skipString goes over a string.
func (s *scanner) skipString() error {
	_, _, err := s.stringSpan()
	return err
}

// stringSpan consumes a string and gives what stands between its quotes, and whether that has escapes.
func (s *scanner) stringSpan() (body []byte, escaped bool, err error) {
	if s.peek() != '"' {
		return nil, false, s.syntax("a string")
	}
	s.pos++
	from := s.pos
	for s.pos < len(s.data) {
		for rest := s.data[s.pos:]; len(rest) > 0 && rest[0] >= ' ' && rest[0] != '"' && rest[0] != '\\'; rest = rest[1:] {
			s.pos++
		}
		if s.pos == len(s.data) {
			break
		}
		switch c := s.data[s.pos]; {
		case c == '"':
			s.pos++
			return s.data[from : s.pos-1], escaped, nil
		case c < ' ':
			return nil, false, fmt.Errorf("not JSON at byte %d: a control character in a string", s.pos)
		case c == '\\':
			escaped = true
			if err := s.escape(); err != nil {
				return nil, false, err
			}
		default:
			s.pos++
		}
	}
	return nil, false, errEnd
}

// escape goes over one escape, or over two that make a surrogate pair.
func (s *scanner) escape() error {
	at := s.pos
	if s.pos+1 >= len(s.data) {
		s.pos = len(s.data)
		return errEnd
	}
	s.pos += 2
	switch s.data[at+1] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return nil
	case 'u':
		r, ok := hex4(s.data[s.pos:])
		if !ok {
			return fmt.Errorf("not JSON at byte %d: four hex digits are due", at)
		}
		s.pos += 4
		if !utf16.IsSurrogate(r) {
			return nil
		}
		if rest := s.data[s.pos:]; len(rest) >= 2 && rest[0] == '\\' && rest[1] == 'u' {
			if low, ok := hex4(rest[2:]); ok && utf16.DecodeRune(r, low) != utf8.RuneError {
				s.pos += 6
				return nil
			}
		}
		return fmt.Errorf("half a surrogate pair at byte %d", at)
	}
	return fmt.Errorf("not JSON at byte %d: no such escape", at)
}

func hex4(b []byte) (rune, bool) {
	if len(b) < 4 {
		return 0, false
	}
	var r rune
	for _, c := range b[:4] {
		switch {
		case c >= '0' && c <= '9':
			c -= '0'
		case c >= 'a' && c <= 'f':
			c -= 'a' - 10
		case c >= 'A' && c <= 'F':
			c -= 'A' - 10
		default:
			return 0, false
		}
		r = r<<4 | rune(c)
	}
	return r, true
}

// text consumes a string and gives its value. It shares memory with the document if there are no escapes.
func (s *scanner) text() ([]byte, error) {
	body, escaped, err := s.stringSpan()
	if err != nil || !escaped {
		return body, err
	}
	out := make([]byte, 0, len(body))
	for i := 0; i < len(body); {
		if body[i] != '\\' {
			out = append(out, body[i])
			i++
			continue
		}
		c := body[i+1]
		i += 2
		switch c {
		case 'b':
			out = append(out, '\b')
		case 'f':
			out = append(out, '\f')
		case 'n':
			out = append(out, '\n')
		case 'r':
			out = append(out, '\r')
		case 't':
			out = append(out, '\t')
		case 'u':
			r, _ := hex4(body[i:])
			i += 4
			if utf16.IsSurrogate(r) {
				low, _ := hex4(body[i+2:])
				r = utf16.DecodeRune(r, low)
				i += 6
			}
			out = utf8.AppendRune(out, r)
		default:
			out = append(out, c)
		}
	}
	return out, nil
}
