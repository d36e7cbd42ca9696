package collector

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/muster-config/muster/distributor/api"
	"github.com/muster-config/muster/distributor/manifest"
)

func TestTokensAreReadAgain(t *testing.T) {
	w := newWorld(t)
	w.cohort("prod", "web-1")
	path := filepath.Join(t.TempDir(), "tokens.yaml")
	people := func(names ...string) {
		t.Helper()
		text := "people:\n"
		for _, name := range names {
			text += fmt.Sprintf("- {name: %s, sha256: %s, role: viewer, cohorts: [\"*\"]}\n", name, tokenSum(name+"'s"))
		}
		// As people and tools do it: another file in its place.
		if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+".new", path); err != nil {
			t.Fatal(err)
		}
	}
	people("ana", "ben")
	tokens, err := LoadTokens(path)
	if err != nil {
		t.Fatal(err)
	}
	r := newRig(t, w, tokens)
	r.c.cfg.TokensFile = path
	one := w.publish("prod")
	w.assign("prod", one)
	r.read()
	may := func(name string) bool {
		_, err := r.as(name + "'s").Status(t.Context())
		return err == nil
	}
	jar, _ := cookiejar.New(nil)
	browser := &http.Client{Jar: jar, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	resp, err := browser.PostForm(r.server.URL+"/login", url.Values{"token": {"ana's"}})
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if status, _, _ := r.page(t, browser, "/"); status != http.StatusOK {
		t.Fatalf("signed in: %d", status)
	}
	// She also follows the events, and waits for a head.
	stream, err := browser.Get(r.server.URL + api.PathEvents)
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Body.Close()
	lines := bufio.NewScanner(stream.Body)
	if !lines.Scan() {
		t.Fatal("no event")
	}
	waits := make(chan error, 1)
	ana := r.as("ana's")
	_, mark, err := ana.GetHead(t.Context(), "prod", manifest.Mark{}, 0)
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		_, _, err := ana.GetHead(t.Context(), "prod", mark, 50*time.Second)
		waits <- err
	}()
	until(t, "she waits", func() bool {
		r.c.staying.mu.Lock()
		defer r.c.staying.mu.Unlock()
		return len(r.c.staying.list) == 2
	})

	trouble := r.c.readTokens(true, "")
	if !may("ana") || !may("ben") || trouble != "" || !strings.Contains(r.log.String(), "tokens file read again") {
		t.Errorf("nothing changed: %s", trouble)
	}
	people("ben", "eve")
	if may("eve") {
		t.Error("before it is read")
	}
	r.c.readTokens(false, "")
	if may("ana") || !may("ben") || !may("eve") {
		t.Errorf("ana %t, ben %t, eve %t", may("ana"), may("ben"), may("eve"))
	}
	if status, _, _ := r.page(t, browser, "/"); status != http.StatusSeeOther {
		t.Errorf("her cookie: %d", status)
	}
	for lines.Scan() { // to the end of the stream
	}
	if err := <-waits; err == nil || !strings.Contains(err.Error(), "taken out of the tokens file") {
		t.Errorf("her long poll: %v", err)
	}
	// A slip of the pen locks nobody out, and is said once.
	if err := os.WriteFile(path, []byte("people: []\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	trouble = r.c.readTokens(false, "")
	r.c.readTokens(false, trouble)
	if !may("ben") || strings.Count(r.log.String(), "lets nobody in") != 1 {
		t.Errorf("%s", r.log.String())
	}
}

// Guessing is slow, and neither fills the log nor locks out others for long.
func TestFailedLogins(t *testing.T) {
	r, _ := pageRig(t, &Tokens{People: []PersonToken{{"ana", digestOf("ana-token"), RoleViewer, []string{"*"}}}})
	client := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	login := func(token string) (int, string) {
		t.Helper()
		resp, err := client.PostForm(r.server.URL+"/login", url.Values{"token": {token}})
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		return resp.StatusCode, resp.Header.Get("Retry-After")
	}
	for i := range maxFailed {
		if status, _ := login(fmt.Sprint("guess ", i)); status != http.StatusUnauthorized {
			t.Fatalf("attempt %d: %d", i, status)
		}
		r.advance(time.Second)
	}
	for _, token := range []string{"guess", "ana-token"} {
		if status, after := login(token); status != http.StatusTooManyRequests || after != "50" {
			t.Errorf("%s: %d, Retry-After %q", token, status, after)
		}
	}
	if n := strings.Count(r.log.String(), "failed to sign in"); n != 1 || strings.Contains(r.log.String(), "guess") {
		t.Errorf("%d lines in the log", n)
	}
	if got := string(metricsOf(t, r, "ana-token")); !strings.Contains(got, "\nmuster_logins_failed_total 10\n") || !strings.Contains(got, "\nmuster_logins_held_total 2\n") {
		t.Error("metrics do not tell")
	}
	r.advance(51 * time.Second)
	if status, _ := login("ana-token"); status != http.StatusSeeOther {
		t.Errorf("after a minute: %d", status)
	}
	if status, _ := login("guess"); status != http.StatusUnauthorized {
		t.Errorf("after a minute, wrong: %d", status)
	}
	if n := strings.Count(r.log.String(), "failed to sign in"); n != 2 {
		t.Errorf("%d lines in the log", n)
	}
}

// Tokens that nobody has are turned away sooner and said once a minute; whoever has one is served, wherever others fail.
func TestUnknownTokens(t *testing.T) {
	r, _ := pageRig(t, &Tokens{People: []PersonToken{{"ana", digestOf("ana-token"), RoleViewer, []string{"*"}}}})
	ask := func(token string) (int, string) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, r.server.URL+api.PathCohorts, nil)
		if err != nil {
			t.Fatal(err)
		}
		if token != "" {
			req.Header.Set("Authorization", "Bearer "+token)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		return resp.StatusCode, resp.Header.Get("Retry-After")
	}
	for i := range maxFailed {
		if status, _ := ask(fmt.Sprint("guess-", i)); status != http.StatusUnauthorized {
			t.Fatalf("attempt %d: %d", i, status)
		}
		r.advance(time.Second)
	}
	if status, after := ask("guess"); status != http.StatusTooManyRequests || after != "50" {
		t.Errorf("one more: %d, Retry-After %q", status, after)
	}
	if status, _ := ask("ana-token"); status != http.StatusOK {
		t.Errorf("who has a token: %d", status)
	}
	if status, _ := ask(""); status != http.StatusUnauthorized {
		t.Errorf("without one: %d", status)
	}
	if n := strings.Count(r.log.String(), "a token that nobody has"); n != 1 || strings.Contains(r.log.String(), "guess") {
		t.Errorf("%d lines in the log", n)
	}
	if got := string(metricsOf(t, r, "ana-token")); !strings.Contains(got, "\nmuster_tokens_unknown_total 11\n") {
		t.Error("metrics do not tell")
	}
	r.advance(51 * time.Second)
	if status, _ := ask("guess"); status != http.StatusUnauthorized {
		t.Errorf("after a minute: %d", status)
	}
}

func metricsOf(t *testing.T, r *rig, token string) []byte {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, r.server.URL+api.PathMetrics, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return data
}
