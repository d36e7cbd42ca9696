// Package forge says on GitHub what muster found and did: a check, a comment, deployments, a status, a revert; and reads who proposed and approved a commit.
// The only importer of go-github; imports none of our packages: plain values in, plain values out.
//
// All of it is for people. Nothing that configures a host waits for GitHub or believes it, but where a fleet asks for approvals.
package forge

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"time"

	"github.com/google/go-github/v60/github"
)

// Defaults of Config.
const (
	DefaultAPI      = "https://api.github.com/"
	defaultTimeout  = 30 * time.Second
	defaultPatience = 3 * time.Minute
	maxHops         = 3 // redirects of one request
)

// Config is what a Client needs. One of Token and App authenticates.
type Config struct {
	API   string                 // base URL of the REST API; default DefaultAPI. Anything but https must be this machine
	Repo  string                 // owner/name
	Token func() (string, error) // read anew for each request, so that a new token needs no restart
	App   *App                   // in place of Token
	// Author is the login that this token writes comments as. Found out by itself if it is empty: an installation's token cannot ask who it is, and is then taken for
	// that of a workflow.
	Author string
	Agent  string // User-Agent; GitHub refuses requests without one. Default "muster"

	Timeout  time.Duration // of one request; default 30s
	Patience time.Duration // the longest that one call waits for limits and tries again, in all; default 3m

	Now       func() time.Time                                 // default time.Now
	Sleep     func(ctx context.Context, d time.Duration) error // default waits
	Transport http.RoundTripper                                // below all that; default http.DefaultTransport
}

// Client speaks to one repository. It sends one request at a time, as GitHub asks; see Aside. Safe for concurrent use.
type Client struct {
	owner, name string
	api         *github.Client
	wire        *transport
	author      string                // under wire.line.mu, as teams is
	teams       map[string]membership // "team\x00user"
}

var repoName = regexp.MustCompile(`^[A-Za-z0-9_.-]{1,100}/[A-Za-z0-9_.-]{1,100}$`)

// New makes a client. It sends nothing.
func New(cfg Config) (*Client, error) {
	if !repoName.MatchString(cfg.Repo) || strings.Contains(cfg.Repo, "..") {
		return nil, &Error{Op: "open the repository", Message: fmt.Sprintf("%.80q is not owner/name", cfg.Repo), kind: ErrInvalid}
	}
	base, err := baseURL(cfg.API)
	if err != nil {
		return nil, err
	}
	if (cfg.Token == nil) == (cfg.App == nil) {
		return nil, &Error{Op: "authenticate", Message: "give a token or an app, one of them", kind: ErrDenied}
	}
	if cfg.Timeout <= 0 {
		cfg.Timeout = defaultTimeout
	}
	if cfg.Patience <= 0 {
		cfg.Patience = defaultPatience
	}
	if cfg.Agent == "" {
		cfg.Agent = "muster"
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Sleep == nil {
		cfg.Sleep = sleep
	}
	if cfg.Transport == nil {
		cfg.Transport = http.DefaultTransport
	}
	c := &Client{author: cfg.Author, teams: map[string]membership{}}
	c.owner, c.name, _ = strings.Cut(cfg.Repo, "/")
	line := newLine(cfg)
	c.wire = &transport{line: line, base: base, token: cfg.Token, turn: make(chan struct{}, 1)}
	if cfg.App != nil {
		if err := cfg.App.parse(); err != nil {
			return nil, err
		}
		jwt := &transport{line: line, base: base, token: func() (string, error) { return cfg.App.jwt(cfg.Now()) }, turn: make(chan struct{}, 1)}
		c.wire.tokens = &installation{app: cfg.App, api: client(jwt, base, cfg.Agent), owner: c.owner, name: c.name, now: cfg.Now, turn: make(chan struct{}, 1)}
	}
	c.api = client(c.wire, base, cfg.Agent)
	return c, nil
}

// Aside is the same client with a turn of its own: its calls do not wait for those of c, which may take long over a limit. Limits, count and answers are shared.
func (c *Client) Aside() *Client {
	wire := *c.wire
	wire.turn = make(chan struct{}, 1)
	c.wire.line.mu.Lock()
	author := c.author
	c.wire.line.mu.Unlock()
	return &Client{owner: c.owner, name: c.name, wire: &wire, author: author, teams: map[string]membership{}, api: client(&wire, wire.base, c.api.UserAgent)}
}

// client is go-github over our transport, which does all the waiting, counting and bounding.
func client(t http.RoundTripper, base *url.URL, agent string) *github.Client {
	api := github.NewClient(&http.Client{Transport: t, CheckRedirect: func(req *http.Request, via []*http.Request) error { return followed(base, req, via) }})
	api.BaseURL, api.UserAgent = base, agent
	return api
}

// followed takes a redirect within the API, as GitHub answers with for a repository that was renamed, and no other: neither the token nor what is written goes elsewhere, what
// comes from elsewhere is not believed, and a request stays what it was.
// https://docs.github.com/en/rest/using-the-rest-api/best-practices-for-using-the-rest-api#follow-redirects
func followed(base *url.URL, req *http.Request, via []*http.Request) error {
	refuse := func(why string) error {
		return &Error{Message: why, Next: "check the address of the API and the repository's name", kind: ErrUnreachable}
	}
	switch {
	case req.URL.Host != base.Host || req.URL.Scheme != base.Scheme:
		return refuse("the API sends us to another host, where nobody is trusted")
	case req.Method != via[0].Method:
		return refuse(fmt.Sprintf("the API answers %s with a redirect that would lose it", via[0].Method))
	case len(via) > maxHops:
		return refuse("the API sends us on and on")
	}
	return nil
}

func baseURL(given string) (*url.URL, error) {
	if given == "" {
		given = DefaultAPI
	}
	u, err := url.Parse(strings.TrimSuffix(given, "/") + "/")
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return nil, &Error{Op: "open the API", Message: "its address is not an http or https URL without user and query", kind: ErrInvalid}
	}
	if ip := net.ParseIP(u.Hostname()); u.Scheme == "http" && u.Hostname() != "localhost" && (ip == nil || !ip.IsLoopback()) {
		return nil, &Error{Op: "open the API", Message: fmt.Sprintf("a token would go unprotected to %s; give it as https", u.Host), kind: ErrInvalid}
	}
	return u, nil
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}

// Repo is owner/name.
func (c *Client) Repo() string { return c.owner + "/" + c.name }

// Calls is what was sent to GitHub so far.
type Calls struct {
	Requests    int           // answered or not, each try counted
	NotModified int           // of those: answered by "not modified", which GitHub does not count
	Again       int           // of those: sent again after a limit or a failure
	Waited      time.Duration // for limits and between tries
}

// Calls counts what was sent so far.
func (c *Client) Calls() Calls { return c.wire.line.counted() }

// Sub is what was sent since before.
func (c Calls) Sub(before Calls) Calls {
	return Calls{c.Requests - before.Requests, c.NotModified - before.NotModified, c.Again - before.Again, c.Waited - before.Waited}
}

func (c Calls) String() string {
	s := fmt.Sprintf("%d requests to GitHub", c.Requests)
	if c.Requests == 1 {
		s = "1 request to GitHub"
	}
	if c.NotModified > 0 {
		s += fmt.Sprintf(", %d not modified", c.NotModified)
	}
	if c.Again > 0 {
		s += fmt.Sprintf(", %d of them again, waited %s", c.Again, c.Waited.Round(time.Second))
	}
	return s
}

// Errors; test with errors.Is.
var (
	ErrDenied      = errors.New("GitHub denied access")                  // the token has not the right: waiting does not help
	ErrNotFound    = errors.New("not there on GitHub")                   // or the token may not see it: GitHub does not tell which
	ErrInvalid     = errors.New("GitHub refused the request")            // 409, 422: what was asked
	ErrNoCommit    = fmt.Errorf("%w: not about this commit", ErrInvalid) // GitHub does not have it, or takes no more statuses of it: waiting does not help
	ErrLimited     = errors.New("GitHub's rate limit is used up")        // for longer than the caller's patience
	ErrUnreachable = errors.New("GitHub is not reachable")
	errLost        = errors.New("the answer was lost") // of a request that may have been done
	ErrConflict    = errors.New("conflict")            // a revert that people must make
)

// Error is a call that failed. It never holds a token.
type Error struct {
	Op      string    // "create the check run"
	Status  int       // 0: no answer
	Message string    // GitHub's, or what happened
	Next    string    // the next step
	Until   time.Time // ErrLimited: when to come back
	kind    error
}

func (e *Error) Error() string {
	if e.Status == 0 {
		return fmt.Sprintf("%s: %s: %s", e.Op, e.kind, e.Message)
	}
	return fmt.Sprintf("%s: %s: %s (status %d)", e.Op, e.kind, e.Message, e.Status)
}

// Unwrap gives the sentinel.
func (e *Error) Unwrap() error { return e.kind }

// ExitCode is the exit code of the table.
func (e *Error) ExitCode() int {
	if errors.Is(e.kind, ErrInvalid) && e.Status == 0 {
		return 2 // a setting
	}
	return 5
}

// Hint is the next step, or "".
func (e *Error) Hint() string { return e.Next }

// fail names the operation of an error that go-github gave, and sorts it.
func fail(op string, err error) error {
	if err == nil {
		return nil
	}
	var own *Error
	if errors.As(err, &own) {
		e := *own
		e.Op = op
		return &e
	}
	var said *github.ErrorResponse
	if errors.As(err, &said) && said.Response != nil {
		e := &Error{Op: op, Status: said.Response.StatusCode, Message: cutBytes(oneLine(saidBy(said)), maxSaid), kind: ErrInvalid}
		switch e.Status {
		case http.StatusUnauthorized:
			e.kind, e.Next = ErrDenied, "the token is wrong or has ended; give another one"
		case http.StatusForbidden:
			if strings.Contains(e.Message, "authenticate via a GitHub App") { // https://docs.github.com/en/rest/checks/runs#create-a-check-run
				e.kind, e.Next = ErrDenied, "GitHub takes checks from apps alone: use the workflow's own token or a GitHub App, no person's token"
				break
			}
			e.kind, e.Next = ErrDenied, "give the token or the app the right that docs/github.md names for this, and in a workflow name it under `permissions:`"
		case http.StatusNotFound:
			e.kind, e.Next = ErrNotFound, "check the repository's name, and that the token may see it: GitHub answers the same for what is hidden"
		}
		return e
	}
	if errors.Is(err, context.Canceled) {
		return fmt.Errorf("%s: %w", op, context.Canceled)
	}
	return &Error{Op: op, Message: cutBytes(oneLine(err.Error()), maxSaid), kind: ErrUnreachable}
}

// saidBy is GitHub's message with its list of errors.
func saidBy(e *github.ErrorResponse) string {
	text := e.Message
	for _, one := range e.Errors {
		what := one.Message
		if what == "" {
			what = strings.TrimSpace(one.Resource + " " + one.Field + " " + one.Code)
		}
		if what != "" {
			text += "; " + what
		}
	}
	if text == "" {
		text = http.StatusText(e.Response.StatusCode)
	}
	return text
}

// says reports whether GitHub's complaint holds a phrase.
func says(err error, phrase string) bool {
	var e *Error
	return errors.As(err, &e) && strings.Contains(strings.ToLower(e.Message), phrase)
}

// lost runs do, and runs it again when an answer was lost: do must find what it made before.
func lost(do func() error) error {
	var err error
	for range 3 {
		if err = do(); !errors.Is(err, errLost) {
			return err
		}
	}
	var e *Error
	if errors.As(err, &e) {
		e.kind = ErrUnreachable
	}
	return err
}
