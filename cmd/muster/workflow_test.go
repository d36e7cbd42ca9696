package main

import (
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// A tag can be moved to other code, a commit cannot; the version beside it is for people and for what updates it.
// https://docs.github.com/en/actions/security-guides/security-hardening-for-github-actions#using-third-party-actions
var (
	pinned    = regexp.MustCompile(`^[a-z-]+/[a-z-]+@[0-9a-f]{40}$`)
	versioned = regexp.MustCompile(`@([0-9a-f]{40} # v\d+\.\d+\.\d+|v\d+\.\d+\.\d+ # pin it by commit id)$`)
)

// TestWorkflows: the workflows that we give away have the least rights, and what others wrote is never a word of their shell: nothing is interpolated into a script.
// https://docs.github.com/en/actions/security-guides/security-hardening-for-github-actions#understanding-the-risk-of-script-injections
func TestWorkflows(t *testing.T) {
	for file, rights := range map[string]map[string]string{
		"action.yml": nil,
		"cmd/muster/skeleton/.github/workflows/muster.yml": {"contents": "read"},
		"examples/github/pull-request.yml":                 {"contents": "read", "checks": "write", "pull-requests": "write"},
		"examples/github/publish.yml":                      {"contents": "read", "pull-requests": "read", "statuses": "write"},
	} {
		data, err := os.ReadFile(filepath.Join(moduleRoot(), filepath.FromSlash(file)))
		if err != nil {
			t.Fatal(err)
		}
		var doc map[string]any
		if err := yaml.Unmarshal(data, &doc); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		for line := range strings.Lines(string(data)) {
			if strings.Contains(line, "- uses: ") && !versioned.MatchString(strings.TrimRight(line, "\n")) {
				t.Errorf("%s: no version beside a pin: %s", file, line)
			}
		}
		scripts := 0
		each(doc, func(key string, value any) {
			text, _ := value.(string)
			switch {
			case key == "run":
				scripts++
				if strings.Contains(text, "${{") {
					t.Errorf("%s interpolates into a script: %s", file, text)
				}
			case strings.Contains(text, "${{ github.event"), strings.Contains(text, "github.head_ref"):
				t.Errorf("%s uses what others wrote: %s", file, text)
			case key == "pull_request_target":
				t.Errorf("%s gives rights to what others wrote", file)
			case key == "uses" && !strings.HasPrefix(text, "muster-config/muster@") && !pinned.MatchString(text):
				t.Errorf("%s runs what others may move: %s", file, text)
			}
		})
		if file != "examples/github/pull-request.yml" && scripts == 0 {
			t.Errorf("%s has no script", file)
		}
		if rights == nil {
			continue
		}
		got := map[string]string{}
		for k, v := range doc["permissions"].(map[string]any) {
			got[k] = v.(string)
		}
		if !maps.Equal(got, rights) {
			t.Errorf("%s asks for %v, want %v", file, got, rights)
		}
		if !strings.Contains(string(data), "fetch-depth: 0 ") || !strings.Contains(string(data), "persist-credentials: false") {
			t.Errorf("%s: history, or no credentials left behind", file)
		}
	}
}

// each calls f for every key of a document.
func each(v any, f func(key string, value any)) {
	switch v := v.(type) {
	case map[string]any:
		for _, k := range slices.Sorted(maps.Keys(v)) {
			f(k, v[k])
			each(v[k], f)
		}
	case []any:
		for _, e := range v {
			each(e, f)
		}
	}
}

// TestAction runs the last step of action.yml as a runner does, with the real binary, on a directory whose name would like to be a command.
func TestAction(t *testing.T) {
	w := newCI(t, small("workers: 4\n"), map[string]string{"services/web/base.yaml": "workers: 8\n"}, nil)
	w.run() // writes the event; what it tells is told again
	data, err := os.ReadFile(filepath.Join(moduleRoot(), "action.yml"))
	if err != nil {
		t.Fatal(err)
	}
	var action struct {
		Runs struct {
			Steps []struct {
				Run, Shell string
				Env        map[string]string
			}
		}
	}
	if err := yaml.Unmarshal(data, &action); err != nil {
		t.Fatal(err)
	}
	step := action.Runs.Steps[len(action.Runs.Steps)-1]
	bin, err := binaries()
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(filepath.Dir(w.dir), `$(touch pwned) "; touch pwned #`)
	if err := os.Rename(w.dir, dir); err != nil {
		t.Fatal(err)
	}
	inputs := map[string]string{"${{ inputs.token }}": ciToken, "${{ inputs.directory }}": dir, "${{ inputs.store }}": "", "${{ inputs.author }}": ""}
	cmd := exec.CommandContext(t.Context(), step.Shell, "-e", "-o", "pipefail", "-c", step.Run)
	cmd.Dir = t.TempDir()
	cmd.Env = append(os.Environ(), "RUNNER_TEMP="+bin)
	for k, v := range step.Env {
		value, ok := inputs[v]
		if !ok {
			t.Errorf("%s is %s, which is no input", k, v)
		}
		cmd.Env = append(cmd.Env, k+"="+value)
	}
	w.Forget()
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "requests to GitHub") || len(w.Calls()) == 0 {
		t.Errorf("%v\n%s", err, out)
	}
	if left, err := os.ReadDir(cmd.Dir); err != nil || len(left) > 0 {
		t.Errorf("the shell took a name for a command: %v %v", left, err)
	}
}
