package s3_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-config/muster/distributor/store"
	"github.com/muster-config/muster/distributor/store/retry"
	"github.com/muster-config/muster/distributor/store/s3"
)

func TestB046ReplaceOfAVanishedObject(t *testing.T) {
	for _, absent := range []int{404, 412} {
		f := newFake()
		f.absent = absent
		s := f.store(t, "")
		token, err := s.Create(t.Context(), "head", []byte("one"))
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Delete(t.Context(), "head"); err != nil {
			t.Fatal(err)
		}
		_, err = s.Replace(t.Context(), "head", []byte("two"), token)
		if !errors.Is(err, store.ErrConflict) {
			t.Errorf("server that says %d: %v, want ErrConflict", absent, err)
		}
		contains(t, err, "p/head", "gone")
		if len(f.objects) != 0 {
			t.Errorf("server that says %d: something was written", absent)
		}
		if err := s.CheckCAS(t.Context()); err != nil {
			t.Errorf("a good server: %v", err)
		}
	}
	f := newFake()
	f.ignoreConditions = true
	s := f.store(t, "")
	err := s.CheckCAS(t.Context())
	if !errors.Is(err, store.ErrNoCAS) {
		t.Errorf("server that ignores conditions: %v, want ErrNoCAS", err)
	}
	contains(t, err, "s3://bucket/p", "no conditional writes")
	if len(f.objects) != 0 {
		t.Errorf("the probe was left behind: %v", f.objects)
	}
}

func TestB048ConflictIsTriedAgain(t *testing.T) {
	f := newFake()
	busy := 2
	f.fault = func(_ int, req *http.Request) (bool, *http.Response, error) {
		if req.Method == http.MethodPut && busy > 0 {
			busy--
			return false, failure(409, "ConditionalRequestConflict", ""), nil
		}
		return true, nil, nil
	}
	s := f.store(t, "")
	token, err := s.Create(t.Context(), "releases/1", []byte("one"))
	if err != nil {
		t.Fatal(err)
	}
	if f.count(http.MethodPut) != 3 || string(f.objects["/bucket/p/releases/1"]) != "one" {
		t.Errorf("%d requests, objects %q", f.count(http.MethodPut), f.objects)
	}
	busy = 2
	if _, err := s.Replace(t.Context(), "releases/1", []byte("two"), token); err != nil {
		t.Errorf("Replace: %v", err)
	}

	busy = 1 << 30
	_, err = s.Create(t.Context(), "releases/2", []byte("two"))
	if err == nil || errors.Is(err, store.ErrExists) || errors.Is(err, store.ErrAmbiguous) || !errors.Is(err, store.ErrUnreachable) {
		t.Errorf("a server that always says 409: %v, want ErrUnreachable and not ErrExists", err)
	}
	contains(t, err, "nothing was written", "4 tries")
}

func TestB051ETagForms(t *testing.T) {
	for name, etag := range map[string]func(string) string{
		"quoted":    func(h string) string { return `"` + h + `"` },
		"bare":      func(h string) string { return h },
		"weak":      func(h string) string { return `W/"` + h + `"` },
		"multipart": func(h string) string { return `"` + h + `-17"` },
		"bare-17":   func(h string) string { return h + "-17" },
	} {
		f := newFake()
		f.etag = etag
		s := f.store(t, "")
		if err := s.Put(t.Context(), "head", []byte("one")); err != nil {
			t.Fatal(err)
		}
		o, err := s.Get(t.Context(), "head", 100)
		if err != nil {
			t.Fatal(err)
		}
		for range 20 {
			if _, err := s.GetIfChanged(t.Context(), "head", o.Token, 100); !errors.Is(err, store.ErrNotModified) {
				t.Fatalf("%s: %v, want ErrNotModified", name, err)
			}
		}
		next, err := s.Replace(t.Context(), "head", []byte("two"), o.Token)
		if err != nil {
			t.Errorf("%s: Replace: %v", name, err)
		}
		if o, err := s.GetIfChanged(t.Context(), "head", o.Token, 100); err != nil || string(o.Data) != "two" || o.Token != next {
			t.Errorf("%s: after the change %q, %v", name, o.Data, err)
		}
		if _, err := s.Replace(t.Context(), "head", []byte("three"), o.Token); !errors.Is(err, store.ErrConflict) {
			t.Errorf("%s: old token: %v, want ErrConflict", name, err)
		}
		for _, r := range f.requests {
			if m := r.Header.Get("If-Match"); m != "" && m != string(o.Token) {
				t.Errorf("%s: sent If-Match %s, got %s", name, m, o.Token)
			}
		}
	}

	// A server, or a cache before it, that knows no If-None-Match.
	deaf := newFake()
	asks := deaf.store(t, "")
	if err := asks.Put(t.Context(), "head", []byte("one")); err != nil {
		t.Fatal(err)
	}
	o, err := asks.Get(t.Context(), "head", 100)
	if err != nil {
		t.Fatal(err)
	}
	deaf.fault = func(_ int, req *http.Request) (bool, *http.Response, error) {
		req.Header.Del("If-None-Match")
		return true, nil, nil
	}
	if _, err := asks.GetIfChanged(t.Context(), "head", o.Token, 100); !errors.Is(err, store.ErrNotModified) {
		t.Errorf("deaf server: %v, want ErrNotModified", err)
	}

	// No ETag at all: changes still show, and a swap is refused, not done blindly.
	f := newFake()
	f.etag = func(string) string { return "" }
	s := f.store(t, "")
	token, err := s.Create(t.Context(), "head", []byte("one"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.GetIfChanged(t.Context(), "head", token, 100); !errors.Is(err, store.ErrNotModified) {
		t.Errorf("no ETag: %v, want ErrNotModified", err)
	}
	if _, err := s.Replace(t.Context(), "head", []byte("two"), token); !errors.Is(err, store.ErrNoCAS) || string(f.objects["/bucket/p/head"]) != "one" {
		t.Errorf("no ETag: %v, want ErrNoCAS", err)
	}

	// A proxy that weakens tags in answers, so that none can ever match.
	f = newFake()
	s = f.store(t, "")
	if err := s.Put(t.Context(), "head", []byte("one")); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Replace(t.Context(), "head", []byte("two"), store.Token(`W/"f97c5d29941bfb1b2fdab0874906ab82"`)); !errors.Is(err, store.ErrNoCAS) {
		t.Errorf("weakened tag: %v, want ErrNoCAS", err)
	}
}

func TestLostAnswers(t *testing.T) {
	cut := errors.New("read: connection reset by peer")
	type verdict struct {
		name    string
		faults  []bool // for each PUT in turn: applied, then the answer is lost
		deny    bool   // reading fails as well
		content string // what somebody else writes between
		want    error
		stored  string
	}
	for _, tc := range []verdict{
		{"applied but lost", []bool{true}, false, "", nil, "mine"},
		{"lost", []bool{false}, false, "", nil, "mine"},
		{"lost twice", []bool{false, false}, false, "", nil, "mine"},
		{"lost, then applied but lost", []bool{false, true}, false, "", nil, "mine"},
		{"always lost", []bool{false, false, false, false, false}, false, "", store.ErrAmbiguous, ""},
		{"applied and no way to know", []bool{true}, true, "", store.ErrAmbiguous, "mine"},
		{"lost and another was first", []bool{false}, false, "other", nil, "other"}, // the error differs by verb
	} {
		for _, verb := range []string{"create", "replace"} {
			f := newFake()
			s := f.store(t, "")
			var token store.Token
			if verb == "replace" {
				var err error
				if token, err = s.Create(t.Context(), "k", []byte("old")); err != nil {
					t.Fatal(err)
				}
			}
			puts := 0
			f.fault = func(_ int, req *http.Request) (bool, *http.Response, error) {
				if req.Method == http.MethodGet && tc.deny {
					return false, nil, cut
				}
				if req.Method != http.MethodPut {
					return true, nil, nil
				}
				puts++
				if puts > len(tc.faults) {
					return true, nil, nil
				}
				if tc.content != "" {
					f.objects["/bucket/p/k"] = []byte(tc.content)
				}
				return tc.faults[puts-1], nil, cut
			}
			var err error
			if verb == "create" {
				_, err = s.Create(t.Context(), "k", []byte("mine"))
			} else {
				_, err = s.Replace(t.Context(), "k", []byte("mine"), token)
			}
			want := tc.want
			if tc.content != "" {
				want = map[string]error{"create": store.ErrExists, "replace": store.ErrConflict}[verb]
			}
			if !errors.Is(err, want) || want == nil && err != nil {
				t.Errorf("%s, %s: %v, want %v", tc.name, verb, err, want)
			}
			stored := tc.stored
			if stored == "" && verb == "replace" {
				stored = "old"
			}
			if got := string(f.objects["/bucket/p/k"]); got != stored {
				t.Errorf("%s, %s: stored %q, want %q", tc.name, verb, got, stored)
			}
		}
	}
}

// 5xx after the write took place is the same doubt as a lost answer.
func TestServerErrorAfterTheWrite(t *testing.T) {
	f := newFake()
	s := f.store(t, "")
	first := true
	f.fault = func(_ int, req *http.Request) (bool, *http.Response, error) {
		if req.Method == http.MethodPut && first {
			first = false
			return true, failure(500, "InternalError", ""), nil
		}
		return true, nil, nil
	}
	if _, err := s.Create(t.Context(), "k", []byte("mine")); err != nil {
		t.Error(err)
	}
	if f.count(http.MethodPut) != 1 {
		t.Errorf("%d PUTs, want 1: the answer was found by reading", f.count(http.MethodPut))
	}
}

func TestUnreachable(t *testing.T) {
	f := newFake()
	f.fault = func(int, *http.Request) (bool, *http.Response, error) {
		return false, nil, &net.OpError{Op: "dial", Net: "tcp", Err: errors.New("connect: connection refused")}
	}
	s := f.store(t, "")
	_, err := s.Create(t.Context(), "k", []byte("x"))
	if !errors.Is(err, store.ErrUnreachable) || errors.Is(err, store.ErrAmbiguous) {
		t.Errorf("%v, want ErrUnreachable: nothing was ever sent", err)
	}
	contains(t, err, "s3.test", "connection refused", "4 tries")
	if n := f.count(http.MethodGet); n != 0 {
		t.Errorf("%d reads to settle what was never sent", n)
	}
	if _, err := s.Get(t.Context(), "k", 10); !errors.Is(err, store.ErrUnreachable) {
		t.Errorf("Get: %v, want ErrUnreachable", err)
	}
	if n := f.count(http.MethodGet); n != 4 {
		t.Errorf("%d reads, want 4", n)
	}
	// The caller's end is not the network's.
	ctx, cancel := context.WithCancel(t.Context())
	f.fault = func(int, *http.Request) (bool, *http.Response, error) { cancel(); return false, nil, context.Canceled }
	if _, err := s.Get(ctx, "k", 10); !errors.Is(err, context.Canceled) || errors.Is(err, store.ErrUnreachable) {
		t.Errorf("%v, want context.Canceled", err)
	}
}

func TestDefiniteAnswers(t *testing.T) {
	for _, tc := range []struct {
		status     int
		code, more string
		want       error
		text       string
	}{
		{403, "AccessDenied", "", store.ErrDenied, "AccessDenied"},
		{403, "SignatureDoesNotMatch", "", store.ErrDenied, "SignatureDoesNotMatch"},
		{404, "NoSuchBucket", "", nil, `no bucket "bucket"`},
		{501, "NotImplemented", "", store.ErrNoCAS, "NotImplemented"},
		{400, "EntityTooLarge", "", nil, "EntityTooLarge"},
	} {
		f := newFake()
		f.fault = func(int, *http.Request) (bool, *http.Response, error) {
			return false, failure(tc.status, tc.code, tc.more), nil
		}
		s := f.store(t, "")
		_, err := s.Create(t.Context(), "k", []byte("x"))
		contains(t, err, tc.text, "p/k")
		if tc.want != nil && !errors.Is(err, tc.want) {
			t.Errorf("%s: %v, want %v", tc.code, err, tc.want)
		}
		if errors.Is(err, store.ErrNotFound) || len(f.requests) != 1 {
			t.Errorf("%s: %v after %d requests, want a definite answer after one", tc.code, err, len(f.requests))
		}
		if _, err := s.Get(t.Context(), "k", 10); err == nil || errors.Is(err, store.ErrNotFound) {
			t.Errorf("%s: Get: %v; a store that cannot be read must not look empty", tc.code, err)
		}
	}
}

func TestB055ClockSkew(t *testing.T) {
	f := newFake()
	theirs := time.Now().Add(-20 * time.Minute).UTC()
	f.fault = func(int, *http.Request) (bool, *http.Response, error) {
		return false, failure(403, "RequestTimeTooSkewed", "<ServerTime>"+theirs.Format(time.RFC3339)+"</ServerTime>"), nil
	}
	s := f.store(t, "")
	_, err := s.Get(t.Context(), "head", 10)
	var skew *store.SkewError
	if !errors.As(err, &skew) || errors.Is(err, store.ErrDenied) || !errors.Is(err, store.ErrUnreachable) {
		t.Fatalf("%v, want a SkewError", err)
	}
	if d := skew.Skew - 20*time.Minute; d < 0 || d > time.Minute {
		t.Errorf("skew %v, want 20m", skew.Skew)
	}
	contains(t, err, "clock skew of 120", "ahead of the store's")
	if len(f.requests) != 1 {
		t.Errorf("%d requests: trying again at once helps nobody", len(f.requests))
	}
	// Without the element, by the Date header; and behind.
	f.fault = func(int, *http.Request) (bool, *http.Response, error) {
		r := failure(403, "RequestTimeTooSkewed", "")
		r.Header.Set("Date", time.Now().Add(time.Hour).UTC().Format(http.TimeFormat))
		return false, r, nil
	}
	_, err = s.Create(t.Context(), "head", []byte("x"))
	contains(t, err, "behind the store's")
	if errors.Is(err, store.ErrAmbiguous) {
		t.Errorf("%v: nothing was written", err)
	}
}

func TestB056Region(t *testing.T) {
	t.Setenv("AWS_REGION", "")
	t.Setenv("AWS_DEFAULT_REGION", "")
	f := newFake()
	f.fault = func(_ int, req *http.Request) (bool, *http.Response, error) {
		switch {
		case req.URL.Query().Has("location"):
			t.Error("asked for the location")
			return false, failure(403, "AccessDenied", ""), nil
		case !strings.Contains(req.Header.Get("Authorization"), "/eu-west-1/s3/"):
			return false, failure(400, "AuthorizationHeaderMalformed", "<Region>eu-west-1</Region>"), nil
		}
		return true, nil, nil
	}
	if err := f.store(t, "&region=eu-west-1").Put(t.Context(), "k", []byte("x")); err != nil {
		t.Errorf("with the right region: %v", err)
	}
	_, err := f.store(t, "").Get(t.Context(), "k", 10)
	contains(t, err, "region eu-west-1, not us-east-1", "region=eu-west-1")
	if errors.Is(err, store.ErrDenied) {
		t.Errorf("%v: no question of rights", err)
	}
	t.Setenv("AWS_REGION", "eu-west-1")
	if _, err := f.store(t, "").Get(t.Context(), "k", 10); err != nil {
		t.Errorf("with AWS_REGION: %v", err)
	}
	// A bucket with dots has no certificate of its own: path style, also without being told.
	s := openAt(t, "s3://my.bucket.name?region=eu-west-1", s3.Options{Transport: f})
	if _, err := s.Get(t.Context(), "k", 10); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("%v, want ErrNotFound", err)
	}
	if last := f.requests[len(f.requests)-1]; strings.HasPrefix(last.URL.Host, "my.bucket") || !strings.HasPrefix(last.URL.Path, "/my.bucket.name/") {
		t.Errorf("asked %s", last.URL)
	}
}

// B057: neither trailers nor chunked signatures go out, which older servers refuse or store.
func TestB057PlainUploads(t *testing.T) {
	for _, endpoint := range []string{"https://s3.test", "http://s3.test"} {
		f := newFake()
		f.fault = func(_ int, req *http.Request) (bool, *http.Response, error) {
			if req.Header.Get("X-Amz-Trailer") != "" || strings.Contains(req.Header.Get("Content-Encoding"), "aws-chunked") {
				return false, failure(501, "NotImplemented", ""), nil
			}
			return true, nil, nil
		}
		s := openAt(t, "s3://bucket/p?path_style=true&endpoint="+endpoint, s3.Options{Transport: f})
		for _, data := range []string{"", "small", strings.Repeat("large", 8<<20)} {
			if err := s.Put(t.Context(), "k", []byte(data)); err != nil {
				t.Fatal(err)
			}
			if got := string(f.objects["/bucket/p/k"]); got != data {
				t.Errorf("%s: stored %d bytes that are not the %d sent", endpoint, len(got), len(data))
			}
		}
		for _, r := range f.requests {
			sum := r.Header.Get("X-Amz-Content-Sha256")
			if len(sum) != 64 || r.Header.Get("X-Amz-Checksum-Sha256") == "" || r.Method != http.MethodPut {
				t.Errorf("%s %s: digest %q, checksum %q", r.Method, r.URL, sum, r.Header.Get("X-Amz-Checksum-Sha256"))
			}
		}
		if len(f.requests) != 3 {
			t.Errorf("%d requests, want one for each object", len(f.requests))
		}
	}
}

// drip gives a body piece by piece, with a pause before each; a nil piece hangs.
type drip struct {
	ctx   context.Context
	size  int
	piece int
	pause time.Duration
}

func (d *drip) Read(p []byte) (int, error) {
	if d.size == 0 {
		return 0, io.EOF
	}
	if d.pause > 0 {
		select {
		case <-time.After(d.pause):
		case <-d.ctx.Done():
			return 0, d.ctx.Err()
		}
	}
	n := min(d.size, d.piece, len(p))
	clear(p[:n])
	d.size -= n
	return n, nil
}

func (d *drip) Close() error { return nil }

func TestB059SlowAndBrokenBodies(t *testing.T) {
	for _, tc := range []struct {
		name             string
		promised, size   int
		piece            int
		pause, headAfter time.Duration
		ok               bool
		within           time.Duration
	}{
		{"closes at half", 1000, 500, 100, 0, 0, false, time.Minute},
		{"one byte each 5 s", 1 << 20, 1 << 20, 1, 5 * time.Second, 0, false, 5 * time.Minute},
		{"header, then nothing", 1 << 20, 1 << 20, 1, 1000 * time.Hour, 0, false, 5 * time.Minute},
		{"no header", 10, 10, 10, 0, 1000 * time.Hour, false, 5 * time.Minute},
		{"200 MB at a steady low rate", 200 << 20, 200 << 20, 32 << 10, time.Second, 0, true, 12 * time.Hour},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				asked := 0
				s := openAt(t, "s3://bucket/p?endpoint=https://s3.test&path_style=true", s3.Options{
					Retry: retry.Policy{Tries: 2},
					Transport: roundTrip(func(req *http.Request) (*http.Response, error) {
						asked++
						if tc.headAfter > 0 {
							select {
							case <-time.After(tc.headAfter):
							case <-req.Context().Done():
								return nil, req.Context().Err()
							}
						}
						r := answer(200, http.Header{"Etag": {`"x"`}, "Last-Modified": {"Mon, 30 Nov 2026 06:00:00 GMT"}}, nil)
						r.ContentLength = int64(tc.promised)
						r.Header.Set("Content-Length", fmt.Sprint(tc.promised))
						r.Body = &drip{req.Context(), tc.size, tc.piece, tc.pause}
						r.Request = req
						return r, nil
					}),
				})
				began := time.Now()
				var n int64
				body, size, err := s.Open(t.Context(), "bundle")
				if err == nil {
					if size != int64(tc.promised) {
						t.Errorf("size %d", size)
					}
					n, err = io.Copy(io.Discard, body)
					body.Close()
				}
				switch took := time.Since(began); {
				case tc.ok && (err != nil || n != int64(tc.promised)):
					t.Errorf("read %d bytes, %v after %v", n, err, took)
				case !tc.ok && !errors.Is(err, store.ErrUnreachable):
					t.Errorf("read %d bytes, %v after %v, want ErrUnreachable", n, err, took)
				case took > tc.within:
					t.Errorf("took %v, want less than %v", took, tc.within)
				}
				if tc.ok || tc.size > 1<<10 {
					return
				}
				// Get tries again, and then gives up with the same error.
				asked = 0
				if _, err := s.Get(t.Context(), "bundle", 1<<30); !errors.Is(err, store.ErrUnreachable) || asked != 2 {
					t.Errorf("Get: %v after %d requests, want ErrUnreachable after 2", err, asked)
				}
			})
		})
	}
}

// A consumer that takes its time is no stall.
func TestSlowConsumer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := openAt(t, "s3://bucket/p?endpoint=https://s3.test&path_style=true", s3.Options{
			Transport: roundTrip(func(req *http.Request) (*http.Response, error) {
				r := answer(200, http.Header{"Last-Modified": {"Mon, 30 Nov 2026 06:00:00 GMT"}}, []byte("0123456789"))
				r.Body = &drip{req.Context(), 10, 1, time.Millisecond}
				r.Request = req
				return r, nil
			}),
		})
		body, _, err := s.Open(t.Context(), "k")
		if err != nil {
			t.Fatal(err)
		}
		defer body.Close()
		var b [1]byte
		for range 10 {
			time.Sleep(10 * time.Minute) // in the bubble
			if _, err := body.Read(b[:]); err != nil {
				t.Fatal(err)
			}
		}
	})
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }
