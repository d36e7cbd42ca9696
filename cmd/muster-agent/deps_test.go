package main

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestDependencies holds the list of all that a binary with root on every machine links: our packages one by one, others by module.
// A new line in testdata/deps.txt is a decision; give the reason in docs/design.md.
func TestDependencies(t *testing.T) {
	const own = "github.com/muster-config/muster/"
	cmd := exec.Command("go", "list", "-deps", "-f", "{{if not .Standard}}{{if .Module.Main}}{{.ImportPath}}{{else}}{{.Module.Path}}{{end}}{{end}}", ".")
	cmd.Env = append(os.Environ(), "GOOS=linux", "GOARCH=amd64", "CGO_ENABLED=0")
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	got := slices.Compact(slices.Sorted(slices.Values(strings.Fields(string(out)))))
	if os.Getenv("MUSTER_UPDATE") == "1" {
		if err := os.WriteFile("testdata/deps.txt", []byte(strings.Join(got, "\n")+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	list, err := os.ReadFile("testdata/deps.txt")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(strings.Fields(string(list)), got); diff != "" {
		t.Errorf("what the agent links is not what testdata/deps.txt allows (-allowed +linked):\n%s", diff)
	}
	for _, banned := range []string{"cuelang.org/go", "github.com/go-git/go-git/v5", "github.com/google/go-github/v60", own + "pipeline", own + "cue", own + "distributor/collector", own + "distributor/rollout"} {
		for _, p := range got {
			if p == banned || strings.HasPrefix(p, banned+"/") {
				t.Errorf("the agent must not link %s", p)
			}
		}
	}
	if slices.Contains(got, strings.TrimSuffix(own, "/")+"/distributor") {
		t.Error("the agent must not link the publisher")
	}
}
