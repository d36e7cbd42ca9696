package forge_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/muster-config/muster/pipeline/forge"
	"github.com/muster-config/muster/pipeline/forge/forgetest"
)

const (
	token = "ghs_secret0123456789"
	head  = "1111111111111111111111111111111111111111"
	other = "2222222222222222222222222222222222222222"
)

// clock is moved by those who sleep.
type clock struct {
	mu    sync.Mutex
	now   time.Time
	slept []time.Duration
}

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) Sleep(ctx context.Context, d time.Duration) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
	c.slept = append(c.slept, d)
	return ctx.Err()
}

func (c *clock) total() (d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.slept {
		d += s
	}
	return d
}

type world struct {
	*testing.T
	*forgetest.Server
	clock  *clock
	client *forge.Client
}

func start(t *testing.T, change ...func(*forge.Config)) *world {
	w := &world{T: t, Server: forgetest.New(t), clock: &clock{now: time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)}}
	w.Server.Now = w.clock.Now
	w.Allow(token, forgetest.Token{Login: "github-actions[bot]", Installation: true, May: forgetest.All()})
	w.client = w.open(change...)
	return w
}

func (w *world) open(change ...func(*forge.Config)) *forge.Client {
	w.Helper()
	cfg := forge.Config{
		API: w.Server.URL, Repo: forgetest.Repo, Token: func() (string, error) { return token, nil }, Agent: "muster/test", Timeout: time.Minute, // a slow machine is no failure
		Patience: 10 * time.Minute,
		Now:      w.clock.Now, Sleep: w.clock.Sleep,
	}
	for _, c := range change {
		c(&cfg)
	}
	client, err := forge.New(cfg)
	if err != nil {
		w.Fatal(err)
	}
	return client
}

// calls are "POST /repos/… 201" without the repository.
func (w *world) calls() []string {
	out := []string{}
	for _, c := range w.Calls() {
		out = append(out, strings.Replace(c.String(), "/repos/"+forgetest.Repo, "", 1))
	}
	return out
}

func (w *world) want(got error, is error, holds string) {
	w.Helper()
	if !errors.Is(got, is) || !strings.Contains(got.Error(), holds) {
		w.Errorf("error %v, want %v with %q", got, is, holds)
	}
	if got != nil && strings.Contains(got.Error(), "secret") {
		w.Errorf("the error holds the token: %v", got)
	}
}

func (w *world) equal(got, want []string) {
	w.Helper()
	if !slices.Equal(got, want) {
		w.Errorf("got\n  %s\nwant\n  %s", strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
}

func (w *world) ok(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}
