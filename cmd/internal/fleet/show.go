package fleet

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/muster-config/muster/agent/metrics"
)

// Exposition is what Prometheus reads: of each host the line that says what it runs, as its agent would serve it, and what its product counts.
func (f *Fleet) Exposition() []byte {
	var info, swaps, requests, failed, loads, confirmed bytes.Buffer
	for _, h := range f.hosts {
		if h.Down {
			continue // nobody answers there
		}
		h.traffic.account()
		n, bad, _ := h.traffic.counted()
		_, moved := h.disk.history()
		s := h.agent.Status()
		info.WriteString(metrics.HostInfo(s))
		label := fmt.Sprintf("{host=%q} ", h.Name)
		fmt.Fprintf(&confirmed, "muster_host_confirmed%s%d\n", label, truth(s.Confirmed))
		fmt.Fprintf(&swaps, "muster_fleet_swaps_total%s%d\n", label, moved)
		fmt.Fprintf(&loads, "muster_fleet_loads_total%s%d\n", label, h.Loads())
		fmt.Fprintf(&requests, "http_requests_total%s%d\n", label, n)
		fmt.Fprintf(&failed, "http_request_errors_total%s%d\n", label, bad)
	}
	var b bytes.Buffer
	for _, family := range []struct {
		name, kind, help string
		lines            *bytes.Buffer
	}{
		{"muster_host_info", "gauge", "What this host is and runs; always 1.", &info},
		{"muster_host_confirmed", "gauge", "1 if every service confirms what is assigned.", &confirmed},
		{"muster_fleet_swaps_total", "counter", "Changes of what lies under the host's current.", &swaps},
		{"muster_fleet_loads_total", "counter", "Times that a process of the host read its files.", &loads},
		{"http_requests_total", "counter", "Requests that the simulated product served.", &requests},
		{"http_request_errors_total", "counter", "Those of them that failed.", &failed},
	} {
		fmt.Fprintf(&b, "# HELP %s %s\n# TYPE %s %s\n", family.name, family.help, family.name, family.kind)
		family.lines.WriteTo(&b) //nolint:errcheck // a buffer takes all
	}
	return b.Bytes()
}

func truth(b bool) int {
	if b {
		return 1
	}
	return 0
}

// Serve answers GET /metrics on ln until ctx ends.
func (f *Fleet) Serve(ctx context.Context, ln net.Listener) error {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", metrics.ContentType)
		w.Write(f.Exposition()) //nolint:errcheck // who asked has gone
	})
	srv := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 5 * time.Second, WriteTimeout: 30 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 16 << 10}
	defer context.AfterFunc(ctx, func() { srv.Close() })()
	if err := srv.Serve(ln); ctx.Err() == nil && !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("metrics: %w", err)
	}
	return nil
}

// Summary is what the hosts did.
type Summary struct {
	Hosts []HostSummary `json:"hosts"`
}

// HostSummary is what one host did.
type HostSummary struct {
	Host      string `json:"host"`
	Epoch     uint64 `json:"epoch"` // on its disk
	Confirmed bool   `json:"confirmed"`
	Phase     string `json:"phase"`
	Reason    string `json:"reason,omitempty"`
	Swaps     int    `json:"swaps"`
	Loads     int    `json:"loads"`
	Fault     string `json:"fault,omitempty"` // deaf, down or refuses
	Moves     []Move `json:"moves"`
}

// Summary sums up.
func (f *Fleet) Summary() Summary {
	s := Summary{Hosts: []HostSummary{}}
	for _, h := range f.hosts {
		st := h.agent.Status()
		moves, swaps := h.Moves()
		s.Hosts = append(s.Hosts, HostSummary{
			Host: h.Name, Epoch: h.Running(), Confirmed: st.Confirmed, Phase: string(st.Phase), Reason: st.Reason, Swaps: swaps, Loads: h.Loads(), Fault: h.fault(), Moves: append([]Move{}, moves...),
		})
	}
	return s
}

func (h *Host) fault() string {
	switch {
	case h.Deaf:
		return "deaf"
	case h.Down:
		return "down"
	case h.Refuse:
		return "refuses"
	}
	return ""
}

// Line says in one line who runs what: "190 hosts at epoch 1, 10 at epoch 2; 186 confirmed, 2 went back".
func (f *Fleet) Line() string {
	at := map[uint64]int{}
	confirmed, back, none := 0, 0, 0
	for _, h := range f.hosts {
		moves, _ := h.Moves()
		if slices.ContainsFunc(moves, func(m Move) bool { return m.Back || m.Epoch < m.From }) {
			back++
		}
		if e := h.Running(); e > 0 {
			at[e]++
		} else {
			none++
		}
		if h.agent.Status().Confirmed {
			confirmed++
		}
	}
	var epochs []uint64
	for e := range at {
		epochs = append(epochs, e)
	}
	slices.Sort(epochs)
	var parts []string
	for _, e := range epochs {
		parts = append(parts, fmt.Sprintf("%d at epoch %d", at[e], e))
	}
	if none > 0 {
		parts = append(parts, fmt.Sprintf("%d without a release", none))
	}
	line := fmt.Sprintf("%s; %d confirmed", strings.Join(parts, ", "), confirmed)
	if back > 0 {
		line += fmt.Sprintf(", %d went back", back)
	}
	return line
}
