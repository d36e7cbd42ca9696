package main

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/muster-config/muster/distributor/inventory"
	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/store/open"
	"github.com/muster-config/muster/pipeline/forge/forgetest"
)

// small is a repository of one service.
func small(values string) map[string]string {
	return map[string]string{
		"fleet/fleet.cue":         "package fleet\n\nprecedence: [\"env\"]\ncohorts: prod: {labels: env: \"prod\", hosts: list: [\"a\"]}\n",
		"services/web/schema.cue": "package web\n\n#Config: {\n\tworkers: int & <=64\n\tthreads: int | *2\n\tname?: string\n}\nvalues: #Config\n",
		"services/web/base.yaml":  values,
	}
}

// TestB119Fork: with a token that can only read, the exit code is about the config, and what was found is in annotations, in the summary and in the log.
func TestB119Fork(t *testing.T) {
	for _, tt := range []struct {
		name, change string
		code         int
		commands     int
	}{{"good", "workers: 8\n", 0, 0}, {"bad", "workers: 99\nnamed: x\n", 1, 2}} {
		t.Run(tt.name, func(t *testing.T) {
			w := newCI(t, small("workers: 4\n"), map[string]string{"services/web/base.yaml": tt.change}, nil)
			w.headOwn = "mallory/config"
			w.Allow(ciToken, forgetest.Token{Login: ciBot, Installation: true, May: map[string]string{"contents": "read", "pull_requests": "read", "issues": "read"}})
			w.wants(w.run(), tt.code, "muster: note: the check is not on GitHub: the workflow of a fork's pull request may only read", "the comment is not on GitHub")
			cmds := commandsIn(w.stdout.String())
			if len(cmds) != tt.commands {
				t.Errorf("commands %v", cmds)
			}
			for _, c := range cmds {
				if !strings.HasPrefix(c, "::error file=services/web/base.yaml,line=") {
					t.Error(c)
				}
			}
			if data, err := os.ReadFile(w.summary); err != nil || !strings.Contains(string(data), "### muster plan: ") {
				t.Errorf("summary %q %v", data, err)
			}
			if len(w.Checks("")) != 0 || len(w.Comments(7, "")) != 0 {
				t.Error("written all the same")
			}
		})
	}
}

// TestB119ForkAway: what is not the fork's fault is not told as if it were.
func TestB119ForkAway(t *testing.T) {
	w := newCI(t, small("workers: 4\n"), map[string]string{"services/web/base.yaml": "workers: 8\n"}, nil)
	w.headOwn = "mallory/config"
	w.Before = func(forgetest.Call) *forgetest.Reply {
		return &forgetest.Reply{Status: http.StatusTooManyRequests, Header: map[string]string{"Retry-After": "3600"}}
	}
	w.wants(w.run(), 0, "the check is not on GitHub: write the check run", "rate limit is used up")
	for _, bad := range []string{"may only read", "later", "is written once"} { // nobody comes back to it
		if strings.Contains(w.stderr.String(), bad) {
			t.Error(w.stderr.String())
		}
	}
}

// TestB119Answers: whatever GitHub answers, and if it does not, the exit code is about the config.
func TestB119Answers(t *testing.T) {
	w := newCI(t, small("workers: 4\n"), map[string]string{"services/web/base.yaml": "workers: 8\n"}, nil)
	for _, status := range []int{401, 403, 404, 410, 422, 451} {
		w.Before = func(forgetest.Call) *forgetest.Reply {
			return &forgetest.Reply{Status: status, Body: `{"message":"::error::no"}`}
		}
		w.wants(w.run(), 0, "the check is not on GitHub", "the comment is not on GitHub")
		if got := commandsIn(w.stdout.String() + w.stderr.String()); len(got) != 0 {
			t.Errorf("%d: commands %v", status, got)
		}
	}
	w.Close()
	t.Setenv("GITHUB_API_URL", "http://127.0.0.1:1")
	w.wants(w.run("--github-token-file", filepath.Join(t.TempDir(), "none")), 0, "nothing is written on GitHub")
	t.Setenv("GITHUB_TOKEN", "")
	w.wants(w.run(), 0, "there is no token")
	t.Setenv("GITHUB_TOKEN", ciToken)
	t.Setenv("GITHUB_API_URL", "http://github.example")
	w.wants(w.run(), 0, "unprotected")
}

// What is good by itself, and bad once it is merged, is bad; the lines say so.
func TestCIMergeBreaks(t *testing.T) {
	base := small("workers: 4\n")
	w := newCI(t, base, map[string]string{"services/web/base.yaml": "workers: 60\n"}, map[string]string{
		"services/web/schema.cue": strings.Replace(base["services/web/schema.cue"], "<=64", "<=32", 1), "services/mail/base.yaml": "x: 1\n",
	})
	w.wants(w.run(), 1, "only after the merge:")
	k := w.check()
	if k.GetConclusion() != "failure" || k.GetOutput().GetTitle() != "valid by itself, not after the merge: 1 error" || len(k.Annotations) != 1 || !strings.HasPrefix(k.Annotations[0].GetTitle(), "only after the merge: web: workers") {
		t.Errorf("%s %q %v", k.GetConclusion(), k.GetOutput().GetTitle(), k.Annotations)
	}
	body := w.comment()
	if !strings.Contains(body, "### muster: not valid after the merge") || !strings.Contains(body, "60 is out of range") {
		t.Error(body)
	}
	// The plan is against the merge base: what others did meanwhile is not in it.
	if strings.Contains(body, "mail") {
		t.Errorf("others' changes are in the plan:\n%s", body)
	}
}

// Without a merge of this head, such as in a conflict, the head alone is judged, and that is said.
func TestCINoMerge(t *testing.T) {
	w := newCI(t, small("workers: 4\n"), map[string]string{"services/web/base.yaml": "workers: 8\n"}, nil)
	w.git(w.dir, "checkout", "-q", "main")
	t.Setenv("GITHUB_SHA", w.base)
	w.wants(w.run(), 0, "what would come of merging it was not checked")
	if !strings.Contains(w.comment(), "was not checked") {
		t.Error(w.comment())
	}
}

// A run that is late writes its check, and leaves the comment to the run of the newer push.
func TestCIHeadMoved(t *testing.T) {
	w := newCI(t, small("workers: 4\n"), map[string]string{"services/web/base.yaml": "workers: 8\n"}, nil)
	w.Push(7, w.base)
	w.wants(w.run(), 0, "the comment is left to a later run")
	if len(w.Comments(7, "")) != 0 || w.check().GetConclusion() != "success" {
		t.Error("an older run wrote the comment")
	}
}

// TestB124CIEvents: pushes without a list of files, of new and of rewritten branches, of a tag, and of a branch that is gone.
func TestB124CIEvents(t *testing.T) {
	w := newCI(t, small("workers: 4\n"), map[string]string{"services/web/base.yaml": "workers: 8\n"}, nil)
	const zeros = "0000000000000000000000000000000000000000"
	t.Setenv("GITHUB_EVENT_NAME", "push")
	for _, tt := range []struct {
		name, ref, before, after, want string
	}{
		{"deleted", "refs/heads/topic", w.head, zeros, "nothing to check: the branch was deleted"},
		{"tag", "refs/tags/v1", zeros, w.head, "nothing to check: a tag was pushed"},
		{"without commits", "refs/heads/topic", w.base, w.head, "1 value in 1 service"},
		{"new", "refs/heads/topic", zeros, w.head, "1 value in 1 service"},
		{"rewritten", "refs/heads/topic", w.merge, w.head, "1 value in 1 service"},
		{"before is nowhere", "refs/heads/topic", strings.Repeat("a", 40), w.head, "1 value in 1 service"},
	} {
		w.event = map[string]any{"ref": tt.ref, "before": tt.before, "after": tt.after, "deleted": tt.after == zeros, "commits": []any{}, "repository": map[string]any{"full_name": forgetest.Repo}}
		w.Forget()
		w.wants(w.run(), 0, tt.want)
		if n := len(w.Calls()); (w.event["deleted"] == true || tt.name == "tag") && n != 0 || n > 1 {
			t.Errorf("%s: %d calls", tt.name, n)
		}
	}
	if len(w.Comments(7, "")) != 0 {
		t.Error("a push made a comment")
	}
	// A new branch is compared with the default branch, however many commits it has; the first commit of all with nothing.
	w.git(w.dir, "checkout", "-q", "-b", "long", w.head)
	longer := w.commit("more", map[string]string{"README.md": "more"})
	for _, tt := range [][2]string{{longer, "1 value in 1 service"}, {strings.TrimSpace(w.git(w.dir, "rev-list", "--max-parents=0", "HEAD")), "there is nothing before this commit"}} {
		w.event = map[string]any{"ref": "refs/heads/long", "before": zeros, "after": tt[0], "repository": map[string]any{"full_name": forgetest.Repo, "default_branch": "main"}}
		w.wants(w.run(), 0, tt[1])
	}
	// The same delivery twice makes the same check again, and nothing else.
	if got := w.Checks(w.head); len(got) != 4 {
		t.Errorf("%d checks", len(got))
	}
}

func TestCIUsage(t *testing.T) {
	w := newCI(t, small("workers: 4\n"), map[string]string{"services/web/base.yaml": "workers: 8\n"}, nil)
	t.Setenv("GITHUB_EVENT_NAME", "issues")
	w.wants(w.run(), 2, "run it on pull_request, push or merge_group")
	t.Setenv("GITHUB_EVENT_NAME", "pull_request")
	head := w.head
	w.head = strings.Repeat("b", 40)
	w.wants(w.run(), 2, "check out with fetch-depth: 0")
	w.head = head
	shallow := filepath.Join(t.TempDir(), "shallow")
	w.git("", "clone", "-q", "--depth", "1", "--branch", "topic", "file://"+w.dir, shallow)
	w.dir = shallow
	w.wants(w.run(), 3, "check out with fetch-depth: 0")
	t.Setenv("GITHUB_EVENT_PATH", "")
	if err := run(t.Context(), []string{"ci", "github"}, &w.stdout, &w.stderr); err == nil || !strings.Contains(err.Error(), "GITHUB_EVENT_PATH is not set") {
		t.Error(err)
	}
	if err := run(t.Context(), []string{"ci"}, &w.stdout, &w.stderr); err == nil || !strings.Contains(err.Error(), "which one") {
		t.Error(err)
	}
}

// Names and values that are commands, markdown, HTML or a mention are text everywhere.
func TestCIHostileContent(t *testing.T) {
	hostile := "::error::x ##[error]y\\n::add-path::/tmp </details> @acme/owners `code` <img src=x> [a](http://b) ![](x) | #1 ```"
	w := newCI(t, small("workers: 4\n"), map[string]string{
		"services/web/base.yaml":                            "workers: 8\nname: \"" + hostile + "\"\n\"::set-output name=a::b\": 1\n\"##[add-mask]x\": 2\n",
		"services/web/overlays/env/prod.yaml":               "workers: \"@acme/owners ::warning::z\"\n",
		"services/web/::stop-commands::x ##[warning]y.yaml": "x: 1\n",
		"services/web/`@acme` <b>, file=x::error::.txt":     "x\n",
	}, nil)
	w.wants(w.run(), 1)
	if got := commandsIn(w.stdout.String() + w.stderr.String()); len(got) != 0 {
		t.Errorf("commands: %v", got)
	}
	body, k := w.comment(), w.check()
	summary, err := os.ReadFile(w.summary)
	if err != nil {
		t.Fatal(err)
	}
	for where, text := range map[string]string{"comment": body, "text": k.GetOutput().GetText(), "summary": string(summary), "check": outsideFences(k.GetOutput().GetSummary())} {
		for _, bad := range []string{"@acme", "<img", "](", "<b>", "##["} {
			if strings.Contains(text, bad) {
				t.Errorf("%s holds %q:\n%s", where, bad, text)
			}
		}
		if strings.Count(text, "<details>") != strings.Count(text, "</details>") {
			t.Errorf("%s: folded sections are torn", where)
		}
	}
	// Without rights all is in workflow commands, each of them ours.
	w.Allow(ciToken, forgetest.Token{Login: ciBot, Installation: true})
	w.wants(w.run(), 1)
	for _, c := range commandsIn(w.stdout.String() + w.stderr.String()) {
		if !strings.HasPrefix(c, "::error file=services/web/") && !strings.HasPrefix(c, "::warning file=services/web/") {
			t.Errorf("command %q", c)
		}
	}
}

// outsideFences is markdown without its code blocks, in which everything is text.
func outsideFences(text string) string {
	var b strings.Builder
	fence := ""
	for line := range strings.Lines(text) {
		l := strings.TrimRight(line, "\n")
		run := len(l) - len(strings.TrimLeft(l, "`"))
		switch {
		case fence == "" && run >= 3:
			fence = l[:run]
		case fence != "" && run >= len(fence) && l[run:] == "":
			fence = ""
		case fence == "":
			b.WriteString(line)
		}
	}
	return b.String()
}

// A file name that the tree refuses is told, and is no command.
func TestCIHostileTree(t *testing.T) {
	w := newCI(t, small("workers: 4\n"), map[string]string{"services/web/base.yaml": "workers: 8\n"}, nil)
	w.git(w.dir, "checkout", "-q", w.head)
	if err := os.Symlink("/etc/passwd", filepath.Join(w.dir, "services/web/##[error]x ::error::y")); err != nil {
		t.Fatal(err)
	}
	w.head = w.commit("link", nil)
	w.wants(w.run(), 1, "# #[error]x : :error: :y")
	if got := commandsIn(w.stdout.String() + w.stderr.String()); len(got) != 0 {
		t.Errorf("commands: %v", got)
	}
}

// Hosts are counted as the collector knew them last, with the age of that; without it as the fleet says, and why.
func TestCIInventory(t *testing.T) {
	files := small("workers: 4\n")
	files["fleet/fleet.cue"] = "package fleet\n\nprecedence: [\"env\"]\ncohorts: prod: {labels: env: \"prod\", hosts: expect: 3}\n"
	w := newCI(t, files, map[string]string{"services/web/base.yaml": "workers: 8\n"}, nil)
	store := "file://" + filepath.ToSlash(t.TempDir())
	w.wants(w.run("--store", store), 0, "no inventory.json yet: no collector wrote it", "3 hosts")
	doc := &inventory.Document{V: 1, Repo: "acme/config", At: time.Now().Add(-4 * time.Minute).UTC().Truncate(time.Second), Cohorts: map[string]inventory.DocumentCohort{"prod": {Expected: 5}}}
	for i := range 4 {
		co := doc.Cohorts["prod"]
		co.Hosts = append(co.Hosts, inventory.DocumentHost{Host: fmt.Sprint("web-", i), Labels: map[string]string{}})
		doc.Cohorts["prod"] = co
	}
	put := func() {
		data, err := doc.Encode()
		if err != nil {
			t.Fatal(err)
		}
		st, err := open.Open(t.Context(), store)
		if err != nil {
			t.Fatal(err)
		}
		if err := st.Put(t.Context(), manifest.KeyInventory, data); err != nil {
			t.Fatal(err)
		}
	}
	put()
	w.wants(w.run("--store", store), 0, "hosts are counted as the collector knew them 4m", "5 hosts")
	if !strings.Contains(w.comment(), "5 hosts") {
		t.Error(w.comment())
	}
	doc.At = doc.At.Add(-3 * time.Hour)
	put()
	w.wants(w.run("--store", store), 0, "look after it")
	w.wants(w.run("--store", "s3://"), 0, "hosts are counted by the fleet's own lists")
}

// TestB122Typo: a fleet that names a service which is not there is the commit's fault, with the place; so is a cohort that lost its folder.
func TestB122Typo(t *testing.T) {
	base := small("workers: 4\n")
	base["fleet/fleet.cue"] = strings.Replace(base["fleet/fleet.cue"], "labels:", "services: [\"web\"], labels:", 1)
	for _, tt := range []struct {
		name   string
		change map[string]string
		want   string
	}{
		{"typo", map[string]string{"fleet/fleet.cue": strings.Replace(base["fleet/fleet.cue"], `["web"]`, `["wbe"]`, 1)}, "fleet/fleet.cue"},
		{"folder deleted", map[string]string{"services/web/base.yaml": "", "services/web/schema.cue": ""}, "fleet/fleet.cue"},
		{"empty glob", map[string]string{"fleet/fleet.cue": strings.Replace(base["fleet/fleet.cue"], `["web"]`, `["api-*"]`, 1)}, "fleet/fleet.cue"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newCI(t, base, tt.change, nil)
			w.wants(w.run(), 1, tt.want)
			if k := w.check(); k.GetConclusion() != "failure" || len(k.Annotations) == 0 || k.Annotations[0].GetPath() != tt.want {
				t.Errorf("%s %v", k.GetConclusion(), k.Annotations)
			}
		})
	}
}

// TestB117CI: limits are waited for no longer than a workflow may, and the exit code stays that of the config.
func TestB117CI(t *testing.T) {
	w := newCI(t, small("workers: 4\n"), map[string]string{"services/web/base.yaml": "workers: 8\n"}, nil)
	w.Before = func(c forgetest.Call) *forgetest.Reply {
		return &forgetest.Reply{Status: http.StatusTooManyRequests, Header: map[string]string{"Retry-After": "3600"}}
	}
	w.wants(w.run(), 0, "rate limit is used up", "it asks to come back at", "1 request to GitHub", "the comment is not on GitHub either")
}
