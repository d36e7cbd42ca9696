package host_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/muster-config/muster/agent"
	"github.com/muster-config/muster/agent/agenttest"
	"github.com/muster-config/muster/agent/host"
	"github.com/muster-config/muster/distributor/api"
	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/store"
	"github.com/muster-config/muster/distributor/store/mem"
)

// config is a host whose only source is a collector at url.
func config(t *testing.T, w *agenttest.World, url string) agent.Config {
	t.Helper()
	keyring := filepath.Join(t.TempDir(), "keyring.json")
	if err := os.WriteFile(keyring, w.Keyring, 0o644); err != nil {
		t.Fatal(err)
	}
	return agent.Config{
		Host: "web-17", Repo: agenttest.Repo, Cohort: agenttest.Cohort, Keyring: keyring, Root: filepath.Join(t.TempDir(), "root"),
		Collector: agent.CollectorConfig{URL: url},
	}
}

// serve gives a store's heads and objects as a collector does.
func serve(t *testing.T, w *agenttest.World) *httptest.Server {
	t.Helper()
	get := func(rw http.ResponseWriter, r *http.Request, key string) {
		o, err := w.Store.Get(r.Context(), key, 1<<20)
		if err != nil {
			rw.WriteHeader(http.StatusNotFound)
			io.WriteString(rw, `{"error": "no such object", "code": 1}`)
			return
		}
		rw.Write(o.Data)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+api.PathHeads+"{cohort}", func(rw http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("after") == "1-1-0" {
			rw.WriteHeader(http.StatusNotModified)
			return
		}
		rw.Header().Set(api.HeaderMark, "1-1-0")
		get(rw, r, manifest.KeyHead(r.PathValue("cohort")))
	})
	mux.HandleFunc("GET "+api.PathObjects+"{key...}", func(rw http.ResponseWriter, r *http.Request) { get(rw, r, r.PathValue("key")) })
	mux.HandleFunc("POST "+api.PathReports, func(rw http.ResponseWriter, r *http.Request) {
		io.WriteString(rw, `{"results": [{"host": "web-17", "accepted": true, "counter": 1}]}`)
	})
	srv := httptest.NewServer(mux)
	t.Cleanup(srv.Close)
	return srv
}

func TestFromCollectorOnly(t *testing.T) {
	w := agenttest.New(t, mem.New())
	w.Release(agenttest.Files{"checkout/checkout.yaml": "1"}, agenttest.Grade(manifest.GradeDisk))
	w.Assign(1)
	srv := serve(t, w)
	h, err := host.Open(t.Context(), config(t, w, srv.URL), host.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	res, err := h.Once(t.Context(), false)
	if err != nil || !res.Confirmed || res.Running != 1 {
		t.Errorf("%+v, %v", res, err)
	}
}

// Errors of the collector have the sentinels of a carrier.
func TestCollectorErrors(t *testing.T) {
	w := agenttest.New(t, mem.New())
	srv := serve(t, w)
	client, err := api.NewClient(srv.URL, api.ClientOptions{})
	if err != nil {
		t.Fatal(err)
	}
	c := host.Collector{Client: client}
	if _, err := c.Head(t.Context(), "unknown"); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("%v", err)
	}
	if _, err := c.AwaitHead(t.Context(), agenttest.Cohort, manifest.Mark{Era: 1, Serial: 1}); !errors.Is(err, store.ErrNotModified) {
		t.Errorf("%v", err)
	}
	if _, err := c.Keyring(t.Context(), 2); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("%v", err)
	}
	if data, err := c.Keyring(t.Context(), 1); err != nil || string(data) != string(w.Keyring) {
		t.Errorf("%q, %v", data, err)
	}
	srv.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	if _, err := c.Head(ctx, agenttest.Cohort); !errors.Is(err, store.ErrUnreachable) {
		t.Errorf("%v", err)
	}
}

func TestOpenErrors(t *testing.T) {
	w := agenttest.New(t, mem.New())
	for name, tc := range map[string]struct {
		edit func(*agent.Config)
		want string
	}{
		"no keyring":       {func(c *agent.Config) { c.Keyring = "/nowhere/keyring.json" }, "read the keyring: open /nowhere/keyring.json"},
		"foreign http":     {func(c *agent.Config) { c.Sources = []string{"http://127.0.0.1:9/x"} }, "sources[0]: a store is read over https"},
		"unknown scheme":   {func(c *agent.Config) { c.Sources = []string{"ftp://x/y"} }, "sources[0]: "},
		"no root possible": {func(c *agent.Config) { c.Root = "/dev/null/x" }, "/dev/null"},
	} {
		cfg := config(t, w, "http://127.0.0.1:9")
		tc.edit(&cfg)
		_, err := host.Open(t.Context(), cfg, host.Options{})
		if err == nil || !strings.Contains(err.Error(), tc.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v, want %q", name, err, tc.want)
		}
	}
}
