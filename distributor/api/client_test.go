package api_test

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/pem"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/muster-config/muster/distributor/api"
	"github.com/muster-config/muster/distributor/manifest"
)

type exit interface{ ExitCode() int }

func TestErrors(t *testing.T) {
	for name, tt := range map[string]struct {
		status     int
		header     string
		body       string
		is         error
		code       int
		retryAfter time.Duration
		text       string
	}{
		"not known":         {404, "", `{"error":"no release 9 is known","hint":"look","code":1}`, api.ErrNotFound, 1, 0, "no release 9 is known"},
		"no such cohort":    {404, "", `{"error":"release 7 has no cohort x","code":1,"reason":"unknown cohort"}`, api.ErrNoCohort, 1, 0, "release 7 has no cohort x"},
		"no token":          {401, "", `{"error":"no token","code":1}`, api.ErrDenied, 1, 0, "no token"},
		"may not":           {403, "", `{"error":"this token is not for it","code":1}`, api.ErrDenied, 1, 0, ""},
		"bad request":       {400, "", `{"error":"after: no mark","code":2}`, api.ErrRefused, 2, 0, "after: no mark"},
		"too large":         {413, "", `{"error":"too large","code":1}`, api.ErrRefused, 1, 0, ""},
		"busy":              {503, "7", `{"error":"too many","code":5}`, api.ErrBusy, 5, 7 * time.Second, ""},
		"busy, by a proxy":  {429, "2", `slow down`, api.ErrBusy, 5, 2 * time.Second, "429 Too Many Requests"},
		"a proxy's page":    {502, "", `<html>bad gateway</html>`, api.ErrUnreachable, 5, 0, "502 Bad Gateway"},
		"not a collector":   {404, "", `<html>not found</html>`, api.ErrUnreachable, 5, 0, "404 Not Found"},
		"a redirect":        {302, "", ``, api.ErrUnreachable, 5, 0, "302 Found"},
		"a code of no kind": {400, "", `{"error":"x","code":9000}`, api.ErrRefused, 1, 0, ""},
		"not JSON":          {200, "", `hello`, api.ErrUnreachable, 5, 0, "is not the API's"},
	} {
		t.Run(name, func(t *testing.T) {
			srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Retry-After", tt.header)
				w.Header().Set("Location", "http://127.0.0.1:1/elsewhere")
				w.WriteHeader(tt.status)
				io.WriteString(w, tt.body)
			}))
			defer srv.Close()
			c, err := api.NewClient(srv.URL, api.ClientOptions{Token: "secret"})
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			_, err = c.Status(t.Context())
			var coded exit
			if !errors.Is(err, tt.is) || !errors.As(err, &coded) || coded.ExitCode() != tt.code || !strings.Contains(err.Error(), tt.text) || strings.Contains(err.Error(), "secret") {
				t.Errorf("%v", err)
			}
			var se *api.StatusError
			if errors.As(err, &se) && se.RetryAfter != tt.retryAfter {
				t.Errorf("retry after %s", se.RetryAfter)
			}
		})
	}
}

// The two kinds of 404 are told apart: only one of them may pass.
func TestNoCohortIsNotNotFound(t *testing.T) {
	if errors.Is(api.ErrNoCohort, api.ErrNotFound) || errors.Is(api.ErrNotFound, api.ErrNoCohort) {
		t.Error("one is the other")
	}
}

func TestHeartbeatMAC(t *testing.T) {
	h := api.Heartbeat{Repo: "acme/config", Cohort: "prod", Host: "web-1", Boot: "b1", Counter: 7, Digest: "sha256:00"}
	mac := hmac.New(sha256.New, []byte("key"))
	io.WriteString(mac, "muster heartbeat\nacme/config\nprod\nweb-1\nb1\n7\nsha256:00")
	if got := api.HeartbeatMAC([]byte("key"), h); !hmac.Equal(got, mac.Sum(nil)) {
		t.Errorf("%x", got)
	}
	h.Counter++
	if hmac.Equal(api.HeartbeatMAC([]byte("key"), h), mac.Sum(nil)) {
		t.Error("the counter is not in it")
	}
}

func TestUnreachable(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ln.Close()
	c, err := api.NewClient("http://"+ln.Addr().String(), api.ClientOptions{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.Status(t.Context())
	var coded exit
	if !errors.Is(err, api.ErrUnreachable) || !errors.As(err, &coded) || coded.ExitCode() != 5 || !strings.Contains(err.Error(), ln.Addr().String()) {
		t.Errorf("%v", err)
	}
	// Broken off by the caller is not the collector's fault.
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.Status(ctx); !errors.Is(err, context.Canceled) || errors.Is(err, api.ErrUnreachable) {
		t.Errorf("%v", err)
	}
}

func TestNewClient(t *testing.T) {
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("t0k\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	empty := filepath.Join(t.TempDir(), "empty")
	if err := os.WriteFile(empty, []byte("two words\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		url  string
		opts api.ClientOptions
		want string
	}{
		"plain, this machine":     {"http://127.0.0.1:7070", api.ClientOptions{TokenFile: token}, ""},
		"plain, other machine":    {"http://collector:7070", api.ClientOptions{}, ""},
		"token over plain HTTP":   {"http://collector:7070", api.ClientOptions{TokenFile: token}, "unprotected"},
		"token over TLS":          {"https://collector:7070/base/", api.ClientOptions{Token: "x"}, ""},
		"not a URL":               {"collector:7070", api.ClientOptions{}, "not an http or https URL"},
		"password in it":          {"https://u:secret@collector", api.ClientOptions{}, "holds a user or a password"},
		"query":                   {"https://collector?x=1", api.ClientOptions{}, "query"},
		"no token file":           {"https://collector", api.ClientOptions{TokenFile: "/nowhere/token"}, "read the token file"},
		"not a token":             {"https://collector", api.ClientOptions{TokenFile: empty}, "does not hold a token"},
		"no CA file":              {"https://collector", api.ClientOptions{CAFile: "/nowhere/ca"}, "read the CA file"},
		"CA file without a CA":    {"https://collector", api.ClientOptions{CAFile: token}, "holds no PEM certificate"},
		"CA and a client of ours": {"https://collector", api.ClientOptions{CAFile: token, HTTP: http.DefaultClient}, "exclude each other"},
	} {
		c, err := api.NewClient(tt.url, tt.opts)
		if (tt.want == "") != (err == nil) || err != nil && (!strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "secret") || strings.Contains(err.Error(), "t0k")) {
			t.Errorf("%s: %v", name, err)
		}
		if c != nil {
			c.Close()
		}
	}
}

// The token is read anew for each request, and goes over TLS that the CA file vouches for.
func TestTokenAndTLS(t *testing.T) {
	var got string
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got = r.Header.Get("Authorization")
		io.WriteString(w, `{"cohorts":{},"of_a_later_version":1}`)
	}))
	srv.Config.ErrorLog = log.New(io.Discard, "", 0)
	srv.StartTLS()
	defer srv.Close()
	dir := t.TempDir()
	ca, token := filepath.Join(dir, "ca.pem"), filepath.Join(dir, "token")
	if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: srv.Certificate().Raw}), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"one", "two"} {
		if err := os.WriteFile(token, []byte(want+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		c, err := api.NewClient(srv.URL, api.ClientOptions{TokenFile: token, CAFile: ca})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Status(t.Context()); err != nil || got != "Bearer "+want {
			t.Errorf("%q, %v", got, err)
		}
		c.Close()
	}
	stranger, err := api.NewClient(srv.URL, api.ClientOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer stranger.Close()
	if _, err := stranger.Status(t.Context()); !errors.Is(err, api.ErrUnreachable) {
		t.Errorf("a certificate nobody vouches for: %v", err)
	}
}

// What is longer than it may be, or shorter than it said, is no answer.
func TestBodies(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case strings.HasPrefix(r.URL.Path, api.PathHeads):
			w.Header().Set(api.HeaderMark, "1-2-3")
			chunk := make([]byte, 1<<20)
			for range manifest.MaxHeadBytes>>20 + 1 {
				w.Write(chunk)
			}
		case strings.HasPrefix(r.URL.Path, api.PathObjects):
			w.Header().Set("Content-Length", "100")
			w.Write(make([]byte, 10))
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		default:
			io.WriteString(w, `{"results":[]}`)
		}
	}))
	defer srv.Close()
	c, err := api.NewClient(srv.URL, api.ClientOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, _, err := c.GetHead(t.Context(), "prod", manifest.Mark{}, 0); !errors.Is(err, api.ErrUnreachable) || !strings.Contains(err.Error(), "larger than") {
		t.Errorf("an endless head: %v", err)
	}
	body, size, err := c.Object(t.Context(), "bundles/aa/x")
	if err != nil || size != 100 {
		t.Fatalf("%d, %v", size, err)
	}
	defer body.Close()
	if _, err := io.ReadAll(body); err == nil {
		t.Error("a body that ends early is taken for whole")
	}
	if _, err := c.Report(t.Context(), api.ReportItem{Heartbeat: &api.Heartbeat{}}); err == nil || !strings.Contains(err.Error(), "0 results for 1 reports") {
		t.Errorf("%v", err)
	}
}
