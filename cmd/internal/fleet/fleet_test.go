package fleet

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/muster-config/muster/distributor/verdict"
)

// TestFleet: simulated hosts are to a real collector what real ones are, and their faults are seen.
func TestFleet(t *testing.T) {
	w := newWorld(t, nil, standard(), names(20))
	w.collect("")
	w.release("timeout_ms: 1500\n")
	f := w.fleet(Options{Hosts: names(20), Poll: time.Second, Seed: 7, Requests: 50, Errors: 0.1})
	w.green(1, 20*time.Second)
	for _, h := range f.Hosts() {
		if moves, n := h.Moves(); n != 1 || moves[0].Epoch != 1 || moves[0].From != 0 || h.Loads() != 1 || !h.Status().Confirmed {
			t.Errorf("%s: %+v, %d loads, %+v", h.Name, moves, h.Loads(), h.Status())
		}
	}
	// That the whole parses is for a real Prometheus to say.
	lines := map[string]int{}
	first := ""
	for line := range strings.Lines(string(f.Exposition())) {
		name, _, _ := strings.Cut(line, "{")
		if lines[name]++; name == "muster_host_info" && lines[name] == 1 {
			first = line
		}
	}
	for _, name := range []string{"muster_host_info", "muster_host_confirmed", "http_requests_total", "http_request_errors_total", "muster_fleet_swaps_total"} {
		if lines[name] != 20 {
			t.Errorf("%d samples of %s", lines[name], name)
		}
	}
	if !strings.HasPrefix(first, `muster_host_info{host="sim-0000",repo="acme/config",cohort="prod",mode="enforce",epoch="1",desired="1",`) {
		t.Errorf("the first host's line: %s", first)
	}
}

// TestFaults: hosts that are deaf, down or refuse are told by the collector for what they are.
func TestFaults(t *testing.T) {
	policy := standard()
	policy.MaxFailed = 12 // nothing is taken back here
	w := newWorld(t, nil, policy, names(12))
	w.collect("")
	w.release("timeout_ms: 1500\n")
	f := w.fleet(Options{Hosts: names(12), Poll: time.Second, Seed: 7, Deaf: 2, Down: 3, DownFrom: 6 * time.Second, Refuse: 1})
	w.green(1, 20*time.Second)
	w.until("the three are silent", 30*time.Second, func() bool { return w.verdicts("prod")[verdict.Silent] == 3 })
	w.release("timeout_ms: 2500\n")
	w.until("every fault is seen", 30*time.Second, func() bool {
		v := w.verdicts("prod")
		return v[verdict.Silent] == 3 && v[verdict.Refused] == 1 && v[verdict.Applying] == 2
	})
	w.until("the deaf ones say why", 30*time.Second, func() bool {
		for _, h := range f.Hosts() {
			if h.Deaf && !strings.Contains(h.Status().Reason, "still states epoch 1") {
				return false
			}
		}
		return true
	})
	deaf, down, refuse := 0, 0, 0
	for _, h := range f.Hosts() {
		switch s := h.Status(); {
		case h.Deaf:
			deaf++
			if h.Running() != 2 || s.Confirmed {
				t.Errorf("%s is deaf: %+v", h.Name, s)
			}
		case h.Down:
			down++
			if h.Running() != 1 {
				t.Errorf("%s is down and runs %d", h.Name, h.Running())
			}
		case h.Refuse:
			refuse++
			if h.Running() != 1 {
				t.Errorf("%s refuses and runs %d", h.Name, h.Running())
			}
		}
	}
	if deaf != 2 || down != 3 || refuse != 1 {
		t.Errorf("%d deaf, %d down, %d refusing", deaf, down, refuse)
	}
}

func (w *world) verdicts(cohort string) map[verdict.Code]int {
	w.t.Helper()
	s, err := w.client.Status(w.t.Context())
	w.check(err)
	return s.Cohorts[cohort].Verdicts
}

// TestCommand: the program finds out what its hosts carry, tells who runs what, and sums up.
func TestCommand(t *testing.T) {
	w := newWorld(t, nil, standard(), names(5))
	w.collect("")
	w.release("timeout_ms: 1500\n")
	w.until("there is an order", 20*time.Second, func() bool {
		s, err := w.client.Status(t.Context())
		return err == nil && s.Cohorts["prod"].Target == 1
	})
	bin, err := binaries()
	w.check(err)
	program := filepath.Join(bin, "muster-fleet")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, "run", "--hosts", "5", "--cohort", "prod", "--keyring", filepath.Join(w.dir, "keyring.json"), "--collector", w.collector, "--for", "6s",
		"--poll", "1s", "--metrics", "127.0.0.1:0", "--deaf", "1", "--json")
	var said strings.Builder
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil || !strings.Contains(said.String(), "5 hosts of cohort prod, with checkout, for 6s") || !strings.Contains(said.String(), "5 at epoch 1; 5 confirmed") {
		t.Errorf("%v\n%s", err, said.String())
	}
	var sum Summary
	if err := json.Unmarshal(out, &sum); err != nil || len(sum.Hosts) != 5 || sum.Hosts[0].Host != "sim-0000" || sum.Hosts[0].Swaps != 1 || len(sum.Hosts[0].Moves) != 1 {
		t.Errorf("%v\n%s", err, out)
	}
	for _, tt := range []struct {
		args []string
		code int
		said string
	}{
		{[]string{"run", "--hosts", "2", "--names"}, 0, "sim-0000\nsim-0001\n"},
		{[]string{"run", "--hosts", "2"}, 2, "--cohort is missing"},
		{[]string{"run", "--hosts", "0"}, 2, "--hosts 0 is not between 1 and 100000"},
		{[]string{"run", "--cohort", "prod", "--keyring", filepath.Join(w.dir, "keyring.json"), "--collector", w.collector, "--deaf", "11"}, 2, "are together more than the 10 hosts"},
		{[]string{"run", "--cohort", "prod", "--keyring", filepath.Join(w.dir, "none.json"), "--collector", w.collector}, 7, "keyring"},
		{[]string{"run", "--cohort", "other", "--keyring", filepath.Join(w.dir, "keyring.json"), "--collector", w.collector}, 2, "cohort other has no order yet"},
		{[]string{"run", "--cohort", "prod", "--keyring", filepath.Join(w.dir, "keyring.json"), "--collector", "http://127.0.0.1:1"}, 5, "127.0.0.1:1"},
	} {
		cmd := exec.CommandContext(ctx, program, tt.args...)
		cmd.Env = append(os.Environ(), "MUSTER_COLLECTOR=")
		out, err := cmd.CombinedOutput()
		if cmd.ProcessState == nil || cmd.ProcessState.ExitCode() != tt.code || !strings.Contains(string(out), tt.said) {
			t.Errorf("%v: %v\n%s", tt.args, err, out)
		}
	}
}
