package main

import (
	"bytes"
	"fmt"
	"net"
	"net/http/cgi"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/muster-config/muster/pipeline/forge/forgetest"
)

// loud is a process's output.
type loud struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *loud) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *loud) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// site is a GitHub with a git server behind it, a store, a collector that leads rollouts, hosts, and a publisher that follows the branch: the real binaries.
type site struct {
	*testing.T
	*forgetest.Server
	bin, dir, bare, work string
	remote, collector    string
	out                  map[string]*loud
	down                 atomic.Bool // GitHub answers nobody
}

func newSite(t *testing.T, fleet string, hosts ...string) *site {
	bin, err := binaries()
	if err != nil {
		t.Fatal(err)
	}
	s := &site{T: t, Server: forgetest.New(t), bin: bin, dir: t.TempDir(), out: map[string]*loud{}}
	s.bare, s.work = filepath.Join(s.dir, "srv", "config.git"), filepath.Join(s.dir, "work")
	s.Allow(ciToken, forgetest.Token{Login: "muster[bot]", Installation: true, May: forgetest.All()})
	s.Git = s.bare
	s.Before = func(forgetest.Call) *forgetest.Reply {
		if s.down.Load() {
			return &forgetest.Reply{Status: 503}
		}
		return nil
	}
	s.git(s.dir, "init", "-q", "--bare", "-b", "main", s.bare)
	s.git(s.dir, "clone", "-q", s.bare, s.work)
	s.git(s.work, "checkout", "-q", "-b", "main")
	s.write("fleet/fleet.cue", fleet)
	s.write("services/web/base.yaml", "workers: 4\n")
	s.write("services/web/web.cue", "package web\n\nconfirm: \"disk\"\n")
	s.Make(s.push("first configuration", "main"), forgetest.Made{By: "ana", Unsigned: true})

	// git over HTTP, as the forge serves it: https://git-scm.com/docs/git-http-backend
	exe := s.git(s.dir, "--exec-path")
	git := httptest.NewServer(&cgi.Handler{Path: filepath.Join(exe, "git-http-backend"), Env: []string{"GIT_PROJECT_ROOT=" + filepath.Join(s.dir, "srv"), "GIT_HTTP_EXPORT_ALL=1"}})
	t.Cleanup(git.Close)
	s.remote = git.URL + "/config.git"

	s.run("muster", "keys", "init", filepath.Join(s.dir, "keys"), "--repo", "acme/config")
	port := freePort(t)
	s.collector = "http://127.0.0.1:" + port
	s.file("collector.yaml", fmt.Sprintf("listen: 127.0.0.1:%s\nstore: %s\nkeyring: %s/keys/keyring.json\nrollout_key: %s/keys/rollout.key\ndatabase: sqlite://%s/collector.db\n", port, s.store(), s.dir, s.dir, s.dir))
	s.start("collector", "muster-collector", "run", "--config", filepath.Join(s.dir, "collector.yaml"))
	for _, h := range hosts {
		cohort, _, _ := strings.Cut(h, "-")
		s.file(h+".yaml", fmt.Sprintf("host: %s\nrepo: acme/config\ncohort: %s\nsources: [%q, %q]\nkeyring: %s/keys/keyring.json\nroot: %s/root-%s\npoll: 1s\ncollector: {url: %q}\nservices:\n  web:\n    check: [/bin/sh, -c, 'grep -q \"workers: [0-9]$\" \"$0\"', \"{dir}/web.yaml\"]\n",
			h, cohort, s.collector, s.store(), s.dir, s.dir, h, s.collector))
		s.start(h, "muster-agent", "run", "--config", filepath.Join(s.dir, h+".yaml"))
	}
	s.file("token", ciToken+"\n")
	return s
}

// publish starts a publisher that follows the branch.
func (s *site) publish(as string) (stop func()) {
	s.Helper()
	return s.start(as, "muster", "publish", "--watch", "--remote", s.remote, "--cache", filepath.Join(s.dir, "cache"), "--every", "200ms", "--store", s.store(), "--keys", filepath.Join(s.dir, "keys"),
		"--collector", s.collector, "--github", forgetest.Repo, "--github-api", s.Server.URL, "--github-token-file", filepath.Join(s.dir, "token"))
}

func freePort(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	return port
}

func (s *site) store() string { return "file://" + s.dir + "/store" }

func (s *site) file(name, text string) {
	s.Helper()
	if err := os.WriteFile(filepath.Join(s.dir, name), []byte(text), 0o600); err != nil {
		s.Fatal(err)
	}
}

func (s *site) write(name, text string) {
	s.Helper()
	path := filepath.Join(s.work, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		s.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		s.Fatal(err)
	}
}

func (s *site) git(dir string, args ...string) string {
	s.Helper()
	cmd := exec.Command("git", args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), gitEnv...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		s.Fatalf("git %v: %v\n%s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

func (s *site) push(subject, branch string) string {
	s.Helper()
	s.git(s.work, "add", "-A")
	s.git(s.work, "commit", "-q", "-m", subject)
	s.git(s.work, "push", "-q", "origin", "HEAD:"+branch)
	return s.git(s.work, "rev-parse", "HEAD")
}

// pull makes a pull request that sets the workers, and merges it; it gives the merge.
func (s *site) pull(n int, workers string) string {
	s.Helper()
	s.git(s.work, "fetch", "-q", "origin")
	s.git(s.work, "checkout", "-q", "-B", "topic", "origin/main")
	s.write("services/web/base.yaml", "workers: "+workers+"\n")
	head := s.push("web: "+workers+" workers", fmt.Sprint("topic-", n))
	s.Open(forgetest.Pull{Number: n, Author: "ana", Title: "web: " + workers + " workers", Head: head})
	s.PullBranch(n, fmt.Sprint("topic-", n))
	s.Permit("ben", "write")
	s.Review(n, "ben", "APPROVED", head)
	return s.Merge(n)
}

func (s *site) cmd(name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(s.Context(), filepath.Join(s.bin, name), args...)
	cmd.Env = append(os.Environ(), "MUSTER_CACHE="+filepath.Join(s.dir, "evalcache"), "GITHUB_TOKEN=", "MUSTER_STORE=", "MUSTER_COLLECTOR=")
	return cmd
}

func (s *site) run(name string, args ...string) string {
	s.Helper()
	out, err := s.cmd(name, args...).CombinedOutput()
	if err != nil {
		s.Fatalf("%s %v: %v\n%s", name, args, err, out)
	}
	return string(out)
}

// start runs a process until the test ends, which it does by its own process.
func (s *site) start(as, name string, args ...string) (stop func()) {
	s.Helper()
	cmd := s.cmd(name, args...)
	out := &loud{}
	s.out[as] = out
	cmd.Stdout, cmd.Stderr = out, out
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	if err := cmd.Start(); err != nil {
		s.Fatal(err)
	}
	stop = sync.OnceFunc(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
	})
	s.Cleanup(stop)
	return stop
}

// until waits for what is to come, and tells all that was said when it does not.
func (s *site) until(what string, ok func() bool) {
	s.Helper()
	deadline := time.Now().Add(2 * time.Minute)
	for !ok() {
		if time.Now().After(deadline) {
			var b strings.Builder
			for name, out := range s.out {
				text := out.String()
				fmt.Fprintf(&b, "--- %s\n%s\n", name, text[max(0, len(text)-3000):])
			}
			for _, d := range s.Deployments("") {
				fmt.Fprintf(&b, "--- deployment of %s to %s: %q\n", d.GetSHA(), d.GetEnvironment(), d.States())
			}
			s.Fatalf("not in time: %s\n%s", what, b.String())
		}
		time.Sleep(50 * time.Millisecond) // between two looks at what other processes do
	}
}

// deployed is the deployment of a commit, once there is one.
func (s *site) deployed(commit string) (d forgetest.Deployment, states []string) {
	for _, d := range s.Deployments("prod") {
		if d.GetSHA() == commit {
			return d, d.States()
		}
	}
	return d, nil
}

func (s *site) state(commit, state, holds string) {
	s.Helper()
	s.until(state+" of "+commit[:7], func() bool {
		_, states := s.deployed(commit)
		n := len(states)
		return n > 0 && strings.HasPrefix(states[n-1], state+": ") && strings.Contains(states[n-1], holds)
	})
}

// TestDelivery: a merge is published, confirmed by every host and told as a success; a bad one is a failure with its reason and a pull request that takes it back, and that one,
// merged, is a success again. Between, GitHub is away: what is merged then is published and confirmed all the same, and told by a publisher that was started anew meanwhile.
func TestDelivery(t *testing.T) {
	s := newSite(t, `package fleet

precedence: ["env"]
cohorts: prod: {labels: env: "prod", hosts: list: ["prod-1", "prod-2", "prod-3"]}
rollouts: standard: {waves: [{count: 1}, {percent: 100}], max_in_flight: "100%", watch: "0s"}
`, "prod-1", "prod-2", "prod-3")
	stop := s.publish("publish")
	first := s.git(s.bare, "rev-parse", "main")
	s.state(first, "success", "3 confirmed")

	good := s.pull(1, "6")
	s.state(good, "success", "3 confirmed")
	s.until("the commit's status", func() bool {
		st := s.Statuses(good)
		return len(st) > 0 && st[len(st)-1].GetState() == "success" && st[len(st)-1].GetContext() == "muster / delivered"
	})
	shown := s.run("muster", "show", "2", "--store", s.store())
	if !strings.Contains(shown, "pull request 1 of ana, approved by ben") {
		t.Errorf("the release does not say who approved:\n%s", shown)
	}

	s.down.Store(true)
	quiet := s.pull(2, "7")
	s.until("a release without GitHub", func() bool { return s.cmd("muster", "show", "3", "--store", s.store()).Run() == nil })
	s.until("its confirmation", func() bool {
		return s.cmd("muster", "wait", "3", "--timeout", "1s", "--collector", s.collector).Run() == nil
	})
	stop()
	s.publish("publish again")
	s.down.Store(false)
	s.state(quiet, "success", "3 confirmed")

	bad := s.pull(3, "many")
	s.state(bad, "failure", "prod")
	var revert int
	s.until("a pull request that reverts", func() bool {
		for _, p := range s.Pulls() {
			if strings.HasPrefix(p.GetTitle(), "Revert epoch 4: ") {
				revert = p.GetNumber()
			}
		}
		return revert > 0
	})
	again := s.Merge(revert)
	s.state(again, "success", "3 confirmed")
	d, states := s.deployed(bad)
	if !strings.HasPrefix(states[len(states)-1], "failure: ") {
		t.Errorf("what failed is told as %q", states)
	}
	if n := len(s.Pulls()); n != 4 {
		t.Errorf("%d pull requests", n)
	}
	if d.GetEnvironment() != "prod" || s.git(s.bare, "rev-parse", again+"^{tree}") != s.git(s.bare, "rev-parse", quiet+"^{tree}") {
		t.Error("the revert is not what was good")
	}
	for _, out := range s.out {
		if strings.Contains(out.String(), ciToken) {
			t.Error("the token is printed")
		}
	}
	t.Logf("GitHub was asked %d times for five releases", len(s.Calls()))
	t.Log(s.out["publish"].String() + s.out["publish again"].String())
}
