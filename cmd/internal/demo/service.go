package demo

import (
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/muster-config/muster/agent/client"
)

// process is one service's process on one host, as a real one would be: it loads its files when it is told to, and says over HTTP which epoch it loaded.
//
//	POST /reload   load the files again (what SIGHUP is to many)
//	GET  /health   {"config_epoch": 7, "reloads": 3}
type process struct {
	service string
	root    string // the agent's
	deaf    bool   // hears the reload and does nothing
	url     string

	mu      sync.Mutex
	epoch   uint64            // stated: read together with the files
	files   map[string][]byte // what it works with
	reloads int
}

// health is what a process says of itself.
type health struct {
	ConfigEpoch uint64 `json:"config_epoch"`
	Files       int    `json:"files"`
	Reloads     int    `json:"reloads"`
}

// serve runs the process until ctx ends.
func (p *process) serve(ctx context.Context, ln net.Listener) error {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /reload", func(w http.ResponseWriter, _ *http.Request) {
		if err := p.reload(); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
		}
	})
	mux.HandleFunc("GET /health", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(p.health())
	})
	return serve(ctx, ln, mux)
}

func (p *process) reload() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.reloads++
	if p.deaf && p.epoch > 0 { // it started well
		return nil
	}
	// The files and their epoch come from one directory, whatever is swapped meanwhile.
	c, err := client.Open(p.root, p.service)
	if err != nil {
		return err
	}
	defer c.Close()
	if p.files, err = load(c.FS()); err != nil {
		return err
	}
	p.epoch = c.Epoch()
	return nil
}

func (p *process) health() health {
	p.mu.Lock()
	defer p.mu.Unlock()
	return health{ConfigEpoch: p.epoch, Files: len(p.files), Reloads: p.reloads}
}

// load reads all files of a service.
func load(dir fs.FS) (map[string][]byte, error) {
	files := map[string][]byte{}
	err := fs.WalkDir(dir, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		files[path], err = fs.ReadFile(dir, path)
		return err
	})
	return files, err
}

// serve serves h on ln until ctx ends.
func serve(ctx context.Context, ln net.Listener, h http.Handler) error {
	server := &http.Server{Handler: h, ReadHeaderTimeout: 5 * time.Second, IdleTimeout: time.Minute, BaseContext: func(net.Listener) context.Context { return ctx }}
	defer context.AfterFunc(ctx, func() { _ = server.Close() })()
	if err := server.Serve(ln); ctx.Err() == nil {
		return err
	}
	return nil
}

// listen takes a free port of the loopback interface.
func listen(ctx context.Context) (net.Listener, string, error) {
	var lc net.ListenConfig
	ln, err := lc.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, "", fmt.Errorf("listen on loopback: %w", err)
	}
	return ln, "http://" + ln.Addr().String(), nil
}

// Reload is the reload command of the demo's agents (`muster demo-reload URL`): it tells a process to load its files.
func Reload(ctx context.Context, url string) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("reload %s: %s", url, resp.Status)
	}
	return nil
}
