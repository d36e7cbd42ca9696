package source

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/go-git/go-billy/v5/osfs"
	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/cache"
	"github.com/go-git/go-git/v5/plumbing/format/packfile"
	"github.com/go-git/go-git/v5/storage/filesystem"
)

// ErrMirrorBusy: another process uses this cache.
var ErrMirrorBusy = errors.New("in use by another process")

// MirrorOptions are how a remote is reached. The zero value asks without credentials.
type MirrorOptions struct {
	// Token gives the token for https, asked anew for each fetch, so that a file may be replaced. It is sent to the URL's own host only, and
	// is in no message and on no disk. ssh uses the user's agent and configuration.
	Token func() (string, error)
	User  string // beside the token; most forges take any. Default x-access-token.
	// Warn is told, once each time, that the cache was damaged and is made anew, or that something else was found in its place.
	Warn func(string)
	// Timeout bounds one fetch; default 10 minutes.
	Timeout time.Duration
}

// Mirror follows one branch of a remote repository by a bare clone of its own, in a cache directory that no other process uses meanwhile.
//
// A process may be killed at any point, and the cache may be lost or damaged: what cannot be read is thrown away and fetched again. Only a directory that
// holds our mark, or no file at all, is ever written to.
type Mirror struct {
	dir, branch string
	remote      *remote
	opts        MirrorOptions
	lock        *os.File

	mu    sync.Mutex
	repo  *Repo // nil until something was fetched; then the same for ever
	ready bool  // the clone is there
}

const (
	markName = "muster-cache"
	lockName = "lock"
	repoName = "repo.git"
	// lastRef is the tip fetched last, of whatever branch: what the remote need not send again.
	lastRef = "refs/muster/last"
)

// CacheName gives a directory name for the mirror of a branch: stable, and without a trace of the URL.
func CacheName(url, branch string) string {
	sum := sha256.Sum256([]byte(url + "\x00" + branch))
	return hex.EncodeToString(sum[:12])
}

// OpenMirror prepares dir as the cache for a branch of the repository at url: https://…, ssh://…, user@host:path, file:///… or a path. It does not ask
// the remote yet. The errors are ErrMirrorBusy, a URL that cannot be used, and a directory that is not ours to use.
func OpenMirror(ctx context.Context, dir, url, branch string, opts MirrorOptions) (*Mirror, error) {
	branch = strings.TrimPrefix(branch, "refs/heads/")
	if !validRef("refs/heads/" + branch) {
		return nil, fmt.Errorf("branch %q: %w: not a branch name", branch, ErrNoRev)
	}
	rem, err := parseRemote(url, opts)
	if err != nil {
		return nil, err
	}
	if opts.Warn == nil {
		opts.Warn = func(string) {}
	}
	if opts.Timeout <= 0 {
		opts.Timeout = 10 * time.Minute
	}
	m := &Mirror{dir: dir, branch: branch, remote: rem, opts: opts}
	if err := m.claim(); err != nil {
		return nil, fmt.Errorf("cache %s: %w", dir, err)
	}
	if err := m.prepare(ctx); err != nil {
		_ = m.Close()
		return nil, fmt.Errorf("cache %s: %w", dir, err)
	}
	return m, nil
}

// Close lets go of the cache. What was read from Repo stays usable, Repo does not.
func (m *Mirror) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.remote.client != nil {
		m.remote.client.CloseIdleConnections()
	}
	return errors.Join(m.closeRepo(), m.lock.Close())
}

func (m *Mirror) closeRepo() error {
	if m.repo == nil {
		return nil
	}
	return m.repo.Close()
}

// Repo is the clone, in which HEAD is the branch as it was fetched last; nil if nothing ever was. It stays the same while the mirror is open.
func (m *Mirror) Repo() *Repo {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.repo
}

// Fetch asks the remote for the branch, and gives its tip, which Repo then has with its whole history. A forced push moves the branch: whether that may be
// followed is the caller's to decide (Contains).
//
// ErrBranchGone: the remote has no such branch (Repo has none then either). ErrUnreachable is worth another try; ErrDenied is not without another token.
// After any error Repo is as it was.
func (m *Mirror) Fetch(ctx context.Context) (tip string, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	ctx, cancel := context.WithTimeoutCause(ctx, m.opts.Timeout, fmt.Errorf("no end after %s", m.opts.Timeout))
	defer cancel()
	tip, err = m.fetch(ctx)
	if err != nil && !m.remotes(err) && ctx.Err() == nil {
		if damage := m.check(); damage != nil {
			if err := m.throwAway(damage); err != nil {
				return "", fmt.Errorf("cache %s: %w", m.dir, err)
			}
			tip, err = m.fetch(ctx)
		}
	}
	if errors.Is(err, ErrBranchGone) {
		err = errors.Join(err, m.forget())
	}
	if err != nil {
		return "", fmt.Errorf("fetch branch %q of %s: %w", m.branch, m.remote.shown, err)
	}
	return tip, nil
}

// remotes tells errors that are the remote's from those of our own disk.
func (m *Mirror) remotes(err error) bool {
	return errors.Is(err, ErrBranchGone) || errors.Is(err, ErrUnreachable) || errors.Is(err, ErrDenied) || errors.Is(err, ErrShallow) || errors.Is(err, ErrUnsupported)
}

func (m *Mirror) path(names ...string) string {
	return filepath.Join(append([]string{m.dir}, names...)...)
}

// fetch brings the clone up to date, or makes it: a new one is complete before it gets its name.
func (m *Mirror) fetch(ctx context.Context) (string, error) {
	if m.ready {
		return m.fetchInto(ctx, m.repo)
	}
	tmp, err := os.MkdirTemp(m.dir, "new-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(tmp)
	if err := initBare(tmp, m.branch); err != nil {
		return "", err
	}
	fresh, err := Open(tmp)
	if err != nil {
		return "", err
	}
	tip, err := m.fetchInto(ctx, fresh)
	if err := errors.Join(err, fresh.Close()); err != nil {
		return "", err
	}
	if err := os.Rename(tmp, m.path(repoName)); err != nil {
		return "", err
	}
	return tip, m.open()
}

func (m *Mirror) open() error {
	if m.repo == nil {
		r, err := Open(m.path(repoName))
		if err != nil {
			return err
		}
		m.repo = r
	}
	m.ready = true
	return nil
}

func (m *Mirror) fetchInto(ctx context.Context, r *Repo) (string, error) {
	known := func(h plumbing.Hash) bool {
		_, err := r.commit(h)
		return err == nil
	}
	have := func() []plumbing.Hash { return recent(r) }
	write := func(rd io.Reader) error {
		err := storePack(r.gitDir, rd)
		return errors.Join(err, sweep(filepath.Join(r.gitDir, "objects", "pack"), "tmp_"))
	}
	tip, err := m.remote.fetch(ctx, m.branch, known, have, write)
	if err != nil {
		return "", err
	}
	c, err := r.peel(tip)
	if err != nil {
		return "", err
	}
	if _, _, err := r.objects.get(plumbing.TreeObject, c.TreeHash); err != nil {
		return "", err
	}
	if err := r.setRef(lastRef, c.Hash); err != nil {
		return "", err
	}
	if err := r.setRef("refs/heads/"+m.branch, c.Hash); err != nil {
		return "", err
	}
	if err := r.joinPacks(ctx); err != nil { // housekeeping: the branch is here all the same
		m.opts.Warn(fmt.Sprintf("cache %s: %s", m.dir, clean(err.Error())))
	}
	return c.Hash.String(), nil
}

func storePack(gitDir string, rd io.Reader) error {
	s := filesystem.NewStorageWithOptions(osfs.New(gitDir), cache.NewObjectLRU(cacheSize), filesystem.Options{KeepDescriptors: true})
	return errors.Join(packfile.UpdateObjectStorage(s, rd), s.Close())
}

// recent lists commits that the remote need not send: the last tip, and those before it, in case that it was taken back.
func recent(r *Repo) []plumbing.Hash {
	const most = 256
	last, err := r.ref(lastRef)
	if err != nil {
		return nil
	}
	seen := map[plumbing.Hash]bool{last: true}
	list := []plumbing.Hash{last}
	for i := 0; i < len(list); i++ {
		n, err := r.graph(list[i])
		if err != nil {
			return list[:i]
		}
		for _, p := range n.parents {
			if !seen[p] && len(list) < most {
				seen[p] = true
				list = append(list, p)
			}
		}
	}
	return list
}

// forget removes the branch: a ref that may be stale is never taken for it.
func (m *Mirror) forget() error {
	if !m.ready {
		return nil
	}
	err := os.Remove(filepath.Join(m.repo.gitDir, "refs", "heads", filepath.FromSlash(m.branch)))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		return nil
	}
	return err
}

func initBare(dir, branch string) error {
	for _, sub := range []string{"objects/pack", "objects/info", "refs/heads", "refs/tags"} {
		if err := os.MkdirAll(filepath.Join(dir, filepath.FromSlash(sub)), 0o755); err != nil {
			return err
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "config"), []byte("[core]\n\trepositoryformatversion = 0\n\tbare = true\n"), 0o644); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "HEAD"), []byte("ref: refs/heads/"+branch+"\n"), 0o644)
}

// setRef writes a ref of a repository of our own, whole or not at all.
func (r *Repo) setRef(name string, h plumbing.Hash) error {
	file := filepath.Join(r.gitDir, filepath.FromSlash(name))
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	tmp := filepath.Join(r.gitDir, "tmp_ref")
	if err := os.WriteFile(tmp, []byte(h.String()+"\n"), 0o644); err != nil {
		return err
	}
	return os.Rename(tmp, file)
}

// sweep removes the files of a directory that begin with prefix: left by a process that was killed.
func sweep(dir, prefix string) error {
	list, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range list {
		if strings.HasPrefix(e.Name(), prefix) {
			if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}
