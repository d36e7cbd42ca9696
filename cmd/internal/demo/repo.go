package demo

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/muster-config/muster/cmd/internal/cli"
)

// repo is a git repository that the git command works on, whatever the user's own configuration says.
type repo struct {
	dir  string
	head string // the revision that is published
}

// openRepo is the user's own repository: it is only read.
func openRepo(dir string) (*repo, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	return &repo{dir: dir, head: "HEAD"}, nil
}

func newRepo(ctx context.Context, dir string, files fs.FS) (*repo, error) {
	if err := os.CopyFS(dir, files); err != nil {
		return nil, fmt.Errorf("write the config repo: %w", err)
	}
	r := &repo{dir: dir, head: "main"}
	for _, args := range [][]string{
		{"init", "-q"},
		{"symbolic-ref", "HEAD", "refs/heads/main"}, // init -b is newer than some gits
		// In the repository's own configuration, so that the user's commits work too.
		{"config", "user.name", "Ana Demo"},
		{"config", "user.email", "ana@acme.example"},
		{"config", "commit.gpgsign", "false"},
		{"config", "core.hooksPath", os.DevNull},
	} {
		if _, err := r.git(ctx, args...); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// commit adds everything and returns the id of the new commit.
func (r *repo) commit(ctx context.Context, subject string) (string, error) {
	if _, err := r.git(ctx, "add", "-A"); err != nil {
		return "", err
	}
	if _, err := r.git(ctx, "commit", "-q", "-m", subject); err != nil {
		return "", err
	}
	return r.git(ctx, "rev-parse", "HEAD")
}

// edit replaces one piece of text in a file.
func (r *repo) edit(path, from, to string) error {
	path = filepath.Join(r.dir, path)
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if !bytes.Contains(data, []byte(from)) {
		return fmt.Errorf("%s has no %q", path, from)
	}
	return os.WriteFile(path, bytes.Replace(data, []byte(from), []byte(to), 1), 0o644)
}

func (r *repo) git(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "git", args...)
	cmd.Dir = r.dir
	// In a process group of its own: Ctrl-C goes to all of the terminal's, and it is the demo that ends git then.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second // for a child of it that holds the pipes
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, "GIT_") {
			cmd.Env = append(cmd.Env, kv)
		}
	}
	cmd.Env = append(cmd.Env, "GIT_CONFIG_GLOBAL="+os.DevNull, "GIT_CONFIG_SYSTEM="+os.DevNull, "GIT_CONFIG_NOSYSTEM=1", "LC_ALL=C")
	out, err := cmd.CombinedOutput()
	if errors.Is(err, exec.ErrNotFound) {
		return "", cli.Fail(cli.Local, "install git; muster itself works without it, the demo makes commits with it", "the demo needs the git command")
	}
	if err != nil && ctx.Err() != nil {
		return "", fmt.Errorf("git %s: %w", args[0], ctx.Err())
	}
	if err != nil {
		return "", fmt.Errorf("git %s: %w: %s", args[0], err, bytes.TrimSpace(out))
	}
	return string(bytes.TrimSpace(out)), nil
}
