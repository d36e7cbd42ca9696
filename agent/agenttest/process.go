package agenttest

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/muster-config/muster/agent/client"
)

// Process is a service's process on a host. It loads its files when it is told to by its Hook (a line in a file stands for the signal), and states the epoch
// that it loaded together with them.
type Process struct {
	URL  string
	Hook []string // the reload command

	root, service, log string
	mu                 sync.Mutex
	deaf, ill          bool
	heard              int
	epoch              uint64
	loads              []string // the service's files as it has loaded them, one entry a load
}

// NewProcess starts a process of a service under an agent's root.
func NewProcess(t testing.TB, root, service string) *Process {
	t.Helper()
	p := &Process{root: root, service: service, log: filepath.Join(t.TempDir(), "reloads")}
	p.Hook = []string{"/bin/sh", "-c", fmt.Sprintf(`echo "$MUSTER_SERVICE $MUSTER_EPOCH a=$(echo $MUSTER_ADDED) c=$(echo $MUSTER_CHANGED) r=$(echo $MUSTER_REMOVED)" >> %s`, p.log)}
	srv := httptest.NewServer(p)
	t.Cleanup(srv.Close)
	p.URL = srv.URL + "/health"
	return p
}

// Reloads are the runs of the hook: "checkout 7 a=new.yaml c=new.yaml other.yaml r=old.yaml".
func (p *Process) Reloads() []string {
	data, err := os.ReadFile(p.log)
	if err != nil {
		return nil
	}
	return strings.Split(strings.TrimSpace(string(data)), "\n")
}

// SetDeaf makes it ignore its hook.
func (p *Process) SetDeaf(on bool) { p.mu.Lock(); p.deaf = on; p.mu.Unlock() }

// SetIll makes it answer 500.
func (p *Process) SetIll(on bool) { p.mu.Lock(); p.ill = on; p.mu.Unlock() }

// Load makes it load its files now, as at a start.
func (p *Process) Load() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.load()
}

// Epoch is what it states.
func (p *Process) Epoch() uint64 { p.mu.Lock(); defer p.mu.Unlock(); return p.epoch }

func (p *Process) load() error {
	c, err := client.Open(p.root, p.service)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	data, err := c.ReadFile(p.service + ".yaml")
	if err != nil {
		return err
	}
	p.epoch = c.Epoch()
	p.loads = append(p.loads, string(data))
	return nil
}

// ServeHTTP answers with what it has loaded.
func (p *Process) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if data, err := os.ReadFile(p.log); err == nil && !p.deaf {
		if n := bytes.Count(data, []byte("\n")); n > p.heard {
			p.heard = n
			if err := p.load(); err != nil {
				p.ill = true
			}
		}
	}
	// It gives up on a configuration that says so.
	if n := len(p.loads); p.ill || n > 0 && strings.Contains(p.loads[n-1], "poison") {
		http.Error(w, "ill", http.StatusInternalServerError)
		return
	}
	fmt.Fprintf(w, `{"build": {"config_epoch": %d}}`, p.epoch)
}

// Ask asks a process as a probe would, without a connection.
func Ask(p *Process) string {
	w := httptest.NewRecorder()
	p.ServeHTTP(w, httptest.NewRequestWithContext(context.Background(), http.MethodGet, "/health", nil))
	return w.Body.String()
}
