package install_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/muster-config/muster/agent"
	"github.com/muster-config/muster/agent/agenttest"
	"github.com/muster-config/muster/agent/client"
	"github.com/muster-config/muster/agent/install"
	"github.com/muster-config/muster/distributor/bundle"
	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/store/mem"
)

// site is an opened root and a world to install from.
type site struct {
	t     *testing.T
	root  *install.Root
	world *agenttest.World
}

func newSite(t *testing.T, path string) *site {
	t.Helper()
	return &site{t: t, root: open(t, path), world: agenttest.New(t, mem.New())}
}

func open(t *testing.T, path string) *install.Root {
	t.Helper()
	r, err := install.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	return r
}

func resolution(st manifest.Statement) manifest.Resolution {
	return manifest.Resolution{Statement: manifest.VerifiedStatement{Statement: st}, Bundle: st.Bundle, Content: st.Content, Files: st.Files, Evidence: st.Evidence}
}

func (s *site) stage(st manifest.Statement) (*agent.Staged, error) {
	return s.root.Stage(s.t.Context(), resolution(st), func(ctx context.Context) (io.ReadCloser, error) {
		body, _, err := s.world.Store.Open(ctx, manifest.KeyBundle(st.Bundle.Object))
		return body, err
	})
}

func (s *site) install(st manifest.Statement) {
	s.t.Helper()
	staged, err := s.stage(st)
	if err == nil {
		err = s.root.Swap(s.t.Context(), staged)
	}
	if err != nil {
		s.t.Fatal(err)
	}
}

// B064: readers during 500 swaps: no open fails, and what is read together is of one release. Through the client library, through the bare link, and from a
// directory that was opened once.
func TestB064ReadersDuringSwaps(t *testing.T) {
	s := newSite(t, filepath.Join(t.TempDir(), "root"))
	var releases []manifest.Statement
	for i := range 2 {
		releases = append(releases, s.world.Release(agenttest.Files{
			"checkout/a": strings.Repeat(fmt.Sprint(i), 4096), "checkout/b": strings.Repeat(fmt.Sprint(i), 4096),
		}))
	}
	s.install(releases[0])
	var stop atomic.Bool
	var reads, switches atomic.Int64
	var wg sync.WaitGroup
	fail := make(chan error, 16)
	reader := func(read func() (a, b []byte, err error)) {
		wg.Go(func() {
			var last byte
			for !stop.Load() {
				a, b, err := read()
				if err == nil && (len(a) != 4096 || !bytes.Equal(a, b) || bytes.Count(a, a[:1]) != len(a)) {
					err = fmt.Errorf("a mix: %.3q (%d), %.3q (%d)", a, len(a), b, len(b))
				}
				if err != nil {
					select {
					case fail <- err:
					default:
					}
					return
				}
				if a[0] != last {
					switches.Add(1)
				}
				last = a[0]
				reads.Add(1)
			}
		})
	}
	link := filepath.Join(s.root.Path(), "current/checkout/a")
	reader(func() ([]byte, []byte, error) { a, err := os.ReadFile(link); return a, a, err })
	for range 2 {
		reader(func() ([]byte, []byte, error) {
			c, err := client.Open(s.root.Path(), "checkout")
			if err != nil {
				return nil, nil, err
			}
			defer c.Close()
			a, err := c.ReadFile("a")
			if err != nil {
				return nil, nil, err
			}
			b, err := c.ReadFile("b")
			if err == nil && c.Epoch() != uint64(a[0]-'0')+1 {
				err = fmt.Errorf("epoch %d with the files of %c", c.Epoch(), a[0])
			}
			return a, b, err
		})
	}
	for i := range 500 {
		s.install(releases[i%2])
		if i%50 == 0 {
			if err := s.root.Sweep(t.Context(), filepath.Join(s.root.Path(), "releases", base(releases[(i+1)%2]))); err != nil {
				t.Fatal(err)
			}
		}
	}
	stop.Store(true)
	wg.Wait()
	select {
	case err := <-fail:
		t.Error(err)
	default:
	}
	if reads.Load() < 100 || switches.Load() < 10 {
		t.Errorf("%d reads, %d switches: the readers saw little", reads.Load(), switches.Load())
	}
	for _, st := range releases {
		list, err := os.ReadDir(filepath.Join(s.root.Path(), "releases", base(st)))
		if err != nil || len(list) != 3 {
			t.Errorf("%v, %v: something was put into a release", list, err)
		}
	}
}

func base(st manifest.Statement) string {
	return fmt.Sprintf("%d-%.12s", st.Epoch, strings.TrimPrefix(st.Content, "sha256:"))
}

// B064: what may stand where current is to be.
func TestB064OddCurrent(t *testing.T) {
	for name, tc := range map[string]struct {
		make func(current string) error
		want string // in the error; "" is well
	}{
		"absent":               {func(string) error { return nil }, ""},
		"a dangling link":      {func(c string) error { return os.Symlink("releases/gone", c) }, ""},
		"dangling elsewhere":   {func(c string) error { return os.Symlink("/nowhere/at/all", c) }, ""},
		"a directory":          {func(c string) error { return os.Mkdir(c, 0o755) }, "is a directory, not the agent's link; move it away"},
		"a file":               {func(c string) error { return os.WriteFile(c, nil, 0o644) }, "is a file, not the agent's link; move it away"},
		"a link somewhere":     {func(c string) error { return os.Symlink("/etc", c) }, "points to /etc, which is none of the agent's releases"},
		"a link to its parent": {func(c string) error { return os.Symlink("releases", c) }, "none of the agent's releases"},
	} {
		t.Run(name, func(t *testing.T) {
			root := filepath.Join(t.TempDir(), "root")
			if err := os.MkdirAll(root, 0o755); err != nil {
				t.Fatal(err)
			}
			current := filepath.Join(root, "current")
			if err := tc.make(current); err != nil {
				t.Fatal(err)
			}
			before, _ := os.Lstat(current)
			r, err := install.Open(root)
			if tc.want != "" {
				if err == nil || !strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), current) {
					t.Errorf("%v, want %q", err, tc.want)
				}
				if after, _ := os.Lstat(current); after.Mode() != before.Mode() {
					t.Error("it was changed")
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			r.Close()
			s := newSite(t, root)
			s.install(s.world.Release(agenttest.Files{"checkout/a": "1"}))
			// And if it comes while the agent runs.
			os.Remove(current)
			os.Mkdir(current, 0o755)
			staged, err := s.stage(s.world.Release(agenttest.Files{"checkout/a": "2"}))
			if err == nil {
				err = s.root.Swap(t.Context(), staged)
			}
			if err == nil {
				t.Error("a directory was swapped away")
			}
		})
	}
}

func TestOneAgentARoot(t *testing.T) {
	root := filepath.Join(t.TempDir(), "root")
	first := open(t, root)
	_, err := install.Open(root)
	if !errors.Is(err, install.ErrLocked) || !strings.Contains(err.Error(), fmt.Sprintf("(process %d) works on %s", os.Getpid(), root)) {
		t.Errorf("%v", err)
	}
	first.Close()
	open(t, root)
}

// B067: a full disk. The old release and the old state stay, whole and readable; the fault has its name; when there is space again the next try works; and tries
// that fail leave nothing behind.
func TestB067FullDisk(t *testing.T) {
	for name, options := range map[string]string{"bytes": "size=1m", "inodes": "nr_inodes=40"} {
		t.Run(name, func(t *testing.T) {
			dir := mount(t, "tmpfs", options)
			s := newSite(t, filepath.Join(dir, "root"))
			small := s.world.Release(agenttest.Files{"checkout/a": "old"})
			s.install(small)
			if err := s.root.Save("state.json", []byte("old state")); err != nil {
				t.Fatal(err)
			}
			big := agenttest.Files{}
			noise := make([]byte, 100<<10)
			rand.New(rand.NewSource(1)).Read(noise)
			for i := range 60 {
				if name == "bytes" {
					big[fmt.Sprintf("checkout/f%02d", i)] = string(noise) + fmt.Sprint(i)
				} else {
					big[fmt.Sprintf("checkout/f%02d", i)] = "x"
				}
			}
			st := s.world.Release(big)
			for range 20 {
				if _, err := s.stage(st); !errors.Is(err, syscall.ENOSPC) {
					t.Fatalf("%v", err)
				}
				if data, err := os.ReadFile(filepath.Join(dir, "root/current/checkout/a")); string(data) != "old" {
					t.Fatalf("%q, %v", data, err)
				}
				if left, err := os.ReadDir(filepath.Join(dir, "root/tmp")); len(left) > 0 || err != nil {
					t.Fatalf("left: %v, %v", left, err)
				}
			}
			// Fill what is left, so that the state cannot be written either.
			var fillers []string
			for i := 0; ; i++ {
				f := filepath.Join(dir, fmt.Sprint("filler", i))
				if err := os.WriteFile(f, noise, 0o644); err != nil {
					fillers = append(fillers, f)
					break
				}
				fillers = append(fillers, f)
				if i > 1000 {
					t.Fatal("the disk does not fill")
				}
			}
			if err := s.root.Save("state.json", bytes.Repeat([]byte("new state"), 1000)); !errors.Is(err, syscall.ENOSPC) {
				t.Errorf("%v", err)
			}
			if data, err := s.root.Load("state.json"); string(data) != "old state" {
				t.Errorf("%q, %v", data, err)
			}
			for _, f := range fillers {
				os.Remove(f)
			}
			remount(t, dir, map[string]string{"bytes": "size=64m", "inodes": "nr_inodes=1000"}[name])
			s.install(st)
			if err := s.root.Save("state.json", []byte("new state")); err != nil {
				t.Error(err)
			}
		})
	}
}

// B076: a root that is read-only, or spread over file systems, is said at the start with path and reason.
func TestB076RootNotUsable(t *testing.T) {
	t.Run("read-only mount", func(t *testing.T) {
		dir := mount(t, "tmpfs", "size=1m")
		if err := unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
			t.Fatal(err)
		}
		root := filepath.Join(dir, "root")
		_, err := install.Open(root)
		if !errors.Is(err, unix.EROFS) || !strings.Contains(err.Error(), "cannot make "+root+": it is on a read-only file system") {
			t.Errorf("%v", err)
		}
	})
	t.Run("became read-only", func(t *testing.T) {
		dir := mount(t, "tmpfs", "size=1m")
		open(t, dir).Close()
		if err := unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
			t.Fatal(err)
		}
		if _, err := install.Open(dir); !errors.Is(err, unix.EROFS) || !strings.Contains(err.Error(), "read-only file system") {
			t.Errorf("%v", err)
		}
	})
	t.Run("another file system below", func(t *testing.T) {
		root := filepath.Join(t.TempDir(), "root")
		open(t, root).Close()
		mountAt(t, filepath.Join(root, "tmp"), "tmpfs", "size=1m")
		if _, err := install.Open(root); err == nil || !strings.Contains(err.Error(), "is on another file system") {
			t.Errorf("%v", err)
		}
	})
	t.Run("no right", func(t *testing.T) {
		root := t.TempDir()
		if err := os.Chmod(root, 0o555); err != nil {
			t.Fatal(err)
		}
		err := as(t, 65534, func() error { _, err := install.Open(root); return err })
		if !errors.Is(err, fs.ErrPermission) || !strings.Contains(err.Error(), root) || !strings.Contains(err.Error(), "user 65534 may not") {
			t.Errorf("%v", err)
		}
	})
}

// B125: a signed bundle that leads out of its place is refused before a file is written. (That Scan knows all such names is the bundle package's to show.)
func TestB125UnsafeBundle(t *testing.T) {
	s := newSite(t, filepath.Join(t.TempDir(), "root"))
	st := s.world.Release(agenttest.Files{"checkout/a": "1"})
	o, err := s.world.Store.Get(t.Context(), manifest.KeyBundle(st.Bundle.Object), 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	// Signed as it is, but for another cohort, epoch, commit, repo or count of files.
	for name, edit := range map[string]func(*manifest.Statement){
		"cohort":  func(st *manifest.Statement) { st.Cohort = "staging" },
		"repo":    func(st *manifest.Statement) { st.Repo = "acme/other" },
		"epoch":   func(st *manifest.Statement) { st.Epoch = 9 },
		"commit":  func(st *manifest.Statement) { st.Commit = strings.Repeat("f", 40) },
		"files":   func(st *manifest.Statement) { st.Files = 2 },
		"content": func(st *manifest.Statement) { st.Content = st.Content0 },
		"tar":     func(st *manifest.Statement) { st.Bundle.Tar = st.Content0 },
		"size":    func(st *manifest.Statement) { st.Bundle.TarSize++ },
		"object":  func(st *manifest.Statement) { st.Bundle.Object = st.Content0 },
	} {
		bad := st
		edit(&bad)
		_, err := s.root.Stage(t.Context(), resolution(bad), func(context.Context) (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(o.Data)), nil })
		var fault *agent.Fault
		if !errors.As(err, &fault) || fault.Code != bundle.CodeDigest {
			t.Errorf("%s: %v", name, err)
		}
		if list, _ := os.ReadDir(filepath.Join(s.root.Path(), "releases")); len(list) > 0 {
			t.Errorf("%s: left %v", name, list)
		}
	}
}

// A directory of the right name is used again only if every file proves good (B065, B066).
func TestB066ExistingReleaseIsVerified(t *testing.T) {
	s := newSite(t, filepath.Join(t.TempDir(), "root"))
	one := s.world.Release(agenttest.Files{"checkout/a": "1"})
	two := s.world.Release(agenttest.Files{"checkout/a": "2"})
	s.install(one)
	s.install(two)
	dir := filepath.Join(s.root.Path(), "releases", base(one))
	if staged, err := s.stage(one); err != nil || !staged.Reused || staged.Dir != dir {
		t.Errorf("%+v, %v", staged, err)
	}
	if err := os.Truncate(filepath.Join(dir, "checkout/a"), 0); err != nil {
		t.Fatal(err)
	}
	staged, err := s.stage(one)
	if err != nil || staged.Reused || staged.Dir != dir {
		t.Errorf("%+v, %v", staged, err)
	}
	if data, err := os.ReadFile(filepath.Join(dir, "checkout/a")); string(data) != "1" {
		t.Errorf("%q, %v", data, err)
	}
	// The current one is never taken away: its repair gets a name of its own.
	current := filepath.Join(s.root.Path(), "releases", base(two))
	if err := os.Truncate(filepath.Join(current, "checkout/a"), 0); err != nil {
		t.Fatal(err)
	}
	staged, err = s.stage(two)
	if err != nil || staged.Dir != current+".2" || len(staged.Changed) != 1 {
		t.Errorf("%+v, %v", staged, err)
	}
	if _, err := os.Stat(current); err != nil {
		t.Error(err)
	}
}

// Left-overs of a crash go at the start, and the releases stay.
func TestSweepAtStart(t *testing.T) {
	root := filepath.Join(t.TempDir(), "root")
	s := newSite(t, root)
	s.install(s.world.Release(agenttest.Files{"checkout/a": "1"}))
	s.root.Close()
	for _, junk := range []string{"tmp/.tmp-0123/tree/checkout/a", ".tmp-state", "releases/.tmp-x"} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(root, junk)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, junk), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	open(t, root)
	for _, dir := range []string{"tmp", "releases", "."} {
		list, _ := os.ReadDir(filepath.Join(root, dir))
		for _, e := range list {
			if strings.HasPrefix(e.Name(), ".tmp-") {
				t.Errorf("%s/%s is still there", dir, e.Name())
			}
		}
	}
	if _, err := os.ReadFile(filepath.Join(root, "current/checkout/a")); err != nil {
		t.Error(err)
	}
}
