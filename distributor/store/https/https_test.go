package https_test

import (
	"encoding/pem"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/muster-config/muster/distributor/store"
	"github.com/muster-config/muster/distributor/store/https"
	"github.com/muster-config/muster/distributor/store/retry"
)

const token = "SECRETSECRET"

type site struct {
	objects  map[string]string
	etag     bool
	requests []*http.Request
	fault    func(w http.ResponseWriter, n int) bool // true: answered
}

func (s *site) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.requests = append(s.requests, r)
	data, ok := s.objects[r.URL.Path]
	switch {
	case s.fault != nil && s.fault(w, len(s.requests)):
	case r.Header.Get("Authorization") != "Bearer "+token:
		http.Error(w, "who are you?", http.StatusUnauthorized)
	case !ok:
		http.NotFound(w, r)
	default:
		if s.etag {
			w.Header().Set("ETag", `"`+data+`"`)
		}
		http.ServeContent(w, r, "", time.Time{}, strings.NewReader(data))
	}
}

func serve(t *testing.T, s *site) (base string, o https.Options) {
	t.Helper()
	srv := httptest.NewTLSServer(s)
	t.Cleanup(srv.Close)
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: srv.Certificate().Raw})
	return srv.URL + "/prod", https.Options{Token: token, CA: ca, Retry: retry.Policy{First: time.Millisecond, Most: 2 * time.Millisecond}}
}

func open(t *testing.T, base string, o https.Options) *https.Store {
	t.Helper()
	s, err := https.Open(base, o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestRead(t *testing.T) {
	for _, etag := range []bool{true, false} {
		w := &site{objects: map[string]string{"/prod/cohorts/a.json": "one", "/prod/odd/a b%?": "odd"}, etag: etag}
		base, o := serve(t, w)
		s := open(t, base+"/", o)
		got, err := s.Get(t.Context(), "cohorts/a.json", 3)
		if err != nil || string(got.Data) != "one" || got.Token == "" {
			t.Fatalf("%q, %v", got.Data, err)
		}
		if got, err := s.Get(t.Context(), "odd/a b%?", 10); err != nil || string(got.Data) != "odd" {
			t.Errorf("%q, %v", got.Data, err)
		}
		if _, err := s.GetIfChanged(t.Context(), "cohorts/a.json", got.Token, 3); !errors.Is(err, store.ErrNotModified) {
			t.Errorf("etag %v: %v, want ErrNotModified", etag, err)
		}
		w.objects["/prod/cohorts/a.json"] = "two"
		if o, err := s.GetIfChanged(t.Context(), "cohorts/a.json", got.Token, 3); err != nil || string(o.Data) != "two" || o.Token == got.Token {
			t.Errorf("etag %v: %q, %v", etag, o.Data, err)
		}
		if _, err := s.Get(t.Context(), "cohorts/a.json", 2); !errors.Is(err, store.ErrTooLarge) {
			t.Errorf("%v, want ErrTooLarge", err)
		}
		if _, err := s.Get(t.Context(), "cohorts/b.json", 2); !errors.Is(err, store.ErrNotFound) {
			t.Errorf("%v, want ErrNotFound", err)
		}
		if _, err := s.Get(t.Context(), "../secret", 2); err == nil || errors.Is(err, store.ErrNotFound) {
			t.Errorf("%v, want a refused key", err)
		}
		r, size, err := s.Open(t.Context(), "cohorts/a.json")
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(r)
		r.Close()
		if err != nil || string(data) != "two" || size != 3 {
			t.Errorf("%q of %d, %v", data, size, err)
		}
		if _, err := s.List(t.Context(), "cohorts/", "", 10); !errors.Is(err, store.ErrReadOnly) || !strings.Contains(err.Error(), "cannot be listed") {
			t.Errorf("List: %v", err)
		}
	}
}

func TestFaults(t *testing.T) {
	w := &site{objects: map[string]string{"/prod/x": "data"}}
	base, o := serve(t, w)
	s := open(t, base, o)
	get := func() ([]byte, int, error) {
		w.requests = nil
		got, err := s.Get(t.Context(), "x", 100)
		return got.Data, len(w.requests), err
	}
	w.fault = func(rw http.ResponseWriter, n int) bool {
		if n > 2 {
			return false
		}
		http.Error(rw, "later", http.StatusServiceUnavailable)
		return true
	}
	if data, n, err := get(); err != nil || string(data) != "data" || n != 3 {
		t.Errorf("two passing faults: %q after %d requests, %v", data, n, err)
	}
	w.fault = func(rw http.ResponseWriter, _ int) bool { http.Error(rw, "later", http.StatusBadGateway); return true }
	if _, n, err := get(); !errors.Is(err, store.ErrUnreachable) || n != 4 {
		t.Errorf("always 502: %v after %d requests, want ErrUnreachable after 4", err, n)
	}
	// B059: a body that is shorter than it said.
	w.fault = func(rw http.ResponseWriter, _ int) bool {
		rw.Header().Set("Content-Length", "100")
		_, _ = io.WriteString(rw, "short")
		return true
	}
	if _, _, err := get(); !errors.Is(err, store.ErrUnreachable) {
		t.Errorf("short body: %v, want ErrUnreachable", err)
	}
	// Without a length the limit still holds.
	w.fault = func(rw http.ResponseWriter, _ int) bool {
		for range 50 {
			_, _ = io.WriteString(rw, strings.Repeat("x", 100))
			rw.(http.Flusher).Flush()
		}
		return true
	}
	if _, n, err := get(); !errors.Is(err, store.ErrTooLarge) || n != 1 {
		t.Errorf("endless body: %v after %d requests, want ErrTooLarge", err, n)
	}
	w.fault = func(rw http.ResponseWriter, _ int) bool {
		rw.Header().Set("Location", "http://127.0.0.1:1/x")
		rw.WriteHeader(http.StatusFound)
		return true
	}
	if _, _, err := get(); err == nil || !strings.Contains(err.Error(), "away from https") {
		t.Errorf("redirect to http: %v", err)
	}

	w.fault = nil
	o.Token = "SECRETSECRET-wrong"
	wrong := open(t, base, o)
	_, err := wrong.Get(t.Context(), "x", 100)
	if !errors.Is(err, store.ErrDenied) || strings.Contains(err.Error(), "SECRET") {
		t.Errorf("wrong token: %v, want ErrDenied", err)
	}
	o.CA = nil
	untrusted := open(t, base, o)
	w.requests = nil
	if _, err := untrusted.Get(t.Context(), "x", 100); err == nil || !strings.Contains(err.Error(), "certificate") || len(w.requests) != 0 {
		t.Errorf("unknown certificate: %v, %d requests got through", err, len(w.requests))
	}
}

func TestOpenRefuses(t *testing.T) {
	for raw, says := range map[string]string{
		"http://host/x":                     "no https://",
		"https://":                          "no https://",
		"https://u:SECRETSECRET@host":       "credentials",
		"https://host/x?token=SECRETSECRET": "no settings",
		"https://u:SECRETSECRET@[bad":       "not valid",
	} {
		_, err := https.Open(raw, https.Options{})
		if err == nil || !strings.Contains(err.Error(), says) || strings.Contains(err.Error(), "SECRET") {
			t.Errorf("%s: %v, want %q", raw, err, says)
		}
	}
	if _, err := https.Open("https://host", https.Options{CA: []byte("junk")}); err == nil {
		t.Error("a CA without certificates is taken")
	}
}
