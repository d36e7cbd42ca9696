package forge_test

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/muster-config/muster/pipeline/forge"
	"github.com/muster-config/muster/pipeline/forge/forgetest"
)

// TestB117SecondaryLimit: however GitHub tells a limit, the request waits at least as long as it says, a minute when it says nothing, and is done once.
func TestB117SecondaryLimit(t *testing.T) {
	for _, tt := range []struct {
		name  string
		reply func(w *world) *forgetest.Reply
		least time.Duration
	}{
		{"403 with Retry-After", func(*world) *forgetest.Reply {
			return &forgetest.Reply{Status: 403, Header: map[string]string{"Retry-After": "2"}, Body: `{"message":"You have exceeded a secondary rate limit"}`}
		}, 2 * time.Second},
		{"429 with a date", func(w *world) *forgetest.Reply {
			return &forgetest.Reply{Status: 429, Header: map[string]string{"Retry-After": w.clock.Now().Add(90 * time.Second).Format(http.TimeFormat)}, Body: `{}`}
		}, 90 * time.Second},
		{"403 with a reset", func(w *world) *forgetest.Reply {
			return &forgetest.Reply{Status: 403, Header: map[string]string{"X-RateLimit-Reset": strconv.FormatInt(w.clock.Now().Add(3*time.Minute).Unix(), 10)}, Body: `{"message":"API rate limit exceeded"}`}
		}, 3 * time.Minute},
		{"403 with a reset and none left", func(w *world) *forgetest.Reply {
			return &forgetest.Reply{Status: 403, Header: map[string]string{"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": strconv.FormatInt(w.clock.Now().Add(2*time.Minute).Unix(), 10)}, Body: `{"message":"x"}`}
		}, 2 * time.Minute},
		{"bare 429", func(*world) *forgetest.Reply { return &forgetest.Reply{Status: 429} }, time.Minute},
		{"403 with the words only", func(*world) *forgetest.Reply {
			return &forgetest.Reply{Status: 403, Body: `{"message":"You have exceeded a secondary rate limit. Please wait a few minutes before you try again."}`}
		}, time.Minute},
		{"403 with the page only", func(*world) *forgetest.Reply {
			return &forgetest.Reply{Status: 403, Body: `{"message":"Slow down","documentation_url":"https://docs.github.com/free-pro-team@latest/rest/overview/rate-limits-for-the-rest-api#about-secondary-rate-limits"}`}
		}, time.Minute},
		{"403 as it used to be", func(*world) *forgetest.Reply {
			return &forgetest.Reply{Status: 403, Body: `{"message":"You have triggered an abuse detection mechanism."}`}
		}, time.Minute},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := start(t)
			n := 0
			w.Before = func(c forgetest.Call) *forgetest.Reply {
				if n++; n == 1 {
					return tt.reply(w)
				}
				return nil
			}
			w.ok(w.client.Status(t.Context(), head, forge.Status{Context: "muster / delivered", State: forge.Good, Description: "1 confirmed"}))
			if d := w.clock.total(); d < tt.least || d > tt.least+2*time.Second {
				t.Errorf("waited %s, want %s", d, tt.least)
			}
			if len(w.Calls()) != 2 || len(w.Statuses(head)) != 1 {
				t.Errorf("not done once: %v", w.calls())
			}
			if c := w.client.Calls(); c.Requests != 2 || c.Again != 1 || !strings.HasPrefix(c.String(), "2 requests to GitHub, 1 of them again, waited ") {
				t.Errorf("counted %s", c)
			}
		})
	}
}

// TestB117NoRight: a true refusal is told at once, with the right that is missing.
func TestB117NoRight(t *testing.T) {
	w := start(t)
	w.Allow(token, forgetest.Token{Login: bot, Installation: true, May: map[string]string{"contents": "read"}})
	err := w.client.Status(t.Context(), head, forge.Status{Context: "c", State: forge.Good})
	w.want(err, forge.ErrDenied, "Resource not accessible by integration")
	var e *forge.Error
	if !errors.As(err, &e) || !strings.Contains(e.Hint(), "permissions") || e.ExitCode() != 5 {
		t.Errorf("hint %q", e.Hint())
	}
	if len(w.Calls()) != 1 || w.clock.total() != 0 {
		t.Errorf("%v, waited %s", w.calls(), w.clock.total())
	}
}

// A limit that lasts longer than the patience is told at once, with the time to come back.
func TestLimitBeyondPatience(t *testing.T) {
	w := start(t)
	w.Before = func(forgetest.Call) *forgetest.Reply {
		return &forgetest.Reply{Status: 429, Header: map[string]string{"Retry-After": "3000"}}
	}
	err := w.client.Status(t.Context(), head, forge.Status{Context: "c", State: forge.Good})
	w.want(err, forge.ErrLimited, "2026-11-30T12:50:00Z")
	var e *forge.Error
	if errors.As(err, &e); !e.Until.Equal(w.clock.Now().Add(50 * time.Minute)) {
		t.Errorf("until %s", e.Until)
	}
	if w.clock.total() != 0 {
		t.Error("it waited all the same")
	}
}

// The primary limit: when the last request of the hour is used, the next one waits for the hour's end, and is not sent in vain.
func TestPrimaryLimit(t *testing.T) {
	w := start(t, func(c *forge.Config) { c.Patience = 2 * time.Hour })
	w.Limit = 3
	for range 5 {
		w.ok(w.client.Status(t.Context(), head, forge.Status{Context: "c", State: forge.Good}))
	}
	for _, c := range w.Calls() {
		if c.Status != 201 {
			t.Errorf("a request was sent in vain: %v", w.calls())
		}
	}
	if d := w.clock.total(); d < time.Hour || d > time.Hour+5*time.Second {
		t.Errorf("waited %s", d)
	}
}

// Many writes are spaced, so that the secondary limits are never met.
func TestManyWrites(t *testing.T) {
	w := start(t)
	for range 200 {
		w.ok(w.client.Status(t.Context(), head, forge.Status{Context: "c", State: forge.Good}))
	}
	for _, c := range w.Calls() {
		if c.Status != 201 {
			t.Fatalf("%v", c)
		}
	}
}

// What fails for a moment is tried again, with ever longer pauses; then it is not reachable, and nothing of the token is said.
func TestServerFails(t *testing.T) {
	w := start(t)
	n := 0
	w.Before = func(forgetest.Call) *forgetest.Reply {
		if n++; n <= 2 {
			return &forgetest.Reply{Status: 500 + n}
		}
		return nil
	}
	w.ok(w.client.Status(t.Context(), head, forge.Status{Context: "c", State: forge.Good}))
	if d := w.clock.total(); d < 3*time.Second || d > 5*time.Second {
		t.Errorf("waited %s", d)
	}
	w.Before = func(forgetest.Call) *forgetest.Reply { return &forgetest.Reply{Status: 503} }
	w.want(w.client.Status(t.Context(), head, forge.Status{Context: "c", State: forge.Good}), forge.ErrUnreachable, "status 503")
	w.Close()
	w.want(w.client.Status(t.Context(), head, forge.Status{Context: "c", State: forge.Good}), forge.ErrUnreachable, "refused")
}

// A server that says when it is back is left alone until then.
func TestServerFailsFor(t *testing.T) {
	w := start(t)
	n := 0
	w.Before = func(forgetest.Call) *forgetest.Reply {
		if n++; n == 1 {
			return &forgetest.Reply{Status: 503, Header: map[string]string{"Retry-After": "90"}}
		}
		return nil
	}
	w.ok(w.client.Status(t.Context(), head, forge.Status{Context: "c", State: forge.Good}))
	if d := w.clock.total(); d != 90*time.Second {
		t.Errorf("waited %s", d)
	}
	if len(w.Calls()) != 2 {
		t.Errorf("%v", w.calls())
	}
}

// By a clock that is ahead the end of a limit is long past, and the server goes on refusing: it is not asked every second.
func TestClockAhead(t *testing.T) {
	w := start(t)
	w.Before = func(forgetest.Call) *forgetest.Reply {
		return &forgetest.Reply{Status: 403, Header: map[string]string{"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": strconv.FormatInt(w.clock.Now().Add(-time.Hour).Unix(), 10)}, Body: `{"message":"API rate limit exceeded"}`}
	}
	w.want(w.client.Status(t.Context(), head, forge.Status{Context: "c", State: forge.Good}), forge.ErrLimited, "come back at")
	if n := len(w.Calls()); n > 16 {
		t.Errorf("%d requests in %s", n, w.clock.total())
	}
}

// An answer that never comes is bounded, each try by itself.
func TestBounds(t *testing.T) {
	w := start(t, func(c *forge.Config) { c.Timeout = 50 * time.Millisecond })
	block := make(chan struct{})
	w.Before = func(forgetest.Call) *forgetest.Reply { <-block; return nil }
	_, err := w.client.Pull(t.Context(), 7)
	close(block)
	w.want(err, forge.ErrUnreachable, "read pull request 7")
}

// What did not change is asked for conditionally, and costs nothing of the limit.
func TestConditional(t *testing.T) {
	w := start(t)
	w.Open(forgetest.Pull{Number: 7, Author: "ana", Title: "t", Head: head})
	for range 3 {
		p, err := w.client.Pull(t.Context(), 7)
		w.ok(err)
		if p.Author != "ana" || p.Head != head || p.Merged || p.HeadRepo != forgetest.Repo {
			t.Errorf("%+v", p)
		}
	}
	w.equal(w.calls(), []string{"GET /pulls/7 200", "GET /pulls/7 304", "GET /pulls/7 304"})
	if c := w.client.Calls(); c.NotModified != 2 {
		t.Errorf("%+v", c)
	}
}

func TestNew(t *testing.T) {
	good := func() (string, error) { return token, nil }
	for _, tt := range []struct {
		name string
		cfg  forge.Config
		want string
	}{
		{"no repository", forge.Config{Token: good}, "owner/name"},
		{"a path", forge.Config{Repo: "acme/../x", Token: good}, "owner/name"},
		{"no token", forge.Config{Repo: "a/b"}, "a token or an app"},
		{"both", forge.Config{Repo: "a/b", Token: good, App: &forge.App{}}, "one of them"},
		{"plain http", forge.Config{Repo: "a/b", Token: good, API: "http://github.example/api/v3"}, "unprotected"},
		{"with a password", forge.Config{Repo: "a/b", Token: good, API: "https://ana:secret@github.example"}, "without user"},
		{"no URL", forge.Config{Repo: "a/b", Token: good, API: "github.example"}, "not an http"},
		{"no key", forge.Config{Repo: "a/b", App: &forge.App{ID: "1", Key: []byte("secret")}}, "not PEM"},
		{"no id", forge.Config{Repo: "a/b", App: &forge.App{}}, "id is missing"},
	} {
		_, err := forge.New(tt.cfg)
		if err == nil || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v, want %q", tt.name, err, tt.want)
		}
	}
	if _, err := forge.New(forge.Config{Repo: "a/b", Token: good, API: "https://github.example/api/v3"}); err != nil {
		t.Error(err)
	}
}

// A token that is no token is not sent.
func TestTokenOfTwoLines(t *testing.T) {
	w := start(t, func(c *forge.Config) {
		c.Token = func() (string, error) { return "secret\r\nX-Evil: 1", nil }
	})
	_, err := w.client.Pull(t.Context(), 7)
	w.want(err, forge.ErrDenied, "characters that no token has")
	if len(w.Calls()) != 0 {
		t.Error("sent")
	}
}

// An app signs its own token, finds its installation, and keeps the installation's token until shortly before its end.
func TestApp(t *testing.T) {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for name, block := range map[string]*pem.Block{"PKCS 1": {Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)}, "PKCS 8": {Type: "PRIVATE KEY", Bytes: pkcs8}} {
		t.Run(name, func(t *testing.T) {
			w := start(t)
			w.App("12345", &key.PublicKey)
			w.client = w.open(func(c *forge.Config) {
				c.Token, c.App = nil, &forge.App{ID: "12345", Key: pem.EncodeToMemory(block)}
			})
			status := func() { w.ok(w.client.Status(t.Context(), head, forge.Status{Context: "c", State: forge.Good})) }
			status()
			status()
			w.equal(w.calls(), []string{"GET /installation 200", fmt.Sprintf("POST /app/installations/%d/access_tokens 201", forgetest.Installation), "POST /statuses/" + head + " 201", "POST /statuses/" + head + " 201"})
			w.Forget()
			_ = w.clock.Sleep(t.Context(), 56*time.Minute)
			status()
			w.equal(w.calls(), []string{fmt.Sprintf("POST /app/installations/%d/access_tokens 201", forgetest.Installation), "POST /statuses/" + head + " 201"})
			w.say("plan")
			if got := w.Comments(7, "muster[bot]"); len(got) != 1 {
				t.Errorf("%d comments of the app", len(got))
			}
		})
	}
}

// A token that GitHub took back is not used twice.
func TestAppTokenRevoked(t *testing.T) {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	w := start(t)
	w.App("12345", &key.PublicKey)
	w.client = w.open(func(c *forge.Config) {
		c.Token, c.App = nil, &forge.App{ID: "12345", Installation: forgetest.Installation, Key: pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)})}
	})
	w.ok(w.client.Status(t.Context(), head, forge.Status{Context: "c", State: forge.Good}))
	n := 0
	w.Before = func(c forgetest.Call) *forgetest.Reply {
		if n++; n == 1 {
			return &forgetest.Reply{Status: 401, Body: `{"message":"Bad credentials"}`}
		}
		return nil
	}
	w.want(w.client.Status(t.Context(), head, forge.Status{Context: "c", State: forge.Good}), forge.ErrDenied, "Bad credentials")
	w.ok(w.client.Status(t.Context(), head, forge.Status{Context: "c", State: forge.Good}))
}

// What goes aside does not wait for what waits for a limit: in a hurry it ends at once, and sends nothing while the limit is known.
func TestAside(t *testing.T) {
	waits := make(chan struct{})
	release := make(chan struct{})
	w := start(t, func(c *forge.Config) {
		c.Sleep = func(ctx context.Context, _ time.Duration) error {
			close(waits)
			select {
			case <-release:
			case <-ctx.Done():
			}
			return ctx.Err()
		}
	})
	w.Open(forgetest.Pull{Number: 7, Author: "ana", Head: head})
	first := true
	var mu sync.Mutex
	w.Before = func(forgetest.Call) *forgetest.Reply {
		mu.Lock()
		defer mu.Unlock()
		if first {
			first = false
			return &forgetest.Reply{Status: 429, Header: map[string]string{"Retry-After": "120"}}
		}
		return nil
	}
	var slow sync.WaitGroup
	slow.Go(func() {
		if _, err := w.client.Pull(t.Context(), 7); err != nil {
			t.Error(err)
		}
	})
	<-waits // it has its turn, and keeps it
	aside := w.client.Aside()
	_, err := aside.Pull(forge.Hurry(t.Context()), 7)
	w.want(err, forge.ErrLimited, "come back at")
	if n := len(w.Calls()); n != 1 {
		t.Errorf("%d requests: %v", n, w.calls())
	}
	w.ok(w.clock.Sleep(t.Context(), 3*time.Minute)) // the limit is over, and the other one still sleeps
	if _, err := aside.Pull(forge.Hurry(t.Context()), 7); err != nil {
		t.Errorf("behind the one that sleeps: %v", err)
	}
	if w.client.Calls() != aside.Calls() {
		t.Error("not counted together")
	}
	close(release)
	slow.Wait()
}

// In a hurry a limit is not waited for even when it is heard first; nor is the next call sent.
func TestHurry(t *testing.T) {
	w := start(t)
	w.Before = func(forgetest.Call) *forgetest.Reply {
		return &forgetest.Reply{Status: 403, Body: `{"message":"You have exceeded a secondary rate limit"}`}
	}
	for range 2 {
		_, err := w.client.Pull(forge.Hurry(t.Context()), 7)
		w.want(err, forge.ErrLimited, "come back at")
	}
	if n := len(w.Calls()); n != 1 || w.clock.total() != 0 {
		t.Errorf("%d requests, slept %s", n, w.clock.total())
	}
}
