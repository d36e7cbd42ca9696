package fleet

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/muster-config/muster/distributor/api"
	"github.com/muster-config/muster/distributor/bundle"
	"github.com/muster-config/muster/distributor/manifest"
)

// prometheus starts a real one that scrapes the target every second, and gives its address.
func (w *world) prometheus(target string) string {
	w.t.Helper()
	path, err := exec.LookPath("prometheus")
	if err != nil {
		w.t.Fatal("no prometheus: apt-get install prometheus")
	}
	// A free port may be taken by the time it starts.
	for range 3 {
		ln, err := (&net.ListenConfig{}).Listen(w.t.Context(), "tcp", "127.0.0.1:0")
		w.check(err)
		addr := ln.Addr().String()
		w.check(ln.Close())
		dir := w.t.TempDir()
		config := filepath.Join(dir, "prometheus.yml")
		w.check(os.WriteFile(config, []byte(fmt.Sprintf("global: {scrape_interval: 1s, scrape_timeout: 1s}\nscrape_configs: [{job_name: fleet, static_configs: [{targets: [%q]}]}]\n", target)), 0o644))
		cmd := exec.Command(path, "--config.file", config, "--storage.tsdb.path", filepath.Join(dir, "data"), "--web.listen-address", addr, "--storage.tsdb.retention.time", "1h", "--log.level", "warn")
		said := &logs{}
		cmd.Stdout, cmd.Stderr = said, said
		withUs(cmd)
		w.check(cmd.Start())
		ended := make(chan struct{})
		go func() { defer close(ended); _ = cmd.Wait() }()
		stop := func() {
			_ = cmd.Process.Signal(os.Interrupt)
			select {
			case <-ended:
			case <-time.After(10 * time.Second):
				_ = cmd.Process.Kill()
				<-ended
			}
		}
		if ready(w.t.Context(), "http://"+addr, ended) {
			w.t.Cleanup(stop)
			return "http://" + addr
		}
		stop()
		w.t.Logf("prometheus: %s", said.tail())
	}
	w.t.Fatal("prometheus does not start")
	return ""
}

func ready(ctx context.Context, base string, ended <-chan struct{}) bool {
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, base+"/-/ready", nil)
		if err != nil {
			return false
		}
		if resp, err := http.DefaultClient.Do(req); err == nil {
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return true
			}
		}
		select {
		case <-ended:
			return false
		case <-time.After(100 * time.Millisecond):
		}
	}
	return false
}

// query is the one number that a query gives now; ok is false if it gives none.
func (w *world) query(prometheus, query string) (v string, ok bool) {
	w.t.Helper()
	resp, err := http.PostForm(prometheus+"/api/v1/query", url.Values{"query": {query}})
	w.check(err)
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	w.check(err)
	var a struct {
		Data struct {
			Result []struct {
				Value [2]any `json:"value"`
			} `json:"result"`
		} `json:"data"`
	}
	w.check(json.Unmarshal(data, &a))
	if len(a.Data.Result) != 1 {
		return "", false
	}
	return fmt.Sprint(a.Data.Result[0].Value[1]), true
}

// TestBadCanary is the whole: a release fails a fifth of the requests on the ten hosts of the first wave, of two hundred. A real Prometheus sees it, the hosts come back within a minute of the first bad
// sample, and no other host moves. A good release then goes through all waves.
func TestBadCanary(t *testing.T) {
	const hosts, canaries, bad = 200, 10, 2
	ratio := 2.0
	policy := standard()
	policy.Waves = []manifest.Wave{{Percent: 5, Bake: "15s"}, {Percent: 30, Bake: "10s"}, {Percent: 100, Bake: "5s"}}
	policy.Watch = "5s"
	policy.Gates = map[string]manifest.Gate{"errors": {
		Prometheus: `sum(increase(http_request_errors_total[$every]) * $canary)`, Of: `sum(increase(http_requests_total[$every]) * $canary)`,
		Compare: &manifest.GateCompare{Ratio: ratio}, Every: "5s", Fails: 2, NoData: "wait",
	}}
	w := newWorld(t, nil, policy, names(hosts))
	ln, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	w.check(err)
	prometheus := w.prometheus(ln.Addr().String())
	w.collect(fmt.Sprintf("prometheus: {url: %q}\n", prometheus))
	w.release("timeout_ms: 1500\n")
	f := w.fleet(Options{
		Hosts: names(hosts), Seed: 1, Ramp: 2 * time.Second, Poll: 10 * time.Second, Requests: 20, Errors: 0.002, Latency: 2 * time.Millisecond,
		Effect: func(_ string, epoch uint64, files []bundle.File) Harm {
			if strings.Contains(string(files[0].Data), "timeout_ms: 15\n") {
				return Harm{ErrorRate: 0.2}
			}
			return Harm{}
		},
	})
	serving, stop := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- f.Serve(serving, ln) }()
	t.Cleanup(func() {
		stop()
		w.check(<-served)
	})
	w.green(1, time.Minute)
	w.until("prometheus sees what all hosts run", time.Minute, func() bool {
		n, ok := w.query(prometheus, `count(muster_host_info{cohort="prod",epoch="1"})`)
		return ok && n == fmt.Sprint(hosts)
	})

	w.release("timeout_ms: 15\n") // a digit is missing
	w.until("the rollout of epoch 2 is halted", 3*time.Minute, func() bool {
		return w.head("prod").Manifest.Rollout.Phase == manifest.PhaseHalted
	})
	w.until("the canary is back", time.Minute, func() bool {
		for _, h := range f.Hosts() {
			if h.Running() != 1 || !h.Status().Confirmed {
				return false
			}
		}
		return true
	})
	var first, last time.Time
	moved := 0
	for _, h := range f.Hosts() {
		moves, n := h.Moves()
		if n == 1 {
			continue
		}
		moved++
		if n != 3 || moves[1].Epoch != bad || moves[2].Epoch != 1 || moves[2].Back {
			t.Errorf("%s: %+v", h.Name, moves)
			continue
		}
		if at := h.FirstBad(); !at.IsZero() && (first.IsZero() || at.Before(first)) {
			first = at
		}
		if moves[2].At.After(last) {
			last = moves[2].At
		}
	}
	ro := w.head("prod").Manifest.Rollout
	t.Logf("%d of %d hosts had it; all back %s after the first bad sample; %s", moved, hosts, last.Sub(first).Round(time.Millisecond), ro.Why)
	if moved != canaries {
		t.Errorf("%d hosts moved, and %d are the canary: %d control hosts swapped", moved, canaries, moved-canaries)
	}
	if first.IsZero() || last.Sub(first) > time.Minute {
		t.Errorf("back after %s", last.Sub(first))
	}
	if len(ro.Halts) != 1 || ro.Halts[0].Epoch != bad || len(ro.Verdicts) == 0 || ro.Verdicts[0].Outcome != manifest.OutcomeFail || len(ro.Verdicts[0].Samples) == 0 {
		t.Errorf("the halt: %+v, verdicts %+v", ro.Halts, ro.Verdicts)
	}

	// Somebody corrects it, and says that it is corrected: it is no plain revert.
	epoch := w.release("timeout_ms: 1600\n")
	_, err = w.client.Act(t.Context(), "prod", "resume", api.Act{Reason: "corrected in the next release", By: "ana"})
	w.check(err)
	w.until("the good release went through all waves", 4*time.Minute, func() bool {
		ro := w.head("prod").Manifest.Rollout
		if len(ro.Halts) > 0 && ro.Target == epoch {
			t.Fatalf("halted: %+v", ro)
		}
		return ro.Phase == manifest.PhaseDone && ro.Target == epoch && ro.Fallback == 0
	})
	w.green(epoch, time.Minute)
	for _, h := range f.Hosts() {
		if moves, n := h.Moves(); n != 2 && n != 4 || moves[n-1].Epoch != epoch {
			t.Errorf("%s: %+v", h.Name, moves)
		}
	}
}
