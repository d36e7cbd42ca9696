package s3_test

import (
	"bytes"
	"crypto/md5"
	"encoding/xml"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/muster-config/muster/distributor/store/retry"
	"github.com/muster-config/muster/distributor/store/s3"
)

// fake is an S3 server without a network, which can be told to misbehave.
type fake struct {
	mu       sync.Mutex
	objects  map[string][]byte
	requests []*http.Request // without bodies

	ignoreConditions bool // writes all the same
	absent           int  // the answer to If-Match on a missing object: 404, 412
	etag             func(hash string) string
	// fault is asked for each request. With apply the request is carried out first; then resp or err, if any, is the answer.
	fault func(n int, req *http.Request) (apply bool, resp *http.Response, err error)
}

func newFake() *fake {
	return &fake{objects: map[string][]byte{}, absent: 404, etag: func(h string) string { return `"` + h + `"` }}
}

func (f *fake) store(t *testing.T, query string) *s3.Store {
	t.Helper()
	return openAt(t, "s3://bucket/p?endpoint=https://s3.test&path_style=true"+query, s3.Options{
		Transport: f, Retry: retry.Policy{Tries: 4, First: time.Millisecond, Most: 4 * time.Millisecond},
	})
}

func (f *fake) RoundTrip(req *http.Request) (*http.Response, error) {
	var body []byte
	if req.Body != nil {
		var err error
		if body, err = io.ReadAll(req.Body); err != nil {
			return nil, err
		}
		req.Body.Close()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.requests = append(f.requests, req)
	apply, answer, err := true, (*http.Response)(nil), error(nil)
	if f.fault != nil {
		apply, answer, err = f.fault(len(f.requests), req)
	}
	var resp *http.Response
	if apply {
		resp = f.serve(req, body)
	}
	if err != nil {
		return nil, err
	}
	if answer != nil {
		resp = answer
	}
	resp.Request = req
	return resp, nil
}

func (f *fake) serve(req *http.Request, body []byte) *http.Response {
	key := req.URL.Path
	old, there := f.objects[key]
	tag := func(data []byte) string { return f.etag(fmt.Sprintf("%x", md5.Sum(data))) }
	header := http.Header{}
	switch req.Method {
	case http.MethodPut:
		if !f.ignoreConditions {
			if req.Header.Get("If-None-Match") == "*" && there {
				return failure(412, "PreconditionFailed", "")
			}
			if m := req.Header.Get("If-Match"); m != "" {
				if !there {
					return failure(f.absent, map[int]string{404: "NoSuchKey", 412: "PreconditionFailed"}[f.absent], "")
				}
				if m != tag(old) {
					return failure(412, "PreconditionFailed", "")
				}
			}
		}
		f.objects[key] = body
		if e := tag(body); e != "" {
			header.Set("ETag", e)
		}
		return answer(200, header, nil)
	case http.MethodGet:
		if !there {
			return failure(404, "NoSuchKey", "")
		}
		e := tag(old)
		if e != "" {
			header.Set("ETag", e)
		}
		header.Set("Last-Modified", "Mon, 30 Nov 2026 06:00:00 GMT")
		if m := req.Header.Get("If-None-Match"); m != "" && m == e {
			return answer(304, header, nil)
		}
		return answer(200, header, old)
	case http.MethodDelete:
		delete(f.objects, key)
		return answer(204, header, nil)
	}
	return failure(405, "MethodNotAllowed", "")
}

func answer(status int, header http.Header, body []byte) *http.Response {
	if header == nil {
		header = http.Header{}
	}
	header.Set("Content-Length", fmt.Sprint(len(body)))
	return &http.Response{
		StatusCode: status, Status: fmt.Sprintf("%d %s", status, http.StatusText(status)), Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: header, Body: io.NopCloser(bytes.NewReader(body)), ContentLength: int64(len(body)),
	}
}

// failure is an S3 error document; more is further XML in it.
func failure(status int, code, more string) *http.Response {
	var name bytes.Buffer
	_ = xml.EscapeText(&name, []byte(code))
	body := "<?xml version=\"1.0\"?>\n<Error><Code>" + name.String() + "</Code><Message>" + name.String() + " happened.</Message>" + more + "</Error>"
	return answer(status, http.Header{"Content-Type": {"application/xml"}}, []byte(body))
}

func (f *fake) count(method string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := 0
	for _, r := range f.requests {
		if r.Method == method {
			n++
		}
	}
	return n
}

func contains(t *testing.T, err error, parts ...string) {
	t.Helper()
	if err == nil {
		t.Error("no error")
		return
	}
	for _, p := range parts {
		if !strings.Contains(err.Error(), p) {
			t.Errorf("error %q does not say %q", err, p)
		}
	}
	if strings.Contains(err.Error(), "\n") || strings.Contains(err.Error(), "SECRETSECRET") {
		t.Errorf("error %q", err)
	}
}
