// Package forgetest is a GitHub for tests: an HTTP server on loopback that refuses what GitHub refuses, each rule with the page that says so, reads requests with go-github's
// own types and nothing that they do not have, and records every call.
package forgetest

import (
	"bytes"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-github/v60/github"
)

// Repo is the repository there is.
const Repo = "acme/config"

// Pages that say what is enforced.
const (
	docRates     = "https://docs.github.com/en/rest/using-the-rest-api/rate-limits-for-the-rest-api"
	docPaging    = "https://docs.github.com/en/rest/using-the-rest-api/using-pagination-in-the-rest-api"
	docAuth      = "https://docs.github.com/en/rest/authentication/authenticating-to-the-rest-api"
	docTrouble   = "https://docs.github.com/en/rest/using-the-rest-api/troubleshooting-the-rest-api"
	docUserAgent = "https://docs.github.com/en/rest/using-the-rest-api/getting-started-with-the-rest-api#user-agent"
)

// Call is a request as it came, and the status it got.
type Call struct {
	Method, Path string
	Query        url.Values
	Header       http.Header
	Body         []byte
	Status       int
	At           time.Time
}

// String is "POST /repos/acme/config/check-runs 201".
func (c Call) String() string { return fmt.Sprintf("%s %s %d", c.Method, c.Path, c.Status) }

// Token is who holds one, and what it may do: "checks", "contents", "deployments", "issues", "pull_requests", "statuses", "members" → "read" or "write".
// https://docs.github.com/en/rest/authentication/permissions-required-for-github-apps
type Token struct {
	Login        string
	Installation bool // belongs to no person: GET /user is refused
	May          map[string]string
	Ends         time.Time
}

// All is what muster needs at most.
func All() map[string]string {
	return map[string]string{"checks": "write", "contents": "write", "deployments": "write", "issues": "write", "pull_requests": "write", "statuses": "write", "members": "read", "metadata": "read"}
}

// Reply is an answer in place of GitHub's own.
type Reply struct {
	Status int
	Header map[string]string
	Body   string
	Cut    bool // the connection is cut without an answer
	Done   bool // the request is done before: only its answer is another one
}

// Server is the fake. Set what is exported before the first request.
type Server struct {
	*httptest.Server
	Now    func() time.Time
	Before func(Call) *Reply // nil: GitHub's own answer. It may change what is there
	Git    string            // a bare repository behind the git data API
	Limit  int               // requests in an hour: the primary limit; default 5000

	mu     sync.Mutex
	t      testing.TB
	mux    *http.ServeMux
	tokens map[string]Token
	app    *rsa.PublicKey
	appID  string
	calls  []Call
	used   int
	reset  time.Time
	writes []time.Time // of content
	points []point
	nextID int64

	checks      []*Check
	comments    map[int][]*github.IssueComment
	deployments []*Deployment
	statuses    map[string][]*github.RepoStatus // the newest last
	pulls       []*github.PullRequest
	commits     map[string][]int // commit → pull requests
	reviews     map[int][]*github.PullRequestReview
	permissions map[string]string
	teams       map[string][]string
	made        map[string]Made // by commit
}

type point struct {
	at time.Time
	n  int
}

// New starts a server that ends with the test.
func New(t testing.TB) *Server {
	s := &Server{
		t: t, Now: time.Now, Limit: 5000, tokens: map[string]Token{}, nextID: 1000, comments: map[int][]*github.IssueComment{}, statuses: map[string][]*github.RepoStatus{},
		commits: map[string][]int{}, reviews: map[int][]*github.PullRequestReview{}, permissions: map[string]string{}, teams: map[string][]string{}, made: map[string]Made{},
	}
	s.mux = http.NewServeMux()
	s.routes()
	s.Server = httptest.NewServer(s)
	t.Cleanup(s.Close)
	return s
}

// Allow makes a token good.
func (s *Server) Allow(token string, is Token) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tokens[token] = is
}

// Calls are those that came so far.
func (s *Server) Calls() []Call {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.calls)
}

// Forget begins the record anew.
func (s *Server) Forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls = nil
}

// ServeHTTP answers one request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(io.LimitReader(r.Body, 32<<20))
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	call := Call{Method: r.Method, Path: r.URL.Path, Query: r.URL.Query(), Header: r.Header.Clone(), Body: body, At: s.Now()}
	var reply *Reply
	if s.Before != nil {
		reply = s.Before(call)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	rec := httptest.NewRecorder()
	if reply == nil || reply.Done {
		r.Body = io.NopCloser(bytes.NewReader(body))
		s.answer(rec, r)
	}
	if reply != nil {
		rec = httptest.NewRecorder()
		for k, v := range reply.Header {
			rec.Header().Set(k, v)
		}
		if reply.Status == 0 {
			reply.Status = http.StatusBadGateway
		}
		rec.WriteHeader(reply.Status)
		rec.WriteString(reply.Body) //nolint:errcheck // who asked has gone
	}
	call.Status = rec.Code
	if reply != nil && reply.Cut {
		call.Status = 0
	}
	s.calls = append(s.calls, call)
	if reply != nil && reply.Cut {
		panic(http.ErrAbortHandler)
	}
	for k, v := range rec.Header() {
		w.Header()[k] = v
	}
	w.WriteHeader(rec.Code)
	w.Write(rec.Body.Bytes()) //nolint:errcheck // who asked has gone
}

// answer applies the rules that hold for all requests, then those of the route.
func (s *Server) answer(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("User-Agent") == "" || strings.HasPrefix(r.Header.Get("User-Agent"), "Go-http-client") { // docUserAgent
		s.refuse(w, http.StatusForbidden, "Request forbidden by administrative rules. Please make sure your request has a User-Agent header", docUserAgent)
		return
	}
	s.count(w, r)
	if s.used > s.Limit { // docRates: 403 or 429, x-ratelimit-remaining 0
		s.refuse(w, http.StatusForbidden, "API rate limit exceeded for user ID 1.", docRates+"#primary-rate-limits")
		return
	}
	if what := s.secondary(r); what != "" {
		s.refuse(w, http.StatusForbidden, "You have exceeded a secondary rate limit. "+what, docRates+"#about-secondary-rate-limits")
		return
	}
	if _, pattern := s.mux.Handler(r); pattern == "" {
		s.t.Errorf("no such route: %s %s", r.Method, r.URL.Path)
	}
	rec := httptest.NewRecorder()
	s.mux.ServeHTTP(rec, r)
	for k, v := range rec.Header() {
		w.Header()[k] = v
	}
	// https://docs.github.com/en/rest/using-the-rest-api/best-practices-for-using-the-rest-api#use-conditional-requests-if-appropriate
	if r.Method == http.MethodGet && rec.Code == http.StatusOK {
		sum := sha256.Sum256(append([]byte(r.URL.String()), rec.Body.Bytes()...))
		tag := `W/"` + hex.EncodeToString(sum[:]) + `"`
		w.Header().Set("ETag", tag)
		if r.Header.Get("If-None-Match") == tag {
			s.used-- // a 304 does not count against the primary limit
			s.head(w)
			w.WriteHeader(http.StatusNotModified)
			return
		}
	}
	w.WriteHeader(rec.Code)
	w.Write(rec.Body.Bytes()) //nolint:errcheck // who asked has gone
}

func (s *Server) count(w http.ResponseWriter, _ *http.Request) {
	if now := s.Now(); !now.Before(s.reset) {
		s.used, s.reset = 0, now.Add(time.Hour)
	}
	s.used++
	s.head(w)
}

func (s *Server) head(w http.ResponseWriter) {
	w.Header().Set("X-RateLimit-Limit", strconv.Itoa(s.Limit))
	w.Header().Set("X-RateLimit-Remaining", strconv.Itoa(max(0, s.Limit-s.used)))
	w.Header().Set("X-RateLimit-Reset", strconv.FormatInt(s.reset.Unix(), 10))
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
}

// secondary are the limits beside the hourly one; docRates#about-secondary-rate-limits: 900 points a minute (a read is 1, a write 5), and 80 requests a minute and 500 an hour
// that make content.
func (s *Server) secondary(r *http.Request) string {
	now := s.Now()
	cost := 1
	if r.Method != http.MethodGet {
		cost = 5
		s.writes = append(s.writes, now)
	}
	s.points = append(s.points, point{now, cost})
	sum := 0
	for _, p := range s.points {
		if now.Sub(p.at) < time.Minute {
			sum += p.n
		}
	}
	minute, hour := 0, 0
	for _, at := range s.writes {
		if now.Sub(at) < time.Minute {
			minute++
		}
		if now.Sub(at) < time.Hour {
			hour++
		}
	}
	switch {
	case sum > 900:
		return "More than 900 points in a minute."
	case minute > 80:
		return "More than 80 content requests in a minute."
	case hour > 500:
		return "More than 500 content requests in an hour."
	}
	return ""
}

// route adds a handler behind authentication.
func (s *Server) route(pattern, right, level string, h func(w http.ResponseWriter, r *http.Request, who Token)) {
	s.mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
		word, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		who, known := s.tokens[word]
		switch {
		case !ok || !known || !who.Ends.IsZero() && !s.Now().Before(who.Ends): // docAuth
			s.refuse(w, http.StatusUnauthorized, "Bad credentials", docAuth)
			return
		case r.PathValue("owner") != "" && r.PathValue("owner")+"/"+r.PathValue("repo") != Repo:
			s.refuse(w, http.StatusNotFound, "Not Found", docTrouble+"#404-not-found-for-an-existing-resource")
			return
		case !who.may(right, level): // docTrouble
			s.refuse(w, http.StatusForbidden, "Resource not accessible by integration", docTrouble+"#resource-not-accessible")
			return
		}
		h(w, r, who)
	})
}

// may reports whether a token has a right, or one of several: "issues|pull_requests".
func (t Token) may(right, level string) bool {
	if right == "" {
		return true
	}
	for one := range strings.SplitSeq(right, "|") {
		if t.May[one] == "write" || level == "read" && t.May[one] == "read" {
			return true
		}
	}
	return false
}

func (s *Server) routes() {
	s.route("GET /user", "", "", func(w http.ResponseWriter, r *http.Request, who Token) {
		if who.Installation {
			s.refuse(w, http.StatusForbidden, "Resource not accessible by integration", docTrouble)
			return
		}
		s.give(w, http.StatusOK, github.User{Login: github.String(who.Login), ID: github.Int64(userID(who.Login))})
	})
	s.appRoutes()
	s.checkRoutes()
	s.commentRoutes()
	s.deployRoutes()
	s.pullRoutes()
	s.gitRoutes()
	s.commitRoutes()
}

// give writes JSON.
func (s *Server) give(w http.ResponseWriter, status int, v any) {
	data, err := json.Marshal(v)
	if err != nil {
		s.t.Errorf("encode an answer: %v", err)
	}
	w.WriteHeader(status)
	w.Write(data) //nolint:errcheck // who asked has gone
}

func (s *Server) refuse(w http.ResponseWriter, status int, message, doc string) {
	s.give(w, status, map[string]string{"message": message, "documentation_url": doc})
}

// invalid is a 422 with a list of errors: docTrouble#validation-failed.
func (s *Server) invalid(w http.ResponseWriter, doc string, errs ...github.Error) {
	s.give(w, http.StatusUnprocessableEntity, map[string]any{"message": "Validation Failed", "errors": errs, "documentation_url": doc})
}

// read decodes a request with go-github's type, and refuses what that does not have.
func (s *Server) read(w http.ResponseWriter, r *http.Request, into any) bool {
	d := json.NewDecoder(r.Body)
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		s.t.Errorf("%s %s: not what go-github sends: %v", r.Method, r.URL.Path, err)
		s.refuse(w, http.StatusBadRequest, "Problems parsing JSON", docTrouble)
		return false
	}
	return true
}

// page gives a part of a list; docPaging: 30 a page unless asked, 100 at most, the next one in the header Link.
func page[T any](s *Server, w http.ResponseWriter, r *http.Request, list []T, wrap func([]T) any) {
	size, number := 30, 1
	if n, err := strconv.Atoi(r.URL.Query().Get("per_page")); err == nil && n > 0 {
		size = min(n, 100)
	}
	if n, err := strconv.Atoi(r.URL.Query().Get("page")); err == nil && n > 0 {
		number = n
	}
	from := min(len(list), (number-1)*size)
	to := min(len(list), from+size)
	if to < len(list) {
		q := r.URL.Query()
		q.Set("page", strconv.Itoa(number+1))
		w.Header().Set("Link", fmt.Sprintf(`<%s%s?%s>; rel="next"`, s.URL, r.URL.Path, q.Encode()))
	}
	out := append([]T{}, list[from:to]...)
	if wrap != nil {
		s.give(w, http.StatusOK, wrap(out))
		return
	}
	s.give(w, http.StatusOK, out)
}

func (s *Server) id() int64 { s.nextID++; return s.nextID }

func number(r *http.Request, name string) int64 {
	n, _ := strconv.ParseInt(r.PathValue(name), 10, 64)
	return n
}

func userID(login string) int64 {
	sum := sha256.Sum256([]byte(login))
	return int64(sum[0])<<8 | int64(sum[1])
}

func (s *Server) stamp() *github.Timestamp { return &github.Timestamp{Time: s.Now().UTC()} }
