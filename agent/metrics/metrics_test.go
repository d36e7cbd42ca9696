package metrics

import (
	"context"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/muster-config/muster/agent"
	"github.com/muster-config/muster/distributor/report"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func status(host string) *agent.Status {
	yes, no := true, false
	return &agent.Status{
		Host: host, Repo: "acme/config", Cohort: "prod-eu", Mode: "enforce", Version: "muster-agent 1", Running: 7, Desired: 8, Phase: report.PhaseConfirming, Grade: "disk",
		Drifted: 2, Owed: []string{"a"}, LastSync: time.Date(2026, 11, 30, 9, 0, 0, 0, time.UTC), Sources: []agent.SourceResult{{Name: "s3://b"}, {Name: "https://c", Error: "no answer"}},
		Services: map[string]report.Service{
			"checkout": {State: agent.StateConfirmed, Epoch: 6, Expected: 6, Grade: "process", Healthy: &yes},
			"search":   {State: "waiting", Epoch: 5, Expected: 6, Grade: "disk", Healthy: &no, Reason: "12345PROSE"},
			"quiet":    {State: "waiting"},
		},
	}
}

// series is one line of an exposition.
type series struct {
	name   string
	labels map[string]string
	value  float64
}

var (
	metricName = regexp.MustCompile(`^[a-zA-Z_:][a-zA-Z0-9_:]*`)
	labelName  = regexp.MustCompile(`^[a-zA-Z_][a-zA-Z0-9_]*`)
)

// parse reads Prometheus' text format by its published grammar, and demands of each family: HELP and TYPE once and before its samples, which stand together.
func parse(text string) ([]series, error) {
	var all []series
	help, typed, closed := map[string]bool{}, map[string]string{}, map[string]bool{}
	family := ""
	if !strings.HasSuffix(text, "\n") {
		return nil, fmt.Errorf("the last line has no end")
	}
	for n, line := range strings.Split(strings.TrimSuffix(text, "\n"), "\n") {
		fail := func(what string) error { return fmt.Errorf("line %d: %s: %s", n+1, what, line) }
		if rest, ok := strings.CutPrefix(line, "# HELP "); ok {
			name, words, ok := strings.Cut(rest, " ")
			if !ok || words == "" || help[name] || metricName.FindString(name) != name {
				return nil, fail("HELP")
			}
			if family != "" {
				closed[family] = true
			}
			help[name], family = true, name
			continue
		}
		if rest, ok := strings.CutPrefix(line, "# TYPE "); ok {
			name, kind, _ := strings.Cut(rest, " ")
			if name != family || typed[name] != "" || kind != "gauge" && kind != "counter" {
				return nil, fail("TYPE")
			}
			typed[name] = kind
			continue
		}
		s := series{name: metricName.FindString(line), labels: map[string]string{}}
		if s.name == "" || s.name != family || typed[s.name] == "" || closed[s.name] {
			return nil, fail("a sample outside its family")
		}
		rest := line[len(s.name):]
		if strings.HasPrefix(rest, "{") {
			rest = rest[1:]
			for !strings.HasPrefix(rest, "}") {
				label := labelName.FindString(rest)
				rest = strings.TrimPrefix(rest, label)
				if label == "" || !strings.HasPrefix(rest, `="`) {
					return nil, fail("a label")
				}
				rest = rest[2:]
				var value strings.Builder
				for !strings.HasPrefix(rest, `"`) {
					switch {
					case rest == "":
						return nil, fail("a label value without an end")
					case rest[0] == '\\' && len(rest) > 1 && strings.ContainsRune(`\"n`, rune(rest[1])):
						value.WriteString(map[byte]string{'\\': `\`, '"': `"`, 'n': "\n"}[rest[1]])
						rest = rest[2:]
					case rest[0] == '\\':
						return nil, fail("an escape")
					default:
						value.WriteByte(rest[0])
						rest = rest[1:]
					}
				}
				if _, twice := s.labels[label]; twice {
					return nil, fail("a label twice")
				}
				s.labels[label] = value.String()
				rest = rest[1:]
				if next, ok := strings.CutPrefix(rest, ","); ok {
					rest = next
				} else if !strings.HasPrefix(rest, "}") {
					return nil, fail("after a label")
				}
			}
			rest = rest[1:]
		}
		value, ok := strings.CutPrefix(rest, " ")
		var err error
		if s.value, err = strconv.ParseFloat(value, 64); !ok || err != nil || math.IsNaN(s.value) {
			return nil, fail("a value")
		}
		all = append(all, s)
	}
	return all, nil
}

func find(all []series, name string, labels ...string) *series {
	for i, s := range all {
		ok := s.name == name
		for j := 0; j < len(labels); j += 2 {
			ok = ok && s.labels[labels[j]] == labels[j+1]
		}
		if ok {
			return &all[i]
		}
	}
	return nil
}

func TestExposition(t *testing.T) {
	odd := "we\"b\\17\nx\xff"
	text := string(Write(status(odd)))
	all, err := parse(text)
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name   string
		labels []string
		value  float64
	}{
		{"muster_host_info", []string{"host", "we\"b\\17\nx?", "cohort", "prod-eu", "epoch", "7", "desired", "8", "phase", "confirming", "grade", "disk", "mode", "enforce"}, 1},
		{"muster_host_epoch", nil, 7},
		{"muster_host_desired_epoch", nil, 8},
		{"muster_host_confirmed", nil, 0},
		{"muster_host_drifted_paths", nil, 2},
		{"muster_host_owed_reloads", nil, 1},
		{"muster_host_last_sync_timestamp_seconds", nil, 1796029200},
		{"muster_source_ok", []string{"source", "s3://b"}, 1},
		{"muster_source_ok", []string{"source", "https://c"}, 0},
		{"muster_service_epoch", []string{"service", "search"}, 5},
		{"muster_service_expected_epoch", []string{"service", "search"}, 6},
		{"muster_service_confirmed", []string{"service", "checkout", "state", "confirmed", "grade", "process"}, 1},
		{"muster_service_confirmed", []string{"service", "search", "grade", "disk"}, 0},
		{"muster_service_healthy", []string{"service", "checkout"}, 1},
		{"muster_service_healthy", []string{"service", "search"}, 0},
	} {
		if s := find(all, tc.name, tc.labels...); s == nil || s.value != tc.value {
			t.Errorf("%s %v: %+v, want %v\n%s", tc.name, tc.labels, s, tc.value, text)
		}
	}
	if find(all, "muster_service_healthy", "service", "quiet") != nil || strings.Contains(text, "PROSE") {
		t.Error(text)
	}
	if all, err := parse(string(Write(&agent.Status{}))); err != nil || find(all, "muster_host_last_sync_timestamp_seconds").value != 0 {
		t.Error(err)
	}
}

func TestServe(t *testing.T) {
	ln, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- serve(ctx, ln, func() *agent.Status { return status("web-17") }) }()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	get := func(path string) (*http.Response, string, error) {
		resp, err := client.Get("http://" + ln.Addr().String() + path)
		if err != nil {
			return nil, "", err
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		return resp, string(body), err
	}
	resp, body, err := get("/metrics")
	if err != nil || resp.StatusCode != 200 || resp.Header.Get("Content-Type") != ContentType || body != string(Write(status("web-17"))) {
		t.Errorf("%v, %v\n%s", resp, err, body)
	}
	if resp, _, err := get("/"); err != nil || resp.StatusCode != 404 {
		t.Errorf("%v, %v", resp, err)
	}
	// More connections than there is a use for are closed; those that are open are not.
	var held []net.Conn
	for range maxOpen {
		c, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", ln.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		held = append(held, c)
	}
	if _, _, err := get("/metrics"); err == nil {
		t.Error("one connection too many was served")
	}
	for _, c := range held {
		c.Close()
	}
	for { // the server sees the ends a moment later
		if _, _, err := get("/metrics"); err == nil {
			break
		}
		if t.Context().Err() != nil {
			t.Fatal("it serves no more")
		}
	}
	if err := Serve(t.Context(), ln.Addr().String(), nil); err == nil || !strings.Contains(err.Error(), "metrics: listen tcp") {
		t.Errorf("a taken port: %v", err)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
