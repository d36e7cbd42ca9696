package forge_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/muster-config/muster/pipeline/forge"
	"github.com/muster-config/muster/pipeline/forge/forgetest"
)

// everything is all that a client can be asked to do.
func everything(c *forge.Client) map[string]func(context.Context) error {
	return map[string]func(context.Context) error{
		"check": func(ctx context.Context) error {
			_, err := c.Check(ctx, forge.Check{Name: "n", Commit: head, ExternalID: "1", Conclusion: "success", Title: "t", Annotations: many(120)})
			return err
		},
		"comment": func(ctx context.Context) error {
			_, err := c.Comment(ctx, forge.Sticky{Pull: 7, Kind: "plan", Body: "b"})
			return err
		},
		"pull":        func(ctx context.Context) error { _, err := c.Pull(ctx, 7); return err },
		"attribution": func(ctx context.Context) error { _, err := c.Attribution(ctx, head, "main"); return err },
		"member":      func(ctx context.Context) error { _, err := c.Member(ctx, "acme/payments", "ana"); return err },
		"deploy": func(ctx context.Context) error {
			d, err := c.Deploy(ctx, forge.Deployment{Commit: head, Environment: "prod"})
			if err != nil {
				return err
			}
			return c.Progress(ctx, d, forge.DeploymentStatus{State: forge.Success})
		},
		"status": func(ctx context.Context) error {
			return c.Status(ctx, head, forge.Status{Context: "c", State: forge.Good})
		},
		"said": func(ctx context.Context) error { _, err := c.Said(ctx, head, "c"); return err },
		"revert": func(ctx context.Context) error {
			_, _, err := c.Revert(ctx, forge.Revert{Branch: "main", Name: "muster/revert-1", Good: other, Bad: head, Title: "t"})
			return err
		},
	}
}

func many(n int) (list []forge.Annotation) {
	for i := range n {
		list = append(list, forge.Annotation{Path: "a.cue", Line: i + 1, Level: forge.LevelError, Message: "m"})
	}
	return list
}

// Answers that are none, whatever their status and type, end in an error or in nothing, never in a panic, a loop or a token that is printed.
func TestHostileAnswers(t *testing.T) {
	for _, body := range []string{
		"", "null", "[]", "{}", "[null]", "[{}]", `""`, "0", `{"id":"x"}`, `{"check_runs":[null],"total_count":-1}`, `[{"number":-1,"head":null,"base":null,"merged_at":"2026-11-30T12:00:00Z"}]`,
		`{"object":null,"tree":null}`, `{"object":{"sha":"../../x"},"tree":{"sha":"%2e%2e"},"sha":"` + head + `"}`, `{"sha":"` + head + `","tree":[null,{}],"parents":[null],"files":[null]}`,
		"<html>" + strings.Repeat("<b>", 1000), strings.Repeat("[", 1<<20), "\xff\xfe", `{"message":"::error::` + token + `"}`,
	} {
		for _, status := range []int{200, 201, 202, 204, 206, 300, 304, 400, 418, 422} {
			w := start(t)
			w.Before = func(forgetest.Call) *forgetest.Reply {
				return &forgetest.Reply{Status: status, Header: map[string]string{"Content-Type": "text/html", "ETag": `"x"`}, Body: body}
			}
			for name, do := range everything(w.client) {
				w.Forget()
				err := do(t.Context())
				if err != nil && strings.Contains(err.Error(), token) {
					t.Errorf("%s %d %.40q: the token is told: %v", name, status, body, err)
				}
				if n := len(w.Calls()); n == 0 || n > 20 {
					t.Errorf("%s %d %.40q: %d requests", name, status, body, n)
				}
				if status >= 400 && err == nil && name != "member" {
					t.Errorf("%s %d %.40q: no error", name, status, body)
				}
			}
		}
	}
}

// A list whose pages lead in a circle, far away, or on without end is left.
func TestHostilePages(t *testing.T) {
	for name, next := range map[string]func(page string) string{
		"itself":  func(page string) string { return page },
		"first":   func(string) string { return "1" },
		"far":     func(string) string { return "1000000000" },
		"endless": func(page string) string { return fmt.Sprint(len(page)) },
	} {
		w := start(t)
		n := 0
		w.Before = func(c forgetest.Call) *forgetest.Reply {
			if c.Method != http.MethodGet {
				return nil
			}
			page := c.Query.Get("page")
			if page == "" {
				page = "1"
			}
			to := next(page)
			if name == "endless" {
				n++
				to = fmt.Sprint(n + 1)
			}
			return &forgetest.Reply{Status: 200, Header: map[string]string{"Link": fmt.Sprintf(`<%s%s?page=%s>; rel="next"`, w.URL, c.Path, to)}, Body: "[]"}
		}
		for what, do := range everything(w.client) {
			if what != "comment" && what != "attribution" && what != "said" {
				continue
			}
			n = 0
			w.Forget()
			w.want(do(t.Context()), forge.ErrUnreachable, "its list goes on at page")
			if got := len(w.Calls()); got > 101 {
				t.Errorf("%s, %s: %d requests", name, what, got)
			}
		}
	}
}

// A redirect is followed within the API, as it comes for a repository that was renamed, and nowhere else: no request, let alone the token, reaches another host, and no
// request turns into another one.
func TestRedirect(t *testing.T) {
	elsewhere := 0
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		elsewhere++
		w.Write([]byte(`{"number":7,"id":7}`)) //nolint:errcheck // a test's
	}))
	defer other.Close()
	for _, status := range []int{301, 302, 303, 307, 308} {
		w := start(t)
		w.Before = func(forgetest.Call) *forgetest.Reply {
			return &forgetest.Reply{Status: status, Header: map[string]string{"Location": other.URL + "/x"}}
		}
		for name, do := range everything(w.client) {
			err := do(t.Context())
			w.want(err, forge.ErrUnreachable, "")
			if err == nil {
				t.Errorf("%d: %s is done elsewhere", status, name)
			}
		}
		// In a circle.
		w.Before = func(c forgetest.Call) *forgetest.Reply {
			return &forgetest.Reply{Status: status, Header: map[string]string{"Location": c.Path}}
		}
		w.Forget()
		_, err := w.client.Pull(t.Context(), 7)
		w.want(err, forge.ErrUnreachable, "on and on")
		if n := len(w.Calls()); n > 4 {
			t.Errorf("%d requests in a circle", n)
		}
	}
	if elsewhere != 0 {
		t.Errorf("%d requests to another host", elsewhere)
	}
	// Renamed: https://docs.github.com/en/rest/using-the-rest-api/best-practices-for-using-the-rest-api#follow-redirects
	w := start(t)
	w.Open(forgetest.Pull{Number: 7, Author: "ana", Head: head})
	moved := 301
	w.Before = func(c forgetest.Call) *forgetest.Reply {
		if path, old := strings.CutPrefix(c.Path, "/repos/old/name"); old {
			return &forgetest.Reply{Status: moved, Header: map[string]string{"Location": w.URL + "/repos/" + forgetest.Repo + path}}
		}
		return nil
	}
	c := w.open(func(cfg *forge.Config) { cfg.Repo = "old/name" })
	p, err := c.Pull(t.Context(), 7)
	w.ok(err)
	if p.Author != "ana" {
		t.Errorf("%+v", p)
	}
	moved = 307
	w.ok(c.Status(t.Context(), head, forge.Status{Context: "c", State: forge.Good}))
	if len(w.Statuses(head)) != 1 {
		t.Error("what was sent did not follow")
	}
	moved = 302
	w.want(c.Status(t.Context(), head, forge.Status{Context: "c", State: forge.Good}), forge.ErrUnreachable, "would lose it")
}

// A body that comes a byte at a time, and one that unpacks to far more than it is, are bounded in time and size.
func TestHostileBodies(t *testing.T) {
	var bomb bytes.Buffer
	z := gzip.NewWriter(&bomb)
	for range 64 {
		z.Write(make([]byte, 1<<20)) //nolint:errcheck // into memory
	}
	z.Close()
	for name, serve := range map[string]http.HandlerFunc{
		"slow": func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(200)
			for r.Context().Err() == nil {
				w.Write([]byte(" ")) //nolint:errcheck // who asked has gone
				http.NewResponseController(w).Flush()
				time.Sleep(time.Millisecond) // between two bytes
			}
		},
		"larger than 16 MiB": func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Encoding", "gzip")
			w.Write(bomb.Bytes()) //nolint:errcheck // who asked has gone
		},
	} {
		srv := httptest.NewServer(serve)
		timeout := time.Minute
		if name == "slow" {
			timeout = 50 * time.Millisecond
		}
		w := start(t, func(c *forge.Config) { c.API, c.Timeout = srv.URL, timeout })
		_, err := w.client.Pull(t.Context(), 7)
		srv.Close()
		if w.want(err, forge.ErrUnreachable, ""); name != "slow" && !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A time to come back that is no time is not slept through: GitHub's own limits are over within the hour.
func TestHostileTimes(t *testing.T) {
	for _, h := range []map[string]string{
		{"Retry-After": "16000000"}, {"Retry-After": "Fri, 31 Dec 9999 23:59:59 GMT"}, {"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "99999999999"}, {"X-RateLimit-Reset": "9223372036854775807"},
	} {
		for _, status := range []int{200, 403, 429} {
			w := start(t)
			w.Before = func(forgetest.Call) *forgetest.Reply { return &forgetest.Reply{Status: status, Header: h, Body: "{}"} }
			for range 2 {
				_, err := w.client.Pull(t.Context(), 7)
				var e *forge.Error
				if errors.As(err, &e) && e.Until.Sub(w.clock.Now()) > 2*time.Hour+time.Second {
					t.Errorf("%v %d: come back at %s", h, status, e.Until)
				}
			}
			if d := w.clock.total(); d > 10*time.Minute {
				t.Errorf("%v %d: slept %s", h, status, d)
			}
		}
	}
}

// TestB119PersonsToken: checks are for apps alone, and that is what is said.
func TestB119PersonsToken(t *testing.T) {
	w := start(t)
	w.Allow(token, forgetest.Token{Login: "ana", May: forgetest.All()})
	_, err := w.client.Check(t.Context(), forge.Check{Name: "n", Commit: head, Conclusion: "success", Title: "t"})
	w.want(err, forge.ErrDenied, "You must authenticate via a GitHub App")
	var e *forge.Error
	if !errors.As(err, &e) || !strings.Contains(e.Hint(), "no person's token") {
		t.Errorf("%v", e)
	}
}

// What is sent for a check stays small, whatever a pull request holds: ten thousand findings, each of half a megabyte.
func TestCheckHuge(t *testing.T) {
	w := start(t)
	list := many(10_000)
	message, title := strings.Repeat("é", 1<<18), strings.Repeat("x", 1<<16)
	for i := range list {
		list[i].Message, list[i].Title = message, title
	}
	_, err := w.client.Check(t.Context(), forge.Check{Name: "n", Commit: head, Conclusion: "failure", Title: strings.Repeat("y", 1<<20), Summary: strings.Repeat("z\n", 1<<20), Annotations: list})
	w.ok(err)
	k := w.Checks(head)
	if len(k) != 1 || k[0].GetConclusion() != "failure" || len(k[0].Annotations) != forge.MaxAnnotations || len(w.Calls()) != 6 {
		t.Errorf("%d checks, %v", len(k), w.calls())
	}
	for _, c := range w.Calls() {
		if len(c.Body) > 1<<20 || !json.Valid(c.Body) {
			t.Errorf("%s has %d bytes", c, len(c.Body))
		}
	}
}
