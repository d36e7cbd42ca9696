// Package cli holds what all mains share: the exit codes, the form of messages, and all user text that more than one command prints.
// Besides cobra it imports only leaves, so that the agent can use it too; sentinels of other packages come as Rules from the main that links them.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/muster-config/muster/distributor/bundle"
	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/store"
)

// Version of this build; the Makefile sets it.
var Version = "0.1.0-dev"

// Exit codes: one table for all commands (docs/design.md).
const (
	OK          = 0
	No          = 1 // the answer is no: invalid, not confirmed, blocked
	Usage       = 2
	Conflict    = 3 // somebody else was first, or history was rewritten
	NotTrusted  = 4 // signature, order, store, equivocation
	Unreachable = 5
	Differs     = 6 // plan --exit-code
	Local       = 7 // disk, permission, a bug
	Interrupted = 130
)

// Error is an error with its exit code and a hint for the next step. It prints as "muster: error: …", then "muster: hint: …".
type Error struct {
	Code int
	Err  error
	Hint string
	// Silent: everything was said already; only the code counts.
	Silent bool
}

func (e *Error) Error() string {
	if e.Err == nil {
		return fmt.Sprintf("exit %d", e.Code)
	}
	return e.Err.Error()
}

func (e *Error) Unwrap() error { return e.Err }

// Fail makes an Error.
func Fail(code int, hint string, format string, args ...any) *Error {
	return &Error{Code: code, Hint: hint, Err: fmt.Errorf(format, args...)}
}

// Exit is an Error that prints nothing: the command has said it all.
func Exit(code int) *Error { return &Error{Code: code, Silent: true} }

// Rule gives the errors that wrap Is their exit code and, if they bring none, a hint.
type Rule struct {
	Is   error
	Code int
	Hint string
}

// rules for the leaves that every main links. The first match wins.
var rules = []Rule{
	{context.Canceled, Interrupted, ""},
	{store.ErrAmbiguous, Unreachable, "the write may have happened; run the command again, it finds out"},
	{store.ErrUnreachable, Unreachable, "check the address and the network, then run the command again"},
	{store.ErrDenied, Unreachable, "check the credentials and their rights on the store"},
	{store.ErrConflict, Conflict, "somebody else was first; run the command again"},
	{store.ErrExists, Conflict, "somebody else was first; run the command again"},
	{store.ErrReadOnly, Usage, "give a store that can be written: file:// or s3://"},
	{store.ErrNoCAS, Usage, "muster needs conditional writes (If-None-Match, If-Match); use another store"},
	{store.ErrTooLarge, NotTrusted, "the object is larger than anything that muster writes; run `muster fsck` on the store"},
	{manifest.ErrSignature, NotTrusted, "check that the keyring belongs to this store"},
	{manifest.ErrOrder, NotTrusted, "an older head was put back, or a cache is stuck; run `muster fsck` on the store"},
	{manifest.ErrForeign, NotTrusted, "check the store, the repo and the cohort in the configuration"},
	{manifest.ErrEquivocation, NotTrusted, "two contents were signed as one epoch; run `muster fsck` on the store and check who has the release key"},
	{manifest.ErrMalformed, NotTrusted, "run `muster fsck` on the store"},
	{manifest.ErrKeyring, NotTrusted, "take the newest keyring of the repo from a person you trust"},
	{manifest.ErrNoAssignment, NotTrusted, ""},
	{context.DeadlineExceeded, Unreachable, ""},
}

// CodeOf is the exit code of err: that of an Error in its chain, else what its sentinel says, of more first; else Local.
// An error type with a method ExitCode() int (the collector client's) says it by itself.
func CodeOf(err error, more ...Rule) int {
	code, _ := explain(err, more)
	return code
}

// HintOf is the next step for err, or "".
func HintOf(err error, more ...Rule) string {
	_, hint := explain(err, more)
	return hint
}

func explain(err error, more []Rule) (code int, hint string) {
	if err == nil {
		return OK, ""
	}
	var hinter interface{ Hint() string }
	if errors.As(err, &hinter) {
		hint = hinter.Hint()
	}
	var e *Error
	if errors.As(err, &e) {
		if e.Hint != "" {
			hint = e.Hint
		}
		return e.Code, hint
	}
	var coder interface{ ExitCode() int }
	if errors.As(err, &coder) {
		if c := coder.ExitCode(); c > 0 && c < 256 {
			return c, hint
		}
	}
	for _, set := range [][]Rule{more, rules} {
		for _, r := range set {
			if errors.Is(err, r.Is) {
				if hint == "" {
					hint = r.Hint
				}
				return r.Code, hint
			}
		}
	}
	var bad *bundle.Error
	if errors.As(err, &bad) {
		return NotTrusted, hint
	}
	if hint == "" && errors.Is(err, fs.ErrPermission) {
		hint = "check the owner and the mode of the path, and who runs this command"
	}
	return Local, hint
}
