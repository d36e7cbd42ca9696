package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-config/muster/cmd/internal/cli"
	"github.com/muster-config/muster/pipeline/forge/forgetest"
)

const (
	ciToken = "ghs_secret0123456789"
	ciBot   = "github-actions[bot]"
)

// ciWorld is a repository with a pull request, and a GitHub.
type ciWorld struct {
	*testing.T
	*forgetest.Server
	dir              string
	base, head       string
	merge            string
	event            map[string]any
	stdout, stderr   bytes.Buffer
	summary, headOwn string
}

// newCI makes a repository of base, and a pull request 7 that changes it; "" deletes. onto changes the base branch after that.
func newCI(t *testing.T, base, change, onto map[string]string) *ciWorld {
	w := &ciWorld{T: t, Server: forgetest.New(t), dir: filepath.Join(t.TempDir(), "repo"), headOwn: forgetest.Repo}
	w.Allow(ciToken, forgetest.Token{Login: ciBot, Installation: true, May: forgetest.All()})
	w.git("", "init", "-q", "-b", "main", w.dir)
	w.base = w.commit("base", base)
	w.git(w.dir, "checkout", "-q", "-b", "topic")
	w.head = w.commit("change", change)
	w.git(w.dir, "checkout", "-q", "main")
	if onto != nil {
		w.commit("onto", onto)
	}
	// What GitHub makes as refs/pull/7/merge, and a workflow checks out.
	w.git(w.dir, "checkout", "-q", "--detach", "main")
	w.git(w.dir, "merge", "-q", "--no-ff", "-m", "Merge", w.head)
	w.merge = w.git(w.dir, "rev-parse", "HEAD")
	w.Open(forgetest.Pull{Number: 7, Author: "ana", Title: "::error::title", Head: w.head})
	w.summary = filepath.Join(t.TempDir(), "summary.md")
	for k, v := range map[string]string{
		"GITHUB_ACTIONS": "true", "GITHUB_EVENT_NAME": "pull_request", "GITHUB_REPOSITORY": forgetest.Repo, "GITHUB_SHA": w.merge, "GITHUB_API_URL": w.Server.URL, "GITHUB_TOKEN": ciToken,
		"GITHUB_STEP_SUMMARY": w.summary, "GITHUB_RUN_ID": "42", "GITHUB_RUN_ATTEMPT": "1", "GITHUB_JOB": "config", "GITHUB_SERVER_URL": "https://github.com", "MUSTER_STORE": "",
		"GITHUB_EVENT_PATH": filepath.Join(t.TempDir(), "event.json"), "MUSTER_CACHE": t.TempDir(),
	} {
		t.Setenv(k, v)
	}
	return w
}

func (w *ciWorld) git(dir string, args ...string) string {
	w.Helper()
	cmd := exec.Command("git", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), append(slices.Clone(gitEnv), "GIT_AUTHOR_DATE=2026-01-02T03:04:05Z", "GIT_COMMITTER_DATE=2026-01-02T03:04:05Z")...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		w.Fatalf("git %v: %v\n%s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

func (w *ciWorld) commit(subject string, files map[string]string) string {
	w.Helper()
	for name, text := range files {
		path := filepath.Join(w.dir, filepath.FromSlash(name))
		if text == "" {
			w.git(w.dir, "rm", "-q", "--", name)
			continue
		}
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			w.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			w.Fatal(err)
		}
	}
	w.git(w.dir, "add", "-A")
	w.git(w.dir, "commit", "-q", "--allow-empty", "-m", subject)
	return w.git(w.dir, "rev-parse", "HEAD")
}

// run runs `muster ci github` and gives its exit code.
func (w *ciWorld) run(args ...string) int {
	w.Helper()
	event := w.event
	if event == nil {
		event = map[string]any{
			"action": "synchronize", "number": 7, "repository": map[string]any{"full_name": forgetest.Repo},
			"pull_request": map[string]any{
				"number": 7, "title": "::error::title", "head": map[string]any{"ref": "topic", "sha": w.head, "repo": map[string]any{"full_name": w.headOwn}},
				"base": map[string]any{"ref": "main", "sha": w.base, "repo": map[string]any{"full_name": forgetest.Repo}},
			},
		}
	}
	data, err := json.Marshal(event)
	if err != nil {
		w.Fatal(err)
	}
	if err := os.WriteFile(os.Getenv("GITHUB_EVENT_PATH"), data, 0o644); err != nil {
		w.Fatal(err)
	}
	w.stdout.Reset()
	w.stderr.Reset()
	err = run(w.Context(), append([]string{"-C", w.dir, "ci", "github"}, args...), &w.stdout, &w.stderr)
	cli.PrintError(&w.stderr, "muster", err, rules...)
	if all := w.stdout.String() + w.stderr.String(); strings.Contains(all, "secret") {
		w.Errorf("the token is printed: %s", all)
	}
	return cli.CodeOf(err, rules...)
}

// wants checks the exit code, and that both outputs hold lines.
func (w *ciWorld) wants(code, want int, holds ...string) {
	w.Helper()
	all := w.stdout.String() + w.stderr.String()
	if code != want {
		w.Errorf("exit %d, want %d\n%s", code, want, all)
	}
	for _, h := range holds {
		if !strings.Contains(all, h) {
			w.Errorf("not said: %q\n%s", h, all)
		}
	}
}

// comment is our only one.
func (w *ciWorld) comment() string {
	w.Helper()
	got := w.Comments(7, ciBot)
	if len(got) != 1 {
		w.Fatalf("%d comments of ours", len(got))
	}
	return got[0].GetBody()
}

func (w *ciWorld) check() *forgetest.Check {
	w.Helper()
	got := w.Checks(w.head)
	if len(got) != 1 || got[0].GetStatus() != "completed" {
		w.Fatalf("%d checks of the head: %v", len(got), got)
	}
	return &got[0]
}

// commandsIn are what a runner takes for commands: https://github.com/actions/runner/blob/main/src/Runner.Common/ActionCommand.cs
func commandsIn(out string) (cmds []string) {
	stopped := ""
	for line := range strings.Lines(strings.ReplaceAll(out, "\r", "\n")) {
		l := strings.TrimSpace(line)
		switch {
		case stopped != "" && l == "::"+stopped+"::":
			stopped = ""
		case stopped != "":
		case strings.HasPrefix(l, "::stop-commands::"):
			stopped = strings.TrimPrefix(l, "::stop-commands::")
		case strings.HasPrefix(l, "::") || strings.Contains(l, "##["):
			cmds = append(cmds, l)
		}
	}
	return cmds
}

const ciFleet = `package fleet

precedence: ["env"]
cohorts: {
	"prod-eu": {labels: env: "prod", services: ["checkout", "mailer"], hosts: list: ["eu-1", "eu-2", "eu-3"]}
	"prod-us": {labels: env: "prod", services: ["checkout", "mailer", "search"], hosts: list: ["us-1", "us-2"]}
	staging: {labels: env: "staging", hosts: expect: 4}
}
rollouts: standard: waves: [{percent: 10, bake: "10m"}, {percent: 100}]
`

// ciRepo is a repository of three services that share a library.
func ciRepo() map[string]string {
	files := map[string]string{
		"cue.mod/module.cue": "module: \"config.acme.test\"\nlanguage: version: \"v0.17.0\"\n",
		"fleet/fleet.cue":    ciFleet,
		"lib/net.cue":        "package lib\n\n#Net: {\n\ttimeout_ms: *500 | int & >0 & <=5000\n\tretries:    *2 | int & >=0\n}\n",
		"services/checkout/overlays/env/prod.yaml": "timeout_ms: 2000\n",
		"services/search/base.yaml":                "index: main\nshards: 4\n",
	}
	for _, s := range []string{"checkout", "mailer"} {
		files["services/"+s+"/schema.cue"] = "package " + s + "\n\nimport \"config.acme.test/lib\"\n\n#Config: {\n\tlib.#Net\n\tname: string\n}\nvalues: #Config\n"
		files["services/"+s+"/base.yaml"] = "name: " + s + "\ntimeout_ms: 1500\n"
	}
	return files
}

// TestCIGolden: the comment, the check and the summary of five pull requests, to the letter. MUSTER_UPDATE=1 writes them anew.
func TestCIGolden(t *testing.T) {
	thousand := map[string]string{"services/web/base.yaml": "workers: 4\n", "fleet/fleet.cue": ""}
	var fleet strings.Builder
	fleet.WriteString("package fleet\n\nprecedence: [\"env\"]\ncohorts: {\n")
	for i := range 1000 {
		fmt.Fprintf(&fleet, "\t\"c%04d\": {labels: env: %q, hosts: expect: %d}\n", i, []string{"prod", "staging"}[i%2], i%7+1)
	}
	fleet.WriteString("}\n")
	thousand["fleet/fleet.cue"] = fleet.String()
	for _, tt := range []struct {
		name         string
		base, change map[string]string
		code         int
	}{
		{"one-value", ciRepo(), map[string]string{"services/checkout/overlays/env/staging.yaml": "timeout_ms: 1800\n"}, 0},
		{"schema-breaks-two", ciRepo(), map[string]string{"lib/net.cue": "package lib\n\n#Net: {\n\ttimeout_ms: *500 | int & >0 & <=1000\n\tretries:    *2 | int & >=0\n}\n"}, 1},
		{"shared-library", ciRepo(), map[string]string{"lib/net.cue": "package lib\n\n#Net: {\n\ttimeout_ms: *500 | int & >0 & <=5000\n\tretries:    *3 | int & >=0\n}\n"}, 0},
		{"nothing", ciRepo(), map[string]string{"services/search/base.yaml": "# shards of the main index\nindex: main\nshards: 4\n"}, 0},
		{"thousand-cohorts", thousand, map[string]string{"services/web/base.yaml": "workers: 8\n"}, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newCI(t, tt.base, tt.change, nil)
			w.wants(w.run(), tt.code, "5 requests to GitHub") // and one less from the second push on
			comment := w.comment()
			w.golden(tt.name+"/comment.md", comment)
			summary, err := os.ReadFile(w.summary)
			if err != nil {
				t.Fatal(err)
			}
			// What is told twice is kept once.
			shared := func(text string) string {
				plain := strings.TrimPrefix(comment, "<!-- muster:plan -->\n")
				if strings.TrimRight(text, "\n") == strings.TrimRight(plain, "\n") {
					return "(as the comment)\n"
				}
				return text
			}
			w.golden(tt.name+"/summary.md", shared(string(summary)))
			k := w.check()
			var b strings.Builder
			fmt.Fprintf(&b, "# %s: %s\n\n## title\n\n%s\n\n## summary\n\n%s\n## text\n\n%s\n## annotations\n", k.GetName(), k.GetConclusion(), k.GetOutput().GetTitle(), k.GetOutput().GetSummary(), shared(k.GetOutput().GetText()))
			for _, a := range k.Annotations {
				fmt.Fprintf(&b, "\n- %s %s:%d:%d %s\n  %s\n", a.GetAnnotationLevel(), a.GetPath(), a.GetStartLine(), a.GetStartColumn(), a.GetTitle(), strings.ReplaceAll(a.GetMessage(), "\n", "\n  "))
			}
			w.golden(tt.name+"/check.md", b.String())
			if got := commandsIn(w.stdout.String() + w.stderr.String()); len(got) != 0 {
				t.Errorf("commands: %v", got)
			}
			if d, want := k.GetDetailsURL(), "https://github.com/acme/config/actions/runs/42"; d != want {
				t.Errorf("details %s, want %s", d, want)
			}

			// The next push costs four requests, and leaves one comment.
			w.Forget()
			w.git(w.dir, "checkout", "-q", w.head)
			w.head = w.commit("more", map[string]string{"README.md": "more"})
			w.git(w.dir, "checkout", "-q", "main")
			w.pushed()
			w.wants(w.run(), tt.code, "4 requests to GitHub")
			if !strings.Contains(w.comment(), w.head[:12]) {
				t.Error("the comment is about an older push")
			}
		})
	}
}

// pushed tells GitHub of the new head.
func (w *ciWorld) pushed() {
	w.git(w.dir, "checkout", "-q", "--detach", "main")
	w.git(w.dir, "merge", "-q", "--no-ff", "-m", "Merge", w.head)
	w.merge = w.git(w.dir, "rev-parse", "HEAD")
	w.Setenv("GITHUB_SHA", w.merge)
	w.Push(7, w.head)
}

// golden compares with a file, or writes it.
func (w *ciWorld) golden(name, got string) {
	w.Helper()
	path := filepath.Join("testdata", "ci", name)
	if os.Getenv("MUSTER_UPDATE") != "" {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			w.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			w.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		w.Fatal(err)
	}
	if d := cmp.Diff(string(want), got); d != "" {
		w.Errorf("%s:\n%s", path, d)
	}
}
