package api

import (
	"errors"
	"fmt"
	"net/http"
	"time"
)

// Errors of the client; test with errors.Is. Each carries its exit code (ExitCode) and, where there is one, the next step (Hint).
var (
	ErrUnreachable = errors.New("collector is not reachable")
	ErrBusy        = errors.New("collector is busy")       // 429 or 503: come back after RetryAfter
	ErrDenied      = errors.New("collector denied access") // 401 or 403
	ErrNotFound    = errors.New("not found")
	ErrNoCohort    = errors.New("no such cohort")         // Wait: the release is known and has no such cohort. Never ErrNotFound, which may pass
	ErrNotModified = errors.New("not modified")           // GetHead: nothing newer came in time
	ErrFull        = errors.New("collector cannot write") // 507: its store has no space left
	ErrRefused     = errors.New("collector refused the request")
)

// StatusError is an answer that is not 2xx.
type StatusError struct {
	Status     int
	Message    string        // what the collector said, or the status text
	Next       string        // its hint
	Code       int           // exit code of the table
	RetryAfter time.Duration // 429 and 503
	kind       error
}

func (e *StatusError) Error() string { return fmt.Sprintf("%s: %s", e.kind, e.Message) }

// Unwrap gives the sentinel.
func (e *StatusError) Unwrap() error { return e.kind }

// ExitCode is the exit code of the table.
func (e *StatusError) ExitCode() int { return e.Code }

// Hint is the next step.
func (e *StatusError) Hint() string { return e.Next }

func statusError(resp *http.Response, body Error, ok bool) *StatusError {
	e := &StatusError{Status: resp.StatusCode, Message: body.Error, Next: body.Hint, Code: body.Code}
	switch {
	case resp.StatusCode == http.StatusUnauthorized, resp.StatusCode == http.StatusForbidden:
		e.kind = ErrDenied
		if e.Next == "" {
			e.Next = "check the token file, and what the collector's tokens_file allows it"
		}
		if e.Code == 0 {
			e.Code = 1
		}
	case resp.StatusCode == http.StatusNotFound && body.Reason == ReasonNoCohort:
		e.kind = ErrNoCohort
	case resp.StatusCode == http.StatusNotFound && ok:
		e.kind = ErrNotFound
	case resp.StatusCode == http.StatusTooManyRequests, resp.StatusCode == http.StatusServiceUnavailable:
		e.kind, e.Code, e.RetryAfter = ErrBusy, 5, retryAfter(resp.Header)
	case resp.StatusCode == http.StatusInsufficientStorage && ok:
		e.kind, e.Code = ErrFull, 7
	case resp.StatusCode >= 500:
		e.kind, e.Code = ErrUnreachable, 5
	case !ok:
		// Something answers there, but it is not a collector.
		e.kind, e.Code = ErrUnreachable, 5
		if e.Next == "" {
			e.Next = "check the collector's URL: what answers there does not speak its API"
		}
	default:
		e.kind = ErrRefused
	}
	if e.Message == "" {
		e.Message = fmt.Sprintf("status %d %s", resp.StatusCode, http.StatusText(resp.StatusCode))
	}
	if e.Code < 1 || e.Code > 255 {
		e.Code = 1
	}
	return e
}

// retryAfter reads the seconds form; a date is not sent by the collector.
func retryAfter(h http.Header) time.Duration {
	d, err := time.ParseDuration(h.Get("Retry-After") + "s")
	if err != nil || d < 0 {
		return 0
	}
	return min(d, time.Hour)
}

// connError is a request that got no answer.
type connError struct {
	base string
	err  error
}

func (e *connError) Error() string   { return fmt.Sprintf("%s at %s: %s", ErrUnreachable, e.base, e.err) }
func (e *connError) Unwrap() []error { return []error{ErrUnreachable, e.err} }

// ExitCode is that of "not reachable".
func (e *connError) ExitCode() int { return 5 }

// Hint is the next step.
func (e *connError) Hint() string {
	return "check that the collector runs and that its URL is right; hosts keep their configuration without it"
}

// usageError is a client that cannot be made as asked.
type usageError struct{ msg, hint string }

func (e *usageError) Error() string { return e.msg }

// ExitCode is that of a usage error.
func (e *usageError) ExitCode() int { return 2 }

// Hint is the next step.
func (e *usageError) Hint() string { return e.hint }
