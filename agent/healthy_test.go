package agent_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/muster-config/muster/agent"
	"github.com/muster-config/muster/agent/agenttest"
	"github.com/muster-config/muster/distributor/report"
)

// clinic answers for the health of a service, by what its process has loaded.
type clinic struct {
	*httptest.Server
	asked atomic.Int64
	say   atomic.Pointer[func(n int64) int]
}

func newClinic(t *testing.T, say func(n int64) int) *clinic {
	t.Helper()
	c := &clinic{}
	c.will(say)
	c.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader((*c.say.Load())(c.asked.Add(1))) }))
	t.Cleanup(c.Close)
	return c
}

// will says what the n-th question from now on is answered with.
func (c *clinic) will(say func(n int64) int) { c.asked.Store(0); c.say.Store(&say) }

func healthyRig(t *testing.T) (*rig, *clinic, *collector) {
	t.Helper()
	r := newRig(t, "checkout")
	col := newCollector(t)
	r.reporter = col
	c := newClinic(t, func(int64) int { return 204 })
	r.edit("checkout", func(s *agent.ServiceConfig) {
		s.Healthy = &agent.HealthyConfig{HTTP: c.URL, Status: 204, For: 30 * time.Millisecond}
	})
	r.world.Release(files{"checkout/checkout.yaml": "1"})
	r.world.Assign(1)
	r.confirmed(1)
	r.world.Release(files{"checkout/checkout.yaml": "2"})
	r.world.Assign(2)
	return r, c, col
}

// Health that holds confirms the change; it is asked for as long as it has to hold.
func TestHealthyHolds(t *testing.T) {
	r, c, col := healthyRig(t)
	c.will(func(int64) int { return 204 })
	started := time.Now()
	r.confirmed(2)
	if took := time.Since(started); took < 30*time.Millisecond || c.asked.Load() < 4 { // before, with the confirmation, and at least at both ends of the time
		t.Errorf("%d questions in %s", c.asked.Load(), took)
	}
	last := col.reports()[len(col.reports())-1]
	if h := last.Services["checkout"].Healthy; h == nil || !*h {
		t.Errorf("%+v", last)
	}
}

// Health that breaks after the swap takes the host back, with a reload for the old files; one bad answer alone does not.
func TestHealthyBreaks(t *testing.T) {
	for name, tc := range map[string]struct {
		say  func(n int64) int
		back string // "": it stays
	}{
		"at once": {func(n int64) int {
			if n == 1 { // before the swap
				return 204
			}
			return 500
		}, "checkout was healthy before the change and is not within"},
		"after a while": {func(n int64) int {
			if n <= 3 {
				return 204
			}
			return 200 // well is what the configuration says, not what a 2xx is elsewhere
		}, "not for 30ms: the process answers 200 OK, not 204"},
		"once": {func(n int64) int {
			if n == 4 {
				return 500
			}
			return 204
		}, ""},
		"at first": {func(n int64) int {
			if n >= 2 && n <= 5 { // it needs a moment to come up
				return 503
			}
			return 204
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			r, c, _ := healthyRig(t)
			r.edit("checkout", func(s *agent.ServiceConfig) { s.Confirm.Within = 300 * time.Millisecond })
			c.will(tc.say)
			res, err := r.once()
			if tc.back == "" {
				if err != nil || !res.Confirmed || res.Running != 2 {
					t.Fatalf("%+v, %v", res, err)
				}
				r.sound(2)
				return
			}
			if err == nil || res.Code != agent.CodeUnwell || res.Phase != string(report.PhaseRolledBack) || res.Running != 1 || !strings.Contains(res.Reason, tc.back) {
				t.Errorf("%+v, %v", res, err)
			}
			r.sound(1)
			if got := r.procs["checkout"].Reloads(); len(got) != 3 || !strings.HasPrefix(got[1], "checkout 2 ") || !strings.HasPrefix(got[2], "checkout 1 ") {
				t.Errorf("reloads: %v", got)
			}
		})
	}
}

// What was ill before is reported and is no reason to go back.
func TestIllBefore(t *testing.T) {
	r, c, col := healthyRig(t)
	c.will(func(int64) int { return 500 })
	r.confirmed(2)
	last := col.reports()[len(col.reports())-1]
	if s := last.Services["checkout"]; s.Healthy == nil || *s.Healthy || s.State != "confirmed" || s.Reason != "not healthy: the process answers 500 Internal Server Error, not 204" {
		t.Errorf("%+v", s)
	}
	// Nor is the health of a service that does not change.
	r.world.Release(files{"checkout/checkout.yaml": "2", "other/f": "x"}, agenttest.Grade("disk"))
	r.world.Assign(3)
	r.confirmed(3)
}

// B081: an agent that ends while health has to hold goes on at the next start, from the beginning of the time, and comes to a verdict.
func TestB081HealthWindowOverRestart(t *testing.T) {
	r, c, col := healthyRig(t)
	r.edit("checkout", func(s *agent.ServiceConfig) {
		s.Healthy = &agent.HealthyConfig{HTTP: c.URL, Status: 204, For: time.Hour}
	})
	stop := r.running(r.agent())
	col.wait("that waits for health", func(r report.Report) bool { return r.Running == 2 && r.Phase == report.PhaseConfirming })
	stop()
	r.sound(2)
	r.edit("checkout", func(s *agent.ServiceConfig) {
		s.Healthy = &agent.HealthyConfig{HTTP: c.URL, Status: 204, For: 20 * time.Millisecond}
	})
	c.will(func(n int64) int {
		if n < 3 {
			return 204
		}
		return 500
	})
	r.patient = true
	stop = r.running(r.agent())
	col.wait("that went back", func(r report.Report) bool {
		return r.Running == 1 && r.Phase == report.PhaseRolledBack && strings.Contains(r.Reason, "was healthy for")
	})
	stop()
	r.sound(1)
	c.will(func(int64) int { return 204 })
	r.confirmed(2) // the next try of the same release
	r.confirmed(2)
}

// A change that may still go back is confirmed to nobody: neither while its health has to hold, nor by the last word of an agent that ends meanwhile.
func TestNotConfirmedBeforeHealthHolds(t *testing.T) {
	r, c, col := healthyRig(t)
	c.will(func(int64) int { return 204 })
	r.edit("checkout", func(s *agent.ServiceConfig) {
		s.Healthy = &agent.HealthyConfig{HTTP: c.URL, Status: 204, For: time.Hour}
	})
	a := r.agent()
	stop := r.running(a)
	waits := col.wait("that waits for health", func(r report.Report) bool { return r.Running == 2 && r.Phase == report.PhaseConfirming })
	if !strings.Contains(waits.Reason, "checkout: confirmed, and has to be healthy for 1h0m0s") {
		t.Errorf("reason %q", waits.Reason)
	}
	if s := a.Status(); s.Running != 2 || s.Confirmed {
		t.Errorf("%+v", s)
	}
	stop()
	n := 0
	for _, rep := range col.reports() {
		if rep.Running == 2 {
			n++
			if rep.Confirmed || rep.Services["checkout"].State != "confirmed" {
				t.Errorf("%+v", rep)
			}
		}
	}
	if n < 2 {
		t.Errorf("%d reports", n)
	}
	// Once it has held, it is.
	r.edit("checkout", func(s *agent.ServiceConfig) {
		s.Healthy = &agent.HealthyConfig{HTTP: c.URL, Status: 204, For: 20 * time.Millisecond}
	})
	r.confirmed(2)
}
