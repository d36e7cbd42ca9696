package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-config/muster/cmd/internal/cli"
	"github.com/muster-config/muster/distributor"
	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/pipeline/forge"
	"github.com/muster-config/muster/pipeline/forge/forgetest"
)

// What is asked of a commit is what the last release asks, of the cohorts that the commit changes in any way.
func TestDemands(t *testing.T) {
	policy := func(change func(p *manifest.Policy)) manifest.Policy {
		p := manifest.Policy{
			Cohorts: map[string]manifest.CohortPolicy{
				"free": {Rollout: "standard"}, "two": {Rollout: "standard", RequireApprovals: 2}, "owned": {Rollout: "careful", Owners: []string{"acme/payments"}},
			},
			Rollouts: map[string]manifest.RolloutPolicy{"standard": {Timeout: "1h"}, "careful": {Timeout: "2h"}},
		}
		if change != nil {
			change(&p)
		}
		return p
	}
	set := func(name string, c manifest.CohortPolicy) func(*manifest.Policy) {
		return func(p *manifest.Policy) { p.Cohorts[name] = c }
	}
	same := map[string]distributor.CohortBuild{"free": {Same: true}, "two": {Same: true}, "owned": {Same: true}}
	with := func(name string, c distributor.CohortBuild) map[string]distributor.CohortBuild {
		out := map[string]distributor.CohortBuild{name: c}
		for n, s := range same {
			if n != name {
				out[n] = s
			}
		}
		return out
	}
	for _, tt := range []struct {
		name   string
		newest *manifest.Release
		policy manifest.Policy
		build  map[string]distributor.CohortBuild
		want   string
	}{
		{"nothing changes", &manifest.Release{Policy: policy(nil)}, policy(nil), same, "[]"},
		{"one without a demand", &manifest.Release{Policy: policy(nil)}, policy(nil), with("free", distributor.CohortBuild{}), "[]"},
		{"one that wants two", &manifest.Release{Policy: policy(nil)}, policy(nil), with("two", distributor.CohortBuild{}), "[{two 2 []}]"},
		{"one with owners", &manifest.Release{Policy: policy(nil)}, policy(nil), with("owned", distributor.CohortBuild{}), "[{owned 1 [acme/payments]}]"},
		{"blocked", &manifest.Release{Policy: policy(nil)}, policy(nil), with("two", distributor.CohortBuild{Blocked: "x"}), "[{two 2 []}]"},
		{"the demand is lowered", &manifest.Release{Policy: policy(nil)}, policy(set("two", manifest.CohortPolicy{Rollout: "standard"})), same, "[{two 2 []}]"},
		{"a demand is added", &manifest.Release{Policy: policy(nil)}, policy(set("free", manifest.CohortPolicy{Rollout: "standard", RequireApprovals: 1})), with("free", distributor.CohortBuild{}), "[]"},
		{"its rollout is changed", &manifest.Release{Policy: policy(nil)}, policy(func(p *manifest.Policy) { p.Rollouts["careful"] = manifest.RolloutPolicy{Timeout: "1s"} }), same, "[{owned 1 [acme/payments]}]"},
		{"it is removed", &manifest.Release{Policy: policy(nil)}, policy(func(p *manifest.Policy) { delete(p.Cohorts, "two") }), with("two", distributor.CohortBuild{Same: true}), "[{two 2 []}]"},
		{"it is new", &manifest.Release{Policy: policy(func(p *manifest.Policy) { delete(p.Cohorts, "two") })}, policy(nil), with("two", distributor.CohortBuild{}), "[{two 2 []}]"},
		{"the first release", nil, policy(nil), with("two", distributor.CohortBuild{}), "[{owned 1 [acme/payments]} {two 2 []}]"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := fmt.Sprint(demands(tt.newest, &distributor.Build{Policy: tt.policy, Cohorts: tt.build})); got != tt.want {
				t.Errorf("got %s, want %s", got, tt.want)
			}
		})
	}
}

// TestB117Limited: a limit that is known is not waited for at all by a release that only mentions.
func TestB117Limited(t *testing.T) {
	w := newApprovals(t, "")
	w.commit("tool", map[string]string{"services/tool/base.yaml": "x: 2\n"})
	w.Before = func(forgetest.Call) *forgetest.Reply {
		return &forgetest.Reply{Status: 429, Header: map[string]string{"Retry-After": "5"}}
	}
	w.Forget()
	w.published(0, "epoch 2", "the release does not say how its commit came to the branch", "1 request to GitHub\n") // not sent again, and nothing waited for
	if len(w.Calls()) != 1 {
		t.Errorf("%d requests", len(w.Calls()))
	}
}

// slow is a forge that does not answer.
type slow struct{}

func (*slow) Attribution(ctx context.Context, _, _ string) (*forge.Attribution, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}
func (*slow) Member(context.Context, string, string) (bool, error) { return false, nil }

// TestB117Publish: what a release merely mentions holds it up for ten seconds at most, and says that it is missing.
func TestB117Publish(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var warned []string
		a := &attribution{forge: &slow{}, warn: func(s string) { warned = append(warned, s) }}
		build := a.around(func(context.Context, distributor.BuildInput) (*distributor.Build, error) {
			return &distributor.Build{Commit: distributor.Commit{ID: strings.Repeat("1", 40)}, Policy: manifest.Policy{}}, nil
		})
		begin := time.Now()
		b, err := build(t.Context(), distributor.BuildInput{Epoch: 1})
		if err != nil || b.Commit.PullRequest != 0 || time.Since(begin) != attributing || len(warned) != 1 {
			t.Errorf("%v after %s, %q", err, time.Since(begin), warned)
		}
	})
}

// late is a forge that notes after some time by which pull request a commit came.
type late struct {
	at    time.Time
	made  bool
	calls int
}

func (l *late) Attribution(context.Context, string, string) (*forge.Attribution, error) {
	if l.calls++; time.Now().Before(l.at) {
		return &forge.Attribution{Made: l.made}, nil
	}
	return &forge.Attribution{Number: 17, Author: "ana", Approvers: []string{"ben"}, Made: l.made}, nil
}
func (*late) Member(context.Context, string, string) (bool, error) { return false, nil }

// An approved merge that GitHub has not noted yet is not refused: it is asked about again, until the commit is a minute old. A release that only mentions it waits a few seconds, and
// only for what GitHub made.
func TestMergeNotNotedYet(t *testing.T) {
	approved := manifest.Policy{Cohorts: map[string]manifest.CohortPolicy{"prod": {RequireApprovals: 1}}}
	for _, tt := range []struct {
		name         string
		policy       manifest.Policy
		age, lag     time.Duration
		made         bool
		number       int
		refused      bool
		waited, most time.Duration
		calls        int
	}{
		{"noted", approved, 0, 0, true, 17, false, 0, 0, 1},
		{"noted after 13 seconds", approved, time.Second, 13 * time.Second, true, 17, false, 13 * time.Second, 20 * time.Second, 5},
		{"rebased, noted after 13 seconds", approved, time.Second, 13 * time.Second, false, 17, false, 13 * time.Second, 20 * time.Second, 5},
		{"pushed", approved, time.Second, time.Hour, false, 0, true, 50 * time.Second, 70 * time.Second, 8},
		{"pushed with a date to come", approved, -time.Hour, time.Hour, false, 0, true, 50 * time.Second, 80 * time.Second, 8},
		{"pushed an hour ago", approved, time.Hour, 2 * time.Hour, false, 0, true, 0, 0, 1},
		{"mentioned, after 3 seconds", manifest.Policy{}, time.Second, 3 * time.Second, true, 17, false, 3 * time.Second, 3 * time.Second, 3},
		{"mentioned, too late", manifest.Policy{}, time.Second, time.Hour, true, 0, false, 3 * time.Second, attributing, 4},
		{"mentioned, pushed", manifest.Policy{}, time.Second, time.Hour, false, 0, false, 0, 0, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				begin := time.Now()
				l := &late{at: begin.Add(tt.lag), made: tt.made}
				a := &attribution{forge: l, warn: func(s string) { t.Error(s) }}
				build := a.around(func(context.Context, distributor.BuildInput) (*distributor.Build, error) {
					return &distributor.Build{Commit: distributor.Commit{ID: strings.Repeat("1", 40), Committer: manifest.Person{At: begin.Add(-tt.age)}}, Policy: tt.policy, Cohorts: map[string]distributor.CohortBuild{"prod": {}}}, nil
				})
				b, err := build(t.Context(), distributor.BuildInput{Epoch: 1})
				if errors.Is(err, distributor.ErrRefused) != tt.refused || !tt.refused && (err != nil || b.Commit.PullRequest != tt.number) {
					t.Errorf("%v %+v", err, b)
				}
				if d := time.Since(begin); d < tt.waited || d > tt.most || l.calls > tt.calls {
					t.Errorf("waited %s, asked %d times", d, l.calls)
				}
			})
		})
	}
}

// approvalWorld publishes commits of a repository to a store, and asks a GitHub.
type approvalWorld struct {
	*ciWorld
	store, keys string
}

func newApprovals(t *testing.T, cohort string) *approvalWorld {
	files := map[string]string{
		"fleet/fleet.cue":        "package fleet\n\nprecedence: [\"env\"]\ncohorts: {\n\tprod: {labels: env: \"prod\", services: [\"web\"], hosts: list: [\"a\"]" + cohort + "}\n\tlab: {labels: env: \"lab\", services: [\"tool\"], hosts: list: [\"b\"]}\n}\n",
		"services/web/base.yaml": "workers: 4\n", "services/tool/base.yaml": "x: 1\n",
	}
	w := &approvalWorld{ciWorld: &ciWorld{T: t, Server: forgetest.New(t), dir: filepath.Join(t.TempDir(), "repo")}, store: "file://" + t.TempDir() + "/store", keys: filepath.Join(t.TempDir(), "keys")}
	w.Allow(ciToken, forgetest.Token{Login: "muster[bot]", Installation: true, May: forgetest.All()})
	for k, v := range map[string]string{"GITHUB_TOKEN": ciToken, "GITHUB_API_URL": w.Server.URL, "MUSTER_STORE": w.store, "MUSTER_KEYS": w.keys, "MUSTER_COLLECTOR": "", "MUSTER_CACHE": t.TempDir()} {
		t.Setenv(k, v)
	}
	w.git("", "init", "-q", "-b", "main", w.dir)
	w.base = w.commit("first", files)
	w.Permit("ben", "write")
	w.Permit("eve", "write")
	w.Team("acme/payments", "eve")
	w.Open(forgetest.Pull{Number: 1, Author: "ana", Head: w.base, Commit: w.base})
	w.Review(1, "ben", "APPROVED", w.base)
	w.Review(1, "eve", "APPROVED", w.base)
	var out strings.Builder
	if err := run(t.Context(), []string{"keys", "init", w.keys, "--repo", "acme/config"}, &out, &out); err != nil {
		t.Fatal(err)
	}
	w.published(0)
	return w
}

// published publishes HEAD and checks the exit code and what is said.
func (w *approvalWorld) published(code int, holds ...string) {
	w.Helper()
	w.stdout.Reset()
	w.stderr.Reset()
	err := run(w.Context(), []string{"-C", w.dir, "publish", "--github", forgetest.Repo}, &w.stdout, &w.stderr)
	cli.PrintError(&w.stderr, "muster", err, rules...)
	w.wants(cli.CodeOf(err, rules...), code, holds...)
}

// merge makes a commit that came by a pull request with these approvals of its head.
func (w *approvalWorld) merged(n int, files map[string]string, approvers ...string) string {
	w.Helper()
	c := w.commit(fmt.Sprint("change ", n), files)
	w.Open(forgetest.Pull{Number: n, Author: "ana", Head: c, Commit: c})
	for _, who := range approvers {
		w.Review(n, who, "APPROVED", c)
	}
	return c
}

// newestRelease is the release as `show` prints it.
func (w *approvalWorld) newestRelease(epoch string) (r struct {
	PullRequest int      `json:"pull_request"`
	Proposer    string   `json:"proposer"`
	Approvers   []string `json:"approvers"`
	Signer      string   `json:"signer"`
}) {
	w.Helper()
	var out, errOut strings.Builder
	if err := run(w.Context(), []string{"show", epoch, "--json"}, &out, &errOut); err != nil {
		w.Fatal(err)
	}
	if err := json.Unmarshal([]byte(out.String()), &r); err != nil {
		w.Fatal(err)
	}
	return r
}

// web is a commit's change of the guarded cohort.
func web(n int) map[string]string {
	return map[string]string{"services/web/base.yaml": fmt.Sprintf("workers: %d\n", n)}
}

func TestApprovals(t *testing.T) {
	w := newApprovals(t, ", require_approvals: 2, owners: [\"acme/payments\"]")
	if r := w.newestRelease("1"); r.PullRequest != 1 || r.Proposer != "ana" || r.Signer != "web-flow (verified by 127.0.0.1)" || cmp.Diff([]string{"ben", "eve"}, r.Approvers) != "" {
		t.Errorf("%+v", r)
	}
	// A cohort that asks for nothing takes anything, and a signature that nobody verified is nobody's.
	w.Make(w.commit("direct", map[string]string{"services/tool/base.yaml": "x: 2\n"}), forgetest.Made{By: "ana", Reason: "unknown_key"})
	w.published(0, "epoch 2")
	if r := w.newestRelease("2"); r.PullRequest != 0 || r.Signer != "" {
		t.Errorf("%+v", r)
	}

	direct := w.commit("direct", web(5))
	w.published(1, "cohort prod changes, and this commit came without a pull request", "muster: note: 3 requests to GitHub") // whose, by whom, and the refusal
	index, err := os.ReadFile(filepath.Join(strings.TrimPrefix(w.store, "file://"), "commits", direct+".json"))
	if err != nil || !strings.Contains(string(index), "came without a pull request") {
		t.Errorf("%s %v", index, err)
	}
	if st := w.Statuses(direct); len(st) != 1 || st[0].GetState() != "failure" || !strings.HasPrefix(st[0].GetDescription(), "refused: cohort prod changes, and this commit came without") {
		t.Errorf("%v", st)
	}
	// Taken back by anybody: nothing changes, so nothing is asked.
	w.commit("revert", web(4))
	w.published(0, "epoch 3")

	w.merged(2, web(5), "ben")
	w.published(1, "this commit (pull request 2) has 1 approval of what was merged, and needs 2")
	// A later commit does not bring in what an earlier one lacks.
	w.merged(3, map[string]string{"services/tool/base.yaml": "x: 3\n"}, "ben", "eve")
	w.published(1, "before it (pull request 2) has 1 approval")
	// Approved after all.
	head := w.git(w.dir, "rev-parse", "HEAD^1")
	w.Review(2, "eve", "APPROVED", head)
	w.published(0, "epoch 4")
	if r := w.newestRelease("4"); r.PullRequest != 3 || len(r.Approvers) != 2 {
		t.Errorf("%+v", r)
	}

	w.Permit("joe", "write")
	w.merged(4, web(6), "ben", "joe")
	w.published(1, "is not approved by an owner: acme/payments")
	w.Review(4, "eve", "APPROVED", w.git(w.dir, "rev-parse", "HEAD"))
	w.published(0, "epoch 5")

	// No commit lowers what is asked of itself.
	fleet, err := os.ReadFile(filepath.Join(w.dir, "fleet", "fleet.cue"))
	if err != nil {
		t.Fatal(err)
	}
	w.merged(5, map[string]string{"fleet/fleet.cue": strings.Replace(string(fleet), "require_approvals: 2, ", "", 1)}, "eve")
	w.published(1, "has 1 approval of what was merged, and needs 2")
}

// A merge that somebody made by hand is not what was approved, whoever approved the head.
func TestApprovalsByHand(t *testing.T) {
	w := newApprovals(t, ", require_approvals: 1")
	w.git(w.dir, "checkout", "-q", "-b", "topic")
	head := w.commit("change 2", web(5))
	w.git(w.dir, "checkout", "-q", "main")
	w.git(w.dir, "merge", "-q", "--no-ff", "--no-commit", "topic")
	merge := w.commit("merge", web(6)) // not what was approved
	w.Open(forgetest.Pull{Number: 2, Author: "ana", Head: head, Commit: merge})
	w.Review(2, "ben", "APPROVED", head)
	w.Make(merge, forgetest.Made{By: "ana", Unsigned: true, Parents: []string{w.base, head}, Compared: "ahead"})
	w.published(1, "cohort prod changes, and this commit (pull request 2) was made by hand of the head")
	w.Make(merge, forgetest.Made{Parents: []string{w.base, head}, Compared: "ahead"})
	w.published(0, "epoch 2")
}

// What cannot be asked is not taken, nor is it the commit's fault; where nothing is asked, GitHub holds nothing back.
func TestApprovalsWithoutGitHub(t *testing.T) {
	w := newApprovals(t, ", require_approvals: 1")
	w.merged(2, web(5), "ben")
	w.Before = func(forgetest.Call) *forgetest.Reply {
		return &forgetest.Reply{Status: 429, Header: map[string]string{"Retry-After": "3600"}}
	}
	w.published(5, "who approved commit", "rate limit")
	var out, errOut strings.Builder
	err := run(t.Context(), []string{"-C", w.dir, "publish"}, &out, &errOut)
	if cli.CodeOf(err, rules...) != 2 || !strings.Contains(err.Error(), "takes only approved commits") || errors.Is(err, distributor.ErrRefused) {
		t.Errorf("%v", err)
	}
	w.git(w.dir, "reset", "-q", "--hard", w.base)
	w.commit("tool", map[string]string{"services/tool/base.yaml": "x: 2\n"})
	w.published(0, "epoch 2", "the release does not say how its commit came to the branch")
	w.Before = nil
	if out, err := exec.Command("git", "-C", w.dir, "status", "--porcelain").CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("%s %v", out, err)
	}
}

// A fleet says it in a way that is checked.
func TestApprovalsInFleet(t *testing.T) {
	for fields, want := range map[string]string{
		"require_approvals: -1":             "require_approvals",
		"require_approvals: 11":             "require_approvals",
		"owners: [\"@acme/payments\"]":      "owners",
		"owners: [\"acme/pay/ments\"]":      "owners",
		"owners: [\"ana\", \"acme/pay.1\"]": "",
	} {
		w := newCI(t, map[string]string{
			"fleet/fleet.cue":        "package fleet\n\nprecedence: [\"env\"]\ncohorts: prod: {labels: env: \"prod\", hosts: list: [\"a\"], " + fields + "}\n",
			"services/web/base.yaml": "workers: 4\n",
		}, nil, nil)
		var out, errOut strings.Builder
		err := run(t.Context(), []string{"-C", w.dir, "validate"}, &out, &errOut)
		if (want == "") != (err == nil) || !strings.Contains(out.String(), want) {
			t.Errorf("%s: %v\n%s", fields, err, out.String())
		}
	}
}
