package collector

import (
	"encoding/base64"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/muster-config/muster/distributor/api"
	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/report"
	"github.com/muster-config/muster/distributor/wire"
)

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
	send(w, data)
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

func (c *Collector) getObject(w http.ResponseWriter, r *http.Request, who caller) error {
	key := r.PathValue("key")
	if key == "" {
		return c.listObjects(w, r, who)
	}
	if strings.HasPrefix(key, manifest.PrefixReleases) && !who.person {
		return refuse(http.StatusForbidden, "", "releases need the token of a person")
	}
	var data io.ReadCloser
	var size int64
	var err error
	if !immutable(key) && who.overlord() {
		data, size, err = c.register(r.Context(), key)
	} else if err = c.mayRead(r.Context(), who, key); err == nil {
		data, size, err = c.Object(r.Context(), key)
	}
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
			c.log.Debug("object", "key", key, "err", err)
			panic(http.ErrAbortHandler)
		case n == 0:
			return nil
		}
	}
}

func (c *Collector) getHosts(w http.ResponseWriter, r *http.Request, who caller) error {
	list, err := c.listHosts(who, r.URL.Query().Get("cohort"), r.URL.Query().Get("verdict"))
	if err != nil {
		return err
	}
	return answer(w, list)
}

func (c *Collector) getHost(w http.ResponseWriter, r *http.Request, who caller) error {
	h, err := c.oneHost(r.Context(), who, r.PathValue("host"), r.URL.Query().Get("signed") == "true")
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
