package collector

import (
	"bufio"
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/muster-config/muster/distributor/api"
	"github.com/muster-config/muster/distributor/verdict"
)

// stream reads events until there are n, or the stream ends.
func (r *rig) stream(t *testing.T, after string) (next func() (id string, e api.Event), stop func()) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, r.server.URL+api.PathEvents, nil)
	if err != nil {
		t.Fatal(err)
	}
	if after != "" {
		req.Header.Set("Last-Event-ID", after)
	}
	resp, err := r.server.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	if kind := resp.Header.Get("Content-Type"); kind != "text/event-stream" {
		t.Fatalf("%d %s", resp.StatusCode, kind)
	}
	lines := bufio.NewScanner(resp.Body)
	return func() (id string, e api.Event) {
			t.Helper()
			for lines.Scan() {
				switch line := lines.Text(); {
				case strings.HasPrefix(line, "id: "):
					id = line[4:]
				case strings.HasPrefix(line, "data: "):
					if err := json.Unmarshal([]byte(line[6:]), &e); err != nil {
						t.Fatal(err)
					}
					return id, e
				}
			}
			t.Fatalf("the stream ended: %v", lines.Err())
			return
		}, func() {
			cancel()
			resp.Body.Close()
		}
}

// One event for each change of a cohort, none for what changes nothing; who comes back gets only what differs.
func TestEvents(t *testing.T) {
	w := newWorld(t)
	w.cohort("prod", "a", "b")
	w.cohort("staging", "c")
	r := newRig(t, w, nil)
	one := w.publish("prod", "staging")
	w.assign("prod", one)
	w.assign("staging", one)
	r.read()
	next, stop := r.stream(t, "")
	_, first := next()
	id, second := next()
	if first.Cohort != "prod" || second.Cohort != "staging" || first.Verdicts[verdict.Missing] != 2 || first.Target != one || first.Expected != 2 {
		t.Errorf("%+v %+v", first, second)
	}
	a := r.agent("prod", "a").runs(one)
	a.say()
	idAfter, e := next()
	if e.Cohort != "prod" || e.Verdicts[verdict.Confirmed] != 1 || e.Verdicts[verdict.Missing] != 1 || idAfter == id {
		t.Errorf("%+v", e)
	}
	a.say() // nothing new
	r.agent("staging", "c").runs(one).say()
	if id, e = next(); e.Cohort != "staging" || e.Verdicts[verdict.Confirmed] != 1 {
		t.Errorf("%+v", e)
	}
	stop()
	next, stop = r.stream(t, id)
	defer stop()
	r.agent("prod", "b").runs(one).say()
	if _, e = next(); e.Cohort != "prod" || e.Verdicts[verdict.Confirmed] != 2 {
		t.Errorf("after coming back: %+v", e)
	}
}

// Streams are bounded, and a cohort that a token may not see is in none.
func TestEventsBounds(t *testing.T) {
	tokens := &Tokens{People: []PersonToken{{"ana", digestOf("t"), RoleViewer, []string{"staging"}}}}
	r, _ := pageRig(t, tokens)
	get := func(token string) (int, string) {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		req, _ := http.NewRequestWithContext(ctx, http.MethodGet, r.server.URL+api.PathEvents, nil)
		if token != "" {
			req.Header.Set("Authorization", "Bearer "+token)
		}
		resp, err := r.server.Client().Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		buf := make([]byte, 64<<10)
		n, _ := resp.Body.Read(buf)
		return resp.StatusCode, string(buf[:n])
	}
	if status, _ := get(""); status != http.StatusUnauthorized {
		t.Errorf("without a token: %d", status)
	}
	if status, body := get("t"); status != http.StatusOK || !strings.Contains(body, "staging") || strings.Contains(body, "prod-eu") {
		t.Errorf("%d %s", status, body)
	}
	until(t, "the streams have ended", func() bool { return r.c.count.events.Load() == 0 })
	r.c.count.events.Store(maxEvents)
	if status, _ := get("t"); status != http.StatusServiceUnavailable {
		t.Errorf("too many: %d", status)
	}
}

// B100: what is measured has labels of enums and names, never a host's words; and every line is one that Prometheus reads.
func TestB100Metrics(t *testing.T) {
	r, _ := pageRig(t, nil)
	body := get(t, r.server.URL+api.PathMetrics)
	for _, want := range []string{
		`muster_cohort_hosts{cohort="prod-eu",verdict="confirmed"} 121`, `muster_cohort_hosts{cohort="prod-eu",verdict="rolled back"} 1`, `muster_cohort_expected_hosts{cohort="prod-eu"} 130`,
		`muster_cohort_target_epoch{cohort="prod-eu"} 2`, `muster_rollout_phase{cohort="prod-eu",phase="done"} 1`, `muster_reports_total{result="accepted"} 125`, `muster_reports_received_total{kind="signed"} 125`,
		"muster_newest_epoch 2", "muster_collector_hosts 125", "muster_collector_long_polls 0", "muster_store_errors_total 0",
	} {
		if !strings.Contains(body, want+"\n") {
			t.Errorf("no line %q", want)
		}
	}
	typed := map[string]bool{}
	for _, line := range strings.Split(strings.TrimSpace(body), "\n") {
		switch f := strings.Fields(line); {
		case strings.HasPrefix(line, "# TYPE "):
			if typed[f[2]] || f[3] != "gauge" && f[3] != "counter" {
				t.Errorf("%q", line)
			}
			typed[f[2]] = true
		case strings.HasPrefix(line, "# HELP "):
		default:
			name, _, _ := strings.Cut(f[0], "{")
			if !typed[name] {
				t.Errorf("%q has no type", line)
			}
		}
		for _, bad := range []string{"script", "web-0", "Ana", "change", "zone"} {
			if strings.Contains(line, bad) {
				t.Errorf("%q holds %q", line, bad)
			}
		}
	}
}
