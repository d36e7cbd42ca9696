package agent_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-config/muster/agent"
	"github.com/muster-config/muster/agent/durable"
	"github.com/muster-config/muster/agent/install"
	"github.com/muster-config/muster/agent/probe"
	"github.com/muster-config/muster/distributor/store/dir"
)

// gate fails every creation of a file below tmp while it is shut.
type gate struct {
	mu  sync.Mutex
	err error
}

func newGate(err error) *gate { return &gate{err: err} }

func (g *gate) trace(op durable.Op, path string) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.err != nil && op == durable.OpCreate && strings.Contains(path, "/tmp/.tmp-") {
		return g.err
	}
	return nil
}

func (g *gate) open() { g.mu.Lock(); g.err = nil; g.mu.Unlock() }

// job is what a child process is to do: one full sync that is killed before its n-th call that changes the disk.
type job struct {
	Root, Store string
	Keyring     []byte
	Config      agent.Config
	KillAt      int
	Owners      map[string]install.Ownership
}

// child is the agent in a process of its own, so that SIGKILL is the real one.
func child(text string) int {
	var j job
	if err := json.Unmarshal([]byte(text), &j); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	calls := 0
	disk := durable.Disk{Trace: func(op durable.Op, path string) error {
		if calls++; calls == j.KillAt {
			syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		}
		return nil
	}}
	root, err := install.OpenDisk(j.Root, disk)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	root.Own(j.Owners)
	s, err := dir.Open(j.Store)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	a, err := agent.New(agent.Fast(agent.Options{Config: j.Config, Keyring: j.Keyring, Carriers: []agent.Carrier{agent.StoreCarrier{Store: s}}, Installer: root, Linker: root, Memory: root, Prober: probe.New(), MachineID: "m1"}))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	ctx, cancel := timeoutContext(30 * time.Second)
	defer cancel()
	if res, err := a.Once(ctx, false); err != nil || !res.Confirmed {
		fmt.Fprintf(os.Stderr, "%+v, %v\n", res, err)
		return 1
	}
	return 0
}

// inChild runs a job; killed says whether it came to its kill.
func (r *rig) inChild(killAt int) (killed bool) {
	r.t.Helper()
	if r.open != nil {
		r.open.Close()
		r.open = nil
	}
	text, err := json.Marshal(job{Root: r.root, Store: r.store, Keyring: r.world.Keyring, Config: r.cfg, KillAt: killAt, Owners: r.owners})
	if err != nil {
		r.t.Fatal(err)
	}
	exe, err := os.Executable()
	if err != nil {
		r.t.Fatal(err)
	}
	cmd := exec.CommandContext(r.t.Context(), exe)
	cmd.Env = append(os.Environ(), "MUSTER_TEST_CHILD="+string(text))
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	err = cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.Sys().(syscall.WaitStatus).Signal() == syscall.SIGKILL {
		return true
	}
	if err != nil {
		r.t.Fatalf("child: %v\n%s", err, stderr.String())
	}
	return false
}

// whole demands that current is release 1 or release 2, complete, and says which.
func (r *rig) whole() uint64 {
	r.t.Helper()
	in, _, drift, err := install.Verify(r.t.Context(), r.root)
	if err != nil || in == nil || len(drift) > 0 {
		r.t.Fatalf("current is not whole: %+v, %v, %v", in, drift, err)
	}
	if in.Epoch != 1 && in.Epoch != 2 {
		r.t.Fatalf("current is release %d", in.Epoch)
	}
	// At no moment is there nothing to read, and what was somebody's is somewhere.
	path := filepath.Join(r.etc, "checkout.yaml")
	data, err := os.ReadFile(path)
	kept, kerr := os.ReadFile(path + ".before-muster")
	if err != nil || string(data) != "mine" && (string(data) != fmt.Sprint(in.Epoch) || string(kept) != "mine") {
		r.t.Fatalf("%s holds %q (%v), aside is %q (%v), current is release %d", path, data, err, kept, kerr, in.Epoch)
	}
	return in.Epoch
}

// crashRig is a host confirmed at release 1 that is to go to release 2, and a copy of its root to start from again and again. With release 2 comes a link that
// takes the place of somebody's file, another that is not wanted any more, and, as root, an owner.
func crashRig(t *testing.T) (*rig, func()) {
	t.Helper()
	r := newRig(t, "checkout", "search")
	r.world.Release(files{"checkout/checkout.yaml": "1", "search/search.yaml": "same"})
	r.world.Assign(1)
	r.etc = t.TempDir()
	r.edit("checkout", func(s *agent.ServiceConfig) {
		s.Links = map[string]string{filepath.Join(r.etc, "old.yaml"): "checkout.yaml"}
	})
	r.confirmed(1)
	r.open.Close()
	r.open = nil
	r.edit("checkout", func(s *agent.ServiceConfig) {
		s.Links, s.TakeOver = map[string]string{filepath.Join(r.etc, "checkout.yaml"): "checkout.yaml"}, true
	})
	if os.Geteuid() == 0 {
		r.owners = map[string]install.Ownership{"checkout": {Owner: "1", Group: "1"}}
	}
	st := r.world.Release(files{"checkout/checkout.yaml": "2", "checkout/more/deep": "x", "search/search.yaml": "same"})
	_ = st
	r.world.Assign(2)
	saved := filepath.Join(t.TempDir(), "saved")
	copyTree(t, r.root, saved)
	return r, func() {
		t.Helper()
		if r.open != nil {
			r.open.Close()
			r.open = nil
		}
		if err := os.RemoveAll(r.root); err != nil {
			t.Fatal(err)
		}
		copyTree(t, saved, r.root)
		for _, name := range ls(t, r.etc) {
			if err := os.Remove(filepath.Join(r.etc, name)); err != nil {
				t.Fatal(err)
			}
		}
		if err := errors.Join(os.WriteFile(filepath.Join(r.etc, "checkout.yaml"), []byte("mine"), 0o600), os.Symlink(filepath.Join(r.root, "current/checkout/checkout.yaml"), filepath.Join(r.etc, "old.yaml"))); err != nil {
			t.Fatal(err)
		}
		if err := r.procs["checkout"].Load(); err != nil {
			t.Fatal(err)
		}
	}
}

func copyTree(t *testing.T, from, to string) {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), "cp", "-a", from, to).CombinedOutput(); err != nil {
		t.Fatalf("cp: %v: %s", err, out)
	}
}

// linksDone demands that the links of crashRig are made, and nothing but what was aside is beside them.
func (r *rig) linksDone() {
	r.t.Helper()
	r.linked(filepath.Join(r.etc, "checkout.yaml"), "checkout", "checkout.yaml")
	if diff := cmp.Diff([]string{"checkout.yaml", "checkout.yaml.before-muster"}, ls(r.t, r.etc)); diff != "" {
		r.t.Error(diff)
	}
	if os.Geteuid() == 0 {
		info, err := os.Stat(filepath.Join(r.root, "current/checkout/checkout.yaml"))
		if err != nil || info.Sys().(*syscall.Stat_t).Uid != 1 {
			r.t.Errorf("%+v, %v", info, err)
		}
	}
}

// B065, B069: SIGKILL before every single call that changes the disk. Current is the old release or the new one, whole; the next start reaches the new one in
// one cycle, leaves nothing unfinished behind, and the hook of the service that changed has run for the new files at least once.
func TestB065KillAtEachStep(t *testing.T) {
	r, reset := crashRig(t)
	steps := 0
	for at := 1; ; at++ {
		reset()
		before := len(r.procs["checkout"].Reloads())
		killed := r.inChild(at)
		r.whole()
		r.confirmed(2)
		r.linksDone()
		for _, l := range r.procs["search"].Reloads()[1:] {
			t.Errorf("kill %d: search did not change and was reloaded: %s", at, l)
		}
		ran := r.procs["checkout"].Reloads()[before:]
		if len(ran) == 0 || !strings.HasPrefix(ran[len(ran)-1], "checkout 2 ") || len(ran) > 2 {
			t.Errorf("kill %d: reloads: %v", at, ran)
		}
		if t.Failed() {
			t.FailNow()
		}
		if !killed {
			break
		}
		steps++
	}
	if steps < 30 {
		t.Errorf("only %d steps were hit", steps)
	}
	t.Logf("killed at %d steps", steps)
}

// EIO and ENOSPC at every single call: the sync may fail, what is current stays whole, and the next one without a fault gets there.
func TestFaultAtEachStep(t *testing.T) {
	for _, errno := range []syscall.Errno{syscall.EIO, syscall.ENOSPC} {
		t.Run(errno.Error(), func(t *testing.T) {
			r, reset := crashRig(t)
			step := 1
			if errno == syscall.ENOSPC { // the way out is the same; what differs is its name
				step = 3
			}
			for at := 1; ; at += step {
				reset()
				calls, hit := 0, false
				r.disk.Trace = func(op durable.Op, path string) error {
					if calls++; calls == at {
						hit = true
						return errno
					}
					return nil
				}
				if root, err := install.OpenDisk(r.root, r.disk); err == nil {
					// The fault is not in the opening; start counting again for the sync.
					root.Close()
					calls, hit = 0, false
					res, err := r.once()
					if e := r.whole(); e != res.Running {
						t.Fatalf("fault %d: %d is current, and %d is said (%+v, %v)", at, e, res.Running, res, err)
					}
					if errno == syscall.ENOSPC && err != nil && res.Code != agent.CodeNoSpace && res.Phase != "failed" {
						t.Errorf("fault %d: code %q, %v", at, res.Code, err)
					}
				}
				r.disk.Trace = nil
				r.confirmed(2)
				r.linksDone()
				if !hit {
					break
				}
			}
		})
	}
}

// B066: the order of calls of one apply: every new file and every new directory is synced before the link moves, the directory of the link after it; and the
// state that owes the reload is on disk before.
func TestB066SyncBeforeSwap(t *testing.T) {
	r, _ := crashRig(t)
	type call struct {
		op   durable.Op
		path string
	}
	var calls []call
	r.disk.Trace = func(op durable.Op, path string) error {
		calls = append(calls, call{op, strings.TrimPrefix(path, r.root+"/")})
		return nil
	}
	r.confirmed(2)
	swap, created, synced := -1, map[string]bool{}, map[string]bool{}
	for i, c := range calls {
		if c.op == durable.OpRename && c.path == "current" {
			swap = i
		}
	}
	if swap < 0 {
		t.Fatalf("no swap: %v", calls)
	}
	moved, state := false, false
	for _, c := range calls[:swap] {
		switch c.op {
		case durable.OpCreate, durable.OpMkdir:
			if strings.HasPrefix(c.path, "tmp/.tmp-") {
				created[c.path] = true
				synced[c.path] = false
			}
		case durable.OpSync, durable.OpSyncDir:
			synced[c.path] = true
			if c.path == "releases" && moved {
				moved, synced["the move into releases"] = false, true
			}
		case durable.OpRename:
			if strings.HasPrefix(c.path, "releases/2-") {
				moved = true
				for p := range created {
					if !synced[p] {
						t.Errorf("%s is not synced before the release gets its name", p)
					}
				}
			}
			state = state || c.path == "state.json"
		}
	}
	if len(created) < 9 { // tree, 2 services, more; 3 files, record, list
		t.Errorf("%d files and directories seen: %v", len(created), created)
	}
	if !synced["the move into releases"] {
		t.Error("the directory of releases is not synced before the swap")
	}
	if !state {
		t.Error("the state is not written before the swap")
	}
	if last := calls[swap+1]; last.op != durable.OpSyncDir || last.path != r.root {
		t.Errorf("after the swap comes %v, not the sync of the root", last)
	}
}
