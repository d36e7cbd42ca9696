package forge

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"
)

// Bounds.
const (
	maxAnswer   = 16 << 20 // of one answer: a list of a whole tree is at most 7 MB
	maxCached   = 1 << 20  // of one answer that is kept for a conditional request
	maxKept     = 128      // answers kept
	tries       = 4        // of a request that may be sent again
	burst       = 20       // writes a minute that go without a pause between them
	secondLimit = 60 * time.Second
	longestStop = 2 * time.Hour // that a limit is believed: GitHub's own are over within one
)

// line is what all requests to one GitHub share: the order, the limits, the count and the answers kept. GitHub asks for one request at a time and for a second between
// writes when there are many: https://docs.github.com/en/rest/using-the-rest-api/best-practices-for-using-the-rest-api
type line struct {
	timeout, patience time.Duration
	now               func() time.Time
	sleep             func(ctx context.Context, d time.Duration) error
	below             http.RoundTripper

	mu     sync.Mutex
	calls  Calls
	until  time.Time // a limit is used up until then
	writes []time.Time
	kept   map[string]*answer
	order  []string

	secrets []string // see hide
}

func newLine(cfg Config) *line {
	return &line{
		timeout: cfg.Timeout, patience: cfg.Patience, now: cfg.Now, sleep: cfg.Sleep, below: cfg.Transport,
		kept: map[string]*answer{},
	}
}

func (l *line) counted() Calls {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.calls
}

// answer is one that was read to its end.
type answer struct {
	status int
	header http.Header
	body   []byte
}

func (a *answer) response(req *http.Request) *http.Response {
	h := a.header.Clone()
	// go-github keeps its own account of limits, by the wall clock and without waiting. Answers that seem to come from a cache are not in it.
	h.Set("X-From-Cache", "1")
	return &http.Response{
		Status: fmt.Sprintf("%d %s", a.status, http.StatusText(a.status)), StatusCode: a.status, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: h, Body: io.NopCloser(bytes.NewReader(a.body)), ContentLength: int64(len(a.body)), Request: req,
	}
}

// sane refuses a success that holds nothing, or more or less than one value: what go-github makes of "null", or of a list with a null in it, are pointers to nowhere, and it
// reads no further than the end of the first value.
func (a *answer) sane(method string) error {
	if a.status < 200 || a.status > 299 || method == http.MethodDelete {
		return nil
	}
	bad := a.status != http.StatusOK && a.status != http.StatusCreated
	switch data := bytes.TrimSpace(a.body); {
	case !json.Valid(data):
		bad = true
	case bytes.HasPrefix(data, []byte("{")):
	case bytes.HasPrefix(data, []byte("[")):
		var list []*json.RawMessage
		bad = bad || json.Unmarshal(data, &list) == nil && slices.Contains(list, nil)
	default:
		bad = true
	}
	if !bad {
		return nil
	}
	return &Error{Message: fmt.Sprintf("the answer (status %d) is none that GitHub gives: %.40q", a.status, oneLine(string(a.body[:min(len(a.body), 80)]))), Next: "look at the server behind --github-api", kind: ErrUnreachable}
}

// transport sends go-github's requests. It is the only layer that tries again.
type transport struct {
	line   *line
	base   *url.URL
	token  func() (string, error)
	tokens *installation // in place of token
	turn   chan struct{} // one request at a time
}

type repeatable struct{}

// again marks requests that may be sent a second time although the first may have been done: what they make is the same then.
func again(ctx context.Context) context.Context { return context.WithValue(ctx, repeatable{}, true) }

type hurried struct{}

// Hurry marks calls that do not wait for a limit: one that is known ends them at once, with ErrLimited.
func Hurry(ctx context.Context) context.Context { return context.WithValue(ctx, hurried{}, true) }

// RoundTrip sends a request, waits where GitHub says so, and tries again what may be tried again.
func (t *transport) RoundTrip(req *http.Request) (*http.Response, error) {
	ctx := req.Context()
	var body []byte
	if req.Body != nil {
		var err error
		body, err = io.ReadAll(req.Body)
		req.Body.Close()
		if err != nil {
			return nil, err
		}
	}
	// The token first: getting one may itself take a turn.
	token, err := t.credential(ctx)
	if err != nil {
		return nil, err
	}
	select {
	case t.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	defer func() { <-t.turn }()
	return t.send(req, body, token)
}

func (t *transport) send(req *http.Request, body []byte, token string) (*http.Response, error) {
	l, ctx := t.line, req.Context()
	begin := l.now()
	safe := req.Method == http.MethodGet || req.Method == http.MethodHead || req.Method == http.MethodDelete || req.Method == http.MethodPut || ctx.Value(repeatable{}) != nil
	wait := l.pace(req.Method)
	limited, what := false, ""
	hurry := ctx.Value(hurried{}) != nil
	for try := 0; ; try++ {
		if wait > 0 {
			if past := l.now().Add(wait).Sub(begin); past > l.patience || hurry && (limited || try == 0) {
				if limited || try == 0 {
					return nil, &Error{Message: fmt.Sprintf("it asks to come back at %s%s", l.now().Add(wait).UTC().Format(time.RFC3339), what), Until: l.now().Add(wait), Next: "hosts keep their configuration without GitHub; try again after that", kind: ErrLimited}
				}
				return nil, &Error{Message: strings.TrimPrefix(what, ": "), kind: ErrUnreachable}
			}
			if err := l.rest(ctx, wait); err != nil {
				return nil, err
			}
		}
		told := time.Duration(0) // how long the server asks to be left alone
		got, err := t.once(req, body, token, try > 0)
		if err == nil {
			if wait, limited = l.limit(got, try); limited {
				what = ": " + cutBytes(oneLine(message(got.body)), maxSaid)
				continue // not done: GitHub refused it before
			}
			if got.status < 500 {
				if err := got.sane(req.Method); err != nil {
					return nil, err
				}
				l.keep(req, got)
				return got.response(req), nil
			}
			what = fmt.Sprintf(": status %d %s", got.status, http.StatusText(got.status))
			told = min(retryAfter(got.header.Get("Retry-After"), l.now()), longestStop)
		} else {
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			var own *Error
			if errors.As(err, &own) {
				return nil, err
			}
			what = ": " + cutBytes(string(l.hidden([]byte(bare(err)), false)), maxSaid)
		}
		kind := ErrUnreachable
		switch {
		case !safe:
			kind = errLost
		case try+1 < tries:
			limited = false
			wait = max(told, time.Second<<try+rand.N(time.Second/2))
			continue
		}
		return nil, &Error{Message: strings.TrimPrefix(what, ": "), Next: "hosts keep their configuration without GitHub; try again once it answers", kind: kind}
	}
}

// once sends a request one time and reads the answer to its end.
func (t *transport) once(req *http.Request, body []byte, token string, repeated bool) (*answer, error) {
	l := t.line
	ctx, cancel := context.WithTimeout(req.Context(), l.timeout)
	defer cancel()
	r := req.Clone(ctx)
	r.Body, r.ContentLength = http.NoBody, 0
	if len(body) > 0 {
		r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	}
	l.hide(token)
	// Whatever made the address: no other place gets the token.
	if r.URL.Host == t.base.Host && r.URL.Scheme == t.base.Scheme && token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	had := l.had(req)
	if had != nil {
		r.Header.Set("If-None-Match", had.header.Get("ETag"))
	}
	l.mu.Lock()
	l.calls.Requests++
	if repeated {
		l.calls.Again++
	}
	l.mu.Unlock()
	resp, err := l.below.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	if err != nil {
		return nil, err
	}
	if len(data) > maxAnswer {
		return nil, &Error{Status: resp.StatusCode, Message: fmt.Sprintf("the answer is larger than %d MiB", maxAnswer>>20), kind: ErrUnreachable}
	}
	if resp.StatusCode == http.StatusNotModified && had != nil {
		l.mu.Lock()
		l.calls.NotModified++
		l.mu.Unlock()
		return had, nil
	}
	if resp.StatusCode == http.StatusUnauthorized && t.tokens != nil && !repeated {
		t.tokens.forget(token) // the next call gets another one
	}
	return &answer{resp.StatusCode, l.hiddenHeader(resp.Header), l.hidden(data, resp.StatusCode >= 400)}, nil
}

// credential is the token to send.
func (t *transport) credential(ctx context.Context) (string, error) {
	if t.tokens != nil {
		return t.tokens.token(ctx)
	}
	token, err := t.token()
	if err != nil {
		return "", &Error{Message: oneLine(err.Error()), kind: ErrDenied}
	}
	if strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return "", &Error{Message: "the token holds characters that no token has", kind: ErrDenied}
	}
	return token, nil
}

func (l *line) rest(ctx context.Context, d time.Duration) error {
	l.mu.Lock()
	l.calls.Waited += d
	l.mu.Unlock()
	return l.sleep(ctx, d)
}

// pace is how long to wait before a request is sent at all: for the primary limit to come back, and between many writes.
func (l *line) pace(method string) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now()
	wait := max(0, l.until.Sub(now))
	if method == http.MethodGet || method == http.MethodHead {
		return wait
	}
	recent := l.writes[:0]
	for _, at := range l.writes {
		if now.Sub(at) < time.Minute {
			recent = append(recent, at)
		}
	}
	l.writes = append(recent, now.Add(wait))
	if n := len(l.writes); n > burst {
		wait = max(wait, time.Second-now.Sub(l.writes[n-2]))
		l.writes[n-1] = now.Add(wait)
	}
	return wait
}

// keep remembers an answer for a conditional request, and forgets the oldest.
func (l *line) keep(req *http.Request, a *answer) {
	if req.Method != http.MethodGet || a.status != http.StatusOK || a.header.Get("ETag") == "" || len(a.body) > maxCached {
		return
	}
	key := req.URL.String()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.kept[key] == nil {
		l.order = append(l.order, key)
		if len(l.order) > maxKept {
			delete(l.kept, l.order[0])
			l.order = l.order[1:]
		}
	}
	// Headers may be long, and these are what an answer from here is read by.
	l.kept[key] = &answer{a.status, http.Header{"Etag": a.header["Etag"], "Link": a.header["Link"], "Content-Type": a.header["Content-Type"]}, a.body}
}

func (l *line) had(req *http.Request) *answer {
	if req.Method != http.MethodGet {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.kept[req.URL.String()]
}

// bare is an error of the network without the address that it repeats.
func bare(err error) string {
	var ue *url.Error
	if errors.As(err, &ue) {
		err = ue.Err
	}
	return oneLine(err.Error())
}
