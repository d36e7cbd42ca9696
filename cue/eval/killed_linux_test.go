package eval

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// ownChildren are the evaluations that this process has started.
func ownChildren() (pids []int) {
	names, _ := filepath.Glob("/proc/[0-9]*/status")
	for _, name := range names {
		status, err := os.ReadFile(name)
		if err != nil || !strings.Contains(string(status), fmt.Sprintf("\nPPid:\t%d\n", os.Getpid())) {
			continue
		}
		if line, err := os.ReadFile(filepath.Join(filepath.Dir(name), "cmdline")); err == nil && bytes.HasPrefix(line, []byte("muster-evaluation")) {
			var pid int
			if _, err := fmt.Sscanf(name, "/proc/%d/status", &pid); err == nil {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

// A child that somebody kills once says nothing of the service that it was at: it is evaluated again. One that dies twice alone is to blame.
func TestKilledChild(t *testing.T) {
	const slow = "-- services/slow/a.cue --\npackage slow\nimport \"list\"\nx: [for a in list.Range(0, 150, 1) for b in list.Range(0, 150, 1) {a*b}]\nfiles: \"n.json\": {format: \"json\", data: len(x)}\n"
	for kills, want := range map[int]string{1: "", 100: "evaluation was ended (signal: killed)"} {
		t.Run(fmt.Sprint(kills), func(t *testing.T) {
			s := newSupervisor(repo(oneCohort+slow), Limits{Wall: time.Minute})
			evaluateFleet(newTree(s.req.Files), s.got) // so that what dies is the service
			ended := make(chan error, 1)
			go func() { ended <- s.run(t.Context(), nil) }()
			killed := map[int]bool{}
			for {
				select {
				case err := <-ended:
					if err != nil {
						t.Fatal(err)
					}
					if len(killed) == 0 {
						t.Fatal("no child was seen")
					}
					res := s.got.result(s.req)
					if text := Format(res.Problems); res.Failed() != (want != "") || !strings.Contains(text, want) {
						t.Errorf("%d kills; problems:\n%s", len(killed), text)
					}
					return
				default:
				}
				for _, pid := range ownChildren() {
					if len(killed) < kills && !killed[pid] {
						killed[pid] = true
						_ = syscall.Kill(pid, syscall.SIGKILL)
					}
				}
			}
		})
	}
}
