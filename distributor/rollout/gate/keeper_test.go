package gate

import (
	"context"
	"fmt"
	"io"
	"math"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-config/muster/distributor/manifest"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// source is a fake Prometheus and HTTP endpoint, which knows when it was asked what.
type source struct {
	mu     sync.Mutex
	asked  []string // "at seconds after begin: query"
	value  func(query string, at time.Time) string
	answer func(r *http.Request) (int, string) // beside value: the whole answer
	fail   error
	slow   time.Duration
}

func (s *source) RoundTrip(r *http.Request) (*http.Response, error) {
	s.mu.Lock()
	fail, slow := s.fail, s.slow
	s.mu.Unlock()
	if slow > 0 {
		select {
		case <-time.After(slow):
		case <-r.Context().Done():
			return nil, r.Context().Err()
		}
	}
	if fail != nil {
		return nil, fail
	}
	status, body := s.serve(r)
	return &http.Response{StatusCode: status, Body: io.NopCloser(strings.NewReader(body)), Request: r, Header: http.Header{}}, nil
}

func (s *source) serve(r *http.Request) (int, string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.answer != nil {
		s.asked = append(s.asked, r.URL.String())
		return s.answer(r)
	}
	if r.Method != http.MethodPost || strings.Contains(r.URL.RawQuery, "query") {
		return 400, "not a POST"
	}
	if err := r.ParseForm(); err != nil {
		return 400, err.Error()
	}
	at := func(field string) time.Time {
		v, err := strconv.ParseFloat(r.PostForm.Get(field), 64)
		if err != nil {
			panic(err)
		}
		return time.UnixMilli(int64(math.Round(v * 1000)))
	}
	query := r.PostForm.Get("query")
	if strings.HasSuffix(r.URL.Path, "/api/v1/query") {
		when := at("time")
		s.asked = append(s.asked, fmt.Sprintf("%v: %s", when.Sub(begin), query))
		v := s.value(query, when)
		if v == "" {
			return 200, `{"status":"success","data":{"resultType":"vector","result":[]}}`
		}
		return 200, fmt.Sprintf(`{"status":"success","data":{"resultType":"vector","result":[{"metric":{},"value":[%s,%q]}]}}`, r.PostForm.Get("time"), v)
	}
	start, end := at("start"), at("end")
	step, err := strconv.ParseFloat(r.PostForm.Get("step"), 64)
	if err != nil {
		panic(err)
	}
	s.asked = append(s.asked, fmt.Sprintf("%v to %v: %s", start.Sub(begin), end.Sub(begin), query))
	var points []string
	for t := start; !t.After(end); t = t.Add(time.Duration(step * float64(time.Second))) {
		if v := s.value(query, t); v != "" {
			points = append(points, fmt.Sprintf("[%.3f,%q]", float64(t.UnixMilli())/1000, v))
		}
	}
	series := ""
	if len(points) > 0 {
		series = `{"metric":{},"values":[` + strings.Join(points, ",") + `]}`
	}
	return 200, `{"status":"success","data":{"resultType":"matrix","result":[` + series + `]}}`
}

// said is what was asked since.
func (s *source) said() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := s.asked
	s.asked = nil
	return list
}

func (s *source) set(change func(*source)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(s)
}

// keep runs a keeper in a bubble until the test ends.
func keep(t *testing.T, s *source, c Config) (*Keeper, context.CancelFunc) {
	t.Helper()
	c.Transport = s
	k, err := NewKeeper(c)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- k.Run(ctx) }()
	return k, func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

// TestKeeper: each look is asked for once, at its time, and a bake of good ones passes when it ends, not before. A controller that starts anew hears the whole bake again.
func TestKeeper(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &source{value: func(string, time.Time) string { return "0.003" }}
		start := time.Now()
		k, end := keep(t, s, Config{Prometheus: "http://p:9090"})
		q := ask(bound(0.01))
		q.From, q.Bake = start, 2*time.Minute
		judge := func(k *Keeper) manifest.GateVerdict {
			q.Now = time.Now()
			return k.Judge(t.Context(), q)[0]
		}
		if v := judge(k); v.Outcome != manifest.OutcomeInconclusive {
			t.Errorf("at the begin: %s: %s", v.Outcome, v.Why)
		}
		for n := range 4 {
			time.Sleep(24 * time.Second)
			synctest.Wait()
			if got := s.said(); len(got) != 0 {
				t.Errorf("too early: %s", got)
			}
			changed := k.Changed()
			time.Sleep(2 * time.Second)
			synctest.Wait()
			if got := s.said(); len(got) != 1 || !strings.HasSuffix(got[0], ": up") {
				t.Errorf("look %d: asked %q", n+1, got)
			}
			select {
			case <-changed:
			default:
				t.Error("nothing changed")
			}
			if v := judge(k); v.Outcome != manifest.OutcomeInconclusive {
				t.Errorf("before the bake is over: %s: %s", v.Outcome, v.Why)
			}
			time.Sleep(4 * time.Second)
		}
		if v := judge(k); v.Outcome != manifest.OutcomePass || len(v.Samples) != 4 || *v.Samples[0].Canary != 0.003 {
			t.Errorf("after the bake: %+v", v)
		}
		end()

		s.said()
		k, end = keep(t, s, Config{Prometheus: "http://p:9090"})
		if v := judge(k); v.Outcome != manifest.OutcomeInconclusive {
			t.Errorf("started anew: %s: %s", v.Outcome, v.Why)
		}
		synctest.Wait()
		if got := s.said(); len(got) != 1 || !strings.Contains(got[0], " to ") {
			t.Errorf("started anew: asked %q", got)
		}
		if v := judge(k); v.Outcome != manifest.OutcomePass || len(v.Samples) != 4 {
			t.Errorf("after asking again: %+v", v)
		}
		end()
	})
}

// TestCompareAsks: a gate that compares counts asks four questions for a look: the canary's and the control group's, each with its own epoch.
func TestCompareAsks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &source{value: func(query string, _ time.Time) string {
			v := map[string]string{"bad7": "600", "all7": "3000", "bad6": "570", "all6": "57000"}
			for name, n := range v {
				if strings.Contains(query, name[:3]+"_total[30s]") && strings.Contains(query, fmt.Sprintf("epoch=%q", name[3:])) {
					return n
				}
			}
			return ""
		}}
		q := ask(counted(func(g *manifest.Gate) { g.Compare = &manifest.GateCompare{Ratio: 1.5} }))
		q.From = time.Now()
		k, end := keep(t, s, Config{Prometheus: "http://p:9090"})
		q.Now = time.Now()
		k.Judge(t.Context(), q)
		time.Sleep(26 * time.Second)
		synctest.Wait()
		q.Now = time.Now()
		v := k.Judge(t.Context(), q)[0]
		if v.Outcome != manifest.OutcomeFail || !strings.Contains(v.Why, "20 × the control group's: 20% of 3,000 events against the control group's 1% of 57,000") {
			t.Errorf("%s: %s", v.Outcome, v.Why)
		}
		if got := s.said(); len(got) != 4 {
			t.Errorf("asked %q", got)
		}
		end()
	})
}

// TestAnotherQuestion: another wave, epoch, begin or policy starts anew (B102); the same one later does not; what nobody asks any more is asked no more.
func TestAnotherQuestion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &source{value: func(string, time.Time) string { return "0.2" }}
		k, end := keep(t, s, Config{Prometheus: "http://p:9090"})
		defer end()
		q := ask(bound(0.01))
		q.From = time.Now()
		judge := func() manifest.GateVerdict {
			q.Now = time.Now()
			return k.Judge(t.Context(), q)[0]
		}
		judge()
		time.Sleep(27 * time.Second)
		synctest.Wait()
		if v := judge(); v.Outcome != manifest.OutcomeFail {
			t.Fatalf("%s: %s", v.Outcome, v.Why)
		}
		q.Bake, q.Canary = time.Hour, q.Canary[:1]
		if v := judge(); v.Outcome != manifest.OutcomeFail {
			t.Errorf("another bake and other hosts are the same question: %s: %s", v.Outcome, v.Why)
		}
		for name, change := range map[string]func(){
			"wave":  func() { q.Wave++ },
			"epoch": func() { q.Epoch++ },
			"begin": func() { q.From = time.Now() },
			"gates": func() { q.Gates = map[string]manifest.Gate{"g": bound(0.02)} },
		} {
			change()
			if v := judge(); v.Outcome != manifest.OutcomeInconclusive {
				t.Errorf("another %s: %s: %s", name, v.Outcome, v.Why)
			}
			time.Sleep(40 * time.Second)
			synctest.Wait()
			if v := judge(); v.Outcome != manifest.OutcomeFail {
				t.Errorf("another %s, later: %s: %s", name, v.Outcome, v.Why)
			}
		}
		time.Sleep(forget + 2*time.Minute)
		s.said()
		time.Sleep(time.Hour)
		synctest.Wait()
		if got := s.said(); len(got) != 0 {
			t.Errorf("nobody wants to know, and it asked %d times", len(got))
		}
	})
}

// TestSourceComesBack: what a source did not say while it was down is asked for again with the next look.
func TestSourceComesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &source{value: func(string, time.Time) string { return "0.001" }}
		k, end := keep(t, s, Config{Prometheus: "http://ana:secret@p:9090/prom?token=geheim"})
		defer end()
		q := ask(bound(0.01))
		q.From, q.Bake = time.Now(), 5*time.Minute
		judge := func() manifest.GateVerdict {
			q.Now = time.Now()
			return k.Judge(t.Context(), q)[0]
		}
		judge()
		s.set(func(s *source) { s.fail = syscall.ECONNREFUSED })
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		v := judge()
		if v.Outcome != manifest.OutcomeInconclusive || !strings.Contains(v.Why, "the source is down: prometheus at http://p:9090/prom: connection refused") {
			t.Errorf("down: %s: %s", v.Outcome, v.Why)
		}
		if strings.Contains(v.Why, "secret") || strings.Contains(v.Why, "geheim") {
			t.Errorf("tells a secret: %s", v.Why)
		}
		s.set(func(s *source) { s.fail, s.slow = nil, time.Hour })
		time.Sleep(time.Minute)
		synctest.Wait()
		if v := judge(); v.Outcome != manifest.OutcomeInconclusive || !strings.Contains(v.Why, "no answer within 10s") {
			t.Errorf("slow: %s: %s", v.Outcome, v.Why)
		}
		s.set(func(s *source) { s.slow = 0 })
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if v := judge(); v.Outcome != manifest.OutcomePass || !strings.Contains(v.Why, "10 of 10 looks") {
			t.Errorf("back: %s: %s", v.Outcome, v.Why)
		}
	})
}

// TestHTTPGate: one number a look; what was missed is missed, and inconclusive.
func TestHTTPGate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &source{answer: func(r *http.Request) (int, string) { return 200, "0.004\n" }}
		k, end := keep(t, s, Config{})
		q := ask(gateOf(func(g *manifest.Gate) { g.HTTP, g.Max = "http://app/errors?cohort=$cohort&epoch=$epoch", num(0.01) }))
		q.From, q.Bake = time.Now(), time.Minute
		judge := func(k *Keeper) manifest.GateVerdict {
			q.Now = time.Now()
			return k.Judge(t.Context(), q)[0]
		}
		judge(k)
		time.Sleep(time.Minute)
		synctest.Wait()
		if v := judge(k); v.Outcome != manifest.OutcomePass {
			t.Errorf("%s: %s", v.Outcome, v.Why)
		}
		if got := s.said(); len(got) != 2 || got[0] != "http://app/errors?cohort=prod&epoch=7" {
			t.Errorf("asked %q", got)
		}
		end()
		time.Sleep(time.Minute)
		k, end = keep(t, s, Config{})
		judge(k)
		time.Sleep(time.Second)
		synctest.Wait()
		if v := judge(k); v.Outcome != manifest.OutcomeInconclusive || !strings.Contains(v.Why, "1 of 2 looks, the last one missing: not heard") {
			t.Errorf("after a restart: %s: %s", v.Outcome, v.Why)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if v := judge(k); v.Outcome != manifest.OutcomePass {
			t.Errorf("a bake after the restart: %s: %s", v.Outcome, v.Why)
		}
		end()
	})
}

// TestDryRun: before the start each gate is asked once, and a broken one is found.
func TestDryRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &source{answer: func(r *http.Request) (int, string) {
			_ = r.ParseForm()
			if strings.Contains(r.PostForm.Get("query"), "sum(") {
				return 200, `{"status":"success","data":{"resultType":"vector","result":[]}}`
			}
			return 400, `{"status":"error","errorType":"bad_data","error":"invalid parameter \"query\": 1:5: parse error: unclosed left parenthesis"}`
		}}
		k, end := keep(t, s, Config{Prometheus: "http://p:9090"})
		defer end()
		q := ask(bound(1))
		q.Wave = 0
		q.Gates = map[string]manifest.Gate{"broken": bound(1), "fine": counted(func(g *manifest.Gate) { g.Compare = &manifest.GateCompare{Ratio: 2} }), "reported": reportedGate("refused", 0)}
		k.Judge(t.Context(), q)
		synctest.Wait()
		for range 3 {
			q.From, q.Now = time.Now(), time.Now()
			got := k.Judge(t.Context(), q)
			if got[0].Outcome != manifest.OutcomeBroken || !strings.Contains(got[0].Why, "unclosed left parenthesis") || got[1].Outcome != manifest.OutcomePass || got[2].Outcome != manifest.OutcomePass {
				t.Errorf("%+v", got)
			}
			time.Sleep(10 * time.Minute / 3)
			synctest.Wait()
		}
		if got := s.said(); len(got) != 5 {
			t.Errorf("asked %d times, not once each", len(got))
		}
		q.Gates = map[string]manifest.Gate{"g": bound(1)}
		none, err := NewKeeper(Config{})
		if err != nil {
			t.Fatal(err)
		}
		if v := none.Judge(t.Context(), q)[0]; v.Outcome != manifest.OutcomeInconclusive || !Unasked(v) || !strings.Contains(v.Why, "collector.yaml") {
			t.Errorf("no prometheus: %s: %s", v.Outcome, v.Why)
		}
	})
}

// TestReportedProbes: probes are counted over the reports of a bake, each report once.
func TestReportedProbes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, c := range map[string]struct {
			failures int
			latency  float64
			gate     manifest.Gate
			want     manifest.Outcome
			says     string
		}{
			"well":  {0, 5, reportedGate("probe_failures", 0.05), manifest.OutcomePass, "0% of 1,000 probes"},
			"ill":   {5, 5, reportedGate("probe_failures", 0.05), manifest.OutcomeFail, "50% of 200 probes"},
			"slow":  {0, 500, reportedGate("probe_latency", 100), manifest.OutcomeFail, "500, at most 100 allowed"},
			"quick": {0, 5, reportedGate("probe_latency", 100), manifest.OutcomePass, "5 to 5"},
		} {
			k, err := NewKeeper(Config{})
			if err != nil {
				t.Fatal(err)
			}
			q := ask(c.gate)
			q.From = time.Now()
			var v manifest.GateVerdict
			for range 10 {
				time.Sleep(time.Minute)
				for i := range q.Canary {
					q.Canary[i].At, q.Canary[i].Probes, q.Canary[i].Failures, q.Canary[i].LatencyMS = time.Now(), 10, c.failures, c.latency
				}
				q.Now = time.Now()
				for range 3 { // the same reports, seen three times
					v = k.Judge(t.Context(), q)[0]
				}
				if v.Outcome == manifest.OutcomeFail {
					break
				}
			}
			if v.Outcome != c.want || !strings.Contains(v.Why, c.says) {
				t.Errorf("%s: %s: %s; want %s, %q", name, v.Outcome, v.Why, c.want, c.says)
			}
		}
	})
}
