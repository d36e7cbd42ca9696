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
//	GET  /checkout what it is there for: it works if all the upstreams of its file can be reached
type process struct {
	service string
	root    string // the agent's
	deaf    bool   // hears the reload and does nothing
	url     string

	mu      sync.Mutex
	off     bool              // the machine is down: it answers nobody
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
	mux.HandleFunc("GET /checkout", p.checkout)
	return serve(ctx, ln, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.mu.Lock()
		off := p.off
		p.mu.Unlock()
		if off {
			panic(http.ErrAbortHandler) // closes the connection without an answer
		}
		mux.ServeHTTP(w, r)
	}))
}

func (p *process) down() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.off = true
}

// start is a process that starts with its machine: it loads what is there.
func (p *process) start() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.off = false
	return p.load()
}

// hear is a deaf process that is started anew.
func (p *process) hear() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.deaf = false
	return p.load()
}

func (p *process) reload() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.reloads++
	if p.deaf && p.epoch > 0 { // it started well
		return nil
	}
	return p.load()
}

// load reads the files and their epoch; p.mu is held.
func (p *process) load() error {
	// The files and their epoch come from one directory, whatever is swapped meanwhile.
	c, err := client.Open(p.root, p.service)
	if err != nil {
		return err
	}
	defer c.Close()
	if p.files, err = readAll(c.FS()); err != nil {
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

// readAll reads all files of a service.
func readAll(dir fs.FS) (map[string][]byte, error) {
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
