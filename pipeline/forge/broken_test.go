package forge_test

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/muster-config/muster/pipeline/forge"
	"github.com/muster-config/muster/pipeline/forge/forgetest"
)

// An answer that is not one whole JSON value is no answer: a decoder would stop after the first and leave pointers to nowhere.
func TestAnswerIsOneValue(t *testing.T) {
	for _, body := range []string{"[null] x", "[null]\n[]", "[null", "\ufeff[null]", `[{"id":1},null]}`, `[{"id":1}] [`, "{} {}"} {
		w := start(t)
		w.Before = func(forgetest.Call) *forgetest.Reply { return &forgetest.Reply{Status: 200, Body: body} }
		if _, err := w.client.Attribution(t.Context(), head, "main"); !errors.Is(err, forge.ErrUnreachable) {
			t.Errorf("attribution from %q: %v", body, err)
		}
		if _, err := w.client.Said(t.Context(), head, "c"); !errors.Is(err, forge.ErrUnreachable) {
			t.Errorf("statuses from %q: %v", body, err)
		}
	}
}

// A limit that is to be over at once, each time, is waited for longer each time.
func TestRetryAfterNothing(t *testing.T) {
	w := start(t, func(c *forge.Config) { c.Patience = 3 * time.Minute })
	w.Before = func(forgetest.Call) *forgetest.Reply {
		return &forgetest.Reply{Status: 403, Header: map[string]string{"Retry-After": "0"}, Body: `{"message":"You have exceeded a secondary rate limit"}`}
	}
	err := w.client.Status(t.Context(), head, forge.Status{Context: "c", State: forge.Good})
	if n := w.client.Calls().Requests; !errors.Is(err, forge.ErrLimited) || n < 3 || n > 8 {
		t.Errorf("%d requests: %v", n, err)
	}
}

// Who waits for a token that somebody else asks for ends with its own context.
func TestTokenWaitEnds(t *testing.T) {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	w := start(t)
	w.App("1", &key.PublicKey)
	asked := make(chan struct{}, 100)
	c := w.open(func(c *forge.Config) {
		c.Token = nil
		c.App = &forge.App{ID: "1", Key: pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)})}
		c.Timeout = time.Hour
		c.Transport = silent(func(r *http.Request) (*http.Response, error) {
			asked <- struct{}{}
			<-r.Context().Done()
			return nil, r.Context().Err()
		})
	})
	first, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- c.Status(first, head, forge.Status{Context: "c", State: forge.Good}) }()
	<-asked // it holds the turn
	ctx, cancel := context.WithCancel(t.Context())
	second := make(chan error, 1)
	go func() {
		_, err := c.Aside().Attribution(ctx, head, "main")
		second <- err
	}()
	cancel()
	if err := <-second; err == nil || !strings.Contains(err.Error(), "cancel") { // the first hangs yet
		t.Errorf("the second: %v", err)
	}
	select {
	case err := <-ended:
		t.Errorf("the first ended: %v", err)
	default:
	}
	stop()
	if err := <-ended; err == nil {
		t.Error("the first has no error")
	}
}

type silent func(*http.Request) (*http.Response, error)

func (f silent) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
