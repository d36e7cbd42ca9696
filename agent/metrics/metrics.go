// Package metrics shows an agent's state to Prometheus: a few gauges in its text format, written by hand, for a client library would be a tenth of the agent.
package metrics

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/muster-config/muster/agent"
)

// ContentType of the exposition.
const ContentType = "text/plain; version=0.0.4; charset=utf-8"

// maxOpen bounds the connections: a scraper needs one.
const maxOpen = 8

type sample struct {
	labels []string // name, value, name, value …
	value  float64
}

// write is the sample's line.
func (m sample) write(b *bytes.Buffer, name string) {
	b.WriteString(name)
	for i := 0; i < len(m.labels); i += 2 {
		sep := byte(',')
		if i == 0 {
			sep = '{'
		}
		b.WriteByte(sep)
		fmt.Fprintf(b, `%s="%s"`, m.labels[i], escape(m.labels[i+1]))
	}
	if len(m.labels) > 0 {
		b.WriteByte('}')
	}
	b.WriteByte(' ')
	b.WriteString(strconv.FormatFloat(m.value, 'g', -1, 64))
	b.WriteByte('\n')
}

func info(s *agent.Status) []string {
	return []string{
		"host", s.Host, "repo", s.Repo, "cohort", s.Cohort, "mode", s.Mode, "epoch", fmt.Sprint(s.Running), "desired", fmt.Sprint(s.Desired), "commit", s.Commit,
		"phase", string(s.Phase), "grade", string(s.Grade), "version", s.Version,
	}
}

// HostInfo is the line of muster_host_info alone, through which gates join a product's metrics with what its host runs.
func HostInfo(s *agent.Status) string {
	var b bytes.Buffer
	sample{info(s), 1}.write(&b, "muster_host_info")
	return b.String()
}

// Write is the exposition of a status. Labels hold names, ids and words of fixed lists; never a sentence.
func Write(s *agent.Status) []byte {
	var b bytes.Buffer
	typed := func(kind, name, help string, samples []sample) {
		fmt.Fprintf(&b, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, kind)
		for _, m := range samples {
			m.write(&b, name)
		}
	}
	family := func(name, help string, samples ...sample) { typed("gauge", name, help, samples) }
	one := func(v float64) sample { return sample{value: v} }
	family("muster_host_info", "What this host is and runs; always 1.", sample{info(s), 1})
	family("muster_host_epoch", "Epoch that is installed; 0 if none.", one(float64(s.Running)))
	family("muster_host_desired_epoch", "Epoch that the newest believed head assigns; 0 if none.", one(float64(s.Desired)))
	family("muster_host_confirmed", "1 if every service confirms what is assigned.", one(truth(s.Confirmed)))
	held, ends := 0.0, 0.0
	if s.Held != nil {
		held, ends = 1, seconds(s.Held.Until)
	}
	family("muster_host_held", "1 if somebody on the host holds it as it is.", one(held))
	family("muster_host_hold_ends_timestamp_seconds", "When that ends; 0 if it is not held.", one(ends))
	family("muster_host_stale", "1 if the newest believed head is past its time.", one(truth(s.Stale)))
	family("muster_host_drifted_paths", "Installed files that differ from their release.", one(float64(s.Drifted)))
	family("muster_host_owed_reloads", "Services whose reload has not run yet.", one(float64(len(s.Owed))))
	family("muster_host_tries", "Tries of the release that does not work here; 0 if it does.", one(float64(s.Tries)))
	family("muster_host_last_sync_timestamp_seconds", "End of the last full read of all sources; 0 before the first.", one(seconds(s.LastSync)))
	var sources, epochs, expected, confirmed, healthy, restarts []sample
	for _, src := range s.Sources {
		sources = append(sources, sample{[]string{"source", src.Name}, truth(src.Error == "")})
	}
	for _, name := range slices.Sorted(maps.Keys(s.Services)) {
		svc := s.Services[name]
		at := []string{"service", name}
		epochs = append(epochs, sample{at, float64(svc.Epoch)})
		expected = append(expected, sample{at, float64(svc.Expected)})
		confirmed = append(confirmed, sample{[]string{"service", name, "state", svc.State, "grade", string(svc.Grade)}, truth(svc.State == agent.StateConfirmed)})
		restarts = append(restarts, sample{at, float64(svc.Restarts)})
		if svc.Healthy != nil {
			healthy = append(healthy, sample{at, truth(*svc.Healthy)})
		}
	}
	family("muster_source_ok", "1 if the source gave a head that is believed.", sources...)
	family("muster_service_epoch", "Service epoch that its process states; 0 if none.", epochs...)
	family("muster_service_expected_epoch", "Service epoch that is installed.", expected...)
	family("muster_service_confirmed", "1 if the service is confirmed at its required grade.", confirmed...)
	family("muster_service_healthy", "1 if the service is well.", healthy...)
	family("muster_service_restarts", "Times that its processes started anew, not for a reload, since the phase of the rollout began.", restarts...)
	var ran, bad, took []sample
	for _, name := range slices.Sorted(maps.Keys(s.Probes)) {
		p, at := s.Probes[name], []string{"probe", name}
		ran = append(ran, sample{at, float64(p.Count)})
		bad = append(bad, sample{at, float64(p.Failures)})
		took = append(took, sample{at, p.Seconds})
	}
	typed("counter", "muster_probes_total", "Questions to processes, and runs of checks and reloads.", ran)
	typed("counter", "muster_probe_failures_total", "Those of them that did not work.", bad)
	typed("counter", "muster_probe_seconds_total", "Time that they took.", took)
	return b.Bytes()
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

func seconds(t time.Time) float64 {
	if t.IsZero() {
		return 0
	}
	return float64(t.UnixMilli()) / 1000
}

var escaper = strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`)

func escape(s string) string { return escaper.Replace(strings.ToValidUTF8(s, "?")) }

// Serve answers GET /metrics at an address until ctx ends.
func Serve(ctx context.Context, addr string, status func() *agent.Status) error {
	ln, err := (&net.ListenConfig{}).Listen(ctx, "tcp", addr)
	if err != nil {
		return fmt.Errorf("metrics: %w", err)
	}
	return serve(ctx, ln, status)
}

func serve(ctx context.Context, ln net.Listener, status func() *agent.Status) error {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", ContentType)
		w.Write(Write(status())) //nolint:errcheck // who asked has gone
	})
	srv := &http.Server{
		Handler: mux, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 5 * time.Second, WriteTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 16 << 10,
	}
	stop := context.AfterFunc(ctx, func() { srv.Close() })
	defer stop()
	if err := srv.Serve(&few{Listener: ln, slots: make(chan struct{}, maxOpen)}); ctx.Err() == nil && !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("metrics: %w", err)
	}
	return nil
}

// few takes a few connections at a time; more are closed at once.
type few struct {
	net.Listener
	slots chan struct{}
}

func (l *few) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		select {
		case l.slots <- struct{}{}:
			return &counted{Conn: c, free: sync.OnceFunc(func() { <-l.slots })}, nil
		default:
			c.Close()
		}
	}
}

type counted struct {
	net.Conn
	free func()
}

func (c *counted) Close() error {
	c.free()
	return c.Conn.Close()
}
