package probe_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/muster-config/muster/agent/probe"
)

func TestMain(m *testing.M) {
	if os.Getenv("MUSTER_TEST_PID1") == "1" {
		os.Exit(pid1())
	}
	goleak.VerifyTestMain(m)
}

// B070: whatever a hook does, it ends at its limit, with its whole group, and what it prints is bounded.
func TestB070Hooks(t *testing.T) {
	for name, tc := range map[string]struct {
		script string
		limit  time.Duration
		want   string        // in the error
		most   time.Duration // it may take
		stays  bool          // the child it leaves is not ours to end
	}{
		"ends well":            {script: "exit 0", most: 5 * time.Second},
		"ends badly":           {script: "echo no >&2; exit 3", want: "sh ended with 3", most: 5 * time.Second},
		"killed":               {script: "kill -9 $$", want: "killed by signal killed", most: 5 * time.Second},
		"sleeps":               {script: "sleep 600", limit: 300 * time.Millisecond, want: "did not end within 300ms and was killed", most: 2 * time.Second},
		"sleeps in a child":    {script: "sleep 600 & wait", limit: 300 * time.Millisecond, want: "did not end", most: 2 * time.Second},
		"ignores TERM":         {script: "trap '' TERM; sleep 600 & while :; do wait; done", limit: 300 * time.Millisecond, want: "did not end", most: 6 * time.Second},
		"leaves a child":       {script: "sleep 30 & echo $! > $OUT; exit 0", most: 5 * time.Second, stays: true},
		"leaves a free child":  {script: "setsid sleep 30 & echo $! > $OUT; exit 0", most: 5 * time.Second, stays: true},
		"prints a lot":         {script: "yes | head -c 10000000", most: 20 * time.Second},
		"reads standard input": {script: "cat", most: 5 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			out := filepath.Join(t.TempDir(), "pid")
			started := time.Now()
			res := probe.New().Run(t.Context(), probe.Command{Argv: []string{"sh", "-c", tc.script}, Limit: tc.limit, Env: map[string]string{"OUT": out}})
			if took := time.Since(started); took > tc.most {
				t.Errorf("took %s", took)
			}
			if tc.want == "" && res.Err != nil || tc.want != "" && (res.Err == nil || !strings.Contains(res.Err.Error(), tc.want)) {
				t.Errorf("error %v, want %q", res.Err, tc.want)
			}
			if len(res.Output) > probe.MaxOutput+8 {
				t.Errorf("%d bytes of output are kept", len(res.Output))
			}
			if tc.stays {
				data, err := os.ReadFile(out)
				if err != nil {
					t.Fatal(err)
				}
				pid, err := strconv.Atoi(strings.TrimSpace(string(data)))
				if err != nil {
					t.Fatal(err)
				}
				if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
					t.Errorf("the child it started is gone: %v", err)
				}
			}
		})
	}
}

func TestRunIsStopped(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	started := time.Now()
	res := probe.New().Run(ctx, probe.Command{Argv: []string{"sleep", "600"}})
	if res.Err == nil || time.Since(started) > 3*time.Second {
		t.Errorf("%v after %s", res.Err, time.Since(started))
	}
}

func TestCommandAndEnvironment(t *testing.T) {
	// B134: what the agent holds in its environment does not reach the commands.
	t.Setenv("MUSTER_TOKEN_FILE", "12345SECRET")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "12345SECRET")
	res := probe.New().Run(t.Context(), probe.Command{Argv: []string{"sh", "-c", `echo "$1|$MUSTER_EPOCH|$(env)"`, "x", "{dir}/f"}, Dir: "/some where", Env: map[string]string{"MUSTER_EPOCH": "7"}})
	if res.Err != nil || !strings.HasPrefix(res.Output, "/some where/f|7|") || strings.Contains(res.Output, "SECRET") || !strings.Contains(res.Output, "PATH=") {
		t.Errorf("%+v", res)
	}
	if res := probe.New().Run(t.Context(), probe.Command{Argv: []string{"/no/such/program"}}); res.Err == nil || !strings.Contains(res.Err.Error(), "start /no/such/program") {
		t.Errorf("%v", res.Err)
	}
	if got := probe.List([]string{"a", "b"}); got != "a\nb" {
		t.Errorf("%q", got)
	}
	if got := probe.List([]string{strings.Repeat("a", 70<<10)}); got != "*" {
		t.Errorf("%d bytes", len(got))
	}
}

func TestAsk(t *testing.T) {
	for name, tc := range map[string]struct {
		status int
		body   string
		path   string
		epoch  uint64
		want   string
	}{
		"a number":          {200, `{"config_epoch": 7}`, "config_epoch", 7, ""},
		"a numeric string":  {200, `{"a": {"b": "42"}}`, "a.b", 42, ""},
		"zero":              {200, `{"config_epoch": 0}`, "config_epoch", 0, ""},
		"a large number":    {200, `{"e": 9007199254740991}`, "e", 9007199254740991, ""},
		"too large":         {200, `{"e": 9007199254740992}`, "e", 0, "is not an epoch"},
		"negative":          {200, `{"e": -1}`, "e", 0, "is not an epoch"},
		"a fraction":        {200, `{"e": 7.5}`, "e", 0, "is not an epoch"},
		"an exponent":       {200, `{"e": 1e3}`, "e", 0, "is not an epoch"},
		"a leading zero":    {200, `{"e": "01"}`, "e", 0, "is not an epoch"},
		"a plus":            {200, `{"e": "+1"}`, "e", 0, "is not an epoch"},
		"a blank":           {200, `{"e": "1 "}`, "e", 0, "is not an epoch"},
		"minus zero":        {200, `{"e": -0}`, "e", 0, "is not an epoch"},
		"text":              {200, `{"e": "seven"}`, "e", 0, "is not an epoch"},
		"a bool":            {200, `{"e": true}`, "e", 0, "is not a number"},
		"null":              {200, `{"e": null}`, "e", 0, "is not a number"},
		"no such field":     {200, `{"f": 7}`, "e", 0, `has no field "e"`},
		"a field in a list": {200, `{"e": [7]}`, "e.0", 0, `has no field "e.0"`},
		"doubled":           {200, `{"e": 7, "e": 8}`, "e", 0, "not read here"},
		"doubled elsewhere": {200, `{"x": {"e": 7, "e": 8}, "e": 7}`, "e", 0, "not read here"},
		"not JSON":          {200, `<html>`, "e", 0, "not JSON"},
		"ill":               {503, `{"e": 7}`, "e", 0, "answers 503 Service Unavailable"},
		"a redirect":        {302, `{"e": 7}`, "e", 0, "answers 302"},
		"too long":          {200, `{"e": 7}` + strings.Repeat(" ", probe.MaxBody), "e", 0, "answers with more than"},
	} {
		t.Run(name, func(t *testing.T) {
			srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Location", "/elsewhere")
				w.WriteHeader(tc.status)
				fmt.Fprint(w, tc.body)
			}))
			defer srv.Close()
			got, err := probe.New().Ask(t.Context(), probe.Question{URL: srv.URL, Field: tc.path})
			if got.Epoch != tc.epoch || tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("%d, %v; want %d, %q", got.Epoch, err, tc.epoch, tc.want)
			}
		})
	}
	srv := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	srv.Close()
	if _, err := probe.New().Ask(t.Context(), probe.Question{URL: srv.URL + "/?token=12345SECRET", Field: "e"}); err == nil || strings.Contains(err.Error(), "SECRET") {
		t.Errorf("%v", err)
	}
	hang := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
	defer hang.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := probe.New().Ask(ctx, probe.Question{URL: hang.URL, Field: "e"}); err == nil {
		t.Error("no error from a process that hangs")
	}
}

// A file or a command states the number and the end of its line, in the one spelling that a number has.
func TestPlainEpoch(t *testing.T) {
	for text, want := range map[string]uint64{"7": 7, "7\n": 7, "0\n": 0, "9007199254740991": 9007199254740991} {
		got, err := probe.New().Ask(t.Context(), probe.Question{Command: &probe.Command{Argv: []string{"printf", "%s", text}}})
		if err != nil || got.Epoch != want {
			t.Errorf("%q: %d, %v", text, got.Epoch, err)
		}
	}
	for _, text := range []string{"", "\n", "01\n", "00", " 1\n", "1 \n", "1\n\n", "1\r\n", "\t1", "+1", "-0", "0x1", "1_0", "1.0", "１"} {
		got, err := probe.New().Ask(t.Context(), probe.Question{Command: &probe.Command{Argv: []string{"printf", "%s", text}}})
		if err == nil || got.Epoch != 0 || !strings.Contains(err.Error(), "the output of printf is not an epoch") || !strings.Contains(err.Error(), "plain decimal number") {
			t.Errorf("%q: %d, %v", text, got.Epoch, err)
		}
	}
}
