package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
)

// Main runs a command and ends the process with its exit code. SIGINT and SIGTERM cancel ctx; a second one kills the process. A command
// that ends well after its ctx was cancelled (a daemon told to stop) returns nil; one that was broken off returns an error that wraps
// context.Canceled. name is the program's, for messages.
func Main(name string, run func(ctx context.Context) error, more ...Rule) {
	os.Exit(Run(name, os.Stderr, run, more...))
}

// Run is Main without the exit.
func Run(name string, stderr io.Writer, run func(ctx context.Context) error, more ...Rule) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	// From the first signal on the default action is back: the second one kills.
	defer context.AfterFunc(ctx, stop)()
	err := run(ctx)
	if err != nil && ctx.Err() != nil && errors.Is(err, context.Canceled) {
		err = &Error{Code: Interrupted, Err: errors.New("interrupted")}
	}
	PrintError(stderr, name, err, more...)
	return CodeOf(err, more...)
}

// PrintError writes the message of err as users see it: "name: error: …" and, if there is a next step, "name: hint: …".
func PrintError(w io.Writer, name string, err error, more ...Rule) {
	if err == nil {
		return
	}
	var e *Error
	if errors.As(err, &e) && e.Silent {
		return
	}
	fmt.Fprintf(w, "%s: error: %s\n", name, oneLine(err.Error()))
	if hint := HintOf(err, more...); hint != "" {
		fmt.Fprintf(w, "%s: hint: %s\n", name, oneLine(hint))
	}
}

// oneLine keeps a message on its line and the terminal in its state, whatever text an error carries.
func oneLine(s string) string {
	var b strings.Builder
	for i, line := range strings.FieldsFunc(s, func(r rune) bool { return r == '\n' || r == '\r' }) {
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		if i > 0 && b.Len() > 0 {
			b.WriteString("; ")
		}
		b.WriteString(Printable(line))
	}
	return b.String()
}

// Printable replaces control characters (escape sequences of a terminal among them) by '?': text from git, from hosts and from files is
// not ours.
func Printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r < 0x20 && r != '\t' || r >= 0x7f && r < 0xa0 || r == '\u2028' || r == '\u2029' || r >= 0x202a && r <= 0x202e || r >= 0x2066 && r <= 0x2069 {
			return '?'
		}
		return r
	}, s)
}

// PrintJSON writes v as indented JSON with a final newline. Characters of HTML stay as they are.
func PrintJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}
