package source

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/go-git/go-git/v5/plumbing/format/config"
)

// discover looks for a repository at dir and above, as git does: a directory is passed over if its .git is not usable.
func discover(dir string) (*Repo, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("open repository: %w", err)
	}
	fi, err := os.Stat(abs)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("open repository %s: %w: there is no such directory", dir, ErrNoRepo)
	case err != nil:
		return nil, fmt.Errorf("open repository: %w", err)
	case !fi.IsDir():
		return nil, fmt.Errorf("open repository %s: %w: it is a file", dir, ErrNoRepo)
	}
	broken := ""
	for at := abs; ; at = filepath.Dir(at) {
		dot := filepath.Join(at, ".git")
		fi, err := os.Stat(dot)
		switch {
		case err == nil && fi.IsDir():
			if isGitDir(dot) {
				return &Repo{name: at, gitDir: dot, common: dot, workTree: at}, nil
			}
			broken = dot
		case err == nil:
			return linked(at, dot)
		case !errors.Is(err, fs.ErrNotExist):
			return nil, fmt.Errorf("open repository: %w", err)
		}
		if isGitDir(at) {
			return &Repo{name: at, gitDir: at, common: at}, nil
		}
		if at == filepath.Dir(at) {
			break
		}
	}
	if broken != "" {
		return nil, fmt.Errorf("open repository %s: %w: %s is there but incomplete; clone it again", dir, ErrNoRepo, broken)
	}
	return nil, fmt.Errorf("open repository %s: %w, nor is any directory above; run git init there, or name another directory", dir, ErrNoRepo)
}

func isGitDir(dir string) bool {
	for _, sub := range []string{"objects", "refs"} {
		if fi, err := os.Stat(filepath.Join(dir, sub)); err != nil || !fi.IsDir() {
			return false
		}
	}
	_, err := os.Lstat(filepath.Join(dir, "HEAD"))
	return err == nil
}

// linked follows the .git file of a linked work tree, or of a repository whose git directory lies elsewhere.
func linked(at, dot string) (*Repo, error) {
	data, err := readSmall(dot)
	if err != nil {
		return nil, fmt.Errorf("open repository: %w", err)
	}
	target, ok := strings.CutPrefix(strings.TrimSpace(string(data)), "gitdir: ")
	if !ok {
		return nil, fmt.Errorf("open repository %s: %w: %s is a file without a gitdir line", at, ErrNoRepo, dot)
	}
	gitDir := under(at, target)
	r := &Repo{name: at, gitDir: gitDir, common: gitDir, workTree: at}
	data, err = readSmall(filepath.Join(gitDir, "commondir"))
	switch {
	case err == nil:
		r.common = under(gitDir, strings.TrimSpace(string(data)))
	case !errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("open repository: %w", err)
	}
	if !isGitDir(r.common) {
		return nil, fmt.Errorf("open repository %s: %w: its git directory %s is gone; run git worktree repair in the main repository", at, ErrNoRepo, r.common)
	}
	return r, nil
}

func under(base, p string) string {
	if filepath.IsAbs(p) {
		return filepath.Clean(p)
	}
	return filepath.Join(base, p)
}

// harmless are the extensions of the repository format that change nothing for a reader of commits, with the values known; nil is any.
var harmless = map[string][]string{
	"noop":              nil,
	"noop-v1":           nil,
	"preciousobjects":   nil,
	"worktreeconfig":    nil,
	"relativeworktrees": nil,
	"partialclone":      nil, // a blob that is not there is reported when it is needed
	"objectformat":      {"sha1"},
	"refstorage":        {"files"},
}

var extensionAdvice = map[string]string{
	"objectformat": "clone it into one made with git init --object-format=sha1, or convert it",
	"refstorage":   "run git refs migrate --ref-format=files in it, or publish from a clone made with --ref-format=files",
}

// checkFormat refuses what would be read wrongly, and settles where the work tree is.
func (r *Repo) checkFormat() error {
	cfg, err := readConfig(filepath.Join(r.common, "config"))
	if err != nil {
		return err
	}
	core := cfg.Section("core")
	if v := core.Option("repositoryformatversion"); v != "" && v != "0" && v != "1" {
		return fmt.Errorf("repository format version %s: %w", v, ErrUnsupported)
	}
	for _, opt := range cfg.Section("extensions").Options {
		key, value := strings.ToLower(opt.Key), strings.ToLower(opt.Value)
		values, known := harmless[key]
		if known && (values == nil || slices.Contains(values, value)) {
			continue
		}
		advice := extensionAdvice[key]
		if advice == "" {
			advice = "use a plain clone of it"
		}
		return fmt.Errorf("extension %s=%s: %w: %s", key, value, ErrUnsupported, advice)
	}
	if r.workTree != "" && r.gitDir == filepath.Join(r.workTree, ".git") && r.gitDir == r.common {
		if b := strings.ToLower(core.Option("bare")); b == "true" || b == "yes" || b == "1" || b == "on" {
			r.workTree = ""
		} else if wt := core.Option("worktree"); wt != "" {
			r.workTree = under(r.gitDir, wt)
		}
	}
	return nil
}

// readConfig reads one git config file, without its includes; no file is an empty config.
func readConfig(name string) (*config.Config, error) {
	cfg := config.New()
	f, err := os.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return cfg, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read git config: %w", err)
	}
	defer f.Close()
	if err := config.NewDecoder(f).Decode(cfg); err != nil {
		return nil, fmt.Errorf("read git config %s: %w", name, err)
	}
	return cfg, nil
}

// readSmall reads a control file of git, all of which are short.
func readSmall(name string) ([]byte, error) {
	fi, err := os.Stat(name)
	if err != nil {
		return nil, err
	}
	if fi.IsDir() {
		return nil, &fs.PathError{Op: "read", Path: name, Err: fs.ErrNotExist} // a branch folder where a branch was asked for
	}
	if fi.Size() > 16<<20 {
		return nil, fmt.Errorf("%s: unreasonably large", name)
	}
	return os.ReadFile(name)
}

func readSmallIfAny(name string) ([]byte, error) {
	data, err := readSmall(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return data, err
}
