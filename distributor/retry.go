package distributor

import (
	"context"
	"errors"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/muster-config/muster/distributor/chance"
	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/store"
)

// pause waits before a further try: up to 20 ms, 40 ms, … 1 s, at random, so that publishers who met do not meet again.
func pause(ctx context.Context, try int) error {
	if try == 0 {
		return ctx.Err()
	}
	t := time.NewTimer(chance.N(min(10*time.Millisecond<<min(try, 10), time.Second)))
	defer t.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-t.C:
		return nil
	}
}

// unknown reports whether a failed write may have happened.
func unknown(err error) bool {
	return errors.Is(err, store.ErrAmbiguous) || errors.Is(err, store.ErrUnreachable) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

// line makes a text from outside (a commit's subject, an error) fit for a document: valid UTF-8, one line, within the limit.
func line(s string) string {
	s = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, "\uFFFD"))
	if len(s) <= manifest.MaxTextBytes {
		return s
	}
	s = s[:manifest.MaxTextBytes-len("…")]
	for !utf8.ValidString(s) {
		s = s[:len(s)-1]
	}
	return s + "…"
}

// person makes what git says of an author fit for a document. git takes any time; one that no calendar has becomes the beginning of 1970.
func person(p manifest.Person) manifest.Person {
	p.Name, p.Email, p.At = line(p.Name), line(p.Email), p.At.UTC()
	if y := p.At.Year(); y < 1970 || y > 9999 {
		p.At = time.Unix(0, 0).UTC()
	}
	return p
}
