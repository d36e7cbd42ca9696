package collector

import (
	"bufio"
	"fmt"
	"net"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/muster-config/muster/distributor/api"
	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/report"
)

func heap() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// fill makes a collector know n hosts of ten services each, whose reports differ in what differs between hosts.
func fill(tb testing.TB, n int) *Collector {
	w := newWorld(tb)
	w.cohort("prod")
	w.hosts("prod", func(p *manifest.CohortPolicy) { p.Hosts.Expect = &manifest.Expect{Min: n, Max: n} })
	one := w.publish("prod")
	w.assign("prod", one)
	c, err := New(Config{Poll: time.Hour}, Deps{Store: w.store, Keyring: w.keyring, Now: w.now})
	if err != nil {
		tb.Fatal(err)
	}
	if err := c.read(tb.Context()); err != nil {
		tb.Fatal(err)
	}
	r := &rig{world: w, c: c}
	key := r.agent("prod", "x").key
	for i := range n {
		a := r.agent("prod", fmt.Sprintf("host-%05d.eu.example.com", i)).runs(one)
		a.key, a.report.Key, a.report.Boot = key, key.Public(), fmt.Sprintf("%032x", i)
		a.report.Labels = map[string]string{"zone": fmt.Sprint("z", i%3), "role": "web"}
		a.report.Probes = map[string]report.Probe{"checkout": {Count: i, P50MS: float64(i)}}
		for s := range 9 {
			a.report.Services[fmt.Sprint("service-", s)] = report.Service{State: "confirmed", Epoch: one, Expected: one, Grade: manifest.GradeProcess, AgeS: float64(i)}
		}
		if res, err := c.Report(tb.Context(), a.signed()); err != nil || !res.Accepted {
			tb.Fatalf("%+v, %v", res, err)
		}
	}
	c.mu.Lock()
	c.dirty.clear() // as after a write
	c.mu.Unlock()
	return c
}

// A host costs less than 1 KB: what hosts have in common is there once.
func TestMemoryOfAHost(t *testing.T) {
	const n = 2000
	before := heap()
	c := fill(t, n)
	per := float64(heap()-before) / n
	t.Logf("%.0f bytes a host", per)
	if per > 1024 {
		t.Errorf("%.0f bytes a host", per)
	}
	if len(c.shapes.byHash) > 10 || len(c.shapes.byHash) != len(c.shapes.of) {
		t.Errorf("%d shapes", len(c.shapes.byHash))
	}
	runtime.KeepAlive(c)
}

func BenchmarkMemory(b *testing.B) {
	for b.Loop() {
		before := heap()
		c := fill(b, 10_000)
		b.ReportMetric(float64(heap()-before)/10_000, "B/host")
		begin := time.Now()
		if _, err := c.Status(b.Context()); err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(float64(time.Since(begin).Microseconds())/1000, "ms/status")
		runtime.KeepAlive(c)
	}
}

// BenchmarkWaiters measures what a waiting long poll costs the collector: connection, goroutines and buffers of net/http included, the client's side is a bare connection.
func BenchmarkWaiters(b *testing.B) {
	w := newWorld(b)
	w.cohort("prod", "a")
	one := w.publish("prod")
	w.assign("prod", one)
	c, err := New(Config{Poll: time.Hour}, Deps{Store: w.store, Keyring: w.keyring, Now: w.now})
	if err != nil {
		b.Fatal(err)
	}
	if err := c.read(b.Context()); err != nil {
		b.Fatal(err)
	}
	server := httptest.NewServer(c.Handler())
	defer server.Close()
	const n = 2000
	for b.Loop() {
		var m0, m1 runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m0)
		conns := make([]net.Conn, n)
		for i := range conns {
			conn, err := net.Dial("tcp", strings.TrimPrefix(server.URL, "http://"))
			if err != nil {
				b.Fatal(err)
			}
			fmt.Fprintf(conn, "GET %sprod?after=1-%d-0&wait=55s HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", api.PathHeads, w.serials["prod"])
			conns[i] = conn
		}
		for len(c.longPolls) < n {
			time.Sleep(time.Millisecond)
		}
		runtime.GC()
		runtime.ReadMemStats(&m1)
		b.ReportMetric(float64(m1.HeapAlloc+m1.StackInuse-m0.HeapAlloc-m0.StackInuse)/n, "B/waiter")
		begin := time.Now()
		if err := c.PutHead(b.Context(), "prod", w.head("prod", one)); err != nil {
			b.Fatal(err)
		}
		for _, conn := range conns {
			if line, err := bufio.NewReader(conn).ReadString('\n'); err != nil || !strings.Contains(line, "200") {
				b.Fatalf("%q, %v", line, err)
			}
			conn.Close()
		}
		b.ReportMetric(float64(time.Since(begin).Milliseconds()), "ms/all-woken")
		for len(c.longPolls) > 0 {
			time.Sleep(time.Millisecond)
		}
	}
}
