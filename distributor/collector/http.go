package collector

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/muster-config/muster/distributor/api"
	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/report"
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
	handle("GET "+api.PathCohorts, aPerson, func(w http.ResponseWriter, _ *http.Request, who caller) error { return answer(w, c.status(who)) })
	handle("GET "+api.PathCohorts+"/{cohort}", aPerson, c.getCohort)
	handle("GET "+api.PathHosts, aPerson, c.getHosts)
	handle("GET "+api.PathHosts+"/{host}", aPerson, c.getHost)
	handle("GET "+api.PathReleases, aPerson, func(w http.ResponseWriter, _ *http.Request, who caller) error { return answer(w, c.listReleases(who)) })
	handle("GET "+api.PathReleases+"/{epoch}", aPerson, c.getRelease)
	handle("GET "+api.PathWait+"{epoch}", aPerson, c.getWait)
	handle("GET "+api.PathHealth, anybody, func(w http.ResponseWriter, _ *http.Request, _ caller) error {
		return answer(w, map[string]string{"status": "ok"})
	})
	handle("GET "+api.PathReady, anybody, c.getReady)
	handle("/", anybody, func(_ http.ResponseWriter, r *http.Request, _ caller) error {
		return refuse(http.StatusNotFound, "the API begins with /v1/", "%s %.200q: nothing is here", r.Method, r.URL.Path)
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
	if c.tokens == nil && !loopbackHost(hostOnly(r.Host)) {
		return refuse(http.StatusForbidden, "use 127.0.0.1, or set tokens_file", "without tokens only this machine is answered, by its loopback address")
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
		return errBusy
	}
	if n == anybody {
		return h(w, r, caller{})
	}
	who, known := c.identify(r)
	switch {
	case !known:
		w.Header().Set("WWW-Authenticate", `Bearer realm="muster"`)
		return refuse(http.StatusUnauthorized, "send a token that the collector's tokens_file has", "no token, or one that the collector does not know")
	case n == anAgent && !who.agent:
		return refuse(http.StatusForbidden, "", "this needs the token of an agent")
	case n == aPerson && !who.person:
		return refuse(http.StatusForbidden, "", "this needs the token of a person")
	case n == anOperator && !who.hand:
		return refuse(http.StatusForbidden, "", "this needs the token of a person with the role %s", RoleOperator)
	}
	return h(w, r, who)
}

// waits says whether a request may stay for long.
func waits(r *http.Request) bool {
	return r.Method == http.MethodGet && r.URL.Query().Get("wait") != ""
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
		status, body.Hint = re.status, re.hint
	case errors.As(err, &tooLarge):
		status = http.StatusRequestEntityTooLarge
		body.Error = fmt.Sprintf("the body is larger than %d bytes", tooLarge.Limit)
	case errors.Is(err, store.ErrNotFound), errors.Is(err, api.ErrNotFound):
		status = http.StatusNotFound
	case errors.Is(err, errEnding):
		status = http.StatusServiceUnavailable
	case errors.Is(err, store.ErrUnreachable), errors.Is(err, store.ErrDenied), errors.Is(err, errDamaged):
		status = http.StatusBadGateway
	case r.Context().Err() != nil:
		return // nobody is there to read it
	}
	switch status {
	case http.StatusServiceUnavailable, http.StatusBadGateway:
		body.Code = 5
	case http.StatusBadRequest:
		body.Code = 2
	case http.StatusInternalServerError:
		body.Code = 7
		c.log.Error("request", "method", r.Method, "path", r.URL.Path, "err", err)
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
	w.Write(append(data, '\n'))
}

// answer writes v as JSON; nil lists and maps are empty ones.
func answer(w http.ResponseWriter, v any) error {
	data, err := wire.Encode(v)
	if err != nil {
		return fmt.Errorf("encode the answer: %w", err)
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(data)+1))
	w.Write(append(data, '\n'))
	return nil
}

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

func (c *Collector) postReports(w http.ResponseWriter, r *http.Request, who caller) error {
	data, err := body(w, r, report.MaxBatchBytes)
	if err != nil {
		return err
	}
	var post api.ReportPost
	if err := wire.Decode(data, &post); err != nil {
		return refuse(http.StatusBadRequest, "", "%w", err)
	}
	got, err := c.takeReports(post, who)
	if err != nil {
		return err
	}
	// One that is alone is refused as a request is; in a batch each has its own answer.
	if res := got.Results[0]; len(got.Results) == 1 {
		if !res.Accepted && !res.SendSigned && res.Counter == 0 && res.Error != "" {
			return refuse(http.StatusForbidden, "", "%s", res.Error)
		}
		if len(res.HeartbeatKey) > 0 {
			w.Header().Set(api.HeaderHeartbeatKey, base64.StdEncoding.EncodeToString(res.HeartbeatKey))
		}
	}
	return answer(w, got)
}

// linger moves the deadlines of a request that may take d.
func linger(w http.ResponseWriter, d time.Duration) error {
	rc := http.NewResponseController(w)
	until := time.Now().Add(d + requestTime)
	// Other servers than net/http's (a test's recorder) have no deadlines to move.
	if err := rc.SetWriteDeadline(until); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return err
	}
	if err := rc.SetReadDeadline(until); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return err
	}
	return nil
}

// waitTime reads ?wait=.
func waitTime(w http.ResponseWriter, r *http.Request) (time.Duration, error) {
	s := r.URL.Query().Get("wait")
	if s == "" {
		return 0, nil
	}
	d, err := time.ParseDuration(s)
	if err != nil || d < 0 {
		return 0, refuse(http.StatusBadRequest, "", "wait: %.60q is not a duration such as 55s", s)
	}
	d = min(d, api.MaxWait)
	return d, linger(w, d)
}

func (c *Collector) getHead(w http.ResponseWriter, r *http.Request, who caller) error {
	name := r.PathValue("cohort")
	if !manifest.ValidName(name) {
		return refuse(http.StatusBadRequest, "", "%.80q is not a cohort name", name)
	}
	if !who.may(name) {
		return refuse(http.StatusForbidden, "", "this token is not for cohort %s", name)
	}
	var after manifest.Mark
	if s := r.URL.Query().Get("after"); s != "" {
		var err error
		if after, err = manifest.ParseMark(s); err != nil {
			return refuse(http.StatusBadRequest, "", "after: %w", err)
		}
	}
	wait, err := waitTime(w, r)
	if err != nil {
		return err
	}
	data, mark, err := c.GetHead(r.Context(), name, after, wait)
	switch {
	case errors.Is(err, api.ErrNotModified):
		w.WriteHeader(http.StatusNotModified)
		return nil
	case errors.Is(err, api.ErrNotFound):
		return refuse(http.StatusNotFound, "publish with --rollout=now, or check the cohort's name", "no head of cohort %s is known", name)
	case err != nil:
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(data)))
	w.Header().Set(api.HeaderMark, mark.String())
	w.Write(data)
	return nil
}

func (c *Collector) putHead(w http.ResponseWriter, r *http.Request, who caller) error {
	name := r.PathValue("cohort")
	if manifest.ValidName(name) && !who.may(name) {
		return refuse(http.StatusForbidden, "", "this token is not for cohort %s", name)
	}
	data, err := body(w, r, manifest.MaxHeadBytes)
	if err != nil {
		return err
	}
	if err := c.PutHead(r.Context(), name, data); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (c *Collector) getObject(w http.ResponseWriter, r *http.Request, _ caller) error {
	data, size, err := c.Object(r.Context(), r.PathValue("key"))
	if err != nil {
		return err
	}
	defer data.Close()
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Content-Length", strconv.FormatInt(size, 10))
	// Each piece has its time: a slow line is fine, a dead one is not.
	for {
		if err := linger(w, chunkTime-requestTime); err != nil {
			return err
		}
		n, err := io.CopyN(w, data, chunkBytes)
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			// The length was promised: net/http closes the connection, and the reader sees an early end.
			c.log.Debug("object", "key", r.PathValue("key"), "err", err)
			panic(http.ErrAbortHandler)
		case n == 0:
			return nil
		}
	}
}

func (c *Collector) getCohort(w http.ResponseWriter, r *http.Request, who caller) error {
	co, ok := c.status(who).Cohorts[r.PathValue("cohort")]
	if !ok {
		return refuse(http.StatusNotFound, "`muster status` lists them", "no cohort %.80q", r.PathValue("cohort"))
	}
	return answer(w, co)
}

func (c *Collector) getHosts(w http.ResponseWriter, r *http.Request, who caller) error {
	list, err := c.listHosts(who, r.URL.Query().Get("cohort"), r.URL.Query().Get("verdict"))
	if err != nil {
		return err
	}
	return answer(w, list)
}

func (c *Collector) getHost(w http.ResponseWriter, r *http.Request, who caller) error {
	h, err := c.oneHost(who, r.PathValue("host"))
	if err != nil {
		return err
	}
	return answer(w, h)
}

func epochOf(r *http.Request) (uint64, error) {
	s := r.PathValue("epoch")
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil || n == 0 || n > manifest.MaxCounter {
		return 0, refuse(http.StatusBadRequest, "", "%.60q is not an epoch", s)
	}
	return n, nil
}

func (c *Collector) getRelease(w http.ResponseWriter, r *http.Request, who caller) error {
	epoch, err := epochOf(r)
	if err != nil {
		return err
	}
	rel, err := c.oneRelease(r.Context(), who, epoch)
	if err != nil {
		return err
	}
	return answer(w, rel)
}

func (c *Collector) getWait(w http.ResponseWriter, r *http.Request, who caller) error {
	epoch, err := epochOf(r)
	if err != nil {
		return err
	}
	query := r.URL.Query()
	q := api.WaitQuery{Cohort: query.Get("cohort")}
	switch s := query.Get("strict"); s {
	case "", "false":
	case "true":
		q.Strict = true
	default:
		return refuse(http.StatusBadRequest, "", "strict: %.60q is not true or false", s)
	}
	if s := query.Get("after"); s != "" {
		if q.After, err = strconv.ParseUint(s, 10, 64); err != nil {
			return refuse(http.StatusBadRequest, "", "after: %.60q is not a version", s)
		}
	}
	if q.Wait, err = waitTime(w, r); err != nil {
		return err
	}
	got, err := c.wait(r.Context(), who, epoch, q)
	if err != nil {
		return err
	}
	return answer(w, got)
}

// getReady says whether verdicts can be trusted now.
func (c *Collector) getReady(w http.ResponseWriter, _ *http.Request, _ caller) error {
	c.mu.RLock()
	readErr, dbErr, read := c.readErr, c.dbErr, !c.lastRead.IsZero()
	c.mu.RUnlock()
	// Why is for the log and for those with a token: this path is for anybody.
	switch {
	case !read && readErr == "":
		return refuse(http.StatusServiceUnavailable, "", "the store was not read yet")
	case readErr != "":
		return refuse(http.StatusServiceUnavailable, "look at the collector's log", "the store cannot be read in whole")
	case dbErr != "":
		return refuse(http.StatusServiceUnavailable, "look at the collector's log", "the database cannot be written")
	}
	return answer(w, map[string]string{"status": "ok"})
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
	if err != nil {
		srv.Close()
	}
	<-done
	if errors.Is(err, context.DeadlineExceeded) {
		return nil // somebody held a connection open; nothing was lost
	}
	return err
}
