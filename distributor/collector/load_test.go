package collector

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/muster-config/muster/distributor/api"
	"github.com/muster-config/muster/distributor/report"
)

// benchRig is a collector with its writer and reader running, and n hosts that have reported.
func benchRig(b *testing.B, n int) (*Collector, []*agent) {
	w := newWorld(b)
	w.clock = time.Now().UTC()
	w.cohort("prod")
	one := w.publish("prod")
	w.assign("prod", one)
	c, err := New(Config{Database: "sqlite://" + filepath.Join(b.TempDir(), "state.db")}, Deps{Store: w.store, Keyring: w.keyring})
	if err != nil {
		b.Fatal(err)
	}
	done := make(chan struct{})
	go func() { defer close(done); c.Run(b.Context()) }()
	b.Cleanup(func() { <-done })
	r := &rig{world: w, c: c}
	agents := make([]*agent, n)
	for i := range agents {
		agents[i] = r.agent("prod", fmt.Sprintf("h-%d", i)).runs(one)
		res, err := c.Report(b.Context(), agents[i].signed())
		if err != nil || !res.Accepted {
			b.Fatalf("%+v, %v", res, err)
		}
		agents[i].hbKey = res.HeartbeatKey
	}
	return c, agents
}

// post sends reports through the handler, in arrays of 100, as gateways and simulated fleets do.
func post(b *testing.B, c *Collector, agents []*agent, item func(*agent) api.ReportItem) {
	handler := c.Handler()
	var bodies [][]byte
	for i := 0; i < b.N; {
		var p api.ReportPost
		for ; len(p.Reports) < 100 && i < b.N; i++ {
			p.Reports = append(p.Reports, item(agents[i%len(agents)]))
		}
		bodies = append(bodies, agents[0].encode(p))
	}
	b.ResetTimer()
	before := processor()
	for _, body := range bodies {
		req := httptest.NewRequest(http.MethodPost, "http://127.0.0.1"+api.PathReports, bytes.NewReader(body))
		req.Header.Set("Content-Type", "application/json")
		rec := httptest.NewRecorder()
		handler.ServeHTTP(rec, req)
		if rec.Code != http.StatusOK || bytes.Contains(rec.Body.Bytes(), []byte(`"accepted":false`)) {
			b.Fatalf("%d %s", rec.Code, rec.Body)
		}
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "reports/s")
	// What other work on the machine changes little: of two processors there are two such seconds in each.
	b.ReportMetric(float64(b.N)/(processor()-before).Seconds(), "reports/cpu-s")
}

// processor is the processor time of this process, of the writer to the database too.
func processor() time.Duration {
	var ru syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &ru) != nil {
		return 0
	}
	return time.Duration(ru.Utime.Nano() + ru.Stime.Nano())
}

func BenchmarkHeartbeats(b *testing.B) {
	c, agents := benchRig(b, 1000)
	post(b, c, agents, (*agent).heartbeat)
}

func BenchmarkSigned(b *testing.B) {
	c, agents := benchRig(b, 1000)
	post(b, c, agents, (*agent).signed)
}

// Whatever is posted: an answer, no panic, and no host that was not signed for.
func FuzzPostReports(f *testing.F) {
	w := newWorld(f)
	w.cohort("prod", "web-1")
	c, err := New(Config{Poll: time.Hour}, Deps{Store: w.store, Keyring: w.keyring, Now: w.now})
	if err != nil {
		f.Fatal(err)
	}
	one := w.publish("prod")
	w.assign("prod", one)
	if err := c.read(f.Context()); err != nil {
		f.Fatal(err)
	}
	r := &rig{world: w, c: c}
	forger := r.agent("prod", "web-1").runs(one)
	forger.report.Key = strangerKey.Public() // and signs with another
	f.Add(w.encode(api.ReportPost{Reports: []api.ReportItem{forger.signed()}}))
	forger.hbKey = []byte("guess")
	f.Add(w.encode(api.ReportPost{Reports: []api.ReportItem{forger.heartbeat()}}))
	f.Add([]byte(`{"reports":[{"signed":{"payloadType":"","payload":"","signatures":[]}}]}`))
	handler := c.Handler()
	f.Fuzz(func(t *testing.T, data []byte) {
		rec := httptest.NewRecorder()
		req := httptest.NewRequest(http.MethodPost, "http://127.0.0.1"+api.PathReports, bytes.NewReader(data))
		req.Header.Set("Content-Type", "application/json")
		handler.ServeHTTP(rec, req)
		if rec.Code != 200 && rec.Code != 400 && rec.Code != 403 && rec.Code != 413 {
			t.Errorf("%d %s", rec.Code, rec.Body)
		}
		if c.hosts != 0 {
			t.Errorf("a host came into being by %q", data)
		}
	})
}

func FuzzConfig(f *testing.F) {
	f.Add([]byte("store: file:///x\ntls: {cert_file: a}\n"))
	f.Add([]byte("inventory: [{a: b}]\nlisten: &a x\npoll: *a\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		var c Config
		if err := parseYAML(data, &c, configKeys); err == nil {
			c.WithDefaults().Validate()
		}
		var k Tokens
		parseYAML(data, &k, tokensKeys)
	})
}

// A batch gives each report its own answer: one that is refused holds back no other.
func TestBatch(t *testing.T) {
	w := newWorld(t)
	w.cohort("prod", "a", "b", "c")
	r := newRig(t, w, nil)
	one := w.publish("prod")
	r.read()
	a, b, c := r.agent("prod", "a").runs(one), r.agent("prod", "b").runs(one), r.agent("prod", "c").runs(one)
	b.report.Repo = "evil/config"
	answer, err := r.client.PostReports(t.Context(), api.ReportPost{Reports: []api.ReportItem{a.signed(), b.signed(), c.signed(), c.signed()}})
	if err != nil {
		t.Fatal(err)
	}
	var got string
	for _, res := range answer.Results {
		got += fmt.Sprintf("%s %t %d; ", res.Host, res.Accepted, res.Counter)
	}
	if got != "a true 1; b false 0; c true 1; c true 2; " {
		t.Error(got)
	}
	if len(answer.Results) > report.MaxBatch || r.c.hosts != 2 {
		t.Errorf("%d hosts", r.c.hosts)
	}
}

// A large post is checked on all processors: each report still gets its own answer, and a malformed one refuses the whole by its place.
func TestLargeBatch(t *testing.T) {
	w := newWorld(t)
	var names []string
	for i := range 5 * share {
		names = append(names, fmt.Sprintf("h-%02d", i))
	}
	w.cohort("prod", names...)
	r := newRig(t, w, nil)
	one := w.publish("prod")
	r.read()
	var p api.ReportPost
	const foreign = 3*share + 5
	for i, name := range names {
		a := r.agent("prod", name).runs(one)
		if i == foreign {
			a.report.Repo = "evil/config"
		}
		p.Reports = append(p.Reports, a.signed())
	}
	broken := api.ReportPost{Reports: append([]api.ReportItem{}, p.Reports...)}
	broken.Reports[2*share+1], broken.Reports[4*share] = api.ReportItem{}, api.ReportItem{}
	if _, err := r.client.PostReports(t.Context(), broken); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("report %d: ", 2*share+1)) {
		t.Errorf("%v; the first malformed report is not named", err)
	}
	if r.c.hosts != 0 {
		t.Errorf("%d hosts are known by a post that was refused", r.c.hosts)
	}
	answer, err := r.client.PostReports(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	for i, res := range answer.Results {
		if res.Host != names[i] || res.Accepted == (i == foreign) {
			t.Errorf("report %d: %+v", i, res)
		}
	}
}
