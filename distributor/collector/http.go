package collector

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"mime"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/muster-config/muster/distributor/api"
	"github.com/muster-config/muster/distributor/store"
	"github.com/muster-config/muster/distributor/wire"
)

// Deadlines of a request. Only long polls and objects move them.
const (
	requestTime = 30 * time.Second
	chunkTime   = 30 * time.Second // for each piece of an object
	chunkBytes  = 256 << 10
	shutdown    = 4 * time.Second
	maxHeader   = 16 << 10
)

// sameOrigin tells what a browser sends for a page of another site. What no browser sends passes.
var sameOrigin http.CrossOriginProtection

// need is what a path asks of its caller.
type need int

const (
	anybody need = iota
	anAgent
	aPerson
	eitherOne
	anOperator
)

// Handler is the HTTP API.
func (c *Collector) Handler() http.Handler {
	mux := http.NewServeMux()
	handle := func(pattern string, n need, h func(w http.ResponseWriter, r *http.Request, who caller) error) {
		mux.Handle(pattern, c.wrap(n, h))
	}
	handle("POST "+api.PathReports, anAgent, c.postReports)
	handle("GET "+api.PathHeads+"{cohort}", eitherOne, c.getHead)
	handle("PUT "+api.PathHeads+"{cohort}", anOperator, c.putHead)
	handle("GET "+api.PathObjects+"{key...}", eitherOne, c.getObject)
	handle("PUT "+api.PathObjects+"{key...}", anOperator, c.putObject)
	handle("POST "+api.PathOverrides, anOperator, c.postOverride)
	handle("GET "+api.PathCohorts, aPerson, func(w http.ResponseWriter, _ *http.Request, who caller) error { return answer(w, c.status(who)) })
	handle("GET "+api.PathCohorts+"/{cohort}", aPerson, c.getCohort)
	handle("GET "+api.PathCohorts+"/{cohort}/observed", aPerson, c.getObserved)
	handle("POST "+api.PathCohorts+"/{cohort}/{act}", anOperator, c.postAct)
	handle("GET "+api.PathHosts, aPerson, c.getHosts)
	handle("GET "+api.PathHosts+"/{host}", aPerson, c.getHost)
	handle("POST "+api.PathHosts+"/{change}", anOperator, c.postHosts)
	handle("GET "+api.PathReleases, aPerson, func(w http.ResponseWriter, _ *http.Request, who caller) error { return answer(w, c.listReleases(who)) })
	handle("GET "+api.PathReleases+"/{epoch}", aPerson, c.getRelease)
	handle("GET "+api.PathWait+"{epoch}", aPerson, c.getWait)
	handle("GET "+api.PathEvents, aPerson, c.getEvents)
	handle("GET "+api.PathMetrics, aPerson, c.getMetrics)
	handle("GET "+api.PathHealth, anybody, func(w http.ResponseWriter, _ *http.Request, _ caller) error {
		return answer(w, map[string]string{"status": "ok"})
	})
	handle("GET "+api.PathReady, anybody, c.getReady)
	c.handlePages(mux)
	handle("/", anybody, func(_ http.ResponseWriter, r *http.Request, _ caller) error {
		return refuse(http.StatusNotFound, "the API begins with /v1/, and the page is at /", "%s %.200q: nothing is here", r.Method, r.URL.Path)
	})
	return mux
}

// wrap checks who calls, bounds how much runs at once, and answers errors.
func (c *Collector) wrap(n need, h func(w http.ResponseWriter, r *http.Request, who caller) error) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Content-Type-Options", "nosniff")
		w.Header().Set("Cache-Control", "no-store")
		if err := c.guard(w, r, n, h); err != nil {
			c.refuse(w, r, err)
		}
	})
}

func (c *Collector) guard(w http.ResponseWriter, r *http.Request, n need, h func(w http.ResponseWriter, r *http.Request, who caller) error) error {
	// Without tokens the address protects: a page in a browser on this machine must not be led here under another name.
	if c.tokens.Load() == nil && !loopbackHost(hostOnly(r.Host)) {
		return refuse(http.StatusForbidden, "use 127.0.0.1, or set tokens_file", "without tokens only this machine is answered, by its loopback address")
	}
	// Nor may a page of another site have a browser send what changes something, whoever is signed in or needs no token.
	if err := sameOrigin.Check(r); err != nil {
		return refuse(http.StatusForbidden, "use the muster command, or the collector's own page", "a page of another site sent this: %w", err)
	}
	if err := checkContentType(r); err != nil {
		return err
	}
	if r.Header.Get("Content-Encoding") != "" {
		return refuse(http.StatusBadRequest, "send it plain", "compressed bodies are not read")
	}
	slots := c.parallel
	if waits(r) {
		slots = c.longPolls
	}
	select {
	case slots <- struct{}{}:
		defer func() { <-slots }()
	default:
		c.count.busy.Add(1)
		return errBusy
	}
	if n == anybody {
		return h(w, r, caller{})
	}
	who, known := c.identify(r)
	switch {
	case !known:
		if err := c.unknownToken(w, r); err != nil {
			return err
		}
		w.Header().Set("WWW-Authenticate", `Bearer realm="muster"`)
		return refuse(http.StatusUnauthorized, "send a token that the collector's tokens_file has", "no token, or one that the collector does not know")
	case n == anAgent && !who.agent:
		return refuse(http.StatusForbidden, "", "this needs the token of an agent")
	case n == aPerson && !who.person:
		return refuse(http.StatusForbidden, "", "this needs the token of a person")
	case n == anOperator && !who.hand:
		return refuse(http.StatusForbidden, "", "this needs the token of a person with the role %s", RoleOperator)
	}
	if waits(r) {
		var done func()
		r, done = c.stays(r, who)
		defer done()
	}
	err := h(w, r, who)
	if err != nil && errors.Is(context.Cause(r.Context()), errRevoked) {
		return refuse(http.StatusUnauthorized, "send a token that the collector's tokens_file has", "%w", errRevoked)
	}
	return err
}

// checkContentType demands of what changes something through the API that it says that it is JSON: a form of a page of another site cannot say so, whatever else its browser leaves out.
func checkContentType(r *http.Request) error {
	if r.Method == http.MethodGet || r.Method == http.MethodHead || !strings.HasPrefix(r.URL.Path, "/v1/") {
		return nil
	}
	said, want := r.Header.Get("Content-Type"), "application/json"
	if r.Method == http.MethodPut && strings.HasPrefix(r.URL.Path, api.PathObjects) {
		want = "application/octet-stream" // no form can say that either
	}
	if kind, _, err := mime.ParseMediaType(said); err == nil && kind == want {
		return nil
	}
	return refuse(http.StatusUnsupportedMediaType, "send the header Content-Type: "+want, "the body is said to be %.80q, and only %s is read", said, want)
}

// waits says whether a request may stay for long.
func waits(r *http.Request) bool {
	return r.Method == http.MethodGet && (r.URL.Path == api.PathEvents || r.URL.Query().Get("wait") != "")
}

func hostOnly(hostport string) string {
	host, _, err := net.SplitHostPort(hostport)
	if err != nil {
		return hostport
	}
	return host
}

func fromLoopback(r *http.Request) bool { return loopbackHost(hostOnly(r.RemoteAddr)) }

// refuse answers an error.
func (c *Collector) refuse(w http.ResponseWriter, r *http.Request, err error) {
	var re *requestError
	body := api.Error{Error: err.Error(), Code: 1}
	status := http.StatusInternalServerError
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &re):
		status, body.Hint, body.Reason = re.status, re.hint, re.reason
	case errors.As(err, &tooLarge):
		status = http.StatusRequestEntityTooLarge
		body.Error = fmt.Sprintf("the body is larger than %d bytes", tooLarge.Limit)
	case errors.Is(err, store.ErrNotFound), errors.Is(err, api.ErrNotFound):
		status = http.StatusNotFound
	case errors.Is(err, errEnding):
		status = http.StatusServiceUnavailable
	case errors.Is(err, store.ErrUnreachable), errors.Is(err, store.ErrDenied), errors.Is(err, errDamaged):
		status = http.StatusBadGateway
	case errors.Is(err, store.ErrFull):
		status = http.StatusInsufficientStorage
		body.Code = 7
	case r.Context().Err() != nil:
		return // nobody is there to read it
	}
	switch status {
	case http.StatusServiceUnavailable, http.StatusBadGateway:
		body.Code = 5
	case http.StatusBadRequest, http.StatusUnsupportedMediaType:
		body.Code = 2
	case http.StatusInternalServerError:
		body.Code = 7
		c.log.Error("request", "method", r.Method, "path", r.URL.Path, "err", err)
	}
	if re != nil && re.code != 0 {
		body.Code = re.code
	}
	if status == http.StatusServiceUnavailable {
		// Spread, so that who was turned away does not come back as one.
		w.Header().Set("Retry-After", strconv.Itoa(1+rand.IntN(5)))
	}
	data, encErr := wire.Encode(body)
	if encErr != nil {
		http.Error(w, http.StatusText(http.StatusInternalServerError), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	send(w, append(data, '\n'))
}

// answer writes v as JSON; nil lists and maps are empty ones.
func answer(w http.ResponseWriter, v any) error {
	data, err := wire.Encode(v)
	if err != nil {
		return fmt.Errorf("encode the answer: %w", err)
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(data)+1))
	send(w, append(data, '\n'))
	return nil
}

// send writes a body. Who went away does not need it, and net/http ends what is left of the request.
func send(w http.ResponseWriter, data []byte) { _, _ = w.Write(data) }

// body reads a body of at most limit bytes.
func body(w http.ResponseWriter, r *http.Request, limit int64) ([]byte, error) {
	if r.ContentLength > limit {
		return nil, &http.MaxBytesError{Limit: limit}
	}
	data, err := io.ReadAll(http.MaxBytesReader(w, r.Body, limit))
	var tooLarge *http.MaxBytesError
	if err != nil && !errors.As(err, &tooLarge) {
		return nil, refuse(http.StatusBadRequest, "", "read the body: %w", err)
	}
	return data, err
}

// Serve answers on a listener until ctx ends, then lets what runs come to its end for a moment. It closes the listener.
func (c *Collector) Serve(ctx context.Context, ln net.Listener) error {
	// Who waits is let go at once when ctx ends: their requests end with it.
	polls, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	srv := &http.Server{
		Handler: c.Handler(), ReadHeaderTimeout: 10 * time.Second, ReadTimeout: requestTime, WriteTimeout: requestTime, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: maxHeader,
		BaseContext: func(net.Listener) context.Context { return polls },
	}
	done := make(chan error, 1)
	go func() { done <- srv.Serve(ln) }()
	select {
	case err := <-done:
		return fmt.Errorf("serve: %w", err)
	case <-ctx.Done():
	}
	stop()
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdown)
	defer cancel()
	err := srv.Shutdown(grace)
	if errors.Is(err, context.DeadlineExceeded) {
		err = srv.Close() // somebody held a connection open; nothing is lost
	}
	if serveErr := <-done; !errors.Is(serveErr, http.ErrServerClosed) {
		err = errors.Join(err, serveErr)
	}
	return err
}
