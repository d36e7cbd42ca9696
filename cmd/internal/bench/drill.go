package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/muster-config/muster/distributor/store/open"
	"github.com/muster-config/muster/distributor/verdict"
)

// drillLimit is what an emergency may take, from the command to the last of 200 hosts.
const drillLimit = 3 * time.Second

// drill is the emergency: a value is changed on all of n real agents at once, by the program that an operator calls. It evaluates, validates, signs, stores and
// announces; the agents fetch, verify, swap, reload, confirm and report as ever.
func drill(ctx context.Context, n, turns int) error {
	dir, err := os.MkdirTemp("", "muster-bench-drill")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	m := &command{bin: filepath.Join(dir, "muster"), dir: dir, env: append(os.Environ(),
		"MUSTER_STORE=file://"+filepath.Join(dir, "store"), "MUSTER_KEYS="+filepath.Join(dir, "keys"), "HOME="+dir, "XDG_CACHE_HOME="+dir)}
	build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags", "-s -w", "-o", m.bin, "./cmd/muster")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build muster: %w: %s", err, out)
	}
	names := hostNames(n)
	if err := small(ctx, filepath.Join(dir, "repo"), names); err != nil {
		return err
	}
	for _, args := range [][]string{{"keys", "init", "keys", "--repo", repo}, {"publish", "-C", "repo", "--rollout=now"}} {
		if _, err := m.run(ctx, args...); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	group, ctx := errgroup.WithContext(ctx)
	defer group.Wait() //nolint:errcheck // the error that counts is returned below
	defer cancel()
	f := &fleet{dir: dir}
	if f.keyring, err = os.ReadFile(filepath.Join(dir, "keys", "keyring.json")); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "keyring.json"), f.keyring, 0o644); err != nil {
		return err
	}
	if f.store, err = open.Open(ctx, "file://"+filepath.Join(dir, "store")); err != nil {
		return err
	}
	if err := f.startCollector(ctx, group); err != nil {
		return err
	}
	if err := f.startHosts(ctx, group, names); err != nil {
		return err
	}
	if err := f.green(ctx, 1, 2*time.Minute); err != nil {
		return fmt.Errorf("first release: %w", err)
	}
	m.env = append(m.env, "MUSTER_COLLECTOR="+f.collector)
	var command, took, cpu []time.Duration
	for i := range turns {
		before, started := spent(syscall.RUSAGE_SELF)+spent(syscall.RUSAGE_CHILDREN), time.Now()
		out, err := m.run(ctx, "override", "set", "--cohort", cohort, service, fmt.Sprintf("timeout_ms=%d", 5000+i), "--reason", "drill", "--ttl", "1h", "--now", "--yes", "--json")
		if err != nil {
			return err
		}
		command = append(command, time.Since(started))
		var set struct {
			Epoch uint64 `json:"epoch"`
		}
		if err := json.Unmarshal(out, &set); err != nil || set.Epoch == 0 {
			return fmt.Errorf("override set --json says no epoch: %s", out)
		}
		if err := f.overridden(ctx, set.Epoch, n); err != nil {
			return err
		}
		took = append(took, time.Since(started))
		cpu = append(cpu, spent(syscall.RUSAGE_SELF)+spent(syscall.RUSAGE_CHILDREN)-before)
	}
	fmt.Printf("\noverride set --now → %d real agents confirmed, %d times: median %s, min %s, max %s; of it the command %s; processor time of all of it %s; limit %s\n",
		n, turns, round(median(took)), round(slices.Min(took)), round(slices.Max(took)), round(median(command)), round(median(cpu)), drillLimit)
	return nil
}

// command is a program in a directory and an environment.
type command struct {
	bin, dir string
	env      []string
}

func (m *command) run(ctx context.Context, args ...string) ([]byte, error) {
	var out, errOut bytes.Buffer
	cmd := exec.CommandContext(ctx, m.bin, args...)
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = m.dir, m.env, &out, &errOut
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("muster %s: %w: %s", strings.Join(args, " "), err, errOut.Bytes())
	}
	return out.Bytes(), nil
}

// overridden waits until the collector says that n hosts confirm the override of this epoch.
func (f *fleet) overridden(ctx context.Context, epoch uint64, n int) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		hosts, err := f.client.Hosts(ctx, cohort, string(verdict.Overridden))
		if err != nil {
			return err
		}
		done := 0
		for _, h := range hosts {
			if h.Runs && h.Running == epoch {
				done++
			}
		}
		if done == n {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.Join(ctx.Err(), fmt.Errorf("the override of epoch %d is confirmed by %d of %d hosts", epoch, done, n))
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// small writes a config repo with one cohort of these hosts and one service with the three files that the measured processes load.
func small(ctx context.Context, dir string, hosts []string) error {
	list, err := json.Marshal(hosts)
	if err != nil {
		return err
	}
	return commitAll(ctx, dir, map[string]string{
		"cue.mod/module.cue": "module: \"bench.example/config@v0\"\nlanguage: version: \"v0.17.0\"\n",
		"fleet/fleet.cue":    "package fleet\n\nprecedence: [\"cohort\"]\ncohorts: \"" + cohort + "\": {hosts: list: " + string(list) + "}\n",
		"services/" + service + "/service.cue": "package " + service + "\n\n#Config: {\n\tname!: string\n\ttimeout_ms!: int & >0 & <60000\n}\nvalues: #Config\nfiles: {\n" +
			"\ta: {format: \"yaml\", data: values}\n\tb: {format: \"json\", data: values}\n\tc: {format: \"env\", data: {TIMEOUT_MS: values.timeout_ms}}\n}\n",
		"services/" + service + "/base.yaml": "name: " + service + "\ntimeout_ms: 1000\n",
	})
}
