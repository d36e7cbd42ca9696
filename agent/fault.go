package agent

import (
	"context"
	"errors"
	"syscall"

	"github.com/muster-config/muster/distributor/bundle"
	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/store"
)

// Codes of a report's `code`: why a release is not running, for machines.
const (
	CodeDigest      = "digest mismatch"
	CodeUnsafe      = "unsafe path"
	CodeEmpty       = "no files"
	CodeNoSpace     = "no space"
	CodeSignature   = "signature"
	CodeOrder       = "order"
	CodeForeign     = "foreign"
	CodeEquivocal   = "equivocation"
	CodeMalformed   = "malformed"
	CodeKeyring     = "keyring"
	CodeUnassigned  = "unassigned"
	CodeNotFound    = "not found"
	CodeUnreachable = "unreachable"
	CodeStalled     = "stalled"
	CodeCheck       = "check failed"
	CodeReload      = "reload failed"
	CodeUnwell      = "unwell" // a process that answered before does not any more
	CodeDrift       = "drift"
	CodeLink        = "link"  // what is to be a link of the agent's is somebody else's file
	CodeOwner       = "owner" // there is no such user or group on this host
	CodeHeld        = "held"  // somebody holds this host as it is
	CodeLocal       = "local"
)

// Fault is an error with its code.
type Fault struct {
	Code string
	Err  error
}

func (f *Fault) Error() string { return f.Err.Error() }
func (f *Fault) Unwrap() error { return f.Err }

// codeOf finds the code of an error, whoever made it.
func codeOf(err error) string {
	var fault *Fault
	var refused *bundle.Error
	switch {
	case err == nil:
		return ""
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return CodeNoSpace
	case errors.As(err, &fault):
		return fault.Code
	case errors.As(err, &refused):
		return refused.Code
	}
	for _, c := range coded {
		if errors.Is(err, c.is) {
			return c.code
		}
	}
	return CodeLocal
}

var coded = []struct {
	is   error
	code string
}{
	{manifest.ErrSignature, CodeSignature}, {manifest.ErrOrder, CodeOrder}, {manifest.ErrForeign, CodeForeign},
	{manifest.ErrEquivocation, CodeEquivocal}, {manifest.ErrMalformed, CodeMalformed}, {manifest.ErrKeyring, CodeKeyring},
	{manifest.ErrNoAssignment, CodeUnassigned}, {store.ErrTooLarge, CodeMalformed}, {store.ErrNotFound, CodeNotFound},
	{store.ErrUnreachable, CodeUnreachable}, {store.ErrDenied, CodeUnreachable}, {context.DeadlineExceeded, CodeUnreachable},
	{ErrHeld, CodeHeld}, {ErrNeedsHold, "needs a hold"}, {ErrHoldRefused, "hold refused"}, {ErrNoHold, "no hold"}, {ErrNotRun, "ends"}, {ErrNotForHost, "not for this host"},
}

// CodeOf is the code of an error, by which it can be told across processes.
func CodeOf(err error) string { return codeOf(err) }

// ErrorOf is the error that a code stands for, nil if it stands for none that could be told from others.
func ErrorOf(code string) error {
	for _, c := range coded {
		if c.code == code {
			return c.is
		}
	}
	return nil
}

// refusal says whether a carrier answered with something that is not to be believed, rather than not at all.
func refusal(err error) bool {
	switch codeOf(err) {
	case CodeSignature, CodeOrder, CodeForeign, CodeEquivocal, CodeMalformed, CodeKeyring, CodeUnassigned:
		return true
	}
	return false
}
