package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// down is a world of which some parts are off: a config repo, a store, a collector, a host with its agent, an operator with keys.
type down struct {
	t          *testing.T
	dir, bin   string
	env        []string
	prometheus *httptest.Server
	collector  *exec.Cmd
	off        []string
}

const (
	downFleet = `package fleet

precedence: ["env"]
cohorts: prod: {labels: env: "prod", hosts: list: ["host-1"], rollout: "watched"}
rollouts: watched: {
	waves: [{percent: 100, bake: "1m"}]
	spread: "0s"
	watch:  "30m"
	gates: errors: {prometheus: "sum(rate(errors[1m]) * $canary)", max: 0.5, every: "10s", fails: 2}
}
`
	downSchema = `package hello

#Config: {
	listen!:   string
	greeting!: string
	workers!:  int & >0 & <1000
}
values: #Config
files: "hello.yaml": {format: "yaml", data: values}
confirm: "disk"
`
)

func newDown(t *testing.T, off []string) *down {
	t.Helper()
	bin, err := binaries()
	if err != nil {
		t.Fatal(err)
	}
	d := &down{t: t, dir: t.TempDir(), bin: bin, off: off}
	// Whatever stands for the forge and CI is an address at which nobody listens: nothing that is done by hand asks them.
	d.env = append(slices.Concat(os.Environ(), gitEnv), "PATH="+bin+string(filepath.ListSeparator)+os.Getenv("PATH"), "HOME="+d.dir, "MUSTER_CACHE="+filepath.Join(d.dir, "cache"),
		"MUSTER_STORE=file://"+filepath.Join(d.dir, "store"), "MUSTER_KEYS="+filepath.Join(d.dir, "keys"), "MUSTER_COLLECTOR=", "MUSTER_TOKEN_FILE=")
	if d.isOff("forge") || d.isOff("CI") {
		d.env = append(d.env, "GITHUB_API_URL=http://127.0.0.1:1", "GITHUB_TOKEN=none")
	}
	d.ok("muster", "init", "repo")
	d.write("repo/fleet/fleet.cue", downFleet)
	d.write("repo/services/hello/schema.cue", downSchema)
	if d.isOff("git remote") {
		d.ok("git", "-C", "repo", "remote", "add", "origin", filepath.Join(d.dir, "nowhere.git"))
	}
	d.commit("first", "good day")
	d.ok("muster", "keys", "init", "keys", "--repo", "example/config")
	d.ok("muster", "publish", "-C", "repo", "--rollout=now")
	d.prometheus = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, `{"status":"success","data":{"resultType":"matrix","result":[]}}`)
	}))
	t.Cleanup(d.prometheus.Close)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := ln.Addr().String()
	ln.Close()
	d.env = append(d.env, "COLLECTOR=http://"+addr)
	d.write("collector.yaml", fmt.Sprintf("listen: %s\nstore: file://%s/store\nkeyring: %[2]s/keys/keyring.json\nrollout_key: %[2]s/keys/rollout.key\ndatabase: sqlite://%[2]s/collector.db\npoll: 200ms\nprometheus: {url: %q}\n", addr, d.dir, d.prometheus.URL))
	d.write("host-1.yaml", fmt.Sprintf("host: host-1\nrepo: example/config\ncohort: prod\nsources: [\"http://%s\", \"file://%s/store\"]\nkeyring: %[2]s/keys/keyring.json\nroot: %[2]s/root\npoll: 1s\ncollector: {url: \"http://%[1]s\"}\n", addr, d.dir))
	d.collector = d.start("muster-collector", "run", "--config", "collector.yaml")
	d.start("muster-agent", "run", "--config", "host-1.yaml")
	d.runs("good day")
	d.commit("second", "good evening")
	d.ok("muster", "publish", "-C", "repo", "--rollout=now")
	d.runs("good evening")
	d.until("the collector knows", func() bool {
		out, _ := d.call("muster", "wait", "2", "--timeout", "0", "--collector", "http://"+addr)
		return strings.Contains(out, "confirmed")
	})
	for _, part := range off {
		switch part {
		case "collector":
			d.kill(d.collector)
		case "Prometheus":
			d.prometheus.Close()
		case "bucket":
			if err := os.Rename(filepath.Join(d.dir, "store"), filepath.Join(d.dir, "gone")); err != nil {
				t.Fatal(err)
			}
		}
	}
	return d
}

func (d *down) isOff(part string) bool { return slices.Contains(d.off, part) }

func (d *down) write(name, text string) {
	d.t.Helper()
	if err := os.WriteFile(filepath.Join(d.dir, name), []byte(text), 0o644); err != nil {
		d.t.Fatal(err)
	}
}

func (d *down) commit(subject, greeting string) {
	d.t.Helper()
	d.write("repo/services/hello/overlays/env/prod.yaml", "greeting: "+greeting+"\n")
	d.ok("git", "-C", "repo", "add", "-A")
	d.ok("git", "-C", "repo", "commit", "-q", "-m", subject)
}

func (d *down) command(ctx context.Context, args []string) *exec.Cmd {
	path := args[0]
	if p := filepath.Join(d.bin, path); path != "git" && path != "sh" {
		path = p
	}
	cmd := exec.CommandContext(ctx, path, args[1:]...)
	cmd.Dir, cmd.Env = d.dir, d.env
	return cmd
}

// call runs a command, and gives what it printed with its exit code.
func (d *down) call(args ...string) (string, int) {
	d.t.Helper()
	ctx, cancel := context.WithTimeout(d.t.Context(), 3*time.Minute)
	defer cancel()
	out, err := d.command(ctx, args).CombinedOutput()
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		return string(out), exit.ExitCode()
	case err != nil:
		d.t.Fatalf("%v: %v", args, err)
	}
	return string(out), 0
}

func (d *down) ok(args ...string) string {
	d.t.Helper()
	out, code := d.call(args...)
	if code != 0 {
		d.t.Fatalf("%s: exit %d\n%s", strings.Join(args, " "), code, out)
	}
	return out
}

// start runs a daemon until the end of the test.
func (d *down) start(args ...string) *exec.Cmd {
	d.t.Helper()
	cmd := d.command(context.Background(), args)
	log := &bytes.Buffer{}
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(func() {
		d.kill(cmd)
		if d.t.Failed() {
			d.t.Logf("%s:\n%s", args[0], log)
		}
	})
	return cmd
}

func (d *down) kill(cmd *exec.Cmd) {
	if cmd.ProcessState == nil {
		cmd.Process.Signal(syscall.SIGKILL)
		cmd.Wait()
	}
}

func (d *down) until(what string, ok func() bool) {
	d.t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			d.t.Fatalf("%s: not after two minutes", what)
		}
	}
}

// runs waits until the host's file says something.
func (d *down) runs(text string) {
	d.t.Helper()
	d.until("the host runs "+text, func() bool {
		data, _ := os.ReadFile(filepath.Join(d.dir, "root/current/hello/hello.yaml"))
		return strings.Contains(string(data), text)
	})
}

// drill is an emergency command: what it takes, and what shows that it worked.
type drill struct {
	name  string
	args  []string
	takes []string // parts without which it does not work
	codes []int    // and then its exit code: one of these
	says  string   // and what it says, at least
	shows string   // in the host's file, if it worked
}

var drills = []drill{
	{"freeze", []string{"muster", "freeze", "prod", "--reason", "INC-311", "--until", "1h"}, []string{"bucket"}, []int{5}, "there is no store at file://", ""},
	{"rollback", []string{"muster", "rollback", "prod", "--to", "1", "--now", "--yes", "--reason", "INC-311"}, []string{"bucket"}, []int{5}, "there is no store at file://", "good day"},
	{"override", []string{"muster", "override", "set", "--cohort", "prod", "hello", "workers=7", "--now", "--yes", "--ttl", "1h", "--id", "inc-311", "--reason", "INC-311"}, []string{"bucket"}, []int{5}, "muster: hint: with the bucket gone, --head and --out FILE make it for `muster-agent apply --from FILE`", "workers: 7"},
	// A collector without its bucket takes no order: it says 3 where the bucket is there and has lost the cohort's head, 5 where it cannot be reached.
	{"unfreeze, through the collector", []string{"sh", "-c", `muster unfreeze prod --collector "$COLLECTOR" --reason INC-311`}, []string{"collector", "bucket"}, []int{3, 5}, "collector ", ""},
	{"hold", []string{"muster-agent", "hold", "--config", "host-1.yaml", "--reason", "INC-311", "--for", "1h"}, nil, nil, "", ""},
	{"unhold", []string{"muster-agent", "unhold", "--config", "host-1.yaml"}, nil, nil, "", ""},
	{"override into a file", []string{"sh", "-c", `muster-agent status --head --config host-1.yaml > head.json && muster override set -C repo --head head.json --out fix.muster hello workers=9 --yes --ttl 1h --id inc-312 --reason INC-312`}, nil, nil, "", ""},
	{"apply by hand", []string{"muster-agent", "apply", "--config", "host-1.yaml", "--from", "fix.muster", "--reason", "INC-312", "--for", "1h"}, nil, nil, "", "workers: 9"},
}

// With each part off alone, and with all of them off, every emergency command works that does not need just that part, and says so where it does.
func TestThingsDown(t *testing.T) {
	parts := []string{"forge", "git remote", "CI", "collector", "Prometheus", "bucket"}
	rows := [][]string{parts}
	for _, part := range parts {
		rows = append(rows, []string{part})
	}
	for _, off := range rows {
		t.Run(strings.Join(off, ", ")+" off", func(t *testing.T) {
			d := newDown(t, off)
			for _, x := range drills {
				out, code := d.call(x.args...)
				lacks := slices.ContainsFunc(x.takes, d.isOff)
				switch {
				case lacks && (!slices.Contains(x.codes, code) || !strings.Contains(out, x.says) || !strings.Contains(out, "muster: hint: ")):
					t.Errorf("%s, which needs %v: exit %d, want %d\n%s", x.name, x.takes, code, x.codes, out)
				case !lacks && code != 0:
					t.Errorf("%s: exit %d\n%s", x.name, code, out)
				case !lacks && x.shows != "":
					d.runs(x.shows)
				}
			}
			out := d.ok("muster-agent", "status", "--config", "host-1.yaml")
			if !strings.Contains(out, "with override inc-312") || !strings.Contains(out, "held by ") {
				t.Errorf("at the end:\n%s", out)
			}
		})
	}
}
