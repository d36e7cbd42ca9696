// Package probe is how the agent asks a host: it runs the host's own commands (check, reload) and reads the epoch that a process states.
// Whatever a command or a process does, the answer comes within its limit and in bounded memory.
package probe

import (
	"net"
	"net/http"
	"time"
)

// Limits.
const (
	// DefaultLimit is how long a command may run.
	DefaultLimit = 60 * time.Second
	// Grace is the time between TERM and KILL.
	Grace = 2 * time.Second
	// MaxOutput is how much of a command's output is kept, from its end.
	MaxOutput = 4 << 10
	// MaxBody is how much of a process's answer is read.
	MaxBody = 1 << 20
	// AskLimit is how long one question to a process may take.
	AskLimit = 5 * time.Second
)

// Prober is the real one: processes and HTTP of this machine.
type Prober struct {
	client *http.Client
}

// New makes a Prober. It starts nothing and keeps no connection open.
func New() *Prober {
	return &Prober{client: &http.Client{
		// No proxy: the question is meant for a process of this host. No kept connections: an idle agent holds none, and one that was open before a reload may
		// lead to the worker that was before it. So a connection carries one small answer: it needs neither large buffers nor signs of life.
		Transport: &http.Transport{
			Proxy: nil, DisableKeepAlives: true, MaxResponseHeaderBytes: 64 << 10, ReadBufferSize: 1 << 10, WriteBufferSize: 1 << 10,
			DialContext: (&net.Dialer{KeepAlive: -1}).DialContext,
		},
		// An answer that points elsewhere is not the process's own statement.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Timeout:       AskLimit,
	}}
}
