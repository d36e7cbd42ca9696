// Package install is the agent's directory on a host: the only code that touches it, through agent/durable.
//
//	<root>/lock                                 held by the one agent that works here
//	<root>/state.json, identity.json            the agent's memory, 0600
//	<root>/tmp/                                 one unfinished release at most
//	<root>/releases/<epoch>-<content12>/…       <service>/<file>, .muster.json for programs, .muster.files for verification
//	<root>/current -> releases/…                swapped by rename
//
// A release directory comes into being by one rename of a finished, fsynced tree, and is never changed afterwards. A repair is a new directory (with
// ".2", ".3" … behind its name). Whatever call the power goes at, current names the old release or the new one.
package install

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/muster-config/muster/agent/durable"
)

const (
	dirReleases = "releases"
	dirTmp      = "tmp"
	linkCurrent = "current"
	nameLock    = "lock"
)

// Root is the target directory of one agent. Its methods are for one goroutine at a time.
type Root struct {
	path string
	disk durable.Disk
	lock *os.File

	owners map[string]Ownership
	untidy bool       // something unfinished may lie in tmp
	known  remembered // what Current read last
}

// Open takes the directory into use: makes what is missing, checks what may be wrong with it, and keeps other agents out until Close.
func Open(path string) (*Root, error) { return OpenDisk(path, durable.Disk{}) }

// OpenDisk is Open with a Disk of the caller's, which may record or fail its calls.
func OpenDisk(path string, disk durable.Disk) (*Root, error) {
	r := &Root{path: filepath.Clean(path), disk: disk}
	if !filepath.IsAbs(r.path) {
		return nil, fmt.Errorf("root %s is not an absolute path", path)
	}
	if err := r.open(); err != nil {
		_ = r.Close()
		return nil, err
	}
	return r, nil
}

func (r *Root) open() error {
	// Services and people look below it: 0755, whatever the umask. What is secret has a mode of its own.
	if err := r.disk.MkdirAll(r.path, 0o755); err != nil {
		return r.cannot("make", err)
	}
	if err := r.takeLock(); err != nil {
		return err
	}
	for _, d := range []struct {
		name string
		mode fs.FileMode
	}{{dirReleases, 0o755}, {dirTmp, 0o700}} {
		if err := r.disk.MkdirAll(r.join(d.name), d.mode); err != nil {
			return r.cannot("make "+d.name+" in", err)
		}
	}
	if err := r.sameDevice(); err != nil {
		return err
	}
	for _, d := range []string{r.path, r.join(dirTmp), r.join(dirReleases)} {
		if err := unix.Access(d, unix.W_OK|unix.X_OK); err != nil {
			return r.cannot("write to", &fs.PathError{Op: "access", Path: d, Err: err})
		}
		if err := r.disk.Sweep(d); err != nil {
			return r.cannot("clean up", err)
		}
	}
	if err := r.sweepTmp(); err != nil {
		return r.cannot("clean up", err)
	}
	_, err := r.target()
	return err
}

// Close lets other agents in.
func (r *Root) Close() error {
	if r.lock == nil {
		return nil
	}
	err := r.lock.Close() // drops the lock too
	r.lock = nil
	return err
}

// Path is the directory.
func (r *Root) Path() string { return r.path }

func (r *Root) join(elem ...string) string {
	return filepath.Join(append([]string{r.path}, elem...)...)
}

// cannot says which right is missing where.
func (r *Root) cannot(what string, err error) error {
	why := err
	switch {
	case errors.Is(err, unix.EROFS):
		why = errors.New("it is on a read-only file system; mount it writable, or set root: to another directory")
	case errors.Is(err, fs.ErrPermission):
		why = fmt.Errorf("user %d may not: permission denied; give it the directory, or set root: to another one", os.Geteuid())
	}
	var at *fs.PathError
	if errors.As(err, &at) && at.Path != r.path && !errors.Is(why, err) {
		return fmt.Errorf("cannot %s %s: %s: %w", what, r.path, at.Path, joined{why, err})
	}
	return fmt.Errorf("cannot %s %s: %w", what, r.path, joined{why, err})
}

// joined shows one error and is both.
type joined struct{ show, is error }

func (j joined) Error() string   { return j.show.Error() }
func (j joined) Unwrap() []error { return []error{j.show, j.is} }

func (r *Root) takeLock() error {
	f, err := os.OpenFile(r.join(nameLock), os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return r.cannot("write to", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		defer f.Close()
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return r.cannot("lock", err)
		}
		who := ""
		buf := make([]byte, 32)
		if n, _ := f.ReadAt(buf, 0); n > 0 {
			who = " (process " + strings.TrimSpace(string(buf[:n])) + ")"
		}
		return fmt.Errorf("%w%s works on %s", ErrLocked, who, r.path)
	}
	r.lock = f
	// The process id is for the message above only; the lock itself is the kernel's and ends with the process.
	if err := f.Truncate(0); err == nil {
		f.WriteAt(fmt.Appendf(nil, "%d\n", os.Getpid()), 0) //nolint:errcheck // informative
	}
	return nil
}

// ErrLocked is another agent on the same root.
var ErrLocked = errors.New("another muster-agent")

// sameDevice refuses a root that is put together from several file systems: a rename would not work across them.
func (r *Root) sameDevice() error {
	var root, st unix.Stat_t
	if err := unix.Stat(r.path, &root); err != nil {
		return r.cannot("read", err)
	}
	for _, d := range []string{dirReleases, dirTmp} {
		if err := unix.Stat(r.join(d), &st); err != nil {
			return r.cannot("read", err)
		}
		if st.Dev != root.Dev {
			return fmt.Errorf("%s is on another file system than %s; a release could not be moved into place: mount the whole root as one", r.join(d), r.path)
		}
	}
	return nil
}

// target is the directory name under releases that current points to; "" if there is no release there. What is not the agent's own link is an error.
func (r *Root) target() (string, error) { return currentTarget(r.path) }

func currentTarget(root string) (string, error) {
	link := filepath.Join(root, linkCurrent)
	to, err := os.Readlink(link)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "", nil
	case errors.Is(err, unix.EINVAL): // no link
		what := "a file"
		if info, err := os.Lstat(link); err == nil && info.IsDir() {
			what = "a directory"
		}
		return "", fmt.Errorf("%s is %s, not the agent's link; move it away, then start the agent again", link, what)
	case err != nil:
		return "", fmt.Errorf("read %s: %w", link, err)
	}
	if _, err := os.Stat(link); errors.Is(err, fs.ErrNotExist) {
		return "", nil // dangling: there is nothing, and the next swap puts it right
	}
	name, ok := strings.CutPrefix(to, dirReleases+"/")
	if !ok || name == "" || strings.ContainsRune(name, '/') || name == "." || name == ".." {
		return "", fmt.Errorf("%s points to %s, which is none of the agent's releases; move it away, then start the agent again", link, to)
	}
	return name, nil
}

// Documents reads the agent's memory under a root without taking that into use.
type Documents string

// Load reads one of them.
func (d Documents) Load(name string) ([]byte, error) {
	return os.ReadFile(filepath.Join(string(d), name))
}

// Load reads a document of the agent's memory.
func (r *Root) Load(name string) ([]byte, error) { return os.ReadFile(r.join(name)) }

// Save replaces a document of the agent's memory, durably and as a whole.
func (r *Root) Save(name string, data []byte) error {
	return r.disk.WriteFile(r.join(name), 0o600, data)
}

// SaveUnsynced implements agent.QuickMemory: a swap fsyncs the same directory.
func (r *Root) SaveUnsynced(name string, data []byte) error {
	return r.disk.WriteFileUnsynced(r.join(name), 0o600, data)
}

// sweepTmp removes what is unfinished. Nobody else works there.
func (r *Root) sweepTmp() error {
	r.untidy = true
	entries, err := os.ReadDir(r.join(dirTmp))
	if err != nil {
		return err
	}
	for _, e := range entries {
		if err := r.disk.RemoveAll(r.join(dirTmp, e.Name())); err != nil {
			return err
		}
	}
	r.untidy = false
	return nil
}
