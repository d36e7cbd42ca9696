package fleet

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/muster-config/muster/distributor"
	"github.com/muster-config/muster/distributor/api"
	"github.com/muster-config/muster/distributor/bundle"
	"github.com/muster-config/muster/distributor/keys"
	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/store"
	"github.com/muster-config/muster/distributor/store/open"
	"github.com/muster-config/muster/distributor/wire"
)

func TestMain(m *testing.M) {
	code := m.Run()
	if built != "" {
		os.RemoveAll(built)
	}
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

var built string

// binaries builds the real programs once and returns their directory.
var binaries = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "muster-fleet-")
	if err != nil {
		return "", err
	}
	built = dir
	args := []string{"build", "-o", dir + string(filepath.Separator)}
	if raceEnabled {
		args = append(args, "-race")
	}
	_, file, _, _ := runtime.Caller(0)
	build := exec.Command("go", append(args, "./cmd/muster-collector", "./cmd/muster-fleet")...)
	build.Dir = filepath.Join(filepath.Dir(file), "..", "..", "..")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build: %w\n%s", err, out)
	}
	return dir, nil
})

const (
	repo    = "acme/config"
	service = "checkout"
	setting = service + "/checkout.yaml"
)

// world is a store, a publisher whose builds are prepared, and a collector.
type world struct {
	t         *testing.T
	dir       string
	store     store.Store
	keyring   []byte
	publisher *distributor.Publisher
	rollout   manifest.Signer
	policy    manifest.Policy
	commits   []string
	last      map[string]map[string]bundle.Service // by cohort: as the newest release has them
	collector string
	client    *api.Client
	step      time.Duration // between two looks of until
}

// standard is one wave of all hosts at once.
func standard() manifest.RolloutPolicy {
	return manifest.RolloutPolicy{
		Waves: []manifest.Wave{{Percent: 100, Bake: "0s"}}, Gates: map[string]manifest.Gate{}, MinReported: 0.95, MaxInFlight: "100%", Spread: "0s", Timeout: "10m", OnFailure: "rollback",
		Watch: "0s", ApproveBefore: []int{}, Windows: []string{},
	}
}

// newWorld has a cohort with so many hosts under a policy, in a store that is a directory, unless another one is given.
func newWorld(t *testing.T, s store.Store, policy manifest.RolloutPolicy, hosts []string) *world {
	t.Helper()
	w := &world{t: t, dir: t.TempDir(), store: s, last: map[string]map[string]bundle.Service{}, step: 50 * time.Millisecond}
	var err error
	if s == nil {
		w.store, err = open.Open(t.Context(), "file://"+filepath.Join(w.dir, "store"))
		w.check(err)
	}
	set := keys.Set{Root: keys.FromSeed(1), Release: keys.FromSeed(2), Rollout: keys.FromSeed(3), Operator: keys.FromSeed(4)}
	env, err := set.Keyring(repo, time.Now().Add(-time.Minute).UTC())
	w.check(err)
	w.keyring, err = wire.Encode(env)
	w.check(err)
	w.check(os.WriteFile(filepath.Join(w.dir, "keyring.json"), w.keyring, 0o644))
	w.rollout = set.Rollout
	w.publisher, err = distributor.NewPublisher(distributor.Config{Store: w.store, Repo: repo, Release: set.Release, Rollout: set.Rollout, Keyring: w.keyring, By: "test", Now: time.Now})
	w.check(err)
	w.policy = manifest.Policy{
		Precedence: []string{"cohort"}, Cohorts: map[string]manifest.CohortPolicy{}, Rollouts: map[string]manifest.RolloutPolicy{"standard": policy},
	}
	w.cohort("prod", hosts)
	return w
}

func (w *world) cohort(name string, hosts []string) {
	w.policy.Cohorts[name] = manifest.CohortPolicy{Labels: map[string]string{}, Services: []string{service}, Hosts: manifest.HostsPolicy{List: hosts}, Rollout: "standard", Order: 100}
}

func (w *world) check(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func names(n int) []string {
	list := make([]string, n)
	for i := range list {
		list[i] = fmt.Sprintf("sim-%04d", i)
	}
	return list
}

func digestOf(text string) string {
	sum := sha256.Sum256([]byte(text))
	return "sha256:" + hex.EncodeToString(sum[:])
}

// publish releases a commit with these files for every cohort, and assigns it to nobody, unless now.
func (w *world) publish(files map[string]string, opts distributor.PublishOptions) (*distributor.Result, error) {
	w.t.Helper()
	n := len(w.commits) + 1
	id := fmt.Sprintf("%040x", n)
	parents := []string{}
	if n > 1 {
		parents = []string{w.commits[n-2]}
	}
	who := manifest.Person{Name: "Ana", Email: "ana@example.org", At: time.Now().UTC().Truncate(time.Second)}
	commit := distributor.Commit{ID: id, Tree: id, Parents: parents, Author: who, Committer: who, Subject: fmt.Sprintf("change %d", n)}
	var list []bundle.File
	by := map[string][]bundle.File{}
	for _, path := range slices.Sorted(maps.Keys(files)) {
		f := bundle.File{Path: path, Mode: 0o644, Data: []byte(files[path])}
		list = append(list, f)
		name, _, _ := strings.Cut(path, "/")
		by[name] = append(by[name], f)
	}
	next := map[string]map[string]bundle.Service{}
	build := func(_ context.Context, in distributor.BuildInput) (*distributor.Build, error) {
		b := &distributor.Build{Commit: commit, Evaluator: "test", Settings: digestOf("settings"), Policy: w.policy, Source: list, Cohorts: map[string]distributor.CohortBuild{}}
		for cohort := range w.policy.Cohorts {
			ix := bundle.Index{V: 1, Repo: repo, Cohort: cohort, Epoch: in.Epoch, Commit: id, Services: map[string]bundle.Service{}}
			grades := map[string]manifest.Grade{}
			for name, files := range by {
				d := bundle.ContentDigest(files)
				s := bundle.Service{Epoch: in.Epoch, Digest: d, Digest0: d, Files: len(files)}
				if was, ok := w.last[cohort][name]; ok && was.Digest0 == d {
					s.Epoch = was.Epoch
				}
				ix.Services[name], grades[name] = s, manifest.GradeProcess
			}
			next[cohort] = ix.Services
			b.Cohorts[cohort] = distributor.CohortBuild{Index: ix, Files: list, Evidence: grades, Content0: bundle.ContentDigest(list), Inputs: digestOf(id)}
		}
		return b, nil
	}
	contains := func(context.Context, string) (bool, error) { return true, nil }
	opts.Settings = digestOf("settings")
	res, err := w.publisher.Publish(w.t.Context(), commit, contains, build, opts)
	if err != nil {
		return nil, err
	}
	w.commits = append(w.commits, id)
	w.last = next
	return res, nil
}

func (w *world) release(text string) uint64 {
	w.t.Helper()
	res, err := w.publish(map[string]string{setting: text}, distributor.PublishOptions{})
	w.check(err)
	return res.Epoch
}

// collect starts the real collector with a controller. More is what else collector.yaml is to have.
func (w *world) collect(more string) {
	w.t.Helper()
	bin, err := binaries()
	w.check(err)
	w.check(keys.FromSeed(3).WriteFile(filepath.Join(w.dir, "rollout.key")))
	config := filepath.Join(w.dir, "collector.yaml")
	text := fmt.Sprintf("listen: 127.0.0.1:0\nstore: %q\nkeyring: %q\nrollout_key: %q\ndatabase: %q\npoll: 1s\n%s", "file://"+filepath.Join(w.dir, "store"),
		filepath.Join(w.dir, "keyring.json"), filepath.Join(w.dir, "rollout.key"), "sqlite://"+filepath.Join(w.dir, "collector.db"), more)
	w.check(os.WriteFile(config, []byte(text), 0o600))
	line := w.start(filepath.Join(bin, "muster-collector"), "run", "--config", config)
	_, rest, _ := strings.Cut(line, "listening on ")
	w.collector, _, _ = strings.Cut(rest, " ")
	w.client, err = api.NewClient(w.collector, api.ClientOptions{})
	w.check(err)
	w.t.Cleanup(w.client.Close)
}

// start starts a program, ends it with the test, and gives the first line that it prints.
func (w *world) start(name string, args ...string) string {
	w.t.Helper()
	cmd := exec.Command(name, args...)
	var said logs
	cmd.Stderr = &said
	out, err := cmd.StdoutPipe()
	w.check(err)
	withUs(cmd)
	w.check(cmd.Start())
	w.t.Cleanup(func() {
		_ = cmd.Process.Signal(os.Interrupt)
		killer := time.AfterFunc(10*time.Second, func() { _ = cmd.Process.Kill() })
		_ = cmd.Wait()
		killer.Stop()
		if w.t.Failed() {
			w.t.Logf("%s:\n%s", filepath.Base(name), said.tail())
		}
	})
	r := bufio.NewReader(out)
	line, err := r.ReadString('\n')
	if err != nil {
		w.t.Fatalf("%s: %v: %s", name, err, said.tail())
	}
	go func() { _, _ = io.Copy(&said, r) }()
	return strings.TrimSpace(line)
}

// logs is what a program says.
type logs struct {
	mu sync.Mutex
	b  []byte
}

func (l *logs) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.b = append(l.b, p...)
	return len(p), nil
}

func (l *logs) tail() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return string(l.b[max(0, len(l.b)-8000):])
}

// fleet starts hosts; they end with the test.
func (w *world) fleet(o Options) *Fleet {
	w.t.Helper()
	o.Repo, o.Keyring = repo, w.keyring
	if o.Cohort == "" {
		o.Cohort = "prod"
	}
	if o.Link == nil {
		o.Collector = w.collector
	}
	if o.Services == nil {
		o.Services = []string{service}
	}
	f, err := New(o)
	w.check(err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- f.Run(ctx) }()
	w.t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			w.t.Error(err)
		}
		f.Close()
	})
	return f
}

// until looks until something is so.
func (w *world) until(what string, limit time.Duration, so func() bool) {
	w.t.Helper()
	for end := time.Now().Add(limit); !so(); {
		if time.Now().After(end) {
			state := ""
			if w.client != nil {
				s, err := w.client.Status(context.Background())
				state = fmt.Sprintf("%+v, %v", s, err)
			} else {
				data, err := wire.Encode(w.head("prod").Manifest.Rollout)
				state = fmt.Sprintf("%s, %v", data, err)
			}
			w.t.Fatalf("not within %s: %s; %s", limit, what, state)
		}
		select {
		case <-w.t.Context().Done():
			w.t.Fatal(w.t.Context().Err())
		case <-time.After(w.step):
		}
	}
}

// green waits until the collector says that an epoch is confirmed everywhere.
func (w *world) green(epoch uint64, limit time.Duration) {
	w.t.Helper()
	w.until(fmt.Sprintf("epoch %d is confirmed", epoch), limit, func() bool {
		g, err := w.client.Wait(w.t.Context(), epoch, api.WaitQuery{})
		if err != nil && !errors.Is(err, api.ErrNotFound) {
			w.t.Fatal(err)
		}
		return err == nil && g.Green
	})
}

// head is the cohort's newest head.
func (w *world) head(cohort string) *manifest.View {
	w.t.Helper()
	obj, err := w.store.Get(context.Background(), manifest.KeyHead(cohort), manifest.MaxHeadBytes)
	w.check(err)
	trust, err := manifest.NewTrust(repo, w.keyring)
	w.check(err)
	_, view, err := trust.AcceptHead(cohort, obj.Data, time.Now())
	w.check(err)
	return view
}
